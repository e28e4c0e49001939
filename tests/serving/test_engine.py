"""Who waits for whom: streams played by hand."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflinekit.errors import InputError
from rooflinekit.serving.replay import replay
from rooflinekit.serving.settings import Engine, Policy
from rooflinekit.serving.step_times import Chunk
from rooflinekit.serving.traffic import Played, Stream


def step_s(prompts: float, sequences: int) -> float:
    """A prompt takes 10 s, going on 1 s, both at once 11 s."""
    return 10 * prompts + (sequences > 0)


def play(
    stream: Stream, step_tokens: int = 100, room: int = 8, step_s: Callable[[float, int], float] = step_s, **told: Any
) -> Played:
    """The stream, through an engine that holds so many sequences."""
    told = {"host": "serial", "chunks": False, "request_s": 0, "input_s": 0, **told}
    engine = Engine(step_tokens=step_tokens, sequences=room, **told)

    def seconds(chunks: Sequence[Chunk], sequences: int, context: float) -> float:
        assert not sequences or stream.input < context <= stream.input + 1.5 * stream.output
        return step_s(sum(chunk.tokens for chunk in chunks) / stream.input, sequences)

    return replay(stream, seconds, engine, math.inf)


def means(played: Played) -> tuple[float, float, float]:
    """To the first token, between tokens, and the whole."""
    return played.mean("ttft_s"), played.mean("tpot_s"), played.end_s


def test_one_client_never_waits() -> None:
    served = play(Stream(clients=1, input=5, output=4, rounds=3, spread=0))
    assert means(served) == pytest.approx((10, 1, 3 * (10 + 3)))
    assert (sum(one.request.output for one in served.answers), served.readings, served.readings_s) == (12, 3, 30)


def test_requests_are_received_before_they_wait() -> None:
    # received 1.5 s after sending; one client: the engine is idle meanwhile
    alone = Stream(clients=1, input=5, output=4, rounds=3, spread=0)
    served = play(alone, request_s=1.5)
    assert means(served) == pytest.approx((11.5, 1, 3 * 14.5))
    # Two: read from 1.5 to 11.5, and beside the first answer to 22.5. The first ends at 30.5, the second at 31.5; the
    # engine is idle until 32, when the first is back, and reads it until 42; the second, there at 33, until 53.
    two = Stream(clients=2, input=5, output=10, rounds=2, spread=0)
    served = play(two, request_s=1.5)
    assert means(served)[0] == pytest.approx((11.5 + 22.5 + (42 - 30.5) + (53 - 31.5)) / 4)


@pytest.mark.parametrize(
    ("policy", "room", "ttft_s", "tpot_s", "total_s"),
    [
        # prompts are read from 0 to 10, and from 10 to 21 beside the first answer, whose tokens come at 10, 21, 22
        # and the second's at 21, 22, 23
        ("mixed", 2, (10 + 21) / 2, (6 + 1) / 2, 23),
        # from 10 to 20 alone: tokens at 10, 21, 22 and at 20, 21, 22
        ("prefill-first", 2, (10 + 20) / 2, (6 + 1) / 2, 22),
        # the second waits for the whole first answer: tokens at 10, 11, 12 and at 22, 23, 24
        ("mixed", 1, (10 + 22) / 2, 1, 24),
    ],
)
def test_two_clients(policy: Policy, room: int, ttft_s: float, tpot_s: float, total_s: float) -> None:
    stream = Stream(clients=2, input=5, output=3, rounds=1, spread=0)
    served = play(stream, step_tokens=100, room=room, policy=policy)
    assert means(served) == pytest.approx((ttft_s, tpot_s, total_s))


def test_prompts_share_a_step_as_far_as_its_tokens_go() -> None:
    # one prompt from 0 to 10; then 8 tokens a step beside the first answer hold one prompt of 5, not two
    stream = Stream(clients=3, input=5, output=50, rounds=1, spread=0)
    assert means(play(stream, step_tokens=8, room=9))[0] == pytest.approx((10 + 21 + 32) / 3)
    assert means(play(stream, step_tokens=11, room=9))[0] == pytest.approx((10 + 31 + 31) / 3)


@given(
    clients=st.integers(1, 9), output=st.integers(1, 30), step_tokens=st.integers(1, 40), room=st.integers(1, 9),
    policy=st.sampled_from(["mixed", "prefill-first"]), ahead=st.booleans(), chunks=st.booleans(),
)  # fmt: skip
def test_every_prompt_is_read_once(
    clients: int, output: int, step_tokens: int, room: int, policy: Policy, ahead: bool, chunks: bool
) -> None:
    read = []

    def step_s(prompts: float, sequences: int) -> float:
        assert sequences <= room
        read.append(prompts)
        return 1.0

    stream = Stream(clients=clients, input=7, output=output, rounds=3)
    host = "overlapped" if ahead else "serial"
    served = play(stream, step_tokens, room, step_s, policy=policy, chunks=chunks, host=host)
    assert sum(read) == pytest.approx(3 * clients)
    assert len(served.answers) == 3 * clients
    assert means(served)[0] >= 1 - 1e-9
    if chunks:
        assert max(read) * 7 <= max(1, step_tokens) + 1e-9


@given(clients=st.integers(2, 12), output=st.integers(100, 300))
def test_the_steady_state_formula(clients: int, output: int) -> None:
    # a step of 1 s, a prompt 0.5 s more: each answer sees every other client's prompt once
    stream = Stream(clients=clients, input=5, output=output, rounds=20)
    served = play(stream, 1000, 100, lambda p, n: (n > 0) + 0.5 * p)
    assert means(served)[1] == pytest.approx(1 + (clients - 1) * 0.5 / (output - 1), rel=0.03)
    assert means(served)[0] >= 0.5
    assert served.running <= clients


def test_the_cpu_works_beside_the_gpu_or_between() -> None:
    host_s = Engine().host_s(8)
    assert host_s == pytest.approx(1.1404e-3)  # 0.802 ms and 8 · 42.3 µs
    assert Engine().step_s(5e-3, host_s) == 5e-3
    assert Engine(host="serial").step_s(5e-3, host_s) == pytest.approx(6.1404e-3)
    assert Engine().step_s(1e-6, host_s) == pytest.approx(1.1404e-3)
    # 32 layers launched in 19.2 ms, longer than the GPU works: the CPU does the rest before or behind, either way
    for host in ("overlapped", "serial"):
        engine = Engine(host=host, layer_s=0.6e-3)
        assert engine.step_s(5e-3, host_s, engine.launch_s(True, 7, 32)) == pytest.approx(20.3404e-3)
        assert engine.launch_s(False, 7, 32) == 0  # a CUDA graph
        # not ahead of the GPU: 19.2 and 5 ms, and what the CPU does between steps
        slower = replace(engine, launches_ahead=False)
        between_s = host_s if host == "serial" else 0
        assert slower.step_s(5e-3, host_s, engine.launch_s(True, 7, 32)) == pytest.approx(24.2e-3 + between_s)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"host": "none"}, "engine host 'none': expected overlapped or serial"),
        ({"policy": "decode"}, "engine policy 'decode': expected mixed or prefill-first"),
        ({"memory_share": 1.5}, "engine memory_share: expected a share above 0, up to 1; got 1.5"),
        ({"sequences": 0}, "engine sequences: expected 1 or more, or None for any number; got 0"),
        ({"layer_s": -1e-3}, "engine layer_s: expected seconds, 0 or more; got -0.001"),
        ({"wait_steps": -1}, "engine wait_steps: expected 0 or more; got -1"),
        ({"step_tokens": 0}, "engine step_tokens: expected 1 or more; got 0"),
    ],
)
def test_wrong_settings(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Engine(**wrong)  # type: ignore[arg-type]
