"""Fourier transforms: 5·N·log2 N FLOP for N complex points, half of that for real ones.

N is the product of all transformed dimensions. That is the count of the radix-2 algorithm, by convention used for
every N; where it is no whole number it is rounded up.
"""

from __future__ import annotations

import math

from rooflinekit.cost.table import Rule, an_element, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import Size, product
from rooflinekit.ir.tensor import TensorSpec


def transform_flop(points: Size, n: Size, *, real: bool) -> Size:
    """FLOP of transforms over `n` points each, `points` in all.

    >>> transform_flop(16, 8, real=False), transform_flop(16, 8, real=True), transform_flop(3, 3, real=False)
    (240, 120, 24)
    """
    if isinstance(points, int) and isinstance(n, int):
        doubled = 5 * points * (2 - real)
        if n & (n - 1) == 0:
            return -(-doubled * (n.bit_length() - 1) // 2)
        return math.ceil(doubled * math.log2(n) / 2)
    import sympy

    flop = sympy.Rational(5, 2) * (2 - real) * points * sympy.log(n, 2)
    return sympy.ceiling(flop)


def _transform(op: Op, side: TensorSpec, *, real: bool) -> list[Cost]:
    """The transform of the tensor whose sizes are the full ones; scaling its result is a kernel of its own."""
    (y,) = op.outputs
    n = product(side.shape[d] for d in op.attrs["dim"])
    costs = [Cost(vector_flop=transform_flop(side.numel, n, real=real)) + traffic(op)]
    if op.attrs["normalization"]:
        parts = 2 if y.dtype.is_complex else 1
        scaled = Cost(vector_flop=product((parts, y.numel)), read_bytes=y.bytes, label="normalization")
        costs.append(scaled + writes((y,)))
    return costs


@rule("aten._fft_c2c")
def complex_to_complex(op: Op) -> list[Cost]:
    """5·N·log2 N for each N complex points."""
    return _transform(op, op.outputs[0], real=False)


@rule("aten._fft_r2c")
def real_to_complex(op: Op) -> list[Cost]:
    """5/2·N·log2 N for each N real points, to the half of the complex ones that is not redundant."""
    return _transform(op, op.inputs[0], real=True)


@rule("aten._fft_c2r")
def complex_to_real(op: Op) -> list[Cost]:
    """5/2·N·log2 N for each N real points, from the half of the complex ones that is not redundant."""
    return _transform(op, op.outputs[0], real=True)


def _per_element(vector: int, special: int) -> Rule:
    def price(op: Op) -> Cost:
        (y,) = op.outputs
        return Cost(vector_flop=product((vector, y.numel)), special_flop=product((special, y.numel))) + writes((y,))

    price.__doc__ = an_element(vector, special)
    return price


#: kind: (vector FLOP, special functions) an element
_WINDOWS = {
    "fft_fftfreq": (1, 0),  # i / (n·d) as a multiplication
    "fft_rfftfreq": (1, 0),
    "bartlett_window": (3, 0),  # i·2/N; 2 - that; a choice
    "hann_window": (3, 1),  # i·2π/N; cos; a - b·that
    "hamming_window": (3, 1),
    "blackman_window": (6, 2),  # two angles; two cosines; a - b·cos + c·cos
    "kaiser_window": (5, 2),  # β·√(1 - (2i/N - 1)²): 5 and a root; a Bessel function
}
for _kind, (_vector, _special) in _WINDOWS.items():
    rule(f"aten.{_kind}")(_per_element(_vector, _special))
