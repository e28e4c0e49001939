"""Where a GPU's memory goes in a described step, by account, at the moments that may be its fullest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooflinekit.distributed.groups import Setting
from rooflinekit.distributed.records import Recipe
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.model.libraries import capability_of
from rooflinekit.step.memory import product_workspace
from rooflinekit.step.verdict import Verdict

#: Of cuBLAS where CUBLAS_WORKSPACE_CONFIG=:4096:8 is set, as deterministic steps ask for on every GPU.
_DETERMINISTIC = 8 * 4 * 2**20
#: Of Transformer Engine's products, by whether the GPU is Hopper or later
#: (transformer_engine/pytorch/module/base.py, get_cublas_workspace_size_bytes).
_FUSED = {False: 4 * 2**20, True: 32 * 2**20}
#: By how much the allocator's reserve lies above what is allocated at most: blocks of other sizes, of 2 MiB and more.
#: Stated: 1.02 to 1.15 are commonly seen.
_RESERVED = 1.06
#: The least room in which it still places every block, over what is allocated: near the end of memory it gives back
#: what it keeps. `step.verdict` finds 1.000 to 1.011 for steps of decoders of 0.4 to 2.7 billion weights by four
#: recipes.
_LEAST = 1.01
#: Stated standard deviation, as a share, of what is allocated: by peaks of Megatron's ranks, of which nine of ten are
#: within 10 % (benchmarks/memory/accuracy.py).
_SPREAD = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Bytes of a GPU at a moment. `allocated` is what torch.cuda.memory_allocated gives.

    moment: "backward begins", of the micro-batch beside which most others are under way; "backward ends", of the same;
    or "update", the optimizer's.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float  # kept from forward to backward, of all micro-batches under way
    working: float  # of what computes at the peak, beside what is kept
    buffers: float  # of collectives, and of cuBLAS
    beside: Mapping[str, int]  # bytes of the process that no segment holds, see `step.memory.beside_segments`
    capacity: float
    host: float = 0.0  # of the host's page-locked memory, for this GPU
    moment: str = "backward begins"

    def parts(self) -> dict[str, float]:
        """What is allocated, by account."""
        names = ("weights", "gradients", "optimizer", "activations", "working", "buffers")
        return {name: getattr(self, name) for name in names}

    @property
    def allocated(self) -> float:
        """At the peak."""
        return sum(self.parts().values())

    @property
    def reserved(self) -> float:
        """What PyTorch's allocator has taken from the driver."""
        return self.allocated * _RESERVED

    @property
    def context(self) -> int:
        """Of CUDA and its libraries."""
        return sum(self.beside.values())

    def verdict(self, level: float = 0.9) -> Verdict:
        """Bytes allocated, reserved and of the process, and how likely it is that they fit: see `Verdict.of`."""
        return Verdict.of(
            allocated=self.allocated, reserved=self.reserved, least=self.allocated * _LEAST, beside=self.beside,
            capacity=self.capacity, level=level, spread=_SPREAD,
        )  # fmt: skip

    @property
    def probability(self) -> float:
        """That it fits."""
        return self.verdict().probability

    @property
    def fits(self) -> bool:
        """Whether a GPU has the least room in which it runs."""
        return self.probability >= 0.5

    def to_dict(self) -> dict[str, float | bool]:
        """Every account, and the sums."""
        sums = ("allocated", "reserved", "context", "host", "probability", "fits")
        return self.parts() | {name: getattr(self, name) for name in sums}


def workspace_of(device: Device, recipe: Recipe) -> int:
    """Bytes that cuBLAS keeps for the threads of forward and of backward, and Transformer Engine for its products."""
    own = 2 * (_DETERMINISTIC if recipe.deterministic else product_workspace(device))
    return own + recipe.fused * _FUSED[(capability_of(device) or (0,))[0] >= 9]


def weight_itemsize(device: Device, recipe: Recipe) -> int:
    """Bytes for each weight of a layer.

    Those that are kept in 8 bits, with a scale for each tensor, lie there in both orders where the GPU's products of 8
    bits take but one: on all but compute capability 10 and 11 (transformer_engine/pytorch/utils.py,
    is_non_tn_fp8_gemm_supported).
    """
    if not (recipe.fp8 and recipe.eight_bit_weights):
        return recipe.dtype.itemsize
    return 1 if (capability_of(device) or (0,))[0] in (10, 11) else 2


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
    def of(cls, layers: int, layer_bytes: float, held: int, setting: Setting) -> Offload:
        """held: layers of a GPU. Raises InputError for as many as that: the last one's backward comes at once."""
        if layers and layers >= held:
            raise InputError(
                f"offload: {layers} layers of {held} on a GPU: expected {held - 1} or fewer; the last one's "
                "activations are needed at once"
            )
        # All GPUs of a node copy at the same time, from or to the same memory.
        own = setting.host.dram_bandwidth / min(setting.gpus, setting.cluster.per_node)
        rate = min(setting.copy_rate, own)
        return cls(layers=layers, layer_bytes=layer_bytes, copy_s=layer_bytes / rate if layers else 0.0)

    def kept(self, held: int, under_way: float) -> float:
        """Layers' worth of activations on a GPU with so many layers, of as many micro-batches under way.

        Of the one that computes two layers are there at least: one computes, one is on its way.
        """
        stay = held - self.layers
        return (under_way - 1) * stay + max(stay, min(2, held) if self.layers else stay)

    def host_bytes(self, under_way: float) -> float:
        """Page-locked memory for a GPU."""
        return self.layers * self.layer_bytes * under_way
