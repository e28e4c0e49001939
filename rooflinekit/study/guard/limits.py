"""What a workload must keep to: thresholds as a person writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import LockError, UnitError, nearest
from rooflinekit.units import format_quantity, parse_quantity

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction

#: What a threshold may be of, and in which unit; "" is a plain number.
QUANTITIES = {"time": "s", "memory": "byte", "kernels": "", "flop": "flop", "traffic": "byte"}
_REGIMES = ("compute", "memory", "latency", "overhead")
_MORE = re.compile(r"\+\s*([0-9]+(?:\.[0-9]+)?)\s*%")
_MOST = re.compile(r"(<=|<)?\s*(.+)")

#: By how much a time may grow where nothing is said.
DEFAULT_MORE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Thresholds: by how much a quantity may grow, what it may be at most, and which regime must hold.

    Where no growth of the time is stated, it may grow by 3 %.
    """

    more: Mapping[str, float] = field(default_factory=lambda: {"time": DEFAULT_MORE})  # 0.03 for "+3 %"
    most: Mapping[str, tuple[float, bool]] = field(default_factory=dict)  # in base units, and whether it may be equal
    regime: str = ""

    @classmethod
    def parse(cls, given: Any, where: str) -> Limits:
        """Thresholds such as {"time": "+3 %", "memory": "80 GB", "regime": "compute"}; several of one as a list.

        Raises LockError, beginning with `where`, for what is none.
        """
        if not isinstance(given, Mapping):
            raise LockError(f'{where}: limits: expected a table such as {{ time = "+3 %" }}; got {given!r:.40}')
        more, most, regime = {"time": DEFAULT_MORE}, dict[str, tuple[float, bool]](), ""
        for name, value in given.items():
            if name == "regime":
                regime = value
                if value not in _REGIMES:
                    raise LockError(f"{where}: regime: expected one of {', '.join(_REGIMES)}; got {value!r:.40}")
                continue
            if name not in QUANTITIES:
                known = (*QUANTITIES, "regime")
                raise LockError(f"{where}: unknown limit {name!r}{nearest(name, known)}; expected {', '.join(known)}")
            for one in value if isinstance(value, list) else [value]:
                if growth := _MORE.fullmatch(str(one).strip()):
                    more[name] = float(growth[1]) / 100
                else:
                    most[name] = _bound(name, str(one).strip(), where)
        return cls(more=more, most=most, regime=regime)

    def exceeded(self, p: Prediction) -> Iterator[str]:
        """In words, what of one step alone is above its threshold."""
        found = quantities(p)
        for name, (bound, equal) in self.most.items():
            if found[name] > bound or (found[name] == bound and not equal):
                yield f"{name} {shown(name, found[name])} where {shown(name, bound)} is the most"
        if self.regime and p.regime != self.regime:
            yield f"{p.regime}-bound where {self.regime}-bound is asked for"

    def grown(self, before: Mapping[str, float], now: Mapping[str, float]) -> Iterator[str]:
        """In words, what has grown by more than it may."""
        for name, share in self.more.items():
            old, new = before[name], now[name]
            if new > old * (1 + share):
                by = f"+{new / old - 1:.1%}" if old else "from nothing"
                yield f"{name} {shown(name, old)} → {shown(name, new)}, {by} where +{share:.1%} is the most"


def quantities(p: Prediction) -> dict[str, float]:
    """What thresholds are of, in base units."""
    return {
        "time": p.total_s, "memory": p.memory.peak_bytes, "kernels": p.launched, "flop": p.flop, "traffic": p.bytes,
    }  # fmt: skip


def shown(name: str, value: float) -> str:
    """A quantity as text."""
    unit = QUANTITIES[name]
    return format_quantity(value, unit) if unit else f"{value:,.0f}"


def _bound(name: str, text: str, where: str) -> tuple[float, bool]:
    sign, number = _MOST.fullmatch(text).groups() if text else (None, "")  # type: ignore[union-attr]
    unit = QUANTITIES[name]
    try:
        value = parse_quantity(number, unit) if unit else float(number)
    except (UnitError, ValueError):
        such = "400" if not unit else {"s": "12 ms", "byte": "80 GB", "flop": "3 TFLOP"}[unit]
        raise LockError(f"{where}: {name}: expected '{such}' at most, or growth as '+3 %'; got {text!r:.40}") from None
    return value, sign != "<"
