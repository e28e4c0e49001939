"""Reading and writing by index: the elements that are touched, counted by hand."""

import pytest
import torch
from learned import Learned, in_mode, squares
from torch import nn
from torch.nn import functional

from rooflinekit import Input


def indices(*shape):
    return Input(*shape, dtype="int64")


# --- reading --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["index", "index_select", "gather", "take", "_unsafe_index"])
def test_gathering_reads_what_the_indices_name(tensor, cost, kind):
    source, index, y = tensor(1000, 4), tensor(3, dtype="int64"), tensor(3, 4)
    c = cost(kind, [source, index], [y])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 72, 48)  # 4 · 3·4 + 8 · 3; 4 · 3·4


@pytest.mark.parametrize("kind", ["nonzero", "nonzero_static"])
def test_places_of_nonzero_elements_are_a_comparison_and_a_running_count(tensor, cost, kind):
    c = cost(kind, [tensor(5, 4)], [tensor(6, 2, dtype="int64")])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (40, 80, 96)  # 2 · 20; 4 · 20; 8 · 6·2


# --- writing --------------------------------------------------------------------------------------------------


def test_scattering_in_place_writes_one_element_an_index(tensor, cost):
    x, index, source = tensor(100, 4), tensor(3, 2, dtype="int64"), tensor(3, 2)
    c = cost("scatter_", [x, index, source], [x], dim=1)
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 72, 24)  # 8 · 6 + 4 · 6; 4 · 6


def test_scattering_out_of_place_copies_the_whole_first(tensor, costs):
    x, index, source = tensor(100, 4), tensor(3, 2, dtype="int64"), tensor(3, 2)
    copy, scatter = costs("scatter", [x, index, source], [tensor(100, 4)], dim=1)
    assert (copy.label, copy.flop, copy.read_bytes, copy.write_bytes) == ("copy", 0, 1600, 1600)  # 4 · 400
    assert (scatter.label, scatter.read_bytes, scatter.write_bytes) == ("scatter", 72, 24)


def test_a_number_is_scattered_without_a_source(tensor, cost):
    x, index = tensor(100, 4), tensor(3, 2, dtype="int64")
    c = cost("scatter_", [x, index], [x], dim=1, value=2.0)
    assert (c.read_bytes, c.write_bytes) == (48, 24)


@pytest.mark.parametrize(
    ("kind", "attrs"), [("scatter_add_", {}), ("scatter_", {"reduce": "add"}), ("scatter_reduce_", {"reduce": "amax"})]
)
def test_reducing_scatters_read_what_they_add_to(tensor, cost, kind, attrs):
    x, index, source = tensor(100, 4), tensor(3, 2, dtype="int64"), tensor(5, 4)
    c = cost(kind, [x, index, source], [x], dim=1, **attrs)
    assert c.vector_flop == 6
    assert c.read_bytes == 96  # indices 8 · 6; of the source and of the target 4 · 6 each
    assert c.write_bytes == 24


def test_a_mean_of_what_is_scattered_counts_and_divides(tensor, costs):
    x, index, source = tensor(10, 4), tensor(3, 4, dtype="int64"), tensor(3, 4)
    copy, added, count, division = costs("scatter_reduce", [x, index, source], [tensor(10, 4)], dim=0, reduce="mean")
    assert (copy.read_bytes, copy.write_bytes) == (160, 160)
    assert (added.vector_flop, added.read_bytes, added.write_bytes) == (12, 192, 48)  # 8 · 12 + 2 · 4 · 12
    assert (count.vector_flop, count.read_bytes, count.write_bytes) == (12, 144, 48)  # 8 · 12 + 4 · 12
    assert (division.special_flop, division.read_bytes, division.write_bytes) == (40, 320, 160)  # 2 · 4 · 40


def test_rows_added_by_index(tensor, cost):
    x, index, source = tensor(100, 4), tensor(3, dtype="int64"), tensor(3, 4)
    c = cost("index_add_", [x, index, source], [x], dim=0)
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (12, 120, 48)  # 8 · 3 + 2 · 4 · 12
    assert cost("index_add_", [x, index, source], [x], dim=0, alpha=2).vector_flop == 24  # times alpha


def test_rows_copied_and_filled_by_index(tensor, cost):
    x, index, source = tensor(100, 4), tensor(3, dtype="int64"), tensor(3, 4)
    c = cost("index_copy_", [x, index, source], [x], dim=0)
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 72, 48)  # 8 · 3 + 4 · 12
    c = cost("index_fill_", [x, index], [x], dim=0, value=1.0)
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 24, 48)
    assert cost("index_fill_", [x, index], [x], dim=-1, value=1.0).write_bytes == 1200  # 3 columns of 4 · 100


def test_rows_reduced_by_index(tensor, costs):
    x, index, source = tensor(100, 4), tensor(3, dtype="int64"), tensor(3, 4)
    (product,) = costs("index_reduce_", [x, index, source], [x], dim=0, reduce="prod")
    assert (product.vector_flop, product.read_bytes, product.write_bytes) == (12, 120, 48)
    _, count, division = costs("index_reduce_", [x, index, source], [x], dim=0, reduce="mean")
    assert (count.vector_flop, count.read_bytes, division.special_flop) == (12, 72, 400)  # 8 · 3 + 4 · 12


def test_elements_put_by_their_number(tensor, cost):
    x, index, source = tensor(100, 4), tensor(3, dtype="int64"), tensor(3)
    c = cost("put_", [x, index, source], [x], accumulate=False)
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 36, 12)  # 8 · 3 + 4 · 3
    c = cost("put_", [x, index, source], [x], accumulate=True)
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (3, 48, 12)


@pytest.mark.parametrize(
    ("places", "values", "elements", "read"),
    [
        ([(3,)], (3, 4), 12, 72),  # rows: 8 · 3 + 4 · 12
        ([None, (3,)], (100, 3), 300, 1224),  # columns: 8 · 3 + 4 · 300
        ([(3, 1), (2,)], (3, 2), 6, 64),  # a grid of places: 8 · 3 + 8 · 2 + 4 · 6
        ([(3,)], (), 12, 28),  # one number everywhere: 8 · 3 + 4
    ],
)
def test_values_put_at_places(tensor, cost, places, values, elements, read):
    x, source = tensor(100, 4), tensor(*values)
    index = tuple(None if shape is None else tensor(*shape, dtype="int64") for shape in places)
    given = [x, *(i for i in index if i is not None), source]
    c = cost("index_put_", given, [x], indices=index, accumulate=False)
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, read, 4 * elements)
    added = cost("index_put_", given, [x], indices=index, accumulate=True)
    assert (added.vector_flop, added.read_bytes) == (elements, read + 4 * elements)


def test_a_mask_counts_as_if_it_named_every_element(tensor, cost):
    x, mask, value = tensor(5, 4), tensor(5, 4, dtype="bool"), tensor(20)
    c = cost("index_put_", [x, mask, value], [x], indices=(mask,), accumulate=False)
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 100, 80)  # 20 + 4 · 20; 4 · 20
    few = cost("index_put_", [x, mask, tensor(7)], [x], indices=(mask,), accumulate=False, named=7)
    assert (few.flop, few.read_bytes, few.write_bytes) == (0, 48, 28)  # 20 + 4 · 7; 4 · 7


def test_one_number_under_a_mask_is_a_selection_an_element(tensor, cost):
    x, mask = tensor(5, 4), tensor(5, 4, dtype="bool")
    c = cost("index_put_", [x, mask, tensor()], [x], indices=(mask,), accumulate=False)
    assert (c.flop, c.read_bytes, c.write_bytes) == (20, 104, 80)  # 4 · 20 + 20 + 4; 4 · 20


def test_a_masked_scatter_counts_the_mask_first(tensor, costs):
    x, mask, source = tensor(5, 4), tensor(5, 4, dtype="bool"), tensor(7)
    copy, count, scatter = costs("masked_scatter", [x, mask, source], [tensor(5, 4)])
    assert (copy.read_bytes, copy.write_bytes) == (80, 80)
    assert (count.vector_flop, count.read_bytes, count.write_bytes) == (20, 20, 160)  # 8 bytes a count
    assert (scatter.read_bytes, scatter.write_bytes) == (208, 80)  # mask 20, counts 160, source 4 · 7
    (grad,) = costs("masked_scatter_backward", [tensor(5, 4), mask], [tensor(7)])
    assert (grad.vector_flop, grad.read_bytes, grad.write_bytes) == (20, 100, 28)


# --- tables ---------------------------------------------------------------------------------------------------


def test_an_embedding_reads_the_rows_it_names(tensor, cost):
    table, indices = tensor(50257, 768), tensor(1, 2, dtype="int64")
    c = cost("embedding", [table, indices], [tensor(1, 2, 768)])
    assert c.flop == 0
    assert c.read_bytes == 6160  # two rows of 4 · 768 and two indices of 8: not the table's 154 MB
    assert c.write_bytes == 6144  # 4 · 2·768


def test_the_gradient_of_an_embedding(tensor, costs):
    zeros, added = costs("embedding_dense_backward", [tensor(2, 3, 4), tensor(2, 3, dtype="int64")], [tensor(10, 4)])
    assert (zeros.read_bytes, zeros.write_bytes) == (0, 160)  # 4 · 10·4
    assert added.vector_flop == 24  # 2·3·4 numbers added
    assert added.read_bytes == 240  # gradient 96, indices 8 · 6, the rows 96
    assert added.write_bytes == 96


def test_the_gradient_of_an_embedding_scaled_by_frequency(tensor, costs):
    inputs = [tensor(2, 3, 4), tensor(2, 3, dtype="int64")]
    _, added = costs("embedding_dense_backward", inputs, [tensor(10, 4)], scale_grad_by_freq=True)
    assert (added.vector_flop, added.special_flop) == (54, 6)  # 24 added, 24 scaled, 6 counted; 6 divisions


@pytest.mark.parametrize(
    ("order", "vector", "special"),
    [(2.0, 78, 12), (1.0, 78, 12), (3.0, 54, 36)],  # 3 · 24 + 6; 2 a row; powers are special functions
)
def test_rows_named_are_shortened_to_the_largest_norm(tensor, cost, order, vector, special):
    table = tensor(1000, 4)
    inputs = [table, tensor(2, 3, dtype="int64")]
    c = cost("embedding_renorm_", inputs, [table], max_norm=1.0, norm_type=order)
    assert (c.vector_flop, c.special_flop) == (vector, special)
    assert (c.read_bytes, c.write_bytes) == (144, 96)  # 6 rows of 16, 8 · 6; 6 rows


@pytest.mark.parametrize(
    ("mode", "vector", "special"),
    [(0, 24, 0), (1, 24, 8), (2, 24, 0)],  # 6 rows of 4 added, or compared; 2·4 sums divided
)
def test_an_embedding_bag_reads_the_rows_it_names(tensor, cost, mode, vector, special):
    inputs = [tensor(1000, 4), tensor(6, dtype="int64"), tensor(2, dtype="int64")]
    outputs = [tensor(2, 4), tensor(6, dtype="int64"), tensor(2, dtype="int64"), tensor(2, dtype="int64")]
    c = cost("_embedding_bag", inputs, outputs, mode=mode, per_sample_weights=None)
    assert (c.vector_flop, c.special_flop) == (vector, special)
    assert (c.read_bytes, c.write_bytes) == (160, 112)  # 6 rows of 16, 8 · 6, 8 · 2; 4 · 8 + 8 · 10


def test_weights_of_an_embedding_bag_multiply(tensor, cost):
    weights = tensor(6)
    inputs = [tensor(1000, 4), tensor(6, dtype="int64"), tensor(2, dtype="int64"), weights]
    c = cost("_embedding_bag_forward_only", inputs, [tensor(2, 4)], mode=0, per_sample_weights=weights)
    assert (c.vector_flop, c.read_bytes) == (48, 184)  # multiplied and added; 160 and 4 · 6


@pytest.mark.parametrize(
    ("mode", "flop", "touched"),
    [(0, 24, 96), (1, 48, 96), (2, 8, 32)],  # 6 rows; also divided by the size; one row an element of the result
)
def test_gradients_of_embedding_bags(tensor, costs, mode, flop, touched):
    grad, index, offsets = tensor(2, 4), tensor(6, dtype="int64"), tensor(2, dtype="int64")
    attrs = {"indices": index, "mode": mode, "per_sample_weights": None, "sparse": False}
    zeros, added = costs("_embedding_bag_backward", [grad, index, offsets], [tensor(10, 4)], **attrs)
    assert (zeros.read_bytes, zeros.write_bytes) == (0, 160)
    assert added.vector_flop == flop
    assert (added.read_bytes, added.write_bytes) == (96 + touched, touched)  # 4 · 8 + 8 · 8, and what is added to


def test_a_sparse_gradient_of_an_embedding_bag_is_a_row_for_each_index(tensor, cost):
    grad, index = tensor(2, 4), tensor(6, dtype="int64")
    attrs = {"indices": index, "mode": 0, "per_sample_weights": None, "sparse": True}
    c = cost("_embedding_bag_backward", [grad, index], [tensor(1000, 4)], **attrs)
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 80, 96)  # 4 · 8 + 8 · 6; 6 rows of 16


def test_the_gradient_of_the_weights_of_a_bag_is_a_product_a_row(tensor, cost):
    inputs = [tensor(2, 4), tensor(1000, 4), tensor(6, dtype="int64")]
    c = cost("_embedding_bag_per_sample_weights_backward", inputs, [tensor(6)], mode=0)
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (48, 176, 24)  # 2 · 24; 32 + 48 + 6 rows of 16


# --- traced ---------------------------------------------------------------------------------------------------


def set_rows(x, i, values):
    x = x.clone()
    x[i] = values
    return x


def set_columns(x, i):
    x = x.clone()
    x[:, i] = 0.0
    return x


TRACED = {
    "gather": (lambda x, i: x.gather(1, i), [(3, 4), indices(3, 2)]),
    "take": (torch.take, [(3, 4), indices(5)]),
    "take_along_dim": (lambda x, i: x.take_along_dim(i, 1), [(3, 4), indices(3, 2)]),
    "index": (lambda x, i: x[i], [(5, 4), indices(3)]),
    "index two": (lambda x, i, j: x[i, j], [(5, 4), indices(3), indices(3)]),
    "index columns": (lambda x, i: x[:, i], [(5, 4), indices(3)]),
    "index_select": (lambda x, i: x.index_select(0, i), [(5, 4), indices(3)]),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), [(3, 4), indices(3, 2), (3, 2)]),
    "scatter value": (lambda x, i: x.scatter(1, i, 2.0), [(3, 4), indices(3, 2)]),
    "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), [(3, 4), indices(3, 2), (3, 2)]),
    "scatter_reduce": (lambda x, i, s: x.scatter_reduce(1, i, s, "mean"), [(3, 4), indices(3, 2), (3, 2)]),
    "index_add": (lambda x, i, s: x.index_add(0, i, s, alpha=2), [(5, 4), indices(3), (3, 4)]),
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), [(5, 4), indices(3), (3, 4)]),
    "index_fill": (lambda x, i: x.index_fill(0, i, 2.0), [(5, 4), indices(3)]),
    "index_reduce": (lambda x, i, s: x.index_reduce(0, i, s, "amax"), [(5, 4), indices(3), (3, 4)]),
    "index_put": (lambda x, i, s: x.index_put((i,), s, accumulate=True), [(5, 4), indices(3), (3, 4)]),
    "assignment": (set_rows, [(5, 4), indices(3), (3, 4)]),
    "assignment of a number": (set_columns, [(5, 4), indices(3)]),
    "put": (lambda x, i, s: x.put(i, s), [(5, 4), indices(3), (3,)]),
    "masked_scatter": (lambda x, m, s: x.masked_scatter(m, s), [(3, 4), Input(3, 4, dtype="bool"), (3, 4)]),
    "weighted bag": (
        lambda i, w, p: functional.embedding_bag(i, w, per_sample_weights=p, mode="sum"),
        [indices(2, 3), (10, 4), (2, 3)],
    ),
}


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("function", "inputs"), TRACED.values(), ids=TRACED)
def test_every_op_by_index_has_a_rule(traced, function, inputs, mode):
    assert traced(Learned(function), *inputs, **in_mode(mode)).coverage.bytes_share == 1


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Embedding(10, 4, padding_idx=0),
        nn.Embedding(10, 4, max_norm=1.0),
        nn.Embedding(10, 4, scale_grad_by_freq=True),
        nn.Embedding(10, 4, sparse=True),
        nn.EmbeddingBag(10, 4, mode="sum"),
        nn.EmbeddingBag(10, 4, mode="mean"),
        nn.EmbeddingBag(10, 4, mode="max"),
    ],
    ids=str,
)
def test_every_op_of_tables_has_a_rule(traced, layer, mode):
    assert traced(layer, indices(2, 3), mode=mode).coverage.bytes_share == 1


def test_a_traced_embedding_and_its_gradient(traced, costs_of):
    graph = traced(
        nn.Embedding(100, 8), Input("batch", 3, dtype="int64"), mode="training", loss=lambda y: (y * y).sum()
    )
    (forward,) = costs_of(graph, "embedding")
    assert str(forward.read_bytes) == "120*batch"  # batch·3 · (4 · 8 + 8)
    assert str(forward.write_bytes) == "96*batch"  # batch·3 · 4 · 8
    zeros, added = costs_of(graph, "embedding_dense_backward")
    assert zeros.write_bytes == 3200  # 4 · 100·8
    assert str(added.read_bytes) == "216*batch"  # batch·3 · (4·8 gradient + 8 index + 4·8 row)
    assert str(added.write_bytes) == "96*batch"


def test_one_hot_vectors_have_rules(traced):
    assert traced(lambda i: functional.one_hot(i, 10), indices(5)).coverage.bytes_share == 1


def test_the_gradient_of_picked_rows_is_zeros_and_a_sum(traced, costs_of):
    graph = traced(Learned(lambda x, i: x[i]), ("rows", 4), indices("picked"), mode="training", loss=squares)
    (zeros,) = costs_of(graph, "new_zeros")
    assert str(zeros.write_bytes) == "16*rows"
    copy, added = costs_of(graph, "index_put")
    assert str(copy.write_bytes) == "16*rows"
    # indices 8, gradient 16 and target 16 a row
    assert (str(added.vector_flop), str(added.read_bytes)) == ("4*picked", "40*picked")


def test_writing_rows_in_place_touches_the_rows(traced, costs_of):
    def overwrite(x, i, values):
        x[i] = values
        return x

    graph = traced(overwrite, (1000, 4), indices(3), (3, 4))
    assert (graph.flop, graph.read_bytes, graph.write_bytes) == (0, 72, 48)  # 8 · 3 + 4 · 12; 4 · 12
