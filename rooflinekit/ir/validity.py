"""Where a trace holds: what the model's own code asked about its sizes while it was traced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import SizeError
from rooflinekit.ir.sizes import numbers_of, symbol

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something the model's own code compared while it was traced: the trace holds where `holds` does."""

    holds: sympy.Basic  # a relation between named sizes
    where: str  # "model.py:12"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedSize:
    """A named size that the model's code forces to a constant, so that the trace holds for this value alone."""

    name: str
    value: int
    where: str  # "model.py:12"
    reason: str = ""  # why it could not stay open, where the code did not ask for a number itself

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"size {self.name!r} is forced to {self.value} by {self.where}{why}"


def check_conditions(conditions: tuple[Condition, ...], given: Mapping[str, int]) -> None:
    """Raises SizeError where a condition is known not to hold at the given sizes."""
    if not conditions:
        return
    import sympy

    values = numbers_of(given)
    for condition in conditions:
        if condition.holds.xreplace(values) == sympy.false:
            sizes = ", ".join(f"{name}={value}" for name, value in given.items())
            raise SizeError(
                f"the trace holds for {condition.holds} ({condition.where}), which is not so at {sizes}; "
                "trace again at these sizes"
            )


def check_everywhere(condition: Condition, columns: Mapping[str, Any]) -> None:
    """As `check_conditions`, for columns of sizes."""
    names = sorted(free.name for free in condition.holds.free_symbols)
    distinct = {tuple(int(columns[name][i]) for name in names) for i in range(len(columns[names[0]]))}
    for values in sorted(distinct):
        check_conditions((condition,), dict(zip(names, values, strict=True)))


def check_at_all(condition: Condition, groups: Iterable[Mapping[str, Sequence[int]]], given: Mapping[str, int]) -> None:
    """As `check_conditions`, at every combination of groups of sizes; the values in a group go together."""
    parts: list[list[tuple[tuple[str, int], ...]]] = []
    for group in groups:
        names = [name for name in group if symbol(name) in condition.holds.free_symbols]
        rows = dict.fromkeys(zip(*(group[name] for name in names), strict=True))
        parts.append([tuple(zip(names, values, strict=True)) for values in rows] or [()])
    for chosen in product(*parts):
        check_conditions((condition,), {**given, **dict(pair for pairs in chosen for pair in pairs)})
