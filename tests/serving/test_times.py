"""Times of steps: against the path that the constants are fitted by, against whole graphs, and laws."""

import math
from itertools import pairwise
from typing import Literal

import numpy as np
import pandas as pd
import pytest

import rooflinekit as rk
from rooflinekit.calibrate.campaigns.counted import counted
from rooflinekit.calibrate.fitting.files import constants_for
from rooflinekit.errors import InputError
from rooflinekit.ir.op import Family, Op
from rooflinekit.kernels.eager import plain_kernels
from rooflinekit.serving.settings import captured
from rooflinekit.serving.step_times import EXPERT_CALL_S, Chunk, StepTimes
from rooflinekit.step.execution import Execution
from rooflinekit.timing.kernel_batch import work_of
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.roofline import time_work

SMALL = rk.Decoder(name="small", layers=6, hidden=1024, heads=16, kv_heads=4, head_dim=64, ffn=4096, vocab=32000)
LARGE = SMALL.with_changes(name="large", hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336)
GPUS = ("nvidia-h100-sxm5-80gb", "nvidia-a100-sxm4-80gb", "nvidia-l4")
MIXED = SMALL.with_changes(experts=8, experts_per_token=2, dense_layers=3, dense_ffn=512)


def machine_of(name: str) -> Machine:
    device = rk.load_device(name)
    return Machine.of(device, constants_for(device))


def seconds_of(graph: rk.Graph, kind: str, machine: Machine) -> float:
    """Of the first op of a kind, on its own."""
    priced = next(p for p in graph.priced if p.op.kind == kind)
    assert isinstance(priced.op, Op)
    return float(time_work(work_of(plain_kernels(priced, None)), machine).total_s.sum())


@pytest.mark.parametrize("gpu", GPUS[:2])
@pytest.mark.parametrize(("b", "s", "t"), [(1, 1, 4000), (64, 1, 1500), (2, 1000, 1000), (1, 4096, 4096)])
def test_attention_takes_what_its_calibration_predicts(gpu: str, b: int, s: int, t: int) -> None:
    machine = machine_of(gpu)
    row = {"dtype": "bf16", "b": b, "s": s, "t": t, "heads": 32, "kv_heads": 8, "d": 128, "causal": 1}
    [measured] = counted("attention_encoder", pd.DataFrame([{"op": "attention_encoder", **row}]))
    graph = LARGE.decode().at(batch=b, context=t) if s == 1 else LARGE.prefill().at(batch=b, seq=s)
    expected = float(time_work(work_of(measured.kernels), machine).total_s.sum())
    assert seconds_of(graph, "serving.paged_attention", machine) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("op", "dtype", "weights", "kind"),
    [
        ("mm", "bf16", "bf16", "aten.mm"),
        ("mm_quantized", "fp8", "fp8", "serving.scaled_mm"),
        ("mm_int4", "bf16", "int4", "serving.weight_only_mm"),
        ("mm_int8", "bf16", "int8", "serving.weight_only_mm"),
        ("mm_nvfp4", "bf16", "nvfp4", "serving.scaled_mm"),
    ],
)
@pytest.mark.parametrize("m", [1, 64, 3000])
def test_products_take_what_their_calibration_predicts(op: str, dtype: str, weights: str, kind: str, m: int) -> None:
    machine = machine_of("nvidia-b200-sxm-180gb")
    [measured] = counted(op, pd.DataFrame([{"op": op, "dtype": dtype, "m": m, "n": 6144, "k": 4096}]))
    graph = LARGE.decode(weights=weights).at(batch=m, context=10)
    expected = float(time_work(work_of(measured.kernels[-1:]), machine).total_s[0])
    assert seconds_of(graph, kind, machine) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("decoder", [SMALL, SMALL.with_changes(window=64, windowed_layers=4), MIXED],
                         ids=["full", "window", "dense first"])  # fmt: skip
def test_a_layer_stands_for_its_like(decoder: rk.Decoder) -> None:
    machine = machine_of(GPUS[0])
    times = StepTimes(decoder=decoder, machine=machine)
    for batch, context in ((1, 128), (32, 1024)):
        whole = rk.predict(
            decoder.decode(), GPUS[0], batch=batch, context=context,
            execution=Execution(backend="cuda-graph", sync="none"),
        )  # fmt: skip
        assert times.decode(batch, context) == pytest.approx(whole.gpu_s, rel=2e-3)


@pytest.mark.parametrize("gpu", GPUS)
def test_decoding_takes_longer_for_more(gpu: str) -> None:
    times = StepTimes(decoder=LARGE, machine=machine_of(gpu))
    for batches in pairwise((1, 4, 16, 64, 256)):
        assert times.decode(batches[0], 1000) <= times.decode(batches[1], 1000)
    for contexts in pairwise((100, 1000, 1001, 5000, 60_000)):
        for batch in (1, 32):
            assert times.decode(batch, contexts[0]) <= times.decode(batch, contexts[1])
    both_s = times.step([Chunk(0, 512)] * 2, 8, 1000)
    assert both_s > max(times.step([Chunk(0, 512)] * 2, 0, 0), times.decode(8, 1000))


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("beside", [0, 8])
def test_parts_of_a_prompt(gpu: str, beside: int) -> None:
    times = StepTimes(decoder=LARGE, machine=machine_of(gpu))
    parts = [times.step([Chunk(0, 512 * n)], beside, 1000) for n in range(1, 18)]
    assert parts == sorted(parts)
    # two halves read the weights twice, and the attention of the whole once
    first, second = (times.step([Chunk(start, 2048)], beside, 1000) for start in (0, 2048))
    assert parts[7] <= first + second <= parts[7] + 2 * times.decode(8, 1000)
    # the second half sees the first
    assert first < second <= 1.1 * first


def test_sequences_that_go_on_use_adapters_of_their_own_beside_a_prompt() -> None:
    times = StepTimes(decoder=LARGE, machine=machine_of(GPUS[0]), adapters=rk.Adapters(number=32))
    whole, _ = times.parts("mixed", "serving.paged_attention", prompts=1, seq=64, batch=128, context=1024)
    assert times.step([Chunk(0, 64)], 128, 1024) == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize("gpu", GPUS)
def test_fewer_bits_are_not_slower_where_memory_limits(gpu: str) -> None:
    machine = machine_of(gpu)
    bf16, int8, int4 = (
        StepTimes(decoder=LARGE, machine=machine, weights=weights).decode(1, 500)
        for weights in ("bf16", "int8", "int4")
    )
    assert int4 <= int8 <= bf16
    small, large = (StepTimes(decoder=LARGE, machine=machine, kv=kv).decode(64, 8000) for kv in ("fp8", "bf16"))
    assert small < large


def test_two_sums_a_layer() -> None:
    machine = machine_of(GPUS[0])

    def decode_s(collective: float) -> float:
        return StepTimes(decoder=LARGE, machine=machine, tp=2, collective_s=lambda size, gpus: collective).decode(
            8, 500
        )

    assert decode_s(1e-3) - decode_s(0.0) == pytest.approx(2 * LARGE.layers * 1e-3)
    assert decode_s(0.0) < StepTimes(decoder=LARGE, machine=machine).decode(8, 500)


def test_heads_that_share_keys_read_them_from_the_cache_where_each_is_by_itself() -> None:
    machine = machine_of(GPUS[0])
    together, apart = (StepTimes(decoder=LARGE, machine=machine, heads=heads) for heads in ("together", "apart"))
    assert apart.prefill_s(2, 512) == together.prefill_s(2, 512)
    shared = LARGE.heads // LARGE.kv_heads
    # keys and values of 64 sequences of 4096 tokens, 2 bytes, and 64 queries: once for each head that shares them
    layer = 64 * (2 * LARGE.kv_heads * 4096 + LARGE.heads) * LARGE.head_dim * 2
    timing = next(t for t in together.timings("decode", batch=64, context=4096) if t.kernel.family is Family.ATTENTION)
    more = max(0.0, shared * layer / machine.l2_bandwidth - max(timing.memory_s, timing.compute_s))
    assert more > 0
    assert apart.decode(64, 4096) - together.decode(64, 4096) == pytest.approx(LARGE.layers * more)
    alone = LARGE.with_changes(kv_heads=LARGE.heads)
    found = [StepTimes(decoder=alone, machine=machine, heads=way).decode(8, 512) for way in ("together", "apart")]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("heads", "token_cycles"),
    [
        # 16 of the 128 numbers of a head a thread group: a block of 256 threads loads 8192 numbers of keys at once, or
        # 16384 of values, and waits 900 cycles for them: 900 · (128 / 8192 + 128 / 16384)
        ("threads", 21.09375),
        # 128 rows of a tile over a token's keys and values: 4 · 128 · 128 FLOP at most 2048 · attention_share a clock
        ("tiles", 32.0),
    ],
)
def test_a_block_by_itself_takes_an_sm_and_as_long_for_one_sequence_as_for_all_that_fill_the_gpu_once(
    heads: Literal["threads", "tiles"], token_cycles: float
) -> None:
    machine = machine_of("nvidia-h100-sxm5-80gb")
    times = StepTimes(decoder=LARGE, machine=machine, heads=heads)
    token_cycles /= machine.values["attention_share"] if heads == "tiles" else 1.0
    grows = {}
    for batch in (1, 132 // LARGE.heads, 132 // LARGE.heads + 1):
        near, far = (times.parts("decode", "serving.paged_attention", batch=batch, context=n)[1] for n in (8192, 16384))
        grows[batch] = (far - near) / 8192 / LARGE.layers * machine.clock
    assert list(grows.values())[:2] == pytest.approx([token_cycles] * 2, rel=0.02)
    assert list(grows.values())[2] == pytest.approx(2 * token_cycles, rel=0.02)
    assert times.prefill_s(2, 512) == StepTimes(decoder=LARGE, machine=machine).prefill_s(2, 512)


def test_xqa_reads_for_all_heads_that_share_where_its_blocks_fill_a_quarter_of_the_gpu() -> None:
    machine = machine_of("nvidia-h100-sxm5-80gb")
    eight = LARGE.with_changes(heads=32, kv_heads=4)
    xqa, together, threads = (
        StepTimes(decoder=eight, machine=machine, heads=heads) for heads in ("xqa", "together", "threads")
    )
    # 4 heads of keys: 8 sequences have 32 blocks of 132 SMs, 9 have 36
    assert xqa.parts("decode", "serving.paged_attention", batch=8, context=4096)[1] == pytest.approx(
        threads.parts("decode", "serving.paged_attention", batch=8, context=4096)[1]
    )
    assert xqa.decode(16, 4096) == together.decode(16, 4096)
    four = eight.with_changes(kv_heads=8)  # for which no kernel is compiled
    found = [StepTimes(decoder=four, machine=machine, heads=heads).decode(64, 4096) for heads in ("xqa", "threads")]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("release", "gpu", "call_s"),
    [
        ("tensorrt-llm:1.0", "nvidia-h100-sxm5-80gb", 8e-6),
        ("tensorrt-llm:1.0", "nvidia-b200-sxm-180gb", 0.0),
        ("vllm:0.12", "nvidia-a100-sxm4-80gb", 14e-6),
        ("vllm:0.6", "nvidia-h100-sxm5-80gb", 14e-6),  # FlashAttention 2 until 0.8
        ("vllm:0.12", "nvidia-h100-sxm5-80gb", 0.0),
        ("sglang:0.5", "nvidia-a100-sxm4-80gb", 0.0),
    ],
)
def test_a_decoding_call_takes_more_where_blocks_share_a_sequence(release: str, gpu: str, call_s: float) -> None:
    def more_s(kv: str = "bf16", kv_heads: int = LARGE.kv_heads) -> float:
        decoder = LARGE.with_changes(kv_heads=kv_heads)
        times = StepTimes(decoder=decoder, machine=machine_of(gpu), release=release, kv=kv)
        timings = times.timings("decode", batch=32, context=4096)
        timing = next(t for t in timings if t.kernel.family is Family.ATTENTION)
        return times.step_part_s(timing) - timing.total_s

    assert more_s() == pytest.approx(call_s)
    assert more_s(kv="fp8") == more_s(kv_heads=LARGE.heads) == 0


def test_a_layer_with_experts_takes_vllm_more() -> None:
    decoder = rk.Decoder.from_config("qwen3-30b-a3b")
    machine = machine_of("nvidia-h100-sxm5-80gb")
    vllm, plain = (StepTimes(decoder=decoder, machine=machine, release=name) for name in ("vllm:0.12", ""))
    more_s = vllm.decode(8, 1024) - plain.decode(8, 1024)
    assert more_s == pytest.approx(decoder.layers * decoder.experts * EXPERT_CALL_S["vllm"])
    # in fewer bits its grouped products are slower besides, the more so the more there is to multiply
    few = [StepTimes(decoder=decoder, machine=machine, weights="fp8-block", release=n) for n in ("vllm:0.12", "")]
    slower = [times.prefill_s(1, 4096) - plain.prefill_s(1, 4096) for times, plain in ((vllm, plain), few)]
    assert slower[0] == pytest.approx(more_s)
    assert slower[1] > 5 * more_s


@pytest.mark.parametrize(
    ("gpu", "math"),
    [("nvidia-h100-sxm5-80gb", "bf16"), ("nvidia-b200-sxm-180gb", "fp8"), ("nvidia-rtx-5090", "fp8"),
     ("amd-mi300x", "bf16"), ("amd-mi355x", "fp8")],
)  # fmt: skip
def test_blocks_of_four_bits_are_multiplied_as_they_are_where_tensor_cores_take_them(gpu: str, math: str) -> None:
    decoder = rk.Decoder.from_config("gpt-oss-20b")
    times = StepTimes(decoder=decoder, machine=machine_of(gpu), weights="mxfp4")
    timings = times.timings("decode", batch=4, context=64)
    grouped = [one.kernel for one in timings if one.kernel.kind == "serving.grouped_mm"]
    assert {kernel.math.value for kernel in grouped} == {math}
    assert all((kernel.cost.vector_flop == 0) == (math == "fp8") for kernel in grouped)  # else they are unpacked
    hidden = {p.op.inputs[0].shape[2] for p in decoder.decode(weights="mxfp4").at(batch=4, context=64).priced
              if p.op.kind == "serving.grouped_mm"}  # fmt: skip
    assert {gemm.k for kernel in grouped for gemm in kernel.cost.gemms} == hidden


def test_the_collective_is_told_its_bytes() -> None:
    asked = set()

    def link(size_bytes: float, gpus: int) -> float:
        asked.add((size_bytes, gpus))
        return size_bytes / 300e9

    StepTimes(decoder=LARGE, machine=machine_of(GPUS[0]), tp=4, collective_s=link).decode(8, 512)
    assert asked == {(8 * 4096 * 2, 4)}  # tokens of 4096 numbers, 2 bytes each


def test_several_gpus_take_a_link() -> None:
    with pytest.raises(InputError, match=r"^tp 2: the GPUs sum their results over a link.* name a cluster"):
        StepTimes(decoder=LARGE, machine=machine_of(GPUS[0]), tp=2)


def test_captured_sizes_hold_the_batch() -> None:
    assert all(captured(n) >= n and captured(n) < n + 8 for n in range(1, 300))


def test_open_sizes_work_as_in_any_graph() -> None:
    table = rk.sweep(LARGE.decode(), gpus=["nvidia-l4"], batch=[1, 8], context=[1024])
    assert list(table["context"]) == [1024, 1024]
    assert np.all(np.diff(table["total_s"]) > 0)
    assert rk.intensity(LARGE.decode()).formula.free_symbols == set(LARGE.decode().matrix_flop.free_symbols)
    assert math.isfinite(float(LARGE.decode().counts(batch=[1, 2], context=100)["flop"].sum()))
