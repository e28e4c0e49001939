"""Bytes of a real step on the CPU: every storage that is alive when an operator ends, in blocks as CUDA's allocator
gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from rooflinekit.step.allocator import rounded


class Alive(TorchDispatchMode):
    """Follows storages from the operator that makes them on; `peak` is the most bytes at once."""

    def __init__(self, standing: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.peak = 0
        self.where = ""
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self._note(standing, "before the step")

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        self._note(pytree.tree_leaves(output), str(function))
        return output

    def _note(self, tensors: Sequence[Any], where: str) -> None:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                known = self._known.get(storage._cdata)
                if known is None or known[0].expired():
                    self._known[storage._cdata] = StorageWeakRef(storage), rounded(storage.nbytes())
        self._known = {key: value for key, value in self._known.items() if not value[0].expired()}
        now = sum(size for _, size in self._known.values())
        if now > self.peak:
            self.peak, self.where = now, where


def real_peak(model: nn.Module, inputs: Sequence[torch.Tensor], loss: Callable[[Any], torch.Tensor] | None) -> int:
    """The most bytes of a step with these inputs: forward without gradients, or with a loss a training step."""
    with torch.set_grad_enabled(loss is not None), Alive([*model.parameters(), *model.buffers(), *inputs]) as alive:
        output = model(*inputs)
        if loss is not None:
            found = loss(output)
            found.backward()
    return alive.peak
