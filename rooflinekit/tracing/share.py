"""What is known of a mask's elements, noted on the tensors: of a choice, among how many; of a mask, which share of it
is true; of a small tensor, its elements. What operators make of it is in `shares.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

CHOICE, SHARE, ELEMENTS = "_rooflinekit_choice", "_rooflinekit_share", "_rooflinekit_elements"
TRUES, ASKS = "_rooflinekit_trues", "_rooflinekit_asks"  # of how many elements true ones are counted; "all", "any"


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a mask's elements is true: `part` of `whole`.

    `dim` is that of the places among which was chosen; where one of them was taken out, `slot` is its number.
    """

    part: int
    whole: int
    dim: int | None = None
    slot: int | None = None

    def count(self, elements: Any) -> Any:
        """How many are true; those of all slots together are exact."""
        if self.slot is None:
            return -(-elements * self.part // self.whole)
        taken = elements * self.part
        return (self.slot + 1) * taken // self.whole - self.slot * taken // self.whole


def share_of(tensor: torch.Tensor) -> Share | None:
    """What is known of a mask."""
    return getattr(tensor, SHARE, None)


def asks_for(tensor: torch.Tensor) -> str:
    """Whether a number of true elements was compared with "all" that there are, or tells whether there are "any"."""
    return str(getattr(tensor, ASKS, ""))


def note_one_hot(tensor: torch.Tensor, places: int) -> None:
    """Notes that one element along the last dimension is 1, and the others are 0."""
    setattr(tensor, SHARE, Share(1, places, tensor.dim() - 1))


def note_hits(found: torch.Tensor, mask: torch.Tensor) -> None:
    """Notes which rows `nonzero` of a mask over places names, [rows, 1]: spread evenly."""
    share, rows = share_of(mask), found.shape[0]
    if share is not None and mask.dim() == 1 and share.dim == 0 and isinstance(rows, int) and rows > 0:
        places = int(mask.shape[0])  # those slots that get one, where there are too few for all
        setattr(found, ELEMENTS, tuple((-(-(row + 1) * places // rows) - 1,) for row in range(rows)))


def known_number(tensor: torch.Tensor | None) -> Any:
    """The only element of a tensor, where that is known; else None."""
    elements = tuple(flat(getattr(tensor, ELEMENTS, ())))
    return elements[0] if len(elements) == 1 else None


def flat(elements: Any) -> Iterator[Any]:
    """The numbers of nested tuples, one after the other."""
    for one in elements:
        yield from flat(one) if isinstance(one, tuple) else (one,)
