"""Two queues: the CPU issues, the GPU executes. A step is overhead-bound where the GPU waits for the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from rooflinekit.errors import InputError
from rooflinekit.hardware.host import Host
from rooflinekit.ir.op import Op
from rooflinekit.ir.points import larger
from rooflinekit.kernels.kernel import Issue
from rooflinekit.step.entry import Entry, InputPipeline, Transfer, entry_of, is_captured, issue_cost_s, reads_a_number
from rooflinekit.step.execution import Execution
from rooflinekit.timing.timings import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A kernel on the two queues, in seconds from the start of the step."""

    timing: Timing
    issued_s: float  # when the CPU had launched it
    start_s: float
    end_s: float
    waited_s: float  # how long the GPU stood idle before it

    @property
    def seconds(self) -> float:
        """On the GPU."""
        return self.timing.total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySpan:
    """The copy of an input on the two queues, likewise; the GPU computes nothing meanwhile."""

    transfer: Transfer
    issued_s: float
    start_s: float
    end_s: float
    waited_s: float

    @property
    def seconds(self) -> float:
        """On the way."""
        return self.transfer.seconds


_Queued = TypeVar("_Queued", Span, CopySpan)
_Work: TypeAlias = Sequence[tuple[Issue, Sequence[Timing], float]]  # with its kernels' times, and the CPU's in s
_WAITING = "waits for the GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSpan:
    """What the CPU does from one time to another, in seconds from the start of the step."""

    what: Op | str  # the op that it issues, or what else
    start_s: float
    end_s: float
    waits: bool = False  # for the GPU; all others add up to what the CPU spends


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The GPU's queue and the CPU's over one step."""

    spans: tuple[Span, ...]
    cpu_s: float  # what the CPU spends issuing the step
    tail_s: float  # what passes after the last kernel has ended: the CPU's remaining work, the synchronization
    copies: tuple[CopySpan, ...] = ()  # before the first kernel
    starved_s: float = 0.0  # how much longer the loader takes for the step's samples than all this
    cpu: tuple[CpuSpan, ...] = ()  # in order

    @property
    def idle_s(self) -> float:
        """How long the GPU neither executes a kernel of the step nor waits for its inputs."""
        before = sum(copy.waited_s for copy in self.copies)
        return before + sum(span.waited_s for span in self.spans) + self.tail_s

    @property
    def input_s(self) -> float:
        """How long the GPU waits for the step's inputs, copied or not yet loaded."""
        return sum(copy.transfer.seconds for copy in self.copies) + self.starved_s


class _Queues:
    """The CPU, the GPU, and what has run so far; times in seconds from the start of the step."""

    def __init__(self, host: Host, execution: Execution, feed: InputPipeline, entry: Entry) -> None:
        self.host, self.execution, self.feed, self.entry = host, execution, feed, entry
        self.cpu = 0.0
        self.gpu = 0.0
        self.waited_for_gpu = 0.0
        self.spans: list[Span] = []
        self.copies: list[CopySpan] = []
        self.work: list[CpuSpan] = []
        self.spend("step", host.step)

    def spend(self, what: Op | str, seconds: float) -> None:
        """Keeps the CPU busy for some seconds."""
        start = self.cpu
        self.cpu += seconds
        self.note(what, start)

    def note(self, what: Op | str, start_s: float, *, waits: bool = False) -> None:
        """Records the CPU's work since `start_s`."""
        if self.cpu > start_s:
            self.work.append(CpuSpan(what=what, start_s=start_s, end_s=self.cpu, waits=waits))

    def wait(self) -> None:
        """The CPU goes on when the GPU has done everything."""
        start = self.cpu
        self.cpu = larger(self.cpu, self.gpu) + self.host.sync
        self.waited_for_gpu += self.cpu - start
        self.note(_WAITING, start, waits=True)

    def begin(self) -> None:
        """Inputs on their way, each by an op of its own; then what a compiled step begins with."""
        for transfer in self.feed.transfers:
            self.spend(f"copy {transfer.name}", self.host.dispatch_s("default"))
            place = self._next(self.cpu + self.host.launch_latency, transfer.seconds)
            self.copies.append(CopySpan(transfer=transfer, **place))
            if self.feed.blocking:
                self.wait()
        self.spend("guards", self.entry.enter_s)

    def run(self, timing: Timing, earliest_s: float) -> None:
        """A kernel that may start at this time, and when the GPU is free."""
        self.spans.append(Span(timing=timing, **self._next(earliest_s, timing.total_s)))

    def _next(self, earliest_s: float, seconds: float) -> dict[str, float]:
        """Where what the GPU does next for so long stands, which may start at this time: as a span has it."""
        free, start = self.gpu, larger(self.gpu, earliest_s)
        self.gpu = start + seconds
        return {"issued_s": self.cpu, "start_s": start, "end_s": self.gpu, "waited_s": start - free}

    def issue(self, issue: Issue, timings: Sequence[Timing], cost_s: float) -> None:
        """An op and its kernels, launched one after another. In a chain the GPU follows the CPU from link to link."""
        begun, launch = self.cpu, self.host.launch
        self.cpu += cost_s - issue.further_launches * launch
        for i, (kernel, timing) in enumerate(zip(issue.kernels, timings, strict=True)):
            self.cpu += launch if i else 0.0
            earliest = self.cpu
            if kernel.chain is not None:
                self.cpu += (kernel.launches - 1) * launch
                earliest = larger(earliest, self.cpu - timing.total_s * (1 - 1 / kernel.chain.links))
            self.run(timing, earliest + self.host.launch_latency)
        self.note(issue.op, begun)

    def launched(self, work: _Work) -> Timeline:
        """Issues each op by the CPU, which runs ahead as far as it may."""
        self.begin()
        waited = False
        for issue, kernels, cost_s in work:
            self.issue(issue, kernels, cost_s)
            if kernels and (self.execution.sync == "op" or reads_a_number(issue.op)):
                self.wait()
                waited = True
        self.spend("changed buffers", self.entry.leave_s)
        return self.timeline(synchronized=self.execution.sync == "op" and waited)

    def replayed(self, work: _Work) -> Timeline:
        """One launch for all kernels. Raises InputError for a number that the CPU reads on the way."""
        for issue, *_ in work:
            if reads_a_number(issue.op):
                where = f" (module {issue.op.module!r})" if issue.op.module else ""
                raise InputError(
                    f"execution {self.execution.backend!r}: op {issue.op.name!r}{where} reads a number on the CPU, "
                    "which a CUDA graph cannot hold; take it out of the step, or choose execution 'eager' or 'compiled'"
                )
        self.begin()
        self.spend("CUDA graph", self.entry.replay_s)
        for issue, kernels, cost_s in work:
            if not is_captured(issue.op, self.execution):
                self.issue(issue, kernels, cost_s)
                continue
            for timing in kernels:
                self.run(timing, self.cpu + self.host.launch_latency)
        return self.timeline()

    def in_series(self, work: _Work) -> Timeline:
        """Kernels on the cores that dispatch them: nothing is launched ahead, copied or waited for."""
        if self.execution.as_graph:
            raise InputError(
                f"execution {self.execution.backend!r}: a CPU has no CUDA graphs; choose 'eager' or 'compiled'"
            )
        self.spend("guards", self.entry.enter_s)
        cpu_s = self.cpu
        for issue, kernels, cost_s in work:
            cpu_s += cost_s
            self.spend(issue.op, cost_s)
            for timing in kernels:
                self.run(timing, self.cpu)
                self.cpu = self.gpu
        return self._made(cpu_s, self.cpu - self.gpu)

    def timeline(self, *, synchronized: bool = False) -> Timeline:
        """What has become of the step; `synchronized` where the CPU has waited for its last kernel already."""
        cpu_s = self.cpu - self.waited_for_gpu
        if self.execution.sync == "none" and not self.waited_for_gpu:
            return self._made(cpu_s, self._settle(cpu_s))
        end = self.cpu if synchronized else larger(self.cpu, self.gpu)
        if self.execution.sync != "none" and not synchronized:
            end += self.host.sync
            self.work.append(CpuSpan(what=_WAITING, start_s=self.cpu, end_s=end, waits=True))
        return self._made(cpu_s, end - self.gpu)

    def _made(self, cpu_s: float, tail_s: float) -> Timeline:
        spans, copies, work = tuple(self.spans), tuple(self.copies), tuple(self.work)
        return Timeline(spans=spans, copies=copies, cpu_s=cpu_s, tail_s=tail_s, cpu=work)

    def _settle(self, cpu_s: float) -> float:
        """The step among many whose queue stays filled; returns the seconds after its last kernel.

        The slower side sets the pace. Where the GPU keeps up, its waits are those of one step shrunk to what is left of
        them: pace - busy time.
        """
        idle = larger(0.0, cpu_s - sum(one.seconds for one in self.spans) - sum(one.seconds for one in self.copies))
        alone = sum(one.waited_s for one in self.copies) + sum(one.waited_s for one in self.spans)
        share = idle / alone if alone else 0.0
        self.gpu = 0.0
        self.copies = [self._after(one, share) for one in self.copies]
        self.spans = [self._after(one, share) for one in self.spans]
        return larger(0.0, idle - alone * share)  # type: ignore[no-any-return]

    def _after(self, one: _Queued, share: float) -> _Queued:
        """The same behind what is on the GPU, after this share of its wait."""
        waited = one.waited_s * share
        start = self.gpu + waited
        self.gpu = start + one.seconds
        return replace(one, start_s=start, end_s=self.gpu, waited_s=waited)


def schedule(
    issues: Sequence[Issue], timings: Sequence[Sequence[Timing]], host: Host, execution: Execution,
    feed: InputPipeline | None = None, entry: Entry | None = None, *, in_series: bool = False,
    costs_s: Sequence[float] | None = None,
) -> Timeline:  # fmt: skip
    """Runs the two queues: a kernel starts when the GPU is free and the CPU has launched it.

    `timings` holds the times of each issue's kernels, in the order of the issues. `feed` is what the step waits for
    before it computes, `entry` what the CPU does around a compiled one. `in_series` where kernels run on the CPU that
    issues them: there is one queue, and each op takes its dispatch and then its kernels. Raises InputError for a CUDA
    graph that cannot be.
    """
    feed, entry = feed or InputPipeline(), entry or entry_of(host, execution)
    if execution.sync == "events":  # both stand in the GPU's queue, and what is before and after is not between them
        host = host.replace(step=host.record, launch_latency=0.0, sync=0.0)
    queues = _Queues(host, execution, feed, entry)
    run = queues.in_series if in_series else queues.replayed if execution.as_graph else queues.launched
    if costs_s is None:
        costs_s = [issue_cost_s(issue, host, execution) for issue in issues]
    found = run(list(zip(issues, timings, costs_s, strict=True)))
    # in a loop of such steps, whose samples take a loader so long
    taken_s = sum(span.timing.total_s for span in found.spans) + found.idle_s + found.input_s
    return replace(found, starved_s=larger(0.0, feed.supply_s - taken_s))
