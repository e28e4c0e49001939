"""Campaigns: what was measured, on which GPU, how it was timed, and where it comes from.

A file is a CSV table. Comment lines at its head name the GPU, the source, its licence and how it was timed:

    # gpu: nvidia-t4
    # source: github.com/sitar-lab/NeuSight 6945927, ops_linear
    # licence: MIT, (c) 2024 SITAR Lab
    # timing: event
    op,dtype,m,n,k,seconds
    linear,fp32,512,1280,1280,0.00041

`timing` says what is inside `seconds`:
    profiler  the kernel alone
    alone     the same on a board that is idle before, and begins at a low clock
    rested    the same on a board that rests between, so that neither power nor heat lower its clock
    graph     the kernel and the gap before it in a CUDA graph
    backend   the same, with what a serving library does around the kernel
    event     one eager call between two CUDA events, synchronised each time: the CPU's work before and after the launch
Lines `# calls: 36` and `# warmup: 18` say that so few calls were timed in a row, after so many others, that the board's
power was no limit to the shortest.
A line `# products: tuned` says that AMD's library of products was one with tuned kernels of all sizes in bf16, a line
`# torch: 2.1.0` which release of PyTorch was measured. A line `# tells: own` says that the file tells how its GPU
differs from others, and nothing of those: one of few measurements, by a vendor of whom there are few.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaigns.operators import check_ops
from rooflinekit.errors import CampaignError, InputError
from rooflinekit.files import read_text, write_text
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import nothing

_MOST_COLUMNS = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Measurements from one source, timed in one way. notes: what else the head of its file says: the environment."""

    source: str
    licence: str
    timing: str
    rows: pd.DataFrame
    notes: Mapping[str, str] = field(default_factory=nothing)
    header: ClassVar[tuple[str, ...]]  # fields that the head of a file has
    timings: ClassVar[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Campaign(Table):
    """Measured ops of one GPU: `rows` holds op, dtype, sizes and seconds."""

    gpu: str
    header: ClassVar[tuple[str, ...]] = ("gpu", "source", "licence", "timing")
    timings: ClassVar[tuple[str, ...]] = ("profiler", "alone", "rested", "graph", "backend", "event")

    @property
    def calls(self) -> float:
        """How many calls were timed in a row, by the note of that name; without it so many that the board is warm."""
        return float(self.notes.get("calls", "inf"))

    @property
    def warm_calls(self) -> float:
        """How many calls came before those, by the note `warmup`."""
        return float(self.notes.get("warmup", "0"))

    @property
    def like(self) -> Release | None:
        """The release of PyTorch that was measured, by the note `torch`; None where nobody says."""
        return Release.parse(self.notes["torch"]) if "torch" in self.notes else None

    @property
    def tuned(self) -> bool:
        """Whether AMD's library of products had tuned kernels of all sizes then, by the note `products`."""
        return self.notes.get("products") == "tuned"

    @property
    def own(self) -> bool:
        """Whether it tells its GPU's own constants alone, by the note `tells`."""
        return self.notes.get("tells") == "own"


def load_campaigns(folder: Path) -> tuple[Campaign, ...]:
    """Every campaign of ops below `folder`, without `links`. Raises CampaignError for a bad file, or for none."""
    files = sorted(file for file in folder.rglob("*.csv") if file.parent != folder / "links")
    if not files:
        raise CampaignError(f"{folder}: expected campaign files (*.csv); found none")
    return tuple(read_campaign(file) for file in files)


def read_campaign(file: Path) -> Campaign:
    """One campaign. Raises CampaignError with file and line for what is not one."""
    text = read_text(file, CampaignError)
    head, rows = read_head(file, text, Campaign), read_rows(file, text)
    if not isinstance(rows.index, pd.RangeIndex):
        raise CampaignError(f"{file}: its rows have more cells than its head line has columns")
    missing = [name for name in ("op", "dtype", "seconds") if name not in rows]
    if missing:
        raise CampaignError(f"{file}: expected columns op, dtype and seconds; {', '.join(missing)} is missing")
    if rows.empty:
        raise CampaignError(f"{file}: expected at least one measurement; got none")
    if (wrong := first_wrong(rows["seconds"])) is not None:
        place, got = wrong
        line = _row_lines(text)[place]
        raise CampaignError(f"{file}: line {line}: seconds: expected a positive number; got {got!r:.60}")
    try:
        check_ops(rows.set_axis(_row_lines(text)[: len(rows)]))
    except InputError as error:
        raise CampaignError(f"{file}: {re.sub('^row ', 'line ', str(error))}") from error
    return Campaign(**head, rows=rows.assign(seconds=pd.to_numeric(rows["seconds"])))


def first_wrong(column: pd.Series) -> tuple[int, object] | None:
    """Place and value of the first that is no positive number; None where all are."""
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float)
    wrong = np.flatnonzero(~(numbers > 0) | ~np.isfinite(numbers))
    return (int(wrong[0]), column.tolist()[wrong[0]]) if wrong.size else None


def read_rows(file: Path, text: str) -> pd.DataFrame:
    """The table of a campaign. Raises CampaignError for what is no table of at most a hundred columns."""
    heading = next((line for line in text.splitlines() if line.partition("#")[0].strip()), "")
    if heading.count(",") > _MOST_COLUMNS or "\0" in text:
        raise CampaignError(f"{file}: not a campaign: expected a table of at most {_MOST_COLUMNS} columns of text")
    try:
        return pd.read_csv(io.StringIO(text), comment="#")
    except (ValueError, OverflowError) as error:  # what pandas raises for other tables
        raise CampaignError(f"{file}: not a campaign: {' '.join(str(error).split())[:200]}") from error


def _row_lines(text: str) -> list[int]:
    """The line of the file that each row stands on."""
    lines = enumerate(text.splitlines(), start=1)
    return [number for number, line in lines if line.partition("#")[0].strip()][1:]


def read_head(file: Path, text: str, kind: type[Table]) -> dict[str, Any]:
    """What the comments at the head of a campaign say of each key of its kind, and all else that they say as `notes`.

    Raises CampaignError where a key is missing, or wrong.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        key, _, said = line[1:].partition(":")
        found[key.strip()] = said.strip()
    missing = [key for key in kind.header if not found.get(key)]
    if missing:
        raise CampaignError(f"{file}: expected a line '# {missing[0]}: …' at its head")
    if not re.fullmatch(r"[1-9]\d*", found.get("calls", "1")):
        raise CampaignError(f"{file}: calls: expected a positive integer; got {found['calls']!r}")
    if not re.fullmatch(r"\d+", found.get("warmup", "0")):
        raise CampaignError(f"{file}: warmup: expected how many calls, from 0; got {found['warmup']!r}")
    for key, word in (("products", "tuned"), ("tells", "own")):
        if found.get(key, word) != word:
            raise CampaignError(f"{file}: {key}: expected {word!r}, or no such line; got {found[key]!r:.60}")
    if "torch" in found:
        try:
            Release.parse(found["torch"])
        except InputError as error:
            raise CampaignError(f"{file}: torch: {str(error).partition(': ')[2]}") from error
    if found["timing"] not in kind.timings:
        raise CampaignError(f"{file}: timing: expected {', '.join(kind.timings)}; got {found['timing']!r:.60}")
    notes = {key: said for key, said in found.items() if key not in kind.header}
    return {**{key: found[key] for key in kind.header}, "notes": MappingProxyType(notes)}


def write_campaign(campaign: Table, file: Path, notes: Mapping[str, str] | None = None) -> None:
    """Writes one file, and the folders above it. notes: further lines of its head.

    Raises OutputError where it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(campaign_text(campaign, notes), file)


def campaign_text(campaign: Table, notes: Mapping[str, str] | None = None) -> str:
    """What a file of the campaign holds; `notes` stand at its head too."""
    rows = campaign.rows.dropna(axis="columns", how="all")
    whole = {str(name): rows[name].astype("Int64") for name in rows if _whole(rows[name])}
    head = {key: getattr(campaign, key) for key in campaign.header} | dict(campaign.notes) | dict(notes or {})
    comments = "".join(f"# {key}: {value}\n" for key, value in head.items())
    return comments + str(rows.assign(**whole).to_csv(index=False, float_format="%.6g"))


def _whole(column: pd.Series) -> bool:
    known = column.dropna()
    return bool(pd.api.types.is_numeric_dtype(known) and (known == known.round()).all())
