"""What is traced: a step, and its inputs as descriptions, as numbers and as fake tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from rooflinekit.errors import InputError
from rooflinekit.ir.inputs import Input, Mode, Release
from rooflinekit.ir.op import DType, Role, TensorSpec
from rooflinekit.tracing.isolation import FAKE_DEVICE
from rooflinekit.tracing.recorder import Recorder
from rooflinekit.tracing.symbols import Symbols
from rooflinekit.tracing.values import keep

#: A number format, by any of its names: "bf16", "bfloat16", torch.bfloat16.
Format: TypeAlias = "str | DType | torch.dtype"
#: A size, or an input by name. No text is among them, so that a type checker sees `executoin="compiled"`; a model that
#: is called with a text gets it as `keywords={…}`.
Given: TypeAlias = "int | float | Input | torch.Tensor | list[Any] | tuple[Any, ...] | dict[str, Any] | None"
Loss = Callable[..., torch.Tensor]
#: Builds an optimizer from parameters: `torch.optim.AdamW`, or a `functools.partial` of one.
OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is traced: a model, what it is called with, and what follows the forward pass."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    mode: Mode = "inference"
    loss: Loss | None = None
    targets: tuple[Any, ...] = ()
    optimizer: OptimizerFactory | None = None
    autocast: DType | None = None  # lower precision of a region around model and loss
    channels_last: bool = False  # model and inputs, as by `.to(memory_format=torch.channels_last)`
    assume: Mapping[str, Any] = field(default_factory=dict)  # numbers that stand in tensors, by name
    like: Release | None = None  # the release that it runs on; None for the present one
    inference_mode: bool = False  # within torch.inference_mode, instead of torch.no_grad
    gradients: bool = False  # with gradients though nothing is trained: the model differentiates in its forward pass


class _Given(Input):
    """The description of a tensor that was given itself."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(*tensor.shape, dtype=str(tensor.dtype))
        self.tensor = tensor


def described(step: Step) -> Step:
    """The step with every tensor among its inputs replaced by its description."""

    def description(value: Any) -> Any:
        return _Given(value) if isinstance(value, torch.Tensor) else value

    return _mapped(step, description)


def with_numbers(step: Step, sizes: Mapping[str, int]) -> Step:
    """The step with numbers for some of its named sizes."""

    def numbered(value: Any) -> Any:
        if isinstance(value, Input) and value.names:
            return Input(*(sizes.get(s, s) if isinstance(s, str) else s for s in value.shape), dtype=value.dtype)
        return value

    return _mapped(step, numbered)


def _mapped(step: Step, function: Callable[[Any], Any]) -> Step:
    return replace(
        step,
        args=pytree.tree_map(function, step.args),
        kwargs=pytree.tree_map(function, dict(step.kwargs)),
        targets=pytree.tree_map(function, step.targets),
    )


def names_of(step: Step) -> tuple[str, ...]:
    """Names of the sizes that are open, in order, each once."""
    leaves = pytree.tree_leaves((step.args, dict(step.kwargs), step.targets))
    return tuple(dict.fromkeys(name for leaf in leaves if isinstance(leaf, Input) for name in leaf.names))


def first_names(step: Step) -> tuple[str, ...]:
    """Names of first dimensions."""
    leaves = pytree.tree_leaves((step.args, dict(step.kwargs), step.targets))
    inputs = [leaf for leaf in leaves if isinstance(leaf, Input) and leaf.shape]
    return tuple(dict.fromkeys(leaf.shape[0] for leaf in inputs if isinstance(leaf.shape[0], str)))


#: Numbers of a tensor; beyond, torch cannot say how many bytes they are.
_MOST = 2**58


class InputMaker:
    """Puts fake tensors in the place of descriptions, and remembers their records."""

    def __init__(
        self, recorder: Recorder, symbols: Symbols, dtype: DType | None, *, channels_last: bool = False
    ) -> None:
        self.specs: list[TensorSpec] = []
        self._recorder = recorder
        self._symbols = symbols
        self._dtype = dtype
        self._channels_last = channels_last

    def __call__(self, values: Any, prefix: str) -> Any:
        """The values with fake tensors for descriptions, named by their place after the prefix."""

        def fake(path: Any, value: Any) -> Any:
            if not isinstance(value, Input):
                return value
            words = [str(getattr(key, "key", getattr(key, "idx", key))) for key in path]
            name = "_".join([prefix, *words]).strip("_")
            given = value.tensor if isinstance(value, _Given) else None
            if self._dtype is not None and value.dtype.is_floating:
                value = Input(*value.shape, dtype=self._dtype)
            edges = (self._symbols.examples[size] if isinstance(size, str) else size for size in value.shape)
            if math.prod(edges) > _MOST:
                raise InputError(f"input {name!r}: {value!r} has more than 2**58 numbers: choose smaller sizes")
            tensor = self._symbols.tensor(value, name, FAKE_DEVICE, channels_last=self._channels_last)
            if given is not None:
                keep(tensor, given)
            self.specs.append(self._recorder.name_tensor(tensor, name, Role.INPUT))
            return tensor

        return pytree.tree_map_with_path(fake, values)
