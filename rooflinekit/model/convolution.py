"""What launches for a convolution: its product, layout copies, the bias, and other algorithms beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rooflinekit.hardware.device import Device
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Op
from rooflinekit.ir.points import integer
from rooflinekit.ir.tensor import Math
from rooflinekit.model import cudnn, miopen, onednn
from rooflinekit.model.algorithms import CUDNN, MIOPEN, PRODUCT, Algorithm
from rooflinekit.model.convolution_layouts import channels_last, image_and_weight
from rooflinekit.model.convolution_problem import Direction, Form, Problem, filled_up
from rooflinekit.model.depthwise import GROUP_SUMS, depthwise_algorithm, is_depthwise
from rooflinekit.model.kernel import Chain, Kernel
from rooflinekit.model.libraries import libraries_of

#: Channels a group, in and out alike, of which cuDNN has tiled gradients with channels last (timm's training rows).
_TILED_GROUPS = (4, 8, 16, 32)
_OF_AN_IMAGE = 4  # sizes of its tensors
_GROUPS_TILE = 32  # channels of a tile of such groups, which holds whole ones
_MOST_SUMMED = 64  # channels a group beyond which its other kernels take no longer, as far as the same rows tell


def convolution_kernels(kernel: Kernel, op: Op) -> Iterator[Kernel]:
    """The kernels for one part of a convolution, given as a plain product.

    A bias is a kernel of its own, which reads and writes the output once more.
    """
    if is_depthwise(kernel.cost):
        algorithm = _depthwise(op, kernel)
        if len(image_and_weight(op)[1].shape) > _OF_AN_IMAGE:  # on AMD's GPUs MIOpen's, which has none for volumes
            algorithm = replace(algorithm, library=CUDNN)
        kernel = replace(kernel, algorithm=algorithm)
    elif _is_untiled(op, kernel):
        kernel = replace(kernel, algorithm=GROUP_SUMS)
    kernel = replace(kernel, pointwise=_is_pointwise(op))
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
        kernel, name=f"{kernel.name}: bias", cost=added, family=Family.ELEMENTWISE, math=Math.FP32,
        algorithm=PRODUCT, alternatives=(), direction="",
    )  # fmt: skip


def _without_bias(kernel: Kernel, bias: int) -> Kernel:
    cost = replace(kernel.cost, vector_flop=0, read_bytes=integer(kernel.cost.read_bytes) - bias)
    return replace(kernel, cost=cost, alternatives=tuple(_without_bias(k, bias) for k in kernel.alternatives))


# --- kernels without tiles -------------------------------------------------------------------------------------------


def _depthwise(op: Op, kernel: Kernel) -> Algorithm:
    image, weight = image_and_weight(op)
    stride = op.attrs.get("stride", (1,))
    return depthwise_algorithm(
        channels_last=channels_last(image),
        sixteen_bits=image.dtype.itemsize == 2,
        window=tuple(map(int, weight.shape[2:])),
        plain=len(set(stride)) == 1 and set(op.attrs.get("dilation", (1,))) == {1},
        stride=int(max(stride)),
        shape=image.shape,
        forward=op.kind == "aten.convolution",
        sums=kernel.cost.label == "weight gradient",
    )


def _is_untiled(op: Op, kernel: Kernel) -> bool:
    """Whether cuDNN has no tiled kernel for a gradient: of most groups with channels last, in 16 bits.

    inductor keeps such training steps from channels last too (torch/_inductor/graph.py, decide_layout_opt).
    """
    if "gradient" not in kernel.cost.label or not kernel.cost.gemms or op.attrs["groups"] == 1:
        return False
    image, weight = image_and_weight(op)
    if image.dtype.itemsize != 2 or not channels_last(image):
        return False
    first, second = integer(weight.shape[0]), integer(weight.shape[1])
    alike = first == second * integer(op.attrs["groups"]) and set(op.attrs.get("dilation", (1,))) == {1}
    return not (alike and second in _TILED_GROUPS and first % _GROUPS_TILE == 0)


# --- algorithms ------------------------------------------------------------------------------------------------------


def problem_of(op: Op, label: str = "") -> Problem:
    """The convolution, or the gradient of the one, that a kernel of an op is.

    A transposed convolution is the data gradient of one whose image is its result.
    """
    image, weight = image_and_weight(op)
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
    """The kernel with the algorithms of every library beside it."""
    cleared = p.itemsize * p.cleared if p.direction == "data" else 0
    cost = replace(kernel.cost, write_bytes=integer(kernel.cost.write_bytes) + cleared)
    threads = kernel.algorithm.runs_in_threads
    plain = replace(
        kernel,
        direction=p.direction,
        cost=cost if threads else replace(cost, gemms=(p.product(),)),
        padded=min(1.0, _MOST_SUMMED / p.gathered) if kernel.algorithm == GROUP_SUMS else filled_up(p),
        unusual=bool(p.volume) or any(int(d) > 1 for d in p.dilation),
    )
    of_gpus = [plain] if threads else list(_implicit(plain, p))
    of_cpus = (replace(k, algorithm=onednn.direct(k.algorithm)) for k in of_gpus)
    tiled = miopen.implicit(p, plain.math) if p.volume or not threads else ()
    of_amd = (replace(plain, algorithm=one, pointwise=False) for one in tiled)
    others = (_as_form(plain, form) for form in forms(p) if form.possible and _may_run(form.algorithm, plain))
    first, *rest = (*of_gpus, *of_cpus, *of_amd, *others)
    return replace(first, alternatives=tuple(rest))


def forms(p: Problem) -> Iterator[Form]:
    """Every library's algorithms beside the implicit product."""
    yield from cudnn.forms(p)
    yield from miopen.forms(p)


def _implicit(plain: Kernel, p: Problem) -> Iterator[Kernel]:
    scattered = p.direction == "data" and not plain.pointwise and cudnn.few_channels(p, plain.math)
    for algorithm in cudnn.implicit(p, plain.math):
        yield replace(plain, algorithm=algorithm, padded=p.scattered if scattered else plain.padded)


def _may_run(algorithm: Algorithm, kernel: Kernel) -> bool:
    """Whether it has the format; what runs in threads, for cuDNN has no tiles for it, has no other of cuDNN's."""
    return kernel.math in algorithm.formats and not (kernel.algorithm.runs_in_threads and algorithm.library == CUDNN)


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
    """The calls of a form that goes from image to image: where windows are written out, two kernels each."""
    if form.repeats == 1:
        return None
    kernels = form.repeats * (2 if form.algorithm.name else 1)
    return Chain(links=form.repeats, kernels=kernels, starts=kernels, launches=kernels)


def _is_pointwise(op: Op) -> bool:
    """Whether each output pixel sees one input pixel."""
    weight = image_and_weight(op)[1]
    return set(weight.shape[2:]) == {1} and set(op.attrs.get("stride", (1,))) == {1}


def formats_channels_last(device: Device) -> Collection[str]:
    """The formats that a device multiplies on tensor cores, and whose convolutions want channels last there.

    MIOpen's kernels take channels first.
    """
    return () if MIOPEN in libraries_of(device) else device.matrix_peak
