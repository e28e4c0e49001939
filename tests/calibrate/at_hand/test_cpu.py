"""The CPU at hand: a specification out of what Linux reports and two rates, and whether one is of it at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooflinekit.calibrate.at_hand import hardware as at_hand
from rooflinekit.calibrate.at_hand.cpu import Rates, device_of, measured_rates
from rooflinekit.errors import InputError, SpecError
from rooflinekit.hardware import checks
from rooflinekit.hardware.cpu_detection import describe_cpu
from rooflinekit.hardware.spec_text import device_text
from rooflinekit.hardware.specs import load_device


def machine(root: Path, *, cores: int = 4, mhz: float | None = 2500.0, flags: str = "avx2 fma avx512f") -> Path:
    clock = f"cpu MHz\t\t: {mhz}\n" if mhz is not None else ""
    blocks = (
        f"processor\t: {i}\nvendor_id\t: GenuineIntel\nmodel name\t: Odd CPU 7\nphysical id\t: 0\ncore id\t\t: {i}\n"
        f"{clock}flags\t\t: {flags}\n"
        for i in range(cores)
    )
    (root / "proc").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text("\n".join(blocks), "utf-8")
    (root / "proc/meminfo").write_text("MemTotal:       16777216 kB\n", "utf-8")
    cache = root / "sys/devices/system/cpu/cpu0/cache/index2"
    cache.mkdir(parents=True)
    for name, text in (("level", "2"), ("type", "Unified"), ("size", "1024K"), ("shared_cpu_list", "0")):
        (cache / name).write_text(f"{text}\n", "utf-8")
    return root


@pytest.mark.parametrize(
    ("flops", "lanes"),
    [
        (250e9, 16),  # 2 · 4 cores · 16 lanes · 2.5 GHz = 320 GFLOP/s: 78 % of it
        (500e9, 32),  # beyond 320: two units, 640 GFLOP/s
        (900e9, 32),  # the clock was higher than is said: no more than two units
    ],
)
def test_lanes_are_the_fewest_that_reach_what_was_seen(tmp_path: Path, flops: float, lanes: int) -> None:
    device = device_of(Rates(flops=flops, bandwidth=40e9), machine(tmp_path))
    assert (device.name, device.kind, device.vendor, device.sm_count) == ("odd-cpu-7", "cpu", "Intel", 4)
    assert device.lanes_per_sm == lanes
    assert device.vector_peak["fp32"] == 2 * 4 * lanes * 2.5e9
    assert device.vector_peak["fp64"] == device.vector_peak["fp32"] / 2
    assert device.dram.bandwidth == 50e9  # a copy reaches 80 % of it
    assert device.dram.capacity == 2**34
    assert device.l2_capacity == 2**20
    assert all(check.ok for check in checks.run(device))


def test_it_is_read_again_from_its_file(tmp_path: Path) -> None:
    device = device_of(Rates(flops=500e9, bandwidth=40e9), machine(tmp_path))
    file = tmp_path / "odd.yaml"
    file.write_text(device_text(device, "at hand"), "utf-8")
    assert load_device(file) == device


def test_a_slow_memory_is_explained_as_measured(tmp_path: Path) -> None:
    device = device_of(Rates(flops=500e9, bandwidth=4e9), machine(tmp_path))
    assert device.dram.bandwidth == 5e9
    assert "dram.bandwidth_range" in device.explained
    assert all(check.ok for check in checks.run(device))


def test_without_a_clock_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the clock of this CPU is not reported: write a specification with"):
        device_of(Rates(flops=500e9, bandwidth=40e9), machine(tmp_path, mhz=None))


def test_what_is_measured_is_positive() -> None:
    found = measured_rates(1, 0.01)
    assert found.flops > 0
    assert found.bandwidth > 0


def test_a_specification_of_other_hardware_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = describe_cpu(machine(tmp_path))
    monkeypatch.setattr(at_hand.cpu_detection, "describe_cpu", lambda: seen)
    monkeypatch.setattr(at_hand, "usable_cores", lambda: 4)
    with pytest.raises(InputError, match="--spec nvidia-l4: is a GPU; expected the CPU"):
        at_hand.specification("cpu", 0, "nvidia-l4")
    with pytest.raises(InputError, match="--spec generic-cloud-cpu-avx2: is a CPU; expected the GPU"):
        at_hand.specification("cuda", 0, "generic-cloud-cpu-avx2")
    for name, message in (
        ("amd-epyc-7763", "is a CPU by AMD, the one here is by Intel"),
        ("generic-cloud-cpu-avx2", "its vectors are avx2, those of the CPU here avx512"),
        ("generic-cloud-cpu-avx512", "has 16 cores, this process may use 4"),
    ):
        with pytest.raises(InputError, match=message):
            at_hand.check_here(load_device(name), "cpu")
    at_hand.check_here(load_device("generic-cloud-cpu-avx512").replace(sm_count=4), "cpu")


def test_a_cpu_that_is_not_shipped_is_described_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = describe_cpu(machine(tmp_path / "root"))
    made = device_of(Rates(flops=500e9, bandwidth=40e9), tmp_path / "root")
    calls: list[int] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(at_hand.cpu_detection, "describe_cpu", lambda: seen)
    monkeypatch.setattr("rooflinekit.calibrate.at_hand.cpu.measured_rates", lambda cores: calls.append(cores))
    monkeypatch.setattr("rooflinekit.calibrate.at_hand.cpu.device_of", lambda rates: made)
    assert at_hand.cpu_specification() == (made, Path("odd-cpu-7.yaml"))
    assert at_hand.cpu_specification() == (made, Path("odd-cpu-7.yaml"))
    assert len(calls) == 1
