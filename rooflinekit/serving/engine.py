"""Clients and an engine: who waits for whom where prompts are read beside sequences that go on.

Each of `clients` sends a request, waits for its last token, and sends the next. The engine works in steps (continuous
batching): it reads the waiting prompts, first come first served, as far as a step's tokens and the cache's room go, and
gives one token to each running sequence. A sequence keeps room for all its tokens from its first step on. With chunked
prefill the last prompt of a step is cut where the step's tokens end, and goes on in the next.

In the steady state each sequence sees the prompts of the others once, so with D the time of a decode step and ΔP what
a prompt adds to a step,

    time per token = D + (clients − 1) · ΔP / (output − 1)

and time to first token is what is left of the step under way, the steps that read earlier prompts, and the step that
reads its own. What a client sends in answer to a last token reaches the engine while the next step is under way
already; an engine that schedules a step ahead, while the GPU works on the one before, has then scheduled one more
without it. At the start all clients' prompts wait for each other.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rooflinekit.errors import InputError
from rooflinekit.ir.sizes import finite, shown
from rooflinekit.serving.settings import Policy

#: Seconds of a step: prompts read (1.5: one and half of another), sequences that go on, and their tokens on average.
StepTime = Callable[[float, int, float], float]

_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What clients ask: each `rounds` requests one after the other, of so many tokens in and out.

    spread: the answers' lengths differ by so much of `output`, evenly from 1 − spread/2 to 1 + spread/2 of it.
    """

    clients: int
    input: int
    output: int
    rounds: int = 10
    spread: float = 0.2

    def __post_init__(self) -> None:
        if not (finite(self.spread) and 0 <= self.spread <= 2):
            raise InputError(f"spread: expected a share of the answers' length, 0 to 2; got {shown(self.spread)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the clients see, on average over all requests, in seconds; and what the engine does."""

    ttft_s: float  # request to first token
    tpot_s: float  # between tokens after the first
    total_s: float  # the whole stream
    tokens: int  # given
    decoding: float  # sequences that run, on average over time
    prompts_at_once: float  # read in a step that reads any
    reading_s: float  # a step that reads prompts, on average
    kernels_j: float | None = None  # joules of one GPU's kernels, where they are asked for


def serve_stream(
    stream: Stream,
    step_s: StepTime,
    *,
    step_tokens: int,
    room: int,
    policy: Policy = "mixed",
    chunks: bool = False,
    ahead: bool = False,
    given: float = 1.0,
    received_s: float = 0.0,
    wait_steps: int = 0,
    step_j: StepTime | None = None,
) -> Served:
    """Plays the stream through the engine.

    step_tokens: most tokens of one step; without `chunks`, a prompt above that is read in a step of its own. room:
    sequences that the cache holds, 1 or more; further ones wait. policy: "mixed" reads prompts beside sequences that
    go on (vLLM, TensorRT-LLM); with "prefill-first" (SGLang) these wait meanwhile. ahead: steps are scheduled while
    the one before runs. given: tokens that a step gives each running sequence, on average. received_s: from
    a client's sending to the engine's queue. wait_steps: that prompts wait for further ones while sequences run.
    step_j: joules of a step's kernels, to be added up.
    """
    play = _Play(
        stream=stream, room=room, given=given, ahead=ahead, received_s=received_s, now=received_s, begun_s=received_s
    )
    play.send(stream.clients, 0.0)
    joules = 0.0
    play.waiting.append(play.coming.pop())  # the first request finds the engine idle, the others meet its prompt
    while play.busy_or_waiting():
        play.arrive()
        count = len(play.running)
        beside = count if policy == "mixed" else 0
        holds = play.holds_back(wait_steps, step_tokens - beside)
        prompts, ended = (0.0, []) if holds else play.read(max(1, step_tokens - beside), chunks)
        steps = 1 if prompts or play.about_to_read() else max(1, play.running[0][0] - play.steps)
        context = stream.input + play.mean_given() + given * (steps + 1) / 2 if count else 0.0
        going_on = beside if prompts else count
        seconds = step_s(prompts, going_on, context)
        play.pass_by(steps, seconds, ended, bool(going_on))
        if step_j is not None:
            joules += steps * step_j(prompts, going_on, context)
        if prompts:
            play.readings, play.reading_s = play.readings + 1, play.reading_s + seconds
    return play.result(None if step_j is None else joules)


#: The step at which it ends, its number, that at which it began, when its first token came, and its length.
_Running = tuple[int, int, int, float, int]


@dataclass(slots=True)
class _Play:
    """The engine and its clients at a moment; `steps` counts those in which running sequences got a token."""

    stream: Stream
    room: int  # sequences whose tokens the cache holds
    given: float  # tokens of a step
    ahead: bool
    received_s: float  # from sending to the engine's queue
    now: float
    begun_s: float  # when the step before began: what an engine that schedules ahead has seen
    coming: deque[float] = field(default_factory=deque)  # when each was sent that is not in the queue yet
    steps: int = 0
    sent: int = 0
    waiting: deque[float] = field(default_factory=deque)  # when each was sent
    part: tuple[float, int] | None = None  # a prompt that is read in part: when it was sent, tokens left
    running: list[_Running] = field(default_factory=list)
    held: int = 0  # steps for which prompts have waited for further ones
    begun_count: int = 0  # sequences so far
    begun: int = 0  # steps at which the running sequences began, summed
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    tokens: int = 0
    busy: float = 0.0  # sequences that run × seconds
    readings: int = 0  # steps that read prompts
    reading_s: float = 0.0  # their seconds

    def busy_or_waiting(self) -> bool:
        """Whether some request has not got its last token."""
        return bool(self.running or self.part or self.waiting or self.coming)

    def about_to_read(self) -> bool:
        """Whether a prompt may be read in the next steps, before any sequence ends."""
        return bool(self.coming or (self.waiting and self.room > len(self.running)))

    def send(self, requests: int, sent_s: float) -> None:
        """The next requests of some clients, as far as they have some left."""
        left = self.stream.clients * self.stream.rounds - self.sent
        requests = min(requests, left)
        self.coming.extend([sent_s] * requests)
        self.sent += requests

    def arrive(self) -> None:
        """What was there when the next step was scheduled joins the queue."""
        scheduled_s = self.begun_s if self.ahead else self.now
        if not (self.running or self.part or self.waiting):  # idle until the next one comes
            self.now = self.begun_s = max(self.now, self.coming[0] + self.received_s)
            scheduled_s = math.nextafter(self.now, math.inf)
        while self.coming and self.coming[0] + self.received_s < scheduled_s:
            self.waiting.append(self.coming.popleft())

    def holds_back(self, steps: int, tokens: int) -> bool:
        """Whether the next step leaves prompts that it might read, so that more come together: for so many steps at
        most, or until they have so many tokens.
        """
        able = self.held < steps and self.waiting and self.room > len(self.running) > 0 and not self.part
        self.held = self.held + 1 if able and len(self.waiting) * self.stream.input < tokens else 0
        return self.held > 0

    def read(self, tokens: int, chunks: bool) -> tuple[float, list[float]]:
        """Prompts that the next step reads, in part or whole, and when those were sent that it reads to the end."""
        read, ended = 0, list[float]()
        while self.part or (self.waiting and len(self.running) + len(ended) < self.room):
            sent, left = self.part or (self.waiting[0], self.stream.input)
            fits = min(left, tokens - read) if chunks else left * (left <= tokens - read or not read)
            if not fits:
                break
            if not self.part:
                self.waiting.popleft()
            read += fits
            self.part = (sent, left - fits) if fits < left else None
            if not self.part:
                ended.append(sent)
        return read / self.stream.input, ended

    def mean_given(self) -> float:
        """Tokens that the running sequences have got, on average."""
        return self.given * (self.steps - self.begun / len(self.running)) if self.running else 0.0

    def pass_by(self, steps: int, seconds: float, read: list[float], going_on: bool) -> None:
        """So many steps of so many seconds each, at whose end these prompts are read."""
        self.begun_s = self.now + (steps - 1) * seconds
        self.now += steps * seconds
        self.busy += len(self.running) * steps * seconds
        if going_on:
            self.steps += steps
        for sent in read:
            self.ttft_s += self.now - sent
            self._begin()
        ended = 0
        while self.running and self.running[0][0] <= self.steps:
            _, _, begun, first_s, length = heapq.heappop(self.running)
            self.begun -= begun
            self.tpot_s += (self.now - first_s) / max(length - 1, 1)
            self.tokens += length
            ended += 1
        self.send(ended, self.now)

    def _begin(self) -> None:
        number = self.begun_count
        self.begun_count += 1
        length = _length(self.stream, number)
        self.begun += self.steps
        steps = math.ceil((length - 1) / self.given - 1e-9)
        heapq.heappush(self.running, (self.steps + steps, number, self.steps, self.now, length))

    def result(self, joules: float | None) -> Served:
        requests = self.stream.clients * self.stream.rounds
        return Served(
            ttft_s=self.ttft_s / requests,
            tpot_s=self.tpot_s / requests,
            total_s=self.now,
            tokens=self.tokens,
            decoding=self.busy / self.now,
            prompts_at_once=requests / self.readings,
            reading_s=self.reading_s / self.readings,
            kernels_j=joules,
        )


def _length(stream: Stream, number: int) -> int:
    """Tokens of an answer: multiples of the golden ratio, so that they are spread evenly, and alike in every run."""
    share = 1 + stream.spread * (number * _GOLDEN % 1.0 - 0.5)
    return max(1, round(stream.output * share))
