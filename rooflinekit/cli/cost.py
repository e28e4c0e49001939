"""The subcommand that says what a step, an epoch or a run costs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.money import (
    CarbonOption,
    CostOption,
    HourOption,
    KwhOption,
    PriceOption,
    PricesOption,
    PueOption,
    PurchaseOption,
    UtilizationOption,
    WattsOption,
    YearsOption,
    pricing_of,
    say_notes,
)
from rooflinekit.cli.options import CLUSTERS, JsonOption, TargetArgument, cluster_names, print_json
from rooflinekit.cli.parse import quantity_of
from rooflinekit.cli.workload import NO_GPU, describes_workload
from rooflinekit.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.distributed.prediction import ParallelPrediction


@functools.partial(describes_workload, needs_gpu=False)
def cost(
    workload: Workload,
    target: TargetArgument,
    price: PriceOption = None,
    price_per_hour: HourOption = None,
    prices: PricesOption = None,
    purchase_price: PurchaseOption = None,
    years: YearsOption = 4.0,
    utilization: UtilizationOption = 1.0,
    kwh_price: KwhOption = None,
    pue: PueOption = 1.0,
    samples: Annotated[float | None, typer.Option(help="samples of an epoch or a run, such as 1281167 or 3e9")] = None,
    carbon: CarbonOption = None,
    max_watts: WattsOption = None,
    max_cost: CostOption = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE.yaml",
            autocompletion=cluster_names,
            help=f"also a training step on such a cluster; {CLUSTERS}",
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="of a cluster: how many, from the first")] = None,
    strategy: Annotated[str, typer.Option(help="of a cluster, as of `rooflinekit parallel`")] = "ddp",
    as_json: JsonOption = False,
) -> None:
    """What a step, a million samples or a run costs, cheapest first.

    On GPUs, and with --cluster and --mode training on clusters. No price is taken that is not named.
    Example: rooflinekit cost timm:resnet50 --input batch,3,224,224 --batch 32 --gpu nvidia-l4 --gpu nvidia-t4
    --prices examples/prices.yaml --samples 1281167
    """
    from rooflinekit.hardware.specs import load_cluster, load_device, members_of
    from rooflinekit.study.compare.cost import costs_of

    if not workload.gpus and not cluster:
        raise InputError(NO_GPU)
    if cluster and workload.options["mode"] != "training":
        raise InputError("--cluster: a step on several devices is one of training; add --mode training")
    pricing = pricing_of(
        price_per_hour, prices, purchase_price, kwh_price, price=price, years=years, utilization=utilization, pue=pue
    )  # fmt: skip
    devices = [load_device(gpu, allow_draft=workload.allow_draft) for gpu in workload.gpus]
    clusters = [load_cluster(name) for name in cluster or ()]
    members = [[*members_of(one)] for one in clusters]
    each = [*map(pricing.of, devices), *map(pricing.of_all, members)]
    say_notes(pricing, [*devices, *(device for those in members for device in those)])
    most_w = None if max_watts is None else quantity_of("--max-watts", max_watts, "W")
    steps = [] if not workload.gpus else workload.predict(target, sizes_open=bool(clusters))[0]
    teams = _together(workload, target, cluster, gpus, strategy) if cluster else []
    found = costs_of([*steps, *teams], each, samples=samples, carbon=carbon, max_watts=most_w, max_cost=max_cost)
    if as_json:
        print_json("cost", found.to_dict())
        return
    from rooflinekit.present.text.predictions import print_costs

    print_costs(found)


def _together(
    workload: Workload, target: str, clusters: Sequence[str], gpus: int | None, strategy: str
) -> list[ParallelPrediction]:
    """The step on each cluster."""
    from rooflinekit.api.parallel import parallel
    from rooflinekit.step.execution import Execution

    (graph,) = workload.trace(target, sizes_open=True)
    at = functools.partial(
        parallel, graph, gpus=gpus, strategy=strategy, host=workload.named_host,
        execution=Execution(**workload.execution), power_limit=workload.limits.get("power_w"),
        sm_clock=workload.limits.get("clock"),
    )  # fmt: skip
    return [at(cluster=cluster) for cluster in clusters]
