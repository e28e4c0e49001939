"""Waiting for programs that tests start: never longer than a limit, nor for one that has ended."""

import os
import select
import subprocess
import time
from collections.abc import Callable

LIMIT_S = 120  # many times what any of them takes on a busy machine
Program = subprocess.Popen[str] | int  # or the number of a process that another has started


def awaited(seen: Callable[[], object], program: Program, limit_s: float = LIMIT_S) -> None:
    """Returns as soon as `seen` finds what the program is to do. Fails where it ends before, and after the limit."""
    end = time.monotonic() + limit_s
    lives = True
    while not seen():
        assert lives, "the program has ended without what is waited for"
        assert time.monotonic() < end, f"nothing in {limit_s} s"
        time.sleep(0.01)
        lives = _lives(program)  # before `seen` looks again, which then finds what was done last


def line_of(program: subprocess.Popen[str], limit_s: float = LIMIT_S) -> str:
    """The next line that it writes. Fails where it ends before, and after the limit.

    Byte by byte: what a buffer holds already could not be waited for.
    """
    assert program.stdout is not None
    end, line, pipe = time.monotonic() + limit_s, b"", program.stdout.fileno()
    while not line.endswith(b"\n"):
        assert select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0], f"no line in {limit_s} s"
        byte = os.read(pipe, 1)
        assert byte, "the program has ended without a line"
        line += byte
    return line.decode()


def _lives(program: Program) -> bool:
    if not isinstance(program, int):
        return program.poll() is None
    try:
        os.kill(program, 0)
    except ProcessLookupError:
        return False
    return True
