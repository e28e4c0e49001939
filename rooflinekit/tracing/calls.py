"""Which module an operator belongs to: the one being called, and in backward the one whose op made autograd's node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rooflinekit.ir.op import Phase
from rooflinekit.tracing.surroundings import heed

#: Called with the number of modules entered and the path of the newest one.
Progress = Callable[[int, str], None]


class ModuleCalls:
    """Follows the calls of modules, by the `paths` of their identities."""

    def __init__(
        self, paths: dict[int, str], progress: Progress | None = None, returned: Callable[[Any], None] | None = None
    ) -> None:
        self._returned = returned  # called with the arguments of each call that is over
        self.last = ""  # the path of the module being called, or of the one that failed
        self.around = ""  # what is being run where no module is: a loss
        self._paths = paths
        self._progress = progress
        self._entered = 0
        self._open: list[str] = []  # paths of the modules being called, outermost first
        self._of_node: dict[int, str] = {}  # autograd's sequence number → module of the forward op

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Within it, calls of modules are followed; in recomputation during backward too."""
        original, owner = nn.Module.__call__, threading.get_ident()

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != owner:  # other threads may run models meanwhile
                return original(module, *args, **kwargs)
            path = self._paths.get(id(module))
            if path is None:
                output = original(module, *args, **kwargs)
                self._over(args, kwargs)
                return output
            heed()
            self._entered += 1
            if self._progress is not None:
                self._progress(self._entered, path)
            self._open.append(path)
            self.last = path
            try:
                output = original(module, *args, **kwargs)
                self.last = "".join(self._open[-2:-1])
                return output
            finally:
                self._open.pop()
                self._over(args, kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]

    def _over(self, *arguments: Any) -> None:
        if self._returned is not None:
            self._returned(arguments)

    def module(self, phase: Phase) -> str:
        """The path for an operator that is dispatched now."""
        if phase is Phase.OPTIMIZER:
            return ""
        here = self._open[-1] if self._open else ""
        node = torch._C._current_autograd_node()
        if node is not None and not self._open:
            return self._of_node.get(node._sequence_nr(), "")
        # The first op seen at a sequence number is the one whose node got the number before it.
        self._of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, here)
        return here
