"""Speculation, adapters, shared experts, engines apart, graph sizes, prefixes: the laws that each keeps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.api.predict import machines_of
from rooflinekit.decoder.inference import SCORE_CORRELATION, fullest_share
from rooflinekit.errors import InputError
from rooflinekit.serving.replay import play_apart, replay
from rooflinekit.serving.step_times import ALL_REDUCE, Chunk, StepTimes, one_shot_s
from rooflinekit.serving.traffic import Played

GPU = "nvidia-l4"
D = rk.Decoder(name="d", layers=8, hidden=2048, heads=16, kv_heads=4, head_dim=128, ffn=8192, vocab=32000)
DRAFT = D.with_changes(name="draft", layers=1)
E = D.with_changes(name="e", ffn=1024, experts=8, experts_per_token=2)
CLIENTS: dict[str, Any] = {"batch": 8, "input": 256, "output": 64}


def served(decoder: rk.Decoder = D, **engine: Any) -> rk.Serving:
    return rk.serve(decoder, GPU, **CLIENTS, engine=rk.Engine(**engine))


# --- speculation


@pytest.mark.parametrize(("tokens", "acceptance", "given"), [(4, 0, 1), (4, 1, 5), (3, 0.5, 1.875)])
def test_tokens_of_a_step(tokens: int, acceptance: float, given: float) -> None:
    # three proposed, each kept by half: 1 + 1/2 + 1/4 + 1/8
    assert rk.Speculation(tokens=tokens, acceptance=acceptance).given == given


def test_acceptance_by_position() -> None:
    # what each position keeps where all are alike: 0.5, 0.25, 0.125
    alike, listed = (rk.Speculation(tokens=3, acceptance=a) for a in (0.5, (0.5, 0.25, 0.125)))
    assert served(speculation=listed).tpot_s == served(speculation=alike).tpot_s
    assert rk.Speculation(tokens=2, acceptance=(1, 0.0)).given == 2


@pytest.mark.parametrize("draft", [None, DRAFT])
def test_nothing_accepted_is_never_faster_than_no_speculation(draft: rk.Decoder | None) -> None:
    plain = served()
    for tokens in (1, 4):
        wasted = served(speculation=rk.Speculation(tokens=tokens, acceptance=0, draft=draft))
        assert wasted.tpot_s > plain.tpot_s
        assert wasted.ttft_s >= plain.ttft_s


def test_the_more_is_accepted_the_faster() -> None:
    found = [served(speculation=rk.Speculation(tokens=4, acceptance=a, draft=DRAFT)) for a in (0, 0.5, 0.8, 1)]
    times = [one.tpot_s for one in found]
    assert times == sorted(times, reverse=True)
    assert times[-1] < served().tpot_s  # at small batches weights are read once for five tokens
    assert found[0].decode_s == found[-1].decode_s  # a step is a step
    assert found[0].largest_batch() < served().largest_batch()  # the draft's weights and cache take room


def test_a_checked_token_costs_what_a_sequence_does_but_for_its_cache() -> None:
    plain, checked = (D.decode(drafted=drafted).at(batch=4, context=1000) for drafted in (0, 3))
    rows = D.decode().at(batch=16, context=1000)
    assert checked.matrix_flop == rows.matrix_flop
    # 8 layers, keys and values of 4 heads of 128 numbers of 2 bytes: read for 4 sequences, not for 16
    cache = 8 * 2 * 4 * 128 * 2 * 1000
    assert rows.read_bytes - checked.read_bytes == pytest.approx(12 * cache, rel=0.02)
    assert checked.read_bytes > plain.read_bytes


def test_several_tokens_of_a_step_come_at_once() -> None:
    # All kept: 1 token read from 0 to 2, then 2 a step of a second: 5 tokens are there after two steps.
    engine = rk.Engine(
        host="serial", step_tokens=100, request_s=0, input_s=0, speculation=rk.Speculation(tokens=1, acceptance=1)
    )
    (one,) = replay([rk.Request(arrival_s=0, input=1, output=5)], _step_s, engine, 100).answers
    assert (one.first_s, one.last_s) == (2, 4)
    assert one.tpot_s == 0.5


def _step_s(chunks: Sequence[Chunk], sequences: int, context: float) -> float:
    """A token of a prompt takes 2 s, going on 1 s."""
    del context
    return 2 * sum(chunk.tokens for chunk in chunks) + (sequences > 0)


# --- adapters


def test_adapters_take_time_and_room() -> None:
    plain, few, many = served(), served(adapters=rk.Adapters(number=1)), served(adapters=rk.Adapters(number=8, rank=64))
    assert plain.tpot_s < few.tpot_s < many.tpot_s
    # A layer's [k, 16] and [16, n], of 2 bytes: queries, keys and values 2048 → 3072, output 2048 → 2048, gate and up
    # 2048 → 16384, down 8192 → 2048
    numbers = 16 * (2048 + 3072 + 2048 + 2048 + 2048 + 16384 + 8192 + 2048)
    assert few.memory.weight_bytes - plain.memory.weight_bytes == 8 * numbers * 2
    assert many.memory.weight_bytes - plain.memory.weight_bytes == 8 * numbers * 2 * 8 * 4


# --- attention of their own, experts shared


def test_groups_hold_more_sequences_and_all_the_weights_of_attention() -> None:
    def over(**parts: int) -> rk.Serving:
        return rk.serve(E, cluster="dgx-h100", **CLIENTS, **parts)

    shared, apart = over(tp=4, ep=4), over(tp=1, dp=4, ep=4)
    assert shared.tp * shared.dp == apart.tp * apart.dp == 4
    assert apart.tokens_per_s_per_gpu == apart.tokens_per_s / 4
    # four heads of keys: each GPU has one of all sequences, or all four of a quarter of them
    assert apart.memory.kv_bytes_per_token == 4 * shared.memory.kv_bytes_per_token
    # 12 of 16 heads, and their output, are on other GPUs: 2048·128·(12·2 + 3·2)·8 layers, and the vocabulary's matrix
    assert apart.memory.weight_bytes - shared.memory.weight_bytes == 2 * (2048 * 128 * 30 * 8 + 2048 * 24000)


def test_experts_see_the_tokens_of_all_groups() -> None:
    one, four = (E.decode(ep=dp, dp=dp).at(batch=64, context=100) for dp in (1, 4))
    flop = [
        sum(float(p.costs[0].matrix_flop) for p in graph.priced if p.op.kind == "serving.grouped_mm")
        for graph in (one, four)
    ]
    # four times the tokens, a quarter of the experts, of the fullest group
    fullest = fullest_share(E.experts, E.experts_per_token, 4, SCORE_CORRELATION)
    assert flop[1] / flop[0] == pytest.approx(fullest, rel=0.01)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"dp": 2}, "dp 2: d has no experts that groups could share"),
        ({"dp": 2, "decoder": E}, "dp 2: the GPUs sum their results over a link"),
        ({"dp": 0}, "dp: expected a positive integer"),
    ],
)
def test_groups_that_cannot_be(parts: dict[str, Any], message: str) -> None:
    decoder = parts.pop("decoder", D)
    where = {"gpu": GPU} if decoder is E else {"cluster": "dgx-h100"}
    with pytest.raises(InputError, match=f"^{message}"):
        rk.serve(decoder, **where, **CLIENTS, **parts)


def test_an_engine_without_graphs_launches_every_step() -> None:
    none, some = rk.Engine(graph_sizes=(), layer_s=1e-3), rk.Engine(graph_sizes=(8,), layer_s=1e-3)
    assert (none.padded(5), some.padded(5)) == (5, 8)
    # 32 layers of 1 ms; a graph of 8 sequences has none of it, a larger step and one that reads prompts do
    assert [engine.launch_s(False, 5, 32) for engine in (none, some)] == [32e-3, 0.0]
    assert [some.launch_s(*step, 32) for step in ((False, 9), (True, 5))] == [32e-3, 32e-3]
    more = rk.Engine(host="serial", host_more_s=1e-3)
    assert more.host_s(4) - rk.Engine(host="serial").host_s(4) == pytest.approx(1e-3)
    with pytest.raises(InputError, match=r"^engine host_more_s: expected seconds, 0 or more; got -1"):
        rk.Engine(host_more_s=-1)
    with pytest.raises(InputError, match=r"^engine heads 'alone': expected together or apart or threads or "):
        rk.Engine(heads="alone")


def test_vllms_cpu_takes_longer_for_long_answers_and_longer_yet_on_several_gpus() -> None:
    engine = rk.Engine.of("vllm:0.7")
    # 64 sequences of 3000 tokens: 192,000 · 9 ns = 1.728 ms; on two GPUs 0.75 ms and 192,000 · 12 ns = 2.304 ms more
    assert engine.host_s(64, 192_000) - engine.host_s(64) == pytest.approx(1.728e-3)
    assert engine.host_s(64, 192_000, 2) - engine.host_s(64, 192_000) == pytest.approx(3.054e-3)
    assert rk.Engine.of("vllm:0.12").host_s(64, 192_000, 2) == rk.Engine().host_s(64)


def test_an_engine_sums_small_messages_faster_than_rings_and_large_ones_no_slower() -> None:
    def ring_s(size_bytes: float, gpus: int) -> float:
        return 20e-6 + 2 * (gpus - 1) / gpus * size_bytes / 300e9

    # 8 GPUs, 16 KiB: 7 · 16384 / 300 GB/s = 0.38 µs and a barrier of 4.6
    assert one_shot_s(16384, 8, ring_s) == pytest.approx(4.98e-6, rel=0.01)
    # 1 MiB: two barriers and 1.75 · 2²⁰ / 300 GB/s = 6.1 µs, as measured: 14.8
    assert one_shot_s(2**20, 8, ring_s) == pytest.approx(14.8e-6, rel=0.01)
    assert all(one_shot_s(2**power, 4, ring_s) <= ring_s(2**power, 4) for power in range(30))


@pytest.mark.parametrize(
    ("release", "gpu", "barrier_s"),
    [
        ("vllm:0.12", "nvidia-h100-sxm5-80gb", 4.6e-6), ("vllm:0.12", "nvidia-b200-sxm-180gb", 7.36e-6),
        ("tensorrt-llm:1.0", "nvidia-b200-sxm-180gb", 4.64e-6),
    ],
)  # fmt: skip
def test_barriers_are_the_engine_s_own(release: str, gpu: str, barrier_s: float) -> None:
    (machine,) = machines_of([gpu])
    own = StepTimes(
        decoder=D, machine=machine, tp=2, collective_s=lambda size, _: size / 300e9 + 1, own_sums=True, release=release
    )
    # twice in each of 8 layers, 4 kB of the other GPU's
    sums_s = own.parts("decode", ALL_REDUCE, batch=1, context=256)[1]
    assert sums_s == pytest.approx(16 * (barrier_s + 4096 / 300e9), rel=0.01)


@pytest.mark.parametrize(("weights", "more_s"), [("fp8-block", 8 * 8 * 0.18e-6), ("nvfp4", 0)])
def test_kernels_that_take_blocks_of_four_bits_sort_tokens_themselves(weights: str, more_s: float) -> None:
    (machine,) = machines_of(["nvidia-b200-sxm-180gb"])
    vllm, plain = (
        StepTimes(decoder=E, machine=machine, weights=weights, release=release) for release in ("vllm:0.12", "")
    )
    some_s, none_s = (one.parts("decode", "serving.combine_experts", batch=1, context=256)[1] for one in (vllm, plain))
    assert some_s - none_s == pytest.approx(more_s)


# --- engines apart


def apart(link_s: float, *, prefill: int = 1, decode: int = 1) -> Played:
    """Three requests of 2 tokens in, 3 out, all at 0; `link_s` for the cache of a token."""
    engine = rk.Engine(host="serial", step_tokens=2, request_s=0, input_s=0)
    over = rk.Disaggregation(prefill=prefill, decode=decode, link_bytes_per_s=1.0, link_latency_s=0)
    return play_apart(
        [rk.Request(arrival_s=0, input=2, output=3)] * 3,
        over,
        lambda log: replay(log, _step_s, engine, 100),
        lambda log, firsts: replay(log, _step_s, engine, 100, firsts_s=firsts),
        lambda tokens: tokens * link_s,
    )


def test_a_cache_goes_over_the_link_before_the_second_token() -> None:
    # One engine reads a prompt in 4 s: first tokens at 4, 8, 12. The link takes 3 s each: there at 7, 11, 15; then two
    # tokens, a second each.
    found = apart(1.5).answers
    assert [one.first_s for one in found] == [4, 8, 12]
    assert [one.last_s for one in found] == [9, 13, 17]
    # a link of 10 s each is a queue: there at 14, 24, 34
    assert [one.last_s for one in apart(5).answers] == [16, 26, 36]


def test_a_fast_link_is_none() -> None:
    assert [one.last_s for one in apart(0).answers] == [6, 10, 14]


def test_engines_share_the_requests() -> None:
    # three engines read one prompt each
    found = apart(0, prefill=3, decode=3)
    assert [one.first_s for one in found.answers] == [4, 4, 4]
    assert [one.last_s for one in found.answers] == [6, 6, 6]
    assert found.engines == 6


def test_answers_are_not_held_up_by_prompts() -> None:
    load = rk.Traffic(rate=4, input=1024, output=64, requests=60)
    mixed = rk.serve_traffic(D, GPU, traffic=load)
    found = rk.serve_traffic(D, GPU, traffic=load, disaggregation=rk.Disaggregation(decode=2))
    assert (mixed.gpus, found.gpus) == (1, 3)
    assert found.mean("tpot_s") < mixed.mean("tpot_s")
    assert found.mean("ttft_s") < mixed.mean("ttft_s")
    # 8 layers · 2 · 4 heads · 128 · 2 bytes a token, at 50 GB/s
    assert found.transfer_s == pytest.approx(5e-6 + 1024 * 8 * 2 * 4 * 128 * 2 / 50e9)
    low, high = found.bounds["ttft_s"]
    assert low < found.mean("ttft_s") < high


# --- graphs, prefixes, wrong numbers


def test_batches_are_filled_up_to_a_captured_size() -> None:
    wide, exact = served(graph_sizes=(1, 64)), served(graph_sizes=tuple(range(1, 9)))
    assert wide.decode_s > served().decode_s == exact.decode_s
    # beyond the largest a step is launched kernel by kernel: 8 layers, 5 ms each
    slow = served(graph_sizes=(4,), layer_s=5e-3)
    assert slow.decode_s >= 40e-3 > served(graph_sizes=(8,), layer_s=5e-3).decode_s


def test_all_cached_leaves_a_token() -> None:
    load = rk.Traffic(rate=0.1, input=2048, output=8, requests=3, cv=0)
    full, none = rk.Traffic(rate=0.1, input=2048, output=8, requests=3, cv=0, cached=1), load
    assert {request.cached for request in full.draw()} == {2047}
    hit, miss = (rk.serve_traffic(D, GPU, traffic=one).mean("ttft_s") for one in (full, none))
    token = rk.serve_traffic(D, GPU, traffic=rk.Traffic(rate=0.1, input=1, output=8, requests=3, cv=0)).mean("ttft_s")
    assert token <= hit < 2 * token < miss


def test_prefixes_are_read_by_the_first_that_come(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("arrival,input,output,prefix,shared\n3,10,1,a,8\n1,20,1,a,8\n2,5,1,b,5\n4,5,1,b,5\n5,7,1,,\n")
    found = {request.arrival_s: request.cached for request in rk.Traffic.from_csv(log).draw()}
    # a whole prompt that is cached leaves a token
    assert found == {0: 0, 1: 0, 2: 8, 3: 4, 4: 0}
    log.write_text("arrival,input,output,prefix,shared\n3,10,1,a,18\n")
    with pytest.raises(
        InputError, match=r"line 2: expected a name in the column prefix, .* got prefix='a', shared='18'"
    ):
        rk.Traffic.from_csv(log)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rk.Speculation(tokens=0, acceptance=1), "speculation tokens: expected 1 to 64; got 0"),
        (lambda: rk.Speculation(tokens=1, acceptance=1.5), "speculation acceptance: expected the chance"),
        (
            lambda: rk.Speculation(tokens=2, acceptance=(0.5,)),
            "speculation acceptance: expected one share for each of 2 ",
        ),
        (lambda: rk.Speculation(tokens=2, acceptance=(0.5, 0.6)), "speculation acceptance: expected one share"),
        (lambda: rk.Adapters(number=0), "adapters number: expected 1 to 65,536; got 0"),
        (lambda: rk.Adapters(number=1, rank=-1), "adapters rank: expected"),
        (lambda: rk.Disaggregation(prefill=0), "disaggregation prefill: expected 1 to 4,096; got 0"),
        (lambda: rk.Disaggregation(link_bytes_per_s=0), "disaggregation link_bytes_per_s: expected bytes a second"),
        (lambda: rk.Disaggregation(link_latency_s=-1), "disaggregation link_latency_s: expected seconds"),
        (lambda: rk.Engine(graph_sizes=(8, 4)), "engine graph_sizes: expected numbers of sequences"),
    ],
)
def test_numbers_out_of_range(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        make()


def test_a_thread_in_front_that_is_nearly_busy_makes_first_tokens_uncertain() -> None:
    def width(token_s: float) -> float:
        found = served(token_s=token_s)
        low, high = found.interval()["ttft_s"]
        return high / low

    assert width(1e-9) == pytest.approx(width(0.0), rel=1e-2)
    # a thread that takes longer for a step's tokens than the step does is busy all the time
    assert width(10e-3) > 1.2 * width(0.0)
