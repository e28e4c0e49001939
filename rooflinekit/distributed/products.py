"""Products, norms and their gradients, as a framework runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rooflinekit.decoder.decoder import Decoder
from rooflinekit.decoder.layers import Layers, Tape
from rooflinekit.distributed.records import Layout, Recipe
from rooflinekit.distributed.rewriting import collective, wait
from rooflinekit.errors import InputError
from rooflinekit.ir.op import DType, Phase, Role, TensorSpec
from rooflinekit.ir.sizes import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A micro-batch of a layout on one GPU.

    Raises InputError for sizes that do not divide, and for decoders whose training is not described.
    """

    decoder: Decoder
    layout: Layout
    seq: int  # tokens of a whole sequence
    keys: float = 0.0  # that a query sees, in the mean of queries and layers; 0 where none has a window: half of `seq`

    def __post_init__(self) -> None:
        d, lay = self.decoder, self.layout
        for name in ("latent", "dense_layers"):
            if value := getattr(d, name):
                raise InputError(
                    f"{d.name}: {name}: expected 0 for a training step, whose layers are alike, with keys and values "
                    f"of their own; got {value}; the decoder's prefill, decode and rooflinekit.serve have it"
                )
        if not self.keys and d.window is not None and d.window < self.seq:
            windowed = d.window * (1 - d.window / self.seq / 2)  # the first queries see fewer
            mean = (d.full_layers * self.seq / 2 + (d.layers - d.full_layers) * windowed) / d.layers
            object.__setattr__(self, "keys", mean)
        for what, size, by in (
            ("heads", d.heads, lay.tensor),
            ("ffn", d.ffn if not d.experts else d.ffn * lay.tensor, lay.tensor),
            ("seq", self.seq, lay.context * (2 if lay.context > 1 else 1)),
            ("seq", self.seq // lay.context, lay.tensor if lay.sequence else 1),
            ("experts", d.experts, lay.expert),
        ):
            if size % by:
                raise InputError(f"{d.name}: {what} {size} cannot be cut into {by} equal parts")

    @property
    def length(self) -> int:
        """Tokens of a sequence that one GPU computes."""
        return self.seq // self.layout.context

    @property
    def tokens(self) -> int:
        """Tokens that pass through the products of one GPU."""
        return self.layout.micro_batch * self.length

    @property
    def rows(self) -> int:
        """Tokens that pass norms, dropout and residual additions."""
        return self.tokens // (self.layout.tensor if self.layout.sequence else 1)

    @property
    def boundary_bytes(self) -> float:
        """Bytes of an activation in 16 bits between layers, of all tokens of the tensor group."""
        return 2.0 * self.tokens * self.decoder.hidden


@dataclass(slots=True, kw_only=True)
class Products(Layers):
    """The ops that every sublayer is made of."""

    part: Part
    recipe: Recipe
    tape: GradientTape
    _eight: dict[str, TensorSpec] = field(default_factory=dict)  # what has been made 8 bits, by its memory
    _written_so: set[str] = field(default_factory=set)  # memory whose kernel writes 8 bits beside or in its place
    _whole: set[str] = field(default_factory=set)  # memory that a tensor group has for the products of its columns

    def linear(
        self, x: TensorSpec, name: str, n: int, *, rows: bool = False, bias_behind: bool = False,
        biased: bool = True, shared: TensorSpec | None = None,
    ) -> TensorSpec:  # fmt: skip
        """[tokens, k] → [tokens, n]. A bias is added by the product, or left to the kernel behind it.

        rows: a tensor group has its rows, not its columns, and adds up what it gives; the bias belongs behind that,
        where Megatron adds it with the residual. biased: whether it has one, if the decoder's products do. shared: a
        weight of another module.

        Of sequences cut by tokens columns gather what they read, the first of several that read the same, and rows
        the gradient. Megatron gathers what columns read once more beside the gradient of it, and adds that up beside
        the weights' gradients (`LinearWithGradAccumulationAndAsyncCommunication`).
        """
        tape, k, layout = self.tape, int(x.shape[-1]), self.part.layout
        gather, add_up = ("all-gather", "reduce-scatter") if layout.sequence else ("", "all-reduce")
        waits = 1 / layout.tensor if gather and self.recipe.tensor_overlap else 1.0
        enters = not rows and x.memory not in self._whole
        self._whole.add(x.memory)
        sending = partial(tape.sending, group="tensor", size_bytes=self.part.boundary_bytes)
        tokens = self.part.tokens if int(x.shape[0]) == self.part.rows else int(x.shape[0])
        fused = self.recipe.fused
        weight = shared or tape.weight(f"{name}.weight", n, k)
        bias = (tape.weight(f"{name}.bias", n),) if biased and self.decoder.bias else ()
        inside = bool(bias) and not (fused and (rows or bias_behind))
        flat = x.seen(tokens, k, mark="flat")
        if not fused:
            tape.view(flat, tokens, k)
        with sending(add_up if rows else gather * enters, waits=waits, behind=rows):
            y = self._product(flat, tape.view(weight, k, n), tape.new(tokens, n), bias if inside else ())
        if not fused:
            tape.view(y, tokens, n)

        @tape.behind(y)
        def back(g: TensorSpec) -> None:  # of what was read and of the weight, in the order of autograd
            if not fused:
                tape.view(g, tokens, n)
            again = gather * (rows or (enters and fused))
            with sending(again, waits=waits if rows else 0.0):
                made = self._product(g, weight, tape.new(tokens, k))
            with sending(add_up * enters, waits=1.0 - fused):
                self.weight_gradient(g, flat, weight, calls=1 if fused else 2)
            if bias and (inside or not fused):
                self.bias_gradient(g)
            if not fused:
                tape.view(made, tokens, k, calls=3)
            tape.give(x, made.seen(*x.shape))

        return y

    def weight_gradient(self, g: TensorSpec, x: TensorSpec, weight: TensorSpec, *, calls: int = 1) -> None:
        """[n, tokens] × [tokens, k], into the main gradient where there is one."""
        tape, (tokens, n) = self.tape, g.shape
        target = tape.main[weight.name]
        turned = tape.view(g, n, tokens, calls=calls)
        if self.recipe.fp8:
            turned, x = self.eight_bit(turned), self.eight_bit(x)
        if self.recipe.fused and self.recipe.gradient_fusion:
            tape.run("training.accumulated_mm", (turned, x, target), target)
            return
        if self.recipe.main_gradients:
            tape.run("aten.add_", (target, tape.run("aten.mm", (turned, x), tape.like(target))), target, alpha=1)
            return
        tape.run("aten.mm", (turned, x), target)
        self.handed(target)

    def bias_gradient(self, g: TensorSpec) -> None:
        """The sum over tokens."""
        made = self.tape.new(1, g.shape[-1])
        self.handed(self.tape.run("aten.sum", (g,), made, dim=[0], keepdim=True), calls=2)

    def handed(self, gradient: TensorSpec, calls: int = 1) -> None:
        """What autograd's accumulation calls on a parameter's gradient, and launches nothing."""
        if not self.recipe.fused:
            self.tape.view(gradient, *gradient.shape, calls=calls)

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
        """The tensor in 8 bits, with its transpose: made once by a kernel (Transformer Engine, `cast_transpose`).

        Norms and activations write 8 bits themselves, and weights are made so once for all micro-batches of a step,
        which is left out.
        """
        tape, narrow = self.tape, DType.FLOAT8_E4M3FN
        if x.memory in self._written_so or x.role is Role.WEIGHT or x.memory in tape.weights:
            return replace(x.seen(*x.shape), dtype=narrow, role=Role.ACTIVATION)
        if x.memory not in self._eight:
            both = tape.new(2, x.numel, dtype=narrow)
            self._eight[x.memory] = tape.pointwise((x,), both, vector=2)
        return self._eight[x.memory].seen(*x.shape)

    def _norm(self, x: TensorSpec) -> TensorSpec:
        if self.recipe.norms == "composed" and self.decoder.norm == "rms":
            return self._composed_norm(x)
        tape, (rows, width) = self.tape, x.shape
        layer = self.decoder.norm == "layer"
        learned = [tape.weight("weight", width)]
        learned += [tape.weight("bias", width)] if layer and self.decoder.bias else []
        statistic = [tape.new(rows, 1, dtype=DType.FLOAT32) for _ in range(1 + layer)]
        given = {"weight": learned[0], "bias": learned[1] if learned[1:] else None, "normalized_shape": [width]}
        kind = "aten.native_layer_norm" if layer else "aten._fused_rms_norm"
        y = tape.new(rows, width)
        self._written_so.add(y.memory)
        tape.run(kind, (x, *learned), y, *statistic, **given)

        @tape.behind(y)
        def back(g: TensorSpec) -> None:
            made, sums = tape.like(y), [tape.main[spec.name] for spec in learned]
            mask = [True] * (2 + layer)
            tape.run(f"{kind}_backward", (g, x, *statistic, *learned), made, *sums, output_mask=mask, **given)
            tape.give(x, made)
            for one in sums:
                self.handed(one)

        return y

    def _composed_norm(self, x: TensorSpec) -> TensorSpec:
        """RMSNorm as modules of transformers have it: weight · (x / √(mean x² + ε) in fp32), a kernel an operation."""
        tape, wide, width = self.tape, DType.FLOAT32, x.shape[-1]
        gain = tape.weight("weight", width)

        def run(kind: str, *inputs: TensorSpec, small: bool = False, dtype: DType = wide, **attrs: Any) -> TensorSpec:
            made = tape.new(x.shape[0], 1 if small else width, dtype=dtype)
            return tape.run(f"aten.{kind}", inputs, made, **attrs)

        x32 = run("_to_copy", x, dtype=wide)
        square = run("pow", x32, exponent=2)
        mean = run("mean", square, small=True, dim=[-1], keepdim=True)
        root = run("rsqrt", run("add", mean, small=True, other=1e-5, alpha=1), small=True)
        normal = run("_to_copy", run("mul", x32, root), dtype=self.tape.dtype)
        y = run("mul", gain, normal, dtype=self.tape.dtype)

        @tape.behind(y)
        def back(g: TensorSpec) -> None:
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

        return y


@dataclass(slots=True, kw_only=True)
class GradientTape(Tape):
    """Forward, and what is to be done in backward."""

    main: dict[str, TensorSpec] = field(default_factory=dict)  # gradients by their weight's name
    summed_in: DType | None = None  # the format of weights' gradients; None for that of the weights
    _back: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)  # names of views with gradients of their own
    _gradients: dict[str, TensorSpec] = field(default_factory=dict)  # of activations, by their memory

    def view(self, x: TensorSpec, *shape: Size, calls: int = 1) -> TensorSpec:
        """The same numbers in another shape, by `calls` calls, which launch nothing."""
        for _ in range(calls):
            seen = x.seen(*shape)
            self.run("aten.view", (x,), seen)
        return seen

    def pointwise(
        self, inputs: tuple[TensorSpec, ...], *outputs: TensorSpec, vector: int = 1, special: int = 0
    ) -> TensorSpec:
        """A kernel that goes over its elements once, with so many operations each."""
        return self.run("training.pointwise", inputs, *outputs, vector=vector, special=special)

    def send(self, what: str, group: str, size_bytes: float, *, blocking: bool = True) -> None:
        """A collective of a group, for which what follows waits, or an op behind it."""
        sent = collective(
            f"{what} {len(self.ops)}", what, math.ceil(size_bytes), phase=self.phase, group=group, blocking=blocking,
            module=self.module,
        )  # fmt: skip
        self.ops.append(sent.op)

    @contextmanager
    def sending(
        self, what: str, group: str, size_bytes: float, *, waits: float = 1.0, behind: bool = False
    ) -> Iterator[None]:
        """A collective, or nothing for no word: a share before the ops inside, or behind them, the rest beside."""
        if what and waits and not behind:
            self.send(what, group, waits * size_bytes)
        if beside := what and waits < 1:
            self.send(what, group, (1 - waits) * size_bytes, blocking=False)
            key = self.ops[-1].attrs["key"]
        yield
        if beside:
            self.ops.append(wait([key], self.phase, group, self.module).op)
        if what and waits and behind:
            self.send(what, group, waits * size_bytes)

    def weight(self, name: str, *shape: Size, dtype: DType | None = None) -> TensorSpec:
        """A weight, once for all ops that use it, and its gradient."""
        found = Tape.weight(self, name, *shape, dtype=dtype)
        gradient = replace(found, name=f"{found.name}.grad", dtype=self.summed_in or found.dtype, role=Role.GRADIENT)
        self.main.setdefault(found.name, gradient)
        return found

    def later(self, step: Callable[[], None]) -> None:
        """Registers a step of the backward pass, to be run in reverse order."""
        self._back.append((self.module, step))

    def behind(self, y: TensorSpec) -> Callable[[Callable[[TensorSpec], None]], None]:
        """Decorates what is to be run when backward comes here, with y's gradient."""
        return lambda step: self.later(lambda: step(self.gradient(y)))

    def passes(self, y: TensorSpec, x: TensorSpec, step: Callable[[TensorSpec], TensorSpec]) -> TensorSpec:
        """Gives x in backward what `step` makes of y's gradient; y."""
        self.later(lambda: self.give(x, step(self.gradient(y))))
        return y

    def gradient(self, x: TensorSpec) -> TensorSpec:
        """The gradient of an activation, as what follows it has left it; in the shape of x."""
        return self._gradients[self._key(x)].seen(*x.shape, mark="g")

    def give(self, x: TensorSpec, gradient: TensorSpec) -> None:
        """A gradient of x; a second one is added to the first, as autograd does."""
        before = self._gradients.get(self._key(x))
        if before is not None:
            gradient = self.run("aten.add", (before.seen(*gradient.shape), gradient), self.like(gradient), alpha=1)
        self._gradients[self._key(x)] = gradient

    def _key(self, x: TensorSpec) -> str:
        return x.name if x.name in self.parts else x.memory

    def backward(self) -> None:
        """Runs the whole backward pass."""
        self.phase = Phase.BACKWARD
        while self._back:
            self.module, step = self._back.pop()
            step()
