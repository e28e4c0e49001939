"""Recurrent layers as the one operator that CUDA runs, where the CPU loops over the sequence."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

#: Modes of `aten._cudnn_rnn`.
_RELU, _TANH, _LSTM, _GRU = range(4)


def _run(
    mode: int,
    x: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor | None,
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Output and last states. `hidden` is [layers·directions, batch, size]: the projection's size if there is one."""
    size = hidden.shape[2] if cell is None else cell.shape[2]
    projection = hidden.shape[2] if hidden.shape[2] != size else 0
    each = 2 + 2 * has_biases + bool(projection)
    buffer = torch.empty(0, dtype=x.dtype, device=x.device)  # CUDA keeps the weights in one piece; here it only stands
    output, hidden_out, cell_out, *_ = torch.ops.aten._cudnn_rnn(
        x, list(weights), each, buffer, hidden, cell, mode, size, projection, num_layers, batch_first, dropout, train,
        bidirectional, [], None,
    )  # fmt: skip
    return (output, hidden_out) if cell is None else (output, hidden_out, cell_out)


def lstm(x: torch.Tensor, *args: Any) -> Any:
    """`torch.lstm` for dense input; a packed sequence, whose lengths are numbers in a tensor, is left as it is."""
    if isinstance(args[0], torch.Tensor):
        return NotImplemented
    (hidden, cell), weights, *options = args
    return _run(_LSTM, x, hidden, cell, weights, *options)


def _one_state(mode: int, x: torch.Tensor, hidden: torch.Tensor, weights: Any, *options: Any) -> Any:
    if isinstance(weights, torch.Tensor):  # packed: data, lengths, hidden, weights
        return NotImplemented
    return _run(mode, x, hidden, None, weights, *options)


gru = functools.partial(_one_state, _GRU)
rnn_tanh = functools.partial(_one_state, _TANH)
rnn_relu = functools.partial(_one_state, _RELU)
