"""The ops of a decoder's layers, embedding and loss, forward and backward, as PyTorch or Megatron runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rooflinekit.decoder.layers import Layers
from rooflinekit.distributed.products import Products
from rooflinekit.ir.op import DType, Role, TensorSpec
from rooflinekit.published.stated import PROGRAMS

_CALLS_OF_EIGHT_BITS = int(PROGRAMS["calls of eight bits"].value)
_FLASH = "aten._scaled_dot_product_flash_attention"
#: Vector FLOP and special functions an element of activations: forward, backward (see cost/rules/elementwise.py).
GELU, GELU_BACKWARD = (4, 1), (9, 2)
SWIGLU, SWIGLU_BACKWARD = (4, 2), (9, 2)


@dataclass(slots=True, kw_only=True)
class Training(Products):
    """The kernels of one GPU's part of a training step."""

    held: list[str] = field(default_factory=list)  # memory that Python keeps: the output of an eager model

    def step(self) -> tuple[TensorSpec, TensorSpec]:
        """Runs the whole forward and backward pass, from the tokens to the loss."""
        shape = (self.part.layout.micro_batch, self.part.length)
        ids = TensorSpec(name="ids", shape=shape, dtype=DType.INT64, role=Role.INPUT)
        loss = self._loss(self.through(ids))
        self.tape.backward()
        return ids, loss

    def _embedded(self, ids: TensorSpec) -> TensorSpec:
        d, part, tape = self.decoder, self.part, self.tape
        flat = TensorSpec(name="ids.flat", shape=(part.rows,), dtype=DType.INT64, storage="ids", role=Role.INPUT)
        x = Layers._embedded(self, flat)
        table = tape.weights["embedding.weight"]
        tape.send("reduce-scatter" if part.layout.sequence else "all-reduce", "tensor", part.boundary_bytes)
        if d.positions == "learned":
            where = tape.weight("positions", d.max_positions or part.seq, d.hidden)
            x = tape.run("aten.add", (x, where), tape.new(part.rows, d.hidden), alpha=1)

        @tape.behind(x)
        def back(g: TensorSpec) -> None:
            target = tape.main[table.name]
            added = d.tied or self.recipe.main_gradients
            made = tape.run("aten.embedding_dense_backward", (g, flat), tape.like(table) if added else target)
            if added:
                tape.run("aten.add_", (target, made), target, alpha=1)
            if d.positions == "learned":
                tape.run("aten.sum", (g,), tape.main[where.name], dim=[0], keepdim=True)

        return self.dropped(x) if self.recipe.dropout else x

    def _loss(self, x: TensorSpec) -> TensorSpec:
        part, tape = self.part, self.tape
        tape.module = "head"
        table = tape.weights["embedding.weight"] if self.decoder.tied else None
        logits = self.linear(x, "out", self.vocab, biased=False, shared=table)
        tape.module = "loss"
        for _ in range(3):  # of each token: the largest logit, the sum over all parts, and that of the label
            tape.send("all-reduce", "tensor", 4.0 * part.tokens)
        if self.recipe.loss == "shared" or (self.recipe.fused and self.recipe.loss == "plain"):
            return self._shared_loss(logits)
        self.held.append(logits.memory)
        return self._loss_kernel(logits) if self.recipe.loss == "kernel" else self._plain_loss(logits)

    def _plain_loss(self, logits: TensorSpec) -> TensorSpec:
        tape, recipe, (n, v) = self.tape, self.recipe, logits.shape
        labels = TensorSpec(name="labels", shape=(n,), dtype=DType.INT64, storage="ids", role=Role.INPUT)
        wide = DType.FLOAT32 if recipe.autocast else recipe.dtype
        x = logits
        if recipe.autocast:
            x = tape.run("aten._to_copy", (logits,), tape.new(n, v, dtype=wide), dtype=wide)
        p = tape.run("aten._log_softmax", (x,), tape.new(n, v, dtype=wide), dim=1, half_to_float=False)
        loss = TensorSpec(name="loss", shape=(), dtype=wide)
        count = TensorSpec(name="loss.count", shape=(), dtype=wide)
        given = {"weight": None, "reduction": 1, "ignore_index": -100}
        tape.run("aten.nll_loss_forward", (p, labels), loss, count, **given)

        @tape.later
        def back() -> None:
            gp = tape.run("aten.nll_loss_backward", (loss, p, labels, count), tape.like(p, wide), **given)
            g = tape.run("aten._log_softmax_backward_data", (gp, p), tape.like(p, wide), dim=1, input_dtype=wide)
            if recipe.autocast:
                g = tape.run("aten._to_copy", (g,), tape.new(n, v), dtype=recipe.dtype)
            tape.give(logits, g)

        return loss

    def _loss_kernel(self, logits: TensorSpec) -> TensorSpec:
        """One kernel each way: forward reads the logits, backward writes their gradient beside them."""
        tape, wide = self.tape, DType.FLOAT32
        sums = tape.pointwise((logits,), tape.new(logits.shape[0], 1, dtype=wide), vector=3, special=1)
        loss = tape.run("aten.mean", (sums,), TensorSpec(name="loss", shape=(), dtype=wide), dim=None)

        @tape.later
        def back() -> None:
            tape.give(logits, tape.pointwise((logits, sums), tape.like(logits), vector=4, special=1))

        return loss

    def _shared_loss(self, logits: TensorSpec) -> TensorSpec:
        """In fp32 over the parts of the vocabulary: largest, difference, exp and sum, quotient; in place backward.

        Megatron's difference takes the place of the logits, nanotron's is another tensor.
        """
        tape, (n, v), wide = self.tape, logits.shape, DType.FLOAT32
        x = tape.run("aten._to_copy", (logits,), tape.new(n, v, dtype=wide), dtype=wide)
        top = tape.run("aten.amax", (x,), tape.new(n, 1, dtype=wide), dim=[-1], keepdim=False)
        if self.recipe.fused:
            tape.run("aten.sub_", (x, top), x, alpha=1)
        else:
            x = tape.run("aten.sub", (x, top), tape.like(x, wide), alpha=1)
        tape.run("aten.exp", (x,), x)
        sums = tape.run("aten.sum", (x,), tape.new(n, 1, dtype=wide), dim=[-1], keepdim=False)
        tape.run("aten.div_", (x, sums), x)
        loss = tape.run("aten.mean", (sums,), TensorSpec(name="loss", shape=(), dtype=wide), dim=None)

        @tape.later
        def back() -> None:
            tape.run("aten.mul_", (x, sums), x)
            tape.give(logits, tape.run("aten._to_copy", (x,), tape.new(n, v), dtype=self.recipe.dtype))

        return loss

    def _network(self, x: TensorSpec, ffn: int, name: str = "") -> TensorSpec:
        if not self.decoder.gated or self.recipe.fused:
            return Layers._network(self, x, ffn, name)
        gate, up = (self.linear(x, f"{name}{part}", ffn // self.tensor) for part in ("gate", "up"))
        return self.linear(self.gated(gate, up), f"{name}down", self.decoder.hidden, rows=True)

    def _both(self, x: TensorSpec, y: TensorSpec) -> TensorSpec:
        tape, made = self.tape, Layers._both(self, x, y)
        return tape.passes(tape.passes(made, y, lambda g: g), x, lambda g: g)

    def gated(self, gate: TensorSpec, up: TensorSpec) -> TensorSpec:
        """silu(gate)·up by two kernels."""
        tape = self.tape
        s = tape.run("aten.silu", (gate,), tape.like(gate))
        y = tape.run("aten.mul", (s, up), tape.like(gate))
        tape.passes(s, gate, lambda g: tape.run("aten.silu_backward", (g, gate), tape.like(g)))
        tape.passes(y, s, lambda g: tape.run("aten.mul", (g, up), tape.like(g)))
        return tape.passes(y, up, lambda g: tape.run("aten.mul", (g, s), tape.like(g)))

    def _activated(self, h: TensorSpec, width: int) -> TensorSpec:
        """GELU of PyTorch, or Megatron's with the bias, and SwiGLU, each one kernel."""
        tape, d, y = self.tape, self.decoder, self.tape.new(h.shape[0], width)
        if not self.recipe.fused:
            tape.run("aten.gelu", (h,), y, approximate="none")
            return tape.passes(y, h, lambda g: tape.run("aten.gelu_backward", (g, h), tape.like(h), approximate="none"))
        forward, backward = (SWIGLU, SWIGLU_BACKWARD) if d.gated else (GELU, GELU_BACKWARD)
        tape.pointwise((h,), y, vector=forward[0], special=forward[1])
        self._written_so.add(y.memory)

        @tape.behind(y)
        def back(g: TensorSpec) -> None:
            made = tape.pointwise((g, h), tape.like(h), vector=backward[0], special=backward[1])
            self._written_so.add(made.memory)
            tape.give(h, made)
            if d.bias:
                self.bias_gradient(made)

        return y

    def _added(self, y: TensorSpec, x: TensorSpec) -> TensorSpec:
        """The residual and a sublayer's output, which dropout may thin out; Megatron's kernel adds the bias too."""
        tape, recipe = self.tape, self.recipe
        tape.module = tape.module.rpartition(".")[0]
        if recipe.dropout and not recipe.fused:
            y = self.dropped(y)
        mask = (tape.like(x, DType.BOOL),) if recipe.dropout and recipe.fused else ()
        if recipe.fused:
            out = tape.pointwise((y, x), tape.like(x), *mask, vector=2 + 3 * recipe.dropout)
        else:
            out = tape.run("aten.add", (x, y), tape.like(x), alpha=1)

        @tape.behind(out)
        def back(g: TensorSpec) -> None:
            tape.give(x, g)
            own = tape.pointwise((g, *mask), tape.like(x), vector=2) if mask else g
            tape.give(y, own)
            if recipe.fused and self.decoder.bias:
                self.bias_gradient(own)

        return out

    def dropped(self, y: TensorSpec) -> TensorSpec:
        """Dropout by a kernel of its own, with a mask."""
        tape = self.tape
        mask, out = tape.like(y, DType.BOOL), tape.like(y)
        tape.run("aten.native_dropout", (y,), out, mask, p=0.1, train=True)
        return tape.passes(
            out, y, lambda g: tape.run("aten.native_dropout_backward", (g, mask), tape.like(y), scale=1.0)
        )

    def _attention(self, x: TensorSpec, i: int) -> TensorSpec:
        d, tape, module = self.decoder, self.tape, self.tape.module
        heads, kv_heads = self.heads
        widths = [heads * d.head_dim, kv_heads * d.head_dim, kv_heads * d.head_dim]
        if self.recipe.separate:
            q, k, v = (self._apart(self.linear(x, name, width)) for name, width in zip("qkv", widths, strict=True))
        else:
            q, k, v = self._split(self.linear(x, "qkv", sum(widths)), widths)
        if d.qk_norm:
            q, k = (self._scaled(f"{module}.{name}_norm", one) for name, one in (("q", q), ("k", k)))
        if d.positions == "rotary":
            q, k = self._turned(q), self._turned(k)
        tape.module = f"{module}.core"
        y = self._unfused(q, k, v) if self.recipe.attention == "unfused" else self._flash(q, k, v)
        tape.module = module
        return y

    def _apart(self, x: TensorSpec) -> TensorSpec:
        b, seq, dim = self.part.layout.micro_batch, self.part.length, self.decoder.head_dim
        return self.tape.view(x, b, int(x.shape[-1]) // dim, seq, dim, calls=2)

    def _split(self, qkv: TensorSpec, widths: list[int]) -> list[TensorSpec]:
        """Views of the product; their gradients are put together by a copy."""
        tape, b, seq = self.tape, self.part.layout.micro_batch, self.part.length
        dim = self.decoder.head_dim
        found = []
        for i, width in enumerate(widths):
            tape.view(qkv, b, seq, width, calls=2)
            found.append(qkv.seen(b, width // dim, seq, dim, mark=str(i)))
            tape.parts.add(found[-1].name)
        tape.view(qkv, *qkv.shape)

        @tape.later
        def back() -> None:
            given = tuple(tape.gradient(one) for one in found)
            for one in given:
                tape.view(one, *one.shape, calls=2)
            tape.give(qkv, tape.run("aten.cat", given, tape.like(qkv), dim=2))

        return found

    def _scaled(self, name: str, x: TensorSpec) -> TensorSpec:
        """Queries or keys, normalized: each head by itself, or all of a GPU's together."""
        width = x.shape[3] * (x.shape[1] if self.decoder.qk_norm_whole else 1)
        rows = replace(x, shape=(x.numel // width, width), stride=None)  # under its own name, that of its gradient
        return self._normalized(name, rows).seen(*x.shape)

    def _turned(self, x: TensorSpec) -> TensorSpec:
        """Rotated by position: one kernel for both of Megatron's; five of PyTorch's for each."""
        tape, shape, y = self.tape, x.shape, self.tape.like(x)
        if self.recipe.turned:
            tape.pointwise((x,), y, vector=3)
        else:
            second = x.seen(*shape[:-1], int(shape[-1]) // 2)
            minus = tape.run("aten.neg", (second,), tape.like(second))
            other = tape.run("aten.cat", (minus, second), tape.like(x), dim=-1)
            table = TensorSpec(name="cos", shape=shape[2:], dtype=x.dtype)
            first, turned = (tape.run("aten.mul", (one, table), tape.like(x)) for one in (x, other))
            tape.run("aten.add", (first, turned), y, alpha=1)
        return tape.passes(y, x, self._turned_back)

    def _turned_back(self, g: TensorSpec) -> TensorSpec:
        """The gradient of what was rotated: of its two halves each is put into zeros of the whole's shape."""
        tape, shape = self.tape, g.shape
        if self.recipe.turned:
            return tape.pointwise((g,), tape.like(g), vector=3)
        table = TensorSpec(name="cos", shape=shape[2:], dtype=g.dtype)
        turned = tape.run("aten.mul", (g, table), tape.like(g))
        second = turned.seen(*shape[:-1], int(shape[-1]) // 2)
        minus = tape.run("aten.neg", (second,), tape.like(second))
        wide = [tape.run("aten.slice_backward", (one,), tape.like(g)) for one in (minus, second)]
        other = tape.run("aten.add", tuple(wide), tape.like(g), alpha=1)
        first = tape.run("aten.mul", (g, table), tape.like(g))
        return tape.run("aten.add", (first, other), tape.like(g), alpha=1)

    def _seen(self, k: TensorSpec, v: TensorSpec) -> tuple[tuple[TensorSpec, TensorSpec], bool]:
        """Keys and values as a GPU's queries see them, and whether a causal mask still cuts them.

        Of a sequence in two halves for each GPU of a context group, all have half of the pairs: as many as all of
        their queries with half of the keys.
        """
        part, (b, heads, _, dim) = self.part, k.shape
        if part.layout.context == 1 and not part.keys:
            return (k, v), True
        block = max(1, round((part.keys or part.seq / 2) / part.layout.context))
        return (k.seen(b, heads, block, dim), v.seen(b, heads, block, dim)), False

    def _around_the_ring(self, ways: int, attend: Callable[[], Any]) -> None:
        """Attention to a block of keys after the other; beside it come the next, and in backward their gradients go."""
        with self.tape.sending("all-gather", "context", ways * self._keys_bytes, waits=0.0):
            for _ in range(self.part.layout.context - 1):
                attend()
        attend()

    @property
    def _keys_bytes(self) -> float:
        part = self.part
        return 2.0 * 2 * part.layout.micro_batch * part.seq * self.heads[1] * self.decoder.head_dim

    def _flash(self, q: TensorSpec, k: TensorSpec, v: TensorSpec) -> TensorSpec:
        tape, shape = self.tape, tuple(map(int, q.shape))
        b, heads, seq, dim = shape
        (keys, values), causal = self._seen(k, v)
        bias = None
        extra: tuple[TensorSpec, ...] = ()
        if self.decoder.positions == "alibi":
            bias = TensorSpec(name="alibi", shape=(1, heads, 1, int(keys.shape[2])), dtype=q.dtype)
            extra = (bias,)
        out, sums = tape.like(q), tape.new(b, heads, seq, dtype=DType.FLOAT32)
        kind = _FLASH if bias is None else "aten._scaled_dot_product_efficient_attention"
        given = {"is_causal": causal, "attn_bias": bias, "backend": self.recipe.attention_backend}
        self._around_the_ring(1, lambda: tape.run(kind, (q, keys, values, *extra), out, sums, **given))
        y = tape.view(out, self.part.tokens, heads * dim, calls=2)

        @tape.behind(y)
        def back(g: TensorSpec) -> None:
            g = g.seen(*shape)
            tape.view(g, *shape, calls=2)
            made = [tape.like(one) for one in (q, k, v)]
            inputs = (g, q, keys, values, out, sums, *extra)
            self._around_the_ring(2, lambda: tape.run(f"{kind}_backward", inputs, *made, **given))
            for one, gradient in zip((q, k, v), made, strict=True):
                tape.give(one, gradient)

        return y

    def _wide(self, x: TensorSpec, kinds: Sequence[tuple[str, Mapping[str, Any]]], *beside: TensorSpec) -> TensorSpec:
        """Through kernels in fp32 one after the other, and back; `beside`: what the softmax reads further."""
        wide = self.tape.run("aten._to_copy", (x,), self.tape.like(x, DType.FLOAT32), dtype=DType.FLOAT32)
        for kind, attrs in kinds:
            read = (wide, *beside) if "softmax" in kind else (wide,)
            wide = self.tape.run(f"aten.{kind}", read, self.tape.like(x, DType.FLOAT32), **attrs)
        return self.tape.run("aten._to_copy", (wide,), self.tape.like(x), dtype=self.recipe.dtype)

    def _softmax(self, *given: TensorSpec) -> TensorSpec:
        """The softmax of scores; backward, its gradient from a gradient and the result.

        Megatron's own kernel scales, masks and normalizes up to 16,384 keys, and heads · sequences that four divides
        (megatron/core/fusions/fused_softmax.py, is_kernel_available).
        """
        tape, back = self.tape, len(given) > 1
        n, seq, total = map(int, given[0].shape)
        kind, masked = ("_softmax_backward_data", 0.0) if back else ("_softmax", -10000.0)
        if self.recipe.fused and n % 4 == 0 and 16 < total <= 16384 and seq % 4 == 0:
            return tape.run("training.causal_softmax", given, tape.like(given[0]), reads=len(given))
        if self.recipe.fused:
            kinds: list[tuple[str, dict[str, Any]]] = [
                ("mul", {}),
                ("masked_fill", {"value": masked}),
                (kind, {"dim": -1}),
            ]
            return self._wide(given[0], kinds[::-1] if back else kinds, *given[1:])
        return tape.run(f"aten.{kind}", given, tape.like(given[0]), dim=-1)

    def _unfused(self, q: TensorSpec, k: TensorSpec, v: TensorSpec) -> TensorSpec:
        """Scores, masked softmax and weighted sum by kernels of their own; the whole square of them."""
        tape = self.tape
        b, heads, seq, dim = map(int, q.shape)
        n, total = b * heads, self.part.seq
        rows, keys, values = (x.seen(n, length, dim) for x, length in ((q, seq), (k, total), (v, total)))

        def product(x: TensorSpec, y: TensorSpec) -> TensorSpec:
            return tape.run("aten.bmm", (x, y), tape.new(n, x.shape[1], y.shape[2]))

        tape.send("all-gather", "context", self._keys_bytes)
        tape.later(partial(tape.send, "all-gather", "context", 2 * self._keys_bytes))
        scores = product(rows, tape.view(keys, n, dim, total, calls=2))
        p = self._softmax(scores)
        mask: tuple[TensorSpec, ...] = ()
        kept = p
        if self.recipe.dropout:
            mask, kept = (tape.like(p, DType.BOOL),), tape.like(p)
            tape.run("aten.native_dropout", (p,), kept, *mask, p=0.1, train=True)
        y = tape.run("aten.clone", (product(kept, values),), tape.new(self.part.tokens, heads * dim))

        @tape.behind(y)
        def back(g: TensorSpec) -> None:
            g = tape.view(g, n, seq, dim, calls=2)
            gp = product(g, tape.view(values, n, dim, total))
            gv = product(tape.view(kept, n, total, seq), g)
            if mask:
                gp = tape.run("aten.native_dropout_backward", (gp, *mask), tape.like(gp), scale=1.0)
            gs = self._softmax(gp, p)
            gq, gk = product(gs, keys), product(tape.view(gs, n, total, seq), rows)
            for one, gradient in ((q, gq), (k, gk), (v, gv)):
                tape.give(one, gradient.seen(*one.shape))

        return y

    def _chosen(self, x: TensorSpec) -> TensorSpec:
        """[rows, hidden] → the same: each token through `experts_per_token` experts.

        Router, tokens in the order of their experts, grouped products, and back. Tokens are even among a GPU's experts.
        """
        d, part, tape = self.decoder, self.part, self.tape
        tokens, chosen = int(x.shape[0]), d.experts_per_token
        index = self._routed(x)
        here = d.experts // part.layout.expert
        rows = math.ceil(tokens * chosen * part.layout.expert_tensor * part.layout.imbalance)
        sent = tape.run("aten.index_select", (x, index), tape.new(tokens * chosen, d.hidden), dim=0)
        each = -(-rows // here)
        self._exchange(back=False)
        tape.later(partial(self._exchange, back=True))
        come = sent
        if part.layout.expert > 1 or part.layout.expert_tensor > 1:  # in the order of the experts here
            come = tape.run("aten.index_select", (sent, index), tape.new(rows, d.hidden), dim=0)
        # the gradients of what was sent, over each token's experts
        tape.passes(come, x, lambda g: tape.run("serving.combine_experts", (g,), tape.new(tokens, d.hidden)))
        width = d.ffn // part.layout.expert_tensor
        h = self._grouped(come.seen(here, each, d.hidden), "experts.up", (2 if d.gated else 1) * width, rows)
        a = self._activated(h.seen(here * each, h.shape[2]), width)
        y = self._grouped(a.seen(here, each, width), "experts.down", d.hidden, rows)
        self._exchange(back=True)
        tape.later(partial(self._exchange, back=False))
        out = tape.run("serving.combine_experts", (y, index), tape.new(tokens, d.hidden))
        # each token's weights get the product of its gradient with what its experts gave
        return tape.passes(out, y, lambda g: tape.pointwise((g, y), tape.like(y), vector=4))

    def _exchange(self, *, back: bool) -> None:
        """Tokens to the GPUs of their experts, or back, or gradients the other way: the fullest GPU gets some from all,
        and the group that shares an expert has those of all of its GPUs, where these are not the same ones.
        """
        d, part, lay = self.decoder, self.part, self.part.layout
        size = 2.0 * d.hidden * d.experts_per_token * part.rows * lay.imbalance
        sent = [("all-to-all", "expert", size)]
        if lay.sequence or lay.tensor == 1:
            sent.append(("reduce-scatter" if back else "all-gather", "expert tensor", size * lay.expert_tensor))
        elif back:
            sent.append(("all-reduce", "tensor", part.boundary_bytes))
        for one in reversed(sent) if back else sent:
            self.tape.send(*one)

    def _routed(self, x: TensorSpec) -> TensorSpec:
        """Scores by a product in fp32 or 16 bits, softmax, the largest few; and the sort by experts."""
        d, tape, tokens = self.decoder, self.tape, int(x.shape[0])
        matrix = tape.weight("router.weight", d.experts, d.hidden)
        logits = tape.run("aten.mm", (x, tape.view(matrix, d.hidden, d.experts)), tape.new(tokens, d.experts))
        p, picked, index = self._largest(logits)
        index = index.seen(tokens * d.experts_per_token)
        tape.run("aten.sort", (index,), tape.like(index, DType.INT64), dim=0)

        @tape.later
        def back() -> None:
            gp = tape.run("aten.scatter", (picked, index), tape.like(p), dim=1)
            gl = tape.run("aten._softmax_backward_data", (gp, p), tape.like(p), dim=-1)
            tape.give(x, tape.run("aten.mm", (gl, matrix), tape.new(tokens, d.hidden)))
            self.weight_gradient(gl, x, matrix)

        return index

    def _calls(self, experts: int) -> int:
        """What the CPU launches for a grouped product: Transformer Engine's `GroupedLinear` calls cuBLAS for each
        expert, and in 8 bits makes each expert's rows so by calls of their own."""
        if not self.recipe.fused:
            return 1
        return experts * (1 + _CALLS_OF_EIGHT_BITS * self.recipe.fp8)

    def _grouped(self, x: TensorSpec, name: str, n: int, rows: int) -> TensorSpec:
        """[experts, rows of each, k] → [experts, rows of each, n], and gradients by two products as large."""
        tape, (experts, each, k) = self.tape, tuple(map(int, x.shape))
        weight, y = tape.weight(name, experts, n, k), tape.new(experts, each, n)

        def operand(one: TensorSpec) -> TensorSpec:
            if not self.recipe.fp8:
                return one
            return self.eight_bit(one.seen(one.shape[0] * one.shape[1], one.shape[2])).seen(*one.shape)

        def multiplied(a: TensorSpec, made: TensorSpec) -> TensorSpec:
            calls, inputs = self._calls(experts), (operand(a), operand(weight))
            return tape.run("serving.grouped_mm", inputs, made, weight_only=False, rows=rows, calls=calls)

        multiplied(x, y)

        @tape.behind(y)
        def back(g: TensorSpec) -> None:
            gx = multiplied(g, tape.new(experts, each, k))
            turned, alone = g.seen(experts, n, each), experts if self.recipe.fused else 1
            tape.run("aten.bmm", (operand(turned), operand(x)), tape.main[weight.name], calls=alone)
            tape.give(x, gx)

        return y
