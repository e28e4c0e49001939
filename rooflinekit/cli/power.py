"""The subcommand that says what limits of power make of a step."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.options import CLUSTERS, JsonOption, TargetArgument, cluster_names, print_json
from rooflinekit.cli.parse import quantity_of
from rooflinekit.cli.workload import NO_GPU, describes_workload
from rooflinekit.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.study.compare.limits import PowerLimits


@functools.partial(describes_workload, needs_gpu=False)
def power(
    workload: Workload,
    target: TargetArgument,
    step: Annotated[str, typer.Option(metavar="WATTS", help="watts between one limit and the next")] = "25 W",
    rack: Annotated[
        str | None, typer.Option(metavar="WATTS", help="also say what a rack of so many watts does in a day")
    ] = None,
    pue: Annotated[
        float, typer.Option(help="watts of the whole rack by the limits of its GPUs: host, fans and supply draw too")
    ] = 1.0,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.yaml",
            autocompletion=cluster_names,
            help=f"instead of --gpu: a training step on its GPUs, all under the same limit; {CLUSTERS}",
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="of the cluster: how many, from the first")] = None,
    strategy: Annotated[str, typer.Option(help="on the cluster, as of `rooflinekit parallel`")] = "ddp",
    as_json: JsonOption = False,
) -> None:
    """Time and energy at every power limit; the one of least energy.

    Example: rooflinekit power timm:resnet50 --input batch,3,224,224 --batch 64 --gpu nvidia-a40
    """
    if "power_w" in workload.limits:
        raise InputError("--power-limit: `power` tries every limit; leave it out, or ask `predict`")
    if (cluster is None) == (not workload.gpus):
        raise InputError("--gpu or --cluster: expected one of the two" if cluster else NO_GPU)
    step_w = quantity_of("--step", step, "W")
    rack_w = None if rack is None else quantity_of("--rack", rack, "W")
    from rooflinekit.study.compare.limits import power_limits

    found: list[PowerLimits[Any]] = []
    if cluster is None:
        found += [power_limits(p, step_w) for p in workload.predict(target)[0]]
    else:
        found.append(_together(workload, target, (cluster, gpus, strategy), step_w))
    if as_json:
        racks = [{} if rack_w is None else {"rack": one.rack(rack_w, pue).to_dict("records")} for one in found]
        studies = [{**one.to_dict(), **more} for one, more in zip(found, racks, strict=True)]
        print_json("power", {"studies": studies})
        return
    from rooflinekit.present.text.predictions import print_limits

    for one in found:
        print_limits(one, None if rack_w is None else one.rack(rack_w, pue))


def _together(
    workload: Workload, target: str, place: tuple[str, int | None, str], step_w: float
) -> PowerLimits[Any]:  # fmt: skip
    """The step on a cluster whose GPUs all have the limit."""
    if workload.options["mode"] != "training":
        raise InputError("--cluster: a step on several devices is one of training; add --mode training")
    from rooflinekit.api.parallel import parallel
    from rooflinekit.step.execution import Execution
    from rooflinekit.study.compare.limits import power_limits_together

    cluster, gpus, strategy = place
    (graph,) = workload.trace(target, sizes_open=True)
    at = functools.partial(
        parallel, graph, cluster=cluster, gpus=gpus, strategy=strategy, host=workload.named_host,
        execution=Execution(**workload.execution), sm_clock=workload.limits.get("clock"),
    )  # fmt: skip
    first = at()
    machines = {share.prediction.machine.name: share.prediction.machine for share in first.shares}
    if len(machines) > 1:
        raise InputError(
            f"{first.cluster.name}: expected equal GPUs under one limit; got {', '.join(sorted(machines))}"
        )
    return power_limits_together(
        lambda watts: at(power_limit=watts), first.slowest.prediction.machine, step_w, gpus=first.gpus,
        batch=first.batch, sizes={"batch": first.batch},
        heading=(first.graph_name, graph.mode, first.cluster.name),
    )  # fmt: skip
