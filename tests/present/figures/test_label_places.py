"""Rooflines of GPUs of all vendors: no text lies on other text or on a ridge, no name's line runs through text."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from matplotlib.legend import Legend
from overlaps import on_ridges, overlaps, struck

import rooflinekit as rk
from rooflinekit.present.figures import plot
from rooflinekit.present.figures.marks import named_points
from rooflinekit.present.figures.records.build import roofline_figure
from rooflinekit.tracing.targets import load_target

A100, H100, L4, T4 = "nvidia-a100-sxm4-80gb", "nvidia-h100-sxm5-80gb", "nvidia-l4", "nvidia-t4"
VENDORS = (H100, L4, "nvidia-k80", "amd-mi60", "amd-mi300x", "amd-rx-7900-xtx", "apple-m1-max-32c", "intel-max-1550")


@cache
def graph(mode: Any) -> rk.Graph:
    return rk.trace(load_target("timm:resnet18").model, rk.Input("batch", 3, 224, 224), mode=mode)


@cache
def step(gpu: str, batch: int = 32, mode: str = "inference") -> rk.Prediction:
    return rk.predict(graph(mode), gpu, batch=batch)


def check(ax: Any) -> None:
    assert (overlaps(ax), on_ridges(ax), struck(ax)) == ([], [], [])


@pytest.mark.parametrize("gpu", VENDORS)
def test_one_gpu(gpu: str) -> None:
    check(plot.roofline(step(gpu)))


@pytest.mark.parametrize("pair", [(H100, L4), ("amd-mi300x", H100), ("apple-m1-max-32c", "intel-max-1550")])
@pytest.mark.parametrize("venue", [None, "slides"])
def test_two_gpus(pair: tuple[str, str], venue: Any) -> None:
    check(plot.roofline([step(gpu) for gpu in pair], venue=venue))


@pytest.mark.parametrize(
    "options",
    [{"width": "page"}, {"venue": "slides"}, {"by_level": True, "launch": True}, {"normalized": True}],
    ids=lambda options: next(iter(options)),
)
def test_other_kinds(options: Any) -> None:
    for gpu in (H100, "amd-mi60"):
        check(plot.roofline(step(gpu), **options))


def test_training_paths_and_devices() -> None:
    check(plot.roofline(step(A100, mode="training")))
    check(plot.roofline([step(gpu, batch) for gpu in (A100, L4) for batch in (1, 8, 64)], path=True))
    check(plot.roofline([step(gpu) for gpu in (A100, L4, T4)], venue="ieee"))
    check(plot.roofline([rk.load_device(gpu) for gpu in (H100, "amd-mi300x")]))
    check(plot.energy_roofline(step(A100)))


def test_the_law_finds_what_breaks_it() -> None:
    ax = plot.roofline(step("amd-mi60"))
    (ridge,) = [line for line in ax.lines if line.get_marker() == "D"]
    x, y = float(ridge.get_xdata()[0]), float(ridge.get_ydata()[0])  # type: ignore[index]
    ax.text(x, y, "on the ridge", ha="center", va="center")
    assert on_ridges(ax) == ["on the ridge"]
    ax.annotate("", xy=(x, y), xytext=(-40, 0), textcoords="offset points", arrowprops={"arrowstyle": "-"})
    assert "on the ridge" in struck(ax)


def test_roofs_of_devices_alone_are_told_apart_by_the_key() -> None:
    ax = plot.roofline([rk.load_device(gpu) for gpu in (H100, "amd-mi300x")])
    keys = [child for child in ax.get_children() if hasattr(child, "get_texts")]
    assert {"H100 SXM5 80 GB", "AMD Instinct MI300X"} <= {text.get_text() for key in keys for text in key.get_texts()}


@pytest.mark.parametrize(("pair", "named"), [(("nvidia-h100-pcie-80gb", H100), 1), ((L4, H100), 4), ((L4, T4), 3)])
def test_a_level_of_two_devices_says_whose_it_is_and_stands_at_its_own(pair: tuple[str, str], named: int) -> None:
    ax = plot.roofline([step(gpu) for gpu in pair])
    flat = [line for line in ax.lines if len(line.get_ydata()) == 2 and np.ptp(line.get_ydata()) == 0]
    labels = [text for text in ax.texts if re.search(r"\b(tf32|fp32) .*T", text.get_text())]
    assert sum(bool(re.match(r"(H100|H100 PCIe|H100 SXM5|L4|T4) ", text.get_text())) for text in labels) >= named
    ax.figure.canvas.draw()
    for label in labels:
        middle = label.get_window_extent().get_points().mean(axis=0)[1]
        away = [abs(ax.transData.transform((1.0, line.get_ydata()[0]))[1] - middle) for line in flat]
        assert flat[int(np.argmin(away))].get_color() == label.get_color(), label.get_text()


def test_the_key_counts_the_marks_whose_names_found_no_room() -> None:
    ax, figure = plot.roofline(step("amd-mi60")), roofline_figure(step("amd-mi60"))
    names = [text for text in ax.texts if str(text.get_gid()).startswith("of-") and text.get_text()]
    marks = [*figure.points, *figure.rail]
    assert 0 < len(names) < len(named_points(figure, 9)) <= len(marks)  # crowded: not all that are chosen
    told = [text.get_text() for child in ax.get_children() if isinstance(child, Legend) for text in child.get_texts()]
    (unnamed,) = [text for text in told if "unnamed" in text]
    assert unnamed.startswith(f"{len(marks) - len(names)} unnamed: ")


@pytest.mark.parametrize("gpu", ["intel-max-1550", H100])
def test_a_key_without_room_stands_over_the_axes(gpu: str) -> None:
    """Where it would hide marks."""
    ax = plot.roofline(step(gpu), venue="slides")
    key = ax.get_legend()
    assert key is not None
    assert key.get_window_extent().y0 >= ax.get_window_extent().y1
    check(ax)
