"""The subcommand that predicts one workload at many sizes."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.forms import prints_tables
from rooflinekit.cli.options import JsonOption, TargetArgument, print_json
from rooflinekit.cli.parse import integers
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import InputError, SweepError, printable

if TYPE_CHECKING:
    from rooflinekit.study.sweep.plan import Plan


ClusterOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME|FILE.yaml", help="training steps on several devices, in the place of --gpu; repeatable"),
]
GpusOption = Annotated[str | None, typer.Option(metavar="COUNTS", help="of a cluster: 1,2,4 or 1:8; by default all")]
StrategyOption = Annotated[
    str | None,
    typer.Option(help="of a cluster, listed: dp, ddp, zero-1, zero-2, fsdp, tensor, context, expert, pipeline"),
]
ZipOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME,NAME", help="sizes whose lists go together; repeatable")
]


@prints_tables
@functools.partial(describes_workload, many_sizes=True, needs_gpu=False)
def sweep(
    workload: Workload,
    target: TargetArgument,
    cluster: ClusterOption = None,
    gpus: GpusOption = None,
    strategy: StrategyOption = None,
    zip: ZipOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="the file to write, .csv or .json; or a folder .parquet, which a second run goes on with",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="processes; by default all cores for large sweeps")] = None,
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="columns of memory, and whether it fits")] = True,
    as_json: JsonOption = False,
) -> None:
    """Predictions at many sizes, on GPUs, in ways of execution.

    A row each. Sizes are lists (1,2,4) and ranges (1:64, 8:4096:8); --execution may be a list too. With --cluster
    and --mode training, on several devices by every --strategy, one prediction after another.
    Example: rooflinekit sweep timm:resnet50 --input batch,3,224,224 --batch 1,2,4:64:4 --gpu nvidia-l4 --gpu
    nvidia-t4
    """
    from rooflinekit.present.text.progress import counting
    from rooflinekit.study.sweep import run as sweep_run
    from rooflinekit.study.sweep.run import check_out

    sweep_run.check_workers(None, workers)
    if out is not None:
        check_out(out)
        if as_json:
            raise InputError("--json prints, and --out writes: give one of the two")
    plan = plan_of(workload, target, cluster, gpus, strategy, zip, memory=memory)
    with _told(out), counting("sweep", plan.rows) as progress:
        if out is not None:
            sweep_run.run_to_file(plan, out, executor=None, workers=workers, progress=progress)
        else:
            found = sweep_run.run(plan, executor=None, workers=workers, progress=progress)
    if out is not None:
        print(printable(f"{plan.rows} rows written to {out}"))
    elif as_json:
        print_json("sweep", {"rows": json.loads(found.to_json(orient="records"))})
    else:
        from rooflinekit.present.text.predictions import print_rows

        print_rows(found if found["problem"].any() else found.drop(columns="problem"))


@contextlib.contextmanager
def _told(out: Path | None) -> Iterator[None]:
    """What was met on the way, a line each; an interrupt says what is not lost."""
    with warnings.catch_warnings():
        warnings.showwarning = _line
        try:
            yield
        except KeyboardInterrupt:
            if out is not None:
                print(f"\nfinished pieces of {printable(str(out))} are kept; the same command goes on", file=sys.stderr)
            raise
        except MemoryError:
            kept = "" if out is None or out.suffix == ".parquet" else f"finished pieces of {out} are kept; "
            raise SweepError(
                f"memory ran out: {kept}take fewer sizes, or --out NAME.parquet, which never holds all rows at once"
            ) from None


def _line(message: Warning | str, *_: Any, **__: Any) -> None:
    print(printable(f"rooflinekit: {message}"), file=sys.stderr)


def plan_of(
    workload: Workload, target: str, clusters: Sequence[str] | None, gpus: str | None, strategy: str | None,
    together: Sequence[str] | None, *, memory: bool = True,
) -> Plan:  # fmt: skip
    """The sweep that the options describe."""
    from rooflinekit.api.sweep_places import Places, swept
    from rooflinekit.step.execution import Execution
    from rooflinekit.study.sweep.points import check_sizes

    words: Sequence[str] = [word.strip() for word in workload.execution["backend"].split(",")]
    executions = [Execution(**{**workload.execution, "backend": word}) for word in words]
    chosen = executions if len(executions) > 1 else executions[0]
    groups = [tuple(word.strip() for word in names.split(",")) for names in together or ()]
    check_sizes(workload.lists, groups)
    if not clusters:
        _check_gpus(workload, gpus, strategy)
        machines, host, _ = replace(workload, execution={**workload.execution, "backend": words[0]}).setting()
        (graph,) = workload.trace(target, sizes_open=True)
        return swept(graph, machines, host, chosen, workload.lists, memory=memory, together=groups)
    if workload.gpus:
        raise InputError("--gpu: a cluster has its devices; leave it out, or --cluster")
    if workload.options["mode"] != "training":
        raise InputError("--cluster: steps on several devices are training steps: add --mode training")
    places = Places(
        None if gpus is None else integers("--gpus", gpus), clusters,
        None if strategy is None else [word.strip() for word in strategy.split(",")],
        None, "even", workload.named_host, chosen,
    )  # fmt: skip
    places.check()
    (graph,) = workload.trace(target, sizes_open=True)
    return places.plan(graph, workload.lists, memory=memory, together=groups)


def _check_gpus(workload: Workload, gpus: str | None, strategy: str | None) -> None:
    if gpus is not None or strategy is not None:
        raise InputError(f"--{'strategy' if gpus is None else 'gpus'}: belongs to --cluster, which is missing")
    if not workload.gpus:
        raise InputError(
            "--gpu is missing: name one or more, such as --gpu nvidia-l4 (see `rooflinekit devices`), or --cluster"
        )
