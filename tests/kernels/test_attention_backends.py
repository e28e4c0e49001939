"""Which attention PyTorch runs, by release, GPU, format, mask and width of heads; and how fast warps are.

The cases are read from aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and from the cuDNN that wheels bring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from round_numbers import constants
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import rooflinekit as rk
from rooflinekit.cost.table import price_all
from rooflinekit.errors import FormatError, TraceError
from rooflinekit.hardware.device import Device
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import DType, Math, Op, TensorSpec
from rooflinekit.kernels.algorithms import ATTENTION, Algorithm
from rooflinekit.kernels.attention_backends import (
    AITER,
    AOTRITON,
    CK,
    CUDNN,
    CUDNN_BLACKWELL,
    EFFICIENT,
    FLASH,
    FLASH_1,
    FLASH_3,
    FLASHINFER,
    TENSORRT,
    TENSORRT_BLACKWELL,
    TRITON,
    WRITTEN_OUT,
    against,
    backend_of,
    backends_of,
)
from rooflinekit.kernels.attention_math import written_out
from rooflinekit.kernels.eager import plain_kernels
from rooflinekit.timing.kernel_batch import KernelBatch, Products
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.roofline import time_work
from rooflinekit.timing.utilization import exponential_s

H100, H200, B200, A100, ADA, RTX_5090, T4, V100 = (
    "nvidia-h100-sxm5-80gb", "nvidia-h200-sxm-141gb", "nvidia-b200-sxm-180gb", "nvidia-a100-sxm4-80gb",
    "nvidia-rtx-4090", "nvidia-rtx-5090", "nvidia-t4", "nvidia-v100-sxm2-16gb",
)  # fmt: skip

MASK = TensorSpec(name="mask", shape=(2, 8, 512, 512), dtype=DType.BFLOAT16)


def op(
    traced: str = "flash",
    dim: int = 128,
    wide: int = 0,
    keys: int = 512,
    dtype: DType = DType.BFLOAT16,
    back: bool = False,
    **attrs: object,
) -> Op:
    """scaled_dot_product_attention, as traced for half precision without a mask ("flash") or else ("efficient")."""
    q, k = (TensorSpec(name=n, shape=(2, 8, s, dim), dtype=dtype) for n, s in (("q", 512), ("k", keys)))
    v, g = replace(k, name="v", shape=(2, 8, keys, wide or dim)), replace(q, name="g")
    kind = f"aten._scaled_dot_product_{traced}_attention{'_backward' * back}"
    return Op(name="a", kind=kind, inputs=(g, q, k, v) if back else (q, k, v), outputs=(q,), attrs=attrs)


@pytest.mark.parametrize(
    ("gpu", "like", "given", "expected"),
    [
        *((gpu, like, {}, FLASH) for gpu in (H100, H200) for like in ("2.2", "2.4", "2.8", "2.9", "2.10")),
        *((gpu, like, {}, CUDNN) for gpu in (H100, H200, B200) for like in ("2.11", "2.12", None)),
        *((B200, like, {}, FLASH) for like in ("2.7", "2.10")),
        *((gpu, like, {}, FLASH) for gpu in (A100, ADA, RTX_5090) for like in ("2.2", "2.11", None)),
        *((gpu, like, {}, FLASH_1) for gpu in (A100, ADA, H100) for like in ("2.0", "2.1")),
        *((gpu, "2.5.0", {}, CUDNN) for gpu in (H100, H200)),  # which 2.5.1 took back
        *((gpu, like, {}, FLASH) for gpu in (H100, H200) for like in ("2.5.1", "2.5")),
        *((gpu, "2.5.0", {}, FLASH) for gpu in (A100, ADA)),
        *((f"nvidia-{gpu}", "2.11", {}, CUDNN) for gpu in ("gb200", "gb300", "b300-sxm-288gb")),
        *((f"nvidia-{gpu}", "2.12", {}, FLASH) for gpu in ("l40s", "a10", "rtx-pro-6000-blackwell-server")),
        *((gpu, "2.1", {"dtype": DType.FLOAT16}, EFFICIENT) for gpu in (T4, V100)),
        *(
            (gpu, None, {"traced": traced, "dtype": dtype}, EFFICIENT)
            for gpu in (T4, V100)
            for traced, dtype in (("flash", DType.FLOAT16), ("efficient", DType.FLOAT16), ("efficient", DType.FLOAT32))
        ),
        # less_than_sm80_mem_efficient_dtypes has no bfloat16
        *((gpu, None, {}, WRITTEN_OUT) for gpu in (T4, V100, "nvidia-p100-pcie-16gb")),
        ("nvidia-k80", None, {"dtype": DType.FLOAT16}, WRITTEN_OUT),  # before sm50
        (A100, None, {"traced": "efficient", "dtype": DType.FLOAT64}, WRITTEN_OUT),
        # minimum_gemm_alignment: 16 bytes of a row on tensor cores, 4 numbers in fp32 from sm80 on
        (A100, None, {"traced": "efficient", "dim": 100}, WRITTEN_OUT),
        (A100, None, {"dim": 100}, FLASH),  # which fills them up
        (A100, None, {"traced": "efficient", "dim": 100, "dtype": DType.FLOAT32}, EFFICIENT),
        (A100, None, {"traced": "efficient", "dim": 50, "dtype": DType.FLOAT32}, WRITTEN_OUT),
        (T4, None, {"traced": "efficient", "dim": 50, "dtype": DType.FLOAT32}, EFFICIENT),
        (T4, None, {"dim": 100, "dtype": DType.FLOAT16}, WRITTEN_OUT),
        ("nvidia-p100-pcie-16gb", None, {"dim": 100, "dtype": DType.FLOAT16}, EFFICIENT),
        # what sdpa_kernel leaves on, in torch._C._get_sdp_priority_order: flash, memory-efficient, math, cuDNN's
        (A100, None, {"traced": "efficient", "backends": ("flash", "efficient")}, EFFICIENT),
        (A100, None, {"dim": 320, "backends": ("flash", "math")}, WRITTEN_OUT),
        (T4, None, {"backends": ("flash", "math")}, WRITTEN_OUT),
        (H100, "2.8", {"traced": "cudnn", "backends": ("cudnn", "math")}, WRITTEN_OUT),
        (H100, None, {"traced": "cudnn", "backends": ("cudnn", "math")}, CUDNN),  # which goes first there
        (H100, "2.8", {"traced": "cudnn", "backends": ("cudnn",)}, CUDNN),
        ("amd-mi300x", None, {"backends": ("cudnn", "math")}, WRITTEN_OUT),
        *((gpu, like, {"traced": "efficient"}, EFFICIENT) for gpu in (A100, ADA) for like in ("2.4", None)),
        (H100, "2.10", {"traced": "efficient"}, EFFICIENT),  # a mask excludes flash
        (H100, None, {"traced": "efficient"}, CUDNN),  # but not cuDNN
        (H100, None, {"traced": "efficient", "dtype": DType.FLOAT32}, EFFICIENT),
        (H100, None, {"dim": 256}, FLASH),  # wider than cuDNN takes
        (H100, None, {"dim": 100}, FLASH),  # no multiple of 8
        (H100, None, {"keys": 1}, FLASH),
        (A100, None, {"dim": 320}, EFFICIENT),  # wider than flash takes
        (A100, "2.1", {"dim": 256}, EFFICIENT),  # wider than FlashAttention 1 takes
        (H100, "2.8", {"back": True}, FLASH),
        *((gpu, None, {"traced": "efficient", "dim": 192, "wide": 128}, CUDNN) for gpu in (H100, B200)),  # DeepSeek's
        (A100, None, {"traced": "efficient", "dim": 192, "wide": 128}, EFFICIENT),
        (A100, None, {"is_causal": True, "keys": 512}, FLASH),
        (A100, None, {"is_causal": True, "keys": 1024}, EFFICIENT),  # whose causal mask begins at the upper left
        # check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120; before, gt64_and_sm_ge86_lt90
        *((gpu, None, {"dim": 256, "back": True}, FLASH) for gpu in (ADA, "nvidia-rtx-3090", RTX_5090, A100)),
        *(
            (gpu, None, {"dim": dim, "back": True, "dropout_p": dropout}, EFFICIENT)
            for gpu in (ADA, "nvidia-a10", "nvidia-l40s", RTX_5090, "nvidia-rtx-pro-6000-blackwell-server")
            for dim, dropout in ((200, 0.0), (224, 0.0), (256, 0.1))
        ),
        *((gpu, None, {"dim": 224, "back": True, "dropout_p": 0.1}, FLASH) for gpu in (A100, "nvidia-a30", H100, B200)),
        *((ADA, like, {"dim": 192, "back": True}, FLASH) for like in ("2.2", "2.4", None)),
        *((ADA, like, {"dim": 256, "back": True}, EFFICIENT) for like in ("2.2", "2.3")),
        (ADA, "2.4", {"dim": 256, "back": True}, FLASH),
        (A100, "2.2", {"dim": 256, "back": True}, FLASH),
        (ADA, "2.1", {"dim": 64, "back": True}, FLASH_1),
        (ADA, "2.1", {"dim": 128, "back": True}, EFFICIENT),
        (A100, "2.1", {"dim": 128, "back": True}, FLASH_1),
        (ADA, "2.1", {"dim": 128}, FLASH_1),  # without a gradient
        *((ADA, None, {"dim": 224, "trained": trained}, kernel) for trained, kernel in ((True, EFFICIENT),
                                                                                        (False, FLASH))),
        (H100, None, {"dropout_p": 0.125}, CUDNN),
        (H100, None, {"dropout_p": 0.1}, FLASH),  # no multiple of a sixteenth
        (H100, None, {"backends": ("flash", "efficient")}, FLASH),
        (H100, "2.5.0", {"traced": "efficient", "backends": ("efficient",)}, EFFICIENT),
        (H100, None, {"back": True}, CUDNN),
        (A100, "2.8", {"traced": "cudnn"}, CUDNN),  # asked for by sdpa_kernel
        (T4, None, {"traced": "cudnn", "dtype": DType.FLOAT16}, EFFICIENT),
        ("amd-mi300x", None, {}, AOTRITON),
        ("amd-rx-7900-xtx", None, {"traced": "efficient"}, AOTRITON),
        ("amd-mi300x", None, {"prefers": "ck"}, CK),
        ("amd-mi300x", None, {"prefers": "ck", "dtype": DType.FLOAT32}, AOTRITON),
        ("amd-rx-7900-xtx", None, {"prefers": "ck"}, AOTRITON),  # for which it is not built
        (H100, None, {"prefers": "ck"}, CUDNN),
        ("amd-mi100", None, {}, WRITTEN_OUT),  # which AOTriton has no kernels for
        ("intel-max-1550", None, {}, ATTENTION),
    ],
)  # fmt: skip
def test_the_choice(gpu: str, like: str | None, given: dict[str, object], expected: object) -> None:
    release = None if like is None else Release.parse(like)
    assert backend_of(op(**given), rk.load_device(gpu), release) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "given", "why"),
    [
        (T4, {"backends": ("flash",)}, "FlashAttention 2 is excluded by compute capability 7.5"),
        (V100, {"backends": ("flash", "efficient")}, "memory-efficient is excluded by bfloat16"),
        (
            H100,
            {"dim": 512, "backends": ("cudnn",), "traced": "cudnn"},
            "cuDNN's attention is excluded by heads of 512",
        ),
    ],
)
def test_where_pytorch_finds_no_kernel_its_error_is_foretold(gpu: str, given: dict[str, object], why: str) -> None:
    with pytest.raises(FormatError, match=rf"{gpu}: .*'No available kernel\. Aborting execution\.': .*{why}"):
        backend_of(op(**given), rk.load_device(gpu))  # type: ignore[arg-type]


def test_a_call_that_nothing_is_left_on_for_stops_the_trace_as_it_stops_pytorch() -> None:
    def attends(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return nn.functional.scaled_dot_product_attention(q, q, q, mask)

    inputs = rk.Input(2, 8, 512, 64, dtype="bfloat16"), rk.Input(512, 512, dtype="bool")
    with pytest.raises(TraceError, match=r"No available kernel\. Aborting execution\."):
        rk.trace(attends, *inputs)


def attending(on: list[SDPBackend], **given: object) -> Callable[..., torch.Tensor]:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        with sdpa_kernel(on):
            q, k, v = (x * torch.ones((), requires_grad=True) for x in (q, k, v))
            return nn.functional.scaled_dot_product_attention(q, k, v, mask, **given)  # type: ignore[arg-type]

    return model


@pytest.mark.parametrize(
    ("dtype", "mode", "masked", "given"),
    [
        ("bfloat16", "training", False, {}),
        ("float32", "training", False, {"is_causal": True, "dropout_p": 0.1}),
        ("float16", "inference", True, {}),
        ("float32", "training", True, {}),
    ],
)
def test_math_is_what_pytorch_dispatches(dtype: str, mode: str, masked: bool, given: dict[str, object]) -> None:
    inputs = [rk.Input(2, 8, 512, 128, dtype=dtype) for _ in range(3)]
    inputs += [rk.Input(2, 8, 512, 512, dtype=dtype)] * masked
    asking, fused = (
        rk.trace(attending([*on, SDPBackend.MATH], **given), *inputs, mode=mode)  # type: ignore[arg-type]
        for on in ([], [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])
    )
    traced, named = rk.predict(asking, A100), rk.predict(fused, A100, execution=rk.Execution(attention="math"))
    kinds = [Counter(timing.kernel.kind for timing in p.timings) for p in (traced, named)]
    del kinds[1]["aten.clone"]  # of the output, which what follows fused attention has in another order
    assert kinds[0] == kinds[1]
    assert named.gpu_s == pytest.approx(traced.gpu_s, rel=0.035)  # with that copy
    assert named.cpu_s == pytest.approx(traced.cpu_s, rel=0.08)  # without the CPU's views
    if mode == "training":  # whose weights stay for the gradient
        assert named.memory.peak_bytes == pytest.approx(traced.memory.peak_bytes, rel=0.04)


def test_before_ampere_heads_that_share_keys_are_repeated_by_math() -> None:
    q, k, v = op(dtype=DType.FLOAT16).inputs
    shared = replace(op(dtype=DType.FLOAT16), inputs=(q, *(replace(one, shape=(2, 2, 512, 128)) for one in (k, v))))
    assert backend_of(shared, rk.load_device(T4)) == WRITTEN_OUT
    assert backend_of(shared, rk.load_device(A100)) == FLASH


@pytest.mark.parametrize(("wanted", "products"), [((False, True, True), 3), ((False, False, True), 1)])
def test_math_computes_the_gradients_that_are_wanted(wanted: tuple[bool, ...], products: int) -> None:
    # of the value one; of the key two, of the weights and its own
    whole = gradient()
    outputs = tuple(one for one, asked in zip(whole.outputs, wanted, strict=True) if asked)
    found = written_out(replace(whole, outputs=outputs, attrs={**whole.attrs, "grad_input_mask": (*wanted, False)}))[0]
    assert sum(one.kind == "aten.bmm" for one in found) == products
    assert {one.outputs[0].name for one in found} >= {one.name for one in outputs}


@pytest.mark.parametrize(
    ("gpu", "like", "name"),
    [(H100, None, "cuDNN's attention"), (H100, "2.10", ""), (A100, None, ""), ("amd-mi300x", None, "")],
)
def test_under_a_mask_heads_that_share_keys_are_no_call_of_memory_efficient_attention(
    gpu: str, like: str | None, name: str
) -> None:
    # check_batch_size_and_num_heads_dense<supports_gqa=false>: math, where cuDNN's does not come first
    def attends(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, k, mask, enable_gqa=True)

    sizes = ((2, 8, 512, 64), (2, 2, 512, 64), (512, 512))
    graph = rk.trace(attends, *(rk.Input(*one, dtype="bfloat16") for one in sizes), like=like)
    kernels = [timing.kernel for timing in rk.predict(graph, gpu).timings]
    assert [one.algorithm.name for one in kernels if one.algorithm.shape == "queries"] == [name] * bool(name)


def test_heads_that_share_keys_are_repeated_by_math() -> None:
    found = written_out(gradient(2))[0]
    wide = [one.outputs[0] for one in found if one.kind == "aten.bmm"]
    assert [one.shape for one in wide] == [(16, 512, size) for size in (128, 512, 128, 128)]
    assert [one.shape for one in (op.outputs[0] for op in found if op.kind == "aten.sum")] == [(2, 2, 512, 128)] * 2
    assert [one.name for one in (op.outputs[0] for op in found) if one.name in ("dq", "dk", "dv")] == ["dv", "dk", "dq"]


@pytest.mark.parametrize(
    ("gpu", "like", "given", "name", "reasons"),
    [
        # hopper/flash_api.cpp: "FlashAttention only supports Hopper GPUs" of that build; widths to 256, or 192 and 128
        (A100, None, {}, "flash-3", ["compute capability 8.0"]),
        (B200, None, {}, "flash-3", ["compute capability 10.0"]),
        (H100, None, {}, "flash-3", []),
        (H100, None, {"dim": 256}, "flash-3", []),
        (H100, None, {"dim": 264}, "flash-3", ["heads of 264 numbers"]),
        (H100, None, {"dim": 100}, "flash-3", ["heads of 100 numbers"]),
        (H100, None, {"dim": 192, "wide": 128}, "flash-3", []),
        (H100, None, {"dim": 128, "wide": 64}, "flash-3", ["heads of 128 and 64 numbers"]),
        (H100, None, {"dropout_p": 0.1}, "flash-3", ["dropout"]),
        (H100, None, {"dtype": DType.FLOAT32, "attn_bias": MASK}, "flash-3", ["float32", "a mask"]),
        (H100, None, {"is_causal": True, "keys": 1024}, "flash-3", ["a causal mask of unequal lengths"]),
        # flash_attn/cute/interface.py: on 10.x widths to 128 each, or 192 and 128
        (H100, None, {}, "flash-4", ["compute capability 9.0"]),
        (RTX_5090, None, {}, "flash-4", ["compute capability 12.0"]),
        ("nvidia-gb300", None, {}, "flash-4", []),
        (B200, None, {"dim": 128, "wide": 64}, "flash-4", []),
        (B200, None, {"dim": 192, "wide": 128}, "flash-4", []),
        (B200, None, {"dim": 192}, "flash-4", ["heads of 192 numbers"]),
        (B200, None, {"attn_bias": MASK}, "flash-4", ["a mask"]),
        # sdpa_kernel names cuDNN's from 2.5 on
        (H100, "2.4", {}, "cudnn", ["PyTorch 2.4"]),
        (H100, "2.5", {}, "cudnn", []),
        (T4, None, {}, "cudnn", ["compute capability 7.5"]),
        (H100, "2.1", {}, "flash", ["PyTorch 2.1"]),
        (H100, "2.1", {}, "flash-1", []),
        (H100, None, {"dim": 256}, "flash-1", ["heads of 256 numbers"]),
        ("nvidia-k80", None, {"dtype": DType.FLOAT32}, "efficient", ["compute capability 3.7"]),
        ("nvidia-p100-pcie-16gb", None, {"attn_bias": MASK, "dtype": DType.FLOAT16}, "efficient", []),
        (V100, None, {"dim": 100}, "efficient", ["bfloat16", "heads of 100 numbers"]),
        (A100, None, {"dtype": DType.FLOAT64}, "efficient", ["float64"]),
        (H100, None, {"backends": ("flash",)}, "math", ["the program"]),
        # inductor's Triton wants 7.0; flex_attention came with 2.5 and has no dropout
        ("nvidia-p100-pcie-16gb", None, {}, "triton", ["compute capability 6.0"]),
        (V100, None, {}, "triton", []),
        (A100, "2.4", {}, "triton", ["PyTorch 2.4"]),
        (A100, None, {"dropout_p": 0.1}, "triton", ["dropout"]),
        (H100, None, {"backends": ("efficient",), "dim": 512}, "flash", ["heads of 512 numbers", "the program"]),
        (H100, None, {"backends": ("efficient",)}, "flash-3", []),  # which no context switches
        (H100, None, {}, "aiter", ["NVIDIA's GPUs"]),
        ("amd-mi300x", None, {}, "cudnn", ["AMD's GPUs"]),
        ("amd-mi300x", None, {"attn_bias": MASK, "dtype": DType.FLOAT32}, "aiter", ["float32", "a mask"]),
        ("amd-rx-7900-xtx", None, {}, "ck", ["gfx1100"]),
        ("amd-mi100", None, {}, "aotriton", ["gfx908"]),
    ],
)
def test_what_excludes_a_kernel(
    gpu: str, like: str | None, given: dict[str, object], name: str, reasons: list[str]
) -> None:
    release, device = None if like is None else Release.parse(like), rk.load_device(gpu)
    found = against(op(**given), name, device, release)  # type: ignore[arg-type]
    assert [why for why, _ in found] == reasons
    assert (name in backends_of(op(**given), device, release)) == (not reasons and name != "flash-1")  # type: ignore[arg-type]


def test_a_graph_is_run_by_what_each_gpu_has() -> None:
    def attends(q: object, k: object, v: object) -> object:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)  # type: ignore[arg-type]

    inputs = [rk.Input("batch", 8, 512, 128, dtype="bfloat16") for _ in range(3)]
    now, before = (rk.trace(attends, *inputs, like=like) for like in (None, "2.8"))
    names = [
        rk.predict(graph, gpu, batch=2).timings[0].kernel.algorithm.name
        for graph in (now, before)
        for gpu in (H100, A100)
    ]
    assert names == ["cuDNN's attention", *["FlashAttention 2"] * 3]


@pytest.mark.parametrize(
    ("on", "variable", "names"),
    [
        (None, None, ["cuDNN's attention"]),
        (None, "1", ["FlashAttention 2"]),
        ([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], None, ["FlashAttention 2"]),
        ([SDPBackend.EFFICIENT_ATTENTION], None, ["memory-efficient"]),
        ([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION], None, ["cuDNN's attention"]),
        ([SDPBackend.MATH], None, []),
        ((SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION), None, ["FlashAttention 2"]),  # by priority
        ((SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION), None, ["memory-efficient"]),
    ],
)
def test_what_a_program_switches_off_does_not_run(
    on: Sequence[SDPBackend] | None, variable: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def attends(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with nullcontext() if on is None else sdpa_kernel(list(on), set_priority=isinstance(on, tuple)):
            return nn.functional.scaled_dot_product_attention(q, k, v * torch.ones((), requires_grad=True))

    if variable:
        monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", variable)
    graph = rk.trace(attends, *(rk.Input(2, 8, 512, 128, dtype="bfloat16") for _ in range(3)), mode="train")
    kernels = [timing.kernel for timing in rk.predict(graph, H100).timings]
    # the gradient, which autograd asks for outside the context, runs by the same
    assert [kernel.algorithm.name for kernel in kernels if kernel.algorithm.shape == "queries"] == 2 * names


@pytest.mark.parametrize(
    ("bias", "dtype", "names"),
    [
        (causal_upper_left, "bfloat16", ["cuDNN's attention", "memory-efficient"]),
        (causal_lower_right, "bfloat16", ["FlashAttention 2", "FlashAttention 2"]),  # by the operator's name
        (causal_lower_right, "float32", ["memory-efficient", "memory-efficient"]),  # under a mask that is written out
    ],
)
def test_causal_masks_of_a_chunk_run_as_pytorch_dispatches_them(bias: object, dtype: str, names: list[str]) -> None:
    # 128 queries of one head at the end, or at the beginning, of 512 keys
    def attends(q: object, k: object, v: object) -> object:
        return nn.functional.scaled_dot_product_attention(q, k, v, bias(128, 512))  # type: ignore[arg-type,operator]

    graph = rk.trace(attends, *(rk.Input(1, 1, length, 64, dtype=dtype) for length in (128, 512, 512)))
    assert [rk.predict(graph, gpu).timings[-1].kernel.algorithm.name for gpu in (H100, A100)] == names
    if dtype == "bfloat16":
        pairs = 128 * 129 // 2 + (128 * 384 if bias is causal_lower_right else 0)
        assert graph.matrix_flop == 2 * 2 * 64 * pairs


@pytest.mark.parametrize(("warn_only", "name"), [(False, "FlashAttention 2"), (True, "cuDNN's attention")])
def test_deterministic_algorithms_exclude_cudnn(warn_only: bool, name: str) -> None:
    def attends(q: torch.Tensor) -> torch.Tensor:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        return nn.functional.scaled_dot_product_attention(q, q, q)

    (timing,) = rk.predict(rk.trace(attends, rk.Input(2, 8, 512, 128, dtype="bfloat16")), H100).timings
    assert timing.kernel.algorithm.name == name
    assert not torch.are_deterministic_algorithms_enabled()  # as before the trace


def test_a_program_may_prefer_composable_kernel_on_amd() -> None:
    def attends(q: torch.Tensor) -> torch.Tensor:
        torch.backends.cuda.preferred_rocm_fa_library("ck")
        q = q * torch.ones((), requires_grad=True)
        return nn.functional.scaled_dot_product_attention(q, q, q)

    graph = rk.trace(attends, rk.Input(2, 8, 512, 128, dtype="bfloat16"), mode="train")
    assert torch.backends.cuda.preferred_rocm_fa_library().name == "Default"  # as before the trace
    for gpu, name in (("amd-mi300x", "Composable Kernel"), (A100, "FlashAttention 2")):
        kernels = [timing.kernel for timing in rk.predict(graph, gpu).timings]
        assert [one.algorithm.name for one in kernels if one.algorithm.shape == "queries"] == [name] * 2
        # the gradient's sums of gradient times output before, and the query's in 16 bits after
        assert sum("gradient" in one.name for one in kernels) == 2


def attention_s(
    machine: Machine, by: Algorithm, *, heads: int = 50, queries: int = 1280, keys: int = 4096, width: int = 128,
    executed: float = 1.0,
) -> float:  # fmt: skip
    """Seconds that both products of attention in fp16 compute for."""
    n, k = [keys, width], [width, keys]
    products = Products.of([0, 0], batch=heads, m=queries, n=n, k=k, executed=executed, algorithm=by)
    return float(time_work(KernelBatch.of(1, math=Math.FP16, products=products), machine).compute_s[0])


def test_instructions_of_a_warp_reach_what_an_sm_of_ampere_does(device: Device) -> None:
    # 100 TFLOP/s on 50 SMs at 1.25 GHz are 1600 FLOP a cycle and SM; instructions of a warp do half of that
    machine = Machine.of(device, constants(warp_mma_flop=800))
    by_warps, faster = (attention_s(machine, one, keys=1024) for one in (FLASH, FLASH_3))
    assert by_warps == pytest.approx(2 * faster, rel=1e-3)


def test_a_slower_tensor_core_loses_less_to_a_softmax(device: Device) -> None:
    # An SM is busy for as long with what is beside the products, whatever its tensor core does: where that does 2048
    # FLOP a clock and 0.5 of it are left, a FLOP takes 1/2048 clock more; one of 1600 a clock then has 1/(1/1600 +
    # 1/2048)
    for at_most, share in ((2048, 1 / (1 + 1600 / 2048)), (1600, 0.5), (800, 0.5)):
        alone, beside = (
            attention_s(Machine.of(device, constants(attention_share=left, warp_mma_flop=at_most)), FLASH_3)
            for left in (1.0, 0.5)
        )
        assert alone / beside == pytest.approx(share, rel=1e-3)


def test_sums_in_tensor_memory_leave_more_of_the_rate(device: Device) -> None:
    # 1600 FLOP a clock where 2048 are what an SM of Ampere does: a FLOP takes 1/1600 + (1/share - 1)/2048 of a clock
    machine = Machine.of(
        device, constants(attention_share=0.5, tensor_memory_attention=0.8, warp_mma_flop=2048, overlap=1000)
    )
    ratio = attention_s(machine, FLASH_3) / attention_s(machine, CUDNN_BLACKWELL)
    assert ratio == pytest.approx((1 + 1600 / 2048) / (1 + 400 / 2048), rel=1e-3)


@pytest.mark.parametrize(
    ("engine", "gpu", "expected"),
    [
        # kernels that NVIDIA's tables name (aiconfigurator 095f58a, attention_context_*.parquet: kernel_source)
        ("vllm:0.14.0", A100, FLASH),
        ("vllm:0.24.0", H100, FLASH_3),
        ("vllm:0.24.0", "nvidia-l40s", FLASH),
        ("vllm:0.24.0", B200, TENSORRT_BLACKWELL),
        ("sglang:0.5.14", H100, FLASH_3),
        ("sglang:0.5.14", "nvidia-l40s", FLASHINFER),
        ("sglang:0.5.14", B200, TENSORRT_BLACKWELL),
        ("tensorrt-llm:1.3.0rc20", H100, TENSORRT),
        ("tensorrt-llm:1.3.0rc20", B200, TENSORRT_BLACKWELL),
        ("tensorrt-llm:1.0.0", A100, TENSORRT),
        # before
        ("vllm:0.6.3", H100, FLASH),
        ("vllm:0.10", B200, FLASH),
        ("sglang:0.4.1", H100, FLASHINFER),
        # of no engine, what the newest have
        ("", A100, FLASH),
        ("", H200, FLASH_3),
        ("", "nvidia-gb300", TENSORRT_BLACKWELL),
        ("", RTX_5090, FLASH),
        ("vllm:0.12", T4, ATTENTION),
        ("vllm:0.12", "amd-mi300x", TRITON),
        ("sglang:0.5", "amd-mi300x", AITER),
        ("", "amd-mi300x", ATTENTION),
    ],
)
def test_engines_have_kernels_of_their_own(engine: str, gpu: str, expected: object) -> None:
    paged = op(window=None, **({"engine": engine} if engine else {}))
    assert backend_of(replace(paged, kind="serving.paged_attention"), rk.load_device(gpu)) == expected


@pytest.mark.parametrize(
    ("engine", "gpu", "joined"),
    [("vllm:0.24", H100, True), ("vllm:0.24", A100, False), ("sglang:0.5.14", "nvidia-l40s", True)],
)
def test_blocks_of_new_queries_have_those_of_all_heads_that_share_keys(engine: str, gpu: str, joined: bool) -> None:
    # 3 sequences of 16 queries in 8 heads over 2 heads of 512 keys: 24 products of 16 rows, or 6 of 64
    heads = [TensorSpec(name="tensor", shape=(3, h, s, 64), dtype=DType.BFLOAT16) for h, s in ((8, 16), (2, 512))]
    attrs = {"window": None, "engine": engine, "called": True}
    kind = "serving.paged_attention"
    paged = Op(name="op", kind=kind, inputs=(heads[0], heads[1], heads[1]), outputs=(heads[0],), attrs=attrs)
    *_, kernel = plain_kernels(price_all([paged])[0], None, rk.load_device(gpu))
    assert {(gemm.batch, gemm.m) for gemm in kernel.cost.gemms} == {(6, 64) if joined else (24, 16)}
    # a token sees 496 + i keys, i from 1 to 16: 16·496 + 16·17/2 pairs of 2·2·64 FLOP
    assert kernel.cost.matrix_flop == 3 * 8 * (16 * 496 + 136) * 4 * 64


def test_heads_as_wide_as_a_latent_are_of_a_kernel_that_is_not_told() -> None:
    latent = replace(op(dim=576, wide=512, engine="vllm:0.24"), kind="serving.paged_attention")
    assert backend_of(latent, rk.load_device(H100)) == ATTENTION


@pytest.mark.parametrize(("gpu", "math", "times"), [(A100, Math.TF32, 3), (T4, Math.FP32, 1), (V100, Math.FP32, 1)])
@pytest.mark.parametrize("back", [False, True])
def test_memory_efficient_attention_in_fp32_is_three_products_in_tf32_from_ampere_on(
    gpu: str, math: Math, times: int, back: bool
) -> None:
    # mem_eff_attention/gemm_kernel_utils.h: float from Sm80 on has OpClassTensorOp and OpMultiplyAddFastF32
    given = gradient(dtype=DType.FLOAT32) if back else op("efficient", dtype=DType.FLOAT32, is_causal=False)
    (kernel,) = plain_kernels(price_all([given])[0], None, rk.load_device(gpu))
    asked = (5 if back else 2) * 2 * 2 * 8 * 512 * 512 * 128  # FLOP of the products of 16 heads
    assert (kernel.math, kernel.cost.matrix_flop) == (math, times * asked)
    assert kernel.asked_flop == (asked if times > 1 else 0)


def test_causal_blocks_fetch_the_keys_that_they_see(device: Device) -> None:
    # 64 bytes a clock for keys of 128 numbers; a tensor core so fast that the fetches are all that takes time
    fast = device.replace(matrix_peak=dict.fromkeys(device.matrix_peak, 1e18))
    machine = Machine.of(fast, constants())
    every, causal = (attention_s(machine, FLASH_3, heads=400, queries=4096, executed=seen) for seen in (1.0, 0.5))
    # of 32 blocks of 128 queries each sees half a block of its keys in vain: 1/2 + 1/64; and of the 256 that an SM of
    # 50 has, it waits for half of a longest one
    assert causal / every == pytest.approx(0.5 + 1 / 64 + 0.5 / 256, rel=1e-3)


@pytest.mark.parametrize(
    ("width", "room", "times"),
    [
        (128, 102 << 10, 1.0),  # two blocks of 2 · 192 · 128 bytes and 3 KiB: one multiplies beside the other's softmax
        (128, 100 << 10, 1.625),  # 1/1600 + 0.2 / (4 · 128) of a clock for a FLOP
        (64, 100 << 10, 1.25),  # by the softmax alone: 0.2 / (4 · 64)
        (256, 228 << 10, 1.3125),  # the output passes memory
    ],
)
def test_a_second_block_hides_a_softmax_through_shared_memory(
    device: Device, width: int, room: int, times: float
) -> None:
    ampere = device.replace(vendor="NVIDIA", compute_capability="8.0", shared_memory_per_sm=room)
    efficient, flash = (attention_s(Machine.of(ampere, constants()), one, width=width) for one in (EFFICIENT, FLASH_3))
    assert efficient / flash == pytest.approx(times, rel=1e-3)


def test_exponentials_go_by_units_and_polynomials(device: Device) -> None:
    shape = {"batch": 50, "m": 1280, "n": [4096, 128], "k": [128, 4096]}
    special = 50 * 1280 * 4096
    values = constants()  # a quarter of them are polynomials: units have three of four to do
    for units, algorithm, rate in ((16, FLASH_3, 16), (18, CUDNN_BLACKWELL, 24), (32, FLASH_3, 32)):
        machine = Machine.of(device.replace(exponentials_per_sm=units), values)
        products = Products.of([0, 0], **shape, algorithm=algorithm)
        expected = special / (rate * machine.sm_count * machine.clock)
        assert exponential_s(np.array([float(special)]), products, machine)[0] == pytest.approx(expected)


def gradient(key_heads: int = 8, **given: object) -> Op:
    """The gradient of attention of 2 × 8 heads of 512 queries, 128 wide: 2 MiB of numbers in 16 bits a tensor."""
    grad, q, k, v = op(back=True, **given).inputs  # type: ignore[arg-type]
    k, v = (replace(t, shape=(2, key_heads, 512, 128)) for t in (k, v))
    out, sums = replace(q, name="out"), TensorSpec(name="sums", shape=(2, 8, 512), dtype=DType.FLOAT32)
    outputs = tuple(replace(t, name=f"d{t.name}") for t in (q, k, v))
    kind = "aten._scaled_dot_product_flash_attention_backward"
    attrs = {"is_causal": False}
    return Op(name="a", kind=kind, inputs=(grad, q, k, v, out, sums), outputs=outputs, attrs=attrs)


@pytest.mark.parametrize("like", ["2.8", None])
@pytest.mark.parametrize("key_heads", [8, 2])
def test_what_a_gradient_launches_and_passes(like: str | None, key_heads: int) -> None:
    given = gradient(key_heads)
    release = None if like is None else Release.parse(like)
    found = plain_kernels(price_all([given])[0], None, rk.load_device(H100), release)
    mib, shared = 2**20, 2**20 * key_heads // 4  # 2·8·512·128 numbers of 2 bytes are 2 MiB; of two heads half a one
    passed = [(kernel.cost.read_bytes, kernel.cost.write_bytes) for kernel in found if not kernel.cost.gemms]
    joined = [(4 * 2 * shared, 2 * shared)] if like and key_heads == 2 else []  # 8 heads' gradients of 2 heads
    assert passed == [(4 * mib, 4 * mib), (4 * mib, 2 * mib), *joined]
    (main,) = (kernel for kernel in found if kernel.cost.gemms)
    # gradient, query, keys, values and 4 bytes for each of 8192 rows; sums in fp32 and gradients of keys and values
    assert main.cost.read_bytes == 4 * mib + 2 * shared + 4 * 8192
    assert main.cost.write_bytes == 4 * mib + 2 * shared * (4 if joined else 1)
    assert main.algorithm.name == ("FlashAttention 2" if like else "cuDNN's attention")


def test_elsewhere_a_gradient_is_one_kernel() -> None:
    for gpu, dtype in (("intel-max-1550", DType.BFLOAT16), (T4, DType.FLOAT16)):
        assert len(plain_kernels(price_all([gradient(dtype=dtype)])[0], None, rk.load_device(gpu))) == 1


def test_triton_computes_scores_twice_in_a_gradient() -> None:
    (kernel,) = plain_kernels(price_all([gradient()])[0], None, rk.load_device("amd-mi300x"))
    once = 2 * 2 * 8 * 512 * 512 * 128  # FLOP of a product of 16 heads
    assert (kernel.cost.matrix_flop, kernel.asked_flop) == (7 * once, 5 * once)
    assert kernel.cost.special_flop == 2 * 2 * 8 * 512 * 512


def test_the_products_of_a_gradient_are_slower(device: Device) -> None:
    machine = Machine.of(device, constants(attention_gradient=0.5, warp_mma_flop=1600))
    forward, back = (attention_s(machine, one) for one in (FLASH_3, replace(FLASH_3, gradient=True)))
    assert back == pytest.approx(2 * forward, rel=1e-3)
