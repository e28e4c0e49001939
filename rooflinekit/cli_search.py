"""The subcommand that looks for the best configuration."""

from __future__ import annotations

import functools
from typing import Annotated

import typer

from rooflinekit.cli_options import JsonOption, TargetArgument, print_json
from rooflinekit.cli_sweep import ClusterOption, GpusOption, StrategyOption, ZipOption, plan_of
from rooflinekit.cli_workload import OPEN, Workload, describes_workload
from rooflinekit.errors import InputError


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command(context_settings=OPEN)(search)


@functools.partial(describes_workload, many_sizes=True, needs_gpu=False)
def search(
    workload: Workload,
    target: TargetArgument,
    cluster: ClusterOption = None,
    gpus: GpusOption = None,
    strategy: StrategyOption = None,
    zip: ZipOption = None,
    minimize: Annotated[str, typer.Option(help="time, dollars (launch price by throughput), memory or price")] = "time",
    require: Annotated[
        list[str] | None, typer.Option(metavar="BOUND", help="'time<0.1 s', 'throughput>=1000', 'batch>=8'; repeatable")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DOLLARS", help="of one device, for its launch price; repeatable")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """The fastest, cheapest or smallest configuration that fits and meets every requirement.

    Sizes to choose from are lists (1,2,4) and ranges (1:64, 8:4096:8); --execution may be a list too.
    Example: rooflinekit search timm:resnet50 --input batch,3,224,224 --batch 1:256 --gpu rtx-3090 --gpu rtx-4090
    --minimize dollars --require 'time<0.1 s'
    """
    from rooflinekit.study.requirements import requirements_of
    from rooflinekit.study.search import check_goal, search_plan

    # what can be wrong is looked at before the slow part
    check_goal(minimize)
    requirements_of(require or (), tuple(workload.lists))
    prices = dict(map(_price, price or ()))
    plan = plan_of(workload, target, cluster, gpus, strategy, zip)
    found = search_plan(plan, minimize, require or (), prices)
    if as_json:
        print_json(found.to_dict())
    else:
        print(found)


def _price(text: str) -> tuple[str, float]:
    name, equals, dollars = text.partition("=")
    try:
        if name and equals:
            return name, float(dollars)
    except ValueError:
        pass
    raise InputError(f"--price {text!r}: expected a device and its dollars, such as nvidia-l4=2500")
