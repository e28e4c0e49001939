"""A larger batch is never faster, unless fewer kernels run it; compiled kernels take no longer than eager ones."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import nn

import rooflinekit as rk

BATCHES = [1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 511, 512, 1023, 1024]
GPUS = ["nvidia-a40", "nvidia-h100-sxm5-80gb", "amd-mi50", "amd-epyc-7763"]


@cache
def graph(training: bool) -> rk.Graph:
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 64), nn.Softmax(-1))
    more = {"mode": "training", "optimizer": torch.optim.AdamW} if training else {}
    return rk.trace(model, rk.Input("batch", 256), **more)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("training", [False, True])
def test_a_larger_batch_is_faster_only_with_fewer_kernels(gpu: str, training: bool) -> None:
    for execution in ("eager", "compiled"):
        steps = [rk.predict(graph(training), gpu, batch=batch, execution=execution) for batch in BATCHES]
        for smaller, larger in pairwise(steps):
            fewer = len(larger.timings) < len(smaller.timings)
            assert larger.total_s >= smaller.total_s * (1 - 1e-9) or (fewer and execution == "compiled")


def test_a_split_that_leaves_no_rest_fuses_sums() -> None:
    """Of 512 rows a sum is cut into equal parts, those of a normalization's gradient too: fewer kernels than of 511."""
    steps = [rk.predict(graph(True), "nvidia-a40", batch=batch, execution="compiled") for batch in (511, 512)]
    assert len(steps[1].timings) < len(steps[0].timings)
    assert steps[1].total_s < steps[0].total_s


@pytest.mark.parametrize("gpu", GPUS)
def test_compiled_kernels_take_no_longer_than_eager_ones(gpu: str) -> None:
    for batch in BATCHES:
        eager, compiled = (
            rk.predict(graph(True), gpu, batch=batch, execution=e).gpu_s for e in ("eager", "compiled")
        )  # fmt: skip
        assert compiled <= 1.1 * eager
