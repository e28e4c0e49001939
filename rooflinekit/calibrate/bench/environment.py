"""What measurements rest on beside the hardware's name, and what else the machine does meanwhile."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import time
from collections.abc import Iterator

import torch

from rooflinekit.errors import SpecError
from rooflinekit.hardware.detection import describe_cpu, system_root


def host_environment() -> dict[str, str]:
    """Software, CPU, and what decides its clock. Two campaigns that differ in it do not mix."""
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.platform(),
        "host cpu": _host_cpu(),
        "cpus": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "governor": governor(),
    }


def _host_cpu() -> str:
    try:
        return str(describe_cpu().mapping["display_name"])
    except SpecError:  # only Linux says
        return platform.processor() or platform.machine()


def governor() -> str:
    """What decides the CPU's clock; virtual machines do not say."""
    try:
        file = system_root() / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


@contextlib.contextmanager
def watched_load() -> Iterator[dict[str, float]]:
    """Filled in at the end of the block.

    `preemptions`: how often a second something else took a CPU from this process. `load`: how many programs wanted a
    CPU in the last minute, this one included.
    """
    found: dict[str, float] = {}
    start, before = time.perf_counter(), _switches()
    yield found
    found["preemptions"] = round((_switches() - before) / (time.perf_counter() - start), 1)
    with contextlib.suppress(OSError):
        found["load"] = round(os.getloadavg()[0], 2)


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
