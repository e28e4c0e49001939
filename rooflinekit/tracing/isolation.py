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
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rooflinekit.errors import TraceError, printable
from rooflinekit.tracing.decided import keep
from rooflinekit.tracing.memory import fake_like
from rooflinekit.tracing.symbols import channels_last_of
from rooflinekit.tracing.tensors import is_sparse, note_weight

#: Fake tensors stand on the CPU: a fake CUDA device would end the process in a build of torch without CUDA.
FAKE_DEVICE = "cpu"


def quiet_attribute(thing: Any, name: str) -> Any:
    """An attribute; None where there is none, or where the thing's own `__getattr__` fails."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def name_of(model: Callable[..., Any], unknown: str) -> str:
    """A module's class, or a function's name."""
    return type(model).__name__ if isinstance(model, nn.Module) else str(quiet_attribute(model, "__name__") or unknown)


def modules_of(target: Callable[..., Any]) -> dict[str, nn.Module]:
    """The modules that a callable can reach, by name: itself, what it is bound to, closes over or refers to."""
    if isinstance(target, nn.Module):
        return {"": target}
    if isinstance(target, functools.partial):
        found = modules_of(target.func)
        values = [*enumerate(target.args), *target.keywords.items()]
        return found | {str(name): value for name, value in values if isinstance(value, nn.Module)}
    owner = quiet_attribute(target, "__self__")
    if isinstance(owner, nn.Module):
        return {"": owner}
    names: dict[str, Any] = dict(quiet_attribute(owner if owner is not None else target, "__dict__") or {})
    function = inspect.unwrap(target) if inspect.isfunction(target) else target
    if inspect.isfunction(function):
        closure = inspect.getclosurevars(function)
        names |= {**closure.globals, **closure.nonlocals}
    return {name: value for name, value in names.items() if isinstance(value, nn.Module)}


def modules_below(roots: dict[str, nn.Module]) -> list[tuple[str, nn.Module]]:
    """Each module below the roots once, with its path, parents first.

    By what modules hold: `modules`, `parameters` and their like are methods that a model may write anew. Paths are of
    letters that can be printed: they stand in tables.
    """
    found: dict[int, tuple[str, nn.Module]] = {}

    def walk(path: str, module: nn.Module) -> None:
        if id(module) not in found:
            found[id(module)] = path, module
            for name, child in vars(module).get("_modules", {}).items():
                if child is not None:
                    walk(printable(f"{path}.{name}".lstrip(".")), child)

    for path, module in roots.items():
        walk(path, module)
    return list(found.values())


def named_modules(roots: dict[str, nn.Module]) -> dict[int, str]:
    """The path of each module below the roots, by identity."""
    return {id(module): path for path, module in modules_below(roots)}


def parameters_of(roots: dict[str, nn.Module]) -> dict[str, nn.Parameter]:
    """Every parameter below the roots once, tied ones by their first name."""
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for path, module in modules_below(roots):
        for name, weight in vars(module).get("_parameters", {}).items():
            if weight is not None:
                found.setdefault(id(weight), (f"{path}.{name}".lstrip("."), weight))
    return dict(found.values())


def refuse_unready(roots: dict[str, nn.Module]) -> None:
    """Raises TraceError where a parameter gets its shape from the first call only, or is spread over devices."""
    for name, weight in parameters_of(roots).items():
        if nn.parameter.is_lazy(weight):
            raise TraceError(f"parameter {name!r} has no shape yet: call the lazy module once before it is traced")
        if type(weight).__name__ == "DTensor":
            raise TraceError(
                f"parameter {name!r} is spread over devices (a DTensor): trace the module as it is before fully_shard "
                "or parallelize_module, and predict the strategy with rooflinekit.parallel"
            )


def _scripted(module: nn.Module) -> Callable[[], None]:
    """Puts back what a scripted module keeps outside of Python: parameters, buffers, its mode."""
    if not isinstance(module, torch.jit.ScriptModule):
        return lambda: None
    places: tuple[Any, ...] = module._parameters, module._buffers
    before = [(place, dict(place.items())) for place in places]
    training = module.training

    def put_back() -> None:
        for place, content in before:
            for name, value in content.items():
                place[name] = value
        if module.training is not training:
            module.training = training

    return put_back


@contextmanager
def preserved(roots: dict[str, nn.Module]) -> Iterator[None]:
    """Puts back every attribute of every module, and the random state of torch, numpy and Python.

    What the attributes hold, if it can change, is `snapshot.undone`'s.
    """
    before = [(m, type(m), dict(vars(m)), _scripted(m)) for _, m in modules_below(roots)]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        for module, kind, attributes, put_back in before:
            if type(module) is not kind:
                object.__setattr__(module, "__class__", kind)
            # through __dict__, for nn.Module.__setattr__ has opinions
            vars(module).clear()
            vars(module).update(attributes)
            put_back()


def _stride(tensor: torch.Tensor, channels_last: bool) -> tuple[int, ...]:
    layout = channels_last_of(tensor.dim())
    if not channels_last or layout is torch.contiguous_format:
        return tensor.stride()
    return torch.empty(tensor.shape, device="meta", memory_format=layout).stride()


def _keeps_more(tensor: Any) -> bool:
    """Whether it is of a kind that may keep attributes beside its numbers, as quantized weights keep their scales."""
    return type(tensor) not in (torch.Tensor, nn.Parameter) and not is_traceable_wrapper_subclass(tensor)


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
            keep(fake, tensor)
        if isinstance(tensor, nn.Parameter):
            fake._is_param = True  # what makes isinstance(fake, nn.Parameter) true
            fake.requires_grad_(tensor.requires_grad)
        fakes[id(tensor)] = fake
        named[name] = fake
        if _keeps_more(tensor):
            for more, value in vars(tensor).items():
                setattr(fake, more, fake_of(value, f"{name}.{more}") if isinstance(value, torch.Tensor) else value)
        return fake

    for path, module in modules_below(roots):
        own = vars(module)
        for held in (own.get("_parameters", {}), own.get("_buffers", {}), own):
            for name, value in held.items():
                if isinstance(value, torch.Tensor):
                    fake = fake_of(value, printable(f"{path}.{name}".lstrip(".")))
                    # a dict that refuses to be changed is one all the same
                    dict.__setitem__(held, name, fake) if isinstance(held, dict) else held.__setitem__(name, fake)
    return named
