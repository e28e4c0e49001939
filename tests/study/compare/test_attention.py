"""FLOP/s of a GPU's kernels of attention: those of steps that call them, and FLOP counted by hand."""

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.study.compare.crossover import attention_rates

H100, A100 = "nvidia-h100-sxm5-80gb", "nvidia-a100-sxm4-80gb"


def attends(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize(
    ("gpu", "like", "name"), [(H100, None, "cuDNN's attention"), (H100, "2.8", "FlashAttention 2")]
)
def test_a_rate_is_that_of_a_step(gpu: str, like: str | None, name: str) -> None:
    rates = attention_rates(rk.load_device(gpu), head_dim=64, causal=True, lengths=(1024, 4096))
    # 16,384 tokens are 4 sequences of 4096, 2048 numbers 32 heads of 64; 2 products of 2 FLOP
    p = rk.predict(rk.trace(attends, *(rk.Input(4, 32, 4096, 64, dtype="float16") for _ in range(3)), like=like), gpu)
    flop = 4 * 4 * 32 * 64 * 4096 * 4097 / 2  # of s(s+1)/2 pairs
    assert rates.forward[name][1] == pytest.approx(flop / p.timings[0].total_s, rel=1e-3)


def test_which_kernels_there_are_and_which_one_runs() -> None:
    found = {gpu: attention_rates(rk.load_device(gpu)) for gpu in (H100, A100, "nvidia-t4", "amd-mi300x")}
    names = {"FlashAttention 2", "cuDNN's attention", "memory-efficient", "Triton's attention"}
    assert [set(one.forward) for one in found.values()] == [
        {*names, "FlashAttention 3"}, names, {"memory-efficient", "Triton's attention"},
        {"AOTriton", "Composable Kernel", "aiter", "Triton's attention"},
    ]  # fmt: skip
    ran = ["cuDNN's attention", "FlashAttention 2", "memory-efficient", "AOTriton"]
    assert [one.chosen for one in found.values()] == ran
    for rates in found.values():
        assert all(rate < rates.peak for one in (rates.forward, rates.backward) for row in one.values() for rate in row)


@pytest.mark.parametrize(
    ("gpu", "given", "message"),
    [
        (
            A100,
            {"head_dim": 96},
            "expected heads that divide 2048 numbers and lengths that divide 16384 tokens",
        ),
        (A100, {"lengths": (1000,)}, "got 128 and 1000"),
        ("nvidia-k80", {}, "attention on nvidia-k80: no kernel is known by name"),
    ],
)
def test_what_is_not_known_is_refused(gpu: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attention_rates(rk.load_device(gpu), **given)  # type: ignore[arg-type]
