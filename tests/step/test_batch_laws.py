"""A larger batch is never faster, unless fewer kernels run it; compiled kernels take no longer than eager ones."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
from networks import BATCHES as FEW_BATCHES
from networks import GPUS as ANY_GPUS
from networks import launched, network
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


def test_as_many_rows_as_columns_are_not_summed_both_ways_by_one_kernel() -> None:
    """Of 512 rows of 512 a normalization's gradient sums rows and columns: kernels as of 511 and 513 rows."""
    steps = [rk.predict(graph(True), "nvidia-a40", batch=batch, execution="compiled") for batch in (511, 512, 513)]
    assert len({tuple(timing.kernel.kind for timing in step.timings) for step in steps}) == 1
    assert steps[0].total_s <= steps[1].total_s <= steps[2].total_s


@pytest.mark.parametrize("gpu", GPUS)
def test_compiled_kernels_take_no_longer_than_eager_ones(gpu: str) -> None:
    for batch in BATCHES:
        eager, compiled = (
            rk.predict(graph(True), gpu, batch=batch, execution=e).gpu_s for e in ("eager", "compiled")
        )  # fmt: skip
        assert compiled <= 1.1 * eager


@pytest.mark.parametrize("seed", range(12))
def test_a_larger_batch_saves_no_more_than_launches_of_kernels_that_it_does_without(seed: int) -> None:
    """A sum of fewer than 8 rows is a loop of its own, one of 8 fuses with what reads the same: a launch less."""
    step, random = network(seed)
    gpu = random.choice(ANY_GPUS)
    for execution in ("eager", "compiled"):
        steps = [rk.predict(step, gpu, batch=batch, execution=execution) for batch in FEW_BATCHES]
        for smaller, larger in pairwise(steps):
            fewer = max(0, launched(smaller) - launched(larger))
            assert not fewer or execution == "compiled"
            saved_s = smaller.total_s - larger.total_s
            assert saved_s <= 1e-9 * smaller.total_s + fewer * 1.1 * larger.host.compiled_launch
            assert larger.gpu_s >= 0.98 * smaller.gpu_s or fewer


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_compiled_products_of_odd_sizes_take_longer_over_more_rows(dtype: str) -> None:
    for inner, outer in ((129, 67), (33, 4097), (1001, 511)):
        product = rk.trace(nn.Linear(inner, outer).to(getattr(torch, dtype)), rk.Input("batch", inner, dtype=dtype))
        table = rk.sweep(product, gpus=list(ANY_GPUS), batch=BATCHES, execution="compiled", memory=False)
        for gpu, rows in table.groupby("gpu"):
            times = rows.sort_values("batch")["total_s"].tolist()
            assert all(b >= a * (1 - 1e-9) for a, b in pairwise(times)), gpu
