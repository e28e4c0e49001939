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
    graph     the kernel and the gap before it in a CUDA graph
    backend   the same, with what a serving library does around the kernel
    event     one eager call between two CUDA events, synchronised each time: the CPU's work before and after the launch
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.calibrate.measured_ops import check_ops
from rooflinekit.errors import CampaignError, InputError
from rooflinekit.files import write_text

TIMINGS = ("profiler", "graph", "backend", "event")
HEADER = ("gpu", "source", "licence", "timing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """Measurements of one GPU from one source, timed in one way. `rows` holds op, dtype, sizes and seconds."""

    gpu: str
    source: str
    licence: str
    timing: str
    rows: pd.DataFrame


def load_campaigns(folder: Path) -> tuple[Campaign, ...]:
    """Every campaign below `folder`. Raises CampaignError for a file that is not one, and where there is none."""
    files = sorted(folder.rglob("*.csv"))
    if not files:
        raise CampaignError(f"{folder}: expected campaign files (*.csv); found none")
    return tuple(read_campaign(file) for file in files)


def read_campaign(file: Path) -> Campaign:
    """One campaign. Raises CampaignError with file and line for what is not one."""
    try:
        with file.open(encoding="utf-8") as lines:
            head = _header(file, lines)
        rows = pd.read_csv(file, comment="#")
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise CampaignError(f"{file}: not a campaign: {' '.join(str(error).split())}") from error
    if not isinstance(rows.index, pd.RangeIndex):
        raise CampaignError(f"{file}: its rows have more cells than its head line has columns")
    missing = [name for name in ("op", "dtype", "seconds") if name not in rows]
    if missing:
        raise CampaignError(f"{file}: expected columns op, dtype and seconds; {', '.join(missing)} is missing")
    if rows.empty:
        raise CampaignError(f"{file}: expected at least one measurement; got none")
    seconds = pd.to_numeric(rows["seconds"], errors="coerce")
    wrong = np.flatnonzero(~(seconds > 0) | ~np.isfinite(seconds))
    if wrong.size:
        got = rows["seconds"].tolist()[wrong[0]]
        raise CampaignError(f"{file}: row {wrong[0] + 1}: seconds: expected a positive number; got {got!r}")
    try:
        check_ops(rows.set_axis(range(1, len(rows) + 1)))
    except InputError as error:
        raise CampaignError(f"{file}: {error}") from error
    return Campaign(
        gpu=head["gpu"],
        source=head["source"],
        licence=head["licence"],
        timing=head["timing"],
        rows=rows.assign(seconds=seconds),
    )


def _header(file: Path, lines: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        if not line.startswith("#"):
            break
        key, _, text = line[1:].partition(":")
        found[key.strip()] = text.strip()
    missing = [key for key in HEADER if not found.get(key)]
    if missing:
        raise CampaignError(f"{file}: expected a line '# {missing[0]}: …' at its head")
    if found["timing"] not in TIMINGS:
        raise CampaignError(f"{file}: timing: expected {', '.join(TIMINGS)}; got {found['timing']!r}")
    return {key: found[key] for key in HEADER}


def write_campaign(campaign: Campaign, file: Path, notes: Mapping[str, str] | None = None) -> None:
    """Writes one file, and the folders above it. notes: further lines of its head.

    Raises OutputError where it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    head = {key: getattr(campaign, key) for key in HEADER} | dict(notes or {})
    text = "".join(f"# {key}: {value}\n" for key, value in head.items())
    rows = campaign.rows.dropna(axis="columns", how="all")
    whole = {str(name): rows[name].astype("Int64") for name in rows if _whole(rows[name])}
    write_text(text + rows.assign(**whole).to_csv(index=False, float_format="%.6g"), file)


def _whole(column: pd.Series) -> bool:
    known = column.dropna()
    return bool(pd.api.types.is_numeric_dtype(known) and (known == known.round()).all())
