"""Advice: nothing is said that was not predicted again, and what is left out has its reason."""

import functools
import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import DeviceNotFoundError
from rooflinekit.ir.graph import Origin

IMAGE = rk.Input("batch", 3, 64, 64)
GPU = "nvidia-a100-sxm4-80gb"


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3))


def step(**options: object) -> rk.Graph:
    return rk.trace(net(), IMAGE, mode="training", **{"optimizer": torch.optim.AdamW, **options})


def test_each_time_is_that_of_a_direct_prediction() -> None:
    graph = step()
    p = rk.predict(graph, GPU, batch=32)
    direct = {
        "batch 64 instead of 32": rk.predict(graph, GPU, batch=64),
        "channels last": rk.predict(step(channels_last=True), GPU, batch=32),
        "autocast in bfloat16": rk.predict(step(autocast="bf16"), GPU, batch=32),
        "autocast in float16": rk.predict(step(autocast="fp16"), GPU, batch=32),
        "torch.compile": rk.predict(graph, GPU, batch=32, execution="compiled"),
        "a CUDA graph": rk.predict(graph, GPU, batch=32, execution="cuda-graph"),
        "torch.compile with CUDA graphs (mode 'reduce-overhead')": rk.predict(
            graph, GPU, batch=32, execution="reduce-overhead"
        ),
        "autocast in bfloat16 and torch.compile": rk.predict(
            step(autocast="bf16"), GPU, batch=32, execution="compiled"
        ),
        "autocast in bfloat16 and torch.compile with CUDA graphs (mode 'reduce-overhead')": rk.predict(
            step(autocast="bf16"), GPU, batch=32, execution="reduce-overhead"
        ),
        "the optimizer's fused form": rk.predict(
            step(optimizer=functools.partial(torch.optim.AdamW, fused=True)), GPU, batch=32
        ),
        "nvidia-l4": rk.predict(graph, "nvidia-l4", batch=32),
    }
    advice = rk.advise(p, gpus=["nvidia-l4"])
    assert {s.what: s.prediction.total_s for s in advice.suggestions} == {
        what: found.total_s for what, found in direct.items()
    }
    assert advice.left_out == ()
    saved = [suggestion.saved_s for suggestion in advice.suggestions]
    assert saved == sorted(saved, reverse=True)
    for suggestion in advice.suggestions:
        assert sum(suggestion.saved_terms().values()) == pytest.approx(suggestion.saved_s)
        assert suggestion.speedup == pytest.approx(p.total_s / (p.total_s - suggestion.saved_s))
    double = next(s for s in advice.suggestions if s.what.startswith("batch"))
    # two steps of 32 samples against one of 64
    assert double.saved_s == pytest.approx(p.total_s - direct[double.what].total_s / 2)
    _, *told = str(advice).splitlines()
    assert len([line for line in told if line[0].isdigit()]) == 5
    assert all(suggestion.what in str(advice) for suggestion in advice.suggestions)


def test_what_is_used_already_is_left_out() -> None:
    graph = step(autocast="bf16", channels_last=True, optimizer=functools.partial(torch.optim.SGD, fused=True))
    advice = rk.advise(rk.predict(graph, GPU, batch=8, execution="compiled"), gpus=[GPU])
    assert dict(advice.left_out) == {
        "channels last": "it is used already",
        "autocast in bfloat16": "it is used already",
        "torch.compile": "it is used already",
        "the optimizer's fused form": "it is used already",
        GPU: "it is the one used",
    }


def test_reasons_of_what_cannot_be_tried() -> None:
    linear = rk.trace(nn.Linear(8, 8), rk.Input(4, 8), mode="training", optimizer=torch.optim.Rprop)
    left_out = dict(rk.advise(rk.predict(linear, GPU)).left_out)
    assert left_out["a larger batch"] == "no size of the inputs is named batch"
    assert left_out["channels last"] == "there is no convolution"
    assert "unexpected keyword argument 'fused'" in left_out["the optimizer's fused form"]


def test_a_batch_that_does_not_fit_is_not_advised() -> None:
    # As in tests/step/test_capacity.py: 11858 rows of 1 MiB are the most that fit, so 10000 do and 20000 do not.
    p = rk.predict(nn.ReLU(), rk.Input("batch", 2**18), gpu="nvidia-l4", batch=10000)
    left_out = dict(rk.advise(p).left_out)
    # 2 · 20000 MiB = 39.06 GiB, and 500 MiB for CUDA
    assert left_out["batch 20000 instead of 10000"] == (
        "nvidia-l4: needs 39.1 GiB, and 500 MiB for CUDA's context, of 24.0 GiB: does not fit"
    )


def test_a_graph_without_its_model_has_what_needs_no_trace() -> None:
    graph = replace(step(optimizer=torch.optim.SGD), origin=Origin())  # as in a file or another process
    advice = rk.advise(rk.predict(graph, GPU, batch=8))
    tried = {suggestion.what for suggestion in advice.suggestions}
    assert {"batch 16 instead of 8", "torch.compile", "a CUDA graph"} <= tried
    left_out = dict(advice.left_out)
    assert "this graph does not know its model" in left_out["channels last"]
    assert left_out["the optimizer's fused form"] == (
        "the graph does not know its optimizer; trace the model with fused=True"
    )


def test_inputs_from_pageable_memory() -> None:
    p = rk.predict(net(), IMAGE, gpu=GPU, batch=64, execution=rk.Execution(copy="pageable"))
    pinned = rk.Execution(copy="pinned", non_blocking=True)
    direct = rk.predict(net(), IMAGE, gpu=GPU, batch=64, execution=pinned)
    (found,) = (s for s in rk.advise(p).suggestions if s.what.startswith("inputs"))
    assert found.prediction.total_s == direct.total_s


def test_documents_and_unknown_gpus() -> None:
    p = rk.predict(net(), IMAGE, gpu=GPU, batch=8)
    document = json.loads(json.dumps(rk.advise(p).to_dict(), allow_nan=False))
    assert document["base"]["total_s"] == p.total_s
    assert all(
        entry["saved_s"] == pytest.approx(p.total_s - entry["steps"] * entry["total_s"])
        for entry in document["suggestions"]
    )
    with pytest.raises(DeviceNotFoundError):
        rk.advise(p, gpus=["no-such-gpu"])


def test_of_a_chain_it_says_what_a_network_without_one_would_take() -> None:
    p = rk.predict(rk.trace(nn.GRU(128, 256, 4), rk.Input(200, "batch", 128)), "nvidia-a100-sxm4-80gb", batch=8)
    found = rk.advise(p)
    by_name = {suggestion.what: suggestion for suggestion in found.suggestions}
    other = by_name["another network: layers of the same products without recurrence"].prediction
    assert not any(timing.kernel.chain for timing in other.timings)
    assert other.flop == p.flop
    assert other.total_s < 0.2 * p.total_s
    # a step of the chain takes no longer with twice the samples, and a CUDA graph needs no launches
    assert by_name["batch 16 instead of 8"].speedup == pytest.approx(2, rel=0.05)
    assert by_name["a CUDA graph"].speedup > 2
    assert "is a chain of 203 steps, each too small for the GPU" in str(found)


def test_without_recurrence_no_other_network_is_tried() -> None:
    found = rk.advise(rk.predict(rk.trace(nn.Linear(8, 8), rk.Input("batch", 8)), "nvidia-a30", batch=8))
    assert not any("recurrence" in s.what for s in found.suggestions)
    assert not any("recurrence" in what for what, _ in found.left_out)


def attends(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize(
    ("gpu", "like", "named"),
    [
        ("nvidia-h100-sxm5-80gb", "2.8", {"cuDNN's attention", "FlashAttention 3"}),
        ("nvidia-h100-sxm5-80gb", None, {"FlashAttention 2", "FlashAttention 3"}),
        ("nvidia-a100-sxm4-80gb", None, {"cuDNN's attention"}),
        ("nvidia-t4", None, set()),
        ("nvidia-b200-sxm-180gb", None, {"FlashAttention 2", "FlashAttention 4"}),
        ("amd-mi300x", None, {"aiter"}),
    ],
)
def test_other_kernels_of_attention(gpu: str, like: str | None, named: set[str]) -> None:
    inputs = [rk.Input("batch", 16, 2048, 128, dtype="bfloat16") for _ in range(3)]
    p = rk.predict(rk.trace(attends, *inputs, like=like), gpu, batch=4)
    tried = {one.what.partition(",")[0]: one for one in rk.advise(p).suggestions if "ttention" in one.what}
    assert set(tried) == named
    for name, one in tried.items():
        assert one.prediction.timings[0].kernel.algorithm.name == name
    if like is not None:  # what today's PyTorch would take
        now = rk.predict(rk.trace(attends, *inputs), gpu, batch=4)
        assert tried["cuDNN's attention"].prediction.total_s == pytest.approx(now.total_s)
