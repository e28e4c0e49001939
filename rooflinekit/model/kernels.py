"""Graph → kernels: what eager execution launches for each op, and in which arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, Phase, PricedOp
from rooflinekit.ir.sizes import missing_size
from rooflinekit.ir.tensor import DType, Math, TensorSpec
from rooflinekit.model.reuse import Reuse, Traffic
from rooflinekit.model.rows import NO_ROWS, Rows, reread_bytes, rows_of

WINOGRAD_EDGES = (2, 4)  # of a block of outputs
WINOGRAD_UNFUSED = 4  # the edge whose transformed tensors go through memory


class Family(StrEnum):
    """Kinds of kernels that behave alike, on the GPU and in the CPU's work to issue them."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    NORMALIZATION = "normalization"
    REDUCTION = "reduction"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    OPTIMIZER = "optimizer"
    VIEW = "view"  # launches nothing


#: Under which name the residuals of a family are kept; element-wise where no other is named. Products of 8 bits, which
#: libraries tune apart, have one of their own.
_SPREAD_FAMILIES = {
    Family.MATMUL: "product",
    Family.CONVOLUTION: "convolution",
    Family.ATTENTION: "attention",
    Family.NORMALIZATION: "normalization",
    Family.REDUCTION: "softmax",
}
_EIGHT_BITS = (Math.FP8, Math.INT8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One launch: what it computes in which arithmetic, and its traffic. All sizes are numbers."""

    name: str  # of its op, with the part of it: "convolution_3: input gradient"
    kind: str
    family: Family
    module: str
    phase: Phase
    math: Math
    engine: bool  # whether its products can use the matrix engine
    cost: Cost
    algorithm: str = ""  # where it is not the plain one: "Winograd"
    alternatives: tuple[Kernel, ...] = ()  # the same work by other algorithms
    pointwise: bool = False  # a convolution of one pixel: a product without gathering windows
    rows: Rows = NO_ROWS
    reread_bytes: int = 0  # of what it reads twice: first for statistics over the whole tensor
    recent: tuple[Reuse, ...] = ()  # of what it reads: touched by the kernels before it

    @property
    def spread_family(self) -> str:
        """The family of measurements that tells how far predictions of such kernels are off."""
        if self.family is Family.MATMUL and self.math in _EIGHT_BITS:
            return "quantized product"
        return _SPREAD_FAMILIES.get(self.family, "elementwise")

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity, FLOP/byte; None for a kernel that moves nothing."""
        moved = float(self.cost.bytes)
        return float(self.cost.flop) / moved if moved else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """One op as the CPU issues it, with the kernels that it launches: none for a view."""

    op: Op
    family: Family
    kernels: tuple[Kernel, ...]


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
    recent = traffic.passed(op, int(kernel.cost.bytes), whole=kernel.cost.label != "bias")
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
            engine=family is not Family.CONVOLUTION or not _is_depthwise(cost),
            cost=cost,
            pointwise=_is_pointwise(op, family),
            rows=rows_of(op, cost),
            reread_bytes=reread_bytes(op, cost),
        )
        if op.kind == "aten.convolution":
            yield from _convolution(kernel, op)
        elif op.kind == "aten.convolution_backward" and cost.label == "input gradient":
            yield _with_winograd(kernel, op, op.inputs[0], op.outputs[0])
        else:
            yield kernel


def _convolution(kernel: Kernel, op: Op) -> Iterator[Kernel]:
    """A bias is a kernel of its own, which reads and writes the output once more."""
    if op.attrs.get("bias") is None:
        yield _with_winograd(kernel, op, op.inputs[0], op.outputs[0])
        return
    output = int(op.outputs[0].bytes)
    bias = int(op.attrs["bias"].bytes)
    vector = kernel.cost.vector_flop
    product_cost = replace(kernel.cost, vector_flop=0, read_bytes=int(kernel.cost.read_bytes) - bias)
    added = Cost(vector_flop=vector, read_bytes=output + bias, write_bytes=output, label="bias")
    yield _with_winograd(replace(kernel, cost=product_cost), op, op.inputs[0], op.outputs[0])
    yield replace(kernel, name=f"{kernel.name}: bias", cost=added, family=Family.ELEMENTWISE, math=Math.FP32)


def with_layout_copies(op: Op, kernels: Iterable[Kernel], engines: Collection[str]) -> Iterator[Kernel]:
    """The kernels of a convolution, with the copies to and from channels last that the matrix engine asks for.

    A convolution of one pixel is a product in either layout.
    """
    for kernel in kernels:
        copied = kernel.engine and kernel.math in engines and not kernel.pointwise and kernel.cost.gemms
        read = 2 if kernel.cost.label == "weight gradient" else 1
        written = 0 if kernel.cost.label == "weight gradient" else 1
        before = [t for t in op.inputs[:read] if copied and not _channels_last(t)]
        after = [t for t in op.outputs[:written] if copied and len(t.shape) > 2 and not _channels_last(t)]
        yield from (_copy(kernel, tensor, "to channels last") for tensor in before)
        yield kernel
        yield from (_copy(kernel, tensor, "from channels last") for tensor in after)


def _channels_last(tensor: TensorSpec) -> bool:
    return tensor.stride is not None and tensor.stride[1] == 1


def _copy(kernel: Kernel, tensor: TensorSpec, label: str) -> Kernel:
    size = int(tensor.bytes)
    return replace(
        kernel,
        name=f"{kernel.name} ({tensor.name} {label})",
        family=Family.MOVEMENT,
        math=Math.FP32,
        cost=Cost(read_bytes=size, write_bytes=size, label=label),
        alternatives=(),
        rows=NO_ROWS,
        reread_bytes=0,
    )


def _with_winograd(kernel: Kernel, op: Op, source: TensorSpec, result: TensorSpec) -> Kernel:
    """A 3×3 convolution of stride 1 with its Winograd forms F(2×2, 3×3) and F(4×4, 3×3) as alternatives.

    A block of e×e outputs takes (e + 2)² multiplications instead of 9·e²: as many products of [blocks, C] with [C, K]
    (Lavin and Gray, 2016). The larger one keeps its transformed tensors in memory between the kernels of its own.
    """
    weight, attrs = op.inputs[-1 if "backward" in op.kind else 1], op.attrs
    plain = attrs["groups"] == 1 and not attrs["transposed"] and set(attrs["stride"]) == set(attrs["dilation"]) == {1}
    if not plain or tuple(weight.shape[2:]) != (3, 3):
        return kernel
    (n, k, p, q), c = map(int, result.shape), int(source.shape[1])
    found = []
    for edge in WINOGRAD_EDGES:
        batch, blocks = (edge + 2) ** 2, n * -(-p // edge) * -(-q // edge)
        moved = result.dtype.itemsize * batch * blocks * (c + k) if edge == WINOGRAD_UNFUSED else 0
        cost = replace(
            kernel.cost,
            gemms=(Gemm(batch=batch, m=blocks, n=k, k=c),),
            read_bytes=int(kernel.cost.read_bytes) + moved,
            write_bytes=int(kernel.cost.write_bytes) + moved,
        )
        found.append(replace(kernel, name=f"{kernel.name} (Winograd)", algorithm="Winograd", cost=cost))
    return replace(kernel, alternatives=tuple(found))


def _is_pointwise(op: Op, family: Family) -> bool:
    """Whether each output pixel sees one input pixel."""
    if family is not Family.CONVOLUTION:
        return False
    weight = op.inputs[-1 if "backward" in op.kind else 1]
    return set(weight.shape[2:]) == {1} and set(op.attrs.get("stride", (1,))) == {1}


def _is_depthwise(cost: Cost) -> bool:
    """One channel in and one out a group: there is nothing for a matrix engine to contract but the window."""
    return any(gemm.batch != 1 and 1 in (gemm.n, gemm.m) for gemm in cost.gemms)


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
