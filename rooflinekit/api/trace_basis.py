"""What a kept trace rests on: what was read while it was made, and whether it is still so.

While a model is loaded and traced, files that are opened, folders that are listed, paths that are looked for, modules
that are sought and environment variables are recorded, each as it is then. A kept trace is an answer only while every
one of them is the same. What cannot be followed, such as another program, the network, the time or chance, is recorded
as a reason not to keep the trace.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from rooflinekit.api.trace_states import MOST_READ, NOW, SESSION, Unfollowed, content, made_of
from rooflinekit.files import FromSource

#: [kind, name, state]: what was read, and how it was.
Entry = tuple[str, str, str]

_MOST_ENTRIES = 100_000
_LIVE = ("/proc/", "/sys/", "/dev/")  # where the system tells how it is at the moment

_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
#: Where libraries are installed: of this environment, and of one that it stands upon or is given by a path.
_INSTALLED = tuple(
    folder + os.sep for folder in dict.fromkeys((
        *(sysconfig.get_path(name) for name in ("purelib", "platlib")),
        *(folder for folder in sys.path if os.path.basename(folder) in ("site-packages", "dist-packages")),
    ))
)  # fmt: skip
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
#: Installed libraries that the key of a trace names by the digest of their packages' records.
KNOWN = {
    "torch": "torch", "sympy": "sympy", "mpmath": "mpmath", "numpy": "numpy", "scipy": "scipy", "pandas": "pandas",
    "matplotlib": "matplotlib", "networkx": "networkx", "rich": "rich", "tqdm": "tqdm", "typer": "typer",
    "click": "click",
    "yaml": "PyYAML", "torchgen": "torch", "pydantic": "pydantic", "pydantic_core": "pydantic_core", "jinja2": "Jinja2",
}  # fmt: skip
#: Parts of rooflinekit that decide on a trace; their files are in the key.
CODE = ("ir", "tracing", "cost", "api")


def unchanged(entries: Iterable[Entry]) -> bool:
    """Whether all is as it was. Raises ValueError for what is no list of entries."""
    with _paused():
        return all(_same(*entry) for entry in entries)


def _same(kind: str, name: str, state: str) -> bool:
    try:
        if kind == "file":
            size = state.partition(" ")[0]
            return content(name, int(size) if size.isdigit() else None) == state
        return NOW[kind](name) == state
    except (Unfollowed, OSError):
        return False


def checked(listed: Any) -> list[Entry]:
    """Entries that a file holds. Raises ValueError for anything else."""
    if not isinstance(listed, list) or len(listed) > _MOST_ENTRIES:
        raise ValueError("no list of entries, or a list too long")
    for entry in listed:
        if len(entry) != 3 or entry[0] not in NOW or not all(isinstance(part, str) for part in entry):
            raise ValueError("no entry")
    if _bytes(state for kind, _, state in listed if kind == "file") > MOST_READ:
        raise ValueError("files too large to be looked at")
    return [(kind, name, state) for kind, name, state in listed]


def _bytes(states: Iterable[str]) -> int:
    """How large files are together."""
    sizes = (state.partition(" ")[0] for state in states)
    return sum(int(size) for size in sizes if size.isdecimal() and len(size) < 20)


# --- the record ------------------------------------------------------------------------------------------------------


class Record:
    """What this process has read for its models so far. Modules are loaded once, so all traces share it."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], str] = {}
        self.reasons: dict[str, None] = {}  # not to keep a trace
        self.set: set[str] = set()  # variables that the model itself has set
        self.before = frozenset(_module_files())  # modules that no model has asked for

    def note(self, kind: str, name: str) -> None:
        """Something that is read, as it is now; the first time counts."""
        if (kind, name) in self.states:
            return
        with _paused():
            try:
                self.states[kind, name] = NOW[kind](name)
            except Unfollowed as reason:
                self.reasons[str(reason)] = None

    def entries(self) -> list[Entry]:
        """All that a trace rests on, the files of the modules that are loaded among it."""
        for path in _module_files():
            self.note("file", path)
        return [(kind, name, state) for (kind, name), state in self.states.items()]

    def unkept(self) -> list[str]:
        """Why no trace may be kept: what cannot be followed, and what has changed since it was read."""
        found = dict(self.reasons)
        if _bytes(state for (kind, _), state in self.states.items() if kind == "file") > MOST_READ:
            found[f"reads more than {MOST_READ >> 20} MiB"] = None
        with _paused():
            for (kind, name), state in self.states.items():
                if kind in ("file", "folder", "path") and not _same(kind, name, state):
                    found[f"{name} changed while the model was read"] = None
            for kind, path in self.states:
                if kind == "file" and path.endswith(".py") and path not in self.before and not _is_installed(path):
                    found |= dict.fromkeys(f"{path} calls {name}" for name in _unseen(path))
        return list(found)


_active: list[Record] = []
_pauses: list[None] = []


@contextlib.contextmanager
def _paused() -> Iterator[None]:
    """Nothing is recorded: the reading is the record's own."""
    _pauses.append(None)
    try:
        yield
    finally:
        _pauses.pop()


def _listening() -> Record | None:
    return _active[-1] if _active and not _pauses else None


@contextlib.contextmanager
def watched() -> Iterator[Record]:
    """Records what is read while the block runs."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_hear)
    finder = _Sought()
    unsteady = tuple(_unsteady())  # which may load a module
    _foreign()  # which lists folders, once
    _active.append(_record)
    sys.meta_path.insert(0, finder)
    try:
        with _environment(_record), _noting(unsteady):
            yield _record
    finally:
        sys.meta_path.remove(finder)
        _active.pop()


# --- files and folders, by Python's own audit events -----------------------------------------------------------------

_hooked: list[bool] = []
_PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty"}
_UNFOLLOWED = {
    **dict.fromkeys(_PROGRAMS, "starts another program"),
    **dict.fromkeys(("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostname",
                     "urllib.Request", "http.client.connect"), "asks the network or the machine's name"),
    "sqlite3.connect": "reads a database",
    "builtins.input": "asks the user",
    "ctypes.dlopen": "loads a library",
}  # fmt: skip


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _HEARD or (record := _listening()) is None:
        return
    if event == "open":
        _opened(record, *arguments)
    elif event in ("os.listdir", "os.scandir"):
        _listed(record, arguments[0])
    elif (caller := _caller()) and not caller.startswith(_foreign()):
        record.reasons[f"{_UNFOLLOWED[event]} ({event} in {caller})"] = None


_HEARD = {"open", "os.listdir", "os.scandir", *_UNFOLLOWED}


def _is_live(name: str) -> bool:
    """Whether the system tells there how it is at the moment; in /dev/shm are files, in memory."""
    return name.startswith(_LIVE) and not name.startswith("/dev/shm/")


def _opened(record: Record, path: Any, mode: Any, flags: Any) -> None:
    if isinstance(path, int) or not isinstance(flags, int):
        return
    if flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_TRUNC:
        return
    name = os.path.abspath(os.fsdecode(path))
    if _is_live(name):
        if name != os.devnull and _asked_by_model():
            record.reasons[f"reads {name}, which tells something else each time"] = None
    elif not name.startswith(_foreign()) and "__pycache__" not in name:
        record.note("file", name)


def _listed(record: Record, path: Any) -> None:
    if isinstance(path, int):
        record.reasons["lists a folder by its descriptor"] = None
        return
    by = sys._getframe(2).f_code.co_filename
    if "importlib._bootstrap" in by:
        return  # modules are recorded as such
    name = os.path.abspath(os.fsdecode("." if path is None else path))
    if not name.startswith(_foreign()):
        record.note("packages" if os.path.join("importlib", "metadata") in by else "folder", name)


# --- modules ---------------------------------------------------------------------------------------------------------


class _Sought:
    """A finder that records what is sought where, and has the model's own modules compiled from their source.

    What Python has kept of a module is taken for its source by size and time alone.
    """

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        record = _listening()
        if record is not None and name not in sys.builtin_module_names:
            folders = [os.path.abspath(folder) for folder in (sys.path if path is None else path)]
            if path is None or not all(f"{folder}{os.sep}".startswith(_foreign()) for folder in folders):
                record.note("module", "\n".join((name, *folders)))
        if record is None or name in sys.builtin_module_names:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader or _is_installed(spec.loader.path):
            return None
        return spec_from_file_location(
            name, spec.loader.path, loader=FromSource(name, spec.loader.path),
            submodule_search_locations=spec.submodule_search_locations,
        )  # fmt: skip


@functools.cache
def _foreign() -> tuple[str, ...]:
    """Folders whose files need not be looked at: the standard library without what is installed below it, libraries
    that the key names, and rooflinekit's own.
    """
    known = tuple(f"{place}{name}{os.sep}" for place in _INSTALLED for name in KNOWN)
    return (*known, _PACKAGE, *(place for place in _STANDARD if not any(own.startswith(place) for own in _INSTALLED)),
            *_within_standard())  # fmt: skip


def _within_standard() -> Iterator[str]:
    """What lies in the standard library's folder beside the packages that are installed there."""
    for place in _STANDARD:
        if any(own.startswith(place) for own in _INSTALLED):
            with contextlib.suppress(OSError):
                yield from (
                    os.path.join(place, name) for name in os.listdir(place)
                    if not any(own.startswith(os.path.join(place, name) + os.sep) for own in _INSTALLED)
                )  # fmt: skip


def _is_installed(path: str) -> bool:
    return path.startswith((*_INSTALLED, *_foreign()))


def _module_files() -> list[str]:
    """Of all modules that are loaded, but for compiled ones and those of folders that need not be looked at."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    paths = {os.path.abspath(file) for file in files if isinstance(file, str)}
    return sorted(path for path in paths if not path.startswith(_foreign()) and not path.endswith((".so", ".pyd")))


# --- the environment -------------------------------------------------------------------------------------------------


class _Variables(dict[Any, Any]):
    """The mapping behind `os.environ`, which records what is read of it."""

    record: Record

    def __getitem__(self, key: Any) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        if _listening() is self.record and not _caller().startswith(_foreign()):
            self.record.note("variables", "")
        return super().__iter__()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._change(os.fsdecode(key), os.fsdecode(value))
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self._change(os.fsdecode(key), None)
        super().__delitem__(key)

    def _change(self, name: str, made: str | None) -> None:
        self.record.set.add(name)
        if _listening() is self.record:
            found = dict.get(self, os.fsencode(name))
            given = None if found is None else os.fsdecode(found)
            made_of[name] = (made_of.get(name, (given, given))[0], made)

    def _note(self, key: Any) -> None:
        if _listening() is not self.record or (name := os.fsdecode(key)) in self.record.set:
            return
        if name not in SESSION or not _is_installed(_caller()):
            self.record.note("variable", name)


@contextlib.contextmanager
def _environment(record: Record) -> Iterator[None]:
    views: list[Any] = [os.environ, *([os.environb] if os.supports_bytes_environ else [])]
    plain = views[0]._data
    heard = _Variables(plain)
    heard.record = record
    for view in views:
        view._data = heard
    try:
        yield
    finally:
        plain.clear()
        plain.update(dict.items(heard))
        for view in views:
            view._data = plain


def _read_arguments(name: str) -> Callable[..., Any]:
    def read(self: list[str], *given: Any) -> Any:
        record = _listening()
        if record is not None and not _caller().startswith(_foreign()):
            record.note("arguments", "")
        return getattr(list, name)(self, *given)

    return read


#: `sys.argv`, which records that it is read.
_READERS = ("__getitem__", "__iter__", "__len__", "__contains__")
_Arguments = type("_Arguments", (list,), {name: _read_arguments(name) for name in _READERS})


class _Input:
    """`sys.stdin`, which records that it is used."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        if (record := _listening()) is not None and _asked_by_model():
            record.reasons["reads standard input"] = None
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.readline, "")


# --- what Python tells by no event: looking for a path, the time, chance ---------------------------------------------


def _unsteady() -> Iterator[tuple[Any, str]]:
    """Functions whose results differ from run to run."""
    for module, names in (
        (time, ("time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime")),
        (os, ("urandom", "getrandom", "getpid", "getppid", "getloadavg", "times")),
        (uuid, ("uuid1", "uuid4")),
        (random, (*random.__all__, "_urandom")),
        (random.Random, ("seed",)),
        (os.path, ("getmtime", "getctime", "getatime")),
    ):
        yield from ((module, name) for name in names if name.islower() and hasattr(module, name))
    chance = getattr(sys.modules.get("numpy"), "random", None)
    if chance is not None:
        yield from ((chance, name) for name in chance.__all__ if name.islower() and callable(getattr(chance, name)))
    torch = sys.modules.get("torch")
    if torch is not None:
        yield torch, "from_file"


_SEEDS = ("seed", "setstate", "set_state", "default_rng")


@contextlib.contextmanager
def _noting(unsteady: Iterable[tuple[Any, str]]) -> Iterator[None]:
    """Functions that no event tells of, replaced by ones that record their calls; unsteady: see `_unsteady`."""
    stand: list[tuple[Any, str, Any]] = []

    def replaced(module: Any, name: str, by: Callable[[Any], Any]) -> None:
        real = getattr(module, name)
        stand.append((module, name, real))
        setattr(module, name, functools.wraps(real)(by(real)))

    for name in ("stat", "lstat", "access", "readlink", "open"):
        replaced(os, name, functools.partial(_looking, name))
    for module, name in unsteady:
        replaced(module, name, functools.partial(_reason, module, name))
    arguments, sys.argv, typed = sys.argv, _Arguments(sys.argv), sys.stdin
    if typed is not None:
        sys.stdin = _Input(typed)
    try:
        yield
    finally:
        sys.argv, sys.stdin = arguments, typed
        for module, name, real in reversed(stand):
            setattr(module, name, real)


def _looking(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def look(path: Any, *others: Any, **named: Any) -> Any:
        record = _listening()
        if record is not None and not isinstance(path, int):
            if named.get("dir_fd") is not None and _asked_by_model():
                record.reasons["looks for a path below a folder's descriptor"] = None
            with contextlib.suppress(TypeError, ValueError):
                found = os.path.abspath(os.fsdecode(path))
                # of opening an event tells
                if name != "open" and not _is_live(found) and not found.startswith(_foreign()):
                    record.note("path", found)
                    if name in ("stat", "lstat") and _asks_for_time():
                        record.note("time", found)
        return real(path, *others, **named)

    return look


def _asks_for_time() -> bool:
    """Whether a model itself has asked for all that is told of a path: who asks whether it is there gets no time."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith("pathlib.py"):
        if frame.f_code.co_name not in ("stat", "lstat"):
            return False
        frame = frame.f_back
    by = "<" if frame is None else frame.f_code.co_filename
    return not by.startswith("<") and not _is_installed(by)


def _asked_by_model() -> bool:
    """Whether a model's code has asked, by itself or through a library's function; not a package while it is loaded."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _is_installed(frame.f_code.co_filename):
        if frame.f_code.co_name == "<module>":
            return False
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.startswith("<"):
        frame = frame.f_back
    return frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE)


def _reason(module: Any, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        record = _listening()
        by = sys._getframe(1).f_code.co_filename
        if module is random.Random or name == "_urandom":  # which Python's own modules call for the model
            by = "" if _asked_by_model() and record is not None else "<"
            given_seed = given[1:] if module is random.Random else ()
        else:
            given_seed = given
        if record is not None and not (by and (_is_installed(by) or by.startswith("<"))):
            steady = name in _SEEDS and any(part is not None for part in (*given_seed, *named.values()))
            _seeded.update({module.__name__} if steady and name != "default_rng" else ())
            if not steady and (name == "_urandom" or module.__name__ not in _seeded):
                record.reasons[f"calls {module.__name__}.{name} ({by or _caller()})"] = None
        return real(*given, **named)

    return call


_seeded: set[str] = set()  # modules of chance that the model has given a seed

#: What nobody hears of: the time by a class of C, and readers of files in other languages.
_UNSEEN = {
    "utcnow", "today", "safe_open", "load_file", "from_file", "read_parquet", "read_table", "gethostname", "memory_map",
    "dbm", "h5py", "lmdb", "cv2", "netCDF4", "pyarrow", "SharedMemory",
}  # fmt: skip


def _unseen(path: str) -> list[str]:
    """Which of _UNSEEN a module's code names; `now` counts where datetime is named too."""
    try:
        names = set(_named(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    return sorted((names & _UNSEEN) | ({"now"} if {"now", "datetime"} <= names else set()))


def _named(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant)


def _caller() -> str:
    """The file of the nearest frame that is neither this one's nor the standard library's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        ours = name == __file__ or name.startswith("<")
        if not ours and (name.startswith(_INSTALLED) or not name.startswith(_STANDARD)):
            return name
        frame = frame.f_back
    return ""


_record = Record()
