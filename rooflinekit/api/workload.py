"""A workload in words, as a command line has it: what is called with what, how it runs, and on which GPUs.

What takes long to import is imported where it is needed: a wrong word is refused before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.ir.inputs import Input, Release, open_names
from rooflinekit.ir.inputs import mode_of as mode_of
from rooflinekit.ir.sizes import check_dims, check_names

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.api.measured import MeasuredStep
    from rooflinekit.api.predict import Progress, Untraced
    from rooflinekit.timing.machine import Machine

_START = 32  # where the search for a size begins, unless the size is given; it ends at the same place from anywhere
UNNAMED = "unnamed"  # the host that is meant where none is named


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How targets are called and traced, and on what they are predicted.

    options: of `rooflinekit.trace`, keyword inputs among them. execution: fields of `Execution`. sizes: a number each;
    lists: in their place, where each may have many. sought: sizes that are looked for, and that nobody gave. limits: of
    each GPU, as keywords of `rooflinekit.predict`. following, kept, unkept: see `TargetTrace`.
    """

    args: tuple[Input, ...]
    called: bool  # whether any input is given, by place or by name
    sizes: dict[str, int]
    gpus: tuple[str, ...]
    host: str
    execution: dict[str, Any]
    optimizer: str | None
    loss: str | None
    options: dict[str, Any]
    following: Callable[[str], AbstractContextManager[Progress | None]]
    unkept: Callable[[str], None] | None = None
    sought: tuple[str, ...] = ()
    lists: dict[str, Sequence[int]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    constants: Path | None = None
    burst: bool = False
    kept: bool = True
    allow_draft: bool = False

    @classmethod
    def of(
        cls, args: tuple[Input, ...], kwargs: Mapping[str, Input], sizes: dict[str, Any], *, options: dict[str, Any],
        many: bool = False, complete: bool = True, solved: str | None = None, **how: Any,
    ) -> Workload:  # fmt: skip
        """The workload, with words read that mean a number format or a release. kwargs: inputs by name.

        many: whether each size has a list; complete: whether each then has to be named. solved: a size that need not be
        given. Raises InputError, SizeError and FormatError for what cannot be meant.
        """
        from rooflinekit.ir.graph import autocast_format

        names, start, like = open_names((args, dict(kwargs), options["targets"])), {}, options["like"]
        if many:
            check_names(sizes, names, complete=complete)
        else:
            start = {solved: _START} if solved in names and solved not in sizes else {}
            sizes = check_dims({**start, **sizes}, names, complete=True)
        read = {"autocast": autocast_format(options["autocast"]), "like": None if like is None else Release.parse(like)}
        return cls(
            args=args, called=bool(args or kwargs), sizes={} if many else sizes, lists=sizes if many else {},
            sought=tuple(start), options={**options, **read, **_by_name(kwargs)}, **how,
        )  # fmt: skip

    @property
    def named_host(self) -> str | None:
        """The host that is named; None for a cluster's own."""
        return None if self.host == UNNAMED else self.host

    @property
    def run_as(self) -> rk.Execution:
        """How it runs."""
        return rk.Execution(**self.execution)

    @property
    def executions(self) -> list[rk.Execution]:
        """How it runs, where --execution may be a list."""
        return [self.running(word.strip()).run_as for word in self.execution["backend"].split(",")]

    def heading(self, graph: rk.Graph) -> str:
        """The first line of an answer: the workload, its sizes and executions."""
        from rooflinekit.step.report import heading

        return heading(graph, self.sizes, self.executions)

    def devices(self, names: Sequence[str] | None = None) -> list[rk.Device]:
        """The GPUs, or others that are named."""
        return [rk.load_device(name, allow_draft=self.allow_draft) for name in (self.gpus if names is None else names)]

    def on(self, *gpus: str) -> Workload:
        """The same workload on these GPUs."""
        return replace(self, gpus=gpus)

    def on_offered(self, **filters: str | None) -> Workload:
        """The same workload on every GPU that is offered, by the filters of `rooflinekit.devices`."""
        from rooflinekit.hardware.catalog import offered_gpus

        if found := offered_gpus(**filters):
            return self.on(*found)
        raise InputError("gpus: none is left to compare; give other names or filters")

    def running(self, backend: str) -> Workload:
        """The same workload, executed by this backend."""
        return replace(self, execution={**self.execution, "backend": backend})

    def stepping(self, **changes: Any) -> Workload:
        """The same with another `mode` or `autocast`; what only training steps have is left out of others."""
        from rooflinekit.ir.graph import autocast_format

        options = {**self.options, **changes}
        options["autocast"] = autocast_format(options["autocast"])
        if options["mode"] == "training":
            return replace(self, options=options)
        return replace(self, optimizer=None, loss=None, options={**options, "targets": ()})

    def predict(self, *targets: str, sizes_open: bool = False) -> list[list[rk.Prediction]]:
        """For each target its predictions, one a GPU; each target is traced once, with `sizes_open` for all sizes."""
        from rooflinekit.step.prediction import predict_graph

        # Everything that can be wrong is looked at before the slow part.
        machines, host, execution = self.setting()
        return [
            [predict_graph(graph, machine, host, execution) for machine in machines]
            for graph in self.trace(*targets, sizes_open=sizes_open)
        ]

    def along(self, target: str, size: str, values: Sequence[int]) -> list[rk.Prediction]:
        """The predictions at each value of a size, GPU by GPU."""
        from rooflinekit.step.prediction import predict_graph

        whole, others, (machines, host, execution) = self._opened(target, size)
        graphs = [whole.at(**others, **{size: value}) for value in values]
        return [predict_graph(graph, machine, host, execution) for machine in machines for graph in graphs]

    def swept(self, target: str, size: str, values: Sequence[int]) -> pd.DataFrame:
        """The same as a sweep has it: a row each."""
        from rooflinekit.api.sweep import Places, run_plan

        whole, others, (machines, host, execution) = self._opened(target, size)
        plan = Places(gpus=machines, host=host, execution=execution).plan(whole, {**others, size: values})
        return cast("pd.DataFrame", run_plan(plan))

    def _opened(self, target: str, size: str) -> tuple[rk.Graph, dict[str, int], tuple[Any, ...]]:
        """The graph with this size open, the other sizes, and where it runs."""
        from rooflinekit.ir.graph import opened

        return *opened(self.untraced(target, sizes_open=True)(), size), self.setting()

    def setting(self) -> tuple[list[Machine], rk.Host, rk.Execution]:
        """The GPUs with their constants, the host, and how it runs."""
        from rooflinekit.step.execution import check_release

        check_release(self.options["like"], self.run_as)
        devices, host = self.devices(), rk.load_host(self.host)
        return self._machines(devices, **self.limits), host, self.run_as

    def _machines(self, devices: Sequence[rk.Device], **limits: float) -> list[Machine]:
        from rooflinekit.api.predict import machine_of
        from rooflinekit.calibrate.fitting.files import fits_for

        fits = fits_for(devices, self.constants)
        pairs = zip(devices, fits, strict=True)
        return [machine_of(device, fit, burst=self.burst, **limits) for device, fit in pairs]

    def measured(self, measured: object, on: str | None, at: Mapping[str, Any], **read: Any) -> MeasuredStep | None:
        """A step that was timed, its device with the constants that are named here, and without limits; None for None.

        Arguments are those of `MeasuredStep.of`, which says what is raised.
        """
        from rooflinekit.api.measured import MeasuredStep

        step = MeasuredStep.of(measured, on, at, allow_draft=self.allow_draft, **read)
        return step and replace(step, machine=self._machines([step.device, *self.devices()])[0])

    def trace(self, *targets: str, sizes_open: bool = False) -> list[rk.Graph]:
        """Each target's graph at the sizes given, traced once; with `sizes_open` for all sizes."""
        from rooflinekit.api.targets import TargetTrace

        options = {"sizes": self.sizes, "fixed": None if sizes_open else True, **self.options}
        same = {name: getattr(self, name) for name in ("args", "optimizer", "loss", "following", "kept", "unkept")}
        graphs = [TargetTrace(target=target, options=options, **same)() for target in targets]
        return [g.at(**{name: size for name, size in self.sizes.items() if name in g.dims}) for g in graphs]

    def untraced(self, target: str, *, sizes_open: bool = False) -> Untraced:
        """The target for a walk that looks at all else before it is traced."""
        from rooflinekit.api.predict import Untraced

        return Untraced(lambda: self.trace(target, sizes_open=sizes_open)[0])

    def team(self, target: str, **options: Any) -> Callable[..., rk.ParallelPrediction]:
        """The step on a cluster, with its sizes open, by further options of `rooflinekit.parallel`."""
        self.check_trains()
        self.refuse("a step on several GPUs", limits=False)
        given = {"host": self.named_host, "execution": self.run_as, **self.limits, **options}
        return functools.partial(rk.parallel, self.untraced(target, sizes_open=True), **given)

    def check_alone(self) -> None:
        """Raises InputError for GPUs that are named beside a cluster."""
        if self.gpus:
            raise InputError("--gpu: a cluster has GPUs of its own; leave out --gpu or --cluster")

    def check_trains(self) -> None:
        """Raises InputError for what is no training step: steps on several devices are."""
        if self.options["mode"] != "training":
            raise InputError("--cluster: steps on several devices are training steps: add --mode training")

    def refuse(self, what: str, *, limits: bool = True) -> None:
        """Raises InputError for constants of one's own, --burst and, with `limits`, limits that an answer lacks."""
        given: dict[str, object] = {"--constants": self.constants, "--burst": self.burst}
        if limits:
            given |= {f"--{name.replace('_', '-')}": value for name, value in self.limits.items()}
        for option, value in given.items():
            if value:
                raise InputError(f"{option}: {what} does not take it; leave it out")


def _by_name(given: Mapping[str, Input]) -> dict[str, Any]:
    """Inputs by name as arguments of `trace`, those that it has itself among its `keywords`."""
    if not given:
        return {}
    from rooflinekit.api.keywords import options_of

    taken = options_of(rk.trace)
    own = {name: value for name, value in given.items() if name in taken}
    return {name: value for name, value in given.items() if name not in own} | ({"keywords": own} if own else {})
