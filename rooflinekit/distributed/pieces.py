"""The graph of a decoder's training step, and its parts that repeat, each timed once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from types import MappingProxyType

from rooflinekit.cost.table import price_all
from rooflinekit.distributed.groups import Setting
from rooflinekit.distributed.layers import Layers
from rooflinekit.distributed.products import GradientTape, Part
from rooflinekit.distributed.records import Layout, Recipe, recipe_of
from rooflinekit.distributed.rewriting import kept_for_backward
from rooflinekit.distributed.saving import checkpointed
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import DType, Op, Phase, Role, TensorSpec
from rooflinekit.model.families import OF_THE_DAY
from rooflinekit.model.kernel import Issue
from rooflinekit.model.kernels import issues_of
from rooflinekit.model.machine import Machine
from rooflinekit.model.timing import Timing, estimate_of_timings, time_kernels
from rooflinekit.serving.decoder import Decoder
from rooflinekit.serving.tape import Tape
from rooflinekit.step.energy import drawn_by
from rooflinekit.step.entry import issue_cost_s, issues_for
from rooflinekit.step.execution import Execution
from rooflinekit.step.memory import CONTEXT_BYTES, USABLE_SHARE
from rooflinekit.step.verdict import CONTEXT_SPREAD


@checked
def training_graph(
    decoder: Decoder, *, batch: int, seq: int, recipe: str | Recipe = "pytorch", optimizer: bool = True
) -> Graph:
    """One training step of a decoder on one GPU: `batch` sequences of `seq` tokens.

    recipe: a name of `rooflinekit.distributed.records.RECIPES`, or a `Recipe`. Raises InputError for another word.
    """
    part = Part(decoder=decoder, layout=Layout(micro_batch=batch), seq=seq)
    return graph_of(part, recipe_of(recipe), optimizer=optimizer)


def graph_of(part: Part, recipe: Recipe, *, optimizer: bool = True) -> Graph:
    """The same of one GPU's part, without what groups send."""
    tape = GradientTape(dtype=recipe.dtype, summed_in=DType.FLOAT32 if recipe.main_gradients else None)
    writer = Layers(part=part, recipe=recipe, tape=tape)
    ids, loss = writer.step()
    weights, gradients = tuple(tape.weights.values()), tuple(tape.main.values())
    ops = [*tape.ops, *(optimizer_ops(weights, gradients, recipe) if optimizer else ())]
    graph = Graph(
        name=f"{part.decoder.name} training", mode="training", inputs=(ids,), weights=weights, outputs=(loss,),
        gradients=gradients, priced=price_all(ops), sizes={"batch": part.layout.micro_batch, "seq": part.seq},
        held=MappingProxyType(dict.fromkeys(writer.held, ops[-1].name)),
    )  # fmt: skip
    if recipe.recompute == "none":
        return graph
    again = ".attention.core" if recipe.recompute == "selective" else ""
    return checkpointed(graph, tuple(f"layers.{i}{again}" for i in range(part.decoder.layers)), whole=True)


def optimizer_ops(weights: tuple[TensorSpec, ...], gradients: tuple[TensorSpec, ...], recipe: Recipe) -> list[Op]:
    """Adam on these: one kernel, or PyTorch's eight multi-tensor ones; with fp32 weights where the recipe has them."""
    tape, wide = Tape(dtype=recipe.dtype, phase=Phase.OPTIMIZER), DType.FLOAT32 if recipe.master else None

    def like(specs: tuple[TensorSpec, ...], mark: str) -> tuple[TensorSpec, ...]:
        return tuple(
            replace(s, name=f"{s.name}{mark}", dtype=wide or s.dtype, role=Role.STATE, storage="") for s in specs
        )

    own = like(weights, ".main") if recipe.master else weights
    means, squares = like(weights, ".m"), like(weights, ".v")
    if recipe.optimizer == "fused":
        tape.run(
            "aten._fused_adamw_", (*own, *gradients, *means, *squares), *own, *means, *squares, self=own,
            grads=gradients, exp_avgs=means, exp_avg_sqs=squares, max_exp_avg_sqs=(), weight_decay=0.1, amsgrad=False,
            maximize=False,
        )  # fmt: skip
    else:
        tape.run("aten._foreach_mul_", own, *own)
        tape.run("aten._foreach_lerp_", (*means, *gradients), *means)
        tape.run("aten._foreach_mul_", squares, *squares)
        tape.run("aten._foreach_addcmul_", (*squares, *gradients), *squares, value=0.001)
        roots = like(weights, ".root")
        tape.run("aten._foreach_sqrt", squares, *roots)
        tape.run("aten._foreach_div_", roots, *roots)
        tape.run("aten._foreach_add_", roots, *roots)
        tape.run("aten._foreach_addcdiv_", (*own, *means, *roots), *own, scalars=())
    if recipe.master:
        tape.run("aten._foreach_copy_", (*weights, *own), *weights)
    return tape.ops


# The optimizer's step on a GPU's share of the weights, with the norm of the gradients before it.


#: Numbers for which the step is timed: traffic of the memory grows in proportion from there on.
_TIMED = 2**26


def update_s(numbers: float, recipe: Recipe, machine: Machine, host: Host) -> float:
    """Seconds for so many weights: the gradients' norm, their clipping, and Adam."""
    issues = _issues(recipe)
    gpu_s, cpu_s = sum(t.total_s for t in _timings(issues, machine)), sum(issue_cost_s(i, host) for i in issues)
    return max(gpu_s * numbers / _TIMED, cpu_s + host.step)


def update_j(numbers: float, recipe: Recipe, machine: Machine) -> Mapping[str, float] | None:
    """Joules by part, beside idling, of the same; None where no power is stated."""
    drawn = drawn_by(_timings(_issues(recipe), machine), machine)
    return None if drawn is None else {name: j * numbers / _TIMED for name, j in drawn.items()}


def _timings(issues: Sequence[Issue], machine: Machine) -> tuple[Timing, ...]:
    return time_kernels([kernel for issue in issues for kernel in issue.kernels], machine)


@lru_cache(maxsize=64)
def _issues(recipe: Recipe) -> tuple[Issue, ...]:
    wide = DType.FLOAT32 if recipe.main_gradients or recipe.autocast else recipe.dtype
    weight = TensorSpec(name="w", shape=(_TIMED,), dtype=recipe.dtype, role=Role.WEIGHT)
    gradient = TensorSpec(name="g", shape=(_TIMED,), dtype=wide, role=Role.GRADIENT)
    norm = TensorSpec(name="norm", shape=(), dtype=wide)
    ops = [
        Op(name="norm", kind="aten._foreach_norm", phase=Phase.OPTIMIZER, inputs=(gradient,), outputs=(norm,)),
        Op(name="clip", kind="aten._foreach_mul_", phase=Phase.OPTIMIZER, inputs=(gradient,), outputs=(gradient,)),
        *optimizer_ops((weight,), (gradient,), recipe),
    ]
    graph = Graph(
        name="optimizer", mode="training", inputs=(), weights=(weight,), outputs=(), priced=price_all(ops)
    )  # fmt: skip
    return tuple(issues_of(graph))


# The parts of a step that repeat, each timed once: embedding, a layer, the loss, forward and backward.


#: Layers of the graph that stands for all: one that follows another finds in the cache what a further one would.
_LAYERS = 2
_COUNTS = {"layer": _LAYERS, "experts": _LAYERS}  # of each part, where not one
_EAGER, _COMPILED = Execution(), Execution(backend="compiled")
_GRADIENT_KINDS = ("training.accumulated_mm",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a GPU and its CPU take for a part of a step."""

    gpu_s: float = 0.0
    cpu_s: float = 0.0
    weight_gradient_s: float = 0.0  # of products that give gradients of weights, beside which a group may reduce
    attention_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The longer of the two."""
        return max(self.gpu_s, self.cpu_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Of one micro-batch on one GPU: parts by name and phase, and what each keeps."""

    parts: Mapping[tuple[str, Phase], Piece]  # "embedding", "layer", "head"; backward with what is computed again
    weights: Mapping[str, int]  # elements of each part on a GPU; "experts" of a layer apart
    saved_bytes: Mapping[str, int]  # what forward keeps for backward, by part
    again_bytes: int  # what one layer's recomputation holds beside what is kept
    terms: Mapping[str, float]  # of a layer's time, by cause, forward and backward together: for the explanation
    deviation: float  # of the logarithm of a layer's time, beside what programs are off by (`step.bounds.SOURCES`)
    drawn_j: Mapping[str, Mapping[str, float]] | None  # joules of the parts' kernels
    tied: bool = False

    def part(self, name: str, phase: Phase) -> Piece:
        """One of them; nothing where there is none."""
        return self.parts.get((name, phase), Piece())


def pieces_at(setting: Setting, part: Part, recipe: Recipe) -> Pieces:
    """Those of a part on a setting's devices, each worked out once; layers of the decoder do not count, for all are
    alike.
    """
    layout = part.layout.with_changes(pipeline=1, chunks=1, sharding="zero-1", overlap=True, instances=1)
    alike = replace(part, decoder=replace(part.decoder, layers=_LAYERS, name=""), layout=layout)
    key = (alike, recipe)
    if key not in setting.known:
        setting.known[key] = pieces_of(*key, setting.machines[0], setting.host)
    found: Pieces = setting.known[key]
    return found


def pieces_of(part: Part, recipe: Recipe, machine: Machine, host: Host) -> Pieces:
    """The pieces of a decoder's part on a machine, from a graph of two layers."""
    graph = graph_of(part, recipe, optimizer=False)
    issues = issues_for(graph, machine.device, _COMPILED if recipe.kernels == "compiled" else _EAGER)
    timed = time_kernels([kernel for issue in issues for kernel in issue.kernels], machine)
    timings = iter(timed)
    found: dict[tuple[str, Phase], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    layer: list[Timing] = []
    for issue in issues:
        own = [next(timings) for _ in issue.kernels]
        seconds, name = sum(timing.total_s for timing in own), _part_of(issue.op.module)
        sums = found[name, issue.op.phase]
        sums["gpu_s"] += seconds
        # beside its kernels as they are timed, an op may launch more: a product for each expert
        further_s = max(0, int(issue.op.attrs.get("calls", 1)) - 1) * host.launch
        sums["cpu_s"] += recipe.issue * (issue_cost_s(issue, host) + further_s)
        gradient = issue.op.kind in _GRADIENT_KINDS or any(s.role is Role.GRADIENT for s in issue.op.outputs)
        if gradient and any(kernel.cost.gemms for kernel in issue.kernels):
            sums["weight_gradient_s"] += seconds
        if issue.op.module.endswith(".core"):
            sums["attention_s"] += seconds
        layer += own if name == "layer" else []
    parts = {
        key: Piece(**{name: s / _COUNTS.get(key[0], 1) for name, s in sums.items()}) for key, sums in found.items()
    }
    terms: dict[str, float] = defaultdict(float)
    for timing in layer:
        for cause, seconds in timing.terms().items():
            terms[cause] += seconds / _LAYERS
    saved, again = _saved(graph)
    return Pieces(
        parts=parts, weights=_weights(graph), saved_bytes=saved, again_bytes=again,
        terms=terms, tied=part.decoder.tied,
        drawn_j=_drawn(timed, machine), deviation=float(estimate_of_timings(layer, machine, OF_THE_DAY).deviation),
    )  # fmt: skip


def _part_of(module: str) -> str:
    first = module.partition(".")[0]
    return "layer" if first == "layers" else "embedding" if first == "embedding" else "head"


def _weights(graph: Graph) -> dict[str, int]:
    found = dict.fromkeys(("layer", "experts"), 0)
    for spec in graph.weights:
        part = "experts" if ".experts." in spec.name else _part_of(spec.name)
        found[part] = found.get(part, 0) + int(spec.numel)
    return {part: numbers // _COUNTS.get(part, 1) for part, numbers in found.items()}


def _saved(graph: Graph) -> tuple[dict[str, int], int]:
    """Bytes that forward makes and backward reads, by part; and those of a layer's forward that is run again.

    What backward's products read in 8 bits alone is kept in 8 bits, once: its transpose (Transformer Engine,
    `update_usage`).
    """
    saved: dict[str, int] = defaultdict(int)
    for kept in kept_for_backward(graph).values():
        read = [spec for _, spec in kept.uses]
        narrow = all(spec.dtype.itemsize == 1 for spec in read)
        size = min(int(kept.spec.numel), max(int(spec.bytes) for spec in read)) if narrow else int(kept.spec.bytes)
        saved[_part_of(graph.priced[kept.made].op.module)] += size
    saved["layer"] //= _LAYERS
    again: dict[str, int] = {}
    for spec in (spec for op in graph.ops for spec in op.outputs if " again in layers.0" in spec.memory):
        again[spec.memory] = max(again.get(spec.memory, 0), int(spec.bytes))
    return dict(saved), sum(again.values())


#: Joules by part of the board (`model.energy.PARTS`), beside idling, of each part of the step.
DrawnParts = Mapping[str, Mapping[str, float]]


def _drawn(timings: Sequence[Timing], machine: Machine) -> DrawnParts | None:
    """Joules of one micro-batch on one GPU by part, forward and backward together; None where no power is stated."""
    found: dict[str, list[Timing]] = defaultdict(list)
    for timing in timings:
        found[_part_of(timing.kernel.module)].append(timing)
    drawn = {part: drawn_by(own, machine) for part, own in found.items()}
    if any(joules is None for joules in drawn.values()):
        return None
    return {
        part: {name: j / _COUNTS.get(part, 1) for name, j in (joules or {}).items()} for part, joules in drawn.items()
    }


# Where a GPU's memory goes in a training step, by account.


#: Of cuBLAS, kept from its first product on: by PyTorch twice 4 MiB, from compute capability 9.0 on eight times
#: (aten/src/ATen/cuda/CUDABlas.cpp), as CUBLAS_WORKSPACE_CONFIG=:4096:8 of deterministic steps has it on every GPU;
#: and by Transformer Engine 4 and 32 MiB (transformer_engine/pytorch/module/base.py, get_cublas_workspace_size_bytes).
_MIB = 2**20
_WORKSPACE = {False: 8 * _MIB, True: 32 * _MIB}
_WORKSPACE_FUSED = {False: 4 * _MIB, True: 32 * _MIB}
#: By how much the allocator's reserve lies above what is allocated at most: blocks of other sizes, of 2 MiB and more.
#: Stated: 1.02 to 1.15 are commonly seen.
_RESERVED = 1.06
#: The least room in which it still places every block, over what is allocated: near the end of memory it gives back
#: what it keeps. `step.verdict` finds 1.000 to 1.011 for steps of decoders of 0.4 to 2.7 billion weights by four
#: recipes.
_LEAST = 1.01
#: Stated standard deviation, as a share, of what is allocated: by peaks of Megatron's ranks, of which nine of ten are
#: within 10 % (benchmarks/memory/accuracy.py).
_SPREAD = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Bytes of the GPU that needs most. `allocated` is what torch.cuda.max_memory_allocated gives."""

    weights: float
    gradients: float
    optimizer: float
    activations: float  # kept from forward to backward, of all micro-batches under way
    working: float  # of what computes at the peak, beside what is kept
    buffers: float  # of collectives, and of cuBLAS
    capacity: float
    host: float = 0.0  # of the host's page-locked memory, for this GPU

    @property
    def allocated(self) -> float:
        """At the peak."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.working + self.buffers

    @property
    def reserved(self) -> float:
        """What PyTorch's allocator has taken from the driver."""
        return self.allocated * _RESERVED

    @property
    def context(self) -> float:
        """Of CUDA and its libraries."""
        return float(CONTEXT_BYTES)

    @property
    def least(self) -> float:
        """Of the process in the least room in which it runs: near the end of memory the allocator keeps nothing."""
        return self.allocated * _LEAST + self.context

    @property
    def fits(self) -> bool:
        """Whether a GPU has the least room."""
        return self.least <= self.capacity * USABLE_SHARE

    @property
    def probability(self) -> float:
        """That it fits, by the spreads of what is allocated and of the context."""
        spread = math.hypot(_SPREAD * self.allocated * _LEAST, CONTEXT_SPREAD * self.context)
        return NormalDist(self.least, spread).cdf(self.capacity * USABLE_SHARE)

    def to_dict(self) -> dict[str, float | bool]:
        """Every account, and the sums."""
        names = ("weights", "gradients", "optimizer", "activations", "working", "buffers")
        sums = {
            "allocated": self.allocated, "reserved": self.reserved, "context": self.context, "host": self.host,
        }  # fmt: skip
        found = {name: getattr(self, name) for name in names}
        return {**found, **sums, "probability": self.probability, "fits": self.fits}


def workspace(device: Device, recipe: Recipe) -> int:
    """Of cuBLAS, of the threads of forward and of backward."""
    major = (device.compute_capability or "").partition(".")[0]
    hopper = major.isdigit() and int(major) >= 9
    return 2 * _WORKSPACE[hopper or recipe.deterministic] + recipe.fused * _WORKSPACE_FUSED[hopper]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """The first `layers` layers of a GPU: what each keeps leaves beside the next layer's forward, and comes back beside
    the backward of the layer behind it, as Transformer Engine's `get_cpu_offload_context` and torchtune do it.

    A layer's tensors are freed, or there, when both the copy and the layer beside it are done. `copy_s`: of a layer and
    micro-batch, one way.
    """

    layers: int
    layer_bytes: float
    copy_s: float

    @classmethod
    def of(cls, layers: int, layer_bytes: float, held: int, setting: Setting) -> Offload:
        """held: layers of a GPU. Raises InputError for as many as that: the last one's backward comes at once."""
        if layers and layers >= held:
            raise InputError(
                f"offload: {layers} layers of {held} on a GPU: expected {held - 1} or fewer; the last one's "
                "activations are needed at once"
            )
        # All GPUs of a node copy at the same time, from or to the same memory.
        own = setting.host.dram_bandwidth / min(setting.gpus, setting.cluster.per_node)
        rate = min(setting.copy_rate, own)
        return cls(layers=layers, layer_bytes=layer_bytes, copy_s=layer_bytes / rate if layers else 0.0)

    def wait_s(self, layer_s: float) -> float:
        """What a layer that takes so long waits for the copy beside it."""
        return max(0.0, self.copy_s - layer_s)

    def kept(self, held: int, under_way: float) -> float:
        """Layers' worth of activations on a GPU with so many layers, of as many micro-batches under way.

        Of the one that computes two layers are there at least: one computes, one is on its way.
        """
        stay = held - self.layers
        return (under_way - 1) * stay + max(stay, min(2, held) if self.layers else stay)

    def host_bytes(self, under_way: float) -> float:
        """Page-locked memory for a GPU."""
        return self.layers * self.layer_bytes * under_way
