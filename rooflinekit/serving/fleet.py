"""The fewest or cheapest GPUs that answer a load within a service level, over many ways to set them up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rooflinekit.errors import CapacityError, FormatError, InputError
from rooflinekit.hardware.host import Host
from rooflinekit.serving.engine import EnginePool, Setup
from rooflinekit.serving.served import SHARES, ServedTraffic, serve_traffic_on
from rooflinekit.serving.step_times import Chunk
from rooflinekit.serving.traffic import MOST_REQUESTS, Request, ServiceLevel, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSearch:
    """What was found: `best` first, by dollars an hour where prices are stated, else by GPUs.

    considered: ways to set the GPUs up. played: those whose highest rate was looked for; the others cannot be among
    the best by what they could answer at most, or are `refused`, each with its name and the reason.
    """

    load: float
    level: ServiceLevel
    best: tuple[Capacity, ...]
    considered: int
    played: int
    refused: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "capacities": [one.to_dict(self.load) for one in self.best],
            "refused": [{"gpu": name, "why": why} for name, why in self.refused],
            "considered": self.considered, "played": self.played,
        }  # fmt: skip


def find_fleet(
    setups: Sequence[Setup],
    highest: Callable[[Setup], Capacity],
    traffic: Traffic,
    level: ServiceLevel,
    load: float,
    most: int,
) -> FleetSearch:
    """The best setups for a load, those that could be cheapest first.

    highest: the highest rate of one. A setup whose best case is no cheaper than the worst of `most` found is left out.
    """
    refused: list[tuple[str, str]] = []
    bounded: list[tuple[float, int, Setup]] = []
    for number, setup in enumerate(setups):
        try:
            rate = at_best(setup, traffic, level)
        except (CapacityError, FormatError) as error:
            refused.append((setup.words, str(error)))
            continue
        if rate:
            bounded.append((setup.cost(math.ceil(load / rate - 1e-9)), number, setup))
        else:
            refused.append((setup.words, "a request by itself does not keep the level"))
    found: list[tuple[float, int, Capacity]] = []
    played = 0
    for at_least, number, setup in sorted(bounded, key=lambda one: one[:2]):
        if len(found) >= most and at_least >= found[most - 1][0]:
            break
        played += 1
        try:
            capacity = highest(setup)
        except (CapacityError, FormatError) as error:
            refused.append((setup.words, str(error)))
            continue
        copies = capacity.copies(load)
        if copies is None:
            refused.append((setup.words, "no rate keeps the level"))
            continue
        found.append((setup.cost(copies), number, capacity))
        found.sort(key=lambda one: (one[0], -one[2].rate / one[2].gpus_of_a_copy))
    return FleetSearch(
        load=load, level=level, best=tuple(capacity for _, _, capacity in found[:most]), considered=len(setups),
        played=played, refused=tuple(refused),
    )  # fmt: skip


def at_best(setup: Setup, traffic: Traffic, level: ServiceLevel) -> float:
    """Requests a second of a copy that no arrivals exceed: prompts fill every step, or answers as many as the cache and
    the promised time between tokens allow; 0 where a request by itself takes longer than promised.

    Raises CapacityError where the memory does not hold a request.
    """
    pool = EnginePool.of(setup, traffic)
    request = traffic.mean_request
    alone = pool.play((request,)).answers[0]
    if not (traffic.log or traffic.length_cv) and not level.kept_by(alone):
        return 0.0
    prompts, groups, over = max(1, setup.engine.step_tokens // request.input), setup.times.dp, setup.apart
    chunk = Chunk(start=request.cached, tokens=request.input - request.cached)
    reading_s = pool.reading.step_s([chunk] * prompts * groups, 0, 0.0) / (prompts * groups)
    rates = [(over.prefill if over else 1) / reading_s]
    if request.output > 1:
        rates.append((over.decode if over else 1) * _most_tokens(setup, pool, request, level) / (request.output - 1))
    return min(rates) / level.share


def _most_tokens(setup: Setup, pool: EnginePool, request: Request, level: ServiceLevel) -> float:
    """Tokens a second that an engine gives at most, by steps of as many sequences as it holds, or as keep the level."""
    given, groups = setup.engine.given, setup.times.dp
    context = request.input + request.output / 2
    sequences = max(1, int(pool.going_on.cache_tokens // context))
    if setup.engine.sequences:
        sequences = min(sequences, setup.engine.sequences * groups)

    def step_s(count: int) -> float:
        return pool.going_on.step_s((), count, context)

    # halved while even half of them take longer than promised: no fewer than keep the level
    while level.tpot_s and sequences > 1 and step_s(sequences // 2) > level.tpot_s * given:
        sequences //= 2
    return sequences * given / step_s(sequences)


#: Rates are found to this share.
_TOLERANCE = 0.02
_LEAST_RATE = 2.0**-10
#: A run lasts so many times an answer's time, or longer.
_LIVES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """What was predicted at one rate. Seconds; `kept` is a share of the requests, `goodput` those a second."""

    rate: float
    kept: float
    goodput: float
    requests_per_s: float
    tokens_per_s: float
    overloaded: bool  # requests come faster than they are answered
    ttft_s: tuple[float, ...]  # of 50, 90 and 99 % of the requests
    tpot_s: tuple[float, ...]
    e2e_s: tuple[float, ...]

    def keeps(self, level: ServiceLevel) -> bool:
        """Whether enough requests keep the level, and would with more of them."""
        return self.kept >= level.share and not self.overloaded

    @classmethod
    def of(cls, served: ServedTraffic, level: ServiceLevel) -> RatePoint:
        """The numbers of a rate that a level's figure and table need."""
        seconds = {
            name: tuple(served.percentile(name, share) for share in SHARES) for name in ("ttft_s", "tpot_s", "e2e_s")
        }
        return cls(
            rate=served.traffic.rate, kept=served.kept(level), goodput=served.goodput(level),
            requests_per_s=served.requests_per_s, tokens_per_s=served.tokens_per_s, overloaded=served.overloaded,
            **seconds,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; None for times that no request has."""
        return {
            name: [None if math.isnan(one) else one for one in value] if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Requests a second that one copy of the model answers within a service level.

    rate: the highest that keeps the level, found to 2 %; 0 where none does. points: the rates that were tried, in
    order. at: what was served at that rate, or at the lowest tried where none keeps the level.
    """

    level: ServiceLevel
    rate: float
    points: tuple[RatePoint, ...]
    at: ServedTraffic
    price_usd_per_hour: float | None = None  # of one GPU

    @property
    def gpus_of_a_copy(self) -> int:
        """GPUs of one copy, or of its engines for prompts and answers together."""
        return self.at.gpus

    def copies(self, load: float) -> int | None:
        """Copies that a load of so many requests a second needs, spread evenly; None where no rate keeps the level."""
        if not (math.isfinite(load) and load > 0):
            raise InputError(f"load: expected requests a second, above 0; got {load!r}")
        return math.ceil(load / self.rate - 1e-9) if self.rate else None

    def gpus(self, load: float) -> int | None:
        """GPUs that a load of so many requests a second needs; None where no rate keeps the level."""
        copies = self.copies(load)
        return None if copies is None else copies * self.gpus_of_a_copy

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers a second at the highest rate, by all GPUs of a copy."""
        return self.rate * self.at.traffic.output

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Dollars for a million tokens of answers at the highest rate; None without a price or such a rate."""
        if self.price_usd_per_hour is None or not self.rate:
            return None
        return self.price_usd_per_hour * self.gpus_of_a_copy / 3600 / self.tokens_per_s * 1e6

    def to_dict(self, load: float | None = None) -> dict[str, Any]:
        """Everything, ready for JSON; with what a load needs where one is given."""
        return {
            "level": self.level.to_dict(), "rate": self.rate, "tokens_per_s": self.tokens_per_s,
            "price_usd_per_hour": self.price_usd_per_hour, "usd_per_million_tokens": self.usd_per_million_tokens,
            "load": load, "copies": None if load is None else self.copies(load),
            "gpus": None if load is None else self.gpus(load),
            "points": [point.to_dict() for point in self.points],
            "at": self.at.to_dict(),
        }  # fmt: skip


def find_capacity(host: Host, setup: Setup, traffic: Traffic, level: ServiceLevel) -> Capacity:
    """The highest rate that keeps the level: doubled until it breaks, then halved in between.

    The share of requests that keep a level falls as the rate rises, but for the chance of arrivals; the same seed draws
    the same gaps at every rate. At each rate there are as many requests as it takes to settle (`_settled`).
    """
    points: dict[float, RatePoint] = {}
    played: dict[float, Traffic] = {}

    def keeps(rate: float) -> bool:
        found = _settled(host, setup, traffic.at_rate(rate))
        points[rate], played[rate] = RatePoint.of(found, level), found.traffic
        return points[rate].keeps(level)

    low, high = 0.0, 1.0
    if keeps(high):
        while keeps(2 * high):
            high *= 2
        low, high = high, 2 * high
    else:
        while high > _LEAST_RATE and not keeps(high / 2):
            high /= 2
        low = high / 2 if high > _LEAST_RATE else 0.0
    while low and high - low > _TOLERANCE * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return Capacity(
        level=level, rate=low, points=tuple(points[rate] for rate in sorted(points)),
        at=serve_traffic_on(host, played[low or min(points)], setup), price_usd_per_hour=setup.price_usd_per_hour,
    )  # fmt: skip


def _settled(host: Host, setup: Setup, traffic: Traffic) -> ServedTraffic:
    """What is served once as many answers run as will: of as many requests as come in `_LIVES` times an answer's time,
    those of the first not counted. A log has the requests that it has.
    """
    found = serve_traffic_on(host, traffic, setup, intervals=False)
    during = math.ceil(traffic.rate * found.mean("e2e_s"))  # requests that come while one is answered
    if traffic.log or found.overloaded or traffic.requests >= _LIVES * during:
        return found
    longer = replace(traffic, requests=min(MOST_REQUESTS, _LIVES * during), warm_up=max(traffic.warm_up, during))
    return serve_traffic_on(host, longer, setup, intervals=False)
