"""The graph of a decoder's training step, and its parts that repeat, each timed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType

from rooflinekit.cost.table import price_all
from rooflinekit.decoder.decoder import Decoder
from rooflinekit.decoder.layers import Tape
from rooflinekit.distributed.groups import Setting
from rooflinekit.distributed.layers import Training
from rooflinekit.distributed.products import GradientTape, Part
from rooflinekit.distributed.queues import Work, is_arithmetic
from rooflinekit.distributed.records import Layout, Recipe, recipe_of
from rooflinekit.distributed.rewriting import Kept, is_ours, kept_for_backward, sent_in
from rooflinekit.distributed.saving import checkpointed
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir import keyed
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import DType, Op, Phase, PricedOp, Role, TensorSpec, memories
from rooflinekit.ir.points import integer
from rooflinekit.ir.sizes import ceil_div
from rooflinekit.kernels.eager import issues_of
from rooflinekit.kernels.kernel import Issue
from rooflinekit.step.energy import drawn_by
from rooflinekit.step.entry import by_issue, issue_cost_s, issues_for
from rooflinekit.step.execution import Execution
from rooflinekit.step.memory import blocks_of
from rooflinekit.step.utilization import AGAIN
from rooflinekit.timing.families import OF_THE_DAY
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.timings import Timing, estimate_of_timings, time_kernels


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
    """The graph of one GPU's part, with what its groups send within a layer."""
    tape = GradientTape(dtype=recipe.dtype, summed_in=DType.FLOAT32 if recipe.main_gradients else None)
    decoder, tensor = part.decoder, part.layout.tensor
    writer = Training(
        decoder=decoder, tape=tape, tensor=tensor, vocab=ceil_div(decoder.vocab, tensor), part=part, recipe=recipe
    )
    ids, loss = writer.step()
    weights, gradients = tuple(tape.weights.values()), tuple(tape.main.values())
    ops = [op for op in tape.ops if not is_ours(op) or getattr(part.layout, op.attrs["group"].replace(" ", "_")) > 1]
    ops += optimizer_ops(weights, gradients, recipe) if optimizer else ()
    graph = Graph(
        name=f"{part.decoder.name} training", mode="training", inputs=(ids,), weights=weights, outputs=(loss,),
        gradients=gradients, priced=price_all(ops), sizes={"batch": part.layout.micro_batch, "seq": part.seq},
        held=MappingProxyType(dict.fromkeys(writer.held, ops[-1].name)),
    )  # fmt: skip
    if recipe.recompute == "none":
        return graph
    layers = tuple(f"layers.{i}" for i in range(part.decoder.layers))
    if recipe.recompute == "full":
        return checkpointed(graph, layers, whole=True)
    if recipe.selective == "ops":
        return checkpointed(graph, layers, _saved_by_ops)
    return checkpointed(graph, tuple(f"{layer}.attention.core" for layer in layers), whole=True)


def _saved_by_ops(forward: Sequence[PricedOp]) -> list[PricedOp]:
    """What torchtitan's selective checkpoint of a block saves: the results of attention, of reductions that scatter,
    and of its first, third, fifth … product (`selective_ac_option = "op"`, `_save_list` of
    torchtitan/parallelisms/parallelize_llama.py).
    """
    products = [p for p in forward if p.op.kind == "aten.mm"][::2]
    others = [
        p for p in forward
        if "scaled_dot_product" in p.op.kind or p.op.attrs.get("collective") == "reduce-scatter"
    ]  # fmt: skip
    return [*products, *others]


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


#: Numbers for which the step is timed: traffic of the memory grows in proportion from there on.
_TIMED = 2**26


def update_of(numbers: float, recipe: Recipe, machine: Machine, host: Host) -> tuple[float, Mapping[str, float] | None]:
    """Seconds for so many weights: the gradients' norm, their clipping, and Adam; and joules by part, beside idling,
    None where no power is stated.
    """
    issues, share = _issues(recipe), numbers / _TIMED
    timings = time_kernels([kernel for issue in issues for kernel in issue.kernels], machine)
    gpu_s, cpu_s = share * sum(t.total_s for t in timings), sum(issue_cost_s(i, host) for i in issues)
    drawn = drawn_by(timings, machine)
    return max(gpu_s, cpu_s + host.step), drawn and {name: share * j for name, j in drawn.items()}


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


#: Layers of the graph that stands for all: one that follows another finds in the cache what a further one would.
_LAYERS = 2
_FIRST = {Phase.FORWARD: "layers.0", Phase.BACKWARD: f"layers.{_LAYERS - 1}"}  # which follow no other layer
_EAGER, _COMPILED = Execution(), Execution(backend="compiled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The parts of one micro-batch on one GPU, by name and phase, and what each keeps."""

    items: Mapping[tuple[str, Phase], Sequence[Work | Op]]  # kernels of "embedding", "layer", "head", backward with
    # what is computed again, and what groups send between them
    groups: Set[str]  # that send something between them
    weights: Mapping[str, int]  # elements of each part on a GPU; "experts" of a layer apart
    saved_bytes: Mapping[str, int]  # what forward keeps for backward, by part
    working_bytes: Mapping[str, int]  # the most that is there beside it while backward goes through a part
    left_bytes: int  # what Python holds until the step ends: the output of an eager model
    terms: Mapping[str, Mapping[str, float]]  # of each part's kernels, by cause, forward and backward together
    deviation: float  # of the logarithm of a layer's time, beside what programs are off by (`step.bounds.SOURCES`)
    drawn_j: Mapping[str, Mapping[str, float]] | None  # of the parts' kernels by the board's parts, beside idling
    again_flop: int  # of a layer's products that backward computes again


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
    execution = _COMPILED if recipe.kernels == "compiled" else _EAGER
    graph = graph_of(part, recipe.with_changes(loss="plain"), optimizer=False)
    issues = issues_for(graph, machine.device, execution)
    timings = time_kernels([kernel for issue in issues for kernel in issue.kernels], machine)
    found: dict[tuple[str, Phase], list[Timing | Op]] = defaultdict(list)
    cpu_s: dict[tuple[str, Phase], float] = defaultdict(float)
    for issue, timed in by_issue(issues, timings):
        key = _part_of(issue.op.module), issue.op.phase
        if issue.op.module.startswith(_FIRST[issue.op.phase]):
            continue
        if is_ours(issue.op):
            found[key].append(issue.op)
            continue
        found[key] += timed
        # beside its kernels as they are timed, an op may launch more: a product for each expert
        further_s = max(0, int(issue.op.attrs.get("calls", 1)) - 1) * host.launch
        cpu_s[key] += recipe.issue * (issue_cost_s(issue, host) + further_s)
    items = {key: _items(ran, cpu_s[key]) for key, ran in found.items()}
    kernels: dict[str, list[Timing]] = defaultdict(list)
    for (name, _), ran in found.items():
        kernels[name] += [one for one in ran if isinstance(one, Timing)]
    drawn = {name: drawn_by(own, machine) for name, own in kernels.items()}
    terms = {name: keyed.added(timing.terms() for timing in own) for name, own in kernels.items()}
    again = [p for p in graph.priced if AGAIN in p.op.name and _part_of(p.op.module) == "layer"]
    kept = graph if recipe.loss == "plain" else graph_of(part, recipe, optimizer=False)
    working, left = _working(kept, machine.device, execution)
    return Pieces(
        items=items, groups={facts["group"] for facts in sent_in(graph)},
        weights=_weights(graph), saved_bytes=_saved(kept), working_bytes=working, left_bytes=left,
        terms=terms, again_flop=sum(integer(cost.matrix_flop) for p in again for cost in p.costs) // _LAYERS,
        drawn_j=None if None in drawn.values() else {name: joules for name, joules in drawn.items() if joules},
        deviation=float(estimate_of_timings(kernels["layer"], machine, OF_THE_DAY).deviation),
    )  # fmt: skip


def _items(ran: Sequence[Timing | Op], cpu_s: float) -> Sequence[Work | Op]:
    items: list[Work | Op] = []
    for _, group in groupby(ran, type):
        own = list(group)
        timings = [one for one in own if isinstance(one, Timing)]
        items += [one for one in own if isinstance(one, Op)]
        if block_s := sum(one.total_s for one in timings):
            limited_s = sum(one.total_s for one in timings if is_arithmetic(one))
            items.append(Work(what="kernels", block_s=block_s, arithmetic=limited_s / block_s))
    gpu_s = sum(one.block_s for one in items if isinstance(one, Work))
    return (Work(what="issue", block_s=max(0.0, cpu_s - gpu_s)), *items)  # what the CPU takes longer


def _part_of(module: str) -> str:
    first = module.partition(".")[0]
    return "layer" if first == "layers" else "embedding" if first == "embedding" else "head"


def _weights(graph: Graph) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for spec in graph.weights:
        if not spec.name.startswith("layers.0"):
            part = "experts" if ".experts." in spec.name else _part_of(spec.name)
            found[part] += int(spec.numel)
    return {part: found[part] for part in ("embedding", "layer", "experts", "head")}


def _saved(graph: Graph) -> dict[str, int]:
    """Bytes that forward makes and that stay for backward, by part: of a layer with what it gives the next one.

    What backward's products read in 8 bits alone is kept in 8 bits, once: its transpose (Transformer Engine,
    `update_usage`). What a checkpoint saves stays whether it is read or not.
    """
    read, stay = kept_for_backward(graph), graph.held.keys() - _left(graph)
    sizes = {memory: _kept_bytes(kept) for memory, kept in read.items()}
    saved: dict[str, int] = defaultdict(int)
    for op in graph.ops:
        if op.phase is Phase.FORWARD and (op.module.startswith("layers.0") or _part_of(op.module) != "layer"):
            for spec in op.outputs:
                size = sizes.pop(spec.memory, int(spec.bytes) if spec.memory in stay else 0)
                stay -= {spec.memory}
                saved[_part_of(op.module)] += size
    return dict(saved)


def _kept_bytes(kept: Kept) -> int:
    read = [spec for _, spec in kept.uses]
    if all(spec.dtype.itemsize == 1 for spec in read):
        return min(int(kept.spec.numel), max(int(spec.bytes) for spec in read))
    return int(kept.spec.bytes)


def _left(graph: Graph) -> set[str]:
    """Memory that Python keeps to the end of the step."""
    return {memory for memory, until in graph.held.items() if until == graph.ops[-1].name}


def _working(graph: Graph, device: Device, execution: Execution) -> tuple[dict[str, int], int]:
    """What backward needs of each part beside what its forward has kept, block by block; and what is left at its end.

    The loss is of the head: all of its logits count, forward's too. Gradients of weights are left out.
    """
    issues, apart = issues_for(graph, device, execution), memories(graph.gradients)
    blocks = blocks_of(graph, issues, device, execution)
    alive, most = 0, list[int]()  # bytes at the fullest moment of each op
    for begin, end, temporary in blocks.events():
        alive += sum(life.size for life in begin if life.memory not in apart)
        most.append(alive + temporary)
        alive -= sum(life.size for life in end if life.memory not in apart)
    modules = [issue.op.module for issue in issues]
    layers = [i for i, module in enumerate(modules) if module.startswith("layers.")]
    head = max(i for i in layers if issues[i].op.phase is Phase.FORWARD) + 1
    back = next(i for i in layers if i > head)
    then = next(i for i in layers if i > back and modules[i].startswith("layers.0"))
    kept = sum(life.size for life in blocks.lives if life.first < head <= life.last)
    python = _left(graph)
    left = sum(life.size for life in blocks.lives if life.memory in python)
    return {
        "head": max(most[head:back]) - kept,
        "layer": max(most[back:then]) - kept - left,
        "embedding": max(most[layers[-1] :]) - left,
    }, left
