"""Whatever two steps differ in, what lies between their times adds up: terms, causes, shortfall and drivers."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.hardware.specs import devices
from rooflinekit.ir.graph import Graph

CHANNELS, EDGE = 24, 10  # no multiples of any tile


class Attention(nn.Module):
    """Self-attention of the pixels, in 3 heads."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS)
        self.causal = causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, channels, edge, edge], as all layers
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).unflatten(-1, (3, 3, CHANNELS // 3)).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return found.transpose(1, 2).flatten(2).transpose(1, 2).unflatten(-1, (EDGE, EDGE))


LAYERS = {
    "linear": lambda: nn.Linear(EDGE, EDGE),
    "conv3": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "conv1": lambda: nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False),
    "depthwise": lambda: nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2, groups=CHANNELS),
    "batch norm": lambda: nn.BatchNorm2d(CHANNELS),
    "layer norm": lambda: nn.LayerNorm(EDGE),
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "attention": lambda: Attention(causal=False),
    "causal": lambda: Attention(causal=True),
}
SHIPPED = [device for device in devices() if device.kind == "gpu" and not device.draft]
BACKENDS = ["eager", "compiled", "cuda-graph", "reduce-overhead"]


@functools.cache
def traced(layers: tuple[str, ...], mode: str, autocast: str | None) -> Graph:
    net = nn.Sequential(*(LAYERS[name]() for name in layers))
    return rk.trace(net, rk.Input("batch", CHANNELS, EDGE, EDGE), mode=mode, autocast=autocast, name=", ".join(layers))


#: Each ends in something to train.
networks = st.lists(st.sampled_from(list(LAYERS)), max_size=3).map(lambda layers: (*layers, "conv1"))


@st.composite
def machines(draw: st.DrawFn) -> rk.Device:
    """A shipped GPU, or one that nobody sells."""
    device = draw(st.sampled_from(SHIPPED))
    if draw(st.booleans()):
        faster = draw(st.floats(0.1, 10))
        device = device.replace(
            sm_count=draw(st.integers(1, 300)), dram={"bandwidth": faster * device.dram.bandwidth}, name="varied"
        )
    return device


@st.composite
def predictions(draw: st.DrawFn, mode: str) -> rk.Prediction:
    graph = traced(draw(networks), mode, draw(st.sampled_from([None, "float16", "bfloat16"])))
    execution = rk.Execution(backend=draw(st.sampled_from(BACKENDS)), sync=draw(st.sampled_from(["step", "none"])))
    host = draw(st.sampled_from(["generic-server", "xeon-server-2018"]))
    batch = draw(st.sampled_from([1, 2, 7, 64, 4096]))
    return rk.predict(graph, draw(machines()), host=host, execution=execution, batch=batch)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[rk.Prediction, rk.Prediction]:
    mode = draw(st.sampled_from(["inference", "training"]))
    return draw(predictions(mode)), draw(predictions(mode))


@settings(max_examples=30, deadline=None)
@given(pairs())
def test_everything_adds_up(pair: tuple[rk.Prediction, rk.Prediction]) -> None:
    e = rk.explain(*pair)
    close = functools.partial(pytest.approx, rel=1e-9, abs=1e-9 * max(e.totals))
    assert sum(e.terms().values()) == close(e.delta_s)
    assert sum(driver.delta_s for driver in e.drivers) == close(e.delta_s)
    sizes = [abs(driver.delta_s) for driver in e.drivers]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(driver.a_s for driver in e.drivers) == close(e.totals[0])
    assert sum(driver.b_s for driver in e.drivers) == close(e.totals[1])
    assert sum(e.underuse().values()) == close(e.terms()["underuse"])
    if e.shortfall():
        assert sum(e.shortfall().values()) == close(e.totals[1] - e.totals[0] / e.promised)
    assert len({d.what for d in e.differences}) == len(e.differences)
    assert str(e).endswith(".")


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["inference", "training"]).flatmap(predictions))
def test_the_causes_of_underuse_add_up_in_every_kernel(p: rk.Prediction) -> None:
    for timing in p.timings:
        parts = timing.underuse_parts()
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == pytest.approx(timing.terms()["underuse"], rel=1e-9, abs=1e-18)
    assert sum(p.underuse().values()) == pytest.approx(p.terms()["underuse"], rel=1e-9, abs=1e-18)
