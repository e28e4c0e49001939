"""The subcommands about many GPUs: a training step of a model or of a decoder, what makes one fit, a collective."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rooflinekit as rk
from rooflinekit.api.names import STRATEGIES
from rooflinekit.api.workload import Workload
from rooflinekit.cli.command import Options, Tables, progress_line
from rooflinekit.cli.options import (
    CLUSTERS,
    LISTED,
    NONE_OR_MORE,
    ONE_OR_MORE,
    Carbon,
    ClusterGpus,
    ClusterName,
    Model,
    Purchase,
    Target,
    devices_of,
    say_notes,
)
from rooflinekit.cli.parse import quantity_of
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import InputError, check_word
from rooflinekit.files import write_text
from rooflinekit.present import text

if TYPE_CHECKING:
    from rooflinekit.distributed.records import Strategy
    from rooflinekit.timing.collectives import CollectiveTiming


class Meshed(Options):
    """How devices share the work, in words."""

    tensor: Annotated[int | None, "mesh: devices that split each layer (tensor parallelism)", ONE_OR_MORE] = None
    sequence: Annotated[bool, "mesh: also split the tokens between the layers' products (sequence parallelism)"] = False
    context: Annotated[int | None, "mesh: devices that share each sequence (context parallelism)", ONE_OR_MORE] = None
    context_way: Annotated[str, "how context parallelism exchanges keys and values: ring or all-gather"] = "ring"
    expert: Annotated[int | None, "mesh: copies that share out the experts (expert parallelism)", ONE_OR_MORE] = None
    imbalance: Annotated[float, "experts: tokens of the busiest device, divided by the mean of all devices"] = 1.0
    pipeline: Annotated[int | None, "mesh: stages (pipeline parallelism)", ONE_OR_MORE] = None
    microbatches: Annotated[int | None, "microbatches of a pipeline; by default four for each stage", ONE_OR_MORE] = (
        None
    )
    schedule: Annotated[str, "the schedule of a pipeline: gpipe, 1f1b or interleaved"] = "1f1b"
    chunks: Annotated[int, "interleaved: virtual stages of each device", ONE_OR_MORE] = 2

    def strategy(self, word: str, count: int) -> str | Strategy:
        """A mesh with sizes of its groups, all of them 1 but the one that the word names; or another strategy."""
        groups = ("tensor", "context", "expert", "pipeline")
        if word not in ("mesh", *groups):
            if self.given:
                raise InputError(f"{self.given[0]} belongs to --strategy mesh; got {word!r}")
            return word
        sizes = {name: getattr(self, name) or (count if name == word else 1) for name in groups}
        return rk.Mesh(**{**vars(self), **sizes})


class Saving(Options):
    """Options that save memory."""

    accumulate: Annotated[
        int, "gradient accumulation: how many parts of the batch run one after another", ONE_OR_MORE
    ] = 1
    checkpoint: Annotated[
        list[str] | None, "--checkpoint MODULE|all", "a block whose activations are recomputed in backward; repeatable"
    ] = None
    save: Annotated[
        list[str] | None,
        "--save OP|PATH:OP",
        "an op whose results are kept within checkpoints, such as aten.addmm; repeatable",
    ] = None
    offload_activations: Annotated[
        list[str] | None,
        "--offload-activations BLOCK|all",
        "a block whose activations wait in the CPU's memory; repeatable",
    ] = None
    eight_bit: Annotated[bool, "hold the optimizer's state in 8 bits"] = False
    offload: Annotated[bool, "run the optimizer on the CPU"] = False

    def savers(self) -> rk.Savers:
        """The record that these options make."""
        words = {"checkpoint": self.checkpoint, "offload_activations": self.offload_activations}
        blocks = {name: given == ["all"] or tuple(given or ()) or False for name, given in words.items()}
        return rk.Savers(**{**vars(self), **blocks, "save": tuple(self.save or ())})


@describes_workload(needs_gpu=False, training=True)
def parallel(
    workload: Workload,
    target: Target,
    cluster: ClusterName,
    gpus: ClusterGpus = None,
    strategy: Annotated[str, f"{STRATEGIES}; or mesh, which combines those marked mesh below"] = "ddp",
    split: Annotated[str, "how the batch is split: even, or proportional to each device's speed"] = "even",
    *,
    mesh: Meshed,
    saving: Saving,
    measured: Annotated[
        str | None,
        "--measured BATCH:SECONDS",
        "a step that was timed on one of the GPUs; everything but communication is corrected by it",
    ] = None,
    memory: Annotated[bool, "--memory", "also print what each GPU's memory holds over the step"] = False,
    trace: Annotated[Path | None, "--trace FILE.json", "also write the step's time line, to open in Perfetto"] = None,
) -> Tables:
    """Predict one training step on several GPUs.

    It shows how much communication is hidden and exposed. --batch counts the samples of all GPUs together. The host is
    the cluster's, unless --host names another.
    Example: rooflinekit parallel timm:resnet50 --batch 256 --autocast bf16 --cluster dgx-a100 --gpus 4
    """
    check_word("--split", split, ("even", "proportional"))
    if workload.gpus:
        raise InputError("--gpu: a cluster has GPUs of its own; leave out --gpu, or use `rooflinekit predict`")
    found = rk.load_cluster(cluster)
    count = found.size if gpus is None else gpus
    chosen, savers = mesh.strategy(strategy, count), saving.savers()
    at = workload.team(target)
    prediction = at(
        cluster=found, gpus=count, strategy=chosen, savers=savers, split=split, measured=_measured(measured)
    )
    if trace is not None:
        rk.save_trace(prediction, trace)
    return Tables("parallel", prediction.to_dict, lambda: text.steps.print_step(prediction, memory=memory))


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
    cluster: Annotated[str | None, "--cluster NAME|FILE.yaml", "instead of --gpu: " + LISTED, CLUSTERS] = None,
    gpus: ClusterGpus = None,
    policy: Annotated[
        Path | None, "--policy FILE.py", "also write the choice as Python, to paste into a script"
    ] = None,
    largest: Annotated[
        list[str] | None,
        "--largest SIZE",
        "also find the largest batch, or other size, that fits with each way; repeatable",
    ] = None,
    memory_limit: Annotated[
        str | None, "--memory-limit BYTES", "memory of each GPU, where it is to have less than its own, such as 24GB"
    ] = None,
) -> Tables:
    """Find the fastest way to make a training step fit into memory.

    It predicts combinations of gradient accumulation, number formats, an optimizer in 8 bits or on the CPU, and
    activations that are kept, recomputed or moved to the CPU. Of all within 2 % of the fastest it chooses the one that
    changes least.
    Example: rooflinekit fit-into timm:resnet18 --batch 512 --optimizer Adam --gpu rtx-3070
    """
    if (cluster is None) == (not workload.gpus) or len(workload.gpus) > 1 or (cluster is None and gpus is not None):
        raise InputError("fit-into: expected one --gpu, or --cluster, with --gpus for how many")
    workload.refuse("fit-into")
    (graph,) = workload.trace(target, sizes_open=True)
    place: dict[str, Any] = {"gpu": workload.gpus[0]} if cluster is None else {"cluster": cluster, "gpus": gpus}
    with progress_line("trying") as say:
        found = rk.fit_into(
            graph,
            **place,
            host=workload.named_host,
            execution=workload.run_as,
            progress=say,
            largest=largest or (),
            memory_limit=memory_limit,
        )
    if policy is not None:
        write_text(found.policy, policy)
    heading = workload.heading(graph)
    return Tables("fit-into", found.to_dict, lambda: text.steps.print_fitting(found, heading))


class Laid(Options):
    """How GPUs share a decoder's training."""

    tp: Annotated[int, "GPUs that split each layer (tensor parallelism, with sequence parallelism)", ONE_OR_MORE] = 1
    cp: Annotated[int, "GPUs that share each sequence (context parallelism)", ONE_OR_MORE] = 1
    pp: Annotated[int, "stages (pipeline parallelism)", ONE_OR_MORE] = 1
    vp: Annotated[int, "virtual stages of each GPU", ONE_OR_MORE] = 1
    ep: Annotated[int, "GPUs that share out the experts (expert parallelism)", ONE_OR_MORE] = 1
    imbalance: Annotated[float, "experts: tokens of the busiest GPU, divided by the mean of all GPUs"] = 1.0
    micro_batch: Annotated[int, "sequences of a micro-batch", ONE_OR_MORE] = 1
    sharding: Annotated[str, "how copies share their state: ddp, zero-1, zero-2, zero-3 (or fsdp) or hybrid"] = "zero-1"

    def layout(self) -> rk.Layout:
        """The record that these options make."""
        return rk.Layout(
            tensor=self.tp, sequence=self.tp > 1, context=self.cp, pipeline=self.pp, chunks=self.vp, expert=self.ep,
            imbalance=self.imbalance, micro_batch=self.micro_batch, sharding=self.sharding,
        )  # fmt: skip


def train(
    config: Model,
    cluster: ClusterName,
    batch: Annotated[int, "sequences of a step, over all GPUs together", ONE_OR_MORE],
    seq: Annotated[int, "tokens of each sequence", ONE_OR_MORE] = 4096,
    gpus: ClusterGpus = None,
    recipe: Annotated[
        str, "the training program to predict: megatron, nemo, nanotron, torchtitan, huggingface …"
    ] = "megatron",
    recompute: Annotated[
        str, "what backward recomputes: none, selective (as the recipe's program means it) or full"
    ] = "none",
    offload: Annotated[
        int, "--offload LAYERS", "layers of each GPU whose activations wait in the CPU's memory", NONE_OR_MORE
    ] = 0,
    fp8: Annotated[bool, "compute matrix products in FP8"] = False,
    memory: Annotated[bool, "--memory", "also print what the GPUs' memory of each stage holds, and when"] = False,
    *,
    laid: Laid,
    search: Annotated[bool, "find the fastest layouts, and the least memory for each time"] = False,
    out: Annotated[Path | None, "--out FILE", "with --search: also draw time against memory"] = None,
    host: Annotated[str | None, "the CPUs, instead of the cluster's own"] = None,
    power_limit: Annotated[
        str | None, "--power-limit WATTS", "a power limit of each GPU, below the board's own, such as '500 W'"
    ] = None,
    rack: Annotated[
        str | None, "--rack WATTS", "also print what a rack with so many watts trains in a day, at each power limit"
    ] = None,
    purchase: Purchase,
    tokens: Annotated[float | None, "tokens of a whole run, such as 1e12, to print its cost"] = None,
    carbon: Carbon = None,
) -> Tables:
    """Predict a language model's training step on many GPUs.

    It needs only the dimensions of a decoder, and prints time, memory, MFU, HFU and energy. With a price it also prints
    what a run of --tokens costs, and with --search the best layout.
    Example: rooflinekit train llama-3.1-8b --cluster dgx-h100 --batch 128 --tp 2
    """
    from rooflinekit.api.parallel import power_limits_together, recipe_of

    decoder = rk.Decoder.from_config(config, weights="bf16")
    chosen = recipe_of(recipe).with_changes(recompute=recompute, offload=offload, fp8=fp8)
    given: dict[str, Any] = {
        "cluster": cluster, "batch": batch, "seq": seq, "gpus": gpus, "recipe": chosen, "host": host,
    }  # fmt: skip
    if out is not None and not search:
        raise InputError("--out: draws what --search has found; add --search")
    if search and (laid.given or power_limit is not None):
        option = laid.given[0] if laid.given else "--power-limit"
        raise InputError(f"{option}: --search chooses the layout, at the board's own power; leave out one of the two")
    priced = purchase.asked or tokens is not None or carbon is not None
    if search and (priced or rack is not None):
        raise InputError(
            "--search: ranks layouts by time only; leave out prices and --rack, and give them with the layout that "
            "you choose"
        )
    purchase.check(tokens=tokens, carbon=carbon, rack=rack)
    rack_w = None if rack is None else quantity_of("--rack", rack, "W")
    pricing = purchase.pricing() if priced else None  # what can be wrong is looked at before the slow part
    if search:
        return _searched(decoder, given, out)
    at = functools.partial(rk.train, decoder, layout=laid.layout(), **given)
    step = at(power_limit=None if power_limit is None else quantity_of("--power-limit", power_limit, "W"))
    costs = None
    if pricing is not None:
        say_notes(pricing, devices_of((), [cluster]))
        costs = rk.costs(step, pricing, samples=tokens, carbon=carbon)
    limits = None if rack_w is None else power_limits_together(at, step)
    racks = None if limits is None or rack_w is None else limits.rack(rack_w, purchase.pue)

    def fields() -> dict[str, object]:
        further: dict[str, object] = {} if costs is None else {"cost": costs.to_dict()}
        if limits is not None:
            further["power"] = limits.to_dict(racks)
        return {"step": step.to_dict(), "search": None, **further}

    def told() -> None:
        text.steps.print_step(step, memory=memory)
        if costs is not None:
            text.choices.print_costs(costs)
        if limits is not None:
            text.choices.print_limits(limits, racks)

    return Tables("train", fields, told)


def _searched(decoder: rk.Decoder, given: dict[str, Any], out: Path | None) -> Tables:
    with progress_line("looking at layouts") as say:
        progress = None if say is None else lambda count: say(f"{count} layouts")
        found = rk.search_layouts(decoder, **given, progress=progress)
    if out is not None:
        rk.plot.save(rk.plot.layouts(found), out)
    document = {"step": found.best.to_dict(), "search": found.to_dict()}
    return Tables("train", lambda: document, lambda: text.steps.print_layouts(found))


def collective(
    operation: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTIVE", help="all-reduce, all-gather, reduce-scatter, broadcast, all-to-all or send-recv"
        ),
    ],
    size: Annotated[
        str, "--bytes SIZE", "the size of the tensor, such as '100 MB'; for all-gather, of the gathered result"
    ],
    cluster: ClusterName,
    gpus: ClusterGpus = None,
    algorithm: Annotated[str | None, "ring, tree, nvls or hierarchical; by default the fastest that NCCL has"] = None,
    constants: Annotated[
        Path | None, "--constants FILE.links.yaml", "constants of your links, which `rooflinekit calibrate` wrote"
    ] = None,
) -> Tables:
    """Predict how long one collective takes on a cluster.

    It also names the algorithm.
    Example: rooflinekit collective all-reduce --bytes "100 MB" --cluster dgx-h100 --gpus 4
    """
    size_bytes = quantity_of("--bytes", size, "byte")
    timing = rk.collective_time(operation, size_bytes, cluster, gpus, algorithm=algorithm, constants=constants)
    document = _timing_document(timing, cluster)
    return Tables("collective", lambda: document, lambda: text.devices.print_timing(timing, document))


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
