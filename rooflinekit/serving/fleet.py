"""The fewest or cheapest GPUs that answer a load within a service level, over many ways to set them up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rooflinekit.errors import CapacityError, FormatError
from rooflinekit.serving.batch_times import BatchTimes, Chunk
from rooflinekit.serving.capacity import Capacity
from rooflinekit.serving.disaggregation import Disaggregation
from rooflinekit.serving.engine_pool import EnginePool
from rooflinekit.serving.levels import ServiceLevel
from rooflinekit.serving.served_traffic import gpus_of
from rooflinekit.serving.settings import Engine
from rooflinekit.serving.traffic import Request, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One way to serve: `words` name it, `price_usd_per_hour` is one GPU's (None where none is stated)."""

    words: str
    times: BatchTimes
    prefill_times: BatchTimes | None
    engine: Engine
    apart: Disaggregation | None
    price_usd_per_hour: float | None

    @property
    def gpus(self) -> int:
        """Of a copy."""
        return gpus_of(self.times.times.gpus, self.apart)

    def cost(self, copies: float) -> float:
        """Dollars an hour of so many copies, or their GPUs where no price is stated."""
        return copies * self.gpus * (1.0 if self.price_usd_per_hour is None else self.price_usd_per_hour)


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
    pool = EnginePool.of(setup.engine, setup.times, traffic, setup.apart, setup.prefill_times)
    request = traffic.mean_request
    alone = pool.play((request,)).answers[0]
    if not (traffic.log or traffic.length_cv) and not level.kept_by(alone):
        return 0.0
    prompts, groups, over = max(1, setup.engine.step_tokens // request.input), setup.times.times.dp, setup.apart
    chunk = Chunk(start=request.cached, tokens=request.input - request.cached)
    reading_s = pool.prefill_steps.batch_s([chunk] * prompts * groups, 0, 0.0) / (prompts * groups)
    rates = [(over.prefill if over else 1) / reading_s]
    if request.output > 1:
        rates.append((over.decode if over else 1) * _most_tokens(setup, pool, request, level) / (request.output - 1))
    return min(rates) / level.share


def _most_tokens(setup: Setup, pool: EnginePool, request: Request, level: ServiceLevel) -> float:
    """Tokens a second that an engine gives at most, by steps of as many sequences as it holds, or as keep the level."""
    given, groups = setup.engine.given, setup.times.times.dp
    context = request.input + request.output / 2
    sequences = max(1, int(pool.cache_tokens // context))
    if setup.engine.sequences:
        sequences = min(sequences, setup.engine.sequences * groups)

    def step_s(count: int) -> float:
        return pool.steps.batch_s((), count, context)

    # halved while even half of them take longer than promised: no fewer than keep the level
    while level.tpot_s and sequences > 1 and step_s(sequences // 2) > level.tpot_s * given:
        sequences //= 2
    return sequences * given / step_s(sequences)
