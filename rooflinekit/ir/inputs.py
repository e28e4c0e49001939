"""Inputs are described, not allocated."""

from __future__ import annotations

from rooflinekit.errors import InputError, nearest
from rooflinekit.ir.sizes import LARGEST, shown, whole
from rooflinekit.ir.tensor import DType


class Input:
    """A tensor that the model is called with: sizes and format, no numbers.

    A `str` is a size left open, the same wherever it has the same name; an `int` is a fixed one. No size makes a
    scalar. Raises InputError for anything else.

    >>> Input("batch", 3, 224, 224)
    Input('batch', 3, 224, 224, dtype='float32')
    >>> Input("batch", "seq", dtype="int64").names
    ('batch', 'seq')
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, *shape: int | str, dtype: str | DType = DType.FLOAT32) -> None:
        self.shape = tuple(_size(size) for size in shape)
        self.dtype = _dtype(dtype)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sizes left open, in order, each once."""
        return tuple(dict.fromkeys(size for size in self.shape if isinstance(size, str)))

    @classmethod
    def parse(cls, text: str) -> Input:
        """The input that a command line writes as `batch,3,224,224` or `batch,seq:int64`.

        >>> Input.parse("batch,seq:int64")
        Input('batch', 'seq', dtype='int64')
        """
        sizes, _, dtype = text.partition(":")
        words = [word.strip() for word in sizes.split(",")]
        if not all(words):
            raise InputError(
                f"input {text!r}: expected sizes separated by commas, names or numbers, such as 'batch,3,224,224' "
                "or 'batch,seq:int64'"
            )
        try:
            return cls(*(_number(word) for word in words), dtype=dtype.strip() or DType.FLOAT32)
        except InputError as error:
            raise InputError(f"input {text!r}: {error}") from None

    def __repr__(self) -> str:
        return f"Input({''.join(f'{size!r}, ' for size in self.shape)}dtype={self.dtype.value!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Input) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


def open_names(values: object) -> tuple[str, ...]:
    """Names of the open sizes of every `Input` in nested lists, tuples and dicts, in order, each once.

    >>> open_names([Input("batch", 3), {"ids": Input("batch", "seq")}, 7])
    ('batch', 'seq')
    """
    if isinstance(values, Input):
        return values.names
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, list | tuple):
        return tuple(dict.fromkeys(name for value in values for name in open_names(value)))
    return ()


def _number(word: str) -> int | str:
    try:
        return int(word)
    except ValueError:
        return word


def _size(size: object) -> int | str:
    if isinstance(size, str):
        if not size.isidentifier():
            raise InputError(f"size {size!r} is no name: expected letters, digits and underscores, such as 'batch'")
        return size
    number = whole(size)
    if number is None and isinstance(size, list | tuple):
        raise InputError(f"sizes are arguments of their own: Input{shown(tuple(size))}, not Input({shown(size)})")
    if number is None:
        raise InputError(f"expected a size as a positive integer or a name; got {shown(size)}")
    if number < 1:
        raise InputError(f"expected a positive size; got {shown(size)}")
    if number > LARGEST:
        raise InputError(f"expected a size of at most 2**48 = {LARGEST:,}; got {shown(size)}")
    return number


def _dtype(dtype: object) -> DType:
    try:
        return DType(str(dtype))
    except ValueError:
        name = str(dtype).removeprefix("torch.")
        known = [str(known) for known in DType]
        raise InputError(f"unknown number format {name!r}{nearest(name, known)} (known: {', '.join(known)})") from None
