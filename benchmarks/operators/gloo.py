"""gloo between processes of this machine, measured and predicted: `python -m benchmarks.operators.gloo [SPEC]`.

SPEC: the CPU's specification, by default that of its own name; as many cores are counted as this process may use.
Constants are fitted on every second size, and the sizes between are predicted; then on 2 and 3 processes, and 4 are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np

from rooflinekit.calibrate.bench.collectives import Groups
from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.fitting.files import load_links
from rooflinekit.calibrate.links.fitting import Measured, campaign_of, fit_links, groups_of
from rooflinekit.calibrate.local_hardware.hardware import specification
from rooflinekit.hardware.device import Device

SIZES = tuple(4**power for power in range(5, 13))  # bytes, 1 KiB to 16 MiB
COLLECTIVES = ("all_reduce", "all_gather", "broadcast")
RANKS = (2, 3, 4)


def measure(groups: Groups) -> list[Measured]:
    """Seconds of every case."""
    found: list[Measured] = []
    for ranks in RANKS:
        for name in COLLECTIVES:
            for size in SIZES:
                case = Case(op=f"gloo_{name}", dtype="fp32", sizes={"bytes": size, "ranks": ranks}, threads=1)
                found.append((case, groups.of(case).samples(case, 2, 15, 0.05)[1]))
    return found


def report(title: str, seconds: list[Measured], device: Device, kept: Callable[[Case], bool]) -> None:
    """A table of the cases that are kept, predicted from the others."""
    fitted = campaign_of([one for one in seconds if not kept(one[0])], device, "here")
    tested = campaign_of([one for one in seconds if kept(one[0])], device, "here")
    assert fitted is not None
    assert tested is not None
    fit = fit_links(groups_of([fitted]), load_links())
    groups = groups_of([tested])
    print(
        f"\n## {title}\n\n| collective | processes | n | median APE | worst | bias |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    every = []
    for group, errors in zip(groups, fit.errors(groups), strict=True):
        ape = np.abs(np.exp(-errors) - 1) * 100
        every.append(ape)
        bias = np.median(np.exp(-errors) - 1) * 100
        print(
            f"| {group.collective} | {group.route.ranks} | {ape.size} | {np.median(ape):.0f} % | {ape.max():.0f} % "
            f"| {bias:+.0f} % |"
        )
    whole = np.concatenate(every)
    print(f"| all | | {whole.size} | {np.median(whole):.0f} % | {whole.max():.0f} % | |")
    own = {key: c for key, c in fit.constants.constants.items() if key.endswith((" loopback", " cpu"))}
    print("\n" + ", ".join(f"{key} {c.value:.3g} {c.unit}" for key, c in own.items()))


def main(spec: str | None) -> None:
    """Measures, and prints both tables."""
    cores = len(os.sched_getaffinity(0))
    device = specification("cpu", 0, spec)
    device = device if device.sm_count <= cores else device.replace(sm_count=cores)
    seconds = measure(Groups(devices=0))
    report("Sizes left out", seconds, device, lambda case: SIZES.index(case.sizes["bytes"]) % 2 == 1)
    report("Four processes left out", seconds, device, lambda case: case.sizes["ranks"] == 4)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
