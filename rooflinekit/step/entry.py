"""What is around a step that torch.compile runs: how it is entered, and what its CUDA graph asks for."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import EAGER, DType, Family, Math, Op, Role
from rooflinekit.ir.sizes import total
from rooflinekit.model.convolution import formats_channels_last, gradients_in_either, sums_in_fp32
from rooflinekit.model.fusion import compiled_issues, splits
from rooflinekit.model.kernel import Issue, Kernel
from rooflinekit.model.kernels import issues_of
from rooflinekit.model.recurrence import RECURRENT, is_recurrent
from rooflinekit.step.execution import Execution

#: What torch.inference_mode leaves of a view's CPU time, and takes from another op's, in views: without version
#: counters and without the record of what is a view of what. On a server's core, against torch.no_grad (torch 2.13,
#: tensors of 256 numbers): `view` 0.44 and `t` 0.49 of the time; `add` 1.8 µs less where a view takes 5.9, `relu_` 1.2.
_INFERRED_VIEW, _SAVED_AN_OP = 0.46, 0.25
_COPY = "aten._foreach_copy_"  # as torch._inductor.cudagraph_trees calls it


def kernels_key(graph: Graph, device: Device, execution: Execution) -> tuple[Hashable, ...]:
    """Equal for devices and executions with which a graph consists of the same kernels."""
    if "narrow" not in graph.memo:
        tensors = (spec for priced in graph.priced for spec in priced.op.inputs)
        graph.memo["narrow"] = any(spec.dtype.itemsize == 1 and spec.dtype is not DType.BOOL for spec in tensors)
        graph.memo["recurrent"] = any(is_recurrent(priced.op) for priced in graph.priced)
        graph.memo["attends"] = any(priced.timed_as is Family.ATTENTION for priced in graph.priced)
    # Engines for 8 bits and less say nothing of a step that has no such numbers, save of the tensor core's generation.
    narrow = graph.memo["narrow"]
    formats = formats_channels_last(device)
    tensor_formats = sorted(name for name in formats if narrow or name not in (Math.FP8, Math.INT8, Math.FP4))
    # Recurrent layers are run otherwise by the generation and the size of a GPU.
    own: tuple[Hashable, ...] = ()
    if graph.memo["recurrent"]:
        own = str(device.compute_capability), device.sm_count, device.last_cache
    if graph.memo["attends"]:  # PyTorch's choice of attention too
        own = (*own, str(device.compute_capability))
    if execution.autotunes:  # kernels are chosen by their times, of which all of the device decides
        own = (*own, device)
    if execution.fused and not graph.dims:  # reductions with few results run in two kernels where there are many SMs
        own = (*own, splits(graph, device))
    layouts = tuple(tensor_formats), gradients_in_either(formats), sums_in_fp32(formats)
    return *layouts, device.kind, device.vendor, own, execution.fused, execution.as_graph, execution.entered


def issues_for(graph: Graph, device: Device, execution: Execution) -> tuple[Issue, ...]:
    """The kernels of a graph on a device in this way of execution; remembered.

    Raises SizeError while a size is open.
    """
    key = "issues", kernels_key(graph, device, execution)
    if key not in graph.memo:
        formats, copies = formats_channels_last(device), input_copies(graph, execution)
        if execution.fused:
            found = compiled_issues(graph, formats, device, autotunes=execution.autotunes)
        else:
            found = issues_of(graph, formats, device)
        graph.memo[key] = (*copies, *found)
    return graph.memo[key]  # type: ignore[no-any-return]


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
    """Of a step of this graph; without one, of a step that is handed no tensor.

    dynamo reads each parameter and buffer from its module, guards it and hands it over; the wrapper checks its sizes.
    """
    tensors = 0 if graph is None else len(graph.weights) + len(graph.inputs)
    found = host.graph_entry if execution.entered else 0.0
    return Entry(
        enter_s=host.guards + host.guard * tensors if execution.entered else 0.0,
        replay_s=host.launch + host.graph_launch + found if execution.as_graph else 0.0,
        leave_s=_copied_back_s(graph, host) if graph is not None and execution.backend == "aot-eager" else 0.0,
    )


def input_copies(graph: Graph, execution: Execution) -> tuple[Issue, ...]:
    """The copies of a step's inputs to where its CUDA graph reads them, one kernel; nothing for other steps.

    Weights are read where they lie. A graph that the user captures is given its inputs in place.
    """
    if not (execution.as_graph and execution.entered) or not graph.inputs:
        return ()
    size = total(spec.bytes for spec in graph.inputs)
    op = Op(name="inputs of the CUDA graph", kind=_COPY, inputs=graph.inputs, attrs={EAGER: True})
    kernel = Kernel(
        name=op.name, kind=op.kind, family=Family.MOVEMENT, module="", phase=op.phase, math=Math.FP32,
        cost=Cost(read_bytes=size, write_bytes=size),
    )  # fmt: skip
    return (Issue(op=op, family=Family.MOVEMENT, kernels=(kernel,)),)


def changed_inputs(graph: Graph) -> tuple[str, ...]:
    """Names of the inputs, weights and buffers that the forward pass writes in place, each once.

    torch.compile(backend="cudagraphs") records no step that does.
    """
    given = {spec.memory: spec.name for spec in (*graph.inputs, *graph.weights)}
    return tuple(dict.fromkeys(name for op in graph.ops for name in _written(op, given)))


def _written(op: Op, given: dict[str, str]) -> Iterator[str]:
    if op.kind.endswith("_"):
        yield from (given[spec.memory] for spec in op.outputs if spec.memory in given)
    if op.kind == "aten.native_batch_norm" and op.attrs.get("training"):
        running = (op.attrs.get("running_mean"), op.attrs.get("running_var"))
        yield from (given[spec.memory] for spec in running if spec is not None and spec.memory in given)


def _copied_back_s(graph: Graph, host: Host) -> float:
    """Each buffer by an op of its own."""
    buffers = {spec.name for spec in graph.weights if spec.role is Role.BUFFER}
    return sum(name in buffers for name in changed_inputs(graph)) * host.compiled_call * host.dispatch_s("default")


def unrecorded(graph: Graph, asked: Execution) -> Iterator[str]:
    """What to tell of a step that does not run as it was asked to."""
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
