"""Sentences about one workload on many GPUs: why their order is what it is, from numbers only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rooflinekit.ir.tensor import Math
from rooflinekit.study.story import MEANING, seconds, signed
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    from rooflinekit.study.gpu_comparison import GpuComparison, Pair


_LISTED = 4  # names in one sentence


def sentences(comparison: GpuComparison) -> Iterator[str]:
    """The order by time, from the fastest down, then the GPUs with more FLOP/s that are slower."""
    yield from order_sentences(comparison)
    yield from surprise_sentences(comparison)


def order_sentences(comparison: GpuComparison) -> Iterator[str]:
    """Why each GPU is faster than the next; neighbours whose intervals overlap together, without a claim."""
    if not any(row["fits"] for row in comparison.rows):
        yield "It fits the memory of none of them."
    unclear: list[str] = []
    for pair in comparison.neighbours:
        if pair.certain:
            yield from _no_claim(unclear)
            unclear = []
            fast, slow = pair.faster, pair.slower
            yield (
                f"{fast.machine.name} is {pair.ratio:.2f}× faster than {slow.machine.name} "
                f"({seconds(fast.total_s)} against {seconds(slow.total_s)}), which has {_why(pair, comparison.math)}."
            )
        else:
            unclear = unclear or [pair.faster.machine.name]
            unclear.append(pair.slower.machine.name)
    yield from _no_claim(unclear)


def surprise_sentences(comparison: GpuComparison) -> Iterator[str]:
    """Each GPU that is slower than one with fewer FLOP/s, beside the one for which that is most striking."""
    named: set[str] = set()
    for pair in comparison.surprises:
        fast, slow = pair.faster.machine.name, pair.slower.machine.name
        if slow in named:
            continue
        named.add(slow)
        more, less = (format_quantity(peak, "flop/s") for peak in (pair.slower_peak, pair.faster_peak))
        yield (
            f"More FLOP/s in {comparison.math}, yet slower: {slow} states {more} against {less} of {fast}, and takes "
            f"{seconds(pair.slower.total_s)} against {seconds(pair.faster.total_s)}; it has "
            f"{_why(pair, comparison.math)}."
        )


def _why(pair: Pair, math: Math) -> str:
    """The terms that make up nine tenths of what differs, and the datasheet's numbers behind the largest."""
    terms = pair.terms()
    all_of_it = left = sum(map(abs, terms.values()))
    named: list[str] = []
    for name, more in terms.items():
        if left <= 0.1 * all_of_it:
            break
        named.append(f"{MEANING[name]} {signed(more)}")
        left -= abs(more)
    return f"{', '.join(named)}{_stated(pair, next(iter(terms)), math)}"


def _stated(pair: Pair, term: str, math: Math) -> str:
    if term == "memory":
        what, values = "DRAM", (pair.slower.machine.bandwidth, pair.faster.machine.bandwidth)
        unit = "byte/s"
    elif term in ("ideal", "underuse"):
        what, values = f"{math} peak", (pair.slower_peak, pair.faster_peak)
        unit = "flop/s"
    else:
        return ""
    slow, fast = (format_quantity(value, unit) for value in values)
    return f" ({what} {slow} against {fast})"


def _no_claim(names: Sequence[str]) -> Iterator[str]:
    if len(names) > _LISTED:
        listed = f"neighbours among the {len(names)} from {names[0]} to {names[-1]}"
    elif names:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
    else:
        return
    yield f"No claim on the order of {listed}: the 90 % intervals of one and the next overlap."
