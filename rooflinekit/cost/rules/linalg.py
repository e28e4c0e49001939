"""Factorizations of matrices, and solutions of linear equations.

They are counted in the order that dominates, as in Golub and Van Loan's Matrix Computations and in LAPACK's notes;
thirds are rounded up. They are vector FLOP, for they are no products that could be handed to a tensor core whole.
Iterative ones (eigenvalues, singular values) are counted with the usual number of steps. Complex arithmetic is four
times as much.
"""

from __future__ import annotations

import math

from rooflinekit.cost.rules.matmul import gemm_of
from rooflinekit.cost.table import family, free, rule, traffic, work, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op, TensorSpec
from rooflinekit.ir.sizes import Size, ceil_div, product, smaller, total

free("aten._linalg_check_errors")  # the CPU looks at the error codes


def _work(a: TensorSpec, *thirds: Size) -> Cost:
    """A third of the sum, for each matrix of the batch."""
    each = product((4 if a.dtype.is_complex else 1, ceil_div(total(thirds), 3)))
    return Cost(vector_flop=product((*a.shape[:-2], each)))


def _long_and_short(a: TensorSpec) -> tuple[Size, Size]:
    m, n = a.shape[-2:]
    r = smaller(m, n)
    return total((m, n, product((-1, r)))), r


def _cubes(op: Op, thirds: int) -> Cost:
    n = op.inputs[0].shape[-1]
    return _work(op.inputs[0], product((thirds, n, n, n))) + traffic(op)


#: Names, thirds of n³.
family(
    _cubes,
    {
        "linalg_cholesky_ex linalg_ldl_factor_ex": (1, "n³/3, for A = L·Lᵀ or L·D·Lᵀ."),
        "linalg_inv_ex": (6, "2n³: factors 2n³/3, then n right sides."),
        "cholesky_inverse": (2, "2n³/3, from the factor."),
        "linalg_eig": (25 * 3, "25n³, with vectors."),
        "linalg_eigvals _linalg_eigvals": (10 * 3, "10n³, without vectors."),
    },
)


def _lu(a: TensorSpec) -> Cost:
    """p·r² - r³/3 for the longer side p and the shorter r: 2n³/3 for a square."""
    p, r = _long_and_short(a)
    return _work(a, product((3, p, r, r)), product((-1, r, r, r)))


def _reflections(q: TensorSpec, k: Size) -> Cost:
    """The [m, c] matrix of k reflections: 4m·c·k - 2(m + c)·k² + 4k³/3."""
    m, c = q.shape[-2:]
    return _work(q, product((12, m, c, k)), product((-6, total((m, c)), k, k)), product((4, k, k, k)))


def _solved(x: TensorSpec, n: Size, operations: int) -> Cost:
    """`operations` times n for each element of the solution: 1 for one triangle."""
    parts = 4 if x.dtype.is_complex else 1
    return Cost(vector_flop=product((parts, operations, n, x.numel)))


_OF_N = "2n³/3 for the factors, then the product of n numbers, or the sum of their logarithms."
#: Names, vector FLOP and special functions a number on the diagonal.
family(
    lambda op, *diagonal: _lu(op.inputs[0]) + work(product(op.inputs[0].shape[:-1]), *diagonal) + traffic(op),
    {
        "linalg_lu_factor_ex linalg_lu": ("2n³/3, or p·r² - r³/3 for the longer side p and the shorter r.",),
        "lu_unpack": (traffic, "A copy of the factors into triangles of their own."),
        "_linalg_det": (1, 0, _OF_N),
        "_linalg_slogdet": (1, 1, _OF_N),
        "_linalg_solve_ex": (
            lambda op: _lu(op.inputs[0]) + _solved(op.outputs[0], op.inputs[0].shape[-1], 2) + traffic(op),
            "2n³/3 for the factors and 2n² a right side.",
        ),
    },
)


_TWO_TRIANGLES, _ONE = "2n² a right side: two triangles.", "n² a right side."
#: Names, which input the factor is, times n² a right side.
family(
    lambda op, place, operations: _solved(op.outputs[0], op.inputs[place].shape[-1], operations) + traffic(op),
    {
        "linalg_lu_solve linalg_ldl_solve": (0, 2, _TWO_TRIANGLES),
        "cholesky_solve": (1, 2, _TWO_TRIANGLES),
        "linalg_solve_triangular": (0, 1, _ONE),
        "triangular_solve": (1, 1, _ONE),
    },
)


@rule("aten.linalg_qr", "aten.geqrf")
def qr(op: Op) -> Cost:
    """R by reflections 2p·r² - 2r³/3, and where it is asked for, Q [m, c] of k: 4m·c·k - 2(m + c)·k² + 4k³/3.

    An n × n matrix: 4n³/3 and as much again.
    """
    a, q = op.inputs[0], op.outputs[0]
    p, r = _long_and_short(a)
    of_r = _work(a, product((6, p, r, r)), product((-2, r, r, r)))
    return of_r + (_reflections(q, r) if op.attrs.get("mode", "r") != "r" else Cost()) + traffic(op)


@rule("aten.linalg_householder_product")
def householder_product(op: Op) -> Cost:
    """Q [m, c] of k reflections: 4m·c·k - 2(m + c)·k² + 4k³/3."""
    a, tau = op.inputs
    return _reflections(a, tau.shape[-1]) + traffic(op)


@rule("aten.ormqr")
def times_q(op: Op) -> Cost:
    """k reflections of an [m, n] matrix: 4m·n·k - 2n·k² from the left, 4m·n·k - 2m·k² from the right."""
    _, tau, c = op.inputs
    (m, n), k = c.shape[-2:], tau.shape[-1]
    across = n if op.attrs.get("left", True) else m
    return _work(c, product((12, m, n, k)), product((-6, across, k, k))) + traffic(op)


@rule("aten._linalg_svd")
def singular_values(op: Op) -> Cost:
    """p the longer side, r the shorter: values alone 4p·r² - 4r³/3; with vectors 14p·r² + 8r³.

    With all p vectors of the longer side 4p²·r + 8p·r² + 9r³.
    """
    (a,) = op.inputs
    p, r = _long_and_short(a)
    vectors = (14 * 3, 8 * 3, 0) if not op.attrs["full_matrices"] else (8 * 3, 9 * 3, 4 * 3)
    x, y, z = vectors if op.attrs["compute_uv"] else (4 * 3, -4, 0)
    return _work(a, product((x, p, r, r)), product((y, r, r, r)), product((z, p, p, r))) + traffic(op)


@rule("aten._linalg_eigh")
def symmetric_eigenvalues(op: Op) -> Cost:
    """9n³ with vectors; without 4n³/3, the way to tridiagonal form."""
    return _cubes(op, 9 * 3 if op.attrs["compute_v"] else 4)


@rule("aten.linalg_pinv")
def pseudoinverse(op: Op) -> Cost:
    """Singular values with vectors 14p·r² + 8r³, r reciprocals, and the product of the scaled vectors."""
    a = op.inputs[0]
    p, r = _long_and_short(a)
    m, n = a.shape[-2:]
    batch = product(a.shape[:-2])
    scaled = Cost(vector_flop=product((batch, n, r)), special_flop=product((batch, r)))
    vectors = _work(a, product((42, p, r, r)), product((24, r, r, r)))
    return Cost(gemms=(gemm_of(a, batch=batch, m=n, n=m, k=r),)) + vectors + scaled + traffic(op)


@rule("aten.linalg_matrix_exp")
def matrix_exponential(op: Op) -> Cost:
    """10n³: a Taylor polynomial of degree 18 in 5 products; how often it is squared depends on the numbers."""
    (a,) = op.inputs
    n = a.shape[-1]
    return Cost(gemms=(gemm_of(a, batch=product((5, *a.shape[:-2])), m=n, n=n, k=n),)) + traffic(op)


# Fourier transforms: 5·N·log2 N FLOP for N complex points, half of that for real ones.
#
# N is the product of all transformed dimensions. That is the count of the radix-2 algorithm, by convention used for
# every N; where it is no whole number it is rounded up.


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


def _transform(op: Op, of_input: int, real: int) -> list[Cost]:
    """The transform, whose input or output has the full sizes; scaling its result is a kernel of its own."""
    (y,) = op.outputs
    side = op.inputs[0] if of_input else y
    n = product(side.shape[d] for d in op.attrs["dim"])
    costs = [Cost(vector_flop=transform_flop(side.numel, n, real=bool(real))) + traffic(op)]
    if op.attrs["normalization"]:
        scaled = Cost(read_bytes=y.bytes, label="normalization") + work(y.numel, 2 if y.dtype.is_complex else 1)
        costs.append(scaled + writes((y,)))
    return costs


_REAL = "5/2·N·log2 N for each N real points"
#: Names, whether the input has the full sizes, whether points are real.
family(
    _transform,
    {
        "_fft_c2c": (0, 0, "5·N·log2 N for each N complex points."),
        "_fft_r2c": (1, 1, f"{_REAL}, to the half of the complex ones that is not redundant."),
        "_fft_c2r": (0, 1, f"{_REAL}, from the half of the complex ones that is not redundant."),
    },
)


family(
    lambda op, vector, special: work(op.outputs[0].numel, vector, special) + writes(op.outputs),
    {
        "fft_fftfreq fft_rfftfreq": (1, 0),  # i / (n·d) as a multiplication
        "bartlett_window": (3, 0),  # i·2/N; 2 - that; a choice
        "hann_window hamming_window": (3, 1),  # i·2π/N; cos; a - b·that
        "blackman_window": (6, 2),  # two angles; two cosines; a - b·cos + c·cos
        "kaiser_window": (5, 2),  # β·√(1 - (2i/N - 1)²): 5 and a root; a Bessel function
    },
)
