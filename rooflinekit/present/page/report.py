"""A page for a design review: one HTML file that holds everything, needs no network, and works without scripts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rooflinekit.files import write_text
from rooflinekit.hardware.device import device_rows
from rooflinekit.present.page.pictures import energy_of, kernels_of, step_of
from rooflinekit.present.page.studies import explanation_of, gpus_of, summary_of
from rooflinekit.present.page.templating import Origin, check_path, page_of
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.compare.gpus import GpuComparison
from rooflinekit.study.compare.limits import PowerLimits
from rooflinekit.study.explain.advice import Advice
from rooflinekit.study.explain.explanation import Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a report holds beside its prediction, as far as it was asked for."""

    comparison: GpuComparison | None = None
    rule: str = ""  # by which the GPUs of the comparison were chosen, in words
    advice: Advice | None = None
    explanation: Explanation | None = None
    limits: PowerLimits[Prediction] | None = None  # the step under limits of power


def write_report(p: Prediction, path: str | Path, findings: Findings, origin: Origin) -> Path:
    """Writes the page. Returns its path. Raises OutputError for another suffix or a place that cannot be written."""
    target = check_path(path)
    write_text(page(p, findings, origin), target)
    return target


def page(p: Prediction, findings: Findings, origin: Origin) -> str:
    """The page as HTML; the same records give the same text.

    Everything that a model brings (its name, those of its modules) reaches the page through Jinja's escaping, into text
    and attributes alone; the script on the page is the same for every report and holds none of it.
    """
    comparison, explanation = findings.comparison, findings.explanation
    return page_of(
        "report",
        origin,
        json.dumps(p.to_dict(), default=str),
        p=p,
        summary=summary_of(p),
        kernels=kernels_of(p),
        step=step_of(p),
        energy=energy_of(p, findings.limits),
        gpus=None if comparison is None else gpus_of(comparison),
        rule=findings.rule,
        advice=findings.advice,
        explanation=None if explanation is None else explanation_of(explanation),
        datasheet=tuple((label.strip(), value, ridge) for label, value, ridge in device_rows(p.machine.device)),
    )
