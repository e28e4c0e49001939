"""What PyTorch's caching allocator held in a measured run, beside a prediction."""

from __future__ import annotations

import io
import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from rooflinekit.errors import InputError, printable
from rooflinekit.files import read_bytes, read_json
from rooflinekit.step.allocator import rounded
from rooflinekit.step.prediction import Prediction

_UNKNOWN = "not recorded"  # the stack of a block from before the history, or with stacks switched off
_LIBRARY = ("/torch/", "<frozen", "/runpy.py")  # files whose frames name no place of the user's
_ACTIVE = "active_allocated"
_SEGMENT = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_PICKLES = (".pickle", ".pkl")
_READ = (
    "expected a snapshot of torch.cuda.memory._dump_snapshot that ends in .pickle, or the dict of "
    "torch.cuda.memory_stats() written as JSON"
)


@dataclass(slots=True)
class _Entry:
    action: str
    size: NonNegativeInt
    addr: int = 0  # an entry of running out of memory has none
    frames: Any = None  # looked at where they are shown: the same lists may lie in every entry


@dataclass(slots=True)
class _Held:
    state: str
    size: NonNegativeInt
    requested_size: NonNegativeInt = 0
    frames: Any = None

    @property
    def rounded(self) -> int:
        return rounded(self.requested_size or self.size)


@dataclass(slots=True)
class _Segment:
    address: int
    total_size: NonNegativeInt
    blocks: list[_Held]
    device: NonNegativeInt = 0


@dataclass(slots=True)
class _Snapshot:
    segments: list[_Segment]
    device_traces: list[list[_Entry]] = field(default_factory=list)


_SNAPSHOT = TypeAdapter(_Snapshot)
_STATS = ("allocated_bytes.all.peak", "reserved_bytes.all.peak")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Blocks of one place in the code, or of one op: how many, and their bytes."""

    where: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """The fullest moment of a measured run on one GPU, in bytes.

    `blocks` are those in use at that moment, each with its bytes and the place in the code that asked for it; none
    where the file has peaks alone. Blocks count in whole 512 bytes, without what a large one keeps of its segment.
    """

    file: str
    device: int  # index of the GPU; where the file has several, the one with the most reserved
    devices: int
    peak_bytes: int
    reserved_bytes: int
    blocks: tuple[tuple[int, str], ...]

    @classmethod
    def read(cls, path: str | Path) -> MemoryProfile:
        """A file of `torch.cuda.memory._dump_snapshot` (.pickle), or `torch.cuda.memory_stats()` as JSON.

        Peaks of a snapshot are those of its history (`torch.cuda.memory._record_memory_history`); without one they are
        what was held when it was taken. Nothing that a pickle holds is run. Raises InputError for another file, and for
        a snapshot that is larger than 64 MiB.
        """
        path = Path(path)
        if path.suffix.lower() not in _PICKLES:
            return _of_stats(path)
        try:
            found = _SNAPSHOT.validate_python(_said(path, read_plain_pickle))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the whole"
            raise InputError(
                f"{path}: is no snapshot of torch.cuda.memory: {printable(place)}: {first['msg']}; {_READ}"
            ) from None
        traces = dict(enumerate(found.device_traces))
        used = {segment.device for segment in found.segments} | {i for i, entries in traces.items() if entries}
        if not used:
            raise InputError(f"{path}: holds no block of memory; expected a snapshot taken while a GPU is in use")
        each = (_of_device(path, i, [s for s in found.segments if s.device == i], traces.get(i, ())) for i in used)
        return replace(max(each, key=lambda one: one.reserved_bytes), devices=len(used))

    def beside(self, prediction: Prediction) -> MemoryComparison:
        """This run beside a prediction of the same step. Raises InputError where that is not of a GPU."""
        device = prediction.machine.device
        if device.kind != "gpu":
            raise InputError(f"{device.name}: has no caching allocator to compare with; expected a GPU")
        return MemoryComparison(profile=self, prediction=prediction)


@dataclass(frozen=True, kw_only=True)
class MemoryComparison:
    """What was held in a measured run beside a prediction. All sizes are bytes.

    Blocks at both fullest moments are paired by their bytes. `more` are those of the run without a predicted one, by
    the place in the code that asked for them; `less` the predicted ones that the run did not hold, by their op. The
    difference of their sums is that of the peaks.
    """

    profile: MemoryProfile
    prediction: Prediction

    @cached_property
    def more(self) -> tuple[Held, ...]:
        """The largest first; none where the run has no blocks to name."""
        return _without(self.profile.blocks, self._predicted)

    @cached_property
    def less(self) -> tuple[Held, ...]:
        """The largest first; none where the run has no blocks to name."""
        return _without(self._predicted, self.profile.blocks) if self.profile.blocks else ()

    @cached_property
    def _predicted(self) -> tuple[tuple[int, str], ...]:
        return tuple(_blocks_at_peak(self.prediction))

    def to_dict(self) -> Mapping[str, object]:
        """Every number, ready for JSON."""
        p, m = self.profile, self.prediction.memory
        return {
            "file": p.file, "device": p.device,
            "allocated": {"measured_bytes": p.peak_bytes, "predicted_bytes": m.peak_bytes},
            "reserved": {"measured_bytes": p.reserved_bytes, "predicted_bytes": m.reserved_bytes},
            "more": [asdict(one) for one in self.more], "less": [asdict(one) for one in self.less],
        }  # fmt: skip


def _said(path: Path, read: Callable[[Path], Any]) -> Any:
    """What the file holds. Raises InputError that tells both formats too, where it is a file of neither."""
    try:
        return read(path)
    except InputError as error:
        raise InputError(f"{error}; {_READ}") from error


def _of_stats(path: Path) -> MemoryProfile:
    stats = _said(path, lambda path: read_json(path, InputError))
    peaks: list[int] = []
    for key in _STATS:
        value = stats.get(key) if isinstance(stats, dict) else None
        if type(value) is not int or value < 0:
            raise InputError(f"{path}: has no {key} in bytes; {_READ}")
        peaks.append(value)
    return MemoryProfile(file=path.name, device=0, devices=1, peak_bytes=peaks[0], reserved_bytes=peaks[1], blocks=())


def _of_device(path: Path, device: int, segments: Sequence[_Segment], entries: Sequence[_Entry]) -> MemoryProfile:
    held: dict[int, _Held] = {}
    for segment in segments:
        places = accumulate((block.size for block in segment.blocks), initial=segment.address)
        held |= {a: block for a, block in zip(places, segment.blocks, strict=False) if block.state == _ACTIVE}
    levels = _levels(
        sum(block.rounded for block in held.values()),
        [{"alloc": 1, "free_requested": -1}.get(e.action, 0) * rounded(e.size) for e in entries],
    )
    reserved = _levels(sum(s.total_size for s in segments), [_SEGMENT.get(e.action, 0) * e.size for e in entries])
    if min(levels) < 0 or min(reserved) < 0:
        raise InputError(f"{path}: the history of GPU {device} does not end in its segments; take the snapshot again")
    blocks = tuple(_alive(entries, held, levels.index(max(levels))))
    peak = sum(size for size, _ in blocks)
    return MemoryProfile(
        file=path.name, device=device, devices=1, peak_bytes=peak, reserved_bytes=max(reserved), blocks=blocks
    )


def _levels(end: int, changes: Sequence[int]) -> list[int]:
    """Before the first change and after each, by what is there at the end: a long run keeps its last changes alone."""
    return list(accumulate(changes, initial=end - sum(changes)))


def _alive(entries: Sequence[_Entry], held: Mapping[int, _Held], moment: int) -> Iterator[tuple[int, str]]:
    """Blocks in use after so many entries: those taken until then, and those from before the first."""
    now: dict[int, _Entry] = {}
    taken: set[int] = set()
    for i, entry in enumerate(entries):
        if entry.action == "alloc":
            taken.add(entry.addr)
            if i < moment:
                now[entry.addr] = entry
        elif entry.action == "free_requested":
            if i < moment:
                now.pop(entry.addr, None)
            elif entry.addr not in taken:
                yield rounded(entry.size), _UNKNOWN
            taken.discard(entry.addr)
    for entry in now.values():
        yield rounded(entry.size), _place(entry.frames)
    for address, block in held.items():
        if address not in taken:
            yield block.rounded, _place(block.frames)


def _place(frames: Any) -> str:
    """The innermost frame that is not of PyTorch or of C++; the innermost of all where there is no other."""
    found: list[str] = []
    for frame in frames if isinstance(frames, list) else ():
        if not isinstance(frame, dict):
            continue
        file, line, name = (frame.get(key, "") for key in ("filename", "line", "name"))
        found.append(f"{file}:{line} {name}" if file and line else str(name))
        if str(file).endswith(".py") and not any(part in str(file) for part in _LIBRARY):
            return found[-1]
    return found[0] if found else _UNKNOWN


def _blocks_at_peak(p: Prediction) -> Iterator[tuple[int, str]]:
    """The predicted blocks at the fullest moment, with the op that makes each."""
    issues, blocks = p.issues, p.blocks
    _, where = blocks.peak()
    for name, size in zip((*(spec.name for spec in blocks.standing), "matrix products"), blocks.fixed, strict=True):
        yield rounded(size), name
    for life in blocks.lives:
        if life.first <= where <= life.last:
            yield rounded(life.size), issues[life.first].op.name
    if where >= 0:
        yield rounded(blocks.temporary[where]), f"workspace of {issues[where].op.name}"


def _without(blocks: Sequence[tuple[int, str]], others: Sequence[tuple[int, str]]) -> tuple[Held, ...]:
    """The blocks beyond those of equal bytes among the others, by place."""
    paired = Counter(size for size, _ in others)
    found: dict[str, list[int]] = defaultdict(list)
    for size, where in blocks:
        if paired[size]:
            paired[size] -= 1
        elif size:
            found[where].append(size)
    held = (Held(where=where, count=len(sizes), bytes=sum(sizes)) for where, sizes in found.items())
    return tuple(sorted(held, key=lambda one: -one.bytes))


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
        self._put(self.pop_mark())  # type: ignore[attr-defined]

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
