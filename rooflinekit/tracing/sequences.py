"""Operators over sequences as CUDA runs them, where the CPU loops or reads numbers off tensors.

Recurrent layers are one operator; sound goes through short-time transforms; a text is aligned to it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from rooflinekit.tracing.autocast import lowered, region_format, switched_off
from rooflinekit.tracing.known import known_of, tell
from rooflinekit.tracing.tensors import NODE

#: Modes of `aten._cudnn_rnn`.
_RELU, _TANH, _LSTM, _GRU = range(4)


def _layer(mode: int, x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    """`torch.lstm` and its like, for dense input or the data of a packed sequence, which holds the steps of all: then
    sizes, states, weights. States are [layers·directions, batch, size], the projection's size if there is one.
    """
    packed = isinstance(args[mode != _LSTM], torch.Tensor)  # states are one tensor, an LSTM's a pair of them
    sizes, states, weights, has_biases, num_layers, *options = args if packed else (None, *args)
    hidden, cell = states if mode == _LSTM else (states, None)
    dropout, train, bidirectional, batch_first = (*options, False)[:4]
    # of the batch sizes the first and how many there are stand for all
    batch_sizes = [hidden.shape[1], sizes.shape[0]] if packed else ()
    size = hidden.shape[2] if cell is None else cell.shape[2]
    projection = hidden.shape[2] if hidden.shape[2] != size else 0
    each = 2 + 2 * has_biases + bool(projection)
    # CUDA keeps the weights in one piece; here it only stands
    buffer = torch.empty(0, dtype=region_format() or x.dtype, device=x.device)
    output, hidden_out, cell_out, *_ = torch.ops.aten._cudnn_rnn(
        x, list(weights), each, buffer, hidden, cell, mode, size, projection, num_layers, batch_first, dropout, train,
        bidirectional, batch_sizes, None,
    )  # fmt: skip
    return (output, hidden_out) if cell is None else (output, hidden_out, cell_out)


lstm, gru, rnn_tanh, rnn_relu = (functools.partial(_layer, mode) for mode in (_LSTM, _GRU, _TANH, _RELU))


# --- cells: one step, with products of their own ---------------------------------------------------------------


def lstm_cell(
    x: torch.Tensor, states: Sequence[torch.Tensor], w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two products, and a kernel for the gates: x [b, i], states [b, h], weights [4·h, i] and [4·h, h]."""
    x, states, w_x, w_h, b_x, b_h = lowered(x, states, w_x, w_h, b_x, b_h)
    hidden, cell = states
    with switched_off():
        gates = torch.matmul(x, w_x.t()), torch.matmul(hidden, w_h.t())
        new_hidden, new_cell, _ = torch.ops.aten._thnn_fused_lstm_cell(*gates, cell, b_x, b_h)
    return new_hidden, new_cell


def gru_cell(x: torch.Tensor, hidden: torch.Tensor, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None) -> Any:
    """Two products, and a kernel for the gates: x [b, i], state [b, h], weights [3·h, i] and [3·h, h]."""
    x, hidden, w_x, w_h, b_x, b_h = lowered(x, hidden, w_x, w_h, b_x, b_h)
    with switched_off():
        gates = torch.matmul(x, w_x.t()), torch.matmul(hidden, w_h.t())
        return torch.ops.aten._thnn_fused_gru_cell(*gates, hidden, b_x, b_h)[0]


def _plain_cell(
    activation: Any, x: torch.Tensor, hidden: torch.Tensor, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None
) -> Any:
    """A recurrent cell as PyTorch computes it, without asking for the batch as a number."""
    x, hidden, w_x, w_h, b_x, b_h = lowered(x, hidden, w_x, w_h, b_x, b_h)
    with switched_off():
        return activation(functional.linear(hidden, w_h, b_h).add_(functional.linear(x, w_x, b_x)))


rnn_tanh_cell = functools.partial(_plain_cell, torch.tanh)
rnn_relu_cell = functools.partial(_plain_cell, torch.relu)


# --- packed sequences: how long they are stands in numbers, so how much of [t, b] they fill is an assumption ---


def pack(
    elements: Callable[[str, Any], Any], x: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Data of all steps, a copy, and how many sequences there are at each step, which stands on the CPU.

    elements: says how many of the t·b steps of all sequences there are.
    """
    x = x.transpose(0, 1) if batch_first else x
    sizes = torch.empty(x.shape[0], dtype=torch.int64)
    # Sorting by length sends the order to the GPU and asks for it back, and each waits: where batch sizes are read is
    # where that is counted. Those of sorted sequences nobody waits for.
    tell(sizes, every=x.shape[1], on_cpu=not _sorted_here(lengths))
    most = x.shape[0] * x.shape[1]
    filled = elements("packed", most)
    data = x.clone(memory_format=torch.contiguous_format).view(-1, *x.shape[2:])
    return data if filled is most else data[:filled], sizes


def _sorted_here(lengths: torch.Tensor) -> bool:
    """Whether they come out of a sort."""
    node = getattr(lengths, NODE, None)
    made = node.args[0] if node is not None and node.target is operator.getitem else node
    return made is not None and made.target in (torch.ops.aten.sort.default, torch.ops.aten.sort.stable)


def pad(
    data: torch.Tensor, sizes: torch.Tensor, batch_first: bool, value: float, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The copy [t, b, …] or [b, t, …], and how long each sequence is."""
    steps, batch = sizes.shape[0], known_of(sizes).every
    missing = steps * batch - data.shape[0]
    whole = data.clone() if missing == 0 else functional.pad(data, (0, 0, 0, missing), value=value)
    x = whole.view(steps, batch, *data.shape[1:])
    return x.transpose(0, 1) if batch_first else x, torch.empty(batch, dtype=torch.int64)


# Sound: short-time transforms and the alignment of a text.


def stft(
    x: torch.Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: torch.Tensor | None = None, normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None, align_to_window: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    """PyTorch's stft, which takes the length as a number: frames as a view, times the window, transformed."""
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    frames = x if x.dim() == 2 else x[None]
    if width < n_fft:
        whole = torch.zeros(n_fft, dtype=frames.dtype)
        part = whole.narrow(0, (n_fft - width) // 2, width)
        part.fill_(1) if window is None else part.copy_(window)
        window = whole
    count = (frames.shape[1] - n_fft) // hop + 1
    row, step = frames.stride()
    frames = frames.as_strided((frames.shape[0], count, n_fft), (row, hop * step, step))
    if window is not None:
        frames = frames * window
    half = not (frames.is_complex() or (window is not None and window.is_complex())) if onesided is None else onesided
    transform: Any = torch.ops.aten._fft_c2c if frames.is_complex() else torch.ops.aten._fft_r2c
    found: torch.Tensor = transform(frames, [2], int(normalized), True if frames.is_complex() else half).transpose(1, 2)
    found = found if x.dim() == 2 else found[0]
    return found if return_complex else torch.view_as_real(found)


def istft(
    spectrum: torch.Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: torch.Tensor | None = None, center: bool = True, normalized: bool = False, onesided: bool | None = None,
    length: int | None = None, return_complex: bool = False,
) -> torch.Tensor:  # fmt: skip
    """PyTorch's istft: frames transformed back, times the window, overlapped and added, over the windows' own sum.

    That this sum is nowhere zero PyTorch looks up on the host, which waits for it.
    """
    frames = spectrum if spectrum.dim() == 3 else spectrum[None]
    hop = hop_length or n_fft // 4
    half = frames.shape[1] != n_fft if onesided is None else onesided
    window = _widened(window, win_length or n_fft, n_fft)
    frames, count = frames.transpose(1, 2), frames.shape[2]
    if return_complex:
        frames = torch.ops.aten._fft_c2c(frames, [2], int(normalized), False)
    else:
        frames = torch.ops.aten._fft_c2r(frames if half else frames[..., : n_fft // 2 + 1], [2], int(normalized), n_fft)
    whole = n_fft + hop * (count - 1)
    sound = _overlapped(frames * window, whole, n_fft, hop)
    weight = _overlapped(window.square().expand(1, count, n_fft), whole, n_fft, hop)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else whole - (n_fft // 2 if center else 0)
    sound, weight = sound[:, start:end], weight[:, start:end]
    vanishes = weight.abs().min().lt(1e-11)
    tell(vanishes, every=False)
    torch.equal(vanishes, vanishes.new_ones(()))
    sound = sound / weight
    return sound if spectrum.dim() == 3 else sound[0]


def _widened(window: torch.Tensor | None, width: int, n_fft: int) -> torch.Tensor:
    """A window in the middle of so many numbers; ones where there is none."""
    if window is None:
        window = torch.ones(width)
    left = (n_fft - width) // 2
    return window if width == n_fft else torch.constant_pad_nd(window, (left, n_fft - width - left))


def _overlapped(frames: torch.Tensor, length: Any, n_fft: int, hop: int) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten.unfold_backward(frames, [frames.shape[0], length], 1, n_fft, hop)
    return found


_NONE, _MEAN, _SUM = range(3)  # reductions of a loss


def ctc_loss(
    scores: torch.Tensor, targets: torch.Tensor, lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: int = _MEAN, zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """PyTorch's loss, which writes lengths given as numbers into a tensor that a fake one has no room for."""
    if isinstance(target_lengths, torch.Tensor) or scores.dim() != 3:
        return NotImplemented
    loss = torch.ops.aten._ctc_loss(scores, targets, lengths, target_lengths, blank, zero_infinity)[0]
    if zero_infinity:
        loss = torch.where(loss == math.inf, torch.zeros((), dtype=loss.dtype), loss)
    if reduction == _MEAN:
        return (loss / torch.empty(loss.shape, dtype=loss.dtype).clamp_min(1)).mean()
    return loss.sum() if reduction == _SUM else loss
