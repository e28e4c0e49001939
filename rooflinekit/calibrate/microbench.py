"""Cases of a plan as calls of PyTorch. Few modules in this folder import torch: `test_layers` lists them.

Each call works on tensors of its own: copies of a case are gone through in turn, so that together they are larger than
the last-level cache and a call finds its inputs in memory, as the time model takes it. Numbers are random: a GPU that
multiplies zeros draws less power and clocks higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from rooflinekit.calibrate.plan import Case

_MOST_COPIES = 64
_CACHES = 2.0  # how often the copies together fill the last-level cache

#: Number formats that a case can be measured in. Products in 8 bits are scaled ones, an op of their own.
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

Call = Callable[[], object]


class UnsupportedError(Exception):
    """The case has no call in PyTorch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The same op on several sets of tensors."""

    calls: tuple[Call, ...]
    bytes: int  # of one set, results aside

    def repeated(self, count: int) -> None:
        """So many calls, the sets in turn."""
        calls = self.calls
        for i in range(count):
            calls[i % len(calls)]()


def calls_of(case: Case, device: torch.device, cache_bytes: float) -> Calls:
    """The case as calls on `device`, whose last-level cache holds `cache_bytes`.

    Raises UnsupportedError for an op or format without a call, and what torch raises.
    """
    if case.dtype not in DTYPES:
        raise UnsupportedError(f"{case.dtype} is measured in {', '.join(DTYPES)} alone")
    make = next((make for ops, make in _MAKERS.items() if case.op in ops), None)
    if make is None or case.sizes.get("window"):
        raise UnsupportedError(f"{case.op} {'with a window ' if make else ''}has no call in PyTorch")
    tensors = _Tensors(dtype=DTYPES[case.dtype], device=device)
    first = make(case, tensors)
    copies = min(_MOST_COPIES, max(1, math.ceil(_CACHES * cache_bytes / max(1, tensors.bytes))))
    calls = (first, *(make(case, _Tensors(dtype=tensors.dtype, device=device)) for _ in range(copies - 1)))
    return Calls(calls=calls, bytes=tensors.bytes)


@dataclass(slots=True, kw_only=True)
class _Tensors:
    """Makes tensors of one format on one device, and counts their bytes."""

    dtype: torch.dtype
    device: torch.device
    bytes: int = 0

    def __call__(self, *shape: int) -> torch.Tensor:
        made = torch.randn(shape, dtype=self.dtype, device=self.device)
        self.bytes += made.numel() * made.element_size()
        return made


def _product(case: Case, tensor: _Tensors) -> Call:
    m, n, k = (case.sizes[name] for name in "mnk")
    b = case.sizes.get("b", 1)
    if case.op == "linear":
        x, weight, bias = tensor(b * m, k), tensor(n, k), tensor(n)
        return lambda: functional.linear(x, weight, bias)
    if case.op == "bmm" or b > 1:
        left, right = tensor(b, m, k), tensor(b, k, n)
        return lambda: torch.bmm(left, right)
    first, second = tensor(m, k), tensor(k, n)
    return lambda: torch.mm(first, second)


#: Of two tensors; with the suffix u, of a tensor and a number.
_BINARY: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
}
_UNARY: dict[str, Callable[..., torch.Tensor]] = {"relu": torch.relu, "gelu": functional.gelu, "tanh": torch.tanh}
_NUMBER = 1.5


def _elementwise(case: Case, tensor: _Tensors) -> Call:
    shape = case.sizes["rows"], case.sizes["cols"]
    x = tensor(*shape).abs_()  # powers of negative numbers are none
    if case.op in _UNARY:
        unary = _UNARY[case.op]
        return lambda: unary(x)
    binary = _BINARY[case.op.removesuffix("u")]
    if case.op not in _BINARY:
        return lambda: binary(x, _NUMBER)
    y = tensor(*shape).abs_().add_(1)
    return lambda: binary(x, y)


def _rows(case: Case, tensor: _Tensors) -> Call:
    rows, cols = case.sizes["rows"], case.sizes["cols"]
    x = tensor(rows, cols)
    if case.op == "softmax":
        return lambda: torch.softmax(x, -1)
    gain, shift = tensor(cols), tensor(cols)
    return lambda: functional.layer_norm(x, (cols,), gain, shift)


def _convolution(case: Case, tensor: _Tensors) -> Call:
    size = case.sizes
    x, weight = (
        tensor(size["b"], size["c_in"], size["h"], size["w"]),
        tensor(size["c_out"], size["c_in"], size["r"], size["s"]),
    )
    stride = [size.get("stride_h", 0) or 1, size.get("stride_w", 0) or 1]
    padding = [size.get("pad_h", 0), size.get("pad_w", 0)]
    if case.op == "conv_fwd":
        return lambda: torch.conv2d(x, weight, None, stride, padding)
    height, width = (
        (size[edge] + 2 * pad - size[kernel]) // step + 1
        for edge, kernel, pad, step in zip("hw", "rs", padding, stride, strict=True)
    )
    gradient = tensor(size["b"], size["c_out"], height, width)
    wanted = [case.op == "conv_bwd_data", case.op == "conv_bwd_weight", False]
    backward = torch.ops.aten.convolution_backward
    return lambda: backward(gradient, x, weight, None, stride, padding, [1, 1], False, [0, 0], 1, wanted)


def _attention(case: Case, tensor: _Tensors) -> Call:
    b, s, t, heads, kv_heads, d = (case.sizes[name] for name in ("b", "s", "t", "heads", "kv_heads", "d"))
    query, key, value = tensor(b, heads, s, d), tensor(b, kv_heads, t, d), tensor(b, kv_heads, t, d)
    attend = functional.scaled_dot_product_attention
    # Queries are the last s of t positions: a single one sees all keys, s = t is PyTorch's own causal mask.
    causal = bool(case.sizes.get("causal")) and s > 1
    mask = causal_lower_right(s, t) if causal and s < t else None
    grouped = heads != kv_heads
    return lambda: attend(query, key, value, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=grouped)


_MAKERS: dict[tuple[str, ...], Callable[[Case, _Tensors], Call]] = {
    ("mm", "linear", "bmm"): _product,
    (*_BINARY, *(f"{op}u" for op in _BINARY), *_UNARY): _elementwise,
    ("softmax", "layernorm"): _rows,
    ("conv_fwd", "conv_bwd_data", "conv_bwd_weight"): _convolution,
    ("attention",): _attention,
}
