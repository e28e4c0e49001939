"""The ops of a decoder's layers, embedding and loss, forward and backward, as PyTorch or Megatron runs them."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.ir.op import DType, TensorSpec
from rooflinekit.training.products import Products

# A mixture of experts: the router, tokens in the order of their experts, grouped products, and back.


#: Calls that make a tensor 8 bits: its largest element, the scale, the cast with its transpose, the scales' order.
#: Stated default, as read in Transformer Engine 2.
_CALLS_OF_EIGHT_BITS = 4


@dataclass(slots=True, kw_only=True)
class Experts(Products):
    """The sublayer behind the second norm, where it is a mixture. Tokens are taken to be even among experts."""

    def network(self, x: TensorSpec, width: int, name: str = "") -> TensorSpec:
        """A dense network, of the shared expert."""
        raise NotImplementedError

    def activated(self, h: TensorSpec, width: int) -> TensorSpec:
        """The activation of a product's result."""
        raise NotImplementedError

    def experts(self, x: TensorSpec) -> TensorSpec:
        """[rows, hidden] → the same: each token through `experts_per_token` experts, and the shared one."""
        d, part, tape = self.part.decoder, self.part, self.tape
        tokens, chosen = int(x.shape[0]), d.experts_per_token
        index = self._routed(x)
        here, rows = d.experts // part.expert, tokens * chosen * part.expert_tensor
        sent = tape.run("aten.index_select", (x, index), tape.new(tokens * chosen, d.hidden), dim=0)
        each = -(-rows // here)
        come = sent
        if part.expert > 1 or part.expert_tensor > 1:  # in the order of the experts here
            come = tape.run("aten.index_select", (sent, index), tape.new(rows, d.hidden), dim=0)
        grouped = TensorSpec(
            name=f"{come.name}.e", shape=(here, each, d.hidden), dtype=come.dtype, storage=come.memory
        )  # fmt: skip
        width = d.ffn // part.expert_tensor
        h = self._grouped(grouped, "experts.up", (2 if d.gated else 1) * width, rows)
        flat = TensorSpec(name=f"{h.name}.h", shape=(here * each, int(h.shape[2])), dtype=h.dtype, storage=h.memory)
        a = self.activated(flat, width)
        a = TensorSpec(name=f"{a.name}.a", shape=(here, each, width), dtype=a.dtype, storage=a.memory)
        y = self._grouped(a, "experts.down", d.hidden, rows)
        out = tape.run("serving.combine_experts", (y, index), tape.new(tokens, d.hidden))

        def back() -> None:
            g = tape.gradient(out)
            # each token's weights get the product of its gradient with what its experts gave
            tape.give(y, tape.pointwise((g, y), tape.new(*map(int, y.shape)), vector=4))

        tape.later(back)
        self._sent_back(x, come)
        if not d.shared_ffn:
            return out
        shared = self.network(x, d.shared_ffn // part.tensor, "shared.")
        both = tape.run("aten.add", (out, shared), tape.new(tokens, d.hidden), alpha=1)

        def split() -> None:
            g = tape.gradient(both)
            tape.give(out, g)
            tape.give(shared, g)

        tape.later(split)
        return both

    def _sent_back(self, x: TensorSpec, sent: TensorSpec) -> None:
        """Gradients of the tokens that were sent, summed over their experts."""
        tape, d = self.tape, self.part.decoder

        def back() -> None:
            g = tape.gradient(sent)
            g = TensorSpec(name=f"{g.name}.b", shape=sent.shape, dtype=g.dtype, storage=g.memory)
            tape.give(x, tape.run("serving.combine_experts", (g,), tape.new(int(x.shape[0]), d.hidden)))

        # autograd runs it after the products' backward, which were written down before
        tape._back.insert(len(tape._back) - 4, (tape.module, back))

    def _routed(self, x: TensorSpec) -> TensorSpec:
        """Scores by a product in fp32 or 16 bits, softmax, the largest few; and the sort by experts."""
        d, tape, tokens = self.part.decoder, self.tape, int(x.shape[0])
        matrix = tape.weight("router.weight", d.experts, d.hidden, main=self.main)
        logits = tape.run("aten.mm", (x, tape.view(matrix, d.hidden, d.experts)), tape.new(tokens, d.experts))
        p = tape.run("aten._softmax", (logits,), tape.new(tokens, d.experts), dim=-1)
        picked = tape.new(tokens, d.experts_per_token)
        index = TensorSpec(name=f"i{len(tape.ops)}", shape=(tokens * d.experts_per_token,), dtype=DType.INT64)
        tape.run("aten.topk", (p,), picked, index, k=d.experts_per_token, dim=-1, largest=True, sorted=True)
        tape.run("aten.sort", (index,), TensorSpec(name=f"{index.name}.s", shape=index.shape, dtype=DType.INT64), dim=0)

        def back() -> None:
            gp = tape.run("aten.scatter", (picked, index), tape.new(tokens, d.experts), dim=1)
            gl = tape.run("aten._softmax_backward_data", (gp, p), tape.new(tokens, d.experts), dim=-1)
            tape.give(x, tape.run("aten.mm", (gl, matrix), tape.new(tokens, d.hidden)))
            self.weight_gradient(gl, x, matrix)

        tape.later(back)
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
        weight = tape.weight(name, experts, n, k, main=self.main)
        y = tape.new(experts, each, n)
        eight = DType.FLOAT8_E4M3FN if self.recipe.fp8 else None

        def operand(one: TensorSpec) -> TensorSpec:
            if eight is None:
                return one
            flat = TensorSpec(
                name=f"{one.name}.q", shape=(int(one.shape[0]) * int(one.shape[1]), int(one.shape[2])),
                dtype=one.dtype, storage=one.memory,
            )  # fmt: skip
            made = self.eight_bit(flat)
            return TensorSpec(name=f"{made.name}.g", shape=one.shape, dtype=made.dtype, storage=made.memory)

        calls = self._calls(experts)
        tape.run("serving.grouped_mm", (operand(x), operand(weight)), y, weight_only=False, rows=rows, calls=calls)

        def back() -> None:
            g = tape.gradient(y)
            g = TensorSpec(name=f"{g.name}.y", shape=y.shape, dtype=g.dtype, storage=g.memory)
            gx = tape.new(experts, each, k)
            tape.run("serving.grouped_mm", (operand(g), operand(weight)), gx, weight_only=False, rows=rows, calls=calls)
            turned = TensorSpec(name=f"{g.name}.t", shape=(experts, n, each), dtype=g.dtype, storage=g.memory)
            each_alone = experts if self.recipe.fused else 1
            tape.run("aten.bmm", (operand(turned), operand(x)), tape.main[weight.name], calls=each_alone)
            tape.give(x, gx)

        tape.later(back)
        return y


# Attention's ops, forward and backward: fused, or with its scores in memory.


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


#: Vector FLOP and special functions an element of activations: forward, backward (see cost/rules/elementwise.py).
GELU, GELU_BACKWARD = (4, 1), (9, 2)
SWIGLU, SWIGLU_BACKWARD = (4, 2), (9, 2)


@dataclass(slots=True, kw_only=True)
class Layers(Attention, Experts, Products):
    """Writes down the ops of one GPU's part, one layer after the other."""

    def layer(self, module: str, x: TensorSpec) -> TensorSpec:
        """[rows, hidden] → the same."""
        d, tape = self.part.decoder, self.tape
        tape.module = f"{module}.norm_1"
        y = self.norm(x, d.hidden)
        tape.module = f"{module}.attention"
        y = self.attention(y, module)
        x = self.added(y, x, module)
        tape.module = f"{module}.norm_2"
        y = self.norm(x, d.hidden)
        tape.module = f"{module}.network"
        y = self.experts(y) if d.experts else self.network(y, d.ffn // self.part.tensor)
        return self.added(y, x, module)

    def network(self, x: TensorSpec, width: int, name: str = "") -> TensorSpec:
        """[tokens, hidden] → the same, by two or three matrices."""
        d = self.part.decoder
        separate = d.gated and not self.recipe.fused
        if separate:
            gate, up = (self.linear(x, f"{name}{part}", width) for part in ("gate", "up"))
            return self.linear(self.gated(gate, up), f"{name}down", d.hidden, after_reduce=True)
        h = self.linear(x, f"{name}up", (2 if d.gated else 1) * width, bias_in_kernel=not self.recipe.fused)
        return self.linear(self.activated(h, width), f"{name}down", d.hidden, after_reduce=True)

    def gated(self, gate: TensorSpec, up: TensorSpec) -> TensorSpec:
        """silu(gate)·up by two kernels."""
        tape, shape = self.tape, tuple(map(int, gate.shape))
        s = tape.run("aten.silu", (gate,), tape.new(*shape))
        y = tape.run("aten.mul", (s, up), tape.new(*shape))

        def back() -> None:
            g = tape.gradient(y)
            tape.give(up, tape.run("aten.mul", (g, s), tape.new(*shape)))
            gs = tape.run("aten.mul", (g, up), tape.new(*shape))
            tape.give(gate, tape.run("aten.silu_backward", (gs, gate), tape.new(*shape)))

        tape.later(back)
        return y

    def activated(self, h: TensorSpec, width: int) -> TensorSpec:
        """GELU of PyTorch, or Megatron's with the bias, and SwiGLU, each one kernel."""
        tape, rows = self.tape, int(h.shape[0])
        d, fused = self.part.decoder, self.recipe.fused
        if not fused:
            y = tape.run("aten.gelu", (h,), tape.new(rows, width), approximate="none")
        else:
            work = SWIGLU if d.gated else GELU
            y = tape.pointwise((h,), tape.new(rows, width), vector=work[0], special=work[1])
            self._written_so.add(y.memory)

        def back() -> None:
            g = tape.gradient(y)
            if not fused:
                tape.give(h, tape.run("aten.gelu_backward", (g, h), tape.new(*map(int, h.shape)), approximate="none"))
                return
            work = SWIGLU_BACKWARD if d.gated else GELU_BACKWARD
            made = tape.pointwise((g, h), tape.new(*map(int, h.shape)), vector=work[0], special=work[1])
            self._written_so.add(made.memory)
            tape.give(h, made)
            if d.bias:
                self.bias_gradient(made)

        tape.later(back)
        return y

    def added(self, y: TensorSpec, x: TensorSpec, module: str) -> TensorSpec:
        """The residual and a sublayer's output, which dropout may thin out; Megatron's kernel adds the bias too."""
        tape, shape = self.tape, tuple(map(int, x.shape))
        tape.module = module
        recipe = self.recipe
        if recipe.dropout and not recipe.fused:
            y = self.dropped(y)
        mask = (tape.new(*shape, dtype=DType.BOOL),) if recipe.dropout and recipe.fused else ()
        made = tape.new(*shape)
        if recipe.fused:
            out = tape.pointwise((y, x), made, *mask, vector=2 + 3 * recipe.dropout)
        else:
            out = tape.run("aten.add", (x, y), made, alpha=1)

        def back() -> None:
            g = tape.gradient(out)
            tape.give(x, g)
            own = tape.pointwise((g, *mask), tape.new(*shape), vector=2) if mask else g
            tape.give(y, own)
            if recipe.fused and self.part.decoder.bias:
                self.bias_gradient(own)

        tape.later(back)
        return out

    def dropped(self, y: TensorSpec) -> TensorSpec:
        """Dropout by a kernel of its own, with a mask."""
        tape, shape = self.tape, tuple(map(int, y.shape))
        mask = tape.new(*shape, dtype=DType.BOOL)
        out = TensorSpec(name=f"d{len(tape.ops)}", shape=shape, dtype=y.dtype)
        tape.run("aten.native_dropout", (y,), out, mask, p=0.1, train=True)

        def back() -> None:
            g = tape.gradient(out)
            tape.give(y, tape.run("aten.native_dropout_backward", (g, mask), tape.new(*shape), scale=1.0))

        tape.later(back)
        return out
