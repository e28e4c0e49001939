"""Where a graph comes from, so that it can be had at other sizes, or traced again with other options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import InputError, SizeError
from rooflinekit.ir.sizes import check_dims, check_names
from rooflinekit.ir.tensor import DType

if TYPE_CHECKING:
    from rooflinekit.ir.graph import Graph


def autocast_format(given: object) -> DType | None:
    """The lower precision of an autocast region, by any name of it; raises InputError for one that CUDA has not."""
    try:
        found = None if given is None else DType(str(given))
    except ValueError:
        found = DType.BOOL
    if found in (None, DType.FLOAT16, DType.BFLOAT16):
        return found
    raise InputError(f"autocast: expected 'float16' ('fp16'), 'bfloat16' ('bf16') or None; got {str(given)!r}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Origin:
    """How a graph came about.

    `trace` takes options of `rooflinekit.trace` and traces the model again with all others as they were; None for a
    graph that no model is known of. `whole` is the graph before its sizes became numbers. `optimizer` builds the
    optimizer of a training step.
    """

    trace: Callable[..., Graph] | None = None
    whole: Graph | None = None
    optimizer: Callable[..., Any] | None = None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # In a file or another process a graph stands for itself: the model behind it may hold anything.
        return type(None), ()


_UNKNOWN = Origin()


def origin_of(graph: Graph) -> Origin:
    """What is known of a graph's origin: nothing of one made by hand."""
    return graph.origin or _UNKNOWN


def whole_of(graph: Graph) -> Graph:
    """The graph before sizes became numbers."""
    return origin_of(graph).whole or graph


def at_numbers(graph: Graph) -> Origin:
    """The origin of a graph that is this one with numbers for sizes."""
    return replace(origin_of(graph), whole=whole_of(graph))


def traced_with(graph: Graph, **options: Any) -> Graph:
    """The whole graph with other options of `trace` that it keeps: `autocast`, `channels_last`, `like`, `tf32`.

    Raises InputError where one differs and no model is known, and what `trace` raises.
    """
    changed = {name: value for name, value in options.items() if value != getattr(graph, name)}
    return _traced_anew(graph, changed) if changed else whole_of(graph)


def resized(graph: Graph, **sizes: int) -> Graph:
    """The same graph with other numbers for its named sizes; those not given stay as they are.

    Where sizes were traced as numbers, or the trace does not hold at others, the model is traced again. Raises
    SizeError for an unknown name or no positive integer, InputError where no model is known.
    """
    whole = whole_of(graph)
    known = (*whole.sizes, *whole.dims, *(forced.name for forced in whole.forced))
    wanted = check_dims({**graph.sizes, **sizes}, known)
    changed = {name: value for name, value in wanted.items() if whole.sizes.get(name) != value}
    if changed.keys() <= set(whole.dims):
        try:
            return whole.at(**changed)
        except SizeError:
            if origin_of(graph).trace is None:
                raise
    return _traced_anew(graph, {"sizes": wanted, "fixed": True})


def opened(graph: Graph, size: str) -> Graph:
    """The whole graph with this named size open; traced again where it was traced as a number.

    Raises SizeError for an unknown name or a size that the model forces to a number, InputError where no model is
    known.
    """
    whole = whole_of(graph)
    known = (*whole.dims, *(name for name in whole.sizes))
    check_names((size,), known, complete=False)
    if size not in whole.dims:
        whole = _traced_anew(graph, {"fixed": None})
    for forced in whole.forced:
        if forced.name == size:
            raise SizeError(f"{forced}: it cannot be varied")
    return whole


def _traced_anew(graph: Graph, changed: Mapping[str, Any]) -> Graph:
    trace = origin_of(graph).trace
    if trace is None:
        words = ", ".join(f"{name}={value!r}" for name, value in changed.items() if name != "fixed")
        raise InputError(
            f"{graph.name}: {words} takes tracing again, and this graph does not know its model (it was not made by "
            "trace, or came from a file or another process); trace the model with these options"
        )
    return trace(**changed)
