"""What a notebook shows: small tables, in which names are text."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import rooflinekit as rk

HOSTILE = "</script><script>alert(1)</script>"
TAGS = {"details", "summary", "div", "strong", "table", "thead", "tbody", "tr", "th", "td", "p"}


class Reader(HTMLParser):
    """Tags as they open and close, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        assert [name for name, _ in attrs] in ([], ["style"])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(shown: Any) -> list[str]:
    reader = Reader()
    reader.feed(shown._repr_html_())
    reader.close()
    assert reader.open == []
    assert reader.tags <= TAGS
    return reader.text


class Hostile(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.add_module(HOSTILE, nn.Linear(8, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, HOSTILE)(x)


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    return rk.trace(Hostile(), rk.Input("batch", 8), name=f"{HOSTILE} & more")


@pytest.fixture(scope="module")
def prediction(graph: rk.Graph) -> rk.Prediction:
    return rk.predict(graph, "nvidia-l4", batch=4)


def test_a_prediction(prediction: rk.Prediction) -> None:
    text = read(prediction)
    assert HOSTILE in text  # the module, whole
    assert text[0].startswith(f"{HOSTILE} & more inference (batch=4), float32, eager on nvidia-l4: ")
    assert {"time of a step", "regime", "FLOP", "peak memory"} <= set(text)
    assert text[text.index("kernels") + 1] == str(len(prediction.timings))


def test_an_explanation(prediction: rk.Prediction) -> None:
    found = rk.explain(prediction, rk.predict(Hostile(64), rk.Input("batch", 8), gpu="nvidia-l4", batch=4))
    text = read(found)
    assert text[0] == f"{HOSTILE} & more and Hostile on nvidia-l4"
    assert set(str(found).splitlines()) <= set(text)
    assert f"aten.addmm in {HOSTILE}" in text


def test_a_graph_with_open_and_with_given_sizes(graph: rk.Graph) -> None:
    text = read(graph)
    assert text[0] == f"{HOSTILE} & more inference, {len(graph.ops)} ops"
    assert HOSTILE in text
    assert text[text.index("parameters") + 1] == "144"  # 8 · 16 + 16
    assert text[text.index("matrix_flop") + 1] == "256*batch"  # 2 · 8 · 16
    given = read(graph.at(batch=1000))
    assert given[given.index("matrix_flop") + 1] == "256,000"
    assert given[given.index("sizes") + 1] == "batch=1000"


def test_a_device() -> None:
    device = rk.load_device("nvidia-a100-sxm4-80gb").replace(display_name=HOSTILE, vendor="A & B")
    text = read(device)
    assert text[0] == f"nvidia-a100-sxm4-80gb: {HOSTILE} (A & B, Ampere)"
    assert text[text.index("fp16 matrix, accumulates in fp32") + 1] == "312 TFLOP/s"
    assert text[text.index("SMs") + 1].startswith("108 ×")


def test_nothing_that_acts_is_in_it(prediction: rk.Prediction) -> None:
    for shown in (prediction, prediction.graph, rk.explain(prediction, prediction), prediction.machine.device):
        assert not re.search(r"<script|onload=|href=|src=|javascript:", shown._repr_html_())
