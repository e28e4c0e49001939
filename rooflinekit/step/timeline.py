"""Two queues: the CPU issues, the GPU executes. A step is overhead-bound where the GPU waits for the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rooflinekit.errors import InputError
from rooflinekit.hardware.host import Host
from rooflinekit.ir.op import Op
from rooflinekit.ir.points import larger
from rooflinekit.model.kernel import Issue
from rooflinekit.model.timing import Timing
from rooflinekit.step.entry import Entry, InputPipeline, Transfer, entry_of, is_captured, issue_cost_s, reads_a_number
from rooflinekit.step.execution import Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A kernel on the two queues, in seconds from the start of the step."""

    timing: Timing
    issued_s: float  # when the CPU had launched it
    start_s: float
    end_s: float
    waited_s: float  # how long the GPU stood idle before it


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySpan:
    """The copy of an input on the two queues, likewise; the GPU computes nothing meanwhile."""

    transfer: Transfer
    issued_s: float
    start_s: float
    end_s: float
    waited_s: float


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
    """Both queues over one step."""

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

    def fed_at(self, supply_s: float) -> Timeline:
        """The timeline of a step whose samples take a loader so long, in a loop of such steps."""
        busy = sum(span.timing.total_s for span in self.spans)
        return replace(self, starved_s=larger(0.0, supply_s - (busy + self.idle_s + self.input_s)))


class _Queues:
    """The CPU, the GPU, and what has run so far; times in seconds from the start of the step."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.cpu = 0.0
        self.gpu = 0.0
        self.waited_for_gpu = 0.0
        self.spans: list[Span] = []
        self.copies: list[CopySpan] = []
        self.work: list[CpuSpan] = []
        self.spend("step", host.step)

    def spend(self, what: Op | str, seconds: float) -> None:
        """The CPU is busy with this."""
        start = self.cpu
        self.cpu += seconds
        self.note(what, start)

    def note(self, what: Op | str, start_s: float, *, waits: bool = False) -> None:
        """What the CPU has done since then."""
        if self.cpu > start_s:
            self.work.append(CpuSpan(what=what, start_s=start_s, end_s=self.cpu, waits=waits))

    def wait(self) -> None:
        """The CPU goes on when the GPU has done everything."""
        start = self.cpu
        self.cpu = larger(self.cpu, self.gpu) + self.host.sync
        self.waited_for_gpu += self.cpu - start
        self.note(_WAITING, start, waits=True)

    def copy(self, feed: InputPipeline) -> None:
        """Inputs on their way, each by an op of its own."""
        for transfer in feed.transfers:
            self.spend(f"copy {transfer.name}", self.host.dispatch_s("default"))
            start = larger(self.gpu, self.cpu + self.host.launch_latency)
            self.copies.append(
                CopySpan(
                    transfer=transfer, issued_s=self.cpu, start_s=start, end_s=start + transfer.seconds,
                    waited_s=start - self.gpu,
                )
            )  # fmt: skip
            self.gpu = start + transfer.seconds
            if feed.blocking:
                self.wait()

    def run(self, timing: Timing, earliest_s: float) -> None:
        """A kernel that may start at this time, and when the GPU is free."""
        start = larger(self.gpu, earliest_s)
        end = start + timing.total_s
        self.spans.append(Span(timing=timing, issued_s=self.cpu, start_s=start, end_s=end, waited_s=start - self.gpu))
        self.gpu = end

    def issue(self, issue: Issue, timings: Sequence[Timing], execution: Execution) -> None:
        """An op and its kernels, launched one after another. In a chain the GPU follows the CPU from link to link."""
        begun, launch = self.cpu, self.host.launch
        further_s = max(0, sum(kernel.launches for kernel in issue.kernels) - 1) * launch
        self.cpu += issue_cost_s(issue, self.host, execution) - further_s
        for i, (kernel, timing) in enumerate(zip(issue.kernels, timings, strict=True)):
            self.cpu += launch if i else 0.0
            earliest = self.cpu
            if kernel.chain is not None:
                self.cpu += (kernel.launches - 1) * launch
                earliest = larger(earliest, self.cpu - timing.total_s * (1 - 1 / kernel.chain.links))
            self.run(timing, earliest + self.host.launch_latency)
        self.note(issue.op, begun)

    def timeline(self, execution: Execution, *, synchronized: bool = False) -> Timeline:
        """What has become of the step; `synchronized` where the CPU has waited for its last kernel already."""
        cpu_s = self.cpu - self.waited_for_gpu
        if execution.sync == "none" and not self.waited_for_gpu:
            return replace(_steady(self.spans, self.copies, cpu_s), cpu=tuple(self.work))
        end = self.cpu if synchronized else larger(self.cpu, self.gpu)
        if execution.sync != "none" and not synchronized:
            end += self.host.sync
            self.work.append(CpuSpan(what=_WAITING, start_s=self.cpu, end_s=end, waits=True))
        return Timeline(
            spans=tuple(self.spans), copies=tuple(self.copies), cpu_s=cpu_s, tail_s=end - self.gpu, cpu=tuple(self.work)
        )


def schedule(
    issues: Sequence[Issue],
    timings: Sequence[Sequence[Timing]],
    host: Host,
    execution: Execution,
    feed: InputPipeline | None = None,
    entry: Entry | None = None,
    *,
    in_series: bool = False,
) -> Timeline:
    """Runs the two queues: a kernel starts when the GPU is free and the CPU has launched it.

    `timings` holds the times of each issue's kernels, in the order of the issues. `feed` is what the step waits for
    before it computes, `entry` what the CPU does around a compiled one. `in_series` where kernels run on the CPU that
    issues them: there is one queue, and each op takes its dispatch and then its kernels. Raises InputError for a CUDA
    graph that cannot be.
    """
    feed, entry = feed or InputPipeline(), entry or entry_of(host, execution)
    if execution.sync == "events":  # both stand in the GPU's queue, and what is before and after is not between them
        host = host.replace(step=host.record, launch_latency=0.0, sync=0.0)
    scheduled = _in_series if in_series else _replayed if execution.as_graph else _launched
    return scheduled(issues, timings, host, execution, feed, entry).fed_at(feed.supply_s)


def _launched(
    issues: Sequence[Issue],
    timings: Sequence[Sequence[Timing]],
    host: Host,
    execution: Execution,
    feed: InputPipeline,
    entry: Entry,
) -> Timeline:
    queues = _Queues(host)
    queues.copy(feed)
    queues.spend("guards", entry.enter_s)
    waited = False
    for issue, kernels in zip(issues, timings, strict=True):
        queues.issue(issue, kernels, execution)
        if kernels and (execution.sync == "op" or reads_a_number(issue.op)):
            queues.wait()
            waited = True
    queues.spend("changed buffers", entry.leave_s)
    return queues.timeline(execution, synchronized=execution.sync == "op" and waited)


def _in_series(
    issues: Sequence[Issue],
    timings: Sequence[Sequence[Timing]],
    host: Host,
    execution: Execution,
    feed: InputPipeline,
    entry: Entry,
) -> Timeline:
    """Kernels on the cores that dispatch them: nothing is launched ahead, copied or waited for."""
    if execution.as_graph:
        raise InputError(f"execution {execution.backend!r}: a CPU has no CUDA graphs; choose 'eager' or 'compiled'")
    queues = _Queues(host)
    queues.spend("guards", entry.enter_s)
    cpu_s = queues.cpu
    for issue, kernels in zip(issues, timings, strict=True):
        cost = issue_cost_s(issue, host, execution)
        cpu_s += cost
        queues.spend(issue.op, cost)
        for timing in kernels:
            queues.run(timing, queues.cpu)
            queues.cpu = queues.gpu
    return Timeline(spans=tuple(queues.spans), cpu_s=cpu_s, tail_s=queues.cpu - queues.gpu, cpu=tuple(queues.work))


def _replayed(
    issues: Sequence[Issue],
    timings: Sequence[Sequence[Timing]],
    host: Host,
    execution: Execution,
    feed: InputPipeline,
    entry: Entry,
) -> Timeline:
    """One launch for all kernels. Raises InputError for a number that the CPU reads on the way."""
    for issue in issues:
        if reads_a_number(issue.op):
            where = f" (module {issue.op.module!r})" if issue.op.module else ""
            raise InputError(
                f"execution {execution.backend!r}: op {issue.op.name!r}{where} reads a number on the CPU, which a CUDA "
                "graph cannot hold; take it out of the step, or choose execution 'eager' or 'compiled'"
            )
    queues = _Queues(host)
    queues.copy(feed)
    queues.spend("guards", entry.enter_s)
    queues.spend("CUDA graph", entry.replay_s)
    for issue, kernels in zip(issues, timings, strict=True):
        if not is_captured(issue.op, execution):
            queues.issue(issue, kernels, execution)
            continue
        for timing in kernels:
            queues.run(timing, queues.cpu + host.launch_latency)
    return queues.timeline(execution)


def _steady(spans: list[Span], copies: list[CopySpan], cpu_s: float) -> Timeline:
    """Many steps one after another: the queue between CPU and GPU stays filled, and the slower side sets the pace.

    Where the GPU keeps up, its waits are those of one step shrunk to what is left of them: pace - busy time.
    """
    busy = sum(span.timing.total_s for span in spans) + sum(copy.transfer.seconds for copy in copies)
    idle = larger(0.0, cpu_s - busy)
    alone = sum(copy.waited_s for copy in copies) + sum(span.waited_s for span in spans)
    share = idle / alone if alone else 0.0
    gpu = 0.0
    moved: list[Span] = []
    moved_copies: list[CopySpan] = []
    for copy in copies:
        waited = copy.waited_s * share
        start = gpu + waited
        gpu = start + copy.transfer.seconds
        moved_copies.append(replace(copy, start_s=start, end_s=gpu, waited_s=waited))
    for span in spans:
        waited = span.waited_s * share
        start = gpu + waited
        gpu = start + span.timing.total_s
        moved.append(replace(span, start_s=start, end_s=gpu, waited_s=waited))
    tail = idle - alone * share
    return Timeline(spans=tuple(moved), copies=tuple(moved_copies), cpu_s=cpu_s, tail_s=larger(0.0, tail))
