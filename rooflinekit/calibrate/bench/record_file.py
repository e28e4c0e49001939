"""A campaign as it is being measured: a file of JSON lines that only grows.

The first line says what is measured, on what, and in which environment; each further one holds the samples of a case
in a round; the last one of a finished campaign says so. Every line ends in a check over itself and the line before, so
that a file that was edited, cut or put together is told from one that was interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.errors import CampaignError, OutputError
from rooflinekit.files import check_kind, hold, read_bytes, sync_folder, write_text, writing
from rooflinekit.hardware.yaml_file import one_line
from rooflinekit.ir import keyed

#: Held while a line is written: a process that ends itself from another thread waits for it.
WRITING = threading.Lock()

#: Set when the process is told to end. A library at work may swallow the interrupt, or make an error of its own of it:
#: what comes of such a case is not taken for a measurement.
STOPPING = threading.Event()


_KIND = "rooflinekit campaign"
_SCHEMA = 1
_START = f'{{"kind":"{_KIND}"'.encode()
_CHECK = ',"check":"'
_DIGITS = 16
_MOST_BYTES = 96 * 2**20  # several times the plan `full`
_MOST_HEAD = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a file holds the measurements of. Two runs with different heads do not mix."""

    device: str  # name of its specification
    plan: str
    digest: str  # of the plan
    units: int  # cases times rounds of the whole plan
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One case in one round."""

    case: Case
    round: int
    status: str  # "ok", "unsupported" or "out of memory"
    timing: str = ""  # as in `campaign`; "host" for what is no kernel
    inner: int = 0  # calls in each sample
    seconds: tuple[float, ...] = ()  # of one call, by sample
    note: str = ""  # why there are none
    state: Mapping[str, float] = field(default_factory=dict)  # see docs/calibration.md; Hz, W, °C


class Timer(Protocol):
    """Times cases on hardware, with what it takes to know it again."""

    def time(self, case: Case, *, turn: int, warmup: int, samples: int, precision: float) -> Measurement:
        """Samples of one case; never raises for a case that the device cannot run."""

    def environment(self) -> dict[str, str]:
        """The surroundings of a campaign; measurements of two surroundings do not mix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The head and the measurements of a file."""

    head: Head
    measurements: tuple[Measurement, ...]
    finished: bool  # whether the whole plan was measured

    def by_case(self) -> list[list[Measurement]]:
        """The measurements that succeeded, by case, with all rounds of a case together."""
        return list(keyed.lists((one.case.key, one) for one in self.measurements if one.status == "ok").values())


def read_record(file: Path) -> Recorded:
    """The content of a file. Raises CampaignError with line and reason for one that is cut off, edited or foreign."""
    recorded, length, _ = _read(file)
    if length != file.stat().st_size:
        line = 2 + len(recorded.measurements) + recorded.finished
        raise CampaignError(
            f"{file}: line {line}: is cut off; 'rooflinekit calibrate' with the same --out measures it again"
        )
    return recorded


def _read(file: Path) -> tuple[Recorded, int, str]:
    """Content, its length without a line that was being written when the run ended, and the last check."""
    content = read_bytes(file, CampaignError, _MOST_BYTES)
    length = content.rfind(b"\n") + 1
    check, documents = "", []
    for number, line in enumerate(content[:length].split(b"\n")[:-1], start=1):
        document, check = _parsed(line, check, f"{file}: line {number}")
        documents.append(document)
    if not documents:
        raise CampaignError(f"{file}: line 1: expected the head of a campaign; found none")
    return _recorded(documents, file), length, check


def _parsed(line: bytes, before: str, label: str) -> tuple[dict[str, Any], str]:
    try:
        text = line.decode("utf-8")
        document = json.loads(text)
    except (ValueError, RecursionError, MemoryError):
        text, document = "", None
    if not isinstance(document, dict) or (not before and document.get("kind") != _KIND):
        raise CampaignError(f"{label}: is not of a campaign that rooflinekit has measured")
    payload, _, check = text.rpartition(_CHECK)
    if check.removesuffix('"}') != _checked(payload, before):
        raise CampaignError(f"{label}: was changed, added or taken from elsewhere after it was measured")
    if not before and document.get("schema") != _SCHEMA:
        raise CampaignError(f"{label}: schema: expected {_SCHEMA}; got {document.get('schema')!r:.60}")
    return document, _checked(payload, before)


def _recorded(documents: list[dict[str, Any]], file: Path) -> Recorded:
    first, *rest = documents
    head = _as(Head, first, f"{file}: line 1")
    finished = bool(rest) and "finished" in rest[-1]
    lines = rest[:-1] if finished else rest
    measurements = (_as(Measurement, document, f"{file}: line {i}") for i, document in enumerate(lines, start=2))
    return Recorded(head=head, measurements=tuple(measurements), finished=finished)


_Record = TypeVar("_Record", Head, Measurement)
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {Head: TypeAdapter(Head), Measurement: TypeAdapter(Measurement)}


def _as(kind: type[_Record], document: Mapping[str, Any], label: str) -> _Record:
    """A line as a record. Raises CampaignError for one of another form."""
    try:
        record: _Record = _ADAPTERS[kind].validate_python(document)
        return record
    except ValidationError as error:
        told = one_line(error, kind, label)
        raise CampaignError(f"{told}; it was written by another program, or another version of rooflinekit") from error


def _checked(payload: str, before: str) -> str:
    return hashlib.sha256((before + payload).encode()).hexdigest()[:_DIGITS]


@dataclass(slots=True, kw_only=True)
class Recorder:
    """An open file that measurements are added to."""

    file: Path
    descriptor: int
    check: str
    done: dict[tuple[str, int], Measurement]
    finished: bool
    length: int = 0

    def append(self, measurement: Measurement) -> None:
        """Adds a measurement; when this returns, it is on the disk.

        Raises OutputError where that is full, or the file was taken away or written by another program, and
        KeyboardInterrupt where the process was told to end meanwhile.
        """
        if STOPPING.is_set():
            raise KeyboardInterrupt
        self._write(asdict(measurement))
        self.done[measurement.case.key, measurement.round] = measurement

    def finish(self) -> None:
        """Notes that the whole plan is measured."""
        if not self.finished:
            self._write({"finished": len(self.done)})
            self.finished = True

    def _write(self, document: Mapping[str, Any]) -> None:
        text, check = _line(document, self.check)
        line = text.encode()
        end = self.length + len(line)
        with WRITING:
            self._check_place()
            try:
                while line:
                    line = line[os.write(self.descriptor, line) :]
                os.fsync(self.descriptor)
            except OSError as error:
                self._shorten()
                kept = "; what was measured is kept, the same command continues" if self.done else ""
                raise OutputError(f"{self.file}: cannot be written: {error.strerror or error}{kept}") from error
            except BaseException:  # an interrupt: half a line goes, a whole one stays, also of a write just returned
                if os.fstat(self.descriptor).st_size < end:
                    self._shorten()
                raise
            self.check, self.length = check, end

    def _check_place(self) -> None:
        """Raises OutputError where further lines would be lost: now, and not when all is measured."""
        here = os.fstat(self.descriptor)
        try:
            there = os.path.samestat(here, self.file.stat())
        except OSError:
            there = False
        if not there:
            raise OutputError(f"{self.file}: was moved, removed or replaced meanwhile; put it back, or begin anew")
        if here.st_size != self.length:
            raise OutputError(f"{self.file}: was written by another program meanwhile; choose another --out")

    def _shorten(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self.descriptor, self.length)


def write_record(recorded: Recorded, file: Path, *, force: bool = False) -> None:
    """Writes a whole record, beside and then renamed. Raises OutputError; also where it exists, without `force`."""
    head, measurements = recorded.head, recorded.measurements
    documents = [_head_document(head), *map(asdict, measurements)]
    documents += [{"finished": len(measurements)}] if recorded.finished else []
    lines, check = [], ""
    for document in documents:
        text, check = _line(document, check)
        lines.append(text)
    write_text("".join(lines), file, force=force)


def _line(document: Mapping[str, Any], before: str) -> tuple[str, str]:
    """A line with its check, and the check."""
    payload = json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=dict)[:-1]  # read-only mappings
    check = _checked(payload, before)
    return f'{payload}{_CHECK}{check}"}}\n', check


def _head_document(head: Head) -> dict[str, Any]:
    return {"kind": _KIND, "schema": _SCHEMA, **asdict(head)}


@contextlib.contextmanager
def recording(file: Path, head: Head, expected_bytes: int) -> Iterator[Recorder]:
    """Opens a new file, or one of the same head to go on with; nobody else can while it is open.

    expected_bytes: what the measurements will take, tried out beforehand. Raises OutputError for a file that cannot be
    written, is no file, is in use, or has no room; CampaignError for one that holds something else.
    """
    check_kind(file)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent) as trial:
            trial.write(bytes(expected_bytes))
            trial.flush()
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        _lock(descriptor, file)
        yield _opened(file, descriptor, head)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, file: Path) -> None:
    """Held until the process ends, however it ends."""
    try:
        hold(descriptor)
    except BlockingIOError as error:
        raise OutputError(
            f"{file}: another 'rooflinekit calibrate' is writing it; wait, or choose another --out"
        ) from error


def _opened(file: Path, descriptor: int, head: Head) -> Recorder:
    fresh = Recorder(file=file, descriptor=descriptor, check="", done={}, finished=False)
    # A run that was killed while it wrote the head has measured nothing: its first line is not whole. A crash of the
    # machine may leave zeros in its place.
    content = os.pread(descriptor, _MOST_HEAD, 0).rstrip(b"\0")
    if b"\n" not in content and _START.startswith(content[: len(_START)]):
        os.ftruncate(descriptor, 0)
        fresh._write(_head_document(head))
        sync_folder(file.parent)
        return fresh
    try:
        recorded, length, check = _read(file)
    except CampaignError as error:
        raise CampaignError(f"{error}; choose another --out to begin anew") from error
    before, now = ({**asdict(one), **one.environment, "environment": ""} for one in (recorded.head, head))
    for name in now:
        if before.get(name) != now[name]:
            raise CampaignError(
                f"{file}: was measured with {name} {before.get(name)!r}, here it is {now[name]!r}; choose another --out"
            )
    os.ftruncate(descriptor, length)
    done = {(one.case.key, one.round): one for one in recorded.measurements}
    return Recorder(file=file, descriptor=descriptor, check=check, done=done, finished=recorded.finished, length=length)
