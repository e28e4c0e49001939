"""Recurrent layers: t steps, batch b, input i, state h, by hand."""

from typing import Any

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.ir.cost import Cost

T, B, N, H = 7, 3, 5, 4


def cost(model: Any, *shape: int | str, mode: str = "inference", kind: str = "aten._cudnn_rnn") -> list[Cost]:
    graph = rk.trace(model, rk.Input(*shape), mode=mode)
    assert not graph.coverage.default_kinds
    return [cost for priced in graph.priced if priced.op.kind == kind for cost in priced.costs]


def whole(model: nn.Module, *shape: int) -> Cost:
    """Inputs and chain together."""
    inputs, chain = cost(model, *shape)
    return inputs + chain


def test_lstm() -> None:
    inputs, chain = cost(nn.LSTM(N, H), T, B, N)
    # 4 gates: input 21·16·5, state 21·16·4 multiply-adds
    assert (inputs.matrix_flop, chain.matrix_flop) == (2 * 21 * 16 * 5, 2 * 21 * 16 * 4)
    assert inputs.read_bytes == 4 * (105 + 80)  # x and its weights, which the chain does not come back to
    found = inputs + chain
    # a state and step: 8 biases, 4 sums, 3 sigmoids of 2, c = f·c + i·g is 3, h = o·tanh(c) is 1; 84 of them
    assert found.vector_flop == 84 * (8 + 4 + 6 + 3 + 1)
    assert found.special_flop == 84 * (3 * 2 + 2)  # sigmoids, tanh of g and of c
    # x 105, weights 80 + 64 + 16 + 16, h and c 12 each; out 84, h and c again; no state is kept for backward
    assert found.read_bytes == 4 * (105 + 176 + 24)
    assert found.write_bytes == 4 * (84 + 24)


def test_gru_and_rnn() -> None:
    gru = whole(nn.GRU(N, H), T, B, N)
    assert gru.matrix_flop == 2 * 21 * 12 * (5 + 4)
    # 6 biases; r and z: a sum each; n: r·h and a sum; 2 sigmoids of 2; (1-z)·n + z·h is 4
    assert gru.vector_flop == 84 * (6 + 2 + 2 + 4 + 4)
    assert gru.special_flop == 84 * (2 * 2 + 1)
    tanh = whole(nn.RNN(N, H, bias=False), T, B, N)
    assert tanh.matrix_flop == 2 * 21 * 4 * (5 + 4)
    assert (tanh.vector_flop, tanh.special_flop) == (84, 84)
    relu = whole(nn.RNN(N, H, nonlinearity="relu"), T, B, N)
    assert (relu.vector_flop, relu.special_flop) == (84 * (2 + 1 + 1), 0)


def test_layers_directions_and_batch_first() -> None:
    found = whole(nn.LSTM(N, H, num_layers=2, bidirectional=True, batch_first=True), B, T, N)
    # layer 1: input 5; layer 2: both directions of layer 1, 8; two directions each
    assert found.matrix_flop == 2 * 2 * 21 * 16 * ((5 + 4) + (8 + 4))
    # four products of the inputs of all steps, four of the state of each
    assert [g.batch for g in found.gemms] == [1] * 4 + [7] * 4


def test_projection() -> None:
    model = nn.LSTM(N, H, num_layers=2, bidirectional=True, proj_size=2)
    found = whole(model, T, B, N)
    # state of size 2 comes back, and 21·4·2 for the projection itself
    first, second = 16 * (5 + 2) + 4 * 2, 16 * (4 + 2) + 4 * 2
    assert found.matrix_flop == 2 * 2 * 21 * (first + second)
    graph = rk.trace(model, rk.Input(T, B, N))
    assert graph.outputs[0].shape == (T, B, 4)


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_backward(layer: type[nn.Module], gates: int) -> None:
    before, own = nn.Linear(N, N), layer(N, H)
    chain, inputs, weights = cost(
        lambda x: own(before(x))[0], T, B, N, mode="training", kind="aten._cudnn_rnn_backward"
    )
    assert (chain.matrix_flop, inputs.matrix_flop) == (2 * 21 * gates * H * H, 2 * 21 * gates * H * N)
    assert weights.matrix_flop == 2 * 21 * gates * H * (N + H)
    assert inputs.write_bytes == 4 * 21 * N
    # no gradient for the first layer's input where nothing asks for it
    alone, _ = cost(lambda x: own(x)[0], T, B, N, mode="training", kind="aten._cudnn_rnn_backward")
    assert alone == chain
    assert weights.write_bytes == 4 * gates * H * (N + H + 2)  # of both matrices and both biases


def test_open_sizes_and_formats() -> None:
    graph = rk.trace(nn.GRU(N, H), rk.Input("t", "b", N), dtype="float16")
    assert graph.dims == ("t", "b")
    assert str(graph.matrix_flop) == str(2 * 12 * 9) + "*b*t"
    assert graph.at(t=T, b=B).matrix_flop == 2 * 21 * 12 * 9


def test_cells_count_the_same_products() -> None:
    graph = rk.trace(lambda x: CELL(x), rk.Input(B, N))
    assert graph.matrix_flop == 2 * 3 * 16 * (5 + 4)
    assert not graph.coverage.default_kinds


CELL = nn.LSTMCell(N, H)


def test_cells() -> None:
    (lstm,) = cost(nn.LSTMCell(N, H), B, N, kind="aten._thnn_fused_lstm_cell")
    # 12 states: 8 biases, 4 sums, 3 sigmoids of 2, c = f·c + i·g is 3, h = o·tanh(c) is 1
    assert (lstm.vector_flop, lstm.special_flop) == (12 * (8 + 4 + 6 + 3 + 1), 12 * 8)
    # both products 48 each, c 12, both biases 16; out h, c and the gates
    assert (lstm.read_bytes, lstm.write_bytes) == (4 * (96 + 12 + 32), 4 * (24 + 48))
    (gru,) = cost(nn.GRUCell(N, H, bias=False), B, N, kind="aten._thnn_fused_gru_cell")
    # 12 states: r and z a sum each, n: r·h and a sum, 2 sigmoids of 2, (1-z)·n + z·h is 4; two sigmoids and tanh
    assert (gru.vector_flop, gru.special_flop) == (12 * (2 + 2 + 4 + 4), 12 * 5)
    assert (gru.read_bytes, gru.write_bytes) == (4 * (36 + 36 + 12), 4 * (12 + 5 * 12))


def test_backward_of_cells() -> None:
    lstm, gru = nn.LSTMCell(N, H), nn.GRUCell(H, H)

    def twice(x: torch.Tensor) -> torch.Tensor:
        return gru(lstm(x)[0])

    cells, sums = cost(twice, B, N, mode="training", kind="aten._thnn_fused_lstm_cell_backward_impl")
    # of 12 states: o 1, c 5, i g f c 4, slopes 3·3 + 3; then a sum over the batch for 16 biases
    assert (cells.vector_flop, sums.vector_flop, sums.write_bytes) == (12 * (1 + 5 + 4 + 12), 48, 4 * 16)
    cells, *both = cost(twice, B, N, mode="training", kind="aten._thnn_fused_gru_cell_backward")
    # n 2, z 2, h 1, r 1, r's product 1, slopes 2·3 + 3; sums for the biases of both products
    assert (cells.vector_flop, [one.vector_flop for one in both]) == (12 * (2 + 2 + 1 + 1 + 1 + 9), [36, 36])
