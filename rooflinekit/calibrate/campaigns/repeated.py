"""Measured calls that come again and again: what each finds of itself in the cache.

`copies` sets of tensors (of a product: of its right side, the weight) are gone through in turn; 0 where the inputs come
from memory, or nobody says.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaigns.columns import column
from rooflinekit.model.work import Floats, Recent, Work


def product_again(rows: pd.DataFrame, left: Floats, right: Floats, written: Floats) -> Recent:
    """What a product finds of itself where `copies` of its right side, the weight, are gone through in turn."""
    copies = column(rows, "copies", 0)
    chosen = np.flatnonzero(copies > 0)
    call = (left + right + written)[chosen]
    sizes = [part[chosen] for part in (left, right, written)]
    since = [call, call + (copies[chosen] - 1) * sizes[1], call]
    return Recent.of(
        np.tile(chosen, 3),
        np.concatenate(sizes),
        np.concatenate([whole - size for whole, size in zip(since, sizes, strict=True)]),
        cyclic=True,
    )


def again(rows: pd.DataFrame, work: Work, beside: Floats | float = 0.0) -> Recent:
    """What a kernel finds of itself where one set of tensors (`copies`: 1) is gone through again and again.

    beside: traffic of the call's other kernels.
    """
    chosen = np.flatnonzero(column(rows, "copies", 0) == 1)
    moved = (work.read_bytes + work.write_bytes)[chosen]
    return Recent.of(chosen, moved, np.broadcast_to(beside, (len(rows),))[chosen], cyclic=True)


def repeated(rows: pd.DataFrame, work: Work) -> Work:
    """The kernel, with what it finds of itself."""
    return replace(work, recent=work.recent.and_also(again(rows, work)))
