"""What counts rest on: exact rules, or defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from rooflinekit.ir.cost import Cost
from rooflinekit.ir.keyed import sums
from rooflinekit.ir.op import Basis, PricedOp
from rooflinekit.ir.sizes import Size, evaluator

# What a trace had to take for granted, because it stands in the numbers of tensors.


class Ground(StrEnum):
    """Why a number was taken and not another."""

    GIVEN = "given"  # by the user
    MOST = "its most"  # nothing is known: as many as there can be
    EVEN = "shared out evenly"  # of a choice of k among n: each as often as the others
    ALIKE = "as at the sizes of the trace"  # of a mask, which was asked there
    USUAL = "as usual"  # a check that data pass
    ONCE = "once"  # of a loop nothing is known

    @property
    def founded(self) -> bool:
        """Whether there is a reason for it."""
        return self not in (Ground.MOST, Ground.ONCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A size or an answer that data decide, and what it was taken to be.

    `assume={name: value}` takes another: a number of elements, a share of the most (above 0, up to 1.0), or an answer.
    """

    name: str  # "nonzero": equal for all calls of a line
    where: str  # "model.py:12"
    module: str
    value: Any  # elements, or the answer
    most: Size | None = None  # elements that there can be
    ground: Ground
    times: int = 1  # how often the line was met

    def __str__(self) -> str:
        taken = f"{self.value}" if self.most is None else f"{self.value} of {self.most}"
        often = f", {self.times} times" if self.times > 1 else ""
        return f"{self.name} {taken} ({self.ground}; {self.where}{often})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The basis of a graph's counts: exact rules, defaults, assumptions."""

    ops: Mapping[Basis, int]  # how many ops by basis
    default_kinds: Mapping[str, int]  # kinds without a rule, and how many ops of each
    flop_share: float  # share of FLOP that comes from exact rules, at the smallest sizes where symbolic
    bytes_share: float  # likewise of bytes
    assumptions: tuple[Assumption, ...] = ()  # what data decide, and was taken to be

    def to_dict(self) -> dict[str, object]:
        """The counts and shares, ready for JSON."""
        return {
            "ops": {basis.value: count for basis, count in self.ops.items()},
            "default_kinds": dict(self.default_kinds),
            "flop_share": self.flop_share,
            "bytes_share": self.bytes_share,
            "assumptions": list(map(str, self.assumptions)),
        }

    def __str__(self) -> str:
        ruled = self.ops.get(Basis.RULE, 0)
        free = self.ops.get(Basis.FREE, 0)
        guessed = self.ops.get(Basis.DEFAULT, 0)
        text = f"{ruled} ops by exact rules, {free} free, {guessed} by default "
        if self.default_kinds:
            kinds = ", ".join(f"{kind} ×{count}" for kind, count in self.default_kinds.items())
            text += (
                f"(their FLOP are unknown, and counted as one for each output element, {1 - self.flop_share:.2%} of "
                "all; "
                f"{self.bytes_share:.2%} of bytes are exact); by default: {kinds}"
            )
        else:
            exact = "exact" if not self.assumptions else "exact for what is assumed"
            text += f"({self.flop_share:.2%} of FLOP and {self.bytes_share:.2%} of bytes are {exact})"
        if self.assumptions:
            text += f"; decided by data, so assumed: {', '.join(map(str, self.assumptions))}"
        return text


def coverage_of(ops: Sequence[PricedOp], dims: Sequence[str], assumptions: Sequence[Assumption] = ()) -> Coverage:
    """The coverage of priced ops with these open sizes."""
    at = _smallest_sizes(ops, dims)  # shares need numbers

    def exact(count: Callable[[Cost], Size]) -> float:
        """The share of what is counted that comes from exact rules."""
        costs = ((priced.basis is not Basis.DEFAULT, cost) for priced in ops for cost in priced.costs)
        found = {True: 0.0, False: 0.0} | sums((ruled, float(at(count(cost)))) for ruled, cost in costs)
        return found[True] / (found[True] + found[False]) if any(found.values()) else 1.0

    kinds = Counter(p.op.kind for p in ops if p.basis is Basis.DEFAULT)
    return Coverage(
        ops=MappingProxyType(dict(Counter(p.basis for p in ops))),
        default_kinds=MappingProxyType(dict(kinds.most_common())),
        flop_share=exact(lambda cost: cost.flop),
        bytes_share=exact(lambda cost: cost.bytes),
        assumptions=tuple(assumptions),
    )


def _smallest_sizes(ops: Sequence[PricedOp], dims: Sequence[str]) -> Callable[[Size], Size]:
    """An evaluator that puts one number for all open sizes: the smallest power of 2 at which no tensor vanishes."""
    sizes = {size for p in ops for t in p.op.outputs for size in t.shape if not isinstance(size, int)}
    for power in range(1, 13):
        at = evaluator(dict.fromkeys(dims, 2**power))
        with suppress(ZeroDivisionError, TypeError):  # a division by 0, or a comparison with what it leaves
            if all(at(size) >= 1 for size in sizes):
                break
    return at
