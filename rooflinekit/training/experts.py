"""A mixture of experts: the router, tokens in the order of their experts, grouped products, and back."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.ir.op import DType, TensorSpec
from rooflinekit.training.products import Products

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
