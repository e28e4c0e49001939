"""The subcommand that says how long one training step takes on several devices."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.options import ClusterOption, JsonOption, TargetArgument, print_json
from rooflinekit.cli.parse import check_word
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.distributed.records import Savers, Strategy

TRAINING = functools.partial(describes_workload, needs_gpu=False, mode="training")
_NO_OPTIONS = {
    "sequence": False, "context_way": "ring", "imbalance": 1.0, "microbatches": None, "schedule": "1f1b", "chunks": 2,
}  # fmt: skip


@TRAINING
def parallel(
    workload: Workload,
    target: TargetArgument,
    cluster: ClusterOption,
    gpus: Annotated[int | None, typer.Option(min=1, help="how many, from the first; by default all")] = None,
    strategy: Annotated[
        str,
        typer.Option(
            help="dp, ddp, ddp-gloo, zero-1, zero-2, fsdp, tensor, context, expert, pipeline; or mesh, with its own "
            "options"
        ),
    ] = "ddp",
    split: Annotated[str, typer.Option(help="the batch in even parts, or proportional to each device's rate")] = "even",
    tensor: Annotated[int | None, typer.Option(min=1, help="mesh: devices of a tensor group")] = None,
    sequence: Annotated[
        bool, typer.Option("--sequence", help="mesh: cut tokens between pairs of layers (mesh)")
    ] = False,
    sharing: Annotated[
        int | None, typer.Option("--context", min=1, help="mesh: devices that share each sequence")
    ] = None,
    context_way: Annotated[
        str, typer.Option(help="of context: keys and values go around a ring, or by all-gather")
    ] = "ring",
    expert: Annotated[int | None, typer.Option(min=1, help="mesh: copies that share out experts")] = None,
    imbalance: Annotated[
        float, typer.Option(help="tokens of the device with most, by the mean over devices (experts)")
    ] = 1.0,
    pipeline: Annotated[int | None, typer.Option(min=1, help="mesh: stages")] = None,
    microbatches: Annotated[int | None, typer.Option(min=1, help="of a pipeline; by default four a stage")] = None,
    schedule: Annotated[str, typer.Option(help="of a pipeline: gpipe, 1f1b or interleaved")] = "1f1b",
    chunks: Annotated[int, typer.Option(min=1, help="of interleaved: virtual stages of a device")] = 2,
    accumulate: Annotated[int, typer.Option(min=1, help="parts of the batch, one after another")] = 1,
    checkpoint: Annotated[
        list[str] | None, typer.Option(metavar="MODULE|all", help="blocks that backward computes again; repeatable")
    ] = None,
    save: Annotated[
        list[str] | None,
        typer.Option(metavar="OP|PATH:OP", help="ops whose results checkpoints keep, such as aten.addmm; repeatable"),
    ] = None,
    offload_activations: Annotated[
        list[str] | None, typer.Option(metavar="BLOCK|all", help="blocks whose activations wait on the CPU; repeatable")
    ] = None,
    eight_bit: Annotated[bool, typer.Option("--eight-bit", help="the optimizer's state in 8 bits")] = False,
    offload: Annotated[bool, typer.Option("--offload", help="the optimizer on the CPU")] = False,
    measured: Annotated[
        str | None,
        typer.Option(
            metavar="BATCH:SECONDS", help="a step that was timed on one of the GPUs: all but the links is scaled by it"
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="also write the time line, to open in Perfetto")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """How long one training step takes on several devices.

    With communication hidden and exposed. --batch is that of all devices together. The host is the cluster's,
    unless --host names another.
    Example: rooflinekit parallel timm:resnet50 --input batch,3,224,224 --batch 256 --cluster dgx-a100 --gpus 4
    """
    check_word("--split", split, ("even", "proportional"))
    _no_gpu(workload)
    from rooflinekit.api import parallel as parallel_workflows
    from rooflinekit.distributed.records import Savers
    from rooflinekit.hardware.specs import load_cluster
    from rooflinekit.step.execution import Execution

    found = load_cluster(cluster)
    count = found.size if gpus is None else gpus
    chosen = _strategy(
        strategy, count, {"tensor": tensor, "context": sharing, "expert": expert, "pipeline": pipeline},
        {
            "sequence": sequence, "context_way": context_way, "imbalance": imbalance, "microbatches": microbatches,
            "schedule": schedule, "chunks": chunks,
        },
    )  # fmt: skip
    savers: Savers = Savers(
        accumulate=accumulate, checkpoint=_blocks(checkpoint), save=tuple(save or ()), eight_bit=eight_bit,
        offload=offload, offload_activations=_blocks(offload_activations),
    )  # fmt: skip
    (graph,) = workload.trace(target, sizes_open=True)
    prediction = parallel_workflows.parallel(
        graph, cluster=found, gpus=count, strategy=chosen, savers=savers, host=workload.named_host,
        split="proportional" if split == "proportional" else "even",
        execution=Execution(**workload.execution), power_limit=workload.limits.get("power_w"),
        sm_clock=workload.limits.get("clock"), measured=_measured(measured),
    )  # fmt: skip
    if trace is not None:
        from rooflinekit.present.traces.chrome import save_trace

        save_trace(prediction, trace)
    if as_json:
        print_json("parallel", prediction.to_dict())
        return
    print(prediction)


def _blocks(words: list[str] | None) -> bool | tuple[str, ...]:
    """Paths of blocks, or whether all are meant."""
    return True if words == ["all"] else tuple(words or ()) or False


def _measured(text: str | None) -> tuple[int, float] | None:
    """Samples and seconds of a step. Raises InputError where that is not what was given."""
    if text is None:
        return None
    batch, _, seconds = text.partition(":")
    try:
        return int(batch), float(seconds)
    except ValueError as error:
        raise InputError(f"--measured: expected BATCH:SECONDS, as 32:0.18; got {text!r}") from error


def _no_gpu(workload: Workload) -> None:
    if workload.gpus:
        raise InputError("--gpu: a cluster has its devices; leave it out, or take `rooflinekit predict`")


def _strategy(word: str, count: int, sizes: dict[str, int | None], options: dict[str, Any]) -> Strategy:
    """A mesh with sizes of its groups, all of them 1 but the one that the word names; or another strategy."""
    from rooflinekit.distributed.records import Mesh, strategy_of

    if word not in ("mesh", *sizes):
        if any(sizes.values()) or options != _NO_OPTIONS:
            raise InputError(f"options of a mesh, such as --tensor, belong to --strategy mesh; got {word!r}")
        return strategy_of(word, count)
    groups = {name: size or (count if name == word else 1) for name, size in sizes.items()}
    return Mesh(**{**groups, **options})
