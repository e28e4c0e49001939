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
#: Of such a tensor: whether the GPU has no part in it.
_ON_CPU = "_rooflinekit_on_cpu"

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
            note_elements(output, getattr(args[0], _ANSWER), on_cpu=getattr(args[0], _ON_CPU, False))
    elif function in _ALIKE or function in _OPPOSITE:
        known = getattr(args[0], _ANSWER, None) if args else None
        if known is not None:
            setattr(output, _ANSWER, known is (function in _ALIKE))


def note_elements(tensor: torch.Tensor, value: Any, *, on_cpu: bool = False) -> None:
    """Notes what every element of the tensor is, and whether it is on the CPU, where nobody waits for it."""
    setattr(tensor, _ANSWER, value)
    setattr(tensor, _ON_CPU, on_cpu)


def answer_of(tensor: torch.Tensor) -> Any:
    """What every element is, where that is known; else None."""
    return getattr(tensor, _ANSWER, None)


def on_cpu(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether it asks for a number that is known, and never was on the GPU."""
    return function in NUMBERS and getattr(args[0], _ON_CPU, False)


def answer(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What the operator that takes one number off the GPU returns, where that is known; None for any other."""
    return answer_of(args[0]) if function in NUMBERS else None
