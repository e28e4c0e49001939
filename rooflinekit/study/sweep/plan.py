"""What a sweep is: axes, each with its choices, times sizes; and how it is cut into pieces of work."""

from __future__ import annotations

import hashlib
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import sympy
from numpy.typing import NDArray

from rooflinekit import __version__
from rooflinekit.distributed import groups
from rooflinekit.distributed.groups import batch_of, setting_of
from rooflinekit.distributed.planning import plan
from rooflinekit.distributed.records import Savers, Strategy, strategy_of
from rooflinekit.errors import InputError, SizeError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import cluster_of
from rooflinekit.ir.arguments import expect, expect_count
from rooflinekit.ir.graph import Graph
from rooflinekit.step.execution import Execution
from rooflinekit.step.variants import BATCH
from rooflinekit.study.sweep import points
from rooflinekit.study.sweep.points import LEVEL, Grid, Memory, Setting, Table, Together, count_of, grid_of

BLOCK = 8192  # points of one piece: arrays of as many numbers stay in a core's cache
_ROWS = 65536  # of one piece: as many settings as this leaves room for share the points' kernels
_EACH = 4  # points of one piece where each is predicted by itself, which takes tenths of a second

_NUMBERS = (
    "total_s", "low_s", "high_s", "throughput", "communication_s", "exposed_s", "energy_j", "power_w", "peak_bytes"
)  # fmt: skip
_COLUMNS = (*_NUMBERS[:-1], "fits", "peak_bytes", "problem")  # of steps on several devices
_DROPPED: dict[Memory, tuple[str, ...]] = {True: (), "peak": ("fits",), False: ("fits", "peak_bytes")}
_UNKNOWN = {**dict.fromkeys(_NUMBERS, math.nan), "fits": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What varies beside the sizes: for each choice, by its name, the fields of a `Case` that it sets."""

    name: str
    choices: Mapping[Any, Mapping[str, Any]]
    shown: bool = True  # whether results have a column of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One choice on every axis."""

    labels: Mapping[str, Any]  # axis → choice
    graph: Graph
    setting: Setting | Team


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Cases that share a graph, at some of the sizes: what one process works on at a time."""

    number: int
    first: int  # of its cases
    cases: int  # how many
    start: int  # the first of its combinations of sizes
    payload: bytes  # graph and settings
    sizes: Mapping[str, NDArray[np.int64]]
    memory: Memory

    @property
    def points(self) -> int:
        """The number of combinations of sizes."""
        return count_of(self.sizes)

    @property
    def rows(self) -> int:
        """The number of predictions."""
        return self.cases * self.points

    def predict(self) -> list[Table]:
        """A table for each case."""
        graph, settings = opened(self.payload)
        return predict_settings(graph, settings, self.sizes, memory=self.memory)

    def unknown(self, problem: str) -> list[Table]:
        """Tables of missing numbers where the piece cannot be predicted, for the reason in `problem`."""
        graph, settings = opened(self.payload)
        return unknown_settings(graph, settings, self.sizes, problem, memory=self.memory)

    def halves(self) -> tuple[Piece, Piece]:
        """Its first sizes and its last; at one combination of sizes its first cases and its last."""
        if self.points > 1:
            middle = self.points // 2
            first, last = ({name: column[part] for name, column in self.sizes.items()}
                           for part in (slice(middle), slice(middle, None)))  # fmt: skip
            return replace(self, sizes=first), replace(self, sizes=last, start=self.start + middle)
        graph, settings = opened(self.payload)
        middle = self.cases // 2
        one, other = packed(graph, settings[:middle]), packed(graph, settings[middle:])
        rest = replace(self, cases=self.cases - middle, first=self.first + middle, payload=other)
        return replace(self, cases=middle, payload=one), rest


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep: every case at every combination of sizes."""

    axes: tuple[Axis, ...]
    cases: tuple[Case, ...]
    grid: Grid
    memory: Memory = True

    @property
    def rows(self) -> int:
        """The number of predictions."""
        return self.grid.points * len(self.cases)

    @property
    def each(self) -> bool:
        """Whether points are predicted one by one, as steps on several devices are."""
        return isinstance(self.cases[0].setting, Team)

    def pieces(self) -> Iterator[Piece]:
        """The work, in the order of the cases and sizes; many cases together where sizes are few."""
        number = first = 0
        block = _EACH if self.each else BLOCK
        together = 1 if self.each else max(1, _ROWS // max(1, min(block, self.grid.points)))
        for _, alike in groupby(self.cases, key=lambda case: id(case.graph)):
            of_graph = [*alike]
            for cases in (of_graph[i : i + together] for i in range(0, len(of_graph), together)):
                payload = packed(cases[0].graph, [case.setting for case in cases])
                for start in range(0, self.grid.points, block):
                    index = np.arange(start, min(start + block, self.grid.points))
                    yield Piece(
                        number=number, first=first, cases=len(cases), start=start, payload=payload,
                        sizes=self.grid.at(index), memory=self.memory,
                    )  # fmt: skip
                    number += 1
                first += len(cases)

    @cached_property
    def parts(self) -> dict[str, str]:
        """What tells this sweep from others: a digest of each axis and of the sizes."""
        return {
            **{axis.name: _digest(axis.choices) for axis in self.axes},
            "sizes": _digest([self.grid.lists, self.grid.together] if self.grid.together else self.grid.lists),
            "columns": _digest(self.memory),
            "version": f"{__version__}, pieces of {BLOCK}, {_ROWS}, {_EACH}",  # rows of two do not mix
        }


def plan_of(
    axes: Sequence[Axis], common: Mapping[str, Any], sizes: Mapping[str, Any], *, memory: Memory = True,
    together: Together = None,
) -> Plan:  # fmt: skip
    """The sweep over these axes and sizes.

    common: what no axis sets. Where a cluster is chosen, or common, steps are training steps on several devices. sizes,
    together: see `grid_of`. Raises what that and `setting_of` raise.
    """
    cases = [
        Case(labels=labels, graph=given["graph"], setting=_made(given)) for labels, given in _combinations(axes, common)
    ]
    for case in cases:
        if isinstance(case.setting, Team) and BATCH not in case.graph.dims:
            batch_of(case.graph)
    graphs = {id(case.graph): case.graph for case in cases}.values()
    return Plan(axes=tuple(axes), cases=tuple(cases), grid=grid_of(graphs, sizes, together), memory=memory)


def _combinations(axes: Sequence[Axis], common: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """One choice on every axis: the names of these, and what they set beside what is common."""
    for chosen in product(*(axis.choices.items() for axis in axes)):
        labels = {axis.name: label for axis, (label, _) in zip(axes, chosen, strict=True)}
        yield labels, {**common, **{name: value for _, changes in chosen for name, value in changes.items()}}


def packed(graph: Graph, settings: Sequence[Setting | Team]) -> bytes:
    """A graph and settings for another process. Raises InputError for a graph that holds what cannot go there."""
    try:
        return pickle.dumps((graph, tuple(settings)))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(f"{graph.name}: cannot be handed to another process: {error}") from error


@lru_cache(maxsize=4)
def opened(payload: bytes) -> tuple[Graph, tuple[Setting | Team, ...]]:
    """The graph and the settings that `packed` has packed."""
    return pickle.loads(payload)  # type: ignore[no-any-return]


def _digest(value: Any) -> str:
    """Equal for equal records, in any process."""
    memory: dict[int, tuple[Any, str]] = {}

    def text(value: Any) -> str:
        if isinstance(value, str | int | float | bool | None):
            return repr(value)
        if id(value) not in memory:
            memory[id(value)] = (value, hashlib.sha256(plain(value).encode()).hexdigest())
        return memory[id(value)][1]

    def plain(value: Any) -> str:
        if is_dataclass(value) and not isinstance(value, type):
            kept = [f.name for f in fields(value) if f.compare and f.name != "fx"]
            return f"{type(value).__name__}({', '.join(f'{name}={text(getattr(value, name))}' for name in kept)})"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{text(k)}: {text(v)}' for k, v in value.items())}}}"
        if isinstance(value, frozenset | set):
            return f"{{{', '.join(sorted(map(text, value)))}}}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(text, value))}]"
        return f"{type(value).__name__} {sympy.srepr(value) if isinstance(value, sympy.Basic) else value}"

    return hashlib.sha256(text(value).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Devices of a cluster, and how they share a step."""

    setting: groups.Setting
    strategy: Strategy
    savers: Savers
    proportional: bool

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices that take part."""
        return tuple(self.setting.machine(number).device for number in self.setting.numbers)

    @property
    def capacity(self) -> float:
        """Bytes of the smallest device's memory."""
        return min(device.dram.capacity for device in self.devices)


def predict_settings(
    graph: Graph, settings: Sequence[Setting | Team], sizes: Mapping[str, NDArray[np.int64]], *, memory: Memory = True
) -> list[Table]:
    """A table for each setting; settings are of one kind.

    Of devices alone see `predict_points`; of teams total_s, low_s, high_s (90 %), throughput, communication_s,
    exposed_s, energy_j, power_w (of all devices, NaN where one's power is not stated), fits, peak_bytes (of the fullest
    device), problem: why a step cannot be cut that way, such as fewer samples than devices, and all else is NaN.
    """
    teams = [one for one in settings if isinstance(one, Team)]
    if not teams:
        return points.predict_points(graph, [one for one in settings if isinstance(one, Setting)], sizes, memory=memory)
    each = [{name: int(column[i]) for name, column in sizes.items()} for i in range(count_of(sizes))]
    return [_stacked([_planned(graph, team, point) for point in each], memory) for team in teams]


def unknown_settings(
    graph: Graph, settings: Sequence[Setting | Team], sizes: Mapping[str, NDArray[np.int64]], problem: str, *,
    memory: Memory = True,
) -> list[Table]:  # fmt: skip
    """Tables of missing numbers, for the reason in `problem`."""
    if isinstance(settings[0], Team):
        table = _stacked([{**_UNKNOWN, "problem": problem}] * count_of(sizes), memory)
    else:
        table = points.unknown_points(graph, sizes, problem, memory=memory)
    return [table] * len(settings)


def _stacked(rows: Sequence[Mapping[str, Any]], memory: Memory) -> Table:
    return {name: np.array([row[name] for row in rows]) for name in _COLUMNS if name not in _DROPPED[memory]}


def _planned(graph: Graph, team: Team, sizes: Mapping[str, int]) -> dict[str, Any]:
    try:
        p = plan(graph.at(**sizes), team.setting, team.strategy, savers=team.savers, proportional=team.proportional)
    except SizeError:
        raise
    except InputError as error:
        return {**_UNKNOWN, "problem": str(error)}
    low, high = p.interval(LEVEL)
    plain = ("total_s", "throughput", "communication_s", "exposed_s", "fits")
    return {
        **{name: getattr(p, name) for name in plain}, "low_s": low, "high_s": high,
        "energy_j": math.nan if p.energy_j is None else p.energy_j,
        "power_w": math.nan if p.power_w is None else p.power_w, "peak_bytes": float(p.peak_bytes), "problem": "",
    }  # fmt: skip


def label_of(record: Strategy | Savers) -> str:
    """What of it is not as by default.

    >>> from rooflinekit.distributed.records import DDP
    >>> label_of(DDP()), label_of(DDP(backend="gloo"))
    ('DDP()', "DDP(backend='gloo')")
    """
    plain = type(record)()
    given = [f.name for f in fields(record) if getattr(record, f.name) != getattr(plain, f.name)]
    return f"{type(record).__name__}({', '.join(f'{name}={getattr(record, name)!r}' for name in given)})"


def check_on_clusters(axes: Sequence[Axis], host: str | Path | Host | None, executions: Sequence[Execution]) -> None:
    """Looks at every combination of what `cluster_axes` made, before any model is traced. Raises InputError."""
    for _, given in _combinations(axes, {"host": host, "proportional": False}):
        for execution in executions:
            _made({**given, "execution": execution})


def cluster_axes(
    clusters: Sequence[str | Path | Cluster], *, gpus: Sequence[Any] | None,
    strategies: Sequence[str | Strategy] | None, savers: Savers | Sequence[Savers] | None, split: str,
) -> tuple[Axis, ...]:  # fmt: skip
    """Clusters, numbers of devices, strategies and savers to choose from.

    gpus: how many devices from a cluster's first, each number a choice; None for all. strategies: DDP where there are
    none. Raises InputError for what is no choice.
    """
    expect(split in ("even", "proportional"), "split", "'even' or 'proportional'", split)
    found = list(map(cluster_of, _several("clusters", clusters)))
    chosen = _several("strategies", ("ddp",) if strategies is None else strategies)
    saved = [Savers()] if savers is None else [savers] if isinstance(savers, Savers) else _several("savers", savers)
    for one in saved:
        expect(isinstance(one, Savers), "savers", "Savers(…), or several", one)
    named = {one if isinstance(one, str) else label_of(one): {"strategy": one} for one in chosen}
    return (
        Axis(name="cluster", choices={one.name: {"cluster": one} for one in found}),
        Axis(name="gpus", choices={n: {"gpus": n} for n in _counts(gpus)}, shown=gpus is not None),
        Axis(name="strategy", choices=named),
        Axis(name="savers", choices={str(one): {"savers": one} for one in saved}, shown=savers is not None),
    )


def _made(given: Mapping[str, Any]) -> Setting | Team:
    if "cluster" not in given:
        return Setting(**{f.name: given[f.name] for f in fields(Setting)})
    setting = setting_of(given["cluster"], given["gpus"], given["host"], given["execution"], None)
    strategy = strategy_of(given["strategy"], len(setting.numbers))
    return Team(setting=setting, strategy=strategy, savers=given["savers"], proportional=given["proportional"])


def _several(name: str, given: Sequence[Any]) -> list[Any]:
    expect(isinstance(given, Sequence) and not isinstance(given, str), name, "a list", given)
    if not given:
        raise InputError(f"{name}: expected one or more; got none")
    return list(given)


def _counts(gpus: Sequence[Any] | None) -> list[int | None]:
    if gpus is None:
        return [None]
    counts = _several("gpus", gpus)
    for count in counts:
        expect_count("gpus: beside clusters, how many devices take part", count, words="integers")
    return [int(count) for count in counts]
