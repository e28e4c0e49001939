"""`rk.serve_traffic` and `rk.highest_rate`: what follows from what in their records."""

import json
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.serving.step_times import Chunk

D = rk.Decoder(name="d", layers=8, hidden=2048, heads=16, kv_heads=4, head_dim=128, ffn=8192, vocab=32000)
LOAD = rk.Traffic(rate=2, input=512, output=64, requests=60)
PROMISED = rk.ServiceLevel(ttft_s=0.2, tpot_s=0.02)


@pytest.fixture(scope="module")
def times() -> Any:
    from rooflinekit.api.serve import setup_of

    return setup_of("serve", D, "nvidia-l4", None, ("bf16", "bf16"), (1, 1, 1)).times


def test_steps_put_together_are_those_that_are_timed_whole(times: Any) -> None:
    for prompts, seq, batch, context in ((1, 512, 16, 700), (2, 1024, 8, 2000), (4, 128, 64, 256)):
        sizes = {"prompts": prompts, "seq": seq, "batch": batch, "context": context}
        whole, _ = times.parts("mixed", "serving.paged_attention", **sizes)
        assert times.step([Chunk(0, seq)] * prompts, batch, context) == pytest.approx(whole, rel=0.05)
    assert times.step([Chunk(0, 512)], 0, 0) == pytest.approx(times.prefill_s(1, 512))


def test_parts_of_a_prompt_take_about_what_the_prompt_takes(times: Any) -> None:
    parts = sum(times.step([Chunk(start, 1024)], 0, 0) for start in (0, 1024, 2048, 3072))
    assert times.step([Chunk(0, 4096)], 0, 0) == pytest.approx(parts, rel=0.1)


def test_requests_far_apart_meet_nobody() -> None:
    rare = rk.serve_traffic(D, "nvidia-l4", traffic=rk.Traffic(rate=0.01, input=512, output=64, requests=5, cv=0))
    assert rare.mean("queue_s") == pytest.approx(5e-3 + 512 * 2e-6)  # until it is received
    assert rare.percentile("ttft_s", 99) == pytest.approx(rare.alone.ttft_s)
    assert rare.mean("tpot_s") == pytest.approx(rare.alone.tpot_s)
    alone = rk.serve(D, "nvidia-l4", batch=1, input=512, output=64)
    assert rare.mean("ttft_s") == pytest.approx(alone.ttft_s, rel=0.01)
    assert rare.mean("tpot_s") == pytest.approx(alone.decode_s, rel=0.02)


def test_more_requests_a_second_wait_longer() -> None:
    slow, fast = (rk.serve_traffic(D, "nvidia-l4", traffic=LOAD.at_rate(rate)) for rate in (2, 20))
    for measure in ("queue_s", "ttft_s", "tpot_s", "e2e_s"):
        assert fast.mean(measure) > slow.mean(measure)
        assert slow.percentile(measure, 50) <= slow.percentile(measure, 90) <= slow.percentile(measure, 99)
        low, high = slow.bounds[measure]
        assert low < slow.mean(measure) < high
    assert fast.tokens_per_s > slow.tokens_per_s
    assert not slow.overloaded
    assert rk.serve_traffic(D, "nvidia-l4", traffic=LOAD.at_rate(1000)).overloaded


def test_requests_at_the_ends_are_not_counted() -> None:
    found = rk.serve_traffic(D, "nvidia-l4", traffic=rk.Traffic(rate=2, requests=10, output=8, warm_up=2, drain=3))
    assert len(found.answers) == 5
    assert found.answers[0].request.arrival_s > 0
    document = json.loads(json.dumps(found.to_dict()))
    assert document["ttft_s"]["p99"] == found.percentile("ttft_s", 99)


def test_the_highest_rate_keeps_the_level_and_a_higher_one_does_not() -> None:
    found = rk.highest_rate(D, "nvidia-l4", level=PROMISED, traffic=LOAD, price_usd_per_hour=0.72)
    kept = {point.rate: point.keeps(PROMISED) for point in found.points}
    assert kept[found.rate]
    above = min(rate for rate in kept if rate > found.rate)
    assert not kept[above]
    assert above <= 1.03 * found.rate
    assert found.at.traffic.rate == found.rate
    assert found.gpus(2.5 * found.rate) == 3
    # 0.72 $ an hour are 0.0002 $ a second; answers of 64 tokens
    assert found.usd_per_million_tokens == pytest.approx(200 / (found.rate * 64))


def test_a_level_that_no_rate_keeps() -> None:
    found = rk.highest_rate(D, "nvidia-l4", level=rk.ServiceLevel(ttft_s=1e-4), traffic=LOAD)
    assert (found.rate, found.gpus(1), found.usd_per_million_tokens) == (0, None, None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "service level: expected one or more of ttft_s, tpot_s and e2e_s"),
        ({"ttft_s": -1}, "in seconds above 0; got ttft_s=-1"),
        ({"e2e_s": 1, "share": 0}, "service level share: expected a share above 0, up to 1; got 0"),
    ],
)
def test_wrong_levels(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rk.ServiceLevel(**wrong)
