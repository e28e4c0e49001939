"""Measured steps from what people have: a time in words, or a file of a trace, of a record, of kernel times."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from pathlib import Path

from rooflinekit.errors import CampaignError, InputError, UnitError
from rooflinekit.study.profile.file import Progress
from rooflinekit.study.profile.ranks import read_profile
from rooflinekit.study.profile.validation import Validation
from rooflinekit.study.transfer.evidence import Evidence
from rooflinekit.units import parse_quantity

_COLUMNS = ("name", "seconds")
_HEAD = 4096  # bytes that tell a record from a trace
_LARGE = 64 * 2**20  # bytes: no record or table of a step is as long


def read_measured(
    text: str, *, mark: str | None = None, rank: int | None = None, progress: Progress | None = None
) -> Evidence:
    """What `--measured` says: "31.2 ms", or a file.

    Files: a trace of torch.profiler (.json, .json.gz), or a folder of such, one a rank; a record of `rooflinekit
    measure --out`; or a table (.csv) with the columns name and seconds, of operators on the device in one step. mark:
    of a trace, see `Profile.read`. rank: of a folder, by default all in the mean. Raises InputError for text that is
    neither a time nor a file, CampaignError for a file that is none of these.
    """
    file = Path(text)
    if file.is_dir():
        return Evidence.of(read_profile(file, rank=rank, mark=mark, progress=progress))
    if not file.is_file():
        try:
            seconds = parse_quantity(text, "s")
        except UnitError as error:
            raise InputError(
                f"--measured {text!r}: expected a time, such as '31.2 ms', or a file: a trace of torch.profiler or a "
                "folder of them, a record of `rooflinekit measure --out`, or a .csv with the columns name and seconds"
            ) from error
        return Evidence.of(seconds)
    if file.suffix == ".csv":
        return Evidence.of(_table(file))
    if _is_record(file):
        return Evidence.of(Validation.load(file))
    return Evidence.of(read_profile(file, rank=rank, mark=mark, progress=progress))


def _is_record(file: Path) -> bool:
    with file.open("rb") as stream:
        head = stream.read(_HEAD)
    return b'"rooflinekit validation"' in head


def _table(file: Path) -> dict[str, float]:
    """Seconds by name of operator, those of one name together."""
    if file.stat().st_size > _LARGE:
        raise CampaignError(
            f"{file}: is {file.stat().st_size / 2**20:.0f} MiB: expected a table of one step's operators"
        )
    found: dict[str, float] = defaultdict(float)
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            rows = csv.DictReader(stream)
            if not set(_COLUMNS) <= set(rows.fieldnames or ()):
                has = ", ".join(rows.fieldnames or ()) or "none"
                raise CampaignError(f"{file}: expected the columns name and seconds; got {has[:200]}")
            for row in rows:
                found[str(row["name"])] += _seconds(file, rows.line_num, row["seconds"])
    except (OSError, UnicodeError, csv.Error) as error:
        raise CampaignError(f"{file}: cannot be read: {error}") from error
    if not found:
        raise CampaignError(f"{file}: has no rows")
    return dict(found)


def _seconds(file: Path, line: int, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise CampaignError(f"{file}: line {line}: seconds: expected a number above 0; got {json.dumps(text)}")
    return value
