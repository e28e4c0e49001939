"""A graph by its modules, by hand."""

import json

import sympy
import torch
from torch import nn

import rooflinekit as rk

BATCH = sympy.Symbol("batch", integer=True, positive=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4, bias=False))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)).exp()


def test_modules_with_their_children() -> None:
    table = rk.trace(Net(), rk.Input("batch", 3)).tree()
    assert list(table.index) == ["", "body", "body.0", "body.1", "body.2", "head"]
    assert list(table["parameters"]) == [42, 32, 16, 0, 16, 10]
    assert list(table["matrix_flop"]) == [2 * BATCH * macs for macs in (36, 28, 12, 0, 16, 8)]
    # outputs of 4, 4, 4, 2 and 2 numbers a sample, 4 bytes each
    assert list(table["activation_bytes"]) == [4 * BATCH * n for n in (16, 12, 4, 4, 4, 2)]
    assert table.loc["head", "output"] == [BATCH, 2]
    assert table.loc["", "special_flop"] == 2 * BATCH


def test_depth_and_training() -> None:
    graph = rk.trace(Net(), rk.Input("batch", 3), mode="training", optimizer=torch.optim.SGD)
    assert list(graph.tree(1).index) == ["", "body", "head"]
    assert list(graph.tree(0).index) == [""]
    whole = graph.tree()
    assert whole.loc["", "matrix_flop"] == graph.matrix_flop
    # forward 28; backward of body.2 two products of 16, of body.0 one of 12, for the input wants no gradient
    assert whole.loc["body", "matrix_flop"] == 2 * BATCH * (28 + 32 + 12)


def test_json() -> None:
    graph = rk.trace(Net(), rk.Input("batch", 3))
    document = json.loads(json.dumps(graph.to_dict()))
    assert document["matrix_flop"] == "72*batch"
    assert document["parameters"] == 42
    assert document["dims"] == ["batch"]
    assert [op["matrix_flop"] for op in document["ops"] if op["kind"] == "aten.addmm"] == ["24*batch", "16*batch"]
    at = json.loads(json.dumps(graph.at(batch=2).to_dict()))
    assert at["matrix_flop"] == 144
    assert at["sizes"] == {"batch": 2}
    assert at["coverage"]["flop_share"] == 1


def test_csv() -> None:
    text = rk.trace(Net(), rk.Input(2, 3)).to_dataframe().to_csv(index=False)
    header, *rows = text.splitlines()
    assert header.startswith("module,phase,kind,inputs,outputs,matrix_flop")
    assert len(rows) == len(rk.trace(Net(), rk.Input(2, 3)).ops)
