"""Ways to train on several devices, and ways to save memory: what a person chooses."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from rooflinekit.errors import InputError, nearest
from rooflinekit.ir.arguments import checked

MIB = 2**20
BACKENDS = ("nccl", "gloo")
SCHEDULES = ("gpipe", "1f1b", "interleaved")
CONTEXT_WAYS = ("ring", "all-gather")


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """`torch.nn.DataParallel`: one process, one thread for each replica, everything gathered on the first device.

    `copy_bytes`: how much is broadcast, and reduced, at once (torch: 10 MiB).
    """

    copy_bytes: int = 10 * MIB

    def __post_init__(self) -> None:
        check_counts("DataParallel", self, "copy_bytes")


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class DDP:
    """`torch.nn.parallel.DistributedDataParallel`: a process for each device, gradients reduced in buckets.

    `bucket_bytes`, `first_bucket_bytes`: a bucket is sent when it holds so much. `gradient_as_bucket_view`: gradients
    lie in their buckets, and are not copied back. `overlap`: whether buckets are sent during backward, or all after
    it. `backend`: "nccl", or "gloo", which takes GPUs' tensors through the host's memory and none of their SMs.
    """

    bucket_bytes: int = 25 * MIB
    first_bucket_bytes: int = 1 * MIB
    gradient_as_bucket_view: bool = False
    overlap: bool = True
    backend: str = "nccl"

    def __post_init__(self) -> None:
        check_word("DDP backend", self.backend, BACKENDS, " or ")
        check_counts("DDP", self, "bucket_bytes", "first_bucket_bytes")


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class FSDP:
    """Weights, gradients and optimizer state shared out: ZeRO's stages, of which the third is PyTorch's FSDP.

    `stage`: 1 shares the optimizer's state, 2 also gradients, 3 also weights, which are gathered block by block.
    `prefetch`: the next block is gathered while one computes. `bucket_bytes`: of stages 1 and 2.
    """

    stage: int = 3
    prefetch: bool = True
    bucket_bytes: int = 25 * MIB

    def __post_init__(self) -> None:
        if self.stage not in (1, 2, 3):
            raise InputError(f"FSDP stage: expected 1, 2 or 3; got {self.stage!r}")
        check_counts("FSDP", self, "bucket_bytes")


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """A product of ways: groups of `tensor` devices inside `pipeline` stages, and as many copies as devices are left.

    Devices of a tensor group have neighbouring numbers, then come those that share sequences, copies, stages.
    `sequence`: what lies between the layers of a tensor group is cut by tokens. `context`: so many devices share each
    sequence; attention's keys go around a "ring" of them, or by "all-gather": `context_way`. `expert`: so many
    neighbouring copies share out the experts of their mixtures; `imbalance`: tokens for the experts of the fullest
    device of a group, over the mean. `microbatches`: pieces into which a pipeline cuts its batch; None for four a
    stage. `schedule`: "gpipe", "1f1b" or "interleaved", the last with so many `chunks` (virtual stages) on each device.
    `data`: how the copies agree.
    """

    tensor: int = 1
    sequence: bool = False
    context: int = 1
    context_way: str = "ring"
    expert: int = 1
    imbalance: float = 1.0
    pipeline: int = 1
    microbatches: int | None = None
    schedule: str = "1f1b"
    chunks: int = 2
    data: DDP | FSDP = field(default_factory=DDP)

    def __post_init__(self) -> None:
        check_counts("Mesh", self, "tensor", "context", "expert", "pipeline", "chunks")
        if self.sequence and self.tensor == 1:
            raise InputError("Mesh sequence: tokens are cut within a tensor group; expected tensor of 2 or more; got 1")
        if not isinstance(self.imbalance, int | float) or not 1 <= self.imbalance <= self.expert:
            raise InputError(
                f"Mesh imbalance: expected a number from 1 (as many tokens everywhere) to expert={self.expert} (all on "
                f"one device); got {self.imbalance!r}"
            )
        if self.microbatches is not None:
            check_counts("Mesh", self, "microbatches")
        check_word("Mesh schedule", self.schedule, SCHEDULES)
        check_word("Mesh context_way", self.context_way, CONTEXT_WAYS)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted of how the devices' work differs."""
        if self.context > 1:
            return (f"context: devices have as much work of a sequence; keys go by {self.context_way}",)
        if self.expert == 1:
            return ()
        load = "as many tokens" if self.imbalance == 1 else f"at most {self.imbalance:g} times the mean of the tokens"
        return (f"experts: {load} for each device of a group",)

    @property
    def pieces(self) -> int:
        """Microbatches of a step."""
        return 1 if self.pipeline == 1 else self.microbatches or 4 * self.pipeline


Strategy: TypeAlias = DataParallel | DDP | FSDP | Mesh


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Savers:
    """What makes a step need less memory.

    `accumulate`: so many parts of the batch, one after another, before the optimizer's step. `checkpoint`: blocks
    whose activations are computed again in backward: True for all, or module paths. `save`: what they keep all the
    same, as PyTorch's selective activation checkpointing does: ops by kind, "aten.addmm", or those of a module by its
    path inside the block, "attn.proj:aten.addmm". `eight_bit`: the optimizer's state in a quarter of the bytes.
    `offload`: its state, and the step itself, on the CPU. `offload_activations`: what forward keeps for backward lies
    in the host's memory meanwhile: of True for all blocks, or of module paths.
    """

    accumulate: int = 1
    checkpoint: bool | tuple[str, ...] = False
    eight_bit: bool = False
    offload: bool = False
    save: tuple[str, ...] = ()
    offload_activations: bool | tuple[str, ...] = False

    def __post_init__(self) -> None:
        check_counts("", self, "accumulate")
        if self.save and not self.checkpoint:
            raise InputError(
                f"save: checkpointed blocks save {', '.join(self.save)}; expected checkpoint too; got none"
            )

    def __str__(self) -> str:
        words = (
            (self.accumulate > 1, f"accumulate {self.accumulate}"),
            (self.checkpoint, f"checkpoint {_blocks(self.checkpoint)}"),
            (self.save, f"saving {' '.join(one.replace('aten.', '').lstrip(':') for one in self.save)}"),
            (self.offload_activations, f"activations of {_blocks(self.offload_activations)} on the CPU"),
            (self.eight_bit, "8-bit optimizer"),
            (self.offload, "optimizer on the CPU"),
        )
        return ", ".join(text for given, text in words if given) or "none"


def strategy_of(word: str | Strategy, gpus: int) -> Strategy:
    """The strategy of this name: dp, ddp, ddp-gloo, zero-1, zero-2, fsdp, tensor, context, expert, pipeline.

    A strategy comes back as it was given.

    Raises InputError for another name.
    """
    if not isinstance(word, str):
        return word
    known: dict[str, Strategy] = {
        "dp": DataParallel(),
        "ddp": DDP(),
        "ddp-gloo": DDP(backend="gloo"),
        "zero-1": FSDP(stage=1),
        "zero-2": FSDP(stage=2),
        "fsdp": FSDP(),
        "tensor": Mesh(tensor=gpus),
        "context": Mesh(context=gpus),
        "expert": Mesh(expert=gpus),
        "pipeline": Mesh(pipeline=gpus),
    }
    if word.lower() not in known:  # not `check_word`: the nearest to a word in capitals
        raise InputError(f"strategy: expected {', '.join(known)}; got {word!r}{nearest(word.lower(), known)}")
    return known[word.lower()]


def _blocks(chosen: bool | tuple[str, ...]) -> str:
    """Blocks in words: the first and the last of many.

    >>> _blocks(("h.0", "h.1", "h.2", "h.3"))
    'h.0 to h.3 (4 blocks)'
    """
    if isinstance(chosen, bool):
        return "all blocks"
    return ", ".join(chosen) if len(chosen) < 4 else f"{chosen[0]} to {chosen[-1]} ({len(chosen)} blocks)"


def check_counts(whose: str, record: object, *names: str) -> None:
    """Raises InputError for a field that is no integer of 1 or more."""
    for name in names:
        check_count(f"{whose} {name}".strip(), getattr(record, name))


def check_count(name: str, value: object, least: int = 1, what: str = "an integer of") -> None:
    """Raises InputError for what is no integer of so much or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}: expected {what} {least} or more; got {value!r}")


def check_word(name: str, word: object, known: Collection[str], between: str = ", ") -> None:
    """Raises InputError for a word that is none of the known ones."""
    if word not in known:
        raise InputError(f"{name}: expected {between.join(known)}; got {word!r}{nearest(str(word), known)}")
