"""Traces as torch.profiler writes them, a few events each, in microseconds from a round time."""

import gzip
import json
from pathlib import Path
from typing import Any

ORIGIN = 4_412_874_500_000  # such as the profiler has: microseconds that no small float would tell apart


def event(category: str, name: str, start: float, end: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, "ts": ORIGIN + start, "dur": end - start,
        "args": {key.replace("_", " "): value for key, value in args.items()},
    }  # fmt: skip


def step(number: int, start: float, end: float) -> dict[str, Any]:
    return event("user_annotation", f"ProfilerStep#{number}", start, end)


def call(name: str, start: float, end: float, tid: int = 1) -> dict[str, Any]:
    return event("cpu_op", name, start, end, tid, External_id=1)


def launched(
    name: str, launch: float, start: float, end: float, number: int, tid: int = 1, device: int = 0, sort: str = "kernel"
) -> list[dict[str, Any]]:
    """A kernel, and the CPU's launch of it, which takes 1 µs."""
    runtime = event("cuda_runtime", "cudaLaunchKernel", launch, launch + 1, tid, correlation=number)
    return [runtime, event(sort, name, start, end, 13, correlation=number, device=device, stream=13)]


def document(*events: dict[str, Any], devices: tuple[str, ...] = ("NVIDIA L4",)) -> dict[str, Any]:
    noise = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": ORIGIN, "args": {"name": "python"}},
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 7, "tid": 1, "ts": ORIGIN},
        event("python_function", "model.py(3): forward", 0, 1e6),
        event("gpu_user_annotation", "ProfilerStep#1", 0, 1e6, 13),
    ]
    properties = [{"id": i, "name": name, "totalGlobalMem": 10} for i, name in enumerate(devices)]
    return {
        "schemaVersion": 1, "deviceProperties": properties, "displayTimeUnit": "ms",
        "traceEvents": [*noise, *events], "traceName": "trace.json",
    }  # fmt: skip


def write(content: Any, file: Path) -> Path:
    text = json.dumps(content).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return file


def two_steps() -> dict[str, Any]:
    """Two steps of 100 µs: a product, relu and a product of elements, and in the first a copy.

    | kernel | launched | runs    | second step: launched | runs    |
    | ------ | -------- | ------- | --------------------- | ------- |
    | gemm   | 20       | 30–50   | 120                   | 130–154 |
    | relu   | 35       | 50–54   | 135                   | 154–158 |
    | copy   | 41       | 60–65   |                       |         |
    | mul    | 74       | 80–82   | 174                   | 180–182 |
    """
    events = [step(1, 0, 100), step(2, 100, 200), call("aten::copy_", 40, 46)]
    events += launched("Memcpy HtoD (Pageable -> Device)", 41, 60, 65, 9, sort="gpu_memcpy")
    for at, first, longer in ((0, 1, 0), (100, 11, 4)):
        events += [
            call("aten::linear", at + 10, at + 30), call("aten::addmm", at + 12, at + 28),
            call("aten::relu_", at + 32, at + 40), call("aten::mul", at + 70, at + 80),
            event("user_annotation", "Optimizer.step#SGD.step", at + 60, at + 99),
        ]  # fmt: skip
        events += launched("gemm", at + 20, at + 30, at + 50 + longer, first)
        events += launched("relu", at + 35, at + 50 + longer, at + 54 + longer, first + 1)
        events += launched("mul", at + 74, at + 80, at + 82, first + 2)
    return document(*events)


def shaped(name: str, start: float, end: float, *dims: list[int], kind: str = "c10::Half", values: Any = ()) -> Any:
    """A call whose shapes were recorded, all its tensors of one type."""
    strides = [[1] for _ in dims]
    made = event(
        "cpu_op", name, start, end, Input_Dims=list(dims), Input_type=[kind] * len(dims), Input_Strides=strides
    )
    made["args"]["Concrete Inputs"] = [*([""] * (len(dims) - len(values))), *values]
    return made


def one_block() -> dict[str, Any]:
    """A product 64 × 128 × 256 twice, of 10 and 14 µs, an addition of 2 µs, one that broadcasts, and a sort."""
    events = [
        shaped("aten::addmm", 10, 20, [128], [64, 256], [256, 128]),
        shaped("aten::addmm", 20, 30, [128], [64, 256], [256, 128]),
        shaped("aten::add_", 30, 40, [64, 128], [64, 128], []),
        shaped("aten::add", 40, 50, [64, 128], [128], []),
        shaped("aten::sort", 50, 60, [64, 128]),
    ]
    for number, (launch, start, end) in enumerate(
        [(12, 100, 110), (22, 110, 124), (32, 124, 126), (42, 126, 129), (52, 129, 134)], start=1
    ):
        events += launched(f"kernel {number}", launch, start, end, number)
    return document(*events)
