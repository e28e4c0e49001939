"""The subcommand that puts one workload on many GPUs."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Annotated

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.forms import prints_tables
from rooflinekit.cli.measured import MeasuredAtOption, MeasuredOnOption, MeasuredOption, correction_by, measured_step
from rooflinekit.cli.money import CostOption, HourOption, PriceOption, PricesOption, WattsOption, pricing_of, say_notes
from rooflinekit.cli.options import JsonOption, TargetArgument, print_json
from rooflinekit.cli.parse import quantity_of
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import InputError


@prints_tables
@functools.partial(describes_workload, needs_gpu=False)
def compare(
    workload: Workload,
    target: TargetArgument,
    sort: Annotated[
        str, typer.Option(help="time, per-dollar, per-watt, share-of-peak, price, energy or cost")
    ] = "time",
    vendor: Annotated[str | None, typer.Option(help="without --gpu: only GPUs of this vendor")] = None,
    architecture: Annotated[
        str | None, typer.Option(help="without --gpu: only of this architecture or compute capability")
    ] = None,
    memory_min: Annotated[
        str | None, typer.Option(metavar="SIZE", help='without --gpu: only with so much memory, "40 GB"')
    ] = None,
    measured: MeasuredOption = None,
    measured_on: MeasuredOnOption = None,
    measured_at: MeasuredAtOption = None,
    price: PriceOption = None,
    price_per_hour: HourOption = None,
    prices: PricesOption = None,
    max_watts: WattsOption = None,
    max_cost: CostOption = None,
    as_json: JsonOption = False,
) -> None:
    """One workload on many GPUs, and why they stand in this order.

    Time, throughput, memory, and what --sort asks for. Without --gpu, on every shipped GPU. Prices are those at launch,
    or of an hour with --price h100=2.99. With --measured, a step that was timed on one GPU, all predictions rest on it,
    as in `rooflinekit transfer`.
    Example: rooflinekit compare timm:resnet50 --input batch,3,224,224 --batch 32 --memory-min "40 GB"
    """
    filters = {"vendor": vendor, "architecture": architecture, "memory_min": memory_min}
    if workload.gpus and any(filters.values()):
        given = ", ".join(f"--{name.replace('_', '-')}" for name, value in filters.items() if value)
        raise InputError(f"{given}: these choose among all GPUs; leave them or --gpu out")
    from rooflinekit.hardware.catalog import offered_gpus
    from rooflinekit.study.compare.cost import Bounds, Pricing
    from rooflinekit.study.compare.gpus import check_gpus, check_sort, compare_machines

    check_sort(sort)
    priced = any((price, price_per_hour, prices))
    bounds = Bounds(
        price=pricing_of(price_per_hour, prices, price=price) if priced else None, max_cost=max_cost,
        max_watts=None if max_watts is None else quantity_of("--max-watts", max_watts, "W"),
    )  # fmt: skip
    bounds.check(sort)
    gpus = workload.gpus or offered_gpus(vendor=vendor, architecture=architecture, memory_min=memory_min)
    machines, host, execution = replace(workload, gpus=gpus).setting()
    check_gpus(machines)
    step = measured_step(workload, measured, measured_on, measured_at)
    (graph,) = workload.trace(target)
    corrected = correction_by(step, workload, graph)
    comparison = compare_machines(graph, machines, host, execution, sort, corrected, bounds)
    if isinstance(bounds.price, Pricing):
        say_notes(bounds.price, [p.machine.device for p in comparison.predictions])
    if as_json:
        print_json("compare", comparison.to_dict())
        return
    from rooflinekit.present.text.predictions import print_gpu_comparison

    print_gpu_comparison(comparison)
