"""The vectors that CPUs compute with: their names, which contain which, and the flags by which Linux reports them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vectors:
    """One set of instructions. A CPU that has it also has the one that it contains."""

    name: str  # in specifications, as `compute_capability`
    flags: frozenset[str]  # of /proc/cpuinfo, beside those of what it contains
    lanes: tuple[int, ...]  # fp32 multiply-adds of a core in a clock that are to be had with it
    contains: str | None = None


#: Each after the one that it contains. Lanes: of one or two FMA units; of Arm's 128 bits up to four.
SETS = {
    found.name: found
    for found in (
        Vectors("neon", frozenset({"asimd"}), (4, 8, 16)),
        Vectors("avx2", frozenset({"avx2", "fma"}), (8, 16)),
        Vectors("avx512", frozenset({"avx512f"}), (16, 32), "avx2"),
        Vectors("avx512-amx", frozenset({"amx_bf16", "amx_int8"}), (16, 32), "avx512"),
    )
}


def widest(flags: Collection[str]) -> str | None:
    """The set of a CPU with these flags that contains its others; None where it has none of them."""
    found: str | None = None
    for one in SETS.values():
        if one.flags <= set(flags) and one.contains in (None, found):
            found = one.name
    return found


def lanes_of(name: str | None) -> tuple[int, ...]:
    """The possible numbers of fp32 multiply-adds of a core in a clock; where no set is known, all of them."""
    sets = [SETS[name]] if name in SETS else SETS.values()
    return tuple(sorted({lanes for one in sets for lanes in one.lanes}))


def contained(name: str | None) -> Iterator[str]:
    """A set and those within it, from the widest on; nothing for None and names that are not known."""
    while name in SETS:
        yield name
        name = SETS[name].contains
