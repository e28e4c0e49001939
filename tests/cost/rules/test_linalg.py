"""Factorizations and solutions: the textbook's leading terms, thirds rounded up, for each matrix of a batch."""

import pytest
import torch
from learned import Learned, in_mode, squares

from rooflinekit import Input


def test_cholesky(tensor, cost):
    matrices, info = [tensor(2, 4, 4)], tensor(2, dtype="int32")
    c = cost("linalg_cholesky_ex", matrices, [tensor(2, 4, 4), info])
    assert (c.matrix_flop, c.vector_flop) == (0, 44)  # 4³/3 = 21.3, so 22; two of them
    assert (c.read_bytes, c.write_bytes) == (128, 136)  # 4 · 32; as much and two codes
    assert cost("linalg_ldl_factor_ex", [tensor(6, 6)], [tensor(6, 6)]).vector_flop == 72  # 216/3


def test_complex_numbers_are_four_times_the_work(tensor, cost):
    c = cost("linalg_cholesky_ex", [tensor(6, 6, dtype="complex64")], [tensor(6, 6, dtype="complex64")])
    assert (c.vector_flop, c.read_bytes) == (288, 288)  # 4 · 72; 8 · 36


@pytest.mark.parametrize(
    ("kind", "flop"),
    [
        ("linalg_inv_ex", 432),  # 2 · 216
        ("cholesky_inverse", 144),  # 2 · 216/3
        ("linalg_lu_factor_ex", 144),
        ("linalg_lu", 144),
        ("linalg_eig", 5400),  # 25 · 216
        ("linalg_eigvals", 2160),  # 10 · 216
    ],
)
def test_square_matrices_of_six_rows(tensor, cost, kind, flop):
    c = cost(kind, [tensor(6, 6)], [tensor(6, 6)])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (flop, 144, 144)


@pytest.mark.parametrize("shape", [(8, 3), (3, 8)])
def test_factors_of_a_rectangle(tensor, cost, shape):
    c = cost("linalg_lu_factor_ex", [tensor(*shape)], [tensor(*shape)])
    assert c.vector_flop == 63  # 8·9 - 27/3


def test_determinants_multiply_the_diagonal(tensor, cost):
    c = cost("_linalg_det", [tensor(2, 3, 3)], [tensor(2), tensor(2, 3, 3), tensor(2, 3, dtype="int32")])
    assert (c.vector_flop, c.special_flop) == (42, 0)  # 2 · (2·27/3 + 3)
    logarithm = cost("_linalg_slogdet", [tensor(2, 3, 3)], [tensor(2), tensor(2)])
    assert (logarithm.vector_flop, logarithm.special_flop) == (42, 6)


def test_equations(tensor, cost):
    a, b = tensor(3, 3), tensor(3, 5)
    c = cost("_linalg_solve_ex", [a, b], [tensor(3, 5), tensor(3, 3), tensor(3, dtype="int32"), tensor(dtype="int32")])
    assert c.vector_flop == 108  # factors 18; 2 · 9 for each of 5 right sides
    assert (c.read_bytes, c.write_bytes) == (96, 112)  # 4 · (9 + 15); 4 · (15 + 9 + 3 + 1)


def test_equations_with_factors(tensor, cost):
    factors, b, x = tensor(3, 3), tensor(3, 5), tensor(3, 5)
    assert cost("cholesky_solve", [b, factors], [x]).vector_flop == 90  # 2 · 9 · 5
    assert cost("linalg_lu_solve", [factors, tensor(3, dtype="int32"), b], [x]).vector_flop == 90
    assert cost("linalg_ldl_solve", [factors, tensor(3, dtype="int32"), b], [x]).vector_flop == 90
    assert cost("linalg_solve_triangular", [factors, b], [x]).vector_flop == 45
    assert cost("triangular_solve", [b, factors], [x, factors]).vector_flop == 45


def test_qr(tensor, cost):
    a, q, r = tensor(5, 3), tensor(5, 3), tensor(3, 3)
    # R: 2·5·9 - 2·27/3 = 72. Q: 4·5·3·3 - 2·(5 + 3)·9 + 4·27/3 = 180 - 144 + 36 = 72
    assert cost("linalg_qr", [a], [q, r], mode="reduced").vector_flop == 144
    # all five columns: 4·5·5·3 - 2·10·9 + 36 = 156
    assert cost("linalg_qr", [a], [tensor(5, 5), tensor(5, 3)], mode="complete").vector_flop == 228
    assert cost("linalg_qr", [a], [tensor(0), r], mode="r").vector_flop == 72
    assert cost("geqrf", [a], [tensor(5, 3), tensor(3)]).vector_flop == 72


def test_reflections(tensor, cost):
    a, tau = tensor(5, 3), tensor(3)
    assert cost("linalg_householder_product", [a, tau], [tensor(5, 3)]).vector_flop == 72
    left = cost("ormqr", [a, tau, tensor(5, 4)], [tensor(5, 4)], left=True)
    assert left.vector_flop == 168  # 4·5·4·3 - 2·4·9
    right = cost("ormqr", [a, tau, tensor(4, 5)], [tensor(4, 5)], left=False)
    assert right.vector_flop == 168


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
@pytest.mark.parametrize(
    ("options", "flop"),
    [
        ({"full_matrices": False, "compute_uv": False}, 144),  # 4·5·9 - 4·27/3
        ({"full_matrices": False, "compute_uv": True}, 846),  # 14·5·9 + 8·27
        ({"full_matrices": True, "compute_uv": True}, 903),  # 4·25·3 + 8·5·9 + 9·27
    ],
)
def test_singular_values(tensor, cost, shape, options, flop):
    assert cost("_linalg_svd", [tensor(*shape)], [tensor(3)], **options).vector_flop == flop


def test_symmetric_eigenvalues(tensor, cost):
    a, values = tensor(6, 6), tensor(6)
    assert cost("_linalg_eigh", [a], [values, tensor(6, 6)], compute_v=True).vector_flop == 1944  # 9 · 216
    assert cost("_linalg_eigh", [a], [values, tensor(0)], compute_v=False).vector_flop == 288  # 4 · 216/3


def test_the_pseudoinverse_is_singular_values_and_a_product(tensor, cost):
    c = cost("linalg_pinv", [tensor(5, 3)], [tensor(3, 5)])
    assert c.matrix_flop == 90  # 2 · 3·5·3
    assert (c.vector_flop, c.special_flop) == (855, 3)  # 846, and 3·3 scaled by 3 reciprocals


def test_the_matrix_exponential_is_five_products(tensor, cost):
    c = cost("linalg_matrix_exp", [tensor(2, 3, 3)], [tensor(2, 3, 3)])
    assert (c.matrix_flop, c.vector_flop) == (540, 0)  # 5 · 2 · 2·27


def test_unpacking_is_a_copy(tensor, cost):
    c = cost("lu_unpack", [tensor(3, 3), tensor(3, dtype="int32")], [tensor(3, 3), tensor(3, 3), tensor(3, 3)])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 48, 108)


# --- traced ---------------------------------------------------------------------------------------------------


FUNCTIONS = {
    "cholesky": torch.linalg.cholesky,
    "inv": torch.linalg.inv,
    "det": torch.linalg.det,
    "slogdet": lambda x: torch.linalg.slogdet(x).logabsdet,
    "solve": lambda x: torch.linalg.solve(x, x),
    "qr": torch.linalg.qr,
    "svd": lambda x: torch.linalg.svd(x, full_matrices=False),
    "svdvals": torch.linalg.svdvals,
    "eigh": torch.linalg.eigh,
    "eigvalsh": torch.linalg.eigvalsh,
    "triangular": lambda x: torch.linalg.solve_triangular(x, x, upper=True),
    "lu": torch.linalg.lu_factor,
}


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_every_op_of_linear_algebra_has_a_rule(traced, function, mode):
    assert traced(Learned(function), Input("batch", 4, 4), **in_mode(mode)).coverage.flop_share == 1


def test_the_gradient_of_an_inverse_is_two_products(traced, costs_of):
    graph = traced(Learned(torch.linalg.inv), (2, 4, 4), mode="training", loss=squares)
    assert [c.vector_flop for c in costs_of(graph, "linalg_inv_ex")] == [256]  # 2 · 2·64
    # -A⁻ᵀ · G · A⁻ᵀ
    assert [c.matrix_flop for c in costs_of(graph, "bmm", "backward")] == [256, 256]
