"""The end of the program: by Ctrl-C, by the signal that stops containers, or by an error."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from typing import NoReturn


def until_stopped() -> None:
    """Wait while the other threads serve, until KeyboardInterrupt."""
    while not threading.Event().wait(3600):
        pass


def leave(code: int = 0, said: str = "Stopped.") -> NoReturn:
    """End the program now, even in the middle of a run or of a load.

    `said` goes to the output, or with an exit code above 0 to the errors. Open connections and a
    model that is being loaded would each delay the usual end for seconds. A thread that computes
    then would abort the program. Nothing is lost with them, and clean-up at exit still runs, such
    as for the files of a run in flight.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # nobody may read the output any more
        print(said, file=sys.stderr if code else sys.stdout, flush=True)
    atexit._run_exitfuncs()
    os._exit(code)
