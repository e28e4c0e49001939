"""A step in a pipeline's stages: every device's queues over all pieces of the batch.

A stage's CPU issues its tasks in their order and does not wait for its neighbours, its GPU does. Several kinds of
devices in a stage go through each task together: the slowest sets the pace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain, groupby
from types import MappingProxyType

from rooflinekit.distributed.groups import Groups
from rooflinekit.distributed.pipeline import Slot, Task, balanced, pieces_under_way, run_pipeline
from rooflinekit.distributed.prediction import TERMS, Share, fullest_of
from rooflinekit.distributed.queues import (
    Barrier,
    DeviceQueues,
    DeviceRun,
    Item,
    Links,
    Message,
    Work,
    copied_s,
    covered,
    entry_s,
    is_issued_anew,
    items_of,
    pace_of,
    run_together,
    waits_of,
)
from rooflinekit.distributed.rewriting import (
    block_of,
    blocks_of,
    bytes_of,
    is_ours,
    kept_for_backward,
    made_by,
    on_tensors,
    scaled,
    times,
    used_by,
)
from rooflinekit.ir import keyed
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import EAGER, Op, Phase, PricedOp, TensorSpec, memories
from rooflinekit.step.energy import drawn_by
from rooflinekit.step.entry import entry_of
from rooflinekit.step.memory import MemoryUse
from rooflinekit.step.memory_course import Moment, memory_course
from rooflinekit.step.prediction import Prediction, launched_by
from rooflinekit.step.variants import BATCH
from rooflinekit.timing.collectives import CollectiveTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A stage on one kind of device."""

    prediction: Prediction  # of a step of `parts` pieces
    parts: int
    piece: Graph  # of one piece
    tasks: Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The chunks that each device runs."""

    kinds: Sequence[Mapping[tuple[int, ...], Sequence[Chunk]]]  # by device: the numbers of each kind, and its chunks
    queues: Sequence[Sequence[Task]]
    pieces: int
    hops: Sequence[CollectiveTiming]  # from each stage to the next one


def run_stages(plan: Plan) -> tuple[tuple[Share, ...], tuple[Message, ...], float]:
    """Each device's share, what is sent, and how long the links are busy."""
    (runs, slots, messages), (ideal, _, _) = _run(plan, free=False), _run(plan, free=True)
    busy_s = covered([(m.start_s, m.end_s) for m in messages])
    shares = [
        _share(plan, device, numbers, runs[device][numbers], ideal[device][numbers], slots[device], busy_s)
        for device, kinds in enumerate(plan.kinds) for numbers in kinds
    ]  # fmt: skip
    return tuple(shares), tuple(sorted(messages, key=lambda m: m.start_s)), busy_s


def _run(plan: Plan, *, free: bool) -> tuple[list[dict[tuple[int, ...], DeviceRun]], list[list[Slot]], list[Message]]:
    """What became of each kind of each device, its tasks, and what was sent. free: links take no time."""
    devices = [{n: DeviceQueues(pace_of(own[0].prediction)) for n, own in kinds.items()} for kinds in plan.kinds]
    links = [Links(free=free) for _ in plan.kinds]
    messages: list[Message] = []
    for queues, kinds in zip(devices, plan.kinds, strict=True):
        for numbers, own in kinds.items():
            run_together([queues[numbers]], [start_of(own[0], plan.pieces)[0]], Links())

    def together(device: int, task: Task, items: Sequence[Sequence[Item]]) -> None:
        """All kinds of a device; what they send has the task in its name."""
        sent = len(links[device].messages)
        run_together(list(devices[device].values()), items, links[device])
        messages.extend(
            replace(m, key=f"{m.key}, {task.piece}", group=f"{m.group}, stage {task.stage}")
            for m in links[device].messages[sent:]
        )

    def perform(device: int, task: Task, ready_s: float) -> Slot:
        queues = devices[device].values()
        start = max(ready_s, *(one.gpu for one in queues))
        for one in queues:
            one.hold(ready_s)
        chunks = [own[task.stage // len(devices)] for own in plan.kinds[device].values()]
        together(device, task, [chunk.tasks.of(task, plan.pieces) for chunk in chunks])
        return Slot(task=task, start_s=start, end_s=max(start, *(one.gpu for one in queues)))

    slots, hops = run_pipeline([0.0 if free else hop.total_s for hop in plan.hops], plan.queues, perform)
    for hop in hops:
        task, link = hop.task, hop.task.stage - hop.task.backward
        key, group = f"{'back ' if task.backward else ''}{task.piece}", f"pipe {link}"
        messages.append(Message(key=key, group=group, timing=plan.hops[link], start_s=hop.start_s, end_s=hop.end_s))
    for device, kinds in enumerate(plan.kinds):
        for k, chunks in enumerate(zip(*kinds.values(), strict=True)):
            last = Task(stage=k * len(devices) + device, piece=plan.pieces - 1, backward=True)
            together(device, last, [chunk.tasks.finish for chunk in chunks])
    return [{numbers: one.finished() for numbers, one in queues.items()} for queues in devices], slots, messages


def _share(
    plan: Plan, device: int, numbers: tuple[int, ...], run: DeviceRun, free: DeviceRun, slots: Sequence[Slot],
    busy_s: float,
) -> Share:  # fmt: skip
    """A device's share. Waits that it also has with links for nothing are its bubble; the rest is communication."""
    own = plan.kinds[device][numbers]
    p, copied = own[0].prediction, start_of(own[0], plan.pieces)[1]
    waits = run.exposed_s + run.straggling_s
    exposed = min(max(0.0, waits - free.exposed_s - free.straggling_s), busy_s)
    terms = dict.fromkeys(TERMS, 0.0) | keyed.added(span.timing.terms() for span in run.spans)
    terms |= waits_of(p, run, copied) | {"communication": exposed, "straggling": 0.0, "bubble": waits - exposed}
    named = tuple(
        (f"{'backward' if one.task.backward else 'forward'} {one.task.piece}, stage {one.task.stage}", one.start_s,
         one.end_s) for one in slots
    )  # fmt: skip
    memory, course = _held(own, slots, plan.pieces)
    return Share(
        numbers=numbers, prediction=p, run=replace(run, spans=(), cpu=(), slots=named), terms=MappingProxyType(terms),
        batch=plan.pieces * own[0].piece.sizes[BATCH], memory=memory,
        further=tuple(chunk.prediction for chunk in own[1:]), staged=course,
        kernels_j=drawn_by((span.timing for span in run.spans), launched_by(p.execution, p.machine)),
    )  # fmt: skip


#: What stands throughout, by account: the field of `MemoryUse`.
_STANDING = {"weights": "weight_bytes", "gradients": "gradient_bytes", "optimizer state": "state_bytes"}


def _held(own: Sequence[Chunk], slots: Sequence[Slot], pieces: int) -> tuple[MemoryUse, tuple[Moment, ...]]:
    """What a device needs, and its memory at a moment for each task: the fullest to which the chunk that needs most
    while it computes comes in this phase, with what the other chunks have standing, the inputs of all pieces, and what
    the pieces then under way keep. The last moment is the optimizer's.
    """
    uses = [chunk.prediction.memory for chunk in own]
    fullest = max(range(len(own)), key=lambda i: uses[i].peak_bytes - uses[i].standing_bytes)
    use, others = uses[fullest], [one for i, one in enumerate(uses) if i != fullest]
    beside = {account: sum(getattr(one, name) for one in others) for account, name in _STANDING.items()}
    beside["inputs"] = sum((pieces - chunk.parts) * bytes_of(chunk.piece.inputs) for chunk in own)
    moments = fullest_of(memory_course(own[fullest].prediction))
    piece_bytes = max(saved_bytes(chunk.piece) for chunk in own)
    phases, course = (Phase.FORWARD, Phase.BACKWARD), []
    tasks = zip(slots, pieces_under_way(slots), strict=True)
    ends = max((slot.end_s for slot in slots), default=0.0), Phase.OPTIMIZER, 1
    for start_s, phase, count in (*((s.start_s, phases[s.task.backward], count) for s, count in tasks), ends):
        if one := moments.get(phase):
            more = {**beside, "activations": (count - 1) * piece_bytes}
            held = {name: size + more.get(name, 0) for name, size in one.bytes_of.items()}
            # fragments are not followed
            course.append(replace(one, start_s=start_s, bytes_of=MappingProxyType(held), fragment_bytes=0))
    peak = max(one.total_bytes for one in course)
    reserved = use.reserved_bytes + peak - use.peak_bytes
    fits = reserved <= uses[0].room and not use.refused
    standing = {name: sum(getattr(one, name) for one in uses) for name in _STANDING.values()}
    return replace(use, peak_bytes=peak, reserved_bytes=reserved, fits=fits, **standing), tuple(course)


# What a device of a pipeline's stage runs: for each piece of the batch forward and backward, once the optimizer.
#
# A step of two pieces holds all that there is: the first piece, whose gradients are new, and a later one, which adds to
# them. Copies agree on gradients in the last piece alone; weights that are shared out are gathered before the
# first one.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """The items of each task of a stage, and of what follows the last one."""

    forward: tuple[Sequence[Item], ...]  # of the first piece, of a later one
    backward: tuple[Sequence[Item], ...]  # likewise, and of the last one
    finish: tuple[Item, ...]  # waits for what was sent, then the optimizer

    def of(self, task: Task, pieces: int) -> Sequence[Item]:
        """The kernels of a task, in a step of `pieces` pieces."""
        later = min(task.piece, 1)
        if not task.backward:
            return self.forward[later]
        return self.backward[2 if task.piece == pieces - 1 else later]


def tasks_of(p: Prediction, groups: Groups, *, first: bool, last: bool) -> Tasks:
    """Of the prediction of a stage's step of one piece, or of two.

    first, last: whether the stage is; others receive a piece before, or send it on after, which the CPU issues.
    """
    runs = [(phase, list(own)) for phase, own in groupby(items_of(p, groups), lambda pair: pair[0].phase)]
    forward, backward, steps = ([own for phase, own in runs if phase is wanted] for wanted in Phase)
    plain = is_issued_anew(p)
    hop: tuple[Item, ...] = (Work(what="send or receive", cpu_s=p.host.dispatch_s("default")),) if plain else ()
    enter = (Work(what="compiled graph", cpu_s=entry_s(p)),) if plain and p.execution.fused else ()
    replay_s = entry_of(p.host, p.execution).replay_s if p.execution.fused else 0.0
    again = (Work(what="CUDA graph", cpu_s=replay_s),) if plain and replay_s else ()
    before, behind = () if first else hop, () if last else hop
    ending = backward[-1] if backward else []
    waits = (i for i, (op, item) in enumerate(ending) if isinstance(item, Barrier) and of_copies(op))
    cut = next(waits, len(ending))  # from the first wait for copies on, all that was sent has come
    sent = ending[:cut]
    begun, later = (forward[0], forward[-1]) if forward else ([], [])
    return Tasks(
        forward=tuple((*before, *enter, *own, *behind) for own in (_items(begun), _items(later, alone=True))),
        backward=tuple(
            (*behind, *again, *own, *before)
            for own in (_items(backward[0], alone=True) if backward else [], _items(sent, alone=True), _items(sent))
        ),
        finish=tuple(chain.from_iterable(map(_items, (ending[cut:], *steps)))),
    )  # fmt: skip


def _items(pairs: Sequence[tuple[Op, Item]], *, alone: bool = False) -> list[Item]:
    """alone: without what only a piece does whose gradients, or weights, go to other copies."""
    return [item for op, item in pairs if not (alone and (EAGER in op.attrs or of_copies(op)))]


def of_copies(op: Op) -> bool:
    """Whether it sends what copies agree on, or waits for it."""
    return is_ours(op) and op.attrs.get("group") in ("data", "expert data")


def start_of(chunk: Chunk, pieces: int) -> tuple[list[Item], float]:
    """What the CPU does before the first piece, inputs of all pieces copied at once, and the time of these copies."""
    p, host = chunk.prediction, chunk.prediction.host
    copied = copied_s(p) * pieces / chunk.parts
    if not is_issued_anew(p):
        return [], copied
    waits = len(p.timeline.copies) / chunk.parts * (host.dispatch_s("default") + host.launch_latency + host.sync)
    return [Work(what="step and inputs", cpu_s=host.step + waits + copied)], copied


def stage_of_blocks(predicted: Sequence[Prediction]) -> dict[str, int]:
    """The stage of each block, such that the slowest stage is fastest.

    predicted: the whole step on the device of each stage. Raises InputError for a model of fewer blocks than stages.
    """
    blocks, found = blocks_of(predicted[0].graph), []
    for p in predicted:  # without the optimizer and what the step waits for before its first kernel
        seconds = dict.fromkeys(blocks_of(p.graph), 0.0)
        for k, span in enumerate(p.spans):
            block = block_of(span.timing.kernel.module)
            if block in seconds and span.timing.kernel.phase is not Phase.OPTIMIZER:
                seconds[block] += span.timing.total_s + (span.waited_s if k else 0.0)
        found.append([*seconds.values()])
    starts = balanced(found)
    return {block: max(k for k, start in enumerate(starts) if start <= i) for i, block in enumerate(blocks)}


def stages_of(graph: Graph, stages: dict[str, int], parts: int) -> list[Graph]:
    """What each stage runs. Ops of the root go with the op before them, the optimizer with its weights."""
    if parts == 1:
        return [graph]
    now = 0
    cut: list[list[PricedOp]] = [[] for _ in range(parts)]
    for priced in graph.priced:
        if priced.op.phase is Phase.OPTIMIZER:
            continue
        now = stages.get(block_of(priced.op.module), now)
        cut[now].append(priced)
    made = [used_by(ops) for ops in cut]
    sizes = [bytes_of(w for w in graph.learned if w.memory in own) for own in made]
    steps = [p for p in graph.priced if p.op.phase is Phase.OPTIMIZER]
    split = memories(graph.learned) | memories(graph.gradients)
    found = []
    for ops, own, size in zip(cut, made, sizes, strict=True):
        share = Fraction(size, max(1, sum(sizes)))
        back = made_by(p for p in ops if p.op.phase is Phase.BACKWARD)
        found.append(
            replace(
                graph, priced=(*ops, *_steps(steps, share, split, own)),
                inputs=tuple(spec for spec in graph.inputs if spec.memory in own),
                weights=tuple(spec for spec in graph.weights if spec.memory in own),
                gradients=tuple(spec for spec in graph.gradients if spec.memory in back),
            )
        )  # fmt: skip
    return found


def _steps(steps: Sequence[PricedOp], share: Fraction, split: Set[str], own: Set[str]) -> Iterator[PricedOp]:
    """The optimizer's ops on a stage's own weights and gradients, by their share of those that an op is given.

    split: memory of all weights and gradients; own: what the stage's ops use. States and scalars are not known by
    stage: of them each op has as large a share, or all ops together that of the stage's weights.
    """

    def part(spec: TensorSpec, share: Fraction) -> TensorSpec | None:
        if spec.memory in split:
            return spec if spec.memory in own else None
        return replace(spec, shape=(times(spec.numel, share),), stride=None) if spec.shape else spec

    for p in steps:
        known = [spec for spec in (*p.op.inputs, *p.op.outputs) if spec.memory in split]
        kept = [spec for spec in known if spec.memory in own]
        own_share = Fraction(bytes_of(kept), bytes_of(known)) if known else share
        if own_share:
            yield on_tensors(p, partial(part, share=own_share), scaled(p.costs, own_share))


def crossing_bytes(stages: Sequence[Graph]) -> list[int]:
    """Bytes that forward sends from each stage but the last to those after it; backward sends as many back."""
    made: dict[str, int] = {}
    used: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for k, op in ((k, op) for k, stage in enumerate(stages) for op in stage.ops if op.phase is Phase.FORWARD):
        used |= {spec.memory: k for spec in op.inputs if spec.memory in made}
        for spec in op.outputs:
            made.setdefault(spec.memory, k)
            sizes[spec.memory] = max(sizes.get(spec.memory, 0), int(spec.bytes))
    return [
        sum(sizes[memory] for memory, last in used.items() if made[memory] <= k < last) for k in range(len(stages) - 1)
    ]


def saved_bytes(stage: Graph) -> int:
    """Bytes that forward makes, or is given by other stages, and backward reads: what a piece under way keeps."""
    return bytes_of(kept.spec for kept in kept_for_backward(stage, given=True).values())
