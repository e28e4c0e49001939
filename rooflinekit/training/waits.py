"""What a step waits for in its groups: reductions of tensor groups, keys around a ring, tokens to experts, copies."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.ir.op import Phase
from rooflinekit.serving.decoder import Decoder
from rooflinekit.training.groups import Groups
from rooflinekit.training.layout import Layout
from rooflinekit.training.pieces import Pieces
from rooflinekit.training.recipe import Recipe

#: Share of a bucket's worth of gradients that is still to be sent when backward ends, of all: Megatron's buckets hold
#: max(40 M, 1 M · copies) numbers (megatron/core/distributed/distributed_data_parallel.py).
_BUCKET_NUMBERS, _BUCKET_NUMBERS_A_COPY = 40_000_000, 1_000_000


@dataclass(slots=True, kw_only=True)
class Waits:
    """Of one micro-batch on one GPU."""

    decoder: Decoder
    layout: Layout
    recipe: Recipe
    seq: int
    groups: Groups
    pieces: Pieces

    @property
    def boundary_bytes(self) -> float:
        """Of an activation between layers, all tokens of a tensor group."""
        lay = self.layout
        return 2.0 * lay.micro_batch * self.seq / lay.context * self.decoder.hidden

    def of(self, phase: Phase) -> dict[str, float]:
        """Seconds by group."""
        lay, size, backward = self.layout, self.boundary_bytes, phase is Phase.BACKWARD
        again = backward and self.recipe.recompute == "full"
        rounds = 2 + 2 * again  # attention and network; and once more for what is computed again
        found: dict[str, float] = {}
        if lay.tensor > 1:
            found["tensor"] = self._tensor_s(size, backward=backward, rounds=rounds)
        if lay.context > 1:
            found["context"] = self._context_s(phase)
        if self.decoder.experts and lay.expert > 1:
            tokens = 2.0 * self.decoder.hidden * self.decoder.experts_per_token
            tokens *= lay.micro_batch * self.seq / lay.context / (lay.tensor if lay.sequence else 1)
            found["expert"] = (2 + 2 * again) * self.groups.seconds("expert", "all-to-all", tokens)
        return found

    def _tensor_s(self, size: float, *, backward: bool, rounds: int) -> float:
        """Two reductions each way, or a gather and a scatter for each; backward's run beside weights' gradients."""
        groups, pieces = self.groups, self.pieces
        moe = bool(self.decoder.experts)
        if not self.layout.sequence:
            each = groups.seconds("tensor", "all-reduce", size)
            hidden = 0.0
            if backward:
                # Megatron reduces the gradient of a column layer's input beside its weight's gradient.
                beside = pieces.part("layer", Phase.BACKWARD).weight_gradient_s / 2
                hidden = min(2 * each, beside) * self.progress("tensor", "all-reduce", size)
            return rounds * each - hidden
        each = groups.seconds("tensor", "all-gather", size) + groups.seconds("tensor", "reduce-scatter", size)
        if self.recipe.tensor_overlap:
            each = self._piecewise_s(each, backward=backward)
        rounds = rounds // 2 if moe and self.layout.expert_tensor == 1 else rounds  # the mixture keeps its own tokens
        return rounds * each

    def _piecewise_s(self, each_s: float, *, backward: bool) -> float:
        """What is left of a gather and a scatter that go piece by piece beside a product: the first piece, and what is
        longer than the product.
        """
        phase = Phase.BACKWARD if backward else Phase.FORWARD
        piece = self.pieces.part("layer", phase)
        product_s = (piece.gpu_s - piece.attention_s) / 2
        return max(each_s / self.layout.tensor, each_s - product_s)

    def progress(self, group: str, what: str, size_bytes: float) -> float:
        """How fast kernels go beside a collective, over what they do alone."""
        if self.recipe.progress is not None:
            return self.recipe.progress
        return 1 / self.groups.slowdown(group, what, size_bytes)

    def _context_s(self, phase: Phase) -> float:
        """Keys and values around the ring beside attention; what is longer than that is waited for."""
        lay, d = self.layout, self.decoder
        width = max(1, d.kv_heads // lay.tensor) * d.head_dim
        size = 2.0 * 2 * lay.micro_batch * self.seq * width
        way = self.groups.seconds("context", "all-gather", size)
        backward = phase is Phase.BACKWARD
        beside = self.pieces.part("layer", phase).attention_s
        return max(0.0, (2 if backward else 1) * way - beside * (1 - 1 / lay.context))

    def copies_s(self, numbers: tuple[int, int], replicas: int, forward_s: float, backward_s: float) -> float:
        """What the copies' gradients and weights make a step wait for.

        numbers: of weights that all copies have, and of experts. replicas: GPUs with the same weights. forward_s,
        backward_s: of a micro-batch through the first stage, beside which they are sent.
        """
        dense, experts = numbers
        lay = self.layout
        shared = lay.sharding != "ddp"
        gradient = 4 if self.recipe.main_gradients else 2
        what = "reduce-scatter" if shared else "all-reduce"
        reduce_s, gather_s = 0.0, 0.0
        for group, count in (("data", dense), ("expert data", experts)):
            if count:
                reduce_s += self.groups.seconds(group, what, float(gradient * count))
                gather_s += self.groups.seconds(group, "all-gather", 2.0 * count) if shared else 0.0
        if not lay.overlap:
            return reduce_s + gather_s
        bucket = max(_BUCKET_NUMBERS, _BUCKET_NUMBERS_A_COPY * replicas)
        tail = min(1.0, bucket / max(1, dense + experts))
        hidden = [min((1 - tail) * s, way) for s, way in ((reduce_s, backward_s), (gather_s, forward_s))]
        contention = sum(hidden) * (1 - self.progress("data", what, float(gradient * dense)))
        return reduce_s + gather_s - sum(hidden) + contention
