"""Requests through an engine, step by step: they come at their own times, or each client sends one after the other.

In each step the engine gives a token to every running sequence and reads waiting prompts, first come first served, as
far as the step's tokens, its number of sequences and the cache go; the last prompt is cut where the step's tokens end
and goes on in the next (`chunks`). The cache fills as answers grow; where it is full, the sequence that came last gives
its room back and is read anew, prompt and answer so far (preemption by recomputation, as vLLM does it). With
`reserve="whole"` a sequence is let in only with room for all its tokens, and never has to go (TensorRT-LLM).

What a client sends in answer to a last token reaches the engine while the next step is under way already; an engine
that schedules a step ahead, while the GPU works on the one before, has then scheduled one more without it.

Steps in which nothing comes, ends or runs over are played together: thousands of requests take seconds.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

from rooflinekit.errors import CapacityError
from rooflinekit.serving.settings import Disaggregation, Engine
from rooflinekit.serving.step_times import Chunk
from rooflinekit.serving.traffic import Answered, Played, Request, Stream


@dataclass(slots=True)
class Sequence:
    """A request in the engine. While it runs, its context is `read` and what decoding steps since `joined` gave."""

    answer: Answered
    number: int
    to_read: int  # tokens of the prompt, and after preemption of the answer so far, that are not in the cache
    read: int  # tokens in the cache when it joined those that run
    given: float = 0  # tokens of the answer when it joined
    joined: int = 0  # decoding steps before
    ends: int = 0  # decoding steps when it has its last token

    @property
    def own(self) -> int:
        """Tokens read into room of its own: all but those that requests share."""
        return self.read - self.answer.request.cached

    @property
    def whole(self) -> int:
        """Room of its own for all its tokens."""
        request = self.answer.request
        return request.input + request.output - request.cached


#: Seconds of a step: parts of prompts that it reads, sequences that go on, and their tokens on average.
BatchTime = Callable[[Many[Chunk], int, float], float]

#: Steps that are played together at most: contexts grow by one a step, and each has the time of the middle.
_MOST_AT_ONCE = 64


def replay(
    requests: Many[Request] | Stream,
    step_s: BatchTime,
    engine: Engine,
    cache_tokens: float,
    *,
    groups: int = 1,
    firsts_s: Many[float] | None = None,
    step_j: BatchTime | None = None,
) -> Played:
    """Plays requests, in order of arrival, through the engine; or a stream, whose clients send each when the last ends.

    step_s: as `StepTimes.step`, with the CPU's part. cache_tokens: what the cache holds. groups: of GPUs with
    sequences of their own, that work in step. firsts_s: when each request had its first token, of another engine that
    read its prompt (disaggregated serving); it comes with the cache of its prompt. step_j: joules of a step's kernels,
    to be added up. Raises CapacityError for a request that the empty cache does not hold.
    """
    stream = None
    if isinstance(requests, Stream):
        stream, requests = requests, requests.first(engine.received_s(requests.input))
    play = _Replay(
        requests=list(requests), stream=stream, step_s=step_s, engine=engine, cache=cache_tokens, groups=groups,
        firsts_s=firsts_s, step_j=step_j, played=Played(kernels_j=None if step_j is None else 0.0),
        front=FrontEnd(engine, read_elsewhere=firsts_s is not None),
    )  # fmt: skip
    for request in play.requests:
        if request.input + request.output > cache_tokens:
            raise CapacityError(
                f"a request of {request.input:,} tokens in and {request.output:,} out does not fit a cache of "
                f"{max(0, int(cache_tokens)):,} tokens; choose a cache or weights of fewer bits, more GPUs, or shorter "
                "requests"
            )
    while play.next_arrival < len(play.requests) or play.waiting or play.part or play.running:
        play.step()
    return play.played


@dataclass(slots=True, kw_only=True)
class _Replay:
    requests: list[Request]  # all that are known so far
    stream: Stream | None  # whose further ones follow their clients' last tokens
    step_s: BatchTime
    engine: Engine
    cache: float
    groups: int
    firsts_s: Many[float] | None
    step_j: BatchTime | None
    played: Played
    front: FrontEnd
    now: float = 0.0
    shown_s: float = 0.0  # when clients have the tokens of the step before
    begun_s: float = 0.0  # when the step before began: what an engine that schedules ahead has seen
    next_arrival: int = 0
    waiting: deque[Sequence] = field(default_factory=deque)
    part: Sequence | None = None  # read in part
    running: dict[int, Sequence] = field(default_factory=dict)  # by number, in the order in which they began
    ends: list[tuple[int, int]] = field(default_factory=list)  # heap: when each has its last token, and its number
    used: float = 0.0  # tokens of the cache that are set aside
    context: float = 0.0  # tokens of the running sequences, those shared included, summed
    decodes: int = 0  # steps that gave tokens to running sequences
    last_decode_s: float = 0.0
    joined_s: list[float] = field(default_factory=list)  # first tokens since then
    held: int = 0  # steps for which prompts have waited for further ones

    def step(self) -> None:
        self.arrive()
        if not (self.waiting or self.part or self.running):
            self.receive_until(max(self.now, self.queued_s()))
            self.now = max(self.now, self.queued_s())
            self.arrive()
        self.receive()
        read = [] if self.holds_back() else self.choose()
        while not read and self.used + self.grows() > self.cache:
            self.preempt()
        alone = bool(read) and self.engine.policy == "prefill-first"
        going_on = 0 if alone else len(self.running)
        count, seconds = self.timed(read, going_on)
        if self.step_j is not None:
            tokens = self.context / max(going_on, 1) + self.engine.given * (count + 1) / 2
            joules = count * self.step_j([chunk for _, chunk in read], going_on, tokens)
            self.played.kernels_j = (self.played.kernels_j or 0.0) + joules
        ended = sum(chunk.tokens == sequence.to_read for sequence, chunk in read)
        self.pass_by(count, seconds, going_on, ended)
        for sequence, chunk in read:
            self.take(sequence, chunk.tokens)
        self.end()

    def timed(self, read: Many[tuple[Sequence, Chunk]], going_on: int) -> tuple[int, float]:
        chunks = [chunk for _, chunk in read]
        if chunks:
            context = self.context / going_on + self.engine.given if going_on else 0.0
            seconds = self.step_s(chunks, going_on, context)
            plain_s = self.step_s([], going_on, context) if going_on else 0.0
            self.played.reading_s += max(0.0, seconds - plain_s)
            self.played.readings += 1
            self.played.readings_s += seconds
            return 1, seconds
        most = self.together()
        given = self.engine.given
        seconds = self.step_s([], going_on, self.context / going_on + given * (most + 1) / 2)
        count = self.until_arrival(most, seconds)
        if count < most:
            seconds = self.step_s([], going_on, self.context / going_on + given * (count + 1) / 2)
        return count, seconds

    def receive_until(self, sent_s: float) -> None:
        known = self.front.queued_s
        while len(known) < len(self.requests) and self.requests[len(known)].arrival_s <= sent_s:
            self.front.receive(self.requests[len(known)])

    def queued_s(self) -> float:
        """When the next request reaches the engine's queue, or where it is not sent yet, no later than that."""
        known = self.front.queued_s
        if self.next_arrival < len(known):
            return known[self.next_arrival]
        return self.front.earliest_s(self.requests[self.next_arrival])

    def arrive(self) -> None:
        """Requests that the scheduler has seen join the queue."""
        ahead = self.engine.host == "overlapped" and (self.running or self.part)
        seen_s = self.begun_s if ahead else self.now
        self.receive_until(self.now)
        while self.next_arrival < len(self.front.queued_s) and self.queued_s() <= seen_s:
            request = self.requests[self.next_arrival]
            answer = Answered(request=request)
            self.played.answers.append(answer)
            there = request.cached if self.firsts_s is None else request.input
            self.waiting.append(Sequence(
                answer=answer, number=self.next_arrival, to_read=request.input - there, read=there
            ))  # fmt: skip
            self.next_arrival += 1

    def receive(self) -> None:
        """Sequences whose prompts were read elsewhere run as soon as there is room for them."""
        while self.firsts_s is not None and self.waiting and not self.waiting[0].to_read:
            sequence = self.waiting[0]
            needs = sequence.whole if self.engine.reserve == "whole" else sequence.own
            idle = not self.running and self.used < 0.5
            full = self.used + self.grows() + needs + self.engine.given > self.cache
            if not idle and (full or len(self.running) >= self.most()):
                return
            self.waiting.popleft()
            self.used += needs
            sequence.answer.scheduled_s, sequence.answer.first_s = self.now, self.firsts_s[sequence.number]
            self.join(sequence, sequence.answer.first_s)

    def most(self) -> float:
        return self.groups * self.engine.sequences if self.engine.sequences else math.inf

    def grows(self) -> float:
        """Tokens that the next step of the running sequences adds to what is set aside."""
        return 0 if self.engine.reserve == "whole" else len(self.running) * self.engine.given

    def holds_back(self) -> bool:
        able = self.held < self.engine.wait_steps and 0 < len(self.running) < self.most() and not self.part
        tokens = sum(one.to_read for one in self.waiting) if able else 0
        few = 0 < tokens < self.budget()
        self.held = self.held + 1 if few else 0
        return self.held > 0

    def budget(self) -> int:
        """Tokens of prompts that the next step reads at most."""
        beside = len(self.running) * (1 + self.engine.drafted) if self.engine.policy == "mixed" else 0
        return self.engine.step_tokens * self.groups - beside

    def choose(self) -> list[tuple[Sequence, Chunk]]:
        engine, found = self.engine, list[tuple[Sequence, Chunk]]()
        budget = self.budget()
        room = self.cache - self.used - self.grows()
        most = self.most() - len(self.running)
        while len(found) < most and (self.part or self.waiting):
            sequence = self.part or self.waiting[0]
            fits = min(sequence.to_read, budget) if engine.chunks else sequence.to_read
            too_long = fits > budget and (engine.chunks or bool(found))
            empty = not (self.running or found) and self.used < 0.5
            if fits < 1 or too_long or not (empty or self.needs(sequence) <= room):
                break
            if sequence is not self.part:
                self.waiting.popleft()
                if math.isnan(sequence.answer.scheduled_s):
                    sequence.answer.scheduled_s = self.now
            found.append((sequence, Chunk(start=sequence.read, tokens=fits)))
            budget, room = budget - fits, room - self.needs(sequence)
            self.part = sequence if fits < sequence.to_read else None
            if self.part:
                break
        return found

    def needs(self, sequence: Sequence) -> int:
        """Room that there must be for a prompt that is read next."""
        if self.engine.reserve == "whole":
            return 0 if sequence.own else sequence.whole
        to_give = sequence.answer.request.output - round(sequence.given) if self.engine.reserve == "own" else 0
        return sequence.to_read + to_give

    def take(self, sequence: Sequence, tokens: int) -> None:
        """Tokens of a prompt are read; behind the last one comes the first token of its answer."""
        self.used += self.needs(sequence) if self.engine.reserve == "whole" else tokens
        sequence.read += tokens
        sequence.to_read -= tokens
        if sequence.to_read:
            return
        answer = sequence.answer
        if sequence.given:  # read again after preemption: its next token comes late
            self.played.count_gap(self.shown_s - answer.last_s, 1)
        else:
            answer.first_s = self.shown_s
        self.join(sequence, self.shown_s)

    def join(self, sequence: Sequence, since_s: float) -> None:
        """A sequence runs, which had its latest token then."""
        sequence.given += 1
        sequence.joined = self.decodes
        left = max(0.0, sequence.answer.request.output - sequence.given)
        sequence.ends = self.decodes + math.ceil(left / self.engine.given - 1e-9)
        self.running[sequence.number] = sequence
        self.context += sequence.read
        heapq.heappush(self.ends, (sequence.ends, sequence.number))
        if sequence.ends > self.decodes:
            self.joined_s.append(since_s)

    def together(self) -> int:
        """Steps until a sequence ends, the cache is full, or prompts have been held back.

        Other prompts that wait find no room before a sequence ends.
        """
        if self.held:
            return 1
        until_end = self.ends[0][0] - self.decodes
        until_full = (self.cache - self.used) / grown if (grown := self.grows()) else math.inf
        return max(1, math.floor(min(until_end, until_full, _MOST_AT_ONCE)))

    def until_arrival(self, count: int, seconds: float) -> int:
        """No more of these steps than until the next request is seen."""
        if count == 1 or self.waiting or self.part or self.next_arrival == len(self.requests):
            return count
        until_s = self.queued_s() - self.now
        missed = self.engine.host == "overlapped"
        return max(1, min(count, math.ceil(until_s / seconds) + missed))

    def pass_by(self, count: int, seconds: float, going_on: int, ended: int) -> None:
        """`count` steps of `seconds` each; of the only one that reads prompts, `ended` are then at their ends."""
        self.begun_s = self.now + (count - 1) * seconds
        first_s = self.now + seconds
        self.now += count * seconds
        self.receive_until(first_s)
        tokens = going_on * self.engine.given + ended
        first_s, self.shown_s = self.front.hand_out(first_s, self.now, count, tokens)
        self.played.busy_s += count * seconds
        self.played.running_s += len(self.running) * count * seconds
        self.played.steps += count
        if not going_on:
            return
        for since_s in self.joined_s:
            self.played.count_gap(first_s - since_s, 1)
        self.played.count_gap(first_s - self.last_decode_s, going_on - len(self.joined_s))
        between_s = (self.shown_s - first_s) / (count - 1) if self.front.one_thread and count > 1 else seconds
        self.played.count_gap(between_s, going_on * (count - 1))
        self.played.count_gap(0.0, going_on * count * (self.engine.given - 1))  # several tokens of a step come at once
        self.joined_s.clear()
        self.last_decode_s = self.shown_s
        self.decodes += count
        self.context += going_on * count * self.engine.given
        self.used += self.grows() * count

    def end(self) -> None:
        """Sequences that have their last token give their room back."""
        self.played.peak_cache = max(self.played.peak_cache, self.used / self.cache)
        while self.ends and self.ends[0][0] <= self.decodes:
            ends, number = heapq.heappop(self.ends)
            sequence = self.running.get(number)
            if sequence is not None and sequence.ends == ends:  # otherwise it was preempted since
                self.leave(sequence)
                sequence.answer.last_s = self.shown_s
                if self.stream is not None:
                    received_s = self.engine.received_s(self.stream.input)
                    self.requests += self.stream.after(self.shown_s, len(self.requests), received_s)

    def leave(self, sequence: Sequence) -> float:
        """A sequence stops running; tokens that it was given meanwhile."""
        del self.running[sequence.number]
        grown = (self.decodes - sequence.joined) * self.engine.given
        self.context -= sequence.read + grown
        self.used -= sequence.whole if self.engine.reserve == "whole" else sequence.own + grown
        return grown

    def preempt(self) -> None:
        """Preempts the sequence that came last: its memory is freed, and it waits in front."""
        self.played.preemptions += 1
        if self.part:
            sequence, self.part = self.part, None
            self.used -= sequence.own
        else:
            sequence = self.running[next(reversed(self.running))]
            grown = self.leave(sequence)
            sequence.given += grown
            # Without a decoding step since it began its last token is the one that its prompt gave: the last to join.
            sequence.answer.last_s = self.last_decode_s if grown else self.joined_s.pop()
            sequence.answer.preempted += 1
        sequence.read = cached = sequence.answer.request.cached
        sequence.to_read = sequence.answer.request.input + round(sequence.given) - cached
        self.waiting.appendleft(sequence)


@dataclass(slots=True)
class FrontEnd:
    """Receives requests in the order in which they are sent, and hands out the tokens of steps that end.

    Where handing out takes time (`Engine.token_s`), one thread does that and reads the prompts in between, first come
    first served. Otherwise requests do not wait for each other, and tokens are there when their step ends.
    """

    engine: Engine
    read_elsewhere: bool = False  # requests come with the cache of their prompts, past the front end
    free_s: float = 0.0  # when the thread is through with all that it has got so far
    queued_s: list[float] = field(default_factory=list)  # when each request so far reaches the engine's queue

    @property
    def one_thread(self) -> bool:
        """Whether requests and tokens wait for each other."""
        return self.engine.token_s > 0

    def receive(self, request: Request) -> None:
        """The next request, sent no earlier than those before."""
        engine, sent_s = self.engine, request.arrival_s
        if self.read_elsewhere:
            self.queued_s.append(sent_s)
        elif self.one_thread:
            self.free_s = max(self.free_s, sent_s) + engine.thread_s(request.input, 0)
            self.queued_s.append(self.free_s + engine.request_s)
        else:
            self.queued_s.append(self.earliest_s(request))

    def earliest_s(self, request: Request) -> float:
        """No later than a request reaches the queue that is not sent yet; where none waits for another, just then."""
        if self.read_elsewhere or self.one_thread:
            return request.arrival_s
        return request.arrival_s + self.engine.received_s(request.input)

    def hand_out(self, first_s: float, last_s: float, steps: int, tokens: float) -> tuple[float, float]:
        """When clients have the tokens of the first and of the last of so many steps, which end at these moments and
        at even distances between. tokens: of each step.
        """
        work_s = tokens * self.engine.token_s
        if not work_s:
            return first_s, last_s
        first_out_s = max(self.free_s, first_s) + work_s
        self.free_s = max(first_out_s + (steps - 1) * work_s, last_s + work_s)
        return first_out_s, self.free_s


# Engines of their own for prompts and for answers.


def play_apart(
    requests: Many[Request],
    over: Disaggregation,
    reading: Callable[[Many[Request]], Played],
    going_on: Callable[[Many[Request], Many[float]], Played],
    cache_bytes: Callable[[int], float],
    gpus: tuple[int, int] = (1, 1),
) -> Played:
    """The requests through both kinds of engines: those that read prompts, and those that get the cache of prompts with
    the moments of first tokens.

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
    """The played requests of all engines, the first of which read prompts."""
    drawn = [gpus[i >= prefills] * played.kernels_j for i, played in enumerate(plays) if played.kernels_j is not None]
    all_gpus = over.prefill * gpus[0] + over.decode * gpus[1]
    found = Played(
        answers=answers, engines=len(plays), peak_cache=max(played.peak_cache for played in plays),
        reading_s=sum(played.busy_s for played in plays[:prefills]),
        kernels_j=sum(drawn) / all_gpus if drawn else None,
    )  # fmt: skip
    for played in plays:
        for seconds, times in played.gaps.items():
            found.count_gap(seconds, times)
        for name in ("busy_s", "readings", "readings_s", "steps", "preemptions"):
            setattr(found, name, getattr(found, name) + getattr(played, name))
    # those that read hold nothing between prompts: their running sequences count for nothing
    decoding = [played for played in plays if played.gaps] or plays
    found.running_s = found.busy_s * sum(played.running for played in decoding) / len(decoding)
    return found
