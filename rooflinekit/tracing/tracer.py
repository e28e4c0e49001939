"""One step of a model → the operators that it asks a device to run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from rooflinekit.errors import InputError, RooflinekitError, TraceError
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import Input, Mode, Release
from rooflinekit.ir.op import Basis, DType, Phase, PricedOp, Role, TensorSpec
from rooflinekit.ir.sizes import ForcedSize, check_dims, may_hold, numbers_of
from rooflinekit.tracing.assumed import keep
from rooflinekit.tracing.gpu_view import gpu_view
from rooflinekit.tracing.isolation import (
    converting,
    modules_below,
    modules_of,
    name_of,
    parameters_of,
    put_fakes_in,
    refuse_unready,
    undone,
)
from rooflinekit.tracing.recorder import Progress, Recorder
from rooflinekit.tracing.surroundings import alone, eager_view, heeded_between_calls, undisturbed
from rooflinekit.tracing.symbols import (
    FIRST,
    GIVEN_UP,
    IN_VAIN,
    MOST_QUESTIONS,
    UNKNOWN,
    Symbols,
    example_sizes,
    hashable_sizes,
    place_of,
    plain_multiples,
    plain_quotients,
    remembered_arithmetic,
    slices_to_the_end,
)
from rooflinekit.tracing.tensors import ONE_FORMAT, leaves_of, parts_of


def trace(
    step: Step,
    *,
    dtype: DType | None = None,
    sizes: Mapping[str, int] | None = None,
    fixed: bool | Collection[str] | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Records every operator of one step on fake tensors: no weights, no data, no GPU. Nothing is priced yet.

    `dtype` converts the floating-point weights and inputs, like `model.to(dtype)`. `sizes` are the example values
    of named sizes; with `fixed` those named in it, or those that `fixed` names, are traced as numbers. A size that
    cannot stay open is traced at its example and reported, and so are all sizes where open ones raise more than
    MOST_QUESTIONS different questions, unless `fixed` is False. The model, torch and the process are left as they were,
    whatever happens. Traces of several threads wait for one another.

    Raises InputError or SizeError for inputs that make no sense, TraceError for a model that cannot be traced.
    """
    with alone():
        step = described(step)
        given = check_dims(sizes or {}, names_of(step))
        if fixed:
            numbers = {name: size for name, size in given.items() if fixed is True or name in fixed}
            step, given = with_numbers(step, numbers), {name: given[name] for name in given.keys() - numbers.keys()}
        return _trace(step, given, math.inf if fixed is False else MOST_QUESTIONS, dtype, progress)


def _trace(step: Step, given: Mapping[str, int], most: float, dtype: DType | None, progress: Progress | None) -> Graph:
    """The trace at examples that the model accepts, those given among them, with as many sizes open as it can be.

    most: different questions about open sizes before they are given up.
    """
    roots = modules_of(step.model)
    refuse_unready(roots)
    names = names_of(step)
    taken = {size for weight in parameters_of(roots).values() for size in weight.shape}
    examples = next(example_sizes(names, given, taken, ladder=[FIRST]))

    def at(numbers: Sequence[str], examples: Mapping[str, int] = examples, *, all_open: bool = False) -> Graph:
        """The trace with some of the sizes as numbers; with gradients, where the model's forward pass asks for some.

        all_open: it is given up where the model's code forces another size.
        """
        nonlocal step
        left = with_numbers(step, {name: examples[name] for name in numbers})
        try:
            symbols = Symbols(names_of(left), examples, most_questions=most, all_open=all_open)
            return _traced(left, roots, symbols, dtype, progress)
        except TraceError as error:
            differentiates = any(text in error.reason for text in _NO_GRADIENTS)
            if step.mode == "training" or step.gradients or not differentiates:
                raise
        step = replace(step, gradients=True)
        return at(numbers, examples, all_open=all_open)

    firsts = [size for one in _inputs_of(step) for size in one.shape[:1] if isinstance(size, str)]
    further = [] if set(names) <= given.keys() else list(example_sizes(names, given, taken, firsts))
    try:
        found = at(())
    except TraceError as error:
        if names:
            return _with_other_sizes(at, further, error) or _with_fewer_open(at, names, [examples, *further], error)
        if "shape_env" not in error.reason and error.reason != NO_NUMBERS:
            raise
        # nested tensors, and numbers that stand for themselves, take torch's symbols where nothing is open
        return _traced(step, roots, Symbols((), examples, always_open=True), dtype, progress)
    if found.assumptions and further:  # a share of a small first dimension may be one element, unlike that of a large
        further = list(example_sizes(names, given, taken))
    holds = [condition.holds for condition in found.conditions]
    if not further or any(all(may_hold(one, numbers) for one in holds) for numbers in map(numbers_of, further)):
        return found
    return _with_other_sizes(at, further) or found  # that one may be of small sizes alone


def _with_other_sizes(
    at: Callable[..., Graph], further: Sequence[Mapping[str, int]], error: TraceError | None = None
) -> Graph | None:
    """The trace at the first of further examples that the model accepts; None where it is not for the sizes.

    After an error one that forces some sizes will do. Where the model's code forces them at sizes that it accepts, it
    does so at larger ones too, and a loop over a size of hundreds would be unrolled in vain.
    """
    if error is not None and error.reason in (NO_NUMBERS, *GIVEN_UP):
        return None
    for examples in further:
        try:
            found = at((), examples, all_open=error is None)
            return found if error is not None or not found.forced else None
        except TraceError as refused:
            if refused.reason == IN_VAIN:
                return None
    return None


def _with_fewer_open(
    at: Callable[..., Graph], names: Sequence[str], ladder: Sequence[Mapping[str, int]], error: TraceError
) -> Graph:
    """The trace with as many open sizes as it takes; raises where it fails at all numbers of the ladder too."""
    found, examples = _at_numbers(at, names, ladder)
    numbers = tuple(names)
    for name in names if len(names) > 1 and error.reason not in GIVEN_UP else ():
        with suppress(TraceError):
            found, numbers = at((name,), examples), (name,)
            break
    forced = tuple(
        ForcedSize(name=name, value=examples[name], where=error.where, reason=error.reason) for name in numbers
    )
    return replace(found, forced=(*found.forced, *forced))


def _at_numbers(
    at: Callable[..., Graph], names: Sequence[str], ladder: Sequence[Mapping[str, int]]
) -> tuple[Graph, Mapping[str, int]]:
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
) -> Graph:
    with undisturbed(), heeded_between_calls(), undone(step.model, roots):
        paths = {id(module): path for path, module in modules_below(roots)}
        converted = None if dtype is None else getattr(torch, dtype.value)
        weights = put_fakes_in(roots, converted, symbols.fake, channels_last=step.channels_last)
        recorder = Recorder(symbols, paths, step.assume, progress)
        roles = (Role.WEIGHT if isinstance(weight, nn.Parameter) else Role.BUFFER for weight in weights.values())
        specs = list(map(recorder.name_tensor, weights.values(), weights, roles))
        inputs: list[TensorSpec] = []
        faked = partial(_faked, recorder, symbols, inputs, dtype, step.channels_last)
        args, kwargs, targets = faked("arg", step.args), faked("", step.kwargs), faked("target", step.targets)
        try:
            with _traceable(step, symbols, recorder):
                output = _run(step, args, kwargs, targets, roots, recorder)
        except RooflinekitError:
            raise
        except (Exception, SystemExit, GeneratorExit) as error:  # a model that ends the process does not end this one
            raise _told(step.model, recorder, error) from error
        return _collected(step, recorder, symbols, specs, inputs, output)


def _traceable(step: Step, symbols: Symbols, recorder: Recorder) -> ExitStack:
    """Within it a model runs on fake tensors, as a GPU would run it, and is recorded."""
    modes = (
        torch.jit.optimized_execution(False),  # type: ignore[attr-defined]  # scripted ones as they are written
        torch.compiler.set_stance("force_eager"),  # compiled parts are traced through their originals
        symbols.fake,
        recorder,
        recorder.calls.followed(),
        eager_view(),
        converting(),
        hashable_sizes(),
        plain_multiples(),
        remembered_arithmetic(),
        plain_quotients(),
        slices_to_the_end(),
        gpu_view(recorder.assumed.elements, step.like),
    )
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        return stack.pop_all()


def _collected(
    step: Step,
    recorder: Recorder,
    symbols: Symbols,
    weights: Sequence[TensorSpec],
    inputs: Sequence[TensorSpec],
    output: Any,
) -> Graph:
    leaves = [part for tensor in leaves_of(output) for part in parts_of(tensor)]
    leaves += recorder.kept(leaves)
    recorder.close(leaves)
    return Graph(
        name=name_of(step.model, "model"),
        mode=step.mode,
        inputs=tuple(inputs),
        weights=tuple(weights),
        outputs=tuple(map(recorder.spec, leaves)),
        gradients=recorder.gradients,
        priced=tuple(PricedOp(op=op, costs=(), basis=Basis.FREE) for op in recorder.ops),
        held=MappingProxyType(recorder.lives.held),
        saved=MappingProxyType(recorder.lives.saved),
        dims=symbols.names,
        conditions=symbols.conditions(),
        apart=symbols.apart(),
        forced=symbols.forced(),
        assumptions=recorder.assumed.found,
        autocast=step.autocast,
        channels_last=step.channels_last,
        like=step.like,
        inference_mode=step.inference_mode,
        fx=recorder.fx,
    )


def _run(step: Step, args: Any, kwargs: Any, targets: Any, roots: dict[str, nn.Module], recorder: Recorder) -> Any:
    """The step itself. Modules are put in the mode of the step; `undone` puts them back."""
    training = step.mode != "inference"
    if not (training and any(root.training for root in roots.values())):
        for _, module in modules_below(roots):
            module.training = training
    if step.mode != "training":
        # The ops of a region of inference are the same, but fake tensors would show some of them whole.
        with torch.set_grad_enabled(step.gradients), region(step):
            return step.model(*args, **kwargs)
    parameters = [weight for weight in parameters_of(roots).values() if weight.requires_grad]
    optimizer = None if step.optimizer is None else multi_tensor(step.optimizer(parameters), step.like)
    if step.like is not None and not step.like.drops_gradients:
        _keep_gradients(parameters, recorder)
    with torch.enable_grad():
        with region(step):
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


def region(step: Step, device: str = "cuda") -> AbstractContextManager[object]:
    """Where the step runs in lower precision on a type of device: everything but backward and optimizer."""
    return nullcontext() if step.autocast is None else torch.autocast(device, getattr(torch, step.autocast.value))


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


# What is traced: a step, and its inputs as descriptions, as numbers and as fake tensors.


#: A number format, by any of its names: "bf16", "bfloat16", torch.bfloat16.
Format: TypeAlias = "str | DType | torch.dtype"
#: A size, or an input by name. No text is among them, so that a type checker sees `executoin="compiled"`; a model that
#: is called with a text gets it as `keywords={…}`.
Given: TypeAlias = "int | float | Input | torch.Tensor | list[Any] | tuple[Any, ...] | dict[str, Any] | None"
Loss = Callable[..., torch.Tensor]
#: Builds an optimizer from parameters: `torch.optim.AdamW`, or a `functools.partial` of one.
OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is traced: a model, what it is called with, and what follows the forward pass."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    mode: Mode = "inference"
    loss: Loss | None = None
    targets: tuple[Any, ...] = ()
    optimizer: OptimizerFactory | None = None
    autocast: DType | None = None  # lower precision of a region around model and loss
    channels_last: bool = False  # model and inputs, as by `.to(memory_format=torch.channels_last)`
    assume: Mapping[str, Any] = field(default_factory=dict)  # numbers that stand in tensors, by name
    like: Release | None = None  # the release that it runs on; None for the present one
    inference_mode: bool = False  # within torch.inference_mode, instead of torch.no_grad
    gradients: bool = False  # with gradients though nothing is trained: the model differentiates in its forward pass


class _Given(Input):
    """The description of a tensor that was given itself."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(*tensor.shape, dtype=str(tensor.dtype))
        self.tensor = tensor


def described(step: Step) -> Step:
    """The step with every tensor among its inputs replaced by its description."""
    return mapped(step, lambda value: _Given(value) if isinstance(value, torch.Tensor) else value)


def with_numbers(step: Step, sizes: Mapping[str, int]) -> Step:
    """The step with numbers for some of its named sizes."""

    def numbered(value: Any) -> Any:
        if isinstance(value, Input) and value.names:
            return Input(*(sizes.get(s, s) if isinstance(s, str) else s for s in value.shape), dtype=value.dtype)
        return value

    return mapped(step, numbered)


def mapped(step: Step, function: Callable[[Any], Any]) -> Step:
    """The step with a function of each of its inputs and targets in their place."""
    return replace(
        step,
        args=pytree.tree_map(function, step.args),
        kwargs=pytree.tree_map(function, dict(step.kwargs)),
        targets=pytree.tree_map(function, step.targets),
    )


def names_of(step: Step) -> tuple[str, ...]:
    """Names of the sizes that are open, in order, each once."""
    return tuple(dict.fromkeys(name for one in _inputs_of(step) for name in one.names))


def _inputs_of(step: Step) -> list[Input]:
    leaves = pytree.tree_leaves((step.args, dict(step.kwargs), step.targets))
    return [leaf for leaf in leaves if isinstance(leaf, Input)]


def _faked(
    recorder: Recorder, symbols: Symbols, specs: list[TensorSpec], dtype: DType | None, channels_last: bool,
    prefix: str, values: Any,
) -> Any:  # fmt: skip
    """The values with fake tensors for descriptions, named by their place after the prefix; `specs` gets their records.

    dtype: of floating-point ones, where it is not their own.
    """

    def fake(path: Any, value: Any) -> Any:
        if not isinstance(value, Input):
            return value
        words = [str(getattr(key, "key", getattr(key, "idx", key))) for key in path]
        name = "_".join([prefix, *words]).strip("_")
        wanted = Input(*value.shape, dtype=dtype) if dtype is not None and value.dtype.is_floating else value
        tensor = symbols.tensor(wanted, name, channels_last=channels_last)
        if isinstance(value, _Given):
            keep(tensor, value.tensor)
        specs.append(recorder.name_tensor(tensor, name, Role.INPUT))
        return tensor

    return pytree.tree_map_with_path(fake, values)


# A model's own failure, told with the place where it happened and what to do about it.


#: Errors whose text is a mere value.
_BARE = (LookupError, StopIteration, SystemExit, GeneratorExit)
#: Reason of a failure that may not be one where numbers can be symbols.
NO_NUMBERS = "a number of a tensor is asked for"
#: What torch says where gradients are asked for and none are recorded.
_NO_GRADIENTS = ("does not require grad and does not have a grad_fn", "differentiated Tensors does not require grad")


_GUESSES = ". This could be because "  # what follows "Could not run '…'"
_OF_FORMATS = "; give inputs that of the weights, such as --input batch,32:float32, or use --dtype or autocast"
#: What to do about an error, by words of it.
_ADVICE = {
    "Expected target size": "; cross_entropy takes the classes from the second dimension: of logits [batch, tokens, "
    "classes] it is lambda output, target: cross_entropy(output.flatten(0, -2), target.flatten())",
    "scalar types: Long, Int": "; token ids are integers: Input('batch', 'seq', dtype='int64'), or --input "
    "batch,seq:int64",
    ONE_FORMAT: _OF_FORMATS,
    "should be the same": _OF_FORMATS,  # torch's own words for convolutions
    "Could not run 'quantized::": "; GPUs have no such kernels: trace the model as it is before torch.ao converts it, "
    "in 16 bits",
    ".numpy()": "; a trace has no numbers that numpy could take: write this part in torch, or trace what is before it",
}
_SHAPES = re.compile(r"(got \(|must be Tensor, not )(tuple|list|torch\.Size)\b")
_MISSING = re.compile(r"forward\(\) missing \d+ required positional arguments?: '(\w+)'")


def _advice(recorder: Recorder, error: BaseException, said: str) -> str:
    """What to do about an error that says this in its first line, where that is known."""
    if said == NO_NUMBERS:
        given = f"say what it is, such as {recorder.assumed.asked}" if recorder.assumed.asked else "make it an argument"
        return (
            f" by the model's Python code, and a trace has none: {given}; or give the tensor that it comes from "
            "itself instead of its sizes"
        )
    if isinstance(error, DynamicOutputShapeException):
        return (
            "; the size of its result depends on the numbers in a tensor, and a trace has none: "
            "trace the part before and after, or put an operator of known size in its place"
        )
    if advice := next((advice for words, advice in _ADVICE.items() if words in said), ""):
        return advice
    if not isinstance(error, TypeError):
        if not recorder.assumed.taken:
            return ""
        last = recorder.assumed.taken[-1]  # of which the model's own complaint may come
        return f"; numbers of data decide, and it was taken: {last}. assume={{{last.name!r}: …}} takes another"
    if "missing 1 required positional argument: 'target'" in said:
        return "; name what the loss compares with: targets=(Input('batch', dtype='int64'),), or --target batch:int64"
    if found := _MISSING.search(said):
        return f"; give it by its shape or as a tensor: Input(8, 3, 32, 32), {found[1]}=Input(…), or --input 8,3,32,32"
    return "; the shape of a tensor is written Input(8, 3, 32, 32), not (8, 3, 32, 32)" if _SHAPES.search(said) else ""


def _told(model: Callable[..., Any], recorder: Recorder, error: BaseException) -> TraceError:
    where = place_of(error)
    calls = recorder.calls
    inside = f" in module {calls.last!r}" if calls.last else f" in {calls.around}" if calls.around else ""
    unknown = isinstance(error, DataDependentOutputException | GuardOnDataDependentSymNode)
    reason = NO_NUMBERS if unknown else _first_line(error)
    advice = _advice(recorder, error, reason)
    place = "" if where == UNKNOWN else f" ({where})"
    message = f"{name_of(model, 'the model')} could not be traced{inside}{place}: {reason}{advice}"
    return TraceError(message, where=where, reason=reason)


def _first_line(error: BaseException) -> str:
    """What an error says, in a line; its kind where it says nothing, or only a word."""
    kind = type(error).__name__
    try:
        said = str(error).strip().replace(", but expected one of:", "").splitlines()
    except Exception:  # the error's own text is the model's code too
        said = []
    if not said:
        return kind
    return f"{kind}: {said[0]}" if isinstance(error, _BARE) else said[0].partition(_GUESSES)[0]
