"""Tensor parallelism as Megatron-LM does it: pairs of linear layers, the first cut by columns, the second by rows.

Recognised by data, not by names: within a block, linear layers that read the same tensor (q, k and v; or gate and up)
are cut by columns, up to the next one that reads another tensor and gives back the width that the first ones read.
Everything between them, such as attention by heads, works on its part. After the second one outputs are reduced, after
the first one's backward gradients of its input: twice a pair, four times a transformer's block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from rooflinekit.errors import InputError
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, Phase, PricedOp, Role, TensorSpec
from rooflinekit.ir.sizes import ceil_div
from rooflinekit.strategies.rewriting import (
    Insertions,
    belonging_to,
    block_of,
    collective,
    copies_of,
    on_tensors,
    scaled,
    with_ops,
)

_PRODUCTS = ("aten.addmm", "aten.mm", "aten.linear")
_CAST = "aten._to_copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A linear layer's forward op."""

    place: int
    weight: str  # memory
    bias: str  # likewise; "" for none
    source: str  # memory of what it reads
    read: int  # elements of a row of that
    written: int  # of a row of its output
    rows: int
    module: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Layers cut by columns, and the one cut by rows that takes what they give."""

    columns: tuple[Linear, ...]
    row: Linear


def cut(graph: Graph, parts: int, *, reduces: bool = True) -> Graph:
    """What each of so many devices runs; without the reductions, each op in its place, where they are not asked for.

    Raises InputError without pairs of layers and for odd widths.
    """
    if parts == 1:
        return graph
    pairs = pairs_of(graph)
    if not pairs:
        raise InputError(f"{graph.name}: no pair of linear layers, such as attention or a feed-forward, to cut")
    for pair in pairs:
        if wrong := next((c for c in pair.columns if c.written % parts), None):
            raise InputError(f"{wrong.module}: {wrong.written} columns cannot be cut for {parts} devices")
    _check_heads(graph, pairs, parts)
    whole = {linear.weight for pair in pairs for linear in (*pair.columns, pair.row)}
    whole |= {linear.bias for pair in pairs for linear in pair.columns if linear.bias}
    casts = casts_of(graph)
    inner = _inner_modules(graph, pairs)
    column = {linear.module for pair in pairs for linear in pair.columns}
    rows = {pair.row.module for pair in pairs}
    shrunk = _shrunk_memory(graph, pairs, inner, whole, casts)
    sizes = [int(w.bytes) for w in graph.weights if w.role is Role.WEIGHT]
    kept = sum(sizes) - sum(int(w.bytes) for w in graph.weights if w.memory in whole) * (parts - 1) / parts
    step = Fraction(round(kept), max(1, sum(sizes)))
    spans = _places(pairs)
    priced = [_part(p, parts, inner, column, rows, shrunk, step, spans, casts) for p in enumerate(graph.priced)]
    put = Insertions()
    for k, pair in enumerate(pairs if reduces else ()):
        _reductions(graph, pair, k, put)
    return with_ops(
        replace(
            graph,
            priced=tuple(priced),
            weights=tuple(_thin(w, parts) if w.memory in whole else w for w in graph.weights),
            gradients=tuple(_thin(g, parts) if g.memory in shrunk else g for g in graph.gradients),
        ),
        put,
    )


def _check_heads(graph: Graph, pairs: list[Pair], parts: int) -> None:
    """Raises InputError where the heads of fused attention between the layers of a pair cannot be shared out."""
    for first, last in _places(pairs):
        for p in graph.priced[first:last]:
            heads = int(p.op.inputs[0].shape[1]) if "scaled_dot_product" in p.op.kind else parts
            if heads % parts:
                raise InputError(f"{p.op.module}: {heads} heads cannot be cut for {parts} devices")


def _places(pairs: list[Pair]) -> list[tuple[int, int]]:
    """From the first op of a pair's columns to its row's."""
    return [(pair.columns[0].place, pair.row.place) for pair in pairs]


def pairs_of(graph: Graph) -> list[Pair]:
    """The pairs of linear layers in the order of their forward ops."""
    weights = {spec.memory: spec.memory for spec in graph.weights if spec.role is Role.WEIGHT} | casts_of(graph)
    origins = _origins(graph)
    found: list[Pair] = []
    open_columns: list[Linear] = []
    for i, priced in enumerate(graph.priced):
        linear = linear_of(i, priced.op, weights)
        if linear is None:
            continue
        linear = replace(linear, source=origins.get(linear.source, linear.source))
        if open_columns and block_of(open_columns[0].module) != block_of(linear.module):
            open_columns = []
        if not open_columns or open_columns[0].source == linear.source:
            open_columns.append(linear)
        elif linear.written == open_columns[0].read:
            found.append(Pair(columns=tuple(open_columns), row=linear))
            open_columns = []
        else:
            open_columns = [linear]
    return found


def casts_of(graph: Graph) -> dict[str, str]:
    """Memory of what autocast makes of parameters in forward, for each layer that reads one, with the parameter's."""
    weights = {spec.memory for spec in graph.weights if spec.role is Role.WEIGHT}
    return {memory: origin for memory, origin in _origins(graph).items() if origin in weights and memory not in weights}


def _origins(graph: Graph) -> dict[str, str]:
    """Memory of what forward casts, and of the casts, with the memory that is cast."""
    casts = [p.op for p in graph.priced if _is_cast(p)]
    made = {op.outputs[0].memory for op in casts}
    return copies_of(graph, {op.inputs[0].memory for op in casts} - made, _is_cast)


def _is_cast(priced: PricedOp) -> bool:
    return priced.op.phase is Phase.FORWARD and priced.op.kind == _CAST


def linear_of(place: int, op: Op, weights: Mapping[str, str]) -> Linear | None:
    """What is known of an op that is a linear layer's forward; None for another one.

    weights: memory of parameters and of their casts, with the parameter's.
    """
    if op.phase is not Phase.FORWARD or op.kind not in _PRODUCTS:
        return None
    matrices = [spec for spec in op.inputs if len(spec.shape) == 2]
    weight = next((spec for spec in matrices if spec.memory in weights), None)
    source = next((spec for spec in op.inputs if len(spec.shape) >= 2 and spec.memory not in weights), None)
    bias = next((spec for spec in op.inputs if len(spec.shape) == 1 and spec.memory in weights), None)
    if weight is None or source is None:
        return None
    return Linear(
        place=place, weight=weights[weight.memory], bias="" if bias is None else weights[bias.memory],
        source=source.memory,
        read=int(source.shape[-1]), module=op.module,
        written=int(op.outputs[0].shape[-1]), rows=int(op.outputs[0].numel) // int(op.outputs[0].shape[-1]),
    )  # fmt: skip


def _inner_modules(graph: Graph, pairs: list[Pair]) -> set[str]:
    """Modules of which all ops lie between the first and the last layer of a pair: their backward is cut too."""
    spans = _places(pairs)
    inside: set[str] = set()
    outside: set[str] = set()
    for i, priced in enumerate(graph.priced):
        if priced.op.phase is Phase.FORWARD:
            within = any(first < i < last for first, last in spans)
            (inside if within else outside).add(priced.op.module)
    return inside - outside


def _shrunk_memory(
    graph: Graph, pairs: list[Pair], inner: set[str], whole: set[str], casts: Mapping[str, str]
) -> set[str]:
    """Memory of which each device holds its part."""
    spans = _places(pairs)
    cast = {memory for memory, weight in casts.items() if weight in whole}
    found = whole | cast
    layers = {linear.module for pair in pairs for linear in (*pair.columns, pair.row)}
    rows = {pair.row.weight for pair in pairs}
    rows |= {memory for memory, weight in casts.items() if weight in rows}
    for i, priced in enumerate(graph.priced):
        op = priced.op
        if op.phase is Phase.FORWARD:
            # Views would name what the columns read, which is whole.
            if priced.costs and any(first <= i < last for first, last in spans):
                found |= {spec.memory for spec in op.outputs}
        elif op.phase is Phase.BACKWARD and (
            op.module in inner - layers or any(spec.memory in rows for spec in op.inputs)
        ):
            found |= {spec.memory for spec in op.outputs}
    standing = ({spec.memory for spec in (*graph.inputs, *graph.weights)} | set(casts)) - whole - cast
    return (found - standing) | belonging_to(graph, whole)


def _part(
    numbered: tuple[int, PricedOp], parts: int, inner: set[str], column: set[str], rows: set[str], shrunk: set[str],
    step: Fraction, spans: list[tuple[int, int]], casts: Mapping[str, str],
) -> PricedOp:  # fmt: skip
    """An op as each device runs it."""
    i, priced = numbered
    op, costs = priced.op, priced.costs
    between = any(first < i < last for first, last in spans)
    if op.phase is Phase.OPTIMIZER:
        costs = scaled(costs, step)
    elif op.kind == _CAST and op.outputs[0].memory in casts:
        if op.outputs[0].memory in shrunk:
            costs = tuple(divided(cost, parts) for cost in costs)
    elif op.module in column | rows and any(cost.gemms for cost in costs):
        costs = tuple(_product(cost, op, parts, casts, by_column=op.module in column) for cost in costs)
    elif (op.phase is Phase.FORWARD and between) or (
        op.phase is Phase.BACKWARD
        and (op.module in inner or (op.module in column and all(spec.memory in shrunk for spec in op.outputs)))
    ):
        costs = tuple(divided(cost, parts) for cost in costs)
    changed: dict[str, Any] = {}
    if op.attrs.get("group") in ("context", "ring") and "bytes" in op.attrs:  # keys of a device's heads
        changed["attrs"] = {**op.attrs, "bytes": ceil_div(op.attrs["bytes"], parts)}
    return on_tensors(priced, lambda spec: _thin(spec, parts) if spec.memory in shrunk else spec, costs, **changed)


def _product(cost: Cost, op: Op, parts: int, casts: Mapping[str, str], *, by_column: bool) -> Cost:
    """A layer's product. Forward cuts the columns that it writes, or the rows that it reads; backward the same ones."""
    itemsize = op.outputs[0].dtype.itemsize
    gemm = cost.gemms[0]
    m, n, k = int(gemm.m), int(gemm.n), int(gemm.k)
    first = op.inputs[0]
    # A weight's gradient contracts over samples, and its first factor is the transposed gradient of the output.
    reads_weight = any(spec.role is Role.WEIGHT or spec.memory in casts for spec in op.inputs)
    of_weight = op.phase is Phase.BACKWARD and not reads_weight and first.stride
    if op.phase is Phase.FORWARD:
        m, n, k = (m, n // parts, k) if by_column else (m, n, k // parts)
    elif of_weight and tuple(op.outputs[0].shape) == (m, n) and k not in (m, n):
        m, n = (m // parts, n) if by_column else (m, n // parts)
    else:
        m, n, k = (m, n, k // parts) if by_column else (m, n // parts, k)
    moved = int(gemm.batch) * itemsize
    return replace(
        cost,
        gemms=(Gemm(batch=gemm.batch, m=m, n=n, k=max(1, k)),),
        vector_flop=int(cost.vector_flop) // (parts if by_column else 1),
        read_bytes=moved * (m * k + k * n),
        write_bytes=moved * m * n,
    )


def divided(cost: Cost, parts: int) -> Cost:
    """Work between the layers: a part of the heads, or of the columns."""
    gemms = tuple(
        replace(g, batch=int(g.batch) // parts) if int(g.batch) % parts == 0 else replace(g, n=-(-int(g.n) // parts))
        for g in cost.gemms
    )
    thin = cost.map(lambda size: -(-int(size) // parts))
    needed = tuple(replace(g, needed=None if g.needed is None else int(g.needed) // parts) for g in gemms)
    return replace(thin, gemms=needed)


def _thin(spec: TensorSpec, parts: int) -> TensorSpec:
    """A tensor's part: along heads or columns, or where else it divides."""
    order = [1, *range(len(spec.shape) - 1, -1, -1)] if len(spec.shape) > 2 else range(len(spec.shape) - 1, -1, -1)
    axis = next((axis for axis in order if int(spec.shape[axis]) % parts == 0), None)
    return spec if axis is None else divided_along(spec, axis, parts)


def divided_along(spec: TensorSpec, axis: int, parts: int) -> TensorSpec:
    """A tensor's part along an axis, rounded up."""
    shape = tuple(ceil_div(int(size), parts) if k == axis else size for k, size in enumerate(spec.shape))
    return replace(spec, shape=shape)


def _reductions(graph: Graph, pair: Pair, k: int, put: Insertions) -> None:
    """One after the row's forward, one after the columns' backward."""
    out = graph.priced[pair.row.place].op.outputs[0]
    sent: dict[str, Any] = {"group": "tensor", "blocking": True}
    forward = collective(
        f"pair {k}", "all-reduce", int(out.bytes), phase=Phase.FORWARD, module=pair.row.module, **sent
    )  # fmt: skip
    put.after[pair.row.place].append(forward)
    modules = {linear.module for linear in pair.columns}
    backward = [
        i for i, p in enumerate(graph.priced) if p.op.phase is Phase.BACKWARD and p.op.module in modules and p.costs
    ]
    if backward:
        size, module = pair.columns[0].rows * pair.columns[0].read * out.dtype.itemsize, pair.columns[0].module
        reduce = collective(f"pair {k} back", "all-reduce", size, phase=Phase.BACKWARD, module=module, **sent)
        put.after[backward[-1]].append(reduce)
