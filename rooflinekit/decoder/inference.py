"""The steps of an engine as graphs of the kernels that it runs: prefill, decode, and both at once.

A layer, as vLLM, TensorRT-LLM and SGLang run it: residual sum and normalization in one kernel; one product for
queries, keys and values; their rotation and the write into the cache; attention over the cache; its output product;
residual sum and normalization; one product for gate and up; activation; the last product. Under tensor parallelism
each GPU has its share of heads and of the network's width, and the partial results are summed over GPUs twice a layer.
Behind the layers the last token of each sequence is normalized, multiplied with the output matrix, and the largest
entry taken, or another one drawn (`sampling`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from statistics import NormalDist, mean, pstdev

from rooflinekit.cost.table import price_all
from rooflinekit.decoder.decoder import Decoder
from rooflinekit.decoder.formats import KV_FORMATS, WEIGHT_FORMATS, Adapters, Options, WeightFormat, check_format
from rooflinekit.decoder.layers import Layers, Tape
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import DType, Role, TensorSpec
from rooflinekit.ir.sizes import Size, ceil_div, floor_div, product, simplest, symbol, total
from rooflinekit.published.stated import ENGINES


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Sequences that attention treats alike: so many, with so many new tokens, over so many in all.

    decodes: these are sequences that go on, whose new tokens all see the same cache; else they are prompts.
    """

    sequences: Size
    new: Size
    context: Size
    decodes: bool = False

    @property
    def tokens(self) -> Size:
        """New ones of all sequences."""
        return product((self.sequences, self.new))

    @property
    def answers(self) -> Size:
        """Tokens whose logits are needed: the last of a prompt, all of a sequence that goes on."""
        return self.tokens if self.decodes else self.sequences


def step_graph(decoder: Decoder, step: str, options: Options, *, block_cores: bool = False) -> Graph:
    """The step of this name: "prefill", "decode" or "mixed", as `Decoder` has them.

    block_cores: the device's tensor cores multiply blocks of 4 bits with their scales.
    """
    seq = symbol("seq")
    read, beside = (Part(sequences=symbol(number), new=seq, context=seq) for number in ("batch", "prompts"))
    going_on = Part(sequences=symbol("batch"), new=1 + options.drafted, context=symbol("context"), decodes=True)
    parts, dims = {
        "prefill": ((read,), ("batch", "seq")),
        "decode": ((going_on,), ("batch", "context")),
        "mixed": ((going_on, beside), ("batch", "context", "prompts", "seq")),
    }[step]
    decoder.check_tp(options.tp, options.ep, options.dp)
    form = check_format("weights", options.weights, WEIGHT_FORMATS)
    form = form.on_block_cores() if block_cores else form
    ids = TensorSpec(name="ids", shape=(total(part.tokens for part in parts),), dtype=DType.INT64, role=Role.INPUT)
    tape, cached = Tape(dtype=form.outside), check_format("kv", options.kv, KV_FORMATS)
    layers = Inference(
        decoder=decoder, tape=tape, tensor=options.tp, vocab=decoder.vocab, parts=parts, format=form, cached=cached,
        options=options,
    )  # fmt: skip
    answer = layers.step(ids)
    return Graph(
        name=f"{decoder.name} {step}", mode="inference", inputs=(ids, *layers.caches),
        weights=tuple(tape.weights.values()), outputs=(answer,), priced=price_all(tape.ops), dims=dims,
    )  # fmt: skip


#: Last part of the module in which all groups exchange tokens.
EXCHANGE = "exchange"


@dataclass(slots=True, kw_only=True)
class Inference(Layers):
    """The kernels of an engine. A residual is added up by the normalization behind it."""

    parts: tuple[Part, ...]
    format: WeightFormat
    cached: DType
    options: Options
    caches: list[TensorSpec] = field(default_factory=list)
    residual: TensorSpec | None = None  # what the layers so far have added up; None before the first one

    def step(self, ids: TensorSpec) -> TensorSpec:
        """[tokens] → the next token of each sequence."""
        d, tape = self.decoder, self.tape
        x = self.through(ids)
        tape.module = "head"
        answers, vocab = total(part.answers for part in self.parts), ceil_div(d.vocab, self.tensor)
        places = TensorSpec(name="last tokens", shape=(answers,), dtype=DType.INT64, role=Role.INPUT)
        last = tape.run("aten.index_select", (x, places), tape.new(answers, d.hidden), dim=0)
        if d.tied:
            table = tape.weights["embedding.weight"].seen(d.hidden, vocab)
            logits = tape.run("aten.mm", (last, table), tape.new(answers, vocab))
        else:
            assert isinstance(vocab, int)
            logits = self._plain(last, "matrix", vocab)
        if self.options.sampling == "greedy":
            return largest_of(tape, logits)
        return drawn_of(tape, logits.seen(answers, d.vocab))

    def _norm(self, x: TensorSpec) -> TensorSpec:
        tape, gain, before = self.tape, self.tape.weight("weight", self.decoder.hidden), self.residual
        if before is None:
            self.residual = x
            return tape.run("serving.rms_norm", (x, gain), tape.like(x))
        y, self.residual = tape.like(x), before.seen(*x.shape, mark="summed")
        return tape.run("serving.add_rms_norm", (x, before, gain), y, self.residual)

    def _added(self, y: TensorSpec, x: TensorSpec) -> TensorSpec:
        return y

    def _attention(self, x: TensorSpec, i: int) -> TensorSpec:
        d = self.decoder
        return self._latent(x) if d.latent else self._heads(x, d.window if i >= d.full_layers else None)

    def _heads(self, x: TensorSpec, window: int | None) -> TensorSpec:
        """[tokens, hidden] → [tokens, heads · head_dim]."""
        d, tape = self.decoder, self.tape
        heads, kv_heads = self.heads
        qkv = self.linear(x, "qkv", (heads + 2 * kv_heads) * d.head_dim)
        if d.qk_norm:
            gain = tape.weight("qk_norm", 2 * d.head_dim)
            turned = tape.new(qkv.shape[0], (heads + kv_heads) * d.head_dim)
            if d.qk_norm_whole:  # of queries and of keys, in one sum (vLLM, layers/mamba/linear_attn.py)
                self._summed(tape.new(qkv.shape[0], 2, dtype=DType.FLOAT32))
            tape.run("serving.rms_norm", (turned, gain), qkv.seen(*turned.shape))
        result = tape.new(qkv.shape[0], heads * d.head_dim)
        for i, part in enumerate(self.parts):
            mark, b, s = f".{i}" if i else "", part.sequences, part.new
            own = qkv.seen(b, s, (heads + 2 * kv_heads) * d.head_dim)
            query = tape.new(*_queries(part, heads, d.head_dim))
            put = [tape.new(b, kv_heads, s, d.head_dim, dtype=self.cached) for _ in ("k", "v")]
            tape.run("serving.rope_and_cache", (own,), query, *put)
            shape = (b, kv_heads, part.context, d.head_dim)
            keys, values = (self._cache(f"{name}{mark}", *shape, dtype=self.cached) for name in ("keys", "values"))
            self._attend(query, keys, values, result.seen(*query.shape), window=window)
        return result

    def _latent(self, x: TensorSpec) -> TensorSpec:
        """[tokens, hidden] → [tokens, heads · value_dim], through a latent, which is all that the cache holds.

        Decoding multiplies the queries into the latent and attends to it alone; prompts make keys and values of it
        first, as vLLM, SGLang and TensorRT-LLM do (DeepSeek-V2, arXiv 2405.04434, 2.1). Every GPU has the whole latent.
        """
        d, tape, heads, tokens = self.decoder, self.tape, self.heads[0], x.shape[0]
        low = self.linear(x, "down", d.query_latent + d.latent + d.rope_dim)
        gain = tape.weight("latent_norm", d.query_latent + d.latent)
        latent = tape.run("serving.rms_norm", (low, gain), tape.new(tokens, d.query_latent + d.latent))
        query = self.linear(latent.seen(tokens, d.query_latent) if d.query_latent else x, "query",
                            heads * d.head_dim)  # fmt: skip
        result = tape.new(tokens, heads * d.value_dim)
        for i, part in enumerate(self.parts):
            mark, b, s = f".{i}" if i else "", part.sequences, part.new
            turned = low.seen(b, s, heads * d.rope_dim + d.latent + d.rope_dim)
            put = tape.new(b, s, d.latent + d.rope_dim, dtype=self.cached)
            tape.run("serving.rope_and_cache", (turned,), put)
            if part.decodes:
                self._absorbed(mark, part, query, result)
                continue
            own = latent.seen(product((b, s)), d.latent)
            made = self.linear(own, "up", heads * (d.head_dim - d.rope_dim + d.value_dim))
            q, k = (of.seen(b, heads, s, d.head_dim) for of in (query, made))
            v = tape.new(b, heads, s, d.value_dim)
            self._attend(q, k, v, result.seen(b, heads, s, d.value_dim))
        return result

    def _absorbed(self, mark: str, part: Part, query: TensorSpec, result: TensorSpec) -> None:
        """The new tokens of each sequence over the latent: all heads share it."""
        d, tape, heads, b = self.decoder, self.tape, self.heads[0], part.sequences
        plain, tokens = d.head_dim - d.rope_dim, part.tokens
        into = tape.weight("up.keys", heads, plain, d.latent)
        back = tape.weight("up.values", heads, d.latent, d.value_dim)
        tape.run("aten.bmm", (query.seen(heads, tokens, plain), into), tape.new(heads, tokens, d.latent))
        cache = self._cache(f"latent{mark}", b, 1, part.context, d.latent + d.rope_dim, dtype=self.cached)
        seen = cache.seen(b, 1, part.context, d.latent)
        q = tape.new(*_queries(part, heads, d.latent + d.rope_dim))
        mixed = self._attend(q, cache, seen, tape.new(*_queries(part, heads, d.latent)))
        tape.run("aten.bmm", (mixed.seen(heads, tokens, d.latent), back),
                 result.seen(heads, tokens, d.value_dim))  # fmt: skip

    def _attend(self, *given: TensorSpec, window: int | None = None) -> TensorSpec:
        """Queries, keys and values → the last one given, by the engine's kernel."""
        told = {"engine": self.options.release} if self.options.release else {}
        return self.tape.run("serving.paged_attention", given[:3], given[3], window=window, called=True, **told)

    def _activated(self, h: TensorSpec, width: int) -> TensorSpec:
        kind = "serving.gated_activation" if self.decoder.gated else "serving.activation"
        return self.tape.run(kind, (h,), self.tape.new(*h.shape[:-1], width))

    def _experts(self, x: TensorSpec) -> TensorSpec:
        """[tokens, hidden] → the same, summed over GPUs.

        Experts are divided over ep of the tp · dp GPUs; the others share each. Each GPU of a group has all its tokens,
        as attention leaves them; those of other groups are gathered, and the results of its experts sent back.
        """
        both = Layers._experts(self, x)
        return both if self.options.dp > 1 else self._summed(both)

    def _shared(self, x: TensorSpec) -> TensorSpec:
        made = Layers._shared(self, x)
        return self._summed(made) if self.options.dp > 1 else made

    def _chosen(self, x: TensorSpec) -> TensorSpec:
        result, tape, over = self._here(x), self.tape, self.options
        if over.dp == 1:
            return result
        # The tokens of all groups, gathered before the experts and summed where they came from behind them. Both
        # together move what an all-reduce of all tokens over all GPUs does (its two halves are a reduce-scatter and an
        # all-gather), and are timed as one: vLLM's and TensorRT-LLM's default. An all-to-all moves less where each
        # token passes few of many GPUs.
        module, tape.module = tape.module, f"{tape.module}.{EXCHANGE}"
        result = self._summed(result, over.gpus).seen(*x.shape)
        tape.module = module
        return result

    def _here(self, x: TensorSpec) -> TensorSpec:
        """Each token through its experts of this GPU, whose weights are read as far as some token needs them.

        Some experts get more tokens than others, and a step lasts as long as that of the GPU whose experts get the
        most. What the tokens of other GPUs' experts lack here comes with the sum over GPUs.
        """
        d, tape, over, tokens = self.decoder, self.tape, self.options, x.shape[0]
        _, picked, index = self._largest(self._plain(x, "router", d.experts))
        everyone = product((tokens, over.dp))
        kinds = d.experts, d.experts_per_token
        busiest = product((everyone, fullest_share(*kinds, over.ep, SCORE_CORRELATION)))
        touched = touched_experts(*kinds, busiest, over.ep, SCORE_CORRELATION)
        rows = ceil_div(product((busiest, d.experts_per_token)), over.ep)
        each = ceil_div(rows, touched)
        grouped = tape.run("aten.index_select", (x, index), tape.new(touched, each, d.hidden), dim=0)
        width, held = d.ffn * over.ep // over.gpus, d.experts // over.ep
        h = self.grouped(grouped, "experts.up", (1 + d.gated) * width, held, rows)
        y = self.grouped(self._activated(h, width), "experts.down", d.hidden, held, rows)
        return tape.run("serving.combine_experts", (y, picked, index), tape.new(everyone, d.hidden))

    # Products in the format of an engine's weights, and the caches.

    def _cache(self, name: str, *shape: Size, dtype: DType) -> TensorSpec:
        """Cached keys or values of one layer; they are there before the step."""
        self.caches.append(TensorSpec(name=f"{self.tape.module}.{name}", shape=shape, dtype=dtype, role=Role.INPUT))
        return self.caches[-1]

    def _plain(self, x: TensorSpec, name: str, n: int) -> TensorSpec:
        """[tokens, k] → [tokens, n] in 16 bits, whatever the format of the layers."""
        tokens, k = x.shape
        weight = self.tape.weight(name, k, n)
        return self.tape.run("aten.mm", (x, weight), self.tape.new(tokens, n))

    def linear(self, x: TensorSpec, name: str, n: int, *, rows: bool = False, bias_behind: bool = False) -> TensorSpec:
        """By a matrix in the format of the layers, and by the adapters beside it."""
        y, adapters = self._product(x, name, n), self.options.adapters
        return y if adapters is None else self._adapted(x, y, name, adapters)

    def _adapted(self, x: TensorSpec, y: TensorSpec, name: str, adapters: Adapters) -> TensorSpec:
        (tokens, k), n = x.shape, y.shape[1]
        touched = touched_experts(adapters.number, 1, total(part.sequences for part in self.parts))
        each = ceil_div(tokens, touched)
        down, up = (
            self.tape.weight(f"{name}.lora.{part}", adapters.number, *shape).seen(touched, *shape, mark="touched")
            for part, shape in (("down", (adapters.rank, k)), ("up", (n, adapters.rank)))
        )
        low = self.tape.new(touched, each, adapters.rank)
        self.tape.run("serving.grouped_mm", (x.seen(touched, each, k), down), low, weight_only=False, rows=tokens)
        self.tape.run("serving.grouped_mm", (low, up, y), y.seen(touched, each, n), weight_only=False, rows=tokens)
        return y

    def _summed(self, x: TensorSpec, gpus: int = 0) -> TensorSpec:
        """The tensor, summed over `gpus` GPUs, or over those that share each layer."""
        if (gpus := gpus or self.tensor) == 1:
            return x
        return self.tape.run("serving.all_reduce", (x,), self.tape.like(x, x.dtype), gpus=gpus)

    def _product(self, x: TensorSpec, name: str, n: int) -> TensorSpec:
        form, (tokens, k) = self.format, x.shape
        assert isinstance(k, int)
        if form.bits == 16 or (form.experts_only and self.decoder.experts):
            return self._plain(x, name, n)
        scale = self.tape.weight(f"{name}.scale", *form.scale_shape(n, k), dtype=form.scale)
        if form.few_bits:
            weight = self.tape.weight(name, k // form.packed, n, dtype=form.stored)
            read = () if form.group is None else (scale,)
            return self.tape.run("serving.scaled_mm", (self._few_bits(x), weight, *read), self.tape.new(tokens, n))
        packed = self.tape.weight(name, n, k // form.packed, dtype=form.stored)
        return self.tape.run("serving.weight_only_mm", (x, packed, scale), self.tape.new(tokens, n))

    def _few_bits(self, x: TensorSpec) -> TensorSpec:
        """The tensor in 8 or 4 bits: one kernel, and one before it where one scale for all is not known."""
        form = self.format
        *before, k = x.shape
        packed = form.packed if form.activations is form.stored else 1
        made = self.tape.new(*before, floor_div(k, packed), dtype=form.activations)
        if form.group is not None:
            return self.tape.run("serving.scale_blocks", (x,), made)
        if form.dynamic:
            self.tape.run("serving.largest", (x,), self.tape.new(1, dtype=DType.FLOAT32))
        return self.tape.run("serving.scale_to_eight_bits", (x,), made)

    def grouped(self, x: TensorSpec, name: str, n: int, experts: int, rows: Size) -> TensorSpec:
        """[touched, tokens, k] → [touched, tokens, n]: each touched expert's matrix on its own of all `rows`."""
        form, (touched, tokens, k) = self.format, x.shape
        assert isinstance(k, int)
        a_row = k // form.packed
        read = [self.tape.weight(name, experts, n, a_row, dtype=form.stored).seen(touched, n, a_row, mark="touched")]
        if form.bits < 16:
            scales = form.scale_shape(n, k)
            scale = self.tape.weight(f"{name}.scale", experts, *scales, dtype=form.scale)
            read.append(scale.seen(touched, *scales, mark="touched"))
        given = self._few_bits(x) if form.few_bits else x
        result = self.tape.new(touched, tokens, n)
        return self.tape.run("serving.grouped_mm", (given, *read), result, weight_only=form.weight_only, rows=rows)


def _queries(part: Part, heads: int, width: int) -> tuple[Size, ...]:
    """Shape of the queries. All new tokens of a sequence that goes on are worked on as further heads of one: kernels
    put them into the rows of a tile, beside the heads that share keys, and read the cache once.
    """
    if part.decodes:
        return part.sequences, product((heads, part.new)), 1, width
    return part.sequences, heads, part.new, width


_FP32, _BOOL, _INT = DType.FLOAT32, DType.BOOL, DType.INT64


def largest_of(tape: Tape, logits: TensorSpec) -> TensorSpec:
    """[sequences, vocabulary] → the place of the largest."""
    place = tape.new(logits.shape[0], dtype=_INT)
    return tape.run("aten.argmax", (logits,), place, dim=-1, keepdim=False)


def drawn_of(tape: Tape, logits: TensorSpec) -> TensorSpec:
    """[sequences, vocabulary] → a token each, drawn of those within top-k and top-p, as PyTorch's kernels do it.

    vLLM's own (0.11.1, v1/sample/ops/topk_topp_sampler.py: apply_top_k_top_p and random_sample, which run unless
    VLLM_USE_FLASHINFER_SAMPLER is set): logits in 32 bits, by the temperature, sorted; those outside the top k are
    masked, then by a running sum of probabilities those outside the top p; put back to their places; the largest of
    probability over an exponential random number. Every GPU that shares the layers does so for all of the vocabulary.
    """
    shape = logits.shape

    def step(kind: str, *inputs: TensorSpec, dtype: DType = _FP32, **attrs: object) -> TensorSpec:
        return tape.run(kind, inputs, tape.new(*shape, dtype=dtype), **attrs)

    heated = step("aten.mul", step("aten._to_copy", logits))
    places = tape.new(*shape, dtype=_INT)
    ordered = tape.run("serving.sort_rows", (heated,), tape.new(*shape, dtype=_FP32), places)
    likely = step("aten.masked_fill", ordered, step("aten.lt", ordered, dtype=_BOOL))
    summed = step("aten.cumsum", step("aten._softmax", likely, dim=-1), dim=-1)
    likely = step("aten.masked_fill", likely, step("aten.le", summed, dtype=_BOOL))
    back = step("aten.scatter", likely, places, likely, dim=-1)
    chance = step("aten._softmax", back, dim=-1)
    return largest_of(tape, step("aten.div", chance, step("aten.exponential")))


#: With it the coefficient of variation among 128 experts, of which a token takes 4, is 1.0; among 8 of which it takes 2
#: it is 0.5, and Mixtral at a rate (blis) does not change by 0.1 %.
SCORE_CORRELATION = ENGINES["expert's scores"].value
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
