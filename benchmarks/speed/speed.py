"""How long tracing and counting take, each beside its peer, every figure in a process of its own.

    python -m benchmarks.speed.speed [--repeats 5]

"first" is the first trace of a process, which pays for everything that torch caches; "again" is the median of five
more. Memory is the highest resident size of the process, libraries and all.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]


LLAMA = f"{ROOT}/examples/llama_70b.json"


def _resnet50() -> tuple[Any, tuple[int, ...]]:
    from rooflinekit.tracing.targets import load_target

    return load_target("timm:resnet50").model, (32, 3, 224, 224)


def ours_resnet50(symbolic: bool = False) -> Callable[[], object]:
    from rooflinekit import Input, trace

    model, shape = _resnet50()
    described = Input("batch" if symbolic else shape[0], *shape[1:])
    return lambda: trace(model, described).matrix_flop


def _torch(model: Any, shape: tuple[int, ...], dtype: str = "float32") -> Callable[[], object]:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model.eval()
    x = torch.empty(shape, device="meta", dtype=getattr(torch, dtype))

    def run() -> object:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(x)
        return counter.get_total_flops()

    return run


def torch_resnet50() -> Callable[[], object]:
    return _torch(*_resnet50())


def _decoder(target: str) -> Any:
    from rooflinekit.tracing.targets import load_target

    return load_target(f"transformers:{target}").model


def ours_decoder(target: str, *shape: int | str) -> Callable[[], object]:
    from rooflinekit import Input, trace

    model = _decoder(target)
    return lambda: trace(model, Input(*shape, dtype="int64")).matrix_flop


def torch_decoder(target: str, *shape: int) -> Callable[[], object]:
    return _torch(_decoder(target), shape, "int64")


def ours_gpt2_training() -> Callable[[], object]:
    import torch

    from rooflinekit import Input, trace

    model = _decoder("GPT2LMHeadModel")
    ids = Input("batch", "seq", dtype="int64")
    return lambda: trace(model, ids, mode="training", optimizer=torch.optim.AdamW).matrix_flop


def ours_many_sizes() -> Callable[[], object]:
    from rooflinekit import Input, trace

    model, shape = _resnet50()
    graph = trace(model, Input("batch", *shape[1:]))
    return lambda: graph.counts(batch=range(1, 10_001))["matrix_flop"].sum()


CASES: dict[str, tuple[Callable[[], Callable[[], object]], int]] = {
    "ResNet-50 inference, fixed sizes": (ours_resnet50, 5),
    "  torch FlopCounterMode on meta (ResNet)": (torch_resnet50, 5),
    "ResNet-50 inference, symbolic batch": (lambda: ours_resnet50(symbolic=True), 5),
    "  its counts at 10,000 batches": (ours_many_sizes, 3),
    "GPT-2 training with AdamW, symbolic": (ours_gpt2_training, 2),
    "GPT-2 inference, fixed sizes": (lambda: ours_decoder("GPT2LMHeadModel", 2, 1024), 5),
    "  torch FlopCounterMode on meta (GPT-2)": (lambda: torch_decoder("GPT2LMHeadModel", 2, 1024), 5),
    "80-layer Llama inference, fixed sizes": (lambda: ours_decoder(LLAMA, 2, 2048), 2),
    "  torch FlopCounterMode on meta (Llama)": (lambda: torch_decoder(LLAMA, 2, 2048), 2),
    "80-layer Llama inference, symbolic": (lambda: ours_decoder(LLAMA, "batch", "seq"), 1),
}


def measure(name: str) -> dict[str, object]:
    """One case in this process: seconds of the first and of further runs, peak memory in MB, and what came out."""
    make, again = CASES[name]
    run = make()
    seconds = []
    result: object = None
    for _ in range(1 + again):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"first": seconds[0], "again": statistics.median(seconds[1:]), "peak_mb": peak, "result": str(result)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="processes a case")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case)))
        return
    table = Table("", "first, s", "again, s", "peak, MB", "matrix FLOP", title="median of processes (min to max)")
    for name in CASES:
        found = []
        for _ in range(arguments.repeats):
            command = [sys.executable, "-m", "benchmarks.speed.speed", "--case", name]
            done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
            found.append(json.loads(done.stdout))
        columns = []
        for key in ("first", "again", "peak_mb"):
            values = [one[key] for one in found]
            digits = 0 if key == "peak_mb" else 3
            columns.append(
                f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
            )
        table.add_row(name, *columns, found[0]["result"])
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
