"""A sweep on the way: its pieces handed to an executor, results as they come."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
_EACH_PAYS_FROM = 25  # the same where each is made by itself
_AHEAD = 2  # pieces a process that wait for it

Progress = Callable[[int], None]  # called with the number of rows that have become known


def run(plan: Plan, *, executor: Executor | None, workers: int | None, progress: Progress | None) -> pd.DataFrame:
    """All rows, in the order of cases and sizes."""
    pieces = list(plan.pieces())
    found = {piece.number: tables for piece, tables in _found(pieces, (), executor, workers, progress)}
    return _ordered(plan, pieces, found)


def run_to_file(
    plan: Plan, out: Path, *, executor: Executor | None, workers: int | None, progress: Progress | None
) -> Path:
    """The rows in a file, on which the same call goes on where another was interrupted.

    A folder of parquet files holds each piece as soon as it is there. Beside a csv or json file such a folder is kept
    until that is written, where there is more than one piece. Raises OutputError for a folder that holds another sweep,
    InputError for another ending than .parquet, .csv, .json.
    """
    check_out(out)
    pieces = list(plan.pieces())
    if out.suffix == ".parquet":
        folder = SweepFolder(out)
        folder.begin(plan)
        for piece, tables in _found(pieces, folder.done(), executor, workers, progress):
            folder.write(piece.number, _frame(plan, piece, tables))
    elif len(pieces) == 1:
        write_table(run(plan, executor=executor, workers=workers, progress=progress), out)
    else:
        folder = SweepFolder(out.with_name(f"{out.name}.parts"), "npz")
        folder.begin(plan)
        for piece, tables in _found(pieces, folder.done(), executor, workers, progress):
            folder.write_tables(piece.number, tables)
        found = {piece.number: folder.read_tables(piece.number) for piece in pieces}
        write_table(_ordered(plan, pieces, found), out)
        folder.remove()
    return out


def _ordered(plan: Plan, pieces: Sequence[Piece], found: Mapping[int, list[Table]]) -> pd.DataFrame:
    """A piece holds several cases at some of the sizes: back to the order of the cases."""
    rows = pd.concat([_frame(plan, piece, found[piece.number]) for piece in pieces], ignore_index=True)
    order = np.concatenate([_row_numbers(plan, piece) for piece in pieces])
    if (np.diff(order) > 0).all():
        return rows
    return rows.iloc[np.argsort(order)].reset_index(drop=True)


def _found(
    every: Sequence[Piece],
    done: Iterable[int],
    executor: Executor | None,
    workers: int | None,
    progress: Progress | None,
) -> Iterator[tuple[Piece, list[Table]]]:
    """Each piece that is not done yet, with a table for each of its cases, in any order."""
    finished = set(done)
    pieces = [piece for piece in every if piece.number not in finished]
    left = sum(_rows(piece) for piece in pieces)
    if progress and finished:
        progress(sum(_rows(piece) for piece in every) - left)
    for piece, tables in _results(pieces, left, executor, workers):
        yield piece, tables
        if progress:
            progress(_rows(piece))


def _results(
    pieces: list[Piece], rows: int, executor: Executor | None, workers: int | None
) -> Iterator[tuple[Piece, list[Table]]]:
    if executor is not None:
        yield from _handed_out(pieces, executor, getattr(executor, "_max_workers", None) or os.cpu_count() or 1)
        return
    pays_from = _EACH_PAYS_FROM if any(piece.each for piece in pieces) else _PAYS_FROM
    wanted = workers or (os.cpu_count() or 1 if rows >= pays_from else 1)
    count = min(wanted, len(pieces))
    if count <= 1:
        yield from ((piece, piece.predict()) for piece in pieces)
        return
    # Where processes can be forked they need not import the caller's program again, which may not be made for that.
    method = "fork" if sys.platform == "linux" else None
    context = multiprocessing.get_context(method)
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_end_with_parent)
    try:
        yield from _handed_out(pieces, pool, count)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """Where the process that hands out is killed, its workers would wait for work for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
        name: np.repeat(_labels([case.labels[name] for case in cases]), points) for name in shown
    }
    given = cases[0].graph.sizes
    columns |= {name: np.full(points * len(cases), value) for name, value in given.items()}
    columns |= {name: np.tile(values, len(cases)) for name, values in piece.sizes.items()}
    for name in tables[0]:
        columns[name] = np.concatenate([table[name] for table in tables])
    if "regime" in columns:
        columns["regime"] = np.array(REGIMES, dtype=object)[columns["regime"]]
    return pd.DataFrame(columns)


def _labels(names: Sequence[Any]) -> Any:
    return np.array(names) if all(isinstance(name, int) for name in names) else np.array(names, dtype=object)


def check_workers(executor: object, workers: object) -> None:
    """Raises InputError for anything else than an executor, or a number of processes, or neither."""
    if executor is not None and workers is not None:
        raise InputError("executor and workers: an executor has its own workers; give one of the two")
    if executor is not None and not hasattr(executor, "submit"):
        raise InputError(f"executor: expected a concurrent.futures.Executor; got {executor!r:.60}")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise InputError(f"workers: expected a number of processes, 1 or more; got {workers!r}")
