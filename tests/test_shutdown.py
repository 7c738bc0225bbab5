"""The end of a program by Ctrl-C: a word and no traceback, soon, after clean-up."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SLEEPS, END = "time.sleep(60)", "Stopped.\nat exit\n"
PROGRAM = """
import atexit, signal, sys, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from lantern_demo import shutdown
shutdown.GRACE = 0.5
if __name__ == "__main__":
    atexit.register(print, "at exit")
    signal.signal(signal.SIGINT, {handler})
    with shutdown.stoppable():
        print("begun", flush=True)
        {block}
"""


def stopped(
    tmp_path: Path, block: str, number: int, handler: str = "default_int_handler"
) -> tuple[int, str]:
    """Run a program, send it a signal -> its exit code and what it said after `begun`."""
    file = tmp_path / "program.py"
    text = PROGRAM.format(block=block, handler=f"signal.{handler}")
    file.write_text(text, encoding="utf-8")
    command, path = [sys.executable, str(file)], {"PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    with subprocess.Popen(command, env=path, **pipes) as running:
        assert running.stdout is not None and running.stdout.readline() == "begun\n"
        time.sleep(0.3)  # until the block waits
        running.send_signal(number)
        try:
            told, _ = running.communicate(timeout=20)
        finally:
            running.kill()
    return running.returncode, told


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (f"try: {SLEEPS}\n        finally: print('cleaned')", f"cleaned\n{END}"),
        ("with ThreadPoolExecutor() as pool: list(pool.map(time.sleep, [60, 60]))", END),
        ("with ProcessPoolExecutor(1) as pool: list(pool.map(time.sleep, [60]))", END),
        (f"while 1:\n            try: {SLEEPS}\n            except KeyboardInterrupt: pass", END),
        (f"sys.stdout.close(); {SLEEPS}", ""),
    ],
    ids=["cleans up", "has threads", "has a process", "holds on", "speaks to nobody"],
)
def test_a_stopped_program_says_so(block: str, says: str, tmp_path: Path) -> None:
    """Whatever it waits for."""
    assert stopped(tmp_path, block, signal.SIGINT) == (130, says)


def test_in_the_background_ctrl_c_is_ignored(tmp_path: Path) -> None:
    """As shells ask of the background commands of a script."""
    block = "time.sleep(1); print('done')"
    ended = stopped(tmp_path, block, signal.SIGINT, handler="SIG_IGN")
    assert ended == (0, "done\nat exit\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for a process alone")
@pytest.mark.parametrize(
    "command", [["-m", "lantern_demo.models.checkpoints", "--check"], ["examples/quick_tour.py"]]
)
def test_ctrl_c_while_a_command_imports(command: list[str]) -> None:
    """The moment is the first library after the handler; it is imported for seconds."""
    asked = [sys.executable, "-X", "importtime", *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    # tests in the background of a script ignore Ctrl-C, and what they start would too
    attend = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(asked, cwd=ROOT, preexec_fn=attend, **pipes) as process:
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
