"""What a kernel finds in the cache: tensors that the kernels before it have touched, and the traffic since then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rooflinekit.ir.op import Op
from rooflinekit.ir.points import anywhere_below, integer
from rooflinekit.ir.tensor import TensorSpec

#: Traffic after which no cache of any device holds anything any more: 1 GiB.
_FORGOTTEN = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """A read of memory that was touched before."""

    bytes: int
    distance: int  # bytes of traffic since then
    cyclic: bool = False  # touched by the same call before, in the same order: what is written is there too


@dataclass(slots=True)
class Traffic:
    """The traffic of a step so far, in the order of execution."""

    total: int = 0
    touched: dict[str, int] = field(default_factory=dict)  # memory → the traffic up to its last touch

    def passed(self, op: Op, moved: int, *, whole: bool) -> tuple[Reuse, ...]:
        """What a kernel of `op` finds of its inputs, or (not `whole`) of its output; then its bytes have passed."""
        reads = _bytes_by_memory(op.inputs if whole else op.outputs)
        found = tuple(
            Reuse(bytes=size, distance=self.total - self.touched[memory])
            for memory, size in reads.items()
            if memory in self.touched and anywhere_below(self.total - self.touched[memory], _FORGOTTEN)
        )
        self.total += moved
        for memory in (*reads, *(tensor.memory for tensor in op.outputs)):
            self.touched[memory] = self.total
        return found


def _bytes_by_memory(tensors: Iterable[TensorSpec]) -> dict[str, int]:
    """How much of each memory is read: views of its parts add up, the same tensor passed twice is read once."""
    found: dict[str, int] = defaultdict(int)
    for tensor in {tensor.name: tensor for tensor in tensors}.values():
        found[tensor.memory] += integer(tensor.bytes)
    return found
