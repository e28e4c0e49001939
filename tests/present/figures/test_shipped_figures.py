"""The figures on the pages, as files: no text lies on other text, a mark, a name's line, or outside the picture."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import make_figures
import make_many_gpus
import numpy as np
import pytest
from command_line import Run
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from overlaps import Corners, cover

import rooflinekit as rk

DOCS = Path(__file__).parents[3] / "docs"
SVG, HREF = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
_TOUCH = 0.3  # points that the ink of two may share


def numbers(text: str) -> list[float]:
    return [float(one) for one in re.findall(_NUMBER, text)]


def texts_of(root: ElementTree.Element) -> list[tuple[str, Corners]]:
    """Each text with the rectangle of its ink, in points from the upper left corner."""
    found = []
    for text in root.iter(f"{SVG}text"):
        words, style = "".join(text.itertext()), text.get("style", "")
        size = float(re.search(rf"font-size: ({_NUMBER})px", style)[1])  # type: ignore[index]
        path = TextPath((0, 0), words, size=size, prop=FontProperties(family="DejaVu Sans"))
        ink = path.get_extents()
        wide = ink.x1 + ink.x0
        shift = {"middle": wide / 2, "end": wide}.get((re.search(r"text-anchor: (\w+)", style) or ["", ""])[1], 0.0)
        left, right, top, bottom = ink.x0 - shift, ink.x1 - shift, -ink.y1, -ink.y0
        box = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
        box = box + np.sign(box.mean(axis=0) - box) * _TOUCH
        transform = text.get("transform", "")
        turned = re.search(rf"rotate\(({_NUMBER})", transform)
        angle = np.radians(float(turned[1])) if turned else 0.0
        moved = re.search(r"translate\(([^)]*)\)", transform)
        place = numbers(moved[1]) if moved else [float(text.get("x", 0)), float(text.get("y", 0))]
        cos, sin = np.cos(angle), np.sin(angle)
        found.append((words, box @ np.array([[cos, sin], [-sin, cos]]) + place))
    return found


def marks_of(root: ElementTree.Element) -> list[Corners]:
    """The squares within filled marks. Hatches (marks of a pattern) and bands (drawn from the corner) are none."""
    paths = {path.get("id"): path.get("d", "") for path in root.iter(f"{SVG}path") if path.get("id")}
    hatches = {id(use) for pattern in root.iter(f"{SVG}pattern") for use in pattern.iter(f"{SVG}use")}
    found = []
    for use in root.iter(f"{SVG}use"):
        if id(use) in hatches or "fill: #" not in use.get("style", "") or use.get("x") == "0":
            continue
        half = 0.7 * max(map(abs, numbers(paths[use.get(HREF, "")[1:]])))
        square = np.array([[-half, -half], [half, -half], [half, half], [-half, half]])
        found.append(square + np.array([float(use.get("x", 0)), float(use.get("y", 0))]))
    return found


def leaders_of(root: ElementTree.Element) -> list[Corners]:
    """Lines from names to their marks, as rectangles without height."""
    thin = [path for path in root.iter(f"{SVG}path") if "stroke: #222222; stroke-width: 0.4" in path.get("style", "")]
    found = []
    for path in thin:
        if " Q " in f" {' '.join(path.get('d', '').split())} ":
            places = np.reshape(numbers(path.get("d", "")), (-1, 2))
            found.append(np.array([places[0], places[-1], places[-1] + 0.01, places[0] + 0.01]))
    return found


def meet(one: Corners, two: Corners) -> bool:
    """Whether two rectangles overlap; those far apart are told apart at once."""
    near = (one.min(axis=0) < two.max(axis=0)).all() and (two.min(axis=0) < one.max(axis=0)).all()
    return bool(near) and cover(one, two)


def shipped() -> Iterator[tuple[str, str]]:
    """The name and the text of each SVG on the pages: files, and what the notebooks keep."""
    for file in sorted([*DOCS.glob("figures/*.svg"), *DOCS.glob("tutorials/*.svg")]):
        yield file.stem, file.read_text(encoding="utf-8")
    for file in sorted(DOCS.glob("notebooks/*.ipynb")):
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
        assert not any("image/png" in data for data in outputs)
        for i, data in enumerate(data for data in outputs if "image/svg+xml" in data):
            yield f"{file.stem} {i}", "".join(data["image/svg+xml"])


def faults(svg: str) -> tuple[list[str], list[tuple[str, str]], list[str]]:
    """Texts outside the picture, texts on other text, and texts on marks or on lines from names to their marks."""
    root = ElementTree.fromstring(svg)
    texts = texts_of(root)
    assert texts
    _, _, width, height = numbers(root.get("viewBox", ""))
    outside = [words for words, box in texts if box.min() < 0 or box[:, 0].max() > width or box[:, 1].max() > height]
    pairs = [(one, two) for (one, a), (two, b) in itertools.combinations(texts, 2) if meet(a, b)]
    marks = [*marks_of(root), *leaders_of(root)]
    return outside, pairs, [words for words, box in texts if any(meet(box, mark) for mark in marks)]


@pytest.mark.parametrize("svg", [pytest.param(svg, id=name) for name, svg in shipped()])
def test_no_text_lies_on_other_text_on_a_mark_or_outside(svg: str) -> None:
    assert faults(svg) == ([], [], [])


def test_time_lines_that_are_shipped_as_pixels_are_drawn_so_too(run: Run, tmp_path: Path) -> None:
    command = next(options for name, _, options in make_figures.PICTURES if name == "timeline")
    run("plot", *shlex.split(command), "--out", str(tmp_path / "one.svg"))
    rk.plot.save(dict(make_many_gpus.drawn())["slow_link_timeline"], tmp_path / "two.svg")
    for name in ("one", "two"):
        assert faults((tmp_path / f"{name}.svg").read_text(encoding="utf-8")) == ([], [], [])


def test_names_have_lines_to_their_marks() -> None:
    assert any(leaders_of(ElementTree.fromstring(svg)) for _, svg in shipped())


def test_a_spoilt_figure_is_found() -> None:
    longer = re.sub(r">([^<>\n]+)</text>", r">\1 \1 \1</text>", dict(shipped())["roofline"])
    assert all(faults(longer))
