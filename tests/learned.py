"""Functions with parameters, for tests of what steps ask of a function; and the kernels that these launch."""

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.kernels.eager import issues_of
from rooflinekit.kernels.kernel import Kernel


class Learned(nn.Module):
    """A function of its inputs, each of which is multiplied by a parameter but for integers, up to three of them."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.factors = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(3))
        self.function = function or nn.Identity()

    def forward(self, *inputs: torch.Tensor) -> Any:
        factors = iter(self.factors)
        numbers = (x.is_floating_point() or x.is_complex() for x in inputs)
        return self.function(*(x * next(factors) if many else x for x, many in zip(inputs, numbers, strict=True)))


class Uses(nn.Module):
    """A function of its inputs and of weights of these shapes."""

    def __init__(self, function: Callable[..., Any], *shapes: Any, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes])
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *self.weights)


def squares(output: Any) -> torch.Tensor:
    """A loss: the sum of all squares of what a function returns, but for integers."""
    tensors = output if isinstance(output, tuple | list) else [output]
    real = [torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in tensors]
    return reduce(add, ((one * one).sum() for one in real if one.is_floating_point()))


def in_mode(mode: str) -> dict[str, Any]:
    """The options of a trace in this mode, in training with that loss."""
    return {"mode": mode, **({"loss": squares} if mode == "training" else {})}


def kinds(graph: rk.Graph, phase: str | None = None) -> list[str]:
    """Kinds of the ops that launch something, of all phases or of one."""
    return [p.op.kind for p in graph.priced if p.costs and phase in (None, p.op.phase)]


def kernels(
    model: Any, *inputs: Any, formats: tuple[str, ...] = (), device: Any = None, **options: Any
) -> list[Kernel]:
    """What eager mode launches for a model, on a GPU of these formats, and on one if it is given."""
    graph = rk.trace(model, *inputs, **options)
    return [kernel for issue in issues_of(graph, formats, device) for kernel in issue.kernels]
