"""The CPU at hand: a specification out of what Linux reports and two rates, and whether one is of it at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import AVX512, CPUS, stand_in

from rooflinekit.calibrate.local_hardware import hardware as local_hardware
from rooflinekit.calibrate.local_hardware.cpu import Rates, device_of, measured_rates
from rooflinekit.errors import InputError, SpecError
from rooflinekit.hardware import checks
from rooflinekit.hardware.specs import load_device
from rooflinekit.hardware.yaml_file import spec_text


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """4 cores with AVX-512 at 2.5 GHz."""
    stand_in(monkeypatch, tmp_path / "machine", flags=AVX512, clocks=False, mhz=2500)


@pytest.mark.parametrize(
    ("flops", "lanes"),
    [
        (250e9, 16),  # 2 · 4 cores · 16 lanes · 2.5 GHz = 320 GFLOP/s: 78 % of it
        (500e9, 32),  # beyond 320: two units, 640 GFLOP/s
        (900e9, 32),  # the clock was higher than is said: no more than two units
    ],
)
def test_lanes_are_the_fewest_that_reach_what_was_seen(machine: None, flops: float, lanes: int) -> None:
    device = device_of(Rates(flops=flops, bandwidth=40e9))
    assert (device.name, device.kind, device.vendor, device.sm_count) == ("some-cpu-3-00ghz", "cpu", "Intel", 4)
    assert device.lanes_per_sm == lanes
    assert device.vector_peak["fp32"] == 2 * 4 * lanes * 2.5e9
    assert device.vector_peak["fp64"] == device.vector_peak["fp32"] / 2
    assert device.dram.bandwidth == 50e9  # a copy reaches 80 % of it
    assert device.dram.capacity == 2**35
    assert device.l2_capacity == 2**22  # 1 MiB a core
    assert all(check.ok for check in checks.run(device))


def test_it_is_read_again_from_its_file(machine: None, tmp_path: Path) -> None:
    device = device_of(Rates(flops=500e9, bandwidth=40e9))
    file = tmp_path / "odd.yaml"
    file.write_text(spec_text(device, "at hand"), "utf-8")
    assert load_device(file) == device


def test_a_slow_memory_is_explained_as_measured(machine: None) -> None:
    device = device_of(Rates(flops=500e9, bandwidth=4e9))
    assert device.dram.bandwidth == 5e9
    assert "dram.bandwidth_range" in device.explained
    assert all(check.ok for check in checks.run(device))


def test_without_a_clock_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, tmp_path / "machine", clocks=False)
    with pytest.raises(SpecError, match="the clock of this CPU is not reported: write a specification with"):
        device_of(Rates(flops=500e9, bandwidth=40e9))


def test_what_is_measured_is_positive() -> None:
    found = measured_rates(1, 0.01)
    assert found.flops > 0
    assert found.bandwidth > 0


def test_a_specification_of_other_hardware_is_refused(machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_hardware, "usable_cores", lambda: 4)
    with pytest.raises(InputError, match="--spec nvidia-l4: is a GPU; expected the CPU"):
        local_hardware.specification("cpu", 0, "nvidia-l4")
    with pytest.raises(InputError, match="--spec generic-cloud-cpu-avx2: is a CPU; expected the GPU"):
        local_hardware.specification("cuda", 0, "generic-cloud-cpu-avx2")
    for name, message in (
        ("amd-epyc-7763", "is a CPU by AMD, the one here is by Intel"),
        ("generic-cloud-cpu-avx512", "has 16 cores, this process may use 4"),
    ):
        with pytest.raises(InputError, match=message):
            local_hardware.check_here(load_device(name), "cpu")
    assert local_hardware.check_here(load_device("generic-cloud-cpu-avx512").replace(sm_count=4), "cpu") is None


WITHIN = {
    "avx2": {"avx2"},
    "avx512": {"avx2", "avx512"},
    "avx512-amx": {"avx2", "avx512", "avx512-amx"},
    "neon": {"neon"},
}


@pytest.mark.parametrize("has", WITHIN)
@pytest.mark.parametrize("stated", WITHIN)
def test_only_vectors_that_the_cpu_lacks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: str, stated: str
) -> None:
    stand_in(monkeypatch, tmp_path / "machine", flags=CPUS[has])
    device = load_device("generic-cloud-cpu-avx2").replace(compute_capability=stated, sm_count=1)
    if stated not in WITHIN[has]:
        message = f"its vectors are {stated}, the CPU here has {has} and lacks them: pass the specification of this CPU"
        with pytest.raises(InputError, match=message):
            local_hardware.check_here(device, "cpu")
    elif stated == has:
        assert local_hardware.check_here(device, "cpu") is None
    else:
        said = local_hardware.check_here(device, "cpu")
        assert f"its vectors are {stated}, those of the CPU here {has}: what PyTorch computes with more" in said


def test_a_cpu_that_is_not_shipped_is_described_once(
    machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = device_of(Rates(flops=500e9, bandwidth=40e9))
    calls: list[int] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rooflinekit.calibrate.local_hardware.cpu.measured_rates", lambda cores: calls.append(cores))
    monkeypatch.setattr("rooflinekit.calibrate.local_hardware.cpu.device_of", lambda rates: made)
    assert local_hardware.cpu_specification() == (made, Path("some-cpu-3-00ghz.yaml"))
    assert local_hardware.cpu_specification() == (made, Path("some-cpu-3-00ghz.yaml"))
    assert len(calls) == 1
