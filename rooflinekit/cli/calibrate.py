"""The subcommand that measures the hardware at hand and fits the time model to it."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli import documents
from rooflinekit.cli.options import DraftOption, JsonOption, print_json
from rooflinekit.cli.parse import seconds_of
from rooflinekit.errors import OutputError, printable
from rooflinekit.files import check_kind
from rooflinekit.present.text.progress import bar

if TYPE_CHECKING:
    from rooflinekit.calibrate.bench.session import Calibrated


def calibrate(
    device: Annotated[str, typer.Option(metavar="cuda[:N]|cpu", help="what to measure")] = "cuda",
    plan: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="quick, standard, full, or a plan of your own")
    ] = "quick",
    only: Annotated[str | None, typer.Option(metavar="OP,...", help="only these ops or families of ops")] = None,
    budget: Annotated[str | None, typer.Option(metavar="10m", help="time to spend on all families: s, m or h")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="the file for the samples; if it exists, measuring goes on where it stopped"),
    ] = None,
    spec: Annotated[
        str | None, typer.Option(help="the hardware's specification, a name or file; by default found by its name")
    ] = None,
    allow_draft: DraftOption = False,
    campaign: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.csv", help="measure nothing: fit on these measured ops; repeatable"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the hardware at hand and fit the constants to it.

    Samples are on the disk as they come: after an interrupt the same command goes on.
    Example: rooflinekit calibrate --device cpu --plan quick --budget 10m
    """
    seconds = seconds_of(budget)
    if campaign:
        _fit_campaigns(campaign, spec, out, allow_draft=allow_draft, as_json=as_json)
        return
    from rooflinekit.calibrate.bench.record_file import TOLD, WRITING

    with stopped_in_time(WRITING, TOLD) as stop:
        from rooflinekit.api import calibrate as calibration_workflows
        from rooflinekit.calibrate.bench import plan as plans
        from rooflinekit.calibrate.local_hardware import hardware as local_hardware

        kind, index = local_hardware.parse_device(device)
        made: Path | None = None
        if kind == "cpu" and spec is None:
            found, made = local_hardware.cpu_specification(out and out.with_name(f"{out.stem}-cpu.yaml"))
        else:
            found = local_hardware.specification(kind, index, spec, allow_draft=allow_draft)
        if note := local_hardware.check_here(found, kind, index):
            print(printable(f"note: {note}"), file=sys.stderr)
        chosen = plans.load_plan(plan, kind, threads=found.sm_count if kind == "cpu" else 1)
        words = tuple(filter(None, (only or "").split(",")))
        chosen.units(words)  # before torch is loaded
        file = out or Path(f"{found.name}-{chosen.name}.jsonl")
        check_kind(file)
        from rooflinekit.calibrate.bench import timers
        from rooflinekit.present.text import calibration as calibration_text

        timer = timers.timer_of(kind, index, max(found.l2_capacity, found.last_level_cache or 0.0))
        stop.says = f"what was measured is in {file}; the same command goes on"
        with bar(chosen.name) as advance:
            result = calibration_workflows.calibrate(
                chosen, found, timer, file, only=words, budget_s=seconds, progress=advance or (lambda *_: None)
            )
        try:
            written = _write(result, found.name, file)
        except OutputError as error:
            raise OutputError(f"{error}; what was measured is in {file}, the same command goes on") from error
        if as_json:
            if made is not None:
                written["specification"] = [made]
            print_json("calibrate", documents.calibrated(result, written))
            return
        calibration_text.print_calibration(result)
        print(", ".join(f"{what} in {', '.join(map(str, files))}" for what, files in written.items()))
        if made is not None:
            fit = file.with_suffix(".fit.yaml")
            constants = f" --constants {fit}" if result.fit is not None else ""
            print(f"this CPU is described in {made}: rooflinekit predict TARGET --input … --gpu {made}{constants}")
        if result.outcome.left:
            print(f"{result.outcome.left} measurements are left: the same command goes on")


def _fit_campaigns(files: list[Path], spec: str | None, out: Path | None, *, allow_draft: bool, as_json: bool) -> None:
    """Constants from measured ops alone, such as those of traces, beside the first file or as --out."""
    from rooflinekit.api.calibrate import fit_campaigns
    from rooflinekit.calibrate.fitting.files import write_fit
    from rooflinekit.present.text.calibration import print_own_fit

    found = fit_campaigns(files, spec, allow_draft=allow_draft)
    file = out or files[0].with_suffix(".fit.yaml")
    name = found.calibration.name
    write_fit(found.calibration, file, f"Constants of {name}. Made by `rooflinekit calibrate` from campaigns.")
    if as_json:
        print_json("own-fit", {"device": name, "file": str(file), **documents.own_fit(found)})
        return
    print_own_fit(found)
    print(printable(f"constants in {file}"))


def _write(result: Calibrated, name: str, file: Path) -> dict[str, list[Path]]:
    """Writes tables, constants and the host beside the samples; the files by what they hold."""
    from rooflinekit.calibrate.bench import session
    from rooflinekit.calibrate.fitting import files as fits
    from rooflinekit.calibrate.links import fitting as link_own
    from rooflinekit.files import write_text
    from rooflinekit.hardware.yaml_file import spec_text

    found = {"samples": [file]}
    tables = session.write_medians(result.campaigns, result.recorded, file)
    if tables:
        found["medians"] = [*tables]
    if result.fit is not None:
        fit = file.with_suffix(".fit.yaml")
        fits.write_fit(
            result.fit.calibration, fit, f"Constants of {name}. Made by `rooflinekit calibrate` from {file}."
        )
        found["constants"] = [fit]
    if result.links is not None:
        links = file.with_suffix(".links.yaml")
        heading = f"Link constants of {name}. Made by `rooflinekit calibrate` from {file}."
        fits.write_links(link_own.own_constants(result.links), links, name, heading)
        found["links"] = [links]
    if result.host is not None:
        host = file.with_name(f"{file.stem}-host.yaml")
        heading = (
            f"The host of {name}. Made by `rooflinekit calibrate` from {file}; see `sources` for what was measured."
        )
        write_text(spec_text(result.host, heading), host)
        found["host"] = [host]
    return found


# Being told to stop, by Ctrl-C, `kill` or a job's time limit: in time, whatever the process is at.


_GRACE_S = 2.5  # that an operator at work may take to end, and all else on the way out; then the process ends as it is
_FINISH_S = 1.0  # that a line on its way to the disk may take
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Stop:
    """What is said when the process is stopped: what is not lost."""

    says: str = ""

    def say(self) -> None:
        """Says it, once."""
        if self.says:
            print(f"\n{self.says}", file=sys.stderr, flush=True)
        self.says = ""


@contextlib.contextmanager
def stopped_in_time(finish: threading.Lock, told: threading.Event) -> Iterator[Stop]:
    """SIGINT and SIGTERM raise KeyboardInterrupt in this block; where that is not heeded soon, the process ends.

    Python runs a handler between two of its own steps, and a large product is one step that takes minutes: a thread
    waits for the signal beside it. finish: what has to be free before the process may end. told: set by the signal.

    Both signals count where the process was started with SIGINT ignored too, as a script starts `command &`: what is
    sent by hand to a measurement of hours is meant. The process ends with status 130 after SIGINT, 143 after SIGTERM.
    Outside the main thread, which alone is told of signals, nothing is done.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    over = threading.Event()
    got: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if not got:  # a second one changes nothing: the first is heeded in time
            got.append(number)
            told.set()
            raise KeyboardInterrupt

    def lost(what: sys.UnraisableHookArgs) -> None:
        if not (got and what.exc_type is KeyboardInterrupt):  # it came during a callback: the thread beside ends all
            hook(what)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    told.clear()
    hook, sys.unraisablehook = sys.unraisablehook, lost
    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader, over, stop, finish), daemon=True).start()
    try:
        yield stop
    except KeyboardInterrupt:
        if not got:
            raise
        # What is closed on the way out may take long too, so the thread goes on watching; and taking the interpreter
        # apart, torch and all, takes seconds on a busy machine, during which no thread can watch.
        stop.say()
        atexit._run_exitfuncs()
        os._exit(128 + got[0])
    finally:
        if not got:
            over.set()
            signal.set_wakeup_fd(wakeup)
            sys.unraisablehook = hook
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(writer)


def _watch(reader: int, over: threading.Event, stop: Stop, finish: threading.Lock) -> None:
    """Ends the process some time after a signal; its number arrives here whatever the main thread is at."""
    number = 0
    while number not in _SIGNALS:
        read = os.read(reader, 1)
        if not read:  # the block has ended
            os.close(reader)
            return
        number = read[0]
    if not over.wait(_GRACE_S):
        finish.acquire(timeout=_FINISH_S)
        stop.say()
        os._exit(128 + number)
