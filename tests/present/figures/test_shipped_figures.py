"""The figures on the pages, as files: no text lies on other text, on a mark, or outside the picture."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from overlaps import Corners, cover

FIGURES = sorted((Path(__file__).parents[3] / "docs" / "figures").glob("*.svg"))
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


def meet(one: Corners, two: Corners) -> bool:
    """Whether two rectangles overlap; those far apart are told apart at once."""
    near = (one.min(axis=0) < two.max(axis=0)).all() and (two.min(axis=0) < one.max(axis=0)).all()
    return bool(near) and cover(one, two)


@pytest.mark.parametrize("file", FIGURES, ids=lambda file: file.stem)
def test_no_text_lies_on_other_text_on_a_mark_or_outside(file: Path) -> None:
    root = ElementTree.parse(file).getroot()
    texts = texts_of(root)
    assert texts
    _, _, width, height = numbers(root.get("viewBox", ""))
    outside = [words for words, box in texts if box.min() < 0 or box[:, 0].max() > width or box[:, 1].max() > height]
    pairs = [(one, two) for (one, a), (two, b) in itertools.combinations(texts, 2) if meet(a, b)]
    marks = marks_of(root)
    hidden = [words for words, box in texts if any(meet(box, mark) for mark in marks)]
    assert (outside, pairs, hidden) == ([], [], [])
