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
    assert (there.gpu_s < 0.99 * here.gpu_s) is not bound
    (sentence,) = remedies([here])
    assert sentence.startswith("memory-bound: try torch.compile")
    assert ("a GPU with more bandwidth" in sentence) is not bound
    assert any("no bandwidth shortens it" in note for note in here.notes) is bound
