"""What launches for a convolution: its product, layout copies, the bias, and other algorithms beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rooflinekit.hardware.device import Device
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.points import integer
from rooflinekit.ir.tensor import Math, TensorSpec
from rooflinekit.model.convolution_forms import CUDNN, FEW, VECTOR_BYTES, Direction, Form, Problem, library_of
from rooflinekit.model.depthwise import depthwise_algorithm, is_depthwise
from rooflinekit.model.kernel import MIOPEN, Chain, Family, Kernel
from rooflinekit.model.miopen_forms import forms, gathers_pixels
from rooflinekit.model.rows import NO_ROWS

#: Implicit products that no unrolled kernel of the matrix engine does.
FEW_CHANNELS = "few channels"  # on the lanes, element by element
PIXELWISE = "pixel by pixel"  # MIOpen's where a pixel sees one pixel
WIDE_WINDOW = "wide window"  # of a volume, or of more than 7 pixels along one side

_WIDEST_GROUP = 32  # channels a group up to which cuDNN tiles gradients with channels last (timm's training rows)
_LATER_CORES = frozenset({"bf16"})  # what matrix engines have from Ampere on, but not on Volta and Turing


def convolution_kernels(kernel: Kernel, op: Op) -> Iterator[Kernel]:
    """The kernels for one part of a convolution, given as a plain product.

    A bias is a kernel of its own, which reads and writes the output once more.
    """
    direct = is_depthwise(kernel.cost)
    untiled = direct or _is_untiled(op, kernel)
    kernel = replace(
        kernel,
        engine=not untiled,
        untiled=untiled,
        algorithm=_algorithm(op, kernel) if direct else "",
        pointwise=_is_pointwise(op),
    )
    if not kernel.cost.gemms:
        yield kernel
        return
    kernel = _with_algorithms(kernel, problem_of(op, kernel.cost.label))
    if op.kind == "aten.convolution_backward" or op.attrs.get("bias") is None:
        yield kernel
        return
    output = integer(op.outputs[0].bytes)
    bias = integer(op.attrs["bias"].bytes)
    added = Cost(vector_flop=kernel.cost.vector_flop, read_bytes=output + bias, write_bytes=output, label="bias")
    yield _without_bias(kernel, bias)
    yield replace(
        kernel, name=f"{kernel.name}: bias", cost=added, family=Family.ELEMENTWISE, math=Math.FP32, algorithm="",
        alternatives=(), library="", direction="", untiled=False, engine=True,
    )  # fmt: skip


def _without_bias(kernel: Kernel, bias: int) -> Kernel:
    cost = replace(kernel.cost, vector_flop=0, read_bytes=integer(kernel.cost.read_bytes) - bias)
    return replace(kernel, cost=cost, alternatives=tuple(_without_bias(k, bias) for k in kernel.alternatives))


# --- kernels without tiles -------------------------------------------------------------------------------------------


def _algorithm(op: Op, kernel: Kernel) -> str:
    image, weight = _image_and_weight(op)
    stride = op.attrs.get("stride", (1,))
    return depthwise_algorithm(
        channels_last=_channels_last(image),
        sixteen_bits=image.dtype.itemsize == 2,
        window=tuple(map(int, weight.shape[2:])),
        plain=len(set(stride)) == 1 and set(op.attrs.get("dilation", (1,))) == {1},
        stride=int(max(stride)),
        shape=image.shape,
        forward=op.kind == "aten.convolution",
        sums=kernel.cost.label == "weight gradient",
    )


def _is_untiled(op: Op, kernel: Kernel) -> bool:
    """Whether cuDNN has no tiled kernel for a gradient: of wide groups with channels last, in 16 bits.

    inductor keeps such training steps from channels last too (torch/_inductor/graph.py, decide_layout_opt).
    """
    if "gradient" not in kernel.cost.label or not kernel.cost.gemms or op.attrs["groups"] == 1:
        return False
    image, weight = _image_and_weight(op)
    return image.dtype.itemsize == 2 and _channels_last(image) and bool(weight.shape[1] > _WIDEST_GROUP)


def _image_and_weight(op: Op) -> tuple[TensorSpec, TensorSpec]:
    """What was convolved with what; a backward's first input is the output's gradient."""
    first = 1 if op.kind == "aten.convolution_backward" else 0
    return op.inputs[first], op.inputs[first + 1]


# --- layouts ---------------------------------------------------------------------------------------------------------


def with_layout_copies(op: Op, kernels: Iterable[Kernel], engines: Collection[str]) -> Iterator[Kernel]:
    """The kernels of a convolution, with the copies to and from channels last that the matrix engine asks for.

    One with a window of one pixel runs in either layout. Its gradients do only where libraries have kernels for
    channels first, as they did for the first tensor cores (DeepBench on V100 and T4 shows no copies, at any stride;
    timm's training on RTX 3090 does).
    """
    for plain in kernels:
        on_engine = plain.engine and plain.math in engines
        kernel = _by_image(plain, op) if on_engine else plain
        pixel = set(_image_and_weight(op)[1].shape[2:]) == {1}
        either = pixel and ("gradient" not in kernel.cost.label or gradients_in_either(engines))
        copied = on_engine and not either and kernel.cost.gemms
        read = 2 if kernel.cost.label == "weight gradient" else 1
        written = 0 if kernel.cost.label == "weight gradient" else 1
        before = [t for t in op.inputs[:read] if copied and not _channels_last(t)]
        after = [t for t in op.outputs[:written] if copied and len(t.shape) > 2 and not _channels_last(t)]
        yield from (_copy(kernel, tensor, "to channels last") for tensor in before)
        yield kernel
        yield from (_copy(kernel, tensor, "from channels last") for tensor in after)


def gradients_in_either(engines: Collection[str]) -> bool:
    """Whether gradients of a convolution of one pixel run in either layout where these formats have an engine."""
    return not _LATER_CORES & set(engines)


def _by_image(kernel: Kernel, op: Op) -> Kernel:
    """A convolution of one pixel, channels first, on the matrix engine: a product for each image.

    Pixels of two images do not lie behind each other, so no tile holds pixels of both.
    """
    if not kernel.pointwise or op.kind != "aten.convolution" or _channels_last(op.inputs[0]):
        return kernel
    images = integer(op.outputs[0].shape[0])
    gemms = tuple(replace(g, batch=integer(g.batch) * images, m=integer(g.m) // images) for g in kernel.cost.gemms)
    return replace(kernel, cost=replace(kernel.cost, gemms=gemms))


def _channels_last(tensor: TensorSpec) -> bool:
    return tensor.stride is not None and tensor.stride[1] == 1


def _copy(kernel: Kernel, tensor: TensorSpec, label: str) -> Kernel:
    size = integer(tensor.bytes)
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


# --- algorithms ------------------------------------------------------------------------------------------------------


def problem_of(op: Op, label: str = "") -> Problem:
    """The convolution, or the gradient of the one, that a kernel of an op is.

    A transposed convolution is the data gradient of one whose image is its result.
    """
    image, weight = _image_and_weight(op)
    result = op.inputs[0] if op.kind == "aten.convolution_backward" else op.outputs[0]
    transposed = bool(op.attrs.get("transposed"))
    directions: dict[str, Direction] = {"": "data" if transposed else "forward", "weight gradient": "weight"}
    if transposed:
        image, result = result, image
    sides = len(image.shape) - 2

    def sizes(given: Sequence[Any]) -> tuple[Any, ...]:
        several = tuple(given) * sides if len(given) == 1 else tuple(given)
        return (1,) * (3 - sides) + tuple(map(integer, several))

    groups = integer(op.attrs["groups"])
    return Problem(
        direction=directions.get(label, "forward" if transposed else "data"),
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
    """The kernel as cuDNN runs it, with all other algorithms beside it."""
    cleared = p.itemsize * p.cleared if p.direction == "data" else 0
    cost = replace(kernel.cost, write_bytes=integer(kernel.cost.write_bytes) + cleared)
    plain = replace(
        kernel,
        direction=p.direction,
        cost=cost if kernel.untiled else replace(cost, gemms=(p.product(),)),
        padded=_filled_up(p),
        unusual=bool(p.volume) or any(int(d) > 1 for d in p.dilation),
    )
    others = [_as_form(plain, form) for form in forms(p) if form.possible and _may_run(form, plain)]
    if plain.untiled:
        return replace(plain, alternatives=tuple(others))
    # of the implicit product each library has its own
    mine, theirs = _of_cudnn(plain, p), _of_miopen(plain, p)
    return replace(mine, alternatives=(*theirs, *others))


def _of_cudnn(plain: Kernel, p: Problem) -> Kernel:
    if plain.pointwise:
        return replace(plain, library=CUDNN)
    few = of_few_channels(p, plain.math)
    if few and p.direction == "data":
        return replace(plain, padded=float(p.scattered), engine=False, library=CUDNN)
    return replace(plain, algorithm=implicit_algorithm(p, few=few), engine=not few, library=CUDNN)


def _of_miopen(plain: Kernel, p: Problem) -> tuple[Kernel, ...]:
    """For three dimensions in fp32 alone, on the lanes."""
    if p.volume and plain.math not in (Math.FP32, Math.TF32):
        return ()
    algorithm = PIXELWISE if plain.pointwise and gathers_pixels(plain.math, p) else ""
    return (replace(plain, algorithm=algorithm, engine=not p.volume, library=MIOPEN),)


def _may_run(form: Form, kernel: Kernel) -> bool:
    """Whether an algorithm has the format; what runs without tiles in cuDNN has no other there."""
    return kernel.math in form.formats and not (kernel.untiled and form.library == CUDNN)


def of_few_channels(p: Problem, math: Math) -> bool:
    """Whether the lanes gather channels one by one: kernels of matrix engines load 4 of 32 bits at once.

    Of 16 bits the forward pass fills channels up; the gradient of the weight has no such kernels.
    """
    return bool(p.gathered < FEW[p.direction]) and (p.direction == "weight" or math in (Math.FP32, Math.TF32))


def implicit_algorithm(p: Problem, *, few: bool) -> str:
    """Which of the implicit products runs in cuDNN: "" for one with an unrolled window."""
    if not (p.volume or p.wide):
        return ""
    return FEW_CHANNELS if few else WIDE_WINDOW


def _filled_up(p: Problem) -> float:
    """By how much a matrix engine's kernel fills up the channels that it gathers."""
    vector = VECTOR_BYTES // p.itemsize
    return vector / float(p.gathered) if p.gathered < vector else 1.0


def _as_form(kernel: Kernel, form: Form) -> Kernel:
    read, write = integer(kernel.cost.read_bytes), integer(kernel.cost.write_bytes)
    moved = form.moved + form.added
    cost = replace(kernel.cost, gemms=(form.gemm,), read_bytes=read + moved, write_bytes=write + moved)
    return replace(
        kernel,
        name=f"{kernel.name} ({form.algorithm})" if form.algorithm else kernel.name,
        algorithm=form.algorithm,
        cost=cost,
        engine=not form.lanes,
        untiled=False,
        padded=1.0,
        pointwise=not form.algorithm,
        library=form.library,
        formats=form.formats,
        chain=_loop(form),
        alternatives=(),
    )


def _loop(form: Form) -> Chain | None:
    """The calls of a form that goes from image to image: where windows are written out, two kernels each."""
    if form.repeats == 1:
        return None
    kernels = form.repeats * (2 if form.algorithm else 1)
    return Chain(links=form.repeats, kernels=kernels, starts=kernels, launches=kernels)


def _is_pointwise(op: Op) -> bool:
    """Whether each output pixel sees one input pixel."""
    weight = _image_and_weight(op)[1]
    return set(weight.shape[2:]) == {1} and set(op.attrs.get("stride", (1,))) == {1}


def formats_channels_last(device: Device) -> Collection[str]:
    """The formats that a device multiplies on a matrix engine, and whose convolutions want channels last there.

    MIOpen's kernels take channels first.
    """
    return device.matrix_peak if library_of(device) == CUDNN else ()
