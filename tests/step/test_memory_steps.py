"""What the allocator holds over steps of different sizes."""

import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import SizeError

MIB = 2**20


@pytest.mark.parametrize(("emptied", "reserved"), [(None, [32, 68, 68]), (1, [32, 68, 36])])
def test_by_hand(emptied: int | None, reserved: list[int]) -> None:
    # Rows of 1 MiB, in and out of a ReLU. 18 MiB fit no segment of 16, so both of the second step are new, and the
    # first step's stay until the cache is emptied; the third step's 16 MiB lie in segments that are there.
    p = rk.predict(nn.ReLU(), rk.Input("rows", 2**18), gpu="nvidia-l4", rows=16)
    found = p.memory_over("rows", [16, 18, 16], emptied=emptied)
    assert [step.value for step in found] == [16, 18, 16]
    assert [step.allocated_bytes // MIB for step in found] == [32, 36, 32]
    assert [step.reserved_bytes // MIB for step in found] == reserved


def test_a_step_that_repeats_holds_no_more_than_one() -> None:
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
    graph = rk.trace(model, rk.Input("rows", 512), mode="training", optimizer="AdamW")
    p = rk.predict(graph, gpu="nvidia-l4", rows=4096)
    found = p.memory_over("rows", [4096] * 3)
    assert {step.reserved_bytes for step in found} == {p.memory.reserved_bytes}


def test_what_is_refused() -> None:
    p = rk.predict(nn.ReLU(), rk.Input("rows", 2**18), gpu="nvidia-l4", rows=16)
    for values, emptied in (([], None), ([0], None), ([1], 0)):
        with pytest.raises(SizeError, match="one value or more of 'rows'"):
            p.memory_over("rows", values, emptied=emptied)
    with pytest.raises(SizeError, match="no room for step 2, rows 20000"):
        p.memory_over("rows", [16, 20000])
