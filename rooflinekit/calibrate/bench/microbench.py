"""Cases of a plan as calls of PyTorch.

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

from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.campaigns.operators import CASTS, GATHERS, REDUCTIONS, STORED, STREAMS

_MOST_COPIES = 64
_DRAWN = 2**20  # random numbers of a case, which then repeat: drawing takes longer than many a measurement
_CACHES = 2.0  # how often the copies together fill the last-level cache

#: Number formats that a case can be measured in. tf32 is how a GPU multiplies fp32; fp8 is multiplied alone.
DTYPES = {name: getattr(torch, STORED[name].value) for name in ("fp64", "fp32", "tf32", "fp16", "bf16")}

Call = Callable[[], object]


class UnsupportedError(Exception):
    """The case has no call in PyTorch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The same op on several sets of tensors."""

    calls: tuple[Call, ...]
    bytes: int  # of one set, results aside
    cache_bytes: float = 0.0  # of the device

    @property
    def state(self) -> dict[str, float]:
        """What a case says about caches: how many sets there are, of how many bytes, and the share that stays in."""
        share = min(1.0, self.cache_bytes / max(1, self.bytes * len(self.calls)))
        return {"copies": len(self.calls), "set_bytes": self.bytes, "cached": round(share, 3)}

    def repeated(self, count: int) -> None:
        """`count` calls, which take the sets of tensors in turn."""
        calls = self.calls
        for i in range(count):
            calls[i % len(calls)]()


def calls_of(case: Case, device: torch.device, cache_bytes: float) -> Calls:
    """The case as calls on `device` with such a last-level cache. Raises UnsupportedError, and what torch raises."""
    if case.dtype not in DTYPES and (case.dtype, case.op) != ("fp8", "mm"):
        raise UnsupportedError(f"{case.op} in {case.dtype} has no call in PyTorch")
    if case.dtype == "tf32" and device.type == "cpu":
        raise UnsupportedError("tf32 is an arithmetic of GPUs")
    make = next((make for ops, make in _MAKERS.items() if case.op in ops), None)
    if make is None or case.sizes.get("window"):
        raise UnsupportedError(f"{case.op} {'with a window ' if make else ''}has no call in PyTorch")
    tensors = _Tensors(dtype=DTYPES.get(case.dtype, torch.float32), device=device)
    first = make(case, tensors)
    copies = min(_MOST_COPIES, max(1, math.ceil(_CACHES * cache_bytes / max(1, tensors.bytes))))
    copies = 1 if case.sizes.get("warm") else copies
    size = tensors.bytes
    calls = (first, *(make(case, tensors) for _ in range(copies - 1)))
    return Calls(calls=calls, bytes=size, cache_bytes=cache_bytes)


@dataclass(slots=True, kw_only=True)
class _Tensors:
    """Makes tensors of one format on one device, and counts their bytes."""

    dtype: torch.dtype
    device: torch.device
    bytes: int = 0
    drawn: torch.Tensor | None = None
    taken: int = 0  # how many of them, in turn

    def __call__(self, *shape: int) -> torch.Tensor:
        if self.drawn is None:
            self.drawn = torch.randn(_DRAWN, dtype=self.dtype, device=self.device)
        made = torch.empty(shape, dtype=self.dtype, device=self.device)
        flat, filled = made.view(-1), 0
        while filled < made.numel():
            part = self.drawn[self.taken : self.taken + made.numel() - filled]
            flat[filled : filled + part.numel()] = part
            filled += part.numel()
            self.taken = (self.taken + part.numel()) % _DRAWN
        self.bytes += made.numel() * made.element_size()
        return made

    def index(self, count: int, below: int) -> torch.Tensor:
        """So many whole numbers from 0 on."""
        self.bytes += 8 * count
        return torch.randint(below, (count,), device=self.device)


def _product(case: Case, tensor: _Tensors) -> Call:
    m, n, k = (case.sizes[name] for name in "mnk")
    b = case.sizes.get("b", 1)
    if case.dtype == "fp8":
        return _scaled_product(m, n, k, tensor)
    if case.op == "linear":
        x, weight, bias = tensor(b * m, k), tensor(n, k), tensor(n)
        return lambda: functional.linear(x, weight, bias)
    if case.op == "bmm" or b > 1:
        left, right = tensor(b, m, k), tensor(b, k, n)
        return lambda: torch.bmm(left, right)
    first, second = tensor(m, k), tensor(k, n)
    return lambda: torch.mm(first, second)


def _scaled_product(m: int, n: int, k: int, tensor: _Tensors) -> Call:
    """8 bits in, 16 bits out. The second factor is laid out by columns, as the kernels want it."""
    before = tensor.bytes
    left, right = (tensor(rows, k).to(torch.float8_e4m3fn) for rows in (m, n))
    tensor.bytes = before + left.nbytes + right.nbytes
    scale, columns = torch.ones((), device=tensor.device), right.t()
    return lambda: torch._scaled_mm(left, columns, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


#: Of two tensors; with the suffix u, of a tensor and a number.
_BINARY: dict[str, Callable[..., torch.Tensor]] = {name: getattr(torch, name) for name in ("add", "mul", "div", "pow")}
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


def _along_rows(case: Case, tensor: _Tensors) -> Call:
    rows, cols = case.sizes["rows"], case.sizes["cols"]
    x = tensor(rows, cols)
    if case.op == "layernorm":
        gain, shift = tensor(cols), tensor(cols)
        return lambda: functional.layer_norm(x, (cols,), gain, shift)
    dim = 0 if case.op == "sum_first" else -1
    function: Callable[..., torch.Tensor] = getattr(torch, case.op.removesuffix("_first"))
    return lambda: function(x, dim)


def _stream(case: Case, tensor: _Tensors) -> Call:
    a, *others = (tensor(case.sizes["rows"], case.sizes["cols"]) for _ in range(_STREAMED[case.op]))
    if case.op == "read":
        return lambda: torch.sum(a)
    if case.op == "write":
        return lambda: a.fill_(_NUMBER)
    if case.op == "copy":
        return lambda: a.copy_(others[0])
    return lambda: torch.add(others[0], others[1], alpha=_NUMBER, out=a)


_STREAMED = {"read": 1, "write": 1, "copy": 2, "triad": 3}  # tensors of each


def _movement(case: Case, tensor: _Tensors) -> Call:
    rows, cols = case.sizes["rows"], case.sizes["cols"]
    if case.op in GATHERS:
        table, index = tensor(case.sizes["table"], cols), tensor.index(rows, case.sizes["table"])
        if case.op == "embedding":
            return lambda: functional.embedding(index, table)
        return lambda: torch.index_select(table, 0, index)
    x = tensor(rows, cols)
    if case.op == "transpose":
        return lambda: x.t().contiguous()
    written = DTYPES[CASTS[case.op]]
    if written is x.dtype:
        raise UnsupportedError(f"{case.op} of {case.dtype} casts nothing")
    return lambda: x.to(written)


def _convolution(case: Case, tensor: _Tensors) -> Call:
    size, groups = case.sizes, case.sizes.get("groups", 0) or 1
    layout = torch.channels_last if size.get("channels_last") else torch.contiguous_format
    x, weight = (
        tensor(*shape).to(memory_format=layout)
        for shape in (
            (size["b"], size["c_in"], size["h"], size["w"]),
            (size["c_out"], size["c_in"] // groups, size["r"], size["s"]),
        )
    )
    stride = [size.get("stride_h", 0) or 1, size.get("stride_w", 0) or 1]
    padding = [size.get("pad_h", 0), size.get("pad_w", 0)]
    if case.op == "conv_fwd":
        return lambda: torch.conv2d(x, weight, None, stride, padding, 1, groups)
    height, width = (
        (size[edge] + 2 * pad - size[kernel]) // step + 1
        for edge, kernel, pad, step in zip("hw", "rs", padding, stride, strict=True)
    )
    gradient = tensor(size["b"], size["c_out"], height, width).to(memory_format=layout)
    wanted = [case.op == "conv_bwd_data", case.op == "conv_bwd_weight", False]
    backward = torch.ops.aten.convolution_backward
    return lambda: backward(gradient, x, weight, None, stride, padding, [1, 1], False, [0, 0], groups, wanted)


def _attention(case: Case, tensor: _Tensors) -> Call:
    b, s, t, heads, kv_heads, d = (case.sizes[name] for name in ("b", "s", "t", "heads", "kv_heads", "d"))
    query, key, value = tensor(b, heads, s, d), tensor(b, kv_heads, t, d), tensor(b, kv_heads, t, d)
    attend = functional.scaled_dot_product_attention
    # Queries are the last s of t positions: a single one sees all keys, s = t is PyTorch's own causal mask.
    causal = bool(case.sizes.get("causal")) and s > 1
    mask = causal_lower_right(s, t) if causal and s < t else None
    grouped = heads != kv_heads
    return lambda: attend(query, key, value, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=grouped)


def _attention_backward(case: Case, tensor: _Tensors) -> Call:
    """The kernel that autograd would call, with what its forward has kept."""
    b, s, t, heads, kv_heads, d = (case.sizes[name] for name in ("b", "s", "t", "heads", "kv_heads", "d"))
    causal = bool(case.sizes.get("causal"))
    if heads != kv_heads or (causal and s != t):
        raise UnsupportedError(
            "attention_bwd needs as many key heads as query heads, and when causal as many keys as queries"
        )
    aten = torch.ops.aten
    q, gradient = tensor(b, heads, s, d), tensor(b, heads, s, d)
    k, v = tensor(b, heads, t, d), tensor(b, heads, t, d)
    if tensor.device.type == "cpu":
        out, kept = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
        tensor.bytes += out.nbytes
        over_cpu = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return lambda: over_cpu(gradient, q, k, v, out, kept, 0.0, causal)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        out, kept, *rest = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        tensor.bytes += out.nbytes
        starts, (seed, offset) = rest[:4], rest[4:6]
        flash = aten._scaled_dot_product_flash_attention_backward
        return lambda: flash(gradient, q, k, v, out, kept, *starts, 0.0, causal, seed, offset)
    out, kept, seed, offset = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)
    tensor.bytes += out.nbytes
    efficient, wanted = aten._scaled_dot_product_efficient_attention_backward, [True, True, True, False]
    return lambda: efficient(gradient, q, k, v, None, out, kept, seed, offset, 0.0, wanted, causal)


_MAKERS: dict[tuple[str, ...], Callable[[Case, _Tensors], Call]] = {
    ("mm", "linear", "bmm"): _product,
    (*_BINARY, *(f"{op}u" for op in _BINARY), *_UNARY): _elementwise,
    ("softmax", "layernorm", *REDUCTIONS): _along_rows,
    ("conv_fwd", "conv_bwd_data", "conv_bwd_weight"): _convolution,
    ("attention",): _attention,
    ("attention_bwd",): _attention_backward,
    STREAMS: _stream,
    (*CASTS, *GATHERS, "transpose"): _movement,
}
