"""What a dispatched operator says of itself: its arguments, whether it is made of others, the tensors of its result."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from rooflinekit.ir.op import DType
from rooflinekit.tracing.shapes import OWN_SHAPES

DTYPES = {getattr(torch, dtype.value): dtype for dtype in DType if hasattr(torch, dtype.value)}


@functools.cache
def schema_of(function: torch._ops.OpOverload) -> tuple[str, tuple[tuple[str, Any], ...], tuple[int, ...]]:
    """Kind of an operator, its arguments' names with their defaults, and which of them it writes to."""
    schema = function._schema
    arguments = tuple((a.name, a.default_value if a.has_default_value() else None) for a in schema.arguments)
    written = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write)
    return schema.name.replace("::", "."), arguments, written


@functools.cache
def composite(function: Any) -> bool:
    """Whether it is defined by other operators alone, on a GPU too."""
    if not isinstance(function, torch._ops.OpOverload) or function.namespace != "aten" or function in OWN_SHAPES:
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    name = f"{function._schema.name}.{function._schema.overload_name}".rstrip(".")
    known = torch._C._dispatch_has_kernel(name)  # sizes and strides are asked for by names that have none
    return known and has(name, "CompositeImplicitAutograd") and not has(name, "CPU")


def placed(output: Any, place: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    """The tensors of a result, each with its place in it: gradients of a list of weights are a list in a tuple."""
    if isinstance(output, torch.Tensor):
        yield place, output
    elif isinstance(output, list | tuple):
        for i, part in enumerate(output):
            yield from placed(part, (*place, i))
