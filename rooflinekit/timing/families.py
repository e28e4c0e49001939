"""Under which name the residuals of a kernel are kept: a GPU counts as measured for what was measured on it.

Products, convolutions and attention are told apart by the format that they run in, for each has units of its own: the
tensor core by format, or the CUDA cores. `product` alone is in 16 bits, `fp32 product` on the CUDA cores, or on an
tensor core for whole fp32 numbers. Everything else computes on the CUDA cores, whatever is stored. A serving library's
kernels are told apart by what they do, gradients of convolutions by whose they are, and MIOpen's kernels by whether
the board has units for their format: each of these was measured often enough to tell how far it is off by itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from rooflinekit.hardware.device import Device, on_tensor_core
from rooflinekit.ir.op import Family, Math, Phase
from rooflinekit.kernels.algorithms import MIOPEN
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.kernels.libraries import rated_as
from rooflinekit.published.stated import SPREADS
from rooflinekit.timing.estimate import Estimate
from rooflinekit.timing.machine import RUN_AS_FP32, Machine, Spread

#: Families that are told apart by format.
MULTIPLYING = (
    "product", "batched product", "convolution", "convolution gradient", "convolution weight gradient",
    "unusual convolution", "attention", "decoding",
)  # fmt: skip
#: Convolutions in three dimensions or with dilation, forward and backward: few were measured, and libraries choose
#: erratically for them; the others must not have their spread.
UNUSUAL = "unusual convolution"
MIOPEN_FAMILY = "convolution by MIOpen"
MIOPEN_EMULATED = "emulated convolution by MIOpen"  # in a format that the board has no units for
#: A serving library's kernels that were measured, by kind; others are SERVING alone.
SERVING = "serving"
SERVED = {
    "serving.rms_norm": "serving normalization", "serving.add_rms_norm": "serving normalization",
    "serving.gated_activation": "serving activation", "serving.activation": "serving activation",
    "serving.rope_and_cache": "serving rotation",
    "serving.largest": "serving quantization", "serving.scale_to_eight_bits": "serving quantization",
    "serving.scale_blocks": "serving quantization",
}  # fmt: skip
#: Products of weights in fewer bits, which become numbers of 16 on their way: their own kernels, of serving libraries.
PACKED = "packed product"
OTHERS = (
    MIOPEN_FAMILY,
    MIOPEN_EMULATED,
    PACKED,
    "elementwise",
    "movement",
    "normalization",
    "reduction",
    SERVING,
    *dict.fromkeys(SERVED.values()),
    "softmax",
    "stream",
)

_FORMATS = {
    Math.FP16: "", Math.BF16: "", Math.FP32: "fp32 ", Math.FP64: "fp64 ", Math.TF32: "tf32 ", Math.FP8: "quantized ",
    Math.INT8: "quantized ", Math.FP4: "four-bit ",
}  # fmt: skip
#: Where a family was measured on no GPU, how far others are off: the first of these that was.
_NEAREST = {
    **dict.fromkeys(SERVED.values(), SERVING),
    MIOPEN_EMULATED: MIOPEN_FAMILY,
    MIOPEN_FAMILY: "convolution",
    "convolution weight gradient": "convolution gradient",
    UNUSUAL: "convolution",
    PACKED: "product",
    "batched product": "product", "convolution gradient": "convolution", "decoding": "attention",
    "attention": "product", "convolution": "product",
}  # fmt: skip

ALL = (*(prefix + name for prefix in dict.fromkeys(_FORMATS.values()) for name in MULTIPLYING), *OTHERS)

#: What all kernels of a step are off together, beside their families; with a backward pass by as much more.
OF_THE_DAY, OF_A_BACKWARD_PASS = (SPREADS[name].value for name in ("day", "backward pass"))
#: Kernels of which no op was measured alone, and what they are off together beside their families.
UNMODELLED = {name: SPREADS[name].value for name in ("compiled", "transposed", "sums")}

_FEW_BITS = ("quantized ", "four-bit ")
_FEW = 64  # queries up to which attention has no tile of its own: model.utilization
_BATCHED = ("aten.bmm", "aten.baddbmm", "aten.addbmm")


def in_format(family: str, math: Math) -> str:
    """The family of a kernel that multiplies in this format; of products of 8 bits there is one, batched or not."""
    if family not in MULTIPLYING:
        return family
    prefix = _FORMATS[math]
    return f"{prefix}product" if prefix in _FEW_BITS and family == "batched product" else prefix + family


def residuals_of(kernel: Kernel, machine: Machine) -> str:
    """The family of a kernel on a machine, which runs formats that it has no unit for as fp32."""
    base, math = base_of(kernel), kernel.math
    if base == MIOPEN_FAMILY:
        return by_miopen(machine.device, math)
    if base not in MULTIPLYING:
        return base
    if math in RUN_AS_FP32 and not (kernel.tensor_core and on_tensor_core(machine.device, math)):
        math = Math.FP32
    return in_format(base, math)


def measured_family(kernel: Kernel, device: Device | None) -> str:
    """The family of a kernel that was measured by itself: MIOpen's on AMD's GPUs, else by its stated format."""
    if kernel.family is Family.CONVOLUTION and device is not None and rated_as(device) == MIOPEN:
        return by_miopen(device, kernel.math)
    return in_format(base_of(kernel), kernel.math)


def by_miopen(device: Device, math: Math) -> str:
    """The family of MIOpen's convolutions in a format: emulated ones are off in a way of their own."""
    return MIOPEN_EMULATED if math.value in device.emulated else MIOPEN_FAMILY


def of_the_step(kernels: Iterable[Kernel], forward: float = OF_THE_DAY) -> float:
    """What all kernels of a step are off together, a standard deviation of ln. forward: without a backward pass."""
    learns = any(kernel.phase is Phase.BACKWARD for kernel in kernels)
    return math.hypot(forward, OF_A_BACKWARD_PASS) if learns else forward


def stated_family(kernel: Kernel) -> str:
    """The family of a kernel in the format that it is stated in, on whatever machine; fp32 beside the tensor core."""
    beside, base = not kernel.tensor_core and kernel.math in RUN_AS_FP32, base_of(kernel)
    if base == MIOPEN_FAMILY:
        return f"{kernel.math.value} {base}"
    return in_format(base, Math.FP32 if beside else kernel.math)


def base_of(kernel: Kernel) -> str:
    """The family of a kernel in any format."""
    if kernel.family in (Family.MATMUL, Family.RECURRENCE):
        if kernel.kind == "serving.weight_only_mm":
            return PACKED
        return "batched product" if kernel.kind in _BATCHED else "product"
    if kernel.family is Family.CONVOLUTION:
        if kernel.algorithm.library == MIOPEN:
            return MIOPEN_FAMILY
        if kernel.unusual:
            return UNUSUAL
        if kernel.kind != "aten.convolution_backward":
            return "convolution"
        return "convolution weight gradient" if kernel.direction == "weight" else "convolution gradient"
    if kernel.family is Family.ATTENTION:
        return "decoding" if kernel.cost.gemms and kernel.cost.gemms[0].m <= _FEW else "attention"
    if kernel.kind.startswith("serving."):
        return SERVED.get(kernel.kind, SERVING)
    return {Family.NORMALIZATION: "normalization", Family.REDUCTION: "softmax"}.get(kernel.family, "elementwise")


def unmodelled(kernel: Kernel) -> str:
    """Which of UNMODELLED a kernel is; "" for those whose like was measured."""
    if kernel.kind.startswith("inductor."):
        return "compiled"
    if kernel.kind == "aten.convolution" and kernel.direction == "data":
        return "transposed"
    return "sums" if kernel.blocks.count or kernel.accesses or kernel.column else ""


def estimate_of(
    shapes: Iterable[tuple[str, str, Any, Any]], spreads: Mapping[str, Spread], of_all: float, *, starts_s: Any = 0.0,
    joules: Any = None,
) -> Estimate:  # fmt: skip
    """The time of kernels, numbers or arrays: of each shape its family, what is unmodelled of it, seconds and number.

    of_all: what all of them are off together, see `of_the_step`. starts_s: by how much their starts are. Kernels of one
    shape, the same in every layer, are off by one amount; shapes by their own.
    """
    found, together, own = 0.0, defaultdict[str, Any](float), 0.0
    for family, other, seconds, count in shapes:
        found = found + seconds
        together[family] = together[family] + seconds * spreads[family].systematic
        if other:
            together[other] = together[other] + seconds * UNMODELLED[other]
        own = own + spreads[family].random_variance(seconds, count)
    shared = {**together, "step": of_all * found, "starts": starts_s}
    return Estimate(seconds=found, shared=shared, own=own, joules=joules)


def plain(family: str) -> str:
    """The family's name without its format."""
    return family.removeprefix(_prefix(family))


def wider(family: str) -> str:
    """What a family is shrunk by: that of which it is a part, in all formats together."""
    name = plain(family)
    return _NEAREST[name] if name in (*SERVED.values(), MIOPEN_EMULATED, "convolution weight gradient") else name


def _prefix(family: str) -> str:
    """What a family's name begins with for its format; "" for 16 bits and for those that have none."""
    return next((prefix for prefix in _FORMATS.values() if prefix and family.startswith(prefix)), "")


_T = TypeVar("_T")


def complete(known: Mapping[str, _T]) -> dict[str, _T]:
    """A spread for every family: of one measured on no GPU, that of the nearest format or family that was."""
    found = dict(known)
    for name in ALL:
        found.setdefault(name, next((known[n] for n in nearest(name) if n in known), next(iter(known.values()))))
    return found


def nearest(name: str) -> list[str]:
    """The family itself, and those that are nearer to it than others, the nearest first."""
    prefix, chain = _prefix(name), [plain(name)]
    while chain[-1] in _NEAREST:
        chain.append(_NEAREST[chain[-1]])
    beside = {"fp64 ": "fp32 ", "four-bit ": "quantized "}.get(prefix, "")
    prefixes = dict.fromkeys((prefix, beside, "", "fp32 "))
    return [p + one for one in chain for p in prefixes]
