"""Attention's ops, forward and backward: fused, or with its scores in memory."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.ir.op import DType, TensorSpec
from rooflinekit.training.products import Products

_FLASH = "aten._scaled_dot_product_flash_attention"


@dataclass(slots=True, kw_only=True)
class Attention(Products):
    """The sublayer between the first norm and the residual."""

    def attention(self, x: TensorSpec, module: str) -> TensorSpec:
        """[rows, hidden] → [tokens, hidden]: queries, keys and values, attention, output."""
        part, d, tape = self.part, self.part.decoder, self.tape
        widths = [part.heads * d.head_dim, part.kv_heads * d.head_dim, part.kv_heads * d.head_dim]
        if self.recipe.separate:
            q, k, v = (self._apart(self.linear(x, name, width)) for name, width in zip("qkv", widths, strict=True))
        else:
            q, k, v = self._split(self.linear(x, "qkv", sum(widths)), widths)
        if d.positions == "rotary":
            q, k = self._turned(q, k)
        tape.module = f"{module}.attention.core"
        y = self._unfused(q, k, v) if self.recipe.attention == "unfused" else self._flash(q, k, v)
        tape.module = f"{module}.attention"
        return self.linear(y, "output", d.hidden, after_reduce=True)

    def _apart(self, x: TensorSpec) -> TensorSpec:
        """Heads of a product of their own."""
        b, seq, dim = self.part.micro_batch, self.part.seq // self.part.context, self.part.decoder.head_dim
        return self.tape.view(x, b, int(x.shape[-1]) // dim, seq, dim, calls=2)

    def _split(self, qkv: TensorSpec, widths: list[int]) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
        """Views of the product; their gradients are put together by a copy."""
        tape, b, seq = self.tape, self.part.micro_batch, self.part.seq // self.part.context
        dim = self.part.decoder.head_dim
        found = []
        for i, width in enumerate(widths):
            tape.view(qkv, b, seq, width, calls=2)
            shape = (b, width // dim, seq, dim)
            found.append(TensorSpec(name=f"{qkv.name}.{i}", shape=shape, dtype=qkv.dtype, storage=qkv.memory))
            tape.parts.add(found[-1].name)
        tape.view(qkv, *map(int, qkv.shape), calls=1)

        def back() -> None:
            given = tuple(tape.gradient(one) for one in found)
            for one in given:
                tape.view(one, *map(int, one.shape), calls=2)
            tape.give(qkv, tape.run("aten.cat", given, tape.new(*map(int, qkv.shape)), dim=2))

        tape.later(back)
        return found[0], found[1], found[2]

    def _turned(self, q: TensorSpec, k: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
        """Rotated by position: one kernel for both of Megatron's; five of PyTorch's for each."""
        tape, made = self.tape, []
        for x in (q, k):
            shape = tuple(map(int, x.shape))
            y = tape.new(*shape)
            self._turn(x, y)
            made.append(y)

            def back(x: TensorSpec = x, y: TensorSpec = y) -> None:
                tape.give(x, self._turned_back(tape.gradient(y)))

            tape.later(back)
        return made[0], made[1]

    def _turn(self, x: TensorSpec, y: TensorSpec) -> None:
        tape, shape = self.tape, tuple(map(int, x.shape))
        if self.recipe.fused or self.recipe.turned:
            tape.pointwise((x,), y, vector=3)
            return
        half = (*shape[:-1], shape[-1] // 2)
        second = TensorSpec(name=f"{x.name}.half", shape=half, dtype=x.dtype, storage=x.memory)
        minus = tape.run("aten.neg", (second,), tape.new(*half))
        other = tape.run("aten.cat", (minus, second), tape.new(*shape), dim=-1)
        table = TensorSpec(name="cos", shape=shape[2:], dtype=x.dtype)
        first = tape.run("aten.mul", (x, table), tape.new(*shape))
        turned = tape.run("aten.mul", (other, table), tape.new(*shape))
        tape.run("aten.add", (first, turned), y, alpha=1)

    def _turned_back(self, g: TensorSpec) -> TensorSpec:
        """The gradient of what was rotated: of its two halves each is put into zeros of the whole's shape."""
        tape, shape = self.tape, tuple(map(int, g.shape))
        if self.recipe.fused or self.recipe.turned:
            return tape.pointwise((g,), tape.new(*shape), vector=3)
        table = TensorSpec(name="cos", shape=shape[2:], dtype=g.dtype)
        half = (*shape[:-1], shape[-1] // 2)
        turned = tape.run("aten.mul", (g, table), tape.new(*shape))
        halves = [
            TensorSpec(name=f"{turned.name}.{i}", shape=half, dtype=g.dtype, storage=turned.memory) for i in (0, 1)
        ]
        halves[0] = tape.run("aten.neg", (halves[0],), tape.new(*half))
        wide = [tape.run("aten.slice_backward", (one,), tape.new(*shape)) for one in halves]
        other = tape.run("aten.add", tuple(wide), tape.new(*shape), alpha=1)
        first = tape.run("aten.mul", (g, table), tape.new(*shape))
        return tape.run("aten.add", (first, other), tape.new(*shape), alpha=1)

    def _seen(self, k: TensorSpec, v: TensorSpec) -> tuple[tuple[TensorSpec, TensorSpec], bool]:
        """Keys and values as a GPU's queries see them, and whether a causal mask still cuts them.

        Of a sequence in two halves for each GPU of a context group, all have half of the pairs: as many as all of
        their queries with half of the keys.
        """
        shared = self.part.context
        window = self.part.decoder.window
        seen = self.part.seq // 2 if shared > 1 else self.part.seq
        if window is not None and window < seen:
            seen, shared = window, 2
        if shared == 1:
            return (k, v), True
        b, heads, _, dim = k.shape
        k, v = (
            TensorSpec(name=f"{one.name}.all", shape=(b, heads, seen, dim), dtype=one.dtype, storage=one.memory)
            for one in (k, v)
        )
        return (k, v), False

    def _flash(self, q: TensorSpec, k: TensorSpec, v: TensorSpec) -> TensorSpec:
        tape, shape = self.tape, tuple(map(int, q.shape))
        b, heads, seq, dim = shape
        (keys, values), causal = self._seen(k, v)
        bias = None
        extra: tuple[TensorSpec, ...] = ()
        if self.part.decoder.positions == "alibi":
            bias = TensorSpec(name="alibi", shape=(1, heads, 1, int(keys.shape[2])), dtype=q.dtype)
            extra = (bias,)
        out = tape.new(*shape)
        sums = TensorSpec(name=f"{out.name}.lse", shape=(b, heads, seq), dtype=DType.FLOAT32)
        kind = _FLASH if bias is None else "aten._scaled_dot_product_efficient_attention"
        backend = self.recipe.attention_backend
        tape.run(kind, (q, keys, values, *extra), out, sums, is_causal=causal, attn_bias=bias, backend=backend)
        y = tape.view(out, self.part.tokens, heads * dim, calls=2)

        def back() -> None:
            g = tape.gradient(y)
            g = TensorSpec(name=f"{g.name}.h", shape=shape, dtype=g.dtype, storage=g.memory)
            tape.view(g, *shape, calls=2)
            made = [tape.new(*map(int, one.shape)) for one in (q, k, v)]
            made = [TensorSpec(name=f"{one.name}.{i}", shape=one.shape, dtype=one.dtype) for i, one in enumerate(made)]
            tape.run(
                f"{kind}_backward", (g, q, keys, values, out, sums, *extra), *made, is_causal=causal, attn_bias=bias,
                backend=backend,
            )  # fmt: skip
            for one, gradient in zip((q, k, v), made, strict=True):
                tape.give(one, gradient)

        tape.later(back)
        return y

    def _masks_in_kernel(self, scores: TensorSpec) -> bool:
        """Whether Megatron's own kernel scales, masks and normalizes: up to 16,384 keys, and heads · sequences that
        four divides (megatron/core/fusions/fused_softmax.py, is_kernel_available).
        """
        n, seq, total = map(int, scores.shape)
        return self.recipe.fused and n % 4 == 0 and 16 < total <= 16384 and seq % 4 == 0

    def _softmax(self, scores: TensorSpec) -> TensorSpec:
        tape, shape = self.tape, tuple(map(int, scores.shape))
        if self._masks_in_kernel(scores):
            return tape.run("training.causal_softmax", (scores,), tape.new(*shape), reads=1)
        if self.recipe.fused:
            wide = tape.run("aten._to_copy", (scores,), tape.new(*shape, dtype=DType.FLOAT32), dtype=DType.FLOAT32)
            wide = tape.run("aten.mul", (wide,), tape.new(*shape, dtype=DType.FLOAT32))
            wide = tape.run("aten.masked_fill", (wide,), tape.new(*shape, dtype=DType.FLOAT32), value=-10000.0)
            p = tape.run("aten._softmax", (wide,), tape.new(*shape, dtype=DType.FLOAT32), dim=-1)
            return tape.run("aten._to_copy", (p,), tape.new(*shape), dtype=self.recipe.dtype)
        return tape.run("aten._softmax", (scores,), tape.new(*shape), dim=-1)

    def _softmax_back(self, g: TensorSpec, p: TensorSpec) -> TensorSpec:
        tape, shape = self.tape, tuple(map(int, p.shape))
        if self._masks_in_kernel(p):
            return tape.run("training.causal_softmax", (g, p), tape.new(*shape), reads=2)
        if self.recipe.fused:
            wide = tape.run("aten._to_copy", (g,), tape.new(*shape, dtype=DType.FLOAT32), dtype=DType.FLOAT32)
            wide = tape.run(
                "aten._softmax_backward_data", (wide, p), tape.new(*shape, dtype=DType.FLOAT32), dim=-1
            )  # fmt: skip
            wide = tape.run("aten.masked_fill", (wide,), tape.new(*shape, dtype=DType.FLOAT32), value=0.0)
            wide = tape.run("aten.mul", (wide,), tape.new(*shape, dtype=DType.FLOAT32))
            return tape.run("aten._to_copy", (wide,), tape.new(*shape), dtype=self.recipe.dtype)
        return tape.run("aten._softmax_backward_data", (g, p), tape.new(*shape), dim=-1)

    def _unfused(self, q: TensorSpec, k: TensorSpec, v: TensorSpec) -> TensorSpec:
        """Scores, masked softmax and weighted sum by kernels of their own; the whole square of them."""
        tape, recipe = self.tape, self.recipe
        b, heads, seq, dim = map(int, q.shape)
        n, total = b * heads, self.part.seq
        flat = [
            TensorSpec(name=f"{one.name}.f", shape=(n, length, dim), dtype=one.dtype, storage=one.memory)
            for one, length in ((q, seq), (k, total), (v, total))
        ]
        turned = tape.view(flat[1], n, dim, total, calls=2)
        scores = tape.run("aten.bmm", (flat[0], turned), tape.new(n, seq, total))
        p = self._softmax(scores)
        mask: tuple[TensorSpec, ...] = ()
        kept = p
        if recipe.dropout:
            mask = (tape.new(n, seq, total, dtype=DType.BOOL),)
            kept = TensorSpec(name=f"{p.name}.d", shape=p.shape, dtype=p.dtype)
            tape.run("aten.native_dropout", (p,), kept, *mask, p=0.1, train=True)
        out = tape.run("aten.bmm", (kept, flat[2]), tape.new(n, seq, dim))
        y = tape.run("aten.clone", (out,), tape.new(self.part.tokens, heads * dim))

        def back() -> None:
            g = tape.gradient(y)
            g = tape.view(g, n, seq, dim, calls=2)
            gp = tape.run("aten.bmm", (g, tape.view(flat[2], n, dim, total)), tape.new(n, seq, total))
            gv = tape.run("aten.bmm", (tape.view(kept, n, total, seq), g), tape.new(n, total, dim))
            if mask:
                gp = tape.run("aten.native_dropout_backward", (gp, *mask), tape.new(n, seq, total), scale=1.0)
            gs = self._softmax_back(gp, p)
            gq = tape.run("aten.bmm", (gs, flat[1]), tape.new(n, seq, dim))
            gk = tape.run("aten.bmm", (tape.view(gs, n, total, seq), flat[0]), tape.new(n, total, dim))
            for one, gradient in ((q, gq), (k, gk), (v, gv)):
                shape = one.shape
                tape.give(one, TensorSpec(name=gradient.name, shape=shape, dtype=one.dtype, storage=gradient.memory))

        tape.later(back)
        return y
