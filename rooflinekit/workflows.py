"""The walks through the pipe: trace, predict, explain. Each is a few steps down, and none goes back up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from rooflinekit.calibrate.fits import load_constants
from rooflinekit.cost.table import Rule, price_all
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, load_device, load_host
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.inputs import Input, open_names
from rooflinekit.ir.sizes import check_dims
from rooflinekit.ir.tensor import DType
from rooflinekit.model.machine import Machine
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.step.timeline import Execution

if TYPE_CHECKING:
    from rooflinekit.tracing.tracer import Loss, Mode, OptimizerFactory

Progress = Callable[[int, str], None]

_CONVERTIBLE = (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def trace(
    model: Callable[..., Any],
    *inputs: Any,
    mode: Mode = "inference",
    loss: Loss | None = None,
    targets: Sequence[Any] = (),
    optimizer: OptimizerFactory | None = None,
    dtype: str | DType | None = None,
    autocast: str | DType | None = None,
    tf32: bool | None = None,
    sizes: Mapping[str, int] | None = None,
    fixed: bool = False,
    name: str | None = None,
    rules: Mapping[str, Rule] | None = None,
    strict: bool = False,
    progress: Progress | None = None,
    **keyword_inputs: Any,
) -> Graph:
    """The operators of one step of `model`, priced, with named sizes left open.

    model: an `nn.Module` or any callable. It is left exactly as it was.
    inputs, keyword_inputs: what it is called with; each tensor as an `Input` (or a tensor, of which only shape and
        format are used), nested in lists and dicts as the model likes, other values as they are.
    mode: "inference" (evaluation mode, no gradients) or "training" (forward, loss, backward, optimizer step).
    loss: callable(output, *targets); by default the output's own `loss`, else the sum of the outputs.
    targets: further `Input`s, handed to `loss`.
    optimizer: builds an optimizer from a list of parameters, such as `torch.optim.SGD`.
    dtype: converts floating-point weights and inputs, like `model.to(dtype)`.
    autocast: "float16" or "bfloat16" runs model and loss within `torch.autocast("cuda", …)`: weights stay as they are.
    tf32: whether fp32 products may run as tf32: everywhere, nowhere, or (None) where PyTorch's defaults allow it,
        in convolutions.
    sizes: example values for named sizes, where the model accepts only some; with `fixed` they are traced as numbers.
    rules: cost rules by op kind for this call. strict: raise UnknownOpError for an op without one.
    progress: called with the number of modules entered so far and the path of the newest.

    Raises InputError, SizeError, TraceError or UnknownOpError.
    """
    from rooflinekit.tracing import tracer

    if mode not in ("inference", "training"):
        raise InputError(f"mode: expected 'inference' or 'training'; got {mode!r}")
    if mode == "inference" and (loss, optimizer, tuple(targets)) != (None, None, ()):
        raise InputError("loss, targets and optimizer belong to mode='training'")
    step = tracer.Step(
        model=model,
        args=inputs,
        kwargs=keyword_inputs,
        mode=mode,
        loss=loss,
        targets=tuple(targets),
        optimizer=optimizer,
        autocast=tracer.autocast_format(autocast),
    )
    found = tracer.trace(step, dtype=_convertible(dtype), sizes=sizes, fixed=fixed, progress=progress)
    graph = Graph(
        name=name or found.name,
        mode=mode,
        inputs=found.inputs,
        weights=found.weights,
        outputs=found.outputs,
        gradients=found.gradients,
        priced=price_all(found.ops, rules, "raise" if strict else "traffic"),
        dims=found.dims,
        sizes=MappingProxyType(dict(sizes or {}) if fixed else {}),
        conditions=found.conditions,
        tf32=tf32,
        fx=found.fx,
    )
    return graph.with_forced(found.forced)


def predict(
    workload: Graph | Callable[..., Any],
    *inputs: Any,
    gpu: str | Path | Device | None = None,
    host: str | Path | Host = DEFAULT_HOST,
    execution: Execution | Literal["eager"] = "eager",
    mode: Mode = "inference",
    **options: Any,
) -> Prediction:
    """How long one step takes on a GPU, and why.

    workload: a traced Graph, followed by the GPU: `predict(graph, "nvidia-l4", batch=8)`; or a model, followed by its
        inputs: `predict(model, x, gpu="nvidia-l4", batch=8)`.
    gpu: name, alias, path of a specification, or Device. host: likewise, the CPU that issues the work.
    options: a number for each named size; with a model also the options of `trace`.

    Raises what `trace` and `load_device` raise, and FormatError for arithmetic that the GPU does not have.
    """
    if gpu is None and inputs:
        *inputs, gpu = inputs  # type: ignore[assignment]
    if not isinstance(gpu, str | Path | Device):
        raise InputError(f"gpu: expected a name, a path or a Device; got {gpu!r}")
    device = gpu if isinstance(gpu, Device) else load_device(gpu)
    if isinstance(workload, Graph):
        if inputs:
            raise InputError(f"a Graph has its inputs already; got {len(inputs)} more")
        graph = workload.at(**options)
    else:
        graph = _traced_at(workload, inputs, mode, options)
    machine = Machine.of(device, load_constants(device.name))
    chosen = execution if isinstance(execution, Execution) else Execution(backend=execution)
    return predict_graph(graph, machine, host if isinstance(host, Host) else load_host(host), chosen)


def _traced_at(model: Callable[..., Any], inputs: Sequence[Any], mode: Mode, options: dict[str, Any]) -> Graph:
    """The model traced at numbers: exact for these sizes, and faster than with open ones."""
    names = open_names((inputs, options))
    sizes = {name: options.pop(name) for name in tuple(options) if name in names}
    check_dims(sizes, names, complete=True)
    return trace(model, *inputs, mode=mode, sizes=sizes, fixed=True, **options)


def _convertible(dtype: str | DType | None) -> DType | None:
    if dtype is None:
        return None
    wanted = Input(dtype=dtype).dtype
    if wanted not in _CONVERTIBLE:
        known = ", ".join(_CONVERTIBLE)
        raise InputError(
            f"dtype {wanted.value!r}: PyTorch runs whole networks in {known}; products in 8 bits are ops of their own "
            "(torch._scaled_mm), so trace a model that calls them"
        )
    return wanted
