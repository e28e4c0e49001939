"""The subcommands about many GPUs: a training step of a model or of a decoder, what makes one fit, a collective."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rooflinekit as rk
from rooflinekit.cli.command import Answer, Options, fields, progress_line
from rooflinekit.cli.options import (
    CLUSTERS,
    LISTED,
    NONE_OR_MORE,
    ONE_OR_MORE,
    Carbon,
    ClusterName,
    Model,
    Purchase,
    Target,
    say_notes,
)
from rooflinekit.cli.parse import check_word, quantity_of
from rooflinekit.cli.workload import Workload, describes_workload
from rooflinekit.errors import InputError
from rooflinekit.present import text

if TYPE_CHECKING:
    from rooflinekit.distributed.records import Strategy
    from rooflinekit.model.collectives import CollectiveTiming
    from rooflinekit.study.compare.cost import Costs
    from rooflinekit.study.compare.limits import PowerLimits


class Meshed(Options):
    """How devices share the work, in words."""

    tensor: Annotated[int | None, "mesh: devices of a tensor group", ONE_OR_MORE] = None
    sequence: Annotated[bool, "mesh: cut tokens between pairs of layers (mesh)"] = False
    context: Annotated[int | None, "mesh: devices that share each sequence", ONE_OR_MORE] = None
    context_way: Annotated[str, "of context: keys and values go around a ring, or by all-gather"] = "ring"
    expert: Annotated[int | None, "mesh: copies that share out experts", ONE_OR_MORE] = None
    imbalance: Annotated[float, "tokens of the device with most, by the mean over devices (experts)"] = 1.0
    pipeline: Annotated[int | None, "mesh: stages", ONE_OR_MORE] = None
    microbatches: Annotated[int | None, "of a pipeline; by default four a stage", ONE_OR_MORE] = None
    schedule: Annotated[str, "of a pipeline: gpipe, 1f1b or interleaved"] = "1f1b"
    chunks: Annotated[int, "of interleaved: virtual stages of a device", ONE_OR_MORE] = 2

    def strategy(self, word: str, count: int) -> Strategy:
        """A mesh with sizes of its groups, all of them 1 but the one that the word names; or another strategy."""
        from rooflinekit.distributed.records import strategy_of

        groups = ("tensor", "context", "expert", "pipeline")
        if word not in ("mesh", *groups):
            if any(getattr(self, name) != one.default for name, one in fields(Meshed).items()):
                raise InputError(f"options of a mesh, such as --tensor, belong to --strategy mesh; got {word!r}")
            return strategy_of(word, count)
        sizes = {name: getattr(self, name) or (count if name == word else 1) for name in groups}
        return rk.Mesh(**{**vars(self), **sizes})


class Saving(Options):
    """What saves memory, in words."""

    accumulate: Annotated[int, "parts of the batch, one after another", ONE_OR_MORE] = 1
    checkpoint: Annotated[
        list[str] | None, "--checkpoint MODULE|all", "blocks that backward computes again; repeatable"
    ] = None
    save: Annotated[
        list[str] | None,
        "--save OP|PATH:OP",
        "ops whose results checkpoints keep, such as aten.addmm; repeatable",
    ] = None
    offload_activations: Annotated[
        list[str] | None,
        "--offload-activations BLOCK|all",
        "blocks whose activations wait on the CPU; repeatable",
    ] = None
    eight_bit: Annotated[bool, "the optimizer's state in 8 bits"] = False
    offload: Annotated[bool, "the optimizer on the CPU"] = False

    def savers(self) -> rk.Savers:
        """The record."""
        blocks = {name: _blocks(getattr(self, name)) for name in ("checkpoint", "offload_activations")}
        return rk.Savers(**{**vars(self), **blocks, "save": tuple(self.save or ())})


def _blocks(words: list[str] | None) -> bool | tuple[str, ...]:
    """Paths of blocks, or whether all are meant."""
    return True if words == ["all"] else tuple(words or ()) or False


@describes_workload(needs_gpu=False, training=True)
def parallel(
    workload: Workload,
    target: Target,
    cluster: ClusterName,
    gpus: Annotated[int | None, "how many, from the first; by default all", ONE_OR_MORE] = None,
    strategy: Annotated[
        str,
        "dp, ddp, ddp-gloo, zero-1, zero-2, fsdp, tensor, context, expert, pipeline; or mesh, with its own options",
    ] = "ddp",
    split: Annotated[str, "the batch in even parts, or proportional to each device's rate"] = "even",
    *,
    mesh: Meshed,
    saving: Saving,
    measured: Annotated[
        str | None,
        "--measured BATCH:SECONDS",
        "a step that was timed on one of the GPUs: all but the links is scaled by it",
    ] = None,
    trace: Annotated[Path | None, "--trace FILE.json", "also write the time line, to open in Perfetto"] = None,
) -> Answer:
    """How long one training step takes on several devices.

    With communication hidden and exposed. --batch is that of all devices together. The host is the cluster's,
    unless --host names another.
    Example: rooflinekit parallel timm:resnet50 --input batch,3,224,224 --batch 256 --cluster dgx-a100 --gpus 4
    """
    check_word("--split", split, ("even", "proportional"))
    if workload.gpus:
        raise InputError("--gpu: a cluster has its devices; leave it out, or take `rooflinekit predict`")
    found = rk.load_cluster(cluster)
    count = found.size if gpus is None else gpus
    chosen, savers = mesh.strategy(strategy, count), saving.savers()
    _, at = workload.team(target)
    prediction = at(
        cluster=found, gpus=count, strategy=chosen, savers=savers, split=split, measured=_measured(measured)
    )
    if trace is not None:
        rk.save_trace(prediction, trace)
    return Answer("parallel", prediction.to_dict, lambda: print(prediction))


def _measured(words: str | None) -> tuple[int, float] | None:
    """Samples and seconds of a step. Raises InputError where that is not what was given."""
    if words is None:
        return None
    batch, _, seconds = words.partition(":")
    try:
        return int(batch), float(seconds)
    except ValueError as error:
        raise InputError(f"--measured: expected BATCH:SECONDS, as 32:0.18; got {words!r}") from error


@describes_workload(needs_gpu=False, training=True)
def fit_into(
    workload: Workload,
    target: Target,
    cluster: Annotated[str | None, "--cluster NAME|FILE.yaml", "in the place of --gpu; " + LISTED, CLUSTERS] = None,
    gpus: Annotated[int | None, "of the cluster, from the first; by default all", ONE_OR_MORE] = None,
    policy: Annotated[
        Path | None, "--policy FILE.py", "also write what is chosen as Python to paste into a script"
    ] = None,
    largest: Annotated[
        list[str] | None,
        "--largest SIZE",
        "also the largest batch, or other size, that fits with each; as often as wanted",
    ] = None,
) -> Answer:
    """What makes a training step fit, and the fastest way to it.

    Combinations of memory savers, each predicted: parts of the batch, formats, the optimizer in 8 bits or on the CPU;
    and which activations to save, to compute again, by op and by block, or to send to the CPU. Of those within 2 % of
    the fastest the one that changes least is chosen.
    Example: rooflinekit fit-into timm:resnet18 --input batch,3,224,224 --batch 512 --optimizer Adam --gpu rtx-3070
    """
    if (cluster is None) == (not workload.gpus) or len(workload.gpus) > 1:
        raise InputError("fit-into: expected one --gpu, or --cluster")
    (graph,) = workload.trace(target, sizes_open=True)
    place: dict[str, Any] = {"gpu": workload.gpus[0]} if cluster is None else {"cluster": cluster, "gpus": gpus}
    with progress_line("trying") as say:
        found = rk.fit_into(
            graph, **place, host=workload.named_host, execution=workload.way, progress=say, largest=largest or ()
        )
    if policy is not None:
        from rooflinekit.files import write_text

        write_text(found.policy, policy)
    return Answer("fit-into", found.to_dict, lambda: print(found))


class Laid(Options):
    """How GPUs share a decoder's training."""

    tp: Annotated[int, "GPUs that share each layer; with tokens cut between products", ONE_OR_MORE] = 1
    cp: Annotated[int, "GPUs that share a sequence", ONE_OR_MORE] = 1
    pp: Annotated[int, "stages of a pipeline", ONE_OR_MORE] = 1
    vp: Annotated[int, "virtual stages of a GPU", ONE_OR_MORE] = 1
    ep: Annotated[int, "GPUs that share out the experts", ONE_OR_MORE] = 1
    imbalance: Annotated[float, "tokens of the GPU with most, by the mean over GPUs (experts)"] = 1.0
    micro_batch: Annotated[int, "sequences at once", ONE_OR_MORE] = 1
    sharding: Annotated[str, "of copies: ddp, zero-1, grad-op, fsdp or hybrid"] = "zero-1"

    def layout(self) -> rk.Layout:
        """The record."""
        return rk.Layout(
            tensor=self.tp, sequence=self.tp > 1, context=self.cp, pipeline=self.pp, chunks=self.vp, expert=self.ep,
            imbalance=self.imbalance, micro_batch=self.micro_batch, sharding=self.sharding,
        )  # fmt: skip


def train(
    config: Model,
    cluster: ClusterName,
    batch: Annotated[int, "sequences of a step, of all GPUs together", ONE_OR_MORE],
    seq: Annotated[int, "tokens of a sequence", ONE_OR_MORE] = 4096,
    gpus: Annotated[int | None, "how many, from the first; by default all", ONE_OR_MORE] = None,
    recipe: Annotated[str, "a program's way: megatron, nemo, nanotron, torchtitan, huggingface …"] = "megatron",
    recompute: Annotated[str, "in backward: none, selective (attention) or full"] = "none",
    offload: Annotated[
        int, "--offload LAYERS", "so many layers' activations wait on the CPU, of each GPU", NONE_OR_MORE
    ] = 0,
    fp8: Annotated[bool, "products of 8 bits"] = False,
    *,
    laid: Laid,
    search: Annotated[bool, "the fastest layouts in the place of one, and the least memory for a time"] = False,
    out: Annotated[Path | None, "--out FILE", "with --search: also draw time over memory"] = None,
    host: Annotated[str | None, "in the place of the cluster's"] = None,
    power_limit: Annotated[
        str | None, "--power-limit WATTS", "of each GPU, below the board's own, such as '500 W'"
    ] = None,
    rack: Annotated[str | None, "--rack WATTS", "also what a rack of so many watts trains in a day, by limit"] = None,
    purchase: Purchase,
    tokens: Annotated[float | None, "of a whole run, such as 1e12, for its cost"] = None,
    carbon: Carbon = None,
) -> Answer:
    """A decoder's training step on many GPUs, or its best layout.

    From the dimensions of a language model: time by cause, memory by account, MFU and HFU, joules; with a price what a
    run of --tokens costs, with --rack what so many watts train in a day.
    Example: rooflinekit train llama-3.1-8b --cluster dgx-h100 --batch 128 --tp 2
    """
    from rooflinekit.distributed.records import recipe_of

    decoder = rk.Decoder.from_config(config, weights="bf16")
    chosen = recipe_of(recipe).with_changes(recompute=recompute, offload=offload, fp8=fp8)
    given: dict[str, Any] = {
        "cluster": cluster, "batch": batch, "seq": seq, "gpus": gpus, "recipe": chosen, "host": host,
    }  # fmt: skip
    if out is not None and not search:
        raise InputError("--out: draws what --search has found; add --search")
    priced = purchase.asked or tokens is not None or carbon is not None
    if search and (priced or rack is not None):
        raise InputError("--search: ranks layouts by time; ask what the one that you choose costs, without --search")
    rack_w = None if rack is None else quantity_of("--rack", rack, "W")
    pricing = purchase.pricing() if priced else None  # what can be wrong is looked at before the slow part
    if search:
        return _searched(decoder, given, out)
    at = functools.partial(rk.train, decoder, layout=laid.layout(), **given)
    step = at(power_limit=None if power_limit is None else quantity_of("--power-limit", power_limit, "W"))
    costs = None if pricing is None else _costs(step, pricing, tokens, carbon)
    limits = None if rack_w is None else _limits(step, at)

    def fields() -> dict[str, object]:
        further: dict[str, object] = {} if costs is None else {"cost": costs.to_dict()}
        if limits is not None and rack_w is not None:
            racks = limits.rack(rack_w, purchase.pue).to_dict("records")
            further["power"] = {**limits.to_dict(), "rack": racks}
        return {"step": step.to_dict(), "search": None, **further}

    def told() -> None:
        print(step)
        if costs is not None:
            text.predictions.print_costs(costs)
        if limits is not None and rack_w is not None:
            text.predictions.print_limits(limits, limits.rack(rack_w, purchase.pue))

    return Answer("train", fields, told)


def _searched(decoder: rk.Decoder, given: dict[str, Any], out: Path | None) -> Answer:
    with progress_line("looking at layouts") as say:
        progress = None if say is None else lambda count: say(f"{count} layouts")
        found = rk.search_layouts(decoder, **given, progress=progress)
    if out is not None:
        rk.plot.save(rk.plot.layouts(found), out)
    return Answer("train", lambda: {"step": found.best.to_dict(), "search": found.to_dict()}, lambda: print(found))


def _costs(step: rk.TrainingStep, pricing: rk.Pricing, tokens: float | None, carbon: float | None) -> Costs:
    """What a million tokens, and a run of --tokens, cost."""
    from rooflinekit.hardware.specs import members_of

    say_notes(pricing, [*members_of(step.cluster)])
    return rk.costs(step, pricing, samples=tokens, carbon=carbon)


_LIMITS = 12  # about so many are looked at, from idling to the board's own


def _limits(step: rk.TrainingStep, at: Callable[..., rk.TrainingStep]) -> PowerLimits[rk.TrainingStep]:
    """The step under limits."""
    from rooflinekit.api.parallel import place_of
    from rooflinekit.study.compare.limits import power_limits_together

    machine = place_of(step.cluster).machines[0]
    board_w = machine.device.board_power or 0.0
    return power_limits_together(
        lambda watts: at(power_limit=watts), machine, max(25.0, 25.0 * round(board_w / _LIMITS / 25)),
        gpus=step.gpus, batch=step.batch * step.seq, sizes={"batch": step.batch, "seq": step.seq},
        heading=(step.decoder.name, "training", step.cluster.name),
    )  # fmt: skip


def collective(
    operation: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTIVE", help="all-reduce, all-gather, reduce-scatter, broadcast, all-to-all or send-recv"
        ),
    ],
    size: Annotated[str, "--bytes SIZE", "'100 MB'; of all-gather, of the gathered result"],
    cluster: ClusterName,
    gpus: Annotated[int | None, "how many, from the first; by default all", ONE_OR_MORE] = None,
    algorithm: Annotated[str | None, "ring, tree, nvls, hierarchical; by default the fastest that NCCL has"] = None,
    constants: Annotated[
        Path | None, "--constants FILE.links.yaml", "of links at hand, from `rooflinekit calibrate`"
    ] = None,
) -> Answer:
    """How long one collective takes on a cluster.

    And by which algorithm.
    Example: rooflinekit collective all-reduce --bytes "100 MB" --cluster dgx-h100 --gpus 4
    """
    timing = rk.collective_time(operation, size, cluster, gpus, algorithm=algorithm, constants=constants)
    return Answer(
        "collective", lambda: _timing_document(timing, cluster), lambda: text.devices.print_timing(timing, cluster)
    )


def _timing_document(timing: CollectiveTiming, cluster: str) -> dict[str, Any]:
    """In base units; interval: 90 %."""
    low, high = timing.interval()
    names = ("start_s", "latency_s", "transfer_s", "pipeline_s", "copy_s")
    links = [
        {"technology": link.name, "bandwidth_per_direction": link.bandwidth, "latency_s": link.latency_s}
        for link in timing.route.links
    ]
    return {
        "collective": timing.collective, "cluster": cluster, "gpus": timing.ranks, "bytes": timing.size_bytes,
        "total_s": timing.total_s, "interval_s": [low, high], "algorithm": timing.algorithm,
        "bus_bandwidth": timing.bus_bandwidth, "algorithm_bandwidth": timing.algorithm_bandwidth,
        "terms": {name: getattr(timing, name) for name in names}, "links": links,
    }  # fmt: skip
