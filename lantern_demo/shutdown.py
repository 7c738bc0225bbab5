"""The end of a program, by Ctrl-C or by the signal that stops containers."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended
GRACE = 2  # seconds that a stopped program has to clean up
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LEAVING = threading.Lock()


@contextmanager
def stoppable(code: int = INTERRUPTED) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the program with `Stopped.` and this exit code.

    The block is left by KeyboardInterrupt, so that it can clean up. The program ends in any case
    after twice `GRACE` seconds: a block may wait for threads that download gigabytes.
    """
    late = threading.Timer(GRACE, leave, (code,))
    late.daemon = True

    def interrupt() -> NoReturn:
        late.start()
        raise KeyboardInterrupt

    before = _stop_by(interrupt)
    try:
        yield
    except KeyboardInterrupt:
        leave(code)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def stop_at_once() -> None:
    """Let Ctrl-C and SIGTERM end a command with `Stopped.` while its imports run, and after them.

    A KeyboardInterrupt would end in the traceback of a library that is half imported.
    """
    _stop_by(partial(leave, INTERRUPTED))


def _stop_by(act: Callable[[], NoReturn]) -> dict[signal.Signals, Any]:
    """Let the first of SIGNALS call `act`, and ignore further ones. Return the handlers before."""
    process = os.getpid()

    def stop(number: int, _: object) -> NoReturn:
        if os.getpid() != process:  # a fork, which inherits this
            os._exit(128 + number)
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        act()

    # in the background of a script Ctrl-C is ignored, and stays so
    heeded = [one for one in SIGNALS if signal.getsignal(one) != signal.SIG_IGN]
    return {one: signal.signal(one, stop) for one in heeded}


def leave(code: int, message: str = "Stopped.") -> NoReturn:
    """End the program now, even in the middle of a run or of a load.

    `message` goes to the errors where it reports one. At the usual end a thread that computes would
    abort the program. Open connections and a model that is being loaded would delay it for
    seconds. Nothing is lost with them. Clean-up at exit still runs, such as for the files of a run.
    """
    # Kept for good: a second thread that comes here waits for the end, but not for ever.
    if not _LEAVING.acquire(timeout=GRACE):
        os._exit(code)
    try:
        stopped = code in (0, INTERRUPTED)
        print(message, file=sys.stdout if stopped else sys.stderr, flush=True)
        for child in multiprocessing.active_children():
            child.terminate()  # or clean-up waits for its work
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also where nobody reads the output
        os._exit(code)
