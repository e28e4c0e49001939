"""The subcommand that tells a step on one GPU from what was measured on another."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.measured import MEASURED, MeasuredOnOption, RankOption, changes_of, measured_step
from rooflinekit.cli.options import JsonOption, TargetArgument, cluster_names, host_names, print_json
from rooflinekit.cli.workload import NO_GPU, describes_workload
from rooflinekit.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.api.measured import MeasuredStep


@functools.partial(describes_workload, needs_gpu=False)
def transfer(
    workload: Workload,
    target: TargetArgument,
    measured: Annotated[str, typer.Option(metavar="TIME|FILE", help=MEASURED)],
    measured_on: MeasuredOnOption = None,
    there: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="what differs there: batch=64, execution=compiled, …")
    ] = None,
    to_host: Annotated[
        str | None, typer.Option(autocompletion=host_names, help="the CPU there; by default the same as --host")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.yaml", autocompletion=cluster_names,
            help="several devices, in the place of --gpu (--mode training)",
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="of a cluster: how many, from the first")] = None,
    strategy: Annotated[str | None, typer.Option(help="of a cluster: ddp, dp, zero-1, zero-2, fsdp, …")] = None,
    mark: Annotated[str | None, typer.Option(help="of a trace: the record_function that marks a step")] = None,
    rank: RankOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """A step on a GPU that you do not have, by what it takes on yours.

    --gpu is the one to predict for, or --cluster; --measured-on the one that you have; all other options are of the
    step that was measured.
    Example: rooflinekit transfer timm:resnet50 --input batch,3,224,224 --batch 64 --measured '31.2 ms'
    --measured-on rtx-3090 --gpu rtx-4090
    """
    if bool(workload.gpus) == (cluster is not None):
        raise InputError(NO_GPU if cluster is None else "--gpu: a cluster has its devices; leave it out, or --cluster")
    if cluster is None and (gpus, strategy) != (None, None):
        raise InputError(f"--{'strategy' if gpus is None else 'gpus'}: belongs to --cluster, which is missing")
    changes = changes_of("--there", there or ())
    step = measured_step(workload, measured, measured_on, mark=mark, rank=rank)
    assert step is not None
    if cluster is not None:
        _to_cluster(workload, target, step, changes, {"cluster": cluster, "gpus": gpus, "strategy": strategy}, to_host,
                    as_json=as_json)  # fmt: skip
        return
    from rooflinekit.hardware.specs import load_device, load_host
    from rooflinekit.step.variants import other_way
    from rooflinekit.study.transfer.transferred import correcting

    host = None if to_host is None else load_host(to_host)
    names = [load_device(gpu, allow_draft=workload.allow_draft).name for gpu in workload.gpus]
    both = replace(workload, gpus=tuple(dict.fromkeys([measured_on or step.device.name, *workload.gpus])))
    (predictions,) = both.predict(target, sizes_open=any(name in workload.sizes for name in changes))
    plain = {p.machine.device.name: p for p in predictions}
    corrected = correcting(step.evidence, plain[step.device.name])
    found = [corrected(other_way(plain[name], changes, host)) for name in names]
    if as_json:
        print_json("transfer", {"predictions": [p.to_dict() for p in found]})
        return
    from rooflinekit.present.text import predictions as text

    text.print_predictions(found, [])


def _to_cluster(
    workload: Workload, target: str, step: MeasuredStep, changes: dict[str, Any], place: dict[str, Any],
    host: str | None, *, as_json: bool,
) -> None:  # fmt: skip
    from rooflinekit.api.transfer import transferred_to_cluster

    here = replace(workload, gpus=(step.device.name,))
    ((source,),) = here.predict(target, sizes_open=True)
    found = transferred_to_cluster(step.evidence, source, changes, **place, host=host or workload.named_host)
    if as_json:
        print_json("parallel", found.to_dict())
        return
    print(found)
