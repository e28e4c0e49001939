"""The package flash-attn: its operators, as version 2.7 registers them, are traced as what they are."""

import pytest
import torch

import rooflinekit as rk

B, S, H, K, D = 2, 256, 8, 2, 64


@torch.library.custom_op("flash_attn::_flash_attn_forward", mutates_args=())
def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, softmax_scale: float, causal: bool,
    window_size_left: int, window_size_right: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    raise NotImplementedError


@forward.register_fake
def _(q, k, v, *_):
    return torch.empty_like(q), q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)


@torch.library.custom_op("flash_attn::_flash_attn_backward", mutates_args=("dq", "dk", "dv"))
def backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, causal: bool,
) -> torch.Tensor:  # fmt: skip
    raise NotImplementedError


@backward.register_fake
def _(dout, q, k, v, out, lse, *_):
    return torch.empty_like(lse)


def _saved(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.causal = inputs[5]


def _gradients(ctx, dout, *_):
    q, k, v, out, lse = ctx.saved_tensors
    made = [torch.empty_like(one) for one in (q, k, v)]
    torch.ops.flash_attn._flash_attn_backward(dout, q, k, v, out, lse, *made, ctx.causal)
    return (*made, *[None] * 5)


forward.register_autograd(_gradients, setup_context=_saved)


class Attention(torch.nn.Module):
    def __init__(self, window: int = -1) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(D, dtype=torch.bfloat16))
        self.window = window

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.ops.flash_attn._flash_attn_forward(q * self.scale, k, k, 0.0, 0.125, True, self.window, 0)[0]


INPUTS = rk.Input(B, S, H, D, dtype="bf16"), rk.Input(B, S, K, D, dtype="bf16")


def step(window: int = -1) -> rk.Graph:
    return rk.trace(Attention(window), *INPUTS, mode="training", optimizer=None, fixed=True)


def test_products_are_those_of_attention_over_heads_first() -> None:
    # causal: s(s + 1)/2 pairs of each of b·h; 2 products of 2·d forward, 5 backward
    assert step().matrix_flop == 7 * 2 * B * H * (S * (S + 1) // 2) * D
    assert not step().coverage.default_kinds
    # a window of 32 keys before each query and its own
    assert sum(one.costs[0].matrix_flop for one in step(32).priced if one.op.kind.endswith("forward")) == (
        2 * 2 * B * H * S * 33 * D
    )


def test_what_sdpa_would_run_is_told_and_tried() -> None:
    p = rk.predict(step(), "nvidia-h100-sxm5-80gb")
    (note,) = (one for one in p.notes if one.startswith("attention: "))
    assert "cuDNN's attention is excluded by a call of flash attention by name" in note
    assert note.endswith("call scaled_dot_product_attention")
    tried = {one.what.partition(",")[0] for one in rk.advise(p).suggestions if "ttention" in one.what}
    assert tried == {"cuDNN's attention", "FlashAttention 3"}
    window = rk.trace(Attention(32), *INPUTS)  # which cuDNN's has not in PyTorch
    for graph, gpu in ((window, "nvidia-h100-sxm5-80gb"), (step(), "nvidia-a100-sxm4-80gb")):
        assert not any(one.startswith("attention: ") for one in rk.predict(graph, gpu).notes)


@pytest.mark.parametrize("gpu", ["nvidia-a100-sxm4-80gb", "nvidia-h100-sxm5-80gb"])
def test_it_is_flash_attention_2_on_every_gpu(gpu: str) -> None:
    found = [timing.kernel for timing in rk.predict(step(), gpu=gpu).timings if "flash_attn" in timing.kernel.kind]
    assert {kernel.algorithm.name for kernel in found if kernel.cost.gemms} == {"FlashAttention 2"}
