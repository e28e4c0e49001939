"""The subcommand that tells a step on one GPU from what was measured on another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.guide import Command
from rooflinekit.cli.options import JsonOption, TargetArgument, gpu_names, host_names, print_json
from rooflinekit.cli.parse import variants_of
from rooflinekit.cli.workload import OPEN, Workload, describes_workload
from rooflinekit.errors import InputError
from rooflinekit.present.text.progress import bar

if TYPE_CHECKING:
    from rooflinekit.study.transfer.evidence import Evidence

MEASURED = "a time, '31.2 ms', or a file: a profiler's trace, a record of `measure --out`, a .csv of name,seconds"
MeasuredOption = Annotated[str, typer.Option(metavar="TIME|FILE", help=MEASURED)]
MeasuredOnOption = Annotated[
    str | None,
    typer.Option(
        metavar="GPU", autocompletion=gpu_names, help="what it was measured on; by default what the file names"
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command(cls=Command, context_settings=OPEN)(transfer)


@describes_workload
def transfer(
    workload: Workload,
    target: TargetArgument,
    measured: MeasuredOption,
    measured_on: MeasuredOnOption = None,
    there: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="what differs there: batch=64, execution=compiled, …")
    ] = None,
    to_host: Annotated[
        str | None, typer.Option(autocompletion=host_names, help="the CPU there; by default the same as --host")
    ] = None,
    mark: Annotated[str | None, typer.Option(help="of a trace: the record_function that marks a step")] = None,
    as_json: JsonOption = False,
) -> None:
    """A step on a GPU that you do not have, by what it takes on yours.

    --gpu is the one to predict for, --measured-on the one that you have; all other options are of the step that was
    measured.
    Example: rooflinekit transfer timm:resnet50 --input batch,3,224,224 --batch 64 --measured '31.2 ms'
    --measured-on rtx-3090 --gpu rtx-4090
    """
    changes = _changes(there or [])
    evidence, place = read_evidence(measured, measured_on, mark)
    from dataclasses import replace

    from rooflinekit.hardware.specs import load_device, load_host
    from rooflinekit.step.variants import other_way
    from rooflinekit.study.transfer.transferred import correcting

    here = load_device(place, allow_draft=workload.allow_draft).name
    host = None if to_host is None else load_host(to_host)
    gpus = [load_device(gpu, allow_draft=workload.allow_draft).name for gpu in workload.gpus]
    both = replace(workload, gpus=tuple(dict.fromkeys([here, *gpus])))
    (predictions,) = both.predict(target, sizes_open=any(name in workload.sizes for name in changes))
    plain = {p.machine.name: p for p in predictions}
    corrected = correcting(evidence, plain[here])
    found = [corrected(other_way(plain[gpu], changes, host)) for gpu in gpus]
    if as_json:
        print_json("transfer", {"predictions": [p.to_dict() for p in found]})
        return
    from rooflinekit.present.text import predictions as text

    text.print_predictions(found, [])


def read_evidence(measured: str, measured_on: str | None, mark: str | None = None) -> tuple[Evidence, str]:
    """What was measured, and on which GPU; a bar while a large trace is read. Raises InputError where neither says."""
    from rooflinekit.study.transfer.reading import read_measured

    with bar(f"reading {measured}", share=True) as advance:
        evidence = read_measured(measured, mark=mark, progress=advance)
    place = measured_on or evidence.device
    if not place:
        raise InputError("--measured-on is missing: the GPU that was measured, such as --measured-on rtx-3090")
    return evidence, place


def _changes(there: list[str]) -> dict[str, Any]:
    found = variants_of(there)
    several = [name for name, values in found.items() if len(values) > 1]
    if several:
        raise InputError(f"--there {several[0]}: expected one value; `rooflinekit transfer` again for another")
    return {name: values[0] for name, values in found.items()}
