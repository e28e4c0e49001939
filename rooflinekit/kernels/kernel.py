"""A kernel, and the op that launches it: what the time model is asked about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Math, Op, Phase, TensorSpec
from rooflinekit.ir.points import Number, anywhere_below, integer
from rooflinekit.kernels.algorithms import PRODUCT, Algorithm
from rooflinekit.kernels.rows import NO_BLOCKS, NO_REPEATS, NO_ROWS, Blocks, Repeats, Rows

# What a kernel finds in the cache: tensors that the kernels before it have touched, and the traffic since then.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Equal pieces of work of which each waits for the one before: the steps of a recurrent layer.

    A kernel with a chain stands for all of them; its cost and its traffic are those of all links together.
    """

    links: int  # that follow each other
    kernels: int  # all links together
    starts: int  # of those, one after another on the device; what runs beside another starts with it
    barriers: int = 0  # at which all SMs wait for each other inside a kernel
    launches: float = 1  # of the CPU, one after the other; an event between streams as a part of one
    calls: int = 0  # operators that the CPU dispatches for it beside the one that it is part of


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One launch, or those of a chain: what it computes in which arithmetic, and its traffic. All sizes are numbers."""

    name: str  # of its op, with the part of it: "convolution_3: input gradient"
    kind: str
    family: Family
    module: str
    phase: Phase
    math: Math
    cost: Cost
    algorithm: Algorithm = PRODUCT  # of its products
    alternatives: tuple[Kernel, ...] = ()  # the same work by other algorithms
    direction: str = ""  # of a convolution: forward, data or weight; a transposed one runs as a gradient
    padded: Number = 1.0  # by how much a convolution's channels are filled up; below 1 where not all of them take time
    unusual: bool = False  # a convolution in three dimensions, or with dilation: see timing.families
    pointwise: bool = False  # a convolution of one pixel: a product without gathering windows
    rows: Rows = NO_ROWS
    reread_bytes: int = 0  # of what it reads twice: first for statistics over the whole tensor
    repeats: Repeats = NO_REPEATS
    column: int = 0  # bytes that each thread reads again, where it is not the whole tensor
    blocks: Blocks = NO_BLOCKS
    ramps: int = 1  # before it loads: two of PyTorch's sums and of kernels that work out places, whose code is long
    accesses: int = 0  # loads of single elements where a thread does not take several at once
    indexed: Number = 0  # loads and stores of elements whose place each is worked out
    asked_flop: Number = 0  # of its products as the network has them, where the algorithm executes others; else 0
    library_calls: Number = 0  # of a library of products by its own, which a timer around the operator sees
    alone: Number = 0  # bytes of its traffic that pass in kernels of their own, with no arithmetic beside them
    streamed: float = 1.0  # of a stream's bandwidth, what its order of access reaches
    recent: tuple[Reuse, ...] = ()  # of what it reads: touched by the kernels before it; of a chain, of one link
    chain: Chain | None = None
    cached: Number = 0  # bytes that a chain's links read from the cache, where the one before has left them
    library: Number = 0  # special functions of the compiler's library, with many instructions; a power is several

    @property
    def tensor_core(self) -> bool:
        """Whether its products can use tensor cores."""
        return not self.algorithm.cuda_cores_only

    @property
    def part(self) -> str:
        """Which part of its op it is: "input gradient", "chain of 512 steps"; "" for all of it."""
        chain = self.chain
        if chain is None or chain.links == 1 or self.direction:  # a convolution's images are no steps
            return self.cost.label
        return f"chain of {chain.links} steps{' back' * (self.phase is Phase.BACKWARD)}"

    @property
    def kernels(self) -> int:
        """Kernels that it stands for."""
        return 1 if self.chain is None else self.chain.kernels

    @property
    def launches(self) -> float:
        """The CPU's cost to issue it, in launches."""
        return 1 if self.chain is None else self.chain.launches

    @property
    def bytes(self) -> Number:
        """Compulsory traffic: each tensor read and written once, in each link of a chain that no cache holds."""
        return integer(self.cost.bytes) - self.cached

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity, FLOP/byte; None for a kernel that moves nothing."""
        moved = float(self.bytes)
        return float(self.cost.flop) / moved if moved else None


def passing(kernel: Kernel, label: str, read: int, written: int) -> Kernel:
    """A kernel of the same op beside that one, which does no more than pass so many bytes."""
    return Kernel(
        name=f"{kernel.name} ({label})", kind=kernel.kind, family=Family.MOVEMENT, module=kernel.module,
        phase=kernel.phase, math=Math.FP32, cost=Cost(read_bytes=read, write_bytes=written, label=label),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """One op as the CPU issues it, with the kernels that it launches: none for a view."""

    op: Op
    family: Family
    kernels: tuple[Kernel, ...]
    calls: int = 0  # of modules, by Python between the op before and this one

    @property
    def further_launches(self) -> float:
        """What its kernels cost the CPU beyond the first launch, in launches."""
        return max(0, sum(kernel.launches for kernel in self.kernels) - 1)
