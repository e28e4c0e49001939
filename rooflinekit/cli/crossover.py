"""The subcommand that says from where on something else limits."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.options import JsonOption, TargetArgument, print_json
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import InputError


@functools.partial(describes_workload, solves="along")
def crossover(
    workload: Workload,
    target: TargetArgument,
    along: Annotated[str, typer.Option(metavar="SIZE", help="the named size that grows")] = "batch",
    module: Annotated[str | None, typer.Option(help="count this module, with all below it")] = None,
    op: Annotated[str | None, typer.Option(help="count this op alone, by its name in `Graph.ops`")] = None,
    other_gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="GPU", help="also the DRAM bandwidth that would make this GPU as fast; repeatable"),
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="also the formula as LaTeX")] = False,
    as_json: JsonOption = False,
) -> None:
    """From which size on arithmetic, not the CPU or memory, limits.

    Also the intensity as a formula. The size that is looked for need not be given; with --other-gpu it must, for the
    bandwidth is that of a step.
    Example: rooflinekit crossover timm:resnet50 --input batch,3,224,224 --gpu nvidia-l4
    """
    if along not in workload.sizes:
        has = ", ".join(workload.sizes) or "none"
        raise InputError(f"--along {along!r}: no size of --input has this name; it has {has}")
    if other_gpu and along in workload.sought:
        raise InputError(f"--other-gpu compares one step: say its size, such as --{along} 32")
    from rooflinekit.hardware.specs import load_device
    from rooflinekit.study.compare.crossover import bandwidth_to_match, compute_bound_from, gpu_bound_from, intensity

    others = [load_device(gpu, allow_draft=workload.allow_draft) for gpu in other_gpu or ()]
    (predictions,) = workload.predict(target, sizes_open=True)
    formula = intensity(predictions[0].graph, module=module, op=op)
    sizes = [
        found
        for p in predictions
        for found in (compute_bound_from(p, along, module=module, op=op), gpu_bound_from(p, along))
    ]
    bandwidths = [bandwidth_to_match(p, other) for p in predictions for other in others if other != p.machine.device]
    if as_json:
        document = {
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
        }
        print_json("crossover", document)
        return
    _print_lines([f"intensity of {formula}", *([formula.latex] if latex else []), *sizes, *bandwidths])


def _print_lines(lines: Sequence[Any]) -> None:
    from rooflinekit.present.text.tables import console

    out = console()
    for line in lines:
        # Formulas are copied: the terminal breaks their lines, not we.
        out.print(str(line), markup=False, soft_wrap=True)
