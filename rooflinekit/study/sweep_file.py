"""A sweep as a folder of parquet files, one a piece of work, which appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import InputError, OutputError
from rooflinekit.files import replacing, write_text
from rooflinekit.study.sweep_plan import Plan

if TYPE_CHECKING:
    import pandas as pd

_MANIFEST = "_sweep.json"  # readers of parquet folders pass over names that begin so
_SCHEMA = 1


class SweepFolder:
    """Where a sweep's pieces are kept; those that are there need not be worked out again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, plan: Plan) -> None:
        """Makes the folder, or makes sure that it is this sweep's.

        Raises InputError without pyarrow, and OutputError for a folder of something else.
        """
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
        return {int(file.stem.removeprefix("part-")) for file in self.path.glob("part-*.parquet")}

    def write(self, number: int, frame: pd.DataFrame) -> None:
        """Keeps a piece."""
        with replacing(self.path / f"part-{number:07d}.parquet") as beside:
            frame.to_parquet(beside, index=False, engine="pyarrow")


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
    """Raises InputError for a name that says no format, and without pyarrow for parquet."""
    if path.suffix not in (".parquet", ".csv", ".json"):
        raise InputError(f"out: {str(path)!r}: expected a name that ends in .parquet, .csv or .json")
    if path.suffix == ".parquet":
        check_parquet()
