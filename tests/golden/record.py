"""The golden file as text, and what differs between two of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TOLERANCE = 1e-9  # relative
#: Below this share of the largest number on its line a number is what is left of a subtraction.
_NOTHING = 1e-12
_DIGITS = 13

Records = Mapping[str, Mapping[str, Any]]


def rounded(value: Any) -> Any:
    """Floats with so many digits that the comparison cannot see what is cut off; what JSON has no word for, as text."""
    if isinstance(value, Mapping):
        return {str(name): rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int) or math.isfinite(value):
        return int(value) if isinstance(value, int) else float(f"{value:.{_DIGITS}g}")
    return str(value)


def text_of(records: Records) -> str:
    """JSON with a block a prediction, in which each group of numbers is a line."""
    blocks = []
    for name, record in records.items():
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(part)}" for key, part in rounded(record).items())
        blocks.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One number, or word, that is another one now."""

    name: str
    field: str
    old: Any
    new: Any

    @property
    def relative(self) -> float:
        """How far; infinite where it is not a number's change."""
        numbers = [value for value in (self.old, self.new) if isinstance(value, int | float)]
        if len(numbers) < 2 or not self.old:
            return math.inf
        return abs(self.new / self.old - 1)

    def __str__(self) -> str:
        share = f" ({self.relative:.3g} of it)" if math.isfinite(self.relative) else ""
        return f"{self.name}: {self.field}: {self.old!r} → {self.new!r}{share}"


def changes(old: Records, new: Records) -> list[Change]:
    """What differs by more than `TOLERANCE`, the largest relative changes first."""
    found = []
    for name in {**old, **new}:
        if name not in old or name not in new:
            where = ("in the file", "not predicted") if name in old else ("not in the file", "predicted")
            found.append(Change(name=name, field="prediction", old=where[0], new=where[1]))
            continue
        before, after = rounded(old[name]), rounded(new[name])
        for key in {**before, **after}:
            found += _of_line(name, key, before.get(key), after.get(key))
    return sorted(found, key=lambda change: -change.relative)


def _of_line(name: str, key: str, old: Any, new: Any) -> Iterator[Change]:
    before, after = dict(_leaves(key, old)), dict(_leaves(key, new))
    numbers = [abs(v) for v in (*before.values(), *after.values()) if isinstance(v, int | float)]
    nothing = _NOTHING * max(numbers, default=0)
    for field in {**before, **after}:
        one, other = before.get(field), after.get(field)
        if isinstance(one, int | float) and isinstance(other, int | float):
            if abs(one - other) <= max(TOLERANCE * max(abs(one), abs(other)), nothing):
                continue
        elif one == other:
            continue
        yield Change(name=name, field=field, old=one, new=other)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every number and word, with the way to it."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(f"{path}.{name}", part)
    elif isinstance(value, list):
        yield f"{path}.length", len(value)
        for place, part in enumerate(value):
            yield from _leaves(f"{path}[{place}]", part)
    else:
        yield path, value
