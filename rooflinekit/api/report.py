"""The walk that ends in a page for a design review: compare, advise, explain, and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rooflinekit.api.measured import Correction, corrected
from rooflinekit.calibrate.fitting.files import constants_for
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import devices, load_device
from rooflinekit.ir.arguments import checked
from rooflinekit.model.machine import Machine
from rooflinekit.present.page.report import Findings, write_report
from rooflinekit.present.page.templating import Origin, check_path
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.compare.gpus import GpuComparison, check_gpus, compare_machines, shortlist, shortlist_rule
from rooflinekit.study.compare.limits import PowerLimits, power_limits
from rooflinekit.study.explain.advice import advise
from rooflinekit.study.explain.explanation import explain

Say = Callable[[str], None]

_LIMITS = 12  # about so many, between idling and the board's own


@checked
def save_report(
    prediction: Prediction,
    path: str | Path,
    *,
    gpus: Sequence[str | Path | Device] | None = None,
    against: Prediction | None = None,
    advice: bool = True,
    measured: object = None,
    measured_on: str | Path | Device | None = None,
    measured_at: Mapping[str, Any] | None = None,
    command: str = "",
    python: str = "",
    progress: Say | None = None,
) -> Path:
    """Writes a prediction as one HTML page: summary, roofline, time line, memory, energy, GPUs, advice, sources.

    gpus: names, paths of specifications, or Devices to compare with; by default a shortlist (docs/report.md has its
        rule), and none for an empty list or a prediction on a CPU.
    against: another network's prediction, to which the page explains the difference.
    advice: whether changes are tried, which traces the model a few times more.
    measured, measured_on, measured_at: a step that was timed somewhere, on which all of the page then rests but for
        `against`; see `compare_gpus`.
    command, python: how the report is made again, as a command line and as code.
    progress: called with what is being done.

    The file needs no network and holds no scripts but its own. Returns the path. Raises OutputError for a name that
    does not end in .html or a place that cannot be written, ComparisonError for predictions that cannot be compared,
    and what `load_device` raises.
    """
    say = progress or (lambda doing: None)
    target = check_path(path)
    resting, correct = corrected(prediction, measured, measured_on, measured_at)
    explanation = explain(resting, against) if against is not None else None
    say("comparing GPUs")
    comparison, rule = _compared(prediction, gpus, correct)
    say("looking for what would make it faster")
    found = advise(prediction, corrected=correct) if advice else None
    say("trying limits of power")
    limits = _limits(prediction)
    say("writing the page")
    findings = Findings(comparison=comparison, rule=rule, advice=found, explanation=explanation, limits=limits)
    return write_report(resting, target, findings, Origin(command=command, python=python))


def _limits(p: Prediction) -> PowerLimits[Prediction] | None:
    """The step under a dozen limits; None where the device states no power, or nothing is drawn."""
    if not p.energy_j or p.energy is None:
        return None
    return power_limits(p, max(5.0, 5.0 * round(p.energy.board_w / _LIMITS / 5)))


def _compared(
    p: Prediction, gpus: Sequence[str | Path | Device] | None, correct: Correction | None
) -> tuple[GpuComparison | None, str]:
    """The comparison, and in words how its GPUs were chosen; None where there is nothing to compare."""
    subject = p.machine.device
    if gpus is None:
        chosen = shortlist(subject, devices()) if subject.kind == "gpu" else (subject,)
        rule = shortlist_rule(subject)
    else:
        named = [gpu if isinstance(gpu, Device) else load_device(gpu) for gpu in gpus]
        chosen = (subject, *(device for device in named if device.name != subject.name))
        rule = "The GPUs named for this report."
    if len(chosen) == 1:
        return None, ""
    machines = [p.machine, *(Machine.of(d, constants_for(d), burst=p.machine.burst) for d in chosen[1:])]
    check_gpus(machines)
    return compare_machines(p.graph, machines, p.host, p.execution, corrected=correct), rule
