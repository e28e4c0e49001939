"""Traces kept between commands: a folder of packed graphs, bounded in size, each with the files that it rests on.

Nothing here runs what it reads: see `rooflinekit.ir.graph_file`. Whatever goes wrong with the folder, a trace is made
anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rooflinekit.errors import OutputError
from rooflinekit.files import replacing
from rooflinekit.ir.graph import Graph

FOLDER = "ROOFLINEKIT_CACHE_DIR"  # the variable that names another folder; empty for none
MOST_BYTES = 256 << 20  # of all traces together: the ones that were used longest ago go first
_SUFFIX = ".graph"
_MOST_FILE = 64 << 20
_MOST_LIST = 32 << 20  # of the list of files, unpacked


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
class Source:
    """A file that a trace rests on, as it was: unchanged while size and time are, or else the content."""

    path: str
    size: int
    time_ns: int
    digest: str  # of the content; "" for installed packages, whose files nobody edits

    @classmethod
    def of(cls, path: str) -> Source:
        """The file as it is. Raises OSError."""
        found = os.stat(path)
        own = not path.startswith(_INSTALLED)
        return cls(path, found.st_size, found.st_mtime_ns, _digest(path) if own else "")

    @property
    def unchanged(self) -> bool:
        """Whether it is still what it was."""
        try:
            found = os.stat(self.path)
            if (found.st_size, found.st_mtime_ns) == (self.size, self.time_ns):
                return True
            return bool(self.digest) and self.digest == _digest(self.path)
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class TraceStore:
    """The folder, and what is in it by key."""

    folder: Path

    def load(self, key: str) -> Graph | None:
        """The graph of this key, where there is one whose files are what they were."""
        from rooflinekit.ir.graph_file import opened

        path = self._path(key)
        try:
            if not _is_mine(self.folder) or path.stat().st_size > _MOST_FILE:
                return None
            sources, packed = _split(path.read_bytes())
            if not all(source.unchanged for source in sources):
                return None
            graph = opened(packed)
            os.utime(path)
        except (OSError, ValueError, TypeError, RecursionError, zlib.error):
            return None
        return graph

    def save(self, key: str, graph: Graph, sources: Iterable[Source]) -> None:
        """Keeps a graph, if it can be kept at all."""
        from rooflinekit.ir.graph_file import packed

        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_mine(self.folder):
                return
            listed = [[s.path, s.size, s.time_ns, s.digest] for s in sources]
            head = zlib.compress(json.dumps(listed).encode(), 1)
            data = len(head).to_bytes(8, "big") + head + packed(graph)
            if len(data) <= _MOST_FILE:
                with replacing(self._path(key)) as beside:
                    beside.write_bytes(data)
                self._make_room()
        except (OSError, OutputError, ValueError):
            return

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _make_room(self) -> None:
        found: list[tuple[float, int, Path]] = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # another command took it away
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        left = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if left <= MOST_BYTES:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            left -= size


def _split(data: bytes) -> tuple[list[Source], bytes]:
    length = int.from_bytes(data[:8], "big")
    unpacker = zlib.decompressobj()
    listed = json.loads(unpacker.decompress(data[8 : 8 + length], _MOST_LIST))
    sources = [Source(str(path), int(size), int(time_ns), str(digest)) for path, size, time_ns, digest in listed]
    return sources, data[8 + length :]


def _is_mine(folder: Path) -> bool:
    """Whether nobody else can have put something into it."""
    if not hasattr(os, "getuid"):
        return True
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- what a trace rests on -------------------------------------------------------------------------------------------

_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
#: Libraries whose versions are in the key, or that have no say in a trace.
_KNOWN = {
    "torch", "sympy", "mpmath", "numpy", "scipy", "pandas", "matplotlib", "networkx", "rich", "typer", "click", "yaml",
    "pydantic", "pydantic_core", "jinja2", "_pytest", "pytest", "hypothesis",
}  # fmt: skip

_opened: list[set[str]] = []  # of each watch that is on
_hooked: list[bool] = []


@contextlib.contextmanager
def watched() -> Iterator[set[str]]:
    """The files that are read while the block runs, whether Python imports them or a model opens them."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_hear)
    found: set[str] = set()
    _opened.append(found)
    try:
        yield found
    finally:
        _opened.remove(found)


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened:
        path, _, flags = arguments
        if isinstance(path, str) and isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR):
            for found in _opened:
                found.add(path)


def sources_of(read: Iterable[str]) -> list[Source]:
    """The files that a trace rests on: all modules but those of known libraries, and what was read beside them."""
    paths = {os.path.abspath(path) for path in read}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and name.partition(".")[0] not in _KNOWN:
            paths.add(os.path.abspath(file))
    found = []
    for path in sorted(paths):
        if path.startswith((*_foreign(), "/proc/", "/sys/", "/dev/")) or path.endswith((".pyc", ".so")):
            continue
        with contextlib.suppress(OSError, ValueError):
            if os.path.isfile(path):
                found.append(Source.of(path))
    return found


def _foreign() -> tuple[str, ...]:
    """Folders whose files need not be looked at: the standard library without what is installed below it, torch's."""
    known = tuple(f"{place}{name}{os.sep}" for place in _INSTALLED for name in _KNOWN)
    lib = tuple(place for place in _STANDARD if not any(own.startswith(place) for own in _INSTALLED))
    return (*known, *lib, _PACKAGE)


def code_digest() -> str:
    """Of rooflinekit's own files, by name, size and time."""
    found = hashlib.sha256()
    for folder in ("ir", "tracing", "cost", "api"):
        for path in sorted(Path(_PACKAGE, folder).rglob("*.py")):
            stat = path.stat()
            found.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return found.hexdigest()
