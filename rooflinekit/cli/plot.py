"""The subcommand that draws figures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.options import TargetArgument, cluster_names, typed
from rooflinekit.cli.parse import check_word, variants_of
from rooflinekit.cli.workload import NO_GPU, describes_workload
from rooflinekit.errors import InputError, printable

if TYPE_CHECKING:
    from rooflinekit.distributed.prediction import ParallelPrediction
    from rooflinekit.ir.graph import Graph
    from rooflinekit.step.prediction import Prediction

_WHATS = ("roofline", "timeline", "memory", "sweep", "waterfall")
_SEVERAL_HELP = "a step on several devices, in the place of --gpu; repeatable, as are --gpus and --strategy"
_SWEEP_HELP = "a size and its values, batch=1,8,64: what --what sweep draws, and a path through a roofline"


@functools.partial(describes_workload, needs_gpu=False)
def plot(
    workload: Workload,
    target: TargetArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="file to write: .pdf, .svg, .png or .pgf (for LaTeX)")],
    others: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="TARGET", help="a further network, each of which is one mark; repeatable"),
    ] = None,
    what: Annotated[str, typer.Option(help="roofline, timeline, memory, sweep or waterfall")] = "roofline",
    over: Annotated[str | None, typer.Option(metavar="NAME=VALUE,…", help=_SWEEP_HELP)] = None,
    venue: Annotated[str | None, typer.Option(help="sizes of its template: ieee, acm, lncs, neurips or slides")] = None,
    width: Annotated[str | None, typer.Option(help="column, or page for both columns; a time line takes page")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="TRACE.json", help="of torch.profiler: roofline of measured beside predicted")
    ] = None,
    by_level: Annotated[bool, typer.Option("--by-level", help="roofline at the traffic of DRAM and of the L2")] = False,
    normalized: Annotated[bool, typer.Option("--normalized", help="roofline in shares of each roof")] = False,
    launch: Annotated[bool, typer.Option("--launch", help="roofline with what starting kernels costs")] = False,
    caption: Annotated[bool, typer.Option("--caption", help="also print the caption of a roofline")] = False,
    cluster: Annotated[
        list[str] | None, typer.Option(autocompletion=cluster_names, metavar="NAME|FILE.yaml", help=_SEVERAL_HELP)
    ] = None,
    gpus: Annotated[list[int] | None, typer.Option(min=1, help="how many of the cluster; by default all")] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="dp, ddp (default), ddp-gloo, zero-1, zero-2, fsdp, tensor or pipeline")
    ] = None,
) -> None:
    """A figure: roofline, time line, memory, sweep or waterfall.

    With --cluster of a training step on several devices: the roofline has the roof of links, the time line all
    devices, and a waterfall leads from one device to several, or from one of two such steps to the other.
    Example: rooflinekit plot timm:resnet50 --input batch,3,224,224 --batch 32 --gpu nvidia-l4 --out figure.pdf
    """
    check_word("--what", what, _WHATS)
    marks: dict[str, Any] = {
        "--with": others, "--trace": trace, "--by-level": by_level, "--normalized": normalized, "--launch": launch,
    }  # fmt: skip
    _check(workload, what, over, out, {**marks, "--caption": caption})
    counts: list[int | None] = [*gpus] if gpus else [None]
    asked = list(product(cluster or (), strategy or ["ddp"], counts))
    _check_several(workload, what, asked, {"--over": over, **marks}, {"--gpus": gpus, "--strategy": strategy})
    from rooflinekit.present.figures import plot as figures
    from rooflinekit.present.figures.style import Venue, style_of

    check_word("--venue", venue, get_args(Venue))
    check_word("--width", width, ("column", "page"))
    style_of(width or "column", venue)
    sizes: dict[str, Any] = {"width": width or ("page" if what == "timeline" else "column"), "venue": venue}
    if what == "sweep":
        name, values = _size(over or "")
        drawn = figures.sweep(_table(workload, target, name, values), name, **sizes)
    elif what == "roofline":
        from rooflinekit.present.figures.records.build import roofline_figure

        subject: Any = _several(workload, target, asked) if asked else (
            _predictions(workload, (target, *(others or ())), over) if trace is None
            else _beside(workload, target, trace)
        )  # fmt: skip
        figure = roofline_figure(
            subject, path=bool(over or others), joined=not others, by_level=by_level, normalized=normalized
        )
        drawn = figures.roofline(figure, launch=launch, **sizes)
    else:
        draws: dict[str, Callable[..., Any]] = {
            "timeline": figures.timeline, "memory": figures.memory, "waterfall": figures.waterfall,
        }  # fmt: skip
        steps: list[Any] = _several(workload, target, asked) if asked else workload.predict(target)[0]
        drawn = draws[what](steps[0] if len(steps) == 1 else steps, **sizes)
    figures.save(drawn, out, command=typed())
    print(printable(f"figure written to {out}"))
    if caption:
        print(figures.caption(figure))


def _check(workload: Workload, what: str, over: str | None, out: Path, given: dict[str, Any]) -> None:
    """Before the slow part: raises InputError for options that do not go together."""
    from rooflinekit.present.figures.files import check_name

    check_name(out)
    own = next((option for option, value in given.items() if value), None)
    if own is not None and what != "roofline":
        raise InputError(f"{own} belongs to --what roofline; got --what {what}")
    if what == "sweep" and over is None:
        raise InputError("--what sweep: over which size? Such as --over batch=1,8,64")
    if over is not None and what not in ("sweep", "roofline"):
        raise InputError(f"--over belongs to --what sweep or roofline; got --what {what}")
    if over is not None and _size(over)[0] not in workload.sizes:
        raise InputError(f"--over {over}: no size of --input is named {_size(over)[0]}")
    if what in ("timeline", "memory") and len(workload.gpus) > 1:
        raise InputError(f"--what {what} draws one step; got {len(workload.gpus)} GPUs")
    if given["--with"] and (over is not None or given["--trace"] is not None or given["--by-level"]):
        raise InputError("--with: each network is one mark: without --over, --trace and --by-level")
    if given["--trace"] is not None and (len(workload.gpus) != 1 or over is not None or given["--by-level"]):
        raise InputError("--trace: one measured step beside its prediction: one --gpu, without --over and --by-level")


_Asked = list[tuple[str, str, int | None]]  # cluster, strategy and number of devices of each step


def _check_several(workload: Workload, what: str, asked: _Asked, alone: dict[str, Any], theirs: dict[str, Any]) -> None:
    """The same for steps on several devices: `alone` is for one device, `theirs` needs a cluster."""
    if not asked:
        if own := [option for option, value in theirs.items() if value]:
            raise InputError(f"{own[0]} belongs to --cluster")
        if what == "waterfall":
            raise InputError("--what waterfall leads to a step on several devices: name its --cluster; of two steps on "
                             "one device `rooflinekit explain --plot` draws one")  # fmt: skip
        if not workload.gpus:
            raise InputError(f"{NO_GPU}, or --cluster")
        return
    if workload.gpus:
        raise InputError("--gpu: a cluster has its devices; leave it or --cluster out")
    if given := [option for option, value in alone.items() if value]:
        raise InputError(f"{given[0]} is for steps on one device; got --cluster")
    if workload.options["mode"] != "training":
        raise InputError("--cluster: steps on several devices are training steps: add --mode training")
    if what in ("memory", "sweep"):
        raise InputError(f"--cluster goes with --what roofline, timeline or waterfall; got --what {what}")
    most = {"timeline": 1, "waterfall": 2}.get(what)
    if most is not None and len(asked) > most:
        raise InputError(f"--what {what} draws {'one step' if most == 1 else 'one step, or two'}; got {len(asked)}")


def _several(workload: Workload, target: str, asked: _Asked) -> list[ParallelPrediction]:
    from rooflinekit.api import parallel as parallel_workflows
    from rooflinekit.distributed.records import strategy_of
    from rooflinekit.hardware.specs import load_cluster
    from rooflinekit.step.execution import Execution

    for _, strategy, _ in asked:
        strategy_of(strategy, 1)  # before the slow part
    clusters = {name: load_cluster(name) for name, _, _ in asked}
    (graph,) = workload.trace(target, sizes_open=True)
    return [
        parallel_workflows.parallel(
            graph, cluster=clusters[name], gpus=count, strategy=strategy, host=workload.named_host,
            execution=Execution(**workload.execution),
        )
        for name, strategy, count in asked
    ]  # fmt: skip


def _size(over: str) -> tuple[str, list[int]]:
    ((name, values),) = variants_of([over]).items()
    if name in ("execution", "autocast", "channels_last", "attention") or len(values) < 2:
        raise InputError(f"--over {over}: expected a size with two values or more, such as batch=1,8,64")
    return name, values


def _table(workload: Workload, target: str, name: str, values: list[int]) -> Any:
    from rooflinekit.api.sweep_places import swept
    from rooflinekit.study.sweep import run as sweep_run

    graph, others = _opened(workload, target, name)
    machines, host, execution = workload.setting()
    plan = swept(graph, machines, host, execution, {**others, name: values})
    return sweep_run.run(plan, executor=None, workers=None, progress=None)


def _predictions(workload: Workload, targets: Sequence[str], over: str | None) -> list[Prediction]:
    if over is None:
        return [prediction for predictions in workload.predict(*targets) for prediction in predictions]
    from rooflinekit.step.prediction import predict_graph

    name, values = _size(over)
    (target,) = targets
    whole, others = _opened(workload, target, name)
    machines, host, execution = workload.setting()
    graphs = [whole.at(**others, **{name: value}) for value in values]
    return [predict_graph(graph, machine, host, execution) for machine in machines for graph in graphs]


def _opened(workload: Workload, target: str, name: str) -> tuple[Graph, dict[str, int]]:
    """The graph with its sizes open, and numbers for all but one of them."""
    from rooflinekit.ir.graph import opened

    (graph,) = workload.trace(target, sizes_open=True)
    whole = opened(graph, name)
    return whole, {size: value for size, value in workload.sizes.items() if size in whole.dims and size != name}


def _beside(workload: Workload, target: str, trace: Path) -> Any:
    from rooflinekit.study.profile.profile import Profile

    measured = Profile.read(trace)
    ((prediction,),) = workload.predict(target)
    return measured.beside(prediction)
