"""What a step draws: joules of its kernels and of the GPU's waits, mean and peak watts, and how sure they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from rooflinekit.ir import keyed
from rooflinekit.ir.notebook import FirstLine
from rooflinekit.step.timeline import Span
from rooflinekit.timing.energy import PARTS, PowerLaw, drawn_under_limit
from rooflinekit.timing.estimate import around, away, deviations
from rooflinekit.timing.kernel_batch import Floats
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.timings import Timing, load_of
from rooflinekit.units import format_quantity

_SAMPLED_S = 0.02  # over which boards average what they report: a shorter kernel's power is seen with its neighbours'


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Joules and watts of one GPU, or of several, over some time; without host, fans and supply."""

    total_s: float
    idle_w: float
    parts_j: Mapping[str, float]  # they add up: idle, and what kernels draw beside it
    board_w: float  # the limit of the board, or of all of them
    spread: float  # standard deviation of ln(watts)
    gpus: int = 1
    spans_j: tuple[float, ...] = field(default=(), repr=False)  # of each kernel, with the wait before it
    peak_w: float | None = None  # likewise: the highest mean over 20 ms

    @property
    def joules(self) -> float:
        """Joules of the whole step."""
        return sum(self.parts_j.values())

    @property
    def mean_w(self) -> float:
        """Over the whole step; idle for a step of no time."""
        return self.joules / self.total_s if self.total_s else self.idle_w

    @property
    def mean_w_per_gpu(self) -> float:
        """Mean watts of one of them."""
        return self.mean_w / self.gpus

    def power_interval(self, level: float = 0.9) -> tuple[float, float]:
        """Bounds of the mean watts with this probability, from idling to the board's limit.

        Raises ValueError for a level outside (0, 1).
        """
        low, high = around(self.mean_w, deviations(level) * self.spread)
        return min(max(low, 0.8 * self.idle_w), self.mean_w), max(min(high, self.board_w), self.mean_w)

    def interval(self, time_interval: tuple[float, float], level: float = 0.9) -> tuple[float, float]:
        """Bounds in joules likewise, from those of the step's time: watts and seconds are off on their own."""
        deviations(level)
        if not self.joules:
            return 0.0, 0.0
        low_s, high_s = (max(bound, 1e-6 * self.total_s) for bound in time_interval)
        watts = away(self.mean_w, self.power_interval(level))
        return around(self.joules, watts, away(self.total_s, (low_s, high_s)))

    def line(self, time_interval: tuple[float, float]) -> str:
        """The energy in one line, with its 90 % interval."""
        joules, low, high = (format_quantity(j, "J") for j in (self.joules, *self.interval(time_interval)))
        each = f", {format_quantity(self.mean_w_per_gpu, 'W')} a GPU" if self.gpus > 1 else ""
        parts = ", ".join(f"{name} {j / self.joules:.0%}" for name, j in self.parts_j.items() if self.joules)
        return f"energy: {joules} ({low} to {high}), {format_quantity(self.mean_w, 'W')} on average{each}: {parts}"

    def to_dict(self, time_interval: tuple[float, float]) -> dict[str, Any]:
        """Everything but the kernels, ready for JSON; intervals are those of 90 %."""
        low_j, high_j = self.interval(time_interval)
        low_w, high_w = self.power_interval()
        return {
            "joules": self.joules, "low_j": low_j, "high_j": high_j, "mean_w": self.mean_w, "low_w": low_w,
            "high_w": high_w, "idle_w": self.idle_w, "parts_j": dict(self.parts_j),
            **({"gpus": self.gpus} if self.peak_w is None else {"peak_w": self.peak_w}),
        }  # fmt: skip


class Draws(FirstLine):
    """The numbers of a prediction that follow from its `energy`."""

    __slots__ = ()

    if TYPE_CHECKING:  # a field, or worked out

        @property
        def energy(self) -> Energy | None:
            """The step's energy; None where a specification states no power."""

    @property
    def energy_j(self) -> float | None:
        """Joules of all its GPUs, their waits included; None where `energy` is."""
        return None if self.energy is None else self.energy.joules

    @property
    def power_w(self) -> float | None:
        """Mean watts of all its GPUs together; None where `energy` is."""
        return None if self.energy is None else self.energy.mean_w


def energy_of(spans: Sequence[Span], total_s: float, machine: Machine) -> Energy | None:
    """What the step of these kernels draws; None where the machine's power or process are not stated."""
    law, constants = PowerLaw.of(machine), machine.constants.power
    if law is None or constants is None:
        return None
    timings = [span.timing for span in spans]
    parts = kernels_j_of(timings, machine, law)
    kernels_j = sum((parts[name] for name in PARTS), np.zeros(len(spans)))
    seconds = np.array([timing.total_s for timing in timings])
    waited_s = np.array([span.waited_s for span in spans])
    spans_j = kernels_j + law.idle_w * (seconds + waited_s)
    return Energy(
        total_s=total_s,
        idle_w=law.idle_w,
        parts_j=MappingProxyType({"idle": law.idle_w * total_s} | {name: float(parts[name].sum()) for name in PARTS}),
        spans_j=tuple(spans_j.tolist()),
        peak_w=_peak_w(spans_j, seconds + waited_s, law.idle_w),
        board_w=law.board_w,
        spread=constants.spread,
    )


def kernels_j_of(timings: Sequence[Timing], machine: Machine, law: PowerLaw) -> dict[str, Floats]:
    """What each kernel draws by part, beside the idling board, under the machine's limits: [kernels] of joules."""
    return drawn_under_limit(law, load_of(timings, machine), machine)


def _peak_w(joules: Any, seconds: Any, idle_w: float) -> float:
    """The highest mean power of kernels in a row that last as long as a board averages over."""
    ends = np.concatenate(([0.0], np.cumsum(seconds)))
    drawn = np.concatenate(([0.0], np.cumsum(joules)))
    if ends[-1] <= 0:
        return idle_w
    starts = ends[ends <= max(ends[-1] - _SAMPLED_S, 0.0)]
    stops = np.minimum(starts + _SAMPLED_S, ends[-1])
    wide = stops > starts  # of a step of years a fraction of a second is nothing
    if not wide.any():
        return float(drawn[-1] / ends[-1])
    starts, stops = starts[wide], stops[wide]
    return float(((np.interp(stops, ends, drawn) - np.interp(starts, ends, drawn)) / (stops - starts)).max())


def limit_note(machine: Machine) -> str:
    """A note on a limit of watts or of the clock, or ""."""
    found = []
    if machine.power_limit is not None:
        found.append(f"power limit {format_quantity(machine.power_limit, 'W')}")
    if machine.clock_limit is not None:
        found.append(f"clock of the SMs at most {format_quantity(machine.clock_limit, 'Hz')}")
    return f"{machine.name}: {', '.join(found)}" if found else ""


# What several GPUs draw over one step: each its kernels, and all of them idling until the slowest is done.
#
# A GPU that waits, for a message, a slower one, a stage before it or the host, stands by. What collectives move through
# memory meanwhile is not counted: at 200 GB/s over NVLink and `hbm_energy` a byte, read and written, that would be 20
# W.


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """`count` equal GPUs, and the joules of each one's kernels by part, beside idling."""

    count: int
    machine: Machine
    kernels_j: Mapping[str, float]


def drawn_by(timings: Iterable[Timing], machine: Machine) -> Mapping[str, float] | None:
    """Joules by part of kernels that may run many times each, beside idling; None where no power is stated."""
    law = PowerLaw.of(machine)
    if law is None:
        return None
    timings = list(timings)
    runs = Counter(map(id, timings))
    distinct = {id(timing): timing for timing in timings}
    each, counts = kernels_j_of([*distinct.values()], machine, law), [*runs.values()]
    return MappingProxyType({name: float(each[name] @ counts) if counts else 0.0 for name in PARTS})


def energy_together(members: Sequence[Member], total_s: float) -> Energy | None:
    """What all draw over so many seconds, with the widest spread of any kind; None where one states no power."""
    laws = [(member.count, law) for member in members if (law := PowerLaw.of(member.machine)) is not None]
    if len(laws) < len(members):
        return None
    powers = [member.machine.constants.power for member in members]
    idle_w = sum(count * law.idle_w for count, law in laws)
    drawn = keyed.sums((name, one.count * joules) for one in members for name, joules in one.kernels_j.items())
    return Energy(
        total_s=total_s, idle_w=idle_w, parts_j=MappingProxyType({"idle": idle_w * total_s} | drawn),
        board_w=sum(count * law.board_w for count, law in laws),
        spread=max(power.spread for power in powers if power is not None), gpus=sum(m.count for m in members),
    )  # fmt: skip
