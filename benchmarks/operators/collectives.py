"""How far predicted collectives are from measured ones: `python -m benchmarks.operators.collectives DATA`.

DATA: folder with the tables of aiconfigurator and vidur, whole. Four questions, but for the last with a fit of its own
each: sizes that the fit has not seen (a fifth of all, by hash), a number of GPUs that it has not seen, a generation of
NVLink, and a node that none has seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibration.make.links import UNSEEN, nccl_tests, profiled
from rooflinekit.calibrate.fitting.folder import default_campaigns
from rooflinekit.calibrate.links.fitting import Group, LinkFit, fit_links, groups_of, held_out, load_link_campaigns
from rooflinekit.timing.collectives import time_collective

_HEAD = (
    "| measured on | collective | GPUs | n | median APE | p90 | bias | in 90 % | datasheet alone |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main(data: Path) -> None:
    """Prints all tables."""
    shipped = load_link_campaigns(default_campaigns() / "links")
    whole = (*nccl_tests(data), *profiled(data, sizes=0))
    seen = groups_of(replace(campaign, rows=campaign.rows[~held_out(campaign.rows)]) for campaign in shipped)
    kept = groups_of(replace(campaign, rows=campaign.rows[held_out(campaign.rows)]) for campaign in whole)
    print(f"## Sizes held back\n\n{_HEAD}")
    fit = fit_links(seen)
    print("\n".join(_rows(fit, kept, lambda group: "all")))
    every = groups_of(shipped)
    print(f"\n## A number of GPUs left out\n\n{_HEAD}")
    for ranks in (2, 4, 8):
        left = fit_links([g for g in every if g.route.ranks != ranks])
        tested = [g for g in groups_of(whole) if g.route.ranks == ranks and _known(g, left)]
        print("\n".join(_rows(left, tested, lambda group: str(group.route.ranks), fit.waits)))
    print(f"\n## A generation of NVLink left out\n\n{_HEAD}")
    for kind in ("nvlink-2", "nvlink-3", "nvlink-4"):
        left = fit_links([g for g in every if g.route.links[-1].name != kind])
        tested = [g for g in groups_of(whole) if g.route.links[-1].name == kind]
        print("\n".join(_rows(left, tested, lambda group: "all", fit.waits)))
    print(f"\n## A node that no fit has seen\n\n{_HEAD}")
    print("\n".join(_rows(fit_links(every), _of_unseen_node(data), lambda group: str(group.route.ranks))))


def _of_unseen_node(data: Path) -> tuple[Group, ...]:
    """Two GPUs below a switch, and four and eight, which do not write into each other's memory there."""
    (campaign,) = nccl_tests(data, UNSEEN)
    peers = campaign.description
    assert peers.pcie is not None
    apart = peers.model_copy(update={"pcie": peers.pcie.model_copy(update={"peer_access": False})})
    two, more = (campaign.rows[rows] for rows in (campaign.rows["ranks"] == 2, campaign.rows["ranks"] != 2))
    return groups_of([replace(campaign, rows=two), replace(campaign, links=apart, rows=more)])


def _known(group: Group, fit: LinkFit) -> bool:
    """Whether the fit has seen the kind of link with other numbers of GPUs."""
    return any(other.route.links[-1].name == group.route.links[-1].name for other in fit.groups)


def _rows(fit: LinkFit, groups: Sequence[Group], part: Callable[[Group], str], waits: object = None) -> Iterator[str]:
    """A line for each cluster, source and collective."""
    taken = fit if waits is None else LinkFit(groups=fit.groups, constants=fit.constants, waits=fit.waits | dict(waits))  # type: ignore[call-overload,operator]
    kinds: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        name = f"{group.cluster}, {'profiler' if group.source else 'nccl-tests'}"
        kinds.setdefault((name, group.collective, part(group)), []).append(group)
    totals: list[np.ndarray] = []
    for (name, collective, ranks), members in kinds.items():
        off = np.concatenate(taken.errors(members))
        sheet = np.concatenate([np.log(g.seconds / _naive(g)) for g in members])
        inside = np.concatenate(
            [_covered(g, taken, errors) for g, errors in zip(members, taken.errors(members), strict=True)]
        )
        totals.append(off)
        ape, bias = _percent(off), np.median(np.exp(-off) - 1) * 100
        yield (
            f"| {name} | {collective} | {ranks} | {off.size} | {np.median(ape):.1f} % | {np.quantile(ape, 0.9):.0f} % "
            f"| {bias:+.1f} % | {inside.mean():.0%} | {np.median(_percent(sheet)):.0f} % |"
        )
    if totals:
        ape = _percent(np.concatenate(totals))
        yield f"| all | | | {ape.size} | {np.median(ape):.1f} % | {np.quantile(ape, 0.9):.0f} % | | | |"


def _percent(off: np.ndarray) -> np.ndarray:
    """|predicted / measured - 1|, in percent."""
    return np.abs(np.exp(-off) - 1) * 100


def _covered(group: Group, fit: LinkFit, errors: np.ndarray) -> np.ndarray:
    """Which measurements lie in the 90 % interval."""
    way = time_collective(group.collective, 1e6, group.route, fit.constants, sums_in_switch=group.sums_in_switch)
    return np.abs(errors) <= 1.645 * way.spread


def _naive(group: Group) -> np.ndarray:
    """A ring's bytes at the link's full rate."""
    one = time_collective(group.collective, 1.0, group.route, _FREE)
    return group.sizes * one.bus_bandwidth / one.algorithm_bandwidth / group.route.links[-1].bandwidth


if __name__ == "__main__":
    from rooflinekit.calibrate.fitting.files import load_links

    _FREE = load_links()
    main(Path(sys.argv[1]))
