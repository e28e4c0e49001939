"""Measured convolutions as work."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rooflinekit.calibrate.case_columns import Candidates, column, itemsize, maths
from rooflinekit.model.columns import DIRECT_WAYS
from rooflinekit.model.convolution import WINOGRAD_EDGES, WINOGRAD_UNFUSED, depthwise_algorithm
from rooflinekit.model.work import BACKWARD, CONVOLUTION, PLAIN, WINOGRAD, Floats, Products, Work

CONVOLUTIONS = ("conv_fwd", "conv_bwd_data", "conv_bwd_weight")


def convolution(rows: pd.DataFrame) -> Candidates:
    """Images [b, c_in, h, w], kernel [c_out, c_in, r, s]: implicit product, or Winograd with 2×2 or 4×4 outputs.

    In `groups`, each sees c_in / groups channels. In half precision the matrix engine wants channels last, save where a
    pixel sees one pixel: images that are channels first are copied before and after.
    """
    b, c, o, h, w, r, s = (column(rows, name) for name in ("b", "c_in", "c_out", "h", "w", "r", "s"))
    p = (h + 2 * column(rows, "pad_h", 0) - r) // column(rows, "stride_h", 1) + 1
    q = (w + 2 * column(rows, "pad_w", 0) - s) // column(rows, "stride_w", 1) + 1
    size, pixels, groups = itemsize(rows), b * p * q, np.maximum(column(rows, "groups", 1), 1)
    image, kernel, output = size * b * c * h * w, size * o * c / groups * r * s, size * pixels * o
    c, o = c / groups, o / groups  # of one group
    op = rows["op"].to_numpy()
    data, weight = op == "conv_bwd_data", op == "conv_bwd_weight"
    read = np.select([data, weight], [output + kernel, output + image], image + kernel)
    write = np.select([data, weight], [image, kernel], output)
    count, index = len(rows), np.arange(len(rows))

    depthwise = (groups > 1) & np.where(weight, np.minimum(o, c * r * s) == 1, np.where(data, c, o) == 1)

    def work(products: Products, extra: Floats | float = 0.0) -> Work:
        into, out = read + extra, write + extra
        return Work.of(count, math=maths(rows), engine=~depthwise, products=products, read_bytes=into, write_bytes=out)

    direct = Products.of(
        index,
        batch=groups,
        m=np.where(weight, o, pixels),
        n=np.select([data, weight], [c, c * r * s], o),
        k=np.select([data, weight], [o * r * s, pixels], c * r * s),
        way=np.select([depthwise, r * s == 1, data | weight], [_direct_way(rows), PLAIN, BACKWARD], CONVOLUTION),
    )
    found: Candidates = [((work(direct),), None)]
    if rows["dtype"].iloc[0] in ("fp16", "bf16"):
        first = (r * s > 1) & ~depthwise & (column(rows, "channels_last", 0) == 0)
        copies = np.where(data, output, image), np.where(data, image, output)  # of a weight's gradient both before
        before, after = (Work.of(count, read_bytes=size, write_bytes=size) for size in copies)
        found = [((before, work(direct), after), first), ((work(direct),), ~first)]
    plain = (r == 3) & (s == 3) & (column(rows, "stride_h", 1) == 1) & (column(rows, "stride_w", 1) == 1) & ~weight
    plain &= groups == 1
    if plain.any() and rows["dtype"].iloc[0] == "fp32":
        for edge in WINOGRAD_EDGES:
            blocks = b * np.ceil(np.where(data, h, p) / edge) * np.ceil(np.where(data, w, q) / edge)
            batch = float((edge + 2) ** 2)
            inner, outer = np.where(data, o, c), np.where(data, c, o)
            products = Products.of(index, batch=batch, m=blocks, n=outer, k=inner, way=WINOGRAD)
            moved = size * batch * blocks * (inner + outer) if edge == WINOGRAD_UNFUSED else 0.0
            found.append(((work(products, moved),), plain))
    return found


def _direct_way(rows: pd.DataFrame) -> list[int]:
    """How each would run if it were depthwise."""
    names = ("b", "c_in", "w", "r", "s", "stride_h", "stride_w")
    columns = (column(rows, name, 1).astype(int) for name in names)
    forward = bool((rows["op"] == "conv_fwd").all())
    last, sums = column(rows, "channels_last", 0) != 0, rows["op"].to_numpy() == "conv_bwd_weight"
    return [
        DIRECT_WAYS[
            depthwise_algorithm(
                channels_last=bool(layout),
                sixteen_bits=rows["dtype"].iloc[0] in ("fp16", "bf16"),
                window=(r, s),
                plain=down == across,
                stride=max(down, across),
                shape=(b, c, w),
                forward=forward,
                sums=bool(of_weight),
            )
        ]
        for b, c, w, r, s, down, across, layout, of_weight in zip(*columns, last, sums, strict=True)
    ]
