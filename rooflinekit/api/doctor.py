"""What this installation can do: libraries, programs, a place to write, and which constants it has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata

from rooflinekit import __version__
from rooflinekit.api.trace_store import FOLDER, cache_folder
from rooflinekit.calibrate.fitting.files import fit_files
from rooflinekit.step.made import fingerprint

#: What is not needed by all, what is installed for it, and for what it is needed.
_OPTIONAL = {
    "timm": ("'rooflinekit[models]'", "targets timm:NAME"),
    "transformers": ("'rooflinekit[models]'", "targets transformers:NAME"),
    "pyarrow": ("'rooflinekit[sweeps]'", "sweeps written as parquet"),
    "distributed": ("'distributed>=2024.4'", "sweeps on a Dask cluster"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at: what there is, and what to do where something is missing or wrong."""

    what: str
    found: str
    to_do: str = ""  # "" where nothing is


def diagnose() -> tuple[Finding, ...]:
    """What this installation can do, a finding a thing; nothing is changed."""
    return (
        _finding("rooflinekit", __version__),
        _finding("torch", _version("torch")),
        _torchvision(),
        *(_finding(name, _version(name), f"pip install {what}, for {use}") for name, (what, use) in _OPTIONAL.items()),
        _finding("LaTeX", shutil.which("latex"), "install TeX Live, for figures with usetex; all others need none"),
        _cache(),
        _constants(),
    )  # fmt: skip


def _finding(what: str, found: str | None, to_do: str = "") -> Finding:
    """to_do: where it is missing."""
    return Finding(what=what, found=found or "missing", to_do="" if found else to_do)


def _version(name: str) -> str:
    """The installed version; "" where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _torchvision() -> Finding:
    """Only a process of its own tells whether its operators match torch: a build for CUDA and one for CPUs do not."""
    found = _version("torchvision")
    if not found:
        return _finding("torchvision", "", "pip install torchvision, for torchvision:NAME")
    command = [sys.executable, "-c", "import torchvision"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return Finding(what="torchvision", found=found)
    why = (done.stderr.strip().splitlines() or ["it fails"])[-1]
    to_do = "install it and torch from one index; networks without its operators need nothing"
    return Finding(what="torchvision", found=f"{found}, does not match torch: {why}", to_do=to_do)


def _cache() -> Finding:
    """Whether traces can be kept: the folder, or the nearest one above it that there is, can be written."""
    folder = cache_folder()
    if folder is None:
        return Finding(what="kept traces", found=f"none: {FOLDER} is empty", to_do=f"unset {FOLDER} to keep them")
    there = next(one for one in (folder, *folder.absolute().parents) if os.path.exists(one))
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Finding(what="kept traces", found=str(folder))
    return Finding(what="kept traces", found=f"{there} cannot be written", to_do=f"name another folder in {FOLDER}")


def _constants() -> Finding:
    files = fit_files()
    digest = fingerprint(b"".join(file.read_bytes() for file in files))
    return Finding(what="constants", found=f"{len(files)} files, whose SHA-256 begins with {digest}")
