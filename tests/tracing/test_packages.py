"""Attention of packages: of packed sequences (torch, flash-attn) for the lengths that are assumed, and xFormers."""

import sys
from types import ModuleType, SimpleNamespace
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
    assert str(assumption).startswith(f"varlen {length} of {LONGEST} ({ground}; test_packages.py:")


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


# --- xFormers ------------------------------------------------------------------------------------------------------


class LowerTriangularMask:
    pass


class BlockDiagonalCausalMask:
    def __init__(self, *ends: int) -> None:
        self.q_seqinfo = self.k_seqinfo = SimpleNamespace(intervals=lambda: zip((0, *ends), ends, strict=False))


@pytest.fixture
def attend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """xFormers 0.0.35 as far as a call of memory_efficient_attention goes: its dispatch finds no GPU."""

    class Inputs(SimpleNamespace):
        def validate_inputs(self) -> None:
            assert self.query.dim() == self.key.dim() == self.value.dim()

        def normalize_bmhk(self) -> tuple[int, ...]:
            return (*self.query.shape[:-1], self.value.shape[-1])

    def refuse(inp: Any, op: Any = None) -> Any:
        raise NotImplementedError("No operator found")

    fmha: Any = ModuleType("xformers.ops.fmha")
    fmha._memory_efficient_attention = fmha._memory_efficient_attention_forward = refuse
    monkeypatch.setitem(sys.modules, "xformers.ops.fmha", fmha)

    class Attends(nn.Module):
        def __init__(self, bias: Any = None, dropout: float = 0.0, heads: int = 0) -> None:
            super().__init__()
            self.scale, self.bias, self.p, self.heads = nn.Parameter(torch.ones(1)), bias, dropout, heads

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
            if self.heads:
                k, v = (one.expand(-1, -1, -1, self.heads, -1) for one in (k, v))
            q = q * self.scale.to(q.dtype)
            inp = Inputs(query=q, key=k, value=v, attn_bias=bias[0] if bias else self.bias, p=self.p, scale=None)
            return fmha._memory_efficient_attention(inp)  # type: ignore[no-any-return]

    yield Attends
    assert fmha._memory_efficient_attention is refuse  # a trace leaves it as it was


def ran(
    model: nn.Module, shape: tuple[int, ...], *others: Any, gpu: str, dtype: str = "bfloat16"
) -> tuple[set[str], int]:
    """Names of the kernels of both passes, and the FLOP of the forward pass."""
    key = (*shape[:3], 1, shape[4]) if len(shape) == 5 else shape
    inputs = [rk.Input(*one, dtype=dtype) for one in (shape, key, key, *others)]
    graph = rk.trace(model, *inputs, mode="training", optimizer=None)
    assert graph.matrix_flop % 7 == 0
    kernels = [timing.kernel for timing in rk.predict(graph, gpu).timings]
    return {one.algorithm.name for one in kernels if one.cost.gemms}, graph.matrix_flop * 2 // 7


H100, A100 = "nvidia-h100-sxm5-80gb", "nvidia-a100-sxm4-80gb"
SHAPE = (2, 256, 8, 64)
FULL = 2 * 2 * 2 * 8 * 256 * 256 * 64  # two products of 2 batches with 8 heads


def test_xformers_calls_flash_attention_or_cutlass(attend: Any) -> None:
    assert ran(attend(), SHAPE, gpu=H100) == ({"FlashAttention 3"}, FULL)
    assert ran(attend(), SHAPE, gpu=A100) == ({"FlashAttention 2"}, FULL)
    assert ran(attend(dropout=0.1), SHAPE, gpu=H100) == ({"FlashAttention 2"}, FULL)  # which the third has not
    assert ran(attend(), SHAPE, (2, 8, 256, 256), gpu=H100) == ({"memory-efficient"}, FULL)
    assert ran(attend(), SHAPE, gpu=A100, dtype="float32") == ({"memory-efficient"}, FULL)
    causal = FULL // (256 * 256) * (256 * 257 // 2)
    assert ran(attend(LowerTriangularMask()), SHAPE, gpu=A100) == ({"FlashAttention 2"}, causal)
    # 2 groups of 4 heads, each with one head of keys, which is not copied
    assert ran(attend(heads=4), (2, 256, 2, 4, 64), gpu=A100) == ({"FlashAttention 2"}, FULL)


def test_lengths_that_xformers_knows_are_no_assumption(attend: Any) -> None:
    model = attend(BlockDiagonalCausalMask(128, 384, 512))  # sequences of 128, 256 and 128
    _, flop = ran(model, (1, 512, 8, 64), gpu=A100)
    assert flop == 2 * 2 * 8 * (128 * 129 // 2 * 2 + 256 * 257 // 2) * 64
    assert not rk.trace(model, *(rk.Input(1, 512, 8, 64, dtype="bfloat16") for _ in range(3))).assumptions
