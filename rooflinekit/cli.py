"""The command line: each subcommand parses, calls one workflow, prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit import (
    cli_advise,
    cli_calibrate,
    cli_campaign,
    cli_clusters,
    cli_compare,
    cli_crossover,
    cli_devices,
    cli_explain,
    cli_fit,
    cli_measure,
    cli_parallel,
    cli_plot,
    cli_profile,
    cli_report,
    cli_search,
    cli_serve,
    cli_sweep,
)
from rooflinekit.cli_options import JsonOption, TargetArgument, print_json
from rooflinekit.cli_parse import check_word, variants_of
from rooflinekit.cli_workload import OPEN, Workload, describes_workload
from rooflinekit.errors import InputError, RooflinekitError

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction

app = typer.Typer(
    name="rooflinekit",
    help="How long one step of a PyTorch network takes on a GPU, why, and what would change it.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command(context_settings=OPEN)
@describes_workload
def predict(
    workload: Workload,
    target: TargetArgument,
    by: Annotated[str | None, typer.Option(help="also a table by module, kind, phase or kernel")] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="parts of the module path, with --by module")] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            help="also a table of other ways: execution=eager,compiled, autocast=none,fp16, channels-last=no,yes, or "
            "sizes, batch=1,8; repeatable, for every combination"
        ),
    ] = None,
    largest_batch: Annotated[
        bool, typer.Option("--largest-batch", help="also the largest size named batch that fits the memory")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="also write a roofline figure: .pdf, .svg or .png")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="also write the step's time line, to open in Perfetto")
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
    (predictions,) = workload.predict(target, sizes_open=resizing)
    compared = [p.compare(**variants) for p in predictions] if variants else []
    largest = [p.largest_batch() for p in predictions] if largest_batch else []
    if plot is not None:
        _save_roofline(predictions, plot)
    if trace is not None:
        from rooflinekit.present.chrome_trace import save_trace

        save_trace(predictions, trace)
    if as_json:
        rows = [] if by is None else [_table(p, by, depth).reset_index().to_dict("records") for p in predictions]
        documents = [p.to_dict() for p in predictions]
        for document, table in zip(documents, rows, strict=False):
            document["by"] = table
        for document, frame in zip(documents, compared, strict=False):
            document["compare"] = frame.drop(columns="prediction").to_dict("records")
        for document, most in zip(documents, largest, strict=False):
            document["largest_batch"] = most
        print_json({"predictions": documents})
        return
    from rooflinekit.present import text
    from rooflinekit.present.variants_text import print_variants

    text.print_predictions(predictions, largest)
    for prediction, frame in zip(predictions, compared, strict=False):
        print_variants(prediction, frame)
    for prediction in predictions if by is not None else ():
        text.print_breakdown(prediction, _table(prediction, by, depth))
    if plot is not None:
        print(f"figure written to {plot}")
    if trace is not None:
        print(f"time line written to {trace}; ui.perfetto.dev opens it")


cli_plot.register(app)
cli_explain.register(app)
cli_devices.register(app)
cli_clusters.register(app)
cli_fit.register(app)
cli_calibrate.register(app)
cli_campaign.register(app)
cli_measure.register(app)
cli_compare.register(app)
cli_advise.register(app)
cli_crossover.register(app)
cli_profile.register(app)
cli_sweep.register(app)
cli_search.register(app)
cli_report.register(app)
cli_serve.register(app)
cli_parallel.register(app)


def main() -> None:
    """Runs the command line.

    Exit status 0; 2 for wrong use or bad input; 1 for a specification that `check` fails, or a fault of rooflinekit.
    """
    try:
        # Without standalone mode typer.Exit becomes the status that the call returns.
        status = app(args=sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()
    except RooflinekitError as error:
        _fail(str(error))
    except (typer.Abort, KeyboardInterrupt):
        print("rooflinekit: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; Python would complain once more on exit.
        sys.stdout = None
        sys.exit(0)
    except Exception as error:
        # Wrong options: click's own errors, which typer 0.20 and later raises from a copy of click.
        if not hasattr(error, "format_message"):
            raise
        _fail(error.format_message())
    else:
        if isinstance(status, int) and status:
            sys.exit(status)


def _fail(message: str) -> None:
    print(f"rooflinekit: {message}", file=sys.stderr)
    sys.exit(2)


def _table(prediction: Prediction, by: str | None, depth: int | None) -> Any:
    return prediction.by_module(depth) if by == "module" else getattr(prediction, f"by_{by}")()


def _save_roofline(predictions: list[Prediction], path: Path) -> None:
    from rooflinekit.present import plot as figures

    figures.save(figures.roofline(predictions if len(predictions) > 1 else predictions[0]), path)
