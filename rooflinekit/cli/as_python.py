"""The options of a workload as Python: what to type there for the same prediction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rooflinekit.cli.described import Workload
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.ir.inputs import Input
from rooflinekit.ir.op import DType

_LEFT_OUT: dict[str, Any] = {
    "mode": "inference", "dtype": None, "tf32": None, "strict": False, "channels_last": False, "autocast": None,
    "like": None, "targets": (),
}  # fmt: skip
_EXECUTION: dict[str, Any] = {
    "backend": "eager", "sync": "step", "copy": "none", "non_blocking": False, "loader_rate": None, "attention": None,
}  # fmt: skip


def python_of(workload: Workload, target: str, gpu: str, *last: str, others: Sequence[str] = ()) -> str:
    """A program that makes `prediction` of a target on a GPU, and for each of `others` one in `predictions`.

    last: lines that it ends with.
    """
    lines = ["import torch", ""] if workload.optimizer or workload.loss else []
    lines += ["import rooflinekit as rk", "from rooflinekit.tracing.targets import load_target", "", ""]
    lines += ["def predicted(name):", "    target = load_target(name)"]
    lines += _call("    graph = rk.trace", ["target.model", *_trace(workload), "name=target.name"])
    lines += _call("    return rk.predict", ["graph", _gpu(workload, gpu), *_predict(workload)])
    lines += ["", "", f"prediction = predicted({text(target)})"]
    lines += [f"other = predicted({text(other)})" for other in others]
    return "\n".join([*lines, *last])


def text(value: object) -> str:
    """A value as Python writes it, texts in double quotes.

    >>> text("a 'b'"), text(None), text(3), text(Input("batch", 3, dtype="int64"))
    ('"a \\'b\\'"', 'None', '3', 'rk.Input("batch", 3, dtype="int64")')
    """
    if isinstance(value, Input):
        parts = [text(size) for size in value.shape]
        parts += [] if value.dtype is DType.FLOAT32 else [f"dtype={text(value.dtype.value)}"]
        return f"rk.Input({', '.join(parts)})"
    if isinstance(value, DType):
        return text(value.value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{text(key)}: {text(part)}' for key, part in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value) if value is None or isinstance(value, bool | int | float) else text(str(value))


def _call(function: str, arguments: Sequence[str]) -> list[str]:
    """A call on one line, or with a line for each argument."""
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= 100:
        return [line]
    return [f"{function}(", *(f"        {argument}," for argument in arguments), "    )"]


def _trace(workload: Workload) -> Iterator[str]:
    yield from map(text, workload.args)
    for name, value in workload.options.items():
        if name not in _LEFT_OUT or value != _LEFT_OUT[name]:
            yield f"{name}={text(value)}"
    if workload.loss:
        yield f"loss=torch.nn.functional.{workload.loss}"
    if workload.optimizer:
        from rooflinekit.tracing.targets import optimizer_of

        found = optimizer_of(workload.optimizer)
        yield f"optimizer=torch.optim.{getattr(found, '__name__', workload.optimizer)}"
    if workload.sizes:
        yield f"sizes={text(workload.sizes)}"
    yield "fixed=True"


def _gpu(workload: Workload, gpu: str) -> str:
    return f"rk.load_device({text(gpu)}, allow_draft=True)" if workload.allow_draft else text(gpu)


def _predict(workload: Workload) -> Iterator[str]:
    if workload.host != DEFAULT_HOST:
        yield f"host={text(workload.host)}"
    changed = {name: value for name, value in workload.execution.items() if value != _EXECUTION[name]}
    if changed:
        yield f"execution=rk.Execution({', '.join(f'{name}={text(value)}' for name, value in changed.items())})"
    if workload.burst:
        yield "burst=True"
    if workload.constants is not None:
        yield f"constants={text(str(workload.constants))}"
