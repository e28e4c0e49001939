"""What a measurement makes of a whole sweep's times: worked out at some sizes, and interpolated between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator

from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.study.sweep.plan import Case, Team
from rooflinekit.study.sweep.points import LEVEL, Grid
from rooflinekit.study.transfer.transferred import Transferred, widths

#: Values of a size at which a correction is worked out, by how many sizes vary; each is a whole prediction.
_ANCHORS = {1: 9, 2: 5}
_FEWEST = 3


class Correcting:
    """Corrects the times of a sweep's tables in place.

    The correction and the spread that is left change slowly with sizes: they are linear in the logarithm of sizes
    between values spaced evenly in it, at which they are exact. So they are in a table of one row.
    """

    def __init__(self, correct: Callable[[Prediction], Transferred], grid: Grid) -> None:
        self._correct = correct
        self._groups = [(names, _anchors(grid, names)) for names in grid.groups if len(set(grid.lists[names[0]])) > 1]
        self._grid = grid
        count = _ANCHORS.get(len(self._groups), _FEWEST)
        self._places = [_spread(grid.lists[names[0]], places, count) for names, places in self._groups]
        self._known: dict[int, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {}

    def __call__(self, case: Case, sizes: Mapping[str, NDArray[np.int64]], table: dict[str, NDArray[Any]]) -> None:
        """The table's times, and the throughput, at these sizes of the case."""
        mean, spread, freedom, surprise = self._posterior(case, sizes, len(table["total_s"])).T
        plain, low, high = (table[name] for name in ("total_s", "low_s", "high_s"))
        total = plain * np.exp(mean)
        below, above = widths(spread, freedom, surprise, LEVEL, plain / low, high / plain)
        table["total_s"], table["low_s"], table["high_s"] = total, total / below, total * above
        if "throughput" in table:
            table["throughput"] = table["throughput"] / np.exp(mean)

    def _posterior(self, case: Case, sizes: Mapping[str, NDArray[np.int64]], count: int) -> NDArray[np.float64]:
        """[points, mean, spread, degrees of freedom and surprise]"""
        if count == 1:
            return np.array([self._at(case, {name: int(values[0]) for name, values in sizes.items()})])
        if id(case) not in self._known:
            self._known[id(case)] = self._at_anchors(case)
        at = [np.log(sizes[names[0]].astype(float)) for names, _ in self._groups]
        points = np.column_stack(at) if at else np.zeros((count, 0))
        return self._known[id(case)](points)

    def _at_anchors(self, case: Case) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
        shape = tuple(len(places) for places in self._places)
        found = np.zeros((*shape, 4))
        for index in np.ndindex(*shape):
            place = {names[0]: self._places[i][index[i]] for i, (names, _) in enumerate(self._groups)}
            found[index] = self._at(case, {
                name: self._grid.lists[name][place.get(names[0], 0)] for names in self._grid.groups for name in names
            })  # fmt: skip
        if not shape:
            return lambda points: np.tile(found, (len(points), 1))
        axes = [np.log([float(self._grid.lists[names[0]][i]) for i in places])
                for (names, _), places in zip(self._groups, self._places, strict=True)]  # fmt: skip
        return RegularGridInterpolator(axes, found)  # type: ignore[no-any-return]

    def _at(self, case: Case, sizes: Mapping[str, int]) -> tuple[float, float, float, float]:
        assert not isinstance(case.setting, Team)
        setting = case.setting
        plain = predict_graph(case.graph.at(**sizes), setting.machine, setting.host, setting.execution)
        posterior = self._correct(plain).posterior
        return posterior.mean, posterior.spread, posterior.freedom, posterior.surprise


def _anchors(grid: Grid, names: tuple[str, ...]) -> list[int]:
    """Places of a group's values, each value of the first size once, rising."""
    values = grid.lists[names[0]]
    return sorted({value: place for place, value in reversed(list(enumerate(values)))}.values(), key=values.__getitem__)


def _spread(values: tuple[int, ...], places: list[int], count: int) -> list[int]:
    """Some of these places, by values spaced evenly in the logarithm; the first and the last among them."""
    logs = np.log([float(values[place]) for place in places])
    nearest = {int(np.abs(logs - one).argmin()) for one in np.linspace(logs[0], logs[-1], count)}
    return [places[i] for i in sorted(nearest)]
