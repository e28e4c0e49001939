"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from rooflinekit.errors import OutputError


@contextlib.contextmanager
def replacing(path: Path, *, force: bool = True) -> Iterator[Path]:
    """A place beside `path` to write to, which becomes `path` when the block ends well, and goes when it does not.

    Two processes that write the same file do not meet. Raises OutputError when it cannot be written, or exists and
    `force` is not set.
    """
    if not force and os.path.lexists(path):
        raise OutputError(f"{path}: exists; choose another file, or replace it with --force")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield beside
        beside.replace(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{path}: cannot be written: {reason}") from error
    finally:
        with contextlib.suppress(OSError, ValueError):  # a name that no file can have: nothing was written
            beside.unlink(missing_ok=True)


def write_text(text: str, path: Path, *, force: bool = True) -> None:
    """Writes a text in UTF-8. Raises OutputError as `replacing` does."""
    with replacing(path, force=force) as beside:
        beside.write_text(text, encoding="utf-8")
