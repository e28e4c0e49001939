"""What NVML says of a GPU while it works: clock, power, temperature, what holds its clock down.

`nvml` stands for the module `pynvml`. Whatever is missing, older than the GPU, or closed to containers is left out.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import reduce
from importlib import import_module
from operator import or_
from typing import Any

from rooflinekit.hardware.detection import answers, nvml_handle

#: Bits of NVML's reasons for a clock below the highest, save that nothing is to be done.
THROTTLES = {
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature",
    0x40: "temperature, by hardware",
    0x80: "power brake",
    0x100: "display clocks",
}
_INTERVAL_S = 0.02
_SM = 1  # the number of that clock in NVML


def load_nvml() -> Any:
    """The module, started; None where it is not installed or does not start."""
    with contextlib.suppress(Exception):
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        return nvml
    return None


def throttles(state: float) -> tuple[str, ...]:
    """The reasons that a state's `throttle` names."""
    return tuple(word for bit, word in THROTTLES.items() if int(state) & bit)


class GpuState:
    """Clock, temperature and power of one GPU, read through NVML."""

    def __init__(self, nvml: Any, index: int, bus_id: str | None, interval_s: float = _INTERVAL_S) -> None:
        """bus_id: "00000000:1b:00.0"; without one, `index` counts all GPUs of the machine, hidden ones too."""
        self.nvml = nvml
        self.interval_s = interval_s
        self.handle: Any = None
        with contextlib.suppress(Exception):
            self.handle = nvml_handle(nvml, index, bus_id)

    def read(self) -> dict[str, float]:
        """Clock in Hz, power in W, temperature in °C, and the bits of `throttle`, now."""
        nvml, handle = self.nvml, self.handle
        return answers(
            {
                "clock": lambda: nvml.nvmlDeviceGetClockInfo(handle, _SM) * 1e6,
                "power": lambda: nvml.nvmlDeviceGetPowerUsage(handle) * 1e-3,
                "temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, 0),
                "throttle": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & sum(THROTTLES),
            }
        )

    @contextlib.contextmanager
    def watched(self) -> Iterator[dict[str, float]]:
        """Reads again and again while the block runs; what it yields is filled in at the end.

        Clock and power are means, `clock_min` the lowest clock, the temperature the highest, `throttle` every reason
        that was named, `readings` how often was asked.
        """
        readings: list[dict[str, float]] = []
        found: dict[str, float] = {}
        if self.handle is None:
            yield found
            return
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(self.interval_s):
                readings.append(self.read())

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield found
            readings.append(self.read())
        finally:
            ended.set()
            thread.join()
        columns = {name: [reading[name] for reading in readings if name in reading] for name, _ in _KEPT.values()}
        found |= {name: made(columns[column]) for name, (column, made) in _KEPT.items() if columns[column]}
        found |= {"readings": float(len(readings))} if found else {}

    def environment(self) -> dict[str, str]:
        """The driver and the limits that somebody has set; "unknown" where NVML does not say."""
        nvml, handle = self.nvml, self.handle
        said = answers(
            {
                "driver": lambda: str(nvml.nvmlSystemGetDriverVersion()),
                "power limit": lambda: f"{nvml.nvmlDeviceGetEnforcedPowerLimit(handle) * 1e-3:g} W",
                "clock limit": lambda: f"{nvml.nvmlDeviceGetMaxClockInfo(handle, _SM):g} MHz",
            }
        )
        return dict.fromkeys(("driver", "power limit", "clock limit"), "unknown") | said


#: What is kept of all readings: of which number, and how it is made of them.
_KEPT: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "clock": ("clock", lambda values: sum(values) / len(values)),
    "power": ("power", lambda values: sum(values) / len(values)),
    "clock_min": ("clock", min),
    "temperature": ("temperature", max),
    "throttle": ("throttle", lambda values: float(reduce(or_, map(int, values)))),
}
