"""Which kernel runs an attention: backends as records, and the choice that PyTorch makes for a GPU and a release.

FlashAttention 2 and CUTLASS's kernels multiply by instructions of single warps (mma.sync): by those an SM of Hopper or
Blackwell is no faster than Ampere's, `warp_mma_flop`. cuDNN and FlashAttention 3 use those of several (wgmma, tcgen05).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from rooflinekit.cost.rules.attention import GRADIENTS
from rooflinekit.errors import FormatError, InputError
from rooflinekit.hardware.device import Device
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import PRESENT, Release
from rooflinekit.ir.op import DType, Family, Math, Op, PricedOp, TensorSpec
from rooflinekit.ir.points import integer
from rooflinekit.kernels.algorithms import ATTENTION, Algorithm, ByUnit
from rooflinekit.kernels.kernel import Kernel, passing
from rooflinekit.published.stated import NUMBERS

FLASH = replace(ATTENTION, name="FlashAttention 2", warp_level=True, sums_in_memory=True)
FLASH_3 = replace(ATTENTION, name="FlashAttention 3", sums_in_memory=True, joins_heads=True)
CUDNN = replace(ATTENTION, name="cuDNN's attention", sums_in_memory=True, rate=ByUnit.both("cudnn_attention"))
#: The same on Blackwell's data centre GPUs, which take products beside a softmax.
CUDNN_BLACKWELL = replace(CUDNN, tensor_memory=True, rate=ByUnit.both(""))
FLASH_4 = replace(CUDNN_BLACKWELL, name="FlashAttention 4")
EFFICIENT = replace(
    ATTENTION, name="memory-efficient", warp_level=True, rate=ByUnit.both("efficient_attention"), shared_softmax=True
)
#: Of heads above 128 its gradient sums those of keys and values in memory (mem_eff_attention/kernel_backward.h).
EFFICIENT_WIDE = replace(EFFICIENT, rate=ByUnit.both("efficient_wide_gradient"))
FLASH_1 = replace(FLASH, name="FlashAttention 1", rate=ByUnit.both("efficient_attention"))
#: AMD's kernels in assembly, which engines and Megatron call, and those in Triton, which PyTorch calls.
AITER = replace(ATTENTION, name="aiter", sums_in_memory=True)
AOTRITON = replace(ATTENTION, name="AOTriton", rate=ByUnit.both("aotriton_attention"), computes_again=True)
#: What inductor writes for flex_attention.
TRITON = replace(AOTRITON, name="Triton's attention", rate=ByUnit.both("triton_attention"))
#: AMD's Composable Kernel: no measurement tells it a rate of its own.
CK = replace(TRITON, name="Composable Kernel", computes_again=False, sums_in_memory=True)
#: Of engines: FlashAttention 2's by templates, and TensorRT-LLM's own, of which others call those for Blackwell.
FLASHINFER = replace(FLASH, name="FlashInfer", joins_heads=True)
TENSORRT = replace(ATTENTION, name="TensorRT-LLM's attention", rate=ByUnit.both("engine_attention"))
TENSORRT_BLACKWELL = replace(CUDNN_BLACKWELL, name=TENSORRT.name)
#: PyTorch's own products and softmax, which model.attention_math writes out.
WRITTEN_OUT = replace(ATTENTION, name="math")

LATER = "PyTorch 2.11"  # from which on cuDNN's is taken first: Release.prefers_cudnn

BACKENDS = {
    "flash-1": FLASH_1, "flash": FLASH, "flash-3": FLASH_3, "flash-4": FLASH_4, "cudnn": CUDNN, "efficient": EFFICIENT,
    "aiter": AITER, "aotriton": AOTRITON, "ck": CK, "triton": TRITON, "math": WRITTEN_OUT,
}  # fmt: skip

_LATENT = [192, 128]  # numbers of a head of queries and of values, in latent attention
_CUDNN_DROPOUT = 1 / 16  # of which the rate is a multiple
_EFFICIENT_STEPS = ((1, 8), (4, 8))  # of heads before Ampere and from it on: in more than 16 bits, and in 16
_TENSOR_CORES = 7  # the generation that has the first
_FLASH_FROM, _TRITON_FROM, _EFFICIENT_FROM = 8, 7, 5  # generations
#: Releases in which sdpa_kernel or torch.nn has a kernel, and as what.
_FIRST = {"cudnn": (Release(2, 5), "it"), "flash": (Release(2, 2), "it"), "triton": (Release(2, 5), "flex_attention")}
_OF_AOTRITON = ("gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")  # GPUs for which PyTorch brings its kernels
#: Operators that a package, or torch.nn.attention.varlen, calls by name, of tensors with heads behind the sequence.
_FLASH_KINDS = ("flash_attn.", "torch_attn.", "aten._flash_attention_")
_SCALED = "aten._scaled_dot_product_"
_FLASH = (f"{_SCALED}flash_attention", *_FLASH_KINDS)
_BY_NAME = (*_FLASH_KINDS, "aten._efficient_attention_")
_OF_CK, _OF_AITER = ("gfx90a", "gfx94", "gfx95"), ("gfx94", "gfx95")
_HOPPER, _BLACKWELL = 9, 10  # generations, of the latter its data centre GPUs
_SMALL_BLACKWELL = 12  # of its others, whose SMs have Ada's shared memory
_AGAIN_FROM = 224  # numbers of a head above which FlashAttention 2.5.5 has a gradient there, without dropout
_IN_REGISTERS = 128  # numbers of a head whose gradients the memory-efficient kernel sums in registers, at most
_SUM_BYTES = 4
_SINGLE_IN_TENSOR_CORES = 3  # products in tf32 in the place of one in fp32 (CUTLASS, OpMultiplyAddFastF32)

# By engine, the oldest first: the version from which on it runs these kernels, by generation of GPUs; 0: all others.
_SINCE_FLASH_3 = {0: FLASH, _HOPPER: FLASH_3}
_ENGINES: Mapping[str, tuple[tuple[tuple[int, ...], Mapping[int, Algorithm]], ...]] = {
    "vllm": (
        ((0,), {0: FLASH}),
        ((0, 8), _SINCE_FLASH_3),
        ((0, 11), {**_SINCE_FLASH_3, _BLACKWELL: TENSORRT_BLACKWELL}),
    ),
    "sglang": (
        ((0,), {0: FLASHINFER}),
        ((0, 4, 6), {0: FLASHINFER, _HOPPER: FLASH_3}),
        ((0, 5), {0: FLASHINFER, _HOPPER: FLASH_3, _BLACKWELL: TENSORRT_BLACKWELL}),
    ),
    "tensorrt-llm": (((0,), {0: TENSORRT, _BLACKWELL: TENSORRT_BLACKWELL}),),
}  # fmt: skip
_ENGINES_ON_AMD = {"vllm": TRITON, "sglang": AITER}
_PAGED = "serving.paged_attention"
#: FlashAttention 3 shares its blocks out in one, and joins parts of keys in another; which the third is, is not known.
_CALL_KERNELS = int(NUMBERS["call kernels"].value)


def attention_kernels(kernel: Kernel, op: Op, device: Device | None, like: Release | None) -> Iterator[Kernel]:
    """The fused kernel, and in a gradient what libraries launch around it.

    Blocks of the gradient go over the queries, whose gradient they sum in fp32 in memory: a kernel before takes the
    sums of gradient times output and sets those to 0, one after writes them in 16 bits. FlashAttention 2 adds up the
    gradients of shared keys and values in a last one (csrc/flash_attn/src/flash_bwd_launch_template.h).
    """
    algorithm = _made_for(backend_of(op, device, like), op, device)
    if algorithm in (EFFICIENT, EFFICIENT_WIDE) and kernel.math is Math.FP32 and _rounds_thrice(device):
        kernel = _by_three_products(kernel)
    if op.kind not in GRADIENTS:
        for _ in range(_CALL_KERNELS if op.attrs.get("called") else 0):
            yield passing(kernel, "beside", 0, 0)
        if op.attrs.get("called") and algorithm.joins_heads:
            kernel = _with_joined_heads(kernel, op)
        yield replace(kernel, algorithm=algorithm)
        return
    if algorithm.computes_again:
        yield _computed_again(replace(kernel, algorithm=replace(algorithm, gradient=True)))
        return
    grad, query, key = op.inputs[:3]
    kernel = replace(kernel, algorithm=replace(algorithm, gradient=True, tensor_memory=False))
    if not algorithm.sums_in_memory:
        yield kernel
        return
    numbers, size = integer(query.numel), integer(query.bytes)
    output, sums = integer(grad.bytes), _SUM_BYTES * numbers  # of the output and its gradient, which are alike
    heads = -5 - _length(op)  # behind the sequence, or before it
    copies = integer(query.shape[heads]) // integer(key.shape[heads])
    shared = sum(integer(t.bytes) for t in op.inputs[2:4]) if copies > 1 and algorithm.warp_level else 0
    cost = kernel.cost
    written = integer(cost.write_bytes) - size + sums + (copies - 1) * shared
    yield passing(kernel, "gradient times output", 2 * output, sums)
    cost = replace(cost, read_bytes=integer(cost.read_bytes) - output, write_bytes=written)
    yield replace(kernel, cost=cost)
    yield passing(kernel, "gradient of the query in 16 bits", sums, size)
    if shared:
        yield passing(kernel, "gradients of shared keys and values", copies * shared, shared)


def _with_joined_heads(kernel: Kernel, op: Op) -> Kernel:
    """The kernel with the queries of all heads that share keys as one head's; in decoding its rule counts so already.

    FlashAttention 3 does so where sequences differ in length (hopper/heuristics.h), FlashInfer always.
    """
    (_, heads, s, *_), (_, kv_heads, *_) = op.inputs[0].shape, op.inputs[1].shape
    shared = integer(heads) // integer(kv_heads) if s != 1 else 1
    gemms = tuple(replace(g, batch=integer(g.batch) // shared, m=shared * integer(g.m)) for g in kernel.cost.gemms)
    return replace(kernel, cost=replace(kernel.cost, gemms=gemms))


def _made_for(algorithm: Algorithm, op: Op, device: Device | None) -> Algorithm:
    """The variant of a library's kernel for a gradient, for wide heads or for a generation of GPUs."""
    if op.kind in GRADIENTS:
        wide = max(_widths(op)) > _IN_REGISTERS
        return EFFICIENT_WIDE if wide and algorithm is EFFICIENT else algorithm
    later = device is not None and device.cuda_generation == _BLACKWELL
    return CUDNN_BLACKWELL if later and algorithm is CUDNN else algorithm


def _computed_again(kernel: Kernel) -> Kernel:
    """Seven products: one kernel for keys and values, one for queries, each with the scores and the weights' gradient.

    AOTriton names them bwd_kernel_dk_dv and bwd_kernel_dq; blocks of flex_attention's gradient do either
    (torch/_inductor/kernel/flex).
    """
    cost, gemms = kernel.cost, kernel.cost.gemms
    again = replace(cost, gemms=(*gemms, gemms[0], gemms[2]), special_flop=2 * integer(cost.special_flop))
    return replace(kernel, cost=again, asked_flop=integer(cost.matrix_flop))


def _rounds_thrice(device: Device | None) -> bool:
    """Whether it has tensor cores of tf32, as from Ampere on."""
    return device is not None and device.cuda_generation >= _FLASH_FROM


def _by_three_products(kernel: Kernel) -> Kernel:
    """In fp32 from Ampere on: each product on the tensor core as three in tf32, of the numbers and of what they round
    off (torch's mem_eff_attention/gemm_kernel_utils.h: OpMultiplyAddFastF32); before it on the CUDA cores.
    """
    cost = kernel.cost
    again = replace(cost, gemms=cost.gemms * _SINGLE_IN_TENSOR_CORES)
    return replace(kernel, math=Math.TF32, cost=again, asked_flop=integer(cost.matrix_flop))


def choice_of(op: Op, device: Device, like: Release | None) -> str:
    """A text, equal for devices on which the op runs as the same kernels. Raises what `backend_of` raises."""
    algorithm = _made_for(backend_of(op, device, like), op, device)
    in_tf32 = algorithm in (EFFICIENT, EFFICIENT_WIDE) and _rounds_thrice(device)
    return f"{algorithm}{' in tf32' if in_tf32 else ''}"


def backend_of(op: Op, device: Device | None, like: Release | None = None) -> Algorithm:
    """The kernel that PyTorch runs for scaled_dot_product_attention (aten/src/ATen/native/transformers/cuda).

    Flash for 16 bits without a mask from compute capability 8.0 on, which is FlashAttention 1 before PyTorch 2.2;
    cuDNN's before it on Hopper and Blackwell's data centre GPUs from 2.11 on, with a mask too; else the
    memory-efficient one; else PyTorch's products and softmax; of those that the program has not switched off
    (`backends` of the op: what is on). On AMD's GPUs both are AOTriton's, or Composable
    Kernel's where the program prefers that (`prefers` of the op), as flash-attn and xFormers do. A program that calls a
    package of its own says so as the op's `backend`, an engine as its `engine`. Attention of other vendors is not told
    apart. Raises FormatError where PyTorch finds no kernel.
    """
    if device is None or device.kind != "gpu":
        return ATTENTION
    if (named := op.attrs.get("backend")) is not None:
        return BACKENDS[str(named)]
    if op.kind.startswith("higher_order.flex_attention"):
        return TRITON
    capability = device.cuda_capability
    if op.kind == _PAGED:
        return _of_engine(op, device, capability)
    if op.kind.startswith(_BY_NAME) and capability is not None:
        torch_chooses = op.kind.startswith("aten.")  # for xFormers, and for causal masks by torch.nn.attention.bias
        if not op.kind.startswith(_FLASH_KINDS) or (torch_chooses and capability[0] < _FLASH_FROM):
            return EFFICIENT
        third = op.attrs.get("package") == "xformers" and capability[0] == _HOPPER and not op.attrs.get("dropout_p")
        return FLASH_3 if third else FLASH  # of its own FlashAttention 3 xFormers calls where it can
    if not op.kind.startswith((_SCALED, *_BY_NAME)):
        return ATTENTION
    if capability is None:
        return _of_amd(op, device)
    return _first_of(op, device, capability, like)


def _of_engine(op: Op, device: Device, capability: tuple[int, int] | None) -> Algorithm:
    """The kernel of an engine by its release, such as "vllm:0.12", and by the GPU; of no engine as vLLM's newest.

    NVIDIA's tables (aiconfigurator) name those of vLLM 0.14 and 0.24, SGLang 0.5 and TensorRT-LLM 1.3; since when
    engines have them is as remembered. Heads wider than flash attention's, and what runs before Ampere, are not told
    apart.
    """
    name, _, version = str(op.attrs.get("engine", "")).partition(":")
    if capability is None:
        return _ENGINES_ON_AMD.get(name, ATTENTION) if _is_one_of(device, _OF_AITER) else ATTENTION
    if capability[0] < _FLASH_FROM or max(_widths(op)) > _VERSIONS["flash"].widest:
        return ATTENTION
    numbers = tuple(map(int, re.findall(r"\d+", version)))
    *_, kernels = (one for since, one in _ENGINES.get(name, _ENGINES["vllm"]) if since <= (numbers or since))
    return kernels.get(capability[0], kernels[0])


def _first_of(op: Op, device: Device, capability: tuple[int, int], like: Release | None) -> Algorithm:
    """The first kernel in PyTorch's order (_get_sdp_priority_order) that takes the op. Raises FormatError for none."""
    allowed = op.attrs.get("backends", _SWITCHED)
    asked = op.kind.startswith(f"{_SCALED}cudnn") and "backends" not in op.attrs  # by the operator's own name
    first = asked or (like or PRESENT).prefers_cudnn(capability[0])
    excluded = {
        "cudnn": _against_cudnn(op, capability),
        "flash": _against_own_flash(op, capability, like) if op.kind.startswith(_FLASH) else iter([_MASKED]),
        "efficient": _against_efficient(op, capability),
        "math": iter(()),
    }
    standing = ("cudnn", "flash", "efficient", "math") if first else ("flash", "efficient", "math", "cudnn")
    why: list[str] = []
    for name in op.attrs.get("order", standing):
        if name in allowed:
            reasons = [one for one, _ in excluded[name]]
            if not reasons:
                return FLASH_1 if name == "flash" and not (like or PRESENT).has_flash_2 else BACKENDS[name]
            why.append(f"{BACKENDS[name].name} is excluded by {' and '.join(reasons)}")
    raise FormatError(
        f"{device.name}: scaled_dot_product_attention stops with 'No available kernel. Aborting execution.': "
        f"{'; '.join(why)}; switch on another one in sdpa_kernel(...), such as SDPBackend.MATH"
    )


def _of_amd(op: Op, device: Device) -> Algorithm:
    """What runs on AMD's GPUs: math where PyTorch ships no kernel for the GPU. Of other vendors nothing is known."""
    asked = op.kind.startswith("flash_attn.") or op.attrs.get("prefers") == "ck"
    asked = asked or op.attrs.get("package") == "xformers"
    if asked and _is_one_of(device, _OF_CK) and _tensors(op)[0].dtype.sixteen_bits:
        return CK
    if device.vendor != "AMD":
        return ATTENTION
    on = op.attrs.get("backends", _SWITCHED)
    taken = (op.kind.startswith(_FLASH) and "flash" in on) or ("efficient" in on and not _shares_keys(op))
    return AOTRITON if taken and _is_one_of(device, _OF_AOTRITON) else WRITTEN_OUT


def _tensors(op: Op) -> Sequence[TensorSpec]:
    """Query, key and value."""
    return op.inputs[1:4] if op.kind in GRADIENTS else op.inputs[:3]


def _shares_keys(op: Op) -> bool:
    """Whether several heads read the same keys, with `enable_gqa=True`: memory-efficient kernels take no such call."""
    query, key, _ = _tensors(op)
    return op.kind.startswith(_SCALED) and query.shape[1] != key.shape[1]


def _widths(op: Op) -> list[int]:
    """Head dimensions of queries and of values."""
    return [integer(tensor.shape[-1]) for tensor in _tensors(op)[::2]]


#: What keeps a kernel from running, and what would change that.
Obstacle = tuple[str, str]
_MASKED: Obstacle = "a mask", "drop the mask or use flex_attention"
_DROPS: Obstacle = "dropout", "train without"
_OFF: Obstacle = "the program", "leave it switched on"
_ORDERED: Obstacle = "the order of sdpa_kernel(..., set_priority=True)", "name it first"
_SWITCHED = ("flash", "cudnn", "efficient", "math")  # by torch.nn.attention.sdpa_kernel: an op's `backends` are on


def _against_cudnn(op: Op, capability: tuple[int, int]) -> Iterator[Obstacle]:
    """Why cuDNN's kernels do not take it (sdp_utils.cpp: check_cudnn_tensor_shapes and what is asked with it)."""
    if capability[0] < _FLASH_FROM:
        yield _older(capability)
        return
    key = _tensors(op)[1]
    yield from _wider(op)
    yield from replace(_OF_CUDNN, latent=capability[0] in (_HOPPER, _BLACKWELL)).against(_widths(op))
    dropout = float(op.attrs.get("dropout_p") or 0.0)
    if dropout % _CUDNN_DROPOUT:
        yield f"a dropout of {dropout:g}", "use a multiple of a sixteenth"
    if integer(key.shape[_length(op)]) == 1:
        yield "a single key", "use two keys or more"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepted:
    """The arguments that kernels of attention accept."""

    widest: int  # numbers of a head
    step: int = 1  # of which that is a multiple
    one_width: bool = True  # of queries and values
    latent: bool = False  # whether it takes those of latent attention too
    only: int = 0  # the generation that has them; 0 for all from Ampere on
    dropout: bool = True

    def against(self, widths: list[int]) -> Iterator[Obstacle]:
        """Why they do not take heads of queries and values of so many numbers."""
        alike = max(widths) <= self.widest and (not self.one_width or len(set(widths)) == 1)
        if any(width % self.step for width in widths) or not (alike or (self.latent and widths == _LATENT)):
            words = [f"a multiple of {self.step}"] * (self.step > 1) + ["one width"] * self.one_width
            yield _of_width(widths), f"use heads of {' and of '.join(words)} up to {self.widest}"


_OF_CUDNN = _Accepted(widest=128, step=8, one_width=False)
#: By PyTorch (sdp_utils.cpp, use_flash_attention) and by packages (of Dao-AILab/flash-attention hopper/flash_api.cpp
#: and flash_attn/cute/interface.py).
_VERSIONS = {
    "flash-1": _Accepted(widest=128),
    "flash": _Accepted(widest=256),
    "flash-3": _Accepted(widest=256, step=8, latent=True, only=_HOPPER, dropout=False),
    "flash-4": _Accepted(widest=128, step=8, one_width=False, latent=True, only=_BLACKWELL, dropout=False),
}


def _against_flash(op: Op, capability: tuple[int, int], version: _Accepted) -> Iterator[Obstacle]:
    """Why a version of FlashAttention does not take it."""
    if not version.only and capability[0] < _FLASH_FROM:
        yield _older(capability)
        return
    if version.only not in (0, capability[0]):
        yield _of_capability(capability), f"take a GPU of {version.only}.x"
    yield from _wider(op)
    if op.attrs.get("attn_bias") is not None:
        yield _MASKED
    if not version.dropout and op.attrs.get("dropout_p"):
        yield _DROPS
    yield from version.against(_widths(op))
    query, key, _ = _tensors(op)
    if op.attrs.get("is_causal") and op.kind.startswith(_SCALED) and query.shape[-2] != key.shape[-2]:
        # PyTorch's causal mask begins at the upper left, flash attention's ends lower right
        yield "a causal mask of unequal lengths", "use flex_attention"


def _against_own_flash(op: Op, capability: tuple[int, int], like: Release | None) -> Iterator[Obstacle]:
    """Why the version that a release of PyTorch has does not take it."""
    yield from _against_flash(op, capability, _VERSIONS["flash" if (like or PRESENT).has_flash_2 else "flash-1"])
    yield from _too_wide_to_train(op, capability, like or PRESENT)


def _too_wide_to_train(op: Op, capability: tuple[int, int], release: Release) -> Iterator[Obstacle]:
    """Why a gradient does not fit into the shared memory of 8.6 to 8.9 and of 12.x, 100 KiB of an SM.

    sdp_utils.cpp, check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120; before FlashAttention 2.5.5,
    which PyTorch 2.4 has, heads above 192 had none there, and those above 64 none by FlashAttention 1 (as remembered).
    """
    trained = op.kind in GRADIENTS or op.attrs.get("trained")
    if not trained or not ((8, 6) <= capability <= (8, 9) or capability[0] == _SMALL_BLACKWELL):
        return
    width, most = max(_widths(op)), 192 if release.has_flash_2 else 64
    again = _AGAIN_FROM if release >= (2, 4) and not op.attrs.get("dropout_p") else _VERSIONS["flash"].widest
    if most < width <= again:
        yield f"training with {_of_width(_widths(op))} on {_of_capability(capability)}", f"use heads of up to {most}"


def _against_efficient(op: Op, capability: tuple[int, int]) -> Iterator[Obstacle]:
    """Why CUTLASS's memory-efficient kernels do not take it (sdp_utils.cpp, use_mem_efficient_attention)."""
    if capability[0] < _EFFICIENT_FROM:
        yield _older(capability, _EFFICIENT_FROM)
    query, widths = _tensors(op)[0], _widths(op)
    old = capability[0] < _FLASH_FROM
    if _shares_keys(op):
        yield "heads that share keys", "repeat keys and values for each head"
    if query.dtype not in (DType.FLOAT16, DType.FLOAT32) and (old or query.dtype is not DType.BFLOAT16):
        yield str(query.dtype), f"use {'' if old else 'bfloat16, '}float16 or float32"
    step = _EFFICIENT_STEPS[not old][query.dtype.sixteen_bits] if capability[0] >= _TENSOR_CORES else 1
    if any(width % step for width in widths):
        yield _of_width(widths), f"use heads of a multiple of {step}"


def _against(name: str, op: Op, capability: tuple[int, int], like: Release | None) -> Iterator[Obstacle]:
    """Why a kernel for CUDA does not take it. inductor's Triton wants Volta, and has no dropout."""
    if name == "triton" and capability[0] < _TRITON_FROM:
        yield _older(capability, _TRITON_FROM)
    if name in _FIRST:
        yield from _without(like, *_FIRST[name])
    if name in _VERSIONS:
        yield from _against_flash(op, capability, _VERSIONS[name])
        yield from _too_wide_to_train(op, capability, Release(2, 1) if name == "flash-1" else like or PRESENT)
    elif name == "cudnn":
        yield from _against_cudnn(op, capability)
    elif name == "efficient":
        yield from _against_efficient(op, capability)
    elif name == "triton" and op.attrs.get("dropout_p"):
        yield _DROPS


#: GPUs of AMD's for which there is each of its kernels.
_OF_AMD = {"aotriton": _OF_AOTRITON, "ck": _OF_CK, "aiter": _OF_AITER, "triton": _OF_AOTRITON}


def _against_on_amd(op: Op, name: str, device: Device) -> Iterator[Obstacle]:
    """Why a kernel does not take it on a GPU without CUDA."""
    if name not in _OF_AMD:
        yield f"{device.vendor}'s GPUs", "take one of NVIDIA's"
        return
    if not _is_one_of(device, _OF_AMD[name]):
        yield f"{device.compute_capability or device.architecture}", f"take a GPU of {', '.join(_OF_AMD[name])}"
    if name in ("ck", "aiter"):
        yield from _wider(op)
    if name == "aiter" and op.attrs.get("attn_bias") is not None:
        yield _MASKED


def against(op: Op, name: str, device: Device, like: Release | None = None) -> tuple[Obstacle, ...]:
    """All that keeps a kernel of BACKENDS from running an op of attention, each with what would change it.

    What `sdpa_kernel(...)` switches off where the program calls it holds here too.
    """
    if device.kind != "gpu":
        return (("a CPU", "name a GPU"),)
    if not _may_differ(op):
        return (("a call that one kernel alone takes", "call scaled_dot_product_attention"),)
    capability = device.cuda_capability
    if capability is None:
        return () if name == "math" else tuple(_against_on_amd(op, name, device))
    if name in _OF_AMD and name != "triton":
        return ((f"{device.vendor}'s GPUs", "take one of AMD's"),)
    return (*_against(name, op, capability, like), *_switched_off(name, op))


def _switched_off(name: str, op: Op) -> list[Obstacle]:
    """The obstacle that the program has switched the kernel off."""
    return [_OFF] if name in _SWITCHED and name not in op.attrs.get("backends", _SWITCHED) else []


def _of_capability(capability: tuple[int, int]) -> str:
    return "compute capability {}.{}".format(*capability)


def _older(capability: tuple[int, int], first: int = _FLASH_FROM) -> Obstacle:
    return _of_capability(capability), f"take a GPU of {first}.0 or later"


def _without(like: Release | None, first: Release, what: str) -> Iterator[Obstacle]:
    """The obstacle of a release without such a kernel."""
    if like is not None and like < first[:2]:
        yield f"PyTorch {like}", f"PyTorch {first} brings {what}"


def _wider(op: Op) -> Iterator[Obstacle]:
    """The obstacle of a format that has not 16 bits."""
    dtype = _tensors(op)[0].dtype
    if not dtype.sixteen_bits:
        yield str(dtype), "use bfloat16 or float16"


def _of_width(widths: list[int]) -> str:
    return f"heads of {' and '.join(str(width) for width in dict.fromkeys(widths))} numbers"


def obstacles(op: Op, device: Device, like: Release | None) -> Iterator[tuple[str, tuple[Obstacle, ...]]]:
    """Names in BACKENDS of what PyTorch would run before what runs, faster ones first, with all that excludes each."""
    capability, given = device.cuda_capability, op.attrs.get("backend")
    if capability is None or given is not None or not _may_differ(op):
        return
    ran, release = backend_of(op, device, like), like or PRESENT
    found: dict[str, list[Obstacle]] = {}
    if not op.kind.startswith(_SCALED):
        if ran == FLASH and PRESENT.prefers_cudnn(capability[0]):
            found["cudnn"] = [("a call of flash attention by name", "call scaled_dot_product_attention")]
    elif ran != CUDNN and PRESENT.prefers_cudnn(capability[0]):
        found["cudnn"] = [*_against_cudnn(op, capability), *_switched_off("cudnn", op)]
        found["cudnn"] += [_ORDERED] * ("order" in op.attrs)
        if not release.prefers_cudnn(capability[0]):
            by_hand = ", this one in sdpa_kernel(SDPBackend.CUDNN_ATTENTION)" * (release >= (2, 5))
            found["cudnn"].append((f"PyTorch {release}", f"{LATER} runs it by itself{by_hand}"))
    if ran == FLASH_1:
        found["flash"] = [(f"PyTorch {release}", "PyTorch 2.2 brings it")]
    elif ran in (EFFICIENT, WRITTEN_OUT):
        found["flash"] = [*_against_own_flash(op, capability, like), *_switched_off("flash", op)]
    if ran == WRITTEN_OUT:
        found["efficient"] = [*_against_efficient(op, capability), *_switched_off("efficient", op)]
    yield from ((name, tuple(against)) for name, against in found.items() if against)


def without_obstacles(op: Op, backend: str, device: Device) -> Op | None:
    """The op as this backend takes it: "cudnn" and "flash" in 16 bits, without dropout, flash without a mask;
    "efficient" before Ampere in fp16 where it has bfloat16.

    None where the GPU or the width of heads excludes it.
    """
    bias = op.attrs.get("attn_bias") if backend == "flash" else None

    def taken(tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        kept = (one for one in tensors if bias is None or one.name != bias.name)
        wide = _tensors(op)[0].dtype
        narrow = DType.FLOAT16 if backend == "efficient" else DType.BFLOAT16
        if wide is DType.FLOAT16 or (backend == "efficient" and wide is not DType.BFLOAT16):
            narrow = wide
        return tuple(replace(one, dtype=narrow) if one.dtype == wide else one for one in kept)

    capability = device.cuda_capability
    if capability is None:
        return None
    dropout = op.attrs.get("dropout_p") if backend == "efficient" else 0.0
    attrs = {**op.attrs, "backend": backend, "dropout_p": dropout} | ({} if bias is None else {"attn_bias": None})
    found = replace(op, inputs=taken(op.inputs), outputs=taken(op.outputs), attrs=MappingProxyType(attrs))
    return None if any(_against(backend, found, capability, None)) else found


def _may_differ(op: Op) -> bool:
    """Whether all kernels may run it: scaled_dot_product_attention, and flash attention of a batch without a window."""
    special = {op.attrs.get(name) for name in ("window_size_left", "window_size", "packed_keys")}
    return op.kind.startswith(_SCALED) or (op.kind.startswith(_FLASH_KINDS) and special <= {None, -1})


def _length(op: Op) -> int:
    """The dimension of tensors that holds the sequence."""
    return -3 if op.kind.startswith(_BY_NAME) else -2


def _is_one_of(device: Device, architectures: tuple[str, ...]) -> bool:
    """Whether an AMD GPU has one of these architectures."""
    return (device.compute_capability or "").startswith(architectures)


def other_backends(op: Op, device: Device, like: Release | None) -> Iterator[str]:
    """Names in BACKENDS of what a program for CUDA may call instead of what runs, for an op of attention."""
    ran = backend_of(op, device, like)
    yield from (name for name in backends_of(op, device, like) if BACKENDS[name] != ran)


def backends_of(op: Op, device: Device, like: Release | None) -> Iterator[str]:
    """Names in BACKENDS of what a program may call: by sdpa_kernel, by a package, as flex_attention."""
    yield from (name for name in BACKENDS if name != "flash-1" and not against(op, name, device, like))


def forced_backends(graph: Graph) -> tuple[str, ...]:
    """Names of the kernels that attention of the graph is told to run by, each once."""
    return tuple(dict.fromkeys(BACKENDS[str(named)].name for op in graph.ops if (named := op.attrs.get("backend"))))


def with_backend(graph: Graph, backend: str, device: Device) -> Graph:
    """The graph with this kernel of BACKENDS wherever it takes a call; remembered. Raises InputError for none."""
    key = "attention by", backend, device.name, device.compute_capability
    if key not in graph.memo:
        graph.memo[key] = _with_backend(graph, backend, device)
    return graph.memo[key]  # type: ignore[no-any-return]


def _with_backend(graph: Graph, backend: str, device: Device) -> Graph:
    attends = [priced.op for priced in graph.priced if priced.timed_as is Family.ATTENTION]
    excluded = [against(op, backend, device, graph.like) for op in attends]
    if not attends:
        return graph
    if all(excluded):
        names = sorted({name for op in attends for name in backends_of(op, device, graph.like)})
        known = f"one of {', '.join(names)}" if names else "none: there is no other kernel for this step's"
        why = "; ".join(f"{BACKENDS[backend].name} is excluded by {one}: {do}" for one, do in excluded[0])
        raise InputError(f"attention on {device.name}: expected {known}; got {backend!r}; {why}")
    taken = {id(op) for op, why in zip(attends, excluded, strict=True) if not why}

    def named(priced: PricedOp) -> PricedOp:
        if id(priced.op) not in taken:
            return priced
        attrs = MappingProxyType({**priced.op.attrs, "backend": backend})
        return replace(priced, op=replace(priced.op, attrs=attrs))

    return replace(graph, priced=tuple(map(named, graph.priced)))
