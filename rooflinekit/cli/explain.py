"""The subcommand that says what lies between two times."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.guide import Command
from rooflinekit.cli.options import TARGET_HELP, JsonOption, print_json, typed
from rooflinekit.cli.parse import variants_of
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import InputError, printable

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction


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


@describes_workload
def explain(
    workload: Workload,
    target_a: Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_HELP)],
    target_b: Annotated[
        str | None, typer.Argument(metavar="TARGET_B", help="a second network, called with the same inputs")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            help="one network, run in another way: execution=compiled, autocast=fp16, channels-last=yes, "
            "attention=cudnn, batch=64"
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="also write a waterfall figure: .pdf, .svg or .png")] = None,
    details: Annotated[
        bool, typer.Option("--details", help="show what the answer rests on: datasheets, waits, algorithms, kernels")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Why one of two steps is faster: term by term, kernel by kernel.

    Of two networks, on two GPUs, or run in two ways. Two targets are compared on each --gpu. One target is compared
    on the first --gpu and each other one, or with itself as --compare changes it.
    Example: rooflinekit explain examples/bottlenecks.py:A examples/bottlenecks.py:A_prime --input 1,64,160,120
    --gpu p100-pcie --host xeon-server-2018 --sync none
    """
    from rooflinekit.study.explain import explanation

    found = [explanation.explain(a, b) for a, b in _pairs(workload, target_a, target_b, compare or [], plot)]
    if plot is not None:
        from rooflinekit.present.figures import plot as figures

        figures.save(figures.waterfall(found[0]), plot, command=typed())
    if as_json:
        print_json("explain", {"explanations": [e.to_dict() for e in found]})
        return
    from rooflinekit.present.text import predictions as text

    for e in found:
        text.print_explanation(e, details=details)
    if plot is not None:
        print(printable(f"figure written to {plot}"))


explain.registered["cls"] = _Sized  # type: ignore[attr-defined]


def _pairs(
    workload: Workload, target_a: str, target_b: str | None, compare: list[str], plot: Path | None
) -> list[tuple[Prediction, Prediction]]:
    """What is compared with what. Raises InputError where the options leave nothing to compare, or too much to draw."""
    if target_b is not None and compare:
        raise InputError("--compare changes one network: leave it or TARGET_B out")
    if target_b is None and not compare and len(workload.gpus) < 2:
        raise InputError("nothing to compare: give a second TARGET, a second --gpu, or --compare, such as batch=64")
    variants = variants_of(compare)
    pairs = len(workload.gpus) - (target_b is None and not compare)
    if plot is not None and pairs != 1:
        many = f"{len(workload.gpus)} GPUs" if target_b or compare else f"{pairs} pairs of GPUs"
        raise InputError(f"--plot draws one waterfall; got {many}")
    if target_b is not None:
        return list(zip(*workload.predict(target_a, target_b), strict=True))
    (predictions,) = workload.predict(target_a, sizes_open=bool(variants.keys() & workload.sizes.keys()))
    if not variants:
        return [(predictions[0], other) for other in predictions[1:]]
    return [(p, _changed(p, variants, compare)) for p in predictions]


def _changed(p: Prediction, variants: dict[str, list[object]], compare: list[str]) -> Prediction:
    ways: list[Prediction] = list(p.compare(**variants)["prediction"])
    if len(ways) != 2:
        given = ", ".join(compare)
        raise InputError(f"--compare {given}: expected one other way to run it, such as batch=64; got {len(ways) - 1}")
    return ways[1]
