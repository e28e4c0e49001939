"""Products, norms and their gradients, as a framework runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rooflinekit.ir.op import DType, Op, Phase, Role, TensorSpec
from rooflinekit.training.layout import Part
from rooflinekit.training.recipe import Recipe


@dataclass(slots=True, kw_only=True)
class Products:
    """What every sublayer needs."""

    part: Part
    recipe: Recipe
    tape: Tape
    _eight: dict[str, TensorSpec] = field(default_factory=dict)  # what has been made 8 bits, by its memory
    _written_so: set[str] = field(default_factory=set)  # memory whose kernel writes 8 bits beside or in its place

    @property
    def main(self) -> DType | None:
        """The format in which gradients are summed up; None for that of the weights."""
        return DType.FLOAT32 if self.recipe.main_gradients else None

    def linear(
        self, x: TensorSpec, name: str, n: int, *, bias_in_kernel: bool = True, after_reduce: bool = False
    ) -> TensorSpec:
        """[tokens, k] → [tokens, n]. A bias is added by the product, or left to the kernel behind it.

        after_reduce: the bias belongs behind a tensor group's reduction, where Megatron adds it with the residual.
        """
        tape, k = self.tape, int(x.shape[-1])
        tokens = self.part.tokens if int(x.shape[0]) == self.part.rows else int(x.shape[0])
        fused = self.recipe.fused
        weight = tape.weight(f"{name}.weight", n, k, main=self.main)
        bias = (tape.weight(f"{name}.bias", n, main=self.main),) if self.part.decoder.bias else ()
        inside = bool(bias) and bias_in_kernel and not (fused and after_reduce)
        flat = TensorSpec(name=f"{x.name}.flat", shape=(tokens, k), dtype=x.dtype, storage=x.memory)
        if not fused:
            tape.view(flat, tokens, k, calls=1)
        turned = tape.view(weight, k, n)
        y = self._product(flat, turned, tape.new(tokens, n), bias if inside else ())
        if not fused:
            tape.view(y, tokens, n)
        tape.later(lambda: self._linear_back(x, flat, y, weight, bias if inside or not fused else (), name))
        return y

    def _linear_back(
        self,
        x: TensorSpec,
        flat: TensorSpec,
        y: TensorSpec,
        weight: TensorSpec,
        bias: tuple[TensorSpec, ...],
        name: str,
    ) -> None:
        """Gradients of what was read and of the weight, in the order of autograd."""
        tape, (n, k) = self.tape, tuple(map(int, weight.shape))
        tokens = int(y.shape[0])
        g = tape.gradient(y)
        if not self.recipe.fused:
            tape.view(g, tokens, n)
        made = self._product(g, weight, tape.new(tokens, k))
        self.weight_gradient(g, flat, weight, calls=2 if not self.recipe.fused else 1)
        if bias:
            self.bias_gradient(g)
        if not self.recipe.fused:
            tape.view(made, tokens, k, calls=3)
        tape.give(x, TensorSpec(name=made.name, shape=x.shape, dtype=made.dtype, storage=made.memory))

    def weight_gradient(self, g: TensorSpec, x: TensorSpec, weight: TensorSpec, *, calls: int = 1) -> None:
        """[n, tokens] × [tokens, k], into the main gradient where there is one."""
        tape, (tokens, n) = self.tape, tuple(map(int, g.shape))
        target = tape.main[weight.name]
        turned = tape.view(g, n, tokens, calls=calls)
        if self.recipe.fp8:
            turned, x = self.eight_bit(turned), self.eight_bit(x)
        if self.recipe.fused and self.recipe.gradient_fusion:
            tape.run("training.accumulated_mm", (turned, x, target), target)
            return
        if self.recipe.main_gradients:
            made = TensorSpec(name=f"w{len(tape.ops)}", shape=target.shape, dtype=self.recipe.dtype)
            tape.run("aten.add_", (target, tape.run("aten.mm", (turned, x), made)), target, alpha=1)
            return
        tape.run("aten.mm", (turned, x), target)
        self.handed(target)

    def bias_gradient(self, g: TensorSpec) -> None:
        """The sum over tokens."""
        tape, n = self.tape, int(g.shape[-1])
        self.handed(tape.run("aten.sum", (g,), tape.new(1, n), dim=[0], keepdim=True), calls=2)

    def handed(self, gradient: TensorSpec, calls: int = 1) -> None:
        """What autograd's accumulation calls on a parameter's gradient, and launches nothing."""
        if not self.recipe.fused:
            self.tape.view(gradient, *map(int, gradient.shape), calls=calls)

    def _product(
        self, a: TensorSpec, b: TensorSpec, y: TensorSpec, bias: tuple[TensorSpec, ...] = ()
    ) -> TensorSpec:  # fmt: skip
        tape = self.tape
        if self.recipe.fp8:
            return tape.run("serving.scaled_mm", (self.eight_bit(a), self.eight_bit(b)), y)
        if bias:
            return tape.run("aten.addmm", (bias[0], a, b), y, beta=1, alpha=1)
        return tape.run("aten.mm", (a, b), y)

    def eight_bit(self, x: TensorSpec) -> TensorSpec:
        """The same in 8 bits, with its transpose: made once by a kernel (Transformer Engine, `cast_transpose`).

        Norms and activations write 8 bits themselves, and weights are made so once for all micro-batches of a step,
        which is left out.
        """
        tape, shape = self.tape, tuple(map(int, x.shape))
        found = self._eight.get(x.memory)
        if x.memory in self._written_so or x.role is Role.WEIGHT or x.memory in tape.weights:
            return TensorSpec(name=f"{x.name}.8.{shape[0]}", shape=shape, dtype=DType.FLOAT8_E4M3FN, storage=x.memory)
        if found is None:
            size = shape[0] * shape[1]
            both = TensorSpec(name=f"e{len(tape.ops)}", shape=(2, size), dtype=DType.FLOAT8_E4M3FN)
            tape.pointwise((x,), both, vector=2)
            found = self._eight[x.memory] = both
        return TensorSpec(name=f"{found.name}.{shape[0]}", shape=shape, dtype=found.dtype, storage=found.memory)

    def norm(self, x: TensorSpec, width: int) -> TensorSpec:
        """Each row normalized."""
        if self.recipe.norms == "composed" and self.part.decoder.norm == "rms":
            return self._composed_norm(x, width)
        tape, rows = self.tape, int(x.shape[0])
        layer = self.part.decoder.norm == "layer"
        gain = tape.weight("weight", width, main=self.main)
        shift = (tape.weight("bias", width, main=self.main),) if layer and self.part.decoder.bias else ()
        statistic = tuple(tape.new(rows, 1, dtype=DType.FLOAT32) for _ in range(1 + layer))
        statistic = tuple(
            TensorSpec(name=f"{spec.name}.{k}s", shape=spec.shape, dtype=spec.dtype) for k, spec in enumerate(statistic)
        )
        given = {"weight": gain, "bias": shift[0] if shift else None, "normalized_shape": [width]}
        kind = "aten.native_layer_norm" if layer else "aten._fused_rms_norm"
        y = tape.new(rows, width)
        self._written_so.add(y.memory)
        tape.run(kind, (x, gain, *shift), y, *statistic, **given)

        def back() -> None:
            g = tape.gradient(y)
            made = tape.new(rows, width)
            sums = [tape.main[spec.name] for spec in (gain, *shift)]
            mask = [True, True, True][: 2 + layer] if layer else [True, True]
            tape.run(
                f"{kind}_backward", (g, x, *statistic, gain, *shift), made, *sums, output_mask=mask, **given
            )  # fmt: skip
            tape.give(x, made)
            for one in sums:
                self.handed(one)

        tape.later(back)
        return y

    def _composed_norm(self, x: TensorSpec, width: int) -> TensorSpec:
        """RMSNorm as modules of transformers have it: weight · (x / √(mean x² + ε) in fp32), a kernel an operation."""
        tape, shape, wide = self.tape, (int(x.shape[0]), width), DType.FLOAT32
        gain = tape.weight("weight", width, main=self.main)

        def run(kind: str, *inputs: TensorSpec, small: bool = False, dtype: DType = wide, **attrs: Any) -> TensorSpec:
            made = tape.new(shape[0], 1 if small else width, dtype=dtype)
            return tape.run(f"aten.{kind}", inputs, made, **attrs)

        x32 = run("_to_copy", x, dtype=wide)
        square = run("pow", x32, exponent=2)
        mean = run("mean", square, small=True, dim=[-1], keepdim=True)
        root = run("rsqrt", run("add", mean, small=True, other=1e-5, alpha=1), small=True)
        normal = run("_to_copy", run("mul", x32, root), dtype=self.tape.dtype)
        y = run("mul", gain, normal, dtype=self.tape.dtype)

        def back() -> None:
            g = tape.gradient(y)
            inner = run("mul", g, gain, dtype=g.dtype)
            self.handed(tape.run("aten.sum", (run("mul", g, normal, dtype=g.dtype),), tape.main[gain.name], dim=[0]))
            g32 = run("_to_copy", inner, dtype=wide)
            of_root = run("mul", g32, x32)
            direct = run("mul", g32, root)
            small = run("sum", of_root, small=True, dim=[-1], keepdim=True)
            cube = run("mul", run("pow", root, small=True, exponent=3), small=True, other=-0.5)
            small = run("mul", small, cube, small=True)
            spread = run("div", small, other=width)
            twice = run("mul", run("pow", x32, exponent=1), other=2.0)
            made = run("add", direct, run("mul", spread, twice), alpha=1)
            tape.give(x, run("_to_copy", made, dtype=x.dtype))

        tape.later(back)
        return y


# Ops of a training step, written down as autograd would run them: forward, and each one's backward in reverse.


@dataclass(slots=True)
class Tape:
    """The ops so far. `module` and `phase` stand in those that follow."""

    dtype: DType
    ops: list[Op] = field(default_factory=list)
    weights: dict[str, TensorSpec] = field(default_factory=dict)
    main: dict[str, TensorSpec] = field(default_factory=dict)  # gradients by their weight's name
    module: str = ""
    phase: Phase = Phase.FORWARD
    _back: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)  # names of views with gradients of their own
    _gradients: dict[str, TensorSpec] = field(default_factory=dict)  # of activations, by their memory

    def run(self, kind: str, inputs: tuple[TensorSpec, ...], *outputs: TensorSpec, **attrs: Any) -> TensorSpec:
        """One more op; its first output is handed on."""
        name = f"{kind.rpartition('.')[2]}_{len(self.ops)}"
        self.ops.append(
            Op(
                name=name, kind=kind, module=self.module, phase=self.phase, inputs=inputs, outputs=outputs,
                attrs=MappingProxyType(attrs),
            )
        )  # fmt: skip
        return outputs[0]

    def new(self, *shape: int, dtype: DType | None = None, of: TensorSpec | None = None) -> TensorSpec:
        """What an op makes; `of` another tensor's memory where it is a view of it."""
        name = f"t{len(self.ops)}" + (f".{len(shape)}" if of is not None else "")
        storage = "" if of is None else of.memory
        return TensorSpec(name=name, shape=shape, dtype=dtype or (of.dtype if of else self.dtype), storage=storage)

    def view(self, x: TensorSpec, *shape: int, calls: int = 1) -> TensorSpec:
        """The same numbers in another shape, by so many calls, which launch nothing."""
        for k in range(calls):
            seen = TensorSpec(name=f"v{len(self.ops)}.{k}", shape=shape, dtype=x.dtype, storage=x.memory, role=x.role)
            self.run("aten.view", (x,), seen)
        return seen

    def pointwise(
        self, inputs: tuple[TensorSpec, ...], *outputs: TensorSpec, vector: int = 1, special: int = 0
    ) -> TensorSpec:
        """A kernel that goes over its elements once, with so many operations each."""
        return self.run("training.pointwise", inputs, *outputs, vector=vector, special=special)

    def weight(self, name: str, *shape: int, main: DType | None = None) -> TensorSpec:
        """A weight, once for all ops that use it, and its gradient in `main` or the format of the weights."""
        full = f"{self.module}.{name}" if self.module else name
        if full not in self.weights:
            self.weights[full] = TensorSpec(name=full, shape=shape, dtype=self.dtype, role=Role.WEIGHT)
            self.main[full] = TensorSpec(
                name=f"{full}.grad", shape=shape, dtype=main or self.dtype, role=Role.GRADIENT
            )  # fmt: skip
        return self.weights[full]

    # --- backward --------------------------------------------------------------------------------------------

    def later(self, step: Callable[[], None]) -> None:
        """To be run when backward comes here."""
        self._back.append((self.module, step))

    def gradient(self, x: TensorSpec) -> TensorSpec:
        """The gradient of an activation, as what follows it has left it; in the shape of x."""
        found = self._gradients[self._key(x)]
        return TensorSpec(name=f"{found.name}.g", shape=x.shape, dtype=found.dtype, storage=found.memory)

    def give(self, x: TensorSpec, gradient: TensorSpec) -> None:
        """A gradient of x; a second one is added to the first, as autograd does."""
        before = self._gradients.get(self._key(x))
        if before is None:
            self._gradients[self._key(x)] = gradient
            return
        shape = gradient.shape
        old = TensorSpec(name=before.name, shape=shape, dtype=before.dtype, storage=before.memory)
        self._gradients[self._key(x)] = self.run("aten.add", (old, gradient), self.new(*map(int, shape)), alpha=1)

    def _key(self, x: TensorSpec) -> str:
        return x.name if x.name in self.parts else x.memory

    def backward(self) -> None:
        """All of backward."""
        self.phase = Phase.BACKWARD
        while self._back:
            self.module, step = self._back.pop()
            step()
