"""Formulas at many sizes: the same integers as one at a time."""

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.errors import SizeError
from rooflinekit.ir.points import evaluated

N, M = (sympy.Symbol(name, integer=True, positive=True) for name in ("n", "m"))
PARTS = ["matrix_flop", "vector_flop", "special_flop", "read_bytes", "write_bytes", "flop", "bytes"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).flatten(2).transpose(1, 2)
        return functional.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None], is_causal=True)


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    return rk.trace(Net(), rk.Input("batch", 3, "h", "w"))


def test_rows_are_what_at_gives(graph: rk.Graph) -> None:
    sizes = {"batch": [2, 5, 64], "h": [8, 9, 31], "w": 16}
    table = graph.counts(**sizes)
    assert list(table.columns) == [*sizes, *PARTS]
    for i in range(3):
        one = graph.at(batch=sizes["batch"][i], h=sizes["h"][i], w=16)
        assert [int(v) for v in table.loc[i, PARTS]] == [int(getattr(one, part)) for part in PARTS]


def test_a_floor_and_a_half_by_hand() -> None:
    found = evaluated({"floor": sympy.floor((N - 3) / 2) + 1, "pairs": N * (N + 1) / 2}, {"n": [3, 4, 8]})
    assert found["floor"].tolist() == [1, 1, 3]
    assert found["pairs"].tolist() == [6, 10, 36]
    assert found["pairs"].dtype == np.int64


def test_numbers_that_int64_cannot_hold_stay_exact() -> None:
    found = evaluated({"cube": N**3 + 1}, {"n": [10**7 + 1]})
    assert found["cube"].tolist() == [(10**7 + 1) ** 3 + 1]  # beyond 2^63


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1, max_size=5))
def test_exact_everywhere(rows: list[tuple[int, int]]) -> None:
    expressions = {
        "a": sympy.floor((N + 2 * M) / 3) * M + sympy.Min(N, M),
        "b": sympy.ceiling(N * M / 7),
        "c": N**2 * M / 2 + N * M / 2,
    }
    found = evaluated(expressions, {"n": [n for n, _ in rows], "m": [m for _, m in rows]})
    for i, (n, m) in enumerate(rows):
        assert found["a"][i] == (n + 2 * m) // 3 * m + min(n, m)
        assert found["b"][i] == -(-n * m // 7)
        assert 2 * found["c"][i] == n * n * m + n * m


def test_wrong_sizes_say_what_is_wrong(graph: rk.Graph) -> None:
    with pytest.raises(SizeError, match="no number is given for sizes 'h' and 'w'"):
        graph.counts(batch=[1, 2])
    with pytest.raises(SizeError, match=r"sizes of different lengths: batch 2, h 3"):
        graph.counts(batch=[1, 2], h=[8, 9, 10], w=8)
    with pytest.raises(SizeError, match="size 'batch': expected a positive integer; got 0"):
        graph.counts(batch=[0, 1], h=8, w=8)
    with pytest.raises(SizeError, match="size 'batch': expected a positive integer"):
        graph.counts(batch=[1.5], h=8, w=8)
    with pytest.raises(SizeError, match="no size is named 'depth'"):
        graph.counts(depth=[1], batch=1, h=8, w=8)


def test_conditions_hold_in_every_row() -> None:
    graph = rk.trace(lambda x: x.exp() if x.shape[0] < 50 else x, rk.Input("n"))
    assert graph.counts(n=range(1, 50))["special_flop"].sum() == sum(range(1, 50))
    with pytest.raises(SizeError, match="which is not true at n=50"):
        graph.counts(n=range(40, 60))


def test_many_sizes_at_once(graph: rk.Graph) -> None:
    table = graph.counts(batch=range(1, 10_001), h=8, w=8)
    assert len(table) == 10_000
    assert (table["flop"] == table["batch"] * table["flop"][0]).all()


def test_logarithms_are_exact_at_powers_of_two() -> None:
    found = evaluated({"flop": sympy.ceiling(5 * N * sympy.log(N, 2))}, {"n": [2, 8, 1024, 65536]})
    assert list(found["flop"]) == [10, 120, 51200, 5242880]
