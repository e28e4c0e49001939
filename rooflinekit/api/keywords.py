"""Words handed over by name: options, named sizes or inputs of the model; what is none of them gets a sentence."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from rooflinekit.api.trace_store import Shape, TraceStore, cache_folder
from rooflinekit.errors import InputError, nearest
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import Input, Mode, mode_of
from rooflinekit.ir.op import DType
from rooflinekit.ir.sizes import check_names
from rooflinekit.published.models import language_model

_TRACED = "belongs to the trace, and this Graph is traced already"
_SURE = 0.65  # of difflib: above, the nearest name alone is offered
_ALIKE = 0.85  # of difflib: one letter of six or more is another


def model_of(given: Any, name: str | None = None, device: object = "meta") -> tuple[Callable[..., Any], str | None]:
    """The model, and what to call it; one that is named as on the command line is built, on `device`.

    Raises InputError for what is no model, and TargetError for a name that means none.
    """
    if isinstance(given, str):
        from rooflinekit.tracing.targets import load_target

        target = load_target(given, str(device))
        return target.model, name or target.name
    if isinstance(given, type):
        called = given.__name__
        raise InputError(f"model: expected an instance, such as {called}(…); got the class {called} itself")
    if isinstance(given, Graph):
        raise InputError("model: this Graph is traced already; hand it to predict, sweep or another function as it is")
    if not callable(given):
        such = "a torch.nn.Module, a function, or a name such as 'timm:resnet50'"
        raise InputError(f"model: expected {such}; got {given!r:.60}")
    return given, name


def inputs_of(model: Any, inputs: Sequence[Any], given: Mapping[str, Any]) -> Sequence[Any]:
    """The inputs; where none is given, by place or by name, those that a model named as text usually has."""
    for one in inputs:
        if isinstance(one, list | tuple) and one and all(isinstance(name, str) for name in one):
            raise InputError(f"GPUs are named by keyword: gpus={list(one)}")
    if not isinstance(model, str) or inputs or any(isinstance(value, Input) for value in given.values()):
        return inputs
    return usual_inputs(model)


def usual_inputs(target: str, *, kept: bool = False, needed: bool = False) -> tuple[Input, ...]:
    """What a target is called with where nobody says: images of the library's own size, or token ids.

    Their sizes "batch" and "seq" are open. () where the library does not say. kept: whether the answer is kept for the
    next command, which then need not load the library. needed: whether it is an error to have none, where the target
    is one. Raises TargetError for what is no target.
    """
    if language_model(target):  # without importing torch
        return (Input("batch", "seq", dtype=DType.INT64),)
    folder = cache_folder() if kept else None
    shape = _shape_of(target) if folder is None else TraceStore(folder).usual_shape(target, _shape_of)
    if needed and not shape:
        from rooflinekit.tracing.targets import check_target

        check_target(target)  # what is no model has no input that is missing
    dtype = DType.INT64 if "seq" in shape else DType.FLOAT32
    return (Input(*shape, dtype=dtype),) if shape else ()


def _shape_of(target: str) -> Shape:
    from rooflinekit.tracing.targets import load_target, usual_shape

    if ":" not in target:
        load_target(target)  # says what a target is
    return usual_shape(target)


def further_inputs(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """What `keywords` holds. Raises InputError where it is no mapping of names."""
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise InputError(f"keywords: expected inputs by name, such as {{'mode': 'fan_in'}}; got {given!r:.60}")
    return dict(given or {})


def with_named(options: Mapping[str, Any], **named: Any) -> dict[str, Any]:
    """The options with those of the named ones that were given."""
    return {**options, **{name: value for name, value in named.items() if value is not None}}


def check_traced(
    graph: Graph, inputs: Sequence[Any], sizes: Iterable[str], options: Mapping[str, Any], function: Callable[..., Any]
) -> None:
    """Raises InputError for inputs, or options of a trace that are not the function's defaults, beside a Graph.

    sizes: names that have to be sizes of it; SizeError for another.
    """
    check_sizes_of([graph], inputs, sizes, function)
    parameters = inspect.signature(function).parameters
    check_mode(graph, options["mode"])
    for name, value in options.items():
        if name != "mode" and value is not parameters[name].default:
            raise InputError(f"{name}={value!r:.60} {_TRACED}")


def check_mode(graph: Graph, mode: Mode | None) -> None:
    """Raises InputError for a mode that is not the Graph's own."""
    if mode is not None and mode_of(mode) != graph.mode:
        raise InputError(f"mode={mode!r:.60} {_TRACED}")


def check_sizes_of(
    graphs: Iterable[Graph], inputs: Sequence[Any], sizes: Iterable[str], function: Callable[..., Any]
) -> None:
    """Raises InputError for inputs beside Graphs, and SizeError for names that are no sizes of any."""
    if inputs:
        raise InputError(f"a Graph has its inputs already; got {len(inputs)} more")
    known = {name: None for one in graphs for name in (*one.dims, *(forced.name for forced in one.forced))}
    check_names(sizes, known, complete=False, options=options_of(function))


def check_keywords(
    model: Callable[..., Any], given: Mapping[str, Any], *functions: Callable[..., Any], sizes: Collection[str] = ()
) -> None:
    """Raises InputError for a name that is no option of the functions, none of the sizes and no input of the model.

    A model that takes any keyword swallows those that are spelled like an option, so they are refused too: an
    `optimiser` would be a step without one. `keywords={…}` hands them over all the same.
    """
    own, takes_any = _arguments(model)
    options = options_of(*functions)
    for name in given.keys() - {*own, *options, *sizes}:
        if takes_any and not difflib.get_close_matches(name, options, n=1, cutoff=_ALIKE):
            continue
        called = type(model).__name__ if hasattr(model, "forward") else getattr(model, "__name__", "the model")
        known = [*own, *sizes, *sorted(options)]
        hint = _meant(name, known) or nearest(name, known, 1, _SURE) or nearest(name, known)
        takes = f"; {called} takes {', '.join(own)}" if own and not hint else ""
        takes += "" if hint or sizes else f"; a size is one that an input names, such as Input({name!r}, 3, 224, 224)"
        raise InputError(f"{name!r} is neither an option nor an input of {called}{hint}{takes}")


def _meant(name: str, known: Collection[str]) -> str:
    """What to write for a word of other libraries, among what is known here."""
    written = next((written for words, written in _WORDS.items() if name in words.split()), "")
    return f"; write {written}" if written.partition("=")[0] in known else ""


_WORDS = {
    "precision amp mixed_precision bf16 fp16 half": "autocast='bf16', or dtype='bf16' for weights too",
    "training train backward": "mode='training'",
    "compile compiled torch_compile backend": "execution='compiled'",
    "cuda_graph cuda_graphs": "execution='cuda-graph'",
    "device hardware": "gpu='nvidia-l4'",
    "batch_size bs": "batch=…",
    "seq_len sequence_length max_length": "seq=…",
    "labels target": "targets=(rk.Input('batch', dtype='int64'),)",
    "criterion loss_fn": "loss='cross_entropy'",
    "optim": "optimizer='AdamW'",
}


def options_of(*functions: Callable[..., Any]) -> set[str]:
    """The names of their arguments."""
    return {
        name
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }


def _arguments(model: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """The names that a model's inputs have, and whether it takes any other; also where nobody can tell."""
    try:
        parameters = inspect.signature(getattr(model, "forward", model)).parameters.values()
    except Exception:  # a signature that cannot be read, or the model's own code
        return (), True
    named = tuple(p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)
