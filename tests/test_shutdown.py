"""The end of a program by Ctrl-C and SIGTERM: a word and no traceback, soon, after clean-up."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# what a program does while it is stopped, and what it says besides
BLOCKS = {
    "waits": ("time.sleep(60)", ""),
    "cleans up": ("try: time.sleep(60)\n        finally: print('cleaned')", "cleaned\n"),
    "waits for threads": (
        "with ThreadPoolExecutor() as pool: list(pool.map(time.sleep, [60, 60]))",
        "",
    ),
    "waits for a process": (
        "with ProcessPoolExecutor(1) as pool: list(pool.map(time.sleep, [60]))",
        "",
    ),
    "holds on": (
        "while True:\n            try: time.sleep(60)\n            except KeyboardInterrupt: pass",
        "",
    ),
}
PROGRAM = """
import atexit, signal, sys, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from lantern_demo import shutdown
shutdown.GRACE = 0.5
if __name__ == "__main__":
    atexit.register(print, "at exit")
    signal.signal(signal.SIGINT, {handler})
    with shutdown.stoppable({code}):
        print("begun", flush=True)
        {block}
"""


def stopped(
    tmp_path: Path, block: str, number: int, code: str = "", handler: str = "default_int_handler"
) -> tuple[int, str]:
    """Run a program, send it a signal -> its exit code and what it said after `begun`."""
    file = tmp_path / "program.py"
    file.write_text(
        PROGRAM.format(block=block, code=code, handler=f"signal.{handler}"), encoding="utf-8"
    )
    command = [sys.executable, str(file)]
    path, out = {"PYTHONPATH": str(ROOT)}, subprocess.PIPE
    with subprocess.Popen(
        command, env=path, stdout=out, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    ) as running:
        assert running.stdout is not None and running.stdout.readline() == "begun\n"
        time.sleep(0.3)  # until the block waits
        running.send_signal(number)
        try:
            told, _ = running.communicate(timeout=20)
        finally:
            running.kill()
    return running.returncode, told


@pytest.mark.parametrize("block", BLOCKS)
def test_a_stopped_program_says_so(block: str, tmp_path: Path) -> None:
    """Whatever it waits for."""
    code, says = BLOCKS[block]
    assert stopped(tmp_path, code, signal.SIGINT) == (130, f"{says}Stopped.\nat exit\n")


def test_containers_stop_a_page_which_is_no_failure(tmp_path: Path) -> None:
    assert stopped(tmp_path, "time.sleep(60)", signal.SIGTERM, "0") == (0, "Stopped.\nat exit\n")


def test_a_program_ends_though_nobody_reads_what_it_says(tmp_path: Path) -> None:
    assert stopped(tmp_path, "sys.stdout.close(); time.sleep(60)", signal.SIGINT) == (130, "")


def test_in_the_background_ctrl_c_is_ignored(tmp_path: Path) -> None:
    """As shells ask of the background commands of a script."""
    assert stopped(tmp_path, "time.sleep(1); print('done')", signal.SIGINT, handler="SIG_IGN") == (
        0,
        "done\nat exit\n",
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for a process alone")
@pytest.mark.parametrize(
    "command",
    [
        ["-m", "lantern_demo.models.checkpoints", "--check"],
        ["examples/quick_tour.py"],
        ["examples/train_drafter/drafter.py", "--help"],
    ],
    ids=lambda command: Path(command[-2 if len(command) > 1 else 0]).name,
)
def test_ctrl_c_while_a_command_imports(command: list[str]) -> None:
    """The moment is the first library after the handler; it is imported for seconds."""
    asked = [sys.executable, "-X", "importtime", *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # tests in the background of a script ignore Ctrl-C, and what they start would too
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(asked, cwd=ROOT, **pipes)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stderr is not None
        told = ""
        for line in process.stderr:
            told += line
            if "lantern_demo.shutdown" in told and "torch" in line:
                break
        process.send_signal(signal.SIGINT)
        out, more = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "Stopped.\n")
    assert "Traceback" not in told + more
