"""Ways to train on several devices, to save memory, and to run a decoder: what a person chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeAlias

from rooflinekit.errors import InputError, check_word, nearest
from rooflinekit.ir.arguments import checked, expect_count
from rooflinekit.ir.op import DType
from rooflinekit.published.stated import PROGRAMS

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
        check_word("DDP backend", self.backend, BACKENDS)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Devices in groups of groups; as many copies of them as devices are left."""

    tensor: int = 1
    sequence: bool = False
    context: int = 1
    pipeline: int = 1
    expert: int = 1
    imbalance: float = 1.0
    #: Whether as many groups as a node holds share its network; else a group is taken to have it for itself.
    crowded: ClassVar[bool] = False

    @property
    def expert_tensor(self) -> int:
        """Devices that share each expert: those of a tensor group."""
        return self.tensor

    def copies(self, gpus: int) -> int:
        """Copies on so many GPUs. Raises InputError where they do not come out even."""
        model = self.tensor * self.context * self.pipeline
        if gpus % model:
            raise InputError(
                f"{type(self).__name__.lower()} of tensor {self.tensor} × context {self.context} × pipeline "
                f"{self.pipeline}: expected a multiple of {model} GPUs; got {gpus}"
            )
        return gpus // model


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh(_Groups):
    """A product of ways: groups of `tensor` devices inside `pipeline` stages, and as many copies as devices are left.

    Devices of a tensor group have neighbouring numbers, then come those that share sequences, copies, stages.
    `sequence`: what lies between the layers of a tensor group is cut by tokens. `context`: so many devices share each
    sequence; attention's keys go around a "ring" of them, or by "all-gather": `context_way`. `expert`: so many
    neighbouring copies share out the experts of their mixtures; `imbalance`: tokens for the experts of the fullest
    device of a group, over the mean. `microbatches`: pieces into which a pipeline cuts its batch; None for four a
    stage. `schedule`: "gpipe", "1f1b" or "interleaved", the last with so many `chunks` (virtual stages) on each device.
    `data`: how the copies agree.
    """

    context_way: str = "ring"
    microbatches: int | None = None
    schedule: str = "1f1b"
    chunks: int = 2
    data: DDP | FSDP = field(default_factory=DDP)

    def __post_init__(self) -> None:
        check_counts("Mesh", self, "tensor", "context", "expert", "pipeline", "chunks")
        if self.sequence and self.tensor == 1:
            raise InputError("Mesh sequence: tokens are cut within a tensor group; expected tensor of 2 or more; got 1")
        check_imbalance("Mesh", self.imbalance, self.expert)
        if self.microbatches is not None:
            check_counts("Mesh", self, "microbatches")
        check_word("Mesh schedule", self.schedule, SCHEDULES)
        check_word("Mesh context_way", self.context_way, CONTEXT_WAYS)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions about how the work of the devices differs."""
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


#: By name, of so many devices. Help and messages list these.
STRATEGIES: Mapping[str, Callable[[int], Strategy]] = {
    "dp": lambda gpus: DataParallel(),
    "ddp": lambda gpus: DDP(),
    "ddp-gloo": lambda gpus: DDP(backend="gloo"),
    "zero-1": lambda gpus: FSDP(stage=1),
    "zero-2": lambda gpus: FSDP(stage=2),
    "zero-3": lambda gpus: FSDP(),
    "fsdp": lambda gpus: FSDP(),
    "tensor": lambda gpus: Mesh(tensor=gpus),
    "context": lambda gpus: Mesh(context=gpus),
    "expert": lambda gpus: Mesh(expert=gpus),
    "pipeline": lambda gpus: Mesh(pipeline=gpus),
}
NAMED = ", ".join(STRATEGIES)


def strategy_of(word: str | Strategy, gpus: int) -> Strategy:
    """The strategy of this name; or as it was given. Raises InputError for another name."""
    if not isinstance(word, str):
        return word
    if word.lower() not in STRATEGIES:  # not `check_word`: the nearest to a word in capitals
        raise InputError(f"strategy: expected {NAMED}; got {word!r}{nearest(word.lower(), STRATEGIES)}")
    return STRATEGIES[word.lower()](gpus)


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
    expect_count(name, value, least, words=f"{what} {least} or more")


def check_imbalance(whose: str, value: object, expert: int) -> None:
    """Raises InputError for tokens of the fullest device, over the mean of `expert` devices, that cannot be."""
    if not isinstance(value, int | float) or not 1 <= value <= expert:
        raise InputError(
            f"{whose} imbalance: expected a number from 1 (as many tokens everywhere) to expert={expert} (all on one "
            f"device); got {value!r}"
        )


SHARDINGS = ("ddp", "zero-1", "grad-op", "fsdp", "hybrid")
_STAGES = {"zero-2": "grad-op", "zero-3": "fsdp"}  # names of DeepSpeed for the same


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(_Groups):
    """Groups of `tensor` GPUs share each layer, `context` a sequence, `pipeline` the layers; the rest are copies.

    Numbers of GPUs go as Megatron's do: tensor, then context, then copies, then stages. `sequence`: norms, dropout and
    residuals on 1/tensor of the tokens. `chunks`: virtual stages of a GPU (interleaved 1F1B). `expert`: GPUs, of the
    copies, that share out the experts; `expert_tensor` that share each of them; `imbalance` as of a `Mesh`.
    `micro_batch`: sequences at once.

    `sharding` of the copies: "ddp" has all on each; "zero-1" shares out the optimizer's state (Megatron's distributed
    optimizer); "grad-op", or "zero-2", gradients too, weights kept from forward to backward (FSDP's SHARD_GRAD_OP);
    "fsdp", or "zero-3", weights too, gathered layer by layer; "hybrid" as fsdp inside each node and copies across.
    `instances`: with "zero-1" the optimizer's state is shared out within so many equal groups of copies, each of which
    has all of it. `overlap`: whether what copies send runs beside backward and forward.

    Raises InputError for other words and numbers.
    """

    crowded: ClassVar[bool] = True

    chunks: int = 1
    expert_tensor: int = 1
    micro_batch: int = 1
    sharding: str = "zero-1"
    overlap: bool = True
    instances: int = 1

    def __post_init__(self) -> None:
        check_counts("layout", self, *(one.name for one in fields(self) if one.default == 1 and one.type == "int"))
        check_imbalance("layout", self.imbalance, self.expert)
        object.__setattr__(self, "sharding", _STAGES.get(self.sharding, self.sharding))
        check_word("layout sharding", self.sharding, SHARDINGS)
        if self.gathers and self.pipeline > 1:
            raise InputError(f"layout: {self.sharding} gathers weights layer by layer; expected pipeline=1")
        if self.instances > 1 and self.sharding != "zero-1":
            raise InputError(f"layout instances: they belong to sharding 'zero-1'; got sharding {self.sharding!r}")
        if self.chunks > 1 and self.pipeline == 1:
            raise InputError("layout chunks: virtual stages need a pipeline; expected pipeline of 2 or more")
        if self.sequence and self.tensor == 1:
            object.__setattr__(self, "sequence", False)  # nothing to cut by

    @property
    def gathers(self) -> bool:
        """Whether weights are gathered layer by layer."""
        return self.sharding in ("grad-op", "fsdp", "hybrid")

    def pieces(self, gpus: int, batch: int) -> int:
        """Micro-batches of a copy in a step, the last maybe not full. Raises InputError for a batch too small."""
        copies = self.copies(gpus)
        if batch < (least := copies * self.micro_batch):
            pieces = "" if self.micro_batch == 1 else f" with micro-batches of {self.micro_batch}"
            raise InputError(f"batch={batch} cannot be cut for {copies} copies{pieces}: expected {least} or more")
        return -(-batch // (copies * self.micro_batch))

    def with_changes(self, **changed: Any) -> Layout:
        """The same layout with other numbers."""
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
        words += [f"imbalance {self.imbalance:g}"] if self.imbalance != 1 else []
        return ", ".join([*words, self.sharding, f"micro-batch {self.micro_batch}"])


ATTENTIONS = ("flash", "flash-1", "flash-2", "unfused")
NORMS = ("fused", "composed")
RECOMPUTES = ("none", "selective", "full")
SELECTIVES = ("attention", "ops")
KERNELS = ("eager", "compiled", "fused")
LOSSES = ("plain", "shared", "kernel")
OPTIMIZERS = ("foreach", "fused")


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a framework does with a decoder, in words that its users know.

    `kernels`: "eager" are PyTorch's own, "compiled" those that torch.compile makes of each layer, "fused" those of
    Megatron and Transformer Engine: bias and activation in one, bias, dropout and residual in another, a product's
    gradient added to the main gradient by the product itself. `attention`: "flash", the kernel that PyTorch chooses or
    Transformer Engine's, "flash-1" the package's of before July 2023, "flash-2" its next one, or "unfused" with its
    scores in memory. `norms`: one kernel, or "composed" of PyTorch's elementwise kernels in fp32. `separate`: queries,
    keys and values are three products. `turned`: one kernel of the framework's own rotates queries or keys by position,
    not PyTorch's five. `dtype` of products and activations; `fp8`: products of 8 bits. `main_gradients`: gradients are
    summed up in fp32. `master`: the optimizer has fp32 weights beside those that are multiplied; without it these are
    the only ones. `eight_bit_weights`: with `fp8`, those of layers are kept in 8 bits alone (NeMo's `fp8_params`,
    Megatron's `--fp8-param-gather`). `autocast`: the loss is computed in fp32 as autocast does it. `loss`: "plain" is
    PyTorch's cross entropy, "shared" one over the parts of a vocabulary, Megatron's where kernels are fused, else
    nanotron's, "kernel" one kernel each way that keeps nothing but the logits, such as flash-attn's. On many GPUs it
    tells the memory; the time is the plain one's. `dropout`: there is some. `recompute`: "full" computes each layer's
    forward again in backward, "selective" a part of it: by `selective`, "attention" alone, as Megatron does it, or all
    "ops" but attention and every other product, as torchtitan does. `optimizer`: Adam as PyTorch's multi-tensor
    kernels, or as one.

    `issue`: CPU time of a layer's ops, the framework's own Python between them included, over that of the ops alone.
    `progress`: how fast kernels go beside the collectives of copies, over what they do alone, from 0 to 1; None for
    what the SMs and bandwidth that these take leave (`timing/memory_system.py`). `tensor_overlap`: a tensor group sends
    in pieces beside the products before and behind (Transformer Engine's buffers). `gradient_fusion`: the product
    that gives a weight's gradient adds it to the main gradient, where kernels are fused. `deterministic`: cuBLAS has
    the workspace that PyTorch's deterministic algorithms ask for, CUBLAS_WORKSPACE_CONFIG=:4096:8. `offload`: so many
    first layers of each GPU leave what they keep for backward in the host's memory meanwhile.

    Raises InputError for other words.
    """

    name: str = "recipe"
    kernels: str = "eager"
    attention: str = "flash"
    norms: str = "fused"
    separate: bool = False
    turned: bool = False
    dtype: DType = DType.BFLOAT16
    fp8: bool = False
    main_gradients: bool = False
    master: bool = False
    eight_bit_weights: bool = False
    autocast: bool = False
    loss: str = "plain"
    dropout: bool = False
    recompute: str = "none"
    selective: str = "attention"
    optimizer: str = "foreach"
    issue: float = 1.0
    progress: float | None = None
    tensor_overlap: bool = False
    gradient_fusion: bool = True
    deterministic: bool = False
    offload: int = 0

    def __post_init__(self) -> None:
        for name, words in (
            ("kernels", KERNELS), ("attention", ATTENTIONS), ("norms", NORMS), ("recompute", RECOMPUTES),
            ("optimizer", OPTIMIZERS), ("loss", LOSSES), ("selective", SELECTIVES),
        ):  # fmt: skip
            check_word(f"recipe {name}", getattr(self, name), words)
        if not isinstance(self.issue, int | float) or not 0 < self.issue < 1000:
            raise InputError(f"recipe issue: expected a factor above 0, below 1000; got {self.issue!r}")
        if self.progress is not None and not 0 <= self.progress <= 1:
            raise InputError(f"recipe progress: expected None or a number from 0 to 1; got {self.progress!r}")
        check_count("recipe offload", self.offload, 0, "a number of layers,")
        if not self.dtype.is_floating:
            raise InputError(f"recipe dtype: expected a floating-point format; got {self.dtype}")

    @property
    def attention_backend(self) -> str | None:
        """The kernel that it calls by itself, of `model.attention_backends`; None for the one that PyTorch chooses."""
        if self.attention.startswith("flash-"):
            return {"flash-1": "flash-1", "flash-2": "flash"}[self.attention]
        return "cudnn" if self.fused else None

    @property
    def fused(self) -> bool:
        """Whether the kernels are Megatron's and Transformer Engine's."""
        return self.kernels == "fused"

    def with_changes(self, **changed: Any) -> Recipe:
        """The same recipe with other words. Raises InputError for a field that there is not."""
        for name in changed:
            check_word("recipe: name of a field", name, [*self.__dataclass_fields__])
        return replace(self, **changed)


MEGATRON_ISSUE = PROGRAMS["Megatron's issue"].value

#: By name. "pytorch": a plain module whose weights are all bf16, and AdamW. "huggingface": a model of transformers
#: under its Trainer with bf16 weights. "torchtitan": fp32 weights of which FSDP gathers bf16, FlashAttention 2, as
#: torch 2.2 to 2.10 choose it; "torchtitan-compiled": each layer by torch.compile. "nanotron": flash-attn's kernels,
#: gradients summed up in fp32. "llm-foundry": MPT under FSDP 1 of 2023, whose kernels stand still beside collectives:
#: steps on A100 and on H100 take as long as both one after another, for a reason that is not known (docs/training.md).
#: "megatron": Megatron Core with Transformer Engine. "nemo": the same as NeMo and Megatron Bridge tune it, with tensor
#: groups that send beside products, and gradients summed in bf16: assumed, for logged peaks of Llama 3.1 405B leave
#: little room for fp32's. "megatron-2023": Megatron-LM before flash attention, in fp16, with dropout and full
#: recomputation.
_TITAN = Recipe(
    name="torchtitan", attention="flash-2", norms="composed", separate=True, autocast=True, master=True,
    selective="ops", optimizer="fused",
)  # fmt: skip
RECIPES = {
    "pytorch": Recipe(name="pytorch"),
    "huggingface": Recipe(name="huggingface", norms="composed", separate=True, autocast=True, optimizer="fused"),
    "torchtitan": _TITAN,
    "torchtitan-compiled": replace(_TITAN, name="torchtitan-compiled", kernels="compiled"),
    "nanotron": Recipe(
        name="nanotron", attention="flash-2", turned=True, autocast=True, loss="shared", main_gradients=True,
        master=True, optimizer="fused",
    ),
    "llm-foundry": Recipe(
        name="llm-foundry", attention="flash-1", autocast=True, loss="kernel", master=True, progress=0.0
    ),
    "megatron": Recipe(
        name="megatron", kernels="fused", turned=True, main_gradients=True, master=True, optimizer="fused",
        issue=MEGATRON_ISSUE,
    ),
    "nemo": Recipe(
        name="nemo", kernels="fused", turned=True, main_gradients=False, master=True, optimizer="fused",
        eight_bit_weights=True, issue=MEGATRON_ISSUE, tensor_overlap=True,
    ),
    "megatron-2023": Recipe(
        name="megatron-2023", kernels="fused", turned=True, attention="unfused", dtype=DType.FLOAT16,
        main_gradients=True, master=True, dropout=True, recompute="full", optimizer="fused", issue=MEGATRON_ISSUE,
    ),
}  # fmt: skip


_OLDER = {"mpt": "llm-foundry"}  # what recipes were called before


def recipe_of(word: str | Recipe) -> Recipe:
    """The recipe of this name; or as it was given. Raises InputError for another name."""
    if isinstance(word, Recipe):
        return word
    word = _OLDER.get(word, word)
    check_word("recipe", word, RECIPES)
    return RECIPES[word]
