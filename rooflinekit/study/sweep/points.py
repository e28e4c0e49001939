"""One workload at many sizes at once, on machines and in ways of execution: columns of what predictions say.

The graph's sizes are columns (ir/points.py), so the code that makes kernels and blocks of one step makes those of all
points that go the same way. Points that go another way (another layout, another fusion, another order of who waits)
are taken again by themselves. The result is what `predict_graph` gives at each point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import sympy
from numpy.typing import NDArray

from rooflinekit.errors import SizeError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph, map_graph
from rooflinekit.ir.graph import parts as graphs_at
from rooflinekit.ir.points import Column, Points, TooLargeError, values_of
from rooflinekit.ir.sizes import Size
from rooflinekit.model.energy import PowerLaw
from rooflinekit.model.machine import Machine
from rooflinekit.model.point_times import PointKernels, PointTimes
from rooflinekit.step.bounds import bounds
from rooflinekit.step.entry import as_run, entry_of, issues_for, issuing, kernels_key
from rooflinekit.step.execution import Execution
from rooflinekit.step.input_pipeline import input_pipeline_of
from rooflinekit.step.memory import product_workspace
from rooflinekit.step.point_memory import PointMemory
from rooflinekit.step.prediction import launched_by, predict_graph
from rooflinekit.step.timeline import Timeline, schedule

LEVEL = 0.9  # of the interval
REGIMES = ("compute", "memory", "latency", "overhead")  # columns hold their places
NO_REGIME = -1  # of a point that is not known
_FACTOR = NormalDist().inv_cdf((1 + LEVEL) / 2)
_MOST_BYTES = 2**62  # that a table's whole numbers hold
_BATCH = "batch"  # the size of which there is a throughput
_FEW = 4  # predictions that are made one by one more quickly
_MOST_AGAIN = 0.7  # a class of a smaller share of the points is worked out again without the others

Table = dict[str, NDArray[Any]]

#: Columns fits and peak_bytes, the second alone ("peak"), or none.
Memory = Literal[True, False, "peak"]

_Asked = tuple[Memory, bool]  # which columns there are: of memory, and of parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """On what a workload is predicted."""

    machine: Machine
    host: Host
    execution: Execution

    @property
    def name(self) -> str:
        """The device's."""
        return self.machine.name

    @property
    def devices(self) -> tuple[Device, ...]:
        """All that take part."""
        return (self.machine.device,)

    @property
    def capacity(self) -> float:
        """Bytes of the device's memory."""
        return self.machine.device.dram.capacity


def unknown_points(
    graph: Graph, sizes: Mapping[str, NDArray[np.int64]], problem: str, *, memory: Memory = True
) -> Table:
    """The columns of `predict_points` where nothing is known, and `problem`, which says why."""
    count = len(next(iter(sizes.values()))) if sizes else 1
    table: Table = {name: np.full(count, np.nan) for name in ("total_s", "low_s", "high_s", "gpu_s", "cpu_s")}
    table["regime"] = np.full(count, NO_REGIME, dtype=np.int8)
    table |= {name: np.full(count, np.nan) for name in ("energy_j", "power_w")}
    if _BATCH in sizes or graph.sizes.get(_BATCH):
        table["throughput"] = np.full(count, np.nan)
    if memory:
        table |= {"fits": np.full(count, False)} if memory is True else {}
        table["peak_bytes"] = np.full(count, np.nan)
    return {**table, "problem": np.full(count, problem)}


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
    count = len(next(iter(sizes.values()))) if sizes else 1
    found: list[Table] = [{} for _ in settings]
    kinds = [_kind(graph, setting) for setting in settings]
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


def _kind(graph: Graph, setting: Setting) -> tuple[Any, ...]:
    """Equal for settings whose steps consist of the same kernels and blocks."""
    device = setting.machine.device
    return kernels_key(graph, device, setting.execution), product_workspace(device)


def _classes(
    graph: Graph, settings: Sequence[Setting], sizes: Mapping[str, NDArray[np.int64]], count: int, asked: _Asked
) -> Iterator[tuple[NDArray[np.int64], list[Table]]]:
    """The points of each class, and their tables."""
    left = np.arange(count)
    expressions = _expressions(graph)
    while left.size:
        found = None
        if left.size * len(settings) > _FEW and sizes:
            with np.errstate(all="ignore"):  # points that are crossed out may be anything
                found = _class(graph, expressions, settings, {n: c[left] for n, c in sizes.items()}, asked)
        if found is None:
            index = left[:1]
            yield index, _one_by_one(graph, settings, {n: int(c[index[0]]) for n, c in sizes.items()}, asked)
            left = left[1:]
        else:
            alike, tables = found
            yield left[alike], tables
            left = left[~alike]


def _class(
    graph: Graph,
    expressions: Sequence[sympy.Expr],
    settings: Sequence[Setting],
    sizes: Mapping[str, NDArray[np.int64]],
    asked: _Asked,
) -> tuple[NDArray[np.bool_], list[Table]] | None:
    """Which points go the way of the first, and their tables; None where a count is too large for columns."""
    try:
        points = Points(sizes)
        step = _Step(graph, expressions, settings[0], points, asked)
        among = points.alike.copy()
        if among.mean() < _MOST_AGAIN:
            points = Points({name: column[among] for name, column in sizes.items()})
            step = _Step(graph, expressions, settings[0], points, asked)
        tables = [step.table(setting) for setting in settings]
    except TooLargeError:
        return None
    alike = np.zeros(among.size, dtype=bool)
    if points.count == among.size:
        alike = points.alike.copy()
    else:
        alike[among] = points.alike
    return alike, [{name: column[points.alike] for name, column in table.items()} for table in tables]


class _Step:
    """A step whose sizes are columns, with its kernels and blocks on one kind of machine."""

    def __init__(
        self, graph: Graph, expressions: Sequence[sympy.Expr], setting: Setting, points: Points, asked: _Asked
    ) -> None:
        memory, self.with_parts = asked
        self.points, self.with_fits = points, memory is True
        self.graph = map_graph(graph, points.evaluator(expressions), dict.fromkeys(points.sizes, 0))
        device = setting.machine.device
        self.issues = issues_for(self.graph, device, as_run(self.graph, setting.execution))
        self.fitting: dict[int, NDArray[np.bool_]] = {}
        self.timed: dict[tuple[int, Execution], PointTimes] = {}
        self.kernels = PointKernels([kernel for issue in self.issues for kernel in issue.kernels], points)
        self.memory = (
            PointMemory(self.graph, self.issues, device, points, fused=setting.execution.fused) if memory else None
        )

    def table(self, setting: Setting) -> Table:
        """What `predict_points` says of a setting."""
        machine, execution = setting.machine, as_run(self.graph, setting.execution)
        key = id(machine), execution
        if key not in self.timed:  # hosts share it
            self.timed[key] = self.kernels.time(launched_by(execution, machine))
        times = self.timed[key]
        timeline = self._timeline(times, setting)
        idle_s, input_s = (self._column(seconds) for seconds in (timeline.idle_s, timeline.input_s))
        total_s = times.gpu_s + idle_s + input_s
        parts = np.stack([times.compute_s, times.memory_s, times.latency_s, idle_s + input_s])
        cpu_s = self._column(timeline.cpu_s)
        low_s, high_s = bounds(
            total_s, cpu_s, times.gpu_s + input_s, np.sqrt(times.kernel_variance + times.shared_variance),
            setting.host.spread, _FACTOR, in_series=machine.device.kind == "cpu",
        )  # fmt: skip
        table: Table = {
            "total_s": total_s,
            "low_s": low_s,
            "high_s": high_s,
            "gpu_s": times.gpu_s,
            "cpu_s": cpu_s,
            "regime": np.argmax(parts / total_s, axis=0).astype(np.int8),
        }
        law = PowerLaw.of(machine)
        if times.energy_j is not None and law is not None:
            table["energy_j"] = times.energy_j + law.idle_w * total_s
            table["power_w"] = np.divide(table["energy_j"], total_s, out=np.zeros_like(total_s), where=total_s > 0)
        else:
            table["energy_j"], table["power_w"] = (np.full(total_s.shape, np.nan) for _ in range(2))
        if self.with_parts:
            table |= {f"{name}_s": seconds for name, seconds in zip(REGIMES, parts, strict=True)}
            flop = self.graph.summed(lambda cost: cost.flop)
            table |= {"flop": self._column(flop), "bytes": times.bytes}
        batch = self.points.sizes.get(_BATCH, self.graph.sizes.get(_BATCH) or None)
        if batch is not None:
            table["throughput"] = np.broadcast_to(batch / total_s, total_s.shape)
        if self.memory is not None:
            if self.with_fits:
                if id(machine.device) not in self.fitting:  # limits of power share it
                    self.fitting[id(machine.device)] = self.memory.fits(machine.device)
                table["fits"] = self.fitting[id(machine.device)]
            table["peak_bytes"] = self.memory.peak_bytes
        return table

    def _timeline(self, times: PointTimes, setting: Setting) -> Timeline:
        device, host, execution = setting.machine.device, setting.host, as_run(self.graph, setting.execution)
        lasting = [_Lasting(Column(self.points, seconds, 0.0)) for seconds in times.kernel_s]
        rows = iter(self.kernels.rows)
        timings: Any = [tuple(lasting[next(rows)] for _ in issue.kernels) for issue in self.issues]
        feed = input_pipeline_of(self.graph, device, host, execution)
        entry = entry_of(host, execution, self.graph)
        issued = issuing(host, self.graph)
        return schedule(self.issues, timings, issued, execution, feed, entry, in_series=device.kind == "cpu")

    def _column(self, values: Any) -> NDArray[np.float64]:
        return np.broadcast_to(np.asarray(values_of(values), dtype=float), (self.points.count,))


@dataclass(frozen=True, slots=True)
class _Lasting:
    """Of a kernel's timing what the time line needs."""

    total_s: Column


def _expressions(graph: Graph) -> tuple[sympy.Expr, ...]:
    """Every formula of a size in it, once."""
    found: dict[sympy.Expr, None] = {}

    def note(size: Size) -> Size:
        if isinstance(size, sympy.Basic):
            found[size] = None
        return size

    map_graph(graph, note, {})
    return tuple(found)


def _one_by_one(graph: Graph, settings: Sequence[Setting], sizes: Mapping[str, int], asked: _Asked) -> list[Table]:
    """A point the plain way."""
    memory, with_parts = asked
    at = graph.at(**sizes)
    tables: list[Table] = []
    for setting in settings:
        p = predict_graph(at, setting.machine, setting.host, setting.execution)
        low, high = p.interval(LEVEL)
        row: dict[str, Any] = {
            "total_s": p.total_s, "low_s": low, "high_s": high, "gpu_s": p.gpu_s, "cpu_s": p.cpu_s,
            "regime": REGIMES.index(p.regime),
        }  # fmt: skip
        row["energy_j"], row["power_w"] = ((math.nan if v is None else v) for v in (p.energy_j, p.power_w))
        if with_parts:
            row |= {f"{name}_s": share * p.total_s for name, share in p.shares.items()}
            row |= {"flop": float(p.flop), "bytes": float(p.bytes)}
        if _BATCH in p.sizes:
            row["throughput"] = p.sizes[_BATCH] / p.total_s if p.total_s else math.inf
        if memory:
            row |= {"fits": p.memory.fits} if memory is True else {}
            row["peak_bytes"] = p.memory.peak_bytes
            if p.memory.peak_bytes > _MOST_BYTES:
                given = ", ".join(f"{name}={value}" for name, value in sizes.items())
                raise SizeError(f"{graph.name} at {given}: more than 2**62 bytes of memory: choose smaller sizes")
        tables.append({name: np.array([value]) for name, value in row.items()})
    return tables
