"""What counts rest on: exact rules, or defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rooflinekit.ir.assumption import Assumption
from rooflinekit.ir.op import Basis, PricedOp
from rooflinekit.ir.sizes import Size, evaluator


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What the counts of a graph rest on."""

    ops: Mapping[Basis, int]  # how many ops by basis
    default_kinds: Mapping[str, int]  # kinds without a rule, and how many ops of each
    flop_share: float  # share of FLOP that comes from exact rules, at the smallest sizes where symbolic
    bytes_share: float  # likewise of bytes
    assumptions: tuple[Assumption, ...] = ()  # what data decide, and was taken to be

    def to_dict(self) -> dict[str, object]:
        """The same, ready for JSON."""
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
                f"(the FLOP of those are unknown: counted is one an output element, {1 - self.flop_share:.2%} of all; "
                f"{self.bytes_share:.2%} of bytes are exact); by default: {kinds}"
            )
        else:
            exact = "exact" if not self.assumptions else "exact for what is assumed"
            text += f"({self.flop_share:.2%} of FLOP and {self.bytes_share:.2%} of bytes are {exact})"
        if self.assumptions:
            text += f"; data decide, assumed are: {', '.join(map(str, self.assumptions))}"
        return text


def coverage_of(ops: Sequence[PricedOp], dims: Sequence[str], assumptions: Sequence[Assumption] = ()) -> Coverage:
    """The coverage of priced ops with these open sizes."""
    at = _smallest_sizes(ops, dims)  # shares need numbers
    flop = {True: 0.0, False: 0.0}
    moved = {True: 0.0, False: 0.0}
    for priced in ops:
        for cost in priced.costs:
            exact = priced.basis is not Basis.DEFAULT
            flop[exact] += float(at(cost.flop))
            moved[exact] += float(at(cost.bytes))
    kinds = Counter(p.op.kind for p in ops if p.basis is Basis.DEFAULT)
    return Coverage(
        ops=MappingProxyType(dict(Counter(p.basis for p in ops))),
        default_kinds=MappingProxyType(dict(kinds.most_common())),
        flop_share=flop[True] / (flop[True] + flop[False]) if any(flop.values()) else 1.0,
        bytes_share=moved[True] / (moved[True] + moved[False]) if any(moved.values()) else 1.0,
        assumptions=tuple(assumptions),
    )


def _smallest_sizes(ops: Sequence[PricedOp], dims: Sequence[str]) -> Callable[[Size], Size]:
    """An evaluator that puts one number for all open sizes: the smallest power of 2 at which no tensor vanishes.

    Not 1, which broadcasts. A convolution without padding, for one, needs its kernel's size.
    """
    sizes = {size for p in ops for t in p.op.outputs for size in t.shape if not isinstance(size, int)}
    for power in range(1, 13):
        at = evaluator(dict.fromkeys(dims, 2**power))
        if all(at(size) >= 1 for size in sizes):
            break
    return at
