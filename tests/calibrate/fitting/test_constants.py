"""The table of constants: what each is, where it may lie, and who fits it."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import rooflinekit
from rooflinekit.calibrate.fitting.constants import CONSTANTS, STAGES

UNITS = {"1", "element", "cycle", "J/flop", "1/clock/SM", "flop/clock/SM", "byte/clock/SM", "s"}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_says_what_it_is_and_starts_within_its_range(name: str) -> None:
    about = CONSTANTS[name]
    assert about.unit in UNITS
    assert len(about.meaning) > 10
    assert about.source
    assert 0 < about.low < about.start < about.high
    assert about.spread > 0
    assert 0 <= about.between <= 1


def test_shares_of_the_datasheet_end_at_one() -> None:
    shares = {"issue_share", "memory_share", "product_memory_share"}
    assert {name: CONSTANTS[name].high for name in shares} == dict.fromkeys(shares, 1.0)


def test_every_constant_is_used_by_the_model() -> None:
    """By name, or as one of the two units: `matrix_…` and `simt_…`."""
    package = Path(rooflinekit.__file__).parent
    texts = {
        node.value
        for folder in ("kernels", "timing", "step")
        for file in (package / folder).glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    unused = {
        name
        for name in CONSTANTS
        if name not in texts and not (name.startswith(("matrix_", "simt_")) and f"_{name.partition('_')[2]}" in texts)
    }
    assert unused == set()


def test_a_constant_is_found_in_one_stage() -> None:
    found = Counter(name for stage in STAGES for name in stage.constants)
    assert set(found) <= set(CONSTANTS)
    assert {name for name, count in found.items() if count > 1} == set()


def test_what_differs_by_gpu_is_fitted() -> None:
    """Save for the clock of boards for gamers, which products of one board cannot tell from their own rate."""
    fitted = {name for stage in STAGES for name in stage.constants}
    assert {name for name, about in CONSTANTS.items() if about.between} - fitted == {"boost_headroom"}


def test_values_of_a_gpu_alone_come_after_those_of_all() -> None:
    before: set[str] = set()
    for stage in STAGES:
        assert set(stage.own) <= before
        before |= set(stage.constants)


def test_stages_look_at_ops_of_their_formats_alone() -> None:
    """No measurement tells constants in two stages, but those of products in half and in single precision."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for stage in STAGES:  # convolutions by the library that runs them
        seen.update((op, dtype, stage.library) for op in stage.ops for dtype in stage.dtypes)
    assert max(seen.values()) == 1


def test_a_cpu_may_be_further_from_gpus_than_they_are_from_each_other() -> None:
    shared, own = CONSTANTS["overlap"], CONSTANTS["memory_share"]
    assert (shared.differs("gpu"), shared.differs("cpu")) == (0.0, shared.spread)
    assert (own.differs("gpu"), own.differs("cpu")) == (own.between, 5 * own.between)
