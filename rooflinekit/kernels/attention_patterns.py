"""Attention that is written out, as torch.compile runs it: one kernel.

Inductor looks for products with a softmax between them and calls `scaled_dot_product_attention` instead (torch 2.13:
torch/_inductor/fx_passes/fuse_attention.py): bmm, at most a scale and a mask that is added, softmax along the keys, at
most dropout, bmm. Its patterns hold where nothing else reads what lies between. They are taken here for steps without
a backward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType

from rooflinekit.cost.table import price_all
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Basis, Op, TensorSpec

_PRODUCT, _SOFTMAX = "aten.bmm", ("aten._softmax", "aten.softmax")
_SCALES, _MASK, _DROPOUT = ("aten.div", "aten.mul"), "aten.add", "aten.native_dropout"
_FLASH = "aten._scaled_dot_product_flash_attention"
_EFFICIENT = "aten._scaled_dot_product_efficient_attention"  # for fp32, and with a mask


@dataclass(frozen=True, slots=True)
class _Written:
    """One attention in a graph: its ops, the last of which is the second product, and what is added to its scores."""

    scores: Op
    between: tuple[Op, ...]
    output: Op
    mask: TensorSpec | None


def with_fused_attention(graph: Graph) -> Graph:
    """The graph with each attention that inductor finds as one op, instead of its second product; remembered."""
    if "fused attention" not in graph.memo:
        graph.memo["fused attention"] = _with_fused_attention(graph)
    return graph.memo["fused attention"] or graph


def _with_fused_attention(graph: Graph) -> Graph | None:
    """The graph of `with_fused_attention`; None where there is no such attention."""
    found = {} if graph.mode == "training" else {one.output.name: one for one in _Uses(graph).attentions()}
    if not found:
        return None
    dropped = {op.name for one in found.values() for op in (one.scores, *one.between)}
    (*fused,) = price_all(_fused(one) for one in found.values())
    instead = dict(zip(found, fused, strict=True))
    kept = tuple(instead.get(p.op.name, p) for p in graph.priced if p.op.name not in dropped)
    return replace(graph, priced=kept)


class _Uses:
    """The writer and the readers of each memory of a graph; views do neither."""

    def __init__(self, graph: Graph) -> None:
        self.returned = {spec.memory for spec in graph.outputs}
        self.writers: dict[str, Op] = {}
        self.readers: dict[str, list[Op]] = defaultdict(list)
        working = [p.op for p in graph.priced if p.basis is not Basis.FREE]
        read = {spec.memory for op in working for spec in op.inputs} | self.returned
        for op in working:
            if all(spec.memory not in read for spec in op.outputs):
                continue  # nobody wants it: torch.compile leaves it out
            self.writers.update({spec.memory: op for spec in op.outputs})
            for spec in op.inputs:
                self.readers[spec.memory].append(op)

    def attentions(self) -> Iterator[_Written]:
        """Every attention that the graph writes out as products and a softmax."""
        for op in self.writers.values():
            if op.kind in _SOFTMAX and op.attrs.get("dim") in (-1, len(op.outputs[0].shape) - 1):
                found = self._around(op)
                if found is not None:
                    yield found

    def _around(self, softmax: Op) -> _Written | None:
        before, mask = [], None
        op = self._only_writer(softmax.inputs[0])
        while op is not None and op.kind != _PRODUCT:
            others = op.inputs[1:]
            if op.kind == _MASK and len(others) == 1 and mask is None:
                mask = others[0]
            elif op.kind not in _SCALES or others:
                return None
            before.append(op)
            op = self._only_writer(op.inputs[0])
        last, after = self._only_reader(softmax), [softmax]
        if last is not None and last.kind == _DROPOUT:
            after.append(last)
            last = self._only_reader(last)
        if op is None or last is None or last.kind != _PRODUCT or last.inputs[0].memory != after[-1].outputs[0].memory:
            return None
        return _Written(op, (*before, *after), last, mask)

    def _only_writer(self, spec: TensorSpec) -> Op | None:
        """The writer of a tensor that one op alone reads and that the caller does not get."""
        alone = len(self.readers[spec.memory]) == 1 and spec.memory not in self.returned
        return self.writers.get(spec.memory) if alone else None

    def _only_reader(self, op: Op) -> Op | None:
        memory = op.outputs[0].memory
        readers = self.readers[memory]
        return readers[0] if len(readers) == 1 and memory not in self.returned else None


def _fused(one: _Written) -> Op:
    """Attention of one batch with a head for each product."""
    query, key = one.scores.inputs
    value, output = one.output.inputs[1], one.output.outputs[0]
    batch, depth, keys = key.shape
    flash = query.dtype.sixteen_bits and one.mask is None
    attrs = {"is_causal": False, "attn_bias": one.mask}
    masks = () if one.mask is None else (one.mask,)
    inputs = (_as_heads(query), replace(key, shape=(1, batch, keys, depth), stride=None), _as_heads(value), *masks)
    return replace(
        one.output, kind=_FLASH if flash else _EFFICIENT, inputs=inputs, outputs=(_as_heads(output),),
        attrs=MappingProxyType(attrs),
    )  # fmt: skip


def _as_heads(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=(1, *spec.shape), stride=None)
