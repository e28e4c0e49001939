"""Scales of charts: numbers to places on a line, and where ticks stand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooflinekit.errors import InputError

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_ROUNDED = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScale:
    """From `low` to `high` evenly along `start` to `end`, in pixels."""

    low: float
    high: float
    start: float
    end: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InputError(f"scale: expected low < high; got {self.low:g} and {self.high:g}")

    def at(self, value: float) -> float:
        """The place of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int = 6) -> tuple[float, ...]:
        """At most so many round values within the scale, evenly spaced.

        >>> LinearScale(low=0, high=9.3, start=0, end=100).ticks(6)
        (0.0, 2.0, 4.0, 6.0, 8.0)
        """
        step = nice_step((self.high - self.low) / max(1, most - 1))
        first = math.ceil(self.low / step - _ROUNDED)
        last = math.floor(self.high / step + _ROUNDED)
        return tuple(i * step for i in range(first, last + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogScale:
    """From `low` to `high` by their logarithms along `start` to `end`, in pixels."""

    low: float
    high: float
    start: float
    end: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise InputError(f"scale: expected 0 < low < high; got {self.low:g} and {self.high:g}")

    @property
    def decade(self) -> float:
        """How long a factor of ten is, in pixels; below 0 where the scale runs the other way."""
        return (self.end - self.start) / math.log10(self.high / self.low)

    def at(self, value: float) -> float:
        """The place of a positive value."""
        return self.start + math.log10(value / self.low) * self.decade

    def ticks(self) -> tuple[float, ...]:
        """The powers of ten within the scale.

        >>> LogScale(low=0.5, high=200, start=0, end=1).ticks()
        (1.0, 10.0, 100.0)
        """
        first = math.ceil(math.log10(self.low) - _ROUNDED)
        last = math.floor(math.log10(self.high) + _ROUNDED)
        return tuple(10.0**power for power in range(first, last + 1))

    def minor_ticks(self) -> tuple[float, ...]:
        """Twice to nine times the powers of ten within the scale."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = (digit * 10.0**power for power in range(first, last + 1) for digit in range(2, 10))
        return tuple(value for value in every if self.low <= value <= self.high)


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that is no smaller.

    >>> nice_step(0.3), nice_step(7)
    (0.5, 10.0)
    """
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - _ROUNDED))


def decades_around(low: float, high: float, *, room: float = 0.15) -> tuple[float, float]:
    """Bounds of a scale by logarithms that hold two positive values and this share of a decade beyond each.

    >>> low, high = decades_around(1.0, 100.0, room=1)
    >>> round(low, 6), round(high, 6)
    (0.1, 1000.0)
    """
    return low / 10**room, high * 10**room


def unit_of(seconds: float) -> tuple[float, str]:
    """The unit in which a time reads best, and its length in seconds.

    >>> unit_of(0.0025), unit_of(30.0)
    ((0.001, 'ms'), (1.0, 's'))
    """
    return next(((scale, unit) for scale, unit in _UNITS if seconds >= scale), _UNITS[-1])


_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def binary_unit_of(size: float) -> tuple[float, str]:
    """The unit in which a number of bytes reads best, and its bytes.

    >>> binary_unit_of(3 * 2**20)
    (1048576.0, 'MiB')
    """
    return next(((scale, unit) for scale, unit in _BINARY if size >= scale), _BINARY[-1])
