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

from rooflinekit.errors import InputError
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Phase, PricedOp, Role, TensorSpec
from rooflinekit.ir.sizes import ceil_div
from rooflinekit.strategies.parameters import owners_of
from rooflinekit.strategies.ring import gathered_attention, is_attention, keys_of, ring_attention
from rooflinekit.strategies.tensor import casts_of

_STANDING = (Role.WEIGHT, Role.BUFFER, Role.STATE)


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
    weights = {spec.memory for spec in graph.weights if spec.role is Role.WEIGHT}
    cutter = _Cutter(
        parts=parts, lengths=(batch * length, batch * (length - 1), length, length - 1), batch=batch,
        standing=frozenset({*owners_of(graph, weights), *casts_of(graph)}),
    )  # fmt: skip
    spread = ring_attention if way == "ring" else gathered_attention
    priced: list[PricedOp] = []
    for p in graph.priced:
        own = cutter.part(p)
        priced += spread(own, p, parts) if is_attention(p.op) else [own]
    return replace(
        graph, priced=tuple(priced), inputs=tuple(map(cutter.thin, graph.inputs)),
        outputs=tuple(map(cutter.thin, graph.outputs)),
    )  # fmt: skip


def _length_of(graph: Graph) -> int:
    """Tokens of a sequence."""
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
    """Tensors and ops of a device."""

    parts: int
    lengths: Sequence[int]  # of axes that are cut: tokens of the batch, of a sequence
    batch: int
    standing: frozenset[str]  # memory of weights, their gradients and states

    def thin(self, spec: TensorSpec) -> TensorSpec:
        """A device's part of a tensor; what has no tokens as it is."""
        if spec.role in _STANDING or spec.memory in self.standing:
            return spec
        axes = [k for k, size in enumerate(spec.shape) if int(size) in self.lengths]
        if len(axes) > 1 and axes[0] == 0 and int(spec.shape[0]) == self.batch:
            axes.pop(0)  # as many sequences as they have tokens
        if not axes:
            return spec
        shape = tuple(ceil_div(int(size), self.parts) if k == axes[0] else size for k, size in enumerate(spec.shape))
        return replace(spec, shape=shape)

    def part(self, p: PricedOp) -> PricedOp:
        """An op on a device's tokens."""
        op = p.op
        if op.phase is Phase.OPTIMIZER:
            return p
        inputs, outputs = tuple(map(self.thin, op.inputs)), tuple(map(self.thin, op.outputs))
        if inputs == op.inputs and outputs == op.outputs:
            if any(cost.gemms for cost in p.costs):
                raise InputError(
                    f"{op.module or op.name}: a product of {op.inputs[0].shape} by {op.inputs[-1].shape} has no axis "
                    "of tokens to cut; leave out context"
                )
            return p
        by_row = outputs[0] != op.outputs[0]
        fixed = [_bytes(s for s in own if self.thin(s) is s) for own in (op.inputs, op.outputs)]
        costs = tuple(self._cost(cost, *fixed, by_row=by_row) for cost in p.costs)
        return replace(p, op=replace(op, inputs=inputs, outputs=outputs), costs=costs)

    def _cost(self, cost: Cost, read: int, written: int, *, by_row: bool) -> Cost:
        """Of a part. read, written: bytes of tensors that stay whole; by_row: rows are cut, not what is summed up."""
        thin = cost.map(lambda size: ceil_div(int(size), self.parts))
        return replace(
            thin, gemms=tuple(self._gemm(gemm, by_row=by_row) for gemm in cost.gemms),
            read_bytes=self._traffic(int(cost.read_bytes), read),
            write_bytes=self._traffic(int(cost.write_bytes), written),
        )  # fmt: skip

    def _traffic(self, size: int, fixed: int) -> int:
        """Bytes: tensors that are whole, or of a table the rows that tokens ask for."""
        return fixed + ceil_div(size - fixed, self.parts) if size >= fixed else ceil_div(size, self.parts)

    def _gemm(self, gemm: Gemm, *, by_row: bool) -> Gemm:
        needed = None if gemm.needed is None else ceil_div(int(gemm.needed), self.parts)
        if by_row:
            return replace(gemm, m=ceil_div(int(gemm.m), self.parts), needed=needed)
        return replace(gemm, k=ceil_div(int(gemm.k), self.parts), needed=needed)


def _bytes(specs: Iterable[TensorSpec]) -> int:
    """Of all of them, each memory once."""
    return sum({spec.memory: int(spec.bytes) for spec in specs}.values())
