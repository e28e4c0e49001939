"""What launches for a convolution: its product, layout copies, the bias, and other algorithms beside it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rooflinekit.cost.rules.convolution import BACKWARD, FORWARD
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Math, Op, TensorSpec
from rooflinekit.ir.points import Number, integer
from rooflinekit.kernels import cudnn
from rooflinekit.kernels.algorithms import (
    CUDNN,
    HALF,
    PRODUCT,
    VECTOR_BYTES,
    Algorithm,
    Form,
    Problem,
    ceiled,
    filled_up,
)
from rooflinekit.kernels.depthwise import GROUP_SUMS, depthwise_algorithm, is_depthwise
from rooflinekit.kernels.kernel import Chain, Kernel, passing
from rooflinekit.kernels.libraries import every_library
from rooflinekit.published.stated import NUMBERS

#: Channels a group, in and out alike, of which cuDNN has tiled gradients with channels last (timm's training rows).
_TILED_GROUPS = (4, 8, 16, 32)
_OF_AN_IMAGE = 4  # sizes of its tensors
_GROUPS_TILE = 32  # channels of a tile of such groups, which holds whole ones
_PLACED = 3  # elements whose place the kernel of a bias works out for each of its results: of both, and of the bias
_MOST_SUMMED = int(NUMBERS["summed channels"].value)


def is_convolution(op: Op) -> bool:
    """Whether it is PyTorch's; what a plug-in's rule times as a convolution is a plain product."""
    return op.kind == BACKWARD or op.kind in FORWARD


def convolution_kernels(kernel: Kernel, op: Op) -> Iterator[Kernel]:
    """The kernels for a part of a convolution, given as a plain product; a bias takes one more over the output."""
    if is_depthwise(kernel.cost):
        algorithm = _depthwise(op, kernel)
        if len(image_and_weight(op)[1].shape) > _OF_AN_IMAGE:  # on AMD's GPUs MIOpen's, which has none for volumes
            algorithm = replace(algorithm, library=CUDNN)
        kernel = replace(kernel, algorithm=algorithm)
    elif _is_untiled(op, kernel):
        kernel = replace(kernel, algorithm=GROUP_SUMS)
    if not kernel.cost.gemms:
        yield kernel
        return
    kernel = _with_algorithms(kernel, problem_of(op, kernel.cost.label))
    if op.kind == BACKWARD or op.attrs.get("bias") is None:
        yield kernel
        return
    output = integer(op.outputs[0].bytes)
    bias = integer(op.attrs["bias"].bytes)
    added = Cost(vector_flop=kernel.cost.vector_flop, read_bytes=output + bias, write_bytes=output, label="bias")
    yield _without_bias(kernel, bias)
    yield replace(
        kernel, name=f"{kernel.name}: bias", cost=added, family=Family.ELEMENTWISE, math=Math.FP32,
        algorithm=PRODUCT, alternatives=(), direction="", indexed=_PLACED * integer(op.outputs[0].numel),
        ramps=2,
    )  # fmt: skip


def _without_bias(kernel: Kernel, bias: int) -> Kernel:
    cost = replace(kernel.cost, vector_flop=0, read_bytes=integer(kernel.cost.read_bytes) - bias)
    return replace(kernel, cost=cost, alternatives=tuple(_without_bias(k, bias) for k in kernel.alternatives))


def _depthwise(op: Op, kernel: Kernel) -> Algorithm:
    image, weight = image_and_weight(op)
    return depthwise_algorithm(
        channels_last=image.channels_last,
        sixteen_bits=image.dtype.sixteen_bits,
        window=tuple(map(int, weight.shape[2:])),
        dense={*op.attrs.get("stride", (1,)), *op.attrs.get("dilation", (1,))} == {1},
        channels=image.shape[1],
        forward=op.kind == "aten.convolution",
        sums=kernel.cost.label == "weight gradient",
    )


def _is_untiled(op: Op, kernel: Kernel) -> bool:
    """Whether cuDNN has no tiled kernel for a gradient: in 16 bits, of most groups with channels last."""
    if "gradient" not in kernel.cost.label or not kernel.cost.gemms or op.attrs["groups"] == 1:
        return False
    image, weight = image_and_weight(op)
    if not (image.dtype.sixteen_bits and image.channels_last):
        return False
    first, second = integer(weight.shape[0]), integer(weight.shape[1])
    alike = first == second * integer(op.attrs["groups"]) and set(op.attrs.get("dilation", (1,))) == {1}
    return not (alike and second in _TILED_GROUPS and first % _GROUPS_TILE == 0)


def problem_of(op: Op, label: str = "") -> Problem:
    """The convolution, or gradient, of an op's kernel; a transposed one is the data gradient of a plain one."""
    image, weight = image_and_weight(op)
    result = op.inputs[0] if op.kind == BACKWARD else op.outputs[0]
    transposed = bool(op.attrs.get("transposed"))
    if transposed:
        image, result = result, image
    sides = len(image.shape) - 2

    def sizes(given: Sequence[Any]) -> tuple[Any, ...]:
        several = tuple(given) * sides if len(given) == 1 else tuple(given)
        return (1,) * (3 - sides) + tuple(map(integer, several))

    groups = integer(op.attrs["groups"])
    return Problem(
        direction="weight" if label == "weight gradient" else "data" if transposed != bool(label) else "forward",
        images=integer(image.shape[0]),
        groups=groups,
        inner=integer(image.shape[1]) // groups,
        outer=integer(result.shape[1]) // groups,
        image=sizes(image.shape[2:]),
        result=sizes(result.shape[2:]),
        window=sizes(weight.shape[2:]),
        stride=sizes(op.attrs["stride"]),
        dilation=sizes(op.attrs.get("dilation", (1,))),
        itemsize=image.dtype.itemsize,
        volume=sides == 3,
    )


def _with_algorithms(kernel: Kernel, p: Problem) -> Kernel:
    """The kernel with the algorithms of all libraries as its alternatives."""
    cleared = p.itemsize * p.cleared if p.direction == "data" else 0
    cost = replace(kernel.cost, write_bytes=integer(kernel.cost.write_bytes) + cleared)
    threads = kernel.algorithm if kernel.algorithm.shape == "threads" else None
    plain = replace(
        kernel,
        direction=p.direction,
        pointwise=p.pointwise,
        cost=replace(cost, gemms=(p.product(),)) if threads is None else cost,
        padded=_padded(kernel, p, threads),
        unusual=bool(p.volume) or any(int(d) > 1 for d in p.dilation),
    )
    implicit = (
        replace(plain, algorithm=one, pointwise=p.pointwise and library.channels_last)
        for library in every_library()
        for one in library.implicit(p, plain.math, threads)
    )
    forms = (form for library in every_library() for form in library.forms(p))
    others = (_as_form(plain, form) for form in forms if plain.math in form.algorithm.formats)
    first, *rest = (*implicit, *others)
    return replace(first, alternatives=tuple(rest))


def _padded(kernel: Kernel, p: Problem, threads: Algorithm | None) -> Number:
    """Factor by which channels are padded where a kernel loads vectors of them."""
    if threads is None and p.direction == "data" and not p.pointwise and cudnn.few_channels(p, kernel.math):
        return p.scattered
    return min(1.0, _MOST_SUMMED / p.gathered) if threads == GROUP_SUMS else filled_up(p)


def _as_form(kernel: Kernel, form: Form) -> Kernel:
    algorithm, moved = form.algorithm, form.moved + form.added
    read, write = integer(kernel.cost.read_bytes), integer(kernel.cost.write_bytes)
    return replace(
        kernel,
        name=f"{kernel.name} ({algorithm.name})" if algorithm.name else kernel.name,
        algorithm=replace(algorithm, tuned=not (kernel.math is Math.BF16 and form.untuned)),
        cost=replace(kernel.cost, gemms=(form.gemm,), read_bytes=read + moved, write_bytes=write + moved),
        padded=1.0,
        pointwise=not algorithm.name,
        asked_flop=kernel.cost.matrix_flop,
        library_calls=form.calls,
        alone=form.alone,
        chain=_loop(form),
    )


def _loop(form: Form) -> Chain | None:
    """The calls of an algorithm that takes one image after another: two kernels each where windows are written out.

    Or of one with kernels around it.
    """
    if form.repeats == 1 and not form.around:
        return None
    kernels = form.around + 1 if form.around else form.repeats * (2 if form.algorithm.name else 1)
    return Chain(links=form.repeats, kernels=kernels, starts=kernels, launches=kernels)


# The layouts that a convolution's kernels ask for, and the copies that bring tensors into them.


_LATER_CORES = frozenset({"bf16"})  # what tensor cores have from Ampere on, but not on Volta and Turing
_LAYOUT_SIDE = 32  # pixels, and channels, of a block that copies to another layout
#: Bytes for each number of a weight that is summed in fp32: set to 0, written by the product (of which the 2 of the
#: result are counted there), read, and written in 16 bits.
SUMS_READ, SUMS_WRITTEN = 4, 4 + 2 + 2
LEAST_ALIGNED = 2  # numbers of 16 bits that a tensor core's kernel loads at once: 4 bytes (PTX, cp.async)


def with_layout_copies(op: Op, kernels: Iterable[Kernel], tensor_formats: Collection[str]) -> Iterator[Kernel]:
    """The kernels of a convolution, with the copies that they ask for.

    PyTorch makes the image contiguous in its layout (aten/src/ATen/native/Convolution.cpp); the tensor core's kernels
    take channels last, of the weight too, but for windows of one pixel as far as docs/model.md says ("Layouts").
    """
    weight = image_and_weight(op)[1]
    pixel = set(weight.shape[2:]) == {1}
    either = gradients_in_either(tensor_formats)
    for given in kernels:
        plain = _or_filled_up(given, op, tensor_formats)
        on_tensor_core = plain.tensor_core and plain.math in tensor_formats
        kernel = _by_image(plain, op) if on_tensor_core else plain
        if not kernel.cost.gemms:
            yield kernel
            continue
        gradient, of_weight = "gradient" in kernel.cost.label, kernel.cost.label == "weight gradient"
        copied = on_tensor_core and not (pixel and (either or not gradient))
        rows = on_tensor_core and pixel and either and not gradient
        read = op.inputs[: 2 if of_weight else 1]
        results = [] if of_weight else [t for t in op.outputs[:1] if len(t.shape) > 2]
        if has_gaps(read[-1]):
            yield _copy(kernel, read[-1], "without gaps")
        before, after = (_rearranged(tensors, copied, on_tensor_core, rows) for tensors in (read, results))
        yield from (_copy(kernel, tensor, label or "to channels last") for tensor, label in before)
        # of one pixel both layouts are the same; nothing tells of Volta and Turing
        turned = copied and not (pixel or either or weight.channels_last)
        if turned and not of_weight:
            yield _copy(kernel, weight, "to channels last")
        yield kernel
        if on_tensor_core and kernel.direction == "weight" and kernel.math in HALF and sums_in_fp32(tensor_formats):
            # one kernel for all traffic of sums in fp32: set to 0 before, written, read and written in 16 bits
            count = integer(weight.numel)
            yield passing(kernel, "sums in fp32", SUMS_READ * count, SUMS_WRITTEN * count)
        if turned and of_weight:
            yield _copy(kernel, weight, "from channels last")
        yield from (_copy(kernel, tensor, label or "from channels last") for tensor, label in after)


def _rearranged(
    tensors: Iterable[TensorSpec], copied: bool, aligned: bool, rows: bool
) -> Iterator[tuple[TensorSpec, str]]:
    """Which tensors are copied: channels first to channels last (""), and odd numbers of channels or pixels filled up.

    copied: whether channels first is. aligned: whether vectors of channels are loaded; rows: of pixels. Odd rows of 16
    bits begin off a boundary of 4 bytes, the least that copies to shared memory move; what is copied to channels last
    is filled up on the way. Images of fewer than 8 channels are filled up as they are loaded.
    """
    for tensor in tensors:
        if copied and not tensor.channels_last:
            yield tensor, ""
        elif tensor.dtype.sixteen_bits:
            if tensor.channels_last:
                channels = integer(tensor.shape[1])
                if aligned and channels > VECTOR_BYTES // tensor.dtype.itemsize and channels % LEAST_ALIGNED:
                    yield tensor, "to even channels"
            elif rows and odd_rows(math.prod(map(integer, tensor.shape[2:]))):
                yield tensor, "to even rows"


def _or_filled_up(kernel: Kernel, op: Op, tensor_formats: Collection[str]) -> Kernel:
    """The gradient of a weight of few channels in 16 bits: from Ampere on the tensor core may fill them up.

    In channels first the image is copied, and its result's gradient. Nothing measured tells whether GPUs do so: it is
    taken where it is the faster.
    """
    if kernel.algorithm != cudnn.FEW_IN_HALF or not _LATER_CORES & set(tensor_formats):
        return kernel
    copied = sum(integer(t.bytes) for t in op.inputs[:2] if not t.channels_last)
    sums, cost = integer(image_and_weight(op)[1].numel), kernel.cost
    passed = replace(
        cost,
        read_bytes=integer(cost.read_bytes) + copied + SUMS_READ * sums,
        write_bytes=integer(cost.write_bytes) + copied + SUMS_WRITTEN * sums,
    )
    algorithm = cudnn.WIDE_WINDOW if problem_of(op, cost.label).wide else cudnn.WEIGHT
    filled = replace(kernel, algorithm=algorithm, cost=passed, alternatives=())
    return replace(kernel, alternatives=(*kernel.alternatives, filled))


def sums_in_fp32(tensor_formats: Collection[str]) -> bool:
    """Whether a weight's gradient of 16 bits is summed in fp32 beside its product: on tensor cores that have int8."""
    return "int8" in tensor_formats and "fp16" in tensor_formats


def odd_rows(pixels: Any) -> bool:
    """Whether contiguous images of so many pixels begin at addresses that a tensor core's kernels cannot load from."""
    return bool(pixels > 1 and pixels % LEAST_ALIGNED != 0)


def gradients_in_either(tensor_formats: Collection[str]) -> bool:
    """Whether gradients of a 1×1 convolution run in either layout on GPUs whose tensor cores have these formats."""
    return not _LATER_CORES & set(tensor_formats)


def _by_image(kernel: Kernel, op: Op) -> Kernel:
    """A 1×1 convolution with channels first on the tensor core: a product an image, as no tile spans two images."""
    if not kernel.pointwise or op.kind != "aten.convolution" or op.inputs[0].channels_last:
        return kernel
    images = integer(op.outputs[0].shape[0])
    gemms = tuple(replace(g, batch=integer(g.batch) * images, m=integer(g.m) // images) for g in kernel.cost.gemms)
    return replace(kernel, cost=replace(kernel.cost, gemms=gemms))


def _copy(kernel: Kernel, tensor: TensorSpec, label: str) -> Kernel:
    """A copy to another layout, by blocks of 32 pixels by 32 channels that move one number after another.

    Blocks take as long for fewer channels (nchwToNhwcKernel in TraceLens's traces: 340 to 390 cycles of an SM).
    """
    size = integer(tensor.bytes)
    images, channels, *pixels = map(integer, tensor.shape)
    blocks = images * ceiled(channels, _LAYOUT_SIDE) * ceiled(math.prod(pixels), _LAYOUT_SIDE)
    return replace(
        passing(kernel, label, size, size), name=f"{kernel.name} ({tensor.name} {label})",
        accesses=blocks * _LAYOUT_SIDE**2,
    )  # fmt: skip


def image_and_weight(op: Op) -> tuple[TensorSpec, TensorSpec]:
    """The image and the weight; the first input of a gradient is the gradient of the output."""
    first = 1 if op.kind == BACKWARD else 0
    return op.inputs[first], op.inputs[first + 1]


def has_gaps(tensor: TensorSpec) -> bool:
    """Whether elements of another tensor lie between its own, as in a slice of an image's channels."""
    if tensor.stride is None:
        return False
    steps = zip(tensor.shape, tensor.stride, strict=True)
    return bool(1 + sum((integer(size) - 1) * integer(step) for size, step in steps) > integer(tensor.numel))
