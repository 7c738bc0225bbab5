"""The end of the program, by Ctrl-C or by the signal that stops containers."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading


def until_stopped() -> None:
    """Wait while the other threads serve. Raise KeyboardInterrupt when the program is to end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    while not threading.Event().wait(3600):
        pass


def leave() -> None:
    """End the program now, even in the middle of a run or of a load, with exit code 0.

    Open connections and a model that is being loaded would each delay the usual end for seconds, and nothing is lost with them.
    Clean-up at exit still runs, such as for the files of a run in flight.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("Stopped.", flush=True)
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(0)
