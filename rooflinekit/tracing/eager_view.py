"""Libraries see eager mode: real tensors, on a GPU, and nobody who traces.

Some look whether a tensor is fake, and then take a way that an export would take: a mask instead of a flag, a fallback
instead of a kernel. For the length of a trace code outside of torch finds no fake tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._subclasses.fake_tensor
from torch._subclasses import FakeTensor

_INSIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class _Seen(type):
    """In the place of `FakeTensor`: torch's own code finds what is one, other code does not."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return _asked_inside() and isinstance(instance, FakeTensor)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return _asked_inside() and issubclass(subclass, FakeTensor)

    def __eq__(cls, other: object) -> bool:
        return other is cls or (other is FakeTensor and _asked_inside())

    def __hash__(cls) -> int:
        return hash(FakeTensor)


class _FakeTensor(metaclass=_Seen):
    """What `torch._subclasses.FakeTensor` names during a trace."""


def _asked_inside() -> bool:
    return sys._getframe(2).f_code.co_filename.startswith(_INSIDE)


def _never(value: object) -> bool:
    return False


@contextmanager
def eager_view() -> Iterator[None]:
    """Within it, code outside of torch that asks whether a tensor is fake is told that it is not."""
    is_fake = torch._subclasses.fake_tensor.is_fake
    places: list[tuple[Any, str, Any]] = [(torch._subclasses, "FakeTensor", _FakeTensor)]
    for name, module in list(sys.modules.items()):
        known = getattr(module, "__dict__", None)
        if known is None or name.partition(".")[0] in ("torch", "rooflinekit"):
            continue
        if known.get("FakeTensor") is FakeTensor:
            places.append((module, "FakeTensor", _FakeTensor))
        if known.get("is_fake") is is_fake:
            places.append((module, "is_fake", _never))
    before = [(place, name, getattr(place, name)) for place, name, _ in places]
    try:
        for place, name, other in places:
            setattr(place, name, other)
        yield
    finally:
        for place, name, original in before:
            setattr(place, name, original)
