"""The pieces of a sweep in a folder: each a file that appears whole or not at all, and can be told from a damaged one.

A piece's name ends in a check over its content, its number and what sweep it is of. So it takes no list of pieces to
know which are there and whole, and none can be left behind or mixed up however a run ends. A file of that folder is
locked while a process works on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pandas as pd

from rooflinekit.errors import OutputError, SweepWarning
from rooflinekit.files import MOST_BYTES, check_kind, locked, read_bytes, write_bytes, write_text
from rooflinekit.study.sweep.plan import Plan
from rooflinekit.study.sweep.points import Table

_MANIFEST, _LOCK = "_sweep.json", "_lock"  # readers of parquet folders pass over names that begin so
_SCHEMA = 2
_PIECE = re.compile(r"part-(\d{7})-([0-9a-f]{16})")
_OURS = re.compile(r"part-\d+.*\.(?:parquet|npz)")  # of any version
_MOST_BYTES = 2**30  # of a piece, several times what the widest takes
_TRIES = 100  # to lock a folder that its owner takes away at that moment


class SweepFolder:
    """Where a sweep's pieces are kept; those that are there need not be worked out again. Made by `opened`."""

    def __init__(self, path: Path, ending: Literal["parquet", "npz"], plan: Plan) -> None:
        self.path, self._ending, self._plan = path, ending, plan
        self._identity = json.dumps(plan.parts, sort_keys=True).encode()
        self._pieces: dict[int, Path] = {}

    @property
    def done(self) -> set[int]:
        """The numbers of the pieces that are there and whole."""
        return set(self._pieces)

    def write(self, number: int, frame: pd.DataFrame) -> None:
        """Keeps the rows of a piece, as parquet."""
        content = io.BytesIO()
        frame.to_parquet(content, index=False, engine="pyarrow")
        self._keep(number, content.getvalue())

    def write_tables(self, number: int, tables: Sequence[Table]) -> None:
        """Keeps what a piece has found, as npz."""
        columns = {f"{i} {name}": values for i, table in enumerate(tables) for name, values in table.items()}
        content = io.BytesIO()
        np.savez(content, **columns)  # type: ignore[arg-type]  # no name of a column is one of its parameters
        self._keep(number, content.getvalue())

    def read_tables(self, number: int) -> list[Table]:
        """The tables that `write_tables` has kept."""
        found: dict[int, Table] = {}
        piece = self._pieces[number]
        content = read_bytes(piece, OutputError, _MOST_BYTES)
        if not piece.stem.endswith(self._checked(number, io.BytesIO(content))):
            raise OutputError(f"{piece}: was damaged while the sweep was on its way")
        with np.load(io.BytesIO(content), allow_pickle=False) as columns:
            for key in columns.files:
                i, name = key.split(" ", 1)
                found.setdefault(int(i), {})[name] = columns[key]
        return [found[i] for i in sorted(found)]

    def is_any_there(self) -> bool:
        """Whether pieces are kept, which the same call takes over."""
        return any(os.path.exists(piece) for piece in self._pieces.values())

    def check_complete(self) -> None:
        """Raises OutputError where somebody has taken a piece away meanwhile."""
        there = set(os.listdir(self.path))
        for piece in self._pieces.values():
            if piece.name not in there:
                raise OutputError(f"{piece}: was taken away while the sweep was on its way")

    def remove(self) -> None:
        """Takes the pieces away, and the folder if nothing else is in it."""
        for piece in self._pieces.values():
            piece.unlink(missing_ok=True)
        self._pieces.clear()

    def _keep(self, number: int, content: bytes) -> None:
        piece = self.path / f"part-{number:07d}-{self._checked(number, io.BytesIO(content))}.{self._ending}"
        write_bytes(content, piece)
        self._pieces[number] = piece

    def _checked(self, number: int, content: IO[bytes]) -> str:
        digest = hashlib.blake2b(self._identity, digest_size=8)
        digest.update(f"\n{number}\n".encode())
        return hashlib.file_digest(content, lambda: digest).hexdigest()  # type: ignore[arg-type]

    # --- what is there before ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Takes over what is there of this sweep, and takes away what a killed run has left half done.

        Raises OutputError for pieces of another sweep, and where it cannot be told which they are of.
        """
        for half in (*self.path.glob(".part-*.part"), *self.path.glob(f".{_MANIFEST}*.part")):
            half.unlink(missing_ok=True)
        pieces = [file for file in sorted(self.path.iterdir()) if _OURS.fullmatch(file.name)]
        manifest, known = self.path / _MANIFEST, self._is_known(bool(pieces))
        damaged = []
        for file in pieces:
            number = self._number(file)
            if number is None or number in self._pieces:
                damaged.append(file)
            else:
                self._pieces[number] = file
        if pieces and not known and not self._pieces:
            raise OutputError(
                f"{manifest}: is damaged or not there, and no file beside it is a whole piece of this sweep; "
                f"remove {self.path} to start anew, or choose another name"
            )
        for file in damaged:
            file.unlink(missing_ok=True)
            warnings.warn(SweepWarning(f"{file}: is damaged; it is made again"), stacklevel=2)
        if not known:
            write_text(json.dumps({"schema": _SCHEMA, "rows": self._plan.rows, "parts": self._plan.parts}), manifest)

    def _is_known(self, pieces: bool) -> bool:
        """Whether the manifest is this sweep's; else it is damaged, or without pieces, so that nothing is lost."""
        found = _read(self.path / _MANIFEST)
        if found is None:
            return False
        if found.get("schema") != _SCHEMA or not isinstance(other := found.get("parts"), dict):
            if pieces and isinstance(found.get("schema"), int) and found["schema"] != _SCHEMA:
                raise OutputError(
                    f"{self.path}: holds a sweep of another version of rooflinekit; remove it to start anew, or choose "
                    "another name"
                )
            return False
        parts = self._plan.parts
        differs = [name for name in {**parts, **other} if other.get(name) != parts.get(name)]
        if differs and pieces:
            raise OutputError(
                f"{self.path}: holds another sweep, which differs in {', '.join(differs)}: it is not continued; "
                f"remove {self.path} to start anew, or choose another name"
            )
        return not differs

    def _number(self, file: Path) -> int | None:
        """Which piece of this sweep it is, where it is whole."""
        match = _PIECE.fullmatch(file.stem)
        if match is None or file.suffix != f".{self._ending}":
            return None
        if file.is_dir():
            raise OutputError(f"{file}: is a folder and no piece of a sweep; remove it, or choose another name")
        number = int(match[1])
        try:
            if not file.is_file() or file.stat().st_size > _MOST_BYTES:  # a pipe or a device might never end
                return None
            with file.open("rb") as content:
                return number if self._checked(number, content) == match[2] else None
        except OSError as error:
            raise OutputError(f"{file}: cannot be read: {error.strerror or error}; remove it") from error


@contextlib.contextmanager
def opened(path: Path, ending: Literal["parquet", "npz"], plan: Plan) -> Iterator[SweepFolder]:
    """The folder of a sweep, which nobody else can open meanwhile, with the pieces that are there already.

    Raises OutputError for a place that cannot be written, holds something else, or is in use.
    """
    with contextlib.ExitStack() as stack:
        try:
            _lock(path, stack)
            stack.callback(_leave, path)  # before the lock is let go
            folder = SweepFolder(path, ending, plan)
            folder.begin()
        except BlockingIOError as error:
            raise OutputError(
                f"{path}: another process is writing this sweep; wait until it ends, or choose another name"
            ) from error
        except OutputError:
            raise
        except OSError as error:
            raise OutputError(f"{error.filename or path}: cannot be written: {error.strerror or error}") from error
        try:
            yield folder
        except OutputError as error:
            if not folder.is_any_there():
                raise
            raise OutputError(f"{error}; finished pieces are kept: the same call continues") from error


def _leave(path: Path) -> None:
    """Takes the lock's file away; where there are no pieces, and nothing else, the folder too."""
    with contextlib.suppress(OSError):
        if not any(_OURS.fullmatch(name) for name in os.listdir(path)):
            (path / _MANIFEST).unlink(missing_ok=True)
        (path / _LOCK).unlink(missing_ok=True)
        path.rmdir()


def _lock(path: Path, stack: contextlib.ExitStack) -> None:
    for left in reversed(range(_TRIES)):
        _refuse_others(path)
        path.mkdir(parents=True, exist_ok=True)
        try:
            stack.enter_context(locked(path / _LOCK))
            return
        except FileNotFoundError:
            if not left:
                raise


def _refuse_others(path: Path) -> None:
    """Raises OutputError for what is no folder, and for one with files that are no sweep's."""
    check_kind(path)
    if not os.path.lexists(path):
        return
    if path.is_symlink() and not os.path.exists(path):
        raise OutputError(f"{path}: is a link to what is not there; remove it, or choose another name")
    try:
        names = sorted(os.listdir(path))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        names, ours = [""], False
    else:
        ours = any(name == _MANIFEST or _PIECE.match(name) for name in names)
    others = [name for name in names if name[:1] not in (".", "_") and not _OURS.fullmatch(name)]
    if others and ours:
        raise OutputError(
            f"{path}: holds {others[0]}, which is no piece of a sweep; move that elsewhere, or choose another name"
        )
    if others:
        raise OutputError(f"{path}: is there already and is no sweep; move it elsewhere, or choose another name")


def _read(manifest: Path) -> dict[str, Any] | None:
    """The manifest's content; None where it is damaged or missing."""
    if os.path.lexists(manifest) and not os.path.isfile(manifest):
        raise OutputError(f"{manifest}: is no file; remove it, or choose another name")
    try:
        if manifest.stat().st_size > MOST_BYTES:
            return None
        found = json.loads(manifest.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"{manifest}: cannot be read: {error.strerror or error}; remove it") from error
    except (ValueError, RecursionError, MemoryError):  # it nests too deep
        return None
    return found if isinstance(found, dict) else None
