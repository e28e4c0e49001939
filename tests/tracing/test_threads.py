"""Traces of several threads wait for one another, and give what each gives alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import rooflinekit as rk


def net() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    return nn.Sequential(nn.Embedding(50, 8), layer, nn.Dropout(), nn.Softmax(-1))


TRAINING: dict[str, Any] = {"mode": "training", "optimizer": torch.optim.AdamW, "autocast": "bfloat16"}


def counts(model: nn.Module, training: bool) -> tuple[Any, ...]:
    graph = rk.trace(model, rk.Input("b", 9, dtype="int64"), **(TRAINING if training else {}))
    return graph.flop, graph.bytes, [op.kind for op in graph.ops]


def test_traces_in_threads_give_what_they_give_alone() -> None:
    alone = [counts(net(), training) for training in (False, True)]
    shared = net()

    def traced(number: int) -> bool:
        training = number % 2
        return counts(shared if number % 3 else net(), bool(training)) == alone[training]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(traced, range(8)))
    assert not any(isinstance(weight, FakeTensor) for weight in shared.parameters())


def test_other_threads_run_models_during_a_trace() -> None:
    real, x = net().eval(), torch.zeros(3, 9, dtype=torch.int64)
    with torch.no_grad():
        expected = real(x)
    found: list[torch.Tensor] = []
    over = threading.Event()

    def run() -> None:
        with torch.no_grad():
            while not (over.is_set() and found):
                found.append(real(x))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    counts(net(), True)
    over.set()
    thread.join()
    assert all(type(y) is torch.Tensor and torch.equal(y, expected) for y in found)


def test_predictions_of_one_graph_in_threads_are_as_alone() -> None:
    graph = rk.trace(net(), rk.Input("b", 9, dtype="int64"))
    alone = [rk.predict(graph, "nvidia-l4", b=b).total_s for b in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda b: rk.predict(graph, "nvidia-l4", b=b).total_s, [*range(1, 9)] * 4))
    assert found == alone * 4
