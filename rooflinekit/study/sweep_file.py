"""A sweep in files: a folder with a file for each piece of work, which appear whole or not at all.

Parquet files are the result. On the way to one csv or json file pieces are kept beside it, as numpy's arrays, until
that is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rooflinekit.errors import InputError, OutputError
from rooflinekit.files import replacing, write_text
from rooflinekit.study.sweep_plan import Plan
from rooflinekit.study.sweep_points import Table

if TYPE_CHECKING:
    import pandas as pd

_MANIFEST = "_sweep.json"  # readers of parquet folders pass over names that begin so
_SCHEMA = 1


class SweepFolder:
    """Where a sweep's pieces are kept; those that are there need not be worked out again."""

    def __init__(self, path: Path, ending: Literal["parquet", "npz"] = "parquet") -> None:
        self.path, self._ending = path, ending

    def begin(self, plan: Plan) -> None:
        """Makes the folder, or makes sure that it is this sweep's.

        Raises InputError without pyarrow, and OutputError for a folder of something else.
        """
        if self._ending == "parquet":
            check_parquet()
        manifest = self.path / _MANIFEST
        if manifest.exists():
            self._compare(_read(manifest), plan)
            return
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise OutputError(f"{self.path}: is there already and is no sweep; choose another folder")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from error
        write_text(json.dumps({"schema": _SCHEMA, "rows": plan.rows, "parts": plan.parts}, indent=1) + "\n", manifest)

    def _compare(self, found: dict[str, Any], plan: Plan) -> None:
        if found.get("schema") != _SCHEMA:
            raise OutputError(f"{self.path}: schema {found.get('schema')!r}: expected {_SCHEMA}; choose another folder")
        other = found.get("parts", {})
        differs = [name for name in {**plan.parts, **other} if other.get(name) != plan.parts.get(name)]
        if differs:
            raise OutputError(
                f"{self.path}: holds another sweep, which differs in {', '.join(differs)}: it is not continued; "
                "choose another folder, or remove it"
            )

    def done(self) -> set[int]:
        """The numbers of the pieces that are there."""
        return {int(file.stem.removeprefix("part-")) for file in self.path.glob(f"part-*.{self._ending}")}

    def write(self, number: int, frame: pd.DataFrame) -> None:
        """Keeps the rows of a piece, as parquet."""
        with replacing(self._part(number)) as beside:
            frame.to_parquet(beside, index=False, engine="pyarrow")

    def write_tables(self, number: int, tables: Sequence[Table]) -> None:
        """Keeps what a piece has found, as npz."""
        columns = {f"{i} {name}": values for i, table in enumerate(tables) for name, values in table.items()}
        with replacing(self._part(number)) as beside, beside.open("wb") as stream:
            np.savez(stream, **columns)  # type: ignore[arg-type]  # no name of a column is one of its parameters

    def read_tables(self, number: int) -> list[Table]:
        """What `write_tables` has kept. Raises OutputError where that cannot be read."""
        found: dict[int, Table] = {}
        try:
            with np.load(self._part(number), allow_pickle=False) as columns:
                for key in columns.files:
                    i, name = key.split(" ", 1)
                    found.setdefault(int(i), {})[name] = columns[key]
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise OutputError(f"{self._part(number)}: cannot be read: {error}; remove it") from error
        return [found[i] for i in sorted(found)]

    def remove(self) -> None:
        """Takes the pieces away, and the folder if nothing else is in it."""
        for number in self.done():
            self._part(number).unlink(missing_ok=True)
        (self.path / _MANIFEST).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _part(self, number: int) -> Path:
        return self.path / f"part-{number:07d}.{self._ending}"


def _read(manifest: Path) -> dict[str, Any]:
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OutputError(f"{manifest}: cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}


def check_parquet() -> None:
    """Raises InputError where parquet files cannot be written."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise InputError(
            "parquet files need pyarrow, which is not installed: pip install 'rooflinekit[sweeps]', or write csv or "
            "json instead"
        ) from None


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """A table as .csv or .json (a list of records), whole or not at all."""
    text = frame.to_csv(index=False) if path.suffix == ".csv" else frame.to_json(orient="records", indent=1) + "\n"
    write_text(text, path)


def check_out(path: Path) -> None:
    """Raises InputError for a name that says no format and without pyarrow for parquet, OutputError for no place."""
    if path.suffix not in (".parquet", ".csv", ".json"):
        raise InputError(f"out: {str(path)!r}: expected a name that ends in .parquet, .csv or .json")
    if path.suffix == ".parquet":
        check_parquet()
    elif path.is_dir():
        raise OutputError(f"{path}: is a folder; choose another name")
    elif not path.parent.is_dir():
        raise OutputError(f"{path}: cannot be written: there is no folder {path.parent}")
    elif not os.access(path.parent, os.W_OK):
        raise OutputError(f"{path}: cannot be written: nothing may be written to {path.parent}")
