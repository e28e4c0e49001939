"""The parts of a step that repeat, each timed once: embedding, a layer, the loss, forward and backward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Phase, Role, TensorSpec
from rooflinekit.model.collectives import LinkConstants
from rooflinekit.model.energy import PARTS
from rooflinekit.model.families import OF_THE_DAY, residuals_of, shared_variance
from rooflinekit.model.kernel import Issue
from rooflinekit.model.machine import Machine
from rooflinekit.model.timing import Timing, time_kernels
from rooflinekit.step.energy import Member, TeamEnergy, drawn_by, energy_together
from rooflinekit.step.entry import issue_cost_s, issues_for
from rooflinekit.step.execution import Execution
from rooflinekit.training.graph import graph_of
from rooflinekit.training.layout import Part
from rooflinekit.training.recipe import Recipe

#: Layers of the graph that stands for all: one that follows another finds in the cache what a further one would.
_LAYERS = 2
_EAGER, _COMPILED = Execution(), Execution(backend="compiled")
_GRADIENT_KINDS = ("training.accumulated_mm",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a GPU and its CPU take for a part of a step."""

    gpu_s: float = 0.0
    cpu_s: float = 0.0
    kernels: int = 0
    weight_gradient_s: float = 0.0  # of products that give gradients of weights, beside which a group may reduce
    attention_s: float = 0.0

    def __add__(self, other: Piece) -> Piece:
        return Piece(
            gpu_s=self.gpu_s + other.gpu_s, cpu_s=self.cpu_s + other.cpu_s, kernels=self.kernels + other.kernels,
            weight_gradient_s=self.weight_gradient_s + other.weight_gradient_s,
            attention_s=self.attention_s + other.attention_s,
        )  # fmt: skip

    def times(self, count: int) -> Piece:
        """So many of it."""
        return Piece(
            gpu_s=count * self.gpu_s, cpu_s=count * self.cpu_s, kernels=count * self.kernels,
            weight_gradient_s=count * self.weight_gradient_s, attention_s=count * self.attention_s,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Of one micro-batch on one GPU: parts by name and phase, and what each keeps."""

    parts: Mapping[tuple[str, Phase], Piece]  # "embedding", "layer", "head"; backward with what is computed again
    weights: Mapping[str, int]  # elements of each part on a GPU, experts apart
    expert_weights: int  # of a layer
    saved_bytes: Mapping[str, int]  # what forward keeps for backward, by part
    again_bytes: int  # what one layer's recomputation holds beside what is kept
    terms: Mapping[str, float]  # of a layer's time, by cause, forward and backward together: for the explanation
    deviation: float  # standard deviation of the logarithm of a layer's time
    drawn_j: Mapping[str, Mapping[str, float]] | None  # joules of the parts' kernels, see `training.energy`
    tied: bool = False

    def part(self, name: str, phase: Phase) -> Piece:
        """One of them; nothing where there is none."""
        return self.parts.get((name, phase), Piece())


@dataclass(slots=True)
class Workbench:
    """Makes pieces of parts on one machine, each once."""

    machine: Machine
    host: Host
    _known: dict[tuple[Part, Recipe], Pieces] = field(default_factory=dict)

    def pieces(self, part: Part, recipe: Recipe) -> Pieces:
        """Those of a part; layers of the decoder do not count, for all are alike."""
        key = (replace(part, decoder=replace(part.decoder, layers=_LAYERS, name="")), recipe)
        if key not in self._known:
            self._known[key] = pieces_of(*key, self.machine, self.host)
        return self._known[key]


def pieces_of(part: Part, recipe: Recipe, machine: Machine, host: Host) -> Pieces:
    """The pieces of a decoder's part on a machine, from a graph of two layers."""
    graph = graph_of(part, recipe, optimizer=False)
    issues = issues_for(graph, machine.device, _COMPILED if recipe.kernels == "compiled" else _EAGER)
    timed = time_kernels([kernel for issue in issues for kernel in issue.kernels], machine)
    timings = iter(timed)
    found: dict[tuple[str, Phase], Piece] = defaultdict(Piece)
    layer: list[Timing] = []
    for issue in issues:
        own = [next(timings) for _ in issue.kernels]
        gradient = issue.op.kind in _GRADIENT_KINDS or any(s.role is Role.GRADIENT for s in issue.op.outputs)
        core = issue.op.module.endswith(".core")
        seconds = sum(timing.total_s for timing in own)
        products = any(kernel.cost.gemms for kernel in issue.kernels)
        name = _part_of(issue.op.module)
        found[name, issue.op.phase] += Piece(
            gpu_s=seconds, cpu_s=recipe.issue * (issue_cost_s(issue, host) + _further_calls_s(issue, host)),
            kernels=len(own),
            weight_gradient_s=seconds if gradient and products else 0.0,
            attention_s=seconds if core else 0.0,
        )  # fmt: skip
        layer += own if name == "layer" else []
    parts = {key: piece if key[0] != "layer" else _mean(piece) for key, piece in found.items()}
    terms: dict[str, float] = defaultdict(float)
    for timing in layer:
        for cause, seconds in timing.terms().items():
            terms[cause] += seconds / _LAYERS
    weights, experts = _weights(graph)
    saved, again = _saved(graph, recipe)
    return Pieces(
        parts=parts, weights=weights, expert_weights=experts, saved_bytes=saved, again_bytes=again,
        terms=terms, deviation=deviation_of(layer, machine), tied=part.decoder.tied,
        drawn_j=drawn_by_part(timed, machine, _part_of, {"layer": _LAYERS}),
    )  # fmt: skip


def _further_calls_s(issue: Issue, host: Host) -> float:
    """CPU time of what an op launches beside its kernels as they are timed: a product for each expert."""
    return max(0, int(issue.op.attrs.get("calls", 1)) - 1) * host.launch


def _mean(piece: Piece) -> Piece:
    return Piece(
        gpu_s=piece.gpu_s / _LAYERS, cpu_s=piece.cpu_s / _LAYERS, kernels=piece.kernels // _LAYERS,
        weight_gradient_s=piece.weight_gradient_s / _LAYERS, attention_s=piece.attention_s / _LAYERS,
    )  # fmt: skip


def _part_of(module: str) -> str:
    first = module.partition(".")[0]
    return "layer" if first == "layers" else "embedding" if first == "embedding" else "head"


def deviation_of(timings: list[Timing], machine: Machine) -> float:
    """The standard deviation of the logarithm of their sum: families are off together, kernels on their own."""
    spreads = machine.constants.spreads
    together = [(residuals_of(timing.kernel, machine), "", timing.total_s) for timing in timings]
    alone = sum(spreads[family].random_variance(seconds) for family, _, seconds in together)
    total = sum(seconds for _, _, seconds in together)
    shared = shared_variance(together, spreads, OF_THE_DAY)
    return float((alone + shared) ** 0.5 / total) if total else 0.0


def _weights(graph: Graph) -> tuple[dict[str, int], int]:
    found: dict[str, int] = defaultdict(int)
    experts = 0
    for spec in graph.weights:
        name = spec.name
        if ".experts." in name:
            experts += int(spec.numel)
        elif name.startswith("layers."):
            found["layer"] += int(spec.numel)
        else:
            found[_part_of(name)] += int(spec.numel)
    found["layer"] //= _LAYERS
    return dict(found), experts // _LAYERS


def _saved(graph: Graph, recipe: Recipe) -> tuple[dict[str, int], int]:
    """Bytes that forward makes and backward reads, by part; and those of a layer's forward that is run again.

    What backward's products read in 8 bits alone is kept in 8 bits, once: its transpose (Transformer Engine,
    `update_usage`).
    """
    made: dict[str, tuple[str, int, int]] = {}
    again: dict[str, int] = {}
    kept: dict[str, int] = defaultdict(int)
    for op in graph.ops:
        for spec in op.outputs:
            if op.phase is Phase.FORWARD and spec.role is Role.ACTIVATION:
                part, *most = made.get(spec.memory, (_part_of(op.module), 0, 0))
                size, numbers = (max(pair) for pair in zip(most, (int(spec.bytes), int(spec.numel)), strict=True))
                made[spec.memory] = part, size, numbers
            elif " again in layers.0" in spec.memory:
                again[spec.memory] = max(again.get(spec.memory, 0), int(spec.bytes))
    standing = {spec.memory for spec in (*graph.weights, *graph.inputs)}
    read: dict[str, list[TensorSpec]] = defaultdict(list)
    for op in graph.ops:
        if op.phase is Phase.BACKWARD:
            for spec in op.inputs:
                read[spec.memory].append(spec)
    for memory, (part, size, numbers) in made.items():
        if memory in read and memory not in standing:
            narrow = all(spec.dtype.itemsize == 1 for spec in read[memory])
            kept[part] += min(numbers, max(int(spec.bytes) for spec in read[memory])) if narrow else size
    kept["layer"] //= _LAYERS
    return dict(kept), sum(again.values())


# What a training step draws: each part's kernels as often as they run, and every GPU standing by all the time.


#: Joules by part of the board (`model.energy.PARTS`), beside idling, of each part of the step.
DrawnParts = Mapping[str, Mapping[str, float]]


def drawn_by_part(
    timings: Sequence[Timing], machine: Machine, part_of: Callable[[str], str], layers: Mapping[str, int]
) -> DrawnParts | None:
    """Joules of one micro-batch on one GPU by part of the step, forward and backward together; None where no power is
    stated.

    part_of: the part that a module belongs to. layers: how many of a part the kernels are of, where not one.
    """
    found: dict[str, list[Timing]] = defaultdict(list)
    for timing in timings:
        found[part_of(timing.kernel.module)].append(timing)
    drawn = {}
    for part, own in found.items():
        joules = drawn_by(own, machine)
        if joules is None:
            return None
        drawn[part] = {name: j / layers.get(part, 1) for name, j in joules.items()}
    return drawn


def training_energy(
    machine: Machine, drawn: DrawnParts | None, update: Mapping[str, float] | None, *, total_s: float, gpus: int,
    pieces: int, layers: int, pipeline: int,
) -> TeamEnergy | None:  # fmt: skip
    """All GPUs over the step.

    Each GPU has layers / pipeline of the layers and passes `pieces` micro-batches through them; one of `pipeline` GPUs
    has the embedding, one the head. update: joules of the optimizer's step on each.
    """
    if drawn is None or update is None:
        return None
    runs = {"layer": pieces * layers / pipeline, "embedding": pieces / pipeline, "head": pieces / pipeline}
    each = {
        name: sum(runs[part] * joules[name] for part, joules in drawn.items()) + update[name] for name in PARTS
    }  # fmt: skip
    return energy_together([Member(count=gpus, machine=machine, kernels_j=each)], total_s)


# Where a decoder's training step runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Equal GPUs of a cluster, with what is known of them."""

    cluster: Cluster
    machine: Machine
    host: Host
    links: LinkConstants
    gpus: int
    bench: Workbench

    @classmethod
    def of(cls, cluster: Cluster, machine: Machine, host: Host, links: LinkConstants, gpus: int) -> Place:
        """With a workbench of its own. Raises InputError for more GPUs than the cluster has."""
        if not 1 <= gpus <= cluster.size:
            raise InputError(f"{cluster.name} has {cluster.size} devices; got gpus={gpus}")
        bench = Workbench(machine=machine, host=host)
        return cls(cluster=cluster, machine=machine, host=host, links=links, gpus=gpus, bench=bench)
