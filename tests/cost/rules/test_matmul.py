"""Matrix products: 2 FLOP a multiply-add, counted by hand."""

import pytest
import torch
from learned import Uses
from torch import nn

from rooflinekit import Input


def test_mm_by_hand(tensor, cost):
    c = cost("mm", [tensor(7, 5), tensor(5, 3)], [tensor(7, 3)])
    assert c.matrix_flop == 210  # 2 · 7·5·3
    assert (c.vector_flop, c.special_flop) == (0, 0)
    assert c.read_bytes == 200  # 4 · (7·5 + 5·3)
    assert c.write_bytes == 84  # 4 · 7·3


def test_mm_in_bfloat16_halves_the_bytes_and_keeps_the_flop(tensor, cost):
    a, b, y = (tensor(*shape, dtype="bfloat16") for shape in ((7, 5), (5, 3), (7, 3)))
    c = cost("mm", [a, b], [y])
    assert (c.matrix_flop, c.read_bytes, c.write_bytes) == (210, 100, 42)


def test_addmm_adds_its_bias_in_the_same_kernel(tensor, cost):
    c = cost("addmm", [tensor(3), tensor(7, 5), tensor(5, 3)], [tensor(7, 3)], beta=1, alpha=1)
    assert c.matrix_flop == 210
    assert c.vector_flop == 21  # one addition for each of 7·3
    assert c.read_bytes == 212  # 200 and the bias, 4 · 3
    assert c.write_bytes == 84


@pytest.mark.parametrize(
    ("factors", "vector", "read"),
    [
        ({"beta": 0, "alpha": 1}, 0, 200),  # the input is not read
        ({"beta": 0, "alpha": 2}, 21, 200),  # times alpha
        ({"beta": 1, "alpha": 0.5}, 42, 212),  # times alpha, plus
        ({"beta": 3, "alpha": 2}, 63, 212),  # times beta, times alpha, plus
        ({}, 21, 212),  # one, where they are not named
    ],
)
def test_addmm_with_factors(tensor, cost, factors, vector, read):
    c = cost("addmm", [tensor(3), tensor(7, 5), tensor(5, 3)], [tensor(7, 3)], **factors)
    assert (c.matrix_flop, c.vector_flop, c.read_bytes) == (210, vector, read)


def test_bmm_and_baddbmm_by_hand(tensor, cost):
    a, b, y = tensor(2, 7, 5), tensor(2, 5, 3), tensor(2, 7, 3)
    plain = cost("bmm", [a, b], [y])
    added = cost("baddbmm", [tensor(2, 7, 3), a, b], [y], beta=1, alpha=1)
    assert plain.matrix_flop == added.matrix_flop == 420  # 2 · 2·7·5·3
    assert (plain.vector_flop, added.vector_flop) == (0, 42)  # one addition for each of 2·7·3
    assert (plain.read_bytes, added.read_bytes) == (400, 568)  # 4 · (70 + 30), and 4 · 42 more
    assert plain.write_bytes == added.write_bytes == 168


def test_mv_and_dot_are_matrix_work(tensor, cost):
    mv = cost("mv", [tensor(7, 5), tensor(5)], [tensor(7)])
    dot = cost("dot", [tensor(5), tensor(5)], [tensor()])
    assert (mv.matrix_flop, mv.read_bytes, mv.write_bytes) == (70, 160, 28)  # 2·7·5; 4·(35 + 5); 4·7
    assert (dot.matrix_flop, dot.read_bytes, dot.write_bytes) == (10, 40, 4)  # 2·5; 4·(5 + 5); 4


def test_a_complex_multiply_add_is_four_real_ones(tensor, cost):
    a, b, y = (tensor(*shape, dtype="complex64") for shape in ((7, 5), (5, 3), (7, 3)))
    c = cost("mm", [a, b], [y])
    assert c.matrix_flop == 840  # (a + bi)(c + di): 4 multiplications, 2 additions, and 2 to accumulate: 8 · 7·5·3
    assert (c.read_bytes, c.write_bytes) == (400, 168)  # 8 bytes a number
    u, v = tensor(5, dtype="complex64"), tensor(5, dtype="complex64")
    assert cost("vdot", [u, v], [tensor(dtype="complex64")]).matrix_flop == 40  # 8 · 5


def test_scaled_mm_of_eight_bit_numbers(tensor, cost):
    a, b = tensor(16, 32, dtype="float8_e4m3fn"), tensor(32, 48, dtype="float8_e4m3fn")
    inputs, y = [a, b, tensor(), tensor()], tensor(16, 48, dtype="bfloat16")
    c = cost("_scaled_mm", inputs, [y])
    assert c.matrix_flop == 49152  # 2 · 16·48·32
    assert c.vector_flop == 768  # 16·48 outputs scaled
    assert c.read_bytes == 2056  # 16·32 + 32·48, and two scales of 4
    assert c.write_bytes == 1536  # 2 · 16·48
    bias = tensor(48, dtype="bfloat16")
    biased = cost("_scaled_mm", [*inputs, bias], [y], bias=bias)
    assert (biased.vector_flop, biased.read_bytes) == (1536, 2152)  # an addition more, and 2 · 48 bytes


def test_a_matrix_times_itself_is_read_once(tensor, cost):
    x = tensor(5, 5)
    assert cost("mm", [x, x], [tensor(5, 5)]).read_bytes == 100  # 4 · 5·5


def test_a_matrix_expanded_over_the_batch_is_read_once(tensor, cost):
    shared = tensor(8, 7, 5, stride=(0, 5, 1))
    c = cost("bmm", [shared, tensor(8, 5, 3)], [tensor(8, 7, 3)])
    assert c.matrix_flop == 1680  # 2 · 8·7·5·3: it is multiplied eight times
    assert c.read_bytes == 620  # 4 · (7·5 + 8·5·3)


def test_the_sum_of_a_batch_of_products(tensor, cost):
    c = cost("addbmm", [tensor(7, 3), tensor(2, 7, 5), tensor(2, 5, 3)], [tensor(7, 3)], beta=1, alpha=1)
    assert (c.matrix_flop, c.vector_flop) == (420, 21)  # 2 · 2·7·5·3; one addition for each of 7·3
    assert (c.read_bytes, c.write_bytes) == (484, 84)  # 4 · (21 + 70 + 30)


def test_a_product_of_matrix_and_vector_plus_a_vector(tensor, cost):
    c = cost("addmv", [tensor(7), tensor(7, 5), tensor(5)], [tensor(7)], beta=1, alpha=2)
    assert (c.matrix_flop, c.vector_flop) == (70, 14)  # 2 · 7·5; times alpha, plus
    assert (c.read_bytes, c.write_bytes) == (188, 28)  # 4 · (7 + 35 + 5)


def test_a_matrix_plus_an_outer_product(tensor, cost):
    c = cost("addr", [tensor(7, 3), tensor(7), tensor(3)], [tensor(7, 3)], beta=1, alpha=1)
    assert (c.matrix_flop, c.vector_flop) == (0, 42)  # one multiplication and one addition for each of 7·3
    assert (c.read_bytes, c.write_bytes) == (124, 84)


@pytest.mark.parametrize(("gelu", "vector", "special"), [(False, 42, 0), (True, 189, 21)])
def test_a_product_with_its_activation(tensor, cost, gelu, vector, special):
    inputs = [tensor(3), tensor(7, 5), tensor(5, 3)]
    c = cost("_addmm_activation", inputs, [tensor(7, 3)], beta=1, alpha=1, use_gelu=gelu)
    # 21 outputs: bias 1 and ReLU 1, or GELU 8 and a tanh
    assert (c.matrix_flop, c.vector_flop, c.special_flop) == (210, vector, special)


@pytest.mark.parametrize(
    ("a", "b", "y", "flop"),
    [
        ((12, 5), (2, 5, 3), (12, 3), 360),  # 12 rows dealt out to 2 matrices: 2 · 12·5·3
        ((2, 7, 5), (5, 8), (7, 8), 560),  # 8 columns dealt out: 2 · 7·5·8
        ((7, 10), (10, 3), (2, 7, 3), 420),  # 10 summands dealt out: 2 · 7·10·3
        ((2, 7, 5), (2, 5, 3), (2, 7, 3), 420),  # a batch: 2 · 2·7·5·3
    ],
)
def test_grouped_products(tensor, cost, a, b, y, flop):
    assert cost("_grouped_mm", [tensor(*a), tensor(*b)], [tensor(*y)]).matrix_flop == flop


# --- traced ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shapes", "matrix", "vector"),
    [
        (nn.Linear(4, 5), [(3, 4)], 120, 15),  # 2 · 3·4·5; bias on 3·5
        (nn.Linear(4, 5), [(2, 3, 4)], 240, 30),  # 2 · 6·4·5: every row of the 3-D input
        (nn.Linear(4, 5), [(4,)], 40, 5),  # 2 · 4·5
        (nn.Linear(4, 5, bias=False), [(2, 3, 4)], 240, 0),
        (torch.matmul, [(4,), (4,)], 8, 0),  # dot: 2 · 4
        (torch.matmul, [(3, 4), (4,)], 24, 0),  # mv: 2 · 3·4
        (torch.matmul, [(2, 3, 4), (4, 5)], 240, 0),  # folded to 6 rows
        (torch.matmul, [(2, 6, 3, 4), (2, 6, 4, 5)], 1440, 0),  # 2 · 12·3·4·5
        (torch.matmul, [(2, 6, 3, 4), (6, 4, 5)], 1440, 0),  # broadcast over the first dimension
        (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)], 240, 30),  # 2 · 2·3·4·5; 2·3·5 additions
        (lambda a, b: torch.einsum("bik,bjk->bij", a, b), [(2, 3, 4), (2, 5, 4)], 240, 0),
    ],
)
def test_traced_products(traced, model, shapes, matrix, vector):
    graph = traced(model, *shapes)
    assert (graph.matrix_flop, graph.vector_flop, graph.special_flop) == (matrix, vector, 0)


def test_a_traced_linear_layer_reads_weight_bias_and_input_once(traced):
    graph = traced(nn.Linear(4, 5), (2, 3, 4))
    assert graph.read_bytes == 196  # 4 · (2·3·4 + 5·4 + 5)
    assert graph.write_bytes == 120  # 4 · 2·3·5


def test_the_gradient_of_a_bias_is_a_sum_over_the_rows(traced, costs_of):
    graph = traced(nn.Linear(4, 5), ("batch", 4), mode="training", loss=lambda y: (y * y).sum())
    (bias,) = costs_of(graph, "sum", "backward")
    assert str(bias.vector_flop) == "5*batch"
    assert bias.write_bytes == 20  # 4 · 5


def test_the_training_step_of_mv_multiplies_once_more(traced):
    graph = traced(Uses(lambda x, weight: weight @ x, (5, 4)), (4,), mode="training")
    assert graph.matrix_flop == 40  # forward 2·5·4; the weight's gradient is an outer product, element-wise
    assert graph.vector_flop == 25  # the sum over 5 outputs, and 5·4 products


def test_complex_products_are_traced(traced):
    x = Input("rows", 4, dtype="complex64")
    graph = traced(torch.matmul, x, Input(4, 5, dtype="complex64"))
    assert str(graph.matrix_flop) == "160*rows"  # 8 · rows·4·5


def test_the_product_of_a_symbolic_sequence_with_itself(traced):
    graph = traced(lambda x: x @ x.transpose(1, 2), ("batch", "seq", 8))
    assert str(graph.matrix_flop) == "16*batch*seq**2"  # 2 · batch·seq·seq·8


# --- bilinear layers: i = 4 and j = 5 inputs, o = 6 outputs, 3 rows -------------------------------------------


def test_a_bilinear_layer(traced, costs_of):
    graph = traced(nn.Bilinear(4, 5, 6), (3, 4), (3, 5))
    # each output: the rows times [4, 5], 3·4·5 multiply-adds, then each row with the second input, 3·5
    assert graph.matrix_flop == 900  # 2 · 6 · (60 + 15)
    first, second = costs_of(graph, "_trilinear")
    assert (first.matrix_flop, second.matrix_flop) == (720, 180)
    # x [3, 4] and the weight [6, 4, 5]; between them [3, 6, 5], written and read; y [3, 5]; out [3, 6]
    assert (first.read_bytes, first.write_bytes) == (528, 360)
    assert (second.read_bytes, second.write_bytes) == (420, 72)


def test_training_a_bilinear_layer(traced):
    alone = traced(nn.Bilinear(4, 5, 6), (3, 4), (3, 5), mode="training")
    # forward 450 multiply-adds; the weight's gradient: x times the gradient element-wise, then [24, 3] × [3, 5]
    assert alone.matrix_flop == 1620  # 2 · (450 + 360)
    # the first input's: gradient times weight 360, then with y over j 360; the second's: 360, then over o 3·6·5
    # linear layers: 2 · 3·16 and 2 · 3·25, for their weights alone
    left, right, bilinear = nn.Linear(4, 4), nn.Linear(5, 5), nn.Bilinear(4, 5, 6)
    both = traced(lambda x, y: bilinear(left(x), right(y)), (3, 4), (3, 5), mode="training")
    assert both.matrix_flop == 4452  # 2 · (450 + 360 + 720 + 450 + 96 + 150)
