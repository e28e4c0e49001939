"""What a name stands for in a step: an optimizer of torch.optim, a loss of torch.nn.functional."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from rooflinekit.errors import InputError, nearest


def optimizer_of(given: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    """The optimizer of torch.optim with this name, in any case; what is no name, as it is. Raises InputError."""
    if not isinstance(given, str):
        return _called("optimizer", given, "'AdamW' or torch.optim.AdamW")
    classes = [value for value in vars(torch.optim).values() if isinstance(value, type)]
    known = {
        c.__name__.lower(): c for c in classes if issubclass(c, torch.optim.Optimizer) and c.__mro__[1] is not object
    }
    if given.lower() not in known:
        names = [c.__name__ for c in known.values()]
        raise InputError(f"torch.optim has no optimizer {given!r}{nearest(given, names)}")
    return known[given.lower()]


def loss_of(given: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    """The function of torch.nn.functional with this name, of a model's output or of the `logits` in it.

    Logits [batch, tokens, classes] beside targets [batch, tokens] count as batch · tokens rows, as of language models:
    cross_entropy itself looks for classes in the second dimension. What is no name, as it is. Raises InputError.
    """
    if not isinstance(given, str):
        return _called("loss", given, "'mse_loss' or torch.nn.functional.mse_loss")
    if not callable(getattr(functional, given, None)):
        known = [word for word in vars(functional) if word.endswith(("loss", "entropy")) or "entropy" in word]
        raise InputError(f"torch.nn.functional has no loss {given!r}{nearest(given, known)}")
    return functools.partial(_loss, getattr(functional, given), rows=given in ("cross_entropy", "nll_loss"))


def _called(option: str, given: Any, such: str) -> Callable[..., Any] | None:
    if given is None:
        return None
    if isinstance(given, torch.optim.Optimizer):
        name = type(given).__name__
        raise InputError(f"{option}: expected what builds one, such as {name!r}; got an optimizer of given parameters")
    if not callable(given):
        raise InputError(f"{option}: expected a name or something to call, such as {such}; got {given!r:.60}")
    found: Callable[..., Any] = given
    return found


def _loss(function: Callable[..., Any], output: Any, *targets: Any, rows: bool) -> Any:
    output = getattr(output, "logits", output)
    if rows and len(targets) == 1 and (output.ndim, targets[0].ndim) == (3, 2):
        output, targets = output.flatten(0, 1), (targets[0].flatten(),)
    return function(output, *targets)
