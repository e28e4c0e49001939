"""Cases of a plan as calls of PyTorch.

Each call works on tensors of its own: copies of a case are gone through in turn, so that together they are larger than
the last-level cache and a call finds its inputs in memory, as the time model takes it. Numbers are random: a GPU that
multiplies zeros draws less power and clocks higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.campaigns.operators import (
    CASTS,
    CONVOLUTIONS,
    ELEMENTWISE,
    GATHERS,
    REDUCTIONS,
    STORED,
    STREAMS,
    ops_of,
)
from rooflinekit.ir.op import Op, TensorSpec

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
    if CASTS.get(case.op) == case.dtype:
        raise UnsupportedError(f"{case.op} of {case.dtype} casts nothing")
    if case.dtype == "tf32" and device.type == "cpu":
        raise UnsupportedError("tf32 is an arithmetic of GPUs")
    make = _MAKERS.get(case.op)
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

    def like(self, spec: TensorSpec) -> torch.Tensor:
        """A tensor as it is described, its dimensions as far from each other in memory."""
        shape, strides = list(map(int, spec.shape)), spec.stride
        if strides is None:
            return self(*shape)
        order = sorted(range(len(shape)), key=strides.__getitem__, reverse=True)
        return self(*(shape[dim] for dim in order)).permute(*map(order.index, range(len(shape))))

    def index(self, count: int, below: int) -> torch.Tensor:
        """So many whole numbers from 0 on."""
        self.bytes += 8 * count
        return torch.randint(below, (count,), device=self.device)


def _by_operator(case: Case, tensor: _Tensors) -> Call:
    """The operator that a trace would hold for the case, as PyTorch is asked for it, on tensors of its sizes."""
    if case.dtype == "fp8":
        return _scaled_product(case, tensor)
    (op,) = ops_of(case.op, case.dtype, case.sizes)
    attrs = dict(op.attrs) if case.op != "triad" else {**op.attrs, "out": tensor.like(op.outputs[0])}
    tensors = [
        tensor.index(int(spec.numel), case.sizes["table"]) if spec.name == "index" else tensor.like(spec)
        for spec in op.inputs
    ]
    if case.op in ELEMENTWISE:  # powers of negative numbers are none, nor quotients by 0
        tensors = [x.abs_().add_(i) for i, x in enumerate(tensors)]
    if make := _AS_CALLED.get(op.kind):
        return make(op, *tensors)
    return partial(getattr(torch, op.kind.removeprefix("aten.")), *tensors, **attrs)


def _scaled_product(case: Case, tensor: _Tensors) -> Call:
    """8 bits in, 16 bits out. The second factor is laid out by columns, as the kernels want it."""
    m, n, k = (case.sizes[name] for name in "mnk")
    before = tensor.bytes
    left, right = (tensor(rows, k).to(torch.float8_e4m3fn) for rows in (m, n))
    tensor.bytes = before + left.nbytes + right.nbytes
    scale, columns = torch.ones((), device=tensor.device), right.t()
    return lambda: torch._scaled_mm(left, columns, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def _convolution_options(op: Op) -> list[Any]:
    """The arguments of a convolution behind its tensors and its bias."""
    sides, transposed = op.attrs["stride"], False
    return [sides, op.attrs["padding"], op.attrs["dilation"], transposed, [0] * len(sides), op.attrs["groups"]]


#: By the kind of an operator how a program asks for it, where that is not the function of its name.
_AS_CALLED: dict[str, Callable[..., Call]] = {
    "aten.addmm": lambda op, bias, x, weight: partial(functional.linear, x, weight.t(), bias),
    "aten.gelu": lambda op, x: partial(functional.gelu, x),
    "aten._softmax": lambda op, x: partial(torch.softmax, x, -1),
    "aten.native_layer_norm": lambda op, x, *affine: partial(functional.layer_norm, x, x.shape[1:], *affine),
    "aten.fill_": lambda op, x: partial(x.fill_, op.attrs["value"]),
    "aten.copy_": lambda op, x, source: partial(x.copy_, source),
    "aten.clone": lambda op, x: x.contiguous,
    "aten._to_copy": lambda op, x: partial(x.to, getattr(torch, op.outputs[0].dtype.value)),
    "aten.embedding": lambda op, table, index: partial(functional.embedding, index, table),
    "aten.index_select": lambda op, table, index: partial(torch.index_select, table, 0, index),
    "aten.convolution": lambda op, x, weight: partial(torch.convolution, x, weight, None, *_convolution_options(op)),
    "aten.convolution_backward": lambda op, gradient, x, weight: partial(
        torch.ops.aten.convolution_backward, gradient, x, weight, None, *_convolution_options(op),
        op.attrs["output_mask"],
    ),
}  # fmt: skip


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


_MAKERS: dict[str, Callable[[Case, _Tensors], Call]] = {
    **dict.fromkeys(("mm", "linear", "bmm", "softmax", "layernorm", "transpose"), _by_operator),
    **dict.fromkeys((*ELEMENTWISE, *REDUCTIONS, *STREAMS, *CASTS, *GATHERS, *CONVOLUTIONS), _by_operator),
    "attention": _attention,
    "attention_bwd": _attention_backward,
}
