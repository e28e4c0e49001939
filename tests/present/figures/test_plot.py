"""The drawn figure: what it shows, that no text covers other text, and the files."""

from __future__ import annotations

import itertools
import math
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure as Page
from matplotlib.legend import Legend
from matplotlib.text import Annotation
from matplotlib.transforms import Affine2D
from overlaps import corners, overlaps
from refusals import refusal

import rooflinekit as rk
from rooflinekit.errors import InputError, OutputError
from rooflinekit.present.figures import plot
from rooflinekit.present.figures.labels import Box, Offer, Room
from rooflinekit.present.figures.records.build import roofline_figure
from rooflinekit.present.figures.records.figure import Figure
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.explain.explanation import Explanation

A100, H100 = "nvidia-a100-sxm4-80gb", "nvidia-h100-sxm5-80gb"
P100, V100 = "nvidia-p100-pcie-16gb", "nvidia-v100-sxm2-16gb"


class Stage(torch.nn.Sequential):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        for i in range(2):
            self.add_module(f"conv{i}", torch.nn.Conv2d(inner if i == 0 else outer, outer, 3, padding=1, bias=False))
            self.add_module(f"bn{i}", torch.nn.BatchNorm2d(outer))
            self.add_module(f"act{i}", torch.nn.ReLU())
        self.add_module("pool", torch.nn.MaxPool2d(2))


def convolutions(gpu: str = A100, batch: int = 32, **options: Any) -> Prediction:
    stages = [Stage(a, b) for a, b in itertools.pairwise((16, 64, 128, 256))]
    model = torch.nn.Sequential(*stages, torch.nn.Flatten(), torch.nn.Linear(256 * 49, 1000))
    return rk.predict(model, rk.Input("batch", 16, 56, 56), gpu=gpu, batch=batch, **options)


def transformer(gpu: str = A100, **options: Any) -> Prediction:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(1000, 512)
            layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
            self.encoder = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.encoder(self.embedding(tokens))

    return rk.predict(Model(), rk.Input(16, 256, dtype="int64"), gpu=gpu, **options)


def product() -> Prediction:
    return rk.predict(torch.nn.Linear(4096, 4096, bias=False, device="meta"), rk.Input(4096, 4096), gpu=A100)


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    return {
        "convolutions": roofline_figure(convolutions()),
        "P100": roofline_figure(convolutions(P100)),
        "training": roofline_figure(convolutions(mode="training")),
        "small": roofline_figure(convolutions(batch=1)),
        "transformer": roofline_figure(transformer(dtype="float16")),
        "product": roofline_figure(product()),
        "device": roofline_figure(rk.load_device(A100)),
        "many formats": roofline_figure(rk.load_device("nvidia-b200-sxm-180gb")),
        "machine": roofline_figure(product().machine),
        "three GPUs": roofline_figure([convolutions(gpu) for gpu in (V100, A100, H100)]),
        "three devices": roofline_figure([rk.load_device(gpu) for gpu in (V100, A100, H100)]),
        "two models": roofline_figure([convolutions(), transformer()]),
    }


Draw: TypeAlias = Callable[..., Axes]


@pytest.fixture(scope="module")
def drawn(figures: dict[str, Figure]) -> Draw:
    """Draws a figure once for all tests that only look at it."""

    @cache
    def draw(case: str, width: Any) -> Axes:
        ax = plot.roofline(figures[case], width=width)
        ax.get_figure(root=True).draw_without_rendering()  # type: ignore[union-attr]
        return ax

    return lambda case, width="column": draw(case, width)


CASES = [
    "convolutions", "P100", "training", "small", "transformer", "product", "device", "many formats", "machine",
    "three GPUs", "three devices", "two models",
]  # fmt: skip


# --- the text of a drawn figure ------------------------------------------------------------------------------------


def texts_of(ax: Axes) -> list[Annotation]:
    return [text for text in ax.texts if isinstance(text, Annotation) and text.get_text()]


@pytest.mark.parametrize(
    ("width", "case"),
    [("column", case) for case in CASES] + [("page", case) for case in ("training", "transformer", "three GPUs")],
)
def test_no_text_covers_other_text_or_leaves_the_axes(drawn: Draw, case: str, width: Any) -> None:
    ax = drawn(case, width)
    assert overlaps(ax) == []
    (legend,) = [child for child in ax.get_children() if isinstance(child, Legend)]
    texts = [(text.get_text(), *corners(text).min(axis=0), *corners(text).max(axis=0)) for text in texts_of(ax)]
    assert len(texts) > 2
    inside = ax.get_window_extent()
    for name, left, bottom, right, top in [*texts, ("key", *legend.get_window_extent().extents)]:
        assert left >= inside.x0 - 0.5, name
        assert bottom >= inside.y0 - 0.5, name
        assert right <= inside.x1 + 0.5, name
        above = ax.figure.bbox.y1 if name == "key" and bottom >= inside.y1 else inside.y1
        assert top <= above + 0.5, name


def test_three_devices_in_a_column_have_their_key_above_and_ridges_below(drawn: Draw) -> None:
    """Inside, the key would cover the foot of the ridges, whose labels would stand among the marks."""
    ax = drawn("three GPUs")
    (legend,) = [child for child in ax.get_children() if isinstance(child, Legend)]
    inside = ax.get_window_extent()
    assert legend.get_window_extent().y0 >= inside.y1
    ridges = [corners(text) for text in texts_of(ax) if text.get_text().startswith("ridge")]
    assert len(ridges) >= 3
    assert all(box.max(axis=0)[1] < inside.y0 + 0.5 * inside.height for box in ridges)
    assert ax.figure.get_figheight() > drawn("product").figure.get_figheight()  # the axes are as high as others


def test_decades_of_a_page_are_wider_where_much_would_hold_nothing(drawn: Draw) -> None:
    ax = drawn("convolutions", "page")
    marks = [x for c in ax.collections if isinstance(c, PathCollection) for x, _ in np.asarray(c.get_offsets())]
    left, right = np.log10(ax.get_xlim())
    # Beyond the last mark and the ridges there is room for the names of roofs, and no more.
    last = max(math.log10(max(marks)), math.log10(76.5))
    assert right - last < 0.35 * (right - left)
    origin, across, up = ax.transData.transform([(10, 1e12), (100, 1e12), (10, 1e13)])
    stretch = (across[0] - origin[0]) / (up[1] - origin[1])
    assert 1 < stretch < 2
    # What is written along a memory roof lies along it.
    (slope,) = [text for text in texts_of(ax) if text.get_text() == "HBM2e 2.04 TB/s (datasheet)"]
    assert slope.get_rotation() == pytest.approx(math.degrees(math.atan(1 / stretch)), abs=0.2)


@pytest.mark.parametrize("case", CASES)
def test_decades_are_equal_and_roof_labels_lie_along_their_roofs(
    figures: dict[str, Figure], drawn: Draw, case: str
) -> None:
    ax = drawn(case)
    origin, right, up = ax.transData.transform([(10, 1e12), (100, 1e12), (10, 1e13)])
    assert right[0] - origin[0] == pytest.approx(up[1] - origin[1], rel=1e-3)
    rates = {roof.rate: roof.kind for roof in figures[case].roofs}
    labels = [
        (text, next(kind for rate, kind in rates.items() if rate in text.get_text()))
        for text in texts_of(ax)
        if any(rate in text.get_text() for rate in rates)
    ]
    assert {kind for _, kind in labels} == {"memory", "compute"}
    for text, kind in labels:
        assert text.get_rotation() == pytest.approx(45 if kind == "memory" else 0, abs=0.1), text.get_text()


def test_every_roof_is_labelled_with_name_value_and_origin(drawn: Draw) -> None:
    shown = {text.get_text() for text in texts_of(drawn("convolutions", "page"))}
    stated = {"HBM2e 2.04 TB/s", "tf32 matrix 156 TFLOP/s", "fp32 vector 19.5 TFLOP/s"}
    assert {"ridge 9.56", "ridge 76.5", *(f"{roof} (datasheet)" for roof in stated)} <= shown


def test_roofs_of_equal_value_share_a_line(drawn: Draw) -> None:
    shown = " ".join(text.get_text() for text in texts_of(drawn("device", "page")))
    assert "bf16/fp16 matrix 312 TFLOP/s" in shown
    assert "int8 matrix 624 TOP/s" in shown


def marks_of(ax: Axes) -> list[tuple[float, float, float]]:
    """Place and area in pt² of every mark, in the order of drawing."""
    found = []
    for mark in (child for child in ax.collections if isinstance(child, PathCollection)):
        ((x, y),) = np.asarray(mark.get_offsets())
        # Curves become polygons in steps of pixels: measured large, so that the steps are small.
        ((*outline,),) = mark.get_paths()[0].transformed(Affine2D().scale(1000)).to_polygons()
        xs, ys = np.array(outline).T
        area = abs(float(np.sum(xs * np.roll(ys, -1) - ys * np.roll(xs, -1)))) / 2 / 1000**2
        found.append((float(x), float(y), area * float(np.asarray(mark.get_sizes())[0])))
    return found


@pytest.mark.parametrize("case", CASES)
def test_each_mark_stands_at_its_point_with_its_share_as_area(
    figures: dict[str, Figure], drawn: Draw, case: str
) -> None:
    figure, ax = figures[case], drawn(case)
    points = sorted((*figure.points, *figure.rail), key=lambda point: -point.time_s)
    marks = marks_of(ax)
    assert len(marks) == len(points)
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    for (x, y, area), point in zip(marks, points, strict=True):
        assert left < x < right
        assert bottom < y < top
        scale = marks[0][2] / max(p.share for p in points if p.time_s == points[0].time_s)
        assert area == pytest.approx(max(point.share * scale, 4.0), rel=0.01)  # 4 pt² so that it is seen
        if point.share >= 0.01 and point.flop:
            assert (x, y) == pytest.approx((point.intensity, point.performance))


def test_the_rail_keeps_the_distance_to_the_memory_roof(figures: dict[str, Figure], drawn: Draw) -> None:
    (embedding,) = [point for point in figures["transformer"].rail if "embedding" in point.kind]
    ax = drawn("transformer")
    rail = min(x for x, _, _ in marks_of(ax))
    assert math.log10(rail) == pytest.approx(round(math.log10(rail)))  # a decade: its scale has the ticks of the axis
    assert any(y / rail == pytest.approx(embedding.bandwidth) for x, y, _ in marks_of(ax) if x == rail)
    assert "0" in [label.get_text() for label in ax.get_xticklabels()]


def test_names_can_be_left_out(figures: dict[str, Figure], drawn: Draw) -> None:
    figure = figures["convolutions"]
    labels = {point.label for point in figure.points}
    assert labels & {text.get_text() for text in texts_of(drawn("convolutions"))}
    assert not labels & {text.get_text() for text in texts_of(plot.roofline(figure, names=0))}


def test_axes_are_labelled_and_have_no_title(drawn: Draw) -> None:
    ax = drawn("convolutions")
    assert ax.get_xlabel() == "Arithmetic intensity (FLOP/byte, DRAM)"
    assert ax.get_ylabel() == "Performance (FLOP/s)"
    assert ax.get_title() == ""
    assert {"1 T", "10 T", "100 T"} <= {label.get_text() for label in ax.get_yticklabels()}
    page = ax.get_figure(root=True)
    assert page is not None
    assert tuple(page.get_size_inches()) == (3.5, 2.8)


# --- manners -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [None, "constrained", "tight"])
def test_draws_on_the_given_axes_alone(figures: dict[str, Figure], layout: Any) -> None:
    page = Page(figsize=(8, 3), layout=layout)
    left, right = page.subplots(1, 2)
    assert plot.roofline(figures["transformer"], left) is left
    assert not right.lines
    assert not right.texts
    page.draw_without_rendering()
    assert overlaps(left) == []


def test_shared_axes(figures: dict[str, Figure]) -> None:
    page = Page(figsize=(8, 3))
    for ax, case in zip(page.subplots(1, 2, sharex=True, sharey=True), ("convolutions", "P100"), strict=True):
        plot.roofline(figures[case], ax)
    page.draw_without_rendering()


def test_no_setting_is_changed(figures: dict[str, Figure]) -> None:
    before = dict(mpl.rcParams)
    plot.roofline(figures["convolutions"])
    assert dict(mpl.rcParams) == before


def test_draws_predictions_and_their_figures(tmp_path: Path) -> None:
    prediction = product()
    drawn = [prediction, roofline_figure(prediction)]
    files = [plot.save(plot.roofline(each), tmp_path / f"{i}.svg").read_bytes() for i, each in enumerate(drawn)]
    assert files[0] == files[1]
    assert rk.plot is plot


@pytest.mark.parametrize(
    ("model", "shape", "count"),
    [
        (torch.nn.Identity(), (8, 8), 0),
        (torch.nn.Upsample(scale_factor=2), (8, 8, 8), 1),  # copies: no FLOP, so no roof of arithmetic either
        (torch.nn.ReLU(), (1,), 1),
    ],
)
def test_hardly_any_kernels(model: torch.nn.Module, shape: tuple[int, ...], count: int, tmp_path: Path) -> None:
    figure = roofline_figure(rk.predict(model, rk.Input(*shape), gpu=A100))
    assert len(figure.points) + len(figure.rail) == count
    plot.save(plot.roofline(figure), tmp_path / "a.png")


def test_unknown_width(figures: dict[str, Figure]) -> None:
    with pytest.raises(InputError, match="width: expected column, page; got 'colum'; did you mean 'column'"):
        plot.roofline(figures["product"], width="colum")  # type: ignore[arg-type]


#: Widths of text and column in the templates' own words, in inches: TeX has 72.27 points an inch.
VENUES = {
    ("ieee", "column"): 252 / 72.27,
    ("ieee", "page"): 516 / 72.27,
    ("acm", "column"): 241.14749 / 72.27,
    ("acm", "page"): 506.295 / 72.27,
    ("lncs", "column"): 122 / 25.4,
    ("lncs", "page"): 122 / 25.4,
    ("neurips", "page"): 5.5,
    ("slides", "page"): 140 / 25.4,  # of 160 mm, less beamer's margins of 10 mm
}


@pytest.mark.parametrize(("venue", "width"), VENUES)
def test_figures_are_as_wide_as_the_text_of_a_venue(figures: dict[str, Figure], venue: Any, width: Any) -> None:
    ax = plot.roofline(figures["transformer"], width=width, venue=venue)
    page = ax.get_figure(root=True)
    assert page is not None
    assert page.get_size_inches()[0] == pytest.approx(VENUES[venue, width], abs=0.012)
    page.draw_without_rendering()
    assert overlaps(ax) == []
    for label in (ax.xaxis.label, ax.yaxis.label):
        extent = label.get_window_extent()
        assert extent.x0 >= page.bbox.x0
        assert extent.y0 >= page.bbox.y0
    assert min(text.get_fontsize() for text in texts_of(ax)) >= 5.5


def test_unknown_venue(figures: dict[str, Figure]) -> None:
    said = refusal(InputError, plot.roofline, figures["product"], venue="iee")
    assert said == "venue: expected ieee, acm, lncs, neurips, slides; got 'iee'; did you mean 'ieee'?"


def test_needs_no_torch() -> None:
    code = "import sys, rooflinekit.present.figures.plot; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- room for labels -----------------------------------------------------------------------------------------------


def test_boxes_overlap_by_their_own_directions() -> None:
    flat = Box(x=0, y=0, width=10, height=2)
    turned = Box(x=0, y=0, width=10, height=2, angle=math.pi / 4)
    assert flat.overlaps(turned)
    assert flat.overlaps(Box(x=9.9, y=0, width=10, height=2))
    assert not flat.overlaps(Box(x=10.1, y=0, width=10, height=2))
    # Upright rectangles around these two overlap; they themselves lie side by side along 45°.
    assert not turned.overlaps(Box(x=2, y=-2, width=10, height=2, angle=math.pi / 4))
    assert turned.overlaps(Box(x=0.5, y=-0.5, width=10, height=2, angle=math.pi / 4))


def test_room_prefers_what_covers_least() -> None:
    room = Room(bounds=(0, 0, 100, 100))
    room.discs.append((20, 50, 5))
    on_mark, aside = Box(x=20, y=50, width=10, height=10), Box(x=60, y=50, width=10, height=10)

    def offer(cost: float, box: Box, text: str) -> Offer:
        return Offer(text, (box.width, box.height), np.array([cost]), np.array([[box.x, box.y]]))

    assert room.best([offer(0.0, on_mark, "a"), offer(5.0, aside, "b")]) == (aside, "b")
    room.boxes.append(aside)
    assert room.best([offer(0.0, on_mark, "a"), offer(5.0, aside, "b")]) == (on_mark, "a")
    assert room.best([offer(0.0, Box(x=98, y=50, width=10, height=10), "outside")]) is None


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["svg", "pdf", "png", "pgf"])
def test_same_figure_same_bytes(figures: dict[str, Figure], tmp_path: Path, suffix: str) -> None:
    one = plot.save(plot.roofline(figures["product"]), tmp_path / f"one.{suffix}")
    two = plot.save(plot.roofline(figures["product"]), tmp_path / f"two.{suffix}")
    assert one.read_bytes() == two.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"one.{suffix}", f"two.{suffix}"]


def test_text_stays_text_in_svg(drawn: Draw, tmp_path: Path) -> None:
    content = plot.save(drawn("convolutions"), tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "tf32 matrix 156 TFLOP/s" in content
    assert "Arithmetic intensity (FLOP/byte, DRAM)" in content
    assert "<dc:date>" not in content


def test_pdf_embeds_type_42_fonts(drawn: Draw, tmp_path: Path) -> None:
    content = plot.save(drawn("convolutions"), tmp_path / "a.pdf").read_bytes()
    for stream in re.findall(rb"stream\r?\n(.*?)endstream", content, re.DOTALL):
        try:
            content += zlib.decompress(stream)
        except zlib.error:
            continue
    assert b"/CIDFontType2" in content or b"/Subtype /TrueType" in content  # Type 42: TrueType as it is
    assert b"/Type3" not in content
    assert b"/CreationDate" not in content


def test_pgf_is_text_that_latex_draws(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", "")  # no TeX to ask for the sizes of texts
    ax = plot.roofline(rk.load_device(A100))
    ax.annotate("a_b & 50 % #1 {x} ×2 µs", (100, 1e13))
    content = plot.save(ax, tmp_path / "a.pgf").read_text(encoding="utf-8")
    assert content.count("{pgfpicture}") == 2
    assert content.count(r"\begin{pgfscope}") == content.count(r"\end{pgfscope}") > 50
    assert r"\pgfqpoint{3.500000in}{2.800000in}" in content
    assert r"a\_b \& 50 \% \#1 \{x\} \ensuremath{\times}2 \ensuremath{\mu}s" in content
    assert "HBM2e 2.04 TB/s" in content
    assert "datasheet" in content  # of the key
    assert content.isascii()


def test_save_takes_a_figure_and_any_case(figures: dict[str, Figure], tmp_path: Path) -> None:
    page = Page(figsize=(3.5, 2.8))
    plot.roofline(figures["product"], page.subplots())
    assert plot.save(page, str(tmp_path / "a.PNG")) == tmp_path / "a.PNG"
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.jpg", "expected a file name that ends in .pdf, .pgf, .png, .svg"),
        ("a", "expected a file name that ends in .pdf, .pgf, .png, .svg"),
        ("a.pfd", "expected a file name that ends in .pdf, .pgf, .png, .svg"),
        ("missing/a.pdf", "cannot be written: {folder}/missing is no folder"),
    ],
)
def test_refused_files(drawn: Draw, tmp_path: Path, name: str, message: str) -> None:
    ax = drawn("product")
    said = refusal(OutputError, plot.save, ax, tmp_path / name)
    assert said == f"{tmp_path / name}: {message.format(folder=tmp_path)}"
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(drawn: Draw, tmp_path: Path, monkeypatch: Any) -> None:
    target = plot.save(drawn("product"), tmp_path / "a.svg")
    before = target.read_bytes()

    def full(self: Page, path: Path, **_: Any) -> None:
        path.write_text("half a figure")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Page, "savefig", full)
    with pytest.raises(OutputError, match="No space left on device"):
        plot.save(drawn("product"), target)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission(drawn: Draw, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="cannot be written: Permission denied"):
        plot.save(drawn("product"), tmp_path / "a.svg")


# --- waterfall -----------------------------------------------------------------------------------------------------


def test_waterfall_leads_from_one_total_to_the_other() -> None:
    pair = Explanation(a=convolutions(), b=convolutions(H100))
    ax = plot.waterfall(pair)
    bars = [bar for container in ax.containers for bar in container]
    by_place = sorted(bars, key=lambda bar: bar.get_x())
    assert len(by_place) == 2 + 5
    assert by_place[0].get_height() == pytest.approx(pair.a.total_s)
    assert by_place[-1].get_height() == pytest.approx(pair.b.total_s)
    level = pair.a.total_s
    changes = [change for name, change in pair.terms().items() if name != "input"]  # nothing is copied
    for bar, change in zip(by_place[1:-1], changes, strict=True):
        ends = sorted((level, level + change))
        assert (bar.get_y(), bar.get_y() + bar.get_height()) == pytest.approx(tuple(ends))
        level += change
    assert level == pytest.approx(pair.b.total_s)
    names = [label.get_text() for label in ax.get_xticklabels()]
    words = ["FLOP at peak", "peak not reached", "memory traffic", "kernel starts", "GPU waits for CPU"]
    assert names == ["A100 SXM4 80 GB", *words, "H100 SXM5 80 GB"]


def test_waterfall_labels_every_bar_and_covers_none(tmp_path: Path) -> None:
    pair = Explanation(a=convolutions(), b=transformer())
    ax = plot.waterfall(pair)
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    labels = texts_of(ax)
    assert len(labels) == 7
    assert float(labels[0].get_text()) == pytest.approx(pair.a.total_s * 1e3, abs=0.05)
    changes = [float(label.get_text().replace("−", "-")) for label in labels[1:-1]]
    assert sum(changes) == pytest.approx((pair.b.total_s - pair.a.total_s) * 1e3, abs=0.05)
    assert overlaps(ax) == []
    assert ax.get_ylabel() == "Time of a step (ms)"
    assert plot.save(ax, tmp_path / "w.pdf").stat().st_size > 1000


def test_a_waterfall_of_small_differences_begins_near_them() -> None:
    """1 % apart: from 0 on the bars would be thinner than their outline."""
    first = convolutions()
    pair = Explanation(a=first, b=rk.predict(first.graph, first.machine.device.replace(dram={"bandwidth": 2.02e12})))
    ax = plot.waterfall(pair)
    bottom, top = ax.get_ylim()
    ends = [
        end for bar in (b for c in ax.containers for b in c) for end in (bar.get_y(), bar.get_y() + bar.get_height())
    ]
    assert bottom > 0.8 * min(pair.totals)
    tallest = max(abs(change) for change in pair.terms().values())
    assert tallest > 0.2 * (top - bottom)
    assert max(ends) <= top
    assert ", from " in ax.get_ylabel()  # and says so
    assert plot.waterfall(Explanation(a=convolutions(), b=convolutions(H100))).get_ylim()[0] == 0


def test_numbers_of_modules_say_whose_they_are() -> None:
    """Blocks too narrow for their paths have their number, and below it the path's rest."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a_long_name_of_an_encoder = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
            self.decoder = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.decoder(self.a_long_name_of_an_encoder(x))

    ax = plot.timeline(rk.predict(Net(), rk.Input(8192, 512), gpu="nvidia-l4"), width="column")
    shown = [text.get_text() for text in ax.texts]
    assert shown.count("0") == shown.count("7") == 2
    assert {"a_long_name_of_an_encoder", "decoder"} <= {*shown}
    flat = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU()), torch.nn.GELU())
    shown = [text.get_text() for text in plot.timeline(rk.predict(flat, rk.Input(256, 512), gpu="nvidia-l4")).texts]
    assert "0.0" in shown
    assert "0" not in shown


def test_a_caption_of_what_is_drawn() -> None:
    prediction = convolutions()
    assert plot.caption(prediction) == plot.caption(roofline_figure(prediction))
    assert "Predicted, not measured." in plot.caption([prediction, convolutions(H100)], path=True)
    with pytest.raises(InputError, match="expected predictions"):
        plot.caption("nvidia-l4")  # type: ignore[arg-type]


def test_networks_stand_each_for_itself() -> None:
    steps = [convolutions(), transformer()]
    figure = roofline_figure(steps, path=["one", "two"], joined=False)
    assert [len(path.stops) for path in figure.trajectories] == [1, 1]
    ax = plot.roofline(steps, path=["one", "two"], joined=False)
    assert {"one", "two"} <= {text.get_text() for text in texts_of(ax)}

    def arrows(drawn: Axes) -> int:
        return sum(getattr(text, "arrow_patch", None) is not None and not text.get_text() for text in drawn.texts)

    assert arrows(plot.roofline(steps, path=["one", "two"])) == arrows(ax) + 1
    assert " Steps, one: " in plot.caption(figure)


def test_a_unit_sustains_one_rate_whatever_is_drawn_of_it() -> None:
    """fp32 on CUDA cores: products sustain more than other arithmetic, and one roof stands for both."""

    def rate(*layers: torch.nn.Module) -> str:
        p = rk.predict(torch.nn.Sequential(*layers), rk.Input(64, 512), gpu=H100)
        (roof,) = [r for r in roofline_figure(p).roofs if r.name == "fp32 vector" and r.provenance != "datasheet"]
        return roof.rate

    assert rate(torch.nn.GELU()) == rate(torch.nn.Linear(512, 512), torch.nn.GELU()) == rate(torch.nn.Linear(512, 512))


def test_the_backend_stays_as_it_was_chosen() -> None:
    """A notebook's `%matplotlib inline` after a figure: what drawing puts back must not be the backend."""
    import matplotlib.pyplot as plt

    from rooflinekit.present.figures.style import sheet

    before = mpl.rcParams["backend"]
    try:
        with sheet(None, "column", None):
            plt.switch_backend("svg")
        assert (mpl.rcParams["backend"], plt.get_backend()) == ("svg", "svg")
    finally:
        plt.switch_backend(before)
