"""What a kernel finds in the cache: tensors that the kernels before it have touched, and the traffic since then."""

from __future__ import annotations

from dataclasses import dataclass, field

from rooflinekit.ir.op import Op
from rooflinekit.ir.tensor import TensorSpec

#: Traffic after which no cache of any device holds anything any more: 1 GiB.
_FORGOTTEN = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """A read of memory that was touched before."""

    bytes: int
    distance: int  # bytes of traffic since then


@dataclass(slots=True)
class Traffic:
    """The traffic of a step so far, in the order of execution."""

    total: int = 0
    touched: dict[str, int] = field(default_factory=dict)  # memory → the traffic up to its last touch

    def passed(self, op: Op, moved: int, *, whole: bool) -> tuple[Reuse, ...]:
        """What a kernel of `op` finds of its inputs, or (not `whole`) of its output; then its bytes have passed."""
        reads = _distinct(op.inputs if whole else op.outputs)
        found = tuple(
            Reuse(bytes=int(tensor.bytes), distance=self.total - self.touched[tensor.memory])
            for tensor in reads
            if self.total - self.touched.get(tensor.memory, -_FORGOTTEN) < _FORGOTTEN
        )
        self.total += moved
        for tensor in (*reads, *op.outputs):
            self.touched[tensor.memory] = self.total
        return found


def _distinct(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tuple({tensor.memory: tensor for tensor in tensors}.values())
