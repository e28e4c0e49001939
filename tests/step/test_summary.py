"""The tree of modules: counts by hand, and times that add up to those of the step."""

from __future__ import annotations

import pytest
from command_line import Run
from torch import Tensor, nn

import rooflinekit as rk
from rooflinekit.errors import InputError, SizeError


class Net(nn.Module):
    """Three equal blocks in a list and a head of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3))
        self.head = nn.Linear(16, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(x)
        return result


@pytest.fixture(scope="module")
def predicted() -> rk.Prediction:
    return rk.predict(Net(), rk.Input("batch", 16), gpu="nvidia-l4", batch=8, execution="cuda-graph")


def test_equal_neighbours_are_one_row_with_their_sums(predicted: rk.Prediction) -> None:
    table = rk.summary(predicted)
    assert list(table.index) == ["", "blocks", "blocks.0…2", "blocks.0…2.0", "blocks.0…2.1", "head"]
    linear = table.loc["blocks.0…2.0"]
    assert linear["parameters"] == 3 * (16 * 16 + 16)
    assert linear["flop"] == 3 * (2 * 8 * 16 * 16 + 8 * 16)  # multiply-adds, and the bias
    assert linear["activation_bytes"] == 3 * 8 * 16 * 4
    assert list(table.loc["head", "output"]) == [8, 4]
    assert table.loc["", "parameters"] == 3 * (16 * 16 + 16) + 16 * 4


def test_unfolded_and_folded_are_the_same_sums(predicted: rk.Prediction) -> None:
    folded, whole = rk.summary(predicted), rk.summary(predicted, folded=False)
    assert "blocks.1.0" in whole.index
    for column in ("parameters", "flop", "bytes", "nvidia-l4"):
        parts = [whole.loc[f"blocks.{i}", column] for i in range(3)]
        assert folded.loc["blocks.0…2", column] == pytest.approx(sum(parts), rel=1e-12)
        assert folded.loc["", column] == whole.loc["", column]


def test_times_add_up(predicted: rk.Prediction) -> None:
    table = rk.summary(predicted, depth=1, folded=False)
    assert list(table.index) == ["", "blocks", "head"]
    assert table["nvidia-l4"].iloc[1:].sum() == pytest.approx(predicted.by_module()["total_s"].sum(), rel=1e-12)
    assert table["nvidia-l4"].iloc[0] == predicted.total_s


def test_several_gpus_and_none() -> None:
    graph = rk.trace(Net(), rk.Input("batch", 16)).at(batch=8)
    found = rk.summary([rk.predict(graph, gpu) for gpu in ("nvidia-l4", "nvidia-t4")])
    assert list(found.columns[-3:]) == ["share", "nvidia-l4", "nvidia-t4"]
    assert "share" not in rk.summary(graph)
    with pytest.raises(SizeError, match="batch"):
        rk.summary(rk.trace(Net(), rk.Input("batch", 16)))
    with pytest.raises(InputError, match="depth: expected an integer of 1 or more; got 0"):
        rk.summary(graph, depth=0)
    with pytest.raises(InputError, match="predictions of one workload"):
        rk.summary([])


def test_the_command_prints_the_tree(run: Run) -> None:
    call = ("summary", "timm:resnet18", "--batch", "2", "--gpu", "nvidia-l4", "--depth", "1")
    lines = run(*call).out.splitlines()
    assert any(line.split()[:4] == ["conv1", "2", "×", "64"] for line in lines)
    document = run(*call, "--json").document
    # torchvision's documentation states 11,689,512 parameters.
    assert document["modules"][0]["parameters"] == 11_689_512
