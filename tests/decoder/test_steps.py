"""Graphs of prefill and decode: FLOP and bytes worked out by hand, and laws."""

from functools import partial
from itertools import combinations, product
from types import MappingProxyType

import numpy
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.api.predict import machines_of
from rooflinekit.cost.table import price
from rooflinekit.decoder.formats import Options
from rooflinekit.decoder.inference import SCORE_CORRELATION, fullest_share, step_graph, touched_experts
from rooflinekit.errors import InputError
from rooflinekit.ir.op import DType, Op, TensorSpec
from rooflinekit.serving.step_times import StepTimes

TINY = rk.Decoder(layers=1, hidden=8, heads=2, kv_heads=1, head_dim=4, ffn=16, vocab=32)


def test_flop_of_a_tiny_prefill() -> None:
    # a token: queries, keys and values 8 × 16, output 8 × 8, up 8 × 32, down 16 × 8: 576 numbers, 1152 FLOP
    # attention: 2 heads, n(n+1)/2 pairs, 4 multiply-adds for the score and 4 for the value: 16·n(n+1) FLOP
    # the last token alone meets the output matrix, 8 × 32: 512 FLOP
    n = sympy.Symbol("seq", integer=True, positive=True)
    batch = sympy.Symbol("batch", integer=True, positive=True)
    expected = batch * (1152 * n + 16 * n * (n + 1) + 512)
    assert sympy.expand(TINY.prefill().matrix_flop - expected) == 0
    assert TINY.prefill().at(batch=1, seq=3).matrix_flop == 3456 + 192 + 512


def test_flop_of_a_tiny_decode() -> None:
    # 2 heads see t tokens at 16 FLOP each
    assert TINY.decode().at(batch=5, context=7).matrix_flop == 5 * (1152 + 2 * 7 * 16 + 512)


def test_flop_of_a_prefill_is_two_a_parameter_and_token() -> None:
    d = rk.Decoder(layers=3, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=128, vocab=500)
    pairs = 10 * 11 // 2
    attention = 3 * 4 * pairs * 2 * (16 + 16)
    assert d.prefill().at(batch=1, seq=10).matrix_flop == 2 * d.layer_parameters * 3 * 10 + attention + 2 * 64 * 500


def test_bytes_of_decode_attention() -> None:
    graph = TINY.decode(kv="fp8").at(batch=3, context=100)
    (op,) = [p for p in graph.priced if p.op.kind == "serving.paged_attention"]
    (cost,) = op.costs
    assert cost.read_bytes == 3 * (2 * 1 * 100 * 4 * 1 + 2 * 4 * 2)  # the cache in 1 byte, queries in 2
    assert cost.write_bytes == 3 * 2 * 4 * 2


def test_a_mixed_step_is_both() -> None:
    d = TINY
    both = d.mixed().at(batch=3, context=9, prompts=2, seq=5)
    apart = d.decode().at(batch=3, context=9).matrix_flop + d.prefill().at(batch=2, seq=5).matrix_flop
    assert both.matrix_flop == apart


@pytest.mark.parametrize("queries", [1, 6])
def test_as_many_key_heads_as_heads_is_plain_attention(queries: int) -> None:
    d = TINY.with_changes(kv_heads=2)
    graph = d.decode().at(batch=3, context=6) if queries == 1 else d.prefill().at(batch=3, seq=6)
    (found,) = [p.costs[0] for p in graph.priced if p.op.kind == "serving.paged_attention"]
    q, o = (TensorSpec(name=n, shape=(3, 2, queries, 4), dtype=DType.BFLOAT16) for n in "qo")
    k, v = (TensorSpec(name=n, shape=(3, 2, 6, 4), dtype=DType.BFLOAT16) for n in "kv")
    attrs = MappingProxyType({"is_causal": queries > 1})
    (plain,) = price(
        Op(name="a", kind="aten._scaled_dot_product_flash_attention", inputs=(q, k, v), outputs=(o,), attrs=attrs)
    ).costs
    for count in ("matrix_flop", "vector_flop", "special_flop", "read_bytes", "write_bytes"):
        assert getattr(found, count) == getattr(plain, count), count


def test_one_expert_is_a_dense_network() -> None:
    dense, one = TINY.decode(), TINY.with_changes(experts=1, experts_per_token=1).decode()
    router = 2 * 8 * 1
    for batch in (1, 4):
        a, b = dense.at(batch=batch, context=5), one.at(batch=batch, context=5)
        assert b.matrix_flop == a.matrix_flop + batch * router
        products = [
            sum(p.costs[0].read_bytes for p in g.priced if p.op.kind in ("aten.mm", "serving.grouped_mm"))
            for g in (a, b)
        ]
        assert products[1] == products[0] + 2 * (batch * 8 + 8)  # the router's input and its column


def test_experts_are_read_as_far_as_a_token_needs_them() -> None:
    d = TINY.with_changes(experts=8, experts_per_token=2)
    for tokens, touched in ((1, 2), (1000, 8)):
        graph = d.decode().at(batch=tokens, context=5)
        up = next(p for p in graph.priced if p.op.kind == "serving.grouped_mm")
        assert up.op.inputs[1].bytes == touched * 8 * 32 * 2
        # two experts of 8 × 32 and 16 × 8, and the router, instead of one network
        dense = TINY.decode().at(batch=tokens, context=5).matrix_flop
        assert graph.matrix_flop == dense + tokens * 2 * (384 + 8 * 8)
    assert d.decode().parameters == TINY.decode().parameters + 7 * (8 * 32 + 16 * 8) + 8 * 8


def test_experts_divided_over_gpus() -> None:
    # 8 experts of 8 × 32 and 16 × 8 on 2 GPUs: whole ones, 4 a GPU, or all with half the width; enough tokens touch all
    d = TINY.with_changes(experts=8, experts_per_token=2)
    shared, divided = d.decode(tp=2).at(batch=500, context=9), d.decode(tp=2, ep=2).at(batch=500, context=9)
    assert sum(w.numel for w in shared.weights) == sum(w.numel for w in divided.weights)
    of_experts = [
        sum(cost.matrix_flop for p in graph.priced if p.op.kind == "serving.grouped_mm" for cost in p.costs)
        for graph in (shared, divided)
    ]
    assert of_experts[1] / of_experts[0] == pytest.approx(fullest_share(8, 2, 2, SCORE_CORRELATION), rel=1e-3)
    assert divided.matrix_flop - of_experts[1] == shared.matrix_flop - of_experts[0]
    shapes = {str(w.name).rpartition(".")[2]: w.shape for w in divided.weights if "experts" in w.name}
    assert shapes == {"up": (4, 32, 8), "down": (4, 8, 16)}
    # one token passes 2 of 8, one of them on each GPU on average
    (up, _) = [p for p in d.decode(tp=2, ep=2).at(batch=1, context=9).priced if p.op.kind == "serving.grouped_mm"]
    assert up.op.inputs[0].shape[0] == 1


@pytest.mark.parametrize(("ep", "model"), [(3, {}), (4, {"experts": 6}), (2, {"experts": 0, "experts_per_token": 0})])
def test_experts_that_cannot_be_divided(ep: int, model: dict[str, int]) -> None:
    d = TINY.with_changes(**{"heads": 4, "experts": 8, "experts_per_token": 2, **model})
    with pytest.raises(InputError, match=rf"^ep {ep}: .* expected a divisor of tp \(4\) and of its experts"):
        d.decode(tp=4, ep=ep)


@pytest.mark.parametrize(("experts", "each", "tokens"), [(4, 2, 2), (5, 1, 3), (6, 3, 2), (3, 3, 2)])
def test_touched_experts_are_those_of_all_choices(experts: int, each: int, tokens: int) -> None:
    choices = list(combinations(range(experts), each))
    counts = [len(set().union(*picks)) for picks in product(choices, repeat=tokens)]
    assert abs(touched_experts(experts, each, tokens) - sum(counts) / len(counts)) <= 0.5


@pytest.mark.parametrize(("experts", "each", "tokens"), [(64, 4, 8), (64, 4, 100), (8, 2, 6), (256, 8, 64)])
def test_experts_that_are_chosen_more_often_than_others(experts: int, each: int, tokens: int) -> None:
    draw, correlation = numpy.random.default_rng(0), 0.3
    counts, fullest = [], []
    for _ in range(300):
        own, noise = draw.normal(size=experts), draw.normal(size=(tokens, experts))
        chosen = numpy.argsort(correlation**0.5 * own + (1 - correlation) ** 0.5 * noise, axis=1)[:, -each:]
        counts.append(len(numpy.unique(chosen)))
        fullest.append(numpy.bincount(chosen.ravel() * 4 // experts, minlength=4).max())
    assert touched_experts(experts, each, tokens, correlation=correlation) == pytest.approx(
        numpy.mean(counts), rel=0.05, abs=0.5
    )
    if tokens >= 64:  # with fewer, chance adds to it
        share = fullest_share(experts, each, 4, correlation)
        assert share == pytest.approx(numpy.mean(fullest) / (tokens * each / 4), rel=0.06)


@given(context=st.integers(1, 40))
def test_a_window_that_holds_everything_is_none(context: int) -> None:
    windowed = TINY.with_changes(window=40)
    for step, sizes in (("decode", {"context": context}), ("prefill", {"seq": context})):
        a, b = (getattr(d, step)().at(batch=2, **sizes) for d in (TINY, windowed))
        assert [p.costs for p in a.priced] == [p.costs for p in b.priced]


def test_a_window_bounds_what_is_read_and_done() -> None:
    graph = TINY.with_changes(window=10).decode().at(batch=1, context=1000)
    (cost,) = next(p for p in graph.priced if p.op.kind == "serving.paged_attention").costs
    assert cost.matrix_flop == 2 * 10 * 16
    assert cost.read_bytes == 2 * 10 * 4 * 2 + 2 * 4 * 2
    # of 12 prompt tokens the first 10 see 1 … 10, the last two 10 each
    prefill = TINY.with_changes(window=10).prefill().at(batch=1, seq=12)
    (cost,) = next(p for p in prefill.priced if p.op.kind == "serving.paged_attention").costs
    assert cost.matrix_flop == 2 * (55 + 20) * 16


@given(tp=st.sampled_from([1, 2, 4]))
def test_gpus_share_the_products(tp: int) -> None:
    d = rk.Decoder(layers=2, hidden=64, heads=8, kv_heads=4, head_dim=8, ffn=128, vocab=400)
    whole, part = (d.decode(tp=n).at(batch=4, context=50) for n in (1, tp))
    assert part.matrix_flop * tp == whole.matrix_flop
    sums = [op for op in part.ops if op.kind == "serving.all_reduce"]
    assert len(sums) == (0 if tp == 1 else 2 * 2)
    assert all(op.outputs[0].bytes == 4 * 64 * 2 for op in sums)


def test_attention_and_network_side_by_side_are_summed_once() -> None:
    # 8 x 8 of one normalization less a layer; one sum of 64 numbers over GPUs instead of two
    one, two = (TINY.with_changes(layers=2, kv_heads=2, parallel=way).decode(tp=2).at(batch=4, context=9)
                for way in (True, False))  # fmt: skip
    assert one.matrix_flop == two.matrix_flop
    counts = [[p.op.kind for p in graph.priced].count for graph in (one, two)]
    assert [count("serving.all_reduce") for count in counts] == [2, 4]
    # one of each layer but the first, and the last
    assert [count("serving.add_rms_norm") for count in counts] == [2, 4]
    with pytest.raises(InputError, match=r"^decoder: parallel: expected False for layers with experts"):
        TINY.with_changes(parallel=True, experts=2, experts_per_token=1)


def test_every_op_has_a_rule_in_every_format() -> None:
    d = TINY.with_changes(hidden=128, qk_norm=True, experts=4, experts_per_token=2, shared_ffn=16)
    latent = d.with_changes(head_dim=32, latent=16, rope_dim=8, value_dim=16, kv_heads=d.heads)
    for weights in ("bf16", "fp16", "fp8", "fp8-dynamic", "int8", "int4"):
        for decoder in (d, TINY.with_changes(gated=False, tied=True, hidden=128), latent):
            assert not decoder.mixed(weights=weights).coverage.default_kinds


def test_a_traced_transformer_asks_for_the_same() -> None:
    """transformers' Llama, one token over a DynamicCache: FLOP of the same numbers, found without our description."""
    from rooflinekit.tracing.targets import declare_torchvision_operators

    torch = pytest.importorskip("torch")
    declare_torchvision_operators()
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_attention_heads=8, num_key_value_heads=2, num_hidden_layers=2,
        vocab_size=1000,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)

    def decode(ids, *cached):  # type: ignore[no-untyped-def]
        cache = transformers.DynamicCache()
        for layer in range(2):
            cache.update(cached[2 * layer], cached[2 * layer + 1], layer)
        return model(input_ids=ids, past_key_values=cache, use_cache=True).logits

    cached = [rk.Input("batch", 2, "context", 32, dtype="bfloat16") for _ in range(4)]
    traced = rk.trace(decode, rk.Input("batch", 1, dtype="int64"), *cached)
    described = rk.Decoder.from_config(config.to_dict()).decode()
    # the trace's cache has room for the new token beside `context`
    for batch, context in ((1, 7), (3, 100)):
        ours = described.at(batch=batch, context=context + 1).matrix_flop
        assert traced.at(batch=batch, context=context).matrix_flop == ours


def test_drawing_sorts_all_logits_of_a_sequence() -> None:
    # 5000 numbers of each of 3 sequences, also where two GPUs have half of the matrix each. By hand, bytes a number:
    # places 8; digits 4; four passes of 12 and 12; rows 8, then 8 and 8; gathered 12 and 12: 156
    d = TINY.with_changes(vocab=5000)
    for tp in (1, 2):
        greedy, drawn = (
            step_graph(d, "decode", Options(tp=tp, sampling=how)).at(batch=3, context=7) for how in ("greedy", "sorted")
        )
        (sort,) = [p for p in drawn.priced if p.op.kind == "serving.sort_rows"]
        assert sort.op.inputs[0].shape == (3, 5000)
        assert sum(cost.read_bytes + cost.write_bytes for cost in sort.costs) == 156 * 3 * 5000
        assert len(sort.costs) == 9
        assert drawn.matrix_flop == greedy.matrix_flop


def test_drawing_takes_longer_with_more_sequences_and_a_larger_vocabulary() -> None:
    (machine,) = machines_of(["nvidia-h100-sxm5-80gb"])

    def more_s(batch: int, vocab: int) -> float:
        of = partial(StepTimes, decoder=TINY.with_changes(vocab=vocab), machine=machine)
        return of(sampling="sorted").decode(batch, 9) - of(sampling="greedy").decode(batch, 9)

    few, many, more = more_s(8, 32_000), more_s(64, 32_000), more_s(64, 128_000)
    assert 0 < few < many < more < 0.01


def test_a_norm_of_all_heads_is_summed_over_gpus() -> None:
    d = rk.Decoder(layers=3, hidden=64, heads=8, kv_heads=4, head_dim=8, ffn=128, vocab=400, qk_norm=True)
    of_heads, whole = (
        decoder.decode(tp=2).at(batch=4, context=50) for decoder in (d, d.with_changes(qk_norm_whole=True))
    )
    sums = [p for p in whole.priced if p.op.kind == "serving.all_reduce"]
    assert len(sums) == 3 * 3
    assert len([op for op in of_heads.ops if op.kind == "serving.all_reduce"]) == 3 * 2
    assert min(p.costs[0].write_bytes for p in sums) == 4 * 2 * 4  # of queries and keys, 4 bytes, of 4 tokens
