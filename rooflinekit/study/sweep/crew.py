"""Processes that predict pieces, each one at a time: so it is known over which piece one was killed.

An executor of the standard library breaks as a whole when the system ends one of its processes, as it does when memory
is out, and cannot say which piece that was. Here another process takes the place of that one, and the piece is tried
again, at the end. After two tries its parts are asked for by themselves, down to the points that cannot be predicted.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

import numpy as np

from rooflinekit.errors import SweepError
from rooflinekit.study.sweep.plan import Piece
from rooflinekit.study.sweep.points import Table

_TRIES = 2  # of a piece, and of a point
_STARTS = 3  # of processes in a row that end before they are asked for anything
_MEMORY = "memory ran out"

#: What is said of a piece that was not predicted: the piece, what happened, and what is done about it.
Say: TypeAlias = Callable[[Piece, str, str], None]
#: Predicts, or says how it ended.
Attempt: TypeAlias = Callable[[Piece], list[Table] | str]


def in_crew(pieces: Sequence[Piece], count: int, say: Say) -> Generator[tuple[Piece, list[Table]]]:
    """Each piece with its tables, as they come, from so many processes.

    Raises what predicting raises, and SweepError where no process can be started.
    """
    waiting, tried, lost = deque(pieces), set[int](), []
    with contextlib.closing(_Crew(min(count, len(pieces)))) as crew:
        while crew.hand_out(waiting):
            for piece, tables in crew.answers():
                crew.hand_out(waiting)  # before what is found is written: so nobody waits for that
                if not isinstance(tables, str):
                    yield piece, tables
                elif piece.number in tried:
                    lost.append((piece, tables))
                else:
                    tried.add(piece.number)
                    say(piece, tables, "it is tried again")
                    waiting.append(piece)
        for piece, how in lost:
            yield piece, salvaged(piece, how, crew.attempt, say)


def here(pieces: Sequence[Piece], say: Say) -> Generator[tuple[Piece, list[Table]]]:
    """Each piece with its tables, from this process."""

    def attempt(piece: Piece) -> list[Table] | str:
        try:
            return piece.predict()
        except MemoryError:
            return _MEMORY

    for piece in pieces:
        tables = attempt(piece)
        yield piece, salvaged(piece, tables, attempt, say) if isinstance(tables, str) else tables


def salvaged(piece: Piece, how: str, attempt: Attempt, say: Say) -> list[Table]:
    """What of a piece can be predicted by parts; numbers of the rest are missing, with a `problem` that says why.

    how: what ended it. A few points that end their process are found one by one; where more and more do, what is left
    of the piece is given up.
    """
    ends = 2 * math.ceil(math.log2(piece.rows + 1)) + 8

    def given_up(part: Piece, how: str, why: str) -> list[Table]:
        say(part, how, f"given up {why}; `problem` in its rows says so")
        return part.unknown(f"given up {why}: {how}")

    def parted(part: Piece, how: str) -> list[Table]:
        if part.rows == 1:
            return given_up(part, how, "after two tries")
        first, last = (known(half, how) for half in part.halves())
        if part.points > 1:
            return [_joined(a, b) for a, b in zip(first, last, strict=True)]
        return first + last

    def known(part: Piece, how: str) -> list[Table]:
        nonlocal ends
        if ends <= 0:
            return given_up(part, how, "with points beside it")
        for _ in range(_TRIES if part.rows == 1 else 1):
            found = attempt(part)
            if not isinstance(found, str):
                return found
            ends, how = ends - 1, found
        return parted(part, how)

    return parted(piece, how)


def _joined(first: Table, last: Table) -> Table:
    """A table below another; `problem` may be in one of them alone."""
    tables = [first, last]
    if any("problem" in table for table in tables):
        tables = [{**table, "problem": table.get("problem", np.full(len(table["total_s"]), ""))} for table in tables]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


class _Worker:
    """A process that is asked for pieces, and the one it is at work on."""

    def __init__(self, context: Any) -> None:
        self.ours, theirs = context.Pipe()
        self.piece: Piece | None = None
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        try:
            self.process.start()
        except OSError as error:
            self.ours.close()
            raise SweepError(
                f"no process can be started: {error.strerror or error}; workers=1 works in this one"
            ) from error
        finally:
            theirs.close()

    def ask(self, piece: Piece) -> None:
        self.piece = piece
        with contextlib.suppress(OSError):  # it has ended: the answer says so
            self.ours.send(piece)

    def answer(self) -> Any:
        """Tables, or how it ended; None where it is ready. Raises what it has raised."""
        self.piece = None
        try:
            kind, content = self.ours.recv()
        except (EOFError, OSError):
            self.process.join(5)
            self.close()
            return _how(self.process.exitcode)
        if kind == "raised":
            raise content
        return content

    def close(self) -> None:
        self.process.kill()
        self.process.join(5)
        self.ours.close()


class _Crew:
    """Processes, of which one that was ended is replaced."""

    def __init__(self, count: int) -> None:
        # Where processes can be forked they need not import the caller's program again, which may not be made for that.
        self.context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        self.workers: list[_Worker] = []
        self.count = count

    def hand_out(self, waiting: deque[Piece]) -> bool:
        """A piece to each that has none, until there are no more. Says whether any is at work."""
        if waiting:
            for worker in self._free():
                worker.ask(waiting.popleft())
                if not waiting:
                    break
        return any(worker.piece for worker in self.workers)

    def answers(self) -> Iterator[tuple[Piece, list[Table] | str]]:
        """Of those that have one, once it is there."""
        busy = {worker.ours: (worker.piece, worker) for worker in self.workers if worker.piece}
        for ready in wait(list(busy)):
            piece, worker = busy[ready]
            yield piece, worker.answer()

    def attempt(self, piece: Piece) -> list[Table] | str:
        """One piece, waited for, while all others are done."""
        worker = self._free()[0]
        worker.ask(piece)
        found: list[Table] | str = worker.answer()
        return found

    def close(self) -> None:
        """Ends all, whatever they are at."""
        for worker in self.workers:
            worker.close()

    def _free(self) -> list[_Worker]:
        """Those without a piece; where one has ended meanwhile, it was at work on nothing, another takes its place."""
        for _ in range(_STARTS):
            for worker in [one for one in self.workers if one.piece is None and one.process.exitcode is not None]:
                self.workers.remove(worker)
                worker.close()
            new = [_Worker(self.context) for _ in range(self.count - len(self.workers))]
            self.workers += new
            ended = [how for worker in new if (how := worker.answer())]
            if not ended:
                return [worker for worker in self.workers if worker.piece is None]
        raise SweepError(f"no process can be started here ({ended[0]}); workers=1 works in this one")


def _how(status: int | None) -> str:
    if status is None or status >= 0:
        return f"its process ended with status {status}"
    name = signal.Signals(-status).name
    return f"its process was ended by {name}{', as by the system when memory is out' if name == 'SIGKILL' else ''}"


def _serve(pipe: Connection) -> None:
    """What a process does: it answers each piece."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the process that hands out, which ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        _end_with_parent()
        pipe.send(("ready", None))
        while True:
            answer = _predicted(pipe.recv())
            try:
                pipe.send(answer)
            except MemoryError:  # for the message
                pipe.send(("known", _MEMORY))
    except (EOFError, OSError):
        return  # nobody asks any more
    except (MemoryError, RuntimeError):  # no room for a piece, or no thread: the status says so, without a traceback
        os._exit(1)


def _predicted(piece: Piece) -> tuple[str, Any]:
    try:
        return "known", piece.predict()
    except MemoryError:
        return "known", _MEMORY
    except Exception as error:
        note = f"In a process of the sweep:\n{traceback.format_exc()}"
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # it cannot leave this process: another says what it says
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(note)
        return "raised", error


def _end_with_parent() -> None:
    """Where the process that hands out is killed, its workers would wait for work for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
