"""The walks of specifications: those that are known, whether they agree with physics, and drafts of new ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rooflinekit.errors import InputError, SpecError
from rooflinekit.hardware import catalog, checks, detection, what_if
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.prices import price_tables as price_tables
from rooflinekit.hardware.specs import audits as audits
from rooflinekit.hardware.specs import cluster_names as cluster_names
from rooflinekit.hardware.specs import device_names as device_names
from rooflinekit.hardware.specs import host_names as host_names
from rooflinekit.hardware.specs import load_device
from rooflinekit.hardware.specs import report as report
from rooflinekit.hardware.yaml_file import mapping_of, mapping_text, spec_text
from rooflinekit.published.models import published_names as published_names


def document(record: Device | Host | Cluster, *, empty: bool = False) -> dict[str, Any]:
    """What a file has, ready for JSON. empty: with what it leaves open."""
    found: dict[str, Any] = json.loads(record.model_dump_json(by_alias=True, exclude_none=not empty))
    return found


def row_document(row: catalog.Row) -> dict[str, Any]:
    """A device's file, and under `table` what the table of devices says of it, in base units."""
    return {**document(row.device), "table": catalog.record(row)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The text of a specification, the keys that it leaves empty, and what is to be known of it."""

    text: str
    empty: Sequence[str] = ()
    notes: Sequence[str] = ()

    def to_dict(self, file: Path | None) -> dict[str, Any]:
        """Ready for JSON; file: where it was written."""
        path = None if file is None else str(file)
        return {"specification": mapping_of(self.text), "left_empty": list(self.empty), "file": path}


def detected(index: int = 0, *, cpu: bool = False, file: str = "FILE.yaml") -> Draft:
    """The hardware at hand, as it reports itself: a GPU, or where there is none the CPU.

    index: which GPU, as PyTorch counts them. file: where it will lie. Raises InputError for a GPU that is not there,
    and SpecError where Linux says too little.
    """
    found, notes = (None, ()) if cpu else _gpu(index)
    if found is None:
        if index and not cpu:
            raise InputError(f"--index {index}: PyTorch sees no GPU on this machine")
        found = detection.describe_cpu()
    name = found.mapping["display_name"]
    try:
        to_do = f"a checked specification of it is shipped: {load_device(str(name)).name}"
    except (LookupError, SpecError):
        to_do = f"fill them in, delete draft and draft_reason, then `rooflinekit check {file}`"
    heading = f"{name or 'unnamed hardware'}, as it reports itself. What is empty is not reported."
    return Draft(
        text=mapping_text(found.mapping, found.comments, heading), empty=found.unknown,
        notes=(*notes, f"left empty, as nothing reports it: {', '.join(found.unknown)}", to_do),
    )  # fmt: skip


def _gpu(index: int) -> tuple[detection.Found | None, tuple[str, ...]]:
    """What CUDA or ROCm reports of a GPU, None without torch or without a GPU; and what is missing for more."""
    try:
        torch = import_module("torch")
    except ImportError:
        return None, ()
    if not torch.cuda.is_available():
        return None, ()
    if index >= torch.cuda.device_count():
        raise InputError(f"--index {index}: PyTorch sees {torch.cuda.device_count()} GPUs, counted from 0")
    properties, hip = torch.cuda.get_device_properties(index), bool(torch.version.hip)
    try:
        pynvml = import_module("pynvml")
    except ImportError:
        found = detection.describe_gpu(properties, {}, hip=hip)
        return found, ("note: pynvml is not installed: power and PCIe stay empty",)
    nvml = detection.read_nvml(pynvml, index, detection.bus_id(properties))
    return detection.describe_gpu(properties, nvml, hip=hip), ()


def varied(device: Device, assignments: Sequence[str], name: str | None = None) -> Draft:
    """A device with changed numbers, KEY=VALUE each, and what follows from them. Raises InputError and SpecError."""
    found = what_if.vary(device, name or f"{device.name}-what-if", assignments)
    notes = [
        f"note: {one.name} does not follow from units, clocks and pins; explained as a what-if"
        for one in checks.run(found)
        if one.status == "explained" and one.name not in device.explained
    ]
    heading = f"{device.name} with {', '.join(assignments or ['no change'])}. Peaks are dense."
    return Draft(text=spec_text(found, heading), notes=notes)
