"""What a GPU would run, where tracing on fake CPU tensors would take another path.

Fake tensors pretend to lie on the CPU, and there attention falls apart into matrix products and a softmax, dropout
into four kernels, and a recurrent layer into a loop. The replacements stand above autograd, so that backward follows
the same choice.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import flex_attention
from torch.overrides import TorchFunctionMode

from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import TensorSpec
from rooflinekit.tracing import autocast, recurrent, signals
from rooflinekit.tracing.finite import note_answer
from rooflinekit.tracing.packages import xformers_attention
from rooflinekit.tracing.shares import note_one_hot
from rooflinekit.tracing.tensors import RESAMPLING, expression

# Attention as a GPU runs it: which fused kernel CUDA's dispatcher takes, and what it was before there was one.


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """As CUDA's dispatcher chooses: flash for half precision without a mask where all heads are equally wide, else
    memory-efficient, else unfused.

    Which of the fused two a given GPU really has (flash needs compute capability 8.0) changes neither FLOP nor bytes.
    """
    if query.is_nested:
        return NotImplemented
    query, key, value, attn_mask = autocast.lowered(query, key, value, attn_mask)
    with autocast.switched_off():
        return _fused_or_not(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


#: As PyTorch says it.
_NO_KERNEL = (
    "No available kernel. Aborting execution. (scaled_dot_product_attention: sdpa_kernel(...) leaves none on "
    "that takes this mask, format and shape; allow SDPBackend.MATH, or EFFICIENT_ATTENTION for masks)"
)


def _fused_or_not(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    backends: Any = torch.backends.cuda  # as torch.nn.attention.sdpa_kernel left them
    half = query.dtype in (torch.float16, torch.bfloat16)
    fusible = _alike(query, key, value, grouped=enable_gqa)
    flash = half and attn_mask is None and expression(query.shape[3]) == expression(value.shape[3])
    if fusible and flash and backends.flash_sdp_enabled():
        return _first(
            torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)
        )
    if not fusible or not (backends.mem_efficient_sdp_enabled() or (half and backends.cudnn_sdp_enabled())):
        if not backends.math_sdp_enabled():
            raise RuntimeError(_NO_KERNEL)
        unfused: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
        return unfused
    mask = None if attn_mask is None else _additive(attn_mask, query, key)
    training = query.requires_grad or key.requires_grad
    if backends.mem_efficient_sdp_enabled():
        return _first(
            torch.ops.aten._scaled_dot_product_efficient_attention(
                query, key, value, mask, training, dropout_p, is_causal, scale=scale
            )
        )
    return _first(
        torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, training, dropout_p, is_causal, scale=scale
        )
    )


#: "1" takes cuDNN's attention after flash and memory-efficient, of which one runs.
_LATER_CUDNN = "TORCH_CUDNN_SDPA_DEPRIORITIZED"


class SwitchedOn:
    """Which fused kernels may run where a program calls attention, in `sdpa_kernel(...)` or by the environment.

    The gradient, for which autograd is asked later, runs by what its forward pass ran by.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}

    def attrs(self, kind: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, Any]:
        """`backends` of an op: those that are on, nothing where all are; `prefers`: "ck" where that is asked for."""
        if kind.endswith("_backward"):
            return next((self._known[one.name] for one in inputs if one.name in self._known), {})
        backends: Any = torch.backends.cuda
        switches = {
            "flash": backends.flash_sdp_enabled(),
            "cudnn": backends.cudnn_sdp_enabled() and os.environ.get(_LATER_CUDNN) != "1",
            "efficient": backends.mem_efficient_sdp_enabled(),
            "math": backends.math_sdp_enabled(),
        }
        found: dict[str, Any] = {}
        if not all(switches.values()):
            found["backends"] = tuple(name for name, on in switches.items() if on)
        if _prefers_ck():
            found["prefers"] = "ck"
        self._known |= dict.fromkeys((one.name for one in outputs), found)
        return found


def _prefers_ck() -> bool:
    """Whether torch.backends.cuda.preferred_rocm_fa_library("ck") was called, or TORCH_ROCM_FA_PREFER_CK is set."""
    preferred = getattr(torch.backends.cuda, "preferred_rocm_fa_library", None)  # from 2.6 on
    return os.environ.get("TORCH_ROCM_FA_PREFER_CK") == "1" or (preferred is not None and preferred().name == "Ck")


def _alike(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, grouped: bool) -> bool:
    """Whether they are as fused kernels want them: [batch, heads, …] each, and nothing to be broadcast."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    pairs = [(query.shape[0], other.shape[0]) for other in (key, value)]
    if not grouped:
        pairs += [(query.shape[1], other.shape[1]) for other in (key, value)]
    return all(map(_may_be_equal, pairs))


def _may_be_equal(sizes: tuple[Any, Any]) -> bool:
    """Not where one is 1 or both are numbers; of two names that differ torch asks itself that they are equal."""
    a, b = map(expression, sizes)
    return bool(a == b or not (1 in (a, b) or all(isinstance(size, int) for size in (a, b))))


def written_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention as models wrote it before there was a function: scale, product, mask, softmax, dropout, product."""
    if query.is_nested:
        return NotImplemented
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        kept = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(kept.logical_not(), float("-inf"))
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return functional.dropout(scores.softmax(dim=-1), dropout_p, dropout_p > 0.0) @ value


def _additive(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask as fused kernels take it: numbers to add, expanded to [batch, heads, s, t]."""
    if mask.dtype == torch.bool:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        mask = zeros.masked_fill_(mask.logical_not(), float("-inf"))
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _first(outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return outputs[0]


_FUSED = torch.ops.aten._fused_rms_norm.default
_HERE = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)


def rms_norm(
    x: torch.Tensor, normalized_shape: Sequence[Any], weight: torch.Tensor | None = None, eps: float | None = None
) -> Any:
    """One kernel, but for complex numbers, images with channels last, and a weight of another format."""
    x, weight = autocast.widened(x, weight)
    images = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    apart = images is not None and not x.is_contiguous() and x.is_contiguous(memory_format=images)
    if apart or x.is_complex() or (weight is not None and weight.dtype is not x.dtype) or _transformed():
        return NotImplemented
    return _Normalized.apply(x, weight, list(normalized_shape), eps)  # type: ignore[no-untyped-call]


def _transformed() -> bool:
    """Whether functorch looks through what it calls, and would not through an operator of ours."""
    return torch._C._functorch.peek_interpreter_stack() is not None


class _Normalized(torch.autograd.Function):
    """The operator with its gradient, which torch has where there is CUDA only."""

    @staticmethod
    def forward(
        context: Any, x: torch.Tensor, weight: torch.Tensor | None, shape: list[Any], eps: float | None
    ) -> torch.Tensor:
        """Keeps what CUDA's keeps: the input, the weight, and 1/σ of each row."""
        y, inverse = _FUSED.redispatch(_HERE, x, shape, weight, eps)
        context.save_for_backward(x, weight, inverse)
        context.shape = shape
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(context: Any, *grads: torch.Tensor) -> Any:
        """Gradients of the input and of the weight, each where it is wanted."""
        x, weight, inverse = context.saved_tensors
        wanted = list(context.needs_input_grad[:2])
        of_x, of_weight = torch.ops.aten._fused_rms_norm_backward(grads[0], x, context.shape, inverse, weight, wanted)
        return of_x, of_weight, None, None


@contextmanager
def gpu_view(elements: Callable[[str, Any], Any], like: Release | None = None) -> Iterator[None]:
    """Replaces functions that CPU tracing would decompose by the operators that CUDA dispatches.

    elements: says how many of a number of elements data decide that there are.
    like: the release that it runs on; None for the present one.
    """
    replaced = _REPLACED | {torch._VF._pack_padded_sequence: functools.partial(recurrent.pack, elements)}
    if like is not None and not like.fuses_attention:
        replaced[functional.scaled_dot_product_attention] = written_out
    if like is not None and not like.fuses_rms_norm:
        replaced = {name: other for name, other in replaced.items() if other is not rms_norm}
    # A mode is switched off inside the function that it was asked about. nn.MultiheadAttention and F.interpolate call
    # these from inside such a function: there only the names that they look up reach them.
    places: list[tuple[Any, str]] = [
        (functional, name) for name in ("scaled_dot_product_attention", "dropout", "softmax", "log_softmax")
    ]
    places += [
        (torch._VF, "stft"),
        (torch, "istft"),
        (flex_attention, "_validate_device"),
        (torch, "ctc_loss"),
        *((torch._C._nn, name) for name in RESAMPLING),
    ]
    originals = [(place, name, getattr(place, name)) for place, name in places]
    boxes = sys.modules.get("torchvision.ops.boxes")
    if boxes is not None:  # on the CPU it goes through the classes one by one
        originals.append((boxes, "_batched_nms_vanilla", boxes._batched_nms_vanilla))
        replaced = replaced | {boxes._batched_nms_vanilla: boxes._batched_nms_coordinate_trick}
    if fmha := sys.modules.get("xformers.ops.fmha"):  # which asks the GPU at hand what it can run
        for name in ("_memory_efficient_attention", "_memory_efficient_attention_forward"):
            originals.append((fmha, name, getattr(fmha, name)))
            replaced = replaced | {getattr(fmha, name): xformers_attention}
    try:
        for place, name, original in originals:
            setattr(place, name, _here(functools.partial(_called, replaced, original), original))
        with autocast.cuda_autocast(), _GpuView(replaced):
            yield
    finally:
        for place, name, original in originals:
            setattr(place, name, original)


def _here(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """The replacement in this thread, the original in every other: they may run models meanwhile."""
    owner = threading.get_ident()

    def either(*args: Any, **kwargs: Any) -> Any:
        return (replacement if threading.get_ident() == owner else original)(*args, **kwargs)

    return either


_Replaced = dict[Callable[..., Any], Callable[..., Any]]


class _GpuView(TorchFunctionMode):
    def __init__(self, replaced: _Replaced) -> None:
        super().__init__()
        self._replaced = replaced

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, kwargs = _placed(function, args, kwargs or {})
        output = _called(self._replaced, function, *args, **kwargs)
        note_answer(function, args, output)
        return output


def _placed(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments of a call with the place where fake tensors lie for the GPU that is meant."""
    if function in _MOVING:
        args = [_PLACE if _is_gpu(arg) else arg for arg in args]
    device = kwargs.get("device")
    if device is not None and _is_gpu(device):
        kwargs = {**kwargs, "device": _PLACE}
    return args, kwargs


def _is_gpu(device: Any) -> bool:
    """Whether it names a GPU: "cuda:1", torch.device("cuda"), or a number."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


def _cuda(tensor: torch.Tensor, *options: Any, **named: Any) -> torch.Tensor:
    """It lies there already."""
    return tensor


_PLACE = "cpu"
_MOVING = {torch.Tensor.to}


def _called(replaced: _Replaced, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What stands in the place of the function, or the function itself."""
    replacement = replaced.get(function)
    output = NotImplemented if replacement is None else replacement(*args, **kwargs)
    return function(*args, **kwargs) if output is NotImplemented else output


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """CUDA has one kernel that writes the output and the mask."""
    if not training or p == 0.0:
        return input
    if inplace or p == 1.0:
        return torch.dropout_(input, p, training) if inplace else NotImplemented
    output: torch.Tensor = torch.ops.aten.native_dropout(input, p, True)[0]
    return output


def _softmax(name: str, x: torch.Tensor, dim: int | None = None, *options: Any, **named: Any) -> Any:
    """CUDA has one kernel that reads half precision and writes float32."""
    if not (isinstance(dim, int) and x.dtype is torch.float16 and named.get("dtype") is torch.float32):
        return NotImplemented
    return getattr(torch.ops.aten, name)(x, dim, True)


def _left_aligned(x: torch.Tensor, mask: torch.Tensor) -> bool:
    """No: an encoder would drop the padding, and how much there is stands in the mask's numbers."""
    return False


def _resample(name: str, x: torch.Tensor, size: Sequence[Any] | None, *options: Any) -> torch.Tensor:
    """As PyTorch, whose way from scale factors to sizes would force every open size to its example."""
    *corners, scales = options  # align_corners stands before the scale factors where there is such a thing
    if size is None:
        size = [_scaled(edge, scale) for edge, scale in zip(x.shape[2:], scales, strict=True)]
    given = scales if scales is not None else [None] * len(size)
    output: torch.Tensor = getattr(torch.ops.aten, name).default(x, size, *corners, *given)
    return output


def _scaled(edge: Any, scale: float) -> Any:
    """floor(edge · scale), in whole numbers where the scale or its inverse is one."""
    if scale == int(scale):
        return edge * int(scale)
    inverse = 1 / scale
    return edge // int(inverse) if inverse == int(inverse) else torch.sym_int(edge * scale)  # type: ignore[no-untyped-call]


def _any_device(*tensors: torch.Tensor) -> None:
    """On CUDA flexible attention has a backward pass."""


def _one_hot(indices: torch.Tensor, num_classes: int = -1) -> Any:
    """Zeros, and a one in each row; the CPU compares with all classes."""
    if num_classes < 0:
        return NotImplemented
    found = torch.zeros(*indices.shape, num_classes, dtype=torch.int64, device=indices.device)
    found.scatter_(-1, indices.unsqueeze(-1), 1)
    note_one_hot(found, num_classes)
    return found


_REPLACED: _Replaced = {
    functional.scaled_dot_product_attention: attention,
    functional.dropout: _dropout,
    torch.dropout: _dropout,
    **{
        getattr(place, name): functools.partial(_softmax, f"_{name}")
        for place in (functional, torch, torch.Tensor)
        for name in ("softmax", "log_softmax")
    },
    **{getattr(torch._C._nn, name): functools.partial(_resample, name) for name in RESAMPLING},
    torch.Tensor.cuda: _cuda,
    functional.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
    torch.ctc_loss: signals.ctc_loss,
    functional.one_hot: _one_hot,
    torch._VF.stft: signals.stft,  # type: ignore[attr-defined]
    torch._VF.istft: signals.istft,
    torch.istft: signals.istft,
    flex_attention._validate_device: _any_device,
    torch._nested_tensor_from_mask_left_aligned: _left_aligned,
    torch.lstm: recurrent.lstm,
    torch._VF._pad_packed_sequence: recurrent.pad,
    torch.lstm_cell: recurrent.lstm_cell,
    torch.gru_cell: recurrent.gru_cell,
    torch.rnn_tanh_cell: recurrent.rnn_tanh_cell,
    torch.rnn_relu_cell: recurrent.rnn_relu_cell,
    torch.gru: recurrent.gru,
    torch.rnn_tanh: recurrent.rnn_tanh,
    torch.rnn_relu: recurrent.rnn_relu,
}
