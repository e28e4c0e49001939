"""Activations of a decoder's layers that wait for backward in the host's memory."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.errors import InputError
from rooflinekit.step.feed import copy_rate
from rooflinekit.training.place import Place


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
