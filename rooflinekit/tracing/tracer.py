"""One step of a model → the operators that it asks a device to run."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch import fx, nn

from rooflinekit.errors import InputError, TraceError
from rooflinekit.ir.coverage import Assumption
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import DType, Op, Phase, Role, TensorSpec
from rooflinekit.ir.sizes import Condition, ForcedSize, check_dims, symbol
from rooflinekit.tracing.assumed import Assumed
from rooflinekit.tracing.calls import Progress
from rooflinekit.tracing.eager_view import eager_view
from rooflinekit.tracing.failures import NO_NUMBERS, asks_for_gradients, readable_errors
from rooflinekit.tracing.gpu_view import gpu_view
from rooflinekit.tracing.interrupts import heeded_between_calls
from rooflinekit.tracing.isolation import (
    modules_below,
    modules_of,
    name_of,
    named_modules,
    parameters_of,
    preserved,
    put_fakes_in,
    refuse_unready,
)
from rooflinekit.tracing.recorder import Recorder
from rooflinekit.tracing.snapshot import undone
from rooflinekit.tracing.step import InputMaker, Step, described, first_names, names_of, with_numbers
from rooflinekit.tracing.surroundings import alone, undisturbed
from rooflinekit.tracing.symbols import MOST_QUESTIONS, TOO_MANY, Symbols, example_sizes, hashable_sizes, likely_sizes
from rooflinekit.tracing.tensors import leaves_of, parts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a trace found, before it is priced."""

    name: str
    inputs: tuple[TensorSpec, ...]
    weights: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    gradients: tuple[TensorSpec, ...]
    ops: tuple[Op, ...]
    held: Mapping[str, str]
    saved: Mapping[str, str]
    dims: tuple[str, ...]
    conditions: tuple[Condition, ...]
    apart: tuple[sympy.Basic, ...]
    forced: tuple[ForcedSize, ...]
    assumptions: tuple[Assumption, ...]
    fx: fx.Graph


def trace(
    step: Step,
    *,
    dtype: DType | None = None,
    sizes: Mapping[str, int] | None = None,
    fixed: bool | Collection[str] | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Records every operator of one step on fake tensors: no weights, no data, no GPU.

    `dtype` converts the floating-point weights and inputs, like `model.to(dtype)`. `sizes` are the example values
    of named sizes; with `fixed` those named in it, or those that `fixed` names, are traced as numbers. A size that
    cannot stay open is traced at its example and reported, and so are all sizes where open ones raise more than
    MOST_QUESTIONS different questions, unless `fixed` is False. The model, torch and the process are left as they were,
    whatever happens. Traces of several threads wait for one another.

    Raises InputError or SizeError for inputs that make no sense, TraceError for a model that cannot be traced.
    """
    with alone():
        return _trace(described(step), dtype, sizes or {}, fixed, progress)


def _trace(
    step: Step,
    dtype: DType | None,
    sizes: Mapping[str, int],
    fixed: bool | Collection[str] | None,
    progress: Progress | None,
) -> Trace:
    given = check_dims(sizes, names_of(step))
    if fixed:
        numbers = {name: size for name, size in given.items() if fixed is True or name in fixed}
        step, given = with_numbers(step, numbers), {name: given[name] for name in given.keys() - numbers.keys()}
    roots = modules_of(step.model)
    refuse_unready(roots)
    names = names_of(step)
    taken = {size for weight in parameters_of(roots).values() for size in weight.shape}
    examples = example_sizes(names, given, taken)

    def at(numbers: Sequence[str], examples: Mapping[str, int] = examples) -> Trace:
        """The trace with some of the sizes as numbers; with gradients, where the model's forward pass asks for some."""
        nonlocal step
        left = with_numbers(step, {name: examples[name] for name in numbers})
        try:
            symbols = Symbols(names_of(left), examples, most_questions=math.inf if fixed is False else MOST_QUESTIONS)
            return _traced(left, roots, symbols, dtype, progress)
        except TraceError as error:
            if step.mode == "training" or step.gradients or not asks_for_gradients(error):
                raise
        step = replace(step, gradients=True)
        return at(numbers, examples)

    further = [] if set(names) <= given.keys() else list(likely_sizes(names, first_names(step), given, taken))
    try:
        found = at(())
    except TraceError as error:
        if names:
            return _with_other_sizes(at, further, error) or _with_fewer_open(at, names, [examples, *further], error)
        if "shape_env" not in error.reason and error.reason != NO_NUMBERS:
            raise
        # nested tensors, and numbers that stand for themselves, take torch's symbols where nothing is open
        return _traced(step, roots, Symbols((), examples, always_open=True), dtype, progress)
    return found if _holds_at_one_of(found, further) else _with_other_sizes(at, further) or found


def _holds_at_one_of(trace: Trace, further: Sequence[Mapping[str, int]]) -> bool:
    """Whether it is not one of small sizes alone."""
    return not further or any(_holds_at(trace, sizes) for sizes in further)


def _holds_at(trace: Trace, sizes: Mapping[str, int]) -> bool:
    values = {symbol(name): size for name, size in sizes.items()}
    return all(condition.holds.xreplace(values) != sympy.false for condition in trace.conditions)


def _with_other_sizes(
    at: Callable[..., Trace], further: Sequence[Mapping[str, int]], error: TraceError | None = None
) -> Trace | None:
    """The trace at the first of further examples that the model accepts; None where it is not for the sizes.

    After an error one that forces some sizes will do where none keeps all open.
    """
    if error is not None and error.reason in (NO_NUMBERS, TOO_MANY):
        return None
    partly: Trace | None = None
    for examples in further:
        with suppress(TraceError):
            found = at((), examples)
            if not found.forced:
                return found
            partly = partly or found
    return partly if error is not None else None


def _with_fewer_open(
    at: Callable[..., Trace], names: Sequence[str], ladder: Sequence[Mapping[str, int]], error: TraceError
) -> Trace:
    """The trace with as many open sizes as it takes; raises where it fails at all numbers of the ladder too."""
    found, examples = _at_numbers(at, names, ladder)
    numbers = tuple(names)
    for name in names if len(names) > 1 and error.reason != TOO_MANY else ():
        with suppress(TraceError):
            found, numbers = at((name,), examples), (name,)
            break
    forced = tuple(
        ForcedSize(name=name, value=examples[name], where=error.where, reason=error.reason) for name in numbers
    )
    return replace(found, forced=(*found.forced, *forced))


def _at_numbers(
    at: Callable[..., Trace], names: Sequence[str], ladder: Sequence[Mapping[str, int]]
) -> tuple[Trace, Mapping[str, int]]:
    """The trace at the first examples that the model accepts as numbers, and these; raises what the first met."""
    first: TraceError | None = None
    for examples in ladder:
        try:
            return at(names, examples), examples
        except TraceError as error:
            first = first or error
    assert first is not None
    if len(ladder) == 1 or first.reason == NO_NUMBERS:
        raise first
    tried = ", ".join(f"{name}={ladder[0][name]}" for name in names)
    raise TraceError(f"{first} (at {tried}; sizes= gives other numbers)", where=first.where, reason=first.reason)


def _traced(
    step: Step, roots: dict[str, nn.Module], symbols: Symbols, dtype: DType | None, progress: Progress | None
) -> Trace:
    modules = [module for _, module in modules_below(roots)]
    with undisturbed(), heeded_between_calls(), undone(step.model, modules), preserved(roots):
        paths = named_modules(roots)
        converted = None if dtype is None else getattr(torch, dtype.value)
        weights = put_fakes_in(roots, converted, symbols.fake, channels_last=step.channels_last)
        recorder = Recorder(symbols, paths, Assumed(step.assume, symbols), progress)
        specs = [recorder.name_tensor(w, name, _role(w)) for name, w in weights.items()]
        make = InputMaker(recorder, symbols, dtype, channels_last=step.channels_last)
        args, kwargs, targets = make(step.args, "arg"), make(step.kwargs, ""), make(step.targets, "target")
        modes = (
            readable_errors(step.model, recorder),
            torch.jit.optimized_execution(False),  # type: ignore[attr-defined]  # scripted ones as they are written
            torch.compiler.set_stance("force_eager"),  # compiled parts are traced through their originals
            symbols.fake,
            recorder,
            recorder.calls.followed(),
            eager_view(),
            hashable_sizes(),
            gpu_view(recorder.assumed.elements, step.like),
        )
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            output = _run(step, args, kwargs, targets, roots, recorder)
        return _collected(step, recorder, symbols, specs, make.specs, output)


def _collected(
    step: Step,
    recorder: Recorder,
    symbols: Symbols,
    weights: Sequence[TensorSpec],
    inputs: Sequence[TensorSpec],
    output: Any,
) -> Trace:
    leaves = [part for tensor in leaves_of(output) for part in parts_of(tensor)]
    leaves += recorder.kept(leaves)
    recorder.close(leaves)
    model = step.model
    return Trace(
        name=name_of(model, "model"),
        inputs=tuple(inputs),
        weights=tuple(weights),
        outputs=tuple(map(recorder.spec, leaves)),
        gradients=recorder.gradients,
        ops=tuple(recorder.ops),
        held=MappingProxyType(recorder.held),
        saved=MappingProxyType(recorder.saved),
        dims=symbols.names,
        conditions=symbols.conditions(),
        apart=symbols.apart(),
        forced=symbols.forced(),
        assumptions=recorder.assumed.found,
        fx=recorder.fx,
    )


def _run(step: Step, args: Any, kwargs: Any, targets: Any, roots: dict[str, nn.Module], recorder: Recorder) -> Any:
    """The step itself. Modules are put in the mode of the step; `preserved` puts them back."""
    modules = [module for _, module in modules_below(roots)]
    if step.mode == "inference":
        for module in modules:
            module.training = False
    elif not any(root.training for root in roots.values()):
        for module in modules:
            module.training = True
    if step.mode != "training":
        # The ops of a region of inference are the same, but fake tensors would show some of them whole.
        with torch.set_grad_enabled(step.gradients), _region(step):
            return step.model(*args, **kwargs)
    parameters = [weight for weight in parameters_of(roots).values() if weight.requires_grad]
    optimizer = None if step.optimizer is None else multi_tensor(step.optimizer(parameters), step.like)
    if step.like is not None and not step.like.drops_gradients:
        _keep_gradients(parameters, recorder)
    with torch.enable_grad():
        with _region(step):
            output = step.model(*args, **kwargs)
            recorder.calls.around = "the loss"
            loss = loss_of(step, output, targets)
        recorder.calls.around = ""
        recorder.phase = Phase.BACKWARD
        loss.backward()  # type: ignore[no-untyped-call]
    recorder.gradients = tuple(recorder.spec(p.grad) for p in parameters if p.grad is not None)
    if optimizer is not None:
        recorder.phase = Phase.OPTIMIZER
        with recorder.paused():  # the first step makes the optimizer's state; every later one is like the second
            optimizer.step()
        optimizer.step()
    return output


def _region(step: Step) -> AbstractContextManager[object]:
    """Where the step runs in lower precision: everything but backward and optimizer."""
    return nullcontext() if step.autocast is None else torch.autocast("cuda", getattr(torch, step.autocast.value))


def loss_of(step: Step, output: Any, targets: Any) -> torch.Tensor:
    """The given loss, or a model's own, or the sum of everything that has a gradient."""
    if step.loss is not None:
        loss = step.loss(output, *targets)
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            raise InputError(f"the loss must return a tensor that depends on the model's output; got {loss!r}")
        if math.prod(loss.shape) != 1:
            raise InputError(f"the loss must return one number; got {tuple(loss.shape)}: take its mean() or sum()")
        return loss
    own = getattr(output, "loss", None)
    if isinstance(own, torch.Tensor) and own.dim() == 0:
        return own
    leaves = [tensor for tensor in leaves_of(output) if tensor.requires_grad]
    if not leaves:
        raise TraceError(_nothing_to_train(step, output))
    total = leaves[0].sum()
    for leaf in leaves[1:]:
        total = total + leaf.sum()
    return total


def _nothing_to_train(step: Step, output: Any) -> str:
    if not any(weight.requires_grad for weight in parameters_of(modules_of(step.model)).values()):
        why = "it has no parameter, or all are frozen"
    elif any(True for _ in leaves_of(output)):
        why = "no parameter that is trained has a part in it: give loss=, a function of the output, that has a gradient"
    else:
        kind = type(output).__name__
        why = f"no tensor was found in the {kind} that it returns: give loss=, a function of the {kind}, such as "
        why += "lambda output: output.logits.sum()"
    return f"no output of the model has a gradient, so there is nothing to train: {why}"


def multi_tensor(optimizer: torch.optim.Optimizer, like: Release | None = None) -> torch.optim.Optimizer:
    """The optimizer as it would be on CUDA, where the multi-tensor form is the default since 2.0."""
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = like is None or like.foreach_optimizers
    return optimizer


def _keep_gradients(parameters: Sequence[nn.Parameter], recorder: Recorder) -> None:
    """Gradients of the step before, set to zero at its beginning: backward adds to them."""
    recorder.phase = Phase.OPTIMIZER
    for i, parameter in enumerate(parameters):
        with recorder.paused():
            parameter.grad = torch.zeros_like(parameter)
        recorder.name_tensor(parameter.grad, f"gradient_{i}", Role.GRADIENT)
        parameter.grad.zero_()
    recorder.phase = Phase.FORWARD


def _role(weight: torch.Tensor) -> Role:
    return Role.WEIGHT if isinstance(weight, nn.Parameter) else Role.BUFFER
