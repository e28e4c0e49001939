"""Quantities as text, with their units: "4.8 TB/s" and 4.8e12.

Inside the program every number is a float in base units (s, byte, flop, Hz, W, J and their quotients). Text with a unit
beside the number is what people write in files and read in tables, and only this module knows prefixes. The table of
units is closed: an unknown symbol is an error, never a guess. `G` is 10**9, `Gi` is 2**30.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

from rooflinekit.errors import UnitError

_LARGE = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "Z": 21}
# The micro sign, the Greek letter, and the plain letter for keyboards that have neither; the first is printed.
_SMALL = {"m": -3, "µ": -6, "μ": -6, "u": -6, "n": -9, "p": -12}
_PLAIN_DIGITS = (
    9  # before or after the point; beyond, a number that no prefix brings near one is written with its exponent
)
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}

_NUMBER = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]+)?)(?:[eE]([+-]?[0-9]{1,4}))?\s*(\S.*?)?\s*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    symbols: tuple[str, ...]  # how the unit may be written without a prefix; the first is printed
    example: str  # shown in error messages
    large: bool = True  # takes k, M, G, ...
    small: bool = False  # takes m, µ, n, p
    binary: bool = False  # takes Ki, Mi, Gi, ...


# int8 arithmetic is counted in OP, the rest in FLOP; a multiply-add is two of either.
_UNITS = {
    "byte": _Unit(symbols=("B", "byte"), example="3 GB", binary=True),
    "byte/s": _Unit(symbols=("B/s", "byte/s"), example="3 GB/s", binary=True),
    "bit": _Unit(symbols=("bit",), example="384 bit"),
    "bit/s": _Unit(symbols=("bit/s",), example="16 Gbit/s"),
    "flop": _Unit(symbols=("FLOP", "OP"), example="3 GFLOP"),
    "flop/s": _Unit(symbols=("FLOP/s", "OP/s"), example="20 TFLOP/s"),
    "flop/byte": _Unit(symbols=("FLOP/B", "FLOP/byte", "OP/B"), example="80 FLOP/B", large=False),
    "s": _Unit(symbols=("s",), example="5 µs", large=False, small=True),
    "Hz": _Unit(symbols=("Hz",), example="1.5 GHz"),
    "W": _Unit(symbols=("W",), example="300 W", small=True),
    "J": _Unit(symbols=("J",), example="40 J", small=True),
}


def parse_quantity(text: str, unit: str) -> float:
    """The number that `text` states, in base units.

    `unit` is one of "byte", "byte/s", "bit", "bit/s", "flop", "flop/s", "flop/byte", "s", "Hz", "W", "J".
    Raises UnitError for a number without a unit, another or an unknown unit, and a negative or infinite number.

    >>> parse_quantity("4.8 TB/s", "byte/s")
    4800000000000.0
    >>> parse_quantity("80 GiB", "byte") == 80 * 2**30
    True
    """
    scales = _scales(unit)
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[3] not in scales:
        raise UnitError(expectation(unit, text))
    base, exponent = scales[match[3]]
    power = int(match[2] or 0)
    ten, two = (exponent, 0) if base == 10 else (0, exponent)
    # A decimal prefix joins the exponent before the one conversion: "4.8 T" is then exactly the float 4.8e12.
    value = float(f"{match[1]}e{power + ten}") * 2.0**two
    if not 0 <= value < math.inf:
        raise UnitError(expectation(unit, text))
    return abs(value)  # "-0 s" is zero


def format_quantity(value: float, unit: str, *, digits: int | None = 3, binary: bool = False) -> str:
    """`value`, in base units, as text with the prefix that reads best.

    `digits` are significant digits (whole numbers keep all theirs); None writes as many as it takes to read the same
    value back. `binary` uses Ki, Mi, Gi. Differences may be negative. Raises UnitError for NaN and infinity.

    >>> format_quantity(4.8e12, "byte/s")
    '4.80 TB/s'
    >>> format_quantity(1.23e-5, "s")
    '12.3 µs'
    >>> format_quantity(80 * 2**30, "byte", binary=True, digits=None)
    '80 GiB'
    """
    if not math.isfinite(value):
        raise UnitError(f"expected a finite number of {unit} to print; got {value}")
    # Rounded first, so that 999.96e9 becomes 1.00 T and not 1000 G.
    rounded = value if digits is None else float(f"{value:.{digits - 1}e}")
    prefix, base, exponent = _prefix(abs(rounded), unit, binary=binary)
    symbol = prefix + _UNITS[unit].symbols[0]
    if value == 0:
        return f"0 {_UNITS[unit].symbols[0]}"
    if base == 10:
        scaled = Decimal(repr(float(value))).scaleb(-exponent)
        if digits is not None and abs(scaled.adjusted()) > _PLAIN_DIGITS:
            return f"{scaled:.{digits - 1}e} {symbol}"
    else:
        scaled = Decimal(repr(float(value) / 2.0**exponent))
    if digits is not None:
        scaled = round(scaled, max(0, digits - 1 - _magnitude(rounded, base, exponent)))
        return f"{scaled:f} {symbol}"
    text = f"{scaled:f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {symbol}"


def format_bytes(size: float) -> str:
    """A number of bytes as memory is stated, in powers of 1024. Raises UnitError for NaN and infinity.

    >>> format_bytes(80 * 2**30)
    '80.0 GiB'
    """
    return format_quantity(size, "byte", binary=True)


def number(value: float | None, unit: float = 1.0, thousands: str = "") -> str:
    """Three digits, more where it takes more before the point, of a value in multiples of a unit.

    >>> number(1979e12, 1e12), number(66.91e12, 1e12), number(1234.5, 1, "\u2009"), number(None)
    ('1979', '66.9', '1\u2009234', '–')
    """
    if value is None:
        return "–"
    scaled = value / unit
    return f"{scaled:,.0f}".replace(",", thousands) if scaled >= 99.95 else f"{scaled:.3g}"


def as_percent(share: float, digits: int = 0) -> str:
    """A share in words for figures, where a space stands before the sign.

    >>> as_percent(0.123), as_percent(0.123, 1)
    ('12 %', '12.3 %')
    """
    return f"{share:.{digits}%}".replace("%", " %")


def said(value: Any, unit: str = "") -> str:
    """A value with three digits and its unit, "–" for none and for NaN.

    unit: a base unit ("s", "byte", "flop", …); "GiB" for bytes in powers of two; a format of Python's, which begins
    with a point or a comma; "" for words.

    >>> said(0.0025, "s"), said(0.5, ".1%"), said(-1e-16, ".1%"), said(None, "W"), said(-3.0, "s")
    ('2.50 ms', '50.0%', '0.0%', '–', '−3.00 s')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if not unit or unit[0] in ".,":
        rounded = f"z{unit}" if isinstance(value, float) else unit  # −0.0 is 0.0
        return format(value, rounded) if unit else str(value)
    text = format_bytes(value) if unit == "GiB" else format_quantity(value, unit)
    return text.replace("-", "−")


def expectation(unit: str, got: object) -> str:
    """The clause of an error message that says which quantity was expected, with an example, and what came.

    >>> expectation("byte/s", "4.8 TB")
    "expected a quantity in B/s, such as '3 GB/s'; got '4.8 TB'"
    """
    given = repr(got)
    if len(given) > 60:
        given = given[:57] + "..."
    return f"expected a quantity in {_UNITS[unit].symbols[0]}, such as {_UNITS[unit].example!r}; got {given}"


@cache
def _scales(unit: str) -> dict[str, tuple[int, int]]:
    """Every way to write `unit`, each with the base and exponent of its prefix."""
    if unit not in _UNITS:
        raise UnitError(f"unknown unit {unit!r}; the units are {', '.join(_UNITS)}")
    known = _UNITS[unit]
    prefixes = {"": (10, 0)}
    if known.large:
        prefixes |= {prefix: (10, exponent) for prefix, exponent in _LARGE.items()}
    if known.small:
        prefixes |= {prefix: (10, exponent) for prefix, exponent in _SMALL.items()}
    if known.binary:
        prefixes |= {prefix: (2, exponent) for prefix, exponent in _BINARY.items()}
    return {prefix + symbol: scale for prefix, scale in prefixes.items() for symbol in known.symbols}


def _prefix(magnitude: float, unit: str, *, binary: bool) -> tuple[str, int, int]:
    """The largest prefix that leaves a number of at least one, else the smallest; with its base and exponent."""
    symbol = _UNITS[unit].symbols[0]
    wanted = 2 if binary else 10
    ladder = [
        (written.removesuffix(symbol), base, exponent)
        for written, (base, exponent) in _scales(unit).items()
        if written.endswith(symbol) and written.removesuffix(symbol) not in ("μ", "u")
        if base == wanted or exponent == 0
    ]
    ladder.sort(key=lambda step: step[2])
    fitting = [step for step in ladder if magnitude >= float(step[1]) ** step[2]]
    return fitting[-1] if fitting else ladder[0]


def _magnitude(rounded: float, base: int, exponent: int) -> int:
    """The power of ten of the leading digit, once the prefix is taken out."""
    if base == 10:
        return Decimal(repr(rounded)).adjusted() - exponent
    return Decimal(rounded / 2.0**exponent).adjusted()
