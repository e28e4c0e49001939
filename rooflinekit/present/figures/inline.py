"""Figures as SVG within a web page: small, coloured by attributes that the page's style maps, with texts to hover over.

A page's policy lets no style attribute through, and ids are unique within a page: styles become attributes, marks that
matplotlib defines once and uses become shapes, and all that says nothing is left out. The style of the page maps the
colours, by attribute selectors, to those of light and of dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import groupby
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib as mpl
from matplotlib.axes import Axes

from rooflinekit.present.figures.style import STYLE, Style, whole_page

_HREF = "{http://www.w3.org/1999/xlink}href"
_DROPPED = {"font-family", "stroke-linecap", "stroke-linejoin", "stroke-miterlimit", "id", "style", _HREF}
_FONT = 11.5  # of labels, which the page's style states
_WIDE = Style(
    size=(1040 / 72, 0.0), axis_font=_FONT, tick_font=_FONT, label_font=_FONT, roof_width=1.6, largest_area=1100.0,
    whole_area=12000.0, least_area=12.0, names=9, on_screen=True,
)  # fmt: skip
_NARROW = replace(
    _WIDE, size=(360 / 72, 0.0), roof_width=1.4, largest_area=500.0, whole_area=5500.0, names=4, sustained=False
)
#: Pages of one unit a pixel: for a window as wide as a screen and for one as wide as a telephone.
SCREENS = {"wide": _WIDE, "narrow": _NARROW}
_SEEN = 2.0  # px from which a block can be pointed at
_EDGED = 6.0  # px from which it is told apart from its neighbours by an edge
_GROUPS = {"mark": "marks", "name": "names", "tick": "ticks"}
_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A stretch of a lane that can be pointed at, in the units of the axes, and what it says."""

    start: float
    end: float
    bottom: float
    top: float
    text: str


def inline(
    draw: Callable[[], Axes], name: str, label: str, heights: tuple[int, int], *, titles: Sequence[str] = (),
    blocks: Sequence[Block] = (),
) -> tuple[str, ...]:  # fmt: skip
    """What `draw` draws, as SVG for a wide and for a narrow window.

    name: of the class, and of the ids within. label: what a reader who does not see it is told. heights: in pixels.
    titles: what the marks say, in the order of their gids, "mark-0" and so on. blocks: what else can be pointed at.
    """
    found = []
    for (screen, style), height in zip(SCREENS.items(), heights, strict=True):
        context = copy_context()
        context.run(STYLE.set, replace(style, size=(style.size[0], height / 72)))
        ax = context.run(draw)
        root = _Reader(ax, f"{name}-{screen}", titles).root()
        root.set("class", f"chart {name} {screen}")
        root.set("role", "img")
        root.set("aria-label", label)
        root.extend(_hit_boxes(ax, blocks))
        found.append(ElementTree.tostring(root, encoding="unicode"))
    return tuple(found)


def _hit_boxes(ax: Axes, blocks: Sequence[Block]) -> Iterator[Element]:
    """Boxes without a colour over what is drawn: browsers point at them and show their titles."""
    page = whole_page(ax)
    scale, height = 72 / page.dpi, page.get_figheight() * 72
    found = Element("g", {"class": "blocks"})
    for block in blocks:
        (x0, y0), (x1, y1) = ax.transData.transform([(block.start, block.bottom), (block.end, block.top)]) * scale
        if x1 - x0 >= _SEEN:
            edged = " edged" if x1 - x0 >= _EDGED else ""
            box = {"x": x0, "y": height - y1, "width": x1 - x0, "height": y1 - y0}
            drawn = ElementTree.SubElement(found, "rect", {"class": f"block{edged}"} | {
                key: _number(value) for key, value in box.items()
            })  # fmt: skip
            ElementTree.SubElement(drawn, "title").text = block.text
    if len(found):
        yield found


def _number(value: float) -> str:
    """A length with a tenth of a pixel."""
    return f"{round(value, 1):g}"


class _Reader:
    def __init__(self, ax: Axes, salt: str, titles: Sequence[str]) -> None:
        written = io.StringIO()
        for patch in (whole_page(ax).patch, *(axes.patch for axes in whole_page(ax).axes)):
            patch.set_visible(False)
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):  # ids differ with the salt
            whole_page(ax).savefig(written, format="svg", metadata={"Date": None})
        self._root = ElementTree.fromstring(written.getvalue())
        for node in self._root.iter():
            node.tag = node.tag.rpartition("}")[2]
        self._titles = titles
        self._shapes = {path.get("id"): path for defs in self._root.iter("defs") for path in defs.findall("path")}

    def root(self) -> Element:
        """The picture, its parts in groups: grid and ticks, marks, names, and the rest."""
        found = Element("svg", {"viewBox": self._root.get("viewBox", "")})
        parts = list(_merged([part for part in self._parts(self._root.findall("g")[0]) if _seen(part)]))
        used = {value[5:-1] for part in parts for value in part.attrib.values() if value.startswith("url(#")}
        kept = [self._attributed(part) for defs in self._root.iter("defs") for part in defs if part.get("id") in used]
        if kept:
            ElementTree.SubElement(found, "defs").extend(kept)
        for group, members in groupby(parts, key=lambda part: _GROUPS.get(part.get("class", ""), "")):
            (ElementTree.SubElement(found, "g", {"class": group}) if group else found).extend(members)
        return found

    def _parts(self, node: Element, clip: str | None = None, name: str = "") -> Iterator[Element]:
        """A node without the groups around it; what a group clips is clipped one by one."""
        own = node.get("id", "")
        name = own if own.startswith(("mark-", "of-", "matplotlib.axis")) else name
        clip = node.get("clip-path", clip)
        if own.startswith("mark-"):
            yield self._mark(node, int(own.removeprefix("mark-")))
        elif node.tag == "g":
            inside = [part for child in node for part in self._parts(child, clip, name)]
            if own.startswith("matplotlib.axis"):  # what looks alike together, texts last
                inside.sort(key=lambda part: (part.tag == "text", [] if part.tag == "text" else _look(part)))
            yield from inside
        elif node.tag != "defs":
            found = self._shape(node) if node.tag == "use" else self._attributed(node)
            if clip:
                found.set("clip-path", clip)
            if name.startswith("of-"):
                found.set("data-k", name.removeprefix("of-"))
            if node.tag == "text" or name.startswith("of-"):
                found.set("class", "tick" if name.startswith("matplotlib.axis") else "name")
            yield found

    def _mark(self, node: Element, place: int) -> Element:
        """A mark with what it says. The page's style has its edge."""
        (use,) = node.iter("use")
        found = self._shape(use)
        white = found.get("stroke") == "#ffffff"
        for key in ("fill-opacity", "stroke-opacity", "stroke-width", *(["stroke"] if white else [])):
            found.attrib.pop(key, None)
        found.set("class", "mark")
        found.set("data-k", str(place))
        ElementTree.SubElement(found, "title").text = self._titles[place]
        return found

    def _shape(self, use: Element) -> Element:
        """A defined shape at the place where it is used; of those with curves, which are circles, a circle."""
        defined = self._shapes[use.get(_HREF, "")[1:]]
        x, y = float(use.get("x", 0)), float(use.get("y", 0))
        path = defined.get("d", "")
        found = self._attributed(use) if use.get("style") else self._attributed(defined)
        found.attrib = {k: v for k, v in found.attrib.items() if k not in ("x", "y", "d")}
        if "C" in path:
            found.tag, radius = "circle", max(map(float, re.findall(_NUMBER, path)))
            found.attrib |= {"cx": _number(x), "cy": _number(y), "r": _number(radius)}
        else:
            found.tag = "path"
            found.set("d", _path(path, (x, y)))
        return found

    def _attributed(self, node: Element) -> Element:
        style = dict(part.split(": ", 1) for part in node.get("style", "").split("; ") if part)
        found = Element(node.tag, {k: v for k, v in (node.attrib | style).items() if k not in _DROPPED})
        if node.tag in ("clipPath", "pattern"):
            found.set("id", node.get("id", ""))
        hatch = found.get("fill", "")
        for pattern in self._root.iter("pattern") if hatch.startswith("url(") else ():
            # The colour behind it tells kinds apart where a page has no grey print; white keeps its hatch.
            if pattern.get("id") == hatch[5:-1] and (colour := pattern[0].get("fill", "")) != "#ffffff":
                found.set("fill", colour)
        for key in ("x", "y", "width", "height", "stroke-width", "fill-opacity", "stroke-opacity"):
            if key in found.attrib:
                found.set(key, f"{float(found.attrib[key]):.4g}" if "-" in key else _number(float(found.attrib[key])))
        if node.tag == "path":
            found.set("d", _path(node.get("d", "")))
        if node.tag == "text":
            found.text = node.text
        found.extend(self._attributed(child) for child in node)
        return found


def _look(part: Element) -> list[tuple[str, str]]:
    return sorted((key, value) for key, value in part.attrib.items() if key != "d")


def _seen(part: Element) -> bool:
    """Whether a page shows it: not a path of a point, one without colour, or a line from a name to its mark."""
    d, coloured = part.get("d"), part.get("fill") != "none" or part.get("stroke") is not None
    return d is None or (coloured and re.search("[LHVC]", d) is not None)


def _path(d: str, at: tuple[float, float] = (0.0, 0.0)) -> str:
    """A path to a tenth of a pixel, moved; lines along an axis by one number, those that go on as one."""
    found: list[str] = []
    last = (float("nan"), float("nan"))
    for command, numbers in re.findall(r"([MLCQz])([^MLCQz]*)", d):
        values = [float(number) for number in numbers.split()]
        moved = [round(value + at[i % 2], 1) for i, value in enumerate(values)]
        if command == "L" and tuple(moved) == last:
            continue
        if command == "L" and moved[1] == last[1]:
            step = f"H{moved[0]:g}"
        elif command == "L" and moved[0] == last[0]:
            step = f"V{moved[1]:g}"
        else:
            step = command + " ".join(f"{value:g}" for value in moved)
        found.append(step)
        last = (moved[-2], moved[-1]) if moved else last
    return "".join(found)


def _merged(parts: Sequence[Element]) -> Iterator[Element]:
    """Neighbours that differ in their path alone are one: bars of a lane, lines of a grid."""

    def kind(part: Element) -> object:
        alone = part.tag != "path" or len(part) or part.get("class")
        return id(part) if alone else _look(part)

    for _, members in groupby(parts, key=kind):
        first, *others = members
        if others:
            first.set("d", "".join(part.get("d", "") for part in (first, *others)))
        yield first
