"""The ops of a decoder's step, written down one after the other; for engines with products in the chosen format."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from statistics import NormalDist, mean, pstdev
from types import MappingProxyType
from typing import Any

from rooflinekit.ir.op import DType, Op, Phase, Role, TensorSpec
from rooflinekit.ir.sizes import Size, ceil_div, floor_div, simplest
from rooflinekit.serving.formats import Adapters, WeightFormat


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

    def weight(self, name: str, *shape: Size, dtype: DType | None = None) -> TensorSpec:
        """A weight, once for all ops that use it."""
        full = f"{self.module}.{name}" if self.module else name
        return self.weights.setdefault(
            full, TensorSpec(name=full, shape=shape, dtype=dtype or self.dtype, role=Role.WEIGHT)
        )


@dataclass(slots=True, kw_only=True)
class EngineTape(Tape):
    """Products in the format of an engine's weights, with the adapters beside them; and the caches."""

    format: WeightFormat
    caches: list[TensorSpec] = field(default_factory=list)
    adapters: Adapters | None = None
    sequences: Size = 1  # of the step, each with an adapter
    has_experts: bool = False  # of which alone some formats are

    def cache(self, name: str, *shape: Size, dtype: DType) -> TensorSpec:
        """Cached keys or values of one layer; they are there before the step."""
        self.caches.append(TensorSpec(name=f"{self.module}.{name}", shape=shape, dtype=dtype, role=Role.INPUT))
        return self.caches[-1]

    def plain(self, x: TensorSpec, name: str, n: int) -> TensorSpec:
        """[tokens, k] → [tokens, n] in 16 bits, whatever the format of the layers."""
        tokens, k = x.shape
        weight = self.weight(name, k, n)
        return self.run("aten.mm", (x, weight), self.new(tokens, n))

    def linear(self, x: TensorSpec, name: str, n: int) -> TensorSpec:
        """[tokens, k] → [tokens, n] by a matrix in the format of the layers, and by the adapters beside it."""
        y = self._product(x, name, n)
        return y if self.adapters is None else self._adapted(x, y, name, self.adapters)

    def _adapted(self, x: TensorSpec, y: TensorSpec, name: str, adapters: Adapters) -> TensorSpec:
        (tokens, k), n = x.shape, y.shape[1]
        touched = touched_experts(adapters.number, 1, self.sequences)
        each = ceil_div(tokens, touched)
        down, up = (
            self.weight(f"{name}.lora.{part}", adapters.number, *shape).seen(touched, *shape, mark="touched")
            for part, shape in (("down", (adapters.rank, k)), ("up", (n, adapters.rank)))
        )
        low = self.new(touched, each, adapters.rank)
        self.run("serving.grouped_mm", (x.seen(touched, each, k), down), low, weight_only=False, rows=tokens)
        self.run("serving.grouped_mm", (low, up, y), y.seen(touched, each, n), weight_only=False, rows=tokens)
        return y

    def summed(self, x: TensorSpec, gpus: int) -> TensorSpec:
        """The tensor, summed over `gpus` GPUs."""
        return x if gpus == 1 else self.run("serving.all_reduce", (x,), self.new(*x.shape, dtype=x.dtype), gpus=gpus)

    def _product(self, x: TensorSpec, name: str, n: int) -> TensorSpec:
        form, (tokens, k) = self.format, x.shape
        assert isinstance(k, int)
        if form.bits == 16 or (form.experts_only and self.has_experts):
            return self.plain(x, name, n)
        scale = self.weight(f"{name}.scale", *form.scale_shape(n, k), dtype=form.scale)
        if form.few_bits:
            weight = self.weight(name, k // form.packed, n, dtype=form.stored)
            read = () if form.group is None else (scale,)
            return self.run("serving.scaled_mm", (self.few_bits(x), weight, *read), self.new(tokens, n))
        packed = self.weight(name, n, k // form.packed, dtype=form.stored)
        return self.run("serving.weight_only_mm", (x, packed, scale), self.new(tokens, n))

    def few_bits(self, x: TensorSpec) -> TensorSpec:
        """The tensor in 8 or 4 bits: one kernel, and one before it where one scale for all is not known."""
        form = self.format
        *before, k = x.shape
        packed = form.packed if form.activations is form.stored else 1
        made = self.new(*before, floor_div(k, packed), dtype=form.activations)
        if form.group is not None:
            return self.run("serving.scale_blocks", (x,), made)
        if form.dynamic:
            self.run("serving.largest", (x,), self.new(1, dtype=DType.FLOAT32))
        return self.run("serving.scale_to_eight_bits", (x,), made)

    def experts(self, x: TensorSpec, name: str, n: int, experts: int, rows: Size) -> TensorSpec:
        """[touched, tokens, k] → [touched, tokens, n]: each touched expert's matrix on its own of all `rows`."""
        form, (touched, tokens, k) = self.format, x.shape
        assert isinstance(k, int)
        a_row = k // form.packed
        read = [self.weight(name, experts, n, a_row, dtype=form.stored).seen(touched, n, a_row, mark="touched")]
        if form.bits < 16:
            scales = form.scale_shape(n, k)
            scale = self.weight(f"{name}.scale", experts, *scales, dtype=form.scale)
            read.append(scale.seen(touched, *scales, mark="touched"))
        given = self.few_bits(x) if form.few_bits else x
        result = self.new(touched, tokens, n)
        return self.run("serving.grouped_mm", (given, *read), result, weight_only=form.weight_only, rows=rows)


#: Correlation of the scores that an expert gets of two tokens. With it and some µs a layer of vLLM, times per token of
#: GPT-OSS 120B, MiniMax M2, Qwen3 235B and Kimi K2 in aiconfigurator's tables (H100 and B200, vLLM and TensorRT-LLM,
#: 17 sets of model, engine, GPU and number of GPUs; halves by a hash of these; mean over sets of the median error): one
#: half tells 0.08 and 30 µs, the other 0.25 and 25; the half that had no part goes from 11.8 to 9.9 % and from 18.7 to
#: 12.1. Among 128 experts, of which a token takes 4, the coefficient of variation is 1.0, among 8 of which it takes 2
#: it is 0.5: Mixtral at a rate (blis) does not change by 0.1 %.
SCORE_CORRELATION = 0.15
#: Groups of equally many experts, by how often they are chosen.
_GROUPS = 16


@functools.cache
def chosen_shares(share: float, correlation: float) -> tuple[float, ...]:
    """How often a token chooses an expert, of which each is chosen by `share` on average: for sixteenths of them.

    A token chooses those of the highest scores. A score is normally distributed, and has a part that is the expert's
    own, alike for all tokens: its variance is the `correlation` of two tokens' scores.

    >>> [round(one, 3) for one in chosen_shares(0.25, 0.15)[::5]]
    [0.065, 0.185, 0.288, 0.522]
    """
    normal = NormalDist()
    least = normal.inv_cdf(1 - share)
    own = (correlation**0.5 * normal.inv_cdf((i + 0.5) / _GROUPS) for i in range(_GROUPS))
    chosen = [normal.cdf((one - least) / (1 - correlation) ** 0.5) for one in own]
    return tuple(share * _GROUPS * one / math.fsum(chosen) for one in chosen)


def touched_experts(experts: int, per_token: int, tokens: Size, ep: int = 1, correlation: float = 0.0) -> Size:
    """Experts that at least one of the tokens passes, on average, to the nearest whole; of E / ep of them where these
    are divided, and never less than one: the kernel runs.

    Each token takes k distinct ones of E, independently of the other tokens: the mean of 1 − (1 − p)^T over experts
    that a token takes with the chances p of `chosen_shares`; without correlation all with k/E.

    >>> touched_experts(8, 2, 1), touched_experts(8, 2, 4), touched_experts(8, 2, 1000)
    (2, 5, 8)
    >>> touched_experts(128, 4, 1, correlation=0.15), touched_experts(128, 4, 64, correlation=0.15)
    (4, 90)
    """
    if per_token == experts:
        return experts // ep
    import sympy

    share = per_token / experts
    shares = chosen_shares(share, correlation) if correlation else (share,)
    missed = sympy.Add(*(sympy.Float(1 - one) ** sympy.sympify(tokens) for one in shares)) / len(shares)
    held = sympy.floor(sympy.Rational(experts, ep) * (1 - missed) + sympy.Rational(1, 2))
    return simplest(held if ep == 1 else sympy.Max(1, held))


def fullest_share(experts: int, per_token: int, parts: int, correlation: float) -> float:
    """Tokens that the fullest of so many GPUs gets, among which experts are divided, as a multiple of the average.

    Those of a GPU vary by as much as those of an expert over the square root of its experts; the largest of n normal
    numbers is expected at the quantile (n - 3/8) / (n + 1/4) (Blom 1958).

    >>> fullest_share(128, 8, 1, 0.15), round(fullest_share(128, 8, 8, 0.15), 2)
    (1, 1.28)
    """
    if parts == 1 or per_token == experts:
        return 1
    shares = chosen_shares(per_token / experts, correlation)
    deviation = pstdev(shares) / mean(shares) / math.sqrt(experts / parts)
    return 1 + deviation * NormalDist().inv_cdf((parts - 3 / 8) / (parts + 1 / 4))
