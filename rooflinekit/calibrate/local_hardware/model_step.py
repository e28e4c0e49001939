"""A model, its inputs and its optimizer on a real device, and one step of them as a call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from rooflinekit.errors import MeasureError
from rooflinekit.ir.inputs import Input
from rooflinekit.ir.op import DType
from rooflinekit.tracing.symbols import channels_last_of
from rooflinekit.tracing.tracer import Step, loss_of, mapped, multi_tensor, region

_FEWEST_IDS = 2  # where no table of embeddings says how many numbers are valid

Run = Callable[[], object]
_Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def on_device(step: Step, device: torch.device, dtype: DType | None, sizes: Mapping[str, int]) -> Step:
    """The step with a copy of its model, in the mode of the step, and with tensors instead of descriptions.

    Tensors that were given are copied; described ones are random: normal numbers, integers that every table of
    embeddings of the model has, and flags that are set. Parameters without numbers, on the meta device, are initialized
    by their modules.

    Raises MeasureError for what is no module, and for a tensor on the meta device that no module initializes.
    """
    if not isinstance(step.model, nn.Module):
        raise MeasureError(f"model: expected a torch.nn.Module to run; got {type(step.model).__name__}")
    wanted = None if dtype is None else getattr(torch, dtype.value)
    model = _with_numbers(copy.deepcopy(step.model), device).to(device=device, dtype=wanted)
    if step.channels_last:
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.contiguous(memory_format=channels_last_of(tensor.dim()))
    if step.mode == "inference":
        model.eval()
    elif not model.training:
        model.train()
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    ids = min(tables, default=_FEWEST_IDS)  # how many integers are valid for every table of embeddings

    def made(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            own = wanted if wanted is not None and value.is_floating_point() else value.dtype
            return value.detach().clone().to(device=device, dtype=own)
        if not isinstance(value, Input):
            return value
        drawn = _drawn(value, device, wanted, sizes, ids)
        return drawn.contiguous(memory_format=channels_last_of(drawn.dim())) if step.channels_last else drawn

    return mapped(replace(step, model=model), made)


def _with_numbers(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with everything that is on the meta device initialized."""
    for path, module in model.named_modules():
        own = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        missing = [name for name, tensor in own.items() if tensor.is_meta]
        if not missing:
            continue
        reset = getattr(module, "reset_parameters", None)
        if reset is None:
            name = ".".join(filter(None, (path, missing[0])))
            raise MeasureError(
                f"{name} of the model is on the meta device, and {type(module).__name__} has no reset_parameters() to "
                "give it numbers; build the model on the device that it is to run on"
            )
        module.to_empty(device=device, recurse=False)
        reset()
    return model


def _drawn(
    value: Input, device: torch.device, wanted: torch.dtype | None, sizes: Mapping[str, int], ids: int
) -> torch.Tensor:
    """A random tensor as described. wanted: the format of floating-point ones, where it is not their own."""
    shape = [sizes[size] if isinstance(size, str) else size for size in value.shape]
    dtype: torch.dtype = getattr(torch, value.dtype.value)
    if dtype is torch.bool:
        return torch.ones(shape, dtype=dtype, device=device)
    if dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex64, device=device).to(dtype)
    if dtype.is_floating_point:  # every format can be made from fp32
        return torch.randn(shape, dtype=torch.float32, device=device).to(dtype if wanted is None else wanted)
    return torch.randint(ids, shape, dtype=dtype, device=device)


def eager(
    step: Step, device: torch.device, compile_part: _Compile = lambda part: part, *, capturable: bool = False
) -> Run:
    """One step, op by op, of parts as they are or compiled. `capturable`: with an optimizer for a CUDA graph."""
    if step.mode != "training":
        return _inference(step, device, compile_part)
    return _training(step, device, compile_part, capturable=capturable)


def compiled(step: Step, device: torch.device, mode: str | None = None) -> Run:
    """One step through torch.compile in `mode`, compiled anew: model and loss as one function, optimizer as another."""
    torch.compiler.reset()
    return eager(step, device, lambda part: torch.compile(part, mode=mode), capturable=mode is not None)


def _inference(step: Step, device: torch.device, compile_part: _Compile) -> Run:
    model = compile_part(step.model)

    def run() -> object:
        with torch.inference_mode() if step.inference_mode else torch.no_grad(), region(step, device.type):
            return model(*step.args, **step.kwargs)

    return run


def _training(step: Step, device: torch.device, compile_part: _Compile, *, capturable: bool) -> Run:
    assert isinstance(step.model, nn.Module)
    parameters = [p for p in step.model.parameters() if p.requires_grad]
    optimizer = None if step.optimizer is None else multi_tensor(step.optimizer(parameters))
    for group in optimizer.param_groups if optimizer is not None and capturable else ():
        if "capturable" in group:
            group["capturable"] = True

    def forward() -> torch.Tensor:
        return loss_of(step, step.model(*step.args, **step.kwargs), step.targets)

    loss_now = compile_part(forward)
    update = None if optimizer is None else compile_part(optimizer.step)

    def run() -> object:
        for parameter in parameters:
            parameter.grad = None
        with torch.enable_grad():
            with region(step, device.type):
                loss = loss_now()
            loss.backward()
        if update is not None:
            update()
        return loss

    return run
