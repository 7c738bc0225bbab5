"""The end of a program, by Ctrl-C or by the signal that stops containers."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended
GRACE = 2  # seconds that a stopped program has to clean up
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stoppable(code: int = INTERRUPTED) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the program with `Stopped.` and this exit code.

    The block is left by KeyboardInterrupt, so that it can clean up. The program ends in any case
    after `GRACE` seconds: a block may wait for threads that download gigabytes.
    """
    late = threading.Timer(GRACE, leave, (code,))
    late.daemon = True

    def stop(*_: object) -> NoReturn:
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        late.start()
        raise KeyboardInterrupt

    # in the background of a script Ctrl-C is ignored, and stays so
    heeded = [one for one in SIGNALS if signal.getsignal(one) != signal.SIG_IGN]
    before = {one: signal.signal(one, stop) for one in heeded}
    try:
        yield
    except KeyboardInterrupt:
        late.cancel()
        leave(code)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def leave(code: int) -> NoReturn:
    """End the program now, even in the middle of a run or of a load.

    Open connections and a model that is being loaded would each delay the usual end for seconds,
    and nothing is lost with them. Clean-up at exit still runs, such as for the files of a run.
    """
    print("Stopped.", flush=True)
    for child in multiprocessing.active_children():
        child.terminate()  # or clean-up waits for its work
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(code)
