"""Graph → kernels as torch.compile (inductor, mode "default") makes them.

Ops become loop nests (lowering.py), those that are not stored are written into their readers (inlining.py), and what
goes through the same elements runs as one kernel (grouping.py). Products, convolutions and attention stay with their
libraries: in the default mode inductor fuses nothing into them. Attention that is written out is one of these
(attention_patterns.py). A fused kernel reads each value from outside once and writes each of its values once that is
read outside.

Simplified: the backward phase computes again only what costs no memory (inlining.py), not all that AOTAutograd's
partitioner would; a whole step, optimizer included, is compiled; nothing is padded; weights are not folded
(config.freezing is off).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rooflinekit.cost.rules.elementwise import SOFTMAXES
from rooflinekit.hardware.device import Device
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import PRESENT
from rooflinekit.ir.op import IN_PLACE, DType, Family, Math, Op, PricedOp, TensorSpec
from rooflinekit.ir.points import integer
from rooflinekit.ir.sizes import missing_size
from rooflinekit.kernels.attention_patterns import with_fused_attention
from rooflinekit.kernels.convolution import is_convolution
from rooflinekit.kernels.eager import issue_of, plain_kernels, reusing
from rooflinekit.kernels.grouping import Group, groups_of, whole_up_to
from rooflinekit.kernels.inlining import Buffer, Dataflow, Read, buffers_of
from rooflinekit.kernels.kernel import Issue, Kernel, Traffic
from rooflinekit.kernels.layout import (
    NO_LAYOUTS,
    Layouts,
    converts_to_channels_last,
    streamed_share,
    with_channels_last,
)
from rooflinekit.kernels.loops import LABEL, Loop, Walk
from rooflinekit.kernels.lowering import BIAS, BIAS_GRADIENT
from rooflinekit.kernels.recurrence import RECURRENT
from rooflinekit.kernels.rows import NO_REPEATS, NO_ROWS, SOFTMAX_PASSES, Rows, repeats_of
from rooflinekit.kernels.templates import fuse_into_templates, may_fuse, with_template

FUSED = "inductor"  # the namespace of fused kernels' kinds
_LOWERED = (BIAS, BIAS_GRADIENT)  # kernels of eager convolutions that are loops here
_NAMED = 6  # ops in the name of a kernel

# A Triton kernel keeps rows of up to this many elements in registers; a longer one is read in each of its passes
# (torch/_inductor/choices.py, should_use_persistent_reduction).
PERSISTENT_ROW = 1024
# Elements of a longer row for each thread, and threads (torch/_inductor/runtime/triton_heuristics.py): 16 warps of 32,
# or 8 of 64.
_OF_A_THREAD, _MOST_THREADS = 4, 512


def compiled_issues(
    graph: Graph, tensor_formats: Collection[str] = (), device: Device | None = None, *, autotunes: bool = False
) -> tuple[Issue, ...]:
    """The graph's kernels as inductor makes them, each as the CPU issues it.

    tensor_formats: the formats that the device multiplies on a tensor core, whose convolutions want channels last.
    device: on which recurrent layers are run as it wants it. autotunes: whether it is timed which templates are faster
    there than libraries (mode "max-autotune").

    Raises SizeError while a size of the graph is open.
    """
    if graph.dims:
        raise missing_size(graph.dims)
    graph, layouts, buffers, flow = _lowered(graph, device)
    sms = device.sm_count if device is not None else 0
    groups = groups_of(buffers, flow, sms, reorders_loops=(graph.like or PRESENT).reorders_loops)
    readers = defaultdict[str, list[Group]](list)
    for group in groups:
        for value in {value for value, _ in group.read}:
            readers[value].append(group)
    making = _Making(
        graph=graph, flow=flow, layouts=layouts, readers=readers, tensor_formats=tensor_formats, device=device,
        autotunes=autotunes,
    )  # fmt: skip
    made = [tuple(making.issues(i, group)) for i, group in enumerate(groups)]
    if autotunes and device is not None and may_fuse(device):
        fuse_into_templates(made, groups, flow, device)
    return tuple(issue for issues in made for issue in issues)


def splits(graph: Graph, device: Device) -> int:
    """A number, equal for devices of a vendor on which inductor splits the same reductions of the graph in two."""
    key = "splits", device.vendor
    if key not in graph.memo:
        graph.memo[key] = sorted({whole_up_to(buffer) for buffer in _lowered(graph, device)[2]})
    return bisect_left(graph.memo[key], device.sm_count)


def _lowered(graph: Graph, device: Device | None) -> tuple[Graph, Layouts, list[Buffer], Dataflow]:
    """The graph with fused attention, its layouts, and its buffers; remembered for devices of a vendor."""
    key = "lowered", device and device.vendor
    if key not in graph.memo:
        fused = with_fused_attention(graph)
        layouts = Layouts.of(fused) if converts_to_channels_last(fused, device) else NO_LAYOUTS
        graph.memo[key] = (fused, layouts, *buffers_of(fused, layouts))
    return graph.memo[key]  # type: ignore[no-any-return]


def assumptions_of(graph: Graph, device: Device) -> Iterator[str]:
    """Assumptions about the compiled step that the user is told."""
    if converts_to_channels_last(graph, device):
        yield "compiled: inductor runs the convolutions with channels last"
    if with_fused_attention(graph) is not graph:
        yield "compiled: inductor calls fused attention where products and a softmax between them are written out"
    if any(op.kind in RECURRENT for op in graph.ops):
        yield "compiled: recurrent layers run as in eager mode, where torch.compile leaves them"
    if graph.mode == "training":
        yield "compiled: the whole step, optimizer included; backward recomputes what costs no memory"


def is_fused(issue: Issue) -> bool:
    """Whether it is a kernel that inductor makes, not the call of a library."""
    return issue.op.kind.startswith(f"{FUSED}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """Makes the kernels of groups, in the order of execution."""

    graph: Graph
    flow: Dataflow
    layouts: Layouts
    readers: Mapping[str, Sequence[Group]]  # of each value
    tensor_formats: Collection[str]
    device: Device | None
    autotunes: bool
    traffic: Traffic = field(default_factory=Traffic)

    def issues(self, i: int, group: Group) -> Iterator[Issue]:
        """The launches of a group, as the CPU issues them."""
        if group.loop is not Loop.EXTERN:
            yield self._fused(i, group)
            return
        part = group.buffers[0].part
        if not (self.layouts.last and is_convolution(part.op)):
            yield self._library(part.priced)
            return
        moved, given = with_channels_last(part.priced)
        for spec in given:
            yield self._conversion(moved.op, spec, "to channels last")
        yield self._library(moved)
        for buffer in group.buffers:
            for value, spec in buffer.writes.items():
                if value in self.flow.kept and spec.memory in self.layouts.returned:
                    yield self._conversion(moved.op, spec, "from channels last")

    def _conversion(self, op: Op, spec: TensorSpec, label: str) -> Issue:
        """A copy to another layout, by a kernel of its own."""
        size = integer(spec.bytes)
        name = f"triton_poi_fused_convolution ({spec.name} {label})"
        copy = Op(name=name, kind=f"{FUSED}.{Loop.POINTWISE}", module=op.module, phase=op.phase, inputs=(spec,))
        kernel = Kernel(
            name=name, kind=copy.kind, family=Family.MOVEMENT, module=op.module, phase=op.phase, math=Math.FP32,
            cost=Cost(read_bytes=size, write_bytes=size, label=label),
        )  # fmt: skip
        return Issue(op=copy, family=Family.MOVEMENT, kernels=(reusing(kernel, copy, self.traffic),))

    def _library(self, priced: PricedOp) -> Issue:
        found = plain_kernels(priced, self.graph.tf32, self.device, self.graph.like)
        plain = [kernel for kernel in found if kernel.cost.label not in _LOWERED]
        if self.autotunes and is_convolution(priced.op):
            plain = list(with_template(priced.op, plain, self.tensor_formats))
        return issue_of(priced.op, priced.family, plain, self.tensor_formats, self.traffic)

    def _fused(self, i: int, group: Group) -> Issue:
        read, written = self._reads(group), self._writes(group)
        part = group.buffers[-1].part
        labels = list(dict.fromkeys(label for buffer in group.buffers for label in buffer.expression.labels))
        name = _name(group, labels, i)
        op = Op(
            name=name,
            kind=f"{FUSED}.{group.loop}",
            module=part.op.module,
            phase=part.op.phase,
            inputs=tuple(spec for spec, _ in read),
            outputs=tuple(spec for spec, _ in written),
            attrs={IN_PLACE: _in_place(group, [spec for spec, _ in written])},
        )
        work = _work(group)
        cost = Cost(
            vector_flop=sum(vector for vector, _ in work),
            special_flop=sum(special for _, special in work),
            read_bytes=sum(size for _, size in read),
            write_bytes=sum(size for _, size in written),
        )
        double = any(spec.dtype in (DType.FLOAT64, DType.COMPLEX128) for spec, _ in (*read, *written))
        kernel = Kernel(
            name=name,
            kind=op.kind,
            family=_family(group, cost),
            module=op.module,
            phase=op.phase,
            math=Math.FP64 if double else Math.FP32,
            cost=cost,
            rows=self._rows(group, written),
            streamed=self._streamed(group, read, written),
            repeats=repeats_of(read, written) if group.loop is Loop.POINTWISE else NO_REPEATS,
        )
        kernels = [reusing(kernel, op, self.traffic)]
        if group.split:  # the sums of sums, too few to count
            label = "second stage"
            kernels.append(replace(kernel, name=f"{name} ({label})", cost=Cost(label=label), rows=NO_ROWS))
        return Issue(op=op, family=kernel.family, kernels=tuple(kernels))

    def _streamed(
        self, group: Group, read: list[tuple[TensorSpec, int]], written: list[tuple[TensorSpec, int]]
    ) -> float:
        """The share of a stream's bandwidth that the kernel reaches."""
        found = self.layouts.of_images(read), self.layouts.of_images(written, written=True)
        if sum(map(bool, (*found[0], *found[1]))) == 2 and len(read) == len(written) == 1:
            return 1.0  # a copy
        several = any(LABEL in buffer.expression.labels and not buffer.partial for buffer in group.buffers)
        concatenates = several and found[0][1] > 0
        moved = sum(size for _, size in (*read, *written))
        itemsize = max((spec.dtype.itemsize for spec, _ in read), default=4)
        return streamed_share(group.loop, moved, *found, itemsize, concatenates=concatenates)

    def _reads(self, group: Group) -> list[tuple[TensorSpec, int]]:
        """What a group reads from outside: each value once, of views of its parts no more than all of it."""
        views: dict[str, dict[str, tuple[TensorSpec, int]]] = defaultdict(dict)
        for buffer in group.buffers:
            for (value, view), read in buffer.expression.reads.items():
                if value not in group.written:
                    known = views[value].get(view)
                    if known is None or known[1] < read.bytes:
                        views[value][view] = (read.spec, read.bytes)
        found = []
        for value, parts in views.items():
            spec, _ = max(parts.values(), key=lambda part: part[1])
            whole = parts[""][1] if "" in parts else self.flow.numel[value] * spec.dtype.itemsize
            found.append((spec, min(sum(size for _, size in parts.values()), whole)))
        return found

    def _writes(self, group: Group) -> list[tuple[TensorSpec, int]]:
        """What a group writes: each value that outlives the step or is read in another group."""
        read_outside = {value for value in group.written if any(other is not group for other in self.readers[value])}
        found: dict[str, tuple[TensorSpec, int]] = {}
        for buffer in group.buffers:
            for value, spec in buffer.writes.items():
                if value in self.flow.kept or value in read_outside:
                    size = buffer.outer * spec.dtype.itemsize if buffer.partial else integer(spec.bytes)
                    found[value] = (spec, size + (found[value][1] if value in found else 0))
        return list(found.values())

    def _rows(self, group: Group, written: list[tuple[TensorSpec, int]]) -> Rows:
        """Long rows that are read again for a result of each element: from L1, as far as they fit."""
        again = any(buffer.numel > group.outer for buffer in group.buffers if buffer.part.loop is Loop.POINTWISE)
        long = group.loop is Loop.REDUCTION and not group.split and group.inner > PERSISTENT_ROW
        if not (long and again and group.walks == {Walk.ROWS}):
            return NO_ROWS
        size = max((spec.dtype.itemsize for spec, _ in written), default=4)
        kinds = {buffer.part.op.kind for buffer in group.buffers}
        once = (self.graph.like or PRESENT).sums_softmax_at_once or kinds.isdisjoint(SOFTMAXES)
        return Rows(
            count=group.outer, length=group.inner, passes=2 if once else SOFTMAX_PASSES,
            held_bytes=size * group.inner, threads=min(_MOST_THREADS, group.inner // _OF_A_THREAD),
        )  # fmt: skip


def _in_place(group: Group, written: list[TensorSpec]) -> dict[str, tuple[str, ...]]:
    """Memory of what a kernel writes, with that of all that it reads element by element in the same order.

    There inductor puts the result where nothing else reads it later (scheduler.py, decide_inplace_update, torch 2.13).
    A reduction reads so along the rows that it sums up; down columns it reads in another order than it writes.
    """
    if group.split or group.loop is Loop.LIST or not group.walks <= {Walk.ROWS}:
        return {}
    views: dict[str, dict[str, Read]] = defaultdict(dict)
    for buffer in group.buffers:
        for (value, view), read in buffer.expression.reads.items():
            views[value][view] = read
    alone = [read for found in views.values() if len(found) == 1 for read in found.values()]
    sources = [
        read.spec for read in alone
        if read.whole and read.value not in group.written and (group.inner == 1 or group.inner == _last(read.spec))
    ]  # fmt: skip
    return {spec.memory: tuple(source.memory for source in sources if _alike(source, spec)) for spec in written}


def _last(spec: TensorSpec) -> int:
    return integer(spec.shape[-1]) if spec.shape else 1


def _alike(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether elements of both lie in the same order."""
    order = (a.stride is None and b.stride is None) or (a.shape, a.stride) == (b.shape, b.stride)
    return order and a.dtype is b.dtype and integer(a.numel) == integer(b.numel)


def _work(group: Group) -> Iterable[tuple[int, int]]:
    """Arithmetic of each loop; what several buffers of a kernel need is computed once (common subexpressions)."""
    found: dict[int, tuple[int, int]] = {}
    for buffer in group.buffers:
        for loop, work in buffer.expression.work.items():
            found[loop] = max(found.get(loop, work), work)
    return found.values()


def _name(group: Group, labels: list[str], i: int) -> str:
    """The name that inductor gives a kernel: its sort, and the ops in it."""
    sort = {Loop.REDUCTION: "red", Loop.LIST: "for"}.get(group.loop, "poi")
    if group.loop is Loop.REDUCTION and group.inner <= PERSISTENT_ROW:
        sort = "per"
    more = "_…" if len(labels) > _NAMED else ""
    return f"triton_{sort}_fused_{'_'.join(label.strip('_') for label in labels[:_NAMED])}{more}_{i}"


def _family(group: Group, cost: Cost) -> Family:
    if group.loop is Loop.REDUCTION:
        parts = {buffer.part.priced.timed_as for buffer in group.buffers if buffer.part.loop is Loop.REDUCTION}
        return Family.NORMALIZATION if Family.NORMALIZATION in parts else Family.REDUCTION
    if group.loop is Loop.LIST:
        return Family.OPTIMIZER
    return Family.ELEMENTWISE if cost.flop else Family.MOVEMENT
