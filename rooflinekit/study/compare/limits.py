"""One step under limits of watts: time, power and energy at each, and which limit takes least energy; on one GPU, or
on many that have the same limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rooflinekit.errors import InputError
from rooflinekit.ir.arguments import checked, expect
from rooflinekit.step.prediction import Prediction
from rooflinekit.timing.energy import PowerLaw, limited
from rooflinekit.timing.machine import Machine
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.distributed.accounts import TrainingStep
    from rooflinekit.distributed.prediction import ParallelPrediction

_DAY_S = 86_400.0
_ROUNDED = 1.005  # of a limit: more is above it
_LEAST = 1.1  # of what the idling board draws: the lowest limit that is looked at


#: Steps whose energy is known; those on several devices.
Step = TypeVar("Step", bound="Prediction | ParallelPrediction | TrainingStep")
Together = TypeVar("Together", bound="ParallelPrediction | TrainingStep")


@dataclass(frozen=True, kw_only=True)  # no slots: the cached property needs a place
class PowerLimits(Generic[Step]):
    """The same step under each limit of every GPU, the board's own last."""

    predictions: tuple[Step, ...]
    limits_w: tuple[float, ...]
    sizes: dict[str, int]
    batch: float  # samples or tokens of a step; 1 where steps are counted
    gpus: int = 1
    heading: tuple[str, str, str]  # the workload, its mode, and the device or cluster

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a limit: limit_w (of each GPU), total_s, slower (of the time at the board's own), power_w, energy_j (of
        all GPUs), saved (of its energy), energy_delay (J·s), above (whether it draws more than the limit)."""
        import pandas as pd

        own, rows = self.predictions[-1], []
        for limit_w, p in zip(self.limits_w, self.predictions, strict=True):
            joules, watts = p.energy_j or 0.0, p.power_w or 0.0
            rows.append({
                "limit_w": limit_w, "total_s": p.total_s,
                "slower": p.total_s / own.total_s - 1 if own.total_s else 0.0,
                "power_w": p.power_w, "energy_j": p.energy_j,
                "saved": 1 - joules / own.energy_j if own.energy_j else 0.0,
                "energy_delay": joules * p.total_s, "above": watts > _ROUNDED * self.gpus * limit_w,
            })  # fmt: skip
        return pd.DataFrame(rows)

    @property
    def least_energy(self) -> Step:
        """The step at the limit that takes least energy; of equals the highest limit."""
        return min(reversed(self.predictions), key=lambda p: p.energy_j or math.inf)

    @property
    def least_energy_delay(self) -> Step:
        """The step at the limit at which energy × time is least; of equals the highest limit."""
        return min(reversed(self.predictions), key=lambda p: (p.energy_j or math.inf) * p.total_s)

    def limit_of(self, step: Step) -> float:
        """The limit of one of the steps, in W."""
        return next(limit for limit, p in zip(self.limits_w, self.predictions, strict=True) if p is step)

    def rack(self, watts: float, pue: float = 1.0) -> pd.DataFrame:
        """What a rack does in a day under each limit: limit_w, gpus, samples_a_day (tokens of a decoder's training;
        steps, without a size named batch).

        watts: that the rack may draw; each GPU has its limit in them, times `pue` for host, fans and supply. A step on
        several GPUs runs as often at once as the rack holds so many of them. Raises InputError for numbers that make
        no rack.
        """
        if not (math.isfinite(watts) and watts > 0) or not 1 <= pue <= 10:
            raise InputError(f"rack: expected positive watts and a PUE of 1 to 10; got {watts!r} and {pue!r}")
        copies = (watts / (pue * self.gpus * self.table["limit_w"])).astype(int)
        samples = copies * self.batch * _DAY_S / self.table["total_s"]
        return self.table[["limit_w"]].assign(gpus=self.gpus * copies, samples_a_day=samples)

    def to_dict(self, rack: pd.DataFrame | None = None) -> dict[str, Any]:
        """Ready for JSON; with what `rack` gave."""
        return {
            **dict(zip(("model", "mode", "device"), self.heading, strict=True)), "gpus": self.gpus, "sizes": self.sizes,
            "limits": self.table.to_dict("records"), "least_energy_w": self.limit_of(self.least_energy),
            "least_energy_delay_w": self.limit_of(self.least_energy_delay),
            **({} if rack is None else {"rack": rack.to_dict("records")}),
        }  # fmt: skip

    def __str__(self) -> str:
        rows = self.table.set_index("limit_w")
        least = {"energy": self.limit_of(self.least_energy), "energy × time": self.limit_of(self.least_energy_delay)}
        said = [
            f"least {what} at {format_quantity(limit, 'W')}{' a GPU' if self.gpus > 1 else ''}: "
            f"{rows['saved'][limit]:.0%} less energy, {rows['slower'][limit]:.0%} more time than at the board's own "
            "limit"
            for what, limit in least.items()
        ]
        if rows["above"].any():
            highest = format_quantity(max(rows.index[rows["above"]]), "W")
            said.append(
                f"at limits of {highest} or less the mean power exceeds the limit: kernels draw more even at the "
                "lowest clock"
            )
        return "\n".join(said)


@checked
def power_limits(prediction: Prediction, step_w: float = 25.0) -> PowerLimits[Prediction]:
    """The step under limits at every `step_w` watts, from a tenth above idling to the board's own.

    Raises InputError for a device whose specification states no power, and for a step of no watts, or of more than the
    range.
    """
    p = prediction

    limits_w = limits_of(p.machine, step_w)
    machines = (limited(p.machine, power_w=watts, clock=p.machine.clock_limit) for watts in limits_w)
    return PowerLimits(
        predictions=tuple(p.again(machine=machine) for machine in machines), limits_w=limits_w, sizes=dict(p.sizes),
        batch=p.counted[1], heading=(p.graph_name, p.mode, p.machine.name),
    )  # fmt: skip


def power_limits_together(
    at: Callable[..., Together], step: Together, step_w: float | None = None
) -> PowerLimits[Together]:
    """The power limits of a training step on several equal GPUs; by default about 12 limits.

    at: the step with every GPU under a `power_limit` of so many watts.
    """
    machine = replace(step.machine, power_limit=None)
    if step_w is None:
        step_w = a_dozenth(machine.device.board_power or 0.0, 25.0)
    limits_w = limits_of(machine, step_w)
    return PowerLimits(
        predictions=tuple(at(power_limit=watts) for watts in limits_w), limits_w=limits_w, sizes=step.sizes,
        batch=step.counted[1], gpus=step.gpus,
        heading=(step.graph_name, "training", step.cluster.name),
    )  # fmt: skip


def a_dozenth(watts: float, unit: float) -> float:
    """The step at which about a dozen limits lie up to so many watts, in whole units of W."""
    return max(unit, unit * round(watts / 12 / unit))


def limits_of(machine: Machine, step_w: float) -> tuple[float, ...]:
    """Limits at every `step_w` watts, from a tenth above idling to the board's own. Raises as `power_limits`."""
    law = PowerLaw.of(machine)
    if law is None:
        limited(machine, power_w=1.0)  # which says what is missing
        raise AssertionError
    least, most = law.board_w / 1000, law.board_w - law.idle_w
    words = f"{format_quantity(least, 'W')} to {format_quantity(most, 'W')}, what {machine.name} draws beside idling"
    expect(math.isfinite(step_w) and least <= step_w <= most, "step", words, step_w)
    first = math.ceil(_LEAST * law.idle_w / step_w)
    return (*(step_w * i for i in range(first, math.ceil(law.board_w / step_w))), law.board_w)
