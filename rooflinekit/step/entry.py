"""What is around a step that torch.compile runs: how it is entered, and what its CUDA graph asks for."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from rooflinekit.errors import FormatError, InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import EAGER, DType, Family, Math, Op, Phase, Role, TensorSpec
from rooflinekit.ir.points import integer
from rooflinekit.ir.sizes import total
from rooflinekit.kernels.attention_backends import WRITTEN_OUT, backend_of, choice_of, with_backend
from rooflinekit.kernels.attention_math import with_written_out
from rooflinekit.kernels.attention_patterns import with_fused_attention
from rooflinekit.kernels.convolution import gradients_in_either, is_convolution, sums_in_fp32
from rooflinekit.kernels.eager import issues_of, math_of
from rooflinekit.kernels.fusion import compiled_issues, is_fused, splits
from rooflinekit.kernels.kernel import Issue, Kernel
from rooflinekit.kernels.libraries import formats_channels_last
from rooflinekit.kernels.recurrence import RECURRENT, is_recurrent
from rooflinekit.step.execution import Execution
from rooflinekit.timing.collectives import PAYLOAD_SHARE

_T = TypeVar("_T")
_EAGER = Execution()

#: What torch.inference_mode leaves of a view's CPU time, and takes from another op's, in views: without version
#: counters and without the record of what is a view of what. On a server's core, against torch.no_grad (torch 2.13,
#: tensors of 256 numbers): `view` 0.44 and `t` 0.49 of the time; `add` 1.8 µs less where a view takes 5.9, `relu_` 1.2.
_INFERRED_VIEW, _SAVED_AN_OP = 0.46, 0.25
_COPY = "aten._foreach_copy_"  # as torch._inductor.cudagraph_trees calls it


def kernels_key(graph: Graph, device: Device, execution: Execution) -> tuple[Hashable, ...]:
    """Equal for devices and executions with which a graph consists of the same kernels."""
    if "convolved" not in graph.memo:
        found = (p for p in graph.priced if is_convolution(p.op))
        graph.memo["convolved"] = {math_of(p.op, p.timed_as, graph.tf32) for p in found}
        graph.memo["recurrent"] = any(is_recurrent(priced.op) for priced in graph.priced)
    # The tensor core's formats decide on the layouts of convolutions in these formats, and on nothing else.
    formats, convolved = formats_channels_last(device), graph.memo["convolved"]
    layouts: tuple[Hashable, ...] = ()
    if convolved:
        layouts = tuple(sorted(convolved & set(formats))), gradients_in_either(formats), sums_in_fp32(formats)
    # Recurrent layers are run otherwise by the generation and the size of a GPU.
    own: tuple[Hashable, ...] = ()
    if graph.memo["recurrent"]:
        own = str(device.compute_capability), device.sm_count, device.last_cache
    own = (*own, *_attention_key(graph, device, execution))
    if execution.autotunes:  # kernels are chosen by their times, of which all of the device decides
        own = (*own, device)
    if execution.fused and not graph.dims:  # reductions with few results run in two kernels where there are many SMs
        own = (*own, splits(graph, device))
    return layouts, device.kind, device.vendor, own, execution.fused, execution.as_graph, execution.entered


def _attention_key(graph: Graph, device: Device, execution: Execution) -> tuple[Hashable, ...]:
    """Equal for devices on which each attention of a graph runs as the same kernels; empty where there is none."""
    ops = attention_ops(graph, execution)
    if graph.dims or execution.attention is not None:  # no sizes to choose by, or what a device says of a choice
        return (str(device.compute_capability), execution.attention) if ops else ()
    key = "attention", execution.fused, device.kind, device.vendor, device.compute_capability
    if key not in graph.memo:
        try:
            graph.memo[key] = tuple(choice_of(op, device, graph.like) for op in ops)
        except FormatError:  # of which the kernels will tell
            graph.memo[key] = (device.name,)
    return graph.memo[key]  # type: ignore[no-any-return]


def issues_for(graph: Graph, device: Device, execution: Execution) -> tuple[Issue, ...]:
    """The kernels of a graph on a device in this way of execution; remembered.

    Raises SizeError while a size is open, InputError where the kernel of attention that it names takes none.
    """
    key = "issues", kernels_key(graph, device, execution)
    memo = graph.memo
    if key not in memo:
        formats, copies = formats_channels_last(device), input_copies(graph, execution)
        graph = _written_out(attending(graph, device, execution), device, execution)
        if execution.fused:
            found = compiled_issues(graph, formats, device, autotunes=execution.autotunes)
        else:
            found = issues_of(graph, formats, device)
        memo[key] = (*copies, *found)
    return memo[key]  # type: ignore[no-any-return]


def by_issue(issues: Iterable[Issue], each: Iterable[_T]) -> Iterator[tuple[Issue, tuple[_T, ...]]]:
    """Each op with what its kernels have of `each`, which holds one thing for every kernel in order."""
    left = iter(each)
    return ((issue, tuple(islice(left, len(issue.kernels)))) for issue in issues)


def _with_attention(graph: Graph, execution: Execution) -> Graph:
    """The graph with the calls of attention that it is run with: torch.compile finds some where ops are written out."""
    return with_fused_attention(graph) if execution.fused else graph


def attention_ops(graph: Graph, execution: Execution) -> list[Op]:
    """The attention calls of a graph; remembered."""
    key = "attention", execution.fused
    if key not in graph.memo:
        whole = _with_attention(graph, execution)
        graph.memo[key] = [priced.op for priced in whole.priced if priced.timed_as is Family.ATTENTION]
    return graph.memo[key]  # type: ignore[no-any-return]


def attending(graph: Graph, device: Device, execution: Execution) -> Graph:
    """The graph with attention by the kernel that the execution names. Raises InputError where that takes none."""
    if execution.attention is None:
        return graph
    return with_backend(_with_attention(graph, execution), execution.attention, device)


def _written_out(graph: Graph, device: Device, execution: Execution) -> Graph:
    """The graph with the ops of each attention without a fused kernel there. Raises FormatError where it has none."""
    if graph.dims:
        return graph
    whole, attends = _with_attention(graph, execution), set(map(id, attention_ops(graph, execution)))
    found = with_written_out(whole, lambda op: id(op) in attends and backend_of(op, device, graph.like) is WRITTEN_OUT)
    return graph if found is whole else found


def as_run(graph: Graph, execution: Execution) -> Execution:
    """How a step runs in fact: torch.compile's backend "cudagraphs" records none that changes its inputs in place.

    Nor one with a recurrent layer, which dynamo leaves to Python (torch/_dynamo/config.py, allow_rnn).
    """
    if execution.backend != "cudagraphs":
        return execution
    if changed_inputs(graph) or any(op.kind in RECURRENT for op in graph.ops):
        return replace(execution, backend="aot-eager")
    return execution


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """CPU time around what a compiled or captured step runs, in seconds."""

    enter_s: float = 0.0  # Python, guards, and the tensors that are handed over
    replay_s: float = 0.0  # launching a CUDA graph, and finding the one that was recorded for these inputs
    leave_s: float = 0.0  # copying what was changed to where it belongs


def issuing(host: Host, graph: Graph) -> Host:
    """The host as it issues this graph's ops: within torch.inference_mode it keeps less about each tensor."""
    if not graph.inference_mode:
        return host
    saved = _SAVED_AN_OP * host.dispatch_s("view")
    dispatch = {family: max(0.0, seconds - saved) for family, seconds in host.dispatch.items()}
    return host.replace(dispatch={**dispatch, "view": _INFERRED_VIEW * host.dispatch_s("view")})


def entry_of(host: Host, execution: Execution, graph: Graph | None = None) -> Entry:
    """The cost of entering a step of this graph, whose tensors dynamo reads and guards; without one, of no tensor."""
    tensors = 0 if graph is None else len(_given(graph))
    found = host.graph_entry if execution.entered else 0.0
    copied_back = 0  # buffers, each by an op of its own
    if graph is not None and execution.backend == "aot-eager":
        buffers = {spec.name for spec in graph.weights if spec.role is Role.BUFFER}
        copied_back = len(buffers.intersection(changed_inputs(graph)))
    return Entry(
        enter_s=host.guards + host.guard * tensors if execution.entered else 0.0,
        replay_s=host.launch + host.graph_launch + found if execution.as_graph else 0.0,
        leave_s=copied_back * host.compiled_call * host.dispatch_s("default"),
    )


def input_copies(graph: Graph, execution: Execution) -> tuple[Issue, ...]:
    """The kernel that copies a step's inputs to where torch.compile's CUDA graph reads them; () for other steps."""
    if not (execution.as_graph and execution.entered) or not graph.inputs:
        return ()
    size = total(spec.bytes for spec in graph.inputs)
    op = Op(name="inputs of the CUDA graph", kind=_COPY, inputs=graph.inputs, attrs={EAGER: True})
    kernel = Kernel(
        name=op.name, kind=op.kind, family=Family.MOVEMENT, module="", phase=op.phase, math=Math.FP32,
        cost=Cost(read_bytes=size, write_bytes=size),
    )  # fmt: skip
    return (Issue(op=op, family=Family.MOVEMENT, kernels=(kernel,)),)


def _given(graph: Graph) -> list[TensorSpec]:
    """Inputs, weights and buffers; not what stands beside them, such as DDP's buckets."""
    return [spec for spec in (*graph.inputs, *graph.weights) if spec.role is not Role.GRADIENT]


def changed_inputs(graph: Graph) -> tuple[str, ...]:
    """Inputs, weights and buffers that forward writes in place, each once: "cudagraphs" records no such step."""
    given = {spec.memory: spec.name for spec in _given(graph)}
    return tuple(dict.fromkeys(name for op in graph.ops for name in _written(op, given)))


def _written(op: Op, given: dict[str, str]) -> Iterator[str]:
    if op.kind.endswith("_"):
        yield from (given[spec.memory] for spec in op.outputs if spec.memory in given)
    if op.kind == "aten.native_batch_norm" and op.attrs.get("training"):
        running = (op.attrs.get("running_mean"), op.attrs.get("running_var"))
        yield from (given[spec.memory] for spec in running if spec is not None and spec.memory in given)


def unrecorded(graph: Graph, asked: Execution) -> Iterator[str]:
    """Notes on a step that does not run in the way that was asked for."""
    if as_run(graph, asked) is not asked:
        changed = changed_inputs(graph)
        if not changed:
            yield f"{asked.backend}: torch.compile leaves recurrent layers to Python: it runs op by op ('aot-eager')"
            return
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        yield (
            f"{asked.backend}: the step changes {changed[0]!r}{more} in place, and torch.compile records no such step: "
            "it runs op by op ('aot-eager')"
        )


# What the CPU spends on issuing an op, after which ops it waits, and which ops a CUDA graph issues for it.


#: Operators after which PyTorch waits for the GPU, to make a tensor or a number of what it has counted.
_READING = {
    "aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten._unique2", "aten._unique",
    "aten.unique_dim", "aten.unique_consecutive", "aten.unique_dim_consecutive", "aten.bincount", "torchvision.nms",
}  # fmt: skip


def reads_a_number(op: Op) -> bool:
    """Whether the CPU waits for its result: `.item()`, a condition on a tensor, or a size that data decide."""
    if op.kind in _READING:
        return True
    if op.kind == "aten.equal":  # which looks at no numbers where shapes differ
        return op.inputs[0].shape == op.inputs[-1].shape
    if op.kind == "aten.repeat_interleave":
        return op.attrs.get("output_size", 0) is None
    masks = (DType.BOOL, DType.UINT8)
    if op.kind == "aten.index":
        return any(index is not None and index.dtype in masks for index in op.attrs.get("indices", ()))
    return "named" in op.attrs  # written under a mask


def is_captured(op: Op, execution: Execution) -> bool:
    """Whether an op is in a CUDA graph: all, but torch.compile captures only what it is given to compile.

    Which recurrent layers are not (torch/_dynamo/config.py, allow_rnn).
    """
    outside = EAGER in op.attrs or "cpu_s" in op.attrs or op.kind in RECURRENT
    return execution.as_graph and not (execution.entered and outside)


def issue_cost_s(issue: Issue, host: Host, execution: Execution = _EAGER) -> float:
    """CPU time of issuing one op, all its launches included.

    A compiled step launches its Triton kernels from inductor's wrapper, which calls libraries without modules, autocast
    and autograd around them, at `compiled_call` of what they cost from Python. Views cost it nothing.
    """
    further_s = issue.further_launches * host.launch
    if calls := sum(kernel.chain.calls for kernel in issue.kernels if kernel.chain):
        # called on the CPU by another op: in C++, as autograd's engine does, and without a launch
        further_s += calls * (host.backward_factor * host.dispatch_s("view"))
    if execution.fused and is_fused(issue):
        return host.compiled_launch + further_s
    dispatch_s = host.dispatch_s(issue.family.value)
    if execution.fused and not issue.kernels:  # put there by a strategy, for inductor has no views
        return float(issue.op.attrs.get("cpu_s", dispatch_s))
    if execution.entered:
        return dispatch_s * host.compiled_call + further_s
    if issue.op.phase is Phase.BACKWARD:
        dispatch_s *= host.backward_factor
    return dispatch_s + issue.calls * host.module + further_s


def issue_costs_s(graph: Graph, issues: Sequence[Issue], host: Host, execution: Execution) -> Sequence[float]:
    """CPU time of issuing each op of a graph; remembered for the last host, as no device decides on it."""
    key = "issuing", id(issues), execution
    known = graph.memo.get(key)
    if known is None or known[1] is not host:
        slowed = issuing(host, graph)
        known = graph.memo[key] = issues, host, [issue_cost_s(issue, slowed, execution) for issue in issues]
    return known[2]


# What a step waits for before it can compute: copies of its inputs, and the loader that makes them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One tensor on its way to the device."""

    name: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPipeline:
    """The tensors that a step copies to the device."""

    transfers: tuple[Transfer, ...] = ()
    blocking: bool = True  # whether the CPU waits for each
    supply_s: float = 0.0  # that the loader needs for the step's samples


def copy_rate(device: Device, host: Host, *, pinned: bool) -> float:
    """byte/s from the host's memory to the device: the host's figure, or what the device's link takes, if less."""
    of_host = host.copy_bandwidth_pinned if pinned else host.copy_bandwidth_pageable
    if device.pcie is None:
        return of_host
    return min(of_host, device.pcie.bandwidth_per_direction * PAYLOAD_SHARE)


def input_pipeline_of(graph: Graph, device: Device, host: Host, execution: Execution) -> InputPipeline:
    """What feeds a step of this graph, whose sizes are numbers. The inputs of a CPU's step are where it needs them.

    Raises InputError for a rate of samples where there is no input to count them by.
    """
    transfers: tuple[Transfer, ...] = ()
    if execution.copy != "none" and device.kind != "cpu":
        rate = copy_rate(device, host, pinned=execution.copy == "pinned")
        sizes = {spec.name: integer(spec.bytes) for spec in graph.inputs}
        transfers = tuple(Transfer(name=name, bytes=size, seconds=size / rate) for name, size in sizes.items())
    supply_s, shape = 0.0, graph.inputs[0].shape if graph.inputs else ()
    if execution.loader_rate is not None:
        if not shape:
            raise InputError(
                f"execution loader_rate: {graph.name} has no input whose first dimension would be the number of samples"
            )
        supply_s = integer(shape[0]) / execution.loader_rate
    return InputPipeline(transfers=transfers, blocking=not execution.non_blocking, supply_s=supply_s)
