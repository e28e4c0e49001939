"""Chains of steps that wait for each other: what one costs a step of the network, and why no GPU is filled by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import PricedOp
from rooflinekit.kernels.recurrence import AT_ONCE, RECURRENT
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction

_time = partial(format_quantity, unit="s")
_TOLD = 0.05  # share of the step from which a chain is told
_SMALL = 0.5  # of a link's time that its FLOP at peak or its traffic take, below which it is called too small


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The links of equal chains, one after another. Seconds are of all of them."""

    module: str
    kind: str
    phase: str
    links: int
    kernels: int  # of all links
    device_s: float  # on the device
    waited_s: float  # for the CPU, which has to launch it
    starts_s: float  # starts of kernels and barriers, on the device
    ideal_s: float  # FLOP at the datasheet's peak
    memory_s: float  # traffic

    @property
    def total_s(self) -> float:
        """Seconds from the end of what was before it to its own end."""
        return self.device_s + self.waited_s

    @property
    def link_s(self) -> float:
        """Seconds of one step of the chain."""
        return self.total_s / self.links

    @property
    def too_small(self) -> bool:
        """Whether a link fills neither the device's arithmetic nor its memory."""
        return max(self.ideal_s, self.memory_s) < _SMALL * self.total_s

    @property
    def limit(self) -> str:
        """What a link takes most of its time for: "launches", "starts" or "work"."""
        parts = {"launches": self.waited_s, "starts": self.starts_s, "work": self.device_s - self.starts_s}
        return max(parts, key=parts.__getitem__)


def chains_of(p: Prediction) -> tuple[Chain, ...]:
    """The chains of a step in order, without those of a single link."""
    spans = ((span, span.timing, span.timing.kernel) for span in p.spans)
    return tuple(
        Chain(
            module=kernel.module, kind=kernel.kind, phase=kernel.phase.value, links=kernel.chain.links,
            kernels=kernel.kernels, device_s=timing.total_s, waited_s=span.waited_s, starts_s=timing.launch_s,
            ideal_s=timing.ideal_s, memory_s=timing.memory_s,
        )
        for span, timing, kernel in spans if kernel.chain is not None and kernel.chain.links > 1
    )  # fmt: skip


def without_recurrence(graph: Graph) -> Graph:
    """The graph with recurrent layers whose steps all run at once: the same products, none waiting for another."""

    def at_once(priced: PricedOp) -> PricedOp:
        op = priced.op
        attrs = MappingProxyType({**op.attrs, AT_ONCE: True})
        return replace(priced, op=replace(op, attrs=attrs)) if op.kind in RECURRENT else priced

    return replace(graph, priced=tuple(map(at_once, graph.priced)))


def chain_sentences(p: Prediction) -> Iterator[str]:
    """Told of chains that take a twentieth of the step or more, the longest first."""
    for chain in sorted(chains_of(p), key=lambda one: -one.total_s):
        if chain.total_s >= _TOLD * p.total_s > 0:
            yield _sentence(chain, p)


def _sentence(chain: Chain, p: Prediction) -> str:
    name = (chain.module or p.graph_name) + " (backward)" * (chain.phase == "backward")
    size = f"each too small for the {p.machine.device.kind.upper()}" if chain.too_small else "which cannot overlap"
    share = f"{chain.total_s / p.total_s:.0%} of the step"
    why = {
        "launches": f"the CPU launches its {chain.kernels} kernels one by one",
        "starts": f"starting its kernels takes {_time(chain.starts_s / chain.links)} of that",
        "work": f"the device is at work for {_time((chain.device_s - chain.starts_s) / chain.links)} of that",
    }[chain.limit]
    is_what = f"is a chain of {chain.links} steps, {size}"
    if chain.kind not in RECURRENT:  # a convolution whose library takes one image after another
        is_what = f"takes {chain.links} images one after another"
    return (
        f"{name} {is_what}: {_time(chain.link_s)} each, "
        f"{_time(chain.total_s)} in all ({share}), where its FLOP at peak would take {_time(chain.ideal_s)}; {why}."
    )
