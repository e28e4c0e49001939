"""Graph → kernels: what eager execution launches for each op, and in which arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, PricedOp
from rooflinekit.ir.points import integer
from rooflinekit.ir.sizes import missing_size
from rooflinekit.ir.tensor import DType, Math
from rooflinekit.model.convolution import convolution_kernels, with_layout_copies
from rooflinekit.model.kernel import Family, Issue, Kernel
from rooflinekit.model.reuse import Traffic
from rooflinekit.model.rows import reread_bytes, rows_of


def issues_of(graph: Graph, engines: Collection[str] = ()) -> tuple[Issue, ...]:
    """Every op of the graph with the kernels that eager mode launches for it.

    engines: the formats that the device multiplies on a matrix engine, whose convolutions want channels last.

    Raises SizeError while a size of the graph is open.
    """
    if graph.dims:
        raise missing_size(graph.dims)
    traffic = Traffic()
    return tuple(_issue(priced, graph.tf32, engines, traffic) for priced in graph.priced)


def _issue(priced: PricedOp, tf32: bool | None, engines: Collection[str], traffic: Traffic) -> Issue:
    op = priced.op
    family = family_of(priced) if priced.costs else Family.VIEW
    found = _kernels(priced, family, tf32) if priced.costs else ()
    if family is Family.CONVOLUTION:
        found = with_layout_copies(op, found, engines)
    kernels = tuple(reusing(kernel, op, traffic) for kernel in found)
    return Issue(op=op, family=family, kernels=kernels)


#: Which inputs each kernel of a convolution's backward reads: the gradient, and the weight or the input.
_GRADIENT_READS = {"input gradient": (0, 2), "weight gradient": (0, 1), "bias gradient": (0,)}


def reusing(kernel: Kernel, op: Op, traffic: Traffic) -> Kernel:
    """The kernel with what it finds in the cache; its own traffic is added to what has passed."""
    if op.kind == "aten.convolution_backward":
        read = _GRADIENT_READS.get(kernel.cost.label, (0, 1, 2))
        op = replace(op, inputs=tuple(op.inputs[i] for i in read))
    recent = traffic.passed(op, integer(kernel.cost.bytes), whole=kernel.cost.label != "bias")
    alternatives = tuple(replace(other, recent=recent) for other in kernel.alternatives)
    return replace(kernel, recent=recent, alternatives=alternatives)


def plain_kernels(priced: PricedOp, tf32: bool | None) -> tuple[Kernel, ...]:
    """The kernels of one op, before layout copies and what earlier kernels left in the cache."""
    return tuple(_kernels(priced, family_of(priced), tf32)) if priced.costs else ()


def _kernels(priced: PricedOp, family: Family, tf32: bool | None) -> Iterator[Kernel]:
    op = priced.op
    math = _math(op, family, tf32)
    for cost in priced.costs:
        label = f": {cost.label}" if cost.label else ""
        kernel = Kernel(
            name=op.name + label,
            kind=op.kind,
            family=family,
            module=op.module,
            phase=op.phase,
            math=math,
            engine=True,
            cost=cost,
            rows=rows_of(op, cost),
            reread_bytes=reread_bytes(op, cost),
        )
        if family is Family.CONVOLUTION:
            yield from convolution_kernels(kernel, op)
        else:
            yield kernel


#: Words in the names of ops; the first family that has one is the op's.
_WORDS = {
    Family.CONVOLUTION: ("convolution",),
    Family.ATTENTION: ("scaled_dot_product", "flex_attention", "paged_attention"),
    Family.OPTIMIZER: ("_foreach_", "_fused_"),
    Family.NORMALIZATION: ("_norm",),
    Family.REDUCTION: (
        "softmax", "pool", "sum", "prod", "mean", "loss", "amax", "amin", "argm", "var", "std", "sort", "topk", "any",
        "all", "median", "kthvalue", "cdist", "logsumexp", "unique", "count_nonzero",
    ),
    Family.MOVEMENT: (
        "clone", "copy", "cat", "stack", "roll", "flip", "repeat", "pad", "zeros", "ones", "full", "fill", "zero_",
        "arange", "slice_backward", "select_backward", "embedding", "index", "gather", "scatter", "_local_scalar",
        "diag", "unfold_backward", "rot90", "eye", "linspace", "take", "nonzero", "shuffle", "im2col", "col2im",
    ),
}  # fmt: skip


def family_of(priced: PricedOp) -> Family:
    """The family of an op: by what it multiplies, else by the words of its name, else element-wise."""
    name = priced.op.kind.rpartition(".")[2]
    named = next((family for family, words in _WORDS.items() if any(word in name for word in words)), None)
    if named not in (Family.CONVOLUTION, Family.ATTENTION) and any(cost.gemms for cost in priced.costs):
        return Family.MATMUL
    return named or Family.ELEMENTWISE


_MATH_OF = {
    DType.FLOAT64: Math.FP64,
    DType.COMPLEX128: Math.FP64,
    DType.FLOAT16: Math.FP16,
    DType.COMPLEX32: Math.FP16,
    DType.BFLOAT16: Math.BF16,
    DType.FLOAT8_E4M3FN: Math.FP8,
    DType.FLOAT8_E5M2: Math.FP8,
    DType.FLOAT8_E4M3FNUZ: Math.FP8,
    DType.FLOAT8_E5M2FNUZ: Math.FP8,
    DType.INT8: Math.INT8,
    DType.UINT8: Math.INT8,
}


def _math(op: Op, family: Family, tf32: bool | None) -> Math:
    """The arithmetic of an op. fp32 runs as tf32 where that is allowed: by default in convolutions alone."""
    stored = next((t.dtype for t in op.inputs if t.dtype.is_floating or t.dtype.is_complex), None)
    if family not in (Family.MATMUL, Family.CONVOLUTION, Family.ATTENTION):
        return Math.FP64 if stored in (DType.FLOAT64, DType.COMPLEX128) else Math.FP32
    if stored is None:
        stored = op.inputs[0].dtype
    math = _MATH_OF.get(stored, Math.FP32)
    if math is Math.FP32 and (tf32 or (tf32 is None and family is Family.CONVOLUTION)):
        return Math.TF32
    return math
