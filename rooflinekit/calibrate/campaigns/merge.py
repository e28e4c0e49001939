"""Several files of measurements as one: of one device, in one environment."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from rooflinekit.calibrate.bench.record_file import Head, Measurement, Recorded, write_record
from rooflinekit.calibrate.campaigns.campaign import Campaign, campaign_text
from rooflinekit.calibrate.campaigns.files import Content, read_file
from rooflinekit.errors import CampaignError, InputError
from rooflinekit.files import write_text


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
        _refuse_strangers({file: _conditions(one.head) for file, one in records.items()})
        merged = merge_records(list(records.values()))
        write_record(merged, out, force=force)
        return merged
    _refuse_strangers({file: _conditions_of(one) for file, one in campaigns.items()})
    together = merge_campaigns(list(campaigns.values()))
    write_text(campaign_text(together), out, force=force)
    return together


def _conditions(head: Head) -> dict[str, str]:
    return {"device": head.device, **head.environment}


def _conditions_of(campaign: Campaign) -> dict[str, str]:
    return {"gpu": campaign.gpu, "timing": campaign.timing, "licence": campaign.licence, **campaign.notes}


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
    head = records[0].head if same_plan else _head(records, len(found))
    return Recorded(head=head, measurements=tuple(found.values()), finished=len(found) == head.units)


def _head(records: Sequence[Recorded], units: int) -> Head:
    """Of a plan that is all of the records' plans."""
    plans = dict.fromkeys(record.head.plan for record in records)
    digests = "\n".join(record.head.digest for record in records)
    digest = hashlib.sha256(digests.encode()).hexdigest()[: len(records[0].head.digest)]
    return replace(records[0].head, plan="+".join(plans), digest=digest, units=units)


def merge_campaigns(campaigns: Sequence[Campaign]) -> Campaign:
    """All rows; those that are equal in everything, once."""
    rows = pd.concat([campaign.rows for campaign in campaigns], ignore_index=True).drop_duplicates(ignore_index=True)
    sources = dict.fromkeys(campaign.source for campaign in campaigns)
    return replace(campaigns[0], source="; ".join(sources), rows=rows)
