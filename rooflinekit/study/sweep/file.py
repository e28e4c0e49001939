"""A sweep as one file: what names it may have, and how its rows are written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rooflinekit.errors import InputError, OutputError
from rooflinekit.files import check_kind, write_text

if TYPE_CHECKING:
    import pandas as pd


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
    """A table as .csv or .json (a list of records), whole or not at all. Raises MemoryError where it is too large."""
    write_text(frame.to_csv(index=False) if path.suffix == ".csv" else _json(frame), path)


def _json(frame: pd.DataFrame) -> str:
    try:
        return f"{frame.to_json(orient='records', indent=1)}\n"
    except OverflowError as error:  # what pandas raises where there is no room for the text
        raise MemoryError from error


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
