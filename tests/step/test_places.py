"""Kernels that take as long as their threads work out where operands lie: no faster memory makes them faster."""

import pytest

import rooflinekit as rk
from rooflinekit.step.report import remedies

MATRIX, ROW = (rk.Input(*sizes, dtype="float16") for sizes in ((4096, 4096), (4096,)))


@pytest.mark.parametrize(("other", "bound"), [(ROW, True), (MATRIX, False)])
def test_more_bandwidth_is_advised_where_it_helps(other: rk.Input, bound: bool) -> None:
    t4 = rk.load_device("nvidia-t4")
    memory = t4.dram.model_copy(update={"bandwidth": 1.1 * t4.dram.bandwidth})
    faster = t4.model_copy(update={"dram": memory})
    here, there = (rk.predict(lambda x, y: x + y, MATRIX, other, gpu=gpu) for gpu in (t4, faster))
    gained = 1 - there.gpu_s / here.gpu_s
    assert (gained < (1 - 1 / 1.1) / 2) is bound
    small = t4.model_copy(update={"dram": t4.dram.model_copy(update={"bandwidth": 1.001 * t4.dram.bandwidth})})
    (after,), (before,) = rk.predict(lambda x, y: x + y, MATRIX, other, gpu=small).timings, here.timings
    assert 1 - after.memory_s / before.memory_s == pytest.approx(0.001 * (1 - here.placed_share), rel=0.05)
    (sentence,) = remedies([here])
    assert sentence.startswith("memory-bound: try torch.compile")
    assert ("a GPU with more bandwidth" in sentence) is not bound
    assert any("no bandwidth shortens it" in note for note in here.notes) is bound
