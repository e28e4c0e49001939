"""A model that looks whether its numbers are finite is told that they are; one that looks at them is refused."""

import pytest
import torch

import rooflinekit as rk
from rooflinekit.errors import TraceError


@pytest.mark.parametrize(
    ("overflows"),
    [
        lambda x: not torch.isfinite(x).all(),
        lambda x: torch.isinf(x).any() or torch.isnan(x).any(),
        lambda x: x.isnan().any().item(),
        lambda x: bool((~x.isfinite()).any()),
    ],
)
@pytest.mark.parametrize("size", ["n", 3])
def test_the_path_of_finite_numbers_is_traced(overflows, size) -> None:
    graph = rk.trace(lambda x: x.clamp(-1, 1) if overflows(x) else x.exp(), rk.Input(size, 4))
    kinds = [op.kind for op in graph.ops]
    assert "aten.exp" in kinds
    assert "aten.clamp" not in kinds
    assert "aten._local_scalar_dense" in kinds  # the CPU waits for the answer


def test_a_size_that_stands_in_numbers_is_refused_with_what_to_do() -> None:
    with pytest.raises(TraceError, match="strict: the data of a run decide bincount 3 of 3"):
        rk.trace(torch.bincount, rk.Input(3, dtype="int64"), strict=True)
