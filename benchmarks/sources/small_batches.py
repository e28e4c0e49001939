"""Measured steps that the host decides: torchvision at batch 12, and four bottlenecks at batch 1."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import rooflinekit as rk
from benchmarks.sources.networks import Step
from benchmarks.sources.operators import gpu_name
from benchmarks.sources.tables import read_table

#: "PyTorch 1.x", not recorded for a row; models of that time.
_LIKE = "1.8"
_DTYPES = {"float": "float32", "half": "float16"}
_BATCH = 12

#: What issuing an op costs the unknown hosts of the two collections, times generic-server's, and their backward factor:
#: those of a grid (1, 1.5, 2, 3, 4 by 0.7, 1.4, 2.8) with the least median error on half of the models of RTX 2080 Ti.
#: The other half is judged.
_HOSTS = {0: (3.0, 1.4), 1: (2.0, 2.8)}


def _host(run: int) -> rk.Host:
    return slower_host(*_HOSTS[run])


def slower_host(times: float, backward: float) -> rk.Host:
    """generic-server, issuing so many times slower, with another backward factor."""
    base = rk.load_host("generic-server")
    dispatch = {family: times * seconds for family, seconds in base.dispatch.items()}
    return base.replace(dispatch=dispatch, launch=times * base.launch, step=times * base.step, backward_factor=backward)


def torchvision_steps(data: Path) -> Iterator[Step]:
    """torchvision on one GPU: the image copied from ordinary memory within the step, no optimizer, no autocast."""
    file = data / "cnn" / "torchvision_e2e.parquet"
    if not file.is_file():
        return
    table = read_table(file)
    table = table[(table["num_gpus"] == 1) & table["dtype"].isin(list(_DTYPES))]
    for row in table.itertuples():
        gpu = gpu_name(str(row.gpu))
        if gpu is None or zlib.crc32(row.model.encode()) % 2 == 0:
            continue
        mode = "training" if row.mode == "train" else "inference"
        yield Step(
            table=f"torchvision {mode}, {_DTYPES[row.dtype]}, collection {row.run}",
            gpu=gpu,
            workload=f"torchvision {row.model} {mode} {row.dtype}",
            sizes={},
            trace=functools.partial(_torchvision, str(row.model), mode, _DTYPES[row.dtype]),
            options={"execution": rk.Execution(copy="pageable"), "host": _host(int(row.run))},
            seconds=float(row.median_ms) * 1e-3,
            columns={"model": row.model, "family": row.model, "step": mode, "batch": _BATCH},
        )


def _torchvision(name: str, mode: str, dtype: str) -> rk.Graph:
    from rooflinekit.tracing.targets import load_target

    load_target("timm:resnet18")  # torchvision's operators, where they are missing
    import torch
    import torchvision

    with torch.device("meta"):
        model = getattr(torchvision.models, name)()
    options: dict[str, Any] = {"mode": mode, "dtype": dtype, "like": _LIKE, "name": name}
    if mode == "training":
        targets = [rk.Input(_BATCH, dtype="int64")]
        options |= {"loss": torch.nn.functional.cross_entropy, "targets": targets}
    graph = rk.trace(model, rk.Input(_BATCH, 3, 224, 224), **options)
    return replace(graph, inputs=graph.inputs[:1])  # targets lay on the GPU


#: µs, of PyTorch 1.0 on a P100: wall time a pass, with one synchronization at the end of many, and time of kernels.
_BOTTLENECKS = {"A": (64, 124, 122), "A_prime": (64, 123, 71), "B": (256, 214, 207), "B_prime": (256, 99, 96)}


def bottleneck_steps() -> Iterator[Step]:
    """The four networks of examples/bottlenecks.py, by wall time and by the time of their kernels."""
    for name, (channels, wall_us, kernels_us) in _BOTTLENECKS.items():
        for what, seconds, of in (
            ("wall", wall_us * 1e-6, lambda p: p.total_s),
            ("kernels", kernels_us * 1e-6, _kernel_s),
        ):
            yield Step(
                table=f"bottlenecks, {what}",
                gpu="nvidia-p100-pcie-16gb",
                workload=f"bottleneck {name}",
                sizes={},
                trace=functools.partial(_bottleneck, name, channels),
                options={"execution": rk.Execution(sync="none"), "host": rk.load_host("xeon-server-2018")},
                seconds=seconds,
                columns={"model": name, "step": what, "batch": 1},
                of=of,
            )


def _bottleneck(name: str, channels: int) -> rk.Graph:
    from rooflinekit.tracing.targets import load_target

    file = Path(__file__).parents[2] / "examples" / "bottlenecks.py"
    model: Callable[..., Any] = load_target(f"{file}:{name}").model
    return rk.trace(model, rk.Input(1, channels, 160, 120), like="1.0")


def _kernel_s(p: rk.Prediction) -> float:
    """What a profiler adds up: kernels without the gaps between them."""
    return p.gpu_s - len(p.timings) * p.machine.values["kernel_gap"]
