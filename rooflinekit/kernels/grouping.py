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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rooflinekit.ir.points import integer
from rooflinekit.kernels.inlining import Buffer, Dataflow
from rooflinekit.kernels.loops import Loop, Walk

MOST_BUFFERS = 64
LEAST_SHARED_BYTES = 10  # score_fusion_memory_threshold
_MOST_SMS = 2**31

# Reductions that run in two kernels (ir.py Reduction.num_splits, choices.py reduction_split_factor): along rows, with
# fewer results than two an SM; down columns, with fewer than 64 an SM. What the first kernel writes for the second is
# below 2 % of what it reads, and left out.
_FEW_ROWS_AN_SM, _LONG_ROW = 2, 8192
_FEW_COLUMNS_AN_SM, _LONG_COLUMN = 64, 128


def whole_up_to(buffer: Buffer) -> int:
    """Number of SMs up to which the buffer is one kernel; on larger GPUs it is a reduction in two."""
    part = buffer.part
    long, few = (_LONG_COLUMN, _FEW_COLUMNS_AN_SM) if part.walk is Walk.COLUMNS else (_LONG_ROW, _FEW_ROWS_AN_SM)
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
    def walks(self) -> set[Walk]:
        """How its reductions go through memory."""
        return {buffer.part.walk for buffer in self.buffers if buffer.part.loop is Loop.REDUCTION}

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
        while sum(self._fuse(*pair) for pair in self._pairs()):
            pass
        return self._ordered()

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
        """Bytes of a value that two buffers access at the same places."""

        def touched(k: int) -> dict[tuple[str, str], int]:
            buffer = self._buffers[k]
            if value in buffer.writes and not buffer.partial:
                return {(value, ""): integer(buffer.writes[value].bytes)}
            return {key: read.bytes for key, read in buffer.expression.reads.items() if key[0] == value}

        a, b = touched(i), touched(j)
        return sum(min(a[key], b[key]) for key in a.keys() & b.keys())

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
        return (
            alike and self._in_place(a, b) and self._in_place(b, a) and not (self._reaches(a, b) or self._reaches(b, a))
        )

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

    def _reaches(self, start: Group, goal: Group) -> bool:
        """Whether there is a way from `start` to `goal` through a third group."""
        stack = [group for group in self._after(start) if group is not goal]
        seen = {id(start)}
        while stack:
            group = stack.pop()
            if group is goal:
                return True
            lowest = group.first  # that a way may lead to: groups whose buffers lie apart lead back
            while self._earliest[lowest] < lowest:
                lowest = self._earliest[lowest]
            if id(group) not in seen and lowest < goal.last:
                seen.add(id(group))
                stack.extend(self._after(group))
        return False

    def _touching(self, values: Iterable[str], places: Mapping[str, list[int]], group: Group) -> Iterator[Group]:
        """The other groups that write, or read, one of these values."""
        return (self._of[i] for value in values for i in places[value] if self._of[i] is not group)

    def _after(self, group: Group) -> Iterator[Group]:
        """The groups that read what it writes."""
        return self._touching(group.written, self._readers, group)

    def _ordered(self) -> list[Group]:
        done: set[int] = set()
        found: list[Group] = []

        def place(start: Group) -> None:
            stack = [start]
            while stack:
                group = stack[-1]
                read = (value for value, _ in group.read)
                missing = [g for g in self._touching(read, self._writers, group) if id(g) not in done]
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


def _same_elements(a: Group, b: Group, reorders_loops: bool) -> bool:
    if a.loop is Loop.REDUCTION and b.loop is Loop.REDUCTION:
        return (a.outer, a.inner, a.split, a.walks) == (b.outer, b.inner, b.split, b.walks)
    if Loop.REDUCTION not in (a.loop, b.loop):
        return a.outer == b.outer
    reduction, other = (a, b) if a.loop is Loop.REDUCTION else (b, a)
    if other.outer == reduction.outer:
        return True
    # else it goes through its elements in another order than pointwise work on them does
    reorders = reorders_loops and not reduction.split
    return other.outer == reduction.outer * reduction.inner and (reorders or reduction.walks == {Walk.ROWS})
