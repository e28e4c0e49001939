"""Reductions, norms, sorting and pooling, counted by hand."""

from operator import methodcaller

import pytest
import torch
from learned import Learned, squares
from torch import nn

from rooflinekit.cost.rules.reduction import ceil_log2
from rooflinekit.ir.sizes import symbol

# --- reductions -----------------------------------------------------------------------------------------------


def test_whether_tensors_are_equal_takes_two_kernels(tensor, costs):
    compared, held = costs("equal", [tensor(2, 5), tensor(2, 5)], [])
    assert (compared.flop, compared.bytes) == (10, 10 * (4 + 4 + 1))
    assert (held.flop, held.bytes) == (10, 10 + 1)


def test_tensors_of_other_shapes_are_known_to_differ(costs, tensor):
    assert costs("equal", [tensor(2, 3), tensor(2, 5)], []) == ()


def test_distances_of_many_points_are_a_product(tensor, costs):
    found = costs("_euclidean_dist", [tensor(30, 4), tensor(20, 4)], [tensor(30, 20)])
    assert sum(c.matrix_flop for c in found) == 7200  # 2 · 30·20·(4 + 2)
    # -2·a 120; squares and their sums 2·120 and 2·80; a comparison a pair
    assert sum(c.vector_flop for c in found) == 1120
    assert sum(c.special_flop for c in found) == 600
    # scaled 960; a's squares 960, sums 600, ones 120, rows 720·2; b's 640, 400, 80, 480·2; product 1200 + 2400;
    # in place twice 4800
    assert sum(c.bytes for c in found) == 19360


def test_cumsum_writes_as_much_as_it_reads(tensor, cost):
    c = cost("cumsum", [tensor(4, 6)], [tensor(4, 6)])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (24, 96, 96)


@pytest.mark.parametrize(("kind", "roots"), [("var", 0), ("std", 4), ("var_mean", 0), ("std_mean", 4)])
def test_a_variance_is_mean_difference_square_and_sum(tensor, cost, kind, roots):
    c = cost(kind, [tensor(4, 6)], [tensor(4)])
    assert (c.vector_flop, c.special_flop) == (96, roots)  # 4 · 24
    assert (c.read_bytes, c.write_bytes) == (96, 16)
    assert cost(kind, [tensor(4, 6, dtype="complex64")], [tensor(4)]).vector_flop == 192


def test_a_norm_squares_and_sums_and_takes_a_root(tensor, cost):
    c = cost("linalg_vector_norm", [tensor(4, 6)], [tensor(4)])
    assert (c.vector_flop, c.special_flop) == (48, 4)  # 2 · 24; a root a row
    assert (c.read_bytes, c.write_bytes) == (96, 16)


def test_the_largest_and_its_place_are_both_written(traced):
    graph = traced(lambda x: torch.max(x, dim=1), (4, 6))
    assert (graph.vector_flop, graph.write_bytes) == (24, 48)  # 4 values of 4 bytes, 4 places of 8


def test_the_sum_of_an_expanded_tensor_adds_each_element_and_reads_one(traced):
    graph = traced(lambda x: x.expand(4, 6).sum(), (1,))
    assert (graph.vector_flop, graph.read_bytes, graph.write_bytes) == (24, 4, 4)


@pytest.mark.parametrize("kind", ["sum", "mean", "cumsum", "any"])
def test_a_complex_number_is_two_operations(tensor, cost, kind):
    c = cost(kind, [tensor(4, 6, dtype="complex64")], [tensor(4, dtype="complex64")])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (48, 192, 32)


ONE_OPERATION = """
sum mean amax amin max min argmax argmin any all prod cumprod cummax cummin bincount
"""


@pytest.mark.parametrize(
    ("kind", "vector", "special"),
    [
        *((kind, 24, 0) for kind in ONE_OPERATION.split()),
        ("nansum", 48, 0),  # is it a number; sum
        ("count_nonzero", 48, 0),  # is it zero; sum
        ("aminmax", 48, 0),
        ("logcumsumexp", 72, 48),  # difference, maximum, + log1p(exp(…)) of 24
    ],
)
def test_operations_of_24_numbers_in_4_rows(tensor, cost, kind, vector, special):
    c = cost(kind, [tensor(4, 6)], [tensor(4)])
    assert (c.vector_flop, c.special_flop) == (vector, special)
    assert (c.read_bytes, c.write_bytes) == (96, 16)


def test_the_logarithm_of_a_sum_takes_nine_kernels(tensor, costs):
    found = costs("logsumexp", [tensor(4, 6)], [tensor(4)])
    # maximum; its absolute value; is it infinite; 0 for it; x - maximum; exp; sum; log; + maximum
    assert [c.bytes for c in found] == [96 + 16, 32, 16 + 4, 16 + 4 + 16, 96 + 16 + 96, 192, 96 + 16, 32, 48]
    assert [c.vector_flop for c in found] == [24, 4, 4, 4, 24, 0, 24, 0, 4]
    assert [c.special_flop for c in found] == [0, 0, 0, 0, 0, 24, 0, 4, 0]


@pytest.mark.parametrize("kind", ["prod", "cumprod"])
def test_complex_products(tensor, cost, kind):
    assert cost(kind, [tensor(4, 6, dtype="complex64")], [tensor(4)]).vector_flop == 144  # 6 · 24


def test_a_trace_reads_the_diagonal(tensor, cost):
    c = cost("trace", [tensor(4, 6)], [tensor()])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (4, 16, 4)


def test_histogram_finds_the_range_where_none_is_given(tensor, cost):
    # ≥ least; ≤ greatest; x - least; times bins/range; count
    assert cost("histc", [tensor(4, 6)], [tensor(10)], bins=10, min=0, max=1).vector_flop == 120
    assert cost("histc", [tensor(4, 6)], [tensor(10)], bins=10, min=0, max=0).vector_flop == 168  # and 2 · 24


# --- norms and distances --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "vector", "special", "complex_vector", "complex_special"),
    [
        (2, 48, 4, 96, 4),  # square, sum, root of 4; complex: two squares, two sums
        ("fro", 48, 4, 96, 4),
        (None, 48, 4, 96, 4),
        (1, 48, 0, 96, 24),  # absolute, sum; the absolute value of a complex number: 2 more and a root
        (0, 48, 0, 48, 0),  # is it zero, sum
        (float("inf"), 48, 0, 96, 24),  # absolute, compare
        (-float("inf"), 48, 0, 96, 24),
        (3, 48, 28, 96, 52),  # absolute, power, sum; root of 4
        (0.5, 48, 28, 96, 52),
    ],
)
def test_norms_of_every_order(tensor, cost, order, vector, special, complex_vector, complex_special):
    for kind, name in (("linalg_vector_norm", "ord"), ("norm", "p")):
        c = cost(kind, [tensor(4, 6)], [tensor(4)], **{name: order})
        assert (c.vector_flop, c.special_flop, c.bytes) == (vector, special, 112)
        c = cost(kind, [tensor(4, 6, dtype="complex64")], [tensor(4)], **{name: order})
        assert (c.vector_flop, c.special_flop, c.bytes) == (complex_vector, complex_special, 208)


def test_distances(tensor, cost, costs):
    difference, norm = costs("dist", [tensor(4, 6), tensor(4, 6)], [tensor()], p=2)
    assert (difference.flop, difference.bytes) == (24, 24 * 12)
    assert (norm.vector_flop, norm.special_flop, norm.bytes) == (48, 1, 24 * 4 + 4)  # square, sum of 24; a root
    # 4 · 5 pairs of points of 6 numbers: difference, square, sum of 120; a root of 20
    c = cost("_cdist_forward", [tensor(4, 6), tensor(5, 6)], [tensor(4, 5)], p=2.0)
    assert (c.vector_flop, c.special_flop) == (360, 20)
    assert (c.read_bytes, c.write_bytes) == (216, 80)
    c = cost("_pdist_forward", [tensor(4, 6)], [tensor(6)], p=1.0)
    assert (c.vector_flop, c.special_flop) == (108, 0)  # 6 pairs: difference, absolute, sum of 36


@pytest.mark.parametrize(
    ("order", "vector", "special"),
    [
        (2.0, 360, 20),  # 3 · 120: difference, times gradient/distance, sum; that quotient of 20
        (1.0, 480, 0),  # and the sign
        (float("inf"), 600, 0),  # and the absolute value, and whether it is the distance
        (3.0, 600, 160),  # and the absolute value, and times its power; power of 120; power, quotient of 20
    ],
)
def test_gradients_of_distances(tensor, cost, order, vector, special):
    inputs = [tensor(4, 5), tensor(4, 6), tensor(5, 6), tensor(4, 5)]
    c = cost("_cdist_backward", inputs, [tensor(4, 6)], p=order)
    assert (c.vector_flop, c.special_flop) == (vector, special)
    assert (c.read_bytes, c.write_bytes) == (376, 96)  # 4 · (20 + 24 + 30 + 20); 4 · 24


def test_both_points_of_a_pair_get_a_gradient(tensor, cost):
    c = cost("_pdist_backward", [tensor(6), tensor(4, 6), tensor(6)], [tensor(4, 6)], p=2.0)
    assert (c.vector_flop, c.special_flop) == (144, 6)  # 4 · 36; 6 quotients


# --- order ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "halvings"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10), (1025, 11), (2**33, 33)]
)
def test_halvings_of_numbers_and_of_named_sizes(n, halvings):
    assert ceil_log2(n) == halvings
    if n:
        assert ceil_log2(symbol("n")).subs(symbol("n"), n) == halvings


@pytest.mark.parametrize(
    ("dim", "shape", "comparisons"),
    [(1, (4, 6), 72), (0, (4, 6), 48), (-1, (3, 1000), 30000), (0, (), 0)],  # 24 · 3; 24 · 2; 3000 · 10
)
def test_sorting(tensor, cost, dim, shape, comparisons):
    values, places = tensor(*shape), tensor(*shape, dtype="int64")
    c = cost("sort", [tensor(*shape)], [values, places], dim=dim, descending=False)
    assert (c.vector_flop, c.write_bytes) == (comparisons, 3 * c.read_bytes)


@pytest.mark.parametrize("kind", ["topk", "kthvalue", "median", "nanmedian"])
def test_selecting_is_a_comparison_an_element(tensor, cost, kind):
    c = cost(kind, [tensor(4, 6)], [tensor(4), tensor(4, dtype="int64")], dim=1)
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (24, 96, 48)


def test_the_most_frequent_is_found_among_sorted_numbers(tensor, cost):
    assert cost("mode", [tensor(4, 6)], [tensor(4), tensor(4)], dim=1).vector_flop == 96  # 24 · 3; 24 neighbours


@pytest.mark.parametrize(
    ("kind", "attrs", "comparisons"),
    [
        ("_unique2", {}, 144),  # 24 · 5; 24 neighbours
        ("unique_dim", {"dim": 0}, 72),  # rows of 6, 4 of them: 24 · 2; 24
        ("unique_consecutive", {}, 24),
    ],
)
def test_what_is_unique_is_found_among_sorted_numbers(tensor, cost, kind, attrs, comparisons):
    assert cost(kind, [tensor(4, 6)], [tensor(10)], **attrs).vector_flop == comparisons


def test_searching_halves_the_boundaries(tensor, cost):
    x, boundaries = tensor(4, 6), tensor(7)
    c = cost("bucketize", [x, boundaries], [tensor(4, 6, dtype="int64")], boundaries=boundaries)
    assert (c.vector_flop, c.bytes) == (72, 316)  # 8 places: 3 · 24; 4 · (24 + 7) + 8 · 24
    rows = tensor(4, 8)
    c = cost("searchsorted", [rows, x], [tensor(4, 6, dtype="int64")], sorted_sequence=rows)
    assert c.vector_flop == 96  # 9 places: 4 · 24


# --- traced ---------------------------------------------------------------------------------------------------


REDUCTIONS = ["sum", "mean", "amax", "amin", "max", "min", "prod", "var", "std", "norm", "median", "nansum", "nanmean"]
TRAINED = {
    **{name: methodcaller(name) for name in REDUCTIONS},
    **{
        f"norm {order}": lambda x, order=order: torch.linalg.vector_norm(x, order, dim=1)
        for order in (0, 1, 2, 3, float("inf"))
    },
    **{f"distances {order}": lambda x, order=order: torch.cdist(x, x, p=order) for order in (1.0, 2.0, 3.0)},
}


@pytest.mark.parametrize("function", TRAINED.values(), ids=TRAINED)
def test_every_op_of_a_reduction_and_its_gradient_has_a_rule(traced, function):
    # the trace raises UnknownOpError where one has none
    assert traced(Learned(function), (4, 6), mode="training").flop > 0


@pytest.mark.parametrize("function", ["logsumexp", "logcumsumexp", "cumsum", "cumprod", "cummax", "sort", "kthvalue"])
def test_every_op_along_a_dimension_has_a_rule(traced, function):
    arguments = (2, 1) if function == "kthvalue" else (1,)
    assert traced(lambda x: getattr(x, function)(*arguments), (4, 6)).flop > 0


def test_sorting_a_named_size(traced):
    graph = traced(lambda x: x.sort(1).values, (4, "n"))
    assert graph.at(n=6).vector_flop == 72  # 24 · 3
    assert graph.at(n=1000).vector_flop == 40000  # 4000 · 10


# --- pooling --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "flop", "read", "write"),
    [
        # one comparison a window element; the places take 8 bytes each
        (nn.MaxPool2d(2), (2, 3, 8, 6), 288, 1152, 864),  # 72 outputs · 4; 4 · 288; 72 · (4 + 8)
        (nn.MaxPool2d(3, stride=2, padding=1), (2, 3, 8, 6), 648, 1152, 864),  # 72 · 9
        (nn.MaxPool1d(2), (2, 3, 8), 48, 192, 288),  # 24 · 2
        (nn.MaxPool3d(2), (1, 2, 4, 4, 4), 128, 512, 192),  # 16 · 8
        # one addition a window element and one multiplication an output
        (nn.AvgPool2d(2), (2, 3, 8, 6), 360, 1152, 288),  # 72 · 5
        (nn.AvgPool1d(2), (2, 3, 8), 72, 192, 96),  # 24 · 3
        (nn.AvgPool3d(2), (1, 2, 4, 4, 4), 144, 512, 64),  # 16 · 9
        (nn.AdaptiveAvgPool2d(2), (2, 3, 8, 6), 312, 1152, 96),  # 288 added, 24 multiplied
        (nn.AdaptiveAvgPool1d(4), (2, 3, 8), 72, 192, 96),  # 48 added, 24 multiplied
        (nn.AdaptiveAvgPool2d(1), (2, 3, 8, 6), 288, 1152, 24),  # torch takes the mean
    ],
)
def test_pooling_forward(traced, layer, shape, flop, read, write):
    graph = traced(layer, shape)
    assert (graph.vector_flop, graph.special_flop) == (flop, 0)
    assert (graph.read_bytes, graph.write_bytes) == (read, write)


@pytest.mark.parametrize(
    ("layer", "kind", "flop", "read"),
    [
        # gradient and places; of the input the shape is enough
        (nn.MaxPool2d(2), "max_pool2d_with_indices_backward", 72, 864),  # 72 additions; 72 · (4 + 8)
        (nn.AvgPool2d(2), "avg_pool2d_backward", 360, 288),  # 72 · (4 + 1); 4 · 72
        (nn.AdaptiveAvgPool2d(2), "_adaptive_avg_pool2d_backward", 288, 96),  # 288 multiplied; 4 · 24
    ],
)
def test_pooling_backward(traced, costs_of, layer, kind, flop, read):
    graph = traced(Learned(layer), (2, 3, 8, 6), mode="training", loss=squares)
    (c,) = costs_of(graph, kind)
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (flop, read, 1152)


def test_one_number_for_a_window_means_a_square_or_a_cube(tensor, cost):
    square = cost("avg_pool2d", [tensor(1, 2, 4, 4)], [tensor(1, 2, 2, 2)], kernel_size=(2,))
    assert square.vector_flop == 40  # 8 · (4 + 1)
    cube = cost("avg_pool3d", [tensor(1, 2, 4, 4, 4)], [tensor(1, 2, 2, 2, 2)], kernel_size=(2,))
    assert cube.vector_flop == 144  # 16 · (8 + 1)
