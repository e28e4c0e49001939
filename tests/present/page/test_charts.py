"""Pictures of a page: the figures as SVG, with what their marks say, and the bars within tables."""

import itertools
import math
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from torch import nn

import rooflinekit as rk
from rooflinekit.hardware.host import Host
from rooflinekit.present.figures import plot
from rooflinekit.present.figures.inline import Block, inline
from rooflinekit.present.figures.labels import shortened
from rooflinekit.present.figures.records.build import kernel_figure
from rooflinekit.present.figures.records.figure import by_time
from rooflinekit.present.page.report import (
    difference_bars,
    energy_of,
    interval_bars,
    kernels_of,
    step_of,
    waterfall_bars,
)
from rooflinekit.step.memory_course import memory_course
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.study.compare.limits import power_limits
from rooflinekit.timing.machine import Machine
from rooflinekit.units import parse_quantity, said

HOSTILE = "</svg><script>alert(1)</script>$x$"


def stack(name: str = "end") -> nn.Module:
    # Linear layers of equal size, one of another, ReLUs between.
    found = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(3)))
    found.add_module(name, nn.Linear(256, 64))
    return found


@pytest.fixture
def prediction(machine: Machine, host: Host) -> Prediction:
    return predict_graph(rk.trace(stack(), rk.Input(4096, 256)), machine, host, rk.Execution())


def of_class(svg: str, name: str) -> list[Element]:
    return [node for node in ElementTree.fromstring(svg).iter() if name in node.get("class", "").split()]


def middle(mark: Element) -> tuple[float, float]:
    """Of a circle, or of the corners of a path."""
    if mark.tag == "circle":
        return float(mark.get("cx", "")), float(mark.get("cy", ""))
    x, y, xs, ys = 0.0, 0.0, [], []
    for command, told in re.findall(r"([MLHV])([-\d. ]+)", mark.get("d", "")):
        values = [float(number) for number in told.split()]
        x, y = {"H": (values[0], y), "V": (x, values[0])}.get(command, (values[0], values[-1]))
        xs.append(x)
        ys.append(y)
    return (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2


def ends_of_ticks(svg: str) -> dict[str, tuple[float, float]]:
    return {str(tick.text): (float(tick.get("x", "")), float(tick.get("y", ""))) for tick in of_class(svg, "tick")}


@given(st.text("ab.*é…", max_size=60), st.integers(5, 40))
def test_a_shortened_name_fits_and_keeps_both_ends(name: str, letters: int) -> None:
    short = shortened(name, letters)
    assert len(short) <= letters
    assert short == name or (short[0] == name[0] and short[-1] == name[-1] and "…" in short)


# --- what all pictures hold to


def test_pictures_carry_no_styles_and_no_id_twice(prediction: Prediction) -> None:
    energy = energy_of(prediction, None) or {"roofline": (), "limits": ()}
    step = step_of(prediction)
    found = [*kernels_of(prediction)["charts"], *step["timelines"], *step["memories"], *energy["roofline"]]
    nodes = [node for svg in found for node in ElementTree.fromstring(svg).iter()]
    ids = [node.get("id") for node in nodes if node.get("id")]
    assert len(ids) == len(set(ids))
    used = {match for svg in found for match in re.findall(r"url\(#(\w+)\)", svg)}
    assert used <= set(ids)
    assert not [node for node in nodes if node.get("style") or node.tag in ("use", "metadata", "image")]
    for svg in found:
        assert len(svg) < 20_000  # few kernels


def test_hostile_names_are_text(machine: Machine, host: Host) -> None:
    p = predict_graph(rk.trace(stack(HOSTILE), rk.Input(4096, 256)), machine, host, rk.Execution())
    svg = kernels_of(p)["charts"][0]
    assert "<script" not in svg
    titles = [str(title.text) for title in ElementTree.fromstring(svg).iter("title")]
    assert any(HOSTILE in title for title in titles)


def drawn(draw: Callable[[Axes], Any], **options: Any) -> str:
    """The wide one of a picture of 1040 by 200 px, whose axes leave no margin: 104 px and 20 px a unit."""

    def axes() -> Axes:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(1040 / 72, 200 / 72)).add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, 10), ylim=(0, 10))
        ax.set_axis_off()
        draw(ax)
        return ax

    return inline(axes, "x", "a picture", (200, 200), **options)[0]


def test_places_are_those_of_the_data() -> None:
    svg = drawn(lambda ax: ax.scatter([5], [2.5], s=400, gid="mark-0", facecolor="#0072B2"), titles=["a mark"])
    (mark,) = of_class(svg, "mark")
    assert middle(mark) == (520, 150)  # y down
    assert (mark.get("r"), mark.get("fill"), mark.get("data-k")) == ("10", "#0072b2", "0")
    assert mark.findtext("title") == "a mark"


def test_bars_are_one_path_and_a_page_has_no_hatches() -> None:
    svg = drawn(lambda ax: ax.broken_barh([(1, 1), (4, 2)], (5, 5), facecolor="#E69F00", hatch="...."))
    (path,) = (node for node in ElementTree.fromstring(svg).iter("path") if node.get("fill") == "#e69f00")
    assert path.get("d") == "M104 100V0H208V100zM416 100V0H624V100z"
    assert "<pattern" not in svg
    assert "<pattern" in drawn(lambda ax: ax.broken_barh([(1, 1)], (5, 5), facecolor="white", hatch="xxxx"))


def test_blocks_follow_the_axes_as_long_as_they_can_be_pointed_at() -> None:
    blocks = [Block(start=a, end=b, bottom=2, top=4, text=f"{b}") for a, b in ((1, 1.5), (2, 2.03), (3, 3.01))]
    found = of_class(drawn(lambda ax: None, blocks=blocks), "block")
    assert [(b.get("x"), b.get("y"), b.get("width"), b.get("height")) for b in found] == [
        ("104", "120", "52", "40"), ("208", "120", "3.1", "40"),
    ]  # fmt: skip
    assert ["edged" in str(block.get("class")) for block in found] == [True, False]
    assert [block.findtext("title") for block in found] == ["1.5", "2.03"]


# --- the roofline


def test_equal_kernels_are_one_mark_and_nothing_is_lost(prediction: Prediction) -> None:
    figure = kernel_figure(prediction)
    points = [*figure.points, *figure.rail]
    assert sorted((point.kind, point.kernels, point.modules) for point in points) == [
        ("aten.addmm", 1, ("end",)),
        ("aten.addmm", 3, ("0.0", "1.0", "2.0")),
        ("aten.relu", 3, ("0.1", "1.1", "2.1")),
    ]
    assert sum(point.share for point in points) == pytest.approx(1)
    assert {point.phase for point in points} == {"forward"}


def test_marks_are_the_rows_of_the_table(prediction: Prediction) -> None:
    view = kernels_of(prediction)
    for svg in view["charts"]:
        marks = of_class(svg, "mark")
        assert [mark.get("data-k") for mark in marks] == [str(i) for i in range(len(view["rows"]))]
        times = [f"{said(r['point'].time_s, 's')} ({r['point'].share:.1%})" for r in view["rows"]]
        told = [f"{r['name']}, {r['module']}: {time}" for r, time in zip(view["rows"], times, strict=True)]
        assert [mark.findtext("title") for mark in marks] == told
    assert {node.get("data-k") for node in of_class(view["charts"][0], "name")} >= {"0", None}  # roofs have none


def test_a_mark_stands_between_the_ticks_of_its_values(prediction: Prediction) -> None:
    figure = kernel_figure(prediction)
    svg = kernels_of(prediction)["charts"][0]
    ticks = ends_of_ticks(svg)
    decade = ticks["100"][0] - ticks["10"][0]
    for point, mark in zip(by_time((*figure.points, *figure.rail)), of_class(svg, "mark"), strict=True):
        x = ticks["10"][0] + decade * math.log10(point.intensity / 10)
        half = 0.06 * decade if mark.tag == "path" and "L" in mark.get("d", "") else 0.1
        assert middle(mark)[0] == pytest.approx(x, abs=half + 0.1)


def test_a_mark_far_away_is_drawn_on_the_edge_with_an_arrow(machine: Machine, host: Host) -> None:
    class Uneven(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.relu(x), torch.relu(y)

    # An addition of two numbers takes next to nothing, and achieves next to nothing.
    slow = machine.with_values({**machine.values, "kernel_ramp_cycles": 2000.0})
    p = predict_graph(rk.trace(Uneven(), rk.Input(2**28), rk.Input(2)), slow, host, rk.Execution())
    svg = kernels_of(p)["charts"][0]
    assert [node.get("data-k") for node in of_class(svg, "name") if node.tag == "path"] == ["1"]
    assert middle(of_class(svg, "mark")[1])[1] == pytest.approx(450, abs=15)  # of 500 px


# --- time line and memory


def test_every_long_kernel_can_be_pointed_at(prediction: Prediction) -> None:
    (wide, _) = step_of(prediction)["timelines"]
    told = [str(block.findtext("title")) for block in of_class(wide, "block")]
    kernels = [text for text in told if text.endswith("-bound")]
    assert len(kernels) == len(prediction.spans)
    assert any(text.startswith("CPU issues ") for text in told)


def test_areas_are_as_high_as_the_bytes(prediction: Prediction) -> None:
    (wide, _) = step_of(prediction)["memories"]
    ticks = ends_of_ticks(wide)
    mib = (ticks["0"][1] - ticks["20"][1]) / 20
    activations, inputs = (
        [float(y) for y in re.findall(r"V([\d.]+)|M[\d.]+ ([\d.]+)", path.get("d", "")) for y in y if y]
        for path in (
            next(p for p in ElementTree.fromstring(wide).iter("path") if p.get("fill") == fill)
            for fill in ("#56b4e9", "#222222")
        )
    )
    assert max(inputs) - min(inputs) == pytest.approx(4 * mib, abs=0.2)
    held = max(moment.bytes_of["activations"] for moment in memory_course(prediction)) / 2**20
    assert max(activations) - min(activations) == pytest.approx(held * mib, abs=0.2)


def test_limits_of_power_stand_at_their_seconds_and_joules() -> None:
    p = rk.predict(nn.Linear(2048, 2048), rk.Input("batch", 2048), gpu="nvidia-a40", batch=4096, dtype="float16")
    limits = power_limits(p, 50.0)
    view = energy_of(p, limits)
    assert view is not None
    wide, _ = view["limits"]
    ticks = [(float(str(t.text)), float(t.get("x", "")), float(t.get("y", ""))) for t in of_class(wide, "tick")[:-1]
             if re.fullmatch(r"[\d.]+", str(t.text))]  # fmt: skip
    (a, xa, _), *_, (b, xb, _) = [tick for tick in ticks if tick[2] == ticks[0][2]]
    per_unit = (xb - xa) / (b - a)
    (label,) = (str(t.text) for t in of_class(wide, "tick") if str(t.text).startswith("Time of a step ("))
    unit = parse_quantity(f"1 {label.partition('(')[2][:-1]}", "s")
    rows = limits.table.sort_values("total_s")
    fastest = rows["total_s"].min()
    for mark, (_, row) in zip(of_class(wide, "mark"), rows.iterrows(), strict=True):
        assert str(mark.findtext("title")).startswith(f"{row['limit_w']:g}")
        x = middle(mark)[0] - middle(of_class(wide, "mark")[0])[0]
        assert x == pytest.approx((row["total_s"] - fastest) / unit * per_unit, abs=0.3)
        best = not ((rows["total_s"] <= row["total_s"]) & (rows["energy_j"] < row["energy_j"])).any()
        assert (mark.get("fill") == "#d55e00") == best
    assert {str(node.text) for node in of_class(wide, "name")} & {f"{w:g} W" for w in rows["limit_w"]}


def test_a_window_of_a_figure_stays_as_it_was(prediction: Prediction) -> None:
    """Pictures of a page are none of pyplot's, and leave no preset behind."""
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    kernels_of(prediction)
    assert plt.get_fignums() == before
    ax = plot.roofline(prediction)
    assert tuple(ax.figure.get_size_inches()) == (3.5, 2.8)  # type: ignore[union-attr]
    plt.close("all")


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
    assert (slow, fast) == ((600, 800, 1000), (100, 200, 300))
