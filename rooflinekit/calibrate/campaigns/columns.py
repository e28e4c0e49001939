"""The columns of measured ops: sizes, formats, arithmetics; and what becomes of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaigns.operators import STORED
from rooflinekit.ir.tensor import Math
from rooflinekit.model.work import Floats, Work

#: How many bytes an element has, by the name of its format.
ITEMSIZE = {name: stored.itemsize for name, stored in STORED.items()}

#: Algorithms: the kernels of each in turn, and the rows that it can run (None for all).
Candidates = list[tuple[tuple[Work, ...], "np.ndarray | None"]]


def column(rows: pd.DataFrame, name: str, default: float | None = None) -> Floats:
    """A size; where it is missing, the default."""
    if name not in rows and default is not None:
        return np.full(len(rows), default)
    found: Floats = rows[name].to_numpy(dtype=float)
    return found if default is None else np.where(np.isnan(found), default, found)


def itemsize(rows: pd.DataFrame) -> Floats:
    """Bytes of an element."""
    return np.array([ITEMSIZE[name] for name in rows["dtype"]], dtype=np.float64)


def maths(rows: pd.DataFrame) -> list[Math]:
    """The arithmetic of each."""
    return [Math(name) for name in rows["dtype"]]
