"""Being told to stop, by Ctrl-C, `kill` or a job's time limit: in time, whatever the process is at."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

_GRACE_S = 2.5  # that an operator at work may take to end, and all else on the way out; then the process ends as it is
_FINISH_S = 1.0  # that a line on its way to the disk may take
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Stop:
    """What is said when the process is stopped: what is not lost."""

    says: str = ""

    def say(self) -> None:
        """Says it, once."""
        if self.says:
            print(f"\n{self.says}", file=sys.stderr, flush=True)
        self.says = ""


@contextlib.contextmanager
def stopped_in_time(finish: threading.Lock, told: threading.Event) -> Iterator[Stop]:
    """SIGINT and SIGTERM raise KeyboardInterrupt in this block; where that is not heeded soon, the process ends.

    Python runs a handler between two of its own steps, and a large product is one step that takes minutes: a thread
    waits for the signal beside it. finish: what has to be free before the process may end. told: set by the signal.

    Both signals count where the process was started with SIGINT ignored too, as a script starts `command &`: what is
    sent by hand to a measurement of hours is meant. The process ends with status 130 after SIGINT, 143 after SIGTERM.
    Outside the main thread, which alone is told of signals, nothing is done.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    over = threading.Event()
    got: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if not got:  # a second one changes nothing: the first is heeded in time
            got.append(number)
            told.set()
            raise KeyboardInterrupt

    def lost(what: sys.UnraisableHookArgs) -> None:
        if not (got and what.exc_type is KeyboardInterrupt):  # it came during a callback: the thread beside ends all
            hook(what)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    told.clear()
    hook, sys.unraisablehook = sys.unraisablehook, lost
    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader, over, stop, finish), daemon=True).start()
    try:
        yield stop
    except KeyboardInterrupt:
        if not got:
            raise
        # What is closed on the way out may take long too, so the thread goes on watching; and taking the interpreter
        # apart, torch and all, takes seconds on a busy machine, during which no thread can watch.
        stop.say()
        atexit._run_exitfuncs()
        os._exit(128 + got[0])
    finally:
        if not got:
            over.set()
            signal.set_wakeup_fd(wakeup)
            sys.unraisablehook = hook
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(writer)


def _watch(reader: int, over: threading.Event, stop: Stop, finish: threading.Lock) -> None:
    """Ends the process some time after a signal; its number arrives here whatever the main thread is at."""
    number = 0
    while number not in _SIGNALS:
        read = os.read(reader, 1)
        if not read:  # the block has ended
            os.close(reader)
            return
        number = read[0]
    if not over.wait(_GRACE_S):
        finish.acquire(timeout=_FINISH_S)
        stop.say()
        os._exit(128 + number)
