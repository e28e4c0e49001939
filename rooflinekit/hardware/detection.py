"""A draft specification of the GPU at hand, out of what torch and NVML report.

What neither reports is left empty and named, so that a person fills it in; what is worked out says from what. Nothing
is imported here: the caller hands over torch's device properties and the NVML module where it has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rooflinekit.hardware.device import SCHEMA_VERSION
from rooflinekit.hardware.fields import write_quantity
from rooflinekit.hardware.rates import MATRIX_FMA, VECTOR_RATIO, halve
from rooflinekit.units import format_quantity

# fp32 multiply-add lanes and matrix units of an SM, and what the architecture is called, by CUDA compute capability.
_ARCHITECTURES = {
    "3.7": ("Kepler", 192, 0),
    "5.0": ("Maxwell", 128, 0),
    "5.2": ("Maxwell", 128, 0),
    "6.0": ("Pascal", 64, 0),
    "6.1": ("Pascal", 128, 0),
    "7.0": ("Volta", 64, 8),
    "7.5": ("Turing", 64, 8),
    "8.0": ("Ampere", 64, 4),
    "8.6": ("Ampere", 128, 4),
    "8.7": ("Ampere", 128, 4),
    "8.9": ("Ada Lovelace", 128, 4),
    "9.0": ("Hopper", 128, 4),
    "10.0": ("Blackwell", 128, 4),
    "10.3": ("Blackwell Ultra", 128, 4),
    "12.0": ("Blackwell", 128, 4),
}
_AMD_LANES = 64

UNKNOWN = "not reported; see the datasheet"
_TO_DO = "delete draft and draft_reason when every number is filled in and agrees with the datasheet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A draft: the nested mapping of the file, comments by dotted key, and the keys that are left empty."""

    mapping: Mapping[str, Any]
    comments: Mapping[str, str]

    @property
    def unknown(self) -> tuple[str, ...]:
        """Dotted keys without a value, in the order of the file."""
        return tuple(_empty(self.mapping, ""))


def describe_gpu(properties: Any, nvml: Mapping[str, float], *, hip: bool = False) -> Found:
    """The draft of one GPU.

    properties: of `torch.cuda.get_device_properties`. nvml: what `read_nvml` found, or empty. hip: whether torch is a
    ROCm build, where the capability is the target's name.
    """

    def ask(name: str, scale: float = 1) -> float | None:
        value = getattr(properties, name, None)
        return None if not value else value * scale

    target = str(getattr(properties, "gcnArchName", "")).split(":")[0]
    capability = target if hip else f"{properties.major}.{properties.minor}"
    architecture, lanes, units = _ARCHITECTURES.get(capability, (None, _AMD_LANES if hip else None, 0))
    sms = int(properties.multi_processor_count)
    clock = nvml.get("clock") or ask("clock_rate", 1e3)
    halved = "GeForce" in properties.name and units > 0
    mapping: dict[str, Any] = {
        **heading(properties.name, "gpu"),
        "vendor": "AMD" if hip else "NVIDIA",
        "architecture": architecture,
        "compute_capability": capability,
        "process_node": None,
        "launch_date": None,
        "sm_count": sms,
        "lanes_per_sm": lanes,
        **({"tensor_cores": units * sms} if units else {}),
        **({"tensor_rate": "half-accumulate"} if halved else {}),
        "clock": {"base": None, "boost": text(clock, "Hz")},
        **_memory(ask),
        "registers_per_sm": getattr(properties, "regs_per_multiprocessor", None),
        "threads_per_sm": getattr(properties, "max_threads_per_multi_processor", None),
        **_peaks(capability, sms, lanes, clock, "half-accumulate" if halved else "full"),
        "interconnect": None,
        "pcie": {key: int(nvml[key]) for key in ("generation", "lanes")}
        if {"generation", "lanes"} <= {*nvml}
        else None,
        "board_power": text(nvml.get("power"), "W"),
    }
    return Found(mapping=mapping, comments=_comments(mapping))


def _memory(ask: Callable[..., float | None]) -> dict[str, Any]:
    """The keys of memory and caches."""
    bus, pin = ask("memory_bus_width"), ask("memory_clock_rate", 2e3)
    return {
        "dram": {
            "type": None,
            "capacity": text(ask("total_memory"), "byte"),
            "bandwidth": text(bus * pin / 8 if bus and pin else None, "byte/s"),
            "bus_width": text(bus, "bit"),
            "pin_rate": text(pin, "bit/s"),
        },
        "l2_capacity": text(ask("L2_cache_size"), "byte"),
        "l1_capacity_per_sm": None,
        "shared_memory_per_sm": text(ask("shared_memory_per_multiprocessor"), "byte"),
        "shared_memory_per_block": text(ask("shared_memory_per_block_optin") or ask("shared_memory_per_block"), "byte"),
    }


def read_nvml(nvml: Any, index: int, bus_id: str | None) -> dict[str, float]:
    """What NVML adds: clock in Hz, power in W, PCIe generation and lanes; without whatever it refuses to say.

    bus_id: "00000000:1b:00.0"; without one, `index` counts all GPUs of the machine, hidden ones too.
    """
    found: dict[str, float] = {}
    try:
        nvml.nvmlInit()
        by_bus = bus_id is not None
        handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_id) if by_bus else nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:
        return found
    questions: dict[str, tuple[Callable[[], float], float]] = {
        "clock": (lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM), 1e6),
        "power": (lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle), 1e-3),
        "generation": (lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), 1),
        "lanes": (lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle), 1),
    }
    for name, (question, scale) in questions.items():
        try:
            found[name] = question() * scale
        except nvml.NVMLError:
            continue
    return found


def bus_id(properties: Any) -> str | None:
    """How NVML names the GPU, "00000000:1b:00.0"; None where torch is too old to say."""
    try:
        return f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    except AttributeError:
        return None


def heading(name: str, kind: str) -> dict[str, Any]:
    """The first keys of a draft."""
    return {
        "schema": SCHEMA_VERSION,
        "name": "-".join(re.findall(r"[a-z0-9]+", name.lower())) or f"unnamed-{kind}",
        "draft": True,
        "draft_reason": f"written by `rooflinekit specs detect`, not compared with a datasheet; {_TO_DO}",
        **({"kind": "cpu"} if kind == "cpu" else {}),
        "display_name": name or None,
        "aliases": [name] if name else [],
    }


def text(value: float | None, unit: str) -> str | None:
    """A quantity as a file writes it; None stays None."""
    if value is None:
        return None
    if unit == "byte" and value > 2**30 and value % 2**20:
        return format_quantity(value, unit, digits=4, binary=True)  # memory of which a driver keeps some pages
    return write_quantity(value, unit)


def _peaks(capability: str, sms: int, lanes: int | None, clock: float | None, rate: str) -> dict[str, Any]:
    """Peaks out of units, rates per clock and the clock, as far as all three are known."""
    if lanes is None or clock is None:
        return {"vector_peak": {"fp32": None}}
    lane_peak = 2 * sms * lanes * clock
    vector = {"fp32": 1.0, **VECTOR_RATIO.get(capability, {})}
    found: dict[str, Any] = {}
    matrix = MATRIX_FMA.get(capability, {})
    if matrix:
        table = {math: 2 * sms * halve(fma, math, rate) * clock for math, fma in matrix.items()}
        found["matrix_peak"] = {math: _peak_text(peak) for math, peak in table.items()}
    found["vector_peak"] = {math: _peak_text(lane_peak * ratio) for math, ratio in vector.items()}
    return found


def _peak_text(value: float) -> str:
    return format_quantity(float(f"{value:.4g}"), "flop/s", digits=None)


def _comments(mapping: Mapping[str, Any]) -> dict[str, str]:
    found = dict.fromkeys(_empty(mapping, ""), UNKNOWN)
    found["clock.boost"] = "the driver's maximum; the vendor's boost clock may be lower"
    found["dram.capacity"] = "what programs see; vendors print a little more"
    if mapping["dram"]["bandwidth"]:
        found["dram.bandwidth"] = "bus width x pin rate / 8"
        found["dram.pin_rate"] = "twice the memory clock"
    for table in ("matrix_peak", "vector_peak"):
        found[table] = "worked out: 2 x SMs x multiply-adds per clock x the clock above, dense"
    if "tensor_rate" in mapping:
        found["tensor_rate"] = "of GeForce cards"
    empty = [key for key in found if found[key] != UNKNOWN and _value(mapping, key) is None]
    return found | dict.fromkeys(empty, UNKNOWN)


def _value(mapping: Mapping[str, Any], path: str) -> Any:
    value: Any = mapping
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _empty(mapping: Mapping[str, Any], prefix: str) -> list[str]:
    found = []
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            found += _empty(value, f"{prefix}{key}.")
        elif value is None:
            found.append(prefix + key)
    return found
