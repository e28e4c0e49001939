"""The walks that end in constants: a fit of all measurements, and a calibration of the hardware at hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from rooflinekit.calibrate.bench import record_file, session
from rooflinekit.calibrate.bench.plan import Plan
from rooflinekit.calibrate.campaigns.campaign import load_campaigns, read_campaign
from rooflinekit.calibrate.fitting import files as fits
from rooflinekit.calibrate.fitting import refit
from rooflinekit.calibrate.fitting.folder import default_campaigns
from rooflinekit.calibrate.hosts import draft as host_draft
from rooflinekit.calibrate.links import fitting as links_fitting
from rooflinekit.errors import CampaignError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device, load_host


def fit(campaigns: Path | None = None, progress: Callable[[str], None] | None = None) -> refit.Refit:
    """The constants of the time model, fitted on all measurements below a folder, by default those of the checkout.

    progress: called with the name of each part of the fit as it begins.

    Raises CampaignError for files that are no campaigns, DeviceNotFoundError for those of an unknown GPU.
    """
    return refit.refit(load_campaigns(campaigns or default_campaigns()), progress or (lambda _: None))


def calibrate(
    plan: Plan,
    device: Device,
    timer: record_file.Timer,
    file: Path,
    *,
    only: Collection[str] = (),
    budget_s: float = float("inf"),
    progress: Callable[[int, int, str], None] = lambda done, units, name: None,
) -> session.Calibrated:
    """Measures a plan on the hardware at hand, and fits the constants of its own; drafts its host's specification.

    file: where samples go as they come; one that is there already is gone on with. timer: of `calibrate.timers`.
    only: ops or families of ops. budget_s: seconds after which no further case is begun.
    progress: called with the number of measurements done, that of all, and the next case.

    Raises OutputError for a file that cannot be written or is in use, CampaignError for one that holds something else,
    and where there is nothing to fit.
    """
    head = session.head_of(plan, device.name, timer.environment())
    with record_file.recording(file, head, session.expected_bytes(plan)) as recorder:
        outcome = session.measure(plan, timer, recorder, only=only, budget_s=budget_s, progress=progress)
        recorded = record_file.read_record(file)  # before another run may go on with it
    campaigns = session.campaigns_of(recorded, file.stem, device.sm_count if plan.kind == "cpu" else 0)
    costs = host_draft.costs_of(recorded)
    host = host_draft.host_of(
        costs,
        load_host(host_draft.BASE),
        f"{device.name}-host",
        gpu=plan.kind == "cuda",
        source=f"rooflinekit calibrate, plan {plan.name}",
    )
    found = None
    if campaigns or not costs:
        found = refit.fit_own(campaigns, device, fits.load_constants(architecture=fits.architecture_of(device)))
    links = links_fitting.own_links(recorded, device, fits.load_links())
    return session.Calibrated(
        outcome=outcome, recorded=recorded, campaigns=campaigns, fit=found, costs=costs, host=host, links=links
    )


def fit_campaigns(files: Sequence[Path], device: str | None = None, *, allow_draft: bool = False) -> refit.OwnFit:
    """A device's own constants, fitted on measured ops in files, such as `rooflinekit campaign from-trace` writes.

    device: name, alias or file of its specification; by default the one that the files name. Raises CampaignError for
    files of several devices, or that are no campaigns.
    """
    campaigns = [read_campaign(file) for file in files]
    names = list(dict.fromkeys(campaign.gpu for campaign in campaigns))
    if len(names) > 1:
        raise CampaignError(f"{files[0]}: expected measurements of one device; the files are of {', '.join(names)}")
    found = load_device(device or names[0], allow_draft=allow_draft)
    if found.name != names[0]:
        raise CampaignError(f"{files[0]}: is of {names[0]}; expected {found.name}")
    return refit.fit_own(campaigns, found, fits.load_constants(architecture=fits.architecture_of(found)))


def fit_links(campaigns: Path | None = None) -> links_fitting.LinkFit | None:
    """Constants of collectives below a folder, None without any. Raises CampaignError for what is no campaign."""
    found = links_fitting.load_link_campaigns((campaigns or default_campaigns()) / "links")
    return links_fitting.refit_links(found) if found else None
