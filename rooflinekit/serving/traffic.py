"""Requests: of clients that send one after the other, drawn at a rate whoever waits, or read from a log."""

from __future__ import annotations

import csv
import io
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rooflinekit.errors import InputError, printable
from rooflinekit.files import read_text
from rooflinekit.ir.arguments import checked, expect, expect_count
from rooflinekit.ir.sizes import finite, shown, whole

#: Beyond these a log is not played: each request is followed by itself.
MOST_REQUESTS, _MOST_TOKENS, _MOST_CLIENTS = 2**20, 2**24, 2**16
_COLUMNS = ("arrival", "input", "output")
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """When it arrives, in seconds, its tokens in and out, and how many of those in are found in the prefix cache.

    Raises InputError for what is no number of seconds, and unless 0 ≤ cached < input and 1 ≤ output.
    """

    arrival_s: float
    input: int
    output: int
    cached: int = 0

    def __post_init__(self) -> None:
        told = finite(self.arrival_s) and None not in map(whole, (self.input, self.output, self.cached))
        if not (told and 0 <= self.cached < self.input <= _MOST_TOKENS and 1 <= self.output <= _MOST_TOKENS):
            got = (f"{name}={shown(getattr(self, name))}" for name in ("arrival_s", "input", "output", "cached"))
            raise InputError(
                f"request: expected seconds and whole numbers of tokens, 1 or more, fewer cached than input; "
                f"got {', '.join(got)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A closed loop: each client sends `rounds` requests of so many tokens in and out, each when its last one ended.

    spread: the answers' lengths differ by so much of `output`, evenly from 1 − spread/2 to 1 + spread/2 of it.
    Raises InputError for a number of clients or tokens below 1 or beyond any that is served, and for another spread.
    """

    clients: int
    input: int
    output: int
    rounds: int = 10
    spread: float = 0.2

    def __post_init__(self) -> None:
        for name, said, most in (
            ("clients", "batch", _MOST_CLIENTS), ("input", "input", _MOST_TOKENS), ("output", "output", _MOST_TOKENS)
        ):  # fmt: skip
            number = whole(getattr(self, name))
            expect(number is not None and number > 0, said, "a positive integer", getattr(self, name))
            expect((number or 0) <= most, said, f"at most {most:,}", number)
            object.__setattr__(self, name, number)
        told = finite(self.spread) and 0 <= self.spread <= 2
        expect(told, "spread", "a share of the answers' length, 0 to 2", self.spread)

    @property
    def longest(self) -> int:
        """Tokens of a request and its answer at most."""
        return self.input + math.ceil(self.output * (1 + self.spread / 2))

    def first(self, received_s: float) -> list[Request]:
        """All clients' first: one finds the engine idle, the others meet its prompt. received_s: of each of them."""
        return [self._request(number, math.ulp(received_s) if number else 0.0) for number in range(self.clients)]

    def after(self, ended_s: float, sent: int, received_s: float) -> list[Request]:
        """What follows an answer that ended then, where so many requests were sent before: none after the last round.

        It is received later than anything that the answer's last step could be followed by at once.
        """
        if sent == self.clients * self.rounds:
            return []
        return [self._request(sent, ended_s + math.ulp(ended_s + received_s))]

    def _request(self, number: int, arrival_s: float) -> Request:
        # Multiples of the golden ratio: lengths are spread evenly, and alike in every run.
        share = 1 + self.spread * (number * _GOLDEN % 1.0 - 0.5)
        return Request(arrival_s=arrival_s, input=self.input, output=max(1, round(self.output * share)))


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """An open loop: requests come at `rate` a second, whatever becomes of those before.

    cv: coefficient of variation of the gaps between arrivals: 1 for a Poisson process, 0 for even gaps, others gamma
    distributed (2: bursts; vLLM's benchmark calls 1/cv² `burstiness`). input, output: tokens on average; `length_cv` is
    how much both differ, log-normally (0: all alike). cached: share of a prompt's tokens that the prefix cache holds.
    requests: how many; the first `warm_up` and the last `drain` of them are played and not counted. seed: of arrivals
    and lengths; the same seed draws the same requests.

    Raises InputError for a number out of its range.
    """

    rate: float
    input: int = 1024
    output: int = 256
    requests: int = 1000
    cv: float = 1.0
    length_cv: float = 0.0
    cached: float = 0.0
    warm_up: int = 0
    drain: int = 0
    seed: int = 0
    log: tuple[Request, ...] = ()  # instead of what is drawn

    def __post_init__(self) -> None:
        expect(finite(self.rate) and self.rate > 0, "traffic rate", "requests a second, above 0", self.rate)
        for name, most in (("input", _MOST_TOKENS), ("output", _MOST_TOKENS), ("requests", MOST_REQUESTS)):
            expect_count(f"traffic {name}", getattr(self, name), most=most)
        for name, most, words in (
            ("cv", 10, "a coefficient of variation"), ("length_cv", 10, "a coefficient of variation"),
            ("cached", 1, "a share of the tokens in"),
        ):  # fmt: skip
            value = getattr(self, name)
            expect(finite(value) and 0 <= value <= most, f"traffic {name}", f"{words}, 0 to {most}", value)
        ends = [whole(self.warm_up), whole(self.drain)]
        if any(end is None or end < 0 for end in ends) or self.warm_up + self.drain >= self.requests:
            raise InputError(
                f"traffic warm_up and drain: expected 0 or more, together fewer than the {self.requests:,} requests; "
                f"got {shown(self.warm_up)} and {shown(self.drain)}"
            )

    @classmethod
    def of(cls, requests: Iterable[Request], **changed: int) -> Traffic:
        """Traffic of these requests in order of arrival; `changed`: warm_up, drain. InputError where there are none."""
        log = tuple(sorted(requests, key=lambda request: request.arrival_s))
        if not log:
            raise InputError("traffic: expected a request or more; got none")
        last_s, first_s = log[-1].arrival_s, log[0].arrival_s
        rate = (len(log) - 1) / (last_s - first_s) if last_s > first_s else float(len(log))
        mean_in, mean_out = (sum(r.input for r in log) / len(log), sum(r.output for r in log) / len(log))
        cached = sum(r.cached for r in log) / sum(r.input for r in log)
        return cls(rate=rate, input=round(mean_in), output=round(mean_out), requests=len(log), cached=cached, log=log,
                   **changed)  # fmt: skip

    @classmethod
    def from_csv(cls, file: str | Path, **changed: int) -> Traffic:
        """Of a log: columns arrival (seconds, from any moment), input and output (tokens), and, where known, cached.

        In the place of cached, columns prefix (any name) and shared (tokens in front of the prompt that all requests of
        that name have in common): the first to come reads them, the others find them in the prefix cache, which is
        taken to keep them all. Raises InputError for a file that cannot be read, a column that is missing, and a line
        that is no request.
        """
        path, said = Path(file), printable(str(Path(file)))
        try:
            table = csv.DictReader(io.StringIO(read_text(path, InputError).removeprefix("\ufeff"), newline=""))
            columns = table.fieldnames or ()
            if missing := [name for name in _COLUMNS if name not in columns]:
                raise InputError(
                    f"{said}: expected columns arrival, input, output (and optionally cached); {', '.join(missing)} "
                    "missing"
                )
            rows = list(enumerate(table, 2))
            found = [_request(said, number, row) for number, row in rows]
            if "prefix" in columns:
                found = _with_prefixes(said, found, rows)
        except csv.Error as error:
            raise InputError(f"{said}: cannot be read as a log of requests: {error}") from error
        if len(found) > MOST_REQUESTS:
            raise InputError(f"{said}: expected {MOST_REQUESTS:,} requests or fewer; got {len(found):,}")
        if not found:
            raise InputError(f"{said}: expected a request or more; got none")
        first_s = min(request.arrival_s for request in found)
        return cls.of((replace(r, arrival_s=r.arrival_s - first_s) for r in found), **changed)

    def at_rate(self, rate: float) -> Traffic:
        """The same requests at another rate: those of a log come faster or slower in proportion."""
        stretch = self.rate / rate
        log = tuple(replace(request, arrival_s=request.arrival_s * stretch) for request in self.log)
        return replace(self, rate=rate, log=log)

    @property
    def mean_request(self) -> Request:
        """A request of average length."""
        cached = min(self.input - 1, round(self.cached * self.input))
        return Request(arrival_s=0.0, input=self.input, output=self.output, cached=cached)

    def draw(self) -> tuple[Request, ...]:
        """The requests, in order of arrival; the first comes at 0."""
        if self.log:
            return self.log
        # Arrivals and lengths have generators of their own, so that another rate meets the same lengths.
        gaps, lengths = random.Random(self.seed), random.Random(self.seed + 1)
        now, found = 0.0, list[Request]()
        for _ in range(self.requests):
            given, answer = _length(self.input, self.length_cv, lengths), _length(self.output, self.length_cv, lengths)
            found.append(Request(
                arrival_s=now, input=given, output=answer, cached=min(given - 1, round(self.cached * given))
            ))  # fmt: skip
            # 1 on average: gamma distributed with shape 1/cv², which is exponential at 1
            now += (1.0 if self.cv == 0 else gaps.gammavariate(1 / self.cv**2, self.cv**2)) / self.rate
        return tuple(found)


def _length(mean: int, cv: float, draw: random.Random) -> int:
    """Log-normal with this mean and coefficient of variation, 1 token or more."""
    if cv == 0:
        return mean
    variance = math.log1p(cv**2)
    drawn = draw.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
    return min(_MOST_TOKENS, max(1, round(drawn)))


def _request(file: str, line: int, row: Mapping[str, str]) -> Request:
    try:
        arrival_s = float(row["arrival"])
        given, answer, cached = (int(row.get(name) or 0) for name in ("input", "output", "cached"))
        return Request(arrival_s=arrival_s, input=given, output=answer, cached=cached)
    except (TypeError, ValueError) as error:  # InputError among them
        got = ", ".join(f"{name}={row.get(name)!r}" for name in _COLUMNS)
        raise InputError(
            f"{file}, line {line}: expected seconds and whole numbers of tokens, 1 or more, fewer cached than input; "
            f"got {printable(got)}"
        ) from error


def _with_prefixes(file: str, found: list[Request], rows: list[tuple[int, dict[str, str]]]) -> list[Request]:
    """The requests with what the prefix cache holds when they come: nothing of a prefix that is new to it."""
    seen: set[str] = set()
    told = list(found)
    for place in sorted(range(len(found)), key=lambda i: found[i].arrival_s):
        (line, row), request = rows[place], found[place]
        name, text = row.get("prefix") or "", row.get("shared") or "0"
        shared = int(text) if text.isdecimal() else -1
        if request.cached or not 0 <= shared <= request.input or (shared and not name):
            raise InputError(
                f"{file}, line {line}: expected a name in the column prefix, at most `input` tokens in the column "
                f"shared, and no column cached; got prefix={printable(name)!r}, shared={printable(text)!r}, "
                f"input={request.input}, cached={request.cached}"
            )
        if name in seen:
            told[place] = replace(request, cached=min(shared, request.input - 1))
        seen.add(name)
    return told


@dataclass(slots=True, kw_only=True)
class Answered:
    """What became of one request, in seconds from the start of the log."""

    request: Request
    scheduled_s: float = math.nan  # the step that first read of its prompt began
    first_s: float = math.nan  # its first token came
    last_s: float = math.nan
    preempted: int = 0

    @property
    def queue_s(self) -> float:
        """Seconds from its arrival to the first step that reads its prompt."""
        return self.scheduled_s - self.request.arrival_s

    @property
    def ttft_s(self) -> float:
        """Seconds from its arrival to its first token."""
        return self.first_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float:
        """Between its tokens, on average; not a number where it has one."""
        further = self.request.output - 1
        return (self.last_s - self.first_s) / further if further else math.nan

    @property
    def e2e_s(self) -> float:
        """Seconds from its arrival to its last token."""
        return self.last_s - self.request.arrival_s


@dataclass(slots=True, kw_only=True)
class Played:
    """The requests, in order of arrival, and what the engine did, added up step by step."""

    answers: list[Answered] = field(default_factory=list)
    gaps: dict[float, float] = field(default_factory=dict)  # seconds between two tokens of a sequence → how many
    busy_s: float = 0.0  # steps
    reading_s: float = 0.0  # of these, beyond what sequences that go on take alone: reading prompts
    readings: int = 0  # steps that read prompts
    readings_s: float = 0.0  # and their seconds
    running_s: float = 0.0  # sequences × seconds of steps
    steps: int = 0
    preemptions: int = 0
    peak_cache: float = 0.0  # most of the cache that was in use, as a share
    engines: int = 1  # whose times and steps these are, summed
    kernels_j: float | None = None  # joules of one GPU's kernels, on average over all, where they are asked for

    def count_gap(self, seconds: float, times: float) -> None:
        """Counts `times` gaps of `seconds` between two tokens of a sequence."""
        if times > 0:
            self.gaps[seconds] = self.gaps.get(seconds, 0) + times

    @property
    def running(self) -> float:
        """Sequences, on average over the steps' time."""
        return self.running_s / self.busy_s if self.busy_s else 0.0

    def values(self, measure: str, warm_up: int = 0, drain: int = 0) -> list[float]:
        """One of `Answered`'s times of each request but the first and last so many; none of those that have it not."""
        found = (float(getattr(one, measure)) for one in self.answers[warm_up : len(self.answers) - drain])
        return [value for value in found if not math.isnan(value)]

    def mean(self, measure: str, warm_up: int = 0, drain: int = 0) -> float:
        """Their average; not a number of none."""
        values = self.values(measure, warm_up, drain)
        return math.fsum(values) / len(values) if values else math.nan

    @property
    def end_s(self) -> float:
        """The time of the last token, in seconds."""
        return max(answer.last_s for answer in self.answers)


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """What is promised: seconds to the first token, between tokens (a request's average), and of a whole answer.

    None promises nothing. share: of the requests that must keep all of them. Raises InputError where nothing is
    promised, for seconds that are not above 0, and for a share outside (0, 1].
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    share: float = 0.9

    def __post_init__(self) -> None:
        promised = [value for value in (self.ttft_s, self.tpot_s, self.e2e_s) if value is not None]
        if not promised or not all(finite(value) and value > 0 for value in promised):
            raise InputError(
                "service level: expected one or more of ttft_s, tpot_s and e2e_s, in seconds above 0; got "
                f"ttft_s={shown(self.ttft_s)}, tpot_s={shown(self.tpot_s)}, e2e_s={shown(self.e2e_s)}"
            )
        share = self.share
        expect(finite(share) and 0 < share <= 1, "service level share", "a share above 0, up to 1", share)

    def kept_by(self, answer: Answered) -> bool:
        """Whether one request keeps every promise; an answer of one token has no time between tokens."""
        promises = ((self.ttft_s, answer.ttft_s), (self.tpot_s, answer.tpot_s), (self.e2e_s, answer.e2e_s))
        return not any(promised is not None and found > promised for promised, found in promises)

    def to_dict(self) -> dict[str, float | None]:
        """Ready for JSON."""
        return asdict(self)
