"""Which layout inductor gives to convolutions (torch 2.13: torch/_inductor/graph.py, decide_layout_opt)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rooflinekit.cost.rules.convolution import ADAPTIVE_AVERAGES
from rooflinekit.cost.rules.reduction import BATCH_NORM_GRADIENTS, BATCH_NORMS, GROUP_NORMS
from rooflinekit.hardware.device import Device
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, PricedOp, Role, TensorSpec
from rooflinekit.ir.points import integer
from rooflinekit.ir.sizes import Size
from rooflinekit.kernels.coalescing import SECTOR_BYTES
from rooflinekit.kernels.libraries import libraries_of
from rooflinekit.kernels.loops import Loop, Walk, dims_of, walk_of
from rooflinekit.kernels.lowering import takes_twice
from rooflinekit.published.stated import NUMBERS

#: Time with channels last by that without, of each kind of convolution: measured by inductor's authors, in inference.
_GROUPED, _SMALL, _NARROWING, _OTHER = 1.358, 0.783, 0.725, 0.823
_NODES_OF_A_CONVOLUTION = 300  # from so many nodes of the graph a convolution on, converting layouts does not pay
_NODES_OF_AN_OP = 7  # of one that is written out in fp32: 7 of GELU, 11 of a layer normalization
_SMALL_CHANNELS = 64


def converts_to_channels_last(graph: Graph, device: Device | None = None) -> bool:
    """Whether inductor runs the graph's convolutions with channels last, and everything between them.

    In inference by the FLOP of its kinds of convolutions; in training not where one is grouped without being
    depthwise, or narrows its channels, or where all are small. Never on AMD's GPUs (torch/_inductor/config.py,
    layout_opt_default).
    """
    if device is not None and not libraries_of(device).channels_last:
        return False
    found = [priced for priced in graph.priced if priced.op.kind == "aten.convolution"]
    if not found or _nodes(graph) >= _NODES_OF_A_CONVOLUTION * len(found):
        return False
    kinds = [_kinds(priced.op) for priced in found]
    if graph.mode == "training":
        grouped, small, narrowing = zip(*kinds, strict=True)
        return not any(grouped) and not any(narrowing) and not all(small)
    flops = [sum(integer(cost.dense_matrix_flop) for cost in priced.costs) for priced in found]
    factors = (_GROUPED if g else _SMALL if s else _NARROWING if n else _OTHER for g, s, n in kinds)
    return sum(factor * flop for factor, flop in zip(factors, flops, strict=True)) <= sum(flops)


def _nodes(graph: Graph) -> int:
    """Nodes of the graph that inductor gets: weights and inputs, and ops, some of them written out."""
    given = len(graph.weights) + len(graph.inputs)
    out = (op.kind in BATCH_NORMS or takes_twice(op) for op in graph.ops)
    return given + sum(_NODES_OF_AN_OP if written else 1 for written in out)


def with_channels_last(priced: PricedOp) -> tuple[PricedOp, tuple[TensorSpec, ...]]:
    """A convolution with its images channels last; and the graph inputs and weights that it converts in every step."""
    op, forward = priced.op, priced.op.kind == "aten.convolution"
    inputs, outputs = (tuple(map(_channels_last, tensors)) for tensors in (op.inputs, op.outputs))
    given = tuple(spec for spec in inputs[:2] if _is_given(spec) and (forward or spec.role is Role.INPUT))
    inputs = tuple(_turned(spec) if spec in given else spec for spec in inputs)
    return replace(priced, op=replace(op, inputs=inputs, outputs=outputs)), given


_LAST = (0, 2, 3, 1)  # dimensions of an image with channels last, the last one the fastest in memory
_PIXELS = (2, 3)
#: Ops that sum up each channel of all images.
_OF_CHANNELS = dict.fromkeys((*BATCH_NORMS, *BATCH_NORM_GRADIENTS, "aten.convolution_backward"), (0, 2, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """The layout of each image, by its memory, in a graph whose convolutions run with channels last.

    Layouts go from a convolution to everything that is computed from it, and what a convolution reads is written for
    it. The caller gets the layout of eager mode (`keep_output_stride` in inductor's config).
    """

    last: Mapping[str, tuple[Size, ...]]  # the shapes of images with channels last
    returned: frozenset[str]  # of `last`, what the caller gets with channels first

    @classmethod
    def of(cls, graph: Graph) -> Layouts:
        """The layouts of a graph whose convolutions run with channels last."""
        last: dict[str, tuple[Size, ...]] = {}
        found = cls(last=last, returned=frozenset())
        for op in graph.ops:
            images = [spec for spec in op.outputs if len(spec.shape) == 4]
            if op.kind == "aten.convolution":
                images += [spec for spec in op.inputs[:1] if len(spec.shape) == 4 and not _is_given(spec)]
            elif not any(map(found.has_last, op.inputs)):
                continue
            last.update((spec.memory, spec.shape) for spec in images)
        returned = frozenset(spec.memory for spec in graph.outputs if spec.memory in last and _is_image(spec))
        return cls(last=last, returned=returned)

    def has_last(self, spec: TensorSpec) -> bool:
        """Whether it is an image with channels last: as it was made, not turned or cut into windows since."""
        if self.last.get(spec.memory) != spec.shape:
            return False
        stride = spec.stride
        return stride is None or bool(stride[2] >= stride[3] and (stride[1] >= stride[2] or stride[1] == 1))

    def walk(self, op: Op, walk: Walk) -> Walk:
        """How an op's sums go through memory; `walk`: with channels first."""
        if not op.inputs or not self.has_last(op.inputs[0]) or not _is_image(replace(op.inputs[0], stride=None)):
            return walk
        if op.kind in GROUP_NORMS:
            return Walk.TURNED if op.attrs.get("group", 1) > 1 else Walk.ROWS
        summed = _PIXELS if op.kind in ADAPTIVE_AVERAGES else _OF_CHANNELS.get(op.kind) or dims_of(op)
        return walk_of((dim % 4 for dim in summed), _LAST) if summed else walk

    def of_images(self, tensors: Iterable[tuple[TensorSpec, int]], *, written: bool = False) -> tuple[int, int]:
        """Bytes of images with channels first, and with channels last, by what a kernel moves of each tensor."""
        found = [0, 0]
        for spec, size in tensors:
            first = spec.memory in self.returned if written else _is_given(spec)
            if first or self.has_last(spec):
                found[not first] += size
        return found[0], found[1]


#: Of a graph that is not converted: all as it was given.
NO_LAYOUTS = Layouts(last={}, returned=frozenset())


def _channels_last(spec: TensorSpec) -> TensorSpec:
    made = len(spec.shape) == 4 and spec.role in (Role.ACTIVATION, Role.GRADIENT)
    return _turned(spec) if made else spec


def _turned(spec: TensorSpec) -> TensorSpec:
    _, c, h, w = spec.shape
    return replace(spec, stride=(c * h * w, 1, w * c, c))


def _is_given(spec: TensorSpec) -> bool:
    return _is_image(spec) and spec.role not in (Role.ACTIVATION, Role.GRADIENT)


def _is_image(spec: TensorSpec) -> bool:
    """Whether it is an image with channels first, of several channels and pixels: else both layouts are one."""
    return (
        len(spec.shape) == 4 and not spec.channels_last and bool(spec.shape[1] > 1)
        and any(bool(size > 1) for size in spec.shape[2:])
    )  # fmt: skip


def _kinds(op: Op) -> tuple[bool, bool, bool]:
    """Whether a convolution is grouped without being depthwise, has few channels, and narrows them."""
    weight = tuple(map(integer, op.inputs[1].shape))
    narrows = weight[0] * 2 <= weight[1] and len(weight) > 2 and weight[2] > 1
    return op.attrs["groups"] > 1 and weight[1] > 1, max(weight[:2]) <= _SMALL_CHANNELS, narrows


# What of a stream's bandwidth a kernel of inductor's reaches that does not take its numbers in the order they lie in.
#
# Images of both layouts are walked in tiles, where a byte that lies across costs as much again. Sums down columns fetch
# a sector for a number, and loops over a concatenation issue loads under masks that are off, as torch 2.5 and 2.13
# write them (docs/model.md, "Triton across the order of memory").


_MASKED = NUMBERS["masked"].value


def streamed_share(
    loop: Loop, moved: int, read: tuple[int, int], written: tuple[int, int], itemsize: int, *, concatenates: bool
) -> float:
    """The share of a stream's bandwidth.

    moved: bytes of the kernel; read, written: those of images with channels first, and with them last; itemsize: of a
    number that is read.
    """
    if not moved or not any(read):
        return 1.0
    if loop is Loop.REDUCTION:
        along = read.index(max(read))
        beyond = (SECTOR_BYTES / itemsize - 1) * min(read) + written[1 - along]
    else:
        beyond = min(read[0] + written[0], read[1] + written[1])
    return 1 / (1 + beyond / moved + (_MASKED if concatenates else 0.0))
