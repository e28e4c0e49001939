"""Real networks, whole: what they must cost is known from outside."""

from functools import cache
from pathlib import Path

import pytest
import sympy
import torch
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.tracing.targets import load_target

ROOT = Path(__file__).parent.parent
BATCH, SEQ = (sympy.Symbol(name, integer=True, positive=True) for name in ("batch", "seq"))
IMAGE = rk.Input("batch", 3, 224, 224)
LABEL = rk.Input("batch", dtype="int64")

# multiply-adds of matrix work an image; parameters
TIMM = {
    "resnet50": (4_089_184_256, 25_557_032),
    "mobilenetv3_large_100": (None, 5_483_032),
    "vit_base_patch16_224": (None, 86_567_656),
    "convnext_tiny": (None, 28_589_128),
    "efficientnet_b0": (None, 5_288_548),
}


@cache
def inference_of(name: str) -> rk.Graph:
    return rk.trace(load_target(f"timm:{name}").model, IMAGE, strict=True)


@pytest.mark.parametrize("name", TIMM)
def test_timm_inference(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = load_target(f"timm:{name}").model
    graph = inference_of(name)
    macs, parameters = TIMM[name]
    if macs is not None:
        assert graph.matrix_flop == 2 * macs * BATCH
    assert graph.parameters == parameters
    assert graph.coverage.flop_share == graph.coverage.bytes_share == 1
    assert sympy.Poly(graph.flop, BATCH).degree() == 1
    # torch's counter is right for the forward pass of networks without causal attention
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(torch.empty(3, 3, 224, 224, device="meta"))
    attention = counter.get_total_flops() if name != "vit_base_patch16_224" else 2 * 3 * 17_563_828_224
    assert graph.at(batch=3).matrix_flop == attention


def test_vit_by_hand() -> None:
    # 196 patches and a class token, width 768, 12 blocks, in multiply-adds an image:
    patches = 196 * 768 * 3 * 16 * 16
    block = 197 * 768 * (3 * 768 + 768 + 4 * 768 + 4 * 768) + 2 * 197 * 197 * 768
    head = 768 * 1000
    assert patches + 12 * block + head == 17_563_828_224
    assert inference_of("vit_base_patch16_224").matrix_flop == 2 * 17_563_828_224 * BATCH


@pytest.mark.parametrize("name", TIMM)
def test_timm_training(name: str) -> None:
    model = load_target(f"timm:{name}").model
    training = rk.trace(
        model,
        IMAGE,
        mode="training",
        loss=functional.cross_entropy,
        targets=[LABEL],
        optimizer=torch.optim.SGD,
        strict=True,
    )
    # Forward once and backward twice, but the first layer's input wants no gradient: one product less there.
    first = next(op for op in training.ops if op.kind == "aten.convolution")
    weight, y = first.inputs[1], first.outputs[0]
    first_flop = 2 * y.numel * sympy.prod(weight.shape[1:])
    expected = 3 * inference_of(name).matrix_flop - first_flop
    # Attention's backward multiplies five times where forward does twice: one more than twice forward, of 2 · 197 ·
    # 197 · 768 FLOP a block and image.
    if name.startswith("vit"):
        expected += 12 * 2 * 197 * 197 * 768 * BATCH
    assert sympy.expand(training.matrix_flop - expected) == 0
    assert {op.phase for op in training.ops} == {"forward", "backward", "optimizer"}
    prediction = rk.predict(training, "nvidia-a100-sxm4-80gb", batch=64)
    assert prediction.memory.fits
    assert prediction.memory.gradient_bytes == 4 * training.parameters


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_gpt2(mode: str) -> None:
    model = load_target("transformers:GPT2LMHeadModel").model
    graph = rk.trace(
        model,
        rk.Input("batch", "seq", dtype="int64"),
        mode=mode,
        optimizer=torch.optim.AdamW if mode == "training" else None,
        strict=True,
    )
    assert graph.parameters == 124_439_808
    assert graph.dims == ("batch", "seq")
    # 12 blocks of 12 · 768² weights, a head of 768 · 50257, and causal attention: s(s+1)/2 pairs a head, two products
    per_token = 12 * 12 * 768**2 + 768 * 50257
    pairs = SEQ * (SEQ + 1) / 2
    forward = 2 * BATCH * (SEQ * per_token + 12 * 2 * 768 * pairs)
    if mode == "inference":
        assert sympy.expand(graph.matrix_flop - forward) == 0
    else:
        # twice more for the weights' and activations' gradients; the embedding has no product; attention 5 for 2
        backward = 2 * BATCH * (2 * SEQ * per_token + 12 * 5 * 768 * pairs)
        assert sympy.expand(graph.matrix_flop - forward - backward) == 0


def test_llama_from_a_config(tmp_path: Path) -> None:
    config = (ROOT / "examples" / "llama_70b.json").read_text(encoding="utf-8")
    (tmp_path / "two_layers.json").write_text(config.replace('"num_hidden_layers": 80', '"num_hidden_layers": 2'))
    model = load_target(f"transformers:{tmp_path}/two_layers.json").model
    graph = rk.trace(model, rk.Input("batch", "seq", dtype="int64"), dtype="bfloat16", strict=True)
    # A block: query and output 8192², key and value 8192 · 1024, three of 8192 · 28672; head 8192 · 32000
    per_token = 2 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672) + 8192 * 32000
    pairs = SEQ * (SEQ + 1) / 2
    assert sympy.expand(graph.matrix_flop - 2 * BATCH * (SEQ * per_token + 2 * 2 * 8192 * pairs)) == 0
    # Grouped heads reach the kernel as they are: 8 of keys and values for 64 of queries.
    attention = next(op for op in graph.ops if op.kind == "aten._scaled_dot_product_flash_attention")
    assert [t.shape for t in attention.inputs] == [(BATCH, heads, SEQ, 128) for heads in (64, 8, 8)]
    prediction = rk.predict(graph, "nvidia-h100-sxm5-80gb", batch=1, seq=2048)
    assert prediction.regime == "compute"


def test_the_bottleneck_networks() -> None:
    measured_us = {"A": (124, 122), "A_prime": (123, 71), "B": (214, 207), "B_prime": (99, 96)}
    wall = {}
    for name in measured_us:
        model = load_target(f"{ROOT}/examples/bottlenecks.py:{name}").model
        channels = 64 if name.startswith("A") else 256
        found = rk.predict(
            model,
            rk.Input(1, channels, 160, 120),
            gpu="nvidia-p100-pcie-16gb",
            host="xeon-server-2018",
            execution=rk.Execution(sync="none"),
        )
        wall[name] = found.total_s * 1e6
        assert found.gpu_s * 1e6 <= measured_us[name][1] * 1.25  # A is a fifth too slow
        assert wall[name] == pytest.approx(measured_us[name][0], rel=0.25)
    assert wall["B_prime"] < wall["A_prime"] < wall["A"] < wall["B"]


def test_the_wide_cnn() -> None:
    model = load_target(f"{ROOT}/examples/wide_cnn.py:WideCNN").model
    graph = rk.trace(model, rk.Input("batch", 3, 112, 112), strict=True)
    # 7×7 windows at 112², 56² and 28² pixels, then 100352 → 1024
    macs = 49 * (112**2 * 3 * 512 + (56**2 + 28**2) * 512 * 512) + 100_352 * 1024
    assert graph.matrix_flop == 2 * macs * BATCH
    training = rk.trace(model, rk.Input("batch", 3, 112, 112), mode="training", optimizer=torch.optim.SGD)
    assert training.matrix_flop == 2 * BATCH * (3 * macs - 49 * 112**2 * 3 * 512)
    assert rk.predict(graph, "nvidia-a100-sxm4-80gb", batch=32).regime == "compute"
