"""Every check of every specification: what passes, what is explained, what fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rooflinekit.errors import printable
from rooflinekit.hardware import checks, specs
from rooflinekit.hardware.checks import Check
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The checks of one specification; a host has none beyond its form."""

    name: str
    draft: bool
    checks: tuple[Check, ...]

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return not all(check.ok for check in self.checks)


def run(targets: Sequence[str] = ()) -> tuple[Audit, ...]:
    """The checks of what is named, or of every shipped device, host and cluster, drafts among them.

    Raises SpecError for a file that cannot be read, DeviceNotFoundError and AmbiguousDeviceError for names.
    """
    every = (*specs.device_names(), *specs.host_names(), *specs.cluster_names())
    return tuple(_audit(target) for target in targets or every)


def _audit(target: str) -> Audit:
    record = specs.read_unverified(target)
    if isinstance(record, Device):
        return Audit(name=target, draft=record.draft, checks=checks.run(record))
    if isinstance(record, Cluster):
        kinds = [specs.load_device(members.name) for members in record.devices]
        return Audit(name=f"{target} (cluster)", draft=False, checks=checks.run(record, kinds))
    return Audit(name=f"{target} (host)", draft=False, checks=())


def report(audits: Sequence[Audit], *, every: bool = False) -> list[str]:
    """A line a specification and a line an exception; with `every`, a line every check."""
    lines = []
    for audit in audits:
        counts = Counter(check.status for check in audit.checks)
        told = ", ".join(
            f"{counts[word]} {word}" for word in ("passed", "explained", "skipped", "failed") if counts[word]
        )
        lines.append(f"{audit.name}{' (draft)' if audit.draft else ''}: {told or 'well-formed'}")
        shown = [check for check in audit.checks if every or check.status != "passed"]
        lines += [printable(f"  {check.status}: {check.name}: {check.note}") for check in shown]
    failed = sum(audit.failed for audit in audits)
    return [*lines, f"{len(audits)} specification{'s' if len(audits) > 1 else ''}, {failed} failed"]
