"""`rooflinekit.serve`: what follows from what in its record."""

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.step.bounds import SOURCES

D = rk.Decoder(name="d", layers=8, hidden=2048, heads=16, kv_heads=4, head_dim=128, ffn=8192, vocab=32000)


def test_one_client() -> None:
    found = rk.serve(D, "nvidia-l4", batch=1, input=512, output=64)
    # 5 ms, and 2 µs for each of 512 tokens, before the engine has the request
    assert found.ttft_s == pytest.approx(found.prefill_s + 5e-3 + 512 * 2e-6)
    assert found.tpot_s == pytest.approx(found.decode_s, rel=0.01)
    # an answer takes its first token and 63 further ones; answers differ in length by up to a tenth
    assert found.tokens_per_s == pytest.approx(64 / (found.ttft_s + 63 * found.tpot_s), rel=0.02)
    assert (found.running, found.tp, found.gpu) == (1, 1, "nvidia-l4")
    assert found.decode.regime == "memory"


def test_steps_that_read_prompts_wait_for_their_launch() -> None:
    slow = rk.serve(D, "nvidia-l4", batch=1, input=512, output=64, engine=rk.Engine(layer_s=0.1))
    # 8 layers, the CPU's other work, and 6 ms until the request is received
    assert slow.ttft_s == pytest.approx(0.8 + 0.802e-3 + 42.3e-6 + 6.024e-3)
    assert slow.tpot_s == pytest.approx(rk.serve(D, "nvidia-l4", batch=1, input=512, output=64).tpot_s)


def test_the_engine_holds_fewer_than_there_are_clients() -> None:
    engine = rk.Engine(sequences=3)
    few, all_at_once = (rk.serve(D, "nvidia-l4", batch=4, input=512, output=64, engine=e) for e in (engine, None))
    assert few.running == 3
    # one of four waits for an answer of another at any time
    assert few.ttft_s > all_at_once.ttft_s + 0.15 * 64 * few.decode_s
    assert few.largest_batch() == all_at_once.largest_batch()


def test_kernels_that_nobody_measured_are_said_once() -> None:
    decoder = rk.Decoder.from_config("llama-3.2-1b")
    found = rk.serve(decoder, "amd-mi300x", batch=2, input=4096, output=4, weights="fp8-block")
    of_prompts, of_answers = set(found.prefill.unmeasured), set(found.decode.unmeasured)
    assert of_prompts != of_answers
    (note,) = (note for note in found.notes() if "are not measured" in note)
    assert f": {', '.join(sorted(of_prompts | of_answers))} kernels are not measured" in note


@settings(max_examples=8, deadline=None)
@given(gpu=st.sampled_from(["nvidia-l4", "amd-mi300x"]), batch=st.integers(1, 40), tokens=st.integers(16, 3000))
def test_steps_are_never_slower_with_a_faster_memory_and_a_longer_prompt_is_never_answered_sooner(
    gpu: str, batch: int, tokens: int
) -> None:
    device = rk.load_device(gpu)
    dram = device.dram.replace(bandwidth=device.dram.bandwidth * 1.3, pin_rate=None)
    here, faster = (
        rk.serve(D, one, batch=batch, input=tokens, output=8) for one in (device, device.replace(dram=dram))
    )
    assert faster.prefill_s <= here.prefill_s
    assert faster.decode_s <= here.decode_s
    # of one client: beside others, requests meet other steps
    alone, longer = (rk.serve(D, device, batch=1, input=size, output=8) for size in (tokens, tokens + 200))
    assert longer.ttft_s > alone.ttft_s


def first_without_source(found: rk.Serving) -> tuple[float, float]:
    """The bounds of the first token by kernels and CPU alone: engines' releases add theirs in squares of logarithms."""
    low, high = (abs(math.log(bound / found.ttft_s)) for bound in found.interval()["ttft_s"])
    source = 1.6448536 * SOURCES["first token"]
    return found.ttft_s * math.exp(-math.sqrt(low**2 - source**2)), found.ttft_s * math.exp(
        math.sqrt(high**2 - source**2)
    )


def test_intervals_allow_for_a_step_and_for_the_cpu() -> None:
    alone, eight = (rk.serve(D, "nvidia-l4", batch=batch, input=512, output=64) for batch in (1, 8))
    low, high = alone.prefill.interval()
    # one client waits for nobody: the interval of its prefill, of a request that is received at once or in 12 ms
    low, high = low / alone.prefill.total_s, high / alone.prefill.total_s
    assert first_without_source(alone) == pytest.approx(
        (low * alone.prefill_s, high * (alone.prefill_s + 2 * (5e-3 + 512 * 2e-6))), rel=1e-5
    )
    assert eight.interval()["ttft_s"][1] > eight.ttft_s + 7 / 8 * eight.played.readings_s / eight.played.readings
    assert eight.interval()["ttft_s"][0] < eight.ttft_s
    # 0.802 ms and 42.3 µs a sequence that may not be hidden
    assert alone.interval()["tpot_s"][1] > alone.tpot_s + 0.8e-3
    serial = rk.serve(D, "nvidia-l4", batch=1, input=512, output=64, engine=rk.Engine(host="serial"))
    assert serial.interval()["tpot_s"][0] < serial.tpot_s - 0.8e-3


def test_throughput_and_price() -> None:
    found = rk.serve(D, "nvidia-rtx-4090", batch=4, input=256, output=32)
    assert found.tokens_per_s_per_dollar == pytest.approx(found.tokens_per_s / 1599)  # at launch
    two = rk.serve(D, "nvidia-l4", batch=4, input=256, output=32, tp=2, collective_s=lambda size, gpus: 1e-5)
    assert two.tokens_per_s_per_gpu == two.tokens_per_s / 2
    assert two.tokens_per_s_per_dollar is None  # sold without a list price
    hourly = rk.serve(D, "nvidia-rtx-4090", batch=4, input=256, output=32, price_usd_per_hour=0.5)
    assert hourly.usd_per_million_tokens == pytest.approx(0.5 / (found.tokens_per_s * 3600) * 1e6)
    assert " a million tokens" in str(hourly)
    with pytest.raises(InputError, match=r"^price_usd_per_hour: expected dollars for one hour of a GPU"):
        rk.serve(D, "nvidia-l4", batch=4, input=256, output=32, price_usd_per_hour=0)


def test_the_gpus_of_a_cluster() -> None:
    sizes: dict[str, int] = {"batch": 4, "input": 256, "output": 32}
    alone = rk.serve(D, "nvidia-a100-sxm4-80gb", **sizes)
    assert rk.serve(D, cluster="dgx-a100", **sizes).tpot_s == alone.tpot_s

    def link(size_bytes: float, gpus: int) -> float:
        return rk.collective_time("all-reduce", size_bytes, "dgx-a100", gpus).total_s

    by_hand = rk.serve(D, "nvidia-a100-sxm4-80gb", tp=2, collective_s=link, **sizes)
    assert rk.serve(D, cluster="dgx-a100", tp=2, **sizes).tpot_s == by_hand.tpot_s


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"gpu": "nvidia-l4", "cluster": "dgx-a100"}, "a GPU or a cluster of GPUs; got both: leave out one"),
        ({}, "expected a GPU, such as 'nvidia-l4', or cluster='dgx-h100'; got neither"),
        ({"cluster": "dgx-a100", "tp": 16}, "dgx-a100: tp=16 needs 16 GPUs; the cluster has 8"),
        (
            {"cluster": "titan-x-x2-gtx-1080", "tp": 3},
            "its GPUs differ \\(nvidia-titan-x-pascal, nvidia-gtx-1080\\); choose equal ones",
        ),
    ],
)
def test_where_it_is_served(where: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rk.serve(D, batch=1, input=64, output=8, **where)


def test_more_clients_wait_longer_and_get_more() -> None:
    few, many = (rk.serve(D, "nvidia-l4", batch=batch, input=512, output=64) for batch in (2, 32))
    assert many.ttft_s > few.ttft_s
    assert many.tpot_s > few.tpot_s
    assert many.tokens_per_s > few.tokens_per_s


def test_the_largest_batch_is_what_the_memory_holds() -> None:
    found = rk.serve(D, "nvidia-l4", batch=2, input=1000, output=24)
    a_request = 1024 * 2 * 8 * 4 * 128 * 2
    most = found.largest_batch()
    assert most * a_request <= found.memory.cache_bytes < (most + 1) * a_request
    assert found.largest_batch(2048) == most // 2
    taken = found.memory.cache_bytes + found.memory.weight_bytes + found.memory.workspace_bytes
    assert 0.85 * found.memory.capacity < taken < 0.9 * found.memory.capacity
    # weights by hand: 8 layers of 2048 · (3072 + 2048 + 16384 + 8192) numbers, two of 32000 · 2048, 17 gains of 2048
    assert found.memory.weight_bytes == 2 * (8 * 2048 * 29696 + 2 * 32000 * 2048 + 17 * 2048)


def test_clients_beyond_the_cache_wait() -> None:
    crowded = rk.serve(
        D.with_changes(kv_heads=16), "nvidia-t4", batch=100, input=3000, output=40, weights="fp16", kv="fp16"
    )
    assert crowded.running < 100
    assert crowded.played.running <= crowded.running
    assert f"{crowded.running} run at once, the others wait" in str(crowded)


def test_bounds_and_document() -> None:
    found = rk.serve(D, "nvidia-l4", batch=2, input=256, output=32, weights="int4", kv="fp8")
    for name, (low, high) in found.interval().items():
        assert low < getattr(found, name) < high
    document = json.loads(json.dumps(found.to_dict()))
    assert document["weights"] == "int4"
    assert document["kv_bytes_per_token"] == 2 * 8 * 4 * 128
    assert document["largest_batch"] == found.largest_batch()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": 0}, "batch: expected a positive integer; got 0"),
        ({"tp": 2}, "tp 2: the GPUs sum their results over a link"),
        ({"kv": "int4"}, "kv: expected bf16, fp16, fp8; got 'int4'"),
        ({"decoder": D.with_changes(layers=300)}, "d does not fit nvidia-l4: one request needs "),
    ],
)
def test_what_cannot_be_served(changed: dict[str, object], message: str) -> None:
    options = {"decoder": D, "gpu": "nvidia-l4", "batch": 2, "input": 64, "output": 8, **changed}
    with pytest.raises(InputError, match=re.escape(message)):
        rk.serve(**options)  # type: ignore[arg-type]


def test_a_gpu_under_a_limit_reads_prompts_slower_and_says_so() -> None:
    decoder = rk.Decoder(layers=1, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=16384, vocab=1000)
    asked = {"batch": 2, "input": 2048, "output": 2, "weights": "int4"}
    free = rk.serve(decoder, "nvidia-a100-sxm4-80gb", **asked)  # type: ignore[arg-type]
    capped = rk.serve(decoder, "nvidia-a100-sxm4-80gb", **asked, power_limit="150 W")  # type: ignore[arg-type]
    # a prompt is bound by arithmetic, and a third of the power leaves less than the whole clock
    assert capped.prefill_s > 1.2 * free.prefill_s
    assert capped.to_dict()["power_limit_w"] == 150
    assert "cache bf16, at most 150 W" in str(capped)


def test_a_prompt_that_is_not_cut_may_wait_until_an_answer_ends() -> None:
    decoder = rk.Decoder(layers=1, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=128, vocab=32)
    cut, whole = (
        rk.serve(decoder, "nvidia-l4", batch=4, input=16, output=8, engine=rk.Engine(chunks=chunks))
        for chunks in (True, False)
    )
    # nothing is cut here, so both play alike; ten requests each of four clients
    assert whole.ttft_s == pytest.approx(cut.ttft_s)
    more_s = first_without_source(whole)[1] - first_without_source(cut)[1]
    assert more_s == pytest.approx(whole.played.end_s / 40, rel=1e-4)
