"""Which GPUs to compare with, where nobody named any: by a rule on datasheets, so that no name is preferred."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from rooflinekit.hardware.device import Device

MOST = 7  # beside the one in question


def shortlist(subject: Device, known: Iterable[Device]) -> tuple[Device, ...]:
    """The subject, and of each architecture of its vendor the GPU with the most memory bandwidth, the newest first.

    Of equal bandwidth the one with more memory, then the first by name. Architectures are as new as the GPU chosen of
    them, and MOST of them are taken; drafts, packages of several devices and the subject
    itself are not.
    """
    best: dict[str, Device] = {}
    for device in sorted(known, key=lambda d: (-d.dram.bandwidth, -d.dram.capacity, d.name)):
        if device.kind == "gpu" and device.vendor == subject.vendor and not (device.draft or device.caution):
            best.setdefault(device.architecture, device)
    others = [device for device in best.values() if device.name != subject.name]
    newest = sorted(others, key=lambda d: d.launch_date or date.min, reverse=True)
    return (subject, *newest[:MOST])


def shortlist_rule(subject: Device) -> str:
    """The rule in words."""
    return (
        f"The GPU of this report, and of each architecture of {subject.vendor} the shipped GPU with the most memory "
        f"bandwidth, the {MOST} newest of them."
    )
