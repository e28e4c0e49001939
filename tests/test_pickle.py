"""What comes back can go to other processes and into caches, without the model."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.ir.graph import traced_with


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        self.hook = lambda x: x  # what no pickle takes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def __reduce__(self) -> Any:
        raise TypeError("the model must not be packed")


@cache
def graph() -> rk.Graph:
    return rk.trace(Net(), rk.Input("batch", 64), mode="training", optimizer=torch.optim.AdamW, autocast="bf16")


def decoder() -> rk.Decoder:
    return rk.Decoder(name="d", layers=8, hidden=2048, heads=16, kv_heads=4, head_dim=128, ffn=8192, vocab=32000)


def predicted(gpu: str = "nvidia-l4", **options: Any) -> rk.Prediction:
    return rk.predict(graph(), gpu, batch=32, **options)


MADE: dict[str, Callable[[], Any]] = {
    "graph": graph,
    "graph at a size": lambda: graph().at(batch=4),
    "prediction": predicted,
    "prediction, compiled": lambda: predicted(execution="compiled"),
    "explanation": lambda: rk.explain(predicted(), predicted("nvidia-t4")),
    "comparison of GPUs": lambda: rk.compare_gpus(graph(), gpus=["nvidia-l4", "nvidia-t4"], batch=32),
    "advice": lambda: rk.advise(predicted()),
    "parallel": lambda: rk.parallel(graph(), cluster="dgx-a100", gpus=2, batch=64),
    "pipeline": lambda: rk.parallel(graph(), cluster="dgx-a100", gpus=2, batch=64, strategy="fsdp"),
    "served": lambda: rk.serve(decoder(), "nvidia-l4", batch=4, input=512, output=64),
    "served by two": lambda: rk.serve(decoder(), cluster="dgx-a100", tp=2, batch=4, input=512, output=64),
    "device": lambda: rk.load_device("nvidia-l4"),
    "cluster": lambda: rk.load_cluster("dgx-a100"),
    "intensity": lambda: rk.intensity(graph()),
}


@pytest.mark.parametrize("name", MADE)
def test_a_copy_says_what_the_original_says(name: str) -> None:
    made = MADE[name]()
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
        assert type(again) is type(made)
        assert str(again) == str(made)
        if hasattr(made, "to_dict"):
            assert again.to_dict() == made.to_dict()


def test_a_graph_comes_back_equal_but_without_its_model() -> None:
    again = pickle.loads(pickle.dumps(graph()))
    assert again == graph()
    assert again.fx is None
    assert rk.predict(again, "nvidia-l4", batch=32).total_s == predicted().total_s
    with pytest.raises(InputError, match="this graph does not know its model"):
        traced_with(again, channels_last=True)
    with pytest.raises(TypeError):
        again.sizes["batch"] = 1


def test_a_copy_in_the_same_process_keeps_the_model() -> None:
    assert copy.deepcopy(graph()).origin is graph().origin


def test_another_process_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "prediction.pickle"
    file.write_bytes(pickle.dumps(predicted()))
    code = "import pickle, sys; p = pickle.load(open(sys.argv[1], 'rb')); print(p.total_s, 'torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(predicted().total_s), "False"]
