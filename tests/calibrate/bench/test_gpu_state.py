"""NVML, played: what is read while a block runs, and what is left out where it does not say."""

import threading
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from rooflinekit.calibrate.bench.gpu_state import GpuState, throttles


class Nvml(SimpleNamespace):
    """A GPU that slows down from reading to reading; `enough` is set once it was read as often as wanted."""

    def __init__(self, wanted: int = 3) -> None:
        clocks = chain([1980, 1500], repeat(1740))
        powers = chain([600e3, 690e3], repeat(660e3))  # mW
        degrees = chain([50, 71], repeat(64))
        self.reasons = chain([0x1, 0x4, 0x20], repeat(0x0))
        self.wanted, self.read, self.enough = wanted, 0, threading.Event()
        super().__init__(
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetClockInfo=lambda handle, kind: next(clocks),
            nvmlDeviceGetPowerUsage=lambda handle: next(powers),
            nvmlDeviceGetTemperature=lambda handle, sensor: next(degrees),
            nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700e3,
            nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
            nvmlSystemGetDriverVersion=lambda: "580.95",
        )

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        self.read += 1
        if self.read >= self.wanted:
            self.enough.set()
        return next(self.reasons)


def test_a_reading() -> None:
    found = GpuState(Nvml(), 0, None).read()
    assert found == {"clock": 1.98e9, "power": 600.0, "temperature": 50.0, "throttle": 0.0}  # idle is no reason


def test_it_is_read_while_the_block_runs() -> None:
    nvml = Nvml(wanted=3)
    with GpuState(nvml, 0, None, interval_s=0.001).watched() as found:
        assert nvml.enough.wait(30)
        assert found == {}
    assert found["readings"] == nvml.read >= 3
    assert found["clock_min"] == 1.5e9
    assert found["temperature"] == 71
    assert throttles(found["throttle"]) == ("power cap", "temperature")
    # Means: between the lowest and the highest that were read
    assert 1.5e9 < found["clock"] < 1.98e9
    assert 600 < found["power"] < 690


def test_a_short_block_is_read_once() -> None:
    nvml = Nvml()
    with GpuState(nvml, 0, None, interval_s=60).watched() as found:
        pass
    assert (found["readings"], found["clock"], found["clock_min"], nvml.read) == (1, 1.98e9, 1.98e9, 1)


def test_the_thread_ends_with_a_failing_block() -> None:
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="no kernel"), GpuState(Nvml(), 0, None, interval_s=0.001).watched():
        raise RuntimeError("no kernel")
    assert threading.active_count() == before


@pytest.mark.parametrize("nvml", [None, object()])
def test_without_nvml(nvml: Any) -> None:
    state = GpuState(nvml, 0, "00000000:1b:00.0")
    with state.watched() as found:
        pass
    assert (found, state.read()) == ({}, {})
    assert state.environment() == {"driver": "unknown", "power limit": "unknown", "clock limit": "unknown"}


def test_limits_are_of_the_environment() -> None:
    assert GpuState(Nvml(), 0, None).environment() == {
        "driver": "580.95", "power limit": "700 W", "clock limit": "1980 MHz",
    }  # fmt: skip


def test_reasons_have_words() -> None:
    assert throttles(0x1) == ()
    assert throttles(0x4 | 0x40) == ("power cap", "temperature, by hardware")
