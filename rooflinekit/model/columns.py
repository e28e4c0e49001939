"""Kernels, one record each → the columns that the time model works on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rooflinekit.ir.cost import Gemm
from rooflinekit.ir.op import Family
from rooflinekit.ir.points import Column, Number
from rooflinekit.model.kernel import Kernel
from rooflinekit.model.kernel_batch import Floats, KernelBatch, Products, Recent


def work_of(kernels: Sequence[Kernel], points: int | Sequence[int] = 1) -> KernelBatch:
    """The kernels as columns, in their order; each at so many points one after another, where its sizes are columns.

    points: of all kernels, or of each.
    """
    counts = np.full(len(kernels), points) if isinstance(points, int) else np.asarray(points, dtype=np.int64)
    ends = np.cumsum(counts)
    everywhere = range(len(kernels))
    found = [(i, gemm) for i, kernel in enumerate(kernels) for gemm in kernel.cost.gemms]
    costs = [kernel.cost for kernel in kernels]
    recent = [(i, part) for i, kernel in enumerate(kernels) for part in kernel.recent]

    def flat(numbers: Iterable[Number], places: Sequence[int] = everywhere) -> Floats:
        if points == 1:
            return np.array([float(n.values[0] if isinstance(n, Column) else n) for n in numbers])
        given, own = list(numbers), counts[list(places)]
        plain = np.array([0.0 if isinstance(n, Column) else float(n) for n in given])
        found: Floats = np.repeat(plain, own)
        for number, end, count in zip(given, np.cumsum(own), own, strict=True):
            if isinstance(number, Column):
                found[end - count : end] = number.values
        return found

    chains = [kernel.chain for kernel in kernels]
    links = [1 if chain is None else chain.links for chain in chains]

    def of_a_link(numbers: Iterable[Number], places: Sequence[int]) -> Floats:
        counted: Floats = flat(numbers, places) / flat((links[i] for i in places), places)
        return counted

    def rows_of(places: Sequence[int]) -> NDArray[np.int64]:
        if points == 1 or not places:
            return np.array(places, dtype=np.int64)
        return np.concatenate([np.arange(ends[i] - counts[i], ends[i]) for i in places])

    multiply, find = [i for i, _ in found], [i for i, _ in recent]
    return KernelBatch.of(
        int(counts.sum()),
        math=[kernel.math for kernel in kernels],
        tensor_core=np.repeat([kernel.tensor_core for kernel in kernels], counts),
        each=counts,
        products=Products.of(
            rows_of(multiply),
            batch=of_a_link((gemm.batch for _, gemm in found), multiply),
            **{name: flat((getattr(gemm, name) for _, gemm in found), multiply) for name in ("m", "n", "k")},
            executed=flat((_executed(gemm) for _, gemm in found), multiply),
            padded=flat((kernels[i].padded for i in multiply), multiply),
            algorithm=[kernels[i].algorithm for i in multiply],
            each=counts[multiply],
        ),
        recent=Recent.of(
            rows_of(find),
            flat((r.bytes for _, r in recent), find),
            flat((r.distance for _, r in recent), find),
            np.repeat(np.array([r.cyclic for _, r in recent], dtype=bool), counts[find]),
        ),
        **{
            name: of_a_link((getattr(cost, name) for cost in costs), everywhere)
            for name in ("vector_flop", "special_flop", "read_bytes", "write_bytes")
        },
        powers=flat(kernel.cost.special_flop if kernel.raises else 0 for kernel in kernels),
        links=flat(links),
        starts=flat(1 if chain is None else chain.starts for chain in chains),
        barriers=flat(0 if chain is None else chain.barriers for chain in chains),
        rows=flat(kernel.rows.count for kernel in kernels),
        columns=flat(kernel.rows.length * kernel.rows.worked for kernel in kernels),
        passes=flat(kernel.rows.passes for kernel in kernels),
        row_bytes=flat(kernel.rows.held_bytes for kernel in kernels),
        threads=flat(kernel.rows.threads for kernel in kernels),
        reread_bytes=flat(kernel.reread_bytes for kernel in kernels),
        column=flat(kernel.column for kernel in kernels),
        blocks=flat(kernel.blocks.count for kernel in kernels),
        loads=flat(kernel.blocks.loads for kernel in kernels),
        block_bytes=flat(kernel.blocks.bytes for kernel in kernels),
        accesses=flat(kernel.accesses for kernel in kernels),
        alone=flat(kernel.alone for kernel in kernels),
        streamed=flat(kernel.streamed for kernel in kernels),
        waits=flat(_waits(kernel) for kernel in kernels),
    )


def _waits(kernel: Kernel) -> Number:
    """Between the calls of a convolution's loop over images."""
    looped = kernel.family is Family.CONVOLUTION and kernel.chain is not None
    return kernel.chain.links - 1 if looped and kernel.chain is not None else 0


def _executed(gemm: Gemm) -> Number:
    if gemm.needed is None:
        return 1.0
    dense = gemm.dense_multiply_adds
    return gemm.needed / dense if dense else 1.0
