"""Rows of a campaign as kernels: what each op launches, in which layout, and what calls find of themselves."""

import numpy as np
import pandas as pd
import pytest
from observed import observe

import rooflinekit as rk
from rooflinekit.calibrate.campaigns.counted import counted
from rooflinekit.calibrate.campaigns.operators import OPS
from rooflinekit.calibrate.fitting.files import constants_for
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import Math
from rooflinekit.kernels.algorithms import SCALED
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.timing.machine import Machine

AMPERE = "nvidia-rtx-a6000"


def launched(op: str, dtype: str, gpu: str = "", **sizes: float) -> tuple[Kernel, ...]:
    """The kernels of one row."""
    device = rk.load_device(gpu) if gpu else None
    (group,) = counted(op, pd.DataFrame([{"op": op, "dtype": dtype, **sizes}]), device)
    return group.kernels


def costs(op: str, dtype: str, **sizes: float) -> list[Cost]:
    return [kernel.cost for kernel in launched(op, dtype, **sizes)]


def found(kernel: Kernel) -> list[tuple[int, int, bool]]:
    """Bytes, distance, and whether of the call before."""
    return [(part.bytes, part.distance, part.cyclic) for part in kernel.recent]


# --- many rows at once ------------------------------------------------------------------------------------------------


def table(op: str) -> pd.DataFrame:
    """Eight rows of random sizes, aligned and not, with and without what is optional."""
    random, about = np.random.default_rng(0), OPS[op]
    most = {"r": 7, "s": 7, "b": 20, "heads": 8, "kv_heads": 8}
    rows = {name: random.integers(1, most.get(name, 3000) + 1, 8) for name in about.needed}
    rows |= {name: random.integers(0, 3, 8) for name in about.optional}
    if about.family == "convolution":
        rows |= {"c_in": 2 * rows["c_in"], "c_out": 2 * rows["c_out"], "b": rows["b"] // 4 + 1}
        rows |= {"h": rows["h"] % 90 + 20, "w": rows["w"] % 90 + 20}
        rows |= {"depth": np.repeat([0, 9], [5, 3]), "kernel_depth": np.array([0, 0, 0, 0, 0, 1, 3, 3])}
    if "heads" in rows:
        rows |= {"heads": rows["heads"] * rows["kv_heads"], "s": np.where(np.arange(8) % 3, rows["t"], 1)}
        rows |= {"t": rows["s"] + random.integers(0, 2, 8) * rows["t"]}
    return pd.DataFrame({"op": op, "dtype": "fp8" if op == "mm_quantized" else "fp16", **rows, "seconds": 1.0})


@pytest.mark.parametrize("op", list(OPS))
@pytest.mark.parametrize("gpu", ["nvidia-b200-sxm-180gb", "amd-mi100"])
def test_rows_that_are_counted_together_are_as_each_alone(op: str, gpu: str) -> None:
    if op in ("mm_quantized", "mm_nvfp4") and gpu == "amd-mi100":
        pytest.skip("it has no units for them")
    device, rows = rk.load_device(gpu), table(op)
    machine = Machine.of(device, constants_for(device))
    together = observe(gpu, "lab", op, "profiler", rows).predict(machine, {})
    alone = [observe(gpu, "lab", op, "profiler", rows[i : i + 1]).predict(machine, {})[0] for i in range(len(rows))]
    assert together == pytest.approx(alone, rel=1e-9)


def test_numbers_that_columns_do_not_hold_are_counted_one_by_one() -> None:
    # m · k of the first and n of the second are beyond 2⁶² together
    rows = pd.DataFrame({"op": "mm", "dtype": "fp16", "m": [2**30, 8], "n": [8, 2**30], "k": [2**30, 8]})
    assert sorted(int(place) for group in counted("mm", rows) for place in group.rows) == [0, 1]


def test_other_columns_of_a_table_are_none_of_its_sizes() -> None:
    sizes = {"rows": 2, "cols": 3}
    assert costs("sum", "fp32", **sizes, share=float("inf")) == costs("sum", "fp32", **sizes)


# --- which kernels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16"])
def test_products_in_the_format_of_the_row(dtype: str) -> None:
    (kernel,) = launched("linear", dtype, m=6, n=5, k=4)
    assert kernel.math is Math(dtype)
    # 6·5·4 multiply-adds, a bias to 30 results; 24 + 20 + 5 numbers in
    size = 4 if "32" in dtype else 2
    gemms = (Gemm(m=6, n=5, k=4),)
    assert kernel.cost == Cost(gemms=gemms, vector_flop=30, read_bytes=49 * size, write_bytes=30 * size)


def test_a_product_without_a_batch_is_one() -> None:
    rows = pd.DataFrame({"op": "mm", "dtype": "fp32", "b": [np.nan, 3.0], "m": 7, "n": 5, "k": 2})
    one, three = counted("mm", rows)
    assert (one.kernels[0].cost.matrix_flop, three.kernels[0].cost.matrix_flop) == (2 * 70, 3 * 2 * 70)


def test_products_of_8_bits_are_written_in_16() -> None:
    # 2·8·4·16 FLOP; 8·16 + 16·4 bytes; 2·8·4
    (kernel,) = launched("mm", "fp8", m=8, n=4, k=16)
    assert (kernel.math, kernel.cost.matrix_flop, kernel.cost.read_bytes, kernel.cost.write_bytes) == (
        Math.FP8, 1024, 192, 64,
    )  # fmt: skip


def test_a_quantized_product_is_three_kernels() -> None:
    # [8, 16] in 16 bits: the largest magnitude (2 an element) reads 256 B; the scaling (1) reads them again and writes
    # 128; the product as above
    largest, scaled, product = launched("mm_quantized", "fp8", m=8, n=4, k=16)
    assert largest.cost == Cost(vector_flop=256, read_bytes=256)
    assert scaled.cost == Cost(vector_flop=128, read_bytes=256, write_bytes=128)
    assert product.cost == Cost(gemms=(Gemm(m=8, n=4, k=16),), read_bytes=192, write_bytes=64)
    # the input was written by the kernel before
    assert [found(one) for one in (largest, scaled, product)] == [[(256, 0, False)], [(256, 0, False)], []]
    assert product.algorithm == SCALED


@pytest.mark.parametrize(
    ("op", "read"),
    [
        # [4, 256] of 2 bytes; [6, 256] numbers of 1 byte and 6 scales of 2, or of half a byte and 2 scales a row
        ("mm_int8", 2048 + 1536 + 12),
        ("mm_int4", 2048 + 768 + 24),
    ],
)
def test_packed_weights(op: str, read: int) -> None:
    assert [(cost.read_bytes, cost.write_bytes) for cost in costs(op, "bf16", m=4, n=6, k=256)] == [(read, 48)]


def test_a_product_of_4_bits() -> None:
    # [4, 32] of 2 bytes become 4·16; [6, 32] of half a byte with a scale of 1 byte for 16 numbers: 96 + 12
    found = [(cost.read_bytes, cost.write_bytes) for cost in costs("mm_nvfp4", "bf16", m=4, n=6, k=32)]
    assert found == [(256, 64), (64 + 96 + 12, 48)]


def test_quantization_takes_a_block_a_row() -> None:
    # of 5000 elements 256 threads load 16 each, 4096, and then the rest; all 3 · 5000 · 3 bytes pass through blocks
    (kernel,) = launched("quantize", "bf16", rows=3, cols=5000)
    assert (kernel.blocks.count, kernel.blocks.loads, kernel.blocks.bytes) == (3, 2, 45000)
    assert (kernel.cost.read_bytes, kernel.cost.write_bytes) == (30000, 15000)


@pytest.mark.parametrize(
    ("op", "accesses", "rows", "read"),
    [
        # of 24 elements: a row is read twice, and the gain is loaded beside each
        ("llm_norm", 72, 4, 48),
        ("llm_rope", 48, 4, 48),  # cosine or sine beside each
        ("llm_act", 48, 4, 96),  # gate and input
        ("llm_gelu", 24, 0, 48),  # whose blocks take elements of any row
        ("llm_add", 0, 0, 96),  # PyTorch's kernel, which loads several at once
    ],
)
def test_kernels_of_serving_libraries_load_one_element_at_a_time(op: str, accesses: int, rows: int, read: int) -> None:
    (kernel,) = launched(op, "fp16", rows=4, cols=6)
    assert (kernel.accesses, kernel.rows.count, kernel.cost.read_bytes, kernel.cost.write_bytes) == (
        accesses, rows, read, 48,
    )  # fmt: skip
    # one tensor of 48 B was written by the kernel before
    assert found(kernel) == [(48, 0, False)]


SMALL = {"b": 2, "c_in": 4, "c_out": 5, "h": 8, "w": 8, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}


@pytest.mark.parametrize(
    ("op", "before", "after"),
    [
        # image [2, 4, 8, 8], result [2, 5, 8, 8], weight [5, 4, 3, 3] of 2 bytes: 1024, 1280 and 360 B
        ("conv_fwd", [1024, 360], [1280]),
        ("conv_bwd_data", [1280, 360], [1024]),
        ("conv_bwd_weight", [1280, 1024], [360]),
    ],
)
def test_channels_first_are_copied_for_a_matrix_engine(op: str, before: list[int], after: list[int]) -> None:
    kernels = launched(op, "bf16", AMPERE, **SMALL)
    place = next(i for i, kernel in enumerate(kernels) if kernel.cost.gemms)
    copies = [kernel.cost.read_bytes for kernel in kernels if "channels last" in kernel.cost.label]
    assert copies[:place] == before
    assert [k.cost.read_bytes for k in kernels[place + 1 :] if "channels last" in k.cost.label] == after
    last = launched(op, "bf16", AMPERE, **SMALL, channels_last=1)
    assert not any("channels last" in kernel.cost.label for kernel in last)


def test_sizes_of_a_volume() -> None:
    # windows of 3·3·3 on 6·6·6, stride 2 and padding 1: 3·3·3 results
    sizes = dict.fromkeys(("depth", "h", "w"), 6) | dict.fromkeys(("kernel_depth", "r", "s"), 3)
    sizes |= {f"{what}_{side}": n for what, n in (("pad", 1), ("stride", 2)) for side in ("depth", "h", "w")}
    (kernel,) = launched("conv_fwd", "fp32", b=2, c_in=8, c_out=5, **sizes)
    assert kernel.cost.gemms == (Gemm(m=2 * 27, n=5, k=8 * 27),)


def test_a_call_of_attention_fills_the_cache_first() -> None:
    # 2·3 new tokens of 2·2 heads of keys and values, of 16 numbers of 2 bytes
    sizes = {"b": 2, "s": 3, "t": 3, "heads": 4, "kv_heads": 2, "d": 16, "causal": 1, "copies": 1}
    put, *beside, attention = launched("attention_call", "bf16", **sizes)
    assert [one.cost.bytes for one in beside] == [0, 0, 0]
    assert (put.cost.read_bytes, put.cost.write_bytes, found(put)) == (768, 768, [(768, 0, False)])
    # queries and results of 768 bytes each, keys and values of 384: left by the call before, and the put since
    assert found(attention) == [(2 * 768 + 2 * 384, 2 * 768, True)]


@pytest.mark.parametrize(("kind", "read"), [("fp8", 2 * 100 * 16 + 64), ("bf16", 2 * 2 * 100 * 16 + 64)])
def test_keys_in_8_bits(kind: str, read: int) -> None:
    # keys and values 2·100·16 numbers, queries 2·16 of 2 bytes
    sizes = {"b": 1, "s": 1, "t": 100, "heads": 2, "kv_heads": 1, "d": 16}
    assert [cost.read_bytes for cost in costs("attention", "bf16", **sizes, kv_dtype=kind)] == [read]


# --- what calls find of themselves ------------------------------------------------------------------------------------


def test_copies_of_a_weight_are_gone_through_in_turn() -> None:
    # 96 B of the left side, 240 of each weight, 160 of the result: since the last time 400, 256 and 2 · 240, 336
    (kernel,) = launched("mm", "fp32", m=4, n=10, k=6, copies=3)
    assert found(kernel) == [(96, 400, True), (240, 96 + 160 + 2 * 240, True), (160, 336, True)]
    largest, *_ = launched("mm_quantized", "fp8", m=8, n=4, k=16, copies=3)
    assert found(largest) == [(256, 64 + 64, False)]  # the product of the round before has passed its weight and result


@pytest.mark.parametrize(("copies", "again"), [(0, []), (1, [(756, 0, True)]), (2, [])])
def test_one_set_of_tensors_is_there_again(copies: int, again: list[tuple[int, int, bool]]) -> None:
    # 63 numbers of 4 bytes, two in and one out
    (kernel,) = launched("add", "fp32", rows=7, cols=9, copies=copies)
    assert found(kernel) == again


def test_a_set_that_stays_was_touched_one_pass_before() -> None:
    rows = pd.DataFrame({"op": "copy", "dtype": "fp32", "rows": 1, "cols": [4, 8, 16], "warm": [0, 1, np.nan]})
    warm = {int(row): found(group.kernels[0]) for group in counted("copy", rows) for row in group.rows}
    assert warm.pop(1) == [(64, 0, True)]
    assert warm == {0: [], 2: []}


# --- whose residuals they are -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "dtype", "gpu", "name"),
    [
        ("mm", "fp16", AMPERE, "product"),
        ("mm", "tf32", AMPERE, "tf32 product"),
        ("bmm", "fp32", AMPERE, "fp32 batched product"),
        ("mm_quantized", "fp8", AMPERE, "quantized product"),
        ("mm_nvfp4", "bf16", AMPERE, "four-bit product"),
        ("mm_int4", "bf16", AMPERE, "packed product"),
        ("softmax", "fp16", AMPERE, "softmax"),
        ("quantize", "fp16", AMPERE, "serving quantization"),
        ("llm_act", "fp16", AMPERE, "serving activation"),
        ("conv_bwd_weight", "fp16", AMPERE, "convolution weight gradient"),
        ("conv_fwd", "fp32", "amd-mi100", "convolution by MIOpen"),
    ],
)
def test_families_are_those_of_predictions(op: str, dtype: str, gpu: str, name: str) -> None:
    sizes = {**dict.fromkeys(OPS[op].needed, 64), **(SMALL if op.startswith("conv") else {})}
    (group,) = counted(op, pd.DataFrame([{"op": op, "dtype": dtype, **sizes}]), rk.load_device(gpu))
    assert group.residuals == name


def test_a_softmax_by_the_release_that_was_measured() -> None:
    rows = pd.DataFrame([{"op": "softmax", "dtype": "fp32", "rows": 10, "cols": 2048}])
    threads = {like: counted("softmax", rows, like=like)[0].kernels[-1].rows.threads for like in (Release(2, 1), None)}
    # PyTorch 2.1's block loads half of 512 times 16 bytes at once
    assert threads == {Release(2, 1): 256, None: 1024}
