"""The records built from Python: floats in base units or text, frozen, validated again on change."""

import copy

import pytest
from pydantic import ValidationError
from refusals import refusal

from rooflinekit.errors import FormatError
from rooflinekit.hardware.device import Clock, Device, Memory, Pcie
from rooflinekit.hardware.fields import FrozenMapping
from rooflinekit.hardware.host import Host


def toy(**changes: object) -> Device:
    device = Device(
        name="toy",
        vendor="Toys",
        architecture="Toy",
        sm_count=10,
        lanes_per_sm=100,
        clock=Clock(boost=1e9),
        dram=Memory(capacity=1e9, bandwidth=100e9),
        l2_capacity=1e6,
        matrix_peak={"fp16": 16e12, "fp64": 1e12},
        vector_peak={"fp32": 2e12, "fp64": 4e12},
    )
    return device.replace(**changes)


def test_numbers_and_text_are_the_same() -> None:
    assert toy() == toy(l2_capacity="1 MB", clock={"boost": "1 GHz"}, dram={"capacity": 10**9, "bandwidth": "100 GB/s"})


def test_peak_is_the_faster_unit() -> None:
    device = toy()
    assert device.peak("fp16") == 16e12
    assert device.peak("fp64") == 4e12
    assert device.ridge("fp16") == 160  # 16e12 / 100e9
    assert device.ridge("fp32") == 20
    assert device.formats == ("fp64", "fp32", "fp16")
    assert device.tensor_clock == 1e9
    assert toy(clock=Clock(boost=1e9, tensor=8e8)).tensor_clock == 8e8


def test_missing_format() -> None:
    assert refusal(FormatError, toy().peak, "fp8") == "toy has no fp8 arithmetic; it has fp64, fp32, fp16"
    with pytest.raises(FormatError):
        toy().ridge("bf16")


def test_frozen() -> None:
    device = toy()
    with pytest.raises(ValidationError):
        device.sm_count = 11  # type: ignore[misc]
    with pytest.raises(TypeError):
        device.matrix_peak["fp16"] = 1.0  # type: ignore[index]


def test_replace_leaves_the_original() -> None:
    device = toy()
    faster = device.replace(dram=device.dram.replace(bandwidth=200e9))
    assert (device.dram.bandwidth, faster.dram.bandwidth) == (100e9, 200e9)
    assert faster.replace(dram=device.dram) == device


@pytest.mark.parametrize(
    "changes",
    [
        {"sm_count": 0},
        {"sm_count": 1.5},
        {"sm_count": True},
        {"l2_capacity": float("nan")},
        {"l2_capacity": float("inf")},
        {"l2_capacity": -1},
        {"l2_capacity": True},
        {"colour": "green"},
        {"matrix_peak": {"fp16": "16 TB/s"}},
        {"matrix_peak": {"fp16": 0.0}},
        {"matrix_peak": ["fp16"]},
        {"vector_peak": {"fp64": 1e12}},
        {"schema_version": 2},
    ],
)
def test_replace_validates(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        toy(**changes)


@pytest.mark.parametrize(
    ("generation", "gigabytes"),
    # Vendors' rounded figures for sixteen lanes, one direction.
    [(1, 4.0), (2, 8.0), (3, 15.8), (4, 31.5), (5, 63.0), (6, 121.0)],
)
def test_pcie_bandwidth(generation: int, gigabytes: float) -> None:
    bandwidth = Pcie(generation=generation, lanes=16).bandwidth_per_direction
    assert bandwidth == pytest.approx(gigabytes * 1e9, rel=5e-3)


def test_frozen_mapping() -> None:
    one, same = FrozenMapping({"a": 1, "b": 2}), FrozenMapping({"b": 2, "a": 1})
    assert one == same == {"a": 1, "b": 2}
    assert hash(one) == hash(same)
    assert copy.deepcopy(one) == one
    assert repr(one) == "{'a': 1, 'b': 2}"
    assert (len(one), list(one), len(FrozenMapping())) == (2, ["a", "b"], 0)
    source = {"a": 1}
    mapping = FrozenMapping(source)
    source["a"] = 2
    assert mapping["a"] == 1


def test_host_falls_back_to_the_default() -> None:
    host = Host(
        name="toy-host",
        description="toy",
        dispatch={"default": 1e-6, "view": 0.0},
        backward_factor=0.5,
        launch=1e-6,
        launch_latency=0,
        sync=0.0,
        step=0.0,
        dram_bandwidth=1e9,
        copy_bandwidth_pageable=1e9,
        copy_bandwidth_pinned=1e9,
    )
    assert host.dispatch_s("view") == 0.0
    assert host.dispatch_s("convolution") == host.dispatch_s("anything else") == 1e-6
    with pytest.raises(ValidationError):
        host.replace(backward_factor=float("nan"))


def test_accumulation_widths() -> None:
    card = toy(vendor="NVIDIA", matrix_peak={"fp16": 8e12, "int8": 32e12, "fp64": 1e12, "bf16": 8e12})
    assert card.accumulations("fp16") == {"fp32": 8e12, "fp16": 8e12}  # one rate for both
    assert card.replace(matrix_peak_fp16_accumulate={"fp16": 16e12}).accumulations("fp16") == {
        "fp32": 8e12,
        "fp16": 16e12,
    }
    assert card.accumulations("int8") == {"int32": 32e12}
    assert card.accumulations("fp64") == {"fp64": 1e12}
    assert card.accumulations("bf16") == {"fp32": 8e12}
    assert card.accumulations("fp8") == {}
    assert card.replace(vendor="AMD").accumulations("fp16") == {"fp32": 8e12}


def test_clocks_behind_peaks() -> None:
    clock = Clock(boost=4e9, vector=3e9)
    assert (toy(clock=clock).vector_clock, toy(clock=clock).tensor_clock, toy().vector_clock) == (3e9, 4e9, 1e9)
