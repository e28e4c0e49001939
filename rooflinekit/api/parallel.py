"""The walks to several devices: any training step, what makes one fit, a decoder's step and its fastest layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rooflinekit.api.keywords import with_named
from rooflinekit.api.predict import graph_of, in_base, machine_of
from rooflinekit.calibrate.fitting.files import load_links
from rooflinekit.decoder.decoder import Decoder
from rooflinekit.distributed import described
from rooflinekit.distributed.accounts import TrainingStep
from rooflinekit.distributed.described import LayoutSearch, Planner
from rooflinekit.distributed.fitting import Fitting, try_all
from rooflinekit.distributed.groups import Setting, check_trains, setting_of
from rooflinekit.distributed.planning import plan
from rooflinekit.distributed.prediction import ParallelPrediction
from rooflinekit.distributed.records import DDP, Layout, Recipe, Savers, Strategy, check_count, recipe_of, strategy_of
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster, Members
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, cluster_of, host_of
from rooflinekit.ir.arguments import checked, expect
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import Release
from rooflinekit.step.execution import Backend, Execution, execution_of
from rooflinekit.study.compare.limits import power_limits_together as power_limits_together
from rooflinekit.units import format_bytes

if TYPE_CHECKING:
    from rooflinekit.tracing.tracer import Format, Given, Loss, OptimizerFactory


@checked
def parallel(
    workload: Graph | Callable[..., Any] | str,
    *inputs: Any,
    cluster: str | Path | Cluster,
    strategy: str | Strategy | None = None,
    gpus: int | Sequence[int] | None = None,
    split: Literal["even", "proportional"] = "even",
    savers: Savers | None = None,
    host: str | Path | Host | None = None,
    execution: Execution | Backend = "eager",
    links: Path | None = None,
    measured: tuple[int, float] | None = None,
    power_limit: str | float | None = None,
    sm_clock: str | float | None = None,
    dtype: Format | None = None,
    autocast: Format | None = None,
    optimizer: OptimizerFactory | str | None = None,
    loss: Loss | str | None = None,
    like: str | Release | None = None,
    name: str | None = None,
    **options: Given,
) -> ParallelPrediction:
    """How long one training step takes on several devices of a cluster, and why.

    workload: a traced Graph; or a model, followed by its inputs, whose training step is meant. Of a Graph that is no
        training step it is the forward pass, without gradients: DDP sends nothing, FSDP gathers weights, and
        DataParallel copies the module, its inputs and outputs; a pipeline has none. The size named `batch` is that of
        all devices together.
    cluster: its name, file or record. gpus: how many from the first, or their numbers; by default all.
    strategy: a record, such as `DDP` (the default), `FSDP` or `Mesh`; or a name, such as "zero-1" or "tensor".
    split: the batch in even parts, or "proportional" to what each device reaches alone.
    savers: what saves memory, see `Savers`. host: by default the cluster's.
    links: constants of links at hand, from `rooflinekit calibrate`.
    measured: samples and seconds of a step of the same model on one of these devices. All that devices and their CPUs
        do is then stretched to it, and what links do is not: how a step that is known on one scales to many.
    power_limit, sm_clock: limits of every device below its board's own, as text ("250 W", "1.2 GHz") or in W and Hz.
    dtype, autocast, optimizer, loss, like, name: with a model, as in `trace`. options: a number for each named size;
    with a model also the other options of `trace`.

    Raises what `predict` and `load_cluster` raise, and InputError for a way that the model cannot be cut.

    >>> found = parallel(graph, cluster="dgx-a100", strategy="ddp", gpus=4, batch=256)  # doctest: +SKIP
    >>> found.total_s, found.hidden_s, found.exposed_s, str(found)  # doctest: +SKIP
    """
    given = with_named(options, dtype=dtype, autocast=autocast, optimizer=optimizer, loss=loss, like=like, name=name)
    setting = setting_of(cluster, gpus, host, execution, links, **_limits(power_limit, sm_clock))
    expect(split in ("even", "proportional"), "split", "'even' or 'proportional'", split)
    chosen = DDP() if strategy is None else strategy_of(strategy, len(setting.numbers))
    graph = graph_of(workload, inputs, given, sizes_open=True, mode="training")
    return plan(
        graph, setting, chosen, savers=savers or Savers(), proportional=split == "proportional", measured=measured
    )


@checked
def fit_into(
    workload: Graph | Callable[..., Any] | str,
    *inputs: Any,
    gpu: str | Path | Device | None = None,
    cluster: str | Path | Cluster | None = None,
    gpus: int | Sequence[int] | None = None,
    host: str | Path | Host | None = None,
    execution: Execution | Backend = "eager",
    progress: Callable[[str], None] | None = None,
    largest: str | Sequence[str] = (),
    memory_limit: str | float | None = None,
    dtype: Format | None = None,
    autocast: Format | None = None,
    optimizer: OptimizerFactory | str | None = None,
    loss: Loss | str | None = None,
    like: str | Release | None = None,
    name: str | None = None,
    **options: Given,
) -> Fitting:
    """What makes a training step fit, and which combination of it is the fastest.

    Tried are: the batch in parts, checkpoints of every block, the optimizer in 8 bits or on the CPU, autocast with
    fp32 weights, and on several devices DDP and ZeRO's stages. Where activations do not fit, it also chooses which
    ops' results checkpoints save, how many blocks are checkpoints, and how many blocks' activations wait on the CPU:
    in eager steps, as many as fit. Each is predicted; `table` lists them all, and `best.prediction.savers` says
    what was chosen.

    gpu: one device; or cluster and gpus, as for `parallel`. options: as there, `batch` that of all devices together.
    progress: called with each combination.
    largest: names of sizes, such as "batch" or that of a sequence's length. `table` then has the largest value of each
    at which a combination fits, found by bisection, the other sizes and the combination as they are.
    memory_limit: of each device, below its own, as text ("24 GB") or in bytes.

    Raises what `parallel` raises, and SizeError for a size in `largest` that the step does not have, or with which its
    memory does not grow.

    >>> found = fit_into(model, x, gpu="nvidia-rtx-3070", batch=256, optimizer=torch.optim.Adam)  # doctest: +SKIP
    >>> found.best, found.table, str(found)  # doctest: +SKIP
    """
    given = with_named(options, dtype=dtype, autocast=autocast, optimizer=optimizer, loss=loss, like=like, name=name)
    names = (largest,) if isinstance(largest, str) else largest
    if gpu is not None and cluster is None and gpus in (None, 1):
        setting = _alone(gpu, host, execution)
    elif cluster is not None and gpu is None:
        setting = setting_of(cluster, gpus, host, execution, None)
    else:
        raise InputError("fit_into: expected gpu=…, or cluster=… with gpus=…")
    if (limit := in_base("memory_limit", memory_limit, "byte")) is not None:
        own = max(machine.device.dram.capacity for machine in setting.machines)
        expect(0 < limit <= own, "memory_limit", f"bytes above 0, up to the GPU's {format_bytes(own)}", memory_limit)
        setting = setting.with_memory(limit)
    graph = graph_of(workload, inputs, given, sizes_open=True, mode="training")
    check_trains(graph, "fit_into: checkpoints, optimizers and parts of a batch are of training steps")
    return try_all(graph, setting, progress, names)


def _limits(power_limit: str | float | None, sm_clock: str | float | None) -> dict[str, float | None]:
    return {"power_w": in_base("power_limit", power_limit, "W"), "clock": in_base("sm_clock", sm_clock, "Hz")}


def _alone(gpu: str | Path | Device, host: str | Path | Host | None, execution: Execution | Backend) -> Setting:
    machine, found = machine_of(gpu), host_of(DEFAULT_HOST if host is None else host)
    name = machine.device.name
    return Setting(
        cluster=Cluster(name=name, devices=(Members(name=name, count=1),), host=found.name),
        machines=(machine,), numbers=(0,), host=found, links=load_links(), execution=execution_of(execution),
    )  # fmt: skip


@checked
def train(
    decoder: Decoder,
    *,
    cluster: str | Path | Cluster,
    batch: int,
    seq: int,
    gpus: int | None = None,
    layout: Layout | None = None,
    recipe: str | Recipe = "megatron",
    host: str | Path | Host | None = None,
    links: Path | None = None,
    power_limit: str | float | None = None,
    sm_clock: str | float | None = None,
) -> TrainingStep:
    """How long one training step of a decoder takes on a cluster, why, and what memory it needs.

    batch: sequences of all GPUs together; seq: tokens of each. gpus: how many, from the first; by default all. layout:
    how they share the work, see `Layout`. recipe: "megatron", "megatron-2023", "nemo", "nanotron",
    "torchtitan", "torchtitan-compiled", "huggingface", "llm-foundry", "pytorch", or a `Recipe`.
    power_limit, sm_clock: limits of every GPU below its board's own, as text ("250 W", "1.2 GHz") or in W and Hz.

    Raises what `load_cluster` raises, and InputError for sizes that do not divide.

    >>> found = train(Decoder.from_config("config.json"), cluster="dgx-h100", batch=64, seq=4096)  # doctest: +SKIP
    >>> found.total_s, found.mfu, found.memory.allocated  # doctest: +SKIP
    """
    place = place_of(cluster, gpus, host, links, **_limits(power_limit, sm_clock))
    check_count("batch", batch)
    check_count("seq", seq)
    return Planner(
        decoder=decoder, layout=layout or Layout(), recipe=recipe_of(recipe), batch=batch, seq=seq, place=place
    ).step()  # fmt: skip


@checked
def search_layouts(
    decoder: Decoder,
    *,
    cluster: str | Path | Cluster,
    batch: int,
    seq: int,
    gpus: int | None = None,
    recipe: str | Recipe = "megatron",
    host: str | Path | Host | None = None,
    links: Path | None = None,
    keep: int = 10,
    progress: Callable[[int], None] | None = None,
) -> LayoutSearch:
    """The fastest layouts of a decoder's training that fit: tensor, context, pipeline, virtual stages, experts,
    micro-batch, recomputation, and FSDP.

    Arguments as of `train`. keep: how many of the fastest are worked out in full. progress: called with how many
    layouts have been looked at. Raises what `train` raises, and InputError where nothing fits.
    """
    check_count("batch", batch)
    check_count("seq", seq)
    place = place_of(cluster, gpus, host, links)
    return described.search_layouts(
        decoder, recipe_of(recipe), place, batch=batch, seq=seq, keep=keep, progress=progress
    )


def place_of(
    cluster: str | Path | Cluster, gpus: int | None = None, host: str | Path | Host | None = None,
    links: Path | None = None, **limits: float | None,
) -> Setting:  # fmt: skip
    """A cluster of equal GPUs. limits: see `setting_of`. Raises what it raises, and InputError for unequal GPUs."""
    found = cluster_of(cluster)
    if len(set(found.device_names)) > 1:
        raise InputError(f"{found.name}: expected equal devices; got {', '.join(sorted(set(found.device_names)))}")
    return setting_of(found, gpus, host, "eager", links, **limits)
