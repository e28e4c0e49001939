"""Factorizations of matrices, and solutions of linear equations.

They are counted in the order that dominates, as in Golub and Van Loan's Matrix Computations and in LAPACK's notes;
thirds are rounded up. They are vector FLOP, for they are no products that could be handed to a tensor core whole.
Iterative ones (eigenvalues, singular values) are counted with the usual number of steps. Complex arithmetic is four
times as much.
"""

from __future__ import annotations

from rooflinekit.cost.rules.matmul import gemm_of
from rooflinekit.cost.table import free, rule, traffic
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import Size, ceil_div, product, smaller, total
from rooflinekit.ir.tensor import TensorSpec

free("aten._linalg_check_errors")  # the CPU looks at the error codes


def _work(a: TensorSpec, *thirds: Size) -> Cost:
    """A third of the sum, for each matrix of the batch."""
    each = product((4 if a.dtype.is_complex else 1, ceil_div(total(thirds), 3)))
    return Cost(vector_flop=product((*a.shape[:-2], each)))


def _long_and_short(a: TensorSpec) -> tuple[Size, Size]:
    m, n = a.shape[-2:]
    r = smaller(m, n)
    return total((m, n, product((-1, r)))), r


def _cubes(a: TensorSpec, thirds: int) -> Cost:
    n = a.shape[-1]
    return _work(a, product((thirds, n, n, n)))


def _lu(a: TensorSpec) -> Cost:
    """p·r² - r³/3 for the longer side p and the shorter r: 2n³/3 for a square."""
    p, r = _long_and_short(a)
    return _work(a, product((3, p, r, r)), product((-1, r, r, r)))


def _householder(a: TensorSpec) -> Cost:
    """2p·r² - 2r³/3: R, and the reflections that make Q."""
    p, r = _long_and_short(a)
    return _work(a, product((6, p, r, r)), product((-2, r, r, r)))


def _reflections(q: TensorSpec, k: Size) -> Cost:
    """The [m, c] matrix of k reflections: 4m·c·k - 2(m + c)·k² + 4k³/3."""
    m, c = q.shape[-2:]
    return _work(q, product((12, m, c, k)), product((-6, total((m, c)), k, k)), product((4, k, k, k)))


def _solved(x: TensorSpec, n: Size, operations: int) -> Cost:
    """`operations` times n for each element of the solution: 1 for one triangle."""
    parts = 4 if x.dtype.is_complex else 1
    return Cost(vector_flop=product((parts, operations, n, x.numel)))


@rule("aten.linalg_cholesky_ex", "aten.linalg_ldl_factor_ex")
def cholesky(op: Op) -> Cost:
    """n³/3, for A = L·Lᵀ or L·D·Lᵀ."""
    return _cubes(op.inputs[0], 1) + traffic(op)


@rule("aten.linalg_inv_ex")
def inverse(op: Op) -> Cost:
    """2n³: factors 2n³/3, then n right sides."""
    return _cubes(op.inputs[0], 6) + traffic(op)


@rule("aten.cholesky_inverse")
def inverse_from_cholesky(op: Op) -> Cost:
    """2n³/3, from the factor."""
    return _cubes(op.inputs[0], 2) + traffic(op)


@rule("aten.linalg_lu_factor_ex", "aten.linalg_lu")
def lu(op: Op) -> Cost:
    """2n³/3, or p·r² - r³/3 for the longer side p and the shorter r."""
    return _lu(op.inputs[0]) + traffic(op)


@rule("aten.lu_unpack")
def lu_unpack(op: Op) -> Cost:
    """A copy of the factors into triangles of their own."""
    return traffic(op)


@rule("aten._linalg_det", "aten._linalg_slogdet")
def determinant(op: Op) -> Cost:
    """2n³/3 for the factors, then the product of n numbers, or the sum of their logarithms."""
    (a,) = op.inputs
    diagonal = product(a.shape[:-1])
    return _lu(a) + Cost(vector_flop=diagonal, special_flop=diagonal if "slog" in op.kind else 0) + traffic(op)


@rule("aten._linalg_solve_ex")
def solve(op: Op) -> Cost:
    """2n³/3 for the factors and 2n² a right side."""
    a, x = op.inputs[0], op.outputs[0]
    return _lu(a) + _solved(x, a.shape[-1], 2) + traffic(op)


@rule("aten.linalg_lu_solve", "aten.linalg_ldl_solve", "aten.cholesky_solve")
def solve_with_factors(op: Op) -> Cost:
    """2n² a right side: two triangles."""
    factors = op.inputs[1 if "cholesky" in op.kind else 0]
    return _solved(op.outputs[0], factors.shape[-1], 2) + traffic(op)


@rule("aten.linalg_solve_triangular", "aten.triangular_solve")
def solve_triangle(op: Op) -> Cost:
    """n² a right side."""
    triangle = op.inputs[0 if "linalg" in op.kind else 1]
    return _solved(op.outputs[0], triangle.shape[-1], 1) + traffic(op)


@rule("aten.linalg_qr", "aten.geqrf")
def qr(op: Op) -> Cost:
    """R by reflections 2p·r² - 2r³/3, and where it is asked for, Q [m, c] of k: 4m·c·k - 2(m + c)·k² + 4k³/3.

    An n × n matrix: 4n³/3 and as much again.
    """
    a, q = op.inputs[0], op.outputs[0]
    with_q = op.attrs.get("mode", "r") != "r"
    return _householder(a) + (_reflections(q, _long_and_short(a)[1]) if with_q else Cost()) + traffic(op)


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
    return _cubes(op.inputs[0], 9 * 3 if op.attrs["compute_v"] else 4) + traffic(op)


@rule("aten.linalg_eig")
def eigenvectors(op: Op) -> Cost:
    """25n³, with vectors."""
    return _cubes(op.inputs[0], 25 * 3) + traffic(op)


@rule("aten.linalg_eigvals", "aten._linalg_eigvals")
def eigenvalues(op: Op) -> Cost:
    """10n³, without vectors."""
    return _cubes(op.inputs[0], 10 * 3) + traffic(op)


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
