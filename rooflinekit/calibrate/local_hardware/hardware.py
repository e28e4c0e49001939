"""The hardware at hand: which one a word means, and its specification."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from rooflinekit.errors import InputError, RooflinekitError
from rooflinekit.files import write_text
from rooflinekit.hardware import detection
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device
from rooflinekit.hardware.yaml_file import spec_text

Kind = Literal["cuda", "cpu"]


def parse_device(word: str, label: str = "--device") -> tuple[Kind, int]:
    """Kind and index of "cpu", "cuda" or "cuda:1". `label`: what a message calls it. Raises InputError."""
    match = re.fullmatch(r"(cpu)|cuda(?::(\d+))?", word)
    if match is None:
        raise InputError(f"{label} {word!r}: expected cuda, cuda:N or cpu")
    return ("cpu" if match[1] else "cuda"), int(match[2] or 0)


def specification(
    kind: Kind, index: int, spec: str | None, *, allow_draft: bool = False, option: str = "--spec"
) -> Device:
    """The one that was named, or that of the hardware's own name.

    A CPU that is not shipped is described by `described_cpu`.

    option: what a message says to pass. Raises InputError for a GPU without a specification, for hardware that is not
    there, and SpecError as `described_cpu` does.
    """
    if spec is not None:
        found = load_device(spec, allow_draft=allow_draft)
        wanted = "cpu" if kind == "cpu" else "gpu"
        if found.kind != wanted:
            raise InputError(f"{option} {found.name}: is a {found.kind.upper()}; expected the {wanted.upper()} at hand")
        return found
    if kind == "cpu":
        return _known_cpu(allow_draft=allow_draft) or described_cpu()[0]
    from rooflinekit.calibrate.bench import timers

    name = timers.gpu_name(index)
    try:
        return load_device(name, allow_draft=allow_draft)
    except RooflinekitError as error:
        raise InputError(
            f"no specification of {name!r} is known; write one with `rooflinekit specs detect --out mine.yaml`, fill "
            f"in what is left empty, and pass {option} mine.yaml"
        ) from error


def check_here(device: Device, kind: Kind, index: int = 0) -> str | None:
    """Raises InputError where a specification cannot be of the hardware at hand: vectors that it lacks, more cores.

    What is measured is kept under the specification's name. Returns what is to be known of it: vectors that the CPU has
    beyond the specification's.
    """
    if kind == "cpu":
        here = detection.describe_cpu().mapping
        there, said = device.compute_capability, here["compute_capability"]
        if here["vendor"] and device.vendor not in (here["vendor"], "generic", "unknown"):
            raise InputError(
                f"--spec {device.name}: is a CPU by {device.vendor}, the one here is by {here['vendor']}: pass the "
                "specification of this CPU, or none"
            )
        if there in detection.SETS and there not in detection.contained(said):
            has = f" has {said} and" if said else ""
            raise InputError(
                f"--spec {device.name}: its vectors are {there}, the CPU here{has} lacks them: pass the specification "
                "of this CPU, or none"
            )
        on_threads(device, None)
        if there and said and there != said:
            return (
                f"--spec {device.name}: its vectors are {there}, those of the CPU here {said}: what PyTorch computes "
                "with more than the specification has may be faster than its peaks"
            )
    else:
        from rooflinekit.calibrate.bench import timers

        name = timers.gpu_name(index)
        try:
            known = load_device(name, allow_draft=True)
        except RooflinekitError:
            return None  # of a GPU that is not shipped, the file says what it is
        if known.compute_capability != device.compute_capability:
            raise InputError(f"--spec {device.name}: the GPU here is {name}, of another architecture")
    return None


def _known_cpu(*, allow_draft: bool = False) -> Device | None:
    try:
        return load_device(str(detection.describe_cpu().mapping["display_name"]), allow_draft=allow_draft)
    except RooflinekitError:
        return None


def described_cpu(file: Path | None = None) -> tuple[Device, Path]:
    """The CPU at hand, from what Linux reports and a second of measuring; or from a file that is there already.

    file: by default the CPU's name in this folder. Raises SpecError where Linux says too little.
    """
    said = detection.describe_cpu().mapping
    file = file or Path(f"{said['name']}.yaml")
    if file.exists():
        return load_device(file), file
    from rooflinekit.calibrate.local_hardware import cpu

    return cpu.device_of(cpu.measured_rates(min(int(said["sm_count"]), usable_cores()))), file


def cpu_specification(file: Path | None = None) -> tuple[Device, Path | None]:
    """The specification of this machine's CPU by its name; else `described_cpu`, and the file that keeps it.

    Raises what that raises, and OutputError for a file that cannot be written.
    """
    known = _known_cpu()
    if known is not None:
        return known, None
    device, file = described_cpu(file)
    if not file.exists():
        heading = f"{device.display_name}, from what Linux reports and a second of measuring."
        write_text(spec_text(device, heading), file)
    return load_device(file), file


def usable_cores() -> int:
    """How many this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_threads(device: Device, threads: int | None) -> Device:
    """A CPU with so many of its cores, None for all. Raises InputError for more than it, or this process, has."""
    wanted = device.sm_count if threads is None else threads
    if not 0 < wanted <= device.sm_count:
        raise InputError(f"threads: {device.name} has {device.sm_count} cores; got {wanted}")
    here = usable_cores()
    if wanted > here:
        raise InputError(
            f"threads: {device.name} has {wanted} cores, this process may use {here}; choose fewer threads, or the "
            "specification of this machine"
        )
    return device if wanted == device.sm_count else device.replace(sm_count=wanted)
