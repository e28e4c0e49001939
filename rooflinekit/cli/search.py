"""The subcommand that looks for the best configuration."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.forms import prints_tables
from rooflinekit.cli.measured import MeasuredAtOption, MeasuredOnOption, MeasuredOption, measured_step
from rooflinekit.cli.money import CostOption, HourOption, PriceOption, PricesOption, WattsOption, pricing_of, say_notes
from rooflinekit.cli.options import JsonOption, TargetArgument, print_json
from rooflinekit.cli.parse import quantity_of
from rooflinekit.cli.sweep import ClusterOption, GpusOption, StrategyOption, ZipOption, plan_of
from rooflinekit.cli.workload import describes_workload

if TYPE_CHECKING:
    from rooflinekit.hardware.device import Device


@prints_tables
@functools.partial(describes_workload, many_sizes=True, needs_gpu=False)
def search(
    workload: Workload,
    target: TargetArgument,
    cluster: ClusterOption = None,
    gpus: GpusOption = None,
    strategy: StrategyOption = None,
    zip: ZipOption = None,
    minimize: Annotated[
        str | None,
        typer.Option(
            help="time of a step, dollars (launch price by throughput), memory, price, energy or cost of a sample"
        ),
    ] = None,
    maximize: Annotated[str | None, typer.Option(help="throughput, which is the default")] = None,
    require: Annotated[
        list[str] | None, typer.Option(metavar="BOUND", help="'time<0.1 s', 'throughput>=1000', 'batch>=8'; repeatable")
    ] = None,
    price: PriceOption = None,
    price_per_hour: HourOption = None,
    prices: PricesOption = None,
    max_watts: WattsOption = None,
    max_cost: CostOption = None,
    measured: MeasuredOption = None,
    measured_on: MeasuredOnOption = None,
    measured_at: MeasuredAtOption = None,
    as_json: JsonOption = False,
) -> None:
    """The fastest, cheapest or smallest configuration that fits.

    Without --gpu or --cluster, of every shipped GPU. It meets every requirement, and gives the most samples a second
    where nothing else is asked for. Sizes to choose from are lists (1,2,4) and ranges (1:64, 8:4096:8); --execution
    may be a list too. With an hour's price (--price, --price-per-hour, --prices) dollars are the cost of a sample,
    else the launch price by throughput.
    Example: rooflinekit search timm:resnet50 --input batch,3,224,224 --batch 1:256 --gpu rtx-3090 --gpu rtx-4090
    --minimize dollars --require 'time<0.1 s'
    """
    from rooflinekit.hardware.catalog import offered_gpus
    from rooflinekit.study.sweep.search import goal_of, requirements_of, search_plan

    # what can be wrong is looked at before the slow part
    goal = goal_of(minimize, maximize)
    asked = [*(require or ()), *_bounds(max_watts, max_cost)]
    requirements_of(asked, tuple(workload.lists))
    if not (workload.gpus or cluster):
        workload = replace(workload, gpus=offered_gpus())
    known, currency = _hourly(price, price_per_hour, prices, [*_devices(workload, cluster)])
    step = measured_step(workload, measured, measured_on, measured_at)
    plan = plan_of(workload, target, cluster, gpus, strategy, zip)
    correct = None
    if step is not None:
        from rooflinekit.api.measured import correction_in

        correct = correction_in(plan, step)
    found = search_plan(plan, goal, asked, known, correct, currency)
    if as_json:
        print_json("search", found.to_dict())
        return
    from rooflinekit.present.text.predictions import print_found

    print_found(found)


def _devices(workload: Workload, clusters: Sequence[str] | None) -> Iterator[Device]:
    """All that may take part."""
    from rooflinekit.hardware.specs import load_cluster, load_device, members_of

    for gpu in workload.gpus:
        yield load_device(gpu, allow_draft=workload.allow_draft)
    for cluster in clusters or ():
        yield from members_of(load_cluster(cluster))


def _hourly(
    price: list[str] | None, hour: str | None, prices: str | None, devices: Sequence[Device]
) -> tuple[dict[str, float], str | None]:
    """What an hour of each device costs, where it is known, and the currency; None where no price is given."""
    if not (price or hour or prices):
        return {}, None
    pricing = pricing_of(hour, prices, price=price)
    say_notes(pricing, devices)
    return {
        device.name: found for device in devices if (found := pricing.hour_of(device)) is not None
    }, pricing.currency


def _bounds(max_watts: str | None, max_cost: float | None) -> Iterator[str]:
    """The bounds as requirements: a million samples are what `cost` counts one of."""
    if max_watts is not None:
        yield f"power<={quantity_of('--max-watts', max_watts, 'W'):g} W"
    if max_cost is not None:
        yield f"cost<={max_cost / 1e6:g}"
