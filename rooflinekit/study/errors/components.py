"""What predictions are off by in common, and beside their intervals: correlations and spreads, with sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from rooflinekit.model.families import SERVED, SERVING

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


class Chips(StrEnum):
    """How alike the chips of two devices are, as far as libraries choose kernels and limits decide."""

    SAME = "same"  # one device
    ONE = "one"  # as many multiprocessors of one architecture, with whatever memory
    KINDRED = "kindred"  # of one vendor and both with stacked memory, or both without
    FOREIGN = "foreign"


def _kernel(value: float, family: str, chips: str) -> Component:
    return Component(value=value, meaning=f"correlation of the errors of one {family} kernel, {chips}", source=_OPS)


def _by_family(chips: str, **values: float) -> Mapping[str, Component]:
    return MappingProxyType({family: _kernel(value, family, chips) for family, value in values.items()})


#: Correlation between two GPUs of different chips of a kernel's own error, by family. Stacked memory goes with much
#: bandwidth for the arithmetic and with large shared memory: what limits a kernel, and which tiles libraries take,
#: is alike among chips that have it, and among those that have not. Traffic is told by shapes alone.
KERNEL: Mapping[Chips, Mapping[str, Component]] = MappingProxyType(
    {
        Chips.KINDRED: _by_family(
            "kindred chips", attention=0.85, convolution=0.54, elementwise=0.87, normalization=0.81, product=0.38,
            serving=0.30, softmax=0.73,
        ),
        Chips.FOREIGN: _by_family(
            "foreign chips", attention=0.70, convolution=0.57, elementwise=0.85, normalization=0.38, product=0.19,
            serving=0.22, softmax=0.45,
        ),
    }
)  # fmt: skip
OTHER_KERNEL: Mapping[Chips, Component] = MappingProxyType(
    {
        chips: Component(value=value, meaning="the same of other families", source="median of the families measured")
        for chips, value in ((Chips.KINDRED, 0.73), (Chips.FOREIGN, 0.45))
    }
)

_LIKE = {
    "batched product": "product",
    "convolution gradient": "convolution",
    "convolution weight gradient": "convolution",
    **dict.fromkeys(SERVED.values(), SERVING),
    "unusual convolution": "convolution",
    "decoding": "attention",
}


def _of_steps(meaning: str, one: float, kindred: float, foreign: float) -> Mapping[Chips, Component]:
    values = {Chips.SAME: 1.0, Chips.ONE: one, Chips.KINDRED: kindred, Chips.FOREIGN: foreign}
    return MappingProxyType(
        {chips: Component(value=value, meaning=f"{meaning}, {chips} chips", source=_STEPS)
         for chips, value in values.items()}
    )  # fmt: skip


#: By how much less than among shapes timed alone a kernel's error within a whole step carries over.
IN_STEPS = _of_steps("share of the correlation of kernels timed alone", 0.91, 0.87, 0.69)

#: Correlation of the error that all kernels of a family share on a GPU. It is of the GPU's constants: on another chip
#: it says nothing, and must move no step there.
SHARED = _of_steps("correlation of the error that all kernels of a family share", 0.94, 0.0, 0.0)


def of_kernels(family: str, chips: Chips) -> float:
    """The correlation for kernels of a family in any format, one of `model.families`, within whole steps."""
    return alone(family, chips) * IN_STEPS[chips].value


def alone(family: str, chips: Chips) -> float:
    """The same of kernels that were timed alone; 1 of one chip."""
    if chips not in KERNEL:
        return 1.0
    table = KERNEL[chips]
    return table.get(family, table.get(_LIKE.get(family, ""), OTHER_KERNEL[chips])).value


#: Correlation of one kernel's error with that of the same operator at another size or in another format.
OTHER_UNIT = Component(
    value=0.5,
    meaning="of kernels that run on another unit, in another format or on another layout there",
    source="stated, likewise",
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
NETWORKS = _of_steps("correlation of a network's own error", 0.81, 0.92, 0.52)

#: What inductor's kernels, transposed convolutions and sums are off by (`model.families.UNMODELLED`): the forms of
#: kernels that the model does not know are the same on every chip.
UNMODELLED_KERNELS = Component(
    value=0.9, meaning="correlation of what kernels of which no like was measured share, between different chips",
    source="the most likely value for compiled steps of one half of KernelBench's problems, the other half agrees, "
    "benchmarks/comparison_accuracy.py --estimate",
)  # fmt: skip

#: What issuing one network takes longer than its host's pace tells, in ln: Python between the operators, their numbers
#: of arguments, and trials of other days.
ISSUING = Component(
    value=0.2, meaning="spread of a network's own time on the CPU on one host, in ln",
    source="the most likely value for pairs of steps that wait for one CPU, of one half of KernelBench's problems, "
    "benchmarks/comparison_accuracy.py --estimate",
)  # fmt: skip
ISSUING_ELSEWHERE = Component(
    value=0.5, meaning="correlation of a network's own time on the CPU with that on another host",
    source="steps of KernelBench that wait for the CPU on pairs of its hosts, about each host's median: 0.4 to 0.7",
)  # fmt: skip

#: How often errors are much larger than their spreads: the degrees of freedom of Student's distribution.
FREEDOM = Component(value=4.2, meaning="degrees of freedom of the errors' distribution", source=_STEPS)

#: How well two measurements of one step on one device agree, in ln: clocks, drivers, releases.
MEASURED = Component(
    value=0.02, meaning="spread of a measured step, in ln",
    source="timm's steps measured again with a later release of PyTorch; repeats of benchmark scripts 0.1 to 2 %",
)  # fmt: skip
