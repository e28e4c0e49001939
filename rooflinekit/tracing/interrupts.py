"""Ctrl-C during a trace: heeded where Python alone is at work.

Torch calls back into Python for every operator, in backward and when tensors die. A KeyboardInterrupt that is raised
there is lost, or ends the process with SIGABRT (`terminate called after throwing … error_already_set`).
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

#: Functions that C++ calls, or that call C++ which calls Python.
_BELOW = {"__torch_dispatch__", "__torch_function__", "_engine_run_backward", "_died", "__del__"}
_PATIENCE_S = 2.0  # after which it is raised wherever the process is: a model's own loop may call no module

_held: list[Callable[[], object]] = []


@contextmanager
def heeded_between_calls() -> Iterator[None]:
    """Within it SIGINT waits until a module is called from Python, or the block ends; a second one does not wait.

    In another thread than the main one, and where SIGINT is ignored or ends the process, nothing is done.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting = threading.Timer(_PATIENCE_S, _thread.interrupt_main)
    waiting.daemon = True

    def handle(number: int, frame: FrameType | None) -> None:
        if _held or not _is_below(frame):
            _held.clear()
            before(number, frame)
            return
        _held.append(lambda: before(number, None))
        waiting.start()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        waiting.cancel()
        heed()


def heed() -> None:
    """Does what a held SIGINT asks for, where nothing of C++ is in between."""
    if _held and not _is_below(sys._getframe()):
        _held.pop()()


def _is_below(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _BELOW:
            return True
        frame = frame.f_back
    return False
