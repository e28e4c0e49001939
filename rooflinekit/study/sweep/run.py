"""A sweep on the way: its pieces handed to an executor, results as they come."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rooflinekit.errors import InputError, OutputError, SweepError, SweepWarning
from rooflinekit.files import check_kind, sync_folder, write_text
from rooflinekit.study.sweep.crew import here, in_crew
from rooflinekit.study.sweep.folder import opened
from rooflinekit.study.sweep.plan import Piece, Plan
from rooflinekit.study.sweep.points import REGIMES, Table

if TYPE_CHECKING:
    import pandas as pd


_PAYS_FROM = 100_000  # predictions: below, processes take longer to start than they save
_EACH_PAYS_FROM = 25  # the same where each is made by itself
_AHEAD = 2  # pieces a process that wait for it

Progress = Callable[[int], None]  # called with the number of rows that have become known


def run(plan: Plan, *, executor: Executor | None, workers: int | None, progress: Progress | None) -> pd.DataFrame:
    """All rows, in the order of cases and sizes."""
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
    plan: Plan,
    every: Sequence[Piece],
    done: Collection[int],
    executor: Executor | None,
    workers: int | None,
    progress: Progress | None,
) -> Generator[tuple[Piece, list[Table]]]:
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
            f"executor: {error}; pieces that are in a file are kept: the same call with another executor goes on"
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
    numbers = np.arange(piece.first, piece.first + piece.cases)[:, None] * plan.points + piece.start + np.arange(points)
    return pd.DataFrame({**columns, "problem": np.concatenate(problems).astype(object)}, index=numbers.ravel())


def check_workers(executor: object, workers: object) -> None:
    """Raises InputError for anything else than an executor, or a number of processes, or neither."""
    if executor is not None and workers is not None:
        raise InputError("executor and workers: an executor has its own workers; give one of the two")
    if executor is not None and not hasattr(executor, "submit"):
        raise InputError(f"executor: expected a concurrent.futures.Executor; got {executor!r:.60}")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise InputError(f"workers: expected a number of processes, 1 or more; got {workers!r}")


# A sweep as one file: what names it may have, and how its rows are written.


def check_parquet() -> None:
    """Raises InputError where parquet files cannot be written."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise InputError(
            "parquet files need pyarrow, which is not installed: pip install 'rooflinekit[sweeps]', or write csv or "
            "json instead"
        ) from None


def _write(frame: pd.DataFrame, path: Path) -> None:
    """A table as .csv or .json (a list of records), whole or not at all. Raises MemoryError where it is too large."""
    try:
        text = frame.to_csv(index=False) if path.suffix == ".csv" else f"{frame.to_json(orient='records', indent=1)}\n"
    except OverflowError as error:  # what pandas raises where there is no room for the text
        raise MemoryError from error
    write_text(text, path)


def check_out(path: Path) -> None:
    """Raises InputError for a name that says no format and without pyarrow for parquet, OutputError for no place."""
    if path.suffix not in (".parquet", ".csv", ".json"):
        raise InputError(f"out: {str(path)!r}: expected a name that ends in .parquet, .csv or .json")
    if path.suffix == ".parquet":
        check_parquet()
    check_kind(path)
    if path.suffix == ".parquet":
        return
    if os.path.isdir(path):  # Path.is_dir raises where it may not look
        raise OutputError(f"{path}: is a folder; choose another name")
    if not os.path.isdir(path.parent):
        raise OutputError(f"{path}: cannot be written: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"{path}: cannot be written: nothing may be written to {path.parent}")
