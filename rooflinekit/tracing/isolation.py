"""A model, torch and the process as they were before a trace: fake weights instead of real ones, and back.

A model that keeps its results (a cache of keys, a table of positions in a global, `functools.lru_cache`) would hold
fake tensors after a trace, and give them to its next real call. What a model and its code keep in lists, dicts, sets
and objects is noted before a trace and put back after it. Only what changed is touched.
"""

from __future__ import annotations

import functools
import inspect
import operator
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import chain
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from rooflinekit.errors import TraceError, printable
from rooflinekit.tracing.assumed import keep
from rooflinekit.tracing.memory import fake_like
from rooflinekit.tracing.surroundings import in_this_thread, standing_in
from rooflinekit.tracing.symbols import channels_last_of
from rooflinekit.tracing.tensors import Made, is_sparse, note_weight, wraps_tensors


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


def _places(module: nn.Module) -> tuple[Any, ...]:
    """Where a module keeps parameters, buffers, modules and all else: dicts, but for a scripted one's."""
    own = vars(module)
    return *(own.get(name, {}) for name in ("_parameters", "_buffers", "_modules")), own


def _stride(tensor: torch.Tensor, channels_last: bool) -> tuple[int, ...]:
    layout = channels_last_of(tensor.dim())
    if not channels_last or layout is torch.contiguous_format:
        return tensor.stride()
    return torch.empty(tensor.shape, device="meta", memory_format=layout).stride()


def put_fakes_in(
    roots: dict[str, nn.Module], dtype: torch.dtype | None, mode: FakeTensorMode, *, channels_last: bool = False
) -> dict[str, torch.Tensor]:
    """Replaces each parameter, buffer and tensor attribute by a fake one; tied tensors stay tied.

    Call it inside `undone`. Returns the fakes by name: those of parameters are parameters. With a `dtype`,
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
            fake = fake_like(mode, Made(tensor.shape, _stride(tensor, channels_last), wanted))
            keep(fake, tensor)
        if isinstance(tensor, nn.Parameter):
            fake._is_param = True  # what makes isinstance(fake, nn.Parameter) true
            fake.requires_grad_(tensor.requires_grad)
        fakes[id(tensor)] = fake
        named[name] = fake
        # a kind that may keep attributes beside its numbers, as quantized weights keep their scales
        if type(tensor) not in (torch.Tensor, nn.Parameter) and not wraps_tensors(type(tensor)):
            for more, value in vars(tensor).items():
                setattr(fake, more, fake_of(value, f"{name}.{more}") if isinstance(value, torch.Tensor) else value)
        return fake

    for path, module in modules_below(roots):
        for held in _places(module):
            for name, value in held.items():
                if isinstance(value, torch.Tensor):
                    fake = fake_of(value, printable(f"{path}.{name}".lstrip(".")))
                    # a dict that refuses to be changed is one all the same
                    dict.__setitem__(held, name, fake) if isinstance(held, dict) else held.__setitem__(name, fake)
    return named


def converting() -> AbstractContextManager[None]:
    """Within it a module may convert itself, as by `self.layer.to(x.dtype)`: fake tensors are put in its place for it.

    torch would swap the contents of two, which it does not where something refers to one weakly, as a trace does.
    """
    kind: Any = nn.Module
    original = kind._apply

    def applied(module: Any, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        tensors = [*module._parameters.values(), *module._buffers.values()]
        if not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return original(module, function, recurse)
        if recurse:
            for child in module.children():
                child._apply(function)
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = _converted(tensor, function)
        return module

    return standing_in([(kind, "_apply", in_this_thread(original, applied))])


def _converted(tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """What the function makes of a module's tensor: a parameter of a parameter, and itself if it is that already."""
    with torch.no_grad():
        found: Any = function(tensor)
    if found is not tensor and isinstance(tensor, nn.Parameter):
        found._is_param = True
        found.requires_grad_(tensor.requires_grad)
    return found


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
#: Built-in containers that can change: looked at by their own methods, as a subclass may have opinions, or refuse.
_FILL: dict[Any, Callable[[Any, list[Any]], None]] = {list: list.extend, set: set.update, deque: deque.extend}
_MUTABLE: tuple[Any, ...] = (OrderedDict, dict, *_FILL)
#: What a function may make a global of, to keep it there.
_KEPT: Any = torch.Tensor | list | dict | set | deque
_ABSENT = object()
_CACHE = type(functools.lru_cache(lambda: None))
#: The dicts of hooks that every module has.
_HOOKS = frozenset(name for name in vars(nn.Module()) if name.endswith("_hooks"))


@contextmanager
def undone(target: Callable[..., Any], roots: dict[str, nn.Module]) -> Iterator[None]:
    """Within it the model may keep what it likes: afterwards its modules' attributes, its lists, dicts, sets, objects
    and caches are as before, and so is the random state of torch, numpy and Python.

    `len(x)` of a tensor in its code is the open size that `x.shape[0]` is: Python's own makes a number of it.

    target: what is called; roots: the modules that it reaches. Of Python's globals those that their code names are
    looked after. Tensors themselves cannot change in a trace, but for their `grad`.
    """
    notes, attributes = _Notes(), _Notes()
    if isinstance(target, functools.partial):
        notes.walk(target.args, target.keywords)
        target = target.func
    notes.code_of(target if isinstance(target, FunctionType | MethodType) else type(target))
    notes.walk(target.__self__ if isinstance(target, MethodType) else target)
    for _, module in modules_below(roots):
        notes.class_of(module)
        notes.walk(module)
        attributes.module(module)
    with ExitStack() as afterwards:
        afterwards.callback(notes.put_back)
        for names in notes.measuring.values():
            names["len"] = _length
            afterwards.callback(names.pop, "len")
        afterwards.callback(attributes.put_back)
        afterwards.callback(np.random.set_state, np.random.get_state())
        afterwards.callback(random.setstate, random.getstate())
        afterwards.enter_context(torch.random.fork_rng(devices=[]))
        yield


def _length(value: Any) -> Any:
    plain = getattr(type(value), "__len__", None) is torch.Tensor.__len__ and value.dim()
    return value.shape[0] if plain and isinstance(value.shape[0], torch.SymInt) else len(value)


class _Notes:
    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # identity → the object, so that its identity stays its own
        self._undo: list[Callable[[], None]] = []
        self.measuring: dict[int, dict[str, Any]] = {}  # identity → globals of functions that call Python's `len`

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

    def module(self, module: nn.Module) -> None:
        """Notes a module's class and attributes, and its tensors, whose number has no bound."""
        self._note(lambda: [type(module)], lambda before: object.__setattr__(module, "__class__", before[0]))
        for place in _places(module):
            self._container(place, _base_of(place) or type(place))
        if isinstance(module, torch.jit.ScriptModule):
            self._note(lambda: [module.training], lambda before: setattr(module, "training", before[0]))

    def walk(self, *roots: Any) -> None:
        """Notes all that can be reached from the roots."""
        waiting = list(roots)
        while waiting and len(self._undo) < _MOST:
            value = waiting.pop()
            if type(value) in _ATOMS or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            waiting.extend(self._noted(value))

    def _note(self, read: Callable[[], Iterable[Any]], write: Callable[[list[Any]], object]) -> list[Any]:
        """Notes what `read` gives, and returns it. Where that is other objects afterwards, `write` gets those noted."""
        before = list(read())

        def undo() -> None:
            now = list(read())
            if len(now) != len(before) or not all(map(operator.is_, now, before)):
                write(before)

        self._undo.append(undo)
        return before

    def _noted(self, value: Any) -> Iterable[Any]:
        """Notes one value; returns what it holds."""
        if isinstance(value, _CACHE):
            del self._seen[id(value)]
            self.code_of(value)
            return ()
        if isinstance(value, torch.Tensor):
            if value.is_leaf:
                self._note(lambda: (value.grad, value.requires_grad), lambda before: _set_gradient(value, *before))
            return ()
        base = _base_of(value)
        if base is not None:
            return _holders(self._container(value, base))
        if isinstance(value, tuple):
            return _holders(list(tuple.__iter__(value)))
        if isinstance(value, frozenset):
            return _holders(list(frozenset.__iter__(value)))
        return self._object(value)

    def _container(self, value: Any, base: Any) -> list[Any]:
        if base in _MUTABLE and not base.__len__(value):  # most of a module's
            self._undo.append(lambda: base.clear(value))
            return []
        return self._note(lambda: _contents(value, base), lambda before: _refill(value, base, before))

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
            self._container(attributes, dict)
            for name, item in attributes.items():
                if module and name in _HOOKS:
                    self._noted(item)  # but not what hooks hold: that is the user's, as in a step
                else:
                    held.append(item)
        for base in kind.__mro__:
            for member in vars(base).values() if "__slots__" in vars(base) else ():
                if isinstance(member, MemberDescriptorType):
                    held += self._slot(value, member)
        return held

    def _slot(self, value: Any, member: MemberDescriptorType) -> list[Any]:
        def read() -> list[Any]:
            try:
                return [member.__get__(value, type(value))]
            except AttributeError:
                return []

        def write(before: list[Any]) -> None:
            if before:
                member.__set__(value, before[0])
            else:
                member.__delete__(value)

        return self._note(read, write)

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
            if id(found) in self._seen:
                continue
            if isinstance(found, _CACHE):
                self._seen[id(found)] = found
                waiting.append(self._cache(found))
            elif isinstance(found, type) and _package(found) not in _FOREIGN:
                self._seen[id(found)] = found
                held = self._attributes(found)
                self.walk(*_holders(held))
                waiting += [*found.__mro__[1:], *held]
            elif isinstance(found, FunctionType) and found.__module__ and _package(found) not in _FOREIGN:
                self._seen[id(found)] = found
                waiting += self._function(found)

    def class_of(self, module: nn.Module) -> None:
        """Notes what a module's class keeps, or has: parametrizations put properties on it."""
        kind = type(module)
        self.code_of(kind)
        if id(kind) not in self._seen:  # torch's own
            self._seen[id(kind)] = kind
            self._attributes(kind)

    def _attributes(self, kind: type) -> list[Any]:
        def write(before: list[Any]) -> None:
            for name in _attributes(kind).keys() - before[::2]:
                type.__delattr__(kind, name)
            for name, value in _pairs(before):
                if vars(kind).get(name) is not value:
                    type.__setattr__(kind, name, value)

        return self._note(lambda: chain.from_iterable(_attributes(kind).items()), write)[1::2]

    def _function(self, function: FunctionType) -> Iterable[Any]:
        names, namespace = _names(function.__code__), function.__globals__
        if "len" in names and "len" not in namespace:
            self.measuring[id(namespace)] = namespace

        def write(before: list[Any]) -> None:
            for name, value in zip(names, before, strict=True):
                if value is not _ABSENT:
                    namespace[name] = value
                elif isinstance(namespace.get(name), _KEPT):
                    del namespace[name]

        held = [*self._note(lambda: [namespace.get(name, _ABSENT) for name in names], write)]
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # not filled yet
                if not isinstance(cell.cell_contents, list):  # a list around a function is a log, for its reader
                    held.append(cell.cell_contents)
        held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        self.walk(*(value for value in held if isinstance(value, _KEPT | tuple | nn.Module)))
        return [value for value in held if not isinstance(value, type)]  # classes are noted where modules are of them

    def _cache(self, function: Any) -> Any:
        misses = function.cache_info().misses
        self._note(lambda: [function.cache_info().misses == misses], lambda _: function.cache_clear())
        return getattr(function, "__wrapped__", None)


def _set_gradient(tensor: torch.Tensor, gradient: torch.Tensor | None, wanted: bool) -> None:
    tensor.grad = gradient
    tensor.requires_grad_(wanted)


def _base_of(value: Any) -> Any:
    """Which of the built-in containers a value is; None for none."""
    return next((base for base in _MUTABLE if isinstance(value, base)), None)


def _contents(value: Any, base: Any) -> Iterable[Any]:
    """What a container holds, of a dict its keys and values in turn."""
    return base.__iter__(value) if base in _FILL else chain.from_iterable(base.items(value))


def _refill(value: Any, base: Any, contents: list[Any]) -> None:
    """Puts into a container what it held."""
    if base in _MUTABLE:  # the dicts of a scripted module know no clear: their keys are given
        base.clear(value)
    if base in _FILL:
        _FILL[base](value, contents)
    else:
        for key, item in _pairs(contents):
            base.__setitem__(value, key, item)


def _pairs(flat: list[Any]) -> Iterable[tuple[Any, Any]]:
    """Keys and values that stand in turn."""
    return zip(flat[::2], flat[1::2], strict=True)


def _attributes(kind: type) -> dict[str, Any]:
    """A class's own attributes, but for what Python keeps there."""
    return {name: value for name, value in vars(kind).items() if not name.startswith("__") and name != "_abc_impl"}


def _holders(values: list[Any]) -> Iterable[Any]:
    """The values that may hold others."""
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
