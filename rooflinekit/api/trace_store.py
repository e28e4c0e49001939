"""Traces kept between commands: a folder of packed graphs, bounded in size, each with what it rests on.

Nothing here runs what it reads: see `rooflinekit.ir.graph_file`. Whatever goes wrong with the folder, a trace is made
anew.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import os
import platform
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rooflinekit.api.trace_basis import CODE, KNOWN, Entry, Record, as_given, checked, digest, unchanged, watched
from rooflinekit.errors import OutputError
from rooflinekit.files import read_bytes, write_bytes
from rooflinekit.ir.graph import Graph

FOLDER = "ROOFLINEKIT_CACHE_DIR"  # the variable that names another folder; empty for none
MOST_BYTES = 256 << 20  # of all traces together: the ones that were used longest ago go first
_SUFFIX, _SHAPE = ".graph", ".shape"
_MOST_FILE = 64 << 20
_MOST_LIST = 32 << 20  # of what a trace rests on, unpacked
_MOST_SHAPE = 4096
#: What reading a file raises that is missing, damaged, or of somebody else.
_UNREADABLE = (OSError, OutputError, ValueError, TypeError, KeyError, RecursionError, MemoryError, zlib.error)

Shape = tuple[str | int, ...]  # of an input: names of open sizes, and numbers


def cache_folder() -> Path | None:
    """Where this platform keeps what can be made again; None where the user wants none."""
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER]) if os.environ[FOLDER] else None
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rooflinekit" / "traces"


@dataclass(frozen=True, slots=True)
class TraceStore:
    """The folder, and what is in it by key."""

    folder: Path

    def load(self, key: str) -> Graph | None:
        """The graph of this key, where there is one and all that it rests on is what it was."""
        from rooflinekit.ir.graph_file import opened

        path = self._path(key)
        with contextlib.suppress(*_UNREADABLE):
            if _is_mine(self.folder):
                kept, packed = _read(path)
                if not kept.reasons and unchanged(kept.entries):
                    graph = opened(packed)
                    os.utime(path)
                    return graph
        return None

    def save(self, key: str, graph: Graph, record: Record, label: str) -> list[str]:
        """Keeps a graph with what it rests on, or why it cannot be kept; returns why not. label: what was asked for."""
        from rooflinekit.ir.graph_file import packed

        try:
            entries, reasons = record.entries(), record.unkept()
            head = zlib.compress(json.dumps({"label": label, "entries": entries, "reasons": reasons}).encode(), 1)
            data = len(head).to_bytes(8, "big") + head + (b"" if reasons else packed(graph))
            if len(data) > _MOST_FILE:
                return [f"it takes more than {_MOST_FILE >> 20} MiB"]
            self._write(self._path(key), data)
            self._make_room()
        except (OSError, OutputError, ValueError) as error:
            return [str(error)]
        return reasons

    def usual_shape(self, target: str, ask: Callable[[str], Shape]) -> Shape:
        """What `ask` says of a library's model, kept while this library and those of a trace's key are as they are.

        Nothing else decides on it, as an installed package says what it consists of.
        """
        library = target.partition(":")[0]
        record = _record(library, f"{library}/__init__.py")  # one that is installed to be edited lists none of its own
        if record is None:
            return ask(target)
        key = digest(json.dumps([surroundings(), record, target]).encode(errors="surrogateescape"))
        path = self.folder / f"{key}{_SHAPE}"
        with contextlib.suppress(*_UNREADABLE):
            if _is_mine(self.folder):
                return _checked_shape(json.loads(read_bytes(path, OutputError, _MOST_SHAPE)))
        with watched():  # torch sets variables of its own as it is loaded: no key is to know these
            found = ask(target)
        with contextlib.suppress(OSError, OutputError):
            self._write(path, json.dumps(found).encode())
        return found

    def kept(self) -> Iterator[Kept]:
        """The traces in the folder, the latest used first."""
        found = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(*_UNREADABLE):
                found.append(_read(path)[0])
        yield from sorted(found, key=lambda one: one.used, reverse=True)

    def clear(self) -> int:
        """Removes all traces, and says how many."""
        paths = list(self.folder.glob(f"*{_SUFFIX}"))
        for path in (*paths, *self.folder.glob(f"*{_SHAPE}")):
            path.unlink(missing_ok=True)
        return len(paths)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _write(self, path: Path, data: bytes) -> None:
        """Raises OSError or OutputError where it cannot be written, or others could have put something beside it."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_mine(self.folder):
            raise OutputError(f"others can write to {self.folder}")
        write_bytes(data, path)

    def _make_room(self) -> None:
        found: list[tuple[float, int, Path]] = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # another command took it away
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        total = 0
        for _, size, path in sorted(found, reverse=True):
            total += size
            if total > MOST_BYTES:
                with contextlib.suppress(OSError):
                    path.unlink()


@dataclass(frozen=True, slots=True)
class Kept:
    """A trace in the folder, or the reasons why it could not be kept."""

    path: Path
    label: str
    size: int  # bytes
    used: float  # seconds since 1970
    entries: list[Entry]
    reasons: tuple[str, ...]


def _read(path: Path) -> tuple[Kept, bytes]:
    """What a file of the folder holds, and the packed graph in it. Raises _UNREADABLE for one that is damaged."""
    used, data = path.stat().st_mtime, read_bytes(path, OutputError, _MOST_FILE)
    end = 8 + int.from_bytes(data[:8], "big")
    head = json.loads(zlib.decompressobj().decompress(data[8:end], _MOST_LIST))
    entries = checked(head["entries"])
    return Kept(path, str(head["label"]), len(data), used, entries, tuple(map(str, head["reasons"]))), data[end:]


def _is_mine(folder: Path) -> bool:
    """Whether nobody else can have put something into it."""
    if not hasattr(os, "getuid"):
        return True
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


#: Variables that no Python code reads, by how they begin.
_UNHEARD = (
    "LANG", "LC_", "TZ", "TORCH", "PYTORCH", "CUDA", "NVIDIA_VISIBLE", "HIP_", "ROCR_", "OMP_", "MKL_", "LD_", "DYLD_",
)  # fmt: skip
#: What is there where torch finds GPUs, for which models may ask.
_GPUS = ("/dev/nvidia*", "/dev/kfd", "/dev/dri/render*")


def surroundings() -> dict[str, Any]:
    """What decides on a trace before a model is looked at: Python, how it was started, libraries, this package."""
    return {
        "code": _code_digest(),
        "python": [sys.version, sys.executable, list(sys.flags), sorted(map(str, sys._xoptions.items()))],
        "search path": sys.path,
        "machine": [*os.uname()] if hasattr(os, "uname") else platform.node(),
        "cores": os.cpu_count(),
        "variables of compiled code": [
            (name, value) for name in sorted(os.environ) if name.startswith(_UNHEARD) and (value := as_given(name))
        ],
        "GPUs": [path for pattern in _GPUS for path in sorted(glob.glob(pattern))],
        "started by": _start_files(),
        "libraries": _records(),
    }


@functools.cache
def _code_digest() -> str:
    root = Path(__file__).parents[1]
    files = (path for folder in CODE for path in sorted((root / folder).rglob("*.py")))
    return digest(b"\0".join(path.read_bytes() for path in files))


def _start_files() -> list[str]:
    """Fingerprints of what Python runs before anything else; with the whole environment where there is such a thing."""
    found = [getattr(sys.modules.get(name), "__file__", None) for name in ("sitecustomize", "usercustomize")]
    files = [Path(path) for path in found if path]
    paths = [*files, *(path for place in dict.fromkeys(sys.path) for path in sorted(Path(place).glob("*.pth")))]
    own = [str(sorted(os.environ.items()))] if any(not str(path).startswith(sys.base_prefix) for path in files) else []
    return [*(f"{path} {digest(path.read_bytes())}" for path in paths), *own]


@functools.cache
def _records() -> list[str]:
    """Fingerprints of what the packages of known libraries list as installed."""
    found = {name: _record(name) for name in dict.fromkeys(KNOWN.values())}
    return [f"{name} {record}" for name, record in found.items() if record is not None]


def _record(name: str, file: str = "") -> str | None:
    """A fingerprint of what this package lists as installed; None where there is none, or it does not list the file."""
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    listed = package.read_text("RECORD") or package.version
    return digest(listed.encode()) if file in listed else None


def _checked_shape(found: Any) -> Shape:
    """Raises ValueError for what is none."""
    if not isinstance(found, list) or not all(type(size) in (str, int) for size in found):
        raise ValueError("no shape")
    return tuple(found)
