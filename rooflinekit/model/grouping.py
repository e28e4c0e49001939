"""Buffers → groups that run as one kernel, as inductor's scheduler fuses them.

Two groups fuse where one reads what the other writes, or both read the same, if (torch 2.13: torch/_inductor,
scheduler.py Scheduler.can_fuse, codegen/simd.py SIMDScheduling.can_fuse)
- they go through the same elements: as many, or the rows of the same reduction, or its results; without
  `loop_ordering_after_fusion` a reduction down columns goes through its elements in an order of its own
  (SIMDKernel.is_compatible; KernelBench's times under 2.5 show it);
- the reader takes each element where the writer leaves it: no slice, no gather;
- no third kernel has to run between them;
- they do not consist of more than 64 buffers together (max_fusion_size), nor lie further apart;
- both belong to the same phase of the step, with no collective between them, and neither is a library's.
Pairs of one kind come first, then those that share most bytes. A reduction with few results and long rows runs in two
kernels (ir.py, Reduction.num_splits); what reads its result runs after both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rooflinekit.hardware.device import Device
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Math, Op
from rooflinekit.ir.points import integer
from rooflinekit.model import cudnn
from rooflinekit.model.inlining import Buffer, Dataflow
from rooflinekit.model.kernel import Kernel
from rooflinekit.model.loops import Loop

MOST_BUFFERS = 64
LEAST_SHARED_BYTES = 10  # score_fusion_memory_threshold
_MOST_SMS = 2**31

# Reductions that run in two kernels (ir.py Reduction.num_splits, choices.py reduction_split_factor): along rows, with
# fewer results than two an SM; down columns, with fewer than 64 an SM. What the first kernel writes for the second is
# below 2 % of what it reads, and left out.
_FEW_ROWS_AN_SM, _LONG_ROW = 2, 8192
_FEW_COLUMNS_AN_SM, _LONG_COLUMN = 64, 128


def whole_up_to(buffer: Buffer) -> int:
    """SMs of the largest GPU on which the buffer is one kernel; on larger ones it is a reduction in two."""
    part = buffer.part
    long, few = (_LONG_COLUMN, _FEW_COLUMNS_AN_SM) if part.columns else (_LONG_ROW, _FEW_ROWS_AN_SM)
    splits = part.loop is Loop.REDUCTION and part.inner > long
    return buffer.outer // few if splits else _MOST_SMS


@dataclass(slots=True, kw_only=True)
class Group:
    """Buffers that run as one kernel."""

    buffers: list[Buffer]
    loop: Loop
    outer: int
    inner: int
    split: bool
    written: set[str] = field(default_factory=set)
    read: dict[tuple[str, str], int] = field(default_factory=dict)  # (value, view of it) → bytes

    @classmethod
    def of(cls, buffer: Buffer, sms: int) -> Group:
        """A buffer alone, on a GPU of so many SMs."""
        return cls(
            buffers=[buffer],
            loop=buffer.part.loop,
            outer=buffer.outer,
            inner=buffer.part.inner,
            split=whole_up_to(buffer) < sms,
            written=set(buffer.writes),
            read={key: read.bytes for key, read in buffer.expression.reads.items()},
        )

    @property
    def first(self) -> int:
        """Place of its earliest buffer in the order of execution."""
        return self.buffers[0].order

    @property
    def last(self) -> int:
        """Place of its latest buffer."""
        return self.buffers[-1].order

    def absorb(self, other: Group) -> None:
        """Takes the other's buffers."""
        if other.loop is Loop.REDUCTION and self.loop is not Loop.REDUCTION:
            self.loop, self.outer, self.inner = other.loop, other.outer, other.inner
        self.split = self.split or other.split
        self.buffers = sorted((*self.buffers, *other.buffers), key=lambda buffer: buffer.order)
        self.written |= other.written
        self.read |= other.read


def groups_of(buffers: Sequence[Buffer], flow: Dataflow, sms: int, *, reorders_loops: bool = True) -> list[Group]:
    """The groups in an order in which they can run, on a GPU of so many SMs."""
    return _Fusing(buffers, flow, sms, reorders_loops).run()


class _Fusing:
    """The scheduler's fusion passes."""

    def __init__(self, buffers: Sequence[Buffer], flow: Dataflow, sms: int, reorders_loops: bool) -> None:
        self._buffers, self._flow, self._sms, self._reorders = buffers, flow, sms, reorders_loops
        self._of = [Group.of(buffer, sms) for buffer in buffers]  # by the buffers' order
        # of each place in the order the earliest buffer of all groups that end there or later
        self._earliest = list(range(len(buffers)))
        self._writers: dict[str, list[int]] = defaultdict(list)
        self._readers: dict[str, list[int]] = defaultdict(list)
        for buffer in buffers:
            for value in buffer.writes:
                self._writers[value].append(buffer.order)
            for value in {read.value for read in buffer.expression.reads.values()}:
                self._readers[value].append(buffer.order)

    def run(self) -> list[Group]:
        """Fuses until nothing changes, then puts the groups in order."""
        fused = True
        while fused:
            fused = sum(self._fuse(*pair) for pair in self._pairs()) > 0
        return self._ordered()

    # --- which ---------------------------------------------------------------------------------------------------

    def _pairs(self) -> list[tuple[int, int]]:
        """Pairs of buffers whose groups share something: the most promising first."""
        shared: dict[tuple[int, int], int] = defaultdict(int)
        for value in {*self._writers, *self._readers}:
            near = sorted({*self._writers[value], *self._readers[value]})
            near = [i for i in near if self._of[i].loop is not Loop.EXTERN]
            for k, i in enumerate(near):
                for j in near[k + 1 :]:
                    if j - i > MOST_BUFFERS:
                        break
                    if self._of[i] is not self._of[j]:
                        shared[i, j] += self._shared_bytes(value, i, j)
        found = [pair for pair, size in shared.items() if size >= LEAST_SHARED_BYTES]

        def rank(pair: tuple[int, int]) -> tuple[bool, int, int]:
            a, b = (self._of[i] for i in pair)
            return (a.loop is not b.loop, -shared[pair], pair[1] - pair[0])

        return sorted(found, key=rank)

    def _shared_bytes(self, value: str, i: int, j: int) -> int:
        """Bytes of a value that both touch at the same places."""

        def touched(k: int) -> dict[tuple[str, str], int]:
            buffer = self._buffers[k]
            if value in buffer.writes and not buffer.partial:
                return {(value, ""): integer(buffer.writes[value].bytes)}
            return {key: read.bytes for key, read in buffer.expression.reads.items() if key[0] == value}

        a, b = touched(i), touched(j)
        return sum(min(a[key], b[key]) for key in a.keys() & b.keys())

    # --- whether -------------------------------------------------------------------------------------------------

    def _fuse(self, i: int, j: int) -> bool:
        a, b = self._of[i], self._of[j]
        if a is b or not self._can_fuse(a, b):
            return False
        a.absorb(b)
        for buffer in b.buffers:
            self._of[buffer.order] = a
        place = a.last
        while self._earliest[place] > a.first:
            self._earliest[place] = a.first
            place -= 1
        return True

    def _can_fuse(self, a: Group, b: Group) -> bool:
        if len(a.buffers) + len(b.buffers) > MOST_BUFFERS or Loop.EXTERN in (a.loop, b.loop):
            return False
        if max(a.last, b.last) - min(a.first, b.first) > MOST_BUFFERS:
            return False
        if a.buffers[0].part.place != b.buffers[0].part.place:
            return False
        alike = (a.loop is Loop.LIST) == (b.loop is Loop.LIST) and _same_elements(a, b, self._reorders)
        return alike and self._in_place(a, b) and self._in_place(b, a) and not self._comes_between(a, b)

    def _in_place(self, writer: Group, reader: Group) -> bool:
        """Whether the reader takes each element where the writer leaves it, as far as it reads from it at all."""
        values = writer.written & {value for value, _ in reader.read}
        if not values:
            return True
        for buffer in reader.buffers:
            for read in buffer.expression.reads.values():
                if read.value in values and (not read.whole or not self._leaves_in_place(read.value, writer, buffer)):
                    return False
        return True

    def _leaves_in_place(self, value: str, writer: Group, reader: Buffer) -> bool:
        for buffer in writer.buffers:
            if value in buffer.writes:
                if buffer.partial or whole_up_to(buffer) < self._sms:
                    return False
                # results of a reduction are there for the rows that they belong to
                if buffer.part.loop is not Loop.REDUCTION and buffer.numel not in (reader.numel, reader.outer):
                    return False
        return True

    def _comes_between(self, a: Group, b: Group) -> bool:
        """Whether another group needs one of the two and is needed by the other."""
        return self._reaches(a, b) or self._reaches(b, a)

    def _reaches(self, start: Group, goal: Group) -> bool:
        """Whether there is a way from `start` to `goal` through a third group."""
        stack = [group for group in self._after(start) if group is not goal]
        seen = {id(start)}
        while stack:
            group = stack.pop()
            if group is goal:
                return True
            if id(group) not in seen and self._lowest(group.first) < goal.last:
                seen.add(id(group))
                stack.extend(self._after(group))
        return False

    def _lowest(self, place: int) -> int:
        """The earliest place that a way from here may lead to: groups whose buffers lie apart lead back."""
        while self._earliest[place] < place:
            place = self._earliest[place]
        return place

    def _after(self, group: Group) -> Iterator[Group]:
        """The groups that read what it writes."""
        for value in group.written:
            for i in self._readers[value]:
                if self._of[i] is not group:
                    yield self._of[i]

    # --- in which order --------------------------------------------------------------------------------------------

    def _ordered(self) -> list[Group]:
        done: set[int] = set()
        found: list[Group] = []

        def place(start: Group) -> None:
            stack = [start]
            while stack:
                group = stack[-1]
                missing = [g for g in self._before(group) if id(g) not in done]
                if missing:
                    stack.extend(missing)
                else:
                    stack.pop()
                    if id(group) not in done:
                        done.add(id(group))
                        found.append(group)

        for group in self._of:
            place(group)
        return found

    def _before(self, group: Group) -> Iterator[Group]:
        for value, _ in group.read:
            for i in self._writers[value]:
                if self._of[i] is not group:
                    yield self._of[i]


def _same_elements(a: Group, b: Group, reorders_loops: bool) -> bool:
    if a.loop is Loop.REDUCTION and b.loop is Loop.REDUCTION:
        return (a.outer, a.inner) == (b.outer, b.inner)
    if Loop.REDUCTION not in (a.loop, b.loop):
        return a.outer == b.outer
    reduction, other = (a, b) if a.loop is Loop.REDUCTION else (b, a)
    if other.outer == reduction.outer:
        return True
    return other.outer == reduction.outer * reduction.inner and (reorders_loops or not _goes_down_columns(reduction))


def _goes_down_columns(group: Group) -> bool:
    """Whether a reduction goes through its elements in another order than pointwise work on them does."""
    return any(buffer.part.columns for buffer in group.buffers if buffer.part.loop is Loop.REDUCTION)


# Products and convolutions under torch.compile's max-autotune: Triton's templates beside the library's kernels.
#
# inductor times both and keeps the least (torch/_inductor/select_algorithm.py). A template of a product takes pointwise
# work on its result into its last step, which saves a pass over memory: the library's kernel with that work behind it
# is timed against the template with it (scheduler.py, `benchmark_epilogue_fusion`). GPUs of fewer than 68 SMs have no
# templates of products (utils.py, `is_big_gpu`).


FEWEST_SMS = 68
#: Of a convolution: by the rate of cuDNN's, on whatever GPU.
TEMPLATE = replace(cudnn.FORWARD, name="template", library="")
#: Rate of a product's template on a tensor core, of the library's kernel's: stated, ± 10 %. On lanes there is none
#: worth taking: of KernelBench's fp32 products in half of its problems none became faster by max-autotune on an L40S.
_PRODUCT = 0.9
#: That of a convolution's, ± 30 %: stated. Volumes keep the library's: of those in half of KernelBench's problems some
#: took 0.7 of its time and some 1.7 times as long.
_CONVOLUTION = 0.5
_STEP = 16  # channels that a step of the template multiplies at least


def may_fuse(device: Device | None) -> bool:
    """Whether the device has templates of products."""
    return device is not None and device.kind == "gpu" and device.sm_count >= FEWEST_SMS


def only_reader(groups: Sequence[Group], i: int, kept: Collection[str]) -> int | None:
    """The pointwise group that alone reads a product, each number where it is written."""
    values = groups[i].written
    if len(values) != 1 or values & set(kept):
        return None
    (value,) = values
    readers = [k for k, group in enumerate(groups) if any(name == value for name, _ in group.read)]
    if len(readers) != 1 or groups[readers[0]].loop is not Loop.POINTWISE:
        return None
    (spec,) = groups[i].buffers[0].writes.values()
    whole = all(view == "" for name, view in groups[readers[0]].read if name == value)
    return readers[0] if whole and groups[readers[0]].outer == integer(spec.numel) else None


def templated(product: Kernel, behind: Kernel, result: int, device: Device) -> Kernel | None:
    """One kernel for a product and the work behind it, where it takes less than both. result: bytes between them."""
    if product.math not in device.matrix_peak:
        return None
    cost = replace(
        product.cost,
        vector_flop=integer(product.cost.vector_flop) + integer(behind.cost.vector_flop),
        special_flop=integer(product.cost.special_flop) + integer(behind.cost.special_flop),
        read_bytes=integer(product.cost.read_bytes) + integer(behind.cost.read_bytes) - result,
        write_bytes=behind.cost.write_bytes,
    )
    apart_s = _least_s(product.cost, product.math, device) + _least_s(behind.cost, behind.math, device)
    if _least_s(cost, product.math, device, _PRODUCT) >= apart_s:
        return None
    name = f"triton_tem_fused_{product.kind.rpartition('.')[2]}_{behind.name.partition('_fused_')[2]}"
    return replace(behind, name=name, family=Family.MATMUL, math=product.math, cost=cost, padded=1 / _PRODUCT)


def _least_s(cost: Cost, math: Math, device: Device, share: float = 1.0) -> float:
    """Seconds by the datasheet: at `share` of the peak of products, or of the bandwidth."""
    products = integer(cost.matrix_flop) / (share * device.peak(math)) if cost.gemms else 0.0
    return max(products, integer(cost.bytes) / device.dram.bandwidth)


def with_template(op: Op, kernels: Sequence[Kernel], tensor_formats: Collection[str]) -> Iterator[Kernel]:
    """A convolution's kernels, with the template among the algorithms of its product.

    There is one for forward convolutions of images on a tensor core that are not transposed, dilated or grouped.
    """
    plain = op.kind == "aten.convolution" and not op.attrs.get("transposed") and op.attrs["groups"] == 1
    plain = plain and set(op.attrs.get("dilation", (1,))) == {1} and len(op.inputs[1].shape) == 4
    inner = integer(op.inputs[1].shape[1])
    filled = -(-inner // _STEP) * _STEP / inner
    for kernel in kernels:
        if plain and kernel.cost.gemms and kernel.math in tensor_formats:
            template = replace(kernel, algorithm=TEMPLATE, padded=filled / _CONVOLUTION, alternatives=())
            yield replace(kernel, alternatives=(*kernel.alternatives, template))
        else:
            yield kernel
