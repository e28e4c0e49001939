"""Files that appear whole or not at all, locks that end with their process, and files of others, read within bounds."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, BinaryIO

from rooflinekit.errors import OutputError, PluginError, RooflinekitError

#: Of a file that is read whole. JSON takes ten times its size in memory.
MOST_BYTES = 32 * 2**20


def read_bytes(path: Path, error: type[RooflinekitError], most: int = MOST_BYTES) -> bytes:
    """What a regular file holds. Raises `error` for one that is missing, no regular file, or larger than `most`."""
    with opened(path, error) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise error(f"{path}: is larger than {most >> 20} MiB; expected a smaller file")
    return content


@contextlib.contextmanager
def opened(path: Path, error: type[RooflinekitError]) -> Iterator[BinaryIO]:
    """A regular file, to read its bytes. Raises `error` for one that is missing or no regular file, or breaks off."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a device or a pipe might never end
            raise error(f"{path}: is {'a directory' if path.is_dir() else 'no regular file'}; expected a file")
        with path.open("rb") as stream:
            yield stream
    except RooflinekitError:
        raise
    except (OSError, ValueError) as reason:  # ValueError: a name that no file can have
        raise error(f"{path}: cannot be read: {getattr(reason, 'strerror', None) or reason}") from reason


def read_text(path: Path, error: type[RooflinekitError], most: int = MOST_BYTES) -> str:
    """The text that a regular file holds, in UTF-8. Raises `error` as `read_bytes` does, and for other bytes."""
    try:
        return read_bytes(path, error, most).decode("utf-8")
    except UnicodeDecodeError as reason:
        raise error(f"{path}: is no text in UTF-8: {reason.reason} at byte {reason.start}") from reason


def read_json(path: Path, error: type[RooflinekitError], most: int = MOST_BYTES) -> Any:
    """The value that a JSON file holds. Raises `error` as `read_text` does, and for what is no JSON."""
    return parse_json(read_text(path, error, most), error, str(path))


def parse_json(text: str, error: type[RooflinekitError], label: str) -> Any:
    """The value of a JSON text, NaN and infinities excluded. Raises `error`, beginning with the label."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except ValueError as reason:
        raise error(f"{label}: is no JSON: {reason}") from None
    except (RecursionError, MemoryError):
        raise error(f"{label}: is no JSON that can be read: it nests too deep") from None


def refuse_constant(word: str) -> None:
    """Raises ValueError for NaN and infinities, which no JSON has; what `json.loads` takes as parse_constant."""
    raise ValueError(f"{word} is no number of JSON")


#: What file systems say that know no locks: there all goes on without, as it would with none else at work.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}


@contextlib.contextmanager
def replacing(path: Path, *, force: bool = True) -> Iterator[Path]:
    """A place beside `path` to write to, which becomes `path` when the block ends well, and goes when it does not.

    The place is a new file of a name that nobody can foresee, so that no link leads elsewhere. What a process that was
    killed has left beside is taken away. Raises OutputError when it cannot be written, is a device or pipe, or exists
    and `force` is not set.
    """
    check_free(path, force=force)
    check_kind(path)
    with writing(path):
        _clear(path)
        descriptor, beside = _held_beside(path)
        try:
            os.chmod(beside, 0o666 & ~_umask())
            yield beside
            os.fsync(descriptor)  # or a crash of the machine could leave the new name without the content
            beside.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises OutputError, which says that this path cannot be written, for what the system refuses within."""
    try:
        yield
    except OutputError:
        raise  # of a file: says which
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error


def check_writable(folder: Path) -> None:
    """Raises OutputError for a folder that cannot be written: before work of minutes, not after it."""
    with writing(folder):
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"0")


_PART = ".part"
_NAME = 200  # letters of a file's name that the one beside it begins with


def _prefix(path: Path) -> str:
    return f".{path.name[:_NAME]}."


def _held_beside(path: Path) -> tuple[int, Path]:
    """A new file beside `path` and its descriptor, locked while that is open: nobody takes it for one that was left."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=_prefix(path), suffix=_PART, dir=path.parent)
        try:
            hold(descriptor)
            if os.path.samestat(os.fstat(descriptor), os.lstat(name)):
                return descriptor, Path(name)
        except (FileNotFoundError, BlockingIOError):
            pass  # another process takes it away, which was not locked yet: once more
        except BaseException:
            os.close(descriptor)
            Path(name).unlink(missing_ok=True)
            raise
        os.close(descriptor)


def _clear(path: Path) -> None:
    """Takes away what killed processes have left of this file: what no process holds."""
    for left in path.parent.glob(f"{glob.escape(_prefix(path))}*{_PART}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(left, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            try:
                hold(descriptor)
                left.unlink()
            finally:
                os.close(descriptor)


def _umask() -> int:
    """What this process takes away of new files' rights; it can be asked only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


_held: set[int] = set()  # descriptors of locks of this process


def _let_go() -> None:
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    # A forked process has the descriptors too, and would hold the locks when their owner is long gone.
    os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """A file that no other process locks meanwhile; it is made if it is not there.

    Raises BlockingIOError where another has it, and OSError where it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    _held.add(descriptor)
    try:
        hold(descriptor)
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)  # its owner has taken it away
        yield
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


def hold(descriptor: int) -> None:
    """Locks a file for as long as it is open. Raises BlockingIOError where another has it."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def sync_folder(path: Path) -> None:
    """Makes the names in a folder last through a crash of the machine, where its file system can be asked for that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_free(path: Path, *, force: bool) -> None:
    """Raises OutputError for a file that exists, unless it may be replaced."""
    if not force and os.path.lexists(path):
        raise OutputError(f"{path}: exists; choose another file, or replace it with --force")


def check_ending(path: str | Path, *endings: str) -> Path:
    """The path of a file to write. Raises OutputError for a name with another ending than these, if any are given, and
    for no folder, a device or a pipe.
    """
    target = Path(path)
    if endings and target.suffix.lower() not in endings:
        raise OutputError(f"{target}: expected a file name that ends in {', '.join(endings)}")
    if not os.path.isdir(target.parent):
        raise OutputError(f"{target}: cannot be written: {target.parent} is no folder")
    check_kind(target)
    return target


def check_kind(path: Path) -> None:
    """Raises OutputError for what is there and is no file, such as /dev/null: it would be replaced by one."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # not there, or cannot be reached: that is told when it is written
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OutputError(f"{path}: is no file but a device or pipe; choose another name")


def write_text(text: str, path: Path, *, force: bool = True) -> None:
    """Writes a text in UTF-8. Raises OutputError as `replacing` does."""
    with replacing(path, force=force) as beside:
        beside.write_text(text, encoding="utf-8")


def write_bytes(content: bytes, path: Path) -> None:
    """Writes bytes. Raises OutputError as `replacing` does."""
    with replacing(path) as beside:
        beside.write_bytes(content)


class FromSource(SourceFileLoader):
    """Compiles a module's source: what Python has kept of it may be of another with the same size and time."""

    def get_code(self, fullname: str) -> CodeType:
        """The code of the source as it is."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def plugins(group: str) -> Iterator[tuple[str, Any]]:
    """What other packages bring by the entry points of a group, each with its name in messages.

    Raises PluginError for one that cannot be imported.
    """
    from importlib.metadata import entry_points  # 10 ms, for what few steps need

    for point in sorted(entry_points(group=group), key=lambda point: (point.value, point.name)):
        label = f"{group}: {point.name} = {point.value}, of {point.dist.name if point.dist else 'a package'}"
        try:
            found = point.load()
        except Exception as error:  # whatever its import raises
            raise PluginError(f"{label}: {type(error).__name__}: {error}; repair or uninstall it") from error
        yield label, found
