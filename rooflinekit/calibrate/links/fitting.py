"""Constants of collectives from measurements: one value of any link, and how far each kind of link is from it.

As in `fitting`: a constant of a kind is shared · exp(own), the own part with a prior around 0. Where a profiler has
timed a kernel, the gap before it is missing and the wait for other ranks is in it: of such a source one number stands
instead of the start, is fitted beside the constants and belongs to none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pandas as pd

from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.bench.record_file import Recorded
from rooflinekit.calibrate.campaigns.campaign import Table, first_wrong, read_head, read_rows
from rooflinekit.calibrate.fitting.constants import (
    DEVICE_PARTS,
    HOST_PARTS,
    LINK_CONSTANTS,
    LINK_PARTS,
    STATED,
    between,
)
from rooflinekit.calibrate.fitting.hierarchical_fit import estimate, robust
from rooflinekit.calibrate.fitting.spreads import LEAST_SYSTEMATIC, NINETY
from rooflinekit.errors import CampaignError
from rooflinekit.files import read_text
from rooflinekit.hardware.cluster import Cluster, Members
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_cluster, members_of
from rooflinekit.ir import keyed
from rooflinekit.timing.collectives import (
    ALGORITHMS,
    COLLECTIVES,
    THROUGH_HOST,
    UNSEEN,
    LinkConstants,
    Route,
    algorithms_of,
    route_of,
)
from rooflinekit.timing.kernel_batch import Floats
from rooflinekit.timing.machine import Spread

_WEIGHT = 40.0  # measurements that a group counts as, however many it has
_WAIT = (1e-5, 1.5)  # s, and how far it may be off in log units
#: A stated default: networks, links through hosts of other kinds.
_UNSEEN = {UNSEEN: Spread(random=0.15, systematic=0.4)}
#: How far a machine may be from the only one on which such links were measured: stated, widest with a host between.
_ALONE = {"pcie-peer": 0.12, "pcie-host": 0.4, "pcie-sockets": 0.5, "loopback": 0.03}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Measurements that differ in size alone."""

    source: str  # of the campaign; "" of no wait
    cluster: str
    collective: str
    format: str
    route: Route
    sizes: Floats
    seconds: Floats

    @property
    def sums_in_switch(self) -> bool:
        """Whether switches add up numbers of the format."""
        return self.format.startswith(("fp", "bf"))

    def predict(self, constants: LinkConstants, wait_s: float | None = None) -> Floats:
        """Seconds by the fastest algorithm. wait_s: instead of the start, where a profiler has timed."""
        algorithms = algorithms_of(self.collective, self.route, sums_in_switch=self.sums_in_switch)
        timings = [
            ALGORITHMS[one](self.collective, self.sizes, self.route, constants)  # type: ignore[arg-type]
            for one in algorithms
        ]
        ahead = 0.0 if wait_s is None else wait_s - timings[0].start_s
        return np.asarray(np.minimum.reduce([timing.total_s for timing in timings]) + ahead, dtype=float)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """The constants of a fit of collectives, and the groups that it rests on."""

    groups: tuple[Group, ...]
    constants: LinkConstants
    waits: Mapping[str, float]  # s, by source

    def errors(self, groups: Sequence[Group] | None = None) -> list[Floats]:
        """ln(measured / predicted) of each group."""
        chosen = self.groups if groups is None else groups
        return [np.log(g.seconds / g.predict(self.constants, self.waits.get(g.source))) for g in chosen]


def groups_of(campaigns: Iterable[LinkCampaign]) -> tuple[Group, ...]:
    """The campaigns' rows by what they are of."""
    found = []
    for campaign in campaigns:
        cluster, devices = campaign.description, campaign.members
        for (collective, ranks, form), part in campaign.rows.groupby(["collective", "ranks", "format"], sort=True):
            pooled = part.groupby("bytes")["seconds"].median()  # versions of a library count once
            found.append(
                Group(
                    source=campaign.source if campaign.timing == "profiler" else "",
                    cluster=cluster.name,
                    collective=str(collective),
                    format=str(form),
                    route=route_of(cluster, devices, int(str(ranks))),
                    sizes=pooled.index.to_numpy(dtype=float),
                    seconds=pooled.to_numpy(dtype=float),
                )
            )
    return tuple(found)


def fit_links(groups: Sequence[Group], base: LinkConstants | None = None) -> LinkFit:
    """The constants that fit best. base: what is known before: those of other machines; then nothing is shared anew."""
    parameters = _parameters(groups, base)
    keys, start, sigma = zip(*parameters, strict=True)

    def errors(x: Floats) -> Floats:
        constants, waits = _unpack(dict(zip(keys, x, strict=True)), base)
        parts = [
            robust(np.log(g.predict(constants, waits.get(g.source)) / g.seconds))
            * min(1.0, (_WEIGHT / g.sizes.size)) ** 0.5
            for g in groups
        ]
        return np.concatenate(parts)

    low, high = np.array([_bounds(key, at) for key, at, _ in parameters]).T
    best, covariance = estimate(errors, np.array(start), np.array(sigma), low, high, prior_weight=1.0)
    values = dict(zip(keys, best, strict=True))
    constants, waits = _unpack(values, base, _errors_of(keys, covariance))
    fit = LinkFit(groups=tuple(groups), constants=constants, waits=MappingProxyType(waits))
    return replace(fit, constants=_with_spreads(fit))


Key = tuple[str, str]  # (constant, ""): shared; (constant, kind): own, relative; ("wait", source)


def _parameters(groups: Sequence[Group], base: LinkConstants | None) -> list[tuple[Key, float, float]]:
    """Start and spread of each parameter, in log units."""
    links = sorted({link.name for g in groups for link in g.route.links})
    timed = {device for g in groups if not g.source for device in g.route.devices}
    devices = sorted({"cpu" if device.kind == "cpu" else str(device.compute_capability) for device in timed})
    own = [(name, kind) for kind in links for name in (HOST_PARTS if kind in THROUGH_HOST else LINK_PARTS)]
    own += [(name, kind) for name in DEVICE_PARTS for kind in devices]
    found: list[tuple[Key, float, float]] = []
    if base is None:
        found += [((name, ""), float(np.log(about.start)), about.spread) for name, about in LINK_CONSTANTS.items()]
    found += [((name, kind), 0.0, between(name, kind)) for name, kind in own]
    sources = sorted({g.source for g in groups} - {""})
    return found + [(("wait", source), float(np.log(_WAIT[0])), _WAIT[1]) for source in sources]


def _errors_of(keys: Sequence[Key], covariance: Floats) -> dict[Key, float]:
    """Standard errors in log units: of a shared value, and of a kind's own together with the shared one."""
    place = {key: i for i, key in enumerate(keys)}
    found = {}
    for key, i in place.items():
        parts = [i, *([place[key[0], ""]] if key[1] and (key[0], "") in place else [])]
        found[key] = float(np.sqrt(covariance[np.ix_(parts, parts)].sum()))
    return found


def _bounds(key: Key, start: float) -> tuple[float, float]:
    name, kind = key
    if name == "wait" or kind:
        return start - 7.0, start + 7.0
    about = LINK_CONSTANTS[name]
    return float(np.log(about.low)), float(np.log(about.high))


def _unpack(
    x: Mapping[Key, float], base: LinkConstants | None, errors: Mapping[Key, float] | None = None
) -> tuple[LinkConstants, dict[str, float]]:
    """The constants that parameters stand for, and the waits by source."""
    constants = (
        dict(base.constants)
        if base
        else {key: LINK_CONSTANTS[key.split()[0]].constant(*said) for key, said in STATED.items()}
    )
    told = errors or {}
    origin = "rooflinekit calibrate" if base else "calibration/campaigns/links"
    for (name, kind), value in x.items():
        if name == "wait":
            continue
        about = LINK_CONSTANTS[name]
        key = f"{name} {kind}".strip()
        if not kind:
            spread = float(np.hypot(told.get((name, ""), 0.0), about.between))
            constants[key] = about.constant(float(np.exp(value)), spread, "calibration/campaigns/links, all kinds")
            continue
        shared = float(np.log(base.constants[name].value)) if base else x[name, ""]
        number = min(max(float(np.exp(shared + value)), about.low), about.high)
        constants[key] = about.constant(number, told.get((name, kind), 0.0), f"{origin}: {kind}")
    waits = {kind: float(np.exp(value)) for (name, kind), value in x.items() if name == "wait"}
    return LinkConstants(constants=constants, spreads=base.spreads if base else dict(_UNSEEN)), waits


def _with_spreads(fit: LinkFit) -> LinkConstants:
    """How far the fit is off, by kind of link."""
    found = dict(fit.constants.spreads)
    by_link = ((group.route.links[-1].name, errors) for group, errors in zip(fit.groups, fit.errors(), strict=True))
    for name, parts in keyed.lists(by_link).items():
        found[name] = _spread(parts, _ALONE.get(name, LEAST_SYSTEMATIC))
    return replace(fit.constants, spreads=MappingProxyType(found))


def _spread(parts: Sequence[Floats], least: float = 0.0) -> Spread:
    """How far each size is off on its own, and a cluster's collectives together."""
    biases = [float(np.median(errors)) for errors in parts]
    alone = np.concatenate([errors - bias for errors, bias in zip(parts, biases, strict=True)])
    systematic = max(float(np.sqrt(np.mean(np.square(biases)))), least)
    return Spread(random=float(np.quantile(np.abs(alone), 0.9)) / NINETY, systematic=systematic)


def refit_links(campaigns: Sequence[LinkCampaign]) -> LinkFit:
    """Fits on everything, and without each generation of NVLink, for how far an unmeasured one is off."""
    groups = groups_of(campaigns)
    fit = fit_links(groups)
    kinds = sorted({g.route.links[-1].name for g in groups if g.route.links[-1].technology == "nvlink"})
    unseen: list[Floats] = []
    for kind in kinds if len(kinds) > 1 else ():
        without = fit_links([g for g in groups if g.route.links[-1].name != kind])
        own = [g for g in groups if g.route.links[-1].name == kind]
        unseen += replace(fit, constants=without.constants).errors(own)
    spreads = {**fit.constants.spreads, **({"nvlink": _spread(unseen)} if unseen else {})}
    return replace(fit, constants=replace(fit.constants, spreads=MappingProxyType(spreads)))


# Measured collectives: on which cluster, how they were timed, and where they come from.
#
# A file is a CSV table under comment lines, as other campaigns are, in the folder `links` of the campaigns:
#
#     # cluster: dgx-a100
#     # source: github.com/ai-dynamo/aiconfigurator 095f58a, collectives_a100_sxm80
#     # licence: Apache-2.0, (c) NVIDIA CORPORATION & AFFILIATES; …
#     # timing: stream
#     collective,ranks,format,bytes,seconds
#     all-reduce,2,fp16,512,9.98e-06
#
# `timing` says what is inside `seconds`:
#     stream    calls one after another in a stream, over their number
#     profiler  the kernel alone, which also waits for the other ranks to begin theirs
#     call      the call of a process, waited for


COLUMNS = ("collective", "ranks", "format", "bytes", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCampaign(Table):
    """Collectives of one cluster. `rows` has the columns COLUMNS.

    links, devices: the cluster and its node's devices where they have no files: processes of the machine at hand.
    """

    cluster: str
    links: Cluster | None = None
    devices: tuple[Device, ...] = ()
    header: ClassVar[tuple[str, ...]] = ("cluster", "source", "licence", "timing")
    timings: ClassVar[tuple[str, ...]] = ("stream", "profiler", "call")

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
    rows, head = read_rows(file, text), read_head(file, text, LinkCampaign)
    if list(rows.columns) != list(COLUMNS) or rows.empty:
        raise CampaignError(
            f"{file}: expected columns {','.join(COLUMNS)} and rows below; got {','.join(map(str, rows.columns))}"
        )
    unknown = sorted(set(map(str, rows["collective"])) - set(COLLECTIVES))
    if unknown:
        raise CampaignError(f"{file}: collective: expected {', '.join(COLLECTIVES)}; got {unknown[0]!r:.60}")
    for column in ("ranks", "bytes", "seconds"):
        if (wrong := first_wrong(rows[column])) is not None:
            raise CampaignError(f"{file}: {column}: expected a positive number; got {wrong[1]!r:.60}")
    return LinkCampaign(**head, rows=rows)


def held_out(rows: pd.DataFrame) -> np.ndarray:
    """Which rows a test keeps from a fit: a fifth, by a hash of what they are of, the same on every machine."""
    codes = pd.util.hash_pandas_object(rows[list(COLUMNS[:-1])].astype(str), index=False)
    return np.asarray(codes % 5 == 0)


# Constants of gloo between the processes of the machine at hand, from what a calibration has measured.


Measured = tuple[Case, Sequence[float]]  # seconds of a call, by sample

_GLOO = "gloo_"
_RANKS = 2  # where a case does not say


def processes_of(device: Device, count: int) -> Cluster:
    """A cluster of processes on a machine without GPU: each stands for all cores, which they share."""
    members = Members(name=device.name, count=count)
    return Cluster(name=f"{device.name}-processes", devices=(members,), host="generic-cloud")


def campaign_of(measured: Iterable[Measured], device: Device, source: str) -> LinkCampaign | None:
    """gloo's cases as a campaign, sizes as in nccl-tests, each by its fastest sample; None without a case."""
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
    cases = recorded.by_case() if device.kind == "cpu" else []
    measured = [(parts[0].case, [seconds for part in parts for seconds in part.seconds]) for parts in cases]
    found = campaign_of(measured, device, "rooflinekit calibrate")
    return None if found is None else fit_links(groups_of([found]), base)


def own_constants(fit: LinkFit) -> LinkConstants:
    """The constants that such a fit determines, without those that it started from."""
    constants = {key: c for key, c in fit.constants.constants.items() if key.endswith((" loopback", " cpu"))}
    return LinkConstants(constants=constants, spreads={"loopback": fit.constants.spreads["loopback"]})
