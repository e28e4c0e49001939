"""Names beside marks, with leader lines where they stand off."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rooflinekit.present.figures.frame import Frame
from rooflinekit.present.figures.labels import Box, Places, around, segment

_LEADER_FROM = 3.0  # points between a mark and its name
_WORTH = 100.0  # what a name may cost: one that covers marks, or whose leader runs through text, is left out
_LONGEST_NAME = 28  # characters


class Name:
    """A mark's name, and what always stands behind it: looks for room, and is written when all have theirs."""

    def __init__(self, frame: Frame, spot: tuple[float, float], radius: float, text: str, behind: str = "") -> None:
        self.box: Box | None = None
        self._leader: Places | None = None
        self._frame = frame
        self._spot = spot
        self._place = frame.place(*spot)
        self._radius = radius
        self._text = shortened(text) + behind
        self._worth = math.inf if behind else _WORTH  # an error that was measured is always told
        self._size = frame.ruler.size(self._text, frame.style.label_font)

    def settle(self) -> None:
        """Takes the best free place, leaving an earlier one."""
        room = self._frame.room
        if self.box is not None:
            room.boxes.remove(self.box)
        room.lines = [line for line in room.lines if line is not self._leader]
        best = room.best(around(*self._place, self._radius, self._size, self._text), self._leader_cost, self._worth)
        self.box = best[1] if best else None
        self._leader = None
        if self.box is not None:
            room.boxes.append(self.box)
            near = self.box.nearest(*self._place)
            if self._gap(near) > _LEADER_FROM:
                self._leader = segment(near, _toward(self._place, near, self._radius))
                room.lines.append(self._leader)

    def write(self) -> None:
        """Writes the name, if it has a place, and draws its leader."""
        if self.box is None:
            return
        end = None if self._leader is None else (float(self._leader[-1, 0]), float(self._leader[-1, 1]))
        self._frame.write(self._text, self.box, self._spot, font=self._frame.style.label_font, leader=end)

    def _gap(self, near: tuple[float, float]) -> float:
        return math.dist(near, self._place) - self._radius

    def _leader_cost(self, box: Box) -> float:
        near = box.nearest(*self._place)
        if self._gap(near) <= _LEADER_FROM:
            return 0.0
        leader = segment(near, _toward(self._place, near, self._radius + 0.5))
        return 2.0 + self._frame.room.crossed(leader, (*self._place, self._radius))


def _toward(start: tuple[float, float], end: tuple[float, float], distance: float) -> tuple[float, float]:
    """The point at this distance from `start` on the way to `end`."""
    share = distance / math.dist(start, end)
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])


def shortened(text: str, longest: int = _LONGEST_NAME) -> str:
    """Text cut in its middle to at most `longest` characters; both ends of a path say something.

    >>> shortened("encoder.layers.*.attention.projection", 20)
    'encoder.la…rojection'
    """
    if len(text) <= longest:
        return text
    front = longest // 2
    return f"{text[:front]}…{text[len(text) - (longest - 1 - front) :]}"


def write_names(names: Sequence[Name]) -> None:
    """Writes names; the first choose first, then each may move once more, now that it knows the others' places."""
    for _ in range(2):
        for name in names:
            name.settle()
    for name in names:
        name.write()
