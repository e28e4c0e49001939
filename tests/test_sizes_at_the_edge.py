"""Sizes that are huge, of other kinds of integers, or none at all: right, or one clear line."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import RooflinekitError
from rooflinekit.ir.sizes import LARGEST, whole


class Index:
    def __init__(self, value: object) -> None:
        self.value = value

    def __index__(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


FOUR = [4, np.int8(4), np.uint64(4), np.array(4), Index(4), sympy.Integer(4), torch.tensor(4)]
NONE = [
    0, -1, True, np.bool_(True), 4.0, np.float64(4), 4 + 0j, math.inf, math.nan, "4", None, np.array([[4]]),
    Index("x"), Index(ValueError("no")), sympy.Symbol("n"), sympy.Rational(1, 2), sympy.oo, torch.tensor(2.5),
    LARGEST + 1, 2**63 - 1, 2**63, 2**64, 10**40, 10**400, np.uint64(2**64 - 1), Index(2**70), sympy.Integer(2) ** 70,
]  # fmt: skip

MODEL = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 10))


@cache
def graph() -> rk.Graph:
    return rk.trace(MODEL, rk.Input("batch", 3, 4, 4))


@cache
def training() -> rk.Graph:
    return rk.trace(nn.Linear(64, 8), rk.Input("batch", 64), mode="training", optimizer=torch.optim.SGD)


@cache
def served() -> rk.Serving:
    return serve(4)


DECODER = rk.Decoder(name="d", layers=2, hidden=256, heads=4, kv_heads=4, head_dim=64, ffn=512, vocab=1000)


def serve(value: Any, name: str = "batch", **more: Any) -> rk.Serving:
    return rk.serve(DECODER, "nvidia-l4", **{"batch": 2, "input": 16, "output": 8, **more, name: value})


USES: dict[str, Callable[[Any], Any]] = {
    "at": lambda n: int(graph().at(batch=n).flop),
    "counts": lambda n: graph().counts(batch=[n])["flop"].tolist(),
    "predict": lambda n: rk.predict(graph(), "nvidia-l4", batch=n).total_s,
    "a table": lambda n: rk.predict(graph(), "nvidia-l4", batch=n).by_kernel()["share"].sum(),
    "a model": lambda n: int(rk.trace(MODEL, rk.Input("batch", 3, 4, 4), sizes={"batch": n}, fixed=True).flop),
    "an input": lambda n: int(rk.trace(MODEL, rk.Input(n, 3, 4, 4)).flop),
    "sweep": lambda n: rk.sweep(graph(), gpus=["nvidia-l4"], batch=[n])["total_s"].tolist(),
    "sweep of one": lambda n: rk.sweep(graph(), gpus=["nvidia-l4"], batch=n)["total_s"].tolist(),
    "compare": lambda n: str(rk.compare_gpus(graph(), gpus=["nvidia-l4", "nvidia-t4"], batch=n)),
    "parallel": lambda n: rk.parallel(training(), cluster="dgx-a100", gpus=2, batch=n).total_s,
    "gpus": lambda n: rk.parallel(training(), cluster="dgx-a100", gpus=n, batch=64).total_s,
    "clients": lambda n: str(serve(n)),
    "tokens in": lambda n: str(serve(n, "input")),
    "tokens out": lambda n: str(serve(n, "output")),
    "tp": lambda n: serve(n, "tp", cluster=None, collective_s=lambda size, gpus: 1e-5).tpot_s,
    "context": lambda n: served().largest_batch(n),
}


@pytest.mark.parametrize("name", USES)
def test_every_kind_of_integer_is_the_number_it_is(name: str) -> None:
    first, *others = (USES[name](four) for four in FOUR)
    assert all(other == first for other in others)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", USES)
def test_what_is_no_size_is_refused_in_one_line(name: str) -> None:
    for value in NONE:
        if name == "context" and (value is None or (whole(value) or 0) > 1):
            continue  # of so many tokens none fits; None stands for a whole request
        if name == "gpus" and value is None:
            continue  # all of them
        with pytest.raises(RooflinekitError) as caught:
            USES[name](value)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300


def test_the_largest_size_is_right_or_refused_in_one_line() -> None:
    # 3·3·3 weights · 8 channels · 2·2 places · 2, and 32 · 10 · 2: 2368 FLOP of products for each sample
    assert int(graph().at(batch=LARGEST).matrix_flop) == 2368 * LARGEST
    assert rk.predict(graph(), "nvidia-l4", batch=LARGEST).total_s > 1000
    wide = rk.trace(nn.Linear(64, 8), rk.Input("batch", "length", 64), sizes={"batch": 5, "length": 7})
    assert int(wide.at(batch=LARGEST, length=LARGEST).matrix_flop) == 2 * 64 * 8 * LARGEST**2
    with pytest.raises(RooflinekitError, match="numbers: choose smaller sizes"):
        rk.trace(nn.Linear(64, 8), rk.Input(LARGEST, LARGEST, 64))
    with pytest.raises(RooflinekitError, match=r"more than 2\*\*62 bytes"):
        rk.sweep(wide, gpus=["nvidia-l4"], batch=[LARGEST], length=[LARGEST])


def test_answers_of_one_token_have_no_time_between_tokens() -> None:
    found = serve(1, "output")
    assert math.isnan(found.tpot_s)
    assert found.to_dict()["tpot_s"] is None
    assert "no further tokens: answers have one" in str(found)
    assert found.ttft_s > 0
