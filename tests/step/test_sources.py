"""How far sources of whole answers lie apart, and what it does to intervals."""

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.step.bounds import SOURCES, widened

LEDGER = Path(__file__).parents[2] / "docs" / "ledger.csv"
ASSEMBLED = {"step": "decoder training", "tpot": "per token", "tokens/s": "per token", "per token": "per token",
             "ttft": "first token", "first token": "first token", "DDP, one GPU's given": "several GPUs"}  # fmt: skip


def test_parts_add_in_squares_of_logarithms() -> None:
    # 3 and 4 tenths by the kernels and by the source are 5 tenths together, to each side
    deviations = 0.4 / SOURCES["decoder training"]
    low, high = widened((math.exp(-0.3), math.exp(0.3)), 1.0, "decoder training", deviations)
    assert (low, high) == pytest.approx((math.exp(-0.5), math.exp(0.5)))


def test_no_time_stays_no_time() -> None:
    assert widened((0.0, 0.0), 0.0, "training", 1.645) == (0.0, 0.0)
    assert widened((0.0, 2.0), 1.0, "per token", 1.645)[0] == 0.0


@given(st.floats(1e-6, 1.0), st.floats(1.0, 1e3), st.sampled_from(sorted(SOURCES)), st.floats(0.1, 3.0))
def test_never_narrower(low: float, high: float, what: str, deviations: float) -> None:
    wide = widened((low, high), 1.0, what, deviations)
    assert wide[0] <= low * (1 + 1e-9)
    assert wide[1] >= high * (1 - 1e-9)


@pytest.mark.parametrize("kind", sorted(SOURCES))
def test_the_numbers_are_those_of_the_ledger(kind: str) -> None:
    lines = pd.read_csv(LEDGER).drop_duplicates(["source", "what", "device"], keep="last")
    lines = lines[(lines.seen != "source") & (lines.what.map(ASSEMBLED) == kind) & (lines.n >= 3)]
    lines = lines[~lines.source.isin(["lambda", "sia"])]  # no licence: nothing of them is in the package
    logs = (lines.bias / 100 + 1).map(math.log)
    assert SOURCES[kind] == pytest.approx(math.sqrt((logs**2).mean()), abs=0.02)


def test_a_described_step_is_no_surer_than_its_program() -> None:
    step = rk.train(rk.Decoder.from_config("llama-3.1-8b"), cluster="dgx-h100", gpus=8, seq=2048, batch=64)
    low, high = step.interval()
    assert math.log(high / step.total_s) >= 1.645 * SOURCES["decoder training"] - 1e-3
    assert math.log(step.total_s / low) >= 1.645 * SOURCES["decoder training"] - 1e-3
