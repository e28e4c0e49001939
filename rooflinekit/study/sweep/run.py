"""A sweep on the way: its pieces handed to processes or an executor, results as they come.

An executor of the standard library breaks as a whole when the system ends one of its processes, as it does when memory
is out, and cannot say which piece that was. So processes of our own predict pieces, each one at a time: another process
takes the place of one that was ended, and the piece is tried again, at the end. After two tries its parts are asked for
by themselves, down to the points that cannot be predicted.
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
import warnings
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from multiprocessing import connection
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from rooflinekit.errors import InputError, OutputError, SweepError, SweepWarning
from rooflinekit.files import check_kind, sync_folder, write_text
from rooflinekit.ir.arguments import expect, expect_count
from rooflinekit.study.sweep.folder import opened
from rooflinekit.study.sweep.plan import Piece, Plan
from rooflinekit.study.sweep.points import REGIMES, Table

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
    """Predicts each piece in this process."""

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
        """The answers of the workers that are done, once there is one."""
        busy = {worker.ours: (worker.piece, worker) for worker in self.workers if worker.piece}
        for ready in connection.wait(list(busy)):
            piece, worker = busy[ready]
            yield piece, worker.answer()

    def attempt(self, piece: Piece) -> list[Table] | str:
        """Predicts one piece again in a worker, while no other piece is worked on."""
        worker = self._free()[0]
        worker.ask(piece)
        found: list[Table] | str = worker.answer()
        return found

    def close(self) -> None:
        """Ends all workers, whatever they are working on."""
        for worker in self.workers:
            worker.close()

    def _free(self) -> list[_Worker]:
        """The workers without a piece; another takes the place of one that has ended."""
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


def _serve(pipe: connection.Connection) -> None:
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


# Pieces in order, in a file, as a table.


_PAYS_FROM = 100_000  # predictions: below, processes take longer to start than they save
_EACH_PAYS_FROM = 25  # the same where each is made by itself
_AHEAD = 2  # pieces a process that wait for it

Progress = Callable[[int], None]  # called with the number of rows that have become known


def run(plan: Plan, *, executor: Executor | None, workers: int | None, progress: Progress | None) -> pd.DataFrame:
    """Runs a plan: all rows, in the order of cases and sizes."""
    with contextlib.closing(_found(plan, [*plan.pieces()], (), executor, workers, progress)) as new:
        return _ordered(plan, new)


def run_to_file(
    plan: Plan, out: Path, *, executor: Executor | None, workers: int | None, progress: Progress | None
) -> Path:
    """The rows in a file, on which the same call goes on where another was interrupted.

    A folder of parquet files holds each piece as soon as it is there. Beside a csv or json file such a folder is kept
    until that is written. Raises OutputError for a folder that holds another sweep, is in use or cannot be written,
    InputError for another ending than .parquet, .csv, .json.
    """
    check_out(out)
    pieces, parquet = [*plan.pieces()], out.suffix == ".parquet"
    place = out if parquet else out.with_name(f"{out.name}.parts")
    with opened(place, "parquet" if parquet else "npz", plan) as folder:
        with contextlib.closing(_found(plan, pieces, folder.done, executor, workers, progress)) as new:
            for piece, tables in new:
                if parquet:
                    folder.write(piece.number, _frame(plan, piece, tables))
                else:
                    folder.write_tables(piece.number, tables)
        if parquet:
            folder.check_complete()
            return out
        _write(_ordered(plan, ((piece, folder.read_tables(piece.number)) for piece in pieces)), out)
        sync_folder(out.parent)  # or a crash of the machine could leave neither
        folder.remove()
    return out


def _ordered(plan: Plan, found: Iterable[tuple[Piece, list[Table]]]) -> pd.DataFrame:
    """A piece holds several cases at some of the sizes: back to the order of the cases."""
    return pd.concat([_frame(plan, piece, tables) for piece, tables in found]).sort_index(ignore_index=True)


def _found(
    plan: Plan, every: Sequence[Piece], done: Collection[int], executor: Executor | None, workers: int | None,
    progress: Progress | None,
) -> Generator[tuple[Piece, list[Table]]]:  # fmt: skip
    """Each piece that is not done yet, with a table for each of its cases, in any order.

    Once it is closed nobody works on them any more.
    """
    pieces = [piece for piece in every if piece.number not in done]
    rows = sum(piece.rows for piece in pieces)
    if progress and done:
        progress(sum(piece.rows for piece in every) - rows)

    def say(piece: Piece, how: str, then: str) -> None:
        warnings.warn(SweepWarning(f"{_name(plan, piece)}: {how}; {then}"), stacklevel=2)

    cores = os.cpu_count() or 1
    wanted = workers or (cores if rows >= (_EACH_PAYS_FROM if plan.each else _PAYS_FROM) else 1)
    if executor is not None:
        found = _handed_out(pieces, executor, getattr(executor, "_max_workers", None) or cores)
    elif pieces and wanted > 1:
        # One that is left may be the one that ends its process: where processes are asked for, it is not done here.
        found = in_crew(pieces, wanted, say)
    else:
        found = here(pieces, say)
    with contextlib.closing(found):
        for piece, tables in found:
            yield piece, tables
            if progress:
                progress(piece.rows)


def _handed_out(pieces: list[Piece], executor: Executor, workers: int) -> Generator[tuple[Piece, list[Table]]]:
    """A few pieces ahead of the workers, so that results do not pile up."""
    waiting = iter(pieces)
    running: dict[Future[Any], Piece] = {}
    try:
        while True:
            for piece in waiting:
                running[executor.submit(Piece.predict, piece)] = piece
                if len(running) >= (1 + _AHEAD) * workers:
                    break
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    except BrokenExecutor as error:
        raise SweepError(
            f"executor: {error}; pieces that are in a file are kept: the same call with another executor continues"
        ) from error
    finally:
        for future in running:
            future.cancel()


def _name(plan: Plan, piece: Piece) -> str:
    """What its rows are of.

    A point is "gpu=nvidia-l4, batch=8"; of several what is first and last is said.
    """
    cases = plan.cases[piece.first : piece.first + piece.cases]
    parts = {axis.name: [case.labels[axis.name] for case in cases] for axis in plan.axes if axis.shown}
    parts |= {name: column.tolist() for name, column in piece.sizes.items()}
    words = (
        f"{name}={values[0]}{'' if min(values) == max(values) else f'…{values[-1]}'}" for name, values in parts.items()
    )
    return ", ".join(words)


def _frame(plan: Plan, piece: Piece, tables: list[Table]) -> pd.DataFrame:
    """The rows of a piece, with what they are rows of; their index is their places among all rows."""
    cases, points = plan.cases[piece.first : piece.first + piece.cases], piece.points
    columns: dict[str, Any] = {}
    for name in (axis.name for axis in plan.axes if axis.shown):
        labels = [case.labels[name] for case in cases]
        kind = None if all(isinstance(label, int) for label in labels) else object
        columns[name] = np.repeat(np.array(labels, dtype=kind), points)
    columns |= {name: np.full(piece.rows, value) for name, value in cases[0].graph.sizes.items()}
    columns |= {name: np.tile(values, len(cases)) for name, values in piece.sizes.items()}
    for name in (name for name in tables[0] if name != "problem"):
        columns[name] = np.concatenate([table[name] for table in tables])
    if "regime" in columns:
        columns["regime"] = np.array([*REGIMES, ""], dtype=object)[columns["regime"]]  # NO_REGIME takes the last
    if not plan.each and "peak_bytes" in columns and columns["peak_bytes"].dtype.kind == "f":
        columns["peak_bytes"] = pd.array(columns["peak_bytes"], dtype="Int64")  # whole bytes, some missing
    problems = [table.get("problem", np.full(points, "")) for table in tables]
    first = np.arange(piece.first, piece.first + piece.cases)[:, None] * plan.grid.points + piece.start
    numbers = first + np.arange(points)
    return pd.DataFrame({**columns, "problem": np.concatenate(problems).astype(object)}, index=numbers.ravel())


def check_workers(executor: object, workers: object) -> None:
    """Raises InputError for anything else than an executor, or a number of processes, or neither."""
    if executor is not None and workers is not None:
        raise InputError("executor and workers: an executor has its own workers; give one of the two")
    if executor is not None:
        expect(hasattr(executor, "submit"), "executor", "a concurrent.futures.Executor", executor)
    if workers is not None:
        expect_count("workers", workers, words="a number of processes, 1 or more")


def _write(frame: pd.DataFrame, path: Path) -> None:
    try:
        if path.suffix == ".csv":
            text = frame.to_csv(index=False)
        else:
            text = frame.to_json(orient="records", indent=1, double_precision=15) + "\n"
    except OverflowError as error:  # what pandas raises where there is no room for the text
        raise MemoryError from error
    write_text(text, path)


def check_out(path: Path) -> None:
    """Raises InputError for a name that says no format and without pyarrow for parquet, OutputError for no place."""
    if path.suffix not in (".parquet", ".csv", ".json"):
        raise InputError(f"out: {str(path)!r}: expected a name that ends in .parquet, .csv or .json")
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise InputError(
                "parquet files need pyarrow, which is not installed: pip install 'rooflinekit[sweeps]', or write csv "
                "or json instead"
            ) from None
    check_kind(path)
    if path.suffix == ".parquet":
        return
    if os.path.isdir(path):  # Path.is_dir raises where it may not look
        raise OutputError(f"{path}: is a folder; choose another name")
    if not os.path.isdir(path.parent):
        raise OutputError(f"{path}: cannot be written: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"{path}: cannot be written: nothing may be written to {path.parent}")
