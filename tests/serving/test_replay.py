"""Requests that come at a rate, played by hand."""

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflinekit.errors import CapacityError
from rooflinekit.serving import settings
from rooflinekit.serving.replay import replay
from rooflinekit.serving.step_times import Chunk
from rooflinekit.serving.traffic import Played, Request, Stream

Engine = partial(settings.Engine, request_s=0, input_s=0)  # requests are in the queue at once
SERIAL = Engine(host="serial", step_tokens=100)


def step_s(chunks: Sequence[Chunk], sequences: int, context: float) -> float:
    """A token of a prompt takes 2 s, going on 1 s, both at once their sum."""
    del context
    return 2 * sum(chunk.tokens for chunk in chunks) + (sequences > 0)


def play(
    *requests: tuple[float, int, int], engine: settings.Engine = SERIAL, cache: float = 1000, cached: int = 0
) -> Played:
    log = [Request(arrival_s=at, input=given, output=answer, cached=cached) for at, given, answer in requests]
    return replay(log, step_s, engine, cache)


def test_a_request_alone_never_waits() -> None:
    # read from 3 to 13, then three tokens a second apart
    (one,) = play((3, 5, 4)).answers
    assert (one.queue_s, one.ttft_s, one.tpot_s, one.e2e_s) == (0, 10, 1, 13)


def test_a_request_is_received_before_it_waits() -> None:
    # 0.5 s, and 0.1 s for each of 5 tokens: in the queue at 4, read until 14
    (one,) = play((3, 5, 4), engine=Engine(host="serial", request_s=0.5, input_s=0.1)).answers
    assert (one.queue_s, one.ttft_s, one.tpot_s) == (1, 11, 1)


def test_tokens_of_answers_wait_for_the_thread_that_hands_them_out() -> None:
    # Faster than steps: the token of the prompt, read from 0 to 10, is there at 10.25, the others each a second later.
    (one,) = play((0, 5, 4), engine=Engine(host="serial", token_s=0.25)).answers
    assert (one.first_s, one.last_s) == (10.25, 13.25)
    # Slower: the four, made at 10, 11, 12 and 13, are there at 12, 14, 16 and 18.
    slow = play((0, 5, 4), engine=Engine(host="serial", token_s=2))
    assert (slow.answers[0].first_s, slow.answers[0].last_s, slow.gaps) == (12, 18, {2: 3})
    # Two that go on together: both prompts end at 20, both tokens are there at 22, the next two, made at 21, at 24.
    both = play((0, 5, 2), (0, 5, 2), engine=Engine(host="serial", token_s=1))
    assert [(answer.first_s, answer.last_s) for answer in both.answers] == [(22, 24), (22, 24)]


def test_a_thread_that_hands_out_tokens_reads_prompts_in_between() -> None:
    # The first is taken up for 1 s, and 0.2 s for each of 5 tokens: read from 2 to 12. The second, sent at 11, is taken
    # up until 13; only then the thread hands out the first's token, made at 12: at 14. In the queue at 13, it is read
    # to 23.
    engine = Engine(host="serial", token_s=1, request_work_s=1, input_s=0.2)
    first, second = play((0, 5, 1), (11, 5, 1), engine=engine).answers
    assert (first.scheduled_s, first.first_s) == (2, 14)
    assert (second.scheduled_s, second.first_s) == (13, 24)


def test_clients_ask_again_when_they_have_the_last_token() -> None:
    # 10 s to read, handed out at 11 and 12; so the second of its two requests comes at 12, where the engine is idle.
    stream = Stream(clients=1, input=5, output=2, rounds=2, spread=0)
    played = replay(stream, step_s, Engine(host="serial", token_s=1), 1000)
    assert [answer.ttft_s for answer in played.answers] == pytest.approx([11, 11])
    assert [answer.last_s for answer in played.answers] == pytest.approx([12, 24])


def test_prompts_wait_for_further_ones_beside_answers() -> None:
    # 0 to 10; the second, there at 5, from the third step on (12 to 23), and with it the third
    engine = Engine(host="serial", step_tokens=100, wait_steps=2)
    played = play((0, 5, 20), (5, 5, 2), (11, 5, 2), engine=engine)
    assert [one.scheduled_s for one in played.answers] == [0, 12, 12]
    assert [one.first_s for one in played.answers] == [10, 33, 33]
    # prompts that fill a step do not wait: of six tokens five beside the one that goes on
    filled = play((0, 5, 20), (5, 5, 2), engine=Engine(host="serial", step_tokens=6, wait_steps=2))
    assert [one.scheduled_s for one in filled.answers] == [0, 10]


def test_what_is_cached_is_not_read() -> None:
    assert play((0, 5, 4), cached=3).answers[0].ttft_s == 4


def test_a_second_request_waits_for_the_step_under_way() -> None:
    # The first: 0 to 10, tokens at 10, 11, 12. The second comes at 11.5, is seen at 12, beside the first read until 23.
    first, second = play((0, 5, 20), (11.5, 5, 2)).answers
    assert second.scheduled_s == 12
    assert second.queue_s == pytest.approx(0.5)
    assert second.first_s == 23
    assert second.last_s == 24
    # 20 tokens: at 10, 11, 12, 23, and 16 more
    assert first.last_s == 39


def test_an_engine_that_schedules_ahead_sees_it_a_step_later() -> None:
    engine = Engine(step_tokens=100)
    late = replay([Request(arrival_s=0, input=5, output=20), Request(arrival_s=11.5, input=5, output=2)], step_s,
                  engine, 1000)  # fmt: skip
    # the step from 12 to 13 was scheduled at 11
    assert late.answers[1].scheduled_s == 13


def test_prompts_are_cut_where_the_tokens_of_a_step_end() -> None:
    # 4 tokens a step: 4 of the first in 8 s, then its last and 3 of the second in 8 s, then the second's last 2 beside
    # the first in 5 s
    played = play((0, 5, 3), (0, 5, 1), engine=Engine(host="serial", step_tokens=4))
    assert [answer.first_s for answer in played.answers] == [16, 21]
    whole = play((0, 5, 3), (0, 5, 1), engine=Engine(host="serial", step_tokens=4, chunks=False))
    assert [answer.first_s for answer in whole.answers] == [10, 21]


def test_prompts_before_answers() -> None:
    # at 10 the first has its token; the second came at 5 and is read alone from 10 to 20
    played = play((0, 5, 3), (5, 5, 3), engine=Engine(host="serial", step_tokens=100, policy="prefill-first"))
    assert [answer.first_s for answer in played.answers] == [10, 20]
    assert [answer.last_s for answer in played.answers] == [22, 22]
    # between tokens: 10 to 21 once, else a second
    assert played.gaps == {1: 3, 11: 1}


def test_sequences_beyond_the_most_wait() -> None:
    played = play((0, 1, 3), (0, 1, 3), engine=Engine(host="serial", step_tokens=100, sequences=1))
    # read from 0 to 2, tokens at 2, 3, 4; the second from 4 to 6
    assert [answer.first_s for answer in played.answers] == [2, 6]


def test_where_the_cache_is_full_the_last_one_is_read_again() -> None:
    # 12 tokens of cache. Both prompts of 4 are read from 0 to 16, first tokens then; two more tokens each fill the
    # cache: 2 · (4 + 2) = 12. The second goes and the first has its fourth and fifth token at 19 and 20. Then the
    # second is read again, 4 + 3 tokens in 14 s, with its fourth token at 34, and its fifth at 35.
    played = play((0, 4, 5), (0, 4, 5), cache=12)
    first, second = played.answers
    assert (first.first_s, first.last_s) == (16, 20)
    assert (second.first_s, second.last_s, second.preempted) == (16, 35, 1)
    assert (played.preemptions, played.peak_cache) == (1, 1.0)
    # with room for all its tokens set aside, the second waits, and nothing is read twice
    whole = play((0, 4, 5), (0, 4, 5), cache=12, engine=Engine(host="serial", step_tokens=100, reserve="whole"))
    assert [answer.first_s for answer in whole.answers] == [8, 8 + 4 + 8]
    assert whole.preemptions == 0
    # with room for all its own tokens beside what the first has so far: 12 - 4 - 1 < 9, until the first has ended
    own = play((0, 4, 5), (0, 4, 5), cache=12, engine=Engine(host="serial", step_tokens=100, reserve="own"))
    assert [answer.first_s for answer in own.answers] == [8, 8 + 4 + 8]
    # of 15 tokens the first has 4 + 1 at 9, and gets one more beside the second, whose 4 + 5 fill the rest
    own = play((0, 4, 5), (9, 4, 5), cache=15, engine=Engine(host="serial", step_tokens=100, reserve="own"))
    assert [answer.first_s for answer in own.answers] == [8, 9 + 8 + 1]


def test_a_sequence_that_has_to_go_before_its_second_token() -> None:
    # prompts of 1 and 4 fill 5 tokens: the first's second token has no room, so the second goes at 10, as soon as it
    # has its first token, and is read anew when the first has all its three, 1 s apart: 5 tokens in 10 s
    played = play((0, 1, 3), (0, 4, 2), cache=6)
    first, second = played.answers
    assert (first.first_s, second.first_s) == (10, 10)
    assert (first.last_s, second.last_s) == (12, 22)
    assert played.gaps == {1: 2, 12: 1}


def test_a_request_larger_than_the_cache() -> None:
    with pytest.raises(CapacityError, match=r"^a request of 5 tokens in and 8 out does not fit a cache of 12 tokens"):
        play((0, 5, 8), cache=12)


@given(
    st.lists(st.tuples(st.floats(0, 300), st.integers(1, 9), st.integers(1, 20)), min_size=1, max_size=15),
    st.sampled_from(["mixed", "prefill-first"]), st.sampled_from(["serial", "overlapped"]),
    st.sampled_from(["grow", "own", "whole"]), st.booleans(), st.integers(1, 30), st.integers(29, 90),
    st.integers(1, 5), st.sampled_from([0, 0.1, 2]),
)  # fmt: skip
def test_every_token_is_given_once(
    requests, policy, host, reserve, chunks, step_tokens, cache, sequences, token_s
) -> None:
    engine = Engine(policy=policy, host=host, reserve=reserve, chunks=chunks, step_tokens=step_tokens,
                    sequences=sequences, token_s=token_s)  # fmt: skip
    log = [Request(arrival_s=at, input=given, output=answer) for at, given, answer in sorted(requests)]
    played = replay(log, step_s, engine, cache)
    assert len(played.answers) == len(log)
    for answer in played.answers:
        assert answer.request.arrival_s <= answer.scheduled_s < answer.first_s <= answer.last_s
        # no faster than by itself: 2 s a token in, 1 s a further token
        assert answer.ttft_s >= 2 * answer.request.input - 1e-9
        # but where tokens are handed out: the first may have waited longer than the last
        assert token_s or answer.last_s - answer.first_s >= answer.request.output - 1 - 1e-9
    assert sum(played.gaps.values()) == sum(answer.request.output - 1 for answer in played.answers)
    assert played.peak_cache <= 1
    if reserve == "whole":
        assert played.preemptions == 0
