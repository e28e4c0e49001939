"""How something is now that a trace rests on: a file's content, a folder's names, a variable, where a module lies."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import PathFinder

MOST_FILE = 64 << 20  # bytes of a file that is looked at again
MOST_READ = 256 << 20  # bytes of all files that one trace rests on
_SHOWN = 32  # characters of a variable's value that are kept as they are
SESSION = ("_", "SHLVL", "OLDPWD")  # variables that each shell sets anew; libraries read all there are
_SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "AUTH")  # in names of variables whose values are never kept
_real_stat = os.stat


class Unfollowed(Exception):  # noqa: N818 (no error, a reason)
    """Something that nobody can look at again."""


def digest(data: bytes) -> str:
    """A fingerprint of bytes."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def content(path: str, known_size: int | None = None) -> str:
    """Size and fingerprint of a regular file; "absent" where there is none. Nothing else is opened for long."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    except (FileNotFoundError, NotADirectoryError):
        return "absent"
    except OSError as error:
        return f"error {error.errno}"
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            return "folder"
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_FILE:
            raise Unfollowed(f"reads {path}, which is no regular file or larger than {MOST_FILE >> 20} MiB")
        if known_size not in (None, found.st_size):
            return "another size"
        return f"{found.st_size} {digest(_all_of(descriptor, found.st_size))}"
    finally:
        os.close(descriptor)


def _all_of(descriptor: int, size: int) -> bytes:
    """What a file holds, but no more than it held when it was opened."""
    parts, left = [], size
    while left > 0 and (part := os.read(descriptor, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _fingerprint(parts: Iterable[str]) -> str:
    return digest("\0".join(parts).encode(errors="surrogateescape"))


def _names(path: str) -> str:
    """Fingerprint of the names in a folder."""
    return _fingerprint(sorted(os.listdir(path)))


def _distributions(path: str) -> str:
    """Fingerprint of the packages that are installed in a folder."""
    return _fingerprint(sorted(name for name in os.listdir(path) if name.endswith((".dist-info", ".egg-info", ".pth"))))


def _place(path: str) -> str:
    """Whether a path is there, as what, with which rights and of which size, and where a link leads."""
    to = os.readlink(path) if os.path.islink(path) else ""
    found = _real_stat(path)
    return f"{found.st_mode:o} {found.st_size if stat.S_ISREG(found.st_mode) else ''} {to}"


def _changed(path: str) -> str:
    """When a path was last written to, in nanoseconds."""
    return str(_real_stat(path).st_mtime_ns)


def _or_absent(look: Callable[[str], str]) -> Callable[[str], str]:
    def state(path: str) -> str:
        try:
            return look(path)
        except (OSError, ValueError):
            return "absent"

    return state


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
    """Fingerprint of all environment variables, but for those that each shell sets anew."""
    return _fingerprint(f"{name}={value}" for name, value in sorted(os.environ.items()) if name not in SESSION)


def _origin(name: str) -> str:
    """Where a module would be imported from; name: its own, and the folders that are searched, by lines."""
    module, *folders = name.split("\n")
    try:
        spec = PathFinder.find_spec(module, folders)
    except (ImportError, OSError, ValueError):
        return "error"
    if spec is None:
        return "absent"
    return spec.origin or "\n".join(spec.submodule_search_locations or ())


NOW: Mapping[str, Callable[[str], str]] = {
    "file": content,
    **{
        kind: _or_absent(look)
        for kind, look in {"folder": _names, "packages": _distributions, "path": _place, "time": _changed}.items()
    },
    "variable": _variable,
    "variables": _variables,
    "arguments": lambda _: _fingerprint(sys.argv),
    "module": _origin,
}
