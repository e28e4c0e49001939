"""The CPU at hand as a specification: what Linux reports, and of the rest what a second of measuring tells.

Linux says neither how many FMA units a core has nor how fast the memory is. A product of matrices reaches most of what
the units can do, and a copy most of what the memory can: from the two follow the lanes, of which there are only a few
possible numbers, and the bandwidth. What is nobody's datasheet is marked so in `sources`.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rooflinekit.errors import SpecError
from rooflinekit.hardware import checks
from rooflinekit.hardware.detection import describe_cpu, lanes_of, system_root
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.fields import FrozenMapping

_REACHED = 0.95  # of the peak, at most, by a product of matrices; of its bandwidth a copy reaches _COPIED
_COPIED = 0.8
_ARCHITECTURES = {"x86_64": "x86-64", "AMD64": "x86-64", "arm64": "aarch64"}
_EDGE, _BYTES = 1536, 256 * 2**20  # of the matrices, and of what is copied


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates that a CPU reached on all its cores."""

    flops: float  # of an fp32 product, FLOP/s
    bandwidth: float  # of a copy, reads and writes, byte/s


def measured_rates(cores: int, seconds: float = 0.5) -> Rates:
    """The best of some products and some copies, for about so many seconds each."""
    import torch
    from torch.utils.benchmark import Timer

    def best(call: Callable[[], Any]) -> float:
        timer = Timer("call()", globals={"call": call}, num_threads=cores)
        return min(timer.blocked_autorange(min_run_time=seconds).times)

    a, b, c = (torch.ones(_EDGE, _EDGE) for _ in range(3))
    source, target = (torch.ones(_BYTES // 8) for _ in range(2))
    product_s, copy_s = best(lambda: torch.mm(a, b, out=c)), best(lambda: target.copy_(source))
    return Rates(flops=2 * _EDGE**3 / product_s, bandwidth=_BYTES / copy_s)


def device_of(rates: Rates) -> Device:
    """The specification. Raises SpecError where there is no /proc/cpuinfo, or nothing of a clock in it."""
    said = describe_cpu().mapping
    cores, machine = int(said["sm_count"]), platform.machine()
    clock_hz, how = _clock(said)
    possible = lanes_of(said["compute_capability"])  # the fewest that can have reached so many multiply-adds in a clock
    reached = rates.flops / (2 * cores * clock_hz)
    lanes = next((lanes for lanes in possible if reached <= _REACHED * lanes), possible[-1])
    peak = 2 * cores * lanes * clock_hz
    bandwidth = float(f"{rates.bandwidth / _COPIED:.3g}")
    device = Device.model_validate(
        {
            "name": said["name"], "kind": "cpu", "display_name": said["display_name"] or "CPU at hand",
            "aliases": said["aliases"], "vendor": said["vendor"] or "unknown",
            "architecture": _ARCHITECTURES.get(machine, machine),
            "compute_capability": said["compute_capability"], "sm_count": cores, "lanes_per_sm": lanes,
            "clock": {"boost": clock_hz}, "threads_per_sm": said["threads_per_sm"],
            "dram": {"capacity": said["dram"]["capacity"], "bandwidth": bandwidth},
            "l2_capacity": said["l2_capacity"] or said["last_level_cache"] or "1 MiB",
            "last_level_cache": said["last_level_cache"], "l1_capacity_per_sm": said["l1_capacity_per_sm"],
            "vector_peak": {"fp64": peak / 2, "fp32": peak},
            "sources": {
                "processors": f"/proc and /sys; clock {how}; {lanes} lanes, as an fp32 product reaches "
                f"{rates.flops / peak:.0%} of their peak",
                "memory": f"capacity as Linux has it; a copy of 128 MiB sustains {rates.bandwidth / 1e9:.3g} GB/s, "
                f"taken for {_COPIED:.0%} of the bandwidth",
                "caches": "/sys/devices/system/cpu",
                "peaks": "2 x cores x lanes x clock; half of it for fp64",
            },
            "confidence": "low",
            "notes": "Made from what Linux reports and a second of measuring: a datasheet knows better.",
        }
    )  # fmt: skip
    failed = {check.name: f"as measured: {check.note}"[:200] for check in checks.run(device) if not check.ok}
    return device.model_copy(update={"explained": FrozenMapping(failed)}) if failed else device


def _clock(said: Mapping[str, Any]) -> tuple[float, str]:
    """Hz, and where that is from."""
    boost = said["clock"]["boost"]
    if boost is not None:
        from rooflinekit.units import parse_quantity

        return parse_quantity(boost, "Hz"), "the highest of cpufreq"
    text = (system_root() / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    seen = [float(number) for number in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", text, re.MULTILINE)]
    if not seen or not 100 < max(seen) < 20_000:
        raise SpecError(
            "the clock of this CPU is not reported: write a specification with `rooflinekit specs detect --cpu --out "
            "mine.yaml`, fill in what is left empty, and pass --spec mine.yaml"
        )
    return round(max(seen) * 1e6, -6), "as /proc/cpuinfo has it now"
