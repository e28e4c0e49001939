"""Under which name residuals are kept: by unit and format, and by what runs on a machine."""

from dataclasses import replace

import pytest
from round_numbers import constants

from rooflinekit.hardware.device import Device
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Math, Phase
from rooflinekit.kernels import miopen
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.timing.families import (
    ALL,
    OF_A_BACKWARD_PASS,
    OF_THE_DAY,
    complete,
    in_format,
    of_the_step,
    residuals_of,
)
from rooflinekit.timing.machine import Machine


def kernel(kind: str, family: Family, math: Math, *, m: int = 128) -> Kernel:
    cost = Cost(gemms=(Gemm(batch=1, m=m, n=64, k=64),)) if family is not Family.ELEMENTWISE else Cost(vector_flop=1)
    return Kernel(name="kernel", kind=kind, family=family, module="", phase=Phase.FORWARD, math=math, cost=cost)


@pytest.mark.parametrize(
    ("family", "math", "name"),
    [
        ("product", Math.BF16, "product"),
        ("product", Math.FP32, "fp32 product"),
        ("convolution gradient", Math.TF32, "tf32 convolution gradient"),
        ("batched product", Math.FP8, "quantized product"),  # libraries have one kind of kernel for both
        ("attention", Math.FP64, "fp64 attention"),
        ("softmax", Math.FP16, "softmax"),  # computed on the CUDA cores, whatever is stored
    ],
)
def test_formats_are_families_of_their_own(family: str, math: Math, name: str) -> None:
    assert in_format(family, math) == name
    assert name in ALL


@pytest.mark.parametrize(
    ("kind", "family", "queries", "name"),
    [
        ("aten.mm", Family.MATMUL, 128, "product"),
        ("aten.bmm", Family.MATMUL, 128, "batched product"),
        ("aten.convolution", Family.CONVOLUTION, 128, "convolution"),
        ("aten.convolution_backward", Family.CONVOLUTION, 128, "convolution gradient"),
        ("serving.paged_attention", Family.ATTENTION, 65, "attention"),
        ("serving.paged_attention", Family.ATTENTION, 64, "decoding"),
        ("aten.relu", Family.ELEMENTWISE, 128, "elementwise"),
        ("serving.gated_activation", Family.ELEMENTWISE, 128, "serving activation"),
        ("serving.combine_experts", Family.ELEMENTWISE, 128, "serving"),  # which nobody measured
    ],
)
def test_kernels_by_what_they_are(device: Device, kind: str, family: Family, queries: int, name: str) -> None:
    machine = Machine.of(device.replace(matrix_peak={"fp16": 1e14}), constants())
    assert residuals_of(kernel(kind, family, Math.FP16, m=queries), machine) == name


def test_what_a_machine_has_no_unit_for_counts_as_fp32(device: Device) -> None:
    without = Machine.of(device.replace(matrix_peak={}), constants())
    with_tf32 = Machine.of(device.replace(matrix_peak={"tf32": 1e14}), constants())
    one = kernel("aten.convolution", Family.CONVOLUTION, Math.TF32)
    assert residuals_of(one, without) == "fp32 convolution"
    assert residuals_of(one, with_tf32) == "tf32 convolution"


def test_gradients_by_whose_they_are_and_miopen_by_units(device: Device) -> None:
    machine = Machine.of(device.replace(matrix_peak={"fp16": 1e14}, emulated={"bf16": "in fp32"}), constants())
    weight = replace(kernel("aten.convolution_backward", Family.CONVOLUTION, Math.FP16), direction="weight")
    assert residuals_of(weight, machine) == "convolution weight gradient"
    by_miopen = replace(weight, algorithm=miopen.IMPLICIT["weight"])
    assert residuals_of(by_miopen, machine) == "convolution by MIOpen"
    assert residuals_of(replace(by_miopen, math=Math.BF16), machine) == "emulated convolution by MIOpen"


def test_where_nothing_was_measured_the_nearest_stands_in() -> None:
    known = {"product": 1, "fp32 product": 2, "convolution": 3, "fp32 convolution": 4, "softmax": 5}
    found = complete(known)
    assert set(found) == set(ALL)
    assert found | known == found  # what was measured stays
    assert found["tf32 product"] == 1  # in 16 bits
    assert found["fp64 product"] == 2  # in fp32
    assert found["tf32 convolution gradient"] == 3  # gradients as what they are gradients of
    assert found["fp64 convolution gradient"] == 4
    assert complete(known | {"serving": 6})["serving rotation"] == 6
    assert found["decoding"] == found["attention"] == 1  # as the products that it is made of


def test_a_backward_pass_is_off_as_a_whole() -> None:
    forward = kernel("aten.relu", Family.ELEMENTWISE, Math.FP32)
    assert of_the_step([forward, forward]) == OF_THE_DAY
    both = of_the_step([forward, replace(forward, phase=Phase.BACKWARD)])
    assert both**2 == pytest.approx(OF_THE_DAY**2 + OF_A_BACKWARD_PASS**2)
