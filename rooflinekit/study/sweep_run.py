"""A sweep on the way: its pieces handed to an executor, results as they come."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.errors import InputError
from rooflinekit.study.sweep_file import SweepFolder, check_out, write_table
from rooflinekit.study.sweep_plan import Piece, Plan
from rooflinekit.study.sweep_points import REGIMES, Table

_PAYS_FROM = 100_000  # predictions: below, processes take longer to start than they save
_AHEAD = 2  # pieces a process that wait for it

Progress = Callable[[int], None]  # called with the number of rows that have become known


def run(plan: Plan, *, executor: Executor | None, workers: int | None, progress: Progress | None) -> pd.DataFrame:
    """All rows, in the order of cases and sizes."""
    frames = dict(_frames(plan, (), executor, workers, progress))
    found = pd.concat([frames[number] for number in sorted(frames)], ignore_index=True)
    # a piece holds several cases at some of the sizes: back to the order of the cases
    order = np.concatenate([_row_numbers(plan, piece) for piece in plan.pieces()])
    if (np.diff(order) > 0).all():
        return found
    return found.iloc[np.argsort(order)].reset_index(drop=True)


def run_to_file(
    plan: Plan, out: Path, *, executor: Executor | None, workers: int | None, progress: Progress | None
) -> Path:
    """The rows in a file. A folder of parquet files holds each piece as soon as it is there, and goes on where it was.

    Raises OutputError for a folder that holds another sweep, InputError for another ending than .parquet, .csv, .json.
    """
    check_out(out)
    if out.suffix != ".parquet":
        write_table(run(plan, executor=executor, workers=workers, progress=progress), out)
        return out
    folder = SweepFolder(out)
    folder.begin(plan)
    for number, frame in _frames(plan, folder.done(), executor, workers, progress):
        folder.write(number, frame)
    return out


def _frames(
    plan: Plan, done: Iterable[int], executor: Executor | None, workers: int | None, progress: Progress | None
) -> Iterator[tuple[int, pd.DataFrame]]:
    """Each piece that is not done yet, with its rows, in any order."""
    finished = set(done)
    pieces = [piece for piece in plan.pieces() if piece.number not in finished]
    left = sum(_rows(piece) for piece in pieces)
    if progress and left < plan.rows:
        progress(plan.rows - left)
    for piece, tables in _results(pieces, left, executor, workers):
        frame = _frame(plan, piece, tables)
        yield piece.number, frame
        if progress:
            progress(len(frame))


def _results(
    pieces: list[Piece], rows: int, executor: Executor | None, workers: int | None
) -> Iterator[tuple[Piece, list[Table]]]:
    if executor is not None:
        yield from _handed_out(pieces, executor, getattr(executor, "_max_workers", None) or os.cpu_count() or 1)
        return
    wanted = workers or (os.cpu_count() or 1 if rows >= _PAYS_FROM else 1)
    count = min(wanted, len(pieces))
    if count <= 1:
        yield from ((piece, piece.predict()) for piece in pieces)
        return
    # Where processes can be forked they need not import the caller's program again, which may not be made for that.
    method = "fork" if sys.platform == "linux" else None
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context(method))
    try:
        yield from _handed_out(pieces, pool, count)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _handed_out(pieces: list[Piece], executor: Executor, workers: int) -> Iterator[tuple[Piece, list[Table]]]:
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
    finally:
        for future in running:
            future.cancel()


def _rows(piece: Piece) -> int:
    return piece.cases * _points(piece)


def _points(piece: Piece) -> int:
    return len(next(iter(piece.sizes.values()))) if piece.sizes else 1


def _row_numbers(plan: Plan, piece: Piece) -> Any:
    """The places of its rows among all."""
    points = piece.start + np.arange(_points(piece))
    return (np.arange(piece.first, piece.first + piece.cases)[:, None] * plan.points + points).ravel()


def _frame(plan: Plan, piece: Piece, tables: list[Table]) -> pd.DataFrame:
    """The rows of a piece, with what they are rows of."""
    cases, points = plan.cases[piece.first : piece.first + piece.cases], _points(piece)
    shown = [axis.name for axis in plan.axes if axis.shown]
    columns: dict[str, Any] = {
        name: np.repeat(np.array([case.labels[name] for case in cases], dtype=object), points) for name in shown
    }
    given = cases[0].graph.sizes
    columns |= {name: np.full(points * len(cases), value) for name, value in given.items()}
    columns |= {name: np.tile(values, len(cases)) for name, values in piece.sizes.items()}
    for name in tables[0]:
        columns[name] = np.concatenate([table[name] for table in tables])
    columns["regime"] = np.array(REGIMES, dtype=object)[columns["regime"]]
    return pd.DataFrame(columns)


def check_workers(executor: object, workers: object) -> None:
    """Raises InputError for anything else than an executor, or a number of processes, or neither."""
    if executor is not None and workers is not None:
        raise InputError("executor and workers: an executor has its own workers; give one of the two")
    if executor is not None and not hasattr(executor, "submit"):
        raise InputError(f"executor: expected a concurrent.futures.Executor; got {executor!r:.60}")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise InputError(f"workers: expected a number of processes, 1 or more; got {workers!r}")
