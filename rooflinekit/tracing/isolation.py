"""A model, torch and the process as they were before a trace: fake weights instead of real ones, and back.

A model that keeps its results (a cache of keys, a table of positions in a global, `functools.lru_cache`) would hold
fake tensors after a trace, and give them to its next real call. What a model and its code keep in lists, dicts, sets
and objects is noted before a trace and put back after it. Only what changed is touched.
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rooflinekit.errors import TraceError, printable
from rooflinekit.tracing.assumed import keep
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


# What a model and its code keep in lists, dicts, sets and objects: noted before a trace, put back after it.


#: Values that hold nothing: most of what there is.
_ATOMS = frozenset((str, bytes, int, float, complex, bool, type(None), range, slice, type, ModuleType)) | {
    *(torch.dtype, torch.device, torch.Size, MethodType, BuiltinFunctionType, FunctionType, functools.partial),
    *(property, staticmethod, classmethod),
}
#: Containers and objects that are noted: a data set held by a model would have millions.
_MOST = 200_000
#: Packages whose objects are not looked into: what they hold is not the model's, or takes locks.
_FOREIGN = frozenset(("torch", "numpy", "sympy", "rooflinekit", *sys.stdlib_module_names)) - {"__main__", "types"}
_FILLED: dict[type, Callable[[Any, list[Any]], None]] = {list: list.extend, set: set.update, deque: deque.extend}
_CACHE = type(functools.lru_cache(lambda: None))
#: The dicts of hooks that every module has.
_HOOKS = frozenset(name for name in vars(nn.Module()) if name.endswith("_hooks"))


@contextmanager
def undone(target: Callable[..., Any], modules: Iterable[nn.Module]) -> Iterator[None]:
    """Within it the model may keep what it likes: afterwards its lists, dicts, sets, objects and caches are as before.

    target: what is called; modules: every module that it reaches. Of Python's globals those that their code names are
    looked after. Tensors themselves cannot change in a trace, but for their `grad`.
    """
    notes = _Notes()
    if isinstance(target, functools.partial):
        notes.walk(target.args, target.keywords)
        target = target.func
    notes.code_of(target if isinstance(target, FunctionType | MethodType) else type(target))
    notes.walk(target.__self__ if isinstance(target, MethodType) else target)
    for module in modules:
        notes.class_of(module)
        notes.walk(module)
    try:
        yield
    finally:
        notes.put_back()


class _Notes:
    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # identity → the object, so that its identity stays its own
        self._undo: list[Callable[[], None]] = []

    def put_back(self) -> None:
        """Everything as it was. What cannot be put back keeps nothing else from it; then the first error is raised."""
        failed: Exception | None = None
        for undo in self._undo:
            try:
                undo()
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def walk(self, *roots: Any) -> None:
        """Notes all that can be reached from the roots."""
        waiting = list(roots)
        while waiting and len(self._undo) < _MOST:
            value = waiting.pop()
            if type(value) in _ATOMS or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            waiting.extend(self._noted(value))

    def _noted(self, value: Any) -> Iterable[Any]:
        """Notes one value; returns what it holds."""
        if isinstance(value, _CACHE):
            del self._seen[id(value)]
            self.code_of(value)
            return ()
        if isinstance(value, torch.Tensor):
            self._tensor(value)
            return ()
        if isinstance(value, dict):
            return self._dict(value)
        for base, fill in _FILLED.items():
            if isinstance(value, base):
                return self._sequence(value, base, fill)
        fixed: Any
        for fixed in (tuple, frozenset):
            if isinstance(value, fixed):  # a subclass may refuse to say how long it is: hence by the base's method
                return _holders(list(fixed.__iter__(value)))
        return self._object(value)

    def _dict(self, value: dict[Any, Any]) -> Iterable[Any]:
        # A subclass may refuse to be changed, and an ordered one has a list of its own: hence by the base's methods.
        base: Any = OrderedDict if isinstance(value, OrderedDict) else dict
        held = list(base.items(value))
        if not held:  # most of a module's are
            self._undo.append(lambda: base.clear(value) if base.__len__(value) else None)
            return ()

        def undo() -> None:
            now = list(base.items(value))
            if len(now) != len(held) or any(a is not c or b is not d for (a, b), (c, d) in zip(now, held, strict=True)):
                base.clear(value)
                for key, item in held:
                    base.__setitem__(value, key, item)

        self._undo.append(undo)
        return _holders([item for _, item in held])

    def _sequence(self, value: Any, base: Any, fill: Callable[[Any, list[Any]], None]) -> Iterable[Any]:
        held = list(base.__iter__(value))

        def undo() -> None:
            if not _same(base.__iter__(value), held):
                base.clear(value)
                fill(value, held)

        self._undo.append(undo)
        return _holders(held)

    def _tensor(self, tensor: torch.Tensor) -> None:
        if not tensor.is_leaf:
            return
        grad, wanted = tensor.grad, tensor.requires_grad

        def undo() -> None:
            if tensor.grad is not grad:
                tensor.grad = grad
            if tensor.requires_grad is not wanted:
                tensor.requires_grad_(wanted)

        self._undo.append(undo)

    def _object(self, value: Any) -> Iterable[Any]:
        kind = type(value)
        module = isinstance(value, nn.Module)
        if isinstance(value, type) or (not module and _package(kind) in _FOREIGN):
            return ()
        held: list[Any] = []
        try:
            attributes = object.__getattribute__(value, "__dict__")  # the class may have opinions on attributes
        except AttributeError:
            attributes = {}
        if type(attributes) is dict and attributes:
            self._dict(attributes)
            for name, item in attributes.items():
                if module and name in _HOOKS:
                    self._dict(item)  # but not what hooks hold: that is the user's, as in a step
                else:
                    held.append(item)
        for base in kind.__mro__:
            for member in vars(base).values() if "__slots__" in vars(base) else ():
                if isinstance(member, MemberDescriptorType):
                    held += self._slot(value, member)
        return held

    def _slot(self, value: Any, member: MemberDescriptorType) -> Iterable[Any]:
        absent = object()

        def read() -> Any:
            try:
                return member.__get__(value, type(value))
            except AttributeError:
                return absent

        before = read()

        def undo() -> None:
            if read() is not before:
                member.__delete__(value) if before is absent else member.__set__(value, before)

        self._undo.append(undo)
        return () if before is absent else (before,)

    # --- classes, functions and the globals that they name -----------------------------------------------------

    def code_of(self, code: Any) -> None:
        """Notes what a class or a function keeps: attributes of classes, globals that they name, their caches."""
        waiting = [code]
        while waiting:
            found = waiting.pop()
            if isinstance(found, MethodType | staticmethod | classmethod):
                found = found.__func__
            if isinstance(found, property):
                waiting += [found.fget, found.fset]
                continue
            if isinstance(found, _CACHE):
                self._cache(found)
                found = getattr(found, "__wrapped__", None)
            if id(found) in self._seen:
                continue
            if isinstance(found, type) and _package(found) not in _FOREIGN:
                self._seen[id(found)] = found
                waiting += found.__mro__[1:]
                held = self._attributes(found)
                self.walk(*_holders(held))
                waiting += held
            elif isinstance(found, FunctionType) and found.__module__ and _package(found) not in _FOREIGN:
                self._seen[id(found)] = found
                waiting += self._function(found)

    def class_of(self, module: nn.Module) -> None:
        """Notes what a module's class keeps, or has: parametrizations put properties on it."""
        kind = type(module)
        if _package(kind) not in _FOREIGN:
            self.code_of(kind)
        elif id(kind) not in self._seen:
            self._seen[id(kind)] = kind
            self._attributes(kind)

    def _attributes(self, kind: type) -> list[Any]:
        before = _attributes(kind)

        def undo() -> None:
            for name in _attributes(kind).keys() - before.keys():
                type.__delattr__(kind, name)
            for name, value in before.items():
                if vars(kind).get(name) is not value:
                    type.__setattr__(kind, name, value)

        self._undo.append(undo)
        return list(before.values())

    def _function(self, function: FunctionType) -> Iterable[Any]:
        namespace = function.__globals__
        names = [name for name in _names(function.__code__) if name in namespace]
        before = {name: namespace[name] for name in names}
        absent = [name for name in _names(function.__code__) if name not in namespace]

        def undo() -> None:
            for name, value in before.items():
                if namespace.get(name) is not value:
                    namespace[name] = value
            for name in absent:
                if isinstance(namespace.get(name), torch.Tensor | list | dict | set | deque):
                    del namespace[name]

        self._undo.append(undo)
        cells = []
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            if not isinstance(content, list):  # what a list around a function is given is a log, for its reader
                cells.append(content)
        held = [*before.values(), *cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        self.walk(*(v for v in held if isinstance(v, dict | list | set | deque | tuple | torch.Tensor | nn.Module)))
        return [value for value in held if not isinstance(value, type)]  # classes are noted where modules are of them

    def _cache(self, function: Any) -> None:
        if id(function) in self._seen:
            return
        self._seen[id(function)] = function
        misses = function.cache_info().misses

        def undo() -> None:
            if function.cache_info().misses != misses:
                function.cache_clear()

        self._undo.append(undo)


def _same(now: Iterable[Any], before: list[Any]) -> bool:
    """Whether they hold the same objects, in the same order."""
    found = list(now)
    return len(found) == len(before) and all(a is b for a, b in zip(found, before, strict=True))


def _attributes(kind: type) -> dict[str, Any]:
    """A class's own attributes, but for what Python keeps there."""
    return {name: value for name, value in vars(kind).items() if not name.startswith("__") and name != "_abc_impl"}


def _holders(values: list[Any]) -> Iterable[Any]:
    """Those of the values that may hold others."""
    if set(map(type, values)) <= _ATOMS:
        return ()
    return [value for value in values if type(value) not in _ATOMS]


def _package(thing: Any) -> str:
    """The top of the package that a class or a function is defined in."""
    return str(getattr(thing, "__module__", "") or "").partition(".")[0]


@functools.cache
def _names(code: CodeType) -> tuple[str, ...]:
    """The global names that code reads or writes, that of functions inside it included."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return tuple(dict.fromkeys((*code.co_names, *inner)))
