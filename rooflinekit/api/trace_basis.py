"""What a kept trace rests on: what was read while it was made, and whether it is still so.

While a model is loaded and traced, files that are opened, folders that are listed, paths that are looked for, modules
that are sought and environment variables are recorded, each as it is then. A kept trace is an answer only while every
one of them is the same. What cannot be followed, such as another program, the network, the time or chance, is recorded
as a reason not to keep the trace.

All is heard in one way: a *look* is a function that is told the record and the arguments of an event or of a call.
Python's audit events have their looks in `_EVENTS`. Functions that raise no event are replaced by ones that tell a look
of each call, in `_stand_ins`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import stat
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

#: [kind, name, state]: what was read, and how it was.
Entry = tuple[str, str, str]
Look = Callable[..., None]

_MOST_READ = 256 << 20  # bytes of all files that one trace rests on
_MOST_ENTRIES = 100_000
#: Installed libraries that the key of a trace names by the digest of their packages' records.
KNOWN = {
    "torch": "torch", "sympy": "sympy", "mpmath": "mpmath", "numpy": "numpy", "scipy": "scipy", "pandas": "pandas",
    "matplotlib": "matplotlib", "networkx": "networkx", "rich": "rich", "tqdm": "tqdm", "typer": "typer",
    "click": "click",
    "yaml": "PyYAML", "torchgen": "torch", "cuda": "cuda-pathfinder", "triton": "triton",
    "pydantic": "pydantic", "pydantic_core": "pydantic_core", "jinja2": "Jinja2",
}  # fmt: skip
#: Parts of rooflinekit that decide on a trace; their files are in the key.
CODE = ("ir", "tracing", "cost", "api")


def unchanged(entries: Iterable[Entry]) -> bool:
    """Whether all is as it was."""
    return all(state_of(kind, name) == state for kind, name, state in entries)


def checked(listed: list[Any]) -> list[Entry]:
    """Entries that a file holds. Raises ValueError, TypeError or KeyError for what is none, and for too many."""
    entries = [(str(kind), str(name), str(state)) for kind, name, state in listed]
    if len(entries) > _MOST_ENTRIES or _bytes(entries) > _MOST_READ:
        raise ValueError("too many entries, or files too large to be looked at")
    if unknown := {kind for kind, _, _ in entries} - _NOW.keys():
        raise ValueError(f"no kinds of entries: {unknown}")
    return entries


def _bytes(entries: Iterable[Entry]) -> int:
    sizes = (state.partition(" ")[0] for kind, _, state in entries if kind == "file")
    return sum(int(size) for size in sizes if size.isdecimal() and len(size) < 20)


class Record:
    """What this process has read for its models so far. Modules are loaded once, so all traces share it."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], str] = {}
        self.reasons: dict[str, None] = {}  # not to keep a trace
        self.before = frozenset(_module_files())  # modules that no model has asked for

    def note(self, kind: str, name: str) -> None:
        """Records the state of something that the trace reads; only its first reading counts."""
        if (kind, name) not in self.states:
            with _told(None):
                self.states[kind, name] = state_of(kind, name)

    def refuse(self, reason: str) -> None:
        """Records why the trace cannot be kept: it depends on something that cannot be followed."""
        self.reasons[reason] = None

    def entries(self) -> list[Entry]:
        """All that a trace rests on, the files of the modules that are loaded among it."""
        for path in _module_files():
            self.note("file", path)
        return [(kind, name, state) for (kind, name), state in self.states.items()]

    def unkept(self) -> list[str]:
        """Why no trace may be kept: what cannot be followed, and what has changed since it was read."""
        found = dict(self.reasons)
        for (kind, name), state in self.states.items():
            if state == UNREAD:
                found[f"reads {name}, which is {UNREAD}"] = None
            elif kind in ("file", "folder", "path") and state_of(kind, name) != state:
                found[f"{name} changed while the model was read"] = None
            elif kind == "file":
                own = name.endswith(".py") and name not in self.before and _whose(name) == "model"
                found |= dict.fromkeys(f"{name} calls {unseen}" for unseen in (_unseen(name) if own else ()))
        if _bytes((*key, state) for key, state in self.states.items()) > _MOST_READ:
            found[f"reads more than {_MOST_READ >> 20} MiB"] = None
        return list(found)


_listeners: list[Record | None] = []  # the last one is told; None where the reading is the record's own


def _listening() -> Record | None:
    return _listeners[-1] if _listeners else None


@contextlib.contextmanager
def _told(record: Record | None) -> Iterator[None]:
    _listeners.append(record)
    try:
        yield
    finally:
        _listeners.pop()


@contextlib.contextmanager
def watched() -> Iterator[Record]:
    """Records what is read while the block runs."""
    _hear_events()
    replaced = [(place, name, vars(place)[name], stand_in) for place, name, stand_in in _stand_ins()]
    for place, name, _, stand_in in replaced:
        setattr(place, name, stand_in(getattr(place, name)))
    try:
        with _told(_record):
            yield _record
    finally:
        for place, name, real, _ in replaced:
            setattr(place, name, real)


def _telling(look: Look) -> Callable[[Any], Any]:
    """Makes a function into one that first tells the look of each call: the record, and what it is called with."""

    def stand_in(real: Any) -> Any:
        @functools.wraps(real)
        def call(*given: Any, **named: Any) -> Any:
            if (record := _listening()) is not None:
                look(record, *given, **named)
            return real(*given, **named)

        return call

    return stand_in


# --- how something is now that a trace rests on: a file, a folder's names, a variable, where a module lies ------------

_MOST_FILE = 64 << 20  # bytes of a file that is looked at again
UNREAD = f"no regular file or larger than {_MOST_FILE >> 20} MiB"  # the state of a file that is not
_SHOWN = 32  # characters of a variable's value that are kept as they are
SESSION = ("_", "SHLVL", "OLDPWD")  # variables that each shell sets anew; libraries read all there are
_SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "AUTH")  # in names of variables whose values are never kept


def digest(data: bytes) -> str:
    """A fingerprint of bytes."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def state_of(kind: str, name: str) -> str:
    """How it is now; "absent" where there is no such thing. Raises KeyError for a kind that is none."""
    look = _NOW[kind]
    try:
        return look(name)
    except (FileNotFoundError, NotADirectoryError, ImportError, ValueError):  # ValueError: a name that none can have
        return "absent"
    except OSError as error:
        return f"error {error.errno}"


def _content(path: str) -> str:
    """Size and fingerprint of a file. Nothing else is opened for long: it might wait for ever."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            return "folder"
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_FILE:
            return UNREAD
        with open(descriptor, "rb", closefd=False) as stream:
            data = stream.read(found.st_size)
        return f"{len(data)} {digest(data)}"
    finally:
        os.close(descriptor)


def _fingerprint(parts: Iterable[str]) -> str:
    return digest("\0".join(parts).encode(errors="surrogateescape"))


def _names(path: str, endings: tuple[str, ...] = ("",)) -> str:
    return _fingerprint(sorted(name for name in os.listdir(path) if name.endswith(endings)))


def _place(path: str) -> str:
    """What a path is: its rights and size, and where a link leads."""
    to = os.readlink(path) if os.path.islink(path) else ""
    found = os.stat(path)
    return f"{found.st_mode:o} {found.st_size if stat.S_ISREG(found.st_mode) else ''} {to}"


#: Variables that a library or a model has set in this process: what was given, and what was made of it.
made_of: dict[str, tuple[str | None, str | None]] = {}


def as_given(name: str) -> str | None:
    """An environment variable as this process was given it; None for none."""
    value = os.environ.get(name)
    given, made = made_of.get(name, (value, value))
    return given if value == made else value


def _variable(name: str) -> str:
    """The value of an environment variable, or its fingerprint where it is long or may be a secret."""
    value = as_given(name)
    if value is None:
        return "unset"
    plain = len(value) <= _SHOWN and value.isprintable() and not any(word in name.upper() for word in _SECRET)
    return f"={value}" if plain else f"digest {digest(value.encode(errors='surrogateescape'))}"


def _variables(_: str) -> str:
    """All environment variables, but for those that each shell sets anew."""
    return _fingerprint(f"{name}={value}" for name, value in sorted(os.environ.items()) if name not in SESSION)


def _origin(name: str) -> str:
    """Where a module would be imported from; name: its own, and the folders that are searched, by lines."""
    module, *folders = name.split("\n")
    spec = PathFinder.find_spec(module, folders)
    if spec is None:
        return "absent"
    return spec.origin or "\n".join(spec.submodule_search_locations or ())


#: How to ask for each kind of thing that a trace can rest on, by its name.
_NOW: Mapping[str, Callable[[str], str]] = {
    "file": _content,
    "folder": _names,
    "packages": lambda path: _names(path, (".dist-info", ".egg-info", ".pth")),
    "path": _place,
    "time": lambda path: str(os.stat(path).st_mtime_ns),
    "variable": _variable,
    "variables": _variables,
    "arguments": lambda _: _fingerprint(sys.argv),
    "module": _origin,
}


# --- whose a file is, and who asks -----------------------------------------------------------------------------------

_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
#: Where libraries are installed: of this environment, and of one that it stands upon or is given by a path.
_INSTALLED = {
    *(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")),
    *(place + os.sep for place in sys.path if os.path.basename(place) in ("site-packages", "dist-packages")),
}
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
#: Whose files need not be looked at: the key of a trace names Python, and all of these libraries.
_FOREIGN = ("Python", "known")


@functools.lru_cache(maxsize=2**14)
def _whose(path: str) -> str:
    """Whose a file or folder is: "Python", "known" (to the key, such as rooflinekit), "installed" or "model"."""
    folder = path + os.sep
    for place in _INSTALLED:  # which may lie in the standard library's folder
        if folder.startswith(place):
            return "known" if folder[len(place) :].partition(os.sep)[0] in KNOWN else "installed"
    if folder.startswith(_PACKAGE):
        return "known"
    return "Python" if folder.startswith(("<", *_STANDARD)) else "model"


def _askers() -> Iterator[tuple[str, str]]:
    """File and function of each frame that has led here, the nearest first, but for this file's."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            yield frame.f_code.co_filename, frame.f_code.co_name
        frame = frame.f_back


def _caller() -> str:
    """The file of the nearest frame that is not of the standard library; "" where there is none."""
    return next((file for file, _ in _askers() if _whose(file) != "Python"), "")


def _asked_by_model() -> bool:
    """Whether a model's code has asked, by itself or through a library's function; not a package while it is loaded."""
    for file, function in _askers():
        if _whose(file) == "model":
            return True
        if function == "<module>" and not file.startswith("<"):
            return False
    return False


def _asks_for_time() -> bool:
    """Whether a model itself has asked for all that is told of a path: who asks whether it is there gets no time."""
    for file, function in _askers():
        if f"{os.sep}pathlib" not in file:
            return _whose(file) == "model"
        if function not in ("stat", "lstat"):
            return False
    return False


# --- files, folders and what cannot be followed, by Python's own audit events -----------------------------------------

_LIVE = ("/proc/", "/sys/", "/dev/")  # where the system tells how it is at the moment


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
            record.refuse(f"reads {name}, which tells something else each time")
    elif _whose(name) not in _FOREIGN and "__pycache__" not in name:
        record.note("file", name)


def _listed(record: Record, path: Any) -> None:
    if isinstance(path, int):
        record.refuse("lists a folder by its descriptor")
        return
    by, _ = next(_askers())
    name = os.path.abspath(os.fsdecode("." if path is None else path))
    if "importlib._bootstrap" not in by and _whose(name) not in _FOREIGN:  # modules are recorded as such
        record.note("packages" if os.path.join("importlib", "metadata") in by else "folder", name)


def _unfollowed(what: str, event: str, record: Record, *_: Any) -> None:
    if (caller := _caller()) and _whose(caller) not in _FOREIGN:
        record.refuse(f"{what} ({event} in {caller})")


def _library_loaded(record: Record, name: Any, *_: Any) -> None:
    """What a model's own code loads may do anything; of what an installed package loads, the size tells another one."""
    caller = _caller()
    if caller and _whose(caller) == "model":
        record.refuse(f"loads a library (ctypes.dlopen in {caller})")
    elif isinstance(name, str | bytes) and os.path.isabs(path := os.fsdecode(name)) and _whose(path) not in _FOREIGN:
        record.note("path", path)


_UNFOLLOWED = {
    "starts another program": (
        "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty",
    ),
    "asks the network or the machine's name": (
        "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostname", "urllib.Request",
        "http.client.connect",
    ),
    "reads a database": ("sqlite3.connect",),
    "asks the user": ("builtins.input",),
}  # fmt: skip
_EVENTS: dict[str, Look] = {
    "open": _opened,
    "os.listdir": _listed,
    "os.scandir": _listed,
    "ctypes.dlopen": _library_loaded,
    **{name: functools.partial(_unfollowed, what, name) for what, names in _UNFOLLOWED.items() for name in names},
}


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    look = _EVENTS.get(event)
    if look is not None and (record := _listening()) is not None:
        look(record, *arguments)


@functools.cache
def _hear_events() -> None:
    """Once for all: Python forgets no hook."""
    sys.addaudithook(_hear)


def _module_sought(record: Record, name: str, path: Any = None, target: ModuleType | None = None) -> None:
    folders = [os.path.abspath(folder) for folder in (sys.path if path is None else path)]
    if path is None or any(_whose(folder) not in _FOREIGN for folder in folders):
        record.note("module", "\n".join((name, *folders)))


def _compiled_before(record: Record, loader: SourceFileLoader, path: str) -> None:
    """What Python has kept of a module is taken for its source by size and time alone: a model's are compiled anew."""
    if _whose(path) == "model":
        raise OSError("the model's own module")  # on which Python takes what it has kept for outdated


def _module_files() -> list[str]:
    """Files of all loaded modules, but for compiled ones and those of folders that need not be looked at."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    paths = {os.path.abspath(file) for file in files if isinstance(file, str)}
    return sorted(path for path in paths if _whose(path) not in _FOREIGN and not path.endswith((".so", ".pyd")))


# --- what the process was given: the environment, arguments, standard input ------------------------------------------


def _variable_read(record: Record, environ: Any, key: Any) -> None:
    name = os.fsdecode(key)
    if name not in made_of and (name not in SESSION or _whose(_caller()) == "model"):
        record.note("variable", name)


def _all_read(kind: str, record: Record, *_: Any) -> None:
    if _whose(_caller()) not in _FOREIGN:
        record.note(kind, "")


def _variable_set(record: Record, environ: Any, key: Any, value: Any = None) -> None:
    name = os.fsdecode(key)
    with _told(None):
        given = os.environ.get(name)
    made_of[name] = made_of.get(name, (given,))[0], None if value is None else os.fsdecode(value)


#: `sys.argv`, which records that it is read.
_Arguments = type("_Arguments", (list,), {
    name: _telling(functools.partial(_all_read, "arguments"))(getattr(list, name))
    for name in ("__getitem__", "__iter__", "__len__", "__contains__")
})  # fmt: skip


class _Input:
    """`sys.stdin`, which records that it is used."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        if (record := _listening()) is not None and _asked_by_model():
            record.refuse("reads standard input")
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.readline, "")


# --- what Python tells by no event: looking for a path, the time, chance ---------------------------------------------


def _path_sought(kinds: Iterable[str], record: Record, path: Any, *_: Any, dir_fd: Any = None, **__: Any) -> None:
    if isinstance(path, int):
        return
    if dir_fd is not None and _asked_by_model():
        record.refuse("looks for a path below a folder's descriptor")
    with contextlib.suppress(TypeError, ValueError):
        found = os.path.abspath(os.fsdecode(path))
        if not _is_live(found) and _whose(found) not in _FOREIGN:
            for kind in kinds:
                if kind != "time" or _asks_for_time():
                    record.note(kind, found)


_SEEDS = ("seed", "setstate", "set_state", "default_rng")
_seeded: set[str] = set()  # modules of chance that the model has given a seed


def _unsteady_called(module: Any, name: str, record: Record, *given: Any, **named: Any) -> None:
    generator = module is random.Random  # which, as `_urandom`, Python's own modules call for the model
    by_model = _asked_by_model() if generator or name == "_urandom" else _whose(next(_askers())[0]) == "model"
    if not by_model:
        return
    if name in _SEEDS and any(part is not None for part in (*given[generator:], *named.values())):
        _seeded.update(() if generator or name == "default_rng" else (module.__name__,))
    elif name in (*_SEEDS, "_urandom") or module.__name__ not in _seeded:
        record.refuse(f"calls {module.__name__}.{name} ({_caller()})")


def _unsteady() -> Iterator[tuple[Any, str]]:
    """Functions whose results differ from run to run."""
    numpy, torch = map(sys.modules.get, ("numpy", "torch"))
    for module, names in (
        (time, ("time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime")),
        (os, ("urandom", "getrandom", "getpid", "getppid", "getloadavg", "times")),
        (uuid, ("uuid1", "uuid4")),
        (random, (*random.__all__, "_urandom")),
        (random.Random, ("seed",)),
        (os.path, ("getmtime", "getctime", "getatime")),
        *([] if numpy is None else [(numpy.random, numpy.random.__all__)]),
        *([] if torch is None else [(torch, ("from_file",))]),
    ):
        yield from ((module, name) for name in names if name.islower() and callable(vars(module).get(name)))


def _stand_ins() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """What is replaced while a model is read: where, its name, and what makes the stand-in for it."""
    looks: list[tuple[Any, str, Look]] = [
        *((module, name, functools.partial(_unsteady_called, module, name)) for module, name in _unsteady()),
        *((os, name, functools.partial(_path_sought, ("path", "time"))) for name in ("stat", "lstat")),
        *((os, name, functools.partial(_path_sought, ("path",))) for name in ("access", "readlink")),
        (os, "open", functools.partial(_path_sought, ())),  # of what is opened an event tells
        (type(os.environ), "__getitem__", _variable_read),
        (type(os.environ), "__iter__", functools.partial(_all_read, "variables")),
        *((type(os.environ), name, _variable_set) for name in ("__setitem__", "__delitem__")),
        (PathFinder, "find_spec", _module_sought),
        (SourceFileLoader, "path_stats", _compiled_before),
    ]
    yield from ((place, name, _telling(look)) for place, name, look in looks)
    yield sys, "argv", _Arguments
    if sys.stdin is not None:
        yield sys, "stdin", _Input


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


_record = Record()
