"""Sentences about one workload on many GPUs: why their order is what it is, from numbers only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rooflinekit.step.words import MEANING
from rooflinekit.study.explain.story import seconds, signed
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    from rooflinekit.study.compare.gpus import GpuComparison
    from rooflinekit.study.compare.pair import Pair


_LISTED = 4  # names in one sentence


def sentences(comparison: GpuComparison) -> Iterator[str]:
    """The order by time, from the fastest down, then the GPUs with more FLOP/s that are slower."""
    yield from order_sentences(comparison)
    yield from surprise_sentences(comparison)


def order_sentences(comparison: GpuComparison) -> Iterator[str]:
    """Why each GPU is faster than the next; where that is not certain of neighbours, of which pairs it is."""
    if not any(row["fits"] for row in comparison.rows):
        yield "It fits the memory of none of them."
    yield from _all_wait(comparison)
    unclear: list[int] = []
    for place, pair in enumerate(comparison.neighbours):
        if pair.certain:
            yield from _no_claim(comparison, unclear)
            unclear = []
            fast, slow = pair.faster, pair.slower
            yield (
                f"{fast.machine.name} is {pair.ratio:.2f}× faster than {slow.machine.name} "
                f"({seconds(fast.total_s)} against {seconds(slow.total_s)}), which has {_why(pair)}."
            )
        else:
            unclear = unclear or [place]
            unclear.append(place + 1)
    yield from _no_claim(comparison, unclear)


def _all_wait(comparison: GpuComparison) -> Iterator[str]:
    """Told where no GPU would change much, as all stand idle."""
    fitting = [p for p, row in zip(comparison.predictions, comparison.rows, strict=True) if row["fits"]]
    if len(fitting) < 2 or any(p.regime != "overhead" for p in fitting):
        return
    waits = [p.terms()["overhead"] / p.total_s for p in fitting]
    yield (
        f"All of them wait for the CPU, for {min(waits):.0%} to {max(waits):.0%} of the step: it takes a larger batch, "
        "torch.compile or a CUDA graph, not another GPU."
    )


def surprise_sentences(comparison: GpuComparison) -> Iterator[str]:
    """Each GPU that is slower than one with fewer FLOP/s, beside the one for which that is most striking."""
    named: set[str] = set()
    for pair in comparison.surprises:
        fast, slow = pair.faster.machine.name, pair.slower.machine.name
        if slow in named:
            continue
        named.add(slow)
        yield (
            f"More FLOP/s, yet slower: {slow} states {_peaks(pair)} of {fast}, and takes "
            f"{seconds(pair.slower.total_s)} against {seconds(pair.faster.total_s)}; it has {_why(pair)}."
        )


def _why(pair: Pair) -> str:
    """The terms that make up nine tenths of what differs, and the datasheet's numbers behind the largest."""
    terms = pair.terms()
    all_of_it = left = sum(map(abs, terms.values()))
    named: list[str] = []
    for name, more in terms.items():
        if left <= 0.1 * all_of_it:
            break
        named.append(f"{MEANING[name]} {signed(more)}")
        left -= abs(more)
    return f"{', '.join(named)}{_stated(pair, next(iter(terms)))}"


def _stated(pair: Pair, term: str) -> str:
    """The datasheets' numbers behind a term."""
    if term == "memory":
        slow, fast = (format_quantity(p.machine.bandwidth, "byte/s") for p in (pair.slower, pair.faster))
        return f" (DRAM {slow} against {fast})"
    return f" (peak {_peaks(pair)})" if term in ("ideal", "underuse") else ""


def _peaks(pair: Pair) -> str:
    """Stated FLOP/s of the slower against the faster one, each in what it computes in: not every GPU has tf32."""
    slow, fast = (format_quantity(peak, "flop/s") for peak in (pair.slower_peak, pair.faster_peak))
    if pair.slower_math is pair.faster_math:
        return f"{slow} against {fast} in {pair.slower_math}"
    return f"{slow} in {pair.slower_math} against {fast} in {pair.faster_math}"


def _no_claim(comparison: GpuComparison, places: Sequence[int]) -> Iterator[str]:
    """Of neighbours, one after another, either of which may be faster: what can be said of pairs further apart."""
    if not places:
        return
    rows = comparison.by_time
    names = [rows[place]["gpu"] for place in places]
    if len(names) > _LISTED:
        listed = f"neighbours among the {len(names)} from {names[0]} to {names[-1]}"
    else:
        listed = _and(names)
    claims: list[str] = []
    for i, place in enumerate(places):
        slower = [
            rows[other]["gpu"] for other in places[i + 1 :]
            if comparison.surely_faster(comparison.order[place], comparison.order[other])
        ]  # fmt: skip
        if slower:
            than = _and(slower) if len(slower) <= _LISTED else f"the {len(slower)} from {slower[0]} on"
            claims.append(f"{names[i]} is faster than {than}")
    if len(claims) > _LISTED:
        claims = [*claims[:_LISTED], f"{len(claims) - _LISTED} more such claims in the table"]
    certain = f" For certain, {_and(claims)}." if claims else ""
    yield f"No claim on the order of {listed}: the 90 % interval of the ratio of one to the next holds 1.{certain}"


def _and(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def table_of(comparison: GpuComparison) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of its table, as texts."""
    one, money = comparison.counted.removesuffix("s"), comparison.currency
    heads = ["", "step", "90 % interval", f"{one}s/s", "regime", "of peak", "memory", f"{one}s/s/$1000", f"{one}s/s/W"]
    rows = [_cells(row) for row in comparison.rows]
    if money or comparison.sort == "energy":
        heads.append("draws")
        drawn = [row["drawn_w"] for row in comparison.rows]
        rows = [[*cells, _drawn(watts)] for cells, watts in zip(rows, drawn, strict=True)]
    if money:
        heads.append(f"{money} a million")
        costs = [row["per_million"] for row in comparison.rows]
        rows = [[*cells, "–" if cost is None else f"{cost:.4g}"] for cells, cost in zip(rows, costs, strict=True)]
    return heads, rows


def _drawn(watts: float | None) -> str:
    return "–" if watts is None else format_quantity(watts, "W")


def _cells(row: Mapping[str, Any]) -> list[str]:
    memory = format_quantity(row["peak_bytes"], "byte", binary=True)
    return [
        row["gpu"],
        seconds(row["total_s"]),
        " to ".join(seconds(row[name]) for name in ("low_s", "high_s")),
        _number(row["throughput"]),
        row["regime"],
        f"{row['share_of_peak']:.0%}",
        f"{memory} {'fits' if row['fits'] else 'does not fit'}",
        _number(row["per_dollar"], 1000),
        _number(row["per_watt"]),
    ]


def _number(value: float | None, times: float = 1) -> str:
    """Three digits, more where it takes more before the point.

    >>> _number(1234.5), _number(0.02345), _number(0.5, 1000), _number(None)
    ('1234', '0.0234', '500', '–')
    """
    if value is None:
        return "–"
    scaled = value * times
    return f"{scaled:.0f}" if scaled >= 99.95 else f"{scaled:.3g}"
