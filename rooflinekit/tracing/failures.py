"""A model's own failure, told with the place where it happened and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from rooflinekit.errors import RooflinekitError, TraceError
from rooflinekit.tracing.recorder import Recorder
from rooflinekit.tracing.symbols import place_of


@contextmanager
def readable_errors(model: Callable[..., Any], recorder: Recorder) -> Iterator[None]:
    """A model's own failure, told with the place where it happened."""
    try:
        yield
    except RooflinekitError:
        raise
    except Exception as error:
        where = place_of(error)
        inside = f" in module {recorder.calls.last!r}" if recorder.calls.last else ""
        name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "the model")
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = ""
        if isinstance(error, DataDependentOutputException | GuardOnDataDependentSymNode):
            advice = (
                "; the model's Python code looks at the numbers in a tensor, and a trace has none: "
                "pass the value as an argument, or trace the part before and after"
            )
        if isinstance(error, DynamicOutputShapeException):
            advice = (
                "; the size of its result depends on the numbers in a tensor, and a trace has none: "
                "trace the part before and after, or put an operator of known size in its place"
            )
        message = f"{name} could not be traced{inside} ({where}): {reason}{advice}"
        raise TraceError(message, where=where, reason=reason) from error
