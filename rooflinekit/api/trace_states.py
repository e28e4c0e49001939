"""How something is now that a trace rests on: a file's content, a folder's names, a variable, where a module lies."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import PathFinder

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


def _names(path: str) -> str:
    return _fingerprint(sorted(os.listdir(path)))


def _distributions(path: str) -> str:
    return _fingerprint(sorted(name for name in os.listdir(path) if name.endswith((".dist-info", ".egg-info", ".pth"))))


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
    "packages": _distributions,
    "path": _place,
    "time": lambda path: str(os.stat(path).st_mtime_ns),
    "variable": _variable,
    "variables": _variables,
    "arguments": lambda _: _fingerprint(sys.argv),
    "module": _origin,
}
KINDS = frozenset(_NOW)
