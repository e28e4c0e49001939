"""The accuracy card: which lines it pools, and what it says of them."""

from collections.abc import Sequence

import pytest

import rooflinekit as rk
from rooflinekit.hardware.specs import load_device
from rooflinekit.step import accuracy
from rooflinekit.step.accuracy import Line, accuracy_of


def line(device: str = "nvidia-l4", source: str = "one", measurements: int = 20, median: float = 0.1,
         nine_of_ten: float = 0.2, networks: str = "transformers") -> Line:  # fmt: skip
    spec = load_device(device)
    return Line(
        source=source, task="training", execution="eager", networks=networks, device=device,
        architecture=spec.architecture, vendor=spec.vendor, measurements=measurements, median=median,
        nine_of_ten=nine_of_ten, inside=0.9,
    )  # fmt: skip


def card(monkeypatch: pytest.MonkeyPatch, lines: Sequence[Line], device: str = "l4", networks: str = "") -> str:
    monkeypatch.setattr(accuracy, "_lines", lambda: tuple(lines))
    return str(accuracy_of("training", load_device(device), "eager", networks))


def test_the_nearest_lines_with_ten_measurements_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    few, near, far, other = (
        line(measurements=9, median=0.01), line("nvidia-rtx-4090", median=0.02), line("nvidia-v100-sxm2-16gb"),
        line("amd-mi210"),
    )  # fmt: skip
    # its own 9 are too few: with those of Ada, its architecture, they are 29
    assert "on Ada Lovelace GPUs" in card(monkeypatch, [few, near, far, other])
    assert "(29 rows of one)" in card(monkeypatch, [few, near, far, other])
    assert "on GPUs of NVIDIA" in card(monkeypatch, [far, other])
    assert "on other devices" in card(monkeypatch, [other])
    assert card(monkeypatch, [few]) == "None"


def test_networks_of_the_same_kind_go_before_all(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(networks="image networks", median=0.3, nine_of_ten=0.5), line()]
    assert card(monkeypatch, lines, networks="transformers").startswith("training, transformers, eager on nvidia-l4")
    few = [line(networks="image networks"), line(measurements=9)]
    assert card(monkeypatch, few, networks="transformers").startswith("training, image networks and transformers,")


def test_quantiles_of_one_line_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # errors of 100 measurements in even steps from 0 to 10 % in the lower half, 10 to 20 % up to nine of ten
    assert "median error 10%, 9 of 10 within 20% (100" in card(monkeypatch, [line(measurements=100)])


def test_a_long_source_counts_no_more_than_a_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(measurements=100_000, median=0.4, nine_of_ten=0.5), line(source="two", measurements=100)]
    # of 200, half lie in 0 to 20 % and half in 0 to 100 %: 100 are below the e at which 100·F₁(e) + 100·F₂(e) = 100
    # F₁ = 0.5·e/0.4; F₂ = 0.5 + 0.4·(e - 0.1)/0.1: 1.25·e + 0.1 + 4·e = 1, e = 0.171
    assert "median error 17%" in card(monkeypatch, lines)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_each_answer_has_one(mode: str) -> None:
    import torch

    step = rk.predict(torch.nn.Conv2d(3, 8, 3), rk.Input(2, 3, 8, 8), gpu="l4", mode=mode)
    assert step.accuracy is not None
    assert step.accuracy.of == f"{mode}, image networks, eager"
    assert step.to_dict()["accuracy"]["measurements"] == step.accuracy.measurements
    assert f"judged: {step.accuracy}" in str(step)
