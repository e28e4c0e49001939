"""Two queues: the CPU issues, the GPU executes. A step is overhead-bound where the GPU waits for the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rooflinekit.errors import InputError, nearest
from rooflinekit.hardware.host import Host
from rooflinekit.ir.op import Op, Phase
from rooflinekit.model.fusion import is_fused
from rooflinekit.model.kernels import Issue
from rooflinekit.model.roofline import Timing

Backend = Literal["eager", "compiled", "cuda-graph", "reduce-overhead"]
Sync = Literal["none", "step", "op"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How PyTorch runs the step.

    `backend`: "eager" launches the kernels of each op; "compiled" those of torch.compile in its default mode, the
    optimizer's included; "cuda-graph" launches the eager kernels as one CUDA graph, and "reduce-overhead" the compiled
    ones.
    `sync`: "step" synchronizes after every step (the time of one step alone), "none" lets steps follow each other
    without waiting (the time a step adds to a long loop), "op" synchronizes after every op (as profilers do).
    Raises InputError for another word, and for synchronizing after the ops of a CUDA graph.
    """

    backend: Backend = "eager"
    sync: Sync = "step"

    def __post_init__(self) -> None:
        for field, value, known in (("backend", self.backend, Backend), ("sync", self.sync, Sync)):
            if value not in get_args(known):
                words = " or ".join(map(repr, get_args(known)))
                raise InputError(f"execution {field} {value!r}: expected {words}{nearest(str(value), get_args(known))}")
        if self.sync == "op" and self.as_graph:
            raise InputError(
                f"execution sync 'op': a CUDA graph ({self.backend!r}) runs as a whole; choose 'step' or 'none', or "
                "execution 'eager' or 'compiled'"
            )

    @property
    def fused(self) -> bool:
        """Whether torch.compile makes the kernels."""
        return self.backend in ("compiled", "reduce-overhead")

    @property
    def as_graph(self) -> bool:
        """Whether the kernels are launched as a CUDA graph."""
        return self.backend in ("cuda-graph", "reduce-overhead")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A kernel on the two queues, in seconds from the start of the step."""

    timing: Timing
    issued_s: float  # when the CPU had launched it
    start_s: float
    end_s: float
    waited_s: float  # how long the GPU stood idle before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Both queues over one step."""

    spans: tuple[Span, ...]
    cpu_s: float  # what the CPU spends issuing the step
    tail_s: float  # what passes after the last kernel has ended: the CPU's remaining work, the synchronization

    @property
    def idle_s(self) -> float:
        """How long the GPU does not execute a kernel of the step."""
        return sum(span.waited_s for span in self.spans) + self.tail_s


def reads_a_number(op: Op) -> bool:
    """Whether the CPU waits for its result: `.item()`, or a condition on a tensor."""
    return op.kind == "aten._local_scalar_dense"


def issue_cost_s(issue: Issue, host: Host, execution: Execution | None = None) -> float:
    """CPU time of issuing one op, all its launches included.

    A compiled step launches its Triton kernels from inductor's wrapper, which calls libraries without modules, autocast
    and autograd around them: at what an op costs that autograd's engine issues. Views cost it nothing.
    """
    further_s = max(0, len(issue.kernels) - 1) * host.launch
    compiled = execution is not None and execution.fused
    if compiled and is_fused(issue):
        return host.compiled_launch + further_s
    dispatch_s = host.dispatch_s(issue.family.value)
    if compiled or issue.op.phase is Phase.BACKWARD:
        dispatch_s *= host.backward_factor
    return dispatch_s + further_s


def schedule(
    issues: Sequence[Issue], timings: Sequence[Sequence[Timing]], host: Host, execution: Execution
) -> Timeline:
    """Runs the two queues: a kernel starts when the GPU is free and the CPU has launched it.

    `timings` holds the times of each issue's kernels, in the order of the issues.
    """
    if execution.as_graph:
        return _replayed(issues, timings, host, execution)
    cpu, gpu = host.step + (host.guards if execution.fused else 0.0), 0.0
    waited_for_gpu = 0.0
    spans: list[Span] = []
    for issue, kernels in zip(issues, timings, strict=True):
        cost = issue_cost_s(issue, host, execution)
        cpu += cost - max(0, len(kernels) - 1) * host.launch
        for i, timing in enumerate(kernels):
            cpu += host.launch if i else 0.0
            start = max(gpu, cpu + host.launch_latency)
            spans.append(
                Span(timing=timing, issued_s=cpu, start_s=start, end_s=start + timing.total_s, waited_s=start - gpu)
            )
            gpu = start + timing.total_s
        if kernels and (execution.sync == "op" or reads_a_number(issue.op)):
            done = max(cpu, gpu) + host.sync
            waited_for_gpu += done - cpu
            cpu = done
    cpu_s = cpu - waited_for_gpu
    if execution.sync == "none" and not waited_for_gpu:
        return _steady(spans, cpu_s)
    synchronized = execution.sync == "op" and waited_for_gpu > 0
    end = cpu if synchronized else max(cpu, gpu) + host.sync
    return Timeline(spans=tuple(spans), cpu_s=cpu_s, tail_s=end - gpu)


def _replayed(
    issues: Sequence[Issue], timings: Sequence[Sequence[Timing]], host: Host, execution: Execution
) -> Timeline:
    """One launch for all kernels. Raises InputError for a number that the CPU reads on the way."""
    for issue in issues:
        if reads_a_number(issue.op):
            where = f" (module {issue.op.module!r})" if issue.op.module else ""
            raise InputError(
                f"execution {execution.backend!r}: op {issue.op.name!r}{where} reads a number on the CPU, which a CUDA "
                "graph cannot hold; take it out of the step, or choose execution 'eager' or 'compiled'"
            )
    cpu_s = host.step + (host.guards if execution.fused else 0.0) + host.launch + host.graph_launch
    gpu = 0.0
    spans: list[Span] = []
    for timing in (timing for kernels in timings for timing in kernels):
        start = gpu if spans else cpu_s + host.launch_latency
        end = start + timing.total_s
        spans.append(Span(timing=timing, issued_s=cpu_s, start_s=start, end_s=end, waited_s=start - gpu))
        gpu = end
    if execution.sync == "none":
        return _steady(spans, cpu_s)
    return Timeline(spans=tuple(spans), cpu_s=cpu_s, tail_s=max(cpu_s, gpu) + host.sync - gpu)


def _steady(spans: list[Span], cpu_s: float) -> Timeline:
    """Many steps one after another: the queue between CPU and GPU stays filled, and the slower side sets the pace.

    Where the GPU keeps up, its waits are those of one step shrunk to what is left of them: pace - busy time.
    """
    busy = sum(span.timing.total_s for span in spans)
    idle = max(0.0, cpu_s - busy)
    alone = sum(span.waited_s for span in spans)
    share = idle / alone if alone else 0.0
    paced = []
    gpu = 0.0
    for span in spans:
        waited = span.waited_s * share
        start = gpu + waited
        gpu = start + span.timing.total_s
        paced.append(Span(timing=span.timing, issued_s=span.issued_s, start_s=start, end_s=gpu, waited_s=waited))
    tail = idle - sum(span.waited_s for span in paced)
    return Timeline(spans=tuple(paced), cpu_s=cpu_s, tail_s=max(0.0, tail))
