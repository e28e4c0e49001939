"""Training steps on several devices as cases of a sweep: each point is planned and predicted by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.distributed.groups import Setting
from rooflinekit.distributed.planning import plan
from rooflinekit.distributed.records import Savers, Strategy
from rooflinekit.errors import InputError, SizeError
from rooflinekit.hardware.device import Device
from rooflinekit.ir.graph import Graph
from rooflinekit.study.sweep.points import LEVEL, Memory, Table, predict_points, unknown_points
from rooflinekit.study.sweep.points import Setting as Alone

_NUMBERS = (
    "total_s", "low_s", "high_s", "throughput", "communication_s", "exposed_s", "energy_j", "power_w", "peak_bytes"
)  # fmt: skip
_COLUMNS = (*_NUMBERS[:-1], "fits", "peak_bytes", "problem")
_DROPPED: dict[Memory, tuple[str, ...]] = {True: (), "peak": ("fits",), False: ("fits", "peak_bytes")}
_UNKNOWN = dict.fromkeys(_NUMBERS, float("nan"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Devices of a cluster, and how they share a step."""

    setting: Setting
    strategy: Strategy
    savers: Savers
    proportional: bool

    @property
    def name(self) -> str:
        """The cluster's."""
        return self.setting.cluster.name

    @property
    def devices(self) -> tuple[Device, ...]:
        """All that take part."""
        return tuple(self.setting.machine(number).device for number in self.setting.numbers)

    @property
    def capacity(self) -> float:
        """Bytes of the smallest device's memory."""
        return min(device.dram.capacity for device in self.devices)


def predict_settings(
    graph: Graph, settings: Sequence[Alone | Team], sizes: Mapping[str, NDArray[np.int64]], *, memory: Memory = True
) -> list[Table]:
    """A table for each setting, see `predict_points` and `predict_teams`; settings are of one kind."""
    if teams := [one for one in settings if isinstance(one, Team)]:
        return predict_teams(graph, teams, sizes, memory=memory)
    return predict_points(graph, [one for one in settings if isinstance(one, Alone)], sizes, memory=memory)


def unknown_settings(
    graph: Graph, settings: Sequence[Alone | Team], sizes: Mapping[str, NDArray[np.int64]], problem: str, *,
    memory: Memory = True,
) -> list[Table]:  # fmt: skip
    """The same tables where nothing is known: numbers are missing, and `problem` says why."""
    if not isinstance(settings[0], Team):
        return [unknown_points(graph, sizes, problem, memory=memory)] * len(settings)
    row = {**_UNKNOWN, "fits": False, "problem": problem}
    count = len(next(iter(sizes.values()))) if sizes else 1
    return [{name: np.full(count, row[name]) for name in _COLUMNS if name not in _DROPPED[memory]}] * len(settings)


def predict_teams(
    graph: Graph, teams: Sequence[Team], sizes: Mapping[str, NDArray[np.int64]], *, memory: Memory = True
) -> list[Table]:
    """For each team a table: total_s, low_s, high_s, throughput, communication_s, exposed_s, energy_j, power_w, fits,
    peak_bytes, problem.

    The interval is that of 90 %; energy_j and power_w are of all devices together, and no numbers where one's power is
    not stated; peak_bytes is the fullest device's. `problem` says why a step cannot be cut that way,
    such as fewer samples than devices; its times and bytes then are no numbers.
    """
    count = len(next(iter(sizes.values()))) if sizes else 1
    points = [{name: int(column[i]) for name, column in sizes.items()} for i in range(count)]
    tables = []
    for team in teams:
        rows = [_predicted(graph, team, point) for point in points]
        tables.append(
            {name: np.array([row[name] for row in rows]) for name in _COLUMNS if name not in _DROPPED[memory]}
        )
    return tables


def _predicted(graph: Graph, team: Team, sizes: Mapping[str, int]) -> dict[str, Any]:
    try:
        p = plan(graph.at(**sizes), team.setting, team.strategy, savers=team.savers, proportional=team.proportional)
    except SizeError:
        raise
    except InputError as error:
        return {**_UNKNOWN, "fits": False, "problem": str(error)}
    low, high = p.interval(LEVEL)
    return {
        "total_s": p.total_s, "low_s": low, "high_s": high, "throughput": p.throughput,
        "communication_s": p.communication_s, "exposed_s": p.exposed_s, "fits": p.fits,
        **{name: math.nan if value is None else value for name, value in (
            ("energy_j", p.energy_j), ("power_w", p.power_w)
        )},
        "peak_bytes": float(max(share.memory.peak_bytes for share in p.shares)), "problem": "",
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
