"""A workload as the options describe it: how targets are traced, and on what they are predicted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.options import progress_line
from rooflinekit.errors import printable

if TYPE_CHECKING:
    from rooflinekit.hardware.host import Host
    from rooflinekit.ir.graph import Graph
    from rooflinekit.ir.inputs import Input
    from rooflinekit.model.machine import Machine
    from rooflinekit.step.execution import Execution
    from rooflinekit.step.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the options say: how targets are called and traced, and on what they are predicted."""

    args: tuple[Input, ...]
    called: bool  # whether any input is given, by place or by name
    sizes: dict[str, int]
    gpus: tuple[str, ...]
    host: str
    execution: dict[str, Any]  # of Execution
    optimizer: str | None
    loss: str | None
    burst: bool
    constants: Path | None
    allow_draft: bool
    options: dict[str, Any]  # of workflows.trace, keyword inputs among them
    cache: bool = True  # whether traces are kept between commands
    verbose: bool = False  # whether to say why one cannot be kept
    sought: tuple[str, ...] = ()  # sizes that the command looks for, and that nobody gave
    lists: dict[str, Sequence[int]] = field(default_factory=dict)  # in the place of `sizes`, where each may have many
    limits: dict[str, float] = field(default_factory=dict)  # of model.energy.limited

    @property
    def named_host(self) -> str | None:
        """The host that is named; None for a cluster's own."""
        from rooflinekit.hardware.specs import DEFAULT_HOST

        return None if self.host == DEFAULT_HOST else self.host

    def predict(self, *targets: str, sizes_open: bool = False) -> list[list[Prediction]]:
        """For each target its predictions, one a GPU; each target is traced once, with `sizes_open` for all sizes."""
        from rooflinekit.step.prediction import predict_graph

        # Everything that can be wrong is looked at before the slow part.
        machines, host, execution = self.setting()
        return [
            [predict_graph(graph, machine, host, execution) for machine in machines]
            for graph in self.trace(*targets, sizes_open=sizes_open)
        ]

    def setting(self) -> tuple[list[Machine], Host, Execution]:
        """The GPUs with their constants, the host, and how it runs."""
        from rooflinekit.calibrate.fitting.files import fits_for
        from rooflinekit.hardware.specs import load_device, load_host
        from rooflinekit.model.energy import limited
        from rooflinekit.model.machine import Machine
        from rooflinekit.step.execution import Execution, check_release

        execution = Execution(**self.execution)
        check_release(self.options["like"], execution)
        devices, host = [load_device(gpu, allow_draft=self.allow_draft) for gpu in self.gpus], load_host(self.host)
        fits = fits_for(devices, self.constants)
        machines = [Machine.of(device, fit, burst=self.burst) for device, fit in zip(devices, fits, strict=True)]
        return [limited(machine, **self.limits) for machine in machines], host, execution

    def trace(self, *targets: str, sizes_open: bool = False) -> list[Graph]:
        """Each target's graph at the sizes given, traced once; with `sizes_open` for all sizes."""
        from rooflinekit.api.targets import TargetTrace

        found = []
        for target in targets:
            traced = TargetTrace(
                target=target,
                args=self.args,
                options={"sizes": self.sizes, "fixed": None if sizes_open else True, **self.options},
                optimizer=self.optimizer,
                loss=self.loss,
                following=_progress,
                kept=self.cache,
                unkept=_tell if self.verbose else None,
            )
            graph = traced()
            found.append(graph.at(**{name: value for name, value in self.sizes.items() if name in graph.dims}))
        return found


def _tell(line: str) -> None:
    print(f"rooflinekit: {printable(line)}", file=sys.stderr)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, str], None] | None]:
    """A line on standard error that follows a long trace; only on a terminal."""
    with progress_line(f"tracing {name}") as say:

        def advance(entered: int, path: str) -> None:
            if say and entered % 16 == 1:  # drawing costs more than tracing a module
                say(f"tracing {name}: {entered} modules, now in {path or 'the root'}")

        yield advance if say else None
