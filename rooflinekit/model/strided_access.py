"""What of a stream's bandwidth a kernel of inductor's reaches that does not take its numbers in the order they lie in.

Three things are told apart (the kernels: torch 2.5 and 2.13, output code for a GPU of 114 SMs):
- A pointwise loop over images of both layouts walks in tiles, and a tile's rows are short where it lies across.
- A sum down columns has its lanes on the channels: of an image that lies with channels first each number is fetched
  with the sector around it.
- A loop over a concatenation of channels issues a load for each input at every place, all but one under a mask that is
  off; with channels last the CUDA cores of a warp stand in several inputs at once.
Copies from layout to layout, which inductor's tiles are made for, reach what streams reach.
"""

from __future__ import annotations

from rooflinekit.model.loops import Loop

_SECTOR = 32  # bytes that are fetched from DRAM and L2 for a number
#: Of a byte across in a pointwise loop's tile, what it costs beyond another; and of a byte of a loop over a
#: concatenation. No op tells them: fitted on the steps that KernelBench times of half of its problems, ± 0.5 each.
_TILED, _MASKED = 1.0, 0.75


def streamed_share(
    loop: Loop, moved: int, read: tuple[int, int], written: tuple[int, int], itemsize: int, *, concatenates: bool
) -> float:
    """The share of a stream's bandwidth.

    moved: bytes of the kernel; read, written: those of images with channels first, and with them last; itemsize: of a
    number that is read.
    """
    if not moved or not any(read):
        return 1.0
    if loop is Loop.REDUCTION:
        along = read.index(max(read))
        beyond = (_SECTOR / itemsize - 1) * min(read) + _TILED * written[1 - along]
    else:
        beyond = _TILED * min(read[0] + written[0], read[1] + written[1])
    return 1 / (1 + beyond / moved + (_MASKED if concatenates else 0.0))
