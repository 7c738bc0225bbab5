"""The end of a program by Ctrl-C: a word and no traceback, soon, after clean-up."""

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PIPES = {"stdout": subprocess.PIPE, "encoding": "utf-8"}
SLEEPS, END = "time.sleep(60)", "Stopped.\nat exit\n"
PROGRAM = """
import atexit, signal, sys, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from lantern_demo import shutdown
shutdown.GRACE = 0.5
if __name__ == "__main__":
    atexit.register(print, "at exit")
    signal.signal(signal.SIGINT, signal.{handler})
    with shutdown.stoppable():
        print("begun", flush=True)
        {block}
"""


@pytest.mark.parametrize(
    ("block", "code", "says"),
    [
        (f"try: {SLEEPS}\n        finally: print('cleaned')", 130, f"cleaned\n{END}"),
        ("with ThreadPoolExecutor() as pool: list(pool.map(time.sleep, [60, 60]))", 130, END),
        ("with ProcessPoolExecutor(1) as pool: list(pool.map(time.sleep, [60]))", 130, END),
        (f"while 1:\n            try: {SLEEPS}\n            except: pass", 130, END),
        (f"sys.stdout.close(); {SLEEPS}", 130, ""),
        (f"atexit.register(time.sleep, 60); {SLEEPS}", 130, "Stopped.\n"),
        ("time.sleep(1); print('done')", 0, "done\nat exit\n"),
    ],
    ids=[
        "cleans up",
        "threads",
        "a process",
        "holds on",
        "speaks to nobody",
        "waits at exit",
        "in the background",
    ],
)
def test_a_stopped_program_says_so(block: str, code: int, says: str, tmp_path: Path) -> None:
    """Whatever it waits for. In the background of a script Ctrl-C is ignored."""
    handler = "default_int_handler" if code else "SIG_IGN"
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.format(block=block, handler=handler), encoding="utf-8")
    command, path = [sys.executable, str(file)], {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=path, stderr=subprocess.STDOUT, **PIPES) as running:
        assert running.stdout is not None and running.stdout.readline() == "begun\n"
        time.sleep(0.3)  # until the block waits
        running.send_signal(signal.SIGINT)
        try:
            told, _ = running.communicate(timeout=20)
        finally:
            running.kill()
    assert (running.returncode, told) == (code, says)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for a process alone")
def test_ctrl_c_while_a_command_imports() -> None:
    """The moment is the first library after the handler; it is imported for seconds."""
    command = "-X importtime -m lantern_demo.models.checkpoints --check"
    asked = [sys.executable, *command.split()]
    # tests in the background of a script ignore Ctrl-C, and what they start would too
    attend = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = PIPES | {"stderr": subprocess.PIPE}
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
