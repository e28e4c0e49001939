"""What changes with what in a what-if device: the rules by which peaks follow units and clocks.

* Vector peaks are SMs x lanes x vector clock: each of them scales them.
* Matrix peaks are SMs x units x tensor clock: SMs scale them, and so does the tensor clock; without one of its own, and
  for fp64 always, that is the boost clock.
* `tensor_cores` scales with SMs.
* Bandwidth is bus width x pin rate: given either, it follows; given the bandwidth alone, the pin rate follows.

Everything else stays: caches, memory size, links, power and price are decisions, not consequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooflinekit.hardware.device import Device


def derive(old: Device, new: Device, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that follow from the difference of `new` to `old` and are not among the `changes` that were given.

    `new` is `old` with the changes alone. Peaks that do not scale are left out.
    """
    sms = new.sm_count / old.sm_count
    lanes = new.lanes_per_sm / old.lanes_per_sm
    vector = sms * lanes * new.vector_clock / old.vector_clock
    matrix = sms * new.tensor_clock / old.tensor_clock
    double = sms * new.clock.boost / old.clock.boost
    found: dict[str, Any] = {}
    for table in ("matrix_peak", "matrix_peak_fp16_accumulate"):
        found[table] = _scaled(getattr(old, table), lambda math: double if math == "fp64" else matrix)
    found["vector_peak"] = _scaled(old.vector_peak, lambda _: vector)
    if old.tensor_cores is not None:
        found["tensor_cores"] = max(1, round(old.tensor_cores * sms))
    given = changes.get("dram")
    if isinstance(given, Mapping):
        found["dram"] = _memory(old, new, given)
    # A whole dram given as a record states its bandwidth; a mapping is completed here.
    return {name: value for name, value in found.items() if name == "dram" or name not in changes}


def _scaled(peaks: Mapping[str, float], factor: Any) -> dict[str, float]:
    return {math: _times(peak, factor(math)) for math, peak in peaks.items()}


def _memory(old: Device, new: Device, given: Mapping[str, Any]) -> Any:
    """The new memory, with its bandwidth or its pin rate following the other."""
    bus = _ratio(old.dram.bus_width, new.dram.bus_width)
    pins = _ratio(old.dram.pin_rate, new.dram.pin_rate)
    if "bandwidth" not in given:
        return new.dram.replace(bandwidth=_times(new.dram.bandwidth, bus * pins))
    if "pin_rate" in given or new.dram.pin_rate is None:
        return new.dram
    return new.dram.replace(pin_rate=_times(new.dram.pin_rate, new.dram.bandwidth / old.dram.bandwidth / bus))


def _ratio(old: float | None, new: float | None) -> float:
    return 1.0 if old is None or new is None else new / old


def _times(value: float, factor: float) -> float:
    """The product to six digits, as a file would write it; the very value where nothing changes."""
    return value if factor == 1 else float(f"{value * factor:.6g}")
