"""One workload at many sizes at once, on machines and in ways of execution: columns of what predictions say.

The graph's sizes are columns (ir/points.py), so the code that makes kernels and blocks of one step makes those of all
points that go the same way. Points that go another way (another layout, another fusion, another order of who waits)
are taken again by themselves. The result is what `predict_graph` gives at each point, by the same functions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import sympy
from numpy.typing import NDArray

from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.campaigns.operators import check_ops
from rooflinekit.calibrate.fitting.observations import Observations, observe
from rooflinekit.errors import InputError, SizeError, nearest
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir.arguments import expect
from rooflinekit.ir.graph import Graph, map_graph
from rooflinekit.ir.graph import parts as graphs_at
from rooflinekit.ir.points import Column, Points, TooLargeError, values_of
from rooflinekit.ir.sizes import Size, check_at_all, check_dims, check_names
from rooflinekit.kernels.libraries import formats_channels_last
from rooflinekit.step.bounds import bounds
from rooflinekit.step.entry import as_run, issues_for, kernels_key
from rooflinekit.step.execution import Execution
from rooflinekit.step.labels import REGIME_TERMS
from rooflinekit.step.memory import PointMemory, blocks_of, product_workspace
from rooflinekit.step.prediction import launched_by, timeline_of
from rooflinekit.step.timeline import Timeline
from rooflinekit.step.variants import BATCH
from rooflinekit.timing.energy import PowerLaw
from rooflinekit.timing.estimate import deviations
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.timings import PointKernels, PointTimes

LEVEL = 0.9  # of the interval
REGIMES = tuple(REGIME_TERMS)  # columns hold their places
NO_REGIME = -1  # of a point that is not known
_FACTOR = deviations(LEVEL)
_FEW = 4  # predictions that are made one by one more quickly
_MOST_AGAIN = 0.7  # a class of a smaller share of the points is worked out again without the others

Table = dict[str, NDArray[Any]]

#: Columns fits and peak_bytes, the second alone ("peak"), or none.
Memory = Literal[True, False, "peak"]

_Asked = tuple[Memory, bool]  # which columns there are: of memory, and of parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The machine, host and execution on which a workload is predicted."""

    machine: Machine
    host: Host
    execution: Execution

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices that take part."""
        return (self.machine.device,)

    @property
    def capacity(self) -> float:
        """Bytes of the device's memory."""
        return self.machine.device.dram.capacity


def count_of(sizes: Mapping[str, NDArray[np.int64]]) -> int:
    """The number of combinations of sizes."""
    return len(next(iter(sizes.values()))) if sizes else 1


def unknown_points(
    graph: Graph, sizes: Mapping[str, NDArray[np.int64]], problem: str, *, memory: Memory = True
) -> Table:
    """The columns of `predict_points` where nothing is known, and `problem`, which says why."""
    count = count_of(sizes)
    fills: dict[str, Any] = dict.fromkeys(("total_s", "low_s", "high_s", "gpu_s", "cpu_s"), np.nan)
    fills |= {"regime": np.int8(NO_REGIME), "energy_j": np.nan, "power_w": np.nan}
    if BATCH in sizes or graph.sizes.get(BATCH):
        fills["throughput"] = np.nan
    if memory:
        fills |= {"fits": False} if memory is True else {}
        fills["peak_bytes"] = np.nan
    return {name: np.full(count, value) for name, value in {**fills, "problem": problem}.items()}


def predict_points(
    graph: Graph, settings: Sequence[Setting], sizes: Mapping[str, NDArray[np.int64]], *, memory: Memory = True,
    parts: bool = False,
) -> list[Table]:  # fmt: skip
    """For each setting a table: total_s, low_s, high_s, gpu_s, cpu_s, regime, energy_j, power_w, throughput, fits,
    peak_bytes.

    sizes: for each open size its values, columns of one length. The times' interval is that of 90 %; `throughput` is
    there where a size is named batch. `memory`: whether the last two are there, or ("peak") the last alone. parts: for
    the seconds of each regime too, compute_s to overhead_s, and the step's flop and bytes.
    Raises FormatError for arithmetic that a machine does not have, and InputError for a CUDA graph that cannot be.
    """
    count = count_of(sizes)
    found: list[Table] = [{} for _ in settings]
    # equal for settings whose steps consist of the same kernels and blocks
    kinds = [(kernels_key(graph, s.machine.device, s.execution), product_workspace(s.machine.device)) for s in settings]
    for _, group in groupby(sorted(range(len(settings)), key=kinds.__getitem__), key=kinds.__getitem__):
        places = list(group)
        together = [settings[i] for i in places]
        for own, rows in graphs_at(graph, sizes):
            given = {name: sizes[name][rows] for name in own.dims}
            for index, tables in _classes(own, together, given, len(rows), (memory, parts)):
                for i, table in zip(places, tables, strict=True):
                    for name, values in table.items():
                        found[i].setdefault(name, np.empty(count, dtype=values.dtype))[rows[index]] = values
    return found


def _classes(
    graph: Graph, settings: Sequence[Setting], sizes: Mapping[str, NDArray[np.int64]], count: int, asked: _Asked
) -> Iterator[tuple[NDArray[np.int64], list[Table]]]:
    left = np.arange(count)
    expressions = _expressions(graph)
    while left.size:
        found = None
        if left.size * len(settings) > _FEW and sizes:
            with np.errstate(all="ignore"):  # points that are crossed out may be anything
                found = _class(graph, expressions, settings, {n: c[left] for n, c in sizes.items()}, asked)
        if found is None:
            index = left[:1]
            at = {name: int(column[index[0]]) for name, column in sizes.items()}
            yield index, _one_by_one(graph, settings, at, asked)
            left = left[1:]
        else:
            alike, tables = found
            yield left[alike], tables
            left = left[~alike]


def _class(
    graph: Graph, expressions: Sequence[sympy.Expr], settings: Sequence[Setting],
    sizes: Mapping[str, NDArray[np.int64]], asked: _Asked,
) -> tuple[NDArray[np.bool_], list[Table]] | None:  # fmt: skip
    """Which points go the way of the first, and their tables; None where a count is too large for columns."""

    def step_at(points: Points) -> _Step:
        whole = map_graph(graph, points.evaluator(expressions), dict.fromkeys(points.sizes, 0))
        return _Step(whole, settings[0], points, asked)

    try:
        points = Points(sizes)
        step = step_at(points)
        among = np.ones(points.count, dtype=bool)
        if points.alike.mean() < _MOST_AGAIN:
            among = points.alike.copy()
            points = Points({name: column[among] for name, column in sizes.items()})
            step = step_at(points)
        tables = [step.table(setting) for setting in settings]
    except TooLargeError:
        return None
    alike = np.zeros(among.size, dtype=bool)
    alike[among] = points.alike
    return alike, [{name: column[points.alike] for name, column in table.items()} for table in tables]


def _one_by_one(graph: Graph, settings: Sequence[Setting], sizes: Mapping[str, int], asked: _Asked) -> list[Table]:
    """A point by plain numbers, which may be of any size. Raises SizeError for memory that no table holds."""
    try:
        with np.errstate(divide="ignore", invalid="ignore"):  # of steps of no time
            step = _Step(graph.at(**sizes), settings[0], Points({}), asked)
            return [step.table(setting) for setting in settings]
    except TooLargeError:
        given = ", ".join(f"{name}={value}" for name, value in sizes.items())
        raise SizeError(f"{graph.name} at {given}: more than 2**62 bytes of memory: choose smaller sizes") from None


class _Step:
    """A step whose sizes are columns, with its kernels and blocks on one kind of machine."""

    def __init__(self, graph: Graph, setting: Setting, points: Points, asked: _Asked) -> None:
        memory, self.with_parts = asked
        self.points, self.with_fits, self.graph = points, memory is True, graph
        device, execution = setting.machine.device, as_run(graph, setting.execution)
        self.issues = issues_for(graph, device, execution)
        self.fitting: dict[int, NDArray[np.bool_]] = {}
        self.timed: dict[tuple[int, Execution], PointTimes] = {}
        self.kernels = PointKernels([kernel for issue in self.issues for kernel in issue.kernels], points)
        self.memory: PointMemory | None = None
        if memory:
            self.memory = PointMemory(blocks_of(graph, self.issues, device, execution), points)

    def table(self, setting: Setting) -> Table:
        """The columns of `predict_points` for a setting."""
        machine, execution = setting.machine, as_run(self.graph, setting.execution)
        key = id(machine), execution
        if key not in self.timed:  # hosts share it
            self.timed[key] = self.kernels.time(launched_by(execution, machine))
        times = self.timed[key]
        timeline = self._timeline(times, setting)
        gpu_s = self._column(times.gpu.seconds)
        cpu_s, idle_s, input_s = map(self._column, (timeline.cpu_s, timeline.idle_s, timeline.input_s))
        total_s = gpu_s + idle_s + input_s
        latency_s = gpu_s - times.compute_s - times.memory_s
        parts = np.stack([times.compute_s, times.memory_s, latency_s, idle_s + input_s])
        low_s, high_s = bounds(
            total_s, cpu_s, gpu_s + input_s, np.sqrt(times.gpu.variance),
            setting.host.spread, _FACTOR, in_series=machine.device.kind == "cpu",
        )  # fmt: skip
        law = PowerLaw.of(machine)
        idle_w = np.full(total_s.shape, np.nan if law is None else law.idle_w)
        energy_j = (0.0 if law is None else times.gpu.joules) + idle_w * total_s
        table: Table = {
            "total_s": total_s, "low_s": low_s, "high_s": high_s, "gpu_s": gpu_s, "cpu_s": cpu_s,
            "regime": np.argmax(parts / total_s, axis=0).astype(np.int8), "energy_j": energy_j,
            "power_w": np.divide(energy_j, total_s, out=idle_w, where=total_s > 0),
        }  # fmt: skip
        if self.with_parts:
            table |= {f"{name}_s": seconds for name, seconds in zip(REGIMES, parts, strict=True)}
            table |= {"flop": self._column(self.graph.summed(lambda cost: cost.flop)), "bytes": times.bytes}
        batch = self.points.sizes.get(BATCH, self.graph.sizes.get(BATCH) or None)
        if batch is not None:
            table["throughput"] = np.broadcast_to(batch / total_s, total_s.shape)
        return table | self._memory_on(machine.device)

    def _memory_on(self, device: Device) -> Table:
        """The columns of memory that are asked for."""
        if self.memory is None:
            return {}
        if self.with_fits and id(device) not in self.fitting:  # limits of power share it
            self.fitting[id(device)] = self.memory.fits(device)
        fits = {"fits": self.fitting[id(device)]} if self.with_fits else {}
        return {**fits, "peak_bytes": self.memory.peak_bytes}

    def _timeline(self, times: PointTimes, setting: Setting) -> Timeline:
        single, kernel_s = self.points.count == 1, times.kernel_s
        lasting: list[Any] = [
            SimpleNamespace(total_s=float(seconds[0]) if single else Column(self.points, seconds, 0.0))
            for seconds in kernel_s
        ]
        timings = (lasting[row] for row in self.kernels.rows)
        execution = as_run(self.graph, setting.execution)
        return timeline_of(self.graph, self.issues, timings, setting.machine.device, setting.host, execution)

    def _column(self, values: Any) -> NDArray[np.float64]:
        return np.broadcast_to(np.asarray(values_of(values), dtype=float), (self.points.count,))


def _expressions(graph: Graph) -> tuple[sympy.Expr, ...]:
    """Every formula of a size in the graph, once."""
    found: dict[sympy.Expr, None] = {}

    def note(size: Size) -> Size:
        if isinstance(size, sympy.Basic):
            found[size] = None
        return size

    map_graph(graph, note, {})
    return tuple(found)


_AT_ONCE = 2**16  # combinations of sizes looked at together

#: Sizes that vary together: their names, or several groups of names.
Together: TypeAlias = Sequence[str] | Sequence[Sequence[str]] | None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """For each size its values: every combination of them, the last fastest."""

    lists: Mapping[str, tuple[int, ...]]
    together: tuple[tuple[str, ...], ...] = ()  # sizes of which the first values go together, the second, and so on

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The sizes that vary together, as groups; a size that varies by itself is one."""
        of = {name: names for names in self.together for name in names}
        return tuple(dict.fromkeys(of.get(name, (name,)) for name in self.lists))

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """How many values each group has."""
        return tuple(len(self.lists[names[0]]) for names in self.groups)

    @property
    def points(self) -> int:
        """How many combinations there are."""
        return math.prod(self.lengths)

    def at(self, index: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """The sizes of these combinations, by their numbers."""
        return self.at_places(np.unravel_index(index, self.lengths)) if self.lists else {}

    def at_places(self, places: Sequence[NDArray[Any]]) -> dict[str, NDArray[np.int64]]:
        """The sizes at these places of the values of each group."""
        place = {name: one for names, one in zip(self.groups, places, strict=True) for name in names}
        return {name: np.array(values, dtype=np.int64)[place[name]] for name, values in self.lists.items()}


def grid_of(graphs: Iterable[Graph], sizes: Mapping[str, Any], together: Together) -> Grid:
    """The sizes at which these graphs are predicted, without those that a graph forces to the only value given.

    sizes: for each open size a positive integer, or a list, range or array of them. together: names of sizes that vary
    together, or several such groups. Raises SizeError as `Graph.at` does, and where a trace does not hold at one of the
    sizes; InputError for groups that cannot be.
    """
    graphs = list(graphs)
    lists = {name: _listed(name, given) for name, given in sizes.items()}
    groups = _groups(together, lists)
    for graph in graphs:
        for name in (size.name for size in graph.forced if size.name in lists):
            for value in lists[name]:
                graph.at(**{name: value})
    forced = {size.name for graph in graphs for size in graph.forced}
    lists = {name: values for name, values in lists.items() if name not in forced}
    left = tuple(tuple(name for name in names if name in lists) for names in groups)
    grid = Grid(lists=lists, together=tuple(names for names in left if len(names) > 1))
    for graph in graphs:
        check_names(lists, graph.dims)
        for condition in graph.conditions:
            check_at_all(condition, [{name: lists[name] for name in names} for names in grid.groups], graph.sizes)
        # traced here at those of the sizes that the graph does not speak for: other processes have no model
        for start in range(0, grid.points if graph.apart else 0, _AT_ONCE):
            deque(graphs_at(graph, grid.at(np.arange(start, min(start + _AT_ONCE, grid.points)))), maxlen=0)
    return grid


def check_sizes(sizes: Mapping[str, Any], together: Together) -> None:
    """What can be said of sizes before there is a graph: raises SizeError and InputError as `grid_of` does."""
    _groups(together, {name: _listed(name, given) for name, given in sizes.items()})


def _listed(name: str, given: Any) -> tuple[int, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str) or getattr(given, "shape", None) == ():
        return tuple(check_dims({name: given}, (name,)).values())
    found = list(given)
    if not found:
        raise SizeError(f"size {name!r}: expected a positive integer or a list of them; got {given!r:.60}")
    return tuple(check_dims({name: value}, (name,))[name] for value in found)


def _groups(together: Together, lists: Mapping[str, Sequence[int]]) -> tuple[tuple[str, ...], ...]:
    given: list[Any] = list(together or ()) if together is None or isinstance(together, Iterable) else [together]
    named = not isinstance(together, str) and all(isinstance(one, str | tuple | list) for one in given)
    expect(named, "zip", "names of sizes, such as ('batch', 'seq')", together)
    single = bool(given) and all(isinstance(name, str) for name in given)
    groups = [tuple(map(str, names)) for names in ([given] if single else given)]
    names = [name for group in groups for name in group]
    for name in names:
        if name not in lists:
            raise InputError(
                f"zip: no size {name!r} is given; given are {', '.join(lists) or 'none'}{nearest(name, lists)}"
            )
        if names.count(name) > 1:
            raise InputError(f"zip: {name!r} is there more than once")
    for group in groups:
        if len(group) < 2:
            raise InputError(f"zip: expected two or more sizes that vary together; got {', '.join(group) or 'none'}")
        if len({len(lists[name]) for name in group}) > 1:
            counts = ", ".join(f"{name} {len(lists[name])}" for name in group)
            raise InputError(f"zip: sizes that vary together have as many values each; got {counts}")
    return tuple(groups)


def sweep_table(table: pd.DataFrame, machines: Sequence[Machine]) -> pd.DataFrame:
    """The table with one more column a machine: seconds of each row's kernels, as a profiler sees them.

    table: ops as in a campaign, with columns op, dtype and the sizes. Raises InputError for what cannot be timed, and
    for a machine whose name is a column already; FormatError for arithmetic that a machine does not have.
    """
    check_ops(table)
    taken = [machine.name for machine in machines if machine.name in table]
    if taken:
        raise InputError(f"the table has a column {taken[0]!r} already; drop or rename it")
    seconds = {machine.name: np.zeros(len(table)) for machine in machines}
    numbered = table.reset_index(drop=True)
    for (op, _), rows in numbered.groupby(["op", "dtype"], sort=False):
        given = rows.assign(seconds=np.nan)  # what was measured; here nothing was
        known: dict[frozenset[str], Observations] = {}
        for machine in machines:
            layouts = frozenset(formats_channels_last(machine.device))
            if layouts not in known:
                untimed = Campaign(gpu=machine.name, source="", licence="", timing="profiler", rows=given)
                known[layouts] = observe(untimed, str(op), machine.device)
            seconds[machine.name][rows.index] = known[layouts].predict(machine, {})
    return table.assign(**seconds)
