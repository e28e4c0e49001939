"""The options by which a command rests on a step that was measured, shared by those that take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.options import gpu_names
from rooflinekit.cli.parse import variants_of
from rooflinekit.errors import InputError
from rooflinekit.present.text.progress import bar

if TYPE_CHECKING:
    from rooflinekit.api.measured import Correction, MeasuredStep
    from rooflinekit.ir.graph import Graph

MEASURED = (
    "a time, '31.2 ms', or a file: a profiler's trace, or a folder of them with one a rank; a record of "
    "`measure --out`; a .csv of name,seconds"
)
_RESTING = "scale all predictions by a step that was timed: " + MEASURED

MeasuredOption = Annotated[str | None, typer.Option(metavar="TIME|FILE", help=_RESTING)]
MeasuredOnOption = Annotated[
    str | None,
    typer.Option(
        metavar="GPU",
        autocompletion=gpu_names,
        help="the GPU of the timed step; by default the one that the file names",
    ),
]
MeasuredAtOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="what differed when it was timed: batch=8, execution=eager, …"),
]
RankOption = Annotated[
    int | None, typer.Option(min=0, help="of a folder of traces: read this rank alone; by default the mean of all")
]


def measured_step(
    workload: Workload, measured: str | None, measured_on: str | None, measured_at: Sequence[str] | None = None,
    *, mark: str | None = None, rank: int | None = None,
) -> MeasuredStep | None:  # fmt: skip
    """What the options say, None without --measured; a bar while a large trace is read.

    Raises what `MeasuredStep.of` raises, and InputError for options that belong to --measured.
    """
    from rooflinekit.api.measured import MeasuredStep
    from rooflinekit.study.transfer.evidence import read_measured

    if measured is None:
        for option, given in (("--measured-on", measured_on), ("--measured-at", measured_at)):
            if given:
                raise InputError(f"{option}: belongs to --measured, a time or a file, which is missing")
        return None
    changes = changes_of("--measured-at", measured_at or ())  # what can be wrong is looked at before the slow part
    with bar(f"reading {measured}", share=True) as advance:
        evidence = read_measured(measured, mark=mark, rank=rank, progress=advance)
    return MeasuredStep.of(evidence, measured_on, changes, allow_draft=workload.allow_draft)


def correction_by(step: MeasuredStep | None, workload: Workload, graph: Graph) -> Correction | None:
    """What the step makes of predictions of this workload; None without one. Limits of power and clock are theirs."""
    if step is None:
        return None
    from rooflinekit.calibrate.fitting.files import fits_for
    from rooflinekit.hardware.specs import load_device
    from rooflinekit.model.machine import Machine

    _, host, execution = workload.setting()
    named = [load_device(gpu, allow_draft=workload.allow_draft) for gpu in workload.gpus]
    fit, *_ = fits_for([step.device, *named], workload.constants)
    return step.correction(graph, host, execution, machine=Machine.of(step.device, fit, burst=workload.burst))


def changes_of(option: str, given: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE, each once. Raises InputError for several values of one."""
    found = variants_of(given, option)
    several = [name for name, values in found.items() if len(values) > 1]
    if several:
        raise InputError(f"{option} {several[0]}: expected one value; got {len(found[several[0]])}")
    return {name: values[0] for name, values in found.items()}
