"""A decoder's layers, part by part, for prefill, decode and training: what they share. Each brings its kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rooflinekit.decoder.decoder import Decoder
from rooflinekit.ir.op import DType, Op, Phase, Role, TensorSpec
from rooflinekit.ir.sizes import Size


@dataclass(slots=True, kw_only=True)
class Tape:
    """The ops so far, and the weights that they use. `module` and `phase` stand in the ops that follow."""

    dtype: DType  # of what ops make, where nothing else is said
    ops: list[Op] = field(default_factory=list)
    weights: dict[str, TensorSpec] = field(default_factory=dict)
    module: str = ""
    phase: Phase = Phase.FORWARD
    made: int = 0  # tensors

    def run(self, kind: str, inputs: tuple[TensorSpec, ...], /, *outputs: TensorSpec, **attrs: Any) -> TensorSpec:
        """Records one more op, and returns its first output."""
        name = f"{kind.rpartition('.')[2]}_{len(self.ops)}"
        self.ops.append(
            Op(
                name=name, kind=kind, module=self.module, phase=self.phase, inputs=inputs, outputs=outputs,
                attrs=MappingProxyType(attrs),
            )
        )  # fmt: skip
        return outputs[0]

    def new(self, *shape: Size, dtype: DType | None = None) -> TensorSpec:
        """A new tensor, which the next op makes."""
        self.made += 1
        return TensorSpec(name=f"t{self.made}", shape=shape, dtype=dtype or self.dtype)

    def like(self, x: TensorSpec, dtype: DType | None = None) -> TensorSpec:
        """A new tensor in the shape of another one."""
        return self.new(*x.shape, dtype=dtype)

    def weight(self, name: str, *shape: Size, dtype: DType | None = None) -> TensorSpec:
        """A weight, once for all ops that use it."""
        full = f"{self.module}.{name}" if self.module else name
        return self.weights.setdefault(
            full, TensorSpec(name=full, shape=shape, dtype=dtype or self.dtype, role=Role.WEIGHT)
        )


@dataclass(slots=True, kw_only=True)
class Layers:
    """Runs a decoder's parts one after the other, tensors of [tokens, hidden] unless stated otherwise.

    Subclasses have the kernels, of an engine or of a framework that trains: `_norm` of each row; `_attention` of layer
    i, up to what its heads give; `linear`, [tokens, k] → [tokens, n], where `rows` are those of a matrix that GPUs cut
    by rows, not by columns, and `bias_behind` leaves a bias to the next kernel; `_activated`, of one or two products of
    `width` columns; `_added`, a sublayer's result and the residual; and `_chosen`, each token through the experts that
    a router chooses for it.
    """

    decoder: Decoder
    tape: Tape
    tensor: int = 1  # GPUs that share each layer
    vocab: int  # rows of the embedding on each of them

    @property
    def heads(self) -> tuple[int, int]:
        """Heads of queries and of keys on each GPU; where there are fewer of keys than GPUs, each has a copy of one."""
        return self.decoder.heads // self.tensor, max(1, self.decoder.kv_heads // self.tensor)

    def through(self, ids: TensorSpec) -> TensorSpec:
        """Token numbers → [tokens, hidden] behind the last normalization."""
        self.tape.module = "embedding"
        x = self._embedded(ids)
        for i in range(self.decoder.layers):
            x = self._layer(i, x)
        return self._normalized("norm", x)

    def _embedded(self, ids: TensorSpec) -> TensorSpec:
        tape, hidden = self.tape, self.decoder.hidden
        return tape.run(
            "aten.embedding", (tape.weight("weight", self.vocab, hidden), ids), tape.new(*ids.shape, hidden)
        )

    def _normalized(self, module: str, x: TensorSpec) -> TensorSpec:
        self.tape.module = module
        return self._norm(x)

    def _layer(self, i: int, x: TensorSpec) -> TensorSpec:
        d, tape, module = self.decoder, self.tape, f"layers.{i}"
        y = self._normalized(f"{module}.norm_1", x)
        tape.module = f"{module}.attention"
        made = self.linear(self._attention(y, i), "output", d.hidden, rows=True)
        if d.parallel:
            tape.module = f"{module}.network"
            return self._added(self._summed(self._both(made, self._network(y, d.ffn))), x)
        x = self._added(self._summed(made), x)
        y = self._normalized(f"{module}.norm_2", x)
        tape.module = f"{module}.network"
        if d.experts and i >= d.dense_layers:
            return self._added(self._experts(y), x)
        return self._added(self._summed(self._network(y, d.dense_ffn if i < d.dense_layers else d.ffn)), x)

    def _network(self, x: TensorSpec, ffn: int, name: str = "") -> TensorSpec:
        """By two matrices, or by three of which the first two are one."""
        width = ffn // self.tensor
        h = self.linear(x, f"{name}up", (1 + self.decoder.gated) * width, bias_behind=True)
        return self.linear(self._activated(h, width), f"{name}down", self.decoder.hidden, rows=True)

    def _experts(self, x: TensorSpec) -> TensorSpec:
        """Each token through its experts, and through the one that all share."""
        return self._both(self._chosen(x), self._shared(x)) if self.decoder.shared_ffn else self._chosen(x)

    def _shared(self, x: TensorSpec) -> TensorSpec:
        return self._network(x, self.decoder.shared_ffn, "shared.")

    def _largest(self, logits: TensorSpec) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
        """[tokens, experts] → their softmax, the largest few of it, and the experts that these belong to."""
        tape, few = self.tape, self.decoder.experts_per_token
        p = tape.run("aten._softmax", (logits,), tape.like(logits), dim=-1)
        picked = tape.new(logits.shape[0], few)
        index = tape.like(picked, DType.INT64)
        tape.run("aten.topk", (p,), picked, index, k=few, dim=-1, largest=True, sorted=True)
        return p, picked, index

    def _both(self, x: TensorSpec, y: TensorSpec) -> TensorSpec:
        """Two parts' results, added."""
        return self.tape.run("aten.add", (x, y), self.tape.like(x), alpha=1)

    def _summed(self, x: TensorSpec) -> TensorSpec:
        """The tensor, summed over GPUs, where its product does not do so."""
        return x

    def _norm(self, x: TensorSpec) -> TensorSpec:
        raise NotImplementedError

    def _attention(self, x: TensorSpec, i: int) -> TensorSpec:
        raise NotImplementedError

    def linear(self, x: TensorSpec, name: str, n: int, *, rows: bool = False, bias_behind: bool = False) -> TensorSpec:
        """A product, as the class describes it."""
        raise NotImplementedError

    def _activated(self, h: TensorSpec, width: int) -> TensorSpec:
        raise NotImplementedError

    def _added(self, y: TensorSpec, x: TensorSpec) -> TensorSpec:
        raise NotImplementedError

    def _chosen(self, x: TensorSpec) -> TensorSpec:
        raise NotImplementedError
