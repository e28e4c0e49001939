"""Inputs are described, not allocated."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, get_args

from rooflinekit.errors import InputError, nearest
from rooflinekit.ir.op import DType
from rooflinekit.ir.sizes import LARGEST, shown, whole


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
        if "," in size:  # as the command line takes it
            parts = tuple(_number(part.strip()) for part in size.split(","))
            raise InputError(f"sizes are arguments of their own: Input{shown(parts)}, not Input({size!r})")
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


# Which step a graph is of, also by the words that people write.


Mode = Literal["inference", "training", "forward"]

_MEANT: dict[str, Mode] = {"train": "training", "eval": "inference", "infer": "inference", "fwd": "forward"}


def mode_of(given: Any, option: str = "mode") -> Mode:
    """The mode that is meant. Raises InputError for a word that means none.

    >>> mode_of("train")
    'training'
    """
    known: tuple[Mode, ...] = get_args(Mode)
    for mode in known:
        if _MEANT.get(given if isinstance(given, str) else "", given) == mode:
            return mode
    near = nearest(str(given), known)
    raise InputError(f"{option} {given!r:.60}: expected {' or '.join(map(repr, known))}{near}")


# Releases of PyTorch, and what they did otherwise than today's.


_FIRST = (1, 0)
_LAST_PATCH = 99


def _since(*first: int) -> property:
    """What releases of PyTorch do from this one on."""
    return property(lambda release: release >= first)


class _Parts(NamedTuple):
    major: int
    minor: int
    patch: int = _LAST_PATCH


class Release(_Parts):
    """A release by the parts of its number, which compare as such numbers do; "2.5" is the last of its patches.

    >>> Release.parse("1.13.1+cu117") < Release.parse("2.0")
    True
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: object) -> Release:
        """The release that "1.12", "2.4.0" or "1.13.1+cu117" names. Raises InputError for anything else."""
        found = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?([.+a-z].*)?", text.strip()) if isinstance(text, str) else None
        if found is None or (release := cls(*(int(part) for part in found.groups()[:3] if part))) < _FIRST:
            raise InputError(f"like: expected a release of PyTorch from 1.0 on, such as '1.12' or '2.4'; got {text!r}")
        return release

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + ("" if self.patch == _LAST_PATCH else f".{self.patch}")

    has_flash_2 = _since(2, 2)  # FlashAttention 2 as its flash attention; before, FlashAttention 1
    holds_softmax_rows = _since(2, 2)  # a softmax's blocks have 1,024 threads, and keep rows in shared memory
    fuses_attention = _since(2, 0)  # scaled_dot_product_attention is one kernel: torch.nn.functional has it at all
    widens_attention = _since(2, 5)  # attention by products and softmax is in fp32 for 16 bits, where nobody says else
    fuses_rms_norm = _since(2, 9)  # rms_norm is one kernel on CUDA; before, it is written out
    foreach_optimizers = _since(2, 0)  # optimizers on CUDA take all tensors at once by default (`foreach`)
    drops_gradients = _since(2, 0)  # zero_grad() sets gradients to None by default (`set_to_none`)
    compiles = _since(2, 0)  # there is torch.compile
    sums_softmax_at_once = _since(2, 7)  # inductor finds a long row's maximum and sum in one pass; before, in two
    reorders_loops = _since(2, 10)  # inductor turns loops over so that more kernels fuse (before, it can, switched off)
    compiles_dilated_pooling = _since(2, 8)  # inductor makes a maximum over a dilated window; before, the library
    gathers_vectors = _since(2, 8)  # rows named by an index are copied 16 bytes at a time; before, by elements
    shares_targets = _since(2, 8)  # a loss of targets has threads by their number; before, one warp takes them all
    keeps_pool_offsets = _since(2, 4)  # inductor keeps where a maximum lay as a byte, its place in the window
    scatters_pool_gradients = _since(2, 12)  # inductor adds a maximum's gradient up where it lay
    keeps_half_biases = _since(2, 12)  # inductor leaves a bias of 16 bits with its product
    shares_concatenated = _since(2, 12)  # inductor stores a concatenation of which others read an input too

    def prefers_cudnn(self, generation: int) -> bool:
        """Whether it takes cuDNN's attention first: from 2.11 on where capability is 9 or 10, in 2.5.0 on Hopper."""
        return (self >= (2, 11) and generation in (9, 10)) or (self == (2, 5, 0) and generation == 9)

    def tf32(self, allowed: bool | None) -> bool | None:
        """Where fp32 products may run as tf32: as allowed; by default nowhere before 1.7, everywhere up to 1.11.

        tf32 came with 1.7, switched on; 1.12 switched `torch.backends.cuda.matmul.allow_tf32` off.
        """
        if allowed is not None or self >= (1, 12):
            return allowed
        return self >= (1, 7)


PRESENT = Release(2, 13)  # what a graph that names none is taken for
