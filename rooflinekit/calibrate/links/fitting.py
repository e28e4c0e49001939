"""Constants of collectives from measurements: one value of any link, and how far each kind of link is from it.

As in `fitting`: a constant of a kind is shared · exp(own), the own part with a prior around 0. Where a profiler has
timed a kernel, the gap before it is missing and the wait for other ranks is in it: of such a source one number stands
in the place of the start, is fitted beside the constants and belongs to none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.optimize import least_squares

from rooflinekit.calibrate.links.campaign import LinkCampaign
from rooflinekit.calibrate.links.fits import (
    DEVICE_PARTS,
    HOST_PARTS,
    LINK_CONSTANTS,
    LINK_PARTS,
    STATED,
    between,
)
from rooflinekit.model.collectives import (
    ALGORITHMS,
    THROUGH_HOST,
    UNSEEN,
    LinkConstants,
    Route,
    algorithms_of,
    route_of,
)
from rooflinekit.model.kernel_batch import Floats
from rooflinekit.model.machine import Constant, Spread

_OUTLIER = 0.1  # ln(predicted / measured) from which on an error counts as an outlier
_WEIGHT = 40.0  # measurements that a group counts as, however many it has
_WAIT = (1e-5, 1.5)  # s, and how far it may be off in log units
_LEAST_SHARED = 0.03
_UNSEEN = {
    UNSEEN: Spread(random=0.15, systematic=0.4)
}  # a stated default: networks, links through hosts of other kinds
_NINETY = 1.645
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
        """Seconds by the fastest algorithm. wait_s: in the place of the start, where a profiler has timed."""
        ways = algorithms_of(self.collective, self.route, sums_in_switch=self.sums_in_switch)
        timings = [
            ALGORITHMS[way](self.collective, self.sizes, self.route, constants)  # type: ignore[arg-type]
            for way in ways
        ]
        ahead = 0.0 if wait_s is None else wait_s - timings[0].start_s
        return np.asarray(np.minimum.reduce([timing.total_s for timing in timings]) + ahead, dtype=float)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """What a fit gives."""

    groups: tuple[Group, ...]
    constants: LinkConstants
    waits: Mapping[str, float]  # s, by source

    def errors(self, groups: Sequence[Group] | None = None) -> list[Floats]:
        """ln(measured / predicted) of each group."""
        chosen = self.groups if groups is None else groups
        return [np.log(g.seconds / g.predict(self.constants, self.waits.get(g.source))) for g in chosen]


def groups_of(campaigns: Sequence[LinkCampaign], keep: Mapping[int, np.ndarray] | None = None) -> tuple[Group, ...]:
    """The campaigns' rows by what they are of. keep: of a campaign by its number, which rows are taken."""
    found = []
    for number, campaign in enumerate(campaigns):
        cluster = campaign.description
        devices = campaign.members
        rows = campaign.rows if keep is None else campaign.rows[keep[number]]
        for (collective, ranks, form), part in rows.groupby(["collective", "ranks", "format"], sort=True):
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
    keys, starts, sigmas = zip(*parameters, strict=True)
    start, sigma = np.array(starts), np.array(sigmas)

    def residuals(x: Floats) -> Floats:
        constants, waits = _unpack(dict(zip(keys, x, strict=True)), base)
        parts = [
            np.log(g.predict(constants, waits.get(g.source)) / g.seconds) * min(1.0, (_WEIGHT / g.sizes.size)) ** 0.5
            for g in groups
        ]
        return np.concatenate([*parts, _OUTLIER * (x - start) / sigma])

    low, high = np.array([_bounds(key, at) for key, at, _ in parameters]).T
    best = least_squares(
        residuals,
        start,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=_OUTLIER,
        diff_step=1e-4,
        max_nfev=60,
        tr_solver="lsmr",
    )
    curvature = best.jac.T @ best.jac / _OUTLIER**2
    values = dict(zip(keys, best.x, strict=True))
    constants, waits = _unpack(values, base, _errors_of(keys, np.linalg.pinv(curvature)))
    fit = LinkFit(groups=tuple(groups), constants=constants, waits=MappingProxyType(waits))
    return LinkFit(groups=fit.groups, constants=_with_spreads(fit, base), waits=fit.waits)


Key = tuple[str, str]  # (constant, ""): shared; (constant, kind): own, relative; ("wait", source)


def _parameters(groups: Sequence[Group], base: LinkConstants | None) -> list[tuple[Key, float, float]]:
    """Of each parameter key, start and spread in log units."""
    links = sorted({link.name for g in groups for link in g.route.links})
    devices = sorted({_generation(device) for g in groups if not g.source for device in g.route.devices})
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
    constants = dict(base.constants) if base else _stated()
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


def _stated() -> dict[str, Constant]:
    return {
        key: LINK_CONSTANTS[key.split()[0]].constant(value, error, source)
        for key, (value, error, source) in STATED.items()
    }


def _generation(device: object) -> str:
    return "cpu" if getattr(device, "kind", "") == "cpu" else str(getattr(device, "compute_capability", ""))


def _with_spreads(fit: LinkFit, base: LinkConstants | None) -> LinkConstants:
    """How far the fit is off, by kind of link: each size on its own, and a cluster's collectives together."""
    found = dict(fit.constants.spreads)
    by_link: dict[str, list[Floats]] = {}
    for group, errors in zip(fit.groups, fit.errors(), strict=True):
        by_link.setdefault(group.route.links[-1].name, []).append(errors)
    for name, parts in by_link.items():
        biases = np.array([float(np.median(errors)) for errors in parts])
        alone = np.concatenate([errors - bias for errors, bias in zip(parts, biases, strict=True)])
        shared = max(float(np.sqrt(np.mean(np.square(biases)))), _ALONE.get(name, _LEAST_SHARED))
        found[name] = Spread(random=float(np.quantile(np.abs(alone), 0.9)) / _NINETY, systematic=shared)
    return LinkConstants(constants=fit.constants.constants, spreads=MappingProxyType(found))


def refit_links(campaigns: Sequence[LinkCampaign]) -> LinkFit:
    """Fits on everything, and without each generation of NVLink, for how far an unmeasured one is off."""
    groups = groups_of(campaigns)
    fit = fit_links(groups)
    kinds = sorted({g.route.links[-1].name for g in groups if g.route.links[-1].technology == "nvlink"})
    biases, alone = [], []
    for kind in kinds if len(kinds) > 1 else ():
        without = fit_links([g for g in groups if g.route.links[-1].name != kind])
        own = [g for g in groups if g.route.links[-1].name == kind]
        for errors in LinkFit(groups=fit.groups, constants=without.constants, waits=fit.waits).errors(own):
            biases.append(float(np.median(errors)))
            alone.append(errors - biases[-1])
    spreads = dict(fit.constants.spreads)
    if biases:
        kernel = float(np.quantile(np.abs(np.concatenate(alone)), 0.9)) / _NINETY
        spreads["nvlink"] = Spread(random=kernel, systematic=float(np.sqrt(np.mean(np.square(biases)))))
    constants = LinkConstants(constants=fit.constants.constants, spreads=MappingProxyType(spreads))
    return LinkFit(groups=fit.groups, constants=constants, waits=fit.waits)
