"""The subcommand that says what would make a step faster."""

from __future__ import annotations

from typing import Annotated

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.measured import MeasuredAtOption, MeasuredOnOption, MeasuredOption, correction_by, measured_step
from rooflinekit.cli.options import JsonOption, TargetArgument, print_json
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import InputError


@describes_workload
def advise(
    workload: Workload,
    target: TargetArgument,
    other_gpu: Annotated[list[str] | None, typer.Option(metavar="GPU", help="a GPU to change to; repeatable")] = None,
    measured: MeasuredOption = None,
    measured_on: MeasuredOnOption = None,
    measured_at: MeasuredAtOption = None,
    as_json: JsonOption = False,
) -> None:
    """What would make a step faster, ranked by the time it saves.

    Batch, layout, autocast, compile, CUDA graph, fused optimizer, another GPU: each is predicted again, and ranked by
    the time that it saves.
    Example: rooflinekit advise timm:resnet50 --input batch,3,224,224 --batch 32 --gpu nvidia-l4 --other-gpu
    nvidia-l40s
    """
    if len(workload.gpus) != 1:
        raise InputError(
            f"--gpu: advice is for one GPU; got {len(workload.gpus)}; name those to change to as --other-gpu"
        )
    from rooflinekit.hardware.specs import load_device
    from rooflinekit.study.explain.advice import advise as advise_on

    others = [load_device(gpu, allow_draft=workload.allow_draft) for gpu in other_gpu or ()]
    step = measured_step(workload, measured, measured_on, measured_at)
    ((prediction,),) = workload.predict(target)
    advice = advise_on(prediction, others, correction_by(step, workload, prediction.graph))
    if as_json:
        print_json("advise", advice.to_dict())
        return
    from rooflinekit.present.text.tables import console

    out = console()
    for line in str(advice).splitlines():
        out.print(line, markup=False)
