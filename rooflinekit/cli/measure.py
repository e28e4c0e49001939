"""The subcommand that times a real model on the hardware at hand, beside its prediction."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rooflinekit.cli import documents
from rooflinekit.cli.described import Workload
from rooflinekit.cli.options import ForceOption, JsonOption, TargetArgument, print_json, progress_line
from rooflinekit.cli.parse import seconds_of
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import InputError, OutputError, printable


@functools.partial(describes_workload, needs_gpu=False, needs_input=False)
def measure(
    workload: Workload,
    target: TargetArgument = "",
    device: Annotated[
        str | None, typer.Option(metavar="cuda[:N]|cpu", help="where it runs; by default the first GPU, else the CPU")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="on a CPU: by default all cores of its --gpu")] = None,
    precision: Annotated[float, typer.Option(help="sampling ends when the median is known as well as this")] = 0.01,
    samples: Annotated[int, typer.Option(min=1, help="at most")] = 100,
    budget: Annotated[
        str, typer.Option(metavar="60s", help="begin no further sample after this time: s, m or h")
    ] = "60s",
    by_op: Annotated[
        bool, typer.Option("--by-op/--no-by-op", help="time the ops too, through torch's profiler")
    ] = True,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="also write prediction and measurement, as JSON")
    ] = None,
    force: ForceOption = False,
    host_only: Annotated[
        bool, typer.Option("--host-only", help="time the CPU alone and write it as a host's specification")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Is the prediction right? Time a model on hardware at hand.

    The model is built with random weights, and called with random numbers. --gpu is the specification of the
    hardware, by default that of its name; a CPU that is not shipped is described in a second of measuring. With
    --host-only it takes a minute and no model, and writes a file for --host: rooflinekit measure --host-only
    --out my-host.yaml
    Example: rooflinekit measure timm:resnet18 --input batch,3,224,224 --batch 8 --device cpu --mode training
    """
    if host_only:
        _measure_host(target, device, budget, out or Path("my-host.yaml"), force, as_json)
        return
    if not target:
        raise InputError("TARGET is missing: the model to time, such as timm:resnet18; or --host-only for none")
    if not workload.called:
        raise InputError("--input is missing: the sizes that the model is called with, such as --input batch,3,224,224")
    if len(workload.gpus) > 1:
        raise InputError(f"--gpu: one device is measured; got {len(workload.gpus)} specifications")
    options = {**workload.options}
    if options.pop("like") is not None:
        raise InputError("--like: what is measured is the PyTorch that is installed; leave it out")
    if out is not None:
        _check_free(out, force)
    from rooflinekit.api import measure as measurement
    from rooflinekit.hardware.specs import load_host
    from rooflinekit.step.execution import Execution

    execution = Execution(**workload.execution)
    spec, place = measurement.hardware_for(
        device,
        next(iter(workload.gpus), None),
        execution,
        threads,
        allow_draft=workload.allow_draft,
        options=("--device", "--gpu"),
    )
    host, seconds = load_host(workload.host), seconds_of(budget)
    from rooflinekit.tracing.targets import load_target, loss_of, optimizer_of

    optimizer, loss = optimizer_of(workload.optimizer), loss_of(workload.loss)

    where = str(place.device)
    found = load_target(target, where)
    with _progress(found.name) as advance:
        result = measurement.measure_model(
            found.model,
            *workload.args,
            device=where,
            gpu=spec,
            host=host,
            execution=execution,
            threads=threads,
            optimizer=optimizer,
            loss=loss,
            burst=workload.burst,
            constants=workload.constants,
            name=found.name,
            by_op=by_op,
            precision=precision,
            samples=samples,
            budget_s=seconds,
            progress=advance,
            **{**options, **workload.sizes},
        )
    if out is not None:
        result.save(out, force=force)
    if as_json:
        print_json("measure", documents.measured(result, out))
        return
    from rooflinekit.present.text.profiles import print_validation

    print_validation(result)
    if out is not None:
        print(printable(f"both written to {out}"))


def _measure_host(target: str, device: str | None, budget: str, out: Path, force: bool, as_json: bool) -> None:
    if target:
        raise InputError(f"--host-only: no model is run; leave out {target!r}")
    seconds = seconds_of(budget)
    _check_free(out, force)
    import torch

    from rooflinekit.calibrate.bench import timers
    from rooflinekit.calibrate.hosts import own as own_host
    from rooflinekit.calibrate.local_hardware import hardware as local_hardware
    from rooflinekit.files import write_text
    from rooflinekit.hardware.specs import load_host
    from rooflinekit.hardware.yaml_file import spec_text

    kind, index = local_hardware.parse_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    with progress_line("timing the host") as say:
        found = own_host.measure_host(
            kind, timers.timer_of(kind, index, 0.0), out.stem, budget_s=seconds, progress=say or (lambda name: None)
        )
    heading = "The host at hand. Made by `rooflinekit measure --host-only`; see `sources` for what was measured."
    write_text(spec_text(found, heading), out)
    base = load_host(own_host.BASE)
    if as_json:
        print_json("host", {
            "file": str(out), "measured_on": kind, "op_s": found.dispatch_s("default"),
            "slowness": own_host.slowness(found, base) if kind == "cuda" else None, "against": base.name,
        })  # fmt: skip
        return
    against = f", {own_host.slowness(found, base):.2g} times {base.name}" if kind == "cuda" else ""
    print(
        printable(
            f"an op {found.dispatch_s('default') * 1e6:.1f} µs{against}; written to {out}: name it with --host {out}"
        )
    )
    if kind == "cpu":
        print("note: measured without a GPU: it tells of steps on this CPU, and nothing of how it issues to a GPU")


def _check_free(out: Path, force: bool) -> None:
    """Before anything is measured: raises OutputError for a file that is there, or cannot be written."""
    from rooflinekit.calibrate.fitting.folder import check_writable
    from rooflinekit.files import check_free

    check_free(out, force=force)

    if not os.path.isdir(out.parent):
        raise OutputError(f"{out}: cannot be written: {out.parent} is no folder")
    check_writable(out.parent)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[str], None] | None]:
    """A line on standard error that says what is being done; only on a terminal."""
    with progress_line(name) as say:
        yield (lambda doing: say(f"{doing} {name}")) if say else None
