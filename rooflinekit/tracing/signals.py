"""Sound: short-time transforms and the alignment of a text, whose CPU code reads sizes or numbers off tensors."""

from __future__ import annotations

import math
from typing import Any

import torch

from rooflinekit.tracing.finite import note_elements


def stft(
    x: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> torch.Tensor:
    """As PyTorch, which takes the length as a number: overlapping frames as a view, times the window, transformed."""
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
    spectrum: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """As PyTorch: frames transformed back, times the window, overlapped and added, over the windows' own sum.

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
    note_elements(vanishes, False)
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
    scores: torch.Tensor,
    targets: torch.Tensor,
    lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Any:
    """With lengths as numbers PyTorch writes them into a tensor, which a fake one has no room for."""
    if isinstance(target_lengths, torch.Tensor) or scores.dim() != 3:
        return NotImplemented
    loss = torch.ops.aten._ctc_loss(scores, targets, lengths, target_lengths, blank, zero_infinity)[0]
    if zero_infinity:
        loss = torch.where(loss == math.inf, torch.zeros((), dtype=loss.dtype), loss)
    if reduction == _MEAN:
        return (loss / torch.empty(loss.shape, dtype=loss.dtype).clamp_min(1)).mean()
    return loss.sum() if reduction == _SUM else loss
