"""The sizes at which a trace's shares of exact rules are worked out."""

from types import SimpleNamespace
from typing import Any

import pytest

from rooflinekit.ir.coverage import _smallest_sizes
from rooflinekit.ir.sizes import symbol

N = symbol("n")


@pytest.mark.parametrize(
    ("size", "least"),
    [
        (N - 4, 8),  # 2 - 4 and 4 - 4 leave no tensor
        (8 // (N // 2 - 1), 4),  # at 2 a division by 0
        (8 % (N // 2 - 1) + 1, 4),
    ],
)
def test_no_tensor_vanishes_and_none_divides_by_0(size: Any, least: int) -> None:
    op: Any = SimpleNamespace(op=SimpleNamespace(outputs=[SimpleNamespace(shape=(size,))]))
    assert _smallest_sizes([op], ["n"])(N) == least
