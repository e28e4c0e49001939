"""Sizes above which PyTorch or a library of NVIDIA's refuses an op, however much memory there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rooflinekit.hardware.device import Device
from rooflinekit.ir.inputs import PRESENT, Release
from rooflinekit.ir.points import Number, integer
from rooflinekit.kernels.attention_backends import FLASH, FLASH_1
from rooflinekit.kernels.convolution import image_and_weight, is_convolution
from rooflinekit.kernels.depthwise import is_depthwise
from rooflinekit.kernels.kernel import Issue

_COUNTED = 2**31 - 1  # elements that 32 bits count
_COUNTED_FROM = Release(2, 5)  # the first of PyTorch whose cuDNN does so in depthwise kernels: after 2.4, up to 2.9
_BLOCKS = 2**16 - 1  # of a grid along its second side (CUDA C++ Programming Guide, technical specifications)
#: aten/src/ATen/native/cuda/ReflectionPad.cu: "input tensor must fit into 32-bit index math".
_PADDED = ("aten.reflection_pad1d", "aten.reflection_pad2d")


@dataclass(frozen=True, slots=True)
class Limit:
    """A number of an op beside the largest that its kernel takes."""

    op: str
    what: str
    number: Number
    most: int

    def __str__(self) -> str:
        return f"{self.op}: its kernel takes at most {self.most:,} {self.what}, not {self.number:,}"


def limits_of(issues: Sequence[Issue], device: Device, like: Release | None) -> Iterator[Limit]:
    """What could be refused in a step.

    Depthwise convolutions with channels last are cuDNN's. With PyTorch 2.9 none of 2^31 elements and more ran in the
    compiled steps of timm's benchmark, of 148 that it tried; up to 2.4 they did. FlashAttention has the batch along the
    second side of its grid (csrc/flash_attn/src/flash_fwd_launch_template.h); of its 17 eager and 14 compiled steps
    with 65,536 windows none ran either.
    """
    if device.kind != "gpu" or device.vendor != "NVIDIA":
        return
    for op, kernels in ((issue.op, issue.kernels) for issue in issues):
        counted = op.kind in _PADDED or (
            (like or PRESENT) >= _COUNTED_FROM
            and is_convolution(op)
            and image_and_weight(op)[0].channels_last
            and any(is_depthwise(kernel.cost) for kernel in kernels)
        )
        if counted:
            for spec in (*op.inputs, *op.outputs):
                yield Limit(op.name, "elements", integer(spec.numel), _COUNTED)
        if "scaled_dot_product" in op.kind and any(k.algorithm.name in (FLASH.name, FLASH_1.name) for k in kernels):
            yield Limit(op.name, "sequences", integer(op.inputs[0].shape[0]), _BLOCKS)
