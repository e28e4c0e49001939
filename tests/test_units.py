"""Quantities as text: every prefix against its power, round trips, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflinekit.errors import UnitError
from rooflinekit.units import expectation, format_quantity, parse_quantity

DECIMAL = {
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Z": 1e21,
}
BINARY = {
    "Ki": 1024.0,
    "Mi": 1048576.0,
    "Gi": 1073741824.0,
    "Ti": 1099511627776.0,
    "Pi": 1125899906842624.0,
}
SMALL = {"m": 1e-3, "µ": 1e-6, "\u03bc": 1e-6, "u": 1e-6, "n": 1e-9, "p": 1e-12}
UNITS = ("byte", "byte/s", "bit", "bit/s", "flop", "flop/s", "flop/byte", "s", "Hz", "W")


@pytest.mark.parametrize(
    ("unit", "symbol"),
    [
        ("byte", "B"),
        ("byte/s", "B/s"),
        ("bit/s", "bit/s"),
        ("flop", "FLOP"),
        ("flop/s", "OP/s"),
        ("Hz", "Hz"),
    ],
)
@pytest.mark.parametrize("prefix", DECIMAL)
def test_decimal_prefix(unit: str, symbol: str, prefix: str) -> None:
    assert parse_quantity(f"1 {prefix}{symbol}", unit) == DECIMAL[prefix]
    assert parse_quantity(f"2.5 {prefix}{symbol}", unit) == 2.5 * DECIMAL[prefix]


@pytest.mark.parametrize("prefix", BINARY)
def test_binary_prefix(prefix: str) -> None:
    assert parse_quantity(f"3 {prefix}B", "byte") == 3 * BINARY[prefix]
    assert parse_quantity(f"3 {prefix}B/s", "byte/s") == 3 * BINARY[prefix]
    with pytest.raises(UnitError):
        parse_quantity(f"3 {prefix}Hz", "Hz")


@pytest.mark.parametrize("prefix", SMALL)
def test_small_prefix(prefix: str) -> None:
    assert parse_quantity(f"1 {prefix}s", "s") == SMALL[prefix]
    with pytest.raises(UnitError):
        parse_quantity(f"7 {prefix}B", "byte")


def test_decimal_and_binary_differ() -> None:
    # 80 GB and 80 GiB are 7.4 % apart.
    assert parse_quantity("80 GB", "byte") == 80_000_000_000
    assert parse_quantity("80 GiB", "byte") == 85_899_345_920


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("4.8 TB/s", "byte/s", 4.8e12),
        ("4.8TB/s", "byte/s", 4.8e12),
        ("  4.8   TB/s ", "byte/s", 4.8e12),
        ("4.8e3 GB/s", "byte/s", 4.8e12),
        ("0 s", "s", 0.0),
        ("-0 s", "s", 0.0),
        ("12 Gbyte", "byte", 12e9),
        ("206 FLOP/byte", "flop/byte", 206.0),
        ("312 TFLOP/s", "flop/s", 312e12),
        ("0.3 kW", "W", 300.0),
        ("5120 bit", "bit", 5120.0),
    ],
)
def test_parse(text: str, unit: str, value: float) -> None:
    assert parse_quantity(text, unit) == value


@pytest.mark.parametrize(
    "text",
    [
        "4.8 TB",  # another dimension
        "4.8 Tbit/s",  # bits, not bytes
        "4.8",  # no unit
        "",
        "TB/s",
        "nan TB/s",
        "inf TB/s",
        "1e999 TB/s",
        "-1 TB/s",
        "4.8 tb/s",  # case matters: m and M, b and B are different words
        "4.8 KB/s",
        "4.8 XB/s",
        "4,8 TB/s",
        "4.8 TB/s per GPU",
        "4.8 TB / s",
        "1_000 GB/s",
        "0x10 GB/s",
        "٤ GB/s",  # digits of another script
        ".5 TB/s",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_quantity(text, "byte/s")
    assert str(caught.value) == f"expected a quantity in B/s, such as '3 GB/s'; got {text!r}"


@pytest.mark.parametrize("value", [4.8, 5, True, None, ["4.8 TB/s"]])
def test_not_text(value: object) -> None:
    with pytest.raises(UnitError, match=r"^expected a quantity in B/s, such as '3 GB/s'; got "):
        parse_quantity(value, "byte/s")  # type: ignore[arg-type]


def test_message_stays_short() -> None:
    assert len(expectation("s", "x" * 10_000)) < 120


def test_unknown_unit_names_the_known_ones() -> None:
    with pytest.raises(UnitError) as caught:
        parse_quantity("1 m", "metre")
    expected = "unknown unit 'metre'; the units are byte, byte/s, bit, bit/s, flop, flop/s, flop/byte, s, Hz, W, J"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4.8e12, "byte/s", "4.80 TB/s"),
        (1.23e-5, "s", "12.3 µs"),
        (-1.23e-5, "s", "-12.3 µs"),
        (0.0, "s", "0 s"),
        (123456.0, "s", "123456 s"),
        (999.96e9, "byte/s", "1.00 TB/s"),  # rounded first, so no "1000 GB/s"
        (989.4e12, "flop/s", "989 TFLOP/s"),
        (1.815e9, "flop", "1.82 GFLOP"),
        (1.98e9, "Hz", "1.98 GHz"),
        (450.0, "W", "450 W"),
        (206.125, "flop/byte", "206 FLOP/B"),
        (1875.4, "flop/byte", "1875 FLOP/B"),
        (0.25, "flop/byte", "0.250 FLOP/B"),
        (1e-15, "s", "0.00100 ps"),
    ],
)
def test_format(value: float, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text


def test_format_binary_and_digits() -> None:
    assert format_quantity(79.6 * 2**30, "byte", binary=True) == "79.6 GiB"
    assert format_quantity(1023.99 * 2**30, "byte", binary=True) == "1.00 TiB"
    assert format_quantity(4.8123e12, "byte/s", digits=2) == "4.8 TB/s"
    assert format_quantity(4.8123e12, "byte/s", digits=None) == "4.8123 TB/s"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_format_refuses(value: float) -> None:
    with pytest.raises(UnitError, match="expected a finite number of s to print; got"):
        format_quantity(value, "s")


NUMBERS = st.floats(min_value=0, max_value=1e30, allow_subnormal=False)


@given(NUMBERS, st.sampled_from(UNITS))
def test_exact_round_trip(value: float, unit: str) -> None:
    assert parse_quantity(format_quantity(value, unit, digits=None), unit) == value


@given(NUMBERS)
def test_exact_round_trip_binary(value: float) -> None:
    assert parse_quantity(format_quantity(value, "byte", digits=None, binary=True), "byte") == value


@given(st.floats(min_value=1e-9, max_value=1e24), st.sampled_from(UNITS), st.integers(1, 9))
def test_rounded_round_trip(value: float, unit: str, digits: int) -> None:
    back = parse_quantity(format_quantity(value, unit, digits=digits), unit)
    # Half a unit of the last of `digits` digits, at the worst leading digit.
    assert abs(back / value - 1) <= 0.5 * 10.0 ** (1 - digits) * (1 + 1e-9)


@given(st.text(max_size=20), st.sampled_from(UNITS))
def test_any_text_is_a_number_or_a_unit_error(text: str, unit: str) -> None:
    try:
        value = parse_quantity(text, unit)
    except UnitError:
        return
    assert 0 <= value < math.inf


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e300, "1.00e+300 s"), (1.7e308, "1.70e+308 s"), (5e-324, "5.00e-312 ps"), (1e9, "1000000000 s")],
)
def test_numbers_beyond_all_prefixes_are_written_with_their_exponent(value: float, text: str) -> None:
    assert format_quantity(value, "s") == text
