"""Kernels, one record each → the columns that the time model works on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rooflinekit.ir.cost import Gemm
from rooflinekit.model.kernels import Family, Kernel
from rooflinekit.model.work import (
    ATTENTION,
    BACKWARD,
    CONVOLUTION,
    DEPTHWISE,
    PLAIN,
    SCALED,
    WINOGRAD,
    Products,
    Recent,
    Work,
)


def work_of(kernels: Sequence[Kernel]) -> Work:
    """The kernels as columns, in their order."""
    found = [(i, gemm, _way(kernel)) for i, kernel in enumerate(kernels) for gemm in kernel.cost.gemms]
    costs = [kernel.cost for kernel in kernels]
    recent = [(i, part) for i, kernel in enumerate(kernels) for part in kernel.recent]
    return Work.of(
        len(kernels),
        math=[kernel.math for kernel in kernels],
        engine=[kernel.engine for kernel in kernels],
        products=Products.of(
            [i for i, _, _ in found],
            **{name: [float(getattr(gemm, name)) for _, gemm, _ in found] for name in ("batch", "m", "n", "k")},
            executed=[_executed(gemm) for _, gemm, _ in found],
            way=np.array([way for _, _, way in found], dtype=np.int64),
        ),
        recent=Recent.of(
            [i for i, _ in recent], [float(r.bytes) for _, r in recent], [float(r.distance) for _, r in recent]
        ),
        vector_flop=[float(cost.vector_flop) for cost in costs],
        special_flop=[float(cost.special_flop) for cost in costs],
        read_bytes=[float(cost.read_bytes) for cost in costs],
        write_bytes=[float(cost.write_bytes) for cost in costs],
        rows=[float(kernel.rows.count) for kernel in kernels],
        columns=[float(kernel.rows.length) for kernel in kernels],
        passes=[float(kernel.rows.passes) for kernel in kernels],
        row_bytes=[float(kernel.rows.held_bytes) for kernel in kernels],
        threads=[float(kernel.rows.threads) for kernel in kernels],
        reread_bytes=[float(kernel.reread_bytes) for kernel in kernels],
    )


def _way(kernel: Kernel) -> int:
    if kernel.algorithm == "Winograd":
        return WINOGRAD
    if kernel.family is Family.CONVOLUTION and not kernel.engine:
        return DEPTHWISE
    if kernel.pointwise:
        return PLAIN
    if kernel.kind == "serving.scaled_mm":
        return SCALED
    if kernel.kind == "aten.convolution_backward":
        return BACKWARD
    return {Family.CONVOLUTION: CONVOLUTION, Family.ATTENTION: ATTENTION}.get(kernel.family, PLAIN)


def _executed(gemm: Gemm) -> float:
    dense = float(gemm.dense_multiply_adds)
    return float(gemm.multiply_adds) / dense if dense else 1.0
