"""Training steps on one GPU by the same script on several kinds of it: lambda, gavel and sia.

No statistic was told by any of them, and lambda and sia have no licence: they are judged by, and nothing else. `cnn`
holds two GPUs, one of which is not shipped, and tells nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import rooflinekit as rk
from benchmarks.clusters.scaling import graph as scaling_graph
from benchmarks.sources.tables import read_table
from benchmarks.transfer.sources import Measured, host_of, machine_of
from rooflinekit.ir.graph import traced_with
from rooflinekit.step.prediction import predict_graph
from rooflinekit.tracing.targets import declare_torchvision_operators

#: GPUs of lambda that are shipped. V100 and A100 with NVLink are Lambda's own servers of 32 and 40 GB.
_LAMBDA = {
    "1080Ti": "nvidia-gtx-1080-ti", "3070": "nvidia-rtx-3070", "3080": "nvidia-rtx-3080", "A10": "nvidia-a10",
    "A4000": "nvidia-rtx-a4000", "A40": "nvidia-a40", "A100_80GB_PCIe": "nvidia-a100-pcie-80gb",
    "A100_SXM4": "nvidia-a100-sxm4-40gb", "V100": "nvidia-v100-sxm2-32gb",
}  # fmt: skip
#: Samples a GB: see benchmarks/clusters/scaling_sources.py.
_PER_GB = {
    ("resnet50", "fp16"): 16.0, ("resnet50", "fp32"): 8.0, ("bert_base_squad", "fp16"): 4.0,
    ("bert_base_squad", "fp32"): 2.15, ("bert_large_squad", "fp16"): 1.4, ("bert_large_squad", "fp32"): 0.8,
}  # fmt: skip
_LIKE = {"v0": "1.7", "v1": "1.13"}  # releases in the containers of October 2020 and 2022
_HOST = "generic-server"


@cache
def _graph(network: str, dtype: str, like: str | None = None, *, tf32: bool = False) -> rk.Graph:
    """As benchmarks/clusters/scaling.py traces them; by a release of PyTorch, and with tf32 everywhere."""
    declare_torchvision_operators()
    graph = scaling_graph(network, dtype)
    return graph if like is None else traced_with(graph, like=like, tf32=tf32)


def _step(source: str, network: str, gpu: str, graph: rk.Graph, seconds: float, **sizes: int) -> Measured:
    return Measured(
        source=source, how="training", network=network, family=network, gpu=gpu, seconds=seconds,
        prediction=predict_graph(graph.at(**sizes), machine_of(gpu), host_of(_HOST), rk.Execution()),
    )  # fmt: skip


def lambdas(data: Path, share: float, *, estimate: bool) -> Iterator[list[Measured]]:
    """lambda: NVIDIA's ResNet-50 and BERT on SQuAD, in containers whose PyTorch allows tf32 everywhere. The batch fills
    the memory of each, so the steps differ in it."""
    del share
    table = read_table(data / "lambda" / "training.csv")
    table = table[(table.gpus == 1) & table.task.isin({task for task, _ in _PER_GB}) & table.gpu.isin(list(_LAMBDA))]
    for (collection, task, precision), part in table.groupby(["collection", "task", "precision"]):
        found = []
        for gpu, own in () if estimate else part.groupby("gpu"):
            name = _LAMBDA[str(gpu)]
            batch = max(1, round(_PER_GB[task, precision] * machine_of(name).device.dram.capacity / 2**30))
            graph = _graph(task, "float16" if precision == "fp16" else "float32", _LIKE[str(collection)[:2]], tf32=True)
            seconds = batch / own.items_per_s.median()
            found.append(_step("lambda", f"{task} {precision} {collection}", name, graph, seconds, batch=batch))
        yield found


def gavel(data: Path, share: float, *, estimate: bool) -> Iterator[list[Measured]]:
    """gavel: ResNet-18 for CIFAR and ResNet-50, K80 and P100."""
    del share
    table = read_table(data / "gavel" / "isolated.csv")
    names = {"ResNet-18": "cifar10", "ResNet-50": "imagenet"}
    gpus = {"K80": "nvidia-k80", "P100": "nvidia-p100-pcie-16gb", "V100": "nvidia-v100-sxm2-16gb"}
    table = table[(table.gpus == 1) & table.model.isin(list(names)) & table.gpu.isin(list(gpus)) & (table.step_s > 0)]
    for (model, batch), part in table.groupby(["model", "global_batch"]):
        graph = _graph(names[str(model)], "float32")
        yield [] if estimate else [
            _step("gavel", str(model), gpus[str(gpu)], graph, float(own.step_s.median()), batch=int(batch))
            for gpu, own in part.groupby("gpu")
        ]  # fmt: skip


def sia(data: Path, share: float, *, estimate: bool) -> Iterator[list[Measured]]:
    """sia: ResNet-50 and a ResNet-18 for CIFAR on T4 and A100, less the wait for gradients of two GPUs of a node (one
    works statistics out in another way)."""
    del share
    table = read_table(data / "sia" / "ddp_steps.parquet")
    gpus = {"aws": "nvidia-t4", "dgx": "nvidia-a100-sxm4-40gb"}
    table = table[table.app.isin(["imagenet", "cifar10"]) & table.cluster.isin(list(gpus))]
    table = table[table.per_node.astype(str) == "2"].assign(own_s=lambda rows: rows.step_s - rows.sync_s)
    for (app, batch), part in table.groupby(["app", "batch_per_gpu"]):
        graph = _graph(str(app), "float32")
        yield [] if estimate else [
            _step("sia", str(app), gpus[str(cluster)], graph, float(own.own_s.median()), batch=int(batch))
            for cluster, own in part.groupby("cluster")
        ]  # fmt: skip


SOURCES = {"lambda": lambdas, "gavel": gavel, "sia": sia}
