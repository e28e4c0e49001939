"""Numbers that a model takes off the GPU, and that are known though a trace has no others.

A model that looks whether its numbers are finite is told that they are: what it does where they overflow is not the
step to predict. Packed sequences know how many of them there are at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

#: Attribute of a tensor of which every element is known, and the same.
_ANSWER = "_rooflinekit_answer"

_TESTS: dict[Callable[..., Any], bool] = {
    torch.isfinite: True,
    torch.Tensor.isfinite: True,
    torch.isnan: False,
    torch.Tensor.isnan: False,
    torch.isinf: False,
    torch.Tensor.isinf: False,
}
#: Operators that take one number off the GPU; what is known of a tensor that is compared is how that comes out.
NUMBERS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default}
_ALIKE = {torch.all, torch.Tensor.all, torch.any, torch.Tensor.any}
_OPPOSITE = {torch.logical_not, torch.Tensor.logical_not, torch.Tensor.__invert__}


def note_answer(function: Callable[..., Any], args: Sequence[Any], output: Any) -> None:
    """Notes on the result of a test of finiteness, and on what is derived from it, how it comes out."""
    if function in _TESTS:
        setattr(output, _ANSWER, _TESTS[function])
    elif function is torch.Tensor.__getitem__:
        if isinstance(output, torch.Tensor) and hasattr(args[0], _ANSWER):
            setattr(output, _ANSWER, getattr(args[0], _ANSWER))
    elif function in _ALIKE or function in _OPPOSITE:
        known = getattr(args[0], _ANSWER, None) if args else None
        if known is not None:
            setattr(output, _ANSWER, known is (function in _ALIKE))


def note_elements(tensor: torch.Tensor, value: Any) -> None:
    """Notes what every element of the tensor is."""
    setattr(tensor, _ANSWER, value)


def answer(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What the operator that takes one number off the GPU returns, where that is known; None for any other."""
    return getattr(args[0], _ANSWER, None) if function in NUMBERS else None
