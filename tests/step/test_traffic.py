"""Traffic of a step is that of its kernels."""

import pytest
import torch
from torch import nn

import rooflinekit as rk


@pytest.mark.parametrize("execution", ["eager", "compiled"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_traffic_is_the_sum_of_kernels(execution: str, mode: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.GELU())
    p = rk.predict(model, rk.Input(4, 3, 32, 32), gpu="nvidia-l4", mode=mode, execution=execution)
    assert p.bytes == p.by_kernel()["bytes"].sum()


def test_what_is_fused_is_not_moved() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin().tanh()

    eager, compiled = (
        rk.predict(chain, rk.Input(1000, 1000), gpu="nvidia-l4", execution=how) for how in ("eager", "compiled")
    )
    # 4 bytes read and 4 written of a million numbers, three times or once
    assert (eager.bytes, compiled.bytes) == (3 * 8_000_000, 8_000_000)


def test_the_bias_pass_of_a_convolution_is_in_it() -> None:
    x = rk.Input(4, 16, 32, 32)
    biased, plain = (rk.predict(nn.Conv2d(16, 16, 1, bias=bias), x, gpu="nvidia-l4") for bias in (True, False))
    # the result of 4·16·32·32 numbers is read and written once more, with 16 numbers added
    assert biased.bytes - plain.bytes == 4 * (2 * 4 * 16 * 32 * 32 + 16)
