"""A decoder, a cluster and a layout → how long one training step takes, why, and what memory it needs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from types import MappingProxyType
from typing import Any

from rooflinekit.decoder.decoder import Decoder
from rooflinekit.distributed.accounts import Accounts, TrainingStep, weight_itemsize, workspace_of
from rooflinekit.distributed.groups import Groups, Setting
from rooflinekit.distributed.pieces import Pieces, pieces_at, update_of
from rooflinekit.distributed.pipeline import Layer, Scheduled, Stage, least_s, pipelined, sent_beside, whole
from rooflinekit.distributed.products import Part
from rooflinekit.distributed.queues import Barrier, HostCopy, Item, Pace, Work, run_devices, sent_item
from rooflinekit.distributed.records import RECOMPUTES, Layout, Recipe
from rooflinekit.errors import InputError, RooflinekitError
from rooflinekit.ir.op import Phase
from rooflinekit.step.energy import Energy, Member, energy_together
from rooflinekit.step.memory import beside_segments
from rooflinekit.timing.energy import PARTS
from rooflinekit.units import format_bytes, format_quantity

#: Megatron's buckets hold max(40 M, 1 M · copies) numbers (megatron/core/distributed/distributed_data_parallel.py).
_BUCKET_NUMBERS, _BUCKET_NUMBERS_A_COPY = 40_000_000, 1_000_000
_BOTH = (Phase.FORWARD, Phase.BACKWARD)


@dataclass(slots=True, kw_only=True)
class Planner:
    """The time and memory of one training step, worked out part by part."""

    decoder: Decoder
    layout: Layout
    recipe: Recipe
    batch: int
    seq: int
    place: Setting
    part: Part = field(init=False)
    groups: Groups = field(init=False)
    pieces: Pieces = field(init=False)
    count: int = field(init=False)  # micro-batches of a copy
    beside: Mapping[str, int] = field(init=False)  # see `Accounts`
    known: dict[tuple[str, Phase, bool], Scheduled] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        lay, place = self.layout, self.place
        self.count = lay.pieces(self.place.gpus, self.batch)
        self.part = Part(decoder=self.decoder, layout=lay, seq=self.seq)
        if self.decoder.layers < lay.pipeline * lay.chunks:
            raise InputError(
                f"{self.decoder.name}: {self.decoder.layers} layers are too few for {lay.pipeline} × {lay.chunks} "
                "stages"
            )
        self.pieces = pieces_at(place, self.part, self.recipe.with_changes(offload=0))
        if lay.expert > 1 and not self.decoder.experts:
            raise InputError(f"layout expert {lay.expert}: {self.decoder.name} has no experts: expected 1")
        plane = place.gpus // lay.pipeline
        if lay.expert * lay.expert_tensor > plane:
            raise InputError(f"layout expert {lay.expert}: expected a divisor of {plane} GPUs of a stage")
        self.groups = place.groups(lay)
        if 0 < (held := self.decoder.layers // lay.pipeline) <= self.recipe.offload:
            raise InputError(
                f"offload: {self.recipe.offload} layers of {held} on a GPU: expected {held - 1} or fewer; the last "
                "one's activations are needed at once"
            )
        copies = ("node", "across") if lay.sharding == "hybrid" else ("data",)
        names = (*self.pieces.groups, *copies, *["expert data"] * bool(self.decoder.experts), "pipe")
        self.beside = beside_segments(place.machines[0].device, nccl_bytes=self.groups.nccl_bytes(names))

    def items(self, name: str, phase: Phase, *, away: bool = False) -> list[Item]:
        """A part with what its groups send. away: beside the copy of what the layer before it keeps to the host, or of
        what the layer behind it needs from there, as Transformer Engine's `get_cpu_offload_context` and torchtune do
        it; tensors are freed, or there, when both are done. All GPUs of a node copy at once, from or to one memory.
        """
        found = self.pieces.items.get((name, phase), ())
        items: list[Item] = [one if isinstance(one, Work) else sent_item(one, self.groups) for one in found]
        if not away:
            return items
        place = self.place
        rate = min(place.copy_rate, place.host.dram_bandwidth / min(place.gpus, place.cluster.per_node))
        copy = HostCopy(key=name, seconds=self.pieces.saved_bytes[name] / rate, inward=phase is Phase.BACKWARD)
        return [copy, *items, Barrier(keys=(name,))]

    def timed(self, name: str, phase: Phase, *, away: bool = False) -> Scheduled:
        """One part of the step on the queues of a GPU by itself, with what it waits for."""
        key = name, phase, away
        if key not in self.known:
            self.known[key] = Scheduled.of(run_devices([(self.items(name, phase, away=away), self._pace(None))]))
        return self.known[key]

    def copies_s(self, beside: Stage) -> float:
        """What the copies' gradients and weights make a step wait for.

        beside: of a GPU, a micro-batch through all of its layers, beside which they are sent in buckets.
        """
        numbers, lay, gradient = self.numbers(), self.layout, 4 if self.recipe.main_gradients else 2
        shared, count = lay.sharding != "ddp", 1
        if lay.overlap:
            count = math.ceil(
                sum(numbers) / max(_BUCKET_NUMBERS, _BUCKET_NUMBERS_A_COPY * len(self.groups.members["data"]))
            )
        groups = list(zip(("data", "expert data"), numbers, strict=True))
        bucket = Layer(
            items=[[Work(what="layers", block_s=lay.overlap * s / count)] for s in beside],
            gather=self.groups.sent("all-gather", [(group, 2.0 * n / count) for group, n in groups if shared]),
            reduce=self.groups.sent(
                "reduce-scatter" if shared else "all-reduce", [(group, gradient * n / count) for group, n in groups]
            ),
        )
        return sum(sent_beside([bucket] * count, self._pace(self.recipe.progress), ahead=count).waits.values())

    def _pace(self, progress: float | None) -> Pace:
        """The pace of a GPU; its CPU's time is already part of the layers'."""
        device = self.place.machines[0].device
        return Pace(device=device, latency_s=0.0, sync_s=0.0, steady=True, progress=progress)

    def _offload_s(self, phase: Phase, stage: int = 0) -> float:
        """What the first layers of a GPU wait for their activations' copies, in one of its stages."""
        counts, pipeline = self.layers_of(), self.layout.pipeline
        before = sum(counts[stage % pipeline : stage : pipeline])
        own = max(0, min(counts[stage], self.recipe.offload - before))
        return own * (self.timed("layer", phase, away=True).total_s - self.timed("layer", phase).total_s)

    def layers_of(self) -> list[int]:
        """Layers of each stage: as many each; where there cannot be, with the embedding and the head as one layer each,
        the first stages the larger (Megatron's `account_for_embedding_in_pipeline_split` and `account_for_loss_…`).
        """
        parts, layers = self.layout.pipeline * self.layout.chunks, self.decoder.layers
        if layers % parts == 0:
            return [layers // parts] * parts
        whole, rest = divmod(layers + 2, parts)
        return [whole + (k < rest) - (k == 0) - (k == parts - 1) for k in range(parts)]

    def stages(self) -> list[Stage]:
        """The times of each stage for a micro-batch."""
        counts = self.layers_of()

        def seconds(k: int, phase: Phase) -> float:
            own = counts[k] * self.timed("layer", phase).total_s + self._offload_s(phase, k)
            own += self.timed("embedding", phase).total_s if k == 0 else 0.0
            return own + (self.timed("head", phase).total_s if k == len(counts) - 1 else 0.0)

        return [Stage(*(seconds(k, phase) for phase in _BOTH)) for k in range(len(counts))]

    def numbers(self) -> tuple[int, int]:
        """Of weights on the GPU that has the most of them: those of all copies, and of experts."""
        return max((self._held(k)[:2] for k in range(self.layout.pipeline)), key=sum)

    def _held(self, k: int) -> tuple[int, int, int, int]:
        """What a GPU of stage k has: numbers of weights, of experts, of the ends among the weights; and layers."""
        w, last = self.pieces.weights, k == self.layout.pipeline - 1
        layers = sum(self.layers_of()[k :: self.layout.pipeline])
        ends = w["embedding"] * (k == 0 or (last and self.decoder.tied)) + w["head"] * last
        return layers * w["layer"] + ends, layers * w["experts"], ends, layers

    def _sharded(self, dense: float, experts: float) -> float:
        """Numbers that a GPU's optimizer has of so many weights, and so many of experts."""
        lay, members = self.layout, self.groups.members
        if lay.sharding == "ddp":
            return dense + experts
        among = "node" if lay.sharding == "hybrid" else "data"
        parts, few = (max(1, len(members[name]) // lay.instances) for name in (among, "expert data"))
        return dense / parts + experts / few

    def step(self) -> TrainingStep:
        """The whole step."""
        place, machine = self.place, self.place.machines[0]
        run = self._gathered() if self.layout.gathers else self._in_stages()
        # of a pipeline the GPU that computes most is taken to have one of the ends
        kernels = self._of_parts(self.pieces.terms, self.count / min(2, self.layout.pipeline))
        optimizer_s, updated_j = update_of(self._sharded(*self.numbers()), self.recipe, machine, place.host)
        overhead_s = run.busy_s - sum(kernels.values())
        terms = {**kernels, **run.waits, "optimizer": optimizer_s, "overhead": overhead_s}
        return TrainingStep(
            decoder=self.decoder, layout=self.layout, recipe=self.recipe, cluster=place.cluster, machine=machine,
            gpus=place.gpus, batch=self.batch, seq=self.seq, pieces=self.count, terms=MappingProxyType(terms),
            again_flop=place.gpus * self._layers * self.pieces.again_flop, deviation=self.pieces.deviation,
            link_deviation=self.groups.spread, host_deviation=place.host.spread,
            courses=self.courses(run.under_way), energy=self._energy(sum(terms.values()), updated_j),
        )  # fmt: skip

    def _in_stages(self) -> Scheduled:
        """How the stages run; what a layer waits for is taken from what the GPU that computes most is busy with."""
        stages, pipeline = self.stages(), self.layout.pipeline
        # tensor groups send a part of an activation each
        hop = self.groups.timing("pipe", "send-recv", self.part.boundary_bytes / self.layout.tensor)
        run = pipelined(stages, self.count, self.layout.chunks, hop.total_s)
        waits: dict[str, float] = defaultdict(float)
        for phase in _BOTH:
            for cause, seconds in self.timed("layer", phase).waits.items():
                waits[cause] += self._layers * seconds
            if self.recipe.offload:
                waits["offload"] += self.count * sum(self._offload_s(phase, k) for k in range(0, len(stages), pipeline))
        busy_s, copies_s = run.busy_s - sum(waits.values()), self.copies_s(whole(stages, pipeline)[0])
        return replace(run, busy_s=busy_s, waits={**waits, **run.waits, "copies": copies_s})

    def _gathered(self) -> Scheduled:
        """The times of layers that gather their weights, one after another."""
        lay, w, groups, hybrid = self.layout, self.pieces.weights, self.groups, self.layout.sharding == "hybrid"
        inside, away, node = "node" if hybrid else "data", self.recipe.offload, len(groups.members["node"])

        def layer(numbers: int, *items: Sequence[Item]) -> Layer:
            size = 2.0 * numbers
            across = groups.sent("all-reduce", [("across", size / node)]) if hybrid else ()
            return Layer(
                items=items, gather=groups.sent("all-gather", [(inside, size)]),
                reduce=(*groups.sent("reduce-scatter", [(inside, size)]), *across),
            )  # fmt: skip

        near, far = (
            layer(w["layer"] + w["experts"], *(self.items("layer", phase, away=one) for phase in _BOTH))
            for one in (False, True)
        )
        ends = ([*self.items("embedding", phase), *self.items("head", phase)] for phase in _BOTH)
        layers = [layer(w["embedding"] + w["head"], *ends), *[far] * away, *[near] * (self.decoder.layers - away)]
        return sent_beside(layers, self._pace(self.recipe.progress), pieces=self.count, again=lay.sharding != "grad-op")

    @property
    def _layers(self) -> float:
        """That a GPU runs in a step, those of all micro-batches, in the mean of the stages."""
        return self.decoder.layers / self.layout.pipeline * self.count

    def _of_parts(self, each: Mapping[str, Mapping[str, float]], ends: float) -> dict[str, float]:
        """What parts have by name, as often as a GPU runs them in a step; ends: so often the embedding and the head."""
        runs, found = {"layer": self._layers, "embedding": ends, "head": ends}, defaultdict[str, float](float)
        for part, values in each.items():
            for name, value in values.items():
                found[name] += runs[part] * value
        return found

    def _energy(self, total_s: float, update: Mapping[str, float] | None) -> Energy | None:
        """All GPUs over the step: each has layers / pipeline of the layers, one of `pipeline` GPUs the embedding, one
        the head; all stand by meanwhile. update: joules of a GPU's optimizer.
        """
        machine, drawn = self.place.machines[0], self.pieces.drawn_j
        if drawn is None or update is None:
            return None
        each = self._of_parts(drawn, self.count / self.layout.pipeline)
        each = {name: each[name] + update[name] for name in PARTS}
        return energy_together([Member(count=self.place.gpus, machine=machine, kernels_j=each)], total_s)

    def courses(self, under_way: Sequence[int] = ()) -> tuple[tuple[Accounts, ...], ...]:
        """Memory of a GPU of each stage at the moments that may be its fullest, in their order.

        under_way: micro-batches that each keeps, by its chunks.
        """
        lay = self.layout
        if not under_way:
            under_way = [min(self.count, lay.pipeline - k) * lay.chunks for k in range(lay.pipeline)]
        return tuple(self._course(k, under_way[k] if k < len(under_way) else 1) for k in range(lay.pipeline))

    def _course(self, k: int, under_way: int) -> tuple[Accounts, ...]:
        """The memory of stage k over the step. under_way: micro-batches that it keeps, by its chunks."""
        saved, micro_batches = self.pieces.saved_bytes, max(under_way, self.layout.chunks) / self.layout.chunks
        layers, away = self._held(k)[-1], self.recipe.offload
        stands, passing = self._at_update(k, away * saved["layer"] * micro_batches)
        stay = layers - away  # of the micro-batch that computes at least two: one computes, one is on its way
        kept = saved["layer"] * ((micro_batches - 1) * stay + max(stay, min(2, layers) if away else stay))
        first, last = k == 0, k == self.layout.pipeline - 1
        kept += saved.get("embedding", 0) * first * -(-under_way // self.layout.chunks)
        other = kept * (1 - 1 / under_way)  # of the micro-batches, each through a chunk, whose backward comes later
        own = saved.get("head", 0) * last
        needs, left = self.pieces.working_bytes, self.pieces.left_bytes * last
        new = stands.gradients if self.count == 1 and not self.recipe.main_gradients else 0.0
        return (
            replace(
                stands, moment="backward begins", activations=kept + own, gradients=stands.gradients - new,
                working=max(needs["head"] * last - own, needs["layer"]),
            ),
            replace(
                stands, moment="backward ends", activations=other, gradients=stands.gradients + passing,
                working=max(needs["layer"], needs["embedding"] * first) + left,
            ),
            replace(stands, working=stands.working + left),
        )  # fmt: skip

    def _at_update(self, k: int, host_bytes: float) -> tuple[Accounts, float]:
        """While the optimizer of stage k steps; and gradients in 16 bits that are added to those in fp32 when backward
        ends.

        Beside the gradients themselves DistributedDataParallel keeps buckets of as many bytes (torch's documentation of
        `gradient_as_bucket_view`); Megatron's gradients are views of its buffers. Where gradients are summed in fp32
        and no product adds to the sums, as in nanotron's FP32GradientAccumulator, backward leaves those of all weights
        in 16 bits first. PyTorch's multi-tensor Adam makes the roots of all second moments at once.
        """
        lay, recipe, device = self.layout, self.recipe, self.place.machines[0].device
        (dense, experts, ends, _), copies = self._held(k), len(self.groups.members["data"])
        stated, wide, whole = recipe.dtype.itemsize, 4 if recipe.master else recipe.dtype.itemsize, dense + experts
        own = self._sharded(dense, experts)
        state = 12 if recipe.master else 2 * stated  # fp32 weights, and two moments
        if lay.gathers:
            gathered = max(self.pieces.weights["layer"] + self.pieces.weights["experts"], ends)  # the most at once
            unsharded = whole if lay.sharding == "grad-op" else 2 * gathered
            weights = stated * (unsharded + (0 if recipe.master else own))  # shards in fp32 are the optimizer's
            gradients, buffers, passing = wide * own, stated * gathered, 0.0
        else:
            weights = weight_itemsize(device, recipe) * (whole - ends) + stated * ends
            gradients = (4 if recipe.main_gradients else stated) * whole
            apart = recipe.main_gradients and not recipe.fused
            buckets = copies > 1 and not recipe.fused and not (apart and lay.sharding == "zero-1")
            buffers, passing = buckets * stated * whole, apart * stated * whole
        found = Accounts(
            moment="update", weights=weights, gradients=gradients, optimizer=state * own, activations=0.0,
            working=wide * own if recipe.optimizer == "foreach" else 0.0, host=host_bytes,
            buffers=buffers + workspace_of(device, recipe), capacity=device.dram.capacity, beside=self.beside,
        )  # fmt: skip
        return found, passing


_MICRO_BATCHES = (1, 2, 4, 8)
_CHUNKS = (1, 2, 4, 8)


_TOLD = 5  # layouts in each list that is printed


@dataclass(frozen=True, kw_only=True, repr=False)
class LayoutSearch:
    """What was found: `steps` that were worked out in full, the fastest first; others are slower, or do not fit."""

    steps: tuple[TrainingStep, ...]
    considered: int  # layouts and recomputations that the sizes allow
    too_large: int  # that do not fit the memory

    @property
    def best(self) -> TrainingStep:
        """The fastest that fits."""
        return self.steps[0]

    @property
    def front(self) -> tuple[TrainingStep, ...]:
        """Those that no other beats in time and memory both, the fastest first (Pareto)."""
        found: list[TrainingStep] = []
        for step in self.steps:
            if not found or step.memory.allocated < found[-1].memory.allocated:
                found.append(step)
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """The front and the counts, ready for JSON."""
        return {
            "considered": self.considered, "too_large": self.too_large, "worked_out": len(self.steps),
            "front": [step.to_dict() for step in self.front],
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [
            f"{self.considered} layouts, {self.too_large} do not fit, {len(self.steps)} predicted",
            *(_line(step) for step in self.steps[:_TOLD]),
            "fastest for their memory:",
            *(_line(step) for step in self.front[:_TOLD]),
        ]
        if len(self.front) > _TOLD:
            lines.append(f"{len(self.front) - _TOLD} more with --json")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<LayoutSearch {_line(self.best)}>"


def _line(step: TrainingStep) -> str:
    time, memory = format_quantity(step.total_s, "s"), format_bytes(step.memory.allocated)
    likely = f"; fits{doubt}" if (doubt := step.memory_verdict().doubt) else ""
    return f"{time:>9}  {memory:>9}  MFU {step.mfu:5.1%}  {step.layout}, recompute {step.recipe.recompute}{likely}"


def search_layouts(
    decoder: Decoder, recipe: Recipe, place: Setting, *, batch: int, seq: int, keep: int = 10,
    progress: Callable[[int], None] | None = None,
) -> LayoutSearch:  # fmt: skip
    """The `keep` fastest layouts that fit, and those that need less memory than any faster one.

    A layout is worked out in full in the order of its bound, until no bound is below what has been found. Raises
    InputError where nothing fits.
    """
    plans: list[tuple[float, float, Planner]] = []
    considered = 0
    for layout, recompute in candidates(decoder, place, batch, seq):
        own = recipe.with_changes(recompute=recompute)
        try:
            planner = Planner(decoder=decoder, layout=layout, recipe=own, batch=batch, seq=seq, place=place)
        except RooflinekitError:
            continue
        considered += 1
        if progress is not None:
            progress(considered)
        memory = max(chain.from_iterable(planner.courses()), key=lambda one: one.allocated)
        if memory.fits:
            plans.append((least_s(planner.stages(), planner.count, layout.chunks), memory.allocated, planner))
    found: list[TrainingStep] = []
    for bound, allocated, planner in sorted(plans, key=lambda plan: plan[:2]):
        slower = sum(step.total_s <= bound for step in found)
        beaten = any(step.total_s <= bound and step.memory.allocated <= allocated for step in found)
        if slower >= keep and beaten:  # neither among the fastest, nor on the front of time and memory
            continue
        step = planner.step()
        if step.memory.fits:
            found.append(step)
    if not found:
        raise InputError(
            f"{decoder.name}: none of {considered} layouts fits {place.gpus} GPUs of {place.cluster.name}; choose more "
            "GPUs or a shorter sequence"
        )
    steps = tuple(sorted(found, key=lambda step: step.total_s))
    return LayoutSearch(steps=steps, considered=considered, too_large=considered - len(plans))


def candidates(decoder: Decoder, place: Setting, batch: int, seq: int) -> Iterator[tuple[Layout, str]]:
    """Layouts that the sizes allow: tensor groups inside a node, stages of equal layers, experts within copies."""
    gpus, per_node = place.gpus, place.cluster.per_node
    tensors = [t for t in _powers(min(per_node, gpus)) if not decoder.heads % t and not decoder.ffn % t]
    contexts = [c for c in _powers(min(16, gpus)) if seq // c >= 2048 or c == 1]
    stages = [p for p in range(1, min(decoder.layers, gpus) + 1) if not decoder.layers % p and not gpus % p]
    experts = [e for e in _powers(min(decoder.experts, gpus)) if not decoder.experts % e] if decoder.experts else [1]
    for tensor, context, pipeline in product(tensors, contexts, stages):
        inner = tensor * context * pipeline
        if gpus % inner or batch % (gpus // inner):
            continue
        own = batch // (gpus // inner)
        for micro, chunks, expert in product(_MICRO_BATCHES, _CHUNKS, experts):
            if own % micro or (decoder.layers // pipeline) % chunks or (chunks > 1 and pipeline == 1):
                continue
            if (chunks > 1 and (own // micro) % pipeline) or gpus // pipeline % expert:
                continue
            layout = Layout(
                tensor=tensor, sequence=tensor > 1, context=context, pipeline=pipeline, chunks=chunks, expert=expert,
                micro_batch=micro,
            )  # fmt: skip
            yield from ((layout, recompute) for recompute in RECOMPUTES)
            if inner == 1 and expert == 1:
                yield from ((layout.with_changes(sharding="fsdp"), recompute) for recompute in RECOMPUTES)


def _powers(most: int) -> list[int]:
    return [2**k for k in range(most.bit_length())]
