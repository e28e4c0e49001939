"""Where a GPU's memory goes in a training step, by account."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from rooflinekit.errors import InputError
from rooflinekit.serving.decoder import Decoder
from rooflinekit.step.input_pipeline import copy_rate
from rooflinekit.step.memory import CONTEXT_BYTES, USABLE_SHARE
from rooflinekit.step.verdict import CONTEXT_SPREAD
from rooflinekit.training.layout import Layout
from rooflinekit.training.pieces import Pieces
from rooflinekit.training.place import Place
from rooflinekit.training.recipe import Recipe

#: Of cuBLAS, kept from its first product on: by PyTorch twice 4 MiB, from compute capability 9.0 on eight times
#: (aten/src/ATen/cuda/CUDABlas.cpp), as CUBLAS_WORKSPACE_CONFIG=:4096:8 of deterministic steps has it on every GPU;
#: and by Transformer Engine 4 and 32 MiB (transformer_engine/pytorch/module/base.py, get_cublas_workspace_size_bytes).
_MIB = 2**20
_WORKSPACE = {False: 8 * _MIB, True: 32 * _MIB}
_WORKSPACE_FUSED = {False: 4 * _MIB, True: 32 * _MIB}
#: By how much the allocator's reserve lies above what is allocated at most: blocks of other sizes, of 2 MiB and more.
#: Stated: 1.02 to 1.15 are commonly seen.
_RESERVED = 1.06
#: Stated standard deviations, as shares: of what is allocated, by peaks of Megatron's ranks, of which nine of ten are
#: within 10 % (benchmarks/memory_accuracy.py); of what is reserved beside it, by that range.
_SPREADS = (0.06, 0.04)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Bytes of the GPU that needs most. `allocated` is what torch.cuda.max_memory_allocated gives."""

    weights: float
    gradients: float
    optimizer: float
    activations: float  # kept from forward to backward, of all micro-batches under way
    working: float  # of what computes at the peak, beside what is kept
    buffers: float  # of collectives, and of cuBLAS
    capacity: float
    host: float = 0.0  # of the host's page-locked memory, for this GPU

    @property
    def allocated(self) -> float:
        """At the peak."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.working + self.buffers

    @property
    def reserved(self) -> float:
        """What PyTorch's allocator has taken from the driver."""
        return self.allocated * _RESERVED

    @property
    def context(self) -> float:
        """Of CUDA and its libraries."""
        return float(CONTEXT_BYTES)

    @property
    def fits(self) -> bool:
        """Whether a GPU has as much."""
        return self.reserved + self.context <= self.capacity * USABLE_SHARE

    @property
    def probability(self) -> float:
        """That it fits, by the spreads of what is allocated, of what is reserved beside it and of the context."""
        spread = math.hypot(*(share * self.reserved for share in _SPREADS), CONTEXT_SPREAD * self.context)
        return NormalDist(self.reserved + self.context, spread).cdf(self.capacity * USABLE_SHARE)

    def to_dict(self) -> dict[str, float | bool]:
        """Every account, and the sums."""
        names = ("weights", "gradients", "optimizer", "activations", "working", "buffers")
        sums = {
            "allocated": self.allocated, "reserved": self.reserved, "context": self.context, "host": self.host,
        }  # fmt: skip
        found = {name: getattr(self, name) for name in names}
        return {**found, **sums, "probability": self.probability, "fits": self.fits}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What accounts are made of."""

    decoder: Decoder
    layout: Layout
    recipe: Recipe
    pieces: Pieces
    replicas: int  # GPUs with the same weights
    shards: int  # that share them out, where they are gathered
    tokens: int  # of a micro-batch on a GPU
    capacity: float
    offload: Offload
    hopper: bool  # compute capability 9.0 or more

    @property
    def workspace(self) -> int:
        """Of cuBLAS, of the threads of forward and of backward."""
        return (
            2 * _WORKSPACE[self.hopper or self.recipe.deterministic] + self.recipe.fused * _WORKSPACE_FUSED[self.hopper]
        )


def accounts_of(held: Held, k: int, layers: int, under_way: int) -> Accounts:
    """The accounts of stage k with so many layers; under_way: micro-batches that it keeps, by its chunks."""
    lay, pieces, recipe = held.layout, held.pieces, held.recipe
    first, last = k == 0, k == lay.pipeline - 1
    ends = pieces.weights.get("embedding", 0) * (first or (last and pieces.tied))
    dense = layers * pieces.weights["layer"] + ends + pieces.weights.get("head", 0) * last
    experts = layers * pieces.expert_weights
    whole, few = dense + experts, max(1, held.replicas // lay.expert)
    stated = recipe.dtype.itemsize
    state = 12 if recipe.master else 2 * stated  # fp32 weights, and two moments
    gradient = 4 if recipe.main_gradients else stated
    buffers = 0.0
    if lay.gathers:
        cut = dense / held.shards + experts / few
        largest = max(pieces.weights["layer"] + pieces.expert_weights, ends + pieces.weights.get("head", 0))
        weights = float(stated * (whole if lay.sharding == "grad-op" else 2 * largest))
        gradients, optimizer, buffers = 4 * cut, state * cut, float(stated * largest)
    else:
        weights, gradients = float(stated * whole), float(gradient * whole)
        shared = lay.sharding != "ddp"
        parts, few = (max(1, number // lay.instances) for number in (held.replicas, few))
        optimizer = state * ((dense / parts + experts / few) if shared else whole)
    saved = pieces.saved_bytes
    micro_batches = max(under_way, lay.chunks) / lay.chunks
    activations = saved["layer"] * held.offload.kept(layers, micro_batches)
    activations += saved.get("embedding", 0) * first * -(-under_way // lay.chunks) + saved.get("head", 0) * last
    return Accounts(
        weights=weights, gradients=gradients, optimizer=optimizer, activations=activations,
        working=_working(held, last), buffers=buffers + held.workspace, capacity=held.capacity,
        host=held.offload.host_bytes(micro_batches),
    )  # fmt: skip


def _working(held: Held, last: bool) -> float:
    """The larger of what the loss needs beside its logits, and of a layer that is computed again."""
    logits = held.tokens * -(-held.decoder.vocab // held.layout.tensor)
    # the logits' gradient in fp32 or 16 bits beside the softmax that is kept
    loss = logits * (4 if held.recipe.autocast else 2)
    if not held.recipe.gradient_fusion:
        loss += 2 * max(held.pieces.weights.get(name, 0) for name in ("head", "embedding"))
    layer = held.pieces.again_bytes or 8 * held.tokens * held.decoder.hidden
    return float(max(loss * last, layer))


def at_least_hopper(capability: str | None) -> bool:
    """Whether a compute capability is 9.0 or more; what has none is no such GPU."""
    major = (capability or "").partition(".")[0]
    return major.isdigit() and int(major) >= 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """The first `layers` layers of a GPU: what each keeps leaves beside the next layer's forward, and comes back beside
    the backward of the layer behind it, as Transformer Engine's `get_cpu_offload_context` and torchtune do it.

    A layer's tensors are freed, or there, when both the copy and the layer beside it are done. `copy_s`: of a layer and
    micro-batch, one way.
    """

    layers: int
    layer_bytes: float
    copy_s: float

    @classmethod
    def of(cls, layers: int, layer_bytes: float, held: int, place: Place) -> Offload:
        """held: layers of a GPU. Raises InputError for as many as that: the last one's backward comes at once."""
        if layers and layers >= held:
            raise InputError(
                f"offload: {layers} layers of {held} on a GPU: expected {held - 1} or fewer; the last one's "
                "activations are needed at once"
            )
        # All GPUs of a node copy at the same time, from or to the same memory.
        own = place.host.dram_bandwidth / min(place.gpus, place.cluster.per_node)
        rate = min(copy_rate(place.machine.device, place.host, pinned=True), own)
        return cls(layers=layers, layer_bytes=layer_bytes, copy_s=layer_bytes / rate if layers else 0.0)

    def wait_s(self, layer_s: float) -> float:
        """What a layer that takes so long waits for the copy beside it."""
        return max(0.0, self.copy_s - layer_s)

    def kept(self, held: int, under_way: float) -> float:
        """Layers' worth of activations on a GPU with so many layers, of as many micro-batches under way.

        Of the one that computes two layers are there at least: one computes, one is on its way.
        """
        stay = held - self.layers
        return (under_way - 1) * stay + max(stay, min(2, held) if self.layers else stay)

    def host_bytes(self, under_way: float) -> float:
        """Page-locked memory for a GPU."""
        return self.layers * self.layer_bytes * under_way
