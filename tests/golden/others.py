"""What is not one step of a traced network: sweeps, comparisons, several devices, described training, serving."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, partial
from typing import Any

import pandas as pd
import torch

import rooflinekit as rk

from .networks import NETWORKS, Mixture
from .steps import graph_of, sized

Record = Mapping[str, Any]

#: What takes a second or more: looked at with --slow alone.
SLOW: Mapping[str, Collection[str]] = {
    "sweeps": (
        "depthwise, training step by batch", "perceptron, on a cluster", "all GPUs, depthwise, training",
        "attending, on a CPU", "windows, many batches",
    ),
    "parallel": (
        "ddp, vit", "zero-2", "fsdp", "tensor", "tensor, sequence", "context", "pipeline", "pipeline, gpipe",
        "accumulated", "offloaded", "experts",
    ),
    "serving": (
        "bf16, llama-3.1-8b", "fp8, llama-3.1-8b", "fp8-block, llama-3.1-70b", "int8, llama-3.1-8b",
        "nvfp4, llama-3.1-70b", "amd, llama-3.1-8b", "mxfp4, llama-3.1-70b", "tensor, llama-3.1-70b",
        "experts, qwen3-235b-a22b", "traffic",
    ),
}  # fmt: skip


def sweeps() -> Iterator[tuple[str, Callable[[], Record]]]:
    """Columns of sweeps, of the engine of points among them, and tables of all GPUs."""

    def swept(network: str, traced: str, **options: Any) -> Record:
        return columns(rk.sweep(graph_of(network, traced), workers=1, **options))

    def of_ops() -> Record:
        ops = pd.DataFrame(
            {
                "op": ["mm", "mm", "linear"], "dtype": ["bf16", "fp32", "fp16"],
                "m": [512, 4096, 128], "n": [4096, 1000, 77], "k": [1024, 64, 333],
            }
        )  # fmt: skip
        return columns(rk.sweep(ops, gpus=["nvidia-l4", "amd-mi100"]))

    yield "a table of ops", of_ops
    cases: dict[str, tuple[str, str, dict[str, Any]]] = {
        "windows, many batches": (
            "windows", "inference",
            {"gpus": ["nvidia-v100-sxm2-16gb", "amd-mi100", "nvidia-l4"], "execution": ["eager", "compiled"],
             "batch": range(1, 129)},
        ),
        "depthwise, training step by batch": (
            "depthwise", "training autocast fp16",
            {"gpus": ["nvidia-t4", "amd-rx-6800-xt"], "execution": ["eager", "cuda-graph", "max-autotune"],
             "batch": range(1, 65, 3)},
        ),
        "encoder, batch and length": (
            "encoder", "inference fp16",
            {"gpus": ["nvidia-h100-sxm5-80gb", "amd-mi300x"], "batch": [1, 3, 8, 32, 100], "seq": [16, 77, 512, 1000]},
        ),
        "perceptron, limits": (
            "perceptron", "inference bf16",
            {"gpus": ["nvidia-a100-sxm4-80gb"], "power_limits": ["150 W", "250 W"], "execution": "reduce-overhead",
             "batch": [2**power for power in range(14)]},
        ),
        "lstm, together": (
            "lstm", "training",
            {"gpus": ["nvidia-rtx-3090", "amd-mi60"], "batch": [1, 8, 64, 200], "seq": [10, 50, 20, 33],
             "zip": ("batch", "seq")},
        ),
        "attending, on a CPU": (
            "attending", "inference bf16",
            {"gpus": ["intel-xeon-platinum-8480plus", "generic-cloud-cpu-avx2"], "execution": ["eager", "compiled"],
             "batch": [1, 2, 16], "seq": [64, 500]},
        ),
        "decoding, long contexts": (
            "decoding", "inference",
            {"gpus": ["nvidia-b200-sxm-180gb", "nvidia-l4"], "execution": "cuda-graph", "batch": [1, 7, 64],
             "context": [100, 1000, 10_000, 100_000]},
        ),
        "perceptron, on a cluster": (
            "perceptron", "training tf32",
            {"clusters": ["dgx-a100", "two-nodes-25gbe"], "gpus": [1, 2, 4], "strategies": ["ddp", "fsdp", "dp"],
             "batch": [256, 4096]},
        ),
    }  # fmt: skip
    for name, (network, traced, options) in cases.items():
        yield name, partial(swept, network, traced, **options)
    for network, traced in (("windows", "inference"), ("attending", "inference bf16"), ("depthwise", "training")):
        yield f"all GPUs, {network}, {traced}", partial(compared, network, traced)


def compared(network: str, traced: str) -> Record:
    """Seconds on every shipped GPU."""
    table = rk.compare_gpus(sized(network, traced), host="generic-server").table.sort_index()
    return {"seconds": table["total_s"].to_dict()}


def columns(table: pd.DataFrame, most: int = 24) -> Record:
    """Each column of some evenly spaced rows, and its sum over all."""
    chosen = table.iloc[[round(i * (len(table) - 1) / (most - 1)) for i in range(most)]] if len(table) > most else table
    found = {}
    for name in table.columns:
        values = chosen[name].tolist()
        numbers = pd.api.types.is_numeric_dtype(table[name]) and not pd.api.types.is_bool_dtype(table[name])
        found[str(name)] = [*values, float(table[name].sum())] if numbers else values
    return found


# --- several devices ------------------------------------------------------------------------------------------------


@cache
def mixture() -> rk.Graph:
    """A training step of the mixture behind a plain optimizer."""
    with torch.device("meta"):
        model = Mixture()
    return rk.trace(model, *NETWORKS["mixture"].inputs, mode="training", optimizer=torch.optim.Adam, name="mixture")


def parallels() -> Iterator[tuple[str, Callable[[], Record]]]:
    """Training steps on several devices."""
    perceptron, vit = ("perceptron", "training tf32"), ("vit", "training autocast bf16")
    cases: dict[str, tuple[tuple[str, str], int, dict[str, Any]]] = {
        "ddp": (perceptron, 4096, {"cluster": "dgx-a100", "strategy": "ddp"}),
        "ddp, vit": (vit, 512, {"cluster": "dgx-h100", "strategy": rk.DDP(gradient_as_bucket_view=True), "gpus": 4}),
        "ddp-gloo": (perceptron, 512, {"cluster": "cpu-processes-x4", "strategy": "ddp-gloo"}),
        "dp": (perceptron, 2048, {"cluster": "p100-x8", "strategy": "dp", "gpus": 4}),
        "unequal": (
            perceptron, 1200, {"cluster": "titan-x-x2-gtx-1080", "strategy": "ddp", "split": "proportional"},
        ),
        "zero-1": (perceptron, 1024, {"cluster": "rtx-4090-x4", "strategy": "zero-1"}),
        "zero-2": (vit, 256, {"cluster": "two-nodes-25gbe", "strategy": "zero-2"}),
        "fsdp": (vit, 256, {"cluster": "dgx-1-v100", "strategy": "fsdp"}),
        "fsdp, compiled": (perceptron, 4096, {"cluster": "l40s-x8", "strategy": "fsdp", "execution": "compiled"}),
        "tensor": (vit, 64, {"cluster": "dgx-h100", "strategy": rk.Mesh(tensor=3), "gpus": 3}),
        "tensor, sequence": (("encoder", "training autocast fp16"), 16, {
            "cluster": "a100-pcie-pairs-x4", "strategy": rk.Mesh(tensor=2, sequence=True), "seq": 256,
        }),
        "context": (("gpt2", "training autocast fp16"), 8, {
            "cluster": "dgx-a100", "strategy": rk.Mesh(context=2), "gpus": 4, "seq": 1024,
        }),
        "pipeline": (vit, 128, {"cluster": "dgx-a100", "strategy": rk.Mesh(pipeline=4), "gpus": 8}),
        "pipeline, gpipe": (vit, 128, {
            "cluster": "a40-x8", "strategy": rk.Mesh(pipeline=2, schedule="gpipe"), "gpus": 2,
        }),
        "accumulated": (vit, 512, {
            "cluster": "g4dn-12xlarge", "strategy": "ddp", "savers": rk.Savers(accumulate=4, checkpoint=True),
        }),
        "offloaded": (vit, 64, {
            "cluster": "rtx-2080-ti-x4", "strategy": "zero-2", "savers": rk.Savers(offload=True, eight_bit=False),
        }),
        "limited": (perceptron, 4096, {"cluster": "dgx-h200", "strategy": "ddp", "power_limit": "350 W"}),
        "measured": (perceptron, 4096, {"cluster": "dgx-b200", "strategy": "ddp", "measured": (512, 0.004)}),
    }  # fmt: skip
    for name, ((network, traced), batch, options) in cases.items():
        yield name, partial(_parallel, network, traced, batch=batch, **options)
    yield "experts", _experts
    for collective in ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "send-recv"):
        yield collective, partial(_collective, collective)


def _experts() -> Record:
    shared = rk.Mesh(expert=4, imbalance=1.5)
    return numbers(rk.parallel(mixture(), cluster="dgx-h100", strategy=shared, gpus=4, batch=64).to_dict())


def _parallel(network: str, traced: str, **options: Any) -> Record:
    return numbers(rk.parallel(graph_of(network, traced), **options).to_dict())


def _collective(collective: str) -> Record:
    """Seconds by cluster, of three sizes."""
    return {
        cluster.name: [
            rk.collective_time(collective, size, cluster, gpus=2 if collective == "send-recv" else None).total_s
            for size in ("1 kB", "3 MB", "1 GB")
        ]
        for cluster in rk.clusters()
    }


# --- decoders -------------------------------------------------------------------------------------------------------


@cache
def decoder(name: str) -> rk.Decoder:
    """One that is built in."""
    return rk.Decoder.from_config(name)


def trainings() -> Iterator[tuple[str, Callable[[], Record]]]:
    """Described training."""
    small, large, experts = "llama-3.1-8b", "llama-3.1-70b", "qwen3-235b-a22b"
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "ddp": (small, {"cluster": "dgx-h200", "batch": 16, "seq": 2048, "recipe": "pytorch",
                        "layout": rk.Layout(sharding="ddp")}),
        "fsdp": (small, {"cluster": "a100-80gb-x8-1600g", "batch": 64, "seq": 2048, "recipe": "mpt", "gpus": 16,
                         "layout": rk.Layout(sharding="fsdp", micro_batch=2)}),
        "tensor": (small, {"cluster": "dgx-h100", "batch": 32, "seq": 4096,
                           "layout": rk.Layout(tensor=2, sequence=True)}),
        "pipeline": (large, {"cluster": "h100-x8-cluster", "gpus": 64, "batch": 128, "seq": 4096, "recipe": "nemo",
                             "layout": rk.Layout(tensor=4, sequence=True, pipeline=4, chunks=5)}),
        "2023": (large, {"cluster": "a100-x8-hdr", "gpus": 64, "batch": 128, "seq": 2048, "recipe": "megatron-2023",
                         "layout": rk.Layout(tensor=8, pipeline=4)}),
        "experts": (experts, {"cluster": "b200-x8-cluster", "gpus": 64, "batch": 256, "seq": 4096,
                              "layout": rk.Layout(expert=8, pipeline=2)}),
        "context": (small, {"cluster": "dgx-h100", "batch": 8, "seq": 32768,
                            "layout": rk.Layout(context=4, tensor=2)}),
        "limited": (small, {"cluster": "dgx-h100", "batch": 8, "seq": 4096, "power_limit": "450 W",
                            "layout": rk.Layout(tensor=2)}),
    }  # fmt: skip
    for name, (model, options) in cases.items():
        yield f"{name}, {model}", partial(_trained, model, options)


def _trained(model: str, options: Mapping[str, Any]) -> Record:
    return numbers(rk.train(decoder(model), **options).to_dict())


def servings() -> Iterator[tuple[str, Callable[[], Record]]]:
    """Served decoders, in closed and open loops."""
    small, large, experts = "llama-3.1-8b", "llama-3.1-70b", "qwen3-235b-a22b"
    cases: dict[str, tuple[str, str | None, dict[str, Any]]] = {
        "bf16": (small, "nvidia-h100-sxm5-80gb", {"batch": 16, "input": 1024, "output": 128}),
        "int4": (small, "nvidia-l4", {"batch": 4, "input": 512, "output": 64, "weights": "int4", "kv": "fp8"}),
        "fp8": (small, "nvidia-l40s", {"batch": 8, "input": 2000, "output": 100, "weights": "fp8"}),
        "fp8-block": (large, "nvidia-h200-sxm-141gb", {"batch": 4, "input": 512, "output": 64, "weights": "fp8-block"}),
        "int8": (small, "nvidia-a100-sxm4-80gb", {"batch": 32, "input": 256, "output": 256, "weights": "int8-dynamic"}),
        "nvfp4": (large, "nvidia-b200-sxm-180gb", {"batch": 8, "input": 1024, "output": 64, "weights": "nvfp4"}),
        "amd": (small, "amd-mi300x", {"batch": 8, "input": 1024, "output": 64, "weights": "fp8-dynamic"}),
        "mxfp4": (large, "amd-mi355x", {"batch": 8, "input": 512, "output": 32, "weights": "mxfp4"}),
        "tensor": (large, None, {"cluster": "dgx-h100", "tp": 4, "batch": 16, "input": 1024, "output": 128}),
        "experts": (experts, None, {"cluster": "dgx-h200", "tp": 8, "ep": 8, "batch": 32, "input": 512, "output": 64,
                                    "weights": "fp8-block"}),
        "apart": (small, "nvidia-t4", {"batch": 1, "input": 128, "output": 16, "weights": "int8",
                  "engine": rk.Engine(heads="apart", graph_sizes=(), layer_s=2e-4, host="serial")}),
        "drafted": (small, "nvidia-h100-sxm5-80gb", {"batch": 4, "input": 512, "output": 64, "power_limit": "400 W",
                    "engine": rk.Engine(speculation=rk.Speculation(tokens=3, acceptance=0.7),
                                        adapters=rk.Adapters(number=4))}),
    }  # fmt: skip
    for name, (model, gpu, options) in cases.items():
        yield f"{name}, {model}", partial(_served, model, gpu, options)
    yield "traffic", _traffic


def _traffic() -> Record:
    load = rk.Traffic(rate=2, input=512, output=32, requests=60, length_cv=0.3)
    return numbers(rk.serve_traffic(decoder("llama-3.1-8b"), "nvidia-l40s", traffic=load).to_dict())


def _served(model: str, gpu: str | None, options: Mapping[str, Any]) -> Record:
    return numbers(rk.serve(decoder(model), gpu, **options).to_dict())


def numbers(document: Any) -> Any:
    """A document without its texts: what is left are numbers, by their names."""
    if isinstance(document, Mapping):
        found = {str(name): numbers(part) for name, part in document.items()}
        return {name: part for name, part in found.items() if part not in (None, {}, [])}
    if isinstance(document, list | tuple):
        return [part for part in map(numbers, document) if part not in (None, {}, [])]
    return document if isinstance(document, int | float) and not isinstance(document, bool) else None
