"""The two kinds of files that `rooflinekit calibrate` writes: read, held against their rules, and told in short."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rooflinekit.calibrate.bench.record_file import Measurement, Recorded, read_record
from rooflinekit.calibrate.bench.samples import summarize
from rooflinekit.calibrate.campaigns.campaign import Campaign, read_campaign
from rooflinekit.calibrate.campaigns.measured_ops import OPS
from rooflinekit.calibrate.hosts.ops import HOST_OPS
from rooflinekit.errors import CampaignError, nearest
from rooflinekit.files import read_bytes

Content = Recorded | Campaign

STATUSES = ("ok", "unsupported", "out of memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Cases that could not be measured, for one reason."""

    status: str  # "unsupported" or "out of memory"
    cases: tuple[str, ...]
    note: str  # of the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a file holds."""

    file: Path
    device: str
    origin: str  # plan of a record, or source, licence and way of timing of a campaign
    environment: Mapping[str, str]
    counts: Mapping[tuple[str, str], int]  # measured cases by op and number format
    noisy: tuple[str, ...]  # cases whose samples are spread; a campaign does not tell
    failures: tuple[Failure, ...]

    @property
    def cases(self) -> int:
        """All that were measured."""
        return sum(self.counts.values())


def read_file(file: Path) -> Content:
    """A record of samples (.jsonl) or a campaign of medians (.csv), by its content.

    Raises CampaignError with line and reason for a file that is neither, or breaks its rules.
    """
    if not file.is_file():  # a device or a pipe might never end
        read_bytes(file, CampaignError)
    try:
        with file.open("rb") as stream:
            first = stream.read(1)
    except OSError as error:
        raise CampaignError(f"{file}: cannot be read: {error.strerror or error}") from error
    if first != b"{" and file.suffix != ".jsonl":
        return read_campaign(file)
    recorded = read_record(file)
    _check(recorded, file)
    return recorded


def validate(files: Iterable[Path]) -> dict[Path, str]:
    """What is wrong with each file, in one line; "" with none."""
    found = {}
    for file in files:
        try:
            read_file(file)
        except CampaignError as error:
            found[file] = str(error).removeprefix(f"{file}: ")
        else:
            found[file] = ""
    return found


def shortened(text: str) -> str:
    """At most 120 letters of it."""
    return text if len(text) <= 120 else f"{text[:119]}…"


def _check(recorded: Recorded, file: Path) -> None:
    """What the chain of checks does not see: a program that writes other numbers than measured ones."""
    seen: dict[tuple[str, int], int] = {}
    for line, one in enumerate(recorded.measurements, start=2):
        what = f"{file}: line {line}: {shortened(one.case.key)}"
        if one.case.op not in OPS and one.case.op not in HOST_OPS:
            raise CampaignError(
                f"{what}: no op is called {one.case.op!r:.60}{nearest(one.case.op[:60], [*OPS, *HOST_OPS])}"
            )
        if one.status not in STATUSES:
            raise CampaignError(f"{what}: status: expected {', '.join(STATUSES)}; got {one.status!r:.60}")
        wrong = [seconds for seconds in one.seconds if not 0 < seconds < math.inf]
        if wrong:
            raise CampaignError(f"{what}: seconds: expected positive numbers; got {wrong[0]!r}")
        if (one.status == "ok") != bool(one.seconds):
            raise CampaignError(f"{what}: status {one.status!r} with {len(one.seconds)} samples")
        before = seen.setdefault((one.case.key, one.round), line)
        if before != line:
            raise CampaignError(f"{what}: round {one.round} stands on line {before} already")


def summarize_file(file: Path) -> Summary:
    """Device, environment, ops by formats, noisy cases, failures. Raises CampaignError."""
    content = read_file(file)
    return _of_record(content, file) if isinstance(content, Recorded) else _of_campaign(content, file)


def _of_record(recorded: Recorded, file: Path) -> Summary:
    head = recorded.head
    samples: dict[str, list[Measurement]] = defaultdict(list)
    failed: dict[str, list[Measurement]] = defaultdict(list)
    for one in recorded.measurements:
        (samples[one.case.key] if one.seconds else failed[one.status]).append(one)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for parts in samples.values():
        counts[parts[0].case.op, parts[0].case.dtype] += 1
    done = f"{len(recorded.measurements)} of {head.units} measurements"
    return Summary(
        file=file,
        device=head.device,
        origin=f"plan {head.plan}, {done}{', finished' if recorded.finished else ''}",
        environment=head.environment,
        counts=dict(counts),
        noisy=tuple(key for key, parts in samples.items() if any(summarize(one.seconds).noisy for one in parts)),
        failures=tuple(_failure(status, ones) for status, ones in failed.items()),
    )


def _failure(status: str, ones: Sequence[Measurement]) -> Failure:
    return Failure(status=status, cases=tuple(dict.fromkeys(one.case.key for one in ones)), note=ones[0].note)


def _of_campaign(campaign: Campaign, file: Path) -> Summary:
    pairs = zip(campaign.rows["op"], campaign.rows["dtype"], strict=True)
    return Summary(
        file=file,
        device=campaign.gpu,
        origin=f"{campaign.source}; timing {campaign.timing}; licence {campaign.licence}",
        environment=campaign.notes,
        counts=Counter((str(op), str(dtype)) for op, dtype in pairs),
        noisy=(),
        failures=(),
    )
