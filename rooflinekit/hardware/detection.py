"""A draft specification of the GPU at hand, out of what torch and NVML report.

What neither reports is left empty and named, so that a person fills it in; what is worked out says from what. Nothing
is imported here: the caller hands over torch's device properties and the NVML module where it has them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rooflinekit.errors import SpecError
from rooflinekit.hardware.checks import ARCHITECTURES, Architecture, halve
from rooflinekit.hardware.device import SCHEMA_VERSION
from rooflinekit.hardware.fields import write_quantity
from rooflinekit.units import format_quantity

_AMD_LANES = 64
_UNSTATED = dict.fromkeys(("process_node", "process_nm", "launch_date"))  # by any driver or system
T = TypeVar("T")

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
        return tuple(_empty(self.mapping))


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
    known = ARCHITECTURES.get(capability, Architecture())
    lanes = _AMD_LANES if hip else known.lanes
    sms = int(properties.multi_processor_count)
    clock = nvml.get("clock") or ask("clock_rate", 1e3)
    halved = "GeForce" in properties.name and known.units > 0
    mapping: dict[str, Any] = {
        **heading(properties.name, "gpu"),
        "vendor": "AMD" if hip else "NVIDIA",
        "architecture": known.name,
        "compute_capability": capability,
        **_UNSTATED,
        "sm_count": sms,
        "lanes_per_sm": lanes,
        **({"tensor_cores": known.units * sms} if known.units else {}),
        **({"tensor_rate": "half-accumulate"} if halved else {}),
        "clock": {"base": None, "boost": text(clock, "Hz")},
        **_memory(ask),
        "registers_per_sm": getattr(properties, "regs_per_multiprocessor", None),
        "threads_per_sm": getattr(properties, "max_threads_per_multi_processor", None),
        **_peaks(known, sms, lanes, clock, "half-accumulate" if halved else "full"),
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
    try:
        nvml.nvmlInit()
        handle = nvml_handle(nvml, index, bus_id)
    except nvml.NVMLError:
        return {}
    return answers(
        {
            "clock": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
            "power": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) * 1e-3,
            "generation": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            "lanes": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        }
    )


def nvml_handle(nvml: Any, index: int, bus_id: str | None) -> Any:
    """What NVML knows a GPU by, of its bus, or of its number among all."""
    by_bus = bus_id is not None
    return nvml.nvmlDeviceGetHandleByPciBusId(bus_id) if by_bus else nvml.nvmlDeviceGetHandleByIndex(index)


def answers(questions: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """NVML's answers, without those to questions that it refuses."""
    found = {}
    for name, question in questions.items():
        with contextlib.suppress(Exception):  # each function has errors of its own
            found[name] = question()
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


def _peaks(known: Architecture, sms: int, lanes: int | None, clock: float | None, rate: str) -> dict[str, Any]:
    """Peaks out of units, rates per clock and the clock, as far as all three are known."""
    if lanes is None or clock is None:
        return {"vector_peak": {"fp32": None}}
    lane_peak = 2 * sms * lanes * clock
    vector = {"fp32": 1.0, **known.vector}
    found: dict[str, Any] = {}
    if known.matrix:
        table = {math: 2 * sms * halve(fma, math, rate) * clock for math, fma in known.matrix.items()}
        found["matrix_peak"] = {math: _peak_text(peak) for math, peak in table.items()}
    found["vector_peak"] = {math: _peak_text(lane_peak * ratio) for math, ratio in vector.items()}
    return found


def _peak_text(value: float) -> str:
    return format_quantity(float(f"{value:.4g}"), "flop/s", digits=None)


def _comments(mapping: Mapping[str, Any]) -> dict[str, str]:
    found = {
        "clock.boost": "the driver's maximum; the vendor's boost clock may be lower",
        "dram.capacity": "what programs see; vendors print a little more",
        "dram.bandwidth": "bus width x pin rate / 8",
        "dram.pin_rate": "twice the memory clock",
        "tensor_rate": "of GeForce cards",
        **dict.fromkeys(
            ("matrix_peak", "vector_peak"), "worked out: 2 x SMs x multiply-adds per clock x the clock above, dense"
        ),
    }
    return found | dict.fromkeys(_empty(mapping), UNKNOWN)


def _empty(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _empty(value, f"{prefix}{key}.")
        elif value is None:
            yield prefix + key


# The vectors that CPUs compute with: their names, which contain which, and the flags by which Linux reports them.


@dataclass(frozen=True, slots=True)
class Vectors:
    """One set of instructions. A CPU that has it also has the one that it contains."""

    name: str  # in specifications, as `compute_capability`
    flags: frozenset[str]  # of /proc/cpuinfo, beside those of what it contains
    lanes: tuple[int, ...]  # fp32 multiply-adds of a core in a clock that are to be had with it
    contains: str | None = None


#: Each after the one that it contains. Lanes: of one or two FMA units; of Arm's 128 bits up to four.
SETS = {
    found.name: found
    for found in (
        Vectors("neon", frozenset({"asimd"}), (4, 8, 16)),
        Vectors("avx2", frozenset({"avx2", "fma"}), (8, 16)),
        Vectors("avx512", frozenset({"avx512f"}), (16, 32), "avx2"),
        Vectors("avx512-amx", frozenset({"amx_bf16", "amx_int8"}), (16, 32), "avx512"),
    )
}


def widest(flags: Collection[str]) -> str | None:
    """The set of a CPU with these flags that contains its others; None where it has none of them."""
    found: str | None = None
    for one in SETS.values():
        if one.flags <= set(flags) and one.contains in (None, found):
            found = one.name
    return found


def lanes_of(name: str | None) -> tuple[int, ...]:
    """The possible numbers of fp32 multiply-adds of a core in a clock; where no set is known, all of them."""
    sets = [SETS[name]] if name in SETS else SETS.values()
    return tuple(sorted({lanes for one in sets for lanes in one.lanes}))


def contained(name: str | None) -> Iterator[str]:
    """A set and those within it, from the widest on; nothing for None and names that are not known."""
    while name in SETS:
        yield name
        name = SETS[name].contains


# A draft specification of the CPU at hand, out of what Linux reports in /proc and /sys.
#
# Neither says how many FMA units a core has, how fast the memory is, nor which clock all cores sustain: these stay
# empty.


ROOT = "ROOFLINEKIT_SYSTEM_ROOT"  # the variable that names a folder with the `proc` and `sys` of another machine
_DRAM = ("type", "capacity", "bandwidth", "bus_width", "pin_rate", "channels")
_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "ARM": "Arm"}


def system_root() -> Path:
    """Under which /proc and /sys are read."""
    return Path(os.environ.get(ROOT) or "/")


def describe_cpu() -> Found:
    """The draft of all sockets together, of the files under `system_root`. Raises SpecError without /proc/cpuinfo."""
    root = system_root()
    processors = _processors(root / "proc/cpuinfo")
    first = processors[0]
    cores = {(p.get("physical id", "0"), p.get("core id", p.get("processor", ""))) for p in processors}
    sockets = {physical for physical, _ in cores}
    name = first.get("model name", "")
    flags = frozenset((first.get("flags") or first.get("Features") or "").split())
    caches = _caches(root / "sys/devices/system/cpu")
    frequencies = root / "sys/devices/system/cpu/cpu0/cpufreq"
    total = re.search(r"^MemTotal:\s*(\d+) kB", _word(root / "proc/meminfo"), re.MULTILINE)
    words = (_word(frequencies / file) for file in ("base_frequency", "cpuinfo_max_freq"))
    base, boost = (int(kilohertz) * 1e3 if kilohertz.isdigit() and int(kilohertz) else None for kilohertz in words)
    mapping: dict[str, Any] = {
        **heading(name, "cpu"),
        "vendor": _VENDORS.get(first.get("vendor_id", ""), first.get("vendor_id")),
        "architecture": None,
        "compute_capability": widest(flags),
        **_UNSTATED,
        **({"device_scope": f"{len(sockets)} sockets together"} if len(sockets) > 1 else {}),
        "sm_count": len(cores),
        "lanes_per_sm": None,
        "clock": {"base": text(base, "Hz"), "boost": text(boost, "Hz"), "vector": None},
        "dram": {**dict.fromkeys(_DRAM), "capacity": text(float(total[1]) * 1024 if total else None, "byte")},
        "l2_capacity": text(caches.get((2, "all")), "byte"),
        "last_level_cache": text(caches.get((3, "all")), "byte"),
        "l1_capacity_per_sm": text(caches.get((1, "one")), "byte"),
        "threads_per_sm": len(processors) // len(cores),
        "vector_peak": {"fp64": None, "fp32": None},
    }
    comments = dict.fromkeys(_empty(mapping), UNKNOWN) | _cpu_comments(flags, name)
    return Found(mapping=mapping, comments=comments)


def _cpu_comments(flags: frozenset[str], name: str) -> dict[str, str]:
    lanes = ", ".join(map(str, lanes_of(widest(flags))))
    found = {
        "lanes_per_sm": f"fp32 multiply-adds per core and clock, by the number of FMA units: one of {lanes}; {UNKNOWN}",
        "clock.vector": "what all cores sustain under wide vectors, where it is not boost",
        "dram.bandwidth": "channels x 64 bit x transfer rate / 8",
        "dram.capacity": "what Linux has; a little less than is fitted",
        "vector_peak": "2 x cores x lanes x clock; half of it for fp64",
    }
    if "hypervisor" in flags:
        found["sm_count"] = "of this virtual machine; they may be threads that share cores"
    if not name:
        found["name"] = "no model name is reported"
    return found


def _processors(path: Path) -> list[dict[str, str]]:
    """The keys of each logical processor."""
    try:
        content = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}; CPUs are detected on Linux alone") from error
    blocks = [block for block in content.split("\n\n") if re.search(r"^processor\s*:", block, re.MULTILINE)]
    if not blocks:
        raise SpecError(f"{path}: expected blocks that begin with 'processor'; got none")
    lines = [[line.partition(":") for line in block.splitlines()] for block in blocks]
    return [{key.strip(): value.strip() for key, _, value in block} for block in lines]


def _caches(cpus: Path) -> dict[tuple[int, str], float]:
    """Bytes of each level: "one" cache, and "all" that are distinct; instruction caches aside."""
    found: dict[tuple[int, str], dict[str, float]] = {}
    for index in sorted(cpus.glob("cpu[0-9]*/cache/index[0-9]*")):
        level, kind, size = (_word(index / file) for file in ("level", "type", "size"))
        match = re.fullmatch(r"(\d+)([KMG])", size)
        if kind == "Instruction" or not level.isdigit() or match is None:
            continue
        capacity = int(match[1]) * 2 ** {"K": 10, "M": 20, "G": 30}[match[2]]
        # One cache appears under every processor that shares it.
        found.setdefault((int(level), "all"), {})[_word(index / "shared_cpu_list") or str(index)] = capacity
    sums = {key: sum(capacities.values()) for key, capacities in found.items()}
    return sums | {(level, "one"): max(capacities.values()) for (level, _), capacities in found.items()}


def _word(path: Path) -> str:
    """The text of the file, or "" where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
