"""The subcommands that measure the hardware at hand, and fit constants: measure, calibrate, campaign, fit."""

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
from typing import Annotated

import typer

import rooflinekit as rk
from rooflinekit.api.workload import Workload
from rooflinekit.cli.command import Answer, Tables, made, progress_line
from rooflinekit.cli.guide import Command, group
from rooflinekit.cli.options import GPUS, ONE_OR_MORE, Drafts, Force, Rank, Target
from rooflinekit.cli.parse import seconds_of
from rooflinekit.cli.workload import NO_INPUT, describes_workload
from rooflinekit.errors import InputError, OutputError, printable
from rooflinekit.files import check_ending, check_free, check_writable
from rooflinekit.present import text
from rooflinekit.present.text.progress import bar


@describes_workload(needs_gpu=False, needs_input=False)
def measure(
    workload: Workload,
    target: Target = "",
    device: Annotated[
        str | None, "--device cuda[:N]|cpu", "where to run; by default the first GPU, else the CPU"
    ] = None,
    threads: Annotated[
        int | None, "with --device cpu: how many threads; by default one for each core", ONE_OR_MORE
    ] = None,
    precision: Annotated[float, "stop when the median is known to this relative error"] = 0.01,
    samples: Annotated[int, "the most samples to take", ONE_OR_MORE] = 100,
    budget: Annotated[str, "--budget 60s", "start no sample after this time, in s, m or h"] = "60s",
    by_op: Annotated[bool, "also time the ops, with torch's profiler"] = True,
    out: Annotated[Path | None, "--out -o", "also write prediction and measurement as JSON"] = None,
    force: Force = False,
    host_only: Annotated[bool, "time only the CPU, and write a specification for --host; needs no model"] = False,
) -> Answer | Tables:
    """Time a model on this machine, and compare it with the prediction.

    The model gets random weights and random inputs. --gpu names the specification of the hardware, by default the one
    with its name. `rooflinekit measure --host-only --out my-host.yaml` times the CPU in a minute, for --host.
    Example: rooflinekit measure timm:resnet18 --batch 8 --device cpu --mode training
    """
    if host_only:
        if target:
            raise InputError(f"--host-only: no model is run; leave out {target!r}")
        return _measure_host(device, seconds_of(budget), out or Path("my-host.yaml"), force)
    if not target:
        raise InputError("TARGET is missing: the model to time, such as timm:resnet18; or --host-only for none")
    if not workload.called:
        raise InputError(NO_INPUT)
    if len(workload.gpus) > 1:
        raise InputError(f"--gpu: one device is measured; got {len(workload.gpus)} specifications")
    if workload.limits:
        raise InputError("--power-limit, --sm-clock: what is measured is the board as it is set; leave them out")
    options = {**workload.options}
    if options.pop("like") is not None:
        raise InputError("--like: what is measured is the PyTorch that is installed; leave it out")
    if out is not None:
        _check_free(out, force)
    from rooflinekit.api import documents
    from rooflinekit.api.measure import hardware_for

    execution = workload.run_as
    spec, place = hardware_for(
        device,
        next(iter(workload.gpus), None),
        execution,
        threads,
        allow_draft=workload.allow_draft,
        options=("--device", "--gpu"),
    )
    host, seconds, where = rk.load_host(workload.host), seconds_of(budget), str(place.device)
    with progress_line(target) as say_doing:
        result = rk.measure_model(
            target,
            *workload.args,
            device=where,
            gpu=spec,
            host=host,
            execution=execution,
            threads=threads,
            **{name: getattr(workload, name) for name in ("optimizer", "loss", "burst", "constants")},
            by_op=by_op,
            precision=precision,
            samples=samples,
            budget_s=seconds,
            progress=None if say_doing is None else lambda doing: say_doing(f"{doing} {target}"),
            **{**options, **workload.sizes},
        )
    if out is not None:
        result.save(out, force=force)
    return Tables(
        "measure",
        lambda: documents.measured(result, out),
        lambda: text.profiles.print_validation(result),
        lines=() if out is None else [f"both written to {out}"],
    )


def _measure_host(device: str | None, seconds: float, out: Path, force: bool) -> Answer:
    _check_free(out, force)
    from rooflinekit.api.measure import measure_host

    with progress_line("timing the host") as doing:
        found = measure_host(device, out, budget_s=seconds, progress=doing)
    against = "" if found["slowness"] is None else f", {found['slowness']:.2g} times {found['against']}"
    lines = [f"an op {found['op_s'] * 1e6:.1f} µs{against}; written to {out}: name it with --host {out}"]
    if found["measured_on"] == "cpu":
        lines.append(
            "note: measured without a GPU: it tells of steps on this CPU, and nothing of how it issues to a GPU"
        )
    return Answer("host", lambda: found, lines=lines)


def _check_free(out: Path, force: bool) -> None:
    """Before anything is measured: raises OutputError for a file that is there, or cannot be written."""
    check_free(out, force=force)
    check_ending(out)
    check_writable(out.parent)


def calibrate(
    device: Annotated[str, "--device cuda[:N]|cpu", "the hardware to measure"] = "cuda",
    plan: Annotated[
        str, "--plan NAME|FILE", "what to measure: quick, standard, full, or a file with a plan of your own"
    ] = "quick",
    only: Annotated[str | None, "--only OP,...", "measure only these ops or families of ops"] = None,
    budget: Annotated[str | None, "--budget 10m", "the time to spend in total, in s, m or h"] = None,
    out: Annotated[Path | None, "--out -o", "the file for the samples; an existing file is continued"] = None,
    spec: Annotated[
        str | None, "the hardware's specification, a name or file; by default the one with its name"
    ] = None,
    allow_draft: Drafts = False,
    campaign: Annotated[
        list[Path] | None,
        "--campaign FILE.csv",
        "measure nothing, and fit to the measured ops of this file; repeatable",
    ] = None,
) -> Answer:
    """Measure this machine's GPU or CPU, and fit the constants to it.

    Every sample is saved at once: after an interrupt the same command continues.
    Example: rooflinekit calibrate --device cpu --plan quick --budget 10m
    """
    seconds = seconds_of(budget)
    if campaign:
        return _fit_campaigns(campaign, spec, out, allow_draft=allow_draft)
    from rooflinekit.api import calibrate as walks
    from rooflinekit.api import documents

    with stopped_in_time(walks.record_file.WRITING, walks.record_file.STOPPING) as stop:
        words = tuple(filter(None, (only or "").split(",")))
        here = walks.bench(device, plan, spec, out, words, allow_draft=allow_draft)
        if here.note:
            print(printable(f"note: {here.note}"), file=sys.stderr)
        own, file = here.own, here.file
        stop.says = f"what was measured is in {file}; the same command continues"
        with bar(here.plan.name) as advance:
            result = walks.calibrate(
                here.plan, here.device, here.timer, file, only=words, budget_s=seconds,
                progress=advance or (lambda *_: None),
            )  # fmt: skip
        try:
            written = walks.write_files(result, here.device.name, file)
        except OutputError as error:
            raise OutputError(f"{error}; what was measured is in {file}, the same command continues") from error

        lines = [", ".join(f"{what} in {', '.join(map(str, files))}" for what, files in written.items())]
        if own is not None:
            constants = f" --constants {written['constants'][0]}" if result.fit is not None else ""
            lines.append(f"this CPU is described in {own}: rooflinekit predict TARGET --input … --gpu {own}{constants}")
        if result.outcome.left:
            lines.append(f"{result.outcome.left} measurements are left: the same command continues")
        files = written if own is None else {**written, "specification": [own]}
        return Answer(
            "calibrate",
            lambda: documents.calibrated(result, files),
            lambda: text.calibration.print_calibration(result),
            lines=lines,
        )


def _fit_campaigns(files: list[Path], spec: str | None, out: Path | None, *, allow_draft: bool) -> Answer:
    """Constants from measured ops alone, such as those of traces, beside the first file or as --out."""
    from rooflinekit.api import calibrate as walks
    from rooflinekit.api import documents

    found = walks.fit_campaigns(files, spec, allow_draft=allow_draft)
    file = out or files[0].with_suffix(".fit.yaml")
    name = found.calibration.name
    walks.fits.write_fit(
        found.calibration, file, f"Constants of {name}. Made by `rooflinekit calibrate` from campaigns."
    )
    return Answer(
        "own-fit",
        lambda: {"device": name, "file": str(file), **documents.own_fit(found)},
        lambda: text.calibration.print_own_fit(found),
        lines=[f"constants in {file}"],
    )


# --- being told to stop, by Ctrl-C, `kill` or a job's time limit: in time, whatever the process is at ----------------

_GRACE_S = 2.5  # that an operator at work may take to end, and all else on the way out; then the process ends as it is
_FINISH_S = 1.0  # that a line on its way to the disk may take
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Stop:
    """The sentence for a process that is stopped, which says that nothing is lost."""

    says: str = ""

    def say(self) -> None:
        """Prints the sentence to standard error."""
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


campaign = group(
    """Check, summarize and merge the measurements of `calibrate`.

    Example: rooflinekit campaign validate calibration/campaigns/nvidia-t4/*.csv
    """
)

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="records (.jsonl) or campaigns (.csv)")]


@campaign.command(cls=Command)
@made
def validate(files: Files) -> Answer:
    """Check that files are complete and unchanged.

    The exit status is 1 where one is not.
    Example: rooflinekit campaign validate calibration/campaigns/nvidia-t4/*.csv
    """
    from rooflinekit.api.calibrate import validate as check

    found = check(files)
    wrong = any(found.values())
    rows = [{"file": str(file), "problem": problem or None} for file, problem in found.items()]
    return Answer(
        "campaign-validate",
        lambda: {"sound": not wrong, "files": rows},
        failed=wrong,
        lines=[f"{file}: {problem or 'sound'}" for file, problem in found.items()],
    )


@campaign.command(cls=Command)
@made
def summarize(files: Files) -> Answer:
    """Show what files hold, by device and op.

    It lists the device, the environment, ops by number format, noisy cases and failures.
    Example: rooflinekit campaign summarize calibration/campaigns/nvidia-t4/*.csv
    """
    return _summarized(files)


def _summarized(files: list[Path], *lines: str) -> Answer:
    from rooflinekit.api import calibrate as walks
    from rooflinekit.api import documents

    found = [walks.summarize_file(file) for file in files]

    def told() -> None:
        for one in found:
            text.calibration.print_summary(one)

    return Answer(
        "campaign-summarize", lambda: {"files": [documents.summarized(one) for one in found]}, told, lines=lines
    )


@campaign.command(cls=Command, name="from-trace")
@made
def from_trace(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...", help="files of export_chrome_trace (.json or .json.gz), or a folder of them"
        ),
    ],
    out: Annotated[Path, "--out -o", "the .csv file to write"],
    gpu: Annotated[str | None, "the device that was traced; by default the one that the trace names", GPUS] = None,
    rank: Rank = None,
    licence: Annotated[str, "the licence of the measurements, which the file then states"] = "own measurements",
    force: Force = False,
) -> Answer:
    """Read measured ops from profiler traces with shapes.

    Products, convolutions, attention, softmax, layer norms and element-wise ops become rows, to which `rooflinekit
    calibrate --campaign` fits constants. Several traces, such as those of all ranks, become one campaign.
    Example: rooflinekit campaign from-trace shapes.json.gz --gpu nvidia-l4 --out l4.csv
    """
    from rooflinekit.api import documents
    from rooflinekit.api.calibrate import campaign_from_traces

    found = campaign_from_traces(traces, out, gpu, rank, licence, force=force)
    return Answer(
        "campaign-from-trace",
        lambda: documents.drawn(found, out),
        lambda: text.calibration.print_drawn(found),
        lines=[f"written to {out}"],
    )


@campaign.command(cls=Command)
@made
def merge(files: Files, out: Annotated[Path, "--out -o", "the file to write"], force: Force = False) -> Answer:
    """Join files of one device into one.

    All have to be records, or all campaigns, of one device in one environment.
    Example: rooflinekit campaign merge monday.jsonl tuesday.jsonl --out both.jsonl
    """
    from rooflinekit.api.calibrate import merge_files

    check_free(out, force=force)
    merge_files(files, out, force=force)
    return _summarized([out], f"written to {out}")


def fit(
    campaigns: Annotated[
        Path | None, "--campaigns DIR", "the folder of measurements; by default that of the checkout"
    ] = None,
    out: Annotated[Path | None, "--out -o DIR", "the folder of fits to write; by default the one in use"] = None,
    check: Annotated[
        bool, "write nothing, and compare with the fits there; the exit status is 1 if they differ"
    ] = False,
) -> Answer:
    """Fit the constants to all measurements, which takes minutes.

    It writes priors.yaml for GPUs that nobody has measured, a file for each measured GPU, and links.yaml for
    collectives, and removes fits of GPUs without measurements. --check tolerates differences of 0.5 %, and for links of
    1 % or a tenth of the standard error.
    Example: rooflinekit fit --check
    """
    if campaigns is not None and out is None:
        raise InputError(
            f"--campaigns {campaigns}: name the folder of their fits with --out; "
            "otherwise the fits in use, of other measurements, would be replaced"
        )
    from rooflinekit.api import documents
    from rooflinekit.api.calibrate import refit_folder

    with progress_line("reading campaigns") as doing:
        say = None if doing is None else lambda step: doing(f"fitting: {step}")
        done = refit_folder(campaigns, out, check=check, progress=say)
    lines = [] if check else [f"fits written to {done.folder}"]
    if done.removed:
        lines.append(f"removed, as no campaign is of them: {', '.join(done.removed)}")
    compared = done.difference or f"{done.folder}: as the campaigns give them"
    return Answer(
        "fit",
        lambda: documents.refitted(done, written=not check),
        lambda: print(compared) if check else text.calibration.print_refit(done.found),
        failed=bool(done.difference),
        lines=lines,
    )
