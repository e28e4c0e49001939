"""Sparse tensors in a trace: how many numbers each holds, noted on the tensor itself.

A fake sparse tensor knows its sizes alone. The numbers are counted where it enters: as a weight, or made from a tensor
of values. An operator's result of the same sizes holds as many; of any other, a trace does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_HELD = "_rooflinekit_held"  # numbers, and bytes of their indices
_INT64 = 8

#: Operators of which the result holds the numbers of the first argument.
_KEEPING = ("t", "transpose", "detach", "alias", "clone", "_to_copy", "_coalesce", "_coalesced_", "mul", "div", "neg")


def note_weight(fake: torch.Tensor, real: torch.Tensor) -> None:
    """Notes on a fake sparse tensor what the real one holds."""
    numbers = real.values() if real.layout is not torch.sparse_coo else real._values()
    if real.layout is torch.sparse_coo:
        indices = [real._indices()]
    elif real.layout in (torch.sparse_csr, torch.sparse_bsr):
        indices = [real.crow_indices(), real.col_indices()]
    else:
        indices = [real.ccol_indices(), real.row_indices()]
    setattr(fake, _HELD, (numbers.numel(), sum(index.numel() * index.itemsize for index in indices)))


def note_result(name: str, args: Sequence[Any], output: Any) -> None:
    """Notes on an operator's sparse result how many numbers it holds, where that is known."""
    if not is_sparse(output):
        return
    if name.startswith("_sparse_coo_tensor") and name.endswith(("tensors", "unsafe")):
        indices, values = [arg for arg in args if isinstance(arg, torch.Tensor)][:2]
        setattr(output, _HELD, (values.numel(), indices.numel() * _INT64))
    elif name in _KEEPING and hasattr(args[0], _HELD):
        setattr(output, _HELD, getattr(args[0], _HELD))


def is_sparse(value: Any) -> bool:
    """Whether it is a tensor that does not store all of its elements."""
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


def held(args: Sequence[Any], size: Callable[[Any], Any]) -> tuple[tuple[int, Any, Any], ...] | None:
    """Of each sparse tensor among arguments: its place among the tensors, its numbers, and bytes of their indices.

    None where one holds an unknown number of them, and where there are two, for of them the places count. `size` turns
    torch's sizes into ours.
    """
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    sparse = [(place, getattr(tensor, _HELD, None)) for place, tensor in enumerate(tensors) if is_sparse(tensor)]
    if len(sparse) > 1 or any(found is None for _, found in sparse):
        return None
    return tuple((place, *map(size, found)) for place, found in sparse if found is not None)
