"""Walks that predict many times: sweeps, and searches in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from rooflinekit.api.keywords import check_keywords, check_mode, check_sizes_of, inputs_of, with_named
from rooflinekit.api.measured import MeasuredStep, correction_in
from rooflinekit.api.predict import in_base, machines_of, trace
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, cluster_of, host_of, members_of
from rooflinekit.ir.arguments import checked, expect
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import Mode, Release, open_names
from rooflinekit.present.text.progress import counting
from rooflinekit.step.execution import Backend, Execution, check_release, execution_of
from rooflinekit.study.sweep import run as sweep_run
from rooflinekit.study.sweep.plan import Axis, Plan, check_on_clusters, cluster_axes, plan_of
from rooflinekit.study.sweep.points import Memory, Together, check_sizes, sweep_table
from rooflinekit.study.sweep.run import check_out, check_workers
from rooflinekit.study.sweep.search import Found, goal_of, named_prices, search_plan
from rooflinekit.study.sweep.search import requirements_of as requirements_of
from rooflinekit.timing.energy import limited
from rooflinekit.timing.machine import Machine
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd

    from rooflinekit.distributed.records import Savers, Strategy
    from rooflinekit.tracing.tracer import Format, Given, Loss, OptimizerFactory

#: Those of which rows are predictions; beside clusters how many devices take part.
Gpus: TypeAlias = Sequence[str | Path | Device] | Sequence[int]
_One: TypeAlias = "Graph | Callable[..., Any] | str"
Workloads: TypeAlias = "_One | Mapping[str, _One] | pd.DataFrame"


@overload
def sweep(
    workload: Workloads, *inputs: Any, gpus: Gpus | None = ..., clusters: Sequence[str | Path | Cluster] | None = ...,
    strategies: Sequence[str | Strategy] | None = ..., savers: Savers | Sequence[Savers] | None = ...,
    split: Literal["even", "proportional"] = ..., host: str | Path | Host | None = ...,
    execution: Execution | Backend | Sequence[Execution | Backend] = ..., mode: Mode | None = ..., zip: Together = ...,
    power_limits: Sequence[str | float] | None = ..., memory: Memory = ..., executor: Executor | None = ...,
    workers: int | None = ..., out: None = ..., dtype: Format | None = ..., autocast: Format | None = ...,
    optimizer: OptimizerFactory | str | None = ..., loss: Loss | str | None = ..., like: str | Release | None = ...,
    name: str | None = ..., **options: Given | range,
) -> pd.DataFrame: ...  # fmt: skip
@overload
def sweep(
    workload: Workloads, *inputs: Any, gpus: Gpus | None = ..., clusters: Sequence[str | Path | Cluster] | None = ...,
    strategies: Sequence[str | Strategy] | None = ..., savers: Savers | Sequence[Savers] | None = ...,
    split: Literal["even", "proportional"] = ..., host: str | Path | Host | None = ...,
    execution: Execution | Backend | Sequence[Execution | Backend] = ..., mode: Mode | None = ..., zip: Together = ...,
    power_limits: Sequence[str | float] | None = ..., memory: Memory = ..., executor: Executor | None = ...,
    workers: int | None = ..., out: str | Path, dtype: Format | None = ..., autocast: Format | None = ...,
    optimizer: OptimizerFactory | str | None = ..., loss: Loss | str | None = ..., like: str | Release | None = ...,
    name: str | None = ..., **options: Given | range,
) -> Path: ...  # fmt: skip
@checked
def sweep(
    workload: Workloads,
    *inputs: Any,
    gpus: Gpus | None = None,
    clusters: Sequence[str | Path | Cluster] | None = None,
    strategies: Sequence[str | Strategy] | None = None,
    savers: Savers | Sequence[Savers] | None = None,
    split: Literal["even", "proportional"] = "even",
    host: str | Path | Host | None = None,
    execution: Execution | Backend | Sequence[Execution | Backend] = "eager",
    mode: Mode | None = None,
    zip: Together = None,
    power_limits: Sequence[str | float] | None = None,
    memory: Memory = True,
    executor: Executor | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    dtype: Format | None = None,
    autocast: Format | None = None,
    optimizer: OptimizerFactory | str | None = None,
    loss: Loss | str | None = None,
    like: str | Release | None = None,
    name: str | None = None,
    **options: Given | range,
) -> pd.DataFrame | Path:
    """Many predictions at once, as a DataFrame or in a file; each is what `predict` says.

    workload: a Graph, or a model followed by its inputs, or several of them by name: one row a model, GPU, execution
        and combination of sizes, with total_s, its 90 % interval low_s to high_s, gpu_s, cpu_s, regime, energy_j,
        power_w (NaN where not known), throughput (of the size named batch, a second), fits and peak_bytes. Or a
        DataFrame of ops as in a campaign (columns op, dtype and the sizes): the same with a column of seconds a GPU,
        the time of the op's kernels as a profiler sees it.
    gpus: names, aliases, paths of specifications, or Devices. execution: one, or a list.
    clusters: names, files or records, instead of gpus: rows are training steps on several devices as `parallel`
        predicts them, one for each of `strategies` (DDP by default) and `savers`, with communication_s and exposed_s,
        and `problem` where the step cannot be cut that way. gpus then says how many devices take part, e.g. [1, 2, 4].
    mode: "training" on clusters, else "inference" by default. host: by default a usual server, or the cluster's.
    zip: names of sizes that vary together, the first values of each, then the second, e.g. ("batch", "seq").
    power_limits: of the GPUs, each a row of its own, such as ["200 W", "250 W"].
    memory: whether there are columns of it, or ("peak") peak_bytes alone: following the allocator, which `fits` takes
        where it is not plain, can be most of a large sweep's time.
    executor: any `concurrent.futures.Executor`; or workers: how many processes. By default large sweeps take all cores.
    out: a file to write instead, .csv or .json; or a folder, .parquet, which grows piece by piece and is gone on with
        where it stopped. The result is then its path. See docs/sweeps.md.
    dtype, autocast, optimizer, loss, like, name: with a model, as in `trace`. options: for each named size a number,
        list or range; with a model also the other options of `trace`.

    Raises what `predict` raises, InputError for a table with something that cannot be timed, and OutputError for a
    folder of another sweep.
    """
    import pandas as pd

    given = with_named(options, dtype=dtype, autocast=autocast, optimizer=optimizer, loss=loss, like=like, name=name)
    check_workers(executor, workers)
    places = Places(
        gpus=gpus, clusters=clusters, strategies=strategies, savers=savers, split=split, host=host, execution=execution,
        power_limits=power_limits,
    )  # fmt: skip
    places.check()
    if isinstance(workload, pd.DataFrame):
        if clusters is not None:
            raise InputError("a table of ops is timed on gpus=[…]; leave clusters out")
        if inputs or given:
            raise InputError(f"a table of ops has its sizes in columns; got {', '.join(given) or repr(inputs[0])}")
        if out is not None or executor is not None or workers is not None:
            raise InputError("a table of ops is timed at once: leave out, executor and workers out")
        return sweep_table(workload, places.machines)
    if out is not None:
        check_out(Path(out))
    graphs, sizes = opened_graphs(sweep, workload, inputs, mode, given, zip, places.usual_mode)
    plan = places.plan(graphs, sizes, memory=memory, together=zip)
    found: pd.DataFrame | Path = run_plan(plan, out, executor=executor, workers=workers)
    return found


def run_plan(
    plan: Plan, out: str | Path | None = None, *, executor: Executor | None = None, workers: int | None = None
) -> Any:
    """The rows of a sweep, or the file with them; a line on a terminal follows it. Arguments are those of `sweep`."""
    with counting("sweep", plan.rows) as progress:
        if out is None:
            return sweep_run.run(plan, executor=executor, workers=workers, progress=progress)
        return sweep_run.run_to_file(plan, Path(out), executor=executor, workers=workers, progress=progress)


@checked
def search(
    workload: _One | Mapping[str, _One],
    *inputs: Any,
    gpus: Gpus | None = None,
    clusters: Sequence[str | Path | Cluster] | None = None,
    strategies: Sequence[str | Strategy] | None = None,
    savers: Savers | Sequence[Savers] | None = None,
    split: Literal["even", "proportional"] = "even",
    minimize: str | None = None,
    maximize: str | None = None,
    require: Sequence[str] = (),
    host: str | Path | Host | None = None,
    execution: Execution | Backend | Sequence[Execution | Backend] = "eager",
    mode: Mode | None = None,
    zip: Together = None,
    prices: Mapping[str, float] | None = None,
    measured: object = None,
    measured_on: str | Path | Device | None = None,
    measured_at: Mapping[str, Any] | None = None,
    dtype: Format | None = None,
    autocast: Format | None = None,
    optimizer: OptimizerFactory | str | None = None,
    loss: Loss | str | None = None,
    like: str | Release | None = None,
    name: str | None = None,
    **options: Given | range,
) -> Found:
    """The configuration that fits, meets what is asked of it, and gives the most samples a second, or is best else.

    maximize: "throughput", the default. minimize, in its place: "time" (of a step: mind that the smallest batch has the
        shortest), "dollars" (launch price by throughput), "memory" or "price"; on clusters the price is that of all
        devices that take part, memory that of the fullest.
    require: bounds such as "time<0.1 s", "high<=200 ms" (the end of the 90 % interval), "throughput>=1000",
        "memory<16 GB", "price<=5000", "batch>=8".
    prices: dollars of one device, by any of its names, instead of the launch price in its specification.
    measured, measured_on, measured_at: a step that was timed on one GPU, on which all predictions then rest; see
        `compare_gpus`. measured_at names the sizes that were measured, of those with several to choose from. The
        correction is worked out at some sizes and interpolated between them.
    options: for each named size a number, list or range to choose from; with a model also options of `trace`. The
        rest is as in `sweep`. Up to 200 000 predictions all are made (on clusters 2000); beyond, differential evolution
        chooses sizes.

    Raises what `sweep` raises, and InputError for a goal or requirement that cannot be read.

    >>> found = search(graph, gpus=["nvidia-l4", "nvidia-t4"], minimize="dollars", batch=range(1, 257),
    ...                require=["time<50 ms"])  # doctest: +SKIP
    >>> found.best, found.table, str(found)  # doctest: +SKIP
    """
    given = with_named(options, dtype=dtype, autocast=autocast, optimizer=optimizer, loss=loss, like=like, name=name)
    # What can be wrong is looked at before the slow part.
    places = Places(
        gpus=gpus, clusters=clusters, strategies=strategies, savers=savers, split=split, host=host, execution=execution
    )
    places.check()
    goal = goal_of(minimize, maximize)
    named = named_prices(prices or {}, places.devices)
    step = MeasuredStep.of(measured, measured_on, measured_at)
    graphs, sizes = opened_graphs(search, workload, inputs, mode, given, zip, places.usual_mode)
    plan = places.plan(graphs, sizes, together=zip)
    return search_plan(plan, goal, require, named, correction_in(plan, step))


def opened_graphs(
    walk: Callable[..., Any],
    workload: Workloads,
    inputs: Sequence[Any],
    mode: Mode | None,
    options: dict[str, Any],
    together: Together,
    usual_mode: Mode = "inference",
) -> tuple[Graph | dict[str, Graph], dict[str, Any]]:
    """The graph, or one a name, and the sizes among the options of `walk`, which errors name."""
    each: dict[str, Any] = dict(workload) if isinstance(workload, Mapping) else {"": workload}
    if all(isinstance(one, Graph) for one in each.values()):
        for one in each.values():
            check_mode(one, mode)
        check_sizes_of(each.values(), inputs, options, walk)
        graphs, sizes = each, dict(options)
    else:
        called = {name: inputs_of(one, inputs, options) for name, one in each.items()}
        sizes = {name: options.pop(name) for name in open_names((*called.values(), options)) if name in options}
        check_sizes(sizes, together)
        for one in each.values():
            if not isinstance(one, Graph):
                check_keywords(one, options, walk, trace, sizes=sizes)
        graphs = {
            name: one if isinstance(one, Graph) else trace(one, *called[name], mode=mode or usual_mode, **options)
            for name, one in each.items()
        }
    return (graphs if isinstance(workload, Mapping) else graphs[""]), sizes


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a workload runs: GPUs, which may be machines with limits and constants of their own, or clusters."""

    gpus: Gpus | Sequence[Machine] | None
    clusters: Sequence[str | Path | Cluster] | None = None
    strategies: Sequence[str | Strategy] | None = None
    savers: Savers | Sequence[Savers] | None = None
    split: str = "even"
    host: str | Path | Host | None
    execution: Execution | Backend | Sequence[Execution | Backend]
    power_limits: Sequence[str | float] | None = None

    def check(self) -> None:
        """Raises InputError for what does not go together, before the slow part."""
        limits = self.power_limits
        listed = limits is None or (bool(limits) and not isinstance(limits, str | float | int))
        expect(listed, "power_limits", "a list, such as ['200 W', '250 W']", limits)
        if self.clusters is not None and self.power_limits is not None:
            raise InputError("power_limits: belong to gpus=[…]; leave clusters out")
        if self.clusters is not None:
            check_on_clusters(self._axes, self.host, self.executions)
            return
        if self.gpus is None:
            raise InputError("expected gpus=[…], or clusters=[…] for training steps on several devices")
        given = {"strategies": self.strategies, "savers": self.savers, "split": self.split != "even" or None}
        if extra := [name for name, value in given.items() if value is not None]:
            raise InputError(
                f"{', '.join(extra)}: only training steps on several devices have it: give clusters=[…] too"
            )
        _ = self.machines, self.executions  # names that nobody knows

    @cached_property
    def machines(self) -> tuple[Machine, ...]:
        """The GPUs, where they are these and no clusters; each under each limit of power, with that in its name."""
        gpus: Any = self.gpus
        found = machines_of(gpus)
        if self.power_limits is None:
            return found
        limits = [in_base("power_limits", watts, "W") for watts in self.power_limits]
        return tuple(_held(machine, watts) for machine in found for watts in limits)

    @property
    def executions(self) -> list[Execution]:
        """The ways in which it runs."""
        given = self.execution
        return [execution_of(one) for one in ([given] if isinstance(given, str | Execution) else given)]

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every device on which the workload may run."""
        if self.clusters is None:
            return tuple(machine.device for machine in self.machines)
        found = map(cluster_of, self.clusters)
        return tuple({device.name: device for cluster in found for device in members_of(cluster)}.values())

    @property
    def usual_mode(self) -> Mode:
        """The mode in which a model is traced where none is named."""
        return "inference" if self.clusters is None else "training"

    def plan(
        self, graphs: Graph | Mapping[str, Graph], sizes: Mapping[str, Any], *, memory: Memory = True,
        together: Together = None,
    ) -> Plan:  # fmt: skip
        """The sweep: its axes are the models, the GPUs or what clusters have, and the executions."""
        named, executions = graphs if isinstance(graphs, Mapping) else {graphs.name: graphs}, self.executions
        if not named or not executions:
            raise InputError(f"{'execution' if named else 'models'}: expected one or more; got none")
        for one, graph in product(executions, named.values()):
            check_release(graph.like, one)
        models = {name: {"graph": graph} for name, graph in named.items()}
        model = Axis(name="model", choices=models, shown=isinstance(graphs, Mapping))
        single = isinstance(self.execution, str | Execution)
        runs = Axis(name="execution", choices={str(one): {"execution": one} for one in executions}, shown=not single)
        if self.clusters is not None:
            on_clusters = {"host": self.host, "proportional": self.split == "proportional"}
            return plan_of((model, runs, *self._axes), on_clusters, sizes, memory=memory, together=together)
        gpu = Axis(name="gpu", choices={machine.name: {"machine": machine} for machine in self.machines})
        common = {"host": host_of(DEFAULT_HOST if self.host is None else self.host)}
        return plan_of((model, gpu, runs), common, sizes, memory=memory, together=together)

    @cached_property
    def _axes(self) -> tuple[Axis, ...]:
        return cluster_axes(
            self.clusters or (), gpus=self.gpus, strategies=self.strategies, savers=self.savers, split=self.split
        )


def _held(machine: Machine, watts: float | None) -> Machine:
    held = limited(machine, power_w=watts)
    return replace(held, name=f"{machine.name} at {format_quantity(watts or 0.0, 'W')}")
