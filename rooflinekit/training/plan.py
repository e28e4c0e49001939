"""A decoder, a cluster and a layout → how long one training step takes, why, and what memory it needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from rooflinekit.errors import InputError
from rooflinekit.ir.op import Phase
from rooflinekit.serving.decoder import Decoder
from rooflinekit.strategies.pipeline import Slot, Task, orders, pieces_under_way, run_pipeline
from rooflinekit.training.graph import update_j, update_s
from rooflinekit.training.layout import Groups, Layout, Part
from rooflinekit.training.pieces import Piece, Pieces, Place, training_energy
from rooflinekit.training.recipe import Recipe
from rooflinekit.training.step import Accounts, Held, Offload, TrainingStep, accounts_of, at_least_hopper, dense_peak


@dataclass(slots=True, kw_only=True)
class Planner:
    """One step, worked out in parts."""

    decoder: Decoder
    layout: Layout
    recipe: Recipe
    batch: int
    seq: int
    place: Place
    groups: Groups = field(init=False)
    pieces: Pieces = field(init=False)
    count: int = field(init=False)  # micro-batches of a copy
    waits: Waits = field(init=False)
    offload: Offload = field(init=False)

    def __post_init__(self) -> None:
        lay, place = self.layout, self.place
        self.count = lay.pieces(place.gpus, self.batch)
        part = Part(
            decoder=self.decoder, micro_batch=lay.micro_batch, seq=self.seq, tensor=lay.tensor,
            sequence=lay.sequence, context=lay.context, expert=lay.expert, expert_tensor=lay.expert_tensor,
        )  # fmt: skip
        if self.decoder.layers < lay.pipeline * lay.chunks:
            raise InputError(
                f"{self.decoder.name}: {self.decoder.layers} layers for {lay.pipeline} × {lay.chunks} stages"
            )
        self.pieces = place.bench.pieces(part, self.recipe.with_changes(offload=0))
        self.groups = Groups(
            cluster=place.cluster, machine=place.machine, links=place.links, layout=lay, gpus=place.gpus
        )  # fmt: skip
        self.waits = Waits(
            decoder=self.decoder, layout=lay, recipe=self.recipe, seq=self.seq, groups=self.groups, pieces=self.pieces
        )  # fmt: skip
        held = self.decoder.layers // lay.pipeline
        self.offload = Offload.of(self.recipe.offload, self.pieces.saved_bytes["layer"], held, place)

    # --- a layer ---------------------------------------------------------------------------------------------

    @property
    def boundary_bytes(self) -> float:
        """Of an activation between layers, all tokens of a tensor group."""
        return self.waits.boundary_bytes

    def sent_s(self, phase: Phase) -> dict[str, float]:
        """What a layer waits for in its groups, by group."""
        return self.waits.of(phase)

    def progress(self, group: str, what: str, size_bytes: float) -> float:
        """How fast kernels go beside a collective, over what they do alone."""
        return self.waits.progress(group, what, size_bytes)

    def layer(self, phase: Phase) -> float:
        """Seconds of a layer, with what its groups send."""
        return self._seconds(self.pieces.part("layer", phase)) + sum(self.sent_s(phase).values())

    def _offload_s(self, phase: Phase, stage: int = 0) -> float:
        """What the first layers of a GPU wait for their activations' copies, in one of its stages."""
        counts, pipeline = self.layers_of(), self.layout.pipeline
        before = sum(counts[stage % pipeline : stage : pipeline])
        own = max(0, min(counts[stage], self.offload.layers - before))
        return own * self.offload.wait_s(self.layer(phase)) if own else 0.0

    def _seconds(self, piece: Piece) -> float:
        return max(piece.gpu_s, piece.cpu_s)

    def head(self, phase: Phase) -> float:
        """The last norm, the output's product and the loss, with the group's reductions."""
        own = self._seconds(self.pieces.part("head", phase))
        if self.layout.tensor == 1:
            return own
        what = "all-gather" if self.layout.sequence else "all-reduce"
        if phase is Phase.BACKWARD:
            return own + self.groups.seconds("tensor", "all-reduce", self.boundary_bytes)
        small = 3 * self.groups.seconds("tensor", "all-reduce", self.boundary_bytes / self.decoder.hidden * 2)
        return own + small + (self.groups.seconds("tensor", what, self.boundary_bytes) if self.layout.sequence else 0)

    def embedding(self, phase: Phase) -> float:
        """The embedding, with the sum over its parts."""
        own = self._seconds(self.pieces.part("embedding", phase))
        if self.layout.tensor == 1 or phase is Phase.BACKWARD:
            return own
        what = "reduce-scatter" if self.layout.sequence else "all-reduce"
        return own + self.groups.seconds("tensor", what, self.boundary_bytes)

    # --- stages ----------------------------------------------------------------------------------------------

    def layers_of(self) -> list[int]:
        """Layers of each stage, the first ones the larger."""
        parts = self.layout.pipeline * self.layout.chunks
        whole, rest = divmod(self.decoder.layers, parts)
        return [whole + (k < rest) for k in range(parts)]

    def stages(self) -> list[Stage]:
        """What each stage takes for a micro-batch."""
        forward, backward = (self.layer(phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
        found = []
        counts = self.layers_of()
        for k, count in enumerate(counts):
            f, b = (count * s + self._offload_s(way, k) for way, s in zip(Phase, (forward, backward), strict=False))
            if k == 0:
                f, b = f + self.embedding(Phase.FORWARD), b + self.embedding(Phase.BACKWARD)
            if k == len(counts) - 1:
                f, b = f + self.head(Phase.FORWARD), b + self.head(Phase.BACKWARD)
            found.append(Stage(forward_s=f, backward_s=b))
        return found

    def hop_s(self) -> float:
        """An activation to the next stage; tensor groups send a part each."""
        if self.layout.pipeline == 1:
            return 0.0
        return self.groups.seconds("pipe", "send-recv", self.boundary_bytes / self.layout.tensor)

    # --- weights ---------------------------------------------------------------------------------------------

    def numbers(self) -> tuple[int, int]:
        """Of weights on the GPU that has the most of them: those of all copies, and of experts."""
        counts, w = self.layers_of(), self.pieces.weights
        lay = self.layout
        per_gpu = [sum(counts[k :: lay.pipeline]) for k in range(lay.pipeline)]
        found = []
        for k, count in enumerate(per_gpu):
            dense = count * w["layer"]
            first, last = k == 0, k == lay.pipeline - 1
            dense += w.get("embedding", 0) * first + w.get("head", 0) * last
            if self.pieces.tied and last and not first:
                dense += w.get("embedding", 0)
            found.append((dense, count * self.pieces.expert_weights))
        return max(found, key=sum)

    @property
    def replicas(self) -> int:
        """GPUs with the same weights: copies, and the parts of a sequence."""
        return self.layout.copies(self.place.gpus) * self.layout.context

    # --- the step --------------------------------------------------------------------------------------------

    def bound_s(self) -> float:
        """A time that the step is never below."""
        return least_s(self.stages(), self.count, self.layout.chunks)

    def step(self) -> TrainingStep:
        """All of it."""
        if self.layout.gathers:
            return self._gathered()
        stages = self.stages()
        run = pipelined(stages, self.count, self.layout.chunks, self.hop_s())
        exposed = self.waits.copies_s(self.numbers(), self.replicas, stages[0].forward_s, stages[0].backward_s)
        optimizer_s = self._update_s()
        layers, pieces = self.decoder.layers / self.layout.pipeline, self.count
        sums = self._sums(layers * pieces)
        if self.offload.layers:
            first = range(0, len(stages), self.layout.pipeline)
            ways = (Phase.FORWARD, Phase.BACKWARD)
            sums["offload"] = pieces * sum(self._offload_s(way, k) for way in ways for k in first)
        found = {**sums, "bubble": run.total_s - run.busy_s, "copies": exposed, "optimizer": optimizer_s}
        found["overhead"] = run.busy_s - sum(sums.values())
        return self._result(found, run)

    def _sums(self, layers: float) -> dict[str, float]:
        """Seconds by cause: kernels by their terms, then groups. The ends' time is kernels' too."""
        forward, backward = (self.pieces.part("layer", phase).gpu_s for phase in (Phase.FORWARD, Phase.BACKWARD))
        ends = self.count * sum(
            self.pieces.part(name, phase).gpu_s for name in ("embedding", "head")
            for phase in (Phase.FORWARD, Phase.BACKWARD)
        ) / (1 if self.layout.pipeline == 1 else 2)  # fmt: skip
        whole = forward + backward
        scale = (layers * whole + ends) / whole if whole else 0.0
        found = {name: scale * seconds for name, seconds in self.pieces.terms.items()}
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            for group, seconds in self.sent_s(phase).items():
                found[group] = found.get(group, 0.0) + layers * seconds
        return found

    def _updated(self) -> float:
        """Numbers that a GPU's optimizer has of the weights."""
        dense, experts = self.numbers()
        parts = max(1, self.replicas // self.layout.instances) if self.layout.sharding != "ddp" else 1
        return dense / parts + experts / max(1, parts // self.layout.expert)

    def _update_s(self) -> float:
        """The gradients' norm, and the optimizer."""
        return update_s(self._updated(), self.recipe, self.place.machine, self.place.host)

    def _gathered(self) -> TrainingStep:
        """Layers that gather their weights, one after another."""
        lay, w = self.layout, self.pieces.weights
        layer = Stage(forward_s=self.layer(Phase.FORWARD), backward_s=self.layer(Phase.BACKWARD))
        ends = Stage(
            forward_s=self.embedding(Phase.FORWARD) + self.head(Phase.FORWARD),
            backward_s=self.embedding(Phase.BACKWARD) + self.head(Phase.BACKWARD),
        )  # fmt: skip
        inside = "node" if lay.sharding == "hybrid" else "data"
        first = w.get("embedding", 0) + w.get("head", 0)
        sizes = [2.0 * first, *[2.0 * (w["layer"] + self.pieces.expert_weights)] * self.decoder.layers]
        gather = [self.groups.seconds(inside, "all-gather", size) for size in sizes]
        reduce = [self.groups.seconds(inside, "reduce-scatter", size) for size in sizes]
        across = [
            self.groups.seconds("across", "all-reduce", size / max(1, len(self.groups.members("node"))))
            for size in sizes
        ] if lay.sharding == "hybrid" else []  # fmt: skip
        count = self.decoder.layers
        waiting = Stage(
            forward_s=layer.forward_s + self.offload.wait_s(layer.forward_s),
            backward_s=layer.backward_s + self.offload.wait_s(layer.backward_s),
        )  # fmt: skip
        away = self.offload.layers
        run = gathered(
            [ends, *[waiting] * away, *[layer] * (count - away)], gather, reduce, pieces=self.count,
            progress=self.progress(inside, "all-gather", sizes[-1]),
            again=lay.sharding != "grad-op", across_s=across,
        )  # fmt: skip
        optimizer_s = self._update_s()
        sums = self._sums(self.decoder.layers * self.count)
        if away:
            waits = waiting.forward_s + waiting.backward_s - layer.forward_s - layer.backward_s
            sums["offload"] = self.count * away * waits
        found = {**sums, "copies": run.exposed_s, "contention": run.contention_s, "optimizer": optimizer_s}
        busy = run.total_s - run.exposed_s - run.contention_s
        found["overhead"] = busy - sum(sums.values())
        return self._result(found, Pipelined(total_s=run.total_s, busy_s=busy, under_way=(1,)))

    def _result(self, terms: Mapping[str, float], run: Pipelined) -> TrainingStep:
        spread = max([0.0, *self.groups.spreads.values()])
        energy = training_energy(
            self.place.machine, self.pieces.drawn_j, update_j(self._updated(), self.recipe, self.place.machine),
            total_s=sum(terms.values()), gpus=self.place.gpus, pieces=self.count, layers=self.decoder.layers,
            pipeline=self.layout.pipeline,
        )  # fmt: skip
        return TrainingStep(
            energy=energy,
            decoder=self.decoder, layout=self.layout, recipe=self.recipe, cluster=self.place.cluster,
            gpus=self.place.gpus, batch=self.batch, seq=self.seq, pieces=self.count,
            terms=MappingProxyType(dict(terms)),
            peak_flops=dense_peak(self.place.machine, self.recipe), deviation=math.hypot(self.pieces.deviation, 0.0),
            link_deviation=spread, host_deviation=self.place.host.spread, stages=self.accounts(run.under_way),
            device=self.place.machine.device,
        )  # fmt: skip

    def accounts(self, under_way: Sequence[int] = ()) -> tuple[Accounts, ...]:
        """Peak memory of a GPU of each stage. under_way: micro-batches that it keeps, by its chunks."""
        lay, counts = self.layout, self.layers_of()
        if not under_way:
            under_way = [min(self.count, lay.pipeline - k) * lay.chunks for k in range(lay.pipeline)]
        held = Held(
            decoder=self.decoder, layout=lay, recipe=self.recipe, pieces=self.pieces, replicas=self.replicas,
            shards=len(self.groups.members("node")) if lay.sharding == "hybrid" else self.replicas,
            tokens=lay.micro_batch * self.seq // lay.context, capacity=self.place.machine.device.dram.capacity,
            offload=self.offload, hopper=at_least_hopper(self.place.machine.device.compute_capability),
        )  # fmt: skip
        return tuple(
            accounts_of(held, k, sum(counts[k :: lay.pipeline]), under_way[k] if k < len(under_way) else 1)
            for k in range(lay.pipeline)
        )


# What a step waits for in its groups: reductions of tensor groups, keys around a ring, tokens to experts, copies.


#: Share of a bucket's worth of gradients that is still to be sent when backward ends, of all: Megatron's buckets hold
#: max(40 M, 1 M · copies) numbers (megatron/core/distributed/distributed_data_parallel.py).
_BUCKET_NUMBERS, _BUCKET_NUMBERS_A_COPY = 40_000_000, 1_000_000


@dataclass(slots=True, kw_only=True)
class Waits:
    """Of one micro-batch on one GPU."""

    decoder: Decoder
    layout: Layout
    recipe: Recipe
    seq: int
    groups: Groups
    pieces: Pieces

    @property
    def boundary_bytes(self) -> float:
        """Of an activation between layers, all tokens of a tensor group."""
        lay = self.layout
        return 2.0 * lay.micro_batch * self.seq / lay.context * self.decoder.hidden

    def of(self, phase: Phase) -> dict[str, float]:
        """Seconds by group."""
        lay, size, backward = self.layout, self.boundary_bytes, phase is Phase.BACKWARD
        again = backward and self.recipe.recompute == "full"
        rounds = 2 + 2 * again  # attention and network; and once more for what is computed again
        found: dict[str, float] = {}
        if lay.tensor > 1:
            found["tensor"] = self._tensor_s(size, backward=backward, rounds=rounds)
        if lay.context > 1:
            found["context"] = self._context_s(phase)
        if self.decoder.experts and lay.expert > 1:
            tokens = 2.0 * self.decoder.hidden * self.decoder.experts_per_token
            tokens *= lay.micro_batch * self.seq / lay.context / (lay.tensor if lay.sequence else 1)
            found["expert"] = (2 + 2 * again) * self.groups.seconds("expert", "all-to-all", tokens)
        return found

    def _tensor_s(self, size: float, *, backward: bool, rounds: int) -> float:
        """Two reductions each way, or a gather and a scatter for each; backward's run beside weights' gradients."""
        groups, pieces = self.groups, self.pieces
        moe = bool(self.decoder.experts)
        if not self.layout.sequence:
            each = groups.seconds("tensor", "all-reduce", size)
            hidden = 0.0
            if backward:
                # Megatron reduces the gradient of a column layer's input beside its weight's gradient.
                beside = pieces.part("layer", Phase.BACKWARD).weight_gradient_s / 2
                hidden = min(2 * each, beside) * self.progress("tensor", "all-reduce", size)
            return rounds * each - hidden
        each = groups.seconds("tensor", "all-gather", size) + groups.seconds("tensor", "reduce-scatter", size)
        if self.recipe.tensor_overlap:
            each = self._piecewise_s(each, backward=backward)
        rounds = rounds // 2 if moe and self.layout.expert_tensor == 1 else rounds  # the mixture keeps its own tokens
        return rounds * each

    def _piecewise_s(self, each_s: float, *, backward: bool) -> float:
        """What is left of a gather and a scatter that go piece by piece beside a product: the first piece, and what is
        longer than the product.
        """
        phase = Phase.BACKWARD if backward else Phase.FORWARD
        piece = self.pieces.part("layer", phase)
        product_s = (piece.gpu_s - piece.attention_s) / 2
        return max(each_s / self.layout.tensor, each_s - product_s)

    def progress(self, group: str, what: str, size_bytes: float) -> float:
        """How fast kernels go beside a collective, over what they do alone."""
        if self.recipe.progress is not None:
            return self.recipe.progress
        return 1 / self.groups.slowdown(group, what, size_bytes)

    def _context_s(self, phase: Phase) -> float:
        """Keys and values around the ring beside attention; what is longer than that is waited for."""
        lay, d = self.layout, self.decoder
        width = max(1, d.kv_heads // lay.tensor) * d.head_dim
        size = 2.0 * 2 * lay.micro_batch * self.seq * width
        way = self.groups.seconds("context", "all-gather", size)
        backward = phase is Phase.BACKWARD
        beside = self.pieces.part("layer", phase).attention_s
        return max(0.0, (2 if backward else 1) * way - beside * (1 - 1 / lay.context))

    def copies_s(self, numbers: tuple[int, int], replicas: int, forward_s: float, backward_s: float) -> float:
        """What the copies' gradients and weights make a step wait for.

        numbers: of weights that all copies have, and of experts. replicas: GPUs with the same weights. forward_s,
        backward_s: of a micro-batch through the first stage, beside which they are sent.
        """
        dense, experts = numbers
        lay = self.layout
        shared = lay.sharding != "ddp"
        gradient = 4 if self.recipe.main_gradients else 2
        what = "reduce-scatter" if shared else "all-reduce"
        reduce_s, gather_s = 0.0, 0.0
        for group, count in (("data", dense), ("expert data", experts)):
            if count:
                reduce_s += self.groups.seconds(group, what, float(gradient * count))
                gather_s += self.groups.seconds(group, "all-gather", 2.0 * count) if shared else 0.0
        if not lay.overlap:
            return reduce_s + gather_s
        bucket = max(_BUCKET_NUMBERS, _BUCKET_NUMBERS_A_COPY * replicas)
        tail = min(1.0, bucket / max(1, dense + experts))
        hidden = [min((1 - tail) * s, way) for s, way in ((reduce_s, backward_s), (gather_s, forward_s))]
        contention = sum(hidden) * (1 - self.progress("data", what, float(gradient * dense)))
        return reduce_s + gather_s - sum(hidden) + contention


# When a pipeline of equal stages is done, and what layers wait for that gather their weights.


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a chunk of layers takes for a micro-batch."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelined:
    """A pipeline's step before what copies send."""

    total_s: float
    busy_s: float  # of the GPU that computes most
    under_way: tuple[int, ...]  # micro-batches, each through a chunk, that a GPU keeps at once


def pipelined(stages: Sequence[Stage], pieces: int, chunks: int, hop_s: float) -> Pipelined:
    """1F1B, interleaved where a GPU has several chunks. Stage s is on GPU s mod GPUs.

    hop_s: what an activation takes to the next stage, for which sender and receiver wait (Megatron-LM's batched
    send and receive).
    """
    gpus = len(stages) // chunks
    if gpus == 1:
        busy = pieces * (stages[0].forward_s + stages[0].backward_s)
        return Pipelined(total_s=busy, busy_s=busy, under_way=(1,))
    interleaved = chunks > 1 and pieces % gpus == 0
    queues = orders("interleaved" if interleaved else "1f1b", gpus, pieces, chunks if interleaved else 1)
    own = stages if interleaved else _whole(stages, gpus)
    ready = [0.0] * gpus
    last = len(own) - 1
    worked = [0.0] * gpus

    def perform(gpu: int, task: Task, ready_s: float) -> Slot:
        stage = own[task.stage]
        seconds = stage.backward_s if task.backward else stage.forward_s
        sends = task.stage > 0 if task.backward else task.stage < last
        start = max(ready[gpu], ready_s)
        ready[gpu] = start + seconds + (hop_s if sends else 0.0)
        worked[gpu] += seconds
        return Slot(task=task, start_s=start, end_s=start + seconds)

    slots, _ = run_pipeline([hop_s] * last, queues, perform)
    return Pipelined(
        total_s=max(ready), busy_s=max(worked), under_way=tuple(pieces_under_way(row) for row in slots)
    )  # fmt: skip


def _whole(stages: Sequence[Stage], gpus: int) -> list[Stage]:
    """All chunks of a GPU in one stage."""
    return [
        Stage(
            forward_s=sum(stage.forward_s for stage in stages[k::gpus]),
            backward_s=sum(stage.backward_s for stage in stages[k::gpus]),
        )
        for k in range(gpus)
    ]  # fmt: skip


def least_s(stages: Sequence[Stage], pieces: int, chunks: int) -> float:
    """A time below which no schedule of these stages is done: the slowest GPU's work and the way there and back."""
    gpus = len(stages) // chunks
    own = _whole(stages, gpus)
    way = sum(stage.forward_s + stage.backward_s for stage in stages[:gpus])
    return max(pieces * (s.forward_s + s.backward_s) + way * (1 - 1 / gpus) * (gpus > 1) for s in own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A step whose layers gather their weights."""

    total_s: float
    exposed_s: float  # waits for the links
    contention_s: float  # by which collectives slow what computes beside them


def gathered(
    blocks: Sequence[Stage], gather_s: Sequence[float], reduce_s: Sequence[float], *, pieces: int, progress: float,
    again: bool, across_s: Sequence[float] = (),
) -> Gathered:  # fmt: skip
    """FSDP: weights gathered one block ahead, gradients reduced behind, all on one queue of the links.

    blocks: forward and backward of each; gather_s, reduce_s: of its collectives. progress: how fast kernels go beside a
    collective, over what they do alone. again: weights are gathered once more for backward (FULL_SHARD). across_s: of
    hybrid sharding, the all-reduce between nodes that follows each reduce-scatter.
    """
    run = _Links(progress=progress)
    count = len(blocks)
    for _ in range(pieces):
        there = [0.0] * count
        begun: list[float] = []
        for i, block in enumerate(blocks):
            # the CPU holds a gather back until the block before the last one is done: two are kept at once
            there[i] = run.send(gather_s[i], begun[i - 2] if i > 1 else 0.0)
            begun.append(run.compute(block.forward_s, there[i]))
        for i in reversed(range(count)):
            if again and i == count - 1:
                there[i] = run.gpu  # the last block's weights are kept
            if again and i > 0:
                there[i - 1] = run.send(gather_s[i - 1], run.gpu)
            run.compute(blocks[i].backward_s, there[i])
            run.send(reduce_s[i], run.gpu)
            if across_s:
                run.send(across_s[i], run.gpu)
    end = max(run.gpu, run.link)
    return Gathered(total_s=end, exposed_s=run.waited + end - run.gpu, contention_s=run.contention)


@dataclass(slots=True)
class _Links:
    """The GPU and its links, each one thing after another."""

    progress: float
    gpu: float = 0.0
    link: float = 0.0
    waited: float = 0.0
    contention: float = 0.0
    busy: list[tuple[float, float]] | None = None

    def send(self, seconds: float, not_before_s: float) -> float:
        start = max(self.link, not_before_s)
        self.link = start + seconds
        self.busy = [*(self.busy or [])[-3:], (start, self.link)]
        return self.link

    def compute(self, seconds: float, ready_s: float) -> float:
        start = max(self.gpu, ready_s)
        self.waited += start - self.gpu
        beside = sum(max(0.0, min(end, start + seconds) - max(begin, start)) for begin, end in self.busy or ())
        extra = min(beside, seconds) * (1 - self.progress)
        self.contention += extra
        self.gpu = start + seconds + extra
        return self.gpu
