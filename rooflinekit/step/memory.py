"""Bytes alive over a step, and what PyTorch's allocator and CUDA take beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rooflinekit.hardware.device import Device
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, Phase
from rooflinekit.ir.tensor import Role, TensorSpec
from rooflinekit.model.kernels import Family, Issue
from rooflinekit.step.allocator import Allocator, Block, OutOfMemoryError, rounded

#: What a process takes of a GPU's memory before its first tensor: the driver's context, and the kernels of PyTorch's
#: libraries as far as they are loaded. Stated default; 300 to 800 MiB are commonly seen.
CONTEXT_BYTES = 500 * 2**20

#: What is left of the memory that a datasheet states: a driver keeps some for itself, 308 MiB of the 24 GiB of an
#: RTX 3090 (24268 MiB are reported), 359 MiB of those of an RTX 4090 (24217 MiB).
USABLE_SHARE = 24217 / 24576

#: Of cuBLAS, kept from its first product on: 4 MiB twice and 16 KiB eight times, on compute capability 9.0 eight times
#: 4 MiB (aten/src/ATen/cuda/CUDABlas.cpp, getChosenWorkspaceSize, torch 2.13).
_PRODUCT_WORKSPACE = 2 * 4 * 2**20 + 8 * 16 * 2**10
_PRODUCT_WORKSPACE_HOPPER = 8 * 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What a step needs of the device's memory, in bytes."""

    weight_bytes: int  # parameters and buffers
    gradient_bytes: int
    state_bytes: int  # the optimizer's
    workspace_bytes: int  # of libraries: the largest of a convolution, and that of matrix products
    peak_bytes: int  # of blocks in use at the fullest moment: torch.cuda.max_memory_allocated()
    peak_op: str  # the op at which that is
    reserved_bytes: int  # of segments that hold these blocks: torch.cuda.max_memory_reserved()
    context_bytes: int  # that CUDA and PyTorch take before the first tensor
    capacity: float  # the device's
    fits: bool  # whether the allocator finds room for every block


@dataclass(frozen=True, slots=True, eq=False)
class _Life:
    """A tensor's memory from the op that makes it to the last that uses it."""

    size: int
    first: int
    last: int


def memory_of(graph: Graph, issues: Sequence[Issue], device: Device, *, fused: bool = False) -> MemoryUse:
    """Follows each tensor from the op that makes it to the last one that uses it, and a block for it.

    Weights, inputs and the optimizer's state live throughout; outputs and gradients from when they are made on. Unless
    torch.compile has `fused` the kernels, a tensor also lives until the modules that were called with it return, and
    autocast's copies of weights until the region ends.
    """
    ops = [issue.op for issue in issues]
    standing = _standing(graph)
    lives = _lives(graph, ops, standing, {} if fused else _held(graph, ops))
    temporary = [_workspace(issue) for issue in issues]
    on_gpu = device.kind == "gpu"
    product = _product_workspace(device) if on_gpu and any(i.family is Family.MATMUL for i in issues) else 0
    fixed = [*(int(spec.bytes) for spec in standing.values()), product]
    context = CONTEXT_BYTES if on_gpu else 0
    room = device.dram.capacity * USABLE_SHARE - context if on_gpu else float("inf")
    peak, where = _peak(fixed, lives, temporary)
    reserved = _reserved(fixed, lives, temporary, room) if on_gpu else peak
    by_role: dict[Role, int] = defaultdict(int)
    for spec in standing.values():
        by_role[spec.role] += int(spec.bytes)
    return MemoryUse(
        weight_bytes=by_role[Role.WEIGHT] + by_role[Role.BUFFER],
        gradient_bytes=sum({spec.memory: int(spec.bytes) for spec in graph.gradients}.values()),
        state_bytes=by_role[Role.STATE],
        workspace_bytes=product + max(temporary, default=0),
        peak_bytes=peak,
        peak_op=ops[where].name if ops else "",
        reserved_bytes=peak if reserved is None else reserved,
        context_bytes=context,
        capacity=device.dram.capacity,
        fits=reserved is not None and peak <= device.dram.capacity,
    )


def _held(graph: Graph, ops: Sequence[Op]) -> dict[str, int]:
    """Memory that is kept after its last use, with the place of the last op for which it is."""
    place = {op.name: i for i, op in enumerate(ops)}
    found = {memory: place[name] for memory, name in graph.held.items() if name in place}
    if graph.autocast is not None:
        end = 0  # of this forward, for a step may hold several
        for i in reversed(range(len(ops))):
            if ops[i].phase is Phase.FORWARD:
                end = end or i
                if ops[i].kind == "aten._to_copy" and ops[i].inputs[0].role is Role.WEIGHT:
                    found[ops[i].outputs[0].memory] = end
            else:
                end = 0
    return found


def _lives(graph: Graph, ops: Sequence[Op], standing: dict[str, TensorSpec], held: dict[str, int]) -> list[_Life]:
    kept = {spec.memory for spec in (*graph.outputs, *graph.gradients)}
    found: dict[str, _Life] = {}
    for i, op in enumerate(ops):
        for spec in (*op.inputs, *op.outputs):
            name = spec.memory
            if name not in standing:
                known = found.get(name)
                size = int(spec.bytes) if known is None else max(known.size, int(spec.bytes))
                last = len(ops) if name in kept else max(i, held.get(name, i))
                found[name] = _Life(size, i if known is None else known.first, last)
    return list(found.values())


def _standing(graph: Graph) -> dict[str, TensorSpec]:
    """What is there before the step and stays, by its memory: weights, inputs, and tensors that no op makes."""
    standing: dict[str, TensorSpec] = {}
    made: set[str] = set()
    for spec in (*graph.weights, *graph.inputs):
        standing.setdefault(spec.memory, spec)
    for op in graph.ops:
        for spec in op.inputs:
            if spec.memory not in made:
                standing.setdefault(spec.memory, spec)
        made.update(spec.memory for spec in op.outputs if spec.memory not in standing)
    return standing


def _workspace(issue: Issue) -> int:
    """Of a convolution: tensors with channels last in the place of its own, and those that Winograd has transformed."""
    return sum(int(k.cost.write_bytes) for k in issue.kernels if k.cost.label == "to channels last") + max(
        (int(t.bytes) for k in issue.kernels if k.cost.label == "from channels last" for t in issue.op.outputs[:1]),
        default=0,
    )


def _product_workspace(device: Device) -> int:
    return _PRODUCT_WORKSPACE_HOPPER if device.compute_capability == "9.0" else _PRODUCT_WORKSPACE


def _events(lives: Iterable[_Life], count: int) -> Iterator[tuple[list[_Life], list[_Life]]]:
    """For each op the lives that begin with it, and those that end after it."""
    begin: list[list[_Life]] = [[] for _ in range(count)]
    end: list[list[_Life]] = [[] for _ in range(count + 1)]
    for life in lives:
        begin[life.first].append(life)
        end[life.last].append(life)
    return zip(begin, end, strict=False)


def _peak(fixed: Sequence[int], lives: Sequence[_Life], temporary: Sequence[int]) -> tuple[int, int]:
    """The most bytes in blocks at once, and at which op that is first so."""
    alive = peak = sum(map(rounded, fixed))
    where = 0
    for i, (begin, end) in enumerate(_events(lives, len(temporary))):
        alive += sum(rounded(life.size) for life in begin)
        if alive + rounded(temporary[i]) > peak:
            peak, where = alive + rounded(temporary[i]), i
        alive -= sum(rounded(life.size) for life in end)
    return peak, where


def _reserved(fixed: Sequence[int], lives: Sequence[_Life], temporary: Sequence[int], room: float) -> int | None:
    """The most bytes in segments at once; None where there is no room for them."""
    allocator = Allocator(room)
    blocks: dict[_Life, Block | None] = {}
    try:
        for size in fixed:
            allocator.take(size)
        for i, (begin, end) in enumerate(_events(lives, len(temporary))):
            for life in begin:
                blocks[life] = allocator.take(life.size)
            allocator.give_back(allocator.take(temporary[i]))
            for life in end:
                allocator.give_back(blocks.pop(life))
    except OutOfMemoryError:
        return None
    return allocator.peak_reserved
