"""Attention by PyTorch's own products and softmax, backend "math": the ops of which a call of fused attention consists.

As aten/src/ATen/native/transformers/attention.cpp writes them (_scaled_dot_product_attention_math, torch 2.13): 16 bits
are widened to fp32 (since 2.5), queries and keys are each multiplied by the root of the scale, and the weights are kept
for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from rooflinekit.cost.rules.attention import GRADIENTS
from rooflinekit.cost.table import price_all
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import DType, Op, PricedOp, TensorSpec
from rooflinekit.ir.sizes import product


@dataclass(frozen=True, slots=True)
class _Kept:
    """Tensors that a forward pass keeps for its gradient."""

    query: TensorSpec  # scaled
    key: TensorSpec  # scaled
    value: TensorSpec
    weights: TensorSpec
    applied: TensorSpec  # after dropout
    dropped: TensorSpec | None  # with which weights were multiplied


@dataclass(slots=True)
class _Ops:
    """Collects the ops that take the place of one."""

    whole: Op
    widens: bool  # 16 bits to fp32
    found: list[Op] = field(default_factory=list)

    def run(self, kind: str, inputs: Sequence[TensorSpec], output: TensorSpec, /, **attrs: Any) -> TensorSpec:
        name = f"{self.whole.name}: {len(self.found)}"
        self.found.append(
            replace(
                self.whole, name=name, kind=f"aten.{kind}", inputs=tuple(inputs), outputs=(output,),
                attrs=MappingProxyType(attrs),
            )
        )  # fmt: skip
        return output

    def new(self, what: str, shape: Sequence[Any], dtype: DType) -> TensorSpec:
        return TensorSpec(name=f"{self.whole.name}: {what}", shape=tuple(shape), dtype=dtype)

    def changed(self, kind: str, one: TensorSpec, what: str, dtype: DType | None = None, /, **attrs: Any) -> TensorSpec:
        """Adds an elementwise op, whose result is contiguous; a second tensor is its attribute `other`."""
        inputs = [one, attrs["other"]] if "other" in attrs else [one]
        return self.run(kind, inputs, self.new(what, one.shape, dtype or one.dtype), self=one, dtype=dtype, **attrs)


def _batches(one: TensorSpec, *, turned: bool = False) -> TensorSpec:
    """[batch, heads, rows, columns] as a batch of matrices; `turned`: each of them transposed."""
    *outer, rows, columns = one.shape
    batch = outer[0] * outer[1]
    if not turned:
        return replace(one, shape=(batch, rows, columns), stride=None, storage=one.memory)
    return replace(one, shape=(batch, columns, rows), stride=(rows * columns, 1, columns), storage=one.memory)


def _product(ops: _Ops, a: TensorSpec, b: TensorSpec, output: TensorSpec) -> TensorSpec:
    """The batched product of two tensors that `_batches` has made."""
    flat = replace(output, shape=(a.shape[0], *output.shape[2:]), stride=None)
    ops.run("bmm", [a, b], flat, self=a, mat2=b)
    return output


def _forward(op: Op, widens: bool) -> tuple[list[Op], _Kept]:
    ops, causal, dropout = _Ops(op, widens), op.attrs.get("is_causal"), op.attrs.get("dropout_p")
    given, bias = op.inputs[:3], op.attrs.get("attn_bias")
    half = widens and given[0].dtype.sixteen_bits
    wide = DType.FLOAT32 if half else given[0].dtype
    heads = given[0].shape[1]
    query, key, value = (_widened(ops, one, heads, what) for one, what in zip(given, "qkv", strict=True))
    query = ops.changed("mul", query, "scaled query")
    (*outer, rows, _), keys = query.shape, key.shape[-2]
    if causal:
        bias = _triangle(ops, rows, keys, wide)
    key = ops.changed("mul", key, "scaled key")
    weights = _product(ops, _batches(query), _batches(key, turned=True), ops.new("scores", (*outer, rows, keys), wide))
    if bias is not None:
        weights = ops.changed("add", weights, "masked scores", other=bias)
    weights = ops.changed("_safe_softmax", weights, "weights", dim=-1)
    applied, dropped = weights, None
    if dropout:
        dropped = ops.new("dropped", weights.shape, wide)
        ops.run("bernoulli_", [dropped], dropped)
        ops.run("div_", [dropped], dropped, self=dropped)
        applied = ops.changed("mul", weights, "weights left", other=dropped)
    if half:  # of the weights too, which are the second result
        ops.changed("_to_copy", applied, "weights in 16 bits", given[0].dtype)
    out = op.outputs[0]
    apart = _apart(out)  # what reads it wants it in another order
    wanted = ops.new("output", out.shape, wide) if half or apart else out
    result = _product(ops, _batches(applied), _batches(value), wanted)
    if half:
        narrow = ops.new("output in 16 bits", out.shape, out.dtype) if apart else out
        result = ops.run("_to_copy", [result], narrow, self=result, dtype=out.dtype)
    if apart:
        ops.run("clone", [result], out, self=result)
    return ops.found, _Kept(query, key, value, weights, applied, dropped)


def _widened(ops: _Ops, one: TensorSpec, heads: Any, what: str) -> TensorSpec:
    """The tensor in fp32 if it has 16 bits, with shared heads repeated, in a layout that batched products accept."""
    apart = _apart(one)
    if one.shape[1] != heads:
        shape = (one.shape[0], heads, *one.shape[2:])
        one, apart = ops.run("clone", [one], ops.new(f"{what} of each head", shape, one.dtype), self=one), False
    if ops.widens and one.dtype.sixteen_bits:
        one = ops.changed("_to_copy", one, f"{what} in fp32", DType.FLOAT32)
    return ops.changed("clone", one, f"{what} in order") if apart else one


def _apart(one: TensorSpec) -> bool:
    """Whether the heads of a batch are not contiguous, so that a batched product needs a copy."""
    return one.stride is not None and 0 not in one.stride and one.stride[0] != product((one.stride[1], one.shape[1]))


def _triangle(ops: _Ops, rows: Any, keys: Any, dtype: DType) -> TensorSpec:
    """The mask that is added to the scores of causal attention."""
    seen = ops.run("ones", [], ops.new("ones", (rows, keys), DType.BOOL), size=(rows, keys))
    seen = ops.changed("tril", seen, "seen")
    zero, never = (ops.run("scalar_tensor", [], ops.new(what, (), dtype)) for what in ("zero", "never"))
    added = ops.new("mask", (rows, keys), dtype)
    return ops.run("where", [seen, zero, never], added, condition=seen, self=zero, other=never)


def _backward(op: Op, kept: _Kept, widens: bool) -> list[Op]:
    ops, scores = _Ops(op, widens), kept.weights.shape
    grad, wide = op.inputs[0], kept.weights.dtype
    wanted = op.attrs.get("grad_input_mask") or (True, True, True)
    outputs = iter(op.outputs)
    query, key, value = (
        _Gradient(ops, one, next(outputs)) if asked else None
        for one, asked in zip(op.inputs[1:4], wanted, strict=False)
    )
    grad = _widened(ops, grad, grad.shape[1], "gradient")
    if value is not None:
        of_value = value.into(kept.value.shape, wide)
        value.deliver(_product(ops, _batches(kept.applied, turned=True), _batches(grad), of_value))
    if query is key is None:
        return ops.found
    of_weights = ops.new("gradient of the weights", scores, wide)
    _product(ops, _batches(grad), _batches(kept.value, turned=True), of_weights)
    if kept.dropped is not None:
        of_weights = ops.changed("mul", of_weights, "gradient before dropout", other=kept.dropped)
    of_scores = ops.new("gradient of the scores", scores, wide)
    ops.run("_softmax_backward_data", [of_weights, kept.weights], of_scores, grad_output=of_weights, dim=-1)
    for one, turned, own, other in ((key, True, kept.key, kept.query), (query, False, kept.query, kept.key)):
        if one is None:
            continue
        scaled = ops.new(f"gradient of {own.name}", own.shape, wide)
        _product(ops, _batches(of_scores, turned=turned), _batches(other), scaled)
        one.deliver(ops.run("mul", [scaled], one.into(own.shape, wide), self=scaled))
    for of_mask in outputs:
        ops.run("_to_copy", [of_scores], replace(of_mask, stride=None), self=of_scores, dtype=of_mask.dtype)
    return ops.found


@dataclass(frozen=True, slots=True)
class _Gradient:
    """The gradient of query, key or value: summed over heads that share it, in 16 bits where the tensor is."""

    ops: _Ops
    given: TensorSpec
    output: TensorSpec

    def into(self, shape: tuple[Any, ...], dtype: DType) -> TensorSpec:
        """The tensor that the last op before `deliver` writes."""
        if shape[1] == self.given.shape[1] and dtype is self.given.dtype:
            return replace(self.output, stride=None)
        return self.ops.new(f"gradient for {self.output.name}", shape, dtype)

    def deliver(self, one: TensorSpec) -> None:
        narrow = one.dtype is not self.given.dtype
        if one.shape[1] != self.given.shape[1]:
            into = self.ops.new(f"sum for {self.output.name}", self.given.shape, one.dtype)
            one = self.ops.run("sum", [one], into if narrow else replace(self.output, stride=None), self=one)
        if narrow:
            self.ops.run("_to_copy", [one], replace(self.output, stride=None), self=one, dtype=self.given.dtype)


def written_out(op: Op, like: Release | None = None, kept: Mapping[str, _Kept] | None = None) -> tuple[list[Op], _Kept]:
    """The ops of one call, and what it leaves to its gradient, or finds in `kept`, by the memory of its output."""
    widens = like is None or like.widens_attention
    if op.kind not in GRADIENTS:
        return _forward(op, widens)
    known = next((kept[one.memory] for one in op.inputs if one.memory in kept), None) if kept else None
    if known is None:
        grad, *given = op.inputs[:4]
        known = _forward(replace(op, inputs=tuple(given), outputs=(grad,)), widens)[1]
    return _backward(op, known, widens), known


def with_written_out(graph: Graph, chosen: Callable[[Op], bool]) -> Graph:
    """The graph with the ops of each call of attention that is chosen in its place; itself where none is."""
    kept: dict[str, _Kept] = {}
    parts: dict[int, list[Op]] = {}
    for priced in graph.priced:
        if chosen(priced.op):
            parts[id(priced)], left = written_out(priced.op, graph.like, kept)
            kept[priced.op.outputs[0].memory] = left
    if not parts:
        return graph
    made = iter(price_all(op for ops in parts.values() for op in ops))

    def instead(priced: PricedOp) -> list[PricedOp]:
        return [next(made) for _ in parts[id(priced)]] if id(priced) in parts else [priced]

    found = replace(graph, priced=tuple(one for priced in graph.priced for one in instead(priced)))
    found.memo["fused attention"] = None  # torch.compile makes no fused attention of it again
    return found
