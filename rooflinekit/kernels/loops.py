"""Loop nests, of which inductor makes kernels.

A loop nest computes `outer` results of `inner` elements each: `inner` is 1 for pointwise work, more for reductions.
What inductor hands to a library (cuBLAS, cuDNN, flash attention, sorting, atomic sums) stays the kernels of eager mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rooflinekit.cost.rules.convolution import POOL_GRADIENTS, POOLS
from rooflinekit.cost.rules.movement import PAD_GRADIENTS, PADS
from rooflinekit.cost.rules.resampling import UPSAMPLE_GRADIENTS, UPSAMPLES
from rooflinekit.cost.table import aten
from rooflinekit.ir.op import Op, Phase, PricedOp, TensorSpec
from rooflinekit.ir.points import integer

LABEL = "cat"  # of a concatenation


class Loop(StrEnum):
    """The kinds of loop nest that an op becomes."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    LIST = "list"  # of tensors, each a pointwise loop: `_foreach_` ops
    EXTERN = "extern"


class Walk(StrEnum):
    """How a reduction goes through the memory that it reads."""

    ROWS = "rows"  # in the order of memory
    TURNED = "turned"  # along rows, in an order of its own: each channel of all images
    COLUMNS = "columns"  # across rows: neighbours in memory belong to different results


def walk_of(summed: Iterable[int], order: Sequence[int]) -> Walk:
    """How a sum over some dimensions goes through memory. `order`: all dimensions, the last one the fastest."""
    over = set(summed)
    if order[-1] not in over:
        return Walk.COLUMNS
    return Walk.ROWS if set(order[-len(over) :]) == over else Walk.TURNED


def dims_of(op: Op) -> tuple[int, ...]:
    """The dimensions that an op names, as far as it does."""
    named = op.attrs.get("dim")
    return tuple(dim for dim in (named if isinstance(named, tuple) else (named,)) if isinstance(dim, int))


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A tensor that a loop reads."""

    spec: TensorSpec
    bytes: int
    gathered: bool = False  # in an order of its own, or several times: it must lie in memory

    @property
    def elements(self) -> int:
        """Elements in memory; those of an expanded dimension count once."""
        return integer(self.spec.bytes) // self.spec.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A loop nest of an op, or the call of a library."""

    priced: PricedOp
    label: str
    loop: Loop
    outer: int
    inner: int = 1
    walk: Walk = Walk.ROWS
    reads: tuple[Access, ...]
    writes: tuple[TensorSpec, ...]
    vector: int = 0
    special: int = 0
    region: int = 0  # between which ops of a strategy it stands

    @property
    def place(self) -> tuple[Phase, int]:
        """Loops fuse only within the same phase of the step and the same region."""
        return self.op.phase, self.region

    @property
    def op(self) -> Op:
        """The op that it is part of."""
        return self.priced.op


def op_name(op: Op) -> str:
    """The operator's name without namespace and without the underscore of in-place ops."""
    return op.kind.rpartition(".")[2].rstrip("_")


#: Read in an order of their own: pooling windows, resampled pixels, elements named by an index.
_GATHERING = frozenset(
    (
        *aten("index _unsafe_index index_select index_fill gather take embedding im2col"),
        *(*POOLS, *POOL_GRADIENTS, *UPSAMPLES, *UPSAMPLE_GRADIENTS, *PADS, *PAD_GRADIENTS),
    )
)


def _reads(priced: PricedOp) -> tuple[Access, ...]:
    """Inputs with the bytes read of them: in all what the costs say, the largest in part where that is less."""
    op, allowed = priced.op, sum(integer(cost.read_bytes) for cost in priced.costs)
    if not allowed:
        return ()
    written = op.inputs[0].name if op_name(op) == "copy" else None  # not read
    named = {spec.name: spec for spec in op.inputs if spec.name != written}
    gathered = op.kind.removesuffix("_") in _GATHERING
    sizes = {name: integer(spec.bytes) for name, spec in named.items()}
    excess = sum(sizes.values()) - allowed
    if excess > 0:
        largest = max(sizes, key=sizes.__getitem__)
        sizes[largest] = max(0, sizes[largest] - excess)
    return tuple(Access(spec=spec, bytes=sizes[name], gathered=gathered) for name, spec in named.items())


def extern(priced: PricedOp) -> Part:
    """The op as the call of a library, which finds all of its inputs in memory."""
    op = priced.op
    reads = tuple(Access(spec=spec, bytes=integer(spec.bytes), gathered=True) for spec in op.inputs)
    return Part(priced=priced, label=op_name(op), loop=Loop.EXTERN, outer=0, reads=reads, writes=op.outputs)


def pointwise(priced: PricedOp, loop: Loop = Loop.POINTWISE) -> Part:
    """The op as one loop over the elements of its first result, or over those of all tensors of a list."""
    op = priced.op
    numel = sum(integer(t.numel) for t in op.outputs) if loop is Loop.LIST else integer(op.outputs[0].numel)
    return Part(
        priced=priced, label=op_name(op), loop=loop, outer=numel, reads=_reads(priced), writes=op.outputs,
        vector=sum(integer(cost.vector_flop) for cost in priced.costs),
        special=sum(integer(cost.special_flop) for cost in priced.costs),
    )  # fmt: skip
