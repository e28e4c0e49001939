"""The subcommand that shows a network as a tree of its modules."""

from __future__ import annotations

import functools
import json
from typing import Annotated

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.forms import prints_tables
from rooflinekit.cli.guide import Command
from rooflinekit.cli.options import JsonOption, TargetArgument, print_json
from rooflinekit.cli.workload import OPEN, describes_workload


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command(cls=Command, context_settings=OPEN)(summary)


@prints_tables
@functools.partial(describes_workload, needs_gpu=False)
def summary(
    workload: Workload,
    target: TargetArgument,
    depth: Annotated[int, typer.Option(min=1, help="how many levels below the whole network")] = 3,
    unfolded: Annotated[
        bool, typer.Option("--unfolded", help="a row for each of equal neighbours, such as the layers of a transformer")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """The tree of modules: shapes, parameters, FLOP, bytes, time.

    Each row has all below it. With --gpu also the time on each GPU; without, what is counted.
    Example: rooflinekit summary timm:resnet50 --batch 32 --gpu nvidia-l4 --depth 2
    """
    from rooflinekit.step.summary import summary as summarized

    if workload.gpus:
        (predictions,) = workload.predict(target)
        graph, found = predictions[0].graph, summarized(predictions, depth=depth, folded=not unfolded)
    else:
        (graph,) = workload.trace(target)
        predictions, found = [], summarized(graph, depth=depth, folded=not unfolded)
    if as_json:
        rows = json.loads(found.reset_index().to_json(orient="records"))
        named = {"model": graph.name, "mode": graph.mode, "sizes": dict(graph.sizes)}
        gpus = [p.machine.name for p in predictions]
        print_json("summary", {**named, "gpus": gpus, "modules": rows})
        return
    from rooflinekit.present.text.predictions import print_summary

    print_summary(graph, predictions, found)
