"""The subcommand that says what would make a step faster."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rooflinekit.cli_workload import OPEN, Workload, describes_workload
from rooflinekit.errors import InputError

_TARGET_HELP = "timm:NAME, transformers:NAME or transformers:config.json, FILE.py:NAME, or package.module:name"


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command(context_settings=OPEN)(advise)


@describes_workload
def advise(
    workload: Workload,
    target: Annotated[str, typer.Argument(metavar="TARGET", help=_TARGET_HELP)],
    other_gpu: Annotated[list[str] | None, typer.Option(metavar="GPU", help="a GPU to change to; repeatable")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON and nothing else")] = False,
) -> None:
    """What would make a step faster: batch, layout, autocast, compile, CUDA graph, fused optimizer, another GPU.

    Each is predicted again, and ranked by the time that it saves.
    Example: rooflinekit advise timm:resnet50 --input batch,3,224,224 --batch 32 --gpu nvidia-l4 --other-gpu nvidia-l40s
    """
    if len(workload.gpus) != 1:
        raise InputError(
            f"--gpu: advice is for one GPU; got {len(workload.gpus)}; name those to change to as --other-gpu"
        )
    from rooflinekit.hardware.specs import load_device
    from rooflinekit.study.advice import advise as advise_on

    others = [load_device(gpu, allow_draft=workload.allow_draft) for gpu in other_gpu or ()]
    ((prediction,),) = workload.predict(target)
    advice = advise_on(prediction, others)
    if as_json:
        print(json.dumps(advice.to_dict(), indent=2, ensure_ascii=False))
        return
    from rooflinekit.present.tables import console

    out = console()
    for line in str(advice).splitlines():
        out.print(line, markup=False)
