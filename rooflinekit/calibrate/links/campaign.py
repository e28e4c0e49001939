"""Measured collectives: on which cluster, how they were timed, and where they come from.

A file is a CSV table under comment lines, as other campaigns are, in the folder `links` of the campaigns:

    # cluster: dgx-a100
    # source: github.com/ai-dynamo/aiconfigurator 095f58a, collectives_a100_sxm80
    # licence: Apache-2.0, (c) NVIDIA CORPORATION & AFFILIATES; …
    # timing: stream
    collective,ranks,format,bytes,seconds
    all-reduce,2,fp16,512,9.98e-06

`timing` says what is inside `seconds`:
    stream    calls one after another in a stream, over their number
    profiler  the kernel alone, which also waits for the other ranks to begin theirs
    call      the call of a process, waited for
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaigns.campaign import read_rows
from rooflinekit.errors import CampaignError
from rooflinekit.files import read_text, write_text
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_cluster, members_of
from rooflinekit.model.collectives import COLLECTIVES

TIMINGS = ("stream", "profiler", "call")
HEADER = ("cluster", "source", "licence", "timing")
COLUMNS = ("collective", "ranks", "format", "bytes", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCampaign:
    """Collectives of one cluster from one source, timed in one way. `rows` has the columns COLUMNS.

    links, devices: the cluster and its node's devices where they have no files: processes of the machine at hand.
    """

    cluster: str
    source: str
    licence: str
    timing: str
    rows: pd.DataFrame
    notes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    links: Cluster | None = None
    devices: tuple[Device, ...] = ()

    @property
    def description(self) -> Cluster:
        """The cluster. Raises DeviceNotFoundError for one that nobody knows."""
        return self.links or load_cluster(self.cluster)

    @property
    def members(self) -> tuple[Device, ...]:
        """The devices of a node. Raises DeviceNotFoundError for what nobody knows."""
        return self.devices or members_of(self.description)


def load_link_campaigns(folder: Path) -> tuple[LinkCampaign, ...]:
    """Every file of the folder; none where there is no such folder. Raises CampaignError for what is no campaign."""
    return tuple(read_link_campaign(file) for file in sorted(folder.glob("*.csv")))


def read_link_campaign(file: Path) -> LinkCampaign:
    """One file. Raises CampaignError with the reason for what is not one."""
    text = read_text(file, CampaignError)
    rows = read_rows(file, text)
    heads = [line[1:].partition(":") for line in text.splitlines() if line.startswith("#")]
    head = {key.strip(): value.strip() for key, _, value in heads}
    for key in HEADER:
        if not head.get(key):
            raise CampaignError(f"{file}: expected a line '# {key}: …' at its head")
    if head["timing"] not in TIMINGS:
        raise CampaignError(f"{file}: timing: expected {', '.join(TIMINGS)}; got {head['timing']!r:.60}")
    _check_rows(rows, file)
    notes = {key: value for key, value in head.items() if key not in HEADER}
    return LinkCampaign(
        cluster=head["cluster"],
        source=head["source"],
        licence=head["licence"],
        timing=head["timing"],
        rows=rows,
        notes=MappingProxyType(notes),
    )


def _check_rows(rows: pd.DataFrame, file: Path) -> None:
    if list(rows.columns) != list(COLUMNS) or rows.empty:
        raise CampaignError(
            f"{file}: expected columns {','.join(COLUMNS)} and rows below; got {','.join(map(str, rows.columns))}"
        )
    unknown = sorted(set(map(str, rows["collective"])) - set(COLLECTIVES))
    if unknown:
        raise CampaignError(f"{file}: collective: expected {', '.join(COLLECTIVES)}; got {unknown[0]!r:.60}")
    for column in ("ranks", "bytes", "seconds"):
        numbers = pd.to_numeric(rows[column], errors="coerce").to_numpy(dtype=float)
        wrong = np.flatnonzero(~(numbers > 0) | ~np.isfinite(numbers))
        if wrong.size:
            raise CampaignError(
                f"{file}: {column}: expected a positive number; got {rows[column].tolist()[wrong[0]]!r:.60}"
            )


def write_link_campaign(campaign: LinkCampaign, file: Path) -> None:
    """Writes one file, and the folders above it. Raises OutputError where it cannot be written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    head = {key: getattr(campaign, key) for key in HEADER} | dict(campaign.notes)
    text = "".join(f"# {key}: {value}\n" for key, value in head.items())
    write_text(text + str(campaign.rows.to_csv(index=False, columns=list(COLUMNS), float_format="%.6g")), file)


def held_back(rows: pd.DataFrame, among: Sequence[str] = ("collective", "ranks", "format", "bytes")) -> np.ndarray:
    """Which rows a test keeps from a fit: a fifth, by a hash of what they are of, the same on every machine."""
    codes = pd.util.hash_pandas_object(rows[list(among)].astype(str), index=False)
    return np.asarray(codes % 5 == 0)
