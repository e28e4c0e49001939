"""How long tensors are held: by Python as variables of its functions and as what a module was called with, in backward
by autograd, whose nodes let go of all that they saved, and of the gradients that they were given, when they end.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rooflinekit.ir.op import Op, Phase
from rooflinekit.ir.tensor import TensorSpec
from rooflinekit.tracing.tensors import SPEC


class Lives:
    """Memory, and the last op of forward, and of backward, while something holds it.

    In a trace tensors die when they do in a step, for nothing but the model's own code and autograd has hold of them.
    """

    def __init__(self, ops: list[Op], phase: Callable[[], Phase | None]) -> None:
        self.held: dict[str, str] = {}
        self.saved: dict[str, str] = {}
        self._ops, self._phase = ops, phase
        self._watched: list[weakref.ref[torch.Tensor]] = []

    def watch(self, tensor: torch.Tensor, memory: str) -> None:
        """A tensor that is there now; a view of its memory is one of its own."""
        self._watched.append(weakref.ref(tensor, functools.partial(self._died, memory)))

    def returned(self, arguments: Any) -> None:
        """A call of a module is over: until now Python has held the tensors that it was given."""
        for leaf in pytree.tree_leaves(arguments):
            known: TensorSpec | None = getattr(leaf, SPEC, None)
            if known is not None:
                self._until_now(known.memory)

    def _died(self, memory: str, _: object) -> None:
        self._until_now(memory)

    def _until_now(self, memory: str) -> None:
        phase = self._phase()
        if self._ops and phase in (Phase.FORWARD, Phase.BACKWARD):
            (self.held if phase is Phase.FORWARD else self.saved)[memory] = self._ops[-1].name
