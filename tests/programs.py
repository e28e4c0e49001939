"""Programs that tests start: they are waited for no longer than a limit, nor than they live."""

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

LIMIT_S = 120  # many times what any of them takes on a busy machine
Program = subprocess.Popen[str] | BaseProcess | int  # the number of a process that another has started


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The program, whose output is read as text. Its end is waited for; where the test fails, it is killed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as program:
        try:
            yield program
        except BaseException:
            program.kill()
            raise


def awaited(seen: Callable[[], object], program: Program, limit_s: float = LIMIT_S) -> None:
    """Returns as soon as `seen` finds what the program is to do. Fails where it ends before, and after the limit."""
    end = time.monotonic() + limit_s
    living = True
    while not seen():
        assert living, "the program has ended without what is waited for"
        assert time.monotonic() < end, f"nothing in {limit_s} s"
        time.sleep(0.01)
        living = lives(program)  # before `seen` looks again, which then finds what was done last


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


def lives(program: Program) -> bool:
    """Whether it has not ended. One that has, and whose parent has not asked for it, has ended too."""
    if isinstance(program, subprocess.Popen):
        return program.poll() is None
    if isinstance(program, BaseProcess):
        return program.is_alive()
    try:
        os.kill(program, 0)
        return Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()  # as on systems other than Linux
