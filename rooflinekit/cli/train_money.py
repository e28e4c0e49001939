"""`rooflinekit train` with prices or watts: what its options ask for beside the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rooflinekit.cli.money import pricing_of, say_notes
from rooflinekit.cli.parse import quantity_of
from rooflinekit.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.study.compare.cost import Costs, Pricing
    from rooflinekit.study.compare.limits import PowerLimits
    from rooflinekit.training.step import TrainingStep

_LIMITS = 12  # about so many are looked at, from idling to the board's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What the options say; see `cli.money`."""

    price: list[str] | None
    hour: str | None
    prices: str | None
    purchase: str | None
    years: float
    utilization: float
    kwh: str | None
    pue: float
    tokens: float | None
    carbon: float | None
    rack: str | None

    @property
    def asked(self) -> bool:
        """Whether a price is named, or what only belongs to one."""
        return any(
            value is not None
            for value in (self.price or None, self.hour, self.prices, self.purchase, self.tokens, self.carbon)
        )

    @property
    def rack_w(self) -> float:
        """Watts of the rack."""
        return quantity_of("--rack", self.rack or "", "W")

    def check(self, *, search: bool) -> None:
        """Raises InputError for what does not go together, before the slow part."""
        if search and (self.asked or self.rack is not None):
            raise InputError(
                "--search: ranks layouts by time; ask what the one that you choose costs, without --search"
            )
        if self.rack is not None:
            _ = self.rack_w
        if self.asked:
            self._pricing()

    def costs(self, step: TrainingStep) -> Costs | None:
        """What a million tokens, and a run of --tokens, cost; None where nothing was asked."""
        if not self.asked:
            return None
        from rooflinekit.api.money import job_of
        from rooflinekit.hardware.specs import members_of
        from rooflinekit.study.compare.cost import costs_of

        pricing, devices = self._pricing(), [*members_of(step.cluster)]
        say_notes(pricing, devices)
        return costs_of([job_of(step)], [pricing.of_all(devices)], samples=self.tokens, carbon=self.carbon)

    def limits(self, step: TrainingStep, at: Callable[..., TrainingStep]) -> PowerLimits[TrainingStep] | None:
        """The step under limits; None without a rack."""
        if self.rack is None:
            return None
        from rooflinekit.api.train import place_of
        from rooflinekit.study.compare.limits import power_limits_together

        machine = place_of(step.cluster).machine
        board_w = machine.device.board_power or 0.0
        return power_limits_together(
            lambda watts: at(power_limit=watts), machine, max(25.0, 25.0 * round(board_w / _LIMITS / 25)),
            gpus=step.gpus, batch=step.batch * step.seq, sizes={"batch": step.batch, "seq": step.seq},
            heading=(step.decoder.name, "training", step.cluster.name),
        )  # fmt: skip

    def _pricing(self) -> Pricing:
        return pricing_of(
            self.hour, self.prices, self.purchase, self.kwh, price=self.price, years=self.years,
            utilization=self.utilization, pue=self.pue,
        )  # fmt: skip
