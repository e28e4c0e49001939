"""The two kinds of files that `rooflinekit calibrate` writes: read, held against their rules, and told in short."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from rooflinekit.calibrate.bench.record_file import Measurement, Recorded, read_record, write_record
from rooflinekit.calibrate.bench.samples import summarize
from rooflinekit.calibrate.campaigns.campaign import Campaign, campaign_text, read_campaign
from rooflinekit.calibrate.hosts.ops import ALL_OPS
from rooflinekit.errors import CampaignError, InputError, nearest
from rooflinekit.files import opened, write_text
from rooflinekit.ir import keyed

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
        """The number of all cases that were measured."""
        return sum(self.counts.values())


def read_file(file: Path) -> Content:
    """A record of samples (.jsonl) or a campaign of medians (.csv). Raises CampaignError with line and reason."""
    with opened(file, CampaignError) as stream:
        first = stream.read(1)
    if first != b"{" and file.suffix != ".jsonl":
        return read_campaign(file)
    recorded = read_record(file)
    _check(recorded, file)
    return recorded


def validate(files: Iterable[Path]) -> dict[Path, str]:
    """By file, its first error in one line, or ""."""
    found = dict.fromkeys(files, "")
    for file in found:
        try:
            read_file(file)
        except CampaignError as error:
            found[file] = str(error).removeprefix(f"{file}: ")
    return found


def _check(recorded: Recorded, file: Path) -> None:
    """What the chain of checks does not see: a program that writes other numbers than measured ones."""
    seen: dict[tuple[str, int], int] = {}
    for line, one in enumerate(recorded.measurements, start=2):
        what = f"{file}: line {line}: {one.case.key:.120}"
        if one.case.op not in ALL_OPS:
            raise CampaignError(f"{what}: no op is called {one.case.op!r:.60}{nearest(one.case.op[:60], ALL_OPS)}")
        if one.status not in STATUSES:
            raise CampaignError(f"{what}: status: expected {', '.join(STATUSES)}; got {one.status!r:.60}")
        wrong = [seconds for seconds in one.seconds if not 0 < seconds < math.inf]
        if wrong:
            raise CampaignError(f"{what}: seconds: expected positive numbers; got {wrong[0]!r}")
        if (one.status == "ok") != bool(one.seconds):
            raise CampaignError(f"{what}: status {one.status!r} does not go with {len(one.seconds)} samples")
        before = seen.setdefault((one.case.key, one.round), line)
        if before != line:
            raise CampaignError(f"{what}: round {one.round} is already on line {before}")


def summarize_file(file: Path) -> Summary:
    """Device, environment, ops by formats, noisy cases, failures. Raises CampaignError."""
    content = read_file(file)
    return _of_record(content, file) if isinstance(content, Recorded) else _of_campaign(content, file)


def _of_record(recorded: Recorded, file: Path) -> Summary:
    head, cases = recorded.head, recorded.by_case()
    failed = keyed.lists((one.status, one) for one in recorded.measurements if one.status != "ok")
    done = f"{len(recorded.measurements)} of {head.units} measurements"
    return Summary(
        file=file,
        device=head.device,
        origin=f"plan {head.plan}, {done}{', finished' if recorded.finished else ''}",
        environment=head.environment,
        counts=Counter((parts[0].case.op, parts[0].case.dtype) for parts in cases),
        noisy=tuple(parts[0].case.key for parts in cases if any(summarize(one.seconds).noisy for one in parts)),
        failures=tuple(
            Failure(status=status, cases=tuple(dict.fromkeys(one.case.key for one in ones)), note=ones[0].note)
            for status, ones in failed.items()
        ),
    )


def _of_campaign(campaign: Campaign, file: Path) -> Summary:
    return Summary(
        file=file,
        device=campaign.gpu,
        origin=f"{campaign.source}; timing {campaign.timing}; licence {campaign.licence}",
        environment=campaign.notes,
        counts=Counter(zip(*(campaign.rows[name].astype(str) for name in ("op", "dtype")), strict=True)),
        noisy=(),
        failures=(),
    )


# Several files of measurements as one: of one device, in one environment.


def merge_files(files: Sequence[Path], out: Path, *, force: bool = False) -> Content:
    """Reads the files, writes all measurements into one, and returns them.

    Records of samples become a record, campaigns of medians a campaign. Raises InputError for fewer than two files or
    both kinds, CampaignError for files of another device or environment than the first, OutputError where `out` exists
    (without `force`) or cannot be written.
    """
    if len(files) < 2:
        raise InputError(f"merge: expected two files or more; got {len(files)}")
    contents = {file: read_file(file) for file in files}
    if len(contents) < len(files):
        twice = next(file for file in files if list(files).count(file) > 1)
        raise InputError(f"merge: {twice} is given twice")
    records = {file: content for file, content in contents.items() if isinstance(content, Recorded)}
    campaigns = {file: content for file, content in contents.items() if isinstance(content, Campaign)}
    if records and campaigns:
        raise InputError(
            f"merge: {next(iter(records))} is a record of samples, {next(iter(campaigns))} a campaign of medians; "
            "merge each kind by itself"
        )
    if records:
        _refuse_strangers({file: {"device": r.head.device, **r.head.environment} for file, r in records.items()})
        merged = merge_records(list(records.values()))
        write_record(merged, out, force=force)
        return merged
    same = ("gpu", "timing", "licence")
    _refuse_strangers({file: {key: getattr(c, key) for key in same} | dict(c.notes) for file, c in campaigns.items()})
    # all rows; those that are equal in everything, once
    rows = pd.concat([one.rows for one in campaigns.values()], ignore_index=True).drop_duplicates(ignore_index=True)
    sources = dict.fromkeys(one.source for one in campaigns.values())
    together = replace(next(iter(campaigns.values())), source="; ".join(sources), rows=rows)
    write_text(campaign_text(together), out, force=force)
    return together


def _refuse_strangers(conditions: Mapping[Path, Mapping[str, str]]) -> None:
    first = next(iter(conditions))
    there = conditions[first]
    for file, here in conditions.items():
        for name in {**there, **here}:
            if here.get(name) != there.get(name):
                raise CampaignError(
                    f"{file}: {name} is {here.get(name, 'not said')!r}, in {first} it is "
                    f"{there.get(name, 'not said')!r}; measurements of different conditions do not mix"
                )


def merge_records(records: Sequence[Recorded]) -> Recorded:
    """All measurements, each once; a case that several have measured gets as many more rounds.

    Parts of one plan become that plan's record, with which `rooflinekit calibrate` goes on. Other records become one of
    a plan of its own.
    """
    found: dict[tuple[str, int], Measurement] = {}
    known: dict[tuple[str, int], list[Measurement]] = defaultdict(list)
    same_plan = len({record.head.digest for record in records}) == 1
    for record in records:
        new = [one for one in record.measurements if one not in known[one.case.key, one.round]]
        for one in new:
            known[one.case.key, one.round].append(one)
        if any((one.case.key, one.round) in found for one in new):
            same_plan = False
            rounds = 1 + max(turn for _, turn in found)
            new = [replace(one, round=one.round + rounds) for one in new]
        found |= {(one.case.key, one.round): one for one in new}
    heads = [record.head for record in records]
    head = heads[0]
    if not same_plan:  # of one that is all of the records' plans
        digest = hashlib.sha256("\n".join(one.digest for one in heads).encode()).hexdigest()[: len(head.digest)]
        plan = "+".join(dict.fromkeys(one.plan for one in heads))
        head = replace(head, plan=plan, digest=digest, units=len(found))
    return Recorded(head=head, measurements=tuple(found.values()), finished=len(found) == head.units)
