"""The process as a trace needs it, and afterwards as it was: torch's defaults, modes and flags, its patched functions.

A model may change any of them in its forward pass, and fail before it puts them back.
"""

from __future__ import annotations

import _thread
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch._subclasses.fake_tensor
from torch import nn
from torch._subclasses import FakeTensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nested._internal import nested_tensor
from torch.nn import functional
from torch.nn.modules import module as torch_modules
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack, _pop_mode

_lock = [threading.RLock()]


def _fresh_lock() -> None:
    """A child process has none of the threads that may hold the lock."""
    _lock[0] = threading.RLock()


os.register_at_fork(after_in_child=_fresh_lock)


@contextmanager
def alone() -> Iterator[None]:
    """Traces of other threads wait until this one is over: each replaces functions of torch for the whole process.

    Python looks for garbage among new objects alone: libraries hold a million, a third of a second each time. Nothing
    is set aside by gc.freeze(): Python would count on few old objects, and look at all too often later.
    """
    with _lock[0]:
        young, middle, old = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        _fakes.addFilter(_said_already)
        try:
            yield
        finally:
            _fakes.removeFilter(_said_already)
            gc.set_threshold(young, middle, old)


_NEVER = 2**31 - 1  # of collections of younger objects before one of the oldest


#: Where torch writes the traceback of an operator that shapes do not fit, before it raises what we raise again.
_fakes = logging.getLogger("torch._subclasses.fake_tensor")


def _said_already(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("failed while attempting to run meta")


@contextmanager
def standing_in(stand_ins: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Within it attributes are others: each a place, a name in it, and what stands there."""
    given = [(place, name, getattr(place, name), other) for place, name, other in stand_ins]
    try:
        for place, name, _, other in given:
            setattr(place, name, other)
        yield
    finally:
        for place, name, original, _ in given:
            setattr(place, name, original)


def in_this_thread(original: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """What stands instead of a function in this thread; itself in every other: they may run models meanwhile."""
    owner = threading.get_ident()

    def either(*args: Any, **kwargs: Any) -> Any:
        return (other if threading.get_ident() == owner else original)(*args, **kwargs)

    return either


overrides: Any = torch.overrides

#: Functions of torch that models replace: put back where they are others afterwards.
_PATCHED: tuple[Any, ...] = (nn.Module, torch.Tensor, functional, torch.autograd)
_HOOKS = [name for name in vars(torch_modules) if name.startswith("_global_") and name.endswith("_hooks")]


_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


def _attribute(place: Any, name: str) -> _Setting:
    return (lambda: getattr(place, name)), (lambda value: setattr(place, name, value))


def _settings() -> tuple[_Setting, ...]:
    """How each setting of the process is read, and set."""
    cuda: Any = torch.backends.cuda
    deterministic = torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled
    return (
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (
            lambda: tuple(read() for read in deterministic),
            lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        ),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.get_num_threads, torch.set_num_threads),
        (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
        (cuda.math_sdp_enabled, cuda.enable_math_sdp),
        (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
        (cuda.fp16_bf16_reduction_math_sdp_allowed, cuda.allow_fp16_bf16_reduction_math_sdp),
        (cuda.preferred_rocm_fa_library, cuda.preferred_rocm_fa_library),
        *(_attribute(torch.backends.cudnn, name) for name in ("benchmark", "deterministic", "enabled")),
        (
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda value: torch.autograd.set_detect_anomaly(*value),
        ),
    )


@contextmanager
def undisturbed() -> Iterator[None]:
    """Outer modes that a trace cannot run in are switched off; settings, hooks and functions of torch are kept.

    Anomaly mode looks at gradients' numbers, inference mode has tensors of its own kind, another fake mode takes the
    fakes for its own, and a default device elsewhere would place new tensors beside the fake ones.
    What the first nested tensor of a process makes for all later ones is made before: it is no part of a model.
    """
    settings = [(read, write, read()) for read, write in _settings()]
    hooks = [(getattr(torch_modules, name), dict(getattr(torch_modules, name))) for name in _HOOKS]
    functions = [(place, dict(vars(place))) for place in _PATCHED]
    device = _default_device()
    try:
        with ExitStack() as stack:
            stack.enter_context(unset_fake_temporarily())
            stack.enter_context(torch.inference_mode(False))
            if any(isinstance(mode, DeviceContext) for mode in overrides._get_current_function_mode_stack()):
                stack.enter_context(torch.device("cpu"))
            torch.autograd.set_detect_anomaly(False)
            with _disable_current_modes():
                getattr(nested_tensor, "_nt_view_dummy", object)()
            depth = _depth()
            try:
                yield
            finally:
                while _depth()[0] > depth[0]:
                    overrides._pop_mode()
                while _depth()[1] > depth[1]:
                    _pop_mode()
                if _default_device() is not device:
                    torch.set_default_device(None if device is None else device.device)
    finally:
        for place, before in functions:
            _put_back(place, before)
        for registered, content in hooks:
            if registered != content:
                registered.clear()
                registered.update(content)
        for read, write, was in settings:
            if read() != was:
                write(was)


def _depth() -> tuple[int, int]:
    """How many modes there are: of functions, and of dispatch."""
    return len(overrides._get_current_function_mode_stack()), len(_get_current_dispatch_mode_stack())


def _put_back(place: Any, before: dict[str, Any]) -> None:
    """The attributes as they were; what was added stays, for a library may have been imported, if it hides nothing."""
    for name in [name for name in vars(place) if name not in before]:
        if any(name in vars(base) for base in getattr(place, "__mro__", ())[1:]):
            delattr(place, name)
    for name, value in before.items():
        if vars(place).get(name) is not value:
            setattr(place, name, value)


def _default_device() -> DeviceContext | None:
    """What `torch.set_default_device` keeps."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


# Ctrl-C during a trace: heeded where Python alone is at work.
#
# Torch calls back into Python for every operator, in backward and when tensors die. A KeyboardInterrupt that is raised
# there is lost, or ends the process with SIGABRT (`terminate called after throwing … error_already_set`).


#: Functions that C++ calls, or that call C++ which calls Python.
_BELOW = {"__torch_dispatch__", "__torch_function__", "_engine_run_backward", "_died", "__del__"}
_PATIENCE_S = 2.0  # after which it is raised wherever the process is: a model's own loop may call no module

_held: list[Callable[[], object]] = []


@contextmanager
def heeded_between_calls() -> Iterator[None]:
    """Within it SIGINT waits until a module is called from Python, or the block ends; a second one does not wait.

    In another thread than the main one, and where SIGINT is ignored or ends the process, nothing is done.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting = threading.Timer(_PATIENCE_S, _thread.interrupt_main)
    waiting.daemon = True

    def handle(number: int, frame: FrameType | None) -> None:
        if _held or not _is_below(frame):
            _held.clear()
            before(number, frame)
            return
        _held.append(lambda: before(number, None))
        waiting.start()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        waiting.cancel()
        heed()


def heed() -> None:
    """Does what a held SIGINT asks for, where nothing of C++ is in between."""
    if _held and not _is_below(sys._getframe()):
        _held.pop()()


def _is_below(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _BELOW:
            return True
        frame = frame.f_back
    return False


# Libraries see eager mode: real tensors, on a GPU, and nobody who traces.
#
# Some look whether a tensor is fake, and then take a way that an export would take: a mask instead of a flag, a
# fallback instead of a kernel. For the length of a trace code outside of torch finds no fake tensors.


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


def eager_view() -> AbstractContextManager[None]:
    """Within it, code outside of torch that asks whether a tensor is fake is told that it is not."""
    is_fake = torch._subclasses.fake_tensor.is_fake
    stand_ins: dict[str, tuple[Any, Any]] = {
        "FakeTensor": (FakeTensor, _FakeTensor),
        "is_fake": (is_fake, lambda _: False),
    }
    places: list[tuple[Any, str]] = [(torch._subclasses, "FakeTensor")]
    for name, module in list(sys.modules.items()):
        known = getattr(module, "__dict__", {})
        named = [attribute for attribute, (real, _) in stand_ins.items() if known.get(attribute) is real]
        # of thousands of modules next to none have one: their names are looked at last
        if named and name.partition(".")[0] not in ("torch", "rooflinekit"):
            places += [(module, attribute) for attribute in named]
    return standing_in((place, attribute, stand_ins[attribute][1]) for place, attribute in places)
