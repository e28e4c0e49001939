"""`rooflinekit serve` where requests come at a rate: what its options mean, and the two walks that they ask for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.options import print_json
from rooflinekit.errors import CapacityError, FormatError, InputError, UnitError
from rooflinekit.units import parse_quantity

if TYPE_CHECKING:
    from rooflinekit.serving.decoder import Decoder
    from rooflinekit.serving.traffic import ServiceLevel, Traffic

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_RATE = re.compile(r"\s*([0-9.,eE+\s-]+)/\s*(s|min|h)\s*")
_PROMISES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the options of open loops say."""

    rate: str | None
    requests: str
    arrivals: str
    length_cv: float
    cached: float
    warm_up: int
    drain: int
    seed: int
    slo: str | None
    keep: float
    load: str | None
    price_per_hour: float | None
    search: bool
    figure: Path | None

    @property
    def asked(self) -> bool:
        """Whether requests come at a rate, or as a log says."""
        return self.rate is not None or self.slo is not None or not self.requests.isdigit()


def serve_rates(decoder: Decoder, places: Sequence[Mapping[str, Any]], given: Rates, lengths: tuple[int, int],
                as_json: bool) -> None:  # fmt: skip
    """Prints what clients see at each rate, or the highest rate that keeps the service level, for each place."""
    traffic, rates = _traffic(given, lengths)
    if given.search:
        _search(decoder, places, given, traffic, as_json)
        return
    if given.slo is not None:
        _capacities(decoder, places, given, traffic, as_json)
        return
    for option, value in (("--load", given.load), ("--figure", given.figure)):
        if value is not None:
            raise InputError(f"{option}: needs a service level, such as --slo ttft=500ms,tpot=40ms")
    from rooflinekit.api.serve import serve_traffic
    from rooflinekit.present.text.serving import print_rates

    found, refused = _each(
        [{**place, "traffic": traffic.at_rate(rate)} for place in places for rate in rates],
        lambda options: serve_traffic(decoder, **options),
    )
    if as_json:
        print_json("serve-rates", {"served": [one.to_dict() for one in found], "refused": refused})
        return
    print_rates(found, refused)


def _capacities(
    decoder: Decoder, places: Sequence[Mapping[str, Any]], given: Rates, traffic: Traffic, as_json: bool
) -> None:
    from rooflinekit.api.serve import highest_rate
    from rooflinekit.present.text.serving import print_capacities

    level = level_of(given.slo or "", given.keep)
    load = None if given.load is None else rates_of("--load", given.load)[0]
    found, refused = _each(
        [{**place, "traffic": traffic, "level": level, "price_usd_per_hour": given.price_per_hour}
         for place in places],
        lambda options: highest_rate(decoder, **options),
    )  # fmt: skip
    if given.figure is not None:
        from rooflinekit.present.figures.curves import rates as drawn
        from rooflinekit.present.figures.files import save

        if len(found) > 1:
            raise InputError(f"--figure: shows one GPU and format; got {len(found)}")
        save(drawn(found[0])[0], given.figure)
    if as_json:
        documents = [one.to_dict(load) for one in found]
        print_json("serve-capacity", {"capacities": documents, "refused": refused})
        return
    print_capacities(found, refused, load)


def _search(
    decoder: Decoder, places: Sequence[Mapping[str, Any]], given: Rates, traffic: Traffic, as_json: bool
) -> None:
    if given.slo is None or given.load is None or given.figure is not None:
        raise InputError("--search: needs --slo, such as ttft=500ms,tpot=40ms, and --load, such as 100/s; no --figure")
    from rooflinekit.api.fleet import search_places
    from rooflinekit.present.text.serving import print_fleets

    found = search_places(
        decoder, places, load=rates_of("--load", given.load)[0], level=level_of(given.slo, given.keep), traffic=traffic,
        price_usd_per_hour=given.price_per_hour,
    )  # fmt: skip
    if as_json:
        print_json("serve-capacity", found.to_dict())
        return
    print_fleets(found)


def _each(
    places: list[dict[str, Any]], walk: Callable[[dict[str, Any]], Any]
) -> tuple[list[Any], list[dict[str, str]]]:
    """What is found in each place; one that cannot is told beside the others, and an error where none can."""
    found, refused, first = [], [], None
    for options in places:
        try:
            found.append(walk(options))
        except (CapacityError, FormatError) as error:
            first = first or error
            refused.append({"gpu": str(options["gpu"] or options["cluster"]), "why": str(error)})
    if not found and first is not None:
        raise first
    return found, refused


def _traffic(given: Rates, lengths: tuple[int, int]) -> tuple[Traffic, list[float]]:
    """The requests, and the rates at which they come: those of a log at its own where none is given."""
    from rooflinekit.serving.traffic import Traffic

    rates = [] if given.rate is None else rates_of("--rate", given.rate)
    if not given.requests.isdigit():
        traffic = Traffic.from_csv(given.requests, warm_up=given.warm_up, drain=given.drain)
        return traffic, rates or [traffic.rate]
    drawn = Traffic(
        rate=rates[0] if rates else 1.0, input=lengths[0], output=lengths[1], requests=int(given.requests),
        cv=cv_of(given.arrivals), length_cv=given.length_cv, cached=given.cached, seed=given.seed,
        warm_up=given.warm_up, drain=given.drain,
    )  # fmt: skip
    return drawn, rates


def rates_of(option: str, text: str) -> list[float]:
    """Requests a second.

    >>> rates_of("--rate", "1,2/s"), rates_of("--rate", "120/min")
    ([1.0, 2.0], [2.0])
    """
    match = _RATE.fullmatch(text)
    try:
        found = [float(part) / _SECONDS[match[2]] for part in match[1].split(",")] if match else []
    except ValueError:
        found = []
    if not found or min(found) <= 0:
        raise InputError(f"{option} {text!r}: expected requests with their time, such as 4/s, 120/min or 1,2,4/s")
    return found


def cv_of(text: str) -> float:
    """Coefficient of variation of the gaps: 'poisson' is 1, 'even' 0, 'gamma:2' 2."""
    known = {"poisson": 1.0, "even": 0.0}
    if text in known:
        return known[text]
    try:
        return float(text.removeprefix("gamma:")) if text.startswith("gamma:") else float("x")
    except ValueError:
        raise InputError(
            f"--arrivals {text!r}: expected poisson, even, or gamma:CV with the coefficient of variation of the gaps, "
            "such as gamma:2"
        ) from None


def level_of(text: str, share: float) -> ServiceLevel:
    """'ttft=500ms,tpot=40ms' → a service level."""
    from rooflinekit.serving.traffic import ServiceLevel

    promised: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            if name.strip() not in _PROMISES:
                raise UnitError(name)
            promised[f"{name.strip()}_s"] = parse_quantity(value, "s")
        except UnitError:
            raise InputError(
                f"--slo {text!r}: expected one or more of {', '.join(_PROMISES)} with seconds, such as "
                "ttft=500ms,tpot=40ms"
            ) from None
    return ServiceLevel(share=share, **promised)
