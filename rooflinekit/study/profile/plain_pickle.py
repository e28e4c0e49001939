"""Pickles of others that hold plain values: numbers, texts, lists, tuples and dicts."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from rooflinekit.errors import InputError
from rooflinekit.files import read_bytes

#: Of a pickle; the values take ten times its size in memory, and about 4 s for each 16 MiB.
_MOST_BYTES = 64 * 2**20

#: What builds plain values. No instruction that names a class or calls anything is among them, and none that takes
#: memory by a number in the file: the table of values is a dict, whichever places the file names.
_PLAIN = (
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1",
    "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "EMPTY_DICT", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
)  # fmt: skip


class _Plain(pickle._Unpickler):
    """Python's own reader, which keeps values in a dict, without the instructions that are not plain."""

    def _set_items(self) -> None:
        items: list[Any] = self.pop_mark()  # type: ignore[attr-defined]
        self._put(items)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        self._put([key, value])

    def _put(self, items: list[Any]) -> None:
        # A key of another kind, such as a tuple of tuples without end, could exhaust the stack while it is hashed.
        if any(type(key) not in (str, int) for key in items[::2]):
            raise pickle.UnpicklingError("a key is neither a text nor a whole number")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))  # type: ignore[attr-defined]

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        **{getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]] for name in _PLAIN},
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
    }


def read_plain_pickle(path: Path) -> Any:
    """The value of a pickle of protocol 2 or later that holds plain values alone; none of it is run.

    Raises InputError for a file that cannot be read, is larger than 64 MiB, or holds anything else.
    """
    content = read_bytes(path, InputError, _MOST_BYTES)
    try:
        return _Plain(io.BytesIO(content)).load()
    except Exception as error:
        reason = "it ends too soon" if isinstance(error, EOFError) else error
        if isinstance(error, KeyError):
            reason = "it holds more than numbers, texts, lists, tuples and dicts"
        raise InputError(f"{path}: is no pickle of plain values: {reason}") from error
