"""Bytes alive over a step, and what PyTorch's allocator and CUDA take beside them."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rooflinekit.cost.rules.convolution import BACKWARD
from rooflinekit.hardware.device import Device
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import EAGER, IN_PLACE, Family, Op, Phase, Role, TensorSpec, memories
from rooflinekit.ir.points import Column, Number, Points, TooLargeError, bound_of, integer, larger, values_of
from rooflinekit.kernels.convolution import image_and_weight, is_convolution
from rooflinekit.kernels.eager import MADE_CONTIGUOUS, TIMES_RESULT
from rooflinekit.kernels.kernel import Issue, Kernel
from rooflinekit.kernels.libraries import exists
from rooflinekit.kernels.limits import Limit, limits_of
from rooflinekit.kernels.miopen import NAIVE, UNFOLDED
from rooflinekit.step.allocator import (
    DEFAULT,
    Allocator,
    Block,
    Settings,
    reserved_at,
    reserved_bytes,
    rounded,
    segments_of,
)
from rooflinekit.step.execution import Execution
from rooflinekit.units import format_bytes

#: What a process takes of a GPU's memory before its first tensor: the driver's context, and the kernels of PyTorch's
#: libraries as far as they are loaded. Stated default; 300 to 800 MiB are commonly seen.
CONTEXT_BYTES = 500 * 2**20

#: What is taken beside that where cuDNN runs convolutions: kernels of the algorithms that it tries are taken to stay
#: loaded; workspaces are blocks of the allocator, so no part of it. Fitted on the batches at which timm's benchmark ran
#: and did not run, families of one half by a hash (benchmarks/memory/context.py; docs/execution.md has the figures, and
#: the range that single rows tell).
CUDNN_BYTES = 600 * 2**20

#: What is left of the memory that a datasheet states: a driver keeps some for itself, 308 MiB of the 24 GiB of an
#: RTX 3090 (24268 MiB are reported), 359 MiB of those of an RTX 4090 (24217 MiB).
USABLE_SHARE = 24217 / 24576

#: Steps in a row that have to find room: what the first one leaves of segments in pieces is in the way of the second.
#: Verdicts on timm's batches (benchmarks/memory/context.py) are the same with ten.
STEPS = 2

_EAGER = Execution()
_NCCL = "NCCL's buffers"
_MOST_BYTES = 2**62  # that columns hold
_UNKNOWN = -1

#: What memory is used for: what stays first. Gradients are those of weights; workspace is that of libraries.
ACCOUNTS = ("weights", "optimizer state", "inputs", "gradients", "activations", "workspace")
STANDING = ACCOUNTS[:3]
_ACCOUNT_OF = {
    Role.WEIGHT: "weights", Role.BUFFER: "weights", Role.STATE: "optimizer state", Role.GRADIENT: "gradients"
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The device memory that a step needs, in bytes."""

    weight_bytes: int  # parameters and buffers
    gradient_bytes: int
    state_bytes: int  # the optimizer's
    workspace_bytes: int  # of libraries: the largest of a convolution, and that of matrix products
    peak_bytes: int  # of blocks in use at the fullest moment: torch.cuda.max_memory_allocated()
    peak_op: str  # the op at which that is
    reserved_bytes: int  # of segments that hold these blocks: torch.cuda.max_memory_reserved()
    beside: Mapping[str, int]  # bytes of the process that no segment holds, see `beside_segments`
    capacity: float  # the device's
    fits: bool  # whether the allocator finds room for every block, and each op has a kernel for its sizes
    workspaces_fit: bool = True  # also for those that convolutions can do without, as slower algorithms
    refused: str = ""  # why an op has none, see `model.limits`

    @property
    def standing_bytes(self) -> int:
        """Weights, their gradients and the optimizer's state."""
        return self.weight_bytes + self.gradient_bytes + self.state_bytes

    @property
    def context_bytes(self) -> int:
        """Bytes of the process beside the allocator's segments."""
        return sum(self.beside.values())

    @property
    def nccl_bytes(self) -> int:
        """Bytes of NCCL's buffers."""
        return self.beside.get(_NCCL, 0)

    @property
    def room(self) -> float:
        """Bytes that the allocator may take."""
        return room_of(self.capacity, self.beside)

    @property
    def needed_share(self) -> float:
        """The share of the device's memory that segments and context need."""
        return (self.reserved_bytes + self.context_bytes) / self.capacity

    def note(self, name: str) -> str:
        """What to tell of a step that the device of this name has no room for, or not for all of it; else ""."""
        if self.refused:
            return f"{name}: does not run: {self.refused}"
        if self.fits and self.workspaces_fit:
            return ""
        if self.fits:
            return f"{name}: fits with smaller workspaces of convolutions: by slower algorithms than are timed here"
        torn = ", for what is free lies in pieces; --allocator expandable_segments:True joins them"
        why = torn if self.reserved_bytes <= self.room else ""
        return f"{name}: {too_large(self.reserved_bytes, self.beside, self.capacity)}: does not fit{why}"


def too_large(reserved: float, beside: Mapping[str, int], capacity: float) -> str:
    """A sentence on what a step needs that has no room, and of how much."""
    return f"needs {format_bytes(reserved)}, and {listed(beside)}, of {format_bytes(capacity)}"


def listed(beside: Mapping[str, int]) -> str:
    """The memory beside the allocator's segments, in words."""
    return " and ".join(f"{format_bytes(size)} for {name}" for name, size in beside.items()) or "nothing else"


@dataclass(frozen=True, slots=True, eq=False)
class Life:
    """A tensor's memory from the op that makes it to the last that uses it."""

    size: int
    first: int
    last: int
    memory: str
    account: str = "activations"  # or "gradients"


def memory_of(
    graph: Graph, issues: Sequence[Issue], device: Device, execution: Execution = _EAGER, nccl_bytes: int = 0
) -> MemoryUse:
    """Follows each tensor from the op that makes it to the last one that uses it, and a block for it.

    Weights, inputs and the optimizer's state live throughout; outputs and gradients from when they are made on. Unless
    torch.compile has `fused` the kernels, a tensor also lives as long as forward's own variables and calls hold it, and
    autocast's copies of weights until the region ends. nccl_bytes: of NCCL's buffers.
    """
    blocks, found = remembered(graph, issues, device, execution)
    reserved: int | None = found.reserved_bytes
    on_gpu = device.kind == "gpu"
    beside = beside_segments(device, convolves=blocks.convolves, nccl_bytes=nccl_bytes)
    limit, whole = room_of(device.dram.capacity, beside), True
    if on_gpu and found.reserved_bytes > limit:  # there the allocator gives back what it keeps, and tries again
        reserved = blocks.reserved(limit, STEPS)
        whole = reserved is not None
        if not whole and blocks.optional:
            reserved = blocks.reserved(limit, STEPS, blocks.optional)
    refused = next((str(one) for one in blocks.limits if one.number > one.most), "")
    fits = reserved is not None if on_gpu else found.peak_bytes <= device.dram.capacity
    return replace(
        found,
        reserved_bytes=found.peak_bytes if reserved is None else reserved,
        beside=beside,
        capacity=device.dram.capacity,
        fits=fits and not refused,
        workspaces_fit=whole,
        refused=refused,
    )


def remembered(
    graph: Graph, issues: Sequence[Issue], device: Device, execution: Execution
) -> tuple[Blocks, MemoryUse]:  # fmt: skip
    """What a step asks the allocator for, and its memory on such a device were there no end of it; made once."""
    # Kernels that are remembered are the same object on the next device; they are kept, so that its id stays theirs.
    key = "memory", id(issues), device.kind, product_workspace(device), execution.fused, execution.as_graph
    if key not in graph.memo:
        blocks = blocks_of(graph, issues, device, execution)
        graph.memo[key] = issues, blocks, _without_limit(graph, issues, blocks, device)
    _, blocks, found = graph.memo[key]
    return blocks, found


def _without_limit(graph: Graph, issues: Sequence[Issue], blocks: Blocks, device: Device) -> MemoryUse:
    peak, where = blocks.peak()
    reserved = blocks.reserved() if device.kind == "gpu" else peak

    def standing(account: str) -> int:
        return sum(int(spec.bytes) for spec in blocks.standing if account_of(spec) == account)

    return MemoryUse(
        weight_bytes=standing("weights"),
        gradient_bytes=sum({spec.memory: int(spec.bytes) for spec in graph.gradients}.values()),
        state_bytes=standing("optimizer state"),
        workspace_bytes=blocks.fixed[-1] + max(blocks.temporary, default=0),
        peak_bytes=peak,
        peak_op=issues[max(0, where)].op.name if issues else "",
        reserved_bytes=peak if reserved is None else reserved,
        beside={},
        capacity=math.inf,
        fits=True,
    )


def account_of(spec: TensorSpec) -> str:
    """The account of a tensor that is there before the step and stays."""
    return _ACCOUNT_OF.get(spec.role, "inputs")


def beside_segments(device: Device, *, convolves: bool = False, nccl_bytes: int = 0) -> Mapping[str, int]:
    """Bytes that a process takes beside the allocator's segments, by what they are for; none on a CPU."""
    cudnn = CUDNN_BYTES if convolves and device.vendor == "NVIDIA" else 0
    found = {"CUDA's context": CONTEXT_BYTES, "cuDNN's kernels": cudnn, _NCCL: nccl_bytes}
    return {name: size for name, size in found.items() if size and device.kind == "gpu"}


def room_of(capacity: float, beside: Mapping[str, int]) -> float:
    """Bytes that the allocator may take of a GPU's memory."""
    return capacity * USABLE_SHARE - sum(beside.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What a step asks the allocator for: numbers of bytes, or columns of them."""

    standing: tuple[TensorSpec, ...]  # what is there before the step and stays
    fixed: Sequence[int]  # blocks that are: those of `standing`, and cuBLAS's
    lives: Sequence[Life]
    temporary: Sequence[int]  # of each op, given back when it ends
    spared: Sequence[bool]  # whether the op runs without it where there is no room: by another algorithm
    convolves: bool = False  # whether it runs convolutions
    captured: bool = False  # whether it is a CUDA graph
    limits: Sequence[Limit] = ()  # numbers that kernels refuse above some size

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of every block: fixed, of lives, temporary."""
        return (*self.fixed, *(life.size for life in self.lives), *self.temporary)

    @property
    def optional(self) -> frozenset[int]:
        """Blocks that are done without where there is no room."""
        start = len(self.fixed) + len(self.lives)
        return frozenset(start + i for i, spared in enumerate(self.spared) if spared)

    def events(self) -> Iterator[tuple[list[Life], list[Life], int]]:
        """For each op the lives that begin with it, those that end after it, and its temporary bytes."""
        begin: list[list[Life]] = [[] for _ in self.temporary]
        end: list[list[Life]] = [[] for _ in range(len(self.temporary) + 1)]
        for life in self.lives:
            begin[life.first].append(life)
            end[life.last].append(life)
        return zip(begin, end, self.temporary, strict=False)

    def levels(self, *, least: bool = False) -> Iterator[int]:
        """Bytes in blocks before the step, and at the fullest moment of each op; the least, without optional ones."""
        alive = sum(map(rounded, self.fixed))
        yield alive
        for (begin, end, temporary), spared in zip(self.events(), self.spared, strict=True):
            alive += sum(rounded(life.size) for life in begin)
            yield alive if least and spared else alive + rounded(temporary)
            alive -= sum(rounded(life.size) for life in end)

    def peak(self) -> tuple[int, int]:
        """The most bytes in blocks at once, and the place of the op at which that is first so; -1 before the step."""
        levels = list(self.levels())
        peak = max(levels)
        return peak, levels.index(peak) - 1

    def program(self, steps: int = 1) -> list[int]:
        """What the allocator is asked for in order: i for block i of `sizes`, -1 - i where it is given back.

        What is left of a step, gradients and results, is given back before the next one.
        """
        lives = {life: len(self.fixed) + i for i, life in enumerate(self.lives)}
        temporaries = len(self.fixed) + len(self.lives)
        found = list[int]()
        for i, (begin, end, _) in enumerate(self.events()):
            found += [lives[life] for life in begin]
            found += [temporaries + i, -1 - temporaries - i]
            found += [-1 - lives[life] for life in end]
        left = [-1 - lives[life] for life in self.lives if life.last >= len(self.temporary)]
        return [*range(len(self.fixed)), *(found + left) * (steps - 1), *found]

    def run(self, allocator: Allocator, taken: dict[str, Block | None]) -> Iterator[None]:
        """Takes and gives back what one step does, op by op, and stops at the fullest moment of each. taken: the blocks
        in use by the names of their memories, at the end those that are left.
        """
        for (begin, end, temporary), spared in zip(self.events(), self.spared, strict=True):
            for life in begin:
                taken[life.memory] = allocator.take(life.size)
            block = allocator.take(temporary, spared)
            yield
            allocator.give_back(block)
            for life in end:
                allocator.give_back(taken.pop(life.memory))

    def fragments(self) -> Iterator[int]:
        """For each op at its fullest moment, the bytes that are free in segments with a block in use, in the first
        step.
        """
        outside, standing = Allocator(), len(self.standing)
        inside = Allocator() if self.captured else outside  # of `pools`
        for i, size in enumerate(self.fixed):
            (outside if i < standing else inside).take(size)
        for _ in self.run(inside, {}):
            yield inside.split_bytes + (outside.split_bytes if self.captured else 0)

    def pools(self, steps: int = 1) -> tuple[list[int], ...]:
        """The program of each of the allocator's pools, one after the other.

        A captured step allocates in a pool of its own, once, and nothing else is placed there: neither weights lie in
        its segments nor it in theirs. What the eager warm-up has left is gone: torch.cuda.graph empties the cache
        before it captures, and torch.compile warms up in the same pool (torch/cuda/graphs.py, `graph.__enter__`;
        torch/_inductor/cudagraph_trees.py, `CUDAWarmupNode`). cuBLAS's workspace is one of the capturing stream.
        """
        if not self.captured:
            return (self.program(steps),)
        program, standing = self.program(), len(self.standing)
        return program[:standing], program[standing:]

    def reserved(
        self, limit: float = math.inf, steps: int = 1, optional: Set[int] = frozenset(), settings: Settings = DEFAULT
    ) -> int | None:
        """The most bytes in segments of all pools, see `allocator.reserved_bytes`."""
        total, sizes = 0, self.sizes
        for program in self.pools(steps):
            found = reserved_bytes(program, sizes, limit - total, optional, settings)
            if found is None:
                return None
            total += found
        return total


class PointMemory:
    """What a step, whose sizes are columns, needs of the memory of any device whose kernels are these."""

    def __init__(self, blocks: Blocks, points: Points) -> None:
        self._points = points
        self._convolves = blocks.convolves
        self.peak_bytes = self._column(functools.reduce(larger, blocks.levels()))
        self._optional = blocks.optional
        self._least = (
            self._column(functools.reduce(larger, blocks.levels(least=True))) if self._optional else self.peak_bytes
        )
        numbers: list[tuple[int, Number]] = list(enumerate(blocks.sizes))
        self._sizes = {
            i: np.atleast_1d(np.asarray(values_of(size), dtype=np.int64))
            for i, size in numbers
            if isinstance(size, Column) or size
        }
        self._most = sum(map(segments_of, self._sizes.values()), np.zeros(points.count))
        self._blocks = blocks
        self._taken = np.full(points.count, True)  # whether each op has a kernel for its sizes
        for one in blocks.limits:
            self._taken &= self._column(one.number) <= one.most
        self._programs: dict[int, list[list[int]]] = {}  # by steps in a row, once they are asked for
        self._reserved = np.full(points.count, _UNKNOWN)  # bytes of segments where there is no limit

    def fits(self, device: Device) -> NDArray[np.bool_]:
        """Whether the allocator finds room for every block, at each point.

        Where all blocks together fit, or the fullest moment alone does not, that is known at once; at the points in
        between the allocator is followed block by block, first as if there were no limit, in one step.
        """
        if device.kind != "gpu":
            return np.asarray(self.peak_bytes <= device.dram.capacity)
        limit = room_of(device.dram.capacity, beside_segments(device, convolves=self._convolves))
        found: NDArray[np.bool_] = self._most <= limit
        unclear = np.flatnonzero(~found & (self._least <= limit) & self._points.alike)
        unknown = unclear[self._reserved[unclear] == _UNKNOWN]
        self._reserved[unknown], _ = self._followed(unknown, np.inf)
        found[unclear] = self._reserved[unclear] <= limit
        unclear = unclear[~found[unclear]]  # as cached segments are given back, there may be room all the same
        _, failed = self._followed(unclear, limit)
        found[unclear] = ~failed
        found &= self._taken
        return found

    def _followed(self, index: NDArray[np.int64], limit: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        if not index.size:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
        sizes = {i: size[index] if len(size) > 1 else size for i, size in self._sizes.items()}
        total, failed = np.zeros(len(index), dtype=np.int64), np.zeros(len(index), dtype=bool)
        for program in self._pools(STEPS if limit < np.inf else 1):
            found, none = reserved_at(program, sizes, (limit - total).astype(np.float64), self._optional)
            total, failed = total + found, failed | none
        return total, failed

    def _pools(self, steps: int) -> list[list[int]]:
        if steps not in self._programs:
            self._programs[steps] = [
                [i for i in program if max(i, -1 - i) in self._sizes] for program in self._blocks.pools(steps)
            ]
        return self._programs[steps]

    def _column(self, number: Number) -> NDArray[np.int64]:
        if bound_of(number) > _MOST_BYTES:
            raise TooLargeError
        return np.broadcast_to(np.asarray(values_of(number), dtype=np.int64), (self._points.count,))


def blocks_of(graph: Graph, issues: Sequence[Issue], device: Device, execution: Execution) -> Blocks:
    """The blocks that the step asks the allocator for, see `memory_of`."""
    ops = [issue.op for issue in issues]
    known = graph.memo.get(("lives", execution.fused))
    if known is None or not (len(known[0]) == len(ops) and all(map(operator.is_, known[0], ops))):
        there = _standing(graph)
        known = ops, there, _lives(graph, ops, there, {} if execution.fused else _held(graph, ops))
        graph.memo["lives", execution.fused] = known  # the same on every device whose kernels are of these ops
    _, standing, lives = known
    on_gpu = device.kind == "gpu"
    # Backward has a thread of its own, and a thread's handle of cuBLAS a workspace of its own.
    phases = {i.op.phase for i in issues if i.family is Family.MATMUL}
    product = len(phases & {Phase.FORWARD, Phase.BACKWARD}) * product_workspace(device) if on_gpu else 0
    return Blocks(
        standing=tuple(standing.values()),
        fixed=[*(integer(spec.bytes) for spec in standing.values()), product],
        lives=lives,
        temporary=[workspace_of(issue, device, fused=execution.fused) for issue in issues],
        spared=[_is_spared(issue, device) for issue in issues],
        convolves=any(map(is_convolution, ops)),
        captured=execution.as_graph,
        limits=tuple(limits_of(issues, device, graph.like)),
    )


def _held(graph: Graph, ops: Sequence[Op]) -> dict[str, int]:
    """Memory that is kept after its last use, with the place of the last op for which it is."""
    place = {op.name: i for i, op in enumerate(ops)}
    found: dict[str, int] = {}
    for memory, name in (*graph.held.items(), *graph.saved.items()):
        found[memory] = max(found.get(memory, 0), place.get(name, 0))
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


def _lives(graph: Graph, ops: Sequence[Op], standing: dict[str, TensorSpec], held: dict[str, int]) -> list[Life]:
    gradients = memories(graph.gradients)
    kept = memories(graph.outputs) | gradients
    found: dict[str, Life] = {}
    places = _reused(ops, {*standing, *kept})
    for i, op in enumerate(ops):
        for spec in (*op.inputs, *op.outputs):
            if spec.memory not in standing:
                name = places.get(spec.memory, spec.memory)
                known = found.get(name)
                size = integer(spec.bytes) if known is None else max(known.size, integer(spec.bytes))
                last = len(ops) if spec.memory in kept else max(i, held.get(spec.memory, i))
                account = "gradients" if spec.memory in gradients else "activations"
                found[name] = Life(size, i if known is None else known.first, last, spec.memory, account)
    return list(found.values())


def _reused(ops: Sequence[Op], staying: Set[str]) -> dict[str, str]:
    """Memory that a compiled kernel writes over what it is the last to read, with the one that lay there first.

    What is made outside of compiled graphs is an input of theirs, over which none writes.
    """
    staying = staying | memories(spec for op in ops if EAGER in op.attrs for spec in op.outputs)
    used = [(i, spec.memory) for i, op in enumerate(ops) for spec in (*op.inputs, *op.outputs)]
    first, last = {memory: i for i, memory in reversed(used)}, {memory: i for i, memory in used}
    found: dict[str, str] = {}
    for i, op in enumerate(ops):
        for written, read in op.attrs.get(IN_PLACE, {}).items():
            free = (one for one in read if last[one] == i and one not in staying)
            if first[written] == i and (place := next(free, None)):
                last[place], found[written] = len(ops), found.get(place, place)  # serves one result
    return found


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


#: Of cuBLAS, kept from its first product on: 4 MiB twice and 16 KiB eight times, on compute capability 9.0 eight times
#: 4 MiB (aten/src/ATen/cuda/CUDABlas.cpp, getChosenWorkspaceSize, torch 2.13).
_PRODUCT_WORKSPACE = 2 * 4 * 2**20 + 8 * 16 * 2**10
_PRODUCT_WORKSPACE_HOPPER = 8 * 4 * 2**20
_LARGE = ("9.0", "10.0", "10.3")  # of 10.x by peaks that were measured on B200 (benchmarks/memory/liger.py)

_LOSSES = {
    "aten.mse_loss": 1, "aten.smooth_l1_loss": 1, "aten.huber_loss": 1, "aten.soft_margin_loss": 1,
    "aten.binary_cross_entropy": 1, "aten.binary_cross_entropy_with_logits": 2,
}  # fmt: skip
#: Tensors of the first input's size that stand between the kernels of one op.
_BETWEEN = {**_LOSSES, "aten.logsumexp": 1, "aten.dist": 1, "aten.isinf": 1, "aten.roll": 1}

_BEFORE, _AFTER = "to channels last", "from channels last"


def workspace_of(issue: Issue, device: Device, *, fused: bool) -> int:
    """Of a convolution: tensors with channels last instead of its own, and the windows of an image where they are
    written out because the device's library has no other way; on a CPU `_in_blocks`. Of kernels of rows: contiguous
    copies, and a softmax's gradient times its result.
    """
    if device.kind == "cpu" and is_convolution(issue.op):
        return _in_blocks(issue.op, fused=fused)
    kind = issue.op.kind.removesuffix("_")
    if kind in _BETWEEN and not fused:
        x, y = issue.op.inputs[0], issue.op.outputs[0]
        given = kind in _LOSSES and x.shape == y.shape  # then the result is one of them
        between = 0 if kind == "aten.roll" and len(issue.kernels) < 2 else _BETWEEN[kind] - given
        return between * integer(x.numel) * x.dtype.itemsize
    before = (_BEFORE, TIMES_RESULT, MADE_CONTIGUOUS)
    copied = sum(integer(k.cost.write_bytes) for k in issue.kernels if k.cost.label in before) + max(
        (integer(t.bytes) for k in issue.kernels if k.cost.label == _AFTER for t in issue.op.outputs[:1]), default=0
    )
    return copied + max((_windows(kernel, device) for kernel in issue.kernels), default=0)


def _in_blocks(op: Op, *, fused: bool) -> int:
    """Of a convolution by oneDNN: its weights in the order of its tiles. Of tensors without channels last also the
    image in blocks of channels, and the gradient of the result; forward the result, once it is written from blocks, is
    beside those of its own (aten/src/ATen/native/mkldnn/Conv.cpp). torch.compile has channels last.
    """
    image, weight = image_and_weight(op)
    sizes = {name: integer(spec.bytes) for name, spec in (("image", image), ("weight", weight))}
    if fused or image.channels_last:
        return sizes["weight"]
    if op.kind == BACKWARD:
        return sizes["image"] + integer(op.inputs[0].bytes)
    return integer(larger(sizes["image"] + sizes["weight"], integer(op.outputs[0].bytes)))


def _is_spared(issue: Issue, device: Device) -> bool:
    """Whether an op's workspace holds only a convolution's tensors in another order.

    Where there is no room for a workspace, PyTorch catches the error and tries the next algorithm, of which the last
    ones have none (aten/src/ATen/native/cudnn/Conv_v8.cpp, try_plans; Conv_v7.cpp, AlgoIterator::try_all).
    """
    copied = any(k.cost.label in (_BEFORE, _AFTER) for k in issue.kernels)
    return copied and all(bound_of(_windows(kernel, device)) == 0 for kernel in issue.kernels)


def _windows(kernel: Kernel, device: Device) -> int:
    """Bytes of the windows of one image, where that is the way in which a convolution is run; else 0."""
    able = [k for k in (kernel, *kernel.alternatives) if exists(k.algorithm, k.math, device) and k.algorithm != NAIVE]
    if not kernel.alternatives or any(k.algorithm.name != UNFOLDED.name for k in able):
        return 0
    result = integer(kernel.cost.write_bytes)  # which a loop over images writes anew each time where it is a sum
    return max(
        (integer(k.cost.write_bytes) // k.chain.links - (result if k.direction == "weight" else result // k.chain.links)
         for k in able if k.chain), default=0,
    )  # fmt: skip


def product_workspace(device: Device) -> int:
    """Bytes that cuBLAS keeps on this device."""
    return _PRODUCT_WORKSPACE_HOPPER if device.compute_capability in _LARGE else _PRODUCT_WORKSPACE
