"""Element-wise ops: operations and special functions of ten elements, spelled out for each kind."""

import pytest
import torch
from learned import Learned

from rooflinekit import Input

#: how many inputs: the kinds that take one operation an element
ONE_OPERATION = {
    1: """
    neg abs sign sgn signbit angle deg2rad rad2deg clamp_min clamp_max isnan isposinf isneginf logical_not
    bitwise_not floor ceil round trunc
    """,
    2: """
    copysign mul maximum minimum fmax fmin masked_fill eq ne lt le gt ge logical_and logical_or logical_xor
    bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ nextafter add
    sub rsub
    """,
    3: "where",
}
#: and those that take one special function
ONE_SPECIAL_FUNCTION = {
    1: """
    reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf
    erfc erfinv special_erfcx special_ndtri special_log_ndtr lgamma digamma polygamma i0 special_i0e special_i1
    special_i1e sqrt rsqrt
    """,
    2: """
    div remainder fmod atan2 igamma igammac special_zeta pow
    """,
}
ONE = [
    (kind, inputs, vector, special)
    for table, vector, special in ((ONE_OPERATION, 10, 0), (ONE_SPECIAL_FUNCTION, 0, 10))
    for inputs, kinds in table.items()
    for kind in kinds.split()
]
#: kind: (inputs, vector FLOP of 10 elements, special functions of 10 elements)
TEN = {
    "clamp": (1, 20, 0),  # max, min
    "floor_divide": (2, 10, 10),  # divide; floor
    "frac": (1, 20, 0),  # trunc; x -
    "heaviside": (2, 20, 0),  # x = 0; x > 0
    "nan_to_num": (1, 30, 0),  # nan; inf; -inf
    "lerp": (3, 30, 0),  # b - a; times w; a +
    "linalg_cross": (2, 30, 0),  # a2·b3; a3·b2; -
    "hypot": (2, 30, 10),  # a·a; b·b; +; root
    "ldexp": (2, 10, 10),  # 2^e; times x
    "sinc": (1, 20, 20),  # x = 0; times π; sin, divide
    "logit": (1, 10, 20),  # 1 - x; x / that; log
    "logit_backward": (2, 20, 10),  # 1 - x; times x; g / that
    "xlogy": (2, 20, 10),  # x = 0; log y; times x
    "special_xlog1py": (2, 20, 10),
    "special_entr": (1, 30, 10),  # x = 0; log x; times x; negate
    "logaddexp": (2, 30, 20),  # max; a - b; exp, log1p; +
    "logaddexp2": (2, 30, 20),
    "addcmul": (3, 20, 0),  # b·c; a +
    "addcdiv": (3, 10, 10),  # b/c; a +
}


@pytest.mark.parametrize(("kind", "inputs", "vector", "special"), [*ONE, *((k, *v) for k, v in TEN.items())])
def test_operations_of_ten_elements(tensor, cost, kind, inputs, vector, special):
    c = cost(kind, [tensor(2, 5) for _ in range(inputs)], [tensor(2, 5)])
    assert (c.matrix_flop, c.vector_flop, c.special_flop) == (0, vector, special)
    assert c.read_bytes == 40 * inputs  # 4 · 2·5 each
    assert c.write_bytes == 40


@pytest.mark.parametrize("kind", ["add", "sub", "rsub"])
def test_a_factor_of_the_second_term_is_a_multiplication(tensor, cost, kind):
    a, b = tensor(2, 5), tensor(2, 5)
    assert cost(kind, [a, b], [tensor(2, 5)], alpha=1).vector_flop == 10
    assert cost(kind, [a, b], [tensor(2, 5)], alpha=0.5).vector_flop == 20


@pytest.mark.parametrize(
    ("exponent", "vector", "special"), [(2, 10, 0), (2.0, 10, 0), (3, 20, 0), (0.5, 0, 10), (-2, 10, 10)]
)
def test_whole_powers_are_multiplications(tensor, cost, exponent, vector, special):
    c = cost("pow", [tensor(2, 5)], [tensor(2, 5)], exponent=exponent)
    assert (c.vector_flop, c.special_flop) == (vector, special)


#: kind: (formats of the inputs, vector FLOP of 10 elements, special functions of 10 elements)
COMPLEX = {
    "add": ("cc", 20, 0),  # both parts
    "sub": ("cc", 20, 0),
    "neg": ("c", 20, 0),
    "mul": ("cc", 60, 0),  # four products; a difference and a sum
    "mul by a real one": ("cr", 20, 0),
    "div": ("cc", 90, 20),  # z·w* 6; c² + d² 3; both parts divided
    "div by a real one": ("cr", 0, 20),
    "reciprocal": ("c", 40, 20),  # a² + b² 3; -b; both parts divided
    "eq": ("cc", 30, 0),  # a = c; b = d; and
    "sgn": ("c", 30, 30),  # |z| 3 and a root; both parts divided
    "exp": ("c", 20, 30),  # exp a; cos b; sin b; two products
    "log": ("c", 30, 30),  # |z| 3 and a root; log; atan2
    "sqrt": ("c", 60, 30),  # |z| 3 and a root; + a; /2; root; times 2; b divided
    "sin": ("c", 20, 40),  # sin a; cosh b; cos a; sinh b; two products
    "cos": ("c", 30, 40),  # and a sign
    "sigmoid": ("c", 40, 40),  # no formula of its own: twice the real one
    "_conj_physical": ("c", 10, 0),  # -b
    "pow": ("cc", 110, 60),  # log z 3 and 3; times w 6; exp 2 and 3
}


@pytest.mark.parametrize(("kind", "formats", "vector", "special"), [(k, *v) for k, v in COMPLEX.items()], ids=COMPLEX)
def test_operations_of_ten_complex_elements(tensor, cost, kind, formats, vector, special):
    inputs = [tensor(2, 5, dtype={"c": "complex64", "r": "float32"}[one]) for one in formats]
    c = cost(kind.partition(" ")[0], inputs, [tensor(2, 5, dtype="complex64")])
    assert (c.vector_flop, c.special_flop) == (vector, special)
    assert c.read_bytes == 80 * formats.count("c") + 40 * formats.count("r")
    assert c.write_bytes == 80


@pytest.mark.parametrize(("kind", "vector", "special"), [("abs", 30, 10), ("angle", 0, 10)])
def test_size_and_angle_of_complex_numbers_are_real(tensor, cost, kind, vector, special):
    c = cost(kind, [tensor(2, 5, dtype="complex64")], [tensor(2, 5)])  # √(a² + b²); atan2
    assert (c.vector_flop, c.special_flop, c.read_bytes, c.write_bytes) == (vector, special, 80, 40)


@pytest.mark.parametrize(("kind", "vector", "special"), [("complex", 0, 0), ("polar", 20, 20)])
def test_complex_numbers_are_put_together(tensor, cost, kind, vector, special):
    c = cost(kind, [tensor(2, 5), tensor(2, 5)], [tensor(2, 5, dtype="complex64")])  # sin and cos, each times r
    assert (c.vector_flop, c.special_flop, c.read_bytes, c.write_bytes) == (vector, special, 80, 80)


def test_a_factor_of_a_product_that_is_added_is_a_multiplication(tensor, cost):
    tensors = [tensor(2, 5) for _ in range(3)]
    assert cost("addcmul", tensors, [tensor(2, 5)], value=2).vector_flop == 30  # b·c; times 2; a +
    assert cost("addcdiv_", tensors, tensors[:1], value=-0.1).vector_flop == 20  # b/c; times -0.1; a +
    complex_ = [tensor(2, 5, dtype="complex64") for _ in range(4)]
    assert cost("addcmul", complex_[:3], complex_[3:], value=1).vector_flop == 80  # 6 and 2
    assert cost("addcdiv", complex_[:3], complex_[3:], value=2).flop == 150  # 9 and 2 divisions; 2; 2


@pytest.mark.parametrize(("bounds", "flop"), [({"min": 0, "max": None}, 10), ({"min": 0, "max": 6}, 20)])
def test_clamp_compares_with_each_bound_there_is(tensor, cost, bounds, flop):
    assert cost("clamp", [tensor(2, 5)], [tensor(2, 5)], **bounds).vector_flop == flop


def test_clamp_between_tensors_reads_them(tensor, cost):
    lower, upper = tensor(2, 5), tensor(5)
    c = cost("clamp", [tensor(2, 5), lower, upper], [tensor(2, 5)], min=lower, max=upper)
    assert (c.vector_flop, c.read_bytes) == (20, 100)  # 4 · (10 + 10 + 5)


def test_a_rounded_quotient_is_an_operation_more(tensor, cost):
    c = cost("div", [tensor(2, 5), tensor(2, 5)], [tensor(2, 5)], rounding_mode="floor")
    assert (c.vector_flop, c.special_flop) == (10, 10)


def test_a_complex_number_as_an_argument_is_a_complex_factor(tensor, cost):
    z = tensor(2, 5, dtype="complex64")
    assert cost("mul", [z], [z], other=2j).vector_flop == 60
    assert cost("mul", [z], [z], other=2.0).vector_flop == 20
    assert cost("div", [z], [z], other=2.0).special_flop == 20
    assert cost("mul", [tensor(2, 5)], [z], other=2j).vector_flop == 20


def test_log_gamma_of_several_dimensions(tensor, cost):
    c = cost("mvlgamma", [tensor(2, 5)], [tensor(2, 5)], p=3)
    assert (c.vector_flop, c.special_flop) == (60, 30)  # three shifts, three sums; three log-gammas


def test_selecting_by_a_mask_reads_what_it_selects(tensor, cost):
    c = cost("masked_select", [tensor(100, 100), tensor(100, 100, dtype="bool")], [tensor(7)])
    assert c.vector_flop == 10000  # counted along the mask
    assert (c.read_bytes, c.write_bytes) == (10028, 28)  # the mask, and 7 · 4; 7 · 4


def test_an_in_place_op_reads_and_writes_the_same_tensor(tensor, cost):
    x, y = tensor(2, 5), tensor(2, 5)
    c = cost("add_", [x, y], [x], alpha=1)
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (10, 80, 40)


def test_a_tensor_passed_twice_is_read_once(tensor, cost):
    x = tensor(2, 5)
    assert cost("mul", [x, x], [tensor(2, 5)]).read_bytes == 40


def test_broadcasting_computes_every_output_and_reads_what_there_is(tensor, cost):
    c = cost("mul", [tensor(4, 1), tensor(1, 6)], [tensor(4, 6)])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (24, 40, 96)  # 4·6; 4 · (4 + 6); 4 · 4·6


def test_an_expanded_input_counts_the_memory_behind_it(tensor, cost):
    c = cost("mul", [tensor(4, 6, stride=(0, 1)), tensor(4, 6)], [tensor(4, 6)])
    assert (c.vector_flop, c.read_bytes) == (24, 120)  # 4 · (6 + 4·6)


def test_a_comparison_writes_one_byte_an_element(tensor, cost):
    c = cost("gt", [tensor(2, 5)], [tensor(2, 5, dtype="bool")])
    assert (c.read_bytes, c.write_bytes) == (40, 10)


# --- traced ---------------------------------------------------------------------------------------------------


def test_a_traced_square_reads_its_input_once(traced):
    graph = traced(lambda x: x * x, (4, 5))
    assert (graph.vector_flop, graph.read_bytes, graph.write_bytes) == (20, 80, 80)


def test_a_traced_sum_with_an_expanded_tensor(traced):
    graph = traced(lambda x: x + x[:1].expand(4, 5), (4, 5))
    assert graph.vector_flop == 20
    assert graph.read_bytes == 100  # 4 · (4·5 + 5)


@pytest.mark.parametrize(
    ("function", "flop"),
    [
        (lambda x: x**2 / 3, 20),
        (lambda x: x.clamp(min=0), 10),
        (lambda x: x.square().sum(), 20),
        (lambda x: torch.isfinite(x), 40),  # |x| ≠ inf; x = x; and
        (lambda x: torch.linalg.cross(x[:, :3], x[:, 2:]), 18),  # 3 · 2·3
        (lambda x: (x > 0).logical_and(x < 1), 30),
        (lambda x: torch.lerp(x, x + 1, 0.5), 40),
        (lambda x: torch.where(x > 0, x, 0.0), 20),
        (lambda x: torch.view_as_real(torch.complex(x, x) * torch.complex(x, x)), 60),
    ],
)
def test_traced_arithmetic_of_ten_elements(traced, function, flop):
    assert traced(function, (2, 5)).flop == flop


@pytest.mark.parametrize(
    "function",
    [
        *("atan", "asin", "acos", "tan", "sinh", "cosh", "asinh", "acosh", "atanh", "exp2", "log10", "log1p"),
        *("erf", "erfc", "erfinv", "lgamma", "digamma", "nan_to_num", "frac", "square", "deg2rad", "sinc", "rsqrt"),
        *("logit", "i0", "abs", "angle", "expm1", "sign"),
    ],
)
def test_every_op_of_a_function_and_its_gradient_has_a_rule(traced, function):
    # the trace raises UnknownOpError where one has none
    assert traced(Learned(getattr(torch, function)), (2, 5), mode="training").flop > 0


@pytest.mark.parametrize(
    "function",
    [
        *("fmod", "remainder", "atan2", "hypot", "copysign", "xlogy", "logaddexp", "logaddexp2", "maximum", "minimum"),
        *("fmax", "fmin", "pow", "true_divide"),
    ],
)
def test_every_op_of_a_function_of_two_and_its_gradient_has_a_rule(traced, function):
    assert traced(Learned(lambda x: getattr(torch, function)(x, x + 1)), (2, 5), mode="training").flop > 0


@pytest.mark.parametrize("function", ["exp", "log", "sqrt", "sgn", "reciprocal", "sin", "tanh", "sigmoid", "square"])
def test_every_op_of_a_complex_function_and_its_gradient_has_a_rule(traced, function):
    def parts(x):
        return torch.view_as_real(getattr(torch, function)(x))

    assert traced(Learned(parts), Input(2, 5, dtype="complex64"), mode="training").flop > 0


def test_traced_integer_arithmetic(traced):
    graph = traced(lambda x: ((x << 1) | (x >> 1)) ^ (~x & 3), Input(2, 5, dtype="int64"))
    assert graph.vector_flop == 60  # six operations


def test_is_it_infinite_takes_two_kernels(tensor, costs):
    absolute, compared = costs("isinf", [tensor(2, 5)], [tensor(2, 5, dtype="bool")])
    assert (absolute.flop, absolute.bytes) == (10, 10 * (4 + 4))
    assert (compared.flop, compared.bytes) == (10, 10 * (4 + 1))
