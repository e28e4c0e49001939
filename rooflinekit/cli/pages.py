"""The subcommands that write figures and pages: plot, report, explore."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import rooflinekit as rk
from rooflinekit.api.names import STRATEGIES
from rooflinekit.api.workload import Workload
from rooflinekit.cli.command import progress_line, say, typed
from rooflinekit.cli.options import CLUSTERS, ONE_OR_MORE, Hourly, Measured, Target
from rooflinekit.cli.parse import variants_of
from rooflinekit.cli.workload import NO_GPU, describes_workload
from rooflinekit.errors import InputError, check_word

_WHATS = ("roofline", "timeline", "memory", "sweep", "waterfall")


@describes_workload(needs_gpu=False)
def plot(
    workload: Workload,
    target: Target,
    out: Annotated[Path, "--out -o", "the file to write: .pdf, .svg, .png or .pgf (for LaTeX)"],
    others: Annotated[
        list[str] | None, "--with TARGET", "another network to draw; each network is then one mark; repeatable"
    ] = None,
    what: Annotated[str, "the figure: roofline, timeline, memory, sweep or waterfall"] = "roofline",
    over: Annotated[
        str | None,
        "--over NAME=VALUE,…",
        "a size and its values, batch=1,8,64: the axis of --what sweep, or a path through a roofline",
    ] = None,
    venue: Annotated[str | None, "take the sizes of a template: ieee, acm, lncs, neurips or slides"] = None,
    width: Annotated[str | None, "column (default), or page for both columns (default of a time line)"] = None,
    trace: Annotated[
        Path | None,
        "--trace TRACE.json",
        "a trace of torch.profiler, whose measured ops stand beside the predicted ones",
    ] = None,
    by_level: Annotated[bool, "roofline: show the traffic of DRAM and of the L2 cache"] = False,
    normalized: Annotated[bool, "roofline: show shares of each roof"] = False,
    launch: Annotated[bool, "roofline: show what launching kernels costs"] = False,
    caption: Annotated[bool, "roofline: also print a caption"] = False,
    by: Annotated[str | None, "memory: what activations are shown by, kind (default) or module"] = None,
    cluster: Annotated[
        list[str] | None,
        "--cluster NAME|FILE.yaml",
        "draw a training step on several GPUs, instead of --gpu; repeatable, as are --gpus and --strategy",
        CLUSTERS,
    ] = None,
    gpus: Annotated[list[int] | None, "with --cluster: how many GPUs; by default all", ONE_OR_MORE] = None,
    strategy: Annotated[list[str] | None, f"with --cluster: {STRATEGIES}; by default ddp"] = None,
) -> None:
    """Draw a figure: roofline, time line, memory, sweep or waterfall.

    With --cluster it draws a training step on several GPUs: the roofline gets a roof for links, the time line shows all
    GPUs, memory the fullest one, and the waterfall leads from one GPU to several, or from one such step to another.
    Example: rooflinekit plot timm:resnet50 --batch 32 --gpu nvidia-l4 --out figure.pdf
    """
    check_word("--what", what, _WHATS)
    check_word("--by", by or "kind", ("kind", "module"))
    if by and (what != "memory" or cluster):
        raise InputError(
            f"--by belongs to --what memory of one GPU; got --what {what}{' and --cluster' * bool(cluster)}"
        )
    marks: dict[str, Any] = {
        "--with": others, "--trace": trace, "--by-level": by_level, "--normalized": normalized, "--launch": launch,
    }  # fmt: skip
    _check(workload, what, over, out, {**marks, "--caption": caption})
    asked = list(product(cluster or (), strategy or ["ddp"], [*gpus] if gpus else [None]))
    _check_several(workload, what, asked, {"--over": over, **marks}, {"--gpus": gpus, "--strategy": strategy})
    from rooflinekit.present.figures.style import Venue, style_of

    if venue is not None:
        check_word("--venue", venue, get_args(Venue))
    check_word("--width", width or "column", ("column", "page"))
    style_of(width or "column", venue)
    sizes: dict[str, Any] = {"width": width or ("page" if what == "timeline" else "column"), "venue": venue}
    if what == "sweep":
        name, values = _size(over or "")
        drawn = rk.plot.sweep(workload.swept(target, name, values), name, **sizes)
    elif what == "roofline":
        subject: Any = _several(workload, target, asked) if asked else (
            _predictions(workload, (target, *(others or ())), over) if trace is None
            else rk.Profile.read(trace).beside(workload.predict(target)[0][0])
        )  # fmt: skip
        how: dict[str, Any] = {
            "path": bool(over or others),
            "joined": not others,
            "by_level": by_level,
            "normalized": normalized,
        }
        drawn = rk.plot.roofline(subject, launch=launch, **how, **sizes)
    else:
        draws: dict[str, Callable[..., Any]] = {
            "timeline": rk.plot.timeline, "memory": partial(rk.plot.memory, by=cast("Any", by or "kind")),
            "waterfall": rk.plot.waterfall,
        }  # fmt: skip
        steps: list[Any] = _several(workload, target, asked) if asked else workload.predict(target)[0]
        drawn = draws[what](steps[0] if len(steps) == 1 else steps, **sizes)
    rk.plot.save(drawn, out, command=typed())
    say(f"figure written to {out}")
    if caption:
        print(rk.plot.caption(subject, **how))


def _check(workload: Workload, what: str, over: str | None, out: Path, given: dict[str, Any]) -> None:
    """Before the slow part: raises InputError for options that do not go together."""
    from rooflinekit.present.figures.files import check_name

    check_name(out)
    own = next((option for option, value in given.items() if value), None)
    if own is not None and what != "roofline":
        raise InputError(f"{own} belongs to --what roofline; got --what {what}")
    if what == "sweep" and over is None:
        raise InputError("--what sweep: --over is missing: a size and its values, such as --over batch=1,8,64")
    if over is not None and what not in ("sweep", "roofline"):
        raise InputError(f"--over belongs to --what sweep or roofline; got --what {what}")
    if over is not None and _size(over)[0] not in workload.sizes:
        raise InputError(f"--over {over}: no size of --input is named {_size(over)[0]}")
    if what in ("timeline", "memory") and len(workload.gpus) > 1:
        raise InputError(f"--what {what} draws one step; got {len(workload.gpus)} GPUs")
    if given["--with"] and (over is not None or given["--trace"] is not None or given["--by-level"]):
        raise InputError("--with: draws one mark for each network; leave out --over, --trace and --by-level")
    if given["--trace"] is not None and (len(workload.gpus) != 1 or over is not None or given["--by-level"]):
        raise InputError(
            "--trace: draws one measured step beside its prediction; name one --gpu, and leave out --over and "
            "--by-level"
        )


_Asked = list[tuple[str, str, int | None]]  # cluster, strategy and number of devices of each step


def _check_several(workload: Workload, what: str, asked: _Asked, alone: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Checks options of steps on several devices: `alone` is for one device, `theirs` needs a cluster."""
    if not asked:
        if own := [option for option, value in theirs.items() if value]:
            raise InputError(f"{own[0]} belongs to --cluster")
        if what == "waterfall":
            raise InputError("--what waterfall leads to a step on several devices: name a --cluster; for two steps on "
                             "one device use `rooflinekit explain --plot`")  # fmt: skip
        if not workload.gpus:
            raise InputError(f"{NO_GPU}, or --cluster")
        return
    workload.check_alone()
    if given := [option for option, value in alone.items() if value]:
        raise InputError(f"{given[0]} is for steps on one device; got --cluster")
    workload.check_trains()
    most = {"timeline": 1, "memory": 1, "waterfall": 2}.get(what)
    if most is not None and len(asked) > most:
        raise InputError(f"--what {what} draws {'one step' if most == 1 else 'one step, or two'}; got {len(asked)}")


def _several(workload: Workload, target: str, asked: _Asked) -> list[rk.ParallelPrediction]:
    from rooflinekit.api.parallel import strategy_of

    for _, strategy, _ in asked:
        strategy_of(strategy, 1)  # before the slow part
    clusters = {name: rk.load_cluster(name) for name, _, _ in asked}
    at = workload.team(target)
    return [at(cluster=clusters[name], gpus=count, strategy=strategy) for name, strategy, count in asked]


def _size(over: str) -> tuple[str, list[int]]:
    ((name, values),) = variants_of([over]).items()
    if name in ("execution", "autocast", "channels_last", "attention") or len(values) < 2:
        raise InputError(f"--over {over}: expected a size with two values or more, such as batch=1,8,64")
    return name, values


def _predictions(workload: Workload, targets: Sequence[str], over: str | None) -> list[rk.Prediction]:
    if over is not None:
        return workload.along(targets[0], *_size(over))
    return [prediction for predictions in workload.predict(*targets) for prediction in predictions]


@describes_workload()
def report(
    workload: Workload,
    target: Target,
    out: Annotated[Path, "--out -o FILE.html", "the file to write"],
    against: Annotated[
        str | None, "--against TARGET_B", "a second network; the page then explains the difference"
    ] = None,
    advice: Annotated[bool, "try changes that could make the step faster, which takes a while"] = True,
    *,
    measured: Measured,
) -> None:
    """Write one HTML page for a design review, which opens offline.

    It shows time, roofline, time line, memory, advice and sources on the first --gpu, and compares that GPU with the
    other ones named, or with a shortlist.
    Example: rooflinekit report timm:resnet50 --batch 32 --gpu nvidia-l4 --out review.html
    """
    from rooflinekit.present.page.templating import check_path

    check_path(out)
    first, *others = workload.gpus
    devices = workload.devices(others) or None
    step = measured.step(workload)
    found = workload.on(first).predict(*filter(None, (target, against)))
    predictions = [prediction for (prediction,) in found]
    program = python_of(workload, target, against, out, advice=advice, measured=measured)
    with progress_line("comparing GPUs") as doing:
        rk.save_report(
            predictions[0],
            out,
            gpus=devices,
            against=predictions[1] if against is not None else None,
            advice=advice,
            measured=step,
            command=typed(),
            python=program,
            progress=doing,
        )
    say(f"report written to {out}")


def python_of(
    workload: Workload, target: str, against: str | None, out: Path, *, advice: bool, measured: Measured
) -> str:
    """A program that writes the same report."""
    first, *others = workload.gpus
    mode = workload.options["mode"]
    given = {
        **workload.options, "mode": None if mode == "inference" else mode, "host": workload.host,
        "optimizer": workload.optimizer, "loss": workload.loss,
        "burst": workload.burst, "constants": workload.constants, **workload.limits, **workload.sizes,
    }  # fmt: skip
    called = ["target", *map(_written, workload.args), f"gpu={_gpu(workload, first)}", *_changed(rk.predict, given)]
    if execution := ", ".join(_changed(rk.Execution, workload.execution)):
        called.append(f"execution=rk.Execution({execution})")
    lines = ["import rooflinekit as rk", "from rooflinekit import Input", "", "", "def predicted(target):"]
    lines += _call("    return rk.predict", called)
    lines += ["", "", f"prediction = predicted({_written(target)})"]
    lines += [f"other = predicted({_written(against)})"] if against is not None else []
    arguments = ["prediction", _written(str(out))]
    arguments += [f"gpus=[{', '.join(_gpu(workload, gpu) for gpu in others)}]"] if others else []
    arguments += ["against=other"] if against is not None else []
    arguments += [] if advice else ["advice=False"]
    if measured.measured is not None:
        arguments += [f"measured={_written(measured.measured)}", f"measured_on={_written(measured.measured_on)}"]
        arguments += [f"measured_at={_written(measured.changes)}"] if measured.measured_at else []
    return "\n".join([*lines, f"rk.save_report({', '.join(arguments)})"])


def _written(value: object) -> str:
    """A value as Python writes it.

    >>> _written(Path("a.html")), _written(3), _written([rk.Input("batch", 3, dtype="int64")])
    ("'a.html'", '3', "[Input('batch', 3, dtype='int64')]")
    """
    plain = isinstance(value, rk.Input | bool | int | float | dict | list | tuple) or value is None
    return repr(value if plain else str(value))


def _call(function: str, arguments: Sequence[str]) -> list[str]:
    """A call on one line, or with a line for each argument."""
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= 100:
        return [line]
    return [f"{function}(", *(f"        {argument}," for argument in arguments), "    )"]


def _changed(function: Callable[..., Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Keywords that are not the function's defaults."""
    own = inspect.signature(function).parameters
    for name, value in given.items():
        if name not in own or value != own[name].default:
            yield f"{name}={_written(value)}"


def _gpu(workload: Workload, gpu: str) -> str:
    return f"rk.load_device({_written(gpu)}, allow_draft=True)" if workload.allow_draft else _written(gpu)


_MODES = ("inference", "training", "forward")
_FORMATS = ("bf16", "fp16")
_SERVING = ("prefill", "decode")


@describes_workload(many_sizes=True, needs_sizes=False)
def explore(
    workload: Workload,
    target: Target,
    out: Annotated[Path, "--out -o FILE.html", "the file to write"],
    step: Annotated[
        list[str] | None,
        "--step WORDS",
        "a step that the page can switch to: a mode, bf16 or fp16 for autocast, both ('training,bf16'), or prefill or "
        "decode of a language model; repeatable",
    ] = None,
    power: Annotated[str, "--power PERCENT", "power limits, in percent of each board's own limit"] = "100,85,70,55",
    *,
    money: Hourly,
) -> None:
    """Write one HTML page with sliders and switches, usable offline.

    Sizes are lists (1,2,4) and ranges (1:64); without them the page chooses. --execution and --host may be lists, too.
    Example: rooflinekit explore timm:resnet50 --gpu nvidia-l4 --gpu nvidia-t4 --step inference
    --step inference,fp16 --out resnet50.html
    """
    from rooflinekit.api.pages import explored, page_of
    from rooflinekit.present.page.templating import Origin, check_path

    check_path(out)
    pricing = money.pricing() if money.asked else None
    if workload.limits:
        raise InputError("--power-limit, --sm-clock: the page has limits of its own; name them with --power 100,80")
    hosts = [word.strip() for word in workload.host.split(",")]
    executions = workload.executions
    first = replace(workload.running(executions[0].backend), host=hosts[0])
    machines, _, _ = first.setting()
    shares = [_share(word) for word in power.split(",")]
    steps = _steps(workload, target, step or ())
    with progress_line("predicting every state"):
        grid = explored(steps, machines, executions, [rk.load_host(host) for host in hosts], shares, workload.lists)
        page_of(grid, pricing, Origin(command=typed())).save(out)
    say(f"{grid.states} predicted states written to {out}")


def _share(word: str) -> float:
    try:
        return float(word.strip().removesuffix("%")) / 100
    except ValueError:
        raise InputError(
            f"--power {word.strip()!r}: expected percent of a board's own limit, such as 100,85,70"
        ) from None


def _steps(workload: Workload, target: str, wanted: Sequence[str]) -> dict[str, rk.Graph]:
    """The steps by what they are called; without any wanted the workload's own."""
    found: dict[str, rk.Graph] = {}
    for words in wanted or ("",):
        if words in _SERVING:
            found[words] = getattr(rk.Decoder.from_config(target), words)()
            continue
        other = workload.stepping(**_changes([word.strip() for word in words.split(",") if word]))
        found[_name(other.options)] = other.trace(target, sizes_open=True)[0]
    return found


def _changes(words: Sequence[str]) -> dict[str, Any]:
    for word in words:
        if word not in (*_MODES, *_FORMATS):
            raise InputError(f"--step {word!r}: expected {', '.join((*_MODES, *_FORMATS, *_SERVING))}")
    return {"mode" if word in _MODES else "autocast": word for word in words}


def _name(options: dict[str, Any]) -> str:
    autocast = options["autocast"] and f"{options['autocast']} autocast"
    return ", ".join(str(part) for part in (options["mode"], options["dtype"], autocast) if part)
