"""What one step of a workload costs on a machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir import keyed
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.coverage import Coverage
from rooflinekit.ir.graph import Graph, unspoken_note
from rooflinekit.kernels.fusion import assumptions_of
from rooflinekit.kernels.kernel import Issue
from rooflinekit.kernels.libraries import stand_in_note
from rooflinekit.step.accuracy import Accuracy, step_accuracy
from rooflinekit.step.allocator import Settings
from rooflinekit.step.attention import attention_notes
from rooflinekit.step.bounds import bounds, host_note, placed_note, placed_share, unmeasured, unmeasured_note
from rooflinekit.step.capacity import StepMemory, largest_size, memory_over
from rooflinekit.step.energy import Draws, Energy, energy_of, limit_note
from rooflinekit.step.entry import (
    as_run,
    by_issue,
    entry_of,
    input_pipeline_of,
    issue_costs_s,
    issues_for,
    issuing,
    unrecorded,
)
from rooflinekit.step.execution import Execution, check_release
from rooflinekit.step.labels import REGIME_TERMS, parted
from rooflinekit.step.memory import Blocks, MemoryUse, memory_of, remembered
from rooflinekit.step.report import KERNEL_TERMS, document, grouped, lines, notebook_table, slower_note
from rooflinekit.step.timeline import Span, Timeline, schedule
from rooflinekit.step.utilization import Utilizes, utilization
from rooflinekit.step.variants import BATCH, compare
from rooflinekit.step.verdict import Verdict, verdict_of
from rooflinekit.timing.estimate import Estimate, around, deviations
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.tiling import CAUSES
from rooflinekit.timing.timings import Bound, Timeable, Timing, estimate_of_timings, time_kernels

if TYPE_CHECKING:
    import pandas as pd

TERMS = (*KERNEL_TERMS, "input")
UNDERUSE = (*CAUSES, "rate")
_WAITS = ("overhead", "input")


@dataclass(frozen=True, kw_only=True, repr=False)  # no slots: the cached properties need a place
class Prediction(Draws, Utilizes):
    """One step: how long it takes, on which queue, and in which terms.

    All times are seconds. `total_s` is the wall time of the step, `gpu_s` the time that kernels execute, `cpu_s` the
    time that the CPU spends issuing them.
    """

    graph: Graph  # at these sizes
    machine: Machine
    host: Host
    execution: Execution
    flop: int  # that the mathematics asks for, by the plain algorithms
    bytes: int  # compulsory traffic of the kernels that run: fused ones, and copies of layouts among them
    timeline: Timeline
    memory: MemoryUse
    assumptions: tuple[str, ...] = ()  # of the way of execution

    @property
    def graph_name(self) -> str:
        """The name of the workload."""
        return self.graph.name

    @property
    def mode(self) -> str:
        """Which step: "inference", "training" or "forward"."""
        return self.graph.mode

    @property
    def sizes(self) -> Mapping[str, int]:
        """The named sizes."""
        return self.graph.sizes

    @property
    def counted(self) -> tuple[str, int]:
        """What a step gets done: so many "samples", where a size is named batch; else one of "steps"."""
        return ("samples", self.sizes[BATCH]) if BATCH in self.sizes else ("steps", 1)

    @cached_property
    def coverage(self) -> Coverage:
        """How much of the counts comes from exact rules."""
        return self.graph.coverage

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans of all kernels, on the GPU's queue and the CPU's."""
        return self.timeline.spans

    @cached_property
    def timings(self) -> tuple[Timing, ...]:
        """The timing of each kernel."""
        return tuple(span.timing for span in self.timeline.spans)

    @property
    def issues(self) -> tuple[Issue, ...]:
        """Each op with its kernels, as the CPU issues them."""
        return issues_for(self.graph, self.machine.device, self.execution)

    @property
    def blocks(self) -> Blocks:
        """The blocks that the step asks the allocator for."""
        return remembered(self.graph, self.issues, self.machine.device, self.execution)[0]

    @property
    def launched(self) -> int:
        """Kernels that are launched, those of each step of a chain among them."""
        return sum(timing.kernel.kernels for timing in self.timings)

    @cached_property
    def _terms(self) -> dict[str, float]:
        waits = {"overhead": self.timeline.idle_s, "input": self.timeline.input_s}
        return dict.fromkeys(TERMS, 0.0) | keyed.added(timing.terms() for timing in self.timings) | waits

    def terms(self) -> dict[str, float]:
        """Seconds by cause; they add up to `total_s`.

        ideal: FLOP at the datasheet's peak. underuse: peak not reached. memory: traffic. launch: start of kernels on
        the device. overhead: the GPU waits for the CPU. input: it waits for the step's inputs. Arithmetic and traffic
        of a kernel hide each other in part: each counts as far as it is not hidden.
        """
        return dict(self._terms)

    def underuse(self) -> dict[str, float]:
        """Seconds by which the peak is not reached, by cause (`Timing.underuse_parts`); they add up to `underuse`."""
        return dict(self._underuse)

    @cached_property
    def _underuse(self) -> dict[str, float]:
        return dict.fromkeys(UNDERUSE, 0.0) | keyed.added(timing.underuse_parts() for timing in self.timings)

    @cached_property
    def _utilization(self) -> tuple[float, float]:
        return utilization(self.timings, self.machine.device, self.total_s)

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
        """Share of the wall time by regime: the terms, put together; see "Regimes" in docs/model.md.

        compute: FLOP at peak, and at the clock that power sustains. memory: traffic. latency: kernels that reach
        neither roof, and their starts. overhead: the device has nothing to execute.
        """
        terms = parted(self._terms, self._underuse)
        seconds = {regime: sum(terms[name] for name in names) for regime, names in REGIME_TERMS.items()}
        total = sum(seconds.values())
        return MappingProxyType({name: part / total if total else 0.0 for name, part in seconds.items()})

    @property
    def regime(self) -> Bound:
        """What most of the time goes to: "compute", "memory", "latency" or "overhead"."""
        return max(self.shares, key=self.shares.__getitem__)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, each once: emulated formats, kernels not measured on this GPU, memory that does not fit."""
        machine = self.machine
        found = (
            limit_note(machine),
            *self.assumptions,
            *(timing.note for timing in self.timings),
            machine.device.caution,
            stand_in_note(machine.device),
            *attention_notes(self.graph, machine, self.execution),
            placed_note(self.placed_share, self.shares["memory"]),
            unmeasured_note(self.unmeasured, machine),
            host_note(self.host, self.interval(), self.gpu_interval()),
            self.memory.note(machine.name),
            self._slower,
            unspoken_note(self.graph),
        )
        return tuple(dict.fromkeys(filter(None, found)))

    @cached_property
    def accuracy(self) -> Accuracy | None:
        """How far predictions of this kind were off where they were judged; None where nobody has measured any."""
        return step_accuracy(self.graph, self.machine.device, fused=self.execution.fused)

    @cached_property
    def _slower(self) -> str:
        if not self.execution.entered or any("cpu_s" in op.attrs for op in self.graph.ops):
            return ""  # what a strategy has put into a compiled step is not in the eager one
        return slower_note(self, self.again(execution=replace(self.execution, backend="eager")))

    @cached_property
    def placed_share(self) -> float:
        """The share of memory traffic's seconds that no bandwidth shortens: see `step.bounds.placed_share`."""
        return placed_share(self.timings, self.machine)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Families of kernels with a part in the step that nobody measured on this GPU; a note says so."""
        return tuple(unmeasured(self.timings, self.gpu_s, self.machine))

    @cached_property
    def _kernels(self) -> Estimate:
        return estimate_of_timings(self.timings, self.machine)

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Bounds in seconds that hold the true time with this probability.

        Kernels of a family are off together by its systematic spread, those of one shape by its random one and by
        seconds; what no like was measured of by UNMODELLED, all by what is of the day, and their starts together.
        Families and the host, which counts as far as the CPU decides (see `bounds`), are independent. Spreads come from
        the fits' residuals: on this GPU where its kernels were measured, on GPUs left out where not. Raises ValueError
        for a level outside (0, 1).
        """
        return bounds(
            self.total_s, self.cpu_s, self.gpu_s + self._terms["input"],
            math.sqrt(self._kernels.variance), self.host.spread, deviations(level),
            in_series=self.machine.device.kind == "cpu",
        )  # fmt: skip

    def gpu_interval(self, level: float = 0.9) -> tuple[float, float]:
        """Bounds of `gpu_s` in seconds: those of a step that no CPU holds up. Raises ValueError as `interval` does."""
        return self._kernels.interval(level)

    def cpu_interval(self, level: float = 0.9) -> tuple[float, float]:
        """Bounds of `cpu_s` in seconds. Raises ValueError as `interval` does."""
        return around(self.cpu_s, deviations(level) * self.host.spread)

    @cached_property
    def energy(self) -> Energy | None:
        """Joules and watts of the GPU, by part; None where its specification states no power or no process."""
        return energy_of(self.spans, self.total_s, launched_by(self.execution, self.machine))

    @checked
    def by_module(self, depth: int | None = None) -> pd.DataFrame:
        """Time by module path, cut to `depth` parts; the root's own ops stand under ""."""
        return self._grouped("module", lambda timing: ".".join(timing.kernel.module.split(".")[:depth]))

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
        joules, idle_w = ((), 0.0) if self.energy is None else (self.energy.spans_j, self.energy.idle_w)
        return grouped(self.spans, self.total_s, name, key, joules, idle_w)

    def again(
        self, *, graph: Graph | None = None, machine: Machine | None = None, host: Host | None = None,
        execution: Execution | None = None,
    ) -> Prediction:  # fmt: skip
        """The step of another graph, on another machine or host, or executed otherwise; all else as it is here.

        Raises as `predict_graph` does.
        """
        return predict_graph(
            graph or self.graph, machine or self.machine, host or self.host, execution or self.execution,
            self.memory.nccl_bytes,
        )  # fmt: skip

    def compare(self, **variants: Any) -> pd.DataFrame:
        """The same step in other ways: a row each, with its speed-up and what it removes.

        variants: a value or a list of them for `execution`, `autocast`, `channels_last`, or a named size; every
        combination is predicted, and this prediction stands first. See `rooflinekit.step.variants.compare` for the
        columns. Raises InputError for anything else, or where it takes tracing again and the model is not known.

        >>> table = p.compare(execution=["eager", "compiled"], batch=[8, 64])  # doctest: +SKIP
        """
        return compare(self, variants)

    def memory_verdict(self, level: float = 0.9, allocator: str = "") -> Verdict:
        """Bytes allocated, reserved and of the process, with bounds that hold them with this probability; and whether
        the step fits, as a probability: see `rooflinekit.step.verdict`. allocator: settings as in
        PYTORCH_CUDA_ALLOC_CONF, "expandable_segments:True" and "max_split_size_mb:128". Raises ValueError for a level
        outside (0, 1), InputError for other settings.
        """
        gpu, settings = self.machine.device.kind == "gpu", Settings.parse(allocator)
        return verdict_of(self.memory, self.blocks, level, settings, gpu=gpu)

    def memory_over(
        self, size: str, values: Sequence[int], emptied: int | None = None, allocator: str = ""
    ) -> tuple[StepMemory, ...]:
        """What the allocator holds after each of several steps in a row that differ in one named size.

        Blocks of one length seldom serve the next, so what is reserved grows beyond what the longest step needs.
        values: of the size, a step each. emptied: after how many steps `torch.cuda.empty_cache()` is called; None for
        never. allocator: as of `memory_verdict`. Gradients and results of a step are freed where the next begins.
        Raises SizeError for an unknown name, a size that the model forces to a number, no values or some below 1, and
        steps that the device has no room for.
        """
        return memory_over(self, size, values, emptied, Settings.parse(allocator))

    def largest_batch(self, size: str = "batch") -> int:
        """The largest value of this named size at which the step fits the device's memory; 0 where 1 does not.

        The step is not timed, and not traced again while the trace holds. Raises SizeError for an unknown size.
        """
        return largest_size(self, size)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the kernels, ready for JSON."""
        return document(self)

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def _repr_html_(self) -> str:
        return notebook_table(self)


def predict_graph(
    graph: Graph, machine: Machine, host: Host, execution: Execution, nccl_bytes: int = 0
) -> Prediction:  # fmt: skip
    """The prediction for a graph whose sizes are all numbers; nccl_bytes: see `memory_of`.

    Raises SizeError while a size is open, FormatError for arithmetic that the device does not have, InputError for a
    CUDA graph of a step in which the CPU reads a number.
    """
    check_release(graph.like, execution)
    asked, execution = execution, as_run(graph, execution)
    issues = issues_for(graph, machine.device, execution)
    launched = launched_by(execution, machine)
    key = "kernels", id(issues)
    if key not in graph.memo:  # with the issues, so that their id stays theirs
        kernels = [kernel for issue in issues for kernel in issue.kernels]
        graph.memo[key] = issues, kernels, Timeable(kernels)
    _, kernels, ready = graph.memo[key]
    timings = time_kernels(kernels, launched, ready)
    return Prediction(
        graph=graph,
        machine=machine,
        host=host,
        execution=execution,
        flop=int(graph.summed(lambda cost: cost.flop)),
        bytes=sum(int(timing.kernel.bytes) for timing in timings),
        timeline=timeline_of(graph, issues, timings, machine.device, host, execution),
        memory=memory_of(graph, issues, machine.device, execution, nccl_bytes),
        assumptions=(*unrecorded(graph, asked), *(assumptions_of(graph, machine.device) if execution.fused else ())),
    )


def timeline_of(
    graph: Graph, issues: Sequence[Issue], timings: Iterable[Timing], device: Device, host: Host, execution: Execution
) -> Timeline:
    """The two queues over a step; timings: of all kernels in order. Raises InputError as `schedule` does."""
    feed, entry = input_pipeline_of(graph, device, host, execution), entry_of(host, execution, graph)
    own, costs_s = [own for _, own in by_issue(issues, timings)], issue_costs_s(graph, issues, host, execution)
    in_series = device.kind == "cpu"
    return schedule(issues, own, issuing(host, graph), execution, feed, entry, in_series=in_series, costs_s=costs_s)


def launched_by(execution: Execution, machine: Machine) -> Machine:
    """The machine with the gap between kernels that this way of execution leaves."""
    gap = machine.values["kernel_gap_graph" if execution.as_graph else "kernel_gap"]
    return machine.with_values({**machine.values, "kernel_gap": gap})
