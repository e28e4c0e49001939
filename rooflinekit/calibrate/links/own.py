"""Constants of gloo between the processes of the machine at hand, from what a calibration has measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pandas as pd

from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.bench.record_file import Recorded
from rooflinekit.calibrate.links.campaign import COLUMNS, LinkCampaign
from rooflinekit.calibrate.links.fitting import LinkFit, fit_links, groups_of
from rooflinekit.hardware.cluster import Cluster, Members
from rooflinekit.hardware.device import Device
from rooflinekit.model.collectives import LinkConstants

Measured = tuple[Case, Sequence[float]]  # seconds of a call, by sample

_GLOO = "gloo_"
_RANKS = 2  # where a case does not say


def processes_of(device: Device, count: int) -> Cluster:
    """So many processes of a machine without GPU, as a cluster: each stands for all cores, which they share."""
    members = Members(name=device.name, count=count)
    return Cluster(name=f"{device.name}-processes", devices=(members,), host="generic-cloud")


def campaign_of(measured: Iterable[Measured], device: Device, source: str) -> LinkCampaign | None:
    """gloo's cases as a campaign; None without one. Sizes become those of results, as in nccl-tests.

    Of the samples the fastest counts: what else runs on the machine takes cores from the processes, and only adds.
    """
    rows = []
    for case, samples in measured:
        if not case.op.startswith(_GLOO):
            continue
        ranks = case.sizes.get("ranks", 0) or _RANKS
        name = case.op.removeprefix(_GLOO).replace("_", "-")
        size = case.sizes["bytes"] * (ranks if name == "all-gather" else 1)
        rows.append((name, ranks, "fp32", size, min(samples)))
    if not rows:
        return None
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    count = int(table["ranks"].max())
    return LinkCampaign(
        cluster=f"{device.name}-processes",
        source=source,
        licence="as its owner says",
        timing="call",
        rows=table,
        links=processes_of(device, count),
        devices=(device,) * count,
    )


def own_links(recorded: Recorded, device: Device, base: LinkConstants) -> LinkFit | None:
    """The constants of gloo on a CPU that was calibrated; None where no collective of it was measured."""
    samples: dict[str, list[float]] = defaultdict(list)
    cases: dict[str, Case] = {}
    for one in recorded.measurements:
        if one.status == "ok" and device.kind == "cpu":
            samples[one.case.key] += one.seconds
            cases[one.case.key] = one.case
    found = campaign_of([(cases[key], values) for key, values in samples.items()], device, "rooflinekit calibrate")
    return None if found is None else fit_links(groups_of([found]), base)


def own_constants(fit: LinkFit) -> LinkConstants:
    """What such a fit has found, without what it started from."""
    constants = {key: c for key, c in fit.constants.constants.items() if key.endswith((" loopback", " cpu"))}
    return LinkConstants(constants=constants, spreads={"loopback": fit.constants.spreads["loopback"]})
