"""A draft specification of the CPU at hand, out of what Linux reports in /proc and /sys.

Neither says how many FMA units a core has, how fast the memory is, nor which clock all cores sustain: these stay empty.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from rooflinekit.errors import SpecError
from rooflinekit.hardware.detection import UNKNOWN, Found, heading, text
from rooflinekit.hardware.vectors import lanes_of, widest

ROOT = "ROOFLINEKIT_SYSTEM_ROOT"  # the variable that names a folder with the `proc` and `sys` of another machine
_DRAM = ("type", "capacity", "bandwidth", "bus_width", "pin_rate", "channels")
_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "ARM": "Arm"}


def system_root() -> Path:
    """Under which /proc and /sys are read."""
    return Path(os.environ.get(ROOT) or "/")


def describe_cpu() -> Found:
    """The draft of all sockets together, out of the files under `system_root`.

    Raises SpecError where there is no /proc/cpuinfo, as on systems other than Linux.
    """
    root = system_root()
    processors = _processors(root / "proc/cpuinfo")
    first = processors[0]
    cores = {(p.get("physical id", "0"), p.get("core id", p.get("processor", ""))) for p in processors}
    sockets = {physical for physical, _ in cores}
    name = first.get("model name", "")
    flags = frozenset((first.get("flags") or first.get("Features") or "").split())
    caches = _caches(root / "sys/devices/system/cpu")
    frequencies = root / "sys/devices/system/cpu/cpu0/cpufreq"
    base, boost = (_kilohertz(frequencies / file) for file in ("base_frequency", "cpuinfo_max_freq"))
    mapping: dict[str, Any] = {
        **heading(name, "cpu"),
        "vendor": _VENDORS.get(first.get("vendor_id", ""), first.get("vendor_id")),
        "architecture": None,
        "compute_capability": widest(flags),
        "process_node": None,
        "launch_date": None,
        **({"device_scope": f"{len(sockets)} sockets together"} if len(sockets) > 1 else {}),
        "sm_count": len(cores),
        "lanes_per_sm": None,
        "clock": {"base": text(base, "Hz"), "boost": text(boost, "Hz"), "vector": None},
        "dram": {**dict.fromkeys(_DRAM), "capacity": text(_memory(root / "proc/meminfo"), "byte")},
        "l2_capacity": text(caches.get((2, "all")), "byte"),
        "last_level_cache": text(caches.get((3, "all")), "byte"),
        "l1_capacity_per_sm": text(caches.get((1, "one")), "byte"),
        "threads_per_sm": len(processors) // len(cores),
        "vector_peak": {"fp64": None, "fp32": None},
    }
    found = Found(mapping=mapping, comments={})
    return Found(mapping=mapping, comments=dict.fromkeys(found.unknown, UNKNOWN) | _comments(flags, name))


def _comments(flags: frozenset[str], name: str) -> dict[str, str]:
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


def _memory(path: Path) -> float | None:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _word(path), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _kilohertz(path: Path) -> float | None:
    word = _word(path)
    return int(word) * 1e3 if word.isdigit() and int(word) else None


def _word(path: Path) -> str:
    """What the file says; nothing where it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
