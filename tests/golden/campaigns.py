"""The shipped campaigns, predicted with the shipped constants: how far each row is from what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaigns.campaign import Campaign, read_campaign
from rooflinekit.calibrate.fitting.files import constants_for
from rooflinekit.calibrate.fitting.observations import observations_of
from rooflinekit.hardware.specs import load_device
from rooflinekit.timing.machine import Machine

FOLDER = Path(__file__).parents[2] / "calibration" / "campaigns"
FEW = 30  # rows of an op in a format that are looked at without --slow

#: What ways of timing add, which no shipped fit holds: a choice, short enough to hide no kernel.
HARNESS = {"dispatch": 1e-6, "after": 2e-6, "backend": 3e-6, "slow": 1.4, "awake": 5e-3}


def predicted(campaign: Campaign) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Of each group of alike rows: op and format, predicted and measured seconds.

    The one place that knows how rows become predictions.
    """
    device = load_device(campaign.gpu)
    machine = Machine.of(device, constants_for(device))
    groups = Counter()
    for found in observations_of([campaign]):
        name = f"{found.op} {found.rows['dtype'].iloc[0]}"
        groups[name] += 1
        again = f", group {groups[name]}" if groups[name] > 1 else ""
        yield name + again, found.predict(machine, HARNESS), found.seconds


def residuals(*, slow: bool) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Of each campaign, by op: the sum of ln(predicted / measured) of all rows, or of a few and their predictions."""
    for file in sorted(FOLDER.rglob("*.csv")):
        if file.parent.name == "links":
            continue
        campaign = read_campaign(file)
        if not slow:
            campaign = replace(campaign, rows=_few(campaign))
        for op, seconds, measured in predicted(campaign):
            about = {"rows": len(seconds), "sum of ln(predicted / measured)": float(np.log(seconds / measured).sum())}
            if not slow:
                sample = seconds[:: max(1, len(seconds) // 4)][:5].tolist()
                about |= {"sum_s": float(seconds.sum()), "some_s": sample}
            yield f"{file.relative_to(FOLDER).with_suffix('').as_posix()}, {op}", about.copy


def _few(campaign: Campaign) -> pd.DataFrame:
    """At most FEW rows of each op and format, evenly spaced."""
    rows = campaign.rows
    place = rows.groupby(["op", "dtype"]).cumcount()
    size = rows.groupby(["op", "dtype"])["op"].transform("size")
    step = np.maximum(1, np.ceil(size / FEW))
    return rows[place % step == 0]
