"""The subcommand that measures the hardware at hand and fits the time model to it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.errors import InputError
from rooflinekit.present.progress import following

if TYPE_CHECKING:
    from rooflinekit.calibrate.session import Calibrated

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command()(calibrate)


def calibrate(
    device: Annotated[str, typer.Option(metavar="cuda[:N]|cpu", help="what to measure")] = "cuda",
    plan: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="quick, standard, full, or a plan of your own")
    ] = "quick",
    only: Annotated[str | None, typer.Option(metavar="OP,...", help="only these ops or families of ops")] = None,
    budget: Annotated[str | None, typer.Option(metavar="10m", help="time to spend on all families: s, m or h")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="file for the samples; gone on with if there")] = None,
    spec: Annotated[str | None, typer.Option(help="of the hardware: name or file; by default by its name")] = None,
    allow_draft: Annotated[bool, typer.Option("--allow-draft", help="take a draft of a specification")] = False,
) -> None:
    """Measure the hardware at hand, and fit the time model's constants to it.

    Samples are on the disk as they come: after an interrupt the same command goes on. Example: rooflinekit calibrate
    --device cuda --plan quick --budget 10m
    """
    seconds = seconds_of(budget)
    from rooflinekit import calibration_workflows
    from rooflinekit.calibrate import at_hand
    from rooflinekit.calibrate import plan as plans

    kind, index = at_hand.parse_device(device)
    found = at_hand.specification(kind, index, spec, allow_draft=allow_draft)
    chosen = plans.load_plan(plan, kind, threads=found.sm_count if kind == "cpu" else 1)
    words = tuple(filter(None, (only or "").split(",")))
    chosen.units(words)  # before torch is loaded
    file = out or Path(f"{found.name}-{chosen.name}.jsonl")
    from rooflinekit.calibrate import timers
    from rooflinekit.present import calibration_text

    timer = timers.timer_of(kind, index, max(found.l2_capacity, found.last_level_cache or 0.0))
    with _progress(chosen.name) as advance, _resumable(file):
        result = calibration_workflows.calibrate(
            chosen, found, timer, file, only=words, budget_s=seconds, progress=advance or (lambda *_: None)
        )
    calibration_text.print_calibration(result)
    print(_written(result, found.name, file))
    if result.outcome.left:
        print(f"{result.outcome.left} measurements are left: the same command goes on")


def _written(result: Calibrated, name: str, file: Path) -> str:
    """Writes tables, constants and the host beside the samples, and says where they are."""
    from rooflinekit.calibrate import fits, link_fits, link_own, session
    from rooflinekit.files import write_text
    from rooflinekit.hardware.spec_text import host_text

    found = [f"samples in {file}"]
    tables = session.write_medians(result.campaigns, result.recorded, file)
    if tables:
        found.append(f"medians in {', '.join(map(str, tables))}")
    if result.fit is not None:
        fit = file.with_suffix(".fit.yaml")
        fits.write_fit(
            result.fit.calibration, fit, f"Constants of {name}. Made by `rooflinekit calibrate` from {file}."
        )
        found.append(f"constants in {fit}")
    if result.links is not None:
        links = file.with_suffix(".links.yaml")
        heading = f"Link constants of {name}. Made by `rooflinekit calibrate` from {file}."
        link_fits.write_links(link_own.own_constants(result.links), links, name, heading)
        found.append(f"links in {links}")
    if result.host is not None:
        host = file.with_name(f"{file.stem}-host.yaml")
        heading = (
            f"The host of {name}. Made by `rooflinekit calibrate` from {file}; see `sources` for what was measured."
        )
        write_text(host_text(result.host, heading), host)
        found.append(f"host in {host}")
    return ", ".join(found)


def seconds_of(text: str | None) -> float:
    """What --budget says, in seconds; without end for None. Raises InputError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text or "")
    if text is not None and match is None:
        raise InputError(f"--budget {text!r}: expected a number of seconds, minutes or hours, such as 90s, 10m or 1h")
    return float(match[1]) * _SECONDS[match[2]] if match else float("inf")


@contextmanager
def _resumable(file: Path) -> Iterator[None]:
    """An interrupt says what is not lost."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nwhat was measured is in {file}; the same command goes on", file=sys.stderr)
        raise


@contextmanager
def _progress(plan: str) -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar on standard error; only on a terminal."""
    columns = ("text", "BarColumn", "MofNCompleteColumn", "TimeRemainingColumn")
    with following(*columns, description=plan) as update:
        yield update and (lambda done, units, name: update(completed=done, total=units, description=name))
