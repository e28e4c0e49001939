"""Kernels, one record each → the columns that the time model works on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rooflinekit.ir.cost import Gemm
from rooflinekit.ir.points import Column, Number, values_of
from rooflinekit.model.convolution import CHANNEL_PRODUCTS, SHARED_WINDOWS, TAP_SUMS, WINDOW_LOOP
from rooflinekit.model.kernel import Family, Kernel
from rooflinekit.model.work import (
    ATTENTION,
    BACKWARD,
    CONVOLUTION,
    DEPTHWISE,
    DEPTHWISE_CHANNELS,
    DEPTHWISE_LOOP,
    DEPTHWISE_SHARED,
    DEPTHWISE_SUMS,
    PLAIN,
    SCALED,
    WINOGRAD,
    Floats,
    Products,
    Recent,
    Work,
)

#: Kernels without tiles by their algorithm.
DIRECT_WAYS = {
    "": DEPTHWISE,
    WINDOW_LOOP: DEPTHWISE_LOOP,
    TAP_SUMS: DEPTHWISE_SUMS,
    CHANNEL_PRODUCTS: DEPTHWISE_CHANNELS,
    SHARED_WINDOWS: DEPTHWISE_SHARED,
}


def work_of(kernels: Sequence[Kernel], points: int = 1) -> Work:
    """The kernels as columns, in their order; each at so many points one after another, where its sizes are columns."""
    found = [(i, gemm, _way(kernel)) for i, kernel in enumerate(kernels) for gemm in kernel.cost.gemms]
    costs = [kernel.cost for kernel in kernels]
    recent = [(i, part) for i, kernel in enumerate(kernels) for part in kernel.recent]

    def flat(numbers: Iterable[Number]) -> Floats:
        if points == 1:
            return np.array([float(n.values[0] if isinstance(n, Column) else n) for n in numbers])
        table = [np.broadcast_to(np.asarray(values_of(number), dtype=float), (points,)) for number in numbers]
        return np.concatenate(table) if table else np.zeros(0)

    def rows_of(places: Sequence[int]) -> NDArray[np.int64]:
        return (np.array(places, dtype=np.int64)[:, None] * points + np.arange(points)).ravel()

    return Work.of(
        len(kernels) * points,
        math=[kernel.math for kernel in kernels],
        engine=np.repeat([kernel.engine for kernel in kernels], points),
        products=Products.of(
            rows_of([i for i, _, _ in found]),
            **{name: flat(getattr(gemm, name) for _, gemm, _ in found) for name in ("batch", "m", "n", "k")},
            executed=flat(_executed(gemm) for _, gemm, _ in found),
            way=np.repeat(np.array([way for _, _, way in found], dtype=np.int64), points),
        ),
        recent=Recent.of(
            rows_of([i for i, _ in recent]), flat(r.bytes for _, r in recent), flat(r.distance for _, r in recent)
        ),
        vector_flop=flat(cost.vector_flop for cost in costs),
        special_flop=flat(cost.special_flop for cost in costs),
        read_bytes=flat(cost.read_bytes for cost in costs),
        write_bytes=flat(cost.write_bytes for cost in costs),
        rows=flat(kernel.rows.count for kernel in kernels),
        columns=flat(kernel.rows.length for kernel in kernels),
        passes=flat(kernel.rows.passes for kernel in kernels),
        row_bytes=flat(kernel.rows.held_bytes for kernel in kernels),
        threads=flat(kernel.rows.threads for kernel in kernels),
        reread_bytes=flat(kernel.reread_bytes for kernel in kernels),
    )


def _way(kernel: Kernel) -> int:
    if kernel.algorithm == "Winograd":
        return WINOGRAD
    if kernel.family is Family.CONVOLUTION and not kernel.engine:
        return DIRECT_WAYS[kernel.algorithm]
    if kernel.pointwise:
        return PLAIN
    if kernel.kind == "serving.scaled_mm":
        return SCALED
    if kernel.kind == "aten.convolution_backward":
        return BACKWARD
    return {Family.CONVOLUTION: CONVOLUTION, Family.ATTENTION: ATTENTION}.get(kernel.family, PLAIN)


def _executed(gemm: Gemm) -> Number:
    if gemm.needed is None:
        return 1.0
    dense = gemm.dense_multiply_adds
    return gemm.needed / dense if dense else 1.0
