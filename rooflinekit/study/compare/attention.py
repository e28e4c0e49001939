"""The kernels of attention that a GPU has, beside each other: FLOP/s by the length of sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rooflinekit.calibrate.fitting.files import constants_for
from rooflinekit.cost.table import price_all
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.ir.op import DType, Math, Op, TensorSpec
from rooflinekit.model.attention_backends import BACKENDS, backend_of, backends_of
from rooflinekit.model.kernels import plain_kernels
from rooflinekit.model.machine import Machine
from rooflinekit.model.timing import time_kernels

_TOKENS, _WIDTH = 2**14, 2**11  # of a batch, and numbers of all heads of a token: as FlashAttention's authors measure
_KIND = "aten._scaled_dot_product_flash_attention"
LENGTHS = tuple(2**n for n in range(9, 15))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRates:
    """FLOP/s in fp16 by kernel and length, of batches of 16,384 tokens with heads of 2048 numbers in all."""

    device: str
    head_dim: int
    causal: bool
    lengths: tuple[int, ...]
    forward: Mapping[str, tuple[float, ...]]  # by the kernel's name
    backward: Mapping[str, tuple[float, ...]]
    chosen: str  # name of what PyTorch runs by itself
    peak: float  # FLOP/s that the datasheet states


def attention_rates(
    subject: Machine | Device, *, head_dim: int = 128, causal: bool = False, lengths: Sequence[int] = LENGTHS
) -> AttentionRates:
    """How fast each kernel of attention is that a program may call on this GPU, without a mask, by its kernels' time.

    subject: a Machine, or a Device with its own constants. lengths: of sequences, each a part of 16,384 tokens.
    FLOP are those of two products in the forward pass and five in the gradient, under a causal mask of the pairs left.
    Raises InputError for a GPU of which no kernel is known, and for heads or lengths that divide no such batch.
    """
    if head_dim < 1 or _WIDTH % head_dim or any(length < 1 or _TOKENS % length for length in lengths):
        raise InputError(
            f"attention: expected heads that divide {_WIDTH} numbers and lengths that divide {_TOKENS} tokens; "
            f"got {head_dim} and {', '.join(map(str, lengths))}"
        )
    machine = subject if isinstance(subject, Machine) else Machine.of(subject, constants_for(subject))
    device, plain = machine.device, _op(lengths[0], head_dim, causal=causal)
    names = tuple(name for name in backends_of(plain, device, None) if name != "math")
    if not names:
        raise InputError(f"attention on {device.name}: no kernel is known by name; name a GPU such as an A100")
    return AttentionRates(
        device=device.name, head_dim=head_dim, causal=causal, lengths=tuple(lengths),
        forward=_rates(names, machine, lengths, head_dim, causal, ""),
        backward=_rates(names, machine, lengths, head_dim, causal, "_backward"),
        chosen=backend_of(plain, device).name, peak=device.peak(Math.FP16),
    )  # fmt: skip


def _rates(
    names: Sequence[str], machine: Machine, lengths: Sequence[int], head_dim: int, causal: bool, direction: str
) -> Mapping[str, tuple[float, ...]]:
    ops = [_op(length, head_dim, direction, causal=causal, backend=name) for name in names for length in lengths]
    found = []
    for priced in price_all(ops):
        timings = time_kernels(plain_kernels(priced, None, machine.device), machine)
        found.append(float(priced.costs[0].matrix_flop) / sum(timing.total_s for timing in timings))
    rows = (tuple(found[i : i + len(lengths)]) for i in range(0, len(found), len(lengths)))
    return MappingProxyType(dict(zip((BACKENDS[name].name for name in names), rows, strict=True)))


def _op(length: int, head_dim: int, direction: str = "", *, causal: bool, backend: str | None = None) -> Op:
    shape = (_TOKENS // length, _WIDTH // head_dim, length, head_dim)
    q, k, v, out, grad = (TensorSpec(name=n, shape=shape, dtype=DType.FLOAT16) for n in ("q", "k", "v", "out", "grad"))
    sums = TensorSpec(name="sums", shape=shape[:-1], dtype=DType.FLOAT32)
    gradients = tuple(TensorSpec(name=f"d{one.name}", shape=shape, dtype=one.dtype) for one in (q, k, v))
    inputs, outputs = ((grad, q, k, v, out, sums), gradients) if direction else ((q, k, v), (out, sums))
    attrs = {"is_causal": causal, "backend": backend}
    return Op(name="attention", kind=f"{_KIND}{direction}", inputs=inputs, outputs=outputs, attrs=attrs)
