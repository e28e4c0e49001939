"""Graphs as bytes: what is read is what was written, and nothing but graphs is read."""

import functools
import hashlib
import json
import zlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rooflinekit as rk
from rooflinekit.ir import graph_file


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[2] > 20:
            x = x[:, :, ::2]
        return self.head(self.body(x).mean((2, 3)))


GRAPHS = {
    "open": lambda: rk.trace(Net(), rk.Input("batch", 3, "h", 32), sizes={"h": 32}),
    "training": lambda: rk.trace(Net(), rk.Input("batch", 3, 32, 32), mode="training", optimizer=torch.optim.AdamW),
    "fixed": lambda: rk.trace(Net(), rk.Input(4, 3, 32, 32), autocast="fp16", like="1.12.1", channels_last=True),
    "sequence": lambda: rk.trace(
        nn.TransformerEncoderLayer(32, 4, batch_first=True), rk.Input("batch", "seq", 32), dtype="float16"
    ),
}


@pytest.fixture(scope="module", params=GRAPHS)
def graph(request: pytest.FixtureRequest) -> rk.Graph:
    return GRAPHS[request.param]()


def test_a_graph_comes_back_as_it_was(graph: rk.Graph) -> None:
    found = graph_file.opened(graph_file.packed(graph))
    assert replace(found, fx=graph.fx) == graph
    assert found.to_dict() == graph.to_dict()
    sizes = dict.fromkeys(graph.dims, 32)
    a, b = (rk.predict(one, "nvidia-l4", **sizes).to_dict() for one in (graph, found))
    assert a == b


def test_shared_costs_stay_shared() -> None:
    # Kernels of equal blocks share one Cost, by which sums over a graph are quick.
    graph = rk.trace(nn.Sequential(*[nn.Linear(8, 8)] * 5), rk.Input("batch", 8))
    found = graph_file.opened(graph_file.packed(graph))
    for one in (graph, found):
        assert len({id(cost) for priced in one.priced for cost in priced.costs}) == 1


def test_what_is_not_plain_is_not_packed(graph: rk.Graph) -> None:
    first = graph.priced[0]
    odd = replace(first, op=replace(first.op, attrs={"hook": print}))
    with pytest.raises(ValueError, match="builtin_function_or_method cannot be packed"):
        graph_file.packed(replace(graph, priced=(odd,)))


def forged(nodes: object, root: object) -> bytes:
    """Bytes with a right digest, as only someone who means harm makes them."""
    body = zlib.compress(json.dumps([nodes, root]).encode())
    return graph_file._HEAD + hashlib.sha256(body).digest() + body


@pytest.mark.parametrize(
    ("nodes", "root"),
    [
        ([], None),
        ([["word", "DType", "float99"]], [0]),
        ([["record", "Graph"]], [0]),
        ([["record", "system", "rm"]], [0]),
        ([["record", "Gemm", 1, "x", 1, 1, None]], [0]),
        ([["tuple", [0]]], [0]),
        ([["tuple", [-1]]], [0]),
        ([["formula", "__import__", [0]]], [0]),
        ([["size", "n"], ["number", "9" * 50, "1"], ["formula", "Pow", [0], [1]]], [2]),
        ([["number", "9" * 5000, "1"]], [0]),
        ([["number", "1", "0"]], [0]),
        ([["release", "1", 2]], [0]),
        ([["tuple"]], [0]),
        ({"a": 1}, [0]),
    ],
)
def test_forged_tables_are_refused(nodes: object, root: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        graph_file.opened(forged(nodes, root))


@functools.cache
def small() -> bytes:
    return graph_file.packed(rk.trace(nn.ReLU(), rk.Input("batch", 8)))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_change_of_a_table_is_refused_or_is_a_graph(data: st.DataObject) -> None:
    nodes, root = json.loads(zlib.decompress(small()[len(graph_file._HEAD) + 32 :]))
    row = data.draw(st.integers(0, len(nodes) - 1))
    place = data.draw(st.integers(0, len(nodes[row]) - 1))
    nodes[row][place] = data.draw(
        st.one_of(st.none(), st.integers(), st.text(max_size=9), st.lists(st.integers(-2, 40), max_size=2))
    )
    try:
        found = graph_file.opened(forged(nodes, root))
    except ValueError:
        return
    assert isinstance(found, rk.Graph)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a packed graph"):
        graph_file.opened(data)
