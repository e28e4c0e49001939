"""The ops of a step, written down one after the other: tensors with names, products in the chosen format."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rooflinekit.ir.op import DType, Op, Role, TensorSpec
from rooflinekit.ir.sizes import Size, ceil_div, floor_div, simplest
from rooflinekit.serving.formats import Adapters, WeightFormat


@dataclass(slots=True)
class Tape:
    """The ops so far, and the weights that they use. `module` stands in the ops that follow."""

    format: WeightFormat
    ops: list[Op] = field(default_factory=list)
    weights: dict[str, TensorSpec] = field(default_factory=dict)
    caches: list[TensorSpec] = field(default_factory=list)
    module: str = ""
    adapters: Adapters | None = None
    sequences: Size = 1  # of the step, each with an adapter
    has_experts: bool = False  # of which alone some formats are

    def run(self, kind: str, inputs: tuple[TensorSpec, ...], *outputs: TensorSpec, **attrs: Any) -> TensorSpec:
        """One more op; its first output is handed on."""
        name = f"{kind.rpartition('.')[2]}_{len(self.ops)}"
        op = Op(name=name, kind=kind, module=self.module, inputs=inputs, outputs=outputs, attrs=MappingProxyType(attrs))
        self.ops.append(op)
        return outputs[0]

    def tensor(self, *shape: Size, dtype: DType | None = None) -> TensorSpec:
        """What an op makes."""
        return TensorSpec(name=f"t{len(self.ops)}", shape=shape, dtype=dtype or self.format.outside)

    def weight(self, name: str, *shape: Size, dtype: DType) -> TensorSpec:
        """A weight, once for all ops that use it."""
        full = f"{self.module}.{name}" if self.module else name
        return self.weights.setdefault(full, TensorSpec(name=full, shape=shape, dtype=dtype, role=Role.WEIGHT))

    def cache(self, name: str, *shape: Size, dtype: DType) -> TensorSpec:
        """Cached keys or values of one layer; they are there before the step."""
        found = TensorSpec(name=f"{self.module}.{name}", shape=shape, dtype=dtype, role=Role.INPUT)
        self.caches.append(found)
        return found

    def plain(self, x: TensorSpec, name: str, n: int) -> TensorSpec:
        """[tokens, k] → [tokens, n] in 16 bits, whatever the format of the layers."""
        tokens, k = x.shape
        weight = self.weight(name, k, n, dtype=self.format.outside)
        return self.run("aten.mm", (x, weight), self.tensor(tokens, n))

    def linear(self, x: TensorSpec, name: str, n: int) -> TensorSpec:
        """[tokens, k] → [tokens, n] by a matrix in the format of the layers, and by the adapters beside it."""
        y = self._product(x, name, n)
        return y if self.adapters is None else self._adapted(x, y, name, self.adapters)

    def _adapted(self, x: TensorSpec, y: TensorSpec, name: str, adapters: Adapters) -> TensorSpec:
        """The tokens of each adapter that some sequence uses through its two matrices, added to y."""
        (tokens, k), n, dtype = x.shape, y.shape[1], self.format.outside
        touched = touched_experts(adapters.number, 1, self.sequences)
        each = ceil_div(tokens, touched)
        read = []
        for part, shape in (("down", (adapters.rank, k)), ("up", (n, adapters.rank))):
            whole = self.weight(f"{name}.lora.{part}", adapters.number, *shape, dtype=dtype)
            read.append(TensorSpec(name=f"{whole.name} touched", shape=(touched, *shape), dtype=dtype,
                                   storage=whole.name, role=Role.WEIGHT))  # fmt: skip
        grouped = TensorSpec(name=f"{x.name} grouped", shape=(touched, each, k), dtype=x.dtype, storage=x.memory)
        low = self.run("serving.grouped_mm", (grouped, read[0]), self.tensor(touched, each, adapters.rank),
                       weight_only=False, rows=tokens)  # fmt: skip
        added = TensorSpec(name=f"{y.name}+", shape=(touched, each, n), dtype=y.dtype, storage=y.memory)
        self.run("serving.grouped_mm", (low, read[1], y), added, weight_only=False, rows=tokens)
        return y

    def summed(self, x: TensorSpec, gpus: int) -> TensorSpec:
        """The same, summed over GPUs."""
        return x if gpus == 1 else self.run("serving.all_reduce", (x,), self.tensor(*x.shape), gpus=gpus)

    def _product(self, x: TensorSpec, name: str, n: int) -> TensorSpec:
        form, (tokens, k) = self.format, x.shape
        assert isinstance(k, int)
        if form.bits == 16 or (form.experts_only and self.has_experts):
            return self.plain(x, name, n)
        scale = self.weight(f"{name}.scale", *form.scale_shape(n, k), dtype=form.scale)
        if form.few_bits:
            weight = self.weight(name, k // form.packed, n, dtype=form.stored)
            read = () if form.group is None else (scale,)
            return self.run("serving.scaled_mm", (self.few_bits(x), weight, *read), self.tensor(tokens, n))
        packed = self.weight(name, n, k // form.packed, dtype=form.stored)
        return self.run("serving.weight_only_mm", (x, packed, scale), self.tensor(tokens, n))

    def few_bits(self, x: TensorSpec) -> TensorSpec:
        """The same numbers in 8 or 4 bits: one kernel, and one before it where one scale for all is not known."""
        form = self.format
        *before, k = x.shape
        made = self.tensor(*before, floor_div(k, form.packed), dtype=form.activations)
        if form.group is not None:
            return self.run("serving.scale_blocks", (x,), made)
        if form.dynamic:
            self.run("serving.largest", (x,), self.tensor(1, dtype=DType.FLOAT32))
        return self.run("serving.scale_to_eight_bits", (x,), made)

    def experts(self, x: TensorSpec, name: str, n: int, experts: int, rows: Size) -> TensorSpec:
        """[touched, tokens, k] → [touched, tokens, n]: each touched expert's matrix on its own of all `rows`."""
        form, (touched, tokens, k) = self.format, x.shape
        assert isinstance(k, int)
        a_row = k // form.packed
        whole = self.weight(name, experts, n, a_row, dtype=form.stored)
        read = [TensorSpec(name=f"{whole.name} touched", shape=(touched, n, a_row), dtype=form.stored,
                           storage=whole.name, role=Role.WEIGHT)]  # fmt: skip
        if form.bits < 16:
            scales = form.scale_shape(n, k)
            scale = self.weight(f"{name}.scale", experts, *scales, dtype=form.scale)
            read.append(TensorSpec(name=f"{scale.name} touched", shape=(touched, *scales), dtype=form.scale,
                                   storage=scale.name, role=Role.WEIGHT))  # fmt: skip
        given = self.few_bits(x) if form.few_bits else x
        result = self.tensor(touched, tokens, n)
        return self.run("serving.grouped_mm", (given, *read), result, weight_only=form.weight_only, rows=rows)


# How many of several experts, or adapters, some token of a step uses.


def touched_experts(experts: int, per_token: int, tokens: Size, ep: int = 1) -> Size:
    """Experts that at least one of the tokens passes, on average: E · (1 − (1 − k/E)^tokens), to the nearest whole.

    Of E / ep of them where these are divided, and never less than one: the kernel runs.

    Each token takes k distinct ones of E, all choices alike and independent of the other tokens' (uniform routing).

    >>> touched_experts(8, 2, 1), touched_experts(8, 2, 4), touched_experts(8, 2, 1000)
    (2, 5, 8)
    """
    if per_token == experts:
        return experts // ep
    import sympy

    missed = sympy.Float(1 - per_token / experts) ** sympy.sympify(tokens)
    held = sympy.floor(sympy.Rational(experts, ep) * (1 - missed) + sympy.Rational(1, 2))
    return simplest(held if ep == 1 else sympy.Max(1, held))
