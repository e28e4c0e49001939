"""How PyTorch runs a step: what launches its kernels, when it synchronizes, where its inputs come from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from rooflinekit.errors import InputError, check_word
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.sizes import finite, shown
from rooflinekit.kernels.attention_backends import BACKENDS

Backend = Literal[
    "eager", "compiled", "cuda-graph", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "cudagraphs",
    "aot-eager",
]  # fmt: skip
#: What people write for a backend, with hyphens; underscores are taken for them.
_MEANT = {
    "compile": "compiled", "torch.compile": "compiled", "torch-compile": "compiled", "inductor": "compiled",
    "cuda-graphs": "cuda-graph",
}  # fmt: skip
#: What people write for a kernel of attention: torch's own names, those of transformers and of packages.
_MEANT_ATTENTION = {
    "flash-attention": "flash", "flash-2": "flash", "flash2": "flash", "flash-attention-2": "flash",
    "flash1": "flash-1", "flash3": "flash-3", "flash-attention-3": "flash-3", "flash4": "flash-4",
    "flash-attention-4": "flash-4", "cudnn-attention": "cudnn", "memory-efficient": "efficient",
    "mem-efficient": "efficient", "efficient-attention": "efficient", "flex": "triton", "flex-attention": "triton",
    "composable-kernel": "ck",
}  # fmt: skip
Sync = Literal["none", "step", "op", "events"]
Copy = Literal["none", "pageable", "pinned"]


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How PyTorch runs the step.

    `backend`: "eager" launches the kernels of each op; "compiled" those of torch.compile in its default mode, the
    optimizer's included; "cuda-graph" launches the eager kernels as one CUDA graph, and "reduce-overhead" the compiled
    ones. "max-autotune" and "max-autotune-no-cudagraphs" are these modes of torch.compile, "cudagraphs" and "aot-eager"
    its backends of these names: eager kernels, as one CUDA graph or one by one.
    `sync`: "step" synchronizes after every step (the time of one step alone), "none" lets steps follow each other
    without waiting (the time a step adds to a long loop), "op" synchronizes after every op (as profilers do), "events"
    is the time between two CUDA events around a step alone: no launch latency, no loop, no synchronization.
    `copy`: where the step's inputs and targets lie before it: "none" on the GPU already, else in the host's ordinary
    ("pageable") or page-locked ("pinned") memory, from which each is copied. The CPU waits for each copy, unless
    `non_blocking` and pinned, as with `x.to("cuda", non_blocking=True)`.
    `loader_rate`: samples a second that a data loader hands over, beside the step; a step takes no less than its
    samples, the first dimension of its first input, need. None for a loader that always keeps up.
    `attention`: the kernel that runs attention wherever it takes a call, as within `sdpa_kernel(...)`: "cudnn", "flash"
    (FlashAttention 2), "efficient" (memory-efficient), "math" (products and a softmax); or that a package brings:
    "flash-1", "flash-3", "flash-4", "triton" (flex_attention), on AMD's GPUs "aotriton", "ck", "aiter". None for what
    PyTorch chooses. What the network's own `sdpa_kernel(...)` switches off stays off; a step of which it takes no
    call is refused.
    Raises InputError for another word or value, and for synchronizing after the ops of a CUDA graph.
    """

    backend: Backend = "eager"
    sync: Sync = "step"
    copy: Copy = "none"
    non_blocking: bool = False
    loader_rate: float | None = None
    attention: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.backend, str):
            word = self.backend.lower().replace("_", "-")
            object.__setattr__(self, "backend", _MEANT.get(word, word))
        if self.attention is not None:
            object.__setattr__(self, "attention", _attention(self.attention))
        words = (("backend", self.backend, Backend), ("sync", self.sync, Sync), ("copy", self.copy, Copy))
        for field, value, known in words:
            check_word(f"execution {field}", value, get_args(known))
        if self.sync == "op" and self.as_graph:
            raise InputError(
                f"execution sync 'op': a CUDA graph ({self.backend!r}) runs as a whole; choose 'step' or 'none', or "
                "execution 'eager' or 'compiled'"
            )
        if self.non_blocking and self.copy != "pinned":
            raise InputError(
                f"execution non_blocking with copy {self.copy!r}: only copies from 'pinned' memory run beside the CPU"
            )
        if self.loader_rate is not None and not (finite(self.loader_rate) and self.loader_rate > 0):
            raise InputError(f"execution loader_rate: expected samples a second above 0; got {shown(self.loader_rate)}")

    def __str__(self) -> str:
        others = [(f.name, getattr(self, f.name)) for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return " ".join([self.backend, *(f"{name}={value}" for name, value in others)])

    @property
    def fused(self) -> bool:
        """Whether torch.compile makes the kernels."""
        return self.backend in ("compiled", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

    @property
    def autotunes(self) -> bool:
        """Whether torch.compile times its templates against libraries."""
        return self.backend.startswith("max-autotune")

    @property
    def entered(self) -> bool:
        """Whether a step begins in dynamo: with guards, and every weight handed over."""
        return self.fused or self.backend in ("cudagraphs", "aot-eager")

    @property
    def as_graph(self) -> bool:
        """Whether the kernels are launched as a CUDA graph."""
        return self.backend in ("cuda-graph", "reduce-overhead", "max-autotune", "cudagraphs")


def _attention(given: str) -> str:
    """The name in BACKENDS that is meant. Raises InputError."""
    word = given.lower().replace("_", "-")
    word = _MEANT_ATTENTION.get(word, word)
    check_word("execution attention", word, BACKENDS)
    return word


def execution_of(given: Execution | Backend) -> Execution:
    """The execution itself, or the one with this backend. Raises InputError for a word that is none."""
    return given if isinstance(given, Execution) else Execution(backend=given)


def check_release(like: Release | None, execution: Execution) -> None:
    """Raises InputError where a release of PyTorch has no such execution."""
    if execution.entered and like is not None and not like.compiles:
        raise InputError(
            f"execution {execution.backend!r}: PyTorch {like} has no torch.compile, which came with 2.0; choose "
            "'eager' or 'cuda-graph', or a later release"
        )
