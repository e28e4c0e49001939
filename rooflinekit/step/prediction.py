"""What one step of a workload costs on a machine."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from statistics import NormalDist
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rooflinekit.hardware.host import Host
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.coverage import Coverage
from rooflinekit.ir.graph import Graph
from rooflinekit.model.fusion import assumptions_of
from rooflinekit.model.machine import Machine
from rooflinekit.model.roofline import Bound, Timing, time_kernels
from rooflinekit.model.tiling import CAUSES
from rooflinekit.step.breakdown import KERNEL_TERMS, grouped
from rooflinekit.step.execution import Execution, check_release, issues_for
from rooflinekit.step.feed import feed_of
from rooflinekit.step.memory import MemoryUse, memory_of
from rooflinekit.step.report import document, lines, notebook_table
from rooflinekit.step.timeline import Span, Timeline, schedule
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

TERMS = (*KERNEL_TERMS, "input")
UNDERUSE = (*CAUSES, "rate")
_WAITS = ("overhead", "input")


@dataclass(frozen=True, kw_only=True, repr=False)  # no slots: the cached properties need a place
class Prediction:
    """One step: how long it takes, on which queue, and in which terms.

    All times are seconds. `total_s` is the wall time of the step, `gpu_s` the time that kernels execute, `cpu_s` the
    time that the CPU spends issuing them.
    """

    graph: Graph  # at these sizes
    machine: Machine
    host: Host
    execution: Execution
    flop: int  # that the mathematics asks for, by the plain algorithms
    bytes: int  # compulsory traffic
    timeline: Timeline
    memory: MemoryUse
    assumptions: tuple[str, ...] = ()  # of the way of execution

    @property
    def graph_name(self) -> str:
        """What the workload is called."""
        return self.graph.name

    @property
    def mode(self) -> str:
        """Which step: "inference" or "training"."""
        return self.graph.mode

    @property
    def sizes(self) -> Mapping[str, int]:
        """The named sizes."""
        return self.graph.sizes

    @cached_property
    def coverage(self) -> Coverage:
        """How much of the counts comes from exact rules."""
        return self.graph.coverage

    @property
    def spans(self) -> tuple[Span, ...]:
        """Each kernel on the two queues."""
        return self.timeline.spans

    @cached_property
    def timings(self) -> tuple[Timing, ...]:
        """Each kernel's time."""
        return tuple(span.timing for span in self.timeline.spans)

    @cached_property
    def _terms(self) -> dict[str, float]:
        terms = dict.fromkeys(TERMS, 0.0)
        for timing in self.timings:
            for name, seconds in timing.terms().items():
                terms[name] += seconds
        terms["overhead"], terms["input"] = self.timeline.idle_s, self.timeline.input_s
        return terms

    def terms(self) -> dict[str, float]:
        """Seconds by cause; they add up to `total_s`.

        ideal: FLOP at the datasheet's peak. underuse: peak not reached. memory: traffic beyond arithmetic. launch:
        start of kernels on the device. overhead: the GPU waits for the CPU. input: it waits for the step's inputs.
        """
        return dict(self._terms)

    def underuse(self) -> dict[str, float]:
        """Seconds by which the peak is not reached, by cause; they add up to the term `underuse`.

        power, waves, tiles and rate: see `Timing.underuse_parts`.
        """
        found: dict[str, float] = defaultdict(float)
        for timing in self.timings:
            for name, seconds in timing.underuse_parts().items():
                found[name] += seconds
        return {name: found[name] for name in UNDERUSE}

    @property
    def total_s(self) -> float:
        """Wall time of the step."""
        return sum(self._terms.values())

    @property
    def gpu_s(self) -> float:
        """Time in which the GPU executes kernels."""
        return sum(seconds for name, seconds in self._terms.items() if name not in _WAITS)

    @property
    def cpu_s(self) -> float:
        """Time that the CPU spends issuing the step."""
        return self.timeline.cpu_s

    @cached_property
    def shares(self) -> Mapping[Bound, float]:
        """Share of the wall time by regime: in arithmetic, in memory traffic, and in neither."""
        seconds: dict[Bound, float] = {
            "compute": 0.0,
            "memory": 0.0,
            "overhead": sum(self._terms[name] for name in _WAITS),
        }
        for timing in self.timings:
            busy: Bound = "compute" if timing.compute_s > timing.memory_s else "memory"
            seconds[busy] += timing.busy_s
            seconds["overhead"] += timing.launch_s
        total = sum(seconds.values())
        return MappingProxyType({name: part / total if total else 0.0 for name, part in seconds.items()})

    @property
    def regime(self) -> Bound:
        """Where most of the time goes: "compute", "memory" or "overhead"."""
        return max(self.shares, key=self.shares.__getitem__)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, each once: emulated formats, kernels not measured on this GPU, memory that does not fit."""
        found = dict.fromkeys((*self.assumptions, *(timing.note for timing in self.timings if timing.note)))
        if unmeasured := self._unmeasured():
            found[f"{self.machine.name}: {unmeasured}: constants fitted on other GPUs, interval accordingly wider"] = (
                None
            )
        if not self.memory.fits:
            m = self.memory
            need, context, have = (
                format_quantity(size, "byte", binary=True) for size in (m.reserved_bytes, m.context_bytes, m.capacity)
            )
            found[f"{self.machine.name}: needs {need}, and {context} for CUDA, of {have}: does not fit"] = None
        return tuple(found)

    def _unmeasured(self) -> str:
        """Families that take a twentieth of the GPU's time or more and that nobody measured on it; "" for none."""
        measured = self.machine.constants.measured
        seconds: dict[str, float] = defaultdict(float)
        for timing in self.timings:
            seconds[timing.kernel.spread_family] += timing.total_s
        missing = [name for name, s in seconds.items() if name not in measured and s >= 0.05 * self.gpu_s]
        if not missing or not measured:
            return "not measured" if missing else ""
        return f"no measurements of {', '.join(sorted(missing))} kernels"

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Bounds in seconds that hold the true time with this probability.

        The kernels of a family are off together by its shared spread, and those of one shape, the same in every layer,
        on their own by its kernel spread; the families, and the host's share of the time, are taken as independent of
        each other. Spreads come from the fits' residuals: on this GPU where its kernels were measured, on GPUs left
        out of the fit where not.
        Raises ValueError for a level outside (0, 1).
        """
        if not 0 < level < 1:
            raise ValueError(f"level: expected a probability between 0 and 1; got {level!r}")
        constants = self.machine.constants
        together: dict[str, float] = defaultdict(float)
        shapes: dict[tuple[str, str, Cost], float] = defaultdict(float)
        for timing in self.timings:
            family = timing.kernel.spread_family
            together[family] += timing.total_s
            shapes[family, timing.kernel.kind, timing.kernel.cost] += timing.total_s
        alone = sum((seconds * constants.spreads[key[0]].kernel) ** 2 for key, seconds in shapes.items())
        shared = sum((seconds * constants.spreads[family].shared) ** 2 for family, seconds in together.items())
        host = (self._terms["overhead"] * constants.constants["host_factor"].stderr) ** 2
        spread = math.sqrt(alone + shared + host) / self.total_s if self.total_s else 0.0
        factor = math.exp(NormalDist().inv_cdf((1 + level) / 2) * spread)
        return self.total_s / factor, self.total_s * factor

    # --- tables ------------------------------------------------------------------------------------------------

    def by_module(self, depth: int | None = None) -> pd.DataFrame:
        """Time by module path, cut to `depth` parts; the root's own ops stand under ""."""

        def path(timing: Timing) -> str:
            parts = timing.kernel.module.split(".")
            return ".".join(parts if depth is None else parts[:depth])

        return self._grouped("module", path)

    def by_kind(self) -> pd.DataFrame:
        """Time by kind of op."""
        return self._grouped("kind", lambda timing: timing.kernel.kind)

    def by_phase(self) -> pd.DataFrame:
        """Time by phase: forward, backward, optimizer."""
        return self._grouped("phase", lambda timing: timing.kernel.phase.value)

    def by_kernel(self) -> pd.DataFrame:
        """Time by kernel, in the order of execution by time spent."""
        return self._grouped("kernel", lambda timing: timing.kernel.name)

    def _grouped(self, name: str, key: Callable[[Timing], str]) -> pd.DataFrame:
        return grouped(self.spans, self.total_s, name, key)

    def compare(self, **variants: Any) -> pd.DataFrame:
        """The same step in other ways: a row each, with its speed-up and what it removes.

        variants: a value or a list of them for `execution`, `autocast`, `channels_last`, or a named size; every
        combination is predicted, and this prediction stands first. See `rooflinekit.step.variants.compare` for the
        columns. Raises InputError for anything else, or where it takes tracing again and the model is not known.

        >>> table = p.compare(execution=["eager", "compiled"], batch=[8, 64])  # doctest: +SKIP
        """
        from rooflinekit.step.variants import compare

        return compare(self, variants)

    def largest_batch(self, size: str = "batch") -> int:
        """The largest value of this named size at which the step fits the device's memory; 0 where 1 does not.

        The step is not timed, and not traced again while the trace holds. Raises SizeError for an unknown size.
        """
        from rooflinekit.step.capacity import largest_size

        return largest_size(self, size)

    # --- for people and programs ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Everything but the kernels, ready for JSON."""
        return document(self)

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def __repr__(self) -> str:
        return f"<Prediction {str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        return notebook_table(self)


def predict_graph(graph: Graph, machine: Machine, host: Host, execution: Execution) -> Prediction:
    """The prediction for a graph whose sizes are all numbers.

    Raises SizeError while a size is open, FormatError for arithmetic that the device does not have, InputError for a
    CUDA graph of a step in which the CPU reads a number.
    """
    check_release(graph.like, execution)
    feed = feed_of(graph, machine.device, host, execution)
    issues = issues_for(graph, machine.device, execution)
    launched = launched_by(execution, machine)
    timed = iter(time_kernels([kernel for issue in issues for kernel in issue.kernels], launched))
    timings = [tuple(islice(timed, len(issue.kernels))) for issue in issues]
    return Prediction(
        graph=graph,
        machine=machine,
        host=host,
        execution=execution,
        flop=int(graph.flop),
        bytes=int(graph.bytes),
        timeline=schedule(issues, timings, host, execution, feed, in_series=machine.device.kind == "cpu"),
        memory=memory_of(graph, issues, machine.device, fused=execution.fused),
        assumptions=tuple(assumptions_of(graph)) if execution.fused else (),
    )


def launched_by(execution: Execution, machine: Machine) -> Machine:
    """The machine with the gap between kernels that this way of execution leaves."""
    gap = machine.values["kernel_gap_graph" if execution.as_graph else "kernel_gap"]
    return machine.with_values({**machine.values, "kernel_gap": gap})
