"""Ops that only move numbers: bytes by hand, no FLOP; and those that cost nothing."""

import pytest
import torch
from torch import nn

from rooflinekit import Input
from rooflinekit.ir.op import Basis


def test_a_copy_reads_its_inputs_and_writes_its_output(tensor, cost):
    c = cost("cat", [tensor(2, 5), tensor(3, 5)], [tensor(5, 5)])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 100, 100)  # 4 · (10 + 15); 4 · 25


def test_a_conversion_reads_one_format_and_writes_the_other(tensor, cost):
    c = cost("_to_copy", [tensor(2, 5)], [tensor(2, 5, dtype="bfloat16")])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 40, 20)


def test_a_copy_of_an_expanded_tensor_reads_the_memory_behind_it(tensor, cost):
    c = cost("clone", [tensor(4, 6, stride=(0, 1))], [tensor(4, 6)])
    assert (c.read_bytes, c.write_bytes) == (24, 96)  # 4 · 6; 4 · 4·6


def test_copying_into_a_tensor_does_not_read_it(tensor, cost):
    target, source = tensor(2, 5), tensor(5, dtype="float64")
    c = cost("copy_", [target, source], [target])
    assert (c.read_bytes, c.write_bytes) == (40, 40)  # 8 · 5, broadcast; 4 · 2·5


@pytest.mark.parametrize("kind", ["zeros_like", "full_like", "zero_", "fill_", "new_zeros", "ones_like"])
def test_filling_writes_and_does_not_read_its_pattern(tensor, cost, kind):
    c = cost(kind, [tensor(2, 5)], [tensor(2, 5)])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 0, 40)


def test_the_gradient_of_a_slice_is_zeros_and_a_copy(tensor, costs):
    zeros, copy = costs("slice_backward", [tensor(2, 5)], [tensor(8, 5)])
    assert (zeros.read_bytes, zeros.write_bytes, zeros.label) == (0, 160, "zeros")  # 4 · 8·5
    assert (copy.read_bytes, copy.write_bytes, copy.label) == (40, 40, "copy")  # 4 · 2·5 each way


def test_the_gradient_of_a_select_from_one_expanded_number(tensor, costs):
    _, copy = costs("select_backward", [tensor(5, stride=(0,))], [tensor(8, 5)])
    assert (copy.read_bytes, copy.write_bytes) == (4, 20)


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


@pytest.mark.parametrize("kind", ["index", "index_select", "gather"])
def test_gathering_reads_what_the_indices_name(tensor, cost, kind):
    source, indices, y = tensor(1000, 4), tensor(3, dtype="int64"), tensor(3, 4)
    c = cost(kind, [source, indices], [y])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 72, 48)  # 4 · 3·4 + 8 · 3; 4 · 3·4


# --- traced ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(8, 3),
        lambda x: x.reshape(-1),
        lambda x: x.t(),
        lambda x: x.permute(1, 0),
        lambda x: x.expand(2, 4, 6),
        lambda x: x[1:, ::2],
        lambda x: x[0],
        lambda x: x.chunk(2)[1],
        lambda x: x.unsqueeze(0).squeeze(0),
        lambda x: x.detach(),
        lambda x: x.contiguous(),
        lambda x: x.unfold(1, 3, 1),
        lambda x: x.unsafe_chunk(2),
    ],
)
def test_views_cost_nothing(traced, view):
    graph = traced(view, (4, 6))
    assert (graph.flop, graph.bytes) == (0, 0)
    assert {priced.basis for priced in graph.priced} <= {Basis.FREE}
    assert all(priced.costs == () for priced in graph.priced)


def test_a_complex_conjugate_is_a_view(traced):
    graph = traced(lambda x: (x.conj(), x.conj().imag), Input(4, 6, dtype="complex64"))
    assert [priced.basis for priced in graph.priced] == [Basis.FREE] * len(graph.priced)


def test_making_a_transposed_tensor_contiguous_is_a_copy(traced):
    graph = traced(lambda x: x.t().contiguous(), (4, 6))
    assert (graph.flop, graph.read_bytes, graph.write_bytes) == (0, 96, 96)


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


def test_a_traced_slice_and_its_gradient(traced, costs_of):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, 5))

        def forward(self, x):
            return self.weight[2:4] * x

    graph = traced(Net(), (2, 5), mode="training")
    zeros, copy = costs_of(graph, "slice_backward")
    assert (zeros.write_bytes, copy.read_bytes, copy.write_bytes) == (160, 40, 40)


def test_writing_into_a_slice_touches_the_slice(traced):
    def overwrite(x, y):
        x[1:3] = y
        return x

    graph = traced(overwrite, (4, 6), (2, 6))
    assert (graph.read_bytes, graph.write_bytes) == (48, 48)  # 4 · 2·6


def test_concatenating_a_tensor_with_itself_reads_it_once(traced):
    graph = traced(lambda x: torch.cat([x, x]), (4, 6))
    assert (graph.read_bytes, graph.write_bytes) == (96, 192)
