"""What several GPUs draw over one step: each its kernels, and all of them idling until the slowest is done.

A GPU that waits, for a message, a slower one, a stage before it or the host, stands by. What collectives move through
memory meanwhile is not counted: at 200 GB/s over NVLink and `hbm_energy` a byte, read and written, that would be 20 W.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rooflinekit.model.energy import PARTS, PowerLaw
from rooflinekit.model.machine import Machine
from rooflinekit.model.roofline import Timing
from rooflinekit.step.energy import Drawn, kernels_j_of
from rooflinekit.units import format_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamEnergy(Drawn):
    """Joules and watts of several GPUs together."""

    gpus: int

    @property
    def mean_w_per_gpu(self) -> float:
        """Mean watts of one of them."""
        return self.mean_w / self.gpus

    def to_dict(self, time_interval: tuple[float, float]) -> dict[str, Any]:
        """As that of `Drawn`, with how many GPUs it is of."""
        return {**Drawn.to_dict(self, time_interval), "gpus": self.gpus}

    def line(self, time_interval: tuple[float, float]) -> str:
        """It in a line; the interval is that of 90 %."""
        joules, low, high = (format_quantity(j, "J") for j in (self.joules, *self.interval(time_interval)))
        each = f", {format_quantity(self.mean_w_per_gpu, 'W')} a GPU" if self.gpus > 1 else ""
        parts = ", ".join(f"{name} {j / self.joules:.0%}" for name, j in self.parts_j.items() if self.joules)
        return f"energy: {joules} ({low} to {high}), {format_quantity(self.mean_w, 'W')} on average{each}: {parts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """So many equal GPUs, and what the kernels of each draw in the step by part, beside idling."""

    count: int
    machine: Machine
    kernels_j: Mapping[str, float]


def drawn_by(timings: Iterable[Timing], machine: Machine) -> Mapping[str, float] | None:
    """Joules by part of kernels that may run many times each, beside idling; None where no power is stated."""
    law = PowerLaw.of(machine)
    if law is None:
        return None
    runs: Counter[int] = Counter()
    distinct: dict[int, Timing] = {}
    for timing in timings:
        distinct[id(timing)] = timing
        runs[id(timing)] += 1
    counts = [runs[key] for key in distinct]
    each = kernels_j_of(list(distinct.values()), machine, law)
    return MappingProxyType({name: float(each[name] @ counts) if counts else 0.0 for name in PARTS})


def energy_together(members: Sequence[Member], total_s: float) -> TeamEnergy | None:
    """What all draw over so many seconds; None where one states no power.

    The spread is the widest of any kind: constants that are off are off for all GPUs at once.
    """
    laws = [PowerLaw.of(member.machine) for member in members]
    powers = [member.machine.constants.power for member in members]
    idle_w = board_w = 0.0
    names = dict.fromkeys(name for member in members for name in member.kernels_j)
    parts_j = dict.fromkeys(("idle", *names), 0.0)
    for member, law in zip(members, laws, strict=True):
        if law is None:
            return None
        idle_w += member.count * law.idle_w
        board_w += member.count * law.board_w
        for name, joules in member.kernels_j.items():
            parts_j[name] += member.count * joules
    parts_j["idle"] = idle_w * total_s
    return TeamEnergy(
        total_s=total_s, idle_w=idle_w, parts_j=MappingProxyType(parts_j), board_w=board_w,
        spread=max(power.spread for power in powers if power is not None), gpus=sum(m.count for m in members),
    )  # fmt: skip
