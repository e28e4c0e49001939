"""The subcommand that writes a page to explore with."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.money import HourOption, PricesOption, pricing_of
from rooflinekit.cli.options import TargetArgument, progress_line, typed
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import InputError, printable

if TYPE_CHECKING:
    from rooflinekit.ir.graph import Graph

_MODES = ("inference", "training", "forward")
_FORMATS = ("bf16", "fp16")
_SERVING = ("prefill", "decode")


@functools.partial(describes_workload, many_sizes=True, needs_sizes=False)
def explore(
    workload: Workload,
    target: TargetArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="the file to write")],
    step: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORDS",
            help="a step to switch to, instead of the one that --mode names: a mode, bf16 or fp16 for autocast, "
            "both ('training,bf16'), or prefill or decode of a language model; repeatable",
        ),
    ] = None,
    power: Annotated[
        str, typer.Option(metavar="PERCENT", help="power limits, in percent of each board's own")
    ] = "100,85,70,55",
    price_per_hour: HourOption = None,
    prices: PricesOption = None,
) -> None:
    """One page with sliders and switches, a file that needs no network.

    Sizes are lists (1,2,4) and ranges (1:64), or the page's own choice; --execution and --host may be lists. GPUs stand
    side by side.
    Example: rooflinekit explore timm:resnet50 --gpu nvidia-l4 --gpu nvidia-t4 --step inference
    --step inference,fp16 --out resnet50.html
    """
    from rooflinekit.api.explore import page_of
    from rooflinekit.hardware.specs import load_host
    from rooflinekit.present.page.templating import Origin, check_path
    from rooflinekit.step.execution import Execution
    from rooflinekit.study.sweep.explored import explored

    check_path(out)
    pricing = pricing_of(price_per_hour, prices) if price_per_hour or prices else None
    if workload.limits:
        raise InputError("--power-limit, --sm-clock: the page has limits of its own; name them with --power 100,80")
    hosts = [word.strip() for word in workload.host.split(",")]
    backends = [word.strip() for word in workload.execution["backend"].split(",")]
    executions = [Execution(**{**workload.execution, "backend": backend}) for backend in backends]
    first = replace(workload, host=hosts[0], execution={**workload.execution, "backend": backends[0]})
    machines, _, _ = first.setting()
    shares = [_share(word) for word in power.split(",")]
    steps = _steps(workload, target, step or ())
    with progress_line("predicting every state"):
        grid = explored(steps, machines, executions, [load_host(host) for host in hosts], shares, workload.lists)
        origin = Origin(command=typed())
        page_of(grid, next(iter(steps.values())).name, pricing, origin).save(out)
    print(printable(f"{grid.states} predicted states written to {out}"))


def _share(word: str) -> float:
    try:
        return float(word.strip().removesuffix("%")) / 100
    except ValueError:
        raise InputError(
            f"--power {word.strip()!r}: expected percent of a board's own limit, such as 100,85,70"
        ) from None


def _steps(workload: Workload, target: str, wanted: Sequence[str]) -> dict[str, Graph]:
    """The steps by what they are called; without any wanted the workload's own."""
    found: dict[str, Graph] = {}
    for words in wanted or ("",):
        if words in _SERVING:
            from rooflinekit.serving.decoder import Decoder

            found[words] = getattr(Decoder.from_config(target), words)()
            continue
        changes = _changes([word.strip() for word in words.split(",") if word])
        other = replace(workload, options={**workload.options, **changes})
        if other.options["mode"] != "training":
            other = replace(other, optimizer=None, loss=None, options={**other.options, "targets": ()})
        found[_name(other.options)] = other.trace(target, sizes_open=True)[0]
    return found


def _changes(words: Sequence[str]) -> dict[str, Any]:
    from rooflinekit.ir.graph import autocast_format

    found: dict[str, Any] = {}
    for word in words:
        if word in _MODES:
            found["mode"] = word
        elif word in _FORMATS:
            found["autocast"] = autocast_format(word)
        else:
            raise InputError(f"--step {word!r}: expected {', '.join((*_MODES, *_FORMATS, *_SERVING))}")
    return found


def _name(options: dict[str, Any]) -> str:
    autocast = options["autocast"] and f"{options['autocast']} autocast"
    return ", ".join(str(part) for part in (options["mode"], options["dtype"], autocast) if part)
