"""A page for a design review: one HTML file that holds everything, needs no network, and works without scripts."""

from __future__ import annotations

import base64
import hashlib
import platform
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined

import rooflinekit
from rooflinekit.errors import OutputError
from rooflinekit.files import write_text
from rooflinekit.present.page.energy import energy_of
from rooflinekit.present.page.kernels import kernels_of
from rooflinekit.present.page.sources import sources_of
from rooflinekit.present.page.step import step_of
from rooflinekit.present.page.studies import advice_of, explanation_of, gpus_of
from rooflinekit.present.page.summary import summary_of
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.compare.gpus import GpuComparison
from rooflinekit.study.compare.limits import PowerLimits
from rooflinekit.study.explain.advice import Advice
from rooflinekit.study.explain.explanation import Explanation

_SUFFIXES = (".html", ".htm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a report holds beside its prediction, as far as it was asked for."""

    comparison: GpuComparison | None = None
    rule: str = ""  # by which the GPUs of the comparison were chosen, in words
    advice: Advice | None = None
    explanation: Explanation | None = None
    limits: PowerLimits[Prediction] | None = None  # the step under limits of power


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How to make the report again: the command line, and the same in Python; "" for what is not known."""

    command: str = ""
    python: str = ""


def check_path(path: str | Path) -> Path:
    """The path of a report. Raises OutputError for a name that does not end in .html."""
    target = Path(path)
    if target.suffix.lower() not in _SUFFIXES:
        raise OutputError(f"{target}: expected a file name that ends in .html")
    return target


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
    comparison, advice, explanation = findings.comparison, findings.advice, findings.explanation
    style, script = _shipped("report.css"), _shipped("report.js")
    return _environment().get_template("report.html").render(
        summary=summary_of(p),
        kernels=kernels_of(p),
        step=step_of(p),
        energy=energy_of(p, findings.limits),
        gpus=gpus_of(comparison, p.machine.name, findings.rule) if comparison is not None else None,
        advice=advice_of(advice) if advice is not None else None,
        explanation=explanation_of(explanation) if explanation is not None else None,
        sources=sources_of(p),
        origin=origin,
        versions=f"rooflinekit {rooflinekit.__version__}, torch {version('torch')}, Python {platform.python_version()}",
        style=style,
        script=script,
        policy=_policy(style, script),
    )  # fmt: skip


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded; the page's own style and script may run, known by their digests."""
    return f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _shipped(name: str) -> str:
    return (files("rooflinekit.present.page") / "templates" / name).read_text(encoding="utf-8").strip()


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FunctionLoader(_shipped),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["bound"] = bound
    return found


_QUANTITY = re.compile(r"(?<=\d) (?=(?:[mµn]?s|[kMGTP]?i?B(?:/s)?|[kMGTPE]?FLOP(?:/s|/B)?|% )\b|% )")


def bound(text: str) -> str:
    """The text with numbers and their units kept on one line.

    >>> bound("5 ms at 2.0 TB/s, 90 % of 3 kernels")
    '5\xa0ms at 2.0\xa0TB/s, 90\xa0% of 3 kernels'
    """
    return _QUANTITY.sub("\u00a0", text)
