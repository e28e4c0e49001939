"""Sizes that an open trace does not speak for are traced by themselves."""

import pickle
import re

import numpy as np
import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import SizeError
from rooflinekit.ir.graph import resized
from rooflinekit.study.sweep.plan import opened, packed

COUNTS = ("matrix_flop", "vector_flop", "special_flop", "read_bytes", "write_bytes")


def shuffled(x: torch.Tensor) -> torch.Tensor:
    """Sequence and batch change places: a copy, but where one of them is 1."""
    return x.transpose(0, 1).contiguous() + 1


def counts(graph: rk.Graph) -> list[int]:
    return [int(getattr(graph, part)) for part in COUNTS]


def test_a_batch_of_one_needs_no_copy() -> None:
    graph = rk.trace(shuffled, rk.Input("n", 6, 4))
    # n·24 numbers of 4 bytes: read and written by the copy, and by the sum
    assert graph.at(n=2).bytes == 4 * 2 * 24 * 4
    assert graph.at(n=1).bytes == 2 * 1 * 24 * 4
    assert "aten.clone" not in {op.kind for op in graph.at(n=1).ops}


def test_a_graph_without_its_model_says_that_it_was_not_traced_at_one() -> None:
    def told(graph: rk.Graph, **sizes: int) -> list[str]:
        return [note for note in rk.predict(graph, "nvidia-l4", **sizes).notes if "not traced" in note]

    graph = rk.trace(shuffled, rk.Input("n", 6, 4))
    alone = pickle.loads(pickle.dumps(graph))
    (note,) = told(alone, n=1)
    assert "not traced at n=1, where some of its copies (aten.clone, 1)" in note
    assert not told(alone, n=2)
    assert not told(graph, n=1)
    assert not told(pickle.loads(pickle.dumps(graph.at(n=1))))
    assert not told(pickle.loads(pickle.dumps(rk.trace(nn.ReLU(), rk.Input("n", 4)))), n=1)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), ("n", "s", 16)),
        (nn.InstanceNorm2d(4, affine=True), ("n", 4, "s", 8)),
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)), ("n", "s", 4)),
    ],
)
def test_open_at_one_is_what_is_traced_at_one(model: nn.Module, shape: tuple[object, ...], mode: str) -> None:
    graph = rk.trace(model, rk.Input(*shape), mode=mode)
    for n, s in ((1, 1), (1, 3), (2, 1), (2, 3)):
        fixed = rk.trace(model, rk.Input(*shape), mode=mode, sizes={"n": n, "s": s}, fixed=True)
        assert counts(graph.at(n=n, s=s)) == counts(fixed)
        assert counts(graph.at(s=s).at(n=n)) == counts(fixed)


def test_counts_and_sweeps_take_the_right_graph_at_each_row() -> None:
    graph = rk.trace(shuffled, rk.Input("n", "s", 4))
    n, s = [3, 1, 2, 1, 1], [5, 5, 1, 1, 7]
    table = graph.counts(n=n, s=s)
    assert list(table["n"]) == n
    assert list(table["bytes"]) == [int(graph.at(n=a, s=b).bytes) for a, b in zip(n, s, strict=True)]
    # numbers of 4 bytes, 4·n·s of them: moved four times, or twice where a size is 1
    assert list(table["bytes"]) == [4 * 4 * a * b * (4 if min(a, b) > 1 else 2) for a, b in zip(n, s, strict=True)]
    swept = rk.sweep(graph, gpus=["nvidia-l4"], n=[1, 2, 3], s=[1, 64])
    for row in swept.itertuples():
        assert row.total_s == pytest.approx(rk.predict(graph, "nvidia-l4", n=row.n, s=row.s).total_s)


def test_a_size_of_one_is_traced_once_and_goes_to_other_processes() -> None:
    calls = []

    def model(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return shuffled(x)

    graph = rk.trace(model, rk.Input("n", 6, 4))
    at = graph.at(n=1)
    assert graph.at(n=1).bytes == at.bytes
    assert len(calls) == 2
    sent, _ = opened(packed(graph, []))
    assert counts(sent.at(n=1)) == counts(at)
    # the graph at 1 still knows the open one
    assert resized(at, n=4).bytes == graph.at(n=4).bytes


def test_a_size_derived_from_others_may_be_one() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x[::4]
        return y.transpose(0, 1).contiguous() + 1

    graph = rk.trace(model, rk.Input("n", 6))
    for n in (1, 2, 4, 5, 8, 9):
        assert counts(graph.at(n=n)) == counts(rk.trace(model, rk.Input(n, 6))), n
    table = graph.counts(n=np.arange(1, 12))
    assert list(table["bytes"]) == [int(graph.at(n=n).bytes) for n in range(1, 12)]


def test_a_model_that_cannot_be_run_at_one_says_so() -> None:
    graph = rk.trace(nn.BatchNorm1d(4), rk.Input("n", 4), mode="training")
    assert graph.at(n=2).sizes == {"n": 2}
    with pytest.raises(SizeError, match=re.escape("cannot be run at n=1: ") + ".*more than 1 value per channel"):
        graph.at(n=1)


@pytest.mark.parametrize("odd", [True, False])
def test_a_branch_on_a_remainder_bounds_the_trace(odd: bool) -> None:
    wide, narrow = nn.Linear(8, 64), nn.Linear(8, 8)

    def model(x: torch.Tensor) -> torch.Tensor:
        return wide(x) if x.shape[0] % 2 else narrow(x)

    graph = rk.trace(model, rk.Input("n", 8), sizes={"n": 7 if odd else 6})
    assert len(graph.conditions) == 1
    assert graph.at(n=11 if odd else 12).matrix_flop == (2 * 11 * 8 * 64 if odd else 2 * 12 * 8 * 8)
    with pytest.raises(SizeError, match="trace again at these sizes"):
        graph.at(n=12 if odd else 11)


def test_padding_to_a_multiple_bounds_the_trace() -> None:
    layer = nn.Linear(8, 8)

    def model(x: torch.Tensor) -> torch.Tensor:
        rest = x.shape[0] % 128
        if rest:
            x = nn.functional.pad(x, (0, 0, 0, 128 - rest))
        return layer(x)

    graph = rk.trace(model, rk.Input("n", 8))
    assert graph.at(n=130).matrix_flop == 2 * 256 * 8 * 8
    with pytest.raises(SizeError, match="trace again at these sizes"):
        graph.at(n=128)
