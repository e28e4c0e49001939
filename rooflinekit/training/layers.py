"""The ops of a decoder's layers, embedding and loss, forward and backward, as PyTorch or Megatron runs them."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.ir.op import DType, TensorSpec
from rooflinekit.training.attention import Attention
from rooflinekit.training.experts import Experts
from rooflinekit.training.products import Products

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
