"""`torch.autocast` regions as CUDA would run them.

Which operators take which format is not the same on a GPU and on the CPU, where fake tensors stand. For the length of a
trace the operators' kernels for the CPU's autocast are replaced by such as follow CUDA's lists, those of
`ATen/autocast_mode.h` of torch 2.13. They stand above autograd: gradients come back through the casts.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp.autocast_mode import autocast

from rooflinekit.tracing.surroundings import standing_in
from rooflinekit.tracing.tensors import FAKE_DEVICE, tensors_in

#: Where fake tensors stand, and the device that is meant. A model that asks a tensor for its device is told the first.
_DEVICES = _HERE, _MEANT = FAKE_DEVICE, "cuda"
_KEY = "AutocastCPU"

#: Called with all floating-point arguments in the region's format.
_LOWER = """
    _convolution _convolution.deprecated convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear
    addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
"""

#: Called with all floating-point arguments in float32.
_FULL = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim
    nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
    dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
    _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
"""

#: Called with dtype=float32 where none is given: the kernel converts as it reads.
_FULL_RESULT = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
"""

#: Likewise, by the overload that has such an argument.
_FULL_NORM = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}

#: Called with all floating-point arguments in float32 if one of them has it, else in the region's format.
_WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
"""

Kernel = Callable[..., Any]


def region_format() -> torch.dtype | None:
    """The lower precision of the region that the caller is in; None outside of every one."""
    return torch.get_autocast_dtype(_HERE) if torch.is_autocast_enabled(_HERE) else None


def switched_off() -> torch._C._ExcludeDispatchKeyGuard:
    """Operators called within it take what they are given, as those that a kernel of a region calls."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64


#: Conversions of weights, by identity, until the outermost region ends: the weight too, so that its identity stays.
_KNOWN: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


def _converted(values: Any, to: torch.dtype, cached: bool = True) -> Any:
    """Tensors among arguments, and in lists of them, in another format."""
    if isinstance(values, list | tuple):
        return [_converted(value, to, cached) for value in values]
    if isinstance(values, dict):
        return {name: _converted(value, to, cached) for name, value in values.items()}
    if not _eligible(values) or values.dtype is to:
        return values
    weight = values.requires_grad and values.is_leaf and values.dtype is torch.float32 and not values._is_view()
    if not (cached and weight and to is torch.get_autocast_dtype(_HERE) and torch.is_autocast_cache_enabled()):
        return values.to(to)
    if id(values) not in _KNOWN:
        _KNOWN[id(values)] = values, values.to(to)
    return _KNOWN[id(values)][1]


def lowered(*values: Any) -> Any:
    """The values, tensors in the format of the region; as they are outside of every region."""
    to = region_format()
    return values if to is None else _converted(values, to)


def widened(*values: Any) -> Any:
    """The values, tensors in float32 within a region; as they are outside of every region."""
    return values if region_format() is None else _converted(values, torch.float32)


# --- what stands instead of the operators' kernels -------------------------------------------------------


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _kernel(name: str, call: Callable[[Any, Sequence[Any], dict[str, Any]], Any]) -> Kernel:
    operator = _operator(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with switched_off():
            return call(operator, args, kwargs)

    return kernel


def _cast(
    operator: Any, args: Any, kwargs: dict[str, Any], to: torch.dtype | None = None, *, cached: bool = True
) -> Any:
    """Called with all in one format, by default the region's."""
    to = to or torch.get_autocast_dtype(_HERE)
    return operator(*_converted(args, to, cached), **_converted(kwargs, to, cached))


def _full_result(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if not _eligible(args[0]):
        return operator(*args, **kwargs)
    place = [argument.name for argument in operator._schema.arguments].index("dtype")
    given = args[place] if place < len(args) else kwargs.get("dtype")
    kwargs = {**kwargs, "dtype": torch.float32} if given is None else kwargs
    if operator in _HALF_TO_FLOAT and args[0].dtype is torch.float16 and kwargs.get("dtype") is torch.float32:
        return _HALF_TO_FLOAT[operator](*args[:2], True)
    return operator(*(args[:place] if given is None else args), **kwargs)


def _full_norm(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if not _eligible(args[0]):
        return operator(*args, **kwargs)
    name = operator._schema.name.partition("::")[2] + "." + operator._schema.overload_name
    order = args[1] if len(args) > 1 else kwargs.pop("p", 2)
    return _operator(_FULL_NORM[name])(args[0], order, *args[2:], **kwargs, dtype=torch.float32)


def _widest(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    full = any(tensor.dtype is torch.float32 for tensor in tensors_in((*args, *kwargs.values())))
    return _cast(operator, args, kwargs, torch.float32 if full else None)


def _refuse(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy is unsafe to autocast, and CUDA refuses it: use "
        "binary_cross_entropy_with_logits, or disable autocast around it"
    )


#: Of half precision in, float32 out CUDA has one kernel.
_HALF_TO_FLOAT = {
    torch.ops.aten.softmax.int: torch.ops.aten._softmax.default,
    torch.ops.aten.log_softmax.int: torch.ops.aten._log_softmax.default,
}


@functools.cache
def _kernels() -> dict[str, Kernel]:
    """Operator → what it does in a region; the CPU's further entries do nothing special on CUDA."""
    policies: tuple[tuple[str, Callable[..., Any]], ...] = (
        (_LOWER, _cast),
        (_FULL, functools.partial(_cast, to=torch.float32)),
        (_FULL_RESULT, _full_result),
        (" ".join(_FULL_NORM), _full_norm),
        (_WIDEST, _widest),
        # of recurrent layers all weights are put into one piece of memory, at every call
        ("_cudnn_rnn", functools.partial(_cast, cached=False)),
        ("binary_cross_entropy", _refuse),
    )
    kernels = {name: _kernel(name, policy) for names, policy in policies for name in names.split()}
    of_cpu = (name.partition("::")[2] for name in torch._C._dispatch_get_registrations_for_dispatch_key(_KEY))
    return {**dict.fromkeys(of_cpu, torch.library.fallthrough_kernel), **kernels}


def _registered() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL", _KEY)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced is the purpose
        for name, kernel in _kernels().items():
            library.impl(name, kernel, _KEY, allow_override=True)  # type: ignore[no-untyped-call]
    return library


# --- regions --------------------------------------------------------------------------------------------------


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """Within it, autocast regions for CUDA, or for the device of the fake tensors, do what CUDA's would."""
    regions: Any = autocast
    init, enter, leave, clear = regions.__init__, regions.__enter__, regions.__exit__, torch.clear_autocast_cache
    library: list[torch.library.Library] = []
    outer = [_state()]

    def described(region: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
        # A build of torch without CUDA would switch the region off.
        if device_type in _DEVICES:
            device_type, dtype = _HERE, dtype or torch.get_autocast_dtype(_MEANT)
        init(region, device_type, dtype, *args, **kwargs)

    def entered(region: Any) -> Any:
        outer.append(_state())
        result = enter(region)
        if region.device in _DEVICES:
            if region._enabled and not library:
                library.append(_registered())
            _set(dict.fromkeys(_DEVICES, (region._enabled, region.fast_dtype)))  # models ask for CUDA's
        return result

    def left(region: Any, *error: Any) -> Any:
        result = leave(region, *error)
        _set(outer.pop())
        return result

    def cleared() -> None:
        _KNOWN.clear()
        clear()

    methods = {"__init__": described, "__enter__": entered, "__exit__": left}
    stand_ins = [(regions, name, method) for name, method in methods.items()]
    with standing_in([*stand_ins, (torch, "clear_autocast_cache", cleared)]):
        _set({device: (False, dtype) for device, (_, dtype) in outer[0].items()})
        try:
            yield
        finally:
            _set(outer[0])
            _KNOWN.clear()
            for one in library:
                one._destroy()  # type: ignore[no-untyped-call]


_State = dict[str, tuple[bool, torch.dtype]]


def _state() -> _State:
    """Of each device, whether it is in a region, and the region's format."""
    return {device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES}


def _set(state: _State) -> None:
    for device, (enabled, dtype) in state.items():
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
