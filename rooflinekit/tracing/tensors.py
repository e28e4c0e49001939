"""What a trace reads off torch's tensors, and notes on them."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rooflinekit.ir.op import TensorSpec

#: Attributes of a traced tensor: its record, and its node in the fx graph.
SPEC, NODE = "_rooflinekit_spec", "_rooflinekit_node"


def specs_in(value: Any) -> Iterator[TensorSpec]:
    """Every record in an argument as it stands in `Op.attrs`."""
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from specs_in(item)


def leaves_of(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in what a model returns: in lists, dicts and dataclasses, and those inside."""
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            yield from leaves_of([getattr(leaf, field.name, None) for field in dataclasses.fields(leaf)])


def shared_memory(tensor: torch.Tensor, args: Sequence[Any]) -> str:
    """Name of the memory that a new tensor shares with one of the op's arguments; "" for memory of its own."""
    if tensor.layout is not torch.strided:
        return ""
    storage = tensor.untyped_storage()._cdata
    for candidate in tensors_in(args):
        if candidate.layout is torch.strided and candidate.untyped_storage()._cdata == storage:
            spec: TensorSpec | None = getattr(candidate, SPEC, None)
            return spec.memory if spec is not None else ""
    return ""


def tensors_in(args: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Every tensor among arguments and in lists of them."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from (item for item in arg if isinstance(item, torch.Tensor))


@functools.cache
def wraps_tensors(kind: type) -> bool:
    """Whether it is a kind of tensor that consists of others, such as a nested one."""
    return hasattr(kind, "__tensor_flatten__")


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensor itself, or those that it consists of."""
    if not wraps_tensors(type(tensor)):
        return (tensor,)
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return tuple(getattr(tensor, name) for name in names)


def known_contiguous(tensor: torch.Tensor) -> bool:
    """Whether the strides are those of a dense row-major tensor, found without guarding on a symbol."""
    if tensor.layout is not torch.strided:
        return True
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if isinstance(size, int) and size == 1:
            continue
        if expression(stride) != expression(expected):
            return False
        expected = expected * size
    return True


def expression(size: Any) -> Any:
    """A size as sympy sees it: comparing two of these asks the model's sizes nothing."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


@contextmanager
def quiet_attributes() -> Iterator[None]:
    """fx warns that a graph without an owning module refers to an attribute; here that is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Attempted to insert a get_attr Node")
        yield
