"""Graph → kernels: what eager execution launches for each op, and in which arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from rooflinekit.cost.rules.reduction import GROUP_NORM_GRADIENT, GROUP_NORMS
from rooflinekit.cost.table import price_all
from rooflinekit.hardware.device import Device
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import OF_PRODUCTS, DType, Family, Math, Op, Phase, PricedOp, TensorSpec
from rooflinekit.ir.points import Number, integer, larger
from rooflinekit.ir.sizes import missing_size
from rooflinekit.kernels.algorithms import BY_LAYOUT, SCALED_PRODUCTS, Layout
from rooflinekit.kernels.attention_backends import WRITTEN_OUT, attention_kernels, backend_of
from rooflinekit.kernels.attention_math import written_out
from rooflinekit.kernels.coalescing import (
    SECTOR_BYTES,
    SOFTMAX_GRADIENT,
    copied,
    differs_on_a_gpu,
    indexed_accesses,
    sector_bytes,
)
from rooflinekit.kernels.convolution import convolution_kernels, is_convolution, with_layout_copies
from rooflinekit.kernels.kernel import Issue, Kernel, Traffic, passing
from rooflinekit.kernels.recurrence import RECURRENT, cell_kernel, is_cell, recurrent_kernel
from rooflinekit.kernels.reductions import SUMS, sum_blocks
from rooflinekit.kernels.rows import (
    NO_BLOCKS,
    NO_REPEATS,
    Blocks,
    blocks_of,
    columns_length,
    repeats_of,
    reread_bytes,
    rows_of,
    softmax_accesses,
    window_accesses,
)


def issues_of(graph: Graph, tensor_formats: Collection[str] = (), device: Device | None = None) -> tuple[Issue, ...]:
    """Every op of the graph with the kernels that eager mode launches for it.

    tensor_formats: the formats that the device multiplies on a tensor core, whose convolutions want channels last.
    device: on which recurrent layers and attention are run as it wants them.

    Raises SizeError while a size of the graph is open.
    """
    if graph.dims:
        raise missing_size(graph.dims)
    traffic, found = Traffic(), []
    for priced, calls in zip(graph.priced, _calls(graph), strict=True):
        kernels = _of_any_device(priced, graph) or plain_kernels(priced, graph.tf32, device, graph.like)
        found.append(issue_of(priced.op, priced.family, kernels, tensor_formats, traffic, calls))
    return tuple(found)


def _calls(graph: Graph) -> Iterator[int]:
    """For each op, how many modules Python calls on the way to it; autograd and optimizers call none."""
    before: list[str] | None = None
    for op in graph.ops:
        if op.phase is not Phase.FORWARD:
            yield 0
            continue
        path = op.module.split(".") if op.module else []
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(path, before or (), strict=False))
        yield len(path) - sum(1 for _ in alike) + (before is None)
        before = path


def issue_of(
    op: Op, family: Family, kernels: Iterable[Kernel], tensor_formats: Collection[str], traffic: Traffic,
    calls: int = 0,
) -> Issue:  # fmt: skip
    """What the CPU issues for an op: its kernels, with layout copies and what they find in the cache."""
    if is_convolution(op):
        kernels = with_layout_copies(op, kernels, tensor_formats)
    return Issue(op=op, family=family, kernels=tuple(reusing(k, op, traffic) for k in kernels), calls=calls)


def _of_any_device(priced: PricedOp, graph: Graph) -> tuple[Kernel, ...]:
    """The kernels of an op that has the same ones on every device, remembered; none of other ops."""
    op, family = priced.op, priced.family
    if family in (Family.ATTENTION, Family.RECURRENCE) or is_cell(op) or op.kind in SUMS:
        return ()
    if differs_on_a_gpu(op, family):
        return ()
    known = graph.memo.setdefault("kernels of any device", {})
    if id(priced) not in known:
        known[id(priced)] = plain_kernels(priced, graph.tf32, None, graph.like)
    found: tuple[Kernel, ...] = known[id(priced)]
    return found


_FACTOR_BYTES = 4  # of a group norm's factors
_IMAGES_AT_ONCE, _MOST_IMAGES = 4, 128  # whose sums a thread loads at once, and one after another
TIMES_RESULT = "times the result"  # a product before a softmax's gradient
MADE_CONTIGUOUS = "made contiguous"  # a copy for kernels of rows

#: Which inputs each kernel of a convolution's backward reads: the gradient, and the weight or the input.
_GRADIENT_READS = {"input gradient": (0, 2), "weight gradient": (0, 1), "bias gradient": (0,)}


def reusing(kernel: Kernel, op: Op, traffic: Traffic) -> Kernel:
    """The kernel with what it finds in the cache; its own traffic is added to what has passed."""
    if op.kind == "aten.convolution_backward":
        read = _GRADIENT_READS.get(kernel.cost.label, (0, 1, 2))
        op = replace(op, inputs=tuple(op.inputs[i] for i in read))
    recent = traffic.passed(op, integer(kernel.cost.bytes), whole=kernel.cost.label != "bias")
    if kernel.chain is not None:  # whose links find what the link before has left
        return kernel
    alternatives = tuple(other if other.chain else replace(other, recent=recent) for other in kernel.alternatives)
    return replace(kernel, recent=recent, alternatives=alternatives)


def _moved(tensors: Sequence[TensorSpec]) -> list[tuple[TensorSpec, int]]:
    return [(spec, integer(spec.bytes)) for spec in tensors]


def plain_kernels(
    priced: PricedOp, tf32: bool | None, device: Device | None = None, like: Release | None = None
) -> tuple[Kernel, ...]:
    """The kernels of one op, before layout copies and what earlier kernels left in the cache."""
    return tuple(_kernels(priced, tf32, device, like)) if priced.costs and not _of_nothing(priced.op) else ()


def _of_nothing(op: Op) -> bool:
    """Whether it makes results without an element of such, for which PyTorch launches nothing.

    What data leave no element of, as a mask may, is looked for all the same.
    """
    empty = bool(op.outputs) and all(integer(tensor.numel) == 0 for tensor in op.outputs)
    return empty and (not op.inputs or any(integer(tensor.numel) == 0 for tensor in op.inputs))


def _kernels(priced: PricedOp, tf32: bool | None, device: Device | None, like: Release | None) -> Iterator[Kernel]:
    op, family = priced.op, priced.timed_as
    if family is Family.ATTENTION and backend_of(op, device, like) is WRITTEN_OUT:
        for part in price_all(written_out(op, like)[0]):
            yield from plain_kernels(part, tf32, device, like)
        return
    for cost in priced.costs:
        kernel = _kernel(op, cost, family, tf32, device, like)
        if family is Family.ATTENTION:
            yield from attention_kernels(kernel, op, device, like)
        elif op.kind == "serving.scaled_mm":
            first, *others = (replace(kernel, algorithm=one) for one in SCALED_PRODUCTS)
            yield replace(first, alternatives=tuple(others))
        elif is_convolution(op):
            yield from convolution_kernels(kernel, op)
        elif op.kind in RECURRENT:
            yield recurrent_kernel(kernel, op, device)
        elif is_cell(op):
            yield cell_kernel(kernel, op, device)
        elif device is not None and device.kind == "gpu":
            yield from _on_a_gpu(kernel, op)
        else:
            yield kernel


def _kernel(
    op: Op, cost: Cost, family: Family, tf32: bool | None, device: Device | None, like: Release | None
) -> Kernel:
    """A kernel as it is on any device but for the blocks of a sum, its products by a plain algorithm."""
    rows = rows_of(op, cost, like)
    summed = sum_blocks(op, device) if op.kind in SUMS else NO_BLOCKS
    placed = 0 if cost.label else indexed_accesses(op, family, like)  # by the kernel that goes through the operands
    return Kernel(
        name=f"{op.name}: {cost.label}" if cost.label else op.name,
        kind=op.kind,
        family=family,
        module=op.module,
        phase=op.phase,
        math=math_of(op, family, tf32),
        cost=cost,
        algorithm=BY_LAYOUT[_layout(op, family)],
        rows=rows,
        reread_bytes=reread_bytes(op, cost),
        repeats=repeats_of(_moved(op.inputs), _moved(op.outputs)) if family is Family.ELEMENTWISE else NO_REPEATS,
        column=columns_length(op) * op.inputs[0].dtype.itemsize if op.inputs else 0,
        blocks=summed if summed.count else blocks_of(op, cost, like),
        ramps=2 if summed.count or placed else 1,
        indexed=placed,
        accesses=window_accesses(op) + unaligned_accesses(op) + softmax_accesses(rows, op),
        library=_library_functions(op, cost) if family is Family.ELEMENTWISE else 0,
    )


def _library_functions(op: Op, cost: Cost) -> Number:
    """Special functions that a loop over elements asks of the compiler's library; a number is divided by once for all.

    A power is a logarithm and an exponential of more digits than one number holds.
    """
    kind, single = op.kind.removesuffix("_"), len(op.inputs) == 1
    if kind == "aten.div" and single:
        return 0
    power = kind == "aten.pow" and op.attrs.get("exponent") not in _BY_PRODUCTS
    return integer(cost.special_flop) * (_OF_A_POWER if power else 1)


def _layout(op: Op, family: Family) -> Layout:
    """How a product's matrices lie; what is no matrix, as by rows."""
    if family is not Family.MATMUL or len(op.inputs) < 2:
        return "NN"
    left, right = (tensor.stride is not None and tensor.stride[-2:-1] == (1,) for tensor in op.inputs[-2:])
    return "NT" if left else "TN" if right else "NN"


def _on_a_gpu(kernel: Kernel, op: Op) -> Iterator[Kernel]:
    """The kernel with those that PyTorch launches on a GPU before it, and what it reads in another order."""
    if kernel.cost.label in ("", "input gradient"):
        for tensor, beyond in copied(op):
            written = integer(tensor.numel) * tensor.dtype.itemsize  # of an expanded tensor more than is read
            yield _across(passing(kernel, MADE_CONTIGUOUS, integer(tensor.bytes), written), beyond)
    if op.kind in GROUP_NORMS:
        yield from _of_groups(kernel, op)
    elif op.kind == SOFTMAX_GRADIENT:
        times = passing(kernel, TIMES_RESULT, integer(kernel.cost.read_bytes), integer(op.outputs[0].bytes))
        yield _across(times, sector_bytes(op, times.family))
        yield kernel
    else:
        yield _across(kernel, 0 if kernel.cost.label else sector_bytes(op, kernel.family))


def _of_groups(kernel: Kernel, op: Op) -> Iterator[Kernel]:
    """A group norm's sums over each group, factors of each channel, and the result, whose operands are broadcast.

    Its gradient sums up each channel of each image, of which the gradients of gain and shift are sums again
    (aten/src/ATen/native/cuda/group_norm_kernel.cu).
    """
    backward = op.kind == GROUP_NORM_GRADIENT
    read, images = op.inputs[: 1 + backward], op.inputs[backward]
    moved, channels = sum(integer(tensor.bytes) for tensor in read), integer(images.shape[0]) * integer(images.shape[1])
    factors = 2 * channels * _FACTOR_BYTES
    if kernel.cost.label not in ("", "input gradient"):
        many = integer(images.shape[0])  # which a thread for each channel sums up
        loads = (many - larger(0, many - _MOST_IMAGES)) // _IMAGES_AT_ONCE
        sums = Blocks(count=1, loads=loads, bytes=factors)
        again = replace(kernel, cost=replace(kernel.cost, read_bytes=factors), blocks=sums)
        yield again if op.attrs["output_mask"][0] else kernel  # without an input's gradient nothing is summed up before
        return
    yield replace(kernel, cost=replace(kernel.cost, write_bytes=factors), reread_bytes=0)
    for _ in range((op.attrs.get("weight") is not None) + backward):
        yield passing(kernel, "factors", factors, factors)
    written = integer(op.outputs[0].bytes)
    places = integer(images.numel) * (6 if backward else 4)  # of what is read, two or three factors, the result
    yield replace(passing(kernel, "result", moved, written), indexed=places, ramps=2)


def _across(kernel: Kernel, beyond: Number) -> Kernel:
    """The kernel where it fetches so many bytes again, of sectors whose other numbers other blocks have read."""
    return replace(kernel, reread_bytes=beyond, column=SECTOR_BYTES) if beyond else kernel


#: Exponents for which PyTorch multiplies, or takes a root (aten/src/ATen/native/cuda/PowKernel.cu).
_BY_PRODUCTS = (0.5, -0.5, 2, 3, -1, -2)
_OF_A_POWER = 10  # special functions whose time a power takes: 170 and 17 cycles on MI100 and MI300X

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
    DType.FLOAT4_E2M1FN_X2: Math.FP4,
}


_CUDNN = (Family.CONVOLUTION, Family.RECURRENCE)


def math_of(op: Op, family: Family, tf32: bool | None) -> Math:
    """The arithmetic of an op: fp32 as tf32 where allowed, by default in cuDNN (convolutions, recurrence) alone."""
    stored = next((t.dtype for t in op.inputs if t.dtype.is_floating or t.dtype.is_complex), None)
    if op.kind.startswith("serving."):  # whose scales are floating-point numbers beside what is multiplied
        stored = op.inputs[0].dtype
    if family not in OF_PRODUCTS:
        return Math.FP64 if stored in (DType.FLOAT64, DType.COMPLEX128) else Math.FP32
    if stored is None:
        stored = op.inputs[0].dtype
    math = _MATH_OF.get(stored, Math.FP32)
    if math is Math.FP32 and (tf32 or (tf32 is None and family in _CUDNN)):
        return Math.TF32
    return math


# Kernels that move numbers one by one, for rows that begin off a boundary of 16 bytes.


_PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
_AT_ONCE = 8  # numbers of 16 bits in 16 bytes


def unaligned_accesses(op: Op) -> int:
    """Loads of single elements that a kernel on such rows takes beyond what it would on others; 0 for other ops."""
    if op.kind not in _PRODUCTS:
        return 0
    return sum(_in_pieces(tensor) for tensor in (*op.inputs[-2:], *op.outputs[:1]))


def _in_pieces(matrix: TensorSpec) -> int:
    """Number of accesses to the whole matrix in pieces of less than 16 bytes; 0 where rows are aligned."""
    if not matrix.dtype.sixteen_bits or len(matrix.shape) < 2:
        return 0
    shape = matrix.shape[-2:]
    stride = (shape[1], 1) if matrix.stride is None else matrix.stride[-2:]
    along = 1 if integer(stride[1]) == 1 else 0
    if integer(stride[along]) != 1 or integer(shape[1 - along]) == 1:
        return 0  # copied before; or a vector, whose only row begins where memory does
    row = integer(stride[1 - along])
    pieces = next(many for many in (_AT_ONCE, 4, 2, 1) if row % many == 0)
    return 0 if pieces == _AT_ONCE else integer(matrix.numel) // pieces
