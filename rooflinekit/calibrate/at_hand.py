"""The hardware at hand: which one a word means, and its specification."""

from __future__ import annotations

import os
import re
from typing import Literal

from rooflinekit.errors import InputError, RooflinekitError
from rooflinekit.hardware import cpu_detection
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device

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

    option: what a message says to pass. Raises InputError for hardware without a specification, or that is not there.
    """
    if spec is not None:
        return load_device(spec, allow_draft=allow_draft)
    if kind == "cuda":
        from rooflinekit.calibrate import timers

        name, detect = timers.gpu_name(index), "rooflinekit specs detect"
    else:
        name, detect = str(cpu_detection.describe_cpu().mapping["display_name"]), "rooflinekit specs detect --cpu"
    try:
        return load_device(name, allow_draft=allow_draft)
    except RooflinekitError as error:
        raise InputError(
            f"no specification of {name!r} is known; write one with `{detect} --out mine.yaml`, fill in what is left "
            f"empty, and pass {option} mine.yaml"
        ) from error


def on_threads(device: Device, threads: int | None) -> Device:
    """A CPU as it is with so many of its cores; None stands for all.

    Raises InputError for more than it has, and for more than this machine gives to the process.
    """
    wanted = device.sm_count if threads is None else threads
    if not 0 < wanted <= device.sm_count:
        raise InputError(f"threads: {device.name} has {device.sm_count} cores; got {wanted}")
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if wanted > here:
        raise InputError(
            f"threads: {device.name} has {wanted} cores, this process may use {here}; choose fewer threads, or the "
            "specification of this machine"
        )
    return device if wanted == device.sm_count else device.replace(sm_count=wanted)
