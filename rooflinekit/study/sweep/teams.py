"""Sweeps over clusters, strategies and memory savers: their axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import load_cluster
from rooflinekit.ir.graph import Graph
from rooflinekit.step.execution import Execution
from rooflinekit.strategies.program import BATCH, batch_of, setting_of
from rooflinekit.strategies.records import Savers, Strategy, strategy_of
from rooflinekit.study.sweep.clusters import Team, label_of
from rooflinekit.study.sweep.plan import Axis, Plan, plan_of
from rooflinekit.study.sweep.points import Memory
from rooflinekit.study.sweep.sizes import Together


def plan_on_clusters(
    graphs: Mapping[str, Graph],
    clusters: Sequence[str | Path | Cluster],
    sizes: Mapping[str, Any],
    axes: Sequence[Axis],
    *,
    gpus: Sequence[Any] | None,
    strategies: Sequence[str | Strategy] | None,
    savers: Savers | Sequence[Savers] | None,
    split: str,
    host: str | Path | Host | None,
    memory: Memory = True,
    together: Together = None,
) -> Plan:
    """The sweep of training steps over these axes (models, executions) and those of clusters.

    gpus: how many devices from a cluster's first, each number a choice; None for all. strategies: DDP where there are
    none. split, host: see `parallel`. Raises InputError for what is no choice, and what `setting_of` raises.
    """
    for graph in graphs.values():
        if BATCH not in graph.dims:
            batch_of(graph)
    every = (*axes, *cluster_axes(clusters, gpus=gpus, strategies=strategies, savers=savers, split=split))
    common = {"host": host, "proportional": split == "proportional"}
    return plan_of(every, common, sizes, memory=memory, together=together, made=_team)


def check_on_clusters(axes: Sequence[Axis], host: str | Path | Host | None, executions: Sequence[Execution]) -> None:
    """Looks at every combination of what `cluster_axes` made, before any model is traced. Raises InputError."""
    for chosen in product(*(axis.choices.values() for axis in axes)):
        given = {name: value for changes in chosen for name, value in changes.items()}
        for execution in executions:
            _team({**given, "host": host, "execution": execution, "proportional": False})


def cluster_axes(
    clusters: Sequence[str | Path | Cluster],
    *,
    gpus: Sequence[Any] | None,
    strategies: Sequence[str | Strategy] | None,
    savers: Savers | Sequence[Savers] | None,
    split: str,
) -> tuple[Axis, ...]:
    """Clusters, numbers of devices, strategies and savers to choose from. Raises InputError for what is no choice."""
    if split not in ("even", "proportional"):
        raise InputError(f"split: expected 'even' or 'proportional'; got {split!r}")
    found = [one if isinstance(one, Cluster) else load_cluster(one) for one in _several("clusters", clusters)]
    chosen = _several("strategies", ("ddp",) if strategies is None else strategies)
    saved = [Savers()] if savers is None else [savers] if isinstance(savers, Savers) else _several("savers", savers)
    if wrong := [one for one in saved if not isinstance(one, Savers)]:
        raise InputError(f"savers: expected Savers(…), or several; got {wrong[0]!r:.60}")
    return (
        Axis(name="cluster", choices={one.name: {"cluster": one} for one in found}),
        Axis(name="gpus", choices={n: {"gpus": n} for n in _counts(gpus)}, shown=gpus is not None),
        Axis(name="strategy", choices={_label(one): {"strategy": one} for one in chosen}),
        Axis(name="savers", choices={str(one): {"savers": one} for one in saved}, shown=savers is not None),
    )


def _team(given: Mapping[str, Any]) -> Team:
    setting = setting_of(given["cluster"], given["gpus"], given["host"], given["execution"], None)
    strategy = strategy_of(given["strategy"], len(setting.numbers))
    return Team(setting=setting, strategy=strategy, savers=given["savers"], proportional=given["proportional"])


def _several(name: str, given: Sequence[Any]) -> list[Any]:
    if isinstance(given, str | Path) or not isinstance(given, Sequence):
        raise InputError(f"{name}: expected a list; got {given!r:.60}")
    if not given:
        raise InputError(f"{name}: expected one or more; got none")
    return list(given)


def _counts(gpus: Sequence[Any] | None) -> list[int | None]:
    if gpus is None:
        return [None]
    counts = _several("gpus", gpus)
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"gpus: beside clusters, how many devices take part: expected integers; got {count!r:.60}")
    return counts


def _label(strategy: str | Strategy) -> str:
    return strategy if isinstance(strategy, str) else label_of(strategy)
