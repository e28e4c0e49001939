"""Shapes of a page's charts: places worked out by hand, and what holds for all of them."""

import itertools
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.hardware.host import Host
from rooflinekit.model.machine import Machine
from rooflinekit.present.figures.records.build import kernel_figure
from rooflinekit.present.figures.records.figure import by_time
from rooflinekit.present.page.charts.energy import WIDE as WIDE_ENERGY
from rooflinekit.present.page.charts.energy import Limit, limits_chart
from rooflinekit.present.page.charts.labels import (
    difference_bars,
    interval_bars,
    place_labels,
    shortened,
    text_width,
    waterfall_bars,
)
from rooflinekit.present.page.charts.roofline import NARROW, WIDE, Layout, roofline_chart, shape
from rooflinekit.present.page.charts.timeline import WIDE as WIDE_TIME
from rooflinekit.present.page.charts.timeline import Segment, memory_chart, phase_segments, timeline_chart
from rooflinekit.present.scales import LinearScale, LogScale, nice_step
from rooflinekit.step.prediction import Prediction, predict_graph

positive = st.floats(1e-12, 1e15)


# --- scales


def test_a_factor_of_ten_is_the_same_length_everywhere() -> None:
    scale = LogScale(low=0.1, high=1000, start=0, end=400)  # four decades in 400 px
    assert [round(scale.at(value), 9) for value in (0.1, 1, 10, 100, 1000)] == [0, 100, 200, 300, 400]
    assert scale.decade == pytest.approx(100)


@given(positive, st.floats(1.01, 1e9))
def test_ticks_lie_on_the_scale(low: float, factor: float) -> None:
    scale = LogScale(low=low, high=low * factor, start=500, end=20)  # y runs upwards
    for value in (*scale.ticks(), *scale.minor_ticks()):
        assert 20 - 1e-6 <= scale.at(value) <= 500 + 1e-6
    # Powers of ten alone, each once, at most one more than there are decades.
    assert len(scale.ticks()) <= math.log10(factor) + 1 + 1e-6


@given(positive, st.integers(4, 12))
def test_linear_ticks_are_few_and_round(high: float, most: int) -> None:
    ticks = LinearScale(low=0, high=high, start=0, end=1).ticks(most)
    assert 2 <= len(ticks) <= most
    assert ticks[0] == 0
    assert ticks[-1] <= high * (1 + 1e-9)


@given(positive)
def test_a_step_is_no_shorter_than_asked_and_little_longer(least: float) -> None:
    assert least * (1 - 1e-6) <= nice_step(least) <= least * 2.5


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 2.0), (3.0, 1.0)])
def test_a_scale_needs_room(low: float, high: float) -> None:
    with pytest.raises(InputError, match="expected 0 < low < high"):
        LogScale(low=low, high=high, start=0, end=1)


# --- marks and labels


def corners(path: str) -> list[tuple[float, float]]:
    """Corners of a path of m, h, v and l."""
    found, x, y = [], 0.0, 0.0
    for command, numbers in re.findall(r"([Mhvl])([-\d. ]+)", path):
        values = [float(number) for number in numbers.split()]
        if command == "M":
            x, y = values
        else:
            x += values[0] if command in "hl" else 0
            y += values[-1] if command in "vl" else 0
        found.append((x, y))
    return found


def area(points: list[tuple[float, float]]) -> float:
    turned = zip(points, [*points[1:], points[0]], strict=True)
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in turned)) / 2


def test_shapes_of_one_share_have_one_area() -> None:
    # Coordinates are written with a tenth of a pixel, so 900 px² to a percent.
    for bound in ("compute", "latency"):
        path, _ = shape(bound, 100, 100, 900)
        assert area(corners(path)) == pytest.approx(900, rel=0.01)
    circle, radius = shape("memory", 100, 100, 900)
    assert math.pi * radius**2 == pytest.approx(900)
    assert circle.startswith("M83.1 100a16.9 16.9")  # √(900/π) = 16.93 left of the middle


def test_labels_keep_clear_of_each_other_and_stay_inside() -> None:
    circles = [(20.0 + 7 * i, 60.0 + 3 * i, 5.0) for i in range(12)]
    within = (0.0, 0.0, 300.0, 120.0)
    placed = place_labels([(f"kernel {i}", circle) for i, circle in enumerate(circles)], circles, [], within)
    assert placed
    boxes = []
    for _, label in placed:
        width = text_width(label.text)
        left = label.x - {"start": 0, "middle": width / 2, "end": width}[label.anchor]
        assert 0 <= left <= left + width <= 300
        boxes.append((left, label.y - 9, left + width, label.y + 3))
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


@given(st.text("ab.*é…", max_size=60), st.integers(5, 40))
def test_a_shortened_name_fits_and_keeps_both_ends(name: str, letters: int) -> None:
    short = shortened(name, letters)
    assert len(short) <= letters
    assert short == name or (short[0] == name[0] and short[-1] == name[-1] and "…" in short)


# --- the roofline


def stack() -> nn.Module:
    # Linear layers of equal size, one of another, ReLUs between, and a copy that has no FLOP.
    return nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(3)), nn.Linear(256, 64))


@pytest.fixture
def prediction(machine: Machine, host: Host) -> Prediction:
    return predict_graph(rk.trace(stack(), rk.Input(4096, 256)), machine, host, rk.Execution())


def test_equal_kernels_are_one_mark_and_nothing_is_lost(prediction: Prediction) -> None:
    figure = kernel_figure(prediction)
    points = [*figure.points, *figure.rail]
    assert sorted((point.kind, point.kernels, point.modules) for point in points) == [
        ("aten.addmm", 1, ("3",)),
        ("aten.addmm", 3, ("0.0", "1.0", "2.0")),
        ("aten.relu", 3, ("0.1", "1.1", "2.1")),
    ]
    assert sum(point.share for point in points) == pytest.approx(1)
    assert {point.phase for point in points} == {"forward"}


@pytest.mark.parametrize("layout", [WIDE, NARROW])
def test_a_level_begins_where_the_slope_ends(prediction: Prediction, layout: Layout) -> None:
    figure = kernel_figure(prediction)
    chart = roofline_chart(figure, by_time(figure.points), layout)
    for dashed in (False, True):
        (slope,) = [roof for roof in chart.roofs if roof.kind == "memory" and roof.dashed is dashed]
        (level,) = [roof for roof in chart.roofs if roof.kind == "compute" and roof.dashed is dashed]
        assert (slope.x2, slope.y2) == pytest.approx((level.x1, level.y1))
        assert level.y1 == level.y2
        assert level.x2 == pytest.approx(layout.right)
    for mark in chart.marks:
        assert layout.left <= mark.x <= layout.right
        assert layout.top <= mark.y <= layout.bottom
    # 10 TFLOP/s and 1 TB/s: the ridge is at 10 FLOP/byte, which is a tick.
    (level,) = [roof for roof in chart.roofs if roof.kind == "compute" and not roof.dashed]
    assert level.x1 == pytest.approx({text: x for x, text in chart.x_ticks}["10"])
    assert level.y1 == pytest.approx({text: y for y, text in chart.y_ticks}["10 T"])


def test_a_mark_far_away_is_drawn_on_the_edge(machine: Machine, host: Host) -> None:
    class Uneven(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.relu(x), torch.relu(y)

    # An addition of two numbers takes next to nothing, and achieves next to nothing.
    slow = machine.with_values({**machine.values, "kernel_ramp_cycles": 2000.0})
    p = predict_graph(rk.trace(Uneven(), rk.Input(2**28), rk.Input(2)), slow, host, rk.Execution())
    figure = kernel_figure(p)
    chart = roofline_chart(figure, by_time(figure.points), WIDE)
    assert [mark.edge for mark in chart.marks] == [False, True]
    assert chart.marks[1].y == WIDE.bottom


# --- time line and memory


def test_lanes_follow_the_clock() -> None:
    # 954 px for 10 ms, from 72 on: 4 ms begin at 72 + 381.6 and last 95.4 px a millisecond.
    lane = [Segment(start_s=4e-3, end_s=5e-3, look="compute", text="a"), *(
        Segment(start_s=6e-3 + i * 1e-6, end_s=6e-3 + (i + 1) * 1e-6, look="memory", text="b") for i in range(100)
    )]  # fmt: skip
    chart = timeline_chart({"GPU": lane}, 10e-3, WIDE_TIME)
    (drawn,) = chart.lanes
    assert [(block.x, block.width, block.text) for block in drawn.blocks] == [(453.6, 95.4, "a")]
    ((look, path),) = drawn.strips
    # A hundred microseconds side by side are one rectangle: 72 + 572.4, 9.54 px wide.
    assert (look, path.count("M")) == ("memory", 1)
    assert path.startswith("M644.40 4h9.54v")
    assert chart.unit == "ms"
    assert [text for _, text in chart.ticks] == ["0", "2", "4", "6", "8", "10"]


def test_phases_are_stretches() -> None:
    spans = [(0.0, 1.0, "forward"), (2.0, 3.0, "forward"), (3.0, 4.0, "backward"), (5.0, 6.0, "forward")]
    found = [(s.start_s, s.end_s, s.text) for s in phase_segments(spans)]
    assert found == [(0.0, 3.0, "forward"), (3.0, 4.0, "backward"), (5.0, 6.0, "forward")]
    assert list(phase_segments([])) == []


def test_areas_are_as_high_as_the_bytes() -> None:
    mib = 2**20
    course = [(0.0, {"weights": mib, "activations": 0}), (0.5, {"weights": mib, "activations": 3 * mib})]
    chart = memory_chart(course, 1.0, 100 * mib, WIDE_TIME)
    y = {text: y for y, text in chart.y_ticks}
    (weights, weights_path), (activations, activations_path) = chart.areas
    assert (weights, activations, chart.y_unit) == ("weights", "activations", "MiB")
    one = y["0"] + (y["2"] - y["0"]) / 2
    assert weights_path.startswith(f"M72 {one:.1f}")
    assert activations_path.startswith(f"M72 {one:.1f}H549V{y['4']:.1f}")
    assert chart.peak == pytest.approx((549, y["4"]))
    assert chart.capacity is None  # 25 times as high as the chart
    assert memory_chart(course, 1.0, 5 * mib, WIDE_TIME).capacity is not None


# --- bars


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(1, 1e3), min_size=1))
def test_terms_fill_the_bar(terms: dict[str, float]) -> None:
    bars = list(waterfall_bars(terms).values())
    assert sum(bar.width for bar in bars) == pytest.approx(1000, abs=0.01 * len(bars))
    for a, b in itertools.pairwise(bars):
        assert b.x == pytest.approx(a.x + a.width, abs=0.02)


@given(st.floats(1, 1e3), st.lists(st.floats(-0.1, 1e3), max_size=6))
def test_the_way_ends_at_the_other_total(start: float, changes: list[float]) -> None:
    first, *steps, last = difference_bars(start, changes)
    assert last.width * start == pytest.approx(first.width * (start + sum(changes)), rel=1e-3, abs=20)
    for bar, change in zip(steps, changes, strict=True):
        assert (bar.look == "more") == (change > 0) or bar.width < 0.01


def test_intervals_share_one_line() -> None:
    slow, fast = interval_bars([(6.0, 8.0, 10.0), (1.0, 2.0, 3.0)])
    assert (slow.low, slow.value, slow.high) == (600, 800, 1000)
    assert (fast.low, fast.value, fast.high) == (100, 200, 300)


def test_limits_of_power_by_hand() -> None:
    steps = [Limit(limit_w=w, total_s=s, joules=j) for w, s, j in ((100, 4.0, 5.0), (150, 2.0, 3.0), (200, 1.0, 4.0))]
    chart = limits_chart(steps, WIDE_ENERGY)
    # from 0 at x = 72 to 1.04 · 4 s at 1026: a second is 229.3 px; from 0 at y = 254 to 1.12 · 5 J at 30: a joule 40 px
    assert [(dot.x, dot.y) for dot in chart.dots] == [(989.3, 54.0), (530.7, 134.0), (301.3, 94.0)]
    assert [dot.front for dot in chart.dots] == [False, True, True]  # the first takes more of both than the second
    assert {label.text for label in chart.labels} == {"100 W", "150 W", "200 W"}
    assert (chart.x_title, chart.y_title) == ("time of a step, s", "J a step")
