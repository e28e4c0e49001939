"""What a GPU would run, where tracing on fake CPU tensors would take another path.

Fake tensors pretend to lie on the CPU, and there attention falls apart into matrix products and a softmax, dropout
into four kernels, and a recurrent layer into a loop. The replacements stand above autograd, so that backward follows
the same choice.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import bias, flex_attention
from torch.overrides import TorchFunctionMode

from rooflinekit.ir.inputs import Release
from rooflinekit.tracing import autocast, sequences
from rooflinekit.tracing.attention import attention, plain_bias, written_out, xformers_attention
from rooflinekit.tracing.known import Share, note_answer, tell
from rooflinekit.tracing.surroundings import in_this_thread, standing_in
from rooflinekit.tracing.symbols import channels_last_of
from rooflinekit.tracing.tensors import FAKE_DEVICE, RESAMPLING

_FUSED = torch.ops.aten._fused_rms_norm.default
_HERE = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)


def rms_norm(
    x: torch.Tensor, normalized_shape: Sequence[Any], weight: torch.Tensor | None = None, eps: float | None = None
) -> Any:
    """One kernel, but for complex numbers, images with channels last, and a weight of another format."""
    x, weight = autocast.widened(x, weight)
    apart = not x.is_contiguous() and x.is_contiguous(memory_format=channels_last_of(x.dim()))
    # functorch looks through what it calls, and would not through an operator of ours
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    if apart or x.is_complex() or (weight is not None and weight.dtype is not x.dtype) or transformed:
        return NotImplemented
    return _Normalized.apply(x, weight, list(normalized_shape), eps)  # type: ignore[no-untyped-call]


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
    replaced = _REPLACED | {torch._VF._pack_padded_sequence: functools.partial(sequences.pack, elements)}
    if like is not None and not like.fuses_attention:
        replaced[functional.scaled_dot_product_attention] = written_out
    if like is not None and not like.widens_attention:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # put back with the process's settings
    if like is not None and not like.fuses_rms_norm:
        replaced = {name: other for name, other in replaced.items() if other is not rms_norm}
    # A mode is switched off inside the function that it was asked about. nn.MultiheadAttention and F.interpolate call
    # these from inside such a function: there only the names that they look up reach them.
    places: list[tuple[Any, str]] = [
        (functional, name) for name in ("scaled_dot_product_attention", "dropout", "softmax", "log_softmax")
    ]
    places += [(torch._VF, "stft"), (torch, "istft"), (flex_attention, "_validate_device"), (torch, "ctc_loss")]
    places += [(torch._C._nn, name) for name in RESAMPLING]
    if boxes := sys.modules.get("torchvision.ops.boxes"):  # on the CPU it goes through the classes one by one
        places.append((boxes, "_batched_nms_vanilla"))
        replaced[boxes._batched_nms_vanilla] = boxes._batched_nms_coordinate_trick
    if fmha := sys.modules.get("xformers.ops.fmha"):  # which asks the GPU at hand what it can run
        for name in ("_memory_efficient_attention", "_memory_efficient_attention_forward"):
            places.append((fmha, name))
            replaced[getattr(fmha, name)] = xformers_attention
    found = [(place, name, getattr(place, name)) for place, name in places]
    stand_ins = [
        (place, name, in_this_thread(real, functools.partial(_called, replaced, real))) for place, name, real in found
    ]
    stand_ins.append((bias.CausalBias, "__new__", in_this_thread(torch.Tensor.__new__, plain_bias)))
    with standing_in(stand_ins), autocast.cuda_autocast(), _GpuView(replaced):
        yield


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
    if function is torch.Tensor.to:
        args = [FAKE_DEVICE if _is_gpu(arg) else arg for arg in args]
    device = kwargs.get("device")
    if device is not None and _is_gpu(device):
        kwargs = {**kwargs, "device": FAKE_DEVICE}
    return args, kwargs


def _is_gpu(device: Any) -> bool:
    """Whether it names a GPU: "cuda:1", torch.device("cuda"), or a number."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, int):
        return not isinstance(device, bool)
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


def _called(replaced: _Replaced, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The replacement of a function, or the function itself."""
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


def _resample(name: str, x: torch.Tensor, size: Sequence[Any] | None, *options: Any) -> torch.Tensor:
    """PyTorch's resampling; its own way from scale factors to sizes would force every open size to its example."""
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


def _one_hot(indices: torch.Tensor, num_classes: int = -1) -> Any:
    """Zeros, and a one in each row; the CPU compares with all classes."""
    if num_classes < 0:
        return NotImplemented
    found = torch.zeros(*indices.shape, num_classes, dtype=torch.int64, device=indices.device)
    found.scatter_(-1, indices.unsqueeze(-1), 1)
    tell(found, share=Share(1, num_classes, found.dim() - 1))
    return found


def _linspace(start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """linspace with an open number of steps, which torch would force to a number."""
    plain = not any(isinstance(one, torch.Tensor | complex) for one in (start, end, options.get("out")))
    if not (plain and isinstance(steps, torch.SymInt)) or options.get("requires_grad"):
        return NotImplemented
    return torch.ops.rooflinekit.linspace(start, end, steps, dtype=dtype or torch.get_default_dtype())


def _affine_grid(theta: torch.Tensor, size: Any, align_corners: bool | None = None) -> Any:
    """Without questions about the smallest of the sizes, where some are open."""
    if not any(isinstance(one, torch.SymInt) for one in size):
        return NotImplemented
    return torch.affine_grid_generator(theta, list(size), bool(align_corners))


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
    torch.Tensor.cuda: lambda tensor, *options, **named: tensor,  # it lies there already
    functional.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
    torch.ctc_loss: sequences.ctc_loss,
    functional.one_hot: _one_hot,
    functional.affine_grid: _affine_grid,
    torch.linspace: _linspace,
    torch._VF.stft: sequences.stft,  # type: ignore[attr-defined]
    torch._VF.istft: sequences.istft,
    torch.istft: sequences.istft,
    flex_attention._validate_device: lambda *tensors: None,  # on CUDA it has a backward pass
    # an encoder would drop the padding, and how much there is stands in the mask's numbers
    torch._nested_tensor_from_mask_left_aligned: lambda x, mask: False,
    torch.lstm: sequences.lstm,
    torch._VF._pad_packed_sequence: sequences.pad,
    torch.lstm_cell: sequences.lstm_cell,
    torch.gru_cell: sequences.gru_cell,
    torch.rnn_tanh_cell: sequences.rnn_tanh_cell,
    torch.rnn_relu_cell: sequences.rnn_relu_cell,
    torch.gru: sequences.gru,
    torch.rnn_tanh: sequences.rnn_tanh,
    torch.rnn_relu: sequences.rnn_relu,
}
