"""Sparse matrices: work and bytes by the numbers that one holds."""

import pytest
import torch
from torch import nn

from rooflinekit import Input, trace

# torch says once that CSR is young, and that indices are not checked
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


class Graph(nn.Module):
    """A linear layer over the sum of each node's neighbours, as in a graph network."""

    def __init__(self, layout):
        super().__init__()
        edges = torch.zeros(10, 10)
        edges[torch.arange(10), (torch.arange(10) * 3) % 10] = 1.0
        edges[0, :5] = 1.0
        self.register_buffer("edges", edges.to_sparse() if layout == "coo" else edges.to_sparse_csr())
        self.linear = nn.Linear(4, 6, bias=False)

    def forward(self, x):
        return torch.sparse.mm(self.edges, self.linear(x))


def sparse_costs(graph, phase="forward"):
    return [c for p in graph.priced if p.op.kind.startswith("sparse") and p.op.phase == phase for c in p.costs]


@pytest.mark.parametrize(
    ("layout", "indices"),
    [("coo", 14 * 2 * 8), ("csr", 14 * 8 + 11 * 8)],  # row and column of each; columns, and where each row begins
)
def test_a_sparse_matrix_costs_the_numbers_it_holds(layout, indices):
    graph = trace(Graph(layout), Input(10, 4), mode="training", strict=True)
    (forward,) = sparse_costs(graph)
    # 10 on the permutation and 4 more in the first row: 14 numbers, each times a row of 6
    assert (forward.matrix_flop, forward.vector_flop) == (168, 0)  # 2 · 14·6
    assert forward.read_bytes == 14 * 4 + indices + 240  # the dense matrix 4 · 60, at most a row a number
    assert forward.write_bytes == 240
    (backward,) = sparse_costs(graph, "backward")
    assert backward.matrix_flop == 168  # the transpose times the gradient
    # the linear layer 2 · 10·4·6, and its weight's gradient
    assert graph.matrix_flop == 168 + 168 + 480 + 480


@pytest.mark.parametrize(
    ("function", "flop"),
    [
        (lambda a, b: a @ b, "8*nnz"),  # 2 · nnz·4
        (lambda a, b: a @ b[:, 0], "2*nnz"),
        (lambda a, b: a.t() @ b[:10], "8*nnz"),
        (lambda a, b: torch.sparse.addmm(b[:10], a, b), "8*nnz"),
    ],
)
def test_a_sparse_matrix_made_of_open_sizes(function, flop):
    def model(indices, values, b):
        return function(torch.sparse_coo_tensor(indices, values, (10, 20)), b)

    graph = trace(model, Input(2, "nnz", dtype="int64"), Input("nnz"), Input(20, 4), strict=True)
    assert str(graph.matrix_flop) == flop


def test_few_numbers_read_few_rows(tensor):
    def model(indices, values, b):
        return torch.sparse_coo_tensor(indices, values, (10, 2000)) @ b

    graph = trace(model, Input(2, 3, dtype="int64"), Input(3), Input(2000, 4))
    assert graph.read_bytes == 3 * 4 + 3 * 16 + 3 * 16  # numbers, indices, three rows of four


def test_a_product_of_two_sparse_matrices_is_a_guess_and_says_so():
    def model(indices, values):
        a = torch.sparse_coo_tensor(indices, values, (10, 10))
        return a @ a

    graph = trace(model, Input(2, 3, dtype="int64"), Input(3))
    assert dict(graph.coverage.default_kinds) == {"sparse_of_unknown_size.mm": 1}


def sparse_step(model, *inputs):
    """What an update of a table by its sparse gradient costs."""
    graph = trace(model, *inputs, mode="training", optimizer=torch.optim.SGD, strict=True)
    (step,) = [c for p in graph.priced if p.op.kind == "sparse.add_" for c in p.costs]
    return step


def test_the_sparse_gradient_of_an_embedding_touches_the_rows_it_names():
    step = sparse_step(nn.Embedding(1000, 8, sparse=True), Input("n", dtype="int64"))
    assert str(step.vector_flop) == "16*n"  # each of n·8 numbers times the rate, and added
    # gradient and table 4 · 8 a row each, an index of 8; the table's rows are written back
    assert (str(step.read_bytes), str(step.write_bytes)) == ("72*n", "32*n")


def test_the_sparse_gradient_of_bags_has_a_row_for_each_index():
    bags = nn.EmbeddingBag(1000, 8, mode="sum", sparse=True)
    step = sparse_step(bags, Input("m", dtype="int64"), Input("n", dtype="int64"))
    # as of an embedding: of each of m indices 8 numbers times the rate, and added, however many bags there are
    assert (str(step.vector_flop), str(step.read_bytes), str(step.write_bytes)) == ("16*m", "72*m", "32*m")


def test_copies_of_a_sparse_tensor(traced):
    graph = trace(
        lambda i, v: torch.sparse_coo_tensor(i, v, (10, 10)).clone().to_dense(), Input(2, 3, dtype="int64"), Input(3)
    )
    (copied,) = [c for p in graph.priced if p.op.kind == "sparse.clone" for c in p.costs]
    assert (copied.read_bytes, copied.write_bytes) == (60, 60)  # 3 · (4 + 2·8)


def test_half_of_the_weights(tensor, cost):
    # [4, 16] packed to [4, 8], times [16, 6]
    packed, places, b = tensor(4, 8, dtype="float16"), tensor(4, 1, dtype="int16"), tensor(16, 6, dtype="float16")
    y = tensor(4, 6, dtype="float16")
    c = cost("_sparse_semi_structured_mm", [packed, places, b], [y])
    assert (c.matrix_flop, c.vector_flop) == (384, 0)  # 2 · 4·6·8
    assert (c.read_bytes, c.write_bytes) == (264, 48)  # 64 + 8 + 192
    added = cost("_sparse_semi_structured_addmm", [tensor(4, dtype="float16"), packed, places, b], [y], alpha=2, beta=1)
    assert (added.matrix_flop, added.vector_flop) == (384, 48)  # times alpha, plus: 2 · 24
    assert added.read_bytes == 272


@pytest.mark.parametrize(("activation", "vector", "special"), [(None, 24, 0), ("relu", 48, 0), ("silu", 96, 48)])
def test_a_linear_layer_of_half_the_weights(tensor, cost, activation, vector, special):
    x, packed = tensor(2, 2, 16, dtype="float16"), tensor(6, 8, dtype="float16")
    places, bias = tensor(6, 1, dtype="int16"), tensor(6, dtype="float16")
    y = tensor(2, 2, 6, dtype="float16")
    c = cost("_sparse_semi_structured_linear", [x, packed, places, bias], [y], bias=bias, activation=activation)
    assert (c.matrix_flop, c.vector_flop, c.special_flop) == (384, vector, special)  # 2 · 4·6·8
    assert (c.read_bytes, c.write_bytes) == (248, 48)  # 128 + 96 + 12 + 12


def test_half_of_the_weights_by_cusparselt(tensor, cost):
    compressed, b, bias = tensor(44, dtype="float16"), tensor(16, 6, dtype="float16"), tensor(4, dtype="float16")
    c = cost("_cslt_sparse_mm", [compressed, b, bias], [tensor(4, 6, dtype="float16")], bias=bias)
    assert (c.matrix_flop, c.vector_flop) == (384, 24)
    assert (c.read_bytes, c.write_bytes) == (288, 48)  # 88 + 192 + 8
