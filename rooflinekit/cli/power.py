"""The subcommand that says what limits of power make of a step."""

from __future__ import annotations

from typing import Annotated

import typer

from rooflinekit.cli.guide import Command
from rooflinekit.cli.options import JsonOption, TargetArgument, print_json
from rooflinekit.cli.parse import quantity_of
from rooflinekit.cli.workload import OPEN, Workload, describes_workload
from rooflinekit.errors import InputError


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command(cls=Command, context_settings=OPEN)(power)


@describes_workload
def power(
    workload: Workload,
    target: TargetArgument,
    step: Annotated[str, typer.Option(metavar="WATTS", help="from one limit to the next")] = "25 W",
    as_json: JsonOption = False,
) -> None:
    """Time and energy at every power limit; the one of least energy.

    Example: rooflinekit power timm:resnet50 --input batch,3,224,224 --batch 64 --gpu nvidia-a40
    """
    if "power_w" in workload.limits:
        raise InputError("--power-limit: `power` tries every limit; leave it out, or ask `predict`")
    step_w = quantity_of("--step", step, "W")
    from rooflinekit.study.compare.limits import power_limits

    (predictions,) = workload.predict(target)
    found = [power_limits(p, step_w) for p in predictions]
    if as_json:
        print_json("power", {"studies": [one.to_dict() for one in found]})
        return
    from rooflinekit.present.text.power import print_limits

    for one in found:
        print_limits(one)
