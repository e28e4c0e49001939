"""Writes the example of execution.md: the table, the kernels and the drawn timelines.

    python docs/make_execution.py [--check]

With --check nothing is written, and the exit status is 1 where the page is behind.
"""

from __future__ import annotations

from page import run
from torch import nn

import rooflinekit as rk

BACKENDS = ("eager", "compiled", "cuda-graph", "reduce-overhead")
WIDTH = 78  # characters of a timeline


def block() -> nn.Module:
    """Two 3×3 convolutions with what stands between them."""
    first = nn.Conv2d(64, 64, 3, padding=1)
    return nn.Sequential(first, nn.BatchNorm2d(64), nn.SiLU(), nn.Conv2d(64, 64, 3, padding=1))


def predictions(batch: int) -> dict[str, rk.Prediction]:
    """The block on an A100 under fp16 autocast, in each way of execution."""
    graph = rk.trace(block(), rk.Input(batch, 64, 56, 56), autocast="float16", fixed=True)
    return {backend: rk.predict(graph, "nvidia-a100-sxm4-80gb", execution=backend) for backend in BACKENDS}


def row(backend: str, found: rk.Prediction) -> str:
    """A line of the table."""
    moved = sum(float(timing.kernel.cost.bytes) for timing in found.timings) / 1e6
    times = " | ".join(f"{1e6 * seconds:.0f}" for seconds in (found.total_s, found.gpu_s, found.cpu_s))
    return f"| {backend} | {times} | {len(found.timings)} | {moved:.1f} |"


def table(batch: int) -> list[str]:
    """One row a way of execution."""
    head = f"| batch {batch} | step, µs | GPU busy, µs | CPU issuing, µs | kernels | moved, MB |"
    return [head, "| --- | --- | --- | --- | --- | --- |", *(row(*item) for item in predictions(batch).items()), ""]


def kernels(found: rk.Prediction) -> list[str]:
    """Each kernel with its start and traffic."""
    lines = ["```text", "  start     time      bytes  kernel"]
    for span in found.spans:
        kernel = span.timing.kernel
        size = float(kernel.cost.bytes) / 1e6
        lines.append(f"{1e6 * span.start_s:7.1f} {1e6 * span.timing.total_s:6.1f} µs {size:7.2f} MB  {kernel.name}")
    return [*lines, "```", ""]


def timeline(found: rk.Prediction, longest_s: float) -> list[str]:
    """Two lines: when the CPU has launched a kernel, and when the GPU runs one."""
    cpu, gpu = [" "] * WIDTH, [" "] * WIDTH
    scale = (WIDTH - 1) / longest_s
    for i in range(int(found.total_s * scale) + 1):
        gpu[i] = "·"
    for span in found.spans:
        cpu[int(span.issued_s * scale)] = "|"
        for i in range(int(span.start_s * scale), int(span.end_s * scale) + 1):
            gpu[i] = "█"
    return [f"CPU {''.join(cpu).rstrip()}", f"GPU {''.join(gpu).rstrip()}  {1e6 * found.total_s:.0f} µs"]


def timelines(batch: int) -> list[str]:
    """Each way of execution, to one scale."""
    found = predictions(batch)
    longest_s = max(one.total_s for one in found.values())
    lines = [
        f"Batch {batch}: `|` a launch by the CPU, `█` the GPU at work, `·` the GPU waiting, up to the end of the step.",
        "",
        "```text",
    ]
    for backend in BACKENDS:
        lines += [backend, *timeline(found[backend], longest_s)]
    return [*lines, "```", ""]


def example() -> str:
    """All of it."""
    found = predictions(64)
    lines = ["", *table(1), *table(64), *timelines(1), *timelines(64)]
    lines += ["The kernels of the eager step at batch 64:", "", *kernels(found["eager"])]
    lines += ["and of the compiled one:", "", *kernels(found["compiled"])]
    return "\n".join(lines)


if __name__ == "__main__":
    run("execution.md", "example", example, __file__)
