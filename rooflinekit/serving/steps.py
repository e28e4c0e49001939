"""The steps of an engine as graphs of the kernels that it runs: prefill, decode, and both at once.

A layer, as vLLM, TensorRT-LLM and SGLang run it: residual sum and normalization in one kernel; one product for
queries, keys and values; their rotation and the write into the cache; attention over the cache; its output product;
residual sum and normalization; one product for gate and up; activation; the last product. Under tensor parallelism
each GPU has its share of heads and of the network's width, and the partial results are summed over GPUs twice a layer.
Behind the layers the last token of each sequence is normalized, multiplied with the output matrix, and the largest
entry taken, or another one drawn (`sampling`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflinekit.cost.table import price_all
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import DType, Role, TensorSpec
from rooflinekit.ir.sizes import Size, ceil_div, product, symbol, total
from rooflinekit.serving.decoder import Decoder
from rooflinekit.serving.formats import KV_FORMATS, WEIGHT_FORMATS, Options, check_format
from rooflinekit.serving.sampling import drawn_of, largest_of
from rooflinekit.serving.tape import SCORE_CORRELATION, EngineTape, fullest_share, touched_experts


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
    tape = EngineTape(
        dtype=form.outside, format=form, adapters=options.adapters, sequences=total(part.sequences for part in parts),
        has_experts=decoder.experts > 0,
    )  # fmt: skip
    cached = check_format("kv", options.kv, KV_FORMATS)
    ids = TensorSpec(name="ids", shape=(total(part.tokens for part in parts),), dtype=DType.INT64, role=Role.INPUT)
    answer = _Builder(decoder=decoder, tape=tape, parts=parts, cached=cached, options=options).step(ids)
    return Graph(
        name=f"{decoder.name} {step}",
        mode="inference",
        inputs=(ids, *tape.caches),
        weights=tuple(tape.weights.values()),
        outputs=(answer,),
        priced=price_all(tape.ops),
        dims=dims,
    )


#: Last part of the module in which all groups exchange tokens.
EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    decoder: Decoder
    tape: EngineTape
    parts: tuple[Part, ...]
    cached: DType
    options: Options

    @property
    def call(self) -> dict[str, Any]:
        """What attention says of its call, and of the engine whose kernel it runs by."""
        return {"called": True} | ({"engine": self.options.release} if self.options.release else {})

    def step(self, ids: TensorSpec) -> TensorSpec:
        """[tokens] → the next token of each sequence."""
        d, tape = self.decoder, self.tape
        table = tape.weight("embedding", d.vocab, d.hidden)
        x = tape.run("aten.embedding", (table, ids), tape.new(*ids.shape, d.hidden))
        residual: TensorSpec | None = None
        for i in range(d.layers):
            x, residual = self._layer(i, x, residual)
        tape.module = "output"
        x, _ = self._normalized(x, residual)
        answers, vocab = total(part.answers for part in self.parts), ceil_div(d.vocab, self.options.tp)
        places = TensorSpec(name="last tokens", shape=(answers,), dtype=DType.INT64, role=Role.INPUT)
        last = tape.run("aten.index_select", (x, places), tape.new(answers, d.hidden), dim=0)
        if d.tied:
            logits = tape.run("aten.mm", (last, table.seen(d.hidden, vocab)), tape.new(answers, vocab))
        else:
            assert isinstance(vocab, int)
            logits = tape.plain(last, "matrix", vocab)
        if self.options.sampling == "greedy":
            return largest_of(tape, logits)
        return drawn_of(tape, logits.seen(answers, d.vocab))

    def _normalized(self, x: TensorSpec, residual: TensorSpec | None) -> tuple[TensorSpec, TensorSpec]:
        """x normalized, and the residual with x added to it; there is none before the first layer."""
        tape, gain = self.tape, self.tape.weight("norm", self.decoder.hidden)
        if residual is None:
            return tape.run("serving.rms_norm", (x, gain), tape.new(*x.shape)), x
        y, summed = tape.new(*x.shape), residual.seen(*x.shape, mark="summed")
        tape.run("serving.add_rms_norm", (x, residual, gain), y, summed)
        return y, summed

    def _layer(self, i: int, x: TensorSpec, residual: TensorSpec | None) -> tuple[TensorSpec, TensorSpec]:
        """[tokens, hidden] and its residual → the same behind the layer."""
        d, tape, tp = self.decoder, self.tape, self.options.tp
        tape.module = f"layers.{i}.attention"
        x, residual = self._normalized(x, residual)
        attended = self._latent(x) if d.latent else self._attention(x, d.window if i >= d.full_layers else None)
        attended = tape.linear(attended, "output", d.hidden)
        if d.parallel:
            tape.module = f"layers.{i}.network"
            both = tape.run("aten.add", (attended, self._plain(x, d.ffn)), tape.new(*x.shape), alpha=1)
            return tape.summed(both, tp), residual
        x = tape.summed(attended, tp)
        tape.module = f"layers.{i}.network"
        x, residual = self._normalized(x, residual)
        if d.experts and i >= d.dense_layers:
            return self._experts(x), residual
        return tape.summed(self._plain(x, d.dense_ffn if i < d.dense_layers else d.ffn), tp), residual

    def _attention(self, x: TensorSpec, window: int | None) -> TensorSpec:
        """[tokens, hidden] → [tokens, heads · head_dim]."""
        d, tape = self.decoder, self.tape
        heads, kv_heads = d.heads // self.options.tp, d.kv_heads_on(self.options.tp)
        qkv = tape.linear(x, "qkv", (heads + 2 * kv_heads) * d.head_dim)
        if d.qk_norm:
            gain = tape.weight("qk_norm", 2 * d.head_dim)
            turned = tape.new(qkv.shape[0], (heads + kv_heads) * d.head_dim)
            if d.qk_norm_whole:  # of queries and of keys, in one sum (vLLM, layers/mamba/linear_attn.py)
                tape.summed(tape.new(qkv.shape[0], 2, dtype=DType.FLOAT32), self.options.tp)
            tape.run("serving.rms_norm", (turned, gain), qkv.seen(*turned.shape))
        result = tape.new(qkv.shape[0], heads * d.head_dim)
        for i, part in enumerate(self.parts):
            mark, b, s = f".{i}" if i else "", part.sequences, part.new
            own = qkv.seen(b, s, (heads + 2 * kv_heads) * d.head_dim)
            query = tape.new(*_queries(part, heads, d.head_dim))
            put = [tape.new(b, kv_heads, s, d.head_dim, dtype=self.cached) for _ in ("k", "v")]
            tape.run("serving.rope_and_cache", (own,), query, *put)
            shape = (b, kv_heads, part.context, d.head_dim)
            keys, values = (tape.cache(f"{name}{mark}", *shape, dtype=self.cached) for name in ("keys", "values"))
            out = result.seen(*query.shape)
            tape.run("serving.paged_attention", (query, keys, values), out, window=window, **self.call)
        return result

    def _latent(self, x: TensorSpec) -> TensorSpec:
        """[tokens, hidden] → [tokens, heads · value_dim], through a latent, which is all that the cache holds.

        Decoding multiplies the queries into the latent and attends to it alone; prompts make keys and values of it
        first, as vLLM, SGLang and TensorRT-LLM do (DeepSeek-V2, arXiv 2405.04434, 2.1). Every GPU has the whole latent.
        """
        d, tape, heads, tokens = self.decoder, self.tape, self.decoder.heads // self.options.tp, x.shape[0]
        low = tape.linear(x, "down", d.query_latent + d.latent + d.rope_dim)
        gain = tape.weight("latent_norm", d.query_latent + d.latent)
        latent = tape.run("serving.rms_norm", (low, gain), tape.new(tokens, d.query_latent + d.latent))
        query = tape.linear(latent.seen(tokens, d.query_latent) if d.query_latent else x, "query",
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
            made = tape.linear(own, "up", heads * (d.head_dim - d.rope_dim + d.value_dim))
            q, k = (of.seen(b, heads, s, d.head_dim) for of in (query, made))
            v = tape.new(b, heads, s, d.value_dim)
            out = result.seen(b, heads, s, d.value_dim)
            tape.run("serving.paged_attention", (q, k, v), out, window=None, **self.call)
        return result

    def _absorbed(self, mark: str, part: Part, query: TensorSpec, result: TensorSpec) -> None:
        """The new tokens of each sequence over the latent: all heads share it."""
        d, tape, heads, b = self.decoder, self.tape, self.decoder.heads // self.options.tp, part.sequences
        plain, tokens = d.head_dim - d.rope_dim, part.tokens
        into = tape.weight("up.keys", heads, plain, d.latent)
        back = tape.weight("up.values", heads, d.latent, d.value_dim)
        tape.run("aten.bmm", (query.seen(heads, tokens, plain), into), tape.new(heads, tokens, d.latent))
        cache = tape.cache(f"latent{mark}", b, 1, part.context, d.latent + d.rope_dim, dtype=self.cached)
        seen = cache.seen(b, 1, part.context, d.latent)
        q = tape.new(*_queries(part, heads, d.latent + d.rope_dim))
        out = tape.new(*_queries(part, heads, d.latent))
        mixed = tape.run("serving.paged_attention", (q, cache, seen), out, window=None, **self.call)
        tape.run("aten.bmm", (mixed.seen(heads, tokens, d.latent), back),
                 result.seen(heads, tokens, d.value_dim))  # fmt: skip

    # Feed-forward networks: dense, or experts that are divided over ep of the tp · dp GPUs; the others share each.

    def _plain(self, x: TensorSpec, ffn: int, name: str = "") -> TensorSpec:
        """[tokens, hidden] → the same, not yet summed over GPUs."""
        d, tape, width = self.decoder, self.tape, ffn // self.options.tp
        h = tape.linear(x, f"{name}up", (1 + d.gated) * width)
        return tape.linear(self._activated(h, width), f"{name}down", d.hidden)

    def _activated(self, h: TensorSpec, width: int) -> TensorSpec:
        kind = "serving.gated_activation" if self.decoder.gated else "serving.activation"
        return self.tape.run(kind, (h,), self.tape.new(*h.shape[:-1], width))

    def _experts(self, x: TensorSpec) -> TensorSpec:
        """[tokens, hidden] → the same, summed over GPUs.

        Each GPU of a group has all its tokens, as attention leaves them; those of other groups are gathered, and the
        results of its experts sent back.
        """
        d, tape, over = self.decoder, self.tape, self.options
        result = self._chosen(x)
        if over.dp > 1:
            # The tokens of all groups, gathered before the experts and summed where they came from behind them. Both
            # together move what an all-reduce of all tokens over all GPUs does (its two halves are a reduce-scatter
            # and an all-gather), and are timed as one: vLLM's and TensorRT-LLM's default. An all-to-all moves less
            # where each token passes few of many GPUs.
            module, tape.module = tape.module, f"{tape.module}.{EXCHANGE}"
            result = tape.summed(result, over.gpus).seen(*x.shape)
            tape.module = module
        if d.shared_ffn:
            shared = self._plain(x, d.shared_ffn, "shared.")
            if over.dp > 1:
                shared = tape.summed(shared, over.tp)
            result = tape.run("aten.add", (result, shared), tape.new(*x.shape), alpha=1)
        return result if over.dp > 1 else tape.summed(result, over.tp)

    def _chosen(self, x: TensorSpec) -> TensorSpec:
        """Each token through its experts of this GPU, whose weights are read as far as some token needs them.

        Some experts get more tokens than others, and a step lasts as long as that of the GPU whose experts get the
        most. What the tokens of other GPUs' experts lack here comes with the sum over GPUs.
        """
        d, tape, over, tokens = self.decoder, self.tape, self.options, x.shape[0]
        chosen = tape.run("aten._softmax", (tape.plain(x, "router", d.experts),), tape.new(tokens, d.experts), dim=-1)
        picked = tape.new(tokens, d.experts_per_token)
        index = tape.new(*picked.shape, dtype=DType.INT64)
        tape.run("aten.topk", (chosen,), picked, index, k=d.experts_per_token, dim=-1, largest=True, sorted=True)
        everyone = product((tokens, over.dp))
        kinds = d.experts, d.experts_per_token
        busiest = product((everyone, fullest_share(*kinds, over.ep, SCORE_CORRELATION)))
        touched = touched_experts(*kinds, busiest, over.ep, SCORE_CORRELATION)
        rows = ceil_div(product((busiest, d.experts_per_token)), over.ep)
        each = ceil_div(rows, touched)
        grouped = tape.run("aten.index_select", (x, index), tape.new(touched, each, d.hidden), dim=0)
        width, held = d.ffn * over.ep // over.gpus, d.experts // over.ep
        h = tape.experts(grouped, "experts.up", (1 + d.gated) * width, held, rows)
        y = tape.experts(self._activated(h, width), "experts.down", d.hidden, held, rows)
        return tape.run("serving.combine_experts", (y, picked, index), tape.new(everyone, d.hidden))


def _queries(part: Part, heads: int, width: int) -> tuple[Size, ...]:
    """Shape of the queries. All new tokens of a sequence that goes on are worked on as further heads of one: kernels
    put them into the rows of a tile, beside the heads that share keys, and read the cache once.
    """
    if part.decodes:
        return part.sequences, product((heads, part.new)), 1, width
    return part.sequences, heads, part.new, width
