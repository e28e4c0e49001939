"""A model's parameters replaced by fake ones for the length of a trace, and everything put back after it."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from rooflinekit.errors import TraceError
from rooflinekit.tracing.memory import fake_like
from rooflinekit.tracing.sparse import is_sparse, note_weight
from rooflinekit.tracing.symbols import channels_last_of

#: Fake tensors stand on the CPU: a fake CUDA device would end the process in a build of torch without CUDA.
FAKE_DEVICE = "cpu"


def modules_of(target: Callable[..., Any]) -> dict[str, nn.Module]:
    """The modules that a callable can reach, by name: itself, what it is bound to, closes over or refers to."""
    if isinstance(target, nn.Module):
        return {"": target}
    if isinstance(target, functools.partial):
        found = modules_of(target.func)
        values = [*enumerate(target.args), *target.keywords.items()]
        return found | {str(name): value for name, value in values if isinstance(value, nn.Module)}
    owner = getattr(target, "__self__", None)
    if isinstance(owner, nn.Module):
        return {"": owner}
    names: dict[str, Any] = dict(getattr(owner if owner is not None else target, "__dict__", {}))
    function = inspect.unwrap(target)
    if inspect.isfunction(function):
        closure = inspect.getclosurevars(function)
        names |= {**closure.globals, **closure.nonlocals}
    return {name: value for name, value in names.items() if isinstance(value, nn.Module)}


def named_modules(roots: dict[str, nn.Module]) -> dict[int, str]:
    """The path of each module below the roots, by identity."""
    paths: dict[int, str] = {}
    for root, module in roots.items():
        for path, child in module.named_modules():
            paths.setdefault(id(child), ".".join(filter(None, (root, path))))
    return paths


def refuse_lazy(roots: dict[str, nn.Module]) -> None:
    """Raises TraceError where a parameter gets its shape from the first call only."""
    for root in roots.values():
        for name, weight in root.named_parameters():
            if nn.parameter.is_lazy(weight):
                raise TraceError(f"parameter {name!r} has no shape yet: call the lazy module once before it is traced")


@contextmanager
def preserved(roots: dict[str, nn.Module]) -> Iterator[None]:
    """Puts back every attribute of every module, and the random state of torch, numpy and Python."""
    modules = {id(m): m for root in roots.values() for m in root.modules()}
    before = []
    for module in modules.values():
        held = {name: dict(value) for name, value in module.__dict__.items() if isinstance(value, dict)}
        before.append((module, dict(module.__dict__), held))
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        for module, attributes, held in before:
            # through __dict__, for nn.Module.__setattr__ has opinions
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for name, content in held.items():
                attributes[name].clear()
                attributes[name].update(content)


def _stride(tensor: torch.Tensor, channels_last: bool) -> tuple[int, ...]:
    layout = channels_last_of(tensor.dim())
    if not channels_last or layout is torch.contiguous_format:
        return tensor.stride()
    return torch.empty(tensor.shape, device="meta", memory_format=layout).stride()


def put_fakes_in(
    roots: dict[str, nn.Module], dtype: torch.dtype | None, mode: FakeTensorMode, *, channels_last: bool = False
) -> dict[str, torch.Tensor]:
    """Replaces each parameter, buffer and tensor attribute by a fake one; tied tensors stay tied.

    Call it inside `preserved`. Returns the fakes by name: those of parameters are parameters. With a `dtype`,
    floating-point tensors take it; with `channels_last` those of four or five dimensions that layout, as in
    `nn.Module.to`.
    """
    fakes: dict[int, torch.Tensor] = {}
    named: dict[str, torch.Tensor] = {}

    def fake_of(tensor: torch.Tensor, name: str) -> torch.Tensor:
        if id(tensor) in fakes:
            return fakes[id(tensor)]
        wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        if is_sparse(tensor):
            fake: torch.Tensor = mode.from_tensor(tensor.detach().to(wanted))
            note_weight(fake, tensor)
        else:
            fake = fake_like(mode, tensor.shape, _stride(tensor, channels_last), wanted)
        if isinstance(tensor, nn.Parameter):
            fake._is_param = True  # what makes isinstance(fake, nn.Parameter) true
            fake.requires_grad_(tensor.requires_grad)
        fakes[id(tensor)] = fake
        named[name] = fake
        return fake

    for root, module in roots.items():
        for path, child in module.named_modules():
            prefix = ".".join(filter(None, (root, path)))
            for held in (child._parameters, child._buffers, child.__dict__):
                for name, value in held.items():
                    if isinstance(value, torch.Tensor):
                        held[name] = fake_of(value, ".".join(filter(None, (prefix, name))))
    return named
