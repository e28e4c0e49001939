"""Sentences about one workload on many GPUs: why their order is what it is, from numbers only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rooflinekit.step.report import number
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
    """Told where the CPU decides on several GPUs, which then are as fast as each other; with what they could do."""
    held = [comparison.predictions[place] for place in comparison.order]
    held = sorted((p for p in held if p.cpu_s >= p.gpu_s), key=lambda p: p.gpu_s)
    if len(held) < 2:
        return
    listed = [f"{p.machine.name} {seconds(p.gpu_s)}" for p in held]
    if len(listed) > 2 * _LISTED:
        listed = [*listed[:_LISTED], "…", *listed[-_LISTED:]]
    every = len(held) == len(comparison.order)
    host = held[0].host
    known = "no host is named, so the middle of those measured" if host.stands_for_any else host.name
    yield (
        f"{'All of them' if every else f'{len(held)} of them'} wait for the CPU, which takes "
        f"{seconds(min(p.cpu_s for p in held))} to issue the step ({known}): a larger batch, torch.compile, a CUDA "
        f"graph or a faster host tells them apart, no other GPU is faster. The GPUs alone would take: "
        f"{', '.join(listed)}."
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
    heads = [
        "",
        "step",
        "90 % interval",
        "GPU busy",
        f"{one}s/s",
        "regime",
        "of peak",
        "memory",
        f"{one}s/s/$1000",
        f"{one}s/s/W",
    ]
    rows = [_cells(row) for row in comparison.rows]
    if money or comparison.sort == "energy":
        heads.append("draws")
        rows = [[*cells, _shown(row, "drawn_w", "W")] for cells, row in zip(rows, comparison.rows, strict=True)]
    if money:
        heads.append(f"{money} a million")
        rows = [[*cells, _shown(row, "per_million")] for cells, row in zip(rows, comparison.rows, strict=True)]
    return heads, rows


def _shown(row: Mapping[str, Any], name: str, unit: str = "") -> str:
    """A number of a GPU on which it fits."""
    if row[name] is None or not row["fits"]:
        return "–"
    return format_quantity(row[name], unit) if unit else f"{row[name]:.4g}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    """A row; of a GPU whose memory is too small nothing but that."""
    memory = format_quantity(row["peak_bytes"], "byte", binary=True)
    if not row["fits"]:
        return [row["gpu"], *["–"] * 6, f"{memory} does not fit", "–", "–"]
    return [
        row["gpu"],
        seconds(row["total_s"]),
        " to ".join(seconds(row[name]) for name in ("low_s", "high_s")),
        seconds(row["gpu_s"]),
        number(row["throughput"]),
        row["regime"],
        f"{row['share_of_peak']:.0%}",
        f"{memory} fits",
        number(row["per_dollar"], 1000),
        number(row["per_watt"]),
    ]
