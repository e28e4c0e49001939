"""The subcommand that shows a network as a tree of its modules."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.forms import prints_tables
from rooflinekit.cli.options import JsonOption, TargetArgument, print_json, typed
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import printable

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction


@prints_tables
@functools.partial(describes_workload, needs_gpu=False)
def summary(
    workload: Workload,
    target: TargetArgument,
    depth: Annotated[int, typer.Option(min=1, help="how many levels below the whole network")] = 3,
    unfolded: Annotated[
        bool, typer.Option("--unfolded", help="a row for each of equal neighbours, such as the layers of a transformer")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE.html", help="also write a page whose modules open and close"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """The tree of modules: shapes, parameters, FLOP, bytes, time.

    Each row has all below it. With --gpu also the time on each GPU; without, what is counted.
    Example: rooflinekit summary timm:resnet50 --batch 32 --gpu nvidia-l4 --depth 2
    """
    from rooflinekit.files import write_text
    from rooflinekit.present.page.modules import modules_page
    from rooflinekit.present.page.templating import Origin, check_path
    from rooflinekit.step.summary import summary as summarized
    from rooflinekit.step.summary import summary_text

    if out is not None:
        check_path(out)
    predictions: Sequence[Prediction] = ()
    if workload.gpus:
        (predictions,) = workload.predict(target)
        graph = predictions[0].graph
    else:
        (graph,) = workload.trace(target)
    found = summarized(predictions or graph, depth=depth, folded=not unfolded)
    if out is not None:
        whole = summarized(predictions or graph, folded=not unfolded)
        write_text(modules_page(summary_text(graph, predictions, whole), depth, Origin(command=typed())), out)
    if as_json:
        rows = json.loads(found.reset_index().to_json(orient="records"))
        named = {"model": graph.name, "mode": graph.mode, "sizes": dict(graph.sizes)}
        gpus = [p.machine.name for p in predictions]
        print_json("summary", {**named, "gpus": gpus, "modules": rows})
        return
    from rooflinekit.present.text.predictions import print_summary
    from rooflinekit.present.text.tables import console

    print_summary(summary_text(graph, predictions, found), found)
    if out is not None:
        console().print(printable(f"page written to {out}"), markup=False, soft_wrap=True)
