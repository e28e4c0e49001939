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
    rack: Annotated[
        str | None, typer.Option(metavar="WATTS", help="also what a rack of so many watts does in a day")
    ] = None,
    pue: Annotated[
        float, typer.Option(help="of a rack: what host, fans and supply draw too, by the GPUs' limits")
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Time and energy at every power limit; the one of least energy.

    Example: rooflinekit power timm:resnet50 --input batch,3,224,224 --batch 64 --gpu nvidia-a40
    """
    if "power_w" in workload.limits:
        raise InputError("--power-limit: `power` tries every limit; leave it out, or ask `predict`")
    step_w = quantity_of("--step", step, "W")
    rack_w = None if rack is None else quantity_of("--rack", rack, "W")
    from rooflinekit.study.compare.limits import power_limits

    (predictions,) = workload.predict(target)
    found = [power_limits(p, step_w) for p in predictions]
    if as_json:
        racks = [{} if rack_w is None else {"rack": one.rack(rack_w, pue).to_dict("records")} for one in found]
        studies = [{**one.to_dict(), **more} for one, more in zip(found, racks, strict=True)]
        print_json("power", {"studies": studies})
        return
    from rooflinekit.present.text.power import print_limits

    for one in found:
        print_limits(one, None if rack_w is None else one.rack(rack_w, pue))
