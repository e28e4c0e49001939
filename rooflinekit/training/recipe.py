"""How a framework runs a decoder's training step: which kernels, in which formats, what is computed again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rooflinekit.errors import InputError, nearest
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.op import DType
from rooflinekit.strategies.records import check_count, check_word

ATTENTIONS = ("flash", "flash-1", "flash-2", "unfused")
NORMS = ("fused", "composed")
RECOMPUTES = ("none", "selective", "full")
KERNELS = ("eager", "compiled", "fused")
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
    the only ones. `autocast`: the loss is computed in fp32 as autocast does it. `dropout`: there is some. `recompute`:
    "full" computes each layer's forward again in backward, "selective" its attention alone. `optimizer`: Adam as
    PyTorch's multi-tensor kernels, or as one.

    `issue`: CPU time of a layer's ops, the framework's own Python between them included, over that of the ops alone.
    `progress`: how fast kernels go beside the collectives of copies, over what they do alone; None for what the SMs and
    bandwidth that these take leave (model/memory_system.py). `tensor_overlap`: a tensor group sends in pieces beside
    the products before and behind (Transformer Engine's user buffers). `gradient_fusion`: the product that gives a
    weight's gradient adds it to the main gradient, where kernels are fused. `deterministic`: cuBLAS has the workspace
    that PyTorch's deterministic algorithms ask for, CUBLAS_WORKSPACE_CONFIG=:4096:8. `offload`: so many first layers of
    each GPU leave what they keep for backward in the host's memory meanwhile.

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
    autocast: bool = False
    dropout: bool = False
    recompute: str = "none"
    optimizer: str = "foreach"
    issue: float = 1.0
    progress: float | None = None
    tensor_overlap: bool = False
    gradient_fusion: bool = True
    deterministic: bool = False
    offload: int = 0

    def __post_init__(self) -> None:
        for field, words in (
            ("kernels", KERNELS), ("attention", ATTENTIONS), ("norms", NORMS), ("recompute", RECOMPUTES),
            ("optimizer", OPTIMIZERS),
        ):  # fmt: skip
            check_word(f"recipe {field}", getattr(self, field), words, " or ")
        if not isinstance(self.issue, int | float) or not 0 < self.issue < 1000:
            raise InputError(f"recipe issue: expected a factor above 0, below 1000; got {self.issue!r}")
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
        known = list(self.__dataclass_fields__)
        for name in changed:
            if name not in known:
                raise InputError(f"recipe: no field {name!r}{nearest(name, known)} (known: {', '.join(known)})")
        return replace(self, **changed)


#: CPU time of Megatron's layers over that of their ops alone: Python of autograd functions, TorchScript, generators'
#: states around what is computed again. Fitted on whole steps of half of vtrain's models by hash, 5.9; the other half
#: gives 5.9 too (the same command). Releases since are taken to be alike.
MEGATRON_ISSUE = 5.9

#: How fast kernels go beside the collectives of FSDP 1 as llm-foundry set it in 2023 (the next block's weights asked
#: for after a block's backward, at most two gathered): whole steps on A100 take as long as their kernels and 0.9 to
#: 1.15 of their collectives together, for every model, with and without checkpoints. Fitted on half of the models
#: (benchmarks/clusters_accuracy.py --fit).
FSDP_PROGRESS = 0.05

#: By name. "pytorch": a plain module whose weights are all bf16, and AdamW. "huggingface": a model of transformers
#: under its Trainer with bf16 weights. "torchtitan": fp32 weights of which FSDP gathers bf16, FlashAttention 2, as
#: torch 2.2 to 2.10 choose it; "torchtitan-compiled": each layer by torch.compile. "nanotron": flash-attn's kernels,
#: gradients summed up in fp32. "llm-foundry": MPT under FSDP of 2023. "megatron": Megatron Core with Transformer
#: Engine. "nemo": the same as NeMo and Megatron Bridge tune it, with tensor groups that send beside products, and
#: gradients summed in bf16: assumed, for logged peaks of Llama 3.1 405B leave little room for fp32's.
#: "megatron-2023": Megatron-LM before flash attention, in fp16, with dropout and full recomputation.
_TITAN = Recipe(
    name="torchtitan", attention="flash-2", norms="composed", separate=True, autocast=True, master=True,
    optimizer="fused",
)  # fmt: skip
RECIPES = {
    "pytorch": Recipe(name="pytorch"),
    "huggingface": Recipe(name="huggingface", norms="composed", separate=True, autocast=True, optimizer="fused"),
    "torchtitan": _TITAN,
    "torchtitan-compiled": replace(_TITAN, name="torchtitan-compiled", kernels="compiled"),
    "nanotron": Recipe(
        name="nanotron", attention="flash-2", turned=True, autocast=True, main_gradients=True, master=True,
        optimizer="fused",
    ),
    "llm-foundry": Recipe(
        name="llm-foundry", attention="flash-1", autocast=True, master=True, progress=FSDP_PROGRESS
    ),
    "megatron": Recipe(
        name="megatron", kernels="fused", main_gradients=True, master=True, optimizer="fused",
        issue=MEGATRON_ISSUE,
    ),
    "nemo": Recipe(
        name="nemo", kernels="fused", main_gradients=False, master=True, optimizer="fused", issue=MEGATRON_ISSUE,
        tensor_overlap=True,
    ),
    "megatron-2023": Recipe(
        name="megatron-2023", kernels="fused", attention="unfused", dtype=DType.FLOAT16, main_gradients=True,
        master=True, dropout=True, recompute="full", optimizer="fused", issue=MEGATRON_ISSUE,
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
