"""A model's own failure, told with the place where it happened and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from rooflinekit.errors import RooflinekitError, TraceError
from rooflinekit.tracing.isolation import name_of
from rooflinekit.tracing.recorder import Recorder
from rooflinekit.tracing.symbols import UNKNOWN, place_of

#: Errors whose text is a mere value.
_BARE = (LookupError, StopIteration, SystemExit, GeneratorExit)
#: Reason of a failure that may not be one where numbers can be symbols.
NO_NUMBERS = "a number of a tensor is asked for"
#: What torch says where gradients are asked for and none are recorded.
_NO_GRADIENTS = ("does not require grad and does not have a grad_fn", "differentiated Tensors does not require grad")


def asks_for_gradients(error: TraceError) -> bool:
    """Whether the model differentiates, in a step without gradients."""
    return any(text in error.reason for text in _NO_GRADIENTS)


class readable_errors:  # noqa: N801  a context manager; of a generator's StopIteration contextlib would lose ours
    """A model's own failure, told with the place where it happened."""

    def __init__(self, model: Callable[..., Any], recorder: Recorder) -> None:
        self._model = model
        self._recorder = recorder

    def __enter__(self) -> None:
        """Nothing to do before there is a failure."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Raises TraceError for whatever the model raises; a model that ends the process does not end this one."""
        if isinstance(error, Exception | SystemExit | GeneratorExit) and not isinstance(error, RooflinekitError):
            raise _told(self._model, self._recorder, error) from error


def _told(model: Callable[..., Any], recorder: Recorder, error: BaseException) -> TraceError:
    where = place_of(error)
    calls = recorder.calls
    inside = f" in module {calls.last!r}" if calls.last else f" in {calls.around}" if calls.around else ""
    advice = ""
    if isinstance(error, DataDependentOutputException | GuardOnDataDependentSymNode):
        said = f"say what it is, such as {recorder.assumed.asked}" if recorder.assumed.asked else "make it an argument"
        advice = (
            f" by the model's Python code, and a trace has none: {said}; or give the tensor that it comes from "
            "itself in the place of its sizes"
        )
    if isinstance(error, DynamicOutputShapeException):
        advice = (
            "; the size of its result depends on the numbers in a tensor, and a trace has none: "
            "trace the part before and after, or put an operator of known size in its place"
        )
    if isinstance(error, RuntimeError) and str(error).startswith("Expected target size"):
        advice = (
            "; cross_entropy takes the classes from the second dimension: of logits [batch, tokens, classes] it is "
            "lambda output, target: cross_entropy(output.flatten(0, -2), target.flatten())"
        )
    unknown = isinstance(error, DataDependentOutputException | GuardOnDataDependentSymNode)
    reason = NO_NUMBERS if unknown else _first_line(error)
    place = "" if where == UNKNOWN else f" ({where})"
    message = f"{name_of(model, 'the model')} could not be traced{inside}{place}: {reason}{advice}"
    return TraceError(message, where=where, reason=reason)


def _first_line(error: BaseException) -> str:
    """What an error says, in a line; its kind where it says nothing, or only a word."""
    kind = type(error).__name__
    try:
        said = str(error).strip().splitlines()
    except Exception:  # the error's own text is the model's code too
        said = []
    if not said:
        return kind
    return f"{kind}: {said[0]}" if isinstance(error, _BARE) else said[0]
