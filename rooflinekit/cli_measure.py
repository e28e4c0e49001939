"""The subcommand that times a real model on the hardware at hand, beside its prediction."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rooflinekit.cli_calibrate import seconds_of
from rooflinekit.cli_options import TargetArgument, progress_line
from rooflinekit.cli_parse import loss_of, optimizer_of
from rooflinekit.cli_workload import OPEN, Workload, describes_workload
from rooflinekit.errors import InputError, OutputError


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command(context_settings=OPEN)(measure)


@functools.partial(describes_workload, needs_gpu=False)
def measure(
    workload: Workload,
    target: TargetArgument,
    device: Annotated[
        str | None, typer.Option(metavar="cuda[:N]|cpu", help="where it runs; by default the first GPU, else the CPU")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="on a CPU: by default all cores of its --gpu")] = None,
    precision: Annotated[float, typer.Option(help="of the median: reached, sampling ends")] = 0.01,
    samples: Annotated[int, typer.Option(min=1, help="at most")] = 100,
    budget: Annotated[str, typer.Option(metavar="60s", help="begin no sample after so long: s, m or h")] = "60s",
    by_op: Annotated[bool, typer.Option("--by-op/--no-by-op", help="also ops, through torch's profiler")] = True,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="also write both, as JSON: validation data")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace the file")] = False,
) -> None:
    """Is the prediction right? Time a model on the hardware at hand, beside its prediction.

    The model is built with random weights, and called with random numbers. --gpu is the specification of the hardware,
    by default that of its name.
    Example: rooflinekit measure timm:resnet18 --input batch,3,224,224 --batch 8 --device cuda --mode training
    """
    if len(workload.gpus) > 1:
        raise InputError(f"--gpu: one device is measured; got {len(workload.gpus)} specifications")
    options = {**workload.options}
    if options.pop("like") is not None:
        raise InputError("--like: what is measured is the PyTorch that is installed; leave it out")
    if out is not None:
        _check_free(out, force)
    from rooflinekit import measurement
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
    optimizer, loss = optimizer_of(workload.optimizer), loss_of(workload.loss)
    from rooflinekit.tracing.targets import load_target

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
    from rooflinekit.present import validation_text

    if out is not None:
        result.save(out, force=force)
    validation_text.print_validation(result)
    if out is not None:
        print(f"both written to {out}")


def _check_free(out: Path, force: bool) -> None:
    """Before anything is measured: raises OutputError for a file that is there, or cannot be written."""
    if os.path.lexists(out) and not force:
        raise OutputError(f"{out}: exists; choose another file, or replace it with --force")
    from rooflinekit.calibrate.fit_folder import check_writable

    if not out.parent.is_dir():
        raise OutputError(f"{out}: cannot be written: {out.parent} is no folder")
    check_writable(out.parent)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[str], None] | None]:
    """A line on standard error that says what is being done; only on a terminal."""
    with progress_line(name) as say:
        yield (lambda doing: say(f"{doing} {name}")) if say else None
