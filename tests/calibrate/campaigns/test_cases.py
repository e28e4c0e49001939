"""Counts of measured ops held against the rules, which count the same op in a trace; serving kernels by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.calibrate.campaigns.cases import candidates
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.tensor import Math
from rooflinekit.model import cudnn, miopen
from rooflinekit.model.algorithms import ATTENTION, PRODUCT, SCALED, WINOGRAD, Algorithm
from rooflinekit.model.columns import work_of
from rooflinekit.model.kernel import Kernel
from rooflinekit.model.kernels import issues_of
from rooflinekit.model.libraries import generation_of, rated_as
from rooflinekit.model.work import Work

TORCH_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def algorithms(work: Work) -> list[Algorithm]:
    """Of its products, one by one."""
    return [work.products.algorithms[i] for i in work.products.algorithm]


class Counts(NamedTuple):
    """Of one kernel."""

    matrix: float  # FLOP
    vector: float
    special: float
    read: float  # bytes
    write: float


def counted(op: str, dtype: str = "fp32", *, algorithm: int = 0, **sizes: object) -> list[Counts]:
    """What the case of an op counts, a kernel at a time, in one row of a campaign."""
    return [_counts(work) for work in works(op, dtype, algorithm=algorithm, **sizes)]


def works(op: str, dtype: str = "fp32", *, algorithm: int = 0, **sizes: object) -> tuple[Work, ...]:
    rows = pd.DataFrame([{"op": op, "dtype": dtype, **sizes}])
    kernels, possible = candidates(op, rows)[algorithm]
    assert possible is None or possible.all()
    return kernels


def _counts(work: Work) -> Counts:
    (vector,), (special,) = work.vector_flop, work.special_flop
    (read,), (write,) = work.read_bytes, work.write_bytes
    return Counts(float(work.products.flop.sum()), vector, special, read, write)


def _counts_of(cost: Cost) -> Counts:
    return Counts(
        *map(float, (cost.matrix_flop, cost.vector_flop, cost.special_flop, cost.read_bytes, cost.write_bytes))
    )


def kernels(
    model: Callable[..., object], *shapes: tuple[int, ...], dtype: str = "fp32", **options: object
) -> list[Kernel]:
    inputs = [rk.Input(*shape, dtype=TORCH_NAMES[dtype]) for shape in shapes]
    graph = rk.trace(model, *inputs, strict=True, **options)
    return [kernel for issue in issues_of(graph) for kernel in issue.kernels]


def traced(model: Callable[..., object], *shapes: tuple[int, ...], dtype: str = "fp32") -> list[Counts]:
    """What the rules count, a kernel at a time."""
    return [_counts_of(kernel.cost) for kernel in kernels(model, *shapes, dtype=dtype)]


def gemms(work: Work) -> list[tuple[float, ...]]:
    p = work.products
    return list(zip(p.batch, p.m, p.n, p.k, strict=True))


def _shape(gemm: Gemm) -> tuple[float, ...]:
    return (gemm.batch, gemm.m, gemm.n, gemm.k)


# --- products -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("m", "n", "k"), [(6, 5, 4), (1, 1, 1), (512, 3840, 960)])
def test_linear_with_bias(dtype: str, m: int, n: int, k: int) -> None:
    assert counted("linear", dtype, m=m, n=n, k=k) == traced(functional.linear, (m, k), (n, k), (n,), dtype=dtype)
    (work,) = works("linear", dtype, m=m, n=n, k=k)
    assert gemms(work) == [(1, m, n, k)]
    assert algorithms(work) == [PRODUCT]
    assert work.math == (Math(dtype),)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_products(dtype: str) -> None:
    assert counted("mm", dtype, m=7, n=5, k=3) == traced(torch.mm, (7, 3), (3, 5), dtype=dtype)
    assert counted("bmm", dtype, b=4, m=7, n=5, k=3) == traced(torch.bmm, (4, 7, 3), (4, 3, 5), dtype=dtype)


def test_a_product_without_a_batch_is_one() -> None:
    rows = pd.DataFrame({"op": ["mm", "mm"], "dtype": ["fp32"] * 2, "b": [np.nan, 3.0], "m": 7, "n": 5, "k": 2})
    (((work,), _),) = candidates("mm", rows)
    assert work.products.batch.tolist() == [1.0, 3.0]


def test_products_of_8_bits_are_written_in_16() -> None:
    # 2·8·4·16 FLOP; 8·16 + 16·4 bytes; 2·8·4
    assert counted("mm", "fp8", m=8, n=4, k=16) == [Counts(1024, 0, 0, 192, 64)]
    assert works("mm", "fp8", m=8, n=4, k=16)[0].math == (Math.FP8,)


def test_a_quantized_product_is_three_kernels() -> None:
    # [8, 16] in 16 bits: the largest magnitude (2 an element) reads 256 B; the scaling (1) reads them again, from the
    # cache, and writes 128; the product as above
    found = works("mm_quantized", "fp8", m=8, n=4, k=16)
    assert [_counts(work) for work in found] == [
        Counts(0, 256, 0, 256, 0),
        Counts(0, 128, 0, 256, 128),
        Counts(1024, 0, 0, 192, 64),
    ]
    # the input was written by the kernel before
    assert [work.recent.bytes.tolist() for work in found] == [[256.0], [256.0], []]
    assert [algorithms(work) for work in found] == [[], [], [SCALED]]


def test_quantization() -> None:
    # 12 elements: a multiplication, 2 bytes in, 1 out
    assert counted("quantize", "bf16", rows=3, cols=4) == [Counts(0, 12, 0, 24, 12)]


def test_quantization_takes_a_block_a_row() -> None:
    # of 5000 elements 256 threads load 16 each, 4096, and then the rest; all 3 · 5000 · 3 bytes pass through blocks
    (work,) = works("quantize", "bf16", rows=3, cols=5000)
    assert (work.blocks[0], work.loads[0], work.block_bytes[0]) == (3, 2, 45000)


# --- element-wise -------------------------------------------------------------------------------------------------

ELEMENTWISE: dict[str, Callable[..., object]] = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "addu": lambda x: x + 1.5,
    "mulu": lambda x: x * 1.5,
    "divu": lambda x: x / 1.5,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "pow": torch.pow,
    "powu": lambda x: x**1.5,
}


def _operands(op: str) -> int:
    return 2 if op in ("add", "mul", "div", "pow") else 1


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elementwise(op: str, dtype: str) -> None:
    shapes = [(7, 9)] * _operands(op)
    assert counted(op, dtype, rows=7, cols=9) == traced(ELEMENTWISE[op], *shapes, dtype=dtype)


def test_ops_of_one_table_each_have_their_own_counts() -> None:
    rows = pd.DataFrame({"op": ["add", "relu"], "dtype": ["fp32", "fp16"], "rows": [2, 3], "cols": [4, 5]})
    (((work,), _),) = candidates("add", rows)
    assert work.read_bytes.tolist() == [2 * 4 * 8, 1 * 2 * 15]


# --- rows ---------------------------------------------------------------------------------------------------------


def _rows_of(work: Work) -> dict[str, float]:
    names = ("rows", "columns", "passes", "row_bytes", "threads")
    return {name: float(getattr(work, name)[0]) for name in names}


def _rows_of_kernel(kernel: Kernel) -> dict[str, float]:
    rows = kernel.rows
    return {
        "rows": rows.count,
        "columns": rows.length,
        "passes": rows.passes,
        "row_bytes": rows.held_bytes,
        "threads": rows.threads,
    }


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("cols", [3, 1024, 1025, 5000])
def test_softmax(dtype: str, cols: int) -> None:
    (kernel,) = kernels(lambda x: functional.softmax(x, -1), (9, cols), dtype=dtype)
    (work,) = works("softmax", dtype, rows=9, cols=cols)
    assert _counts(work) == _counts_of(kernel.cost)
    assert _rows_of(work) == _rows_of_kernel(kernel)


@pytest.mark.parametrize("cols", [4, 768, 5000])
def test_layer_norm(cols: int) -> None:
    (kernel,) = kernels(
        lambda x, gain, shift: functional.layer_norm(x, (cols,), gain, shift), (9, cols), (cols,), (cols,)
    )
    (work,) = works("layernorm", rows=9, cols=cols)
    assert _counts(work) == _counts_of(kernel.cost)
    assert _rows_of(work) == _rows_of_kernel(kernel)


def test_layer_norm_in_half_precision_writes_its_statistics_in_fp32() -> None:
    # 9 rows of 16 numbers of 2 bytes, gain and shift; mean and 1/σ of each row in 4 bytes each, as CUDA does. A trace
    # on the CPU has them in 2.
    (here,) = counted("layernorm", "fp16", rows=9, cols=16)
    (there,) = traced(lambda x, g, s: functional.layer_norm(x, (16,), g, s), (9, 16), (16,), (16,), dtype="fp16")
    assert here == Counts(0, 7 * 144, 9, 2 * (144 + 32), 2 * 144 + 8 * 9)
    assert here[:4] == there[:4]
    assert there.write in (here.write, here.write - 4 * 9)


# --- serving libraries, by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "counts", "accesses"),
    [
        # 24 elements of 2 bytes. RMS norm: square, sum, times 1/σ, gain; the row is read twice, and the gain is loaded
        # beside each element
        ("llm_norm", Counts(0, 96, 0, 48, 48), 72),
        # rotary embedding: x·cos + turned x·sin; cosine or sine is loaded beside each element
        ("llm_rope", Counts(0, 72, 0, 48, 48), 48),
        # sum: two reads, by PyTorch's kernel, which loads several at once
        ("llm_add", Counts(0, 24, 0, 96, 48), 0),
    ],
)
def test_serving_kernels(op: str, counts: Counts, accesses: int) -> None:
    (work,) = works(op, "fp16", rows=4, cols=6)
    assert _counts(work) == counts
    assert work.accesses.tolist() == [accesses]
    # one tensor of 48 B was written by the kernel before
    assert work.recent.bytes.tolist() == [48.0]


@pytest.mark.parametrize(("op", "read", "accesses"), [("llm_act", 96, 48), ("llm_gelu", 48, 24)])
def test_traffic_of_serving_activations(op: str, read: float, accesses: int) -> None:
    # a gated activation reads gate and input; both write 24 elements of 2 bytes
    (work,) = works(op, "fp16", rows=4, cols=6)
    assert (work.read_bytes[0], work.write_bytes[0], work.accesses[0]) == (read, 48, accesses)


def test_a_gated_activation_is_silu_and_a_product() -> None:
    (here,) = counted("llm_act", "fp16", rows=4, cols=6)
    silu, gate = traced(lambda x, y: functional.silu(x) * y, (4, 6), (4, 6), dtype="fp16")
    assert (here.vector, here.special) == (silu.vector + gate.vector, silu.special + gate.special)


def test_gelu_of_serving_libraries() -> None:
    assert counted("llm_gelu", "fp16", rows=4, cols=6) == traced(functional.gelu, (4, 6), dtype="fp16")


# --- convolutions -------------------------------------------------------------------------------------------------

#: b, c_in, c_out, h, w, r, s, stride, padding
CONVOLUTIONS = [
    (2, 3, 8, 12, 10, 3, 3, 1, 1),
    (1, 4, 6, 9, 9, 5, 5, 2, 2),
    (3, 8, 4, 7, 7, 1, 1, 1, 0),
    (2, 8, 4, 8, 8, 1, 1, 2, 0),
    (2, 3, 5, 11, 7, 7, 3, 2, 1),
]


def _convolution_sizes(case: tuple[int, ...]) -> dict[str, int]:
    b, c, o, h, w, r, s, stride, pad = case
    sizes = {"b": b, "c_in": c, "c_out": o, "h": h, "w": w, "r": r, "s": s}
    return sizes | {"stride_h": stride, "stride_w": stride, "pad_h": pad, "pad_w": pad}


class Scaled(nn.Module):
    """A convolution without bias whose input needs a gradient."""

    def __init__(self, case: tuple[int, ...], groups: int = 1) -> None:
        super().__init__()
        _, c, o, _, _, r, s, stride, pad = case
        self.factor = nn.Parameter(torch.ones(()))
        self.convolution = nn.Conv2d(c, o, (r, s), stride=stride, padding=pad, bias=False, groups=groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.convolution(x * self.factor)).tanh()


def _convolution_kernel(op: str, case: tuple[int, ...], groups: int = 1) -> Kernel:
    """Of the traced layer: forward, or the gradient of its input or weight."""
    b, c, _, h, w, *_ = case
    label = {"conv_fwd": "", "conv_bwd_data": "input gradient", "conv_bwd_weight": "weight gradient"}[op]
    found = kernels(Scaled(case, groups), (b, c, h, w), mode="training", tf32=False)
    (kernel,) = (k for k in found if "convolution" in k.kind and k.cost.label == label)
    return kernel


def _labelled(work: Work) -> tuple[object, ...]:
    """What an algorithm computes, moves and is launched as."""
    (by,), (engine,), chain = algorithms(work), work.engine, (*work.links, *work.starts, *work.waits)
    return (
        replace(
            by, needs_tensor_cores=False, instead_of_tensor_cores=False, cuda_cores_only=False, generation="", packs=""
        ),
        bool(engine),
        chain,
        tuple(gemms(work)),
        *_counts(work),
    )


def _algorithms(kernel: Kernel, library: str, generation: str = "") -> set[tuple[object, ...]]:
    """Of a traced layer's kernel, in one library, on one generation of GPUs."""
    found = [
        k
        for k in (kernel, *kernel.alternatives)
        if k.algorithm.library in ("", "ATen", library) and k.algorithm.generation in ("", generation)
    ]
    return {_labelled(work_of([k])) for k in found}


@pytest.mark.parametrize("case", [*CONVOLUTIONS, (2, 16, 8, 7, 5, 3, 3, 1, 1), (2, 16, 8, 9, 9, 5, 5, 1, 0)])
@pytest.mark.parametrize("op", ["conv_fwd", "conv_bwd_data", "conv_bwd_weight"])
@pytest.mark.parametrize("gpu", ["nvidia-p4", "amd-mi50", "amd-rx-6800-xt"])
def test_convolutions_are_those_of_a_traced_layer(op: str, case: tuple[int, ...], gpu: str) -> None:
    device = rk.load_device(gpu)
    rows = pd.DataFrame([{"op": op, "dtype": "fp32", **_convolution_sizes(case)}])
    found = [(works, where) for works, where in candidates(op, rows, device) if where is None or where.all()]
    kernel = _convolution_kernel(op, case)
    assert {_labelled(work) for (work,), _ in found} == _algorithms(kernel, rated_as(device), generation_of(device))
    assert _counts(found[0][0][0]) == _counts_of(kernel.cost)


# [2·5·4, 16] products with [16, 8]: 2·4·3 blocks of 2×2 outputs are one of 2×4×4 blocks, as 128 rows
def test_winograd() -> None:
    sizes = _convolution_sizes((2, 16, 8, 7, 5, 3, 3, 1, 1))
    forward = [works("conv_fwd", algorithm=i, **sizes)[0] for i in (1, 2)]
    assert [gemms(work) for work in forward] == [[(1, 128, 128, 16)], [(36, 2 * 2 * 2, 8, 16)]]
    # the smaller writes 16 numbers of 4 bytes for each pair of channels and reads them again, the larger 36, and as
    # many for each of 8 blocks and 16 + 8 channels
    plain = works("conv_fwd", **sizes)[0]
    assert [float(w.read_bytes[0] - plain.read_bytes[0]) for w in forward] == [
        4 * 16 * 16 * 8,
        4 * 36 * (16 * 8 + 8 * 16 + 8 * 8),
    ]
    # of the weight: blocks are what is summed over
    assert gemms(works("conv_bwd_weight", algorithm=1, **sizes)[0]) == [(36, 8, 16, 8)]


@pytest.mark.parametrize(
    ("op", "dtype", "case"),
    [
        ("conv_fwd", "fp32", (1, 4, 4, 9, 9, 3, 3, 2, 1)),  # stride 2
        ("conv_fwd", "fp32", (1, 4, 4, 9, 9, 4, 4, 1, 2)),
        ("conv_bwd_weight", "fp32", (1, 4, 4, 9, 9, 7, 7, 1, 3)),
    ],
)
def test_convolutions_without_winograd(op: str, dtype: str, case: tuple[int, ...]) -> None:
    rows = pd.DataFrame([{"op": op, "dtype": dtype, **_convolution_sizes(case)}])
    assert not any(WINOGRAD in [one.name for one in algorithms(work)] for (work,), _ in candidates(op, rows))


def test_spectra() -> None:
    # 5×5 windows on 60×60 results: tiles of 32 - 4 = 28 along a side, 3·3 of them; 32·17 complex products of 4 real
    # ones; spectra of 9 tiles, 16 channels in and 8 out, and of 16·8 windows, as pairs of 4 bytes
    sizes = _convolution_sizes((1, 16, 8, 60, 60, 5, 5, 1, 2))
    rows = pd.DataFrame([{"op": "conv_fwd", "dtype": "fp32", **sizes}])
    (work,) = next(works for works, _ in candidates("conv_fwd", rows) if algorithms(works[0]) == [cudnn.FOURIER])
    assert gemms(work) == [(4 * 32 * 17, 9, 8, 16)]
    plain = works("conv_fwd", **sizes)[0]
    assert work.write_bytes[0] - plain.write_bytes[0] == 2 * 4 * 32 * 17 * (9 * (16 + 8) + 16 * 8)


def test_windows_of_an_image_are_written_out_one_image_after_the_other() -> None:
    # 3 images of 8·8 results, 4·9 numbers a window, in bf16: 64·36·2 bytes each; products [64, 36] × [36, 6]
    rows = pd.DataFrame([{"op": "conv_fwd", "dtype": "bf16", **_convolution_sizes((3, 4, 6, 8, 8, 3, 3, 1, 1))}])
    found = candidates("conv_fwd", rows, rk.load_device("amd-mi100"))
    (work,) = next(works for works, _ in found if works[0].links[0] == 3)
    assert gemms(work) == [(1, 64, 6, 36)]
    assert work.write_bytes[0] == 2 * 6 * 64 + 64 * 36 * 2
    # two kernels an image, one call of the library of products, and a wait after each image but the last
    assert (work.starts[0], work.calls[0], work.waits[0]) == (6, 3, 2)


def test_three_dimensions() -> None:
    # windows of 3·3·3 on 6·6·6, stride 2 and padding 1: 3·3·3 results
    sizes = dict.fromkeys(("depth", "h", "w"), 6) | dict.fromkeys(("kernel_depth", "r", "s"), 3)
    sizes |= dict.fromkeys(("pad_depth", "pad_h", "pad_w"), 1) | dict.fromkeys(
        ("stride_depth", "stride_h", "stride_w"), 2
    )
    (work,) = works("conv_fwd", b=2, c_in=8, c_out=5, **sizes)
    assert gemms(work) == [(1, 2 * 27, 5, 8 * 27)]
    assert algorithms(work) == [cudnn.WIDE_WINDOW]
    # MIOpen has no such product in 16 bits
    rows = pd.DataFrame([{"op": "conv_fwd", "dtype": "fp16", "b": 2, "c_in": 8, "c_out": 5, **sizes}])
    found = [
        algorithms(works[0])[0]
        for works, where in candidates("conv_fwd", rows, rk.load_device("amd-mi100"))
        if where is None or where.all()
    ]
    assert set(found) == {miopen.UNFOLDED, miopen.NAIVE}


def test_few_channels_are_filled_up_on_an_engine_or_left_to_the_lanes() -> None:
    sizes = {"op": "conv_fwd", "b": 2, "c_in": 3, "c_out": 8, "h": 19, "w": 19, "r": 3, "s": 3, "channels_last": 1}
    ampere = rk.load_device("nvidia-rtx-a6000")

    def product(**changed: object) -> Work:
        found = candidates("conv_fwd", pd.DataFrame([sizes | changed]), ampere)
        return next(works[-1] for works, where in found if where is None or where.all())

    half, single, wide = product(dtype="fp16"), product(dtype="tf32"), product(dtype="tf32", r=11, s=11)
    assert (half.products.padded.tolist(), half.engine.tolist()) == ([pytest.approx(8 / 3)], [True])
    assert (algorithms(single), single.engine.tolist()) == ([cudnn.FORWARD], [False])
    assert (algorithms(wide), wide.engine.tolist()) == ([cudnn.FEW_CHANNELS], [False])


@pytest.mark.parametrize(
    ("op", "before", "after"),
    [
        # image [2, 4, 8, 8], output [2, 5, 8, 8] of 2 bytes: 1024 and 1280 B
        ("conv_fwd", 1024, 1280),
        ("conv_bwd_data", 1280, 1024),
        ("conv_bwd_weight", 1024, 1280),  # both before
    ],
)
def test_the_matrix_engine_wants_channels_last(op: str, before: int, after: int) -> None:
    sizes = _convolution_sizes((2, 4, 5, 8, 8, 3, 3, 1, 1)) | {"op": op, "dtype": "fp16"}
    last, pixel = {"channels_last": 1}, {"r": 1, "s": 1, "pad_h": 0, "pad_w": 0, "channels_last": 0}
    rows = pd.DataFrame([sizes | {"channels_last": 0}, sizes | last, sizes | pixel])
    (three, spread), (one, plain) = candidates(op, rows)
    copies = [(work.read_bytes[0], work.write_bytes[0]) for work in (three[0], three[-1])]
    assert copies == [(before, before), (after, after)]
    assert len(one) == 1  # a pixel that sees one pixel is a product in either layout
    assert (spread.tolist(), plain.tolist()) == ([True, False, False], [False, True, True])


def test_a_weight_of_few_channels_has_no_kernel_on_the_engine() -> None:
    sizes = _convolution_sizes((2, 3, 5, 8, 8, 3, 3, 1, 1)) | {"op": "conv_bwd_weight", "dtype": "fp16"}
    (_, copied), ((work,), plain) = candidates("conv_bwd_weight", pd.DataFrame([sizes | {"channels_last": 0}]))
    assert (copied.tolist(), plain.tolist(), work.engine.tolist()) == ([False], [True], [False])


def test_pixels_that_no_window_sees_are_set_to_0() -> None:
    # image [2, 16, 8, 8] of 4 bytes: 8192 B, once more where windows of 1×1 leave out every second pixel; not with 3×3
    window, pixel = (
        works("conv_bwd_data", **_convolution_sizes((2, 16, 4, 8, 8, side, side, 2, side // 2)))[0] for side in (3, 1)
    )
    assert [float(work.write_bytes[0]) for work in (window, pixel)] == [8192, 2 * 8192]


def test_winograd_is_open_to_the_rows_that_it_can_run() -> None:
    rows = pd.DataFrame(
        [
            {"op": "conv_fwd", "dtype": "fp32", **_convolution_sizes(case)}
            for case in ((1, 4, 4, 9, 9, 3, 3, 1, 1), (1, 4, 4, 9, 9, 3, 3, 2, 1), (1, 4, 4, 9, 9, 1, 1, 1, 0))
        ]
    )
    (_, everywhere), *others = candidates("conv_fwd", rows)
    assert everywhere is None
    assert [possible.tolist() for _, possible in others] == [[True, False, False]] * 2


# --- attention ----------------------------------------------------------------------------------------------------


def _attend(causal: bool, grouped: bool = False) -> Callable[..., object]:
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def _attention_sizes(b: int, s: int, t: int, heads: int, kv_heads: int, d: int, causal: int = 0) -> dict[str, int]:
    return {"b": b, "s": s, "t": t, "heads": heads, "kv_heads": kv_heads, "d": d, "causal": causal}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("b", "s", "heads", "kv_heads", "d"), [(2, 16, 3, 3, 8), (1, 33, 4, 2, 64), (3, 1, 4, 4, 16)])
def test_attention(b: int, s: int, heads: int, kv_heads: int, d: int, causal: bool) -> None:
    shapes = (b, heads, s, d), (b, kv_heads, s, d), (b, kv_heads, s, d)
    (kernel,) = kernels(_attend(causal, heads != kv_heads), *shapes, dtype="bf16")
    assert kernel.kind == "aten._scaled_dot_product_flash_attention"
    (work,) = works("attention", "bf16", **_attention_sizes(b, s, s, heads, kv_heads, d, int(causal)))
    here, there = _counts(work), _counts_of(kernel.cost)
    assert here[:4] == pytest.approx(there[:4], rel=1e-12)
    # PyTorch's writes the logarithm of each row's sum in fp32 and the state of the random numbers, 3 of 8 bytes, beside
    # the output; serving libraries do not
    assert there.write - here.write == 4 * b * heads * s + 24
    assert algorithms(work) == [ATTENTION] * 2


def test_attention_as_two_products() -> None:
    (work,) = works("attention", "fp16", **_attention_sizes(2, 100, 300, 8, 2, 64))
    assert gemms(work) == [(16, 100, 300, 64), (16, 100, 64, 300)]


def test_decoding_works_on_the_queries_that_share_keys_together() -> None:
    # 8 heads over 2 of keys: 2·2 products of 4 queries
    (work,) = works("attention", "fp16", **_attention_sizes(2, 1, 300, 8, 2, 64, 1))
    assert gemms(work) == [(4, 4, 300, 64), (4, 4, 64, 300)]
    # one query sees all keys, causal or not: 2·8 heads · 300 keys · 64 · 2 products · 2 FLOP
    assert work.products.executed.tolist() == [1.0, 1.0]
    assert work.products.flop.sum() == 2 * 8 * 300 * 64 * 4
    # keys and values of 2 heads, 2·2·300·64 numbers each, and 2·8·64 of the query; as many written
    assert work.read_bytes.tolist() == [2 * (2 * 2 * 2 * 300 * 64 + 2 * 8 * 64)]
    assert work.write_bytes.tolist() == [2 * 2 * 8 * 64]


def test_causal_queries_are_the_last_ones() -> None:
    # 2 queries over 4 keys: they see 3 and 4, 7 of 8 pairs
    (work,) = works("attention", "fp16", **_attention_sizes(1, 2, 4, 1, 1, 8, 1))
    assert work.products.executed.tolist() == [0.875, 0.875]
    assert work.vector_flop.tolist() == [28.0]  # 4 · 7 pairs
    assert work.special_flop.tolist() == [23.0]  # 7 exp, 2·8 divisions


def test_keys_in_8_bits() -> None:
    (work,) = works("attention", "bf16", **_attention_sizes(1, 1, 100, 2, 1, 16), kv_dtype="fp8")
    # keys and values 2·100·16 of 1 byte, queries 2·16 of 2 bytes
    assert work.read_bytes.tolist() == [3200 + 64]


@pytest.mark.parametrize(
    ("queries", "keys", "window", "pairs"),
    [
        (4, 4, 2, 7),  # 1 + 2 + 2 + 2
        (4, 4, 1, 4),
        (4, 4, 9, 10),  # wider than there are keys: 1 + 2 + 3 + 4
        (2, 6, 3, 6),  # 3 + 3: both are behind more keys than the window
        (3, 5, 4, 11),  # 3 + 4 + 4
        (4, 4, 0, 10),  # no window
    ],
)
def test_a_sliding_window(queries: int, keys: int, window: int, pairs: int) -> None:
    sizes = _attention_sizes(1, queries, keys, 1, 1, 16, 1)
    (work,) = works("attention", "bf16", **sizes, window=window)
    assert work.products.executed == pytest.approx([pairs / (queries * keys)] * 2)


# --- operators, as a trace has them -----------------------------------------------------------------------------------

MOVED: dict[str, tuple[Callable[..., object], str]] = {
    "sum": (lambda x: x.sum(-1), "fp16"),
    "amax": (lambda x: x.amax(-1), "fp32"),
    "var": (lambda x: x.var(-1), "fp32"),
    "sum_first": (lambda x: x.sum(0), "fp16"),
    "read": (torch.sum, "fp32"),
    "write": (lambda x: x.fill_(1.0), "fp32"),
    "to_fp32": (lambda x: x.float(), "fp16"),
    "to_bf16": (lambda x: x.bfloat16(), "fp32"),
    "to_fp16": (lambda x: x.half(), "fp32"),
    "transpose": (lambda x: x.t().contiguous(), "fp16"),
}


@pytest.mark.parametrize("op", MOVED)
def test_operators_of_one_tensor(op: str) -> None:
    function, dtype = MOVED[op]
    assert counted(op, dtype, rows=7, cols=9) == traced(function, (7, 9), dtype=dtype)


def test_streams_through_several_tensors() -> None:
    assert counted("copy", rows=7, cols=9) == traced(lambda x, y: x.copy_(y), (7, 9), (7, 9))
    # 63 elements: a product and a sum each, two tensors of 4 bytes read, a third written that is there already
    assert counted("triad", rows=7, cols=9) == [Counts(0, 126, 0, 504, 252)]


def test_other_columns_of_a_table_are_none_of_its_sizes() -> None:
    assert counted("sum", rows=2, cols=3, layer="first", share=float("inf")) == counted("sum", rows=2, cols=3)


def test_a_set_that_stays_was_touched_one_pass_before() -> None:
    (cold,), (warm,) = works("triad", rows=7, cols=9), works("triad", rows=7, cols=9, warm=1)
    assert cold.recent.bytes.tolist() == []
    # both inputs and the output, 756 bytes: nothing else has passed
    assert (warm.recent.bytes.tolist(), warm.recent.distance.tolist()) == ([756.0], [0.0])
    assert warm.recent.cyclic.tolist() == [True]
    rows = pd.DataFrame({"op": "copy", "dtype": "fp32", "rows": 1, "cols": [4, 8, 16], "warm": [0, 1, np.nan]})
    (((mixed,), _),) = candidates("copy", rows)
    assert (mixed.recent.kernel.tolist(), mixed.recent.bytes.tolist()) == ([1], [64.0])


@pytest.mark.parametrize("op", ["embedding", "index_select"])
def test_gathers_read_what_is_named(op: str) -> None:
    # 3 indices of 8 bytes, and 3 rows of 5 numbers of 2 bytes in and out, whatever the table holds
    assert counted(op, "fp16", rows=3, cols=5, table=100) == [Counts(0, 0, 0, 54, 30)]


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_backward(causal: int) -> None:
    b, s, h, d = 2, 6, 3, 8
    (work,) = works("attention_bwd", "fp16", b=b, s=s, t=s, heads=h, kv_heads=h, d=d, causal=causal)
    assert algorithms(work) == [ATTENTION] * 5
    pairs = b * h * (s * (s + 1) // 2 if causal else s * s)
    # five products of 2·pairs·d; 5 operations and an exp a pair, 2 an output; gradient, q, k, v, output of 2 bytes and
    # the sums of 4 in, three gradients out
    tensor = b * h * s * d
    read, write = 2 * 5 * tensor + 4 * b * h * s, 3 * 2 * tensor
    expected = (5 * 2 * pairs * d, 5 * pairs + 2 * tensor, pairs, read, write)
    assert _counts(work) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("groups", "outputs"), [(2, 12), (6, 6), (6, 12)])
@pytest.mark.parametrize("op", ["conv_fwd", "conv_bwd_data", "conv_bwd_weight"])
def test_convolutions_in_groups(op: str, groups: int, outputs: int) -> None:
    case = (2, 6, outputs, 9, 8, 3, 3, 1, 1)
    kernel = _convolution_kernel(op, case, groups)
    rows = pd.DataFrame([{"op": op, "dtype": "fp32", **_convolution_sizes(case), "groups": groups}])
    ((work,), _), *others = candidates(op, rows)
    assert {_labelled(work)} == _algorithms(kernel, "cuDNN")
    assert kernel.algorithm.runs_in_threads == (groups == 6 and not (outputs == 12 and op != "conv_bwd_data"))
    assert not others  # no Winograd


def test_arithmetic_of_tf32() -> None:
    (work,) = works("mm", "tf32", m=2, n=3, k=4)
    assert work.math == (Math.TF32,)
    assert counted("mm", "tf32", m=2, n=3, k=4) == counted("mm", "fp32", m=2, n=3, k=4)
