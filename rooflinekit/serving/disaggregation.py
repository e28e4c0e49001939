"""Engines of their own for prompts and for answers, and the link over which the cache of a prompt goes between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflinekit.errors import InputError
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.sizes import finite, shown, whole
from rooflinekit.serving.answers import Answered, Played
from rooflinekit.serving.traffic import Request

_MOST_COPIES = 2**12

#: Plays requests through an engine that reads prompts.
Reading = Callable[[Sequence[Request]], Played]
#: Plays requests that come with the cache of their prompts, and had their first tokens at these moments.
GoingOn = Callable[[Sequence[Request], Sequence[float]], Played]


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """Prefill and decode on engines of their own (vLLM's and TensorRT-LLM's disaggregated serving, NVIDIA Dynamo).

    prefill, decode: engines of each kind, each a copy of the model; requests go to them in turn. prefill_tp: GPUs that
    share the layers of an engine that reads prompts (None for as many as of the others). link_bytes_per_s,
    link_latency_s: of each GPU of such an engine to the others, over which its part of the cache of prompts goes, one
    after the other, once they are read: by default what one port of 400 Gbit/s carries, and the latency of RDMA.

    Raises InputError for numbers out of range.
    """

    prefill: int = 1
    decode: int = 1
    prefill_tp: int | None = None
    link_bytes_per_s: float = (
        50e9  # NVIDIA ConnectX-7 data sheet: 400 Gbit/s, 8 bits a byte; protocols leave 90 to 98 %
    )
    link_latency_s: float = 5e-6  # of a message between hosts over InfiniBand, 1 to 10 µs with GPUDirect

    def __post_init__(self) -> None:
        numbers = {"prefill": self.prefill, "decode": self.decode, "prefill_tp": self.prefill_tp or 1}
        for name, value in numbers.items():
            number = whole(value)
            if number is None or not 1 <= number <= _MOST_COPIES:
                raise InputError(f"disaggregation {name}: expected 1 to {_MOST_COPIES:,}; got {shown(value)}")
        if not self.link_bytes_per_s > 0:
            raise InputError(
                f"disaggregation link_bytes_per_s: expected bytes a second, above 0; got {self.link_bytes_per_s!r}"
            )
        if not (finite(self.link_latency_s) and self.link_latency_s >= 0):
            raise InputError(f"disaggregation link_latency_s: expected seconds, 0 or more; got {self.link_latency_s!r}")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "prefill": self.prefill, "decode": self.decode, "prefill_tp": self.prefill_tp,
            "link_bytes_per_s": self.link_bytes_per_s, "link_latency_s": self.link_latency_s,
        }  # fmt: skip


def play_apart(
    requests: Sequence[Request],
    over: Disaggregation,
    reading: Reading,
    going_on: GoingOn,
    cache_bytes: Callable[[int], float],
    gpus: tuple[int, int] = (1, 1),
) -> Played:
    """The requests through both kinds of engines.

    A first token comes from the engine that read the prompt; the second waits for the cache's transfer, of
    `cache_bytes` of the prompt's tokens, and for room where it goes. gpus: of an engine of each kind.
    """
    answers = [Answered(request=request) for request in requests]
    plays: list[Played] = []
    passed: list[tuple[float, int]] = []  # when the cache of each request is there
    for copy in range(over.prefill):
        own = range(copy, len(requests), over.prefill)
        if not own:
            continue
        played = reading([replace(requests[i], output=1) for i in own])
        plays.append(played)
        for i, answer in zip(own, played.answers, strict=True):
            answers[i].scheduled_s, answers[i].first_s = answer.scheduled_s, answer.first_s
            answers[i].last_s = answer.first_s
        free_s = 0.0
        for i in sorted(own, key=lambda i: answers[i].first_s):
            if requests[i].output > 1:
                moved_s = cache_bytes(requests[i].input) / over.link_bytes_per_s
                free_s = max(free_s, answers[i].first_s) + moved_s
                passed.append((free_s + over.link_latency_s, i))
    passed.sort()
    for copy in range(over.decode):
        if not (own_passed := passed[copy :: over.decode]):
            continue
        log = [replace(requests[i], arrival_s=at, cached=0) for at, i in own_passed]
        played = going_on(log, [answers[i].first_s for _, i in own_passed])
        plays.append(played)
        for (_, i), answer in zip(own_passed, played.answers, strict=True):
            answers[i].last_s, answers[i].preempted = answer.last_s, answer.preempted
    return _together(answers, plays, min(over.prefill, len(requests)), gpus, over)


def _together(
    answers: list[Answered], plays: list[Played], prefills: int, gpus: tuple[int, int], over: Disaggregation
) -> Played:
    """Of all engines, the first of which read prompts."""
    reading_s = sum(played.busy_s for played in plays[:prefills])
    drawn = [gpus[i >= prefills] * played.kernels_j for i, played in enumerate(plays) if played.kernels_j is not None]
    whole = over.prefill * gpus[0] + over.decode * gpus[1]
    gaps: dict[float, float] = {}
    for played in plays:
        for seconds, times in played.gaps:
            gaps[seconds] = gaps.get(seconds, 0) + times
    busy_s = sum(played.busy_s for played in plays)
    # those that read hold nothing between prompts: their running sequences count for nothing
    decoding = [played for played in plays if played.gaps] or plays
    return Played(
        answers=tuple(answers),
        gaps=tuple(sorted(gaps.items())),
        busy_s=busy_s,
        reading_s=reading_s,
        steps=sum(played.steps for played in plays),
        preemptions=sum(played.preemptions for played in plays),
        running=sum(played.running for played in decoding) / len(decoding),
        peak_cache=max(played.peak_cache for played in plays),
        engines=len(plays),
        kernels_j=sum(drawn) / whole if drawn else None,
    )
