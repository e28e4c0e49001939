"""How a decoder's training is spread over GPUs: what a person chooses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rooflinekit.errors import InputError
from rooflinekit.ir.arguments import checked
from rooflinekit.serving.decoder import Decoder
from rooflinekit.strategies.groups import Groups, Setting, groups_of
from rooflinekit.strategies.records import check_counts, check_word

SHARDINGS = ("ddp", "zero-1", "grad-op", "fsdp", "hybrid")


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Groups of `tensor` GPUs share each layer, `context` a sequence, `pipeline` the layers; the rest are copies.

    Numbers of GPUs go as Megatron's do: tensor, then context, then copies, then stages. `sequence`: norms, dropout and
    residuals on 1/tensor of the tokens. `chunks`: virtual stages of a GPU (interleaved 1F1B). `expert`: GPUs, of the
    copies, that share out the experts; `expert_tensor` that share each of them. `micro_batch`: sequences at once.

    `sharding` of the copies: "ddp" has all on each; "zero-1" shares out the optimizer's state (Megatron's distributed
    optimizer); "grad-op" gradients too, weights kept from forward to backward (FSDP's SHARD_GRAD_OP); "fsdp" weights
    too, gathered layer by layer; "hybrid" as fsdp inside each node and copies across. `instances`: with "zero-1" the
    optimizer's state is shared out within so many equal groups of copies, each of which has all of it. `overlap`:
    whether what copies send runs beside backward and forward.

    Raises InputError for other words and numbers.
    """

    tensor: int = 1
    sequence: bool = False
    context: int = 1
    pipeline: int = 1
    chunks: int = 1
    expert: int = 1
    expert_tensor: int = 1
    micro_batch: int = 1
    sharding: str = "zero-1"
    overlap: bool = True
    instances: int = 1

    def __post_init__(self) -> None:
        check_counts(
            "layout", self, "tensor", "context", "pipeline", "chunks", "expert", "expert_tensor", "micro_batch",
            "instances",
        )  # fmt: skip
        check_word("layout sharding", self.sharding, SHARDINGS)
        if self.gathers and self.pipeline > 1:
            raise InputError(f"layout: {self.sharding} gathers weights layer by layer; expected pipeline=1")
        if self.instances > 1 and self.sharding != "zero-1":
            raise InputError(f"layout instances: of the optimizer's state of zero-1; got sharding {self.sharding!r}")
        if self.chunks > 1 and self.pipeline == 1:
            raise InputError("layout chunks: virtual stages are of a pipeline; expected pipeline of 2 or more")
        if self.sequence and self.tensor == 1:
            object.__setattr__(self, "sequence", False)  # nothing to cut by

    @property
    def gathers(self) -> bool:
        """Whether weights are gathered layer by layer."""
        return self.sharding in ("grad-op", "fsdp", "hybrid")

    def copies(self, gpus: int) -> int:
        """Copies on so many GPUs. Raises InputError where they do not come out even."""
        model = self.tensor * self.context * self.pipeline
        if gpus % model:
            raise InputError(
                f"layout of tensor {self.tensor} × context {self.context} × pipeline {self.pipeline}: expected a "
                f"multiple of {model} GPUs; got {gpus}"
            )
        return gpus // model

    def groups(self, setting: Setting) -> Groups:
        """Those of the GPUs of a setting. Raises InputError for more experts' GPUs than a stage has."""
        gpus = setting.gpus
        plane = gpus // self.pipeline
        if self.expert * self.expert_tensor > plane:
            raise InputError(f"layout expert {self.expert}: expected a divisor of {plane} GPUs of a stage")
        members = groups_of(
            setting.numbers, setting.cluster.per_node, tensor=self.tensor, context=self.context,
            copies=self.copies(gpus), expert=self.expert, expert_tensor=self.expert_tensor,
        )  # fmt: skip
        return Groups(setting=setting, members=members, crowded=True)

    def pieces(self, gpus: int, batch: int) -> int:
        """Micro-batches of a copy in a step, the last maybe not full. Raises InputError for a batch too small."""
        copies = self.copies(gpus)
        if batch < copies:
            raise InputError(f"batch={batch} cannot be cut for {copies} copies: expected {copies} or more")
        return -(-batch // (copies * self.micro_batch))

    def with_changes(self, **changed: Any) -> Layout:
        """The same with other numbers."""
        return replace(self, **changed)

    def __str__(self) -> str:
        words = [
            f"{name} {getattr(self, field)}"
            for name, field in (
                ("TP", "tensor"), ("CP", "context"), ("PP", "pipeline"), ("VP", "chunks"), ("EP", "expert"),
                ("ETP", "expert_tensor"),
            )
            if getattr(self, field) > 1
        ]  # fmt: skip
        words += ["SP"] if self.sequence else []
        return ", ".join([*words, self.sharding, f"micro-batch {self.micro_batch}"])


# What one GPU has of a decoder: its part of heads and widths, of tokens, layers and experts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A micro-batch of a layout on one GPU. Raises InputError for sizes that do not divide."""

    decoder: Decoder
    layout: Layout
    seq: int  # tokens of a whole sequence

    def __post_init__(self) -> None:
        d, lay = self.decoder, self.layout
        for what, size, by in (
            ("heads", d.heads, lay.tensor),
            ("ffn", d.ffn if not d.experts else d.ffn * lay.tensor, lay.tensor),
            ("seq", self.seq, lay.context * (2 if lay.context > 1 else 1)),
            ("seq", self.seq // lay.context, lay.tensor if lay.sequence else 1),
            ("experts", d.experts, lay.expert),
        ):
            if size % by:
                raise InputError(f"{d.name}: {what} {size} cannot be cut into {by} equal parts")

    @property
    def length(self) -> int:
        """Tokens of a sequence on a GPU."""
        return self.seq // self.layout.context

    @property
    def tokens(self) -> int:
        """That pass the products of a GPU."""
        return self.layout.micro_batch * self.length

    @property
    def rows(self) -> int:
        """Tokens that pass norms, dropout and residual additions."""
        return self.tokens // (self.layout.tensor if self.layout.sequence else 1)

    @property
    def heads(self) -> int:
        """Of queries on a GPU."""
        return self.decoder.heads // self.layout.tensor

    @property
    def kv_heads(self) -> int:
        """Of keys on a GPU, at least one."""
        return max(1, self.decoder.kv_heads // self.layout.tensor)

    @property
    def vocab(self) -> int:
        """Rows of the embedding on a GPU, filled up to a whole number."""
        return -(-self.decoder.vocab // self.layout.tensor)

    @property
    def boundary_bytes(self) -> float:
        """Of an activation in 16 bits between layers, all tokens of the tensor group."""
        return 2.0 * self.tokens * self.decoder.hidden
