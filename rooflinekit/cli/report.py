"""The subcommand that writes a page for a design review."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.measured import MeasuredAtOption, MeasuredOnOption, MeasuredOption, changes_of, measured_step
from rooflinekit.cli.options import TargetArgument, progress_line, typed
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import printable


@describes_workload
def report(
    workload: Workload,
    target: TargetArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="the file to write")],
    against: Annotated[
        str | None, typer.Option(metavar="TARGET_B", help="a second network: the page explains the difference")
    ] = None,
    advice: Annotated[
        bool, typer.Option("--advice/--no-advice", help="try changes that could make the step faster; takes a while")
    ] = True,
    measured: MeasuredOption = None,
    measured_on: MeasuredOnOption = None,
    measured_at: MeasuredAtOption = None,
) -> None:
    """One page for a design review, a file that needs no network.

    Time, roofline, time line, memory, GPUs, advice, sources. The first --gpu is the one of the report; it is
    compared with the others, or without any with a shortlist.
    Example: rooflinekit report timm:resnet50 --input batch,3,224,224 --batch 32 --gpu nvidia-l4 --out review.html
    """
    from rooflinekit.api.report import save_report
    from rooflinekit.hardware.specs import load_device
    from rooflinekit.present.page.templating import check_path

    check_path(out)
    first, *others = workload.gpus
    devices = [load_device(gpu, allow_draft=workload.allow_draft) for gpu in others] or None
    step = measured_step(workload, measured, measured_on, measured_at)
    found = replace(workload, gpus=(first,)).predict(*filter(None, (target, against)))
    predictions = [prediction for (prediction,) in found]
    program = _python(workload, target, against, out, advice=advice, measured=(measured, measured_on, measured_at))
    with progress_line("comparing GPUs") as say:
        save_report(
            predictions[0],
            out,
            gpus=devices,
            against=predictions[1] if against is not None else None,
            advice=advice,
            measured=step,
            command=typed(),
            python=program,
            progress=say,
        )
    print(printable(f"report written to {out}"))


def _python(
    workload: Workload, target: str, against: str | None, out: Path, *, advice: bool,
    measured: tuple[str | None, str | None, list[str] | None],
) -> str:  # fmt: skip
    from rooflinekit.cli.as_python import python_of, text

    first, *others = workload.gpus
    arguments = ["prediction", text(str(out))]
    if others and workload.allow_draft:
        arguments.append(f"gpus=[{', '.join(f'rk.load_device({text(gpu)}, allow_draft=True)' for gpu in others)}]")
    elif others:
        arguments.append(f"gpus={text(others)}")
    if against is not None:
        arguments.append("against=other")
    if not advice:
        arguments.append("advice=False")
    what, on, at = measured
    if what is not None:
        arguments += [f"measured={text(what)}", f"measured_on={text(on)}"]
        arguments += [f"measured_at={text(changes_of('--measured-at', at))}"] if at else []
    return python_of(
        workload, target, first, f"rk.save_report({', '.join(arguments)})",
        others=[against] if against is not None else [],
    )  # fmt: skip
