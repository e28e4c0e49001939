"""The subcommand that says how long one step takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.forms import prints_tables
from rooflinekit.cli.options import JsonOption, TargetArgument, print_json, typed
from rooflinekit.cli.parse import check_word, variants_of
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction
    from rooflinekit.study.profile.memory import MemoryProfile


@prints_tables
@describes_workload
def predict(
    workload: Workload,
    target: TargetArgument,
    by: Annotated[str | None, typer.Option(help="also a table by module, kind, phase or kernel")] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="parts of the module path, with --by module")] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            help="also a table of other ways: execution=eager,compiled, autocast=none,fp16, channels-last=no,yes, "
            "attention=chosen,cudnn, or sizes, batch=1,8; repeatable, for every combination"
        ),
    ] = None,
    terms: Annotated[
        bool, typer.Option("--terms", help="all terms of the time, kernels, FLOP, traffic and energy")
    ] = False,
    largest_batch: Annotated[
        bool, typer.Option("--largest-batch", help="also the largest batch that fits the memory")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="also write a roofline figure: .pdf, .svg or .png")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="also write the step's time line, to open in Perfetto")
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.pickle", help="also write the allocator's blocks, for pytorch.org/memory_viz"),
    ] = None,
    measured_memory: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.pickle|FILE.json",
            help="also what a run held, beside this: of torch.cuda.memory._dump_snapshot, or memory_stats() as JSON",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """How long one step takes on each GPU.

    Example: rooflinekit predict timm:resnet50 --input batch,3,224,224 --batch 32 --gpu nvidia-l4
    """
    check_word("--by", by, ("module", "kind", "phase", "kernel"))
    variants = variants_of(compare or [])
    resizing = largest_batch or bool(variants.keys() & workload.sizes.keys())
    if largest_batch and "batch" not in workload.sizes:
        raise InputError("--largest-batch: no size of --input is named batch, as in --input batch,3,224,224 --batch 32")
    held = _read_memory(measured_memory, len(workload.gpus))
    (predictions,) = workload.predict(target, sizes_open=resizing)
    beside = None if held is None else held.beside(predictions[0])
    compared = [p.compare(**variants) for p in predictions] if variants else []
    largest = [p.largest_batch() for p in predictions] if largest_batch else []
    written = list(_written(predictions, plot, trace, snapshot))
    if as_json:
        rows = [] if by is None else [_table(p, by, depth).reset_index().to_dict("records") for p in predictions]
        documents = [p.to_dict() for p in predictions]
        for document, prediction in zip(documents, predictions, strict=True):
            document["memory"]["verdict"] = prediction.memory_verdict().to_dict()
        for document, table in zip(documents, rows, strict=False):
            document["by"] = table
        for document, frame in zip(documents, compared, strict=False):
            document["compare"] = frame.drop(columns="prediction").to_dict("records")
        for document, most in zip(documents, largest, strict=False):
            document["largest_batch"] = most
        extra = {} if beside is None else {"measured_memory": beside.to_dict()}
        print_json("predict", {"predictions": [{**document, **extra} for document in documents]})
        return
    from rooflinekit.present.text import predictions as text
    from rooflinekit.present.text.predictions import print_variants

    text.print_predictions(predictions, largest, terms=terms)
    for prediction, frame in zip(predictions, compared, strict=False):
        print_variants(prediction, frame)
    for prediction in predictions if by is not None else ():
        text.print_breakdown(prediction, _table(prediction, by, depth))
    if beside is not None:
        from rooflinekit.present.text.profiles import print_memory_comparison

        print_memory_comparison(beside)
    for line in written:
        print(line)


def _read_memory(path: Path | None, gpus: int) -> MemoryProfile | None:
    if path is None:
        return None
    from rooflinekit.study.profile.memory import MemoryProfile

    if gpus > 1:
        raise InputError(f"--measured-memory: expected one --gpu, the one of the run, not {gpus}")
    return MemoryProfile.read(path)


def _written(
    predictions: list[Prediction], plot: Path | None, trace: Path | None, snapshot: Path | None
) -> Iterator[str]:
    """Writes the files that are asked for, and says of each what it is."""
    if snapshot is not None and len(predictions) > 1:
        raise InputError(f"--snapshot: expected one --gpu, whose blocks the file shows, not {len(predictions)}")
    if plot is not None:
        _save_roofline(predictions, plot)
        yield f"figure written to {plot}"
    if trace is not None:
        from rooflinekit.present.traces.chrome import save_trace

        save_trace(predictions, trace)
        yield f"time line written to {trace}; ui.perfetto.dev opens it"
    if snapshot is not None:
        from rooflinekit.present.traces.snapshot import save_snapshot

        save_snapshot(predictions[0], snapshot)
        yield f"blocks of memory written to {snapshot}; pytorch.org/memory_viz opens it"


def _table(prediction: Prediction, by: str | None, depth: int | None) -> Any:
    return prediction.by_module(depth) if by == "module" else getattr(prediction, f"by_{by}")()


def _save_roofline(predictions: list[Prediction], path: Path) -> None:
    from rooflinekit.present.figures import plot as figures

    figures.save(figures.roofline(predictions if len(predictions) > 1 else predictions[0]), path, command=typed())
