"""Control flow of torch's own, as eager mode runs it: the operators inside, not one that nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._higher_order_ops.scan import generic_scan

from rooflinekit.ir.assumption import Ground
from rooflinekit.tracing.assumed import Assumed

_DENSE = torch._C.DispatchKey.CompositeExplicitAutograd


def _cond(assumed: Assumed, function: Any, args: Sequence[Any]) -> Any:
    """The branch that is taken: the first, if nothing else is said."""
    condition, first, second, operands = args
    if isinstance(condition, torch.Tensor):
        condition = bool(assumed.answer("cond", True, Ground.USUAL))
    return (first if condition else second)(*operands)


def _while_loop(assumed: Assumed, function: Any, args: Sequence[Any]) -> Any:
    """So many passes as the user says, or one; the condition is worked out before each and once after the last."""
    condition, body, carried, further = args
    for _ in range(assumed.answer("while_loop", 1, Ground.ONCE)):
        condition(*carried, *further)
        carried = body(*carried, *further)
    condition(*carried, *further)
    return tuple(carried)


def _dense(assumed: Assumed, function: Any, args: Sequence[Any]) -> Any:
    """As torch runs it outside of compilation: step by step."""
    return function.py_kernels[_DENSE](*args)


def _scan(assumed: Assumed, function: Any, args: Sequence[Any]) -> Any:
    """Over the first dimension, step by step; what is carried comes before what is kept of each step."""
    combine, initial, sequences, further = args
    return generic_scan(combine, initial, sequences, additional_inputs=further)  # type: ignore[no-untyped-call]


#: By the operator's name.
CONTROL: dict[str, Callable[[Assumed, Any, Sequence[Any]], Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "associative_scan": _dense,
    "map_impl": _dense,
}
