"""A grid of predictions that a page can walk through: every state predicted, and what interpolation gives left out.

A state is a workload, a GPU, an execution, a host, a limit of power and a size of each name. All are predicted. Of the
times along one size those are dropped that the kept ones give, by logarithms, to within `TOLERANCE`, so that the error
of interpolation is known at every state. FLOP, bytes and memory are kept at each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.errors import InputError
from rooflinekit.hardware.host import Host
from rooflinekit.ir.arguments import expect
from rooflinekit.ir.graph import Graph
from rooflinekit.step.execution import Execution
from rooflinekit.step.variants import BATCH
from rooflinekit.study.sweep.points import REGIMES, Grid, Setting, Table, grid_of, predict_points
from rooflinekit.timing.energy import PowerLaw, limited
from rooflinekit.timing.machine import Machine

TOLERANCE = 0.004  # of a time or an energy, and of the step's time for the share of a regime
TIMES = ("total_s", "low_s", "high_s", "cpu_s", "energy_j")
EXACT = ("flop", "bytes", "peak_bytes", "fits")
_DIGITS = 6  # of what is kept: a hundredth of the tolerance and less
_MOST_ROWS = 400_000  # beyond, neither minutes nor megabytes suffice
_LEAST_S = 1e-12  # instead of 0, which has no logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Times along the last size: at the places kept, a row of `TIMES` and of shares by regime."""

    kept: tuple[int, ...]
    rows: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One choice of everything but sizes: a line for each combination of the other sizes, and `EXACT` at each state."""

    lines: tuple[Line, ...]
    exact: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)  # no slots: the cached properties need a place
class Explored:
    """Predictions of each workload on each GPU, in each execution, by each host, under each limit, at all its sizes.

    limits: shares of the board's own power. sizes: for each workload its sizes, the one that is interpolated last.
    error: the largest of the interpolation at any state, as a share.
    """

    workloads: Mapping[str, Graph]
    machines: tuple[Machine, ...]
    executions: tuple[Execution, ...]
    hosts: tuple[Host, ...]
    limits: tuple[float, ...]
    sizes: Mapping[str, Mapping[str, tuple[int, ...]]]
    series: tuple[Series, ...]  # the product of the above, in this order, the last fastest
    error: float

    @cached_property
    def choices(self) -> Mapping[str, tuple[Any, ...]]:
        """The choices on each axis."""
        return {
            "workload": tuple(self.workloads), "gpu": tuple(machine.name for machine in self.machines),
            "execution": tuple(map(str, self.executions)), "host": tuple(host.name for host in self.hosts),
            "limit": self.limits,
        }  # fmt: skip

    @property
    def states(self) -> int:
        """How many there are, each of them predicted."""
        each = len(self.series) // len(self.workloads)
        return sum(each * prod(map(len, lists.values())) for lists in self.sizes.values())

    @property
    def kept(self) -> int:
        """States whose times are kept as they were predicted."""
        return sum(len(line.kept) for series in self.series for line in series.lines)


def explored(
    workloads: Mapping[str, Graph], machines: Sequence[Machine], executions: Sequence[Execution], hosts: Sequence[Host],
    limits: Sequence[float], sizes: Mapping[str, Any],
) -> Explored:  # fmt: skip
    """All of these predicted.

    sizes: a number, list or range for each open size; those that a workload has and that are not named get values of
    their own, the fewer the more operators it has. limits: shares above 0 and up to 1. Raises InputError for others,
    for a size that no workload has, or for too many states; and what `predict_points` raises.
    """
    for share in limits:
        expect(0 < share <= 1, "power", "shares of the board's own, above 0 and up to 1", share)
    lists = {name: _sizes(graph, sizes) for name, graph in workloads.items()}
    known = {name for one in lists.values() for name in one}
    for name in sizes:
        if name not in known:
            raise InputError(f"no workload has an open size {name!r}: expected {', '.join(sorted(known)) or 'none'}")
    held = []
    for machine, share in product(machines, limits):
        law = PowerLaw.of(machine)
        held.append(machine if law is None or share == 1 else limited(machine, power_w=share * law.board_w))
    each = len(held) * len(executions) * len(hosts)
    if (rows := each * sum(prod(map(len, one.values())) for one in lists.values())) > _MOST_ROWS:
        raise InputError(f"{rows} states are more than {_MOST_ROWS}: name fewer GPUs, hosts, executions or sizes")
    settings = [
        Setting(machine=held[g * len(limits) + k], host=host, execution=execution)
        for g, execution, host, k in product(range(len(machines)), executions, hosts, range(len(limits)))
    ]
    series: list[Series] = []
    worst = 0.0
    for name, graph in workloads.items():
        grid = Grid(lists=lists[name])
        for table in predict_points(graph, settings, grid.at(np.arange(grid.points)), parts=True):
            found, error = _thinned(table, lists[name])
            series.append(found)
            worst = max(worst, error)
    return Explored(
        workloads=workloads, machines=tuple(machines), executions=tuple(executions), hosts=tuple(hosts),
        limits=tuple(limits), sizes=lists, series=tuple(series), error=worst,
    )  # fmt: skip


def _sizes(graph: Graph, given: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The workload's sizes, sorted; the one to interpolate last: the batch, or else the one that has most."""
    known = {name: given[name] for name in graph.dims if name in given}
    missing = [name for name in graph.dims if name not in given]
    count = max(12, 60_000 // max(1, len(graph.ops)))  # combinations that take a few seconds
    each = round(count ** (1 / max(1, len(missing))))
    lists = dict(grid_of([graph], {**known, **{name: usual(name, each) for name in missing}}, None).lists)
    last = BATCH if BATCH in lists else max(lists, key=lambda name: len(lists[name]), default="")
    return {name: tuple(sorted(set(lists[name]))) for name in sorted(lists, key=lambda name: name == last)}


def usual(name: str, count: int) -> tuple[int, ...]:
    """About so many values of a size that nobody has named any of.

    >>> usual("batch", 5), usual("seq", 3), usual("batch", 300)[-1]
    ((1, 2, 4, 8, 16), (512, 1024, 2048), 256)
    """
    # Where few can be had the workload is large, and many a model has to be traced again for a batch of 1.
    first, last = (1 if count > 4 else 2, 256) if name == BATCH else (512, 8192)
    if count >= last - first:
        return tuple(range(first, last + 1))
    top = min(last, first * 2 ** (count - 1))
    return tuple(sorted({round(value) for value in np.geomspace(first, top, max(1, count))}))


def _thinned(table: Table, lists: Mapping[str, tuple[int, ...]]) -> tuple[Series, float]:
    """The states of one setting without those that the others give, and the largest error of these."""
    values = [*lists.values()][-1] if lists else (1,)
    count, total = len(values), table["total_s"]
    shares = [np.divide(table[f"{name}_s"], total, out=np.zeros_like(total), where=total > 0) for name in REGIMES]
    logs = [np.log(np.maximum(table[name], _LEAST_S)) for name in TIMES]
    columns = np.round(np.stack([*logs, *shares]), _DIGITS)
    known: NDArray[np.bool_] = np.logical_not(np.isnan(columns).any(axis=1))
    lines, worst = [], 0.0
    for start in range(0, len(total), count):
        part = columns[:, start : start + count]
        kept, error = _kept(np.log(values), part[known])
        rows = tuple(tuple(_plain(part[:, i], known)) for i in kept)
        lines.append(Line(kept=tuple(kept), rows=rows))
        worst = max(worst, error)
    exact = zip(*(table[name].astype(np.int64).tolist() for name in EXACT), strict=True)
    return Series(lines=tuple(lines), exact=tuple(exact)), worst


def _plain(column: NDArray[np.float64], known: NDArray[np.bool_]) -> Iterator[float | None]:
    """Seconds and joules of their logarithms, and shares; None for what is not known."""
    for k, value in enumerate(column.tolist()):
        yield None if not known[k] else float(f"{np.exp(value):.{_DIGITS}g}") if k < len(TIMES) else value


def _kept(x: NDArray[np.float64], rows: NDArray[np.float64]) -> tuple[list[int], float]:
    """The places between which straight lines give all rows to within the tolerance, and the largest error left.

    Where they do not, the place that is furthest off is kept too, and both sides are looked at (Douglas and Peucker).
    """
    kept, todo, worst = {0, len(x) - 1}, [(0, len(x) - 1)], 0.0
    while todo:
        first, last = todo.pop()
        if last - first < 2:
            continue
        inside = slice(first + 1, last)
        share = (x[inside] - x[first]) / (x[last] - x[first])
        straight = rows[:, first, None] * (1 - share) + rows[:, last, None] * share
        off = np.abs(straight - rows[:, inside]).max(axis=0)
        if off.max() <= TOLERANCE:
            worst = max(worst, float(off.max()))
            continue
        middle = first + 1 + int(off.argmax())
        kept.add(middle)
        todo += [(first, middle), (middle, last)]
    return sorted(kept), worst
