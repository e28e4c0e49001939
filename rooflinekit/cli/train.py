"""The subcommand that says how long one training step of a decoder takes on many GPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.money import (
    CarbonOption,
    HourOption,
    KwhOption,
    PriceOption,
    PricesOption,
    PueOption,
    PurchaseOption,
    UtilizationOption,
    YearsOption,
    pricing_of,
    say_notes,
)
from rooflinekit.cli.options import ClusterOption, JsonOption, ModelArgument, print_json, progress_line
from rooflinekit.cli.parse import quantity_of
from rooflinekit.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.distributed.prediction import TrainingStep
    from rooflinekit.study.compare.cost import Costs, Pricing
    from rooflinekit.study.compare.limits import PowerLimits


def train(
    config: ModelArgument,
    cluster: ClusterOption,
    batch: Annotated[int, typer.Option(min=1, help="sequences of a step, of all GPUs together")],
    seq: Annotated[int, typer.Option(min=1, help="tokens of a sequence")] = 4096,
    gpus: Annotated[int | None, typer.Option(min=1, help="how many, from the first; by default all")] = None,
    recipe: Annotated[
        str, typer.Option(help="a program's way: megatron, nemo, nanotron, torchtitan, huggingface …")
    ] = "megatron",
    recompute: Annotated[str, typer.Option(help="in backward: none, selective (attention) or full")] = "none",
    offload: Annotated[
        int, typer.Option(min=0, metavar="LAYERS", help="so many layers' activations wait on the CPU, of each GPU")
    ] = 0,
    fp8: Annotated[bool, typer.Option("--fp8", help="products of 8 bits")] = False,
    tp: Annotated[int, typer.Option(min=1, help="GPUs that share each layer; with tokens cut between products")] = 1,
    cp: Annotated[int, typer.Option(min=1, help="GPUs that share a sequence")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="stages of a pipeline")] = 1,
    vp: Annotated[int, typer.Option(min=1, help="virtual stages of a GPU")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="GPUs that share out the experts")] = 1,
    micro_batch: Annotated[int, typer.Option(min=1, help="sequences at once")] = 1,
    sharding: Annotated[str, typer.Option(help="of copies: ddp, zero-1, grad-op, fsdp or hybrid")] = "zero-1",
    search: Annotated[
        bool, typer.Option("--search", help="the fastest layouts in the place of one, and the least memory for a time")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="with --search: also draw time over memory")] = None,
    host: Annotated[str | None, typer.Option(help="in the place of the cluster's")] = None,
    power_limit: Annotated[
        str | None, typer.Option(metavar="WATTS", help="of each GPU, below the board's own, such as '500 W'")
    ] = None,
    rack: Annotated[
        str | None, typer.Option(metavar="WATTS", help="also what a rack of so many watts trains in a day, by limit")
    ] = None,
    price: PriceOption = None,
    price_per_hour: HourOption = None,
    prices: PricesOption = None,
    purchase_price: PurchaseOption = None,
    years: YearsOption = 4.0,
    utilization: UtilizationOption = 1.0,
    kwh_price: KwhOption = None,
    pue: PueOption = 1.0,
    tokens: Annotated[float | None, typer.Option(help="of a whole run, such as 1e12, for its cost")] = None,
    carbon: CarbonOption = None,
    as_json: JsonOption = False,
) -> None:
    """A decoder's training step on many GPUs, or its best layout.

    From the dimensions of a language model: time by cause, memory by account, MFU and HFU, joules; with a price what a
    run of --tokens costs, with --rack what so many watts train in a day.
    Example: rooflinekit train llama-3.1-8b --cluster dgx-h100 --batch 128 --tp 2
    """
    from rooflinekit.api import train as walks
    from rooflinekit.distributed.records import Layout, recipe_of
    from rooflinekit.errors import InputError
    from rooflinekit.serving.decoder import Decoder

    decoder = Decoder.from_config(config, weights="bf16")
    chosen = recipe_of(recipe).with_changes(recompute=recompute, offload=offload, fp8=fp8)
    if out is not None and not search:
        raise InputError("--out: draws what --search has found; add --search")
    money = Money(
        price=price, hour=price_per_hour, prices=prices, purchase=purchase_price, years=years, utilization=utilization,
        kwh=kwh_price, pue=pue, tokens=tokens, carbon=carbon, rack=rack,
    )  # fmt: skip
    money.check(search=search)
    if search:
        with progress_line("looking at layouts") as say:
            found = walks.search_layouts(
                decoder, cluster=cluster, batch=batch, seq=seq, gpus=gpus, recipe=chosen, host=host,
                progress=None if say is None else lambda count: say(f"{count} layouts"),
            )  # fmt: skip
        if out is not None:
            from rooflinekit.present.figures import plot

            plot.save(plot.layouts(found), out)
        if as_json:
            print_json("train", {"step": found.best.to_dict(), "search": found.to_dict()})
        else:
            print(found)
        return
    layout = Layout(
        tensor=tp, sequence=tp > 1, context=cp, pipeline=pp, chunks=vp, expert=ep, micro_batch=micro_batch,
        sharding=sharding,
    )  # fmt: skip
    at = functools.partial(
        walks.train, decoder, cluster=cluster, batch=batch, seq=seq, gpus=gpus, layout=layout, recipe=chosen, host=host
    )  # fmt: skip
    step = at(power_limit=None if power_limit is None else quantity_of("--power-limit", power_limit, "W"))
    costs, limits = money.costs(step), money.limits(step, at)
    if as_json:
        further = {} if costs is None else {"cost": costs.to_dict()}
        if limits is not None:
            further["power"] = {**limits.to_dict(), "rack": limits.rack(money.rack_w, pue).to_dict("records")}
        print_json("train", {"step": step.to_dict(), "search": None, **further})
        return
    print(step)
    if costs is not None:
        from rooflinekit.present.text.predictions import print_costs

        print_costs(costs)
    if limits is not None:
        from rooflinekit.present.text.predictions import print_limits

        print_limits(limits, limits.rack(money.rack_w, pue))


# `rooflinekit train` with prices or watts: what its options ask for beside the step.


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

        machine = place_of(step.cluster).machines[0]
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
