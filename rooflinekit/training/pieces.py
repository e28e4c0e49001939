"""The parts of a step that repeat, each timed once: embedding, a layer, the loss, forward and backward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Phase, Role, TensorSpec
from rooflinekit.model.families import OF_THE_DAY, residuals_of, shared_variance
from rooflinekit.model.kernel import Issue
from rooflinekit.model.machine import Machine
from rooflinekit.model.timing import Timing, time_kernels
from rooflinekit.step.energy import drawn_by
from rooflinekit.step.entry import issue_cost_s, issues_for
from rooflinekit.step.execution import Execution
from rooflinekit.strategies.groups import Setting
from rooflinekit.training.graph import graph_of
from rooflinekit.training.layout import Part
from rooflinekit.training.recipe import Recipe

#: Layers of the graph that stands for all: one that follows another finds in the cache what a further one would.
_LAYERS = 2
_COUNTS = {"layer": _LAYERS}  # of each part, where not one
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
        sums["cpu_s"] += recipe.issue * (issue_cost_s(issue, host) + _further_calls_s(issue, host))
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
    weights, experts = _weights(graph)
    saved, again = _saved(graph, recipe)
    return Pieces(
        parts=parts, weights=weights, expert_weights=experts, saved_bytes=saved, again_bytes=again,
        terms=terms, deviation=deviation_of(layer, machine), tied=part.decoder.tied,
        drawn_j=_drawn(timed, machine),
    )  # fmt: skip


def _further_calls_s(issue: Issue, host: Host) -> float:
    """CPU time of what an op launches beside its kernels as they are timed: a product for each expert."""
    return max(0, int(issue.op.attrs.get("calls", 1)) - 1) * host.launch


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
