"""The subcommand that says what makes a training step fit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.options import CLUSTERS, JsonOption, TargetArgument, cluster_names, print_json, progress_line
from rooflinekit.cli.parallel import TRAINING
from rooflinekit.errors import InputError
from rooflinekit.files import write_text


@TRAINING
def fit_into(
    workload: Workload,
    target: TargetArgument,
    cluster: Annotated[
        str | None,
        typer.Option(autocompletion=cluster_names, metavar="NAME|FILE.yaml", help="in the place of --gpu; " + CLUSTERS),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="of the cluster, from the first; by default all")] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE.py", help="also write what is chosen as Python to paste into a script")
    ] = None,
    largest: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE", help="also the largest batch, or other size, that fits with each; as often as wanted"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What makes a training step fit, and the fastest way to it.

    Combinations of memory savers, each predicted: parts of the batch, formats, the optimizer in 8 bits or on the CPU;
    and which activations to save, to compute again, by op and by block, or to send to the CPU. Of those within 2 % of
    the fastest the one that changes least is chosen.
    Example: rooflinekit fit-into timm:resnet18 --input batch,3,224,224 --batch 512 --optimizer Adam --gpu rtx-3070
    """
    if (cluster is None) == (not workload.gpus) or len(workload.gpus) > 1:
        raise InputError("fit-into: expected one --gpu, or --cluster")
    from rooflinekit.api import parallel as parallel_workflows
    from rooflinekit.step.execution import Execution

    (graph,) = workload.trace(target, sizes_open=True)
    place: dict[str, Any] = {"gpu": workload.gpus[0]} if cluster is None else {"cluster": cluster, "gpus": gpus}
    with progress_line("trying") as say:
        found = parallel_workflows.fit_into(
            graph,
            **place,
            host=workload.named_host,
            execution=Execution(**workload.execution),
            progress=say,
            largest=largest or (),
        )
    if policy is not None:
        write_text(found.policy, policy)
    if as_json:
        print_json("fit-into", found.to_dict())
        return
    print(found)
