"""The one reader of other people's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd


def read_table(file: Path, **options: Any) -> pd.DataFrame:
    """A table in CSV or Parquet, by its ending; options are those of pandas. Raises FileNotFoundError."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: expected a table of measurements; give the folder of the sources as DATA")
    return pd.read_parquet(file, **options) if file.suffix == ".parquet" else pd.read_csv(file, **options)
