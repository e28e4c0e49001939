"""The subcommand that tells a step on one GPU from what was measured on another."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from rooflinekit.cli.guide import Command
from rooflinekit.cli.measured import MEASURED, MeasuredOnOption, RankOption, changes_of, measured_step
from rooflinekit.cli.options import JsonOption, TargetArgument, host_names, print_json
from rooflinekit.cli.workload import OPEN, Workload, describes_workload


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command(cls=Command, context_settings=OPEN)(transfer)


@describes_workload
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
    mark: Annotated[str | None, typer.Option(help="of a trace: the record_function that marks a step")] = None,
    rank: RankOption = None,
    as_json: JsonOption = False,
) -> None:
    """A step on a GPU that you do not have, by what it takes on yours.

    --gpu is the one to predict for, --measured-on the one that you have; all other options are of the step that was
    measured.
    Example: rooflinekit transfer timm:resnet50 --input batch,3,224,224 --batch 64 --measured '31.2 ms'
    --measured-on rtx-3090 --gpu rtx-4090
    """
    changes = changes_of("--there", there or ())
    step = measured_step(workload, measured, measured_on, mark=mark, rank=rank)
    assert step is not None
    from rooflinekit.hardware.specs import load_device, load_host
    from rooflinekit.step.variants import other_way
    from rooflinekit.study.transfer.transferred import correcting

    here = step.device.name
    host = None if to_host is None else load_host(to_host)
    gpus = [load_device(gpu, allow_draft=workload.allow_draft).name for gpu in workload.gpus]
    both = replace(workload, gpus=tuple(dict.fromkeys([measured_on or here, *workload.gpus])))
    (predictions,) = both.predict(target, sizes_open=any(name in workload.sizes for name in changes))
    plain = {p.machine.name: p for p in predictions}
    corrected = correcting(step.evidence, plain[here])
    found = [corrected(other_way(plain[gpu], changes, host)) for gpu in gpus]
    if as_json:
        print_json("transfer", {"predictions": [p.to_dict() for p in found]})
        return
    from rooflinekit.present.text import predictions as text

    text.print_predictions(found, [])
