"""How much of what a prediction is off by on one device it is off by on another: correlations, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_OPS = (
    "median over pairs of GPUs of the correlation of ln(measured / predicted) of equal shapes about each GPU's mean, "
    "benchmarks/transfer_components.py"
)
_STEPS = (
    "the most likely values for whole steps of one half of the networks of timm and KernelBench, by a hash of their "
    "families, benchmarks/transfer_components.py --estimate"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A number of the transfer's statistics."""

    value: float
    meaning: str
    source: str


def _kernel(value: float, family: str) -> Component:
    return Component(value=value, meaning=f"correlation of the errors of one {family} kernel on two GPUs", source=_OPS)


#: Correlation between two GPUs of different chips of a kernel's own error, by family. Kernels that are told by their
#: shape alone (rows, attention) are as wrong on both; products are not, for the library chooses tiles anew on each.
KERNEL: Mapping[str, Component] = MappingProxyType(
    {
        "attention": _kernel(0.79, "attention"),
        "convolution": _kernel(0.63, "convolution"),
        "elementwise": _kernel(0.86, "element-wise"),
        "normalization": _kernel(0.56, "normalization"),
        "product": _kernel(0.29, "product"),
        "serving": _kernel(0.22, "serving library's"),
        "softmax": _kernel(0.62, "softmax"),
    }
)
OTHER_KERNEL = Component(
    value=0.62, meaning="the same of other families", source="median of the families that were measured"
)

_LIKE = {
    "batched product": "product",
    "convolution gradient": "convolution",
    "unusual convolution": "convolution",
    "decoding": "attention",
}


KERNEL_NEAR = Component(
    value=0.86, meaning="correlation of one kernel's errors on two GPUs of one chip, for which libraries choose alike",
    source=_STEPS,
)  # fmt: skip


def of_kernels(family: str, *, near: bool) -> float:
    """The correlation for kernels of a family in any format, one of `model.families`. near: of one chip."""
    if near:
        return KERNEL_NEAR.value
    return KERNEL.get(family, KERNEL.get(_LIKE.get(family, ""), OTHER_KERNEL)).value


#: Correlation of the error that all kernels of a family share on a GPU.
SHARED_NEAR = Component(value=0.95, meaning="of two GPUs of one chip", source=_STEPS)
SHARED_FAR = Component(value=0.57, meaning="of two GPUs of different chips", source=_STEPS)

#: Correlation of one kernel's error with that of the same operator at another size or in another format.
OTHER_UNIT = Component(
    value=0.5, meaning="of kernels that run on another unit or in another format there", source="stated, likewise"
)
OTHER_SIZE = Component(
    value=0.5, meaning="of an operator at other sizes or in another format", source="stated; no measurement tells it"
)

#: Of the host's times, in ln: how far a host of the same description is from it carries over with the host itself.
OTHER_HOST = Component(
    value=0.0, meaning="correlation of the errors of two hosts' CPU times, and of two that nobody named", source=_STEPS
)

#: What a whole network is off by beyond its kernels, in ln, and how much of that it is off by on another device.
NETWORK = Component(value=0.08, meaning="spread of a network's own error, in ln", source=_STEPS)
NETWORK_NEAR = Component(value=0.93, meaning="its correlation between GPUs of one chip", source=_STEPS)
NETWORK_FAR = Component(value=0.93, meaning="its correlation between GPUs of different chips", source=_STEPS)

#: How often errors are much larger than their spreads: the degrees of freedom of Student's distribution.
FREEDOM = Component(value=2.1, meaning="degrees of freedom of the errors' distribution", source=_STEPS)

#: How well two measurements of one step on one device agree, in ln: clocks, drivers, releases.
MEASURED = Component(
    value=0.02, meaning="spread of a measured step, in ln",
    source="timm's steps measured again with a later release of PyTorch; repeats of benchmark scripts 0.1 to 2 %",
)  # fmt: skip
