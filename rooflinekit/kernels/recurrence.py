"""Recurrent layers: what runs for all steps at once, and the chain of steps of which each waits for the one before.

    inputs   the products of all steps with the inputs' weights are one product a layer and direction
    chain    state after state: the product with the state's weights, then the gates, two kernels a step

How libraries run the chain, and where that is published, is in docs/model.md ("Recurrent layers"): cuDNN launches two
kernels a step, layers in a wavefront and directions side by side, or keeps the weights on the SMs where `persists` says
so; MIOpen runs layers and directions one after another; on a CPU oneDNN runs an LSTM's layer as one primitive, and
other cells are a loop of operators in C++ (aten/src/ATen/native/RNN.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooflinekit.cost.rules.recurrent import (
    BACKWARD,
    CELL_GRADIENTS,
    CELL_WORK,
    CELLS,
    CHAIN,
    FORWARD,
    GRU,
    INPUTS,
    LSTM,
    RELU,
    TANH,
    steps_and_batch,
)
from rooflinekit.hardware.device import Device
from rooflinekit.ir.cost import Gemm
from rooflinekit.ir.op import DType, Math, Op
from rooflinekit.ir.points import Number, integer
from rooflinekit.kernels.algorithms import OWN_PRODUCT, PERSISTENT
from rooflinekit.kernels.kernel import Chain, Kernel, Reuse
from rooflinekit.kernels.libraries import libraries_of
from rooflinekit.published.stated import NUMBERS

RECURRENT = (*FORWARD, *BACKWARD)

#: Attribute of an op whose steps are taken to run all at once: a layer of the same products without recurrence.
AT_ONCE = "at_once"

_KERNELS = 2  # of a step: the product, the gates
HANDOVER = NUMBERS["handover"].value
#: Operators that a CPU dispatches for each step: a product and the gates one by one (aten/src/ATen/native/RNN.cpp).
#: Backward, autograd takes each apart: two products and a gradient for every operator.
_CPU_OPS = {RELU: 3, TANH: 3, LSTM: 0, GRU: 11}
_CPU_BACKWARD = 2
#: Of a cell in a loop of Python, LSTM and GRU alike, beside its products: sums, sigmoids, tanh, products.
_CPU_CELL_OPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """A recurrent operator's sizes."""

    mode: int
    steps: Number
    batch: Number
    inputs: Number  # numbers that the first layer is given
    hidden: Number
    projection: Number  # 0 for none
    layers: int
    directions: int
    itemsize: int

    @classmethod
    def of(cls, op: Op) -> _Layers:
        """The sizes of a forward or backward operator."""
        x, attrs = op.inputs[0], op.attrs
        steps, batch = map(integer, steps_and_batch(op, x))
        return cls(
            mode=attrs["mode"], steps=steps, batch=batch, inputs=integer(x.shape[-1]),
            hidden=integer(attrs["hidden_size"]), projection=integer(attrs.get("proj_size", 0)),
            layers=int(attrs["num_layers"]), directions=2 if attrs["bidirectional"] else 1,
            itemsize=x.dtype.itemsize,
        )  # fmt: skip

    @property
    def gates(self) -> int:
        """Gates of a cell."""
        return CELL_WORK[self.mode][0]

    @property
    def state(self) -> Number:
        """Numbers that a step hands to the next, beside an LSTM's cell."""
        return self.projection or self.hidden

    @property
    def stack(self) -> int:
        """Layers, each direction of one by itself."""
        return self.layers * self.directions

    @property
    def cells(self) -> Number:
        """Steps of all layers and directions."""
        return self.steps * self.stack

    @property
    def weights(self) -> Number:
        """Numbers in the state's weights of a layer and direction."""
        return self.gates * self.hidden * self.state + self.projection * self.hidden

    @property
    def moved(self) -> Number:
        """Numbers that a sequence's step moves beside weights and gates: the state, an LSTM's cell, in and out."""
        return 2 * self.state + (2 * self.hidden if self.mode == LSTM else 0)


def is_recurrent(op: Op) -> bool:
    """Whether its kernels depend on the device: see `persists`."""
    return op.kind in RECURRENT or is_cell(op)


def is_cell(op: Op) -> bool:
    """Whether it is a cell without its products, or the gradient of one."""
    return op.kind in CELLS or op.kind in CELL_GRADIENTS


def recurrent_kernel(kernel: Kernel, op: Op, device: Device | None = None) -> Kernel:
    """The kernel of one part of a recurrent layer, given as plain products, on a device; by default an NVIDIA GPU."""
    layers = _Layers.of(op)
    if device is not None and libraries_of(device).whole_recurrent and kernel.math is Math.TF32:
        kernel = replace(kernel, math=Math.FP32)
    if kernel.cost.label == CHAIN:
        return _at_once(kernel, layers) if op.attrs.get(AT_ONCE) else _chained(kernel, op, layers, device)
    if kernel.cost.label != INPUTS:
        return kernel
    cost, width = kernel.cost, layers.itemsize * layers.steps * layers.batch
    between = width * (layers.layers - 1) * layers.directions * layers.state
    gates = width * layers.stack * layers.gates * layers.hidden
    moved = replace(cost, read_bytes=integer(cost.read_bytes) + between, write_bytes=integer(cost.write_bytes) + gates)
    return replace(kernel, cost=moved)


def _at_once(kernel: Kernel, layers: _Layers) -> Kernel:
    """The chain's arithmetic where no step waits for another: one product a layer and direction."""
    rows = layers.steps * layers.batch
    gemms = tuple(replace(gemm, batch=layers.stack, m=rows) for gemm in _merged(kernel.cost.gemms, layers))
    return replace(kernel, name=f"{kernel.name}, all steps at once", cost=replace(kernel.cost, gemms=gemms))


def cell_kernel(kernel: Kernel, op: Op, device: Device | None = None) -> Kernel:
    """A cell without its products: one kernel on a GPU, several operators on a CPU."""
    if device is None or device.kind != "cpu":
        return kernel
    ops = _CPU_CELL_OPS * (_CPU_BACKWARD if op.kind in CELL_GRADIENTS else 1)
    return replace(kernel, chain=Chain(links=1, kernels=ops, starts=ops, calls=ops - 1))


def _chained(kernel: Kernel, op: Op, layers: _Layers, device: Device | None) -> Kernel:
    backward = op.kind in BACKWARD
    stays = persists(op, device)
    chain = _chain(layers, device, backward=backward, stays=stays)
    gates = layers.batch * layers.gates * layers.hidden
    # forward the inputs' part is read, the product written and read, and for backward all gates are kept; backward
    # those are read, and the gates' gradients written, read by the product, and kept for the weights'
    cold = gates * (1 if backward or not op.attrs.get("train") else 2)
    warm = 2 * gates + layers.batch * layers.moved
    once = layers.itemsize * layers.stack * layers.weights
    weight_bytes = once if stays else once * layers.steps
    state_bytes = layers.itemsize * layers.cells * warm
    kept_bytes = layers.itemsize * layers.cells * cold
    recent = state_bytes // 2 + (0 if stays else weight_bytes)
    read = weight_bytes + state_bytes // 2 + kept_bytes // 2
    written = state_bytes - state_bytes // 2 + kept_bytes - kept_bytes // 2
    passing = read + written - recent
    fits = device is not None and read + written <= chain.links * device.last_cache
    cost = replace(kernel.cost, gemms=_merged(kernel.cost.gemms, layers), read_bytes=read, write_bytes=written)
    return replace(
        kernel,
        name=f"{op.name}: chain of {chain.links} steps",
        cost=cost,
        chain=chain,
        algorithm=PERSISTENT if stays else OWN_PRODUCT,
        recent=(Reuse(bytes=recent / chain.links, distance=passing / chain.links),),
        cached=recent - (0 if stays else once) if fits else 0,
    )


def _chain(layers: _Layers, device: Device | None, *, backward: bool, stays: bool) -> Chain:
    """How the steps of all layers and directions follow each other, and what they are launched by."""
    if stays:
        links, kernels = layers.steps * layers.layers, layers.stack
        return Chain(links=links, kernels=kernels, starts=kernels, barriers=links, launches=kernels)
    if device is not None and device.kind == "cpu":
        calls = layers.cells * _CPU_OPS[layers.mode] * (_CPU_BACKWARD if backward else 1)
        kernels = calls or _KERNELS * layers.cells
        return Chain(links=layers.cells, kernels=kernels, starts=kernels, calls=calls)
    launches = _KERNELS * layers.cells
    if device is not None and not libraries_of(device).side_by_side:
        return Chain(links=layers.cells, kernels=launches, starts=launches, launches=launches)
    links = layers.steps * layers.layers if layers.directions > 1 else layers.steps + layers.layers - 1
    handovers = layers.cells if layers.stack > 1 else 0
    return Chain(links=links, kernels=launches, starts=_KERNELS * links, launches=launches + HANDOVER * handovers)


def _merged(gemms: tuple[Gemm, ...], layers: _Layers) -> tuple[Gemm, ...]:
    """The products of one layer and direction, batched over all layers and directions, whose states have one size."""
    first = gemms[: len(gemms) // layers.stack]
    return tuple(replace(gemm, batch=layers.stack * integer(gemm.batch)) for gemm in first)


_SMALL = {False: {RELU: 384, TANH: 384, LSTM: 192, GRU: 192}, True: {RELU: 256, TANH: 256, LSTM: 128, GRU: 128}}


def persists(op: Op, device: Device | None) -> bool:
    """Whether PyTorch asks cuDNN to keep the weights on the SMs (aten/src/ATen/native/cudnn/RNN.cpp, get_algo).

    For small states (use_rnn_persist_small_h) in all formats but fp64; else for one layer of one direction in fp16 with
    sizes that are multiples of 128 (use_persist_common_heuristics), on GPUs that it is known to be faster on
    (use_persist_device_heuristics). Never for packed sequences and projections.
    """
    layers, dtype = _Layers.of(op), op.inputs[0].dtype
    if device is None or (capability := device.cuda_capability) is None:
        return False
    if op.attrs.get("batch_sizes") or layers.projection or dtype is DType.FLOAT64:
        return False
    if capability >= (6, 0) and bool(layers.hidden <= _SMALL[op.kind in BACKWARD][layers.mode]):
        return True
    alone = dtype is DType.FLOAT16 and layers.stack == 1
    if not alone or layers.hidden > 1024 or layers.hidden % 128 != 0 or layers.inputs % 128 != 0:
        return False
    return _is_faster(layers, capability, device.sm_count)


_EVERY_SIXTEENTH_BUT = (80, 112)  # batches that Volta is slow with
_SMS = 98  # from which on Ampere and later keep the weights


def _is_faster(layers: _Layers, capability: tuple[int, int], sm_count: int) -> bool:
    b, t = layers.batch, layers.steps
    if capability == (7, 0):
        even = b == 8 or (b % 16 == 0 and b not in _EVERY_SIXTEENTH_BUT)
        return bool(even and ((t >= 40 and b <= 128) or (t >= 20 and b <= 96) or (t >= 10 and b <= 32)))
    if capability < (8, 0) or capability == (8, 6) or sm_count < _SMS or layers.mode == GRU:
        return False
    if b % 8 != 0 or b > 128:
        return False
    return bool(layers.mode == LSTM or b < 96 or layers.hidden < 896)
