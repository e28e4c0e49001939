"""Attention of packed sequences: torch's varlen_attn and flash-attn's, counted for the lengths that are assumed."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.varlen import varlen_attn

import rooflinekit as rk
from rooflinekit.cost.table import price
from rooflinekit.ir.op import DType, Op, TensorSpec

TOKENS, HEADS, SIZE, SEQUENCES, LONGEST = 2048, 8, 64, 8, 512


class Packed(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.scale, self.options = nn.Parameter(torch.ones(1, dtype=torch.bfloat16)), options

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
        q = q * self.scale
        for _ in range(2):
            q = varlen_attn(q, k, v, begins, begins, LONGEST, LONGEST, **self.options)  # type: ignore[assignment]
        return q


def step(assume: dict[str, Any] | None = None, **options: Any) -> rk.Graph:
    packed = [rk.Input(TOKENS, HEADS, SIZE, dtype="bfloat16") for _ in range(3)]
    begins = rk.Input(SEQUENCES + 1, dtype="int32")
    return rk.trace(Packed(**options), *packed, begins, mode="training", optimizer=None, assume=assume)


def pairs(length: int, *, causal: bool) -> int:
    """Of one head, in all sequences of this length."""
    return TOKENS // length * (length * (length + 1) // 2 if causal else length * length)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("assume", "length"), [(None, 256), ({"varlen": 1.0}, 512), ({"varlen": 128}, 128)])
def test_sequences_are_equally_long_or_as_the_user_says(
    assume: dict[str, Any] | None, length: int, causal: bool
) -> None:
    graph = step(assume, window_size=(-1, 0) if causal else (-1, -1))
    product = 2 * HEADS * pairs(length, causal=causal) * SIZE
    # two calls, each of two products forward and five backward
    assert graph.matrix_flop == 2 * 7 * product
    assert not graph.coverage.default_kinds
    (assumption,) = graph.assumptions
    assert (assumption.name, assumption.value, assumption.most) == ("varlen", length, LONGEST)
    ground = "shared out evenly" if assume is None else "given"
    assert str(assumption).startswith(f"varlen {length} of {LONGEST} ({ground}; test_packed.py:")


@pytest.mark.parametrize("gpu", ["nvidia-a100-sxm4-80gb", "nvidia-h100-sxm5-80gb"])
def test_it_runs_as_a_batch_of_them_by_flash_attention_2(gpu: str) -> None:
    found = [timing.kernel for timing in rk.predict(step(), gpu).timings if timing.kernel.cost.gemms]
    assert {kernel.algorithm.name for kernel in found} == {"FlashAttention 2"}
    assert {(g.batch, g.m, g.n, g.k) for g in found[0].cost.gemms} == {(64, 256, 256, 64), (64, 256, 64, 256)}


def op(kind: str, queries: int, keys: int, sequences: int, kv_heads: int, **attrs: Any) -> Op:
    """Of 8 heads of 64 numbers in 16 bits; queries and keys of all sequences together."""
    query, key, value = (
        TensorSpec(name=name, shape=shape, dtype=DType.BFLOAT16)
        for name, shape in (("q", (queries, 8, 64)), ("k", (keys, kv_heads, 64)), ("v", (keys, kv_heads, 64)))
    )
    begins = TensorSpec(name="begins", shape=(sequences + 1,), dtype=DType.INT32)
    attrs = {"cu_seq_q": begins, "cu_seq_k": begins, **attrs}
    return Op(name="a", kind=kind, inputs=(query, key, value, begins), outputs=(query,), attrs=attrs)


def test_a_causal_mask_ends_with_the_last_key() -> None:
    # 4 sequences of 2 queries and 5 keys: the first sees 4, the second all 5
    (c,) = price(op("torch_attn._varlen_attn", 8, 20, 4, 8, is_causal=True, packed_keys=5)).costs
    assert c.matrix_flop == 2 * 2 * 64 * (8 * 4 * (4 + 5))
    (window,) = price(op("torch_attn._varlen_attn", 8, 20, 4, 8, window_size=(1, 0), packed_keys=5)).costs
    assert window.matrix_flop == 2 * 2 * 64 * (8 * 4 * 2 * 2)  # each query with one key before its own


def test_decoding_reads_keys_that_heads_share_once() -> None:
    # 16 sequences of one query and 1000 keys; 4 heads to each of 2 heads of keys are rows of one product
    (c,) = price(op("flash_attn._flash_attn_varlen_forward", 16, 16000, 16, 2, causal=True, packed_keys=1000)).costs
    assert [(g.batch, g.m, g.n, g.k) for g in c.gemms] == [(32, 4, 1000, 64), (32, 4, 64, 1000)]
    assert c.matrix_flop == 2 * 2 * 16 * 8 * 1000 * 64


def test_of_a_paged_cache_the_keys_in_use_are_read() -> None:
    given = op("torch_attn._varlen_attn", 16, 1, 16, 2, packed_keys=1000)
    pool = TensorSpec(name="pool", shape=(50000, 16, 2, 64), dtype=DType.BFLOAT16)
    table = TensorSpec(name="table", shape=(16, 63), dtype=DType.INT32)
    query, _, _, begins = given.inputs
    inputs = (query, pool, pool, begins, table)
    (c,) = price(Op(name="a", kind=given.kind, inputs=inputs, outputs=given.outputs,
                    attrs={**given.attrs, "block_table": table})).costs  # fmt: skip
    # queries, beginnings and table; keys and values of 16 sequences of 1000, 2 heads of 64 numbers
    assert c.read_bytes == 2 * 16 * 8 * 64 + 4 * 17 + 4 * 16 * 63 + 2 * 2 * 16 * 1000 * 2 * 64


@torch.library.custom_op("flash_attn::_flash_attn_varlen_backward", mutates_args=("dq", "dk", "dv"))
def backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, softmax_lse: torch.Tensor,
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, causal: bool,
) -> torch.Tensor:  # fmt: skip
    raise NotImplementedError


@backward.register_fake
def _(dout, q, k, v, out, softmax_lse, *_):
    return torch.empty_like(softmax_lse)


def test_the_gradient_of_flash_attn_sums_those_of_shared_heads() -> None:
    def gradient(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, begins: torch.Tensor) -> Any:
        made = [torch.empty_like(one) for one in (q, k, k)]
        backward(dout, q, k, k, q, lse, *made, begins, begins, LONGEST, LONGEST, True)
        return made

    wide, narrow = (rk.Input(TOKENS, heads, SIZE, dtype="bfloat16") for heads in (HEADS, 2))
    lse, begins = rk.Input(HEADS, TOKENS), rk.Input(SEQUENCES + 1, dtype="int32")
    graph = rk.trace(gradient, wide, wide, narrow, lse, begins)
    assert graph.matrix_flop == 5 * 2 * HEADS * pairs(256, causal=True) * SIZE
    kernels = [timing.kernel for timing in rk.predict(graph, "nvidia-a100-sxm4-80gb").timings]
    (sums,) = (kernel.cost for kernel in kernels if "shared keys" in kernel.name)
    shared = 2 * 2 * TOKENS * 2 * SIZE  # bytes of the gradients of keys and values of 2 heads
    assert (sums.read_bytes, sums.write_bytes) == (4 * shared, shared)
