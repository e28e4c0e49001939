"""Every prediction is what it was: held to 1e-9, so that what is only rewritten moves no number."""

from importlib import metadata
from pathlib import Path

import pytest
from golden.make import SECTIONS, made, stored
from golden.record import Change, changes, text_of

_SHOWN = 40
_SLOW = [pytest.param(name, marks=pytest.mark.slow if name.endswith("_slow") else ()) for name in SECTIONS]


def _other_releases() -> str:
    """Of the libraries that decide what is traced: those that are missing, or not the ones of constraints.txt."""
    pinned = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = {f"{one.name}=={one.version.partition('+')[0]}" for one in metadata.distributions()}
    decide = ("torch", "timm", "transformers")
    return ", ".join(line for line in pinned if line.partition("==")[0] in decide and line not in found)


@pytest.mark.parametrize("section", _SLOW)
@pytest.mark.skipif(_other_releases() != "", reason=f"the golden files were made with {_other_releases()}")
def test_predictions_are_what_they_were(section: str) -> None:
    found = changes(stored(section), made(section))
    assert not found, told(section, found)


def told(section: str, found: list[Change]) -> str:
    """The largest changes, and what to do."""
    predictions = len({change.name for change in found})
    lines = [f"{len(found)} numbers of {predictions} predictions changed, the largest changes first:"]
    lines += [f"  {change}" for change in found[:_SHOWN]]
    lines += [f"  … and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    lines.append(f"If that is meant: python tests/golden/make.py {section}, in a commit of its own that says why.")
    return "\n".join(lines)


def test_what_counts_as_a_change() -> None:
    old = {"a": {"terms": {"ideal": 1.0, "rest": 1e-15}, "words": ["x", 2.0]}, "gone": {"s": 1}}
    same = {"a": {"terms": {"ideal": 1.0 + 5e-10, "rest": 0.0}, "words": ["x", 2.0]}, "gone": {"s": 1}}
    assert not changes(old, same)
    new = {"a": {"terms": {"ideal": 1.0 + 1e-8, "rest": 1e-15}, "words": ["y", 3.0]}, "come": {"s": 1}}
    assert [(change.name, change.field) for change in changes(old, new)] == [
        ("a", "words[0]"), ("gone", "prediction"), ("come", "prediction"), ("a", "words[1]"), ("a", "terms.ideal"),
    ]  # fmt: skip
    assert str(changes(old, new)[-2]) == "a: words[1]: 2.0 → 3.0 (0.5 of it)"


def test_a_prediction_is_a_block_and_a_group_a_line() -> None:
    records = {"one": {"terms": {"ideal": 1 / 3, "rest": float("nan")}, "seconds": [1, 2.5]}}
    assert text_of(records) == (
        '{\n"one": {\n  "terms": {"ideal": 0.3333333333333, "rest": "nan"},\n  "seconds": [1, 2.5]\n}\n}\n'
    )
