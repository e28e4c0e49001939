"""The subcommands about one step: how long it takes, why, what its modules take, and what a profiler saw of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

import rooflinekit as rk
from rooflinekit.api.workload import Workload
from rooflinekit.cli.command import Answer, Tables, typed
from rooflinekit.cli.guide import Command
from rooflinekit.cli.options import ONE_OR_MORE, Rank, Target, needs
from rooflinekit.cli.parse import variants_of
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import InputError, check_word
from rooflinekit.files import check_ending, write_text
from rooflinekit.present import text
from rooflinekit.present.text.progress import bar


@describes_workload()
def predict(
    workload: Workload,
    target: Target,
    by: Annotated[str | None, "also print a table by module, kind, phase or kernel"] = None,
    depth: Annotated[int | None, "with --by module: how many parts of the module path to show", ONE_OR_MORE] = None,
    compare: Annotated[
        list[str] | None,
        "also print a table of variants: execution=eager,compiled, autocast=none,fp16, channels-last=no,yes, "
        "attention=chosen,cudnn, or a size, batch=1,8; given twice, every combination",
    ] = None,
    terms: Annotated[bool, "print all terms of the time, kernels, FLOP, traffic and energy"] = False,
    largest_batch: Annotated[bool, "also find the largest batch that fits into memory"] = False,
    plot: Annotated[Path | None, "also write a roofline figure: .pdf, .svg or .png"] = None,
    trace: Annotated[Path | None, "--trace FILE.json", "also write the step's time line, to open in Perfetto"] = None,
    snapshot: Annotated[
        Path | None,
        "--snapshot FILE.pickle",
        "also write the blocks of the allocator, set as by default, to open at pytorch.org/memory_viz",
    ] = None,
    measured_memory: Annotated[
        Path | None,
        "--measured-memory FILE.pickle|FILE.json",
        "compare with the memory of a real run: a file of torch.cuda.memory._dump_snapshot, or memory_stats() as JSON",
    ] = None,
    allocator: Annotated[
        str | None,
        "also print whether it fits, with settings as in PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True, "
        "max_split_size_mb:128, or '' for none",
    ] = None,
) -> Tables:
    """Predict how long one step takes on each GPU.

    Example: rooflinekit predict timm:resnet50 --batch 32 --gpu nvidia-l4
    """
    from rooflinekit.api.predict import Settings

    check_word("--by", by or "kind", ("module", "kind", "phase", "kernel"))
    if by != "module":
        needs("--by module", {"depth": depth})
    variants = variants_of(compare or [])
    resizing = largest_batch or bool(variants.keys() & workload.sizes.keys())
    if largest_batch and "batch" not in workload.sizes:
        raise InputError("--largest-batch: no size of --input is named batch, as in --input batch,3,224,224 --batch 32")
    if measured_memory is not None and len(workload.gpus) > 1:
        raise InputError(f"--measured-memory: expected one --gpu, the one of the run, not {len(workload.gpus)}")
    held = None if measured_memory is None else rk.MemoryProfile.read(measured_memory)
    Settings.parse(allocator or "")
    _check_written(workload, plot, trace, snapshot)
    (predictions,) = workload.predict(target, sizes_open=resizing)
    beside = None if held is None else held.beside(predictions[0])
    compared = [p.compare(**variants) for p in predictions] if variants else []
    largest = [p.largest_batch() for p in predictions] if largest_batch else []
    written = list(_written(predictions, plot, trace, snapshot))
    tables: list[Any] = [
        p.by_module(depth) if by == "module" else getattr(p, f"by_{by}")() for p in predictions if by is not None
    ]

    further = {
        "by": [table.reset_index().to_dict("records") for table in tables],
        "compare": [frame.drop(columns="prediction").to_dict("records") for frame in compared],
        "largest_batch": largest,
        "measured_memory": [] if beside is None else [beside.to_dict()],
    }

    def fields() -> Mapping[str, object]:
        documents = [p.to_dict() for p in predictions]
        for place, (document, p) in enumerate(zip(documents, predictions, strict=True)):
            document["memory"]["verdict"] = p.memory_verdict(allocator=allocator or "").to_dict()
            document |= {name: values[place] for name, values in further.items() if values}
        return {"predictions": documents}

    def told() -> None:
        if not (compared or tables) or not text.tables.whole():
            text.predictions.print_predictions(predictions, largest, terms=terms, allocator=allocator)
        for p, frame in zip(predictions, compared, strict=False):
            text.predictions.print_variants(p, frame)
        for p, table in zip(predictions, tables, strict=False):
            text.predictions.print_breakdown(p, table)
        if beside is not None:
            text.profiles.print_memory_comparison(beside)

    return Tables("predict", fields, told, lines=written)


def _check_written(workload: Workload, plot: Path | None, trace: Path | None, snapshot: Path | None) -> None:
    """Before the slow part: raises InputError and OutputError for files that cannot be written."""
    if snapshot is not None and len(workload.gpus) > 1:
        raise InputError(f"--snapshot: expected one --gpu, whose blocks the file shows, not {len(workload.gpus)}")
    for file, ending in ((trace, ".json"), (snapshot, ".pickle")):
        if file is not None:
            check_ending(file, ending)
    if plot is not None:
        from rooflinekit.present.figures.files import check_name

        check_name(plot)


def _written(
    predictions: list[rk.Prediction], plot: Path | None, trace: Path | None, snapshot: Path | None
) -> Iterator[str]:
    if plot is not None:
        drawn = rk.plot.roofline(predictions if len(predictions) > 1 else predictions[0])
        rk.plot.save(drawn, plot, command=typed())
        yield f"figure written to {plot}"
    if trace is not None:
        rk.save_trace(predictions, trace)
        yield f"time line written to {trace}; ui.perfetto.dev opens it"
    if snapshot is not None:
        rk.save_snapshot(predictions[0], snapshot)
        yield f"blocks of memory written to {snapshot}; pytorch.org/memory_viz opens it"


@describes_workload(needs_gpu=False)
def summary(
    workload: Workload,
    target: Target,
    depth: Annotated[int, "how many levels below the whole network", ONE_OR_MORE] = 3,
    unfolded: Annotated[bool, "show equal neighbours, such as the layers of a transformer, in a row each"] = False,
    out: Annotated[Path | None, "--out -o FILE.html", "also write an HTML page whose modules open and close"] = None,
) -> Tables:
    """Show the tree of modules: shapes, parameters, FLOP, bytes, time.

    A row sums up its module and everything below it. Times are shown for each --gpu; without one, only counts.
    Example: rooflinekit summary timm:resnet50 --batch 32 --gpu nvidia-l4 --depth 2
    """
    from rooflinekit.present.page.templating import Origin, check_path, modules_page

    if out is not None:
        check_path(out)
    predictions: Sequence[rk.Prediction] = ()
    if workload.gpus:
        (predictions,) = workload.predict(target)
        graph = predictions[0].graph
    else:
        workload.refuse("a summary without --gpu")
        (graph,) = workload.trace(target)
    found = rk.summary(predictions or graph, depth=depth, folded=not unfolded)
    if out is not None:
        origin = Origin(command=typed())
        write_text(modules_page(graph, predictions, depth, origin, folded=not unfolded), out)

    def told() -> None:
        text.predictions.print_summary(graph, predictions, found)
        if out is not None:
            text.tables.say(f"page written to {out}", soft_wrap=True)

    return Tables(
        "summary",
        lambda: {
            "model": graph.name,
            "mode": graph.mode,
            "sizes": dict(graph.sizes),
            "gpus": [p.machine.name for p in predictions],
            "modules": json.loads(found.reset_index().to_json(orient="records", double_precision=15)),
        },
        told,
    )


class _Sized(Command):
    """A command that takes the value of an option which a size became for that, not for its second argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Sets apart the options that are not its own, each with its value."""
        own = {name for parameter in self.get_params(ctx) for name in (*parameter.opts, *parameter.secondary_opts)}
        sized, rest, words = list[str](), list[str](), iter(args)
        for word in words:
            if not word.startswith("--") or word.partition("=")[0] in own:
                rest.append(word)
            else:
                sized += [word] if "=" in word else [word, *islice(words, 1)]
        super().parse_args(ctx, rest)
        left = [*sized, *ctx.args]
        ctx.args = left
        return left


@describes_workload()
def explain(
    workload: Workload,
    target_a: Target,
    target_b: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET_B", help="a second network, called with the same inputs; without it, see --compare"
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        "compare one network with itself, run in another way: execution=compiled, autocast=fp16, channels-last=yes, "
        "attention=cudnn or batch=64",
    ] = None,
    plot: Annotated[Path | None, "also write a waterfall figure: .pdf, .svg or .png"] = None,
    details: Annotated[bool, "also show the evidence: datasheets, waits, algorithms, kernels"] = False,
) -> Tables:
    """Explain why one of two steps is faster, by term and by kernel.

    The steps differ in the network, the GPU or the way of running. Two targets are compared on each --gpu. One target
    is compared on the first --gpu with every other --gpu, or on each --gpu with itself as --compare changes it.
    Example: rooflinekit explain examples/bottlenecks.py:A examples/bottlenecks.py:A_prime --input 1,64,160,120
    --gpu p100-pcie --host xeon-server-2018 --sync none
    """
    _check_written(workload, plot, None, None)
    found = [rk.explain(a, b) for a, b in _pairs(workload, target_a, target_b, compare or [], plot)]
    if plot is not None:
        rk.plot.save(rk.plot.waterfall(found[0]), plot, command=typed())

    def told() -> None:
        for one in found:
            text.choices.print_explanation(one, details=details)

    written = [] if plot is None else [f"figure written to {plot}"]
    return Tables("explain", lambda: {"explanations": [one.to_dict() for one in found]}, told, lines=written)


explain.registered["cls"] = _Sized  # type: ignore[attr-defined]


def _pairs(
    workload: Workload, target_a: str, target_b: str | None, compare: list[str], plot: Path | None
) -> list[tuple[rk.Prediction, rk.Prediction]]:
    """What is compared with what. Raises InputError where the options leave nothing to compare, or too much to draw."""
    if target_b is not None and compare:
        raise InputError("--compare changes one network: leave out --compare or TARGET_B")
    names = [device.name for device in workload.devices()]
    if len(set(names)) < len(names):
        raise InputError(f"--gpu: {max(names, key=names.count)} is given twice")
    if target_b is None and not compare and len(workload.gpus) < 2:
        raise InputError("nothing to compare: give a second TARGET, a second --gpu, or --compare, such as batch=64")
    variants = variants_of(compare)
    pairs = len(workload.gpus) - (target_b is None and not compare)
    if plot is not None and pairs != 1:
        many = f"{len(workload.gpus)} GPUs" if target_b or compare else f"{pairs} pairs of GPUs"
        raise InputError(f"--plot draws one waterfall; got {many}")
    if target_b is not None:
        first, second = workload.predict(target_a, target_b)
        return list(zip(first, second, strict=True))
    (predictions,) = workload.predict(target_a, sizes_open=bool(variants.keys() & workload.sizes.keys()))
    if not variants:
        return [(predictions[0], other) for other in predictions[1:]]
    return [(p, _changed(p, variants, compare)) for p in predictions]


def _changed(p: rk.Prediction, variants: dict[str, list[object]], compare: list[str]) -> rk.Prediction:
    found: list[rk.Prediction] = list(p.compare(**variants)["prediction"])
    if len(found) != 2:
        given = ", ".join(compare)
        raise InputError(f"--compare {given}: expected one other way to run it, such as batch=64; got {len(found) - 1}")
    return found[1]


@describes_workload(solves="along")
def crossover(
    workload: Workload,
    target: Target,
    along: Annotated[str, "--along SIZE", "the size of --input that grows"] = "batch",
    module: Annotated[str | None, "count only this module and everything below it"] = None,
    op: Annotated[str | None, "count only this op, by its name in `Graph.ops`"] = None,
    other_gpu: Annotated[
        list[str] | None, "--other-gpu GPU", "also find the DRAM bandwidth that would make this GPU as fast; repeatable"
    ] = None,
    latex: Annotated[bool, "also print the formula as LaTeX"] = False,
) -> Answer:
    """Find the size above which arithmetic, not CPU or memory, limits.

    The arithmetic intensity is printed as a formula, too. Leave out the size that is looked for, unless --other-gpu is
    given, which compares steps of one size.
    Example: rooflinekit crossover timm:resnet50 --gpu nvidia-l4
    """
    if along not in workload.sizes:
        has = ", ".join(workload.sizes) or "none"
        raise InputError(f"--along {along!r}: no size of --input has this name; it has {has}")
    if other_gpu and along in workload.sought:
        raise InputError(f"--other-gpu compares one step: give its size, such as --{along} 32")
    others = workload.devices(other_gpu or ())
    (predictions,) = workload.predict(target, sizes_open=True)
    formula = rk.intensity(predictions[0].graph, module=module, op=op)
    sizes = [
        found
        for p in predictions
        for found in (rk.compute_bound_from(p, along, module=module, op=op), rk.gpu_bound_from(p, along))
    ]
    bandwidths = [rk.bandwidth_to_match(p, other) for p in predictions for other in others if other != p.machine.device]
    told = {name: size for name, size in workload.sizes.items() if other_gpu or name != along}
    heading = replace(workload, sizes=told).heading(predictions[0].graph)
    lines = [heading, f"intensity of {formula}", *([formula.latex] if latex else []), *sizes, *bandwidths]
    return Answer(
        "crossover",
        lambda: {
            "intensity": {"of": formula.name, "formula": str(formula.formula), "latex": formula.latex},
            "sizes": [{"what": one.what, "size": one.size, "from": one.value} for one in sizes],
            "bandwidths": [
                {
                    "first": one.first.machine.name,
                    "second": one.second.machine.name,
                    "stated_bytes_per_s": one.second.machine.bandwidth,
                    "bytes_per_s": one.bandwidth,
                }
                for one in bandwidths
            ],
        },
        lambda: text.tables.say(*lines, soft_wrap=True),  # formulas are copied: the terminal breaks their lines, not we
    )


@describes_workload(needs_gpu=False, needs_input=False)
def profile(
    workload: Workload,
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE.json",
            help="a file of export_chrome_trace (.json or .json.gz), a folder with one per rank, or the word sample",
        ),
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="the model that was profiled: timm:NAME, transformers:NAME, FILE.py:NAME, or package.module:name",
        ),
    ] = None,
    mark: Annotated[
        str | None,
        "the record_function that marks a step; by default ProfilerStep#, else the longest or a repeated one",
    ] = None,
    rank: Rank = None,
) -> Tables:
    """Read a trace of torch.profiler, and compare it with a prediction.

    It names the regime of the measured step. Where a TARGET is given, measured ops stand beside predicted ones. --gpu
    is by default the device that the trace names. `rooflinekit profile sample` reads a small trace that is shipped.
    Example: rooflinekit profile trace.json.gz timm:resnet50 --batch 32 --gpu nvidia-l4
    """
    if len(workload.gpus) > 1:
        raise InputError(f"--gpu: one device was profiled; got {len(workload.gpus)} specifications")
    if target is None and workload.called:
        raise InputError("--input belongs to a TARGET, the model that was profiled; name it after the trace")
    if target is not None and not workload.called:
        raise InputError("--input is missing: the sizes that the model was called with, such as --input 32,3,224,224")
    devices = workload.devices()  # before the slow part
    with bar(f"reading {trace.name}", share=True) as advance:
        found = rk.Profile.read(trace, rank=rank, mark=mark, progress=advance)
    if target is None:
        device = next(iter(devices), None)
        return Tables(
            "profile", lambda: {"profile": found.to_dict()}, lambda: text.profiles.print_profile(found, device)
        )
    if not workload.gpus and not found.device:
        raise InputError("--gpu is missing: the trace does not say which device it was, such as --gpu nvidia-l4")
    ((prediction,),) = (workload if workload.gpus else workload.on(found.device)).predict(target)
    beside = found.beside(prediction)
    return Tables("profile", beside.to_dict, lambda: text.profiles.print_profile_comparison(beside))
