"""One step under limits of watts: time, power and energy at each, and which limit takes least energy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import InputError
from rooflinekit.model.clocks import limited
from rooflinekit.model.energy import PowerLaw
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

_DAY_S = 86_400.0
_LEAST = 1.1  # of what the idling board draws: the lowest limit that is looked at


@dataclass(frozen=True, kw_only=True)  # no slots: the cached property needs a place
class PowerLimits:
    """The same step under each limit, the board's own last."""

    predictions: tuple[Prediction, ...]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a limit: limit_w, total_s, slower (of the time at the board's own), power_w, energy_j, saved (of its
        energy), energy_delay (J·s)."""
        import pandas as pd

        own = self.predictions[-1]
        rows = [
            {
                "limit_w": p.machine.power_limit,
                "total_s": p.total_s,
                "slower": p.total_s / own.total_s - 1 if own.total_s else 0.0,
                "power_w": p.power_w,
                "energy_j": p.energy_j,
                "saved": 1 - (p.energy_j or 0.0) / own.energy_j if own.energy_j else 0.0,
                "energy_delay": (p.energy_j or 0.0) * p.total_s,
            }
            for p in self.predictions
        ]
        return pd.DataFrame(rows)

    @property
    def least_energy(self) -> Prediction:
        """The step at the limit that takes least energy; of equals the highest limit."""
        return min(reversed(self.predictions), key=lambda p: p.energy_j or math.inf)

    @property
    def least_energy_delay(self) -> Prediction:
        """The step at the limit at which energy × time is least; of equals the highest limit."""
        return min(reversed(self.predictions), key=lambda p: (p.energy_j or math.inf) * p.total_s)

    def rack(self, watts: float, pue: float = 1.0) -> pd.DataFrame:
        """What a rack does in a day under each limit: limit_w, gpus, samples_a_day (steps, without a size named batch).

        watts: that the rack may draw; each GPU has its limit in them, times `pue` for host, fans and supply. Raises
        InputError for numbers that make no rack.
        """
        if not (math.isfinite(watts) and watts > 0) or not 1 <= pue <= 10:
            raise InputError(f"rack: expected positive watts and a PUE of 1 to 10; got {watts!r} and {pue!r}")
        table = self.table[["limit_w"]].copy()
        table["gpus"] = (watts / (pue * table["limit_w"])).astype(int)
        batch = self.predictions[-1].sizes.get("batch", 1)
        table["samples_a_day"] = table["gpus"] * batch * _DAY_S / self.table["total_s"]
        return table

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        own = self.predictions[-1]
        return {
            "model": own.graph_name,
            "mode": own.mode,
            "device": own.machine.name,
            "sizes": dict(own.sizes),
            "limits": self.table.to_dict("records"),
            "least_energy_w": self.least_energy.machine.power_limit,
            "least_energy_delay_w": self.least_energy_delay.machine.power_limit,
        }

    def __str__(self) -> str:
        rows = self.table.set_index("limit_w")
        said = []
        for what, p in (("energy", self.least_energy), ("energy × time", self.least_energy_delay)):
            limit = p.machine.power_limit or 0.0
            row = rows.loc[limit]
            said.append(
                f"least {what} at {format_quantity(limit, 'W')}: {row['saved']:.0%} less energy, "
                f"{row['slower']:.0%} more time than at the board's own limit"
            )
        return "\n".join(said)


def power_limits(prediction: Prediction, step_w: float = 25.0) -> PowerLimits:
    """The step under limits at every `step_w` watts, from a tenth above idling to the board's own.

    Raises InputError for a device whose specification states no power, and for a step of no watts, or of more than the
    range.
    """
    machine = prediction.machine
    law = PowerLaw.of(machine)
    if law is None:
        limited(machine, power_w=1.0)  # which says what is missing
        raise AssertionError
    if not (math.isfinite(step_w) and law.board_w / 1000 <= step_w <= law.board_w - law.idle_w):
        raise InputError(
            f"step: expected {format_quantity(law.board_w / 1000, 'W')} to "
            f"{format_quantity(law.board_w - law.idle_w, 'W')}, what {machine.name} draws beside idling; got {step_w!r}"
        )
    first = math.ceil(_LEAST * law.idle_w / step_w)
    below = [step_w * i for i in range(first, math.ceil(law.board_w / step_w))]
    return PowerLimits(
        predictions=tuple(
            predict_graph(prediction.graph, limited(machine, power_w=watts), prediction.host, prediction.execution)
            for watts in (*below, law.board_w)
        )
    )
