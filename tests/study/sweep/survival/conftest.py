"""A small sweep in many pieces, and its rows as they are where nothing goes wrong."""

import pandas as pd
import pytest
from small_sweeps import predicted, swept
from torch import nn

import rooflinekit as rk
from rooflinekit.study.sweep import plan as sweep_plan

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    return rk.trace(nn.Sequential(nn.Linear(64, 128), nn.ReLU()), rk.Input("batch", 64), name="net")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 10 sizes and one case, so that there are many, each predicted once."""
    monkeypatch.setattr(sweep_plan, "BLOCK", 10)
    monkeypatch.setattr(sweep_plan, "_ROWS", 10)
    monkeypatch.setattr(sweep_plan.Piece, "predict", predicted)


@pytest.fixture(scope="module")
def rows(graph: rk.Graph) -> pd.DataFrame:
    return swept(graph)
