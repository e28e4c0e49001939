"""Two predictions, term by term and in words."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import ComparisonError

LOOP = rk.Execution(sync="none")


def predict(model: nn.Module, *shape: int, name: str, gpu: str = "nvidia-p100-pcie-16gb") -> rk.Prediction:
    graph = rk.trace(model, rk.Input(*shape), name=name)
    return rk.predict(graph, gpu, host="xeon-server-2018", execution=LOOP)


@pytest.fixture(scope="module")
def bottleneck() -> rk.Explanation:
    a = nn.Conv2d(64, 64, 3, bias=False)
    b = nn.Sequential(
        nn.Conv2d(64, 14, 1, bias=False), nn.Conv2d(14, 15, 3, bias=False), nn.Conv2d(15, 64, 1, bias=False)
    )
    return rk.explain(predict(a, 1, 64, 160, 120, name="A"), predict(b, 1, 64, 160, 120, name="A'"))


def test_ratios(bottleneck: rk.Explanation) -> None:
    # A: 158·118 pixels, 64·64·9 multiply-adds each. A': 160·120·64·14 + 158·118·(14·15·9 + 15·64)
    of_a, of_b = 158 * 118 * 64 * 64 * 9, 160 * 120 * 64 * 14 + 158 * 118 * (14 * 15 * 9 + 15 * 64)
    assert bottleneck.flop_ratio == pytest.approx(of_a / of_b)
    assert bottleneck.flop_ratio == pytest.approx(9.77, abs=0.01)
    assert bottleneck.time_ratio == bottleneck.a.total_s / bottleneck.b.total_s


def test_the_bottleneck_saves_gpu_time_but_not_wall_time(bottleneck: rk.Explanation) -> None:
    # measured: 124 and 123 µs of wall time, 122 and 71 µs of kernels
    assert bottleneck.a.total_s == pytest.approx(124e-6, rel=0.15)
    assert bottleneck.b.total_s == pytest.approx(123e-6, rel=0.15)
    assert bottleneck.b.gpu_s < bottleneck.a.gpu_s / 1.5
    assert (bottleneck.a.regime, bottleneck.b.regime) == ("compute", "overhead")


def test_terms_add_up_to_the_difference(bottleneck: rk.Explanation) -> None:
    assert sum(bottleneck.terms().values()) == pytest.approx(bottleneck.delta_s, rel=1e-9)


def test_drivers_add_up_to_the_difference(bottleneck: rk.Explanation) -> None:
    tails = bottleneck.b.timeline.tail_s - bottleneck.a.timeline.tail_s
    assert sum(driver.delta_s for driver in bottleneck.drivers) + tails == pytest.approx(bottleneck.delta_s)
    sizes = [abs(driver.delta_s) for driver in bottleneck.drivers]
    assert sizes == sorted(sizes, reverse=True)


def test_words_are_made_from_the_numbers(bottleneck: rk.Explanation) -> None:
    text = str(bottleneck)
    assert text.startswith("A' does 9.8× fewer FLOP than A (141 MFLOP against 1.37 GFLOP), yet ")
    assert "A is compute-bound, A' overhead-bound." in text
    assert "the CPU of xeon-server-2018 needs 123 µs to issue the step" in text
    assert "GPU waiting for the CPU +" in text
    assert "The 90 % intervals overlap" in text
    assert json.loads(json.dumps(bottleneck.to_dict()))["story"] == text.splitlines()


def test_the_other_way_round_turns_the_words(bottleneck: rk.Explanation) -> None:
    turned = rk.explain(bottleneck.b, bottleneck.a)
    assert str(turned).startswith("A does 9.8× more FLOP than A' (1.37 GFLOP against 141 MFLOP)")
    assert turned.delta_s == -bottleneck.delta_s


def test_a_network_against_itself(bottleneck: rk.Explanation) -> None:
    same = rk.explain(bottleneck.a, bottleneck.a)
    assert "does as many FLOP as A " in str(same)
    assert "takes the same time" in str(same)
    assert "no difference; together +0 s" in str(same)
    assert "No kernel differs." in str(same)


def test_different_machines_are_not_compared() -> None:
    a = predict(nn.ReLU(), 10, name="a")
    b = predict(nn.ReLU(), 10, name="b", gpu="nvidia-l4")
    with pytest.raises(ComparisonError, match="differ in device: nvidia-p100-pcie-16gb and nvidia-l4; predict both on"):
        rk.explain(a, b)
    graph = rk.trace(nn.ReLU(), rk.Input("n"))
    small, large = (rk.predict(graph, "nvidia-l4", n=n) for n in (10, 20))
    with pytest.raises(ComparisonError, match="differ in size 'n': 10 and 20"):
        rk.explain(small, large)


channels = st.integers(1, 256)


@settings(max_examples=25)
@given(channels, channels, st.sampled_from(["nvidia-l4", "nvidia-a100-sxm4-80gb", "nvidia-p100-pcie-16gb"]))
def test_the_waterfall_is_exact(a: int, b: int, gpu: str) -> None:
    e = rk.explain(*(predict(nn.Conv2d(8, c, 3), 2, 8, 16, 16, name=str(c), gpu=gpu) for c in (a, b)))
    assert sum(e.terms().values()) == pytest.approx(e.delta_s, rel=1e-9, abs=1e-15)
