"""The steps of an engine as graphs of the kernels that it runs: prefill, decode, and both at once.

A layer, as vLLM, TensorRT-LLM and SGLang run it: residual sum and normalization in one kernel; one product for
queries, keys and values; their rotation and the write into the cache; attention over the cache; its output product;
residual sum and normalization; one product for gate and up; activation; the last product. Under tensor parallelism
each GPU has its share of heads and of the network's width, and the partial results are summed over GPUs twice a layer.
Behind the layers the last token of each sequence is normalized, multiplied with the output matrix, and the largest
entry taken (greedy sampling).
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from rooflinekit.cost.table import price_all
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.sizes import Size, ceil_div, product, simplest, symbol, total
from rooflinekit.ir.tensor import DType, Role, TensorSpec
from rooflinekit.serving.decoder import Decoder
from rooflinekit.serving.formats import KV_FORMATS, WEIGHT_FORMATS, check_format
from rooflinekit.serving.tape import Tape


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Sequences that attention treats alike: so many, with so many new tokens, over so many in all."""

    sequences: Size
    new: Size
    context: Size

    @property
    def tokens(self) -> Size:
        return product((self.sequences, self.new))


def prefill(decoder: Decoder, *, weights: str = "bf16", kv: str = "bf16", tp: int = 1, ep: int = 1) -> Graph:
    """`batch` prompts of `seq` tokens."""
    seq = symbol("seq")
    parts = (_Part(sequences=symbol("batch"), new=seq, context=seq),)
    return _step(decoder, "prefill", ("batch", "seq"), parts, weights, kv, (tp, ep))


def decode(decoder: Decoder, *, weights: str = "bf16", kv: str = "bf16", tp: int = 1, ep: int = 1) -> Graph:
    """One token for each of `batch` sequences of `context` tokens."""
    parts = (_Part(sequences=symbol("batch"), new=1, context=symbol("context")),)
    return _step(decoder, "decode", ("batch", "context"), parts, weights, kv, (tp, ep))


def mixed(decoder: Decoder, *, weights: str = "bf16", kv: str = "bf16", tp: int = 1, ep: int = 1) -> Graph:
    """`prompts` of `seq` tokens beside `batch` sequences of `context` tokens."""
    seq = symbol("seq")
    parts = (
        _Part(sequences=symbol("batch"), new=1, context=symbol("context")),
        _Part(sequences=symbol("prompts"), new=seq, context=seq),
    )
    return _step(decoder, "mixed", ("batch", "context", "prompts", "seq"), parts, weights, kv, (tp, ep))


def _step(
    decoder: Decoder,
    step: str,
    dims: tuple[str, ...],
    parts: tuple[_Part, ...],
    weights: str,
    kv: str,
    over: tuple[int, int],
) -> Graph:
    tp, ep = over
    decoder.check_tp(tp, ep)
    form = check_format("weights", weights, WEIGHT_FORMATS)
    cached = check_format("kv", kv, KV_FORMATS)
    tape = Tape(format=form)
    ids = TensorSpec(name="ids", shape=(total(part.tokens for part in parts),), dtype=DType.INT64, role=Role.INPUT)
    table = tape.weight("embedding", decoder.vocab, decoder.hidden, dtype=form.outside)
    x = tape.run("aten.embedding", (table, ids), tape.tensor(*ids.shape, decoder.hidden))
    residual: TensorSpec | None = None
    for i in range(decoder.layers):
        windowed = decoder.window if i >= decoder.full_layers else None
        layer = _Layer(decoder=decoder, tape=tape, parts=parts, cached=cached, tp=tp, ep=ep, window=windowed)
        x, residual = layer.run(f"layers.{i}", x, residual, dense=i < decoder.dense_layers)
    answer = _output(decoder, tape, x, residual, total(part.sequences for part in parts), tp)
    return Graph(
        name=f"{decoder.name} {step}",
        mode="inference",
        inputs=(ids, *tape.caches),
        weights=tuple(tape.weights.values()),
        outputs=(answer,),
        priced=price_all(tape.ops),
        dims=dims,
    )


def _output(
    decoder: Decoder, tape: Tape, x: TensorSpec, residual: TensorSpec | None, sequences: Size, tp: int
) -> TensorSpec:
    """[tokens, hidden] → the next token of each sequence, from its last one."""
    tape.module = "output"
    x, _ = _normalized(decoder, tape, x, residual)
    last = tape.run("aten.index_select", (x, _numbers(sequences)), tape.tensor(sequences, decoder.hidden), dim=0)
    vocab = ceil_div(decoder.vocab, tp)
    if decoder.tied:
        matrix = tape.weights["embedding"]
        shard = TensorSpec(name="embedding.T", shape=(decoder.hidden, vocab), dtype=matrix.dtype, storage=matrix.name,
                           role=Role.WEIGHT)  # fmt: skip
        logits = tape.run("aten.mm", (last, shard), tape.tensor(sequences, vocab))
    else:
        assert isinstance(vocab, int)
        logits = tape.plain(last, "matrix", vocab)
    return tape.run("aten.argmax", (logits,), tape.tensor(sequences, dtype=DType.INT64), dim=-1, keepdim=False)


def _numbers(count: Size) -> TensorSpec:
    return TensorSpec(name="last tokens", shape=(count,), dtype=DType.INT64, role=Role.INPUT)


def _normalized(
    decoder: Decoder, tape: Tape, x: TensorSpec, residual: TensorSpec | None
) -> tuple[TensorSpec, TensorSpec]:
    """x normalized, and the residual with x added to it; there is none before the first layer."""
    gain = tape.weight("norm", decoder.hidden, dtype=tape.format.outside)
    if residual is None:
        return tape.run("serving.rms_norm", (x, gain), tape.tensor(*x.shape)), x
    y = TensorSpec(name=f"y{len(tape.ops)}", shape=x.shape, dtype=x.dtype)
    summed = TensorSpec(name=f"{residual.name}+", shape=x.shape, dtype=x.dtype, storage=residual.memory)
    tape.run("serving.add_rms_norm", (x, residual, gain), y, summed)
    return y, summed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One GPU's part of a layer."""

    decoder: Decoder
    tape: Tape
    parts: tuple[_Part, ...]
    cached: DType
    tp: int
    ep: int  # of the GPUs among which the experts are divided; tp / ep share each
    window: int | None

    def run(
        self, module: str, x: TensorSpec, residual: TensorSpec | None, *, dense: bool
    ) -> tuple[TensorSpec, TensorSpec]:
        """[tokens, hidden] and its residual → the same behind the layer; `dense`: one without experts before others."""
        d, tape = self.decoder, self.tape
        tape.module = f"{module}.attention"
        x, residual = _normalized(d, tape, x, residual)
        if d.latent:
            attended = self._latent(x)
        else:
            heads, kv_heads = d.heads // self.tp, d.kv_heads_on(self.tp)
            qkv = tape.linear(x, "qkv", (heads + 2 * kv_heads) * d.head_dim)
            attended = self._attention(qkv, heads, kv_heads)
        x = self._summed(tape.linear(attended, "output", d.hidden))
        tape.module = f"{module}.network"
        x, residual = _normalized(d, tape, x, residual)
        plain = dense or not d.experts
        x = self._network(x, d.dense_ffn if dense else d.ffn, "") if plain else self._experts(x)
        return self._summed(x), residual

    def _attention(self, qkv: TensorSpec, heads: int, kv_heads: int) -> TensorSpec:
        d, tape = self.decoder, self.tape
        if d.qk_norm:
            gain = tape.weight("qk_norm", 2 * d.head_dim, dtype=tape.format.outside)
            turned = tape.tensor(qkv.shape[0], (heads + kv_heads) * d.head_dim)
            tape.run("serving.rms_norm", (turned, gain), TensorSpec(
                name=f"n{len(tape.ops)}", shape=turned.shape, dtype=turned.dtype, storage=qkv.name))  # fmt: skip
        result = tape.tensor(qkv.shape[0], heads * d.head_dim)
        for i, part in enumerate(self.parts):
            mark, b, s = f".{i}" if i else "", part.sequences, part.new
            width = (heads + 2 * kv_heads) * d.head_dim
            own = TensorSpec(name=f"{qkv.name} part{mark}", shape=(b, s, width), dtype=qkv.dtype, storage=qkv.name)
            query = TensorSpec(name=f"q{len(tape.ops)}", shape=(b, heads, s, d.head_dim), dtype=qkv.dtype)
            put = [
                TensorSpec(name=f"{name}{len(tape.ops)}", shape=(b, kv_heads, s, d.head_dim), dtype=self.cached)
                for name in ("k", "v")
            ]
            tape.run("serving.rope_and_cache", (own,), query, *put)
            shape = (b, kv_heads, part.context, d.head_dim)
            keys, values = (tape.cache(f"{name}{mark}", *shape, dtype=self.cached) for name in ("keys", "values"))
            out = TensorSpec(name=f"o{len(tape.ops)}", shape=query.shape, dtype=qkv.dtype, storage=result.name)
            tape.run("serving.paged_attention", (query, keys, values), out, window=self.window)
        return result

    def _latent(self, x: TensorSpec) -> TensorSpec:
        """[tokens, hidden] → [tokens, heads · value_dim], through a latent, which is all that the cache holds.

        Decoding multiplies the queries into the latent and attends to it alone; prompts make keys and values of it
        first, as vLLM, SGLang and TensorRT-LLM do (DeepSeek-V2, arXiv 2405.04434, 2.1). Every GPU has the whole latent.
        """
        d, tape, heads, tokens = self.decoder, self.tape, self.decoder.heads // self.tp, x.shape[0]
        low = tape.linear(x, "down", d.query_latent + d.latent + d.rope_dim)
        gain = tape.weight("latent_norm", d.query_latent + d.latent, dtype=tape.format.outside)
        latent = tape.run("serving.rms_norm", (low, gain), tape.tensor(tokens, d.query_latent + d.latent))
        query = tape.linear(_part_of(latent, tokens, d.query_latent) if d.query_latent else x, "query",
                            heads * d.head_dim)  # fmt: skip
        result = tape.tensor(tokens, heads * d.value_dim)
        for i, part in enumerate(self.parts):
            mark, b, s = f".{i}" if i else "", part.sequences, part.new
            turned = _part_of(low, b, s, heads * d.rope_dim + d.latent + d.rope_dim)
            put = TensorSpec(name=f"c{len(tape.ops)}", shape=(b, s, d.latent + d.rope_dim), dtype=self.cached)
            tape.run("serving.rope_and_cache", (turned,), put)
            if s == 1:
                self._absorbed(mark, part, query, result)
                continue
            own = _part_of(latent, product((b, s)), d.latent)
            made = tape.linear(own, "up", heads * (d.head_dim - d.rope_dim + d.value_dim))
            q, k = (_part_of(of, b, heads, s, d.head_dim) for of in (query, made))
            v = TensorSpec(name=f"{made.name} values", shape=(b, heads, s, d.value_dim), dtype=made.dtype)
            out = _part_of(result, b, heads, s, d.value_dim)
            tape.run("serving.paged_attention", (q, k, v), out, window=None)
        return result

    def _absorbed(self, mark: str, part: _Part, query: TensorSpec, result: TensorSpec) -> None:
        """One token of each sequence over the latent: all heads share it."""
        d, tape, heads, b = self.decoder, self.tape, self.decoder.heads // self.tp, part.sequences
        plain, outside = d.head_dim - d.rope_dim, tape.format.outside
        into = tape.weight("up.keys", heads, plain, d.latent, dtype=outside)
        back = tape.weight("up.values", heads, d.latent, d.value_dim, dtype=outside)
        tape.run("aten.bmm", (_part_of(query, heads, b, plain), into), tape.tensor(heads, b, d.latent))
        cache = tape.cache(f"latent{mark}", b, 1, part.context, d.latent + d.rope_dim, dtype=self.cached)
        seen = TensorSpec(name=f"{cache.name} values", shape=(b, 1, part.context, d.latent), dtype=self.cached,
                          storage=cache.memory, role=cache.role)  # fmt: skip
        q = TensorSpec(name=f"q{len(tape.ops)}", shape=(b, heads, 1, d.latent + d.rope_dim), dtype=query.dtype)
        mixed = tape.run("serving.paged_attention", (q, cache, seen), TensorSpec(
            name=f"o{len(tape.ops)}", shape=(b, heads, 1, d.latent), dtype=query.dtype), window=None)  # fmt: skip
        tape.run("aten.bmm", (_part_of(mixed, heads, b, d.latent), back), _part_of(result, heads, b, d.value_dim))

    def _network(self, x: TensorSpec, ffn: int, name: str) -> TensorSpec:
        """[tokens, hidden] → the same, not yet summed over GPUs."""
        d, tape, width = self.decoder, self.tape, ffn // self.tp
        h = tape.linear(x, f"{name}up", (1 + d.gated) * width)
        return tape.linear(self._activated(h, width), f"{name}down", d.hidden)

    def _activated(self, h: TensorSpec, width: int) -> TensorSpec:
        kind = "serving.gated_activation" if self.decoder.gated else "serving.activation"
        return self.tape.run(kind, (h,), self.tape.tensor(*h.shape[:-1], width))

    def _experts(self, x: TensorSpec) -> TensorSpec:
        """Each token through its experts of this GPU, whose weights are read as far as some token needs them.

        Each GPU has all tokens, as attention leaves them, and a part of the experts, or a share of each: what the
        tokens of other GPUs' experts lack here comes with the sum over GPUs. Experts are chosen evenly.
        """
        d, tape, tokens = self.decoder, self.tape, x.shape[0]
        chosen = tape.run(
            "aten._softmax", (tape.plain(x, "router", d.experts),), tape.tensor(tokens, d.experts), dim=-1
        )
        picked = tape.tensor(tokens, d.experts_per_token)
        index = TensorSpec(name=f"i{len(tape.ops)}", shape=picked.shape, dtype=DType.INT64)
        tape.run("aten.topk", (chosen,), picked, index, k=d.experts_per_token, dim=-1, largest=True, sorted=True)
        touched = touched_experts(d.experts, d.experts_per_token, tokens, self.ep)
        rows = ceil_div(product((tokens, d.experts_per_token)), self.ep)
        each = ceil_div(rows, touched)
        grouped = tape.run("aten.index_select", (x, index), tape.tensor(touched, each, d.hidden), dim=0)
        width, held = d.ffn * self.ep // self.tp, d.experts // self.ep
        h = tape.experts(grouped, "experts.up", (1 + d.gated) * width, held, rows)
        y = tape.experts(self._activated(h, width), "experts.down", d.hidden, held, rows)
        result = tape.run("serving.combine_experts", (y, picked, index), tape.tensor(tokens, d.hidden))
        if d.shared_ffn:
            shared = self._network(x, d.shared_ffn, "shared.")
            result = tape.run("aten.add", (result, shared), tape.tensor(tokens, d.hidden), alpha=1)
        return result

    def _summed(self, x: TensorSpec) -> TensorSpec:
        return (
            x if self.tp == 1 else self.tape.run("serving.all_reduce", (x,), self.tape.tensor(*x.shape), gpus=self.tp)
        )


def _part_of(whole: TensorSpec, *shape: Size) -> TensorSpec:
    """Some of a tensor's numbers, in another shape."""
    return TensorSpec(name=f"{whole.name} part", shape=shape, dtype=whole.dtype, storage=whole.memory, role=whole.role)


def touched_experts(experts: int, per_token: int, tokens: Size, ep: int = 1) -> Size:
    """Experts that at least one of the tokens passes, on average: E · (1 − (1 − k/E)^tokens), to the nearest whole.

    Of E / ep of them where these are divided, and never less than one: the kernel runs.

    Each token takes k distinct ones of E, all choices alike and independent of the other tokens' (uniform routing).

    >>> touched_experts(8, 2, 1), touched_experts(8, 2, 4), touched_experts(8, 2, 1000)
    (2, 5, 8)
    """
    missed = sympy.Float(1 - per_token / experts) ** sympy.sympify(tokens)
    held = sympy.floor(sympy.Rational(experts, ep) * (1 - missed) + sympy.Rational(1, 2))
    return simplest(held if ep == 1 else sympy.Max(1, held))
