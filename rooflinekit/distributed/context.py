"""Context parallelism: each device of a group works on its tokens of every sequence; attention needs keys of all.

All that computes token by token has 1/c of the work, and gradients of all weights are sums over the group, as over
copies. Attention goes one of two ways. "ring" (H. Liu et al., "Ring Attention with Blockwise Transformers", 2023): c
blocks, each beside the next block's keys and values on their way; a block's result is scaled and added to those before
it, and in backward the keys' gradients follow them around, c hops to where they belong. "all-gather" (Llama 3,
section 3.3.2): all keys and values are gathered before attention, and again before its backward, which scatters their
gradients. Causal sequences are cut into 2c parts of which a device has the first and the last of what is left, so that
all have the same work, as Megatron-LM and torchtitan do it.

Recognised by sizes: an axis of as many elements as attention's sequence, or as the batch has tokens, is cut. One token
less, which a loss on the next token leaves, is as good. Weights, their gradients and states stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rooflinekit.distributed.rewriting import bytes_of, on_tensors, owners_of, sent_by, wait
from rooflinekit.distributed.tensor import STANDING, casts_of, divided_along
from rooflinekit.errors import InputError
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Basis, Op, Phase, PricedOp, TensorSpec, memories, nothing
from rooflinekit.ir.sizes import Size, ceil_div


def cut_by_context(graph: Graph, parts: int, way: str, batch: int) -> Graph:
    """What each of so many devices runs of a step of `batch` sequences.

    Raises InputError without fused attention of one length, for lengths that do not divide, and for products on
    something else than tokens.
    """
    if parts == 1:
        return graph
    length = _length_of(graph)
    if length % (2 * parts):
        raise InputError(
            f"{graph.name}: a sequence of {length} tokens cannot be cut for {parts} devices: expected a multiple of "
            f"{2 * parts}; choose another length or context"
        )
    weights = memories(graph.learned)
    cutter = _Cutter(
        parts=parts, lengths=(batch * length, batch * (length - 1), length, length - 1), batch=batch,
        standing=frozenset({*owners_of(graph, weights), *casts_of(graph)}),
    )  # fmt: skip
    priced: list[PricedOp] = []
    for p in graph.priced:
        own = cutter.part(p)
        if not is_attention(p.op):
            priced.append(own)
        elif way == "ring":
            priced += ring_attention(own, p, parts)
        else:
            priced += gathered_attention(own, p)
    return replace(
        graph, priced=tuple(priced), inputs=tuple(map(cutter.thin, graph.inputs)),
        outputs=tuple(map(cutter.thin, graph.outputs)),
    )  # fmt: skip


def _length_of(graph: Graph) -> int:
    found = {int(p.op.inputs[0].shape[2]): p.op for p in graph.priced if is_attention(p.op)}
    if not found:
        raise InputError(
            f"{graph.name}: no fused attention whose sequence could be cut; expected "
            "torch.nn.functional.scaled_dot_product_attention, or leave out context"
        )
    keys = {int(keys_of(op)[0].shape[2]) for op in found.values()}
    if len({*found, *keys}) > 1:
        raise InputError(
            f"{graph.name}: attention over {', '.join(map(str, sorted({*found, *keys})))} tokens; context expects "
            "sequences of one length that attend to themselves"
        )
    return next(iter(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cutter:
    parts: int
    lengths: Sequence[int]  # of axes that are cut: tokens of the batch, of a sequence
    batch: int
    standing: frozenset[str]  # memory of weights, their gradients and states

    def thin(self, spec: TensorSpec) -> TensorSpec:
        """A device's part of a tensor; what has no tokens as it is."""
        if spec.role in STANDING or spec.memory in self.standing:
            return spec
        axes = [k for k, size in enumerate(spec.shape) if int(size) in self.lengths]
        if len(axes) > 1 and axes[0] == 0 and int(spec.shape[0]) == self.batch:
            axes.pop(0)  # as many sequences as they have tokens
        return divided_along(spec, axes[0], self.parts) if axes else spec

    def part(self, p: PricedOp) -> PricedOp:
        op = p.op
        if op.phase is Phase.OPTIMIZER:
            return p
        found = on_tensors(p, self.thin)
        if found.op == op:
            if any(cost.gemms for cost in p.costs):
                raise InputError(
                    f"{op.module or op.name}: a product of {op.inputs[0].shape} by {op.inputs[-1].shape} has no axis "
                    "of tokens to cut; leave out context"
                )
            return p
        size = "m" if found.op.outputs[0] != op.outputs[0] else "k"  # rows are cut, or what is summed up
        whole = [{s.memory: s for s in own if self.thin(s) is s} for own in (op.inputs, op.outputs)]
        read, written = (bytes_of(specs.values()) for specs in whole)
        costs = (
            _along(cost, [size] * len(cost.gemms), self.parts, self._traffic(int(cost.read_bytes), read),
                   self._traffic(int(cost.write_bytes), written))
            for cost in p.costs
        )  # fmt: skip
        return replace(found, costs=tuple(costs))

    def _traffic(self, size: int, fixed: int) -> int:
        """Bytes: tensors that are whole, or of a table the rows that tokens ask for."""
        return fixed + ceil_div(size - fixed, self.parts) if size >= fixed else ceil_div(size, self.parts)


def _along(cost: Cost, sizes: Sequence[str], parts: int, read_bytes: Size, write_bytes: Size) -> Cost:
    """The cost of one part, with each product cut along one of its sizes."""

    def part(size: Size) -> int:
        return ceil_div(int(size), parts)

    gemms = (
        replace(gemm, needed=None if gemm.needed is None else part(gemm.needed), **{size: part(getattr(gemm, size))})
        for gemm, size in zip(cost.gemms, sizes, strict=True)
    )
    return replace(cost.map(part), gemms=tuple(gemms), read_bytes=read_bytes, write_bytes=write_bytes)


# Attention of a context group, from an op on a device's tokens: around a ring, or on what is gathered.


#: An element of a block's result: twice scaled, once added.
_MERGE_FLOP = 3


def is_attention(op: Op) -> bool:
    """Whether it is fused attention, forward or backward."""
    return "scaled_dot_product" in op.kind or "flex_attention" in op.kind


def gathered_attention(own: PricedOp, whole: PricedOp) -> list[PricedOp]:
    """With all keys and values gathered before it, and their gradients scattered after it.

    own: the op on a device's tokens, of its part of the costs; whole: the same on all of them.
    """
    op, backward = own.op, own.op.phase is Phase.BACKWARD
    gathered = _like(keys_of(whole.op), f"of all, {op.name}")
    scattered = _like(whole.op.outputs[1:3], "of all") if backward else []
    changed = _with_keys(op, gathered)
    changed = replace(changed, outputs=(op.outputs[0], *(scattered or op.outputs[1:3]), *op.outputs[3:]))
    read = bytes_of(changed.inputs) / max(1, bytes_of(whole.op.inputs))
    written = bytes_of(changed.outputs) / max(1, bytes_of(whole.op.outputs))
    costs = tuple(
        replace(cost, read_bytes=int(int(full.read_bytes) * read), write_bytes=int(int(full.write_bytes) * written))
        for cost, full in zip(own.costs, whole.costs, strict=True)
    )
    found = [
        sent_by(op, f"{op.name} keys", "all-gather", "context", keys_of(op), gathered),
        replace(own, op=changed, costs=costs),
    ]
    if backward:
        key = f"{op.name} gradients of keys"
        found.append(sent_by(op, key, "reduce-scatter", "context", scattered, op.outputs[1:3]))
    return found


def _like(specs: Iterable[TensorSpec], mark: str) -> list[TensorSpec]:
    """Tensors like these with memory of their own, and a mark behind their names."""
    return [replace(spec, name=f"{spec.name} {mark}", storage="") for spec in specs]


def ring_attention(own: PricedOp, whole: PricedOp, parts: int) -> list[PricedOp]:
    """A block after the other; beside each the next one's keys, and the gradients of the last one's, are sent.

    own, whole: as of `gathered_attention`.
    """
    op, last, backward = own.op, parts - 1, own.op.phase is Phase.BACKWARD
    # A block's keys are those of one device too: of the two sizes that are tokens the second is cut as well, columns of
    # scores, or what is summed up. Bytes are those of a device's tensors.
    sizes = [["n" if int(gemm.n) == int(gemm.m) else "k" for gemm in cost.gemms] for cost in whole.costs]
    costs = tuple(
        _along(cost, cut, parts, cost.read_bytes, cost.write_bytes) for cost, cut in zip(own.costs, sizes, strict=True)
    )
    results = op.outputs[: 3 if backward else 1]  # what blocks add up to: the output, or all gradients
    keys: Sequence[TensorSpec] = keys_of(op)
    made: Sequence[TensorSpec] = ()  # the sum up to a block; after the last one what the op makes
    found: list[PricedOp] = []
    for j in range(parts):
        before, made = made, results if j == last else _like(results, f"up to {j}")
        part = _like(results, f"of block {j}") if j else made
        coming = _like(keys_of(op), f"{j + 1} of {op.name}") if j < last else []
        sent = [*(keys if coming else ()), *(before[1:3] if backward else ())]
        key = f"{op.name} hop {j + 1}"
        if sent:
            found.append(sent_by(op, key, "send-recv", "ring", sent, coming, blocking=False))
        name = op.name if j == last else f"{op.name} block {j}"  # others know the op by its name
        block = replace(_with_keys(op, keys), name=name, outputs=(*part, *op.outputs[len(part) :]))
        found.append(replace(own, op=block, costs=costs))
        if j:
            found.append(_merged(op, j, (*before, *part), tuple(made)))
        if sent:
            found.append(wait([key], op.phase, "ring", op.module))
        keys = coming
    if backward:
        found.append(sent_by(op, f"{op.name} last hop", "send-recv", "ring", made[1:3]))
    return found


def _merged(op: Op, j: int, given: tuple[TensorSpec, ...], made: tuple[TensorSpec, ...]) -> PricedOp:
    added = replace(op, name=f"{op.name} sum {j}", kind="aten.add", inputs=given, outputs=made, attrs=nothing())
    numel = sum(int(spec.numel) for spec in made)
    cost = Cost(vector_flop=_MERGE_FLOP * numel, read_bytes=bytes_of(given), write_bytes=bytes_of(made))
    return PricedOp(op=added, costs=(cost,), basis=Basis.RULE)


def keys_of(op: Op) -> tuple[TensorSpec, ...]:
    """The key and the value of an attention's op."""
    return op.inputs[_first_key(op) : _first_key(op) + 2]


def _first_key(op: Op) -> int:
    """Their place: behind the query, and in backward behind the output's gradient."""
    return 1 if "flex_attention" in op.kind or op.phase is Phase.FORWARD else 2


def _with_keys(op: Op, keys: Sequence[TensorSpec]) -> Op:
    """The op on others. By place: query, key and value may be views of one memory."""
    place = _first_key(op)
    return replace(op, inputs=(*op.inputs[:place], *keys, *op.inputs[place + 2 :]))
