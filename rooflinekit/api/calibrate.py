"""The walks of measurements: of the hardware at hand, those that files hold, and the constants fitted on them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rooflinekit.calibrate.bench import plan as plans
from rooflinekit.calibrate.bench import record_file, session
from rooflinekit.calibrate.campaigns.campaign import campaign_text, load_campaigns, read_campaign
from rooflinekit.calibrate.campaigns.files import merge_files as merge_files
from rooflinekit.calibrate.campaigns.files import summarize_file as summarize_file
from rooflinekit.calibrate.campaigns.files import validate as validate
from rooflinekit.calibrate.fitting import files as fits
from rooflinekit.calibrate.fitting import folder as fit_folder
from rooflinekit.calibrate.fitting import refit
from rooflinekit.calibrate.hosts import draft as host_draft
from rooflinekit.calibrate.links import fitting as links_fitting
from rooflinekit.calibrate.local_hardware import hardware as local_hardware
from rooflinekit.errors import CampaignError
from rooflinekit.files import check_free, check_kind, check_writable, write_text
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device, load_host
from rooflinekit.hardware.yaml_file import spec_text
from rooflinekit.present.text.progress import bar
from rooflinekit.study.profile.drawn import Drawn, draw_all
from rooflinekit.study.profile.profile import trace_files


def fit(campaigns: Path | None = None, progress: Callable[[str], None] | None = None) -> refit.Refit:
    """The constants of the time model, fitted on all measurements below a folder, by default those of the checkout.

    progress: called with the name of each part of the fit as it begins.

    Raises CampaignError for files that are no campaigns, DeviceNotFoundError for those of an unknown GPU.
    """
    return refit.refit(load_campaigns(campaigns or fit_folder.default_campaigns()), progress or (lambda _: None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is to be measured here: a plan, on hardware with a specification, by a timer, into a file.

    own: the file of a specification that was made for this CPU. note: what is to be known of the specification.
    """

    plan: plans.Plan
    device: Device
    timer: record_file.Timer
    file: Path
    own: Path | None
    note: str | None


def bench(
    word: str, plan: str, spec: str | None, file: Path | None, only: Collection[str] = (), *, allow_draft: bool = False
) -> Bench:
    """What the words of `rooflinekit calibrate` mean. Raises InputError, SpecError and OutputError for wrong ones."""
    kind, index = local_hardware.parse_device(word)
    own: Path | None = None
    if kind == "cpu" and spec is None:
        found, own = local_hardware.cpu_specification(file and file.with_name(f"{file.stem}-cpu.yaml"))
    else:
        found = local_hardware.specification(kind, index, spec, allow_draft=allow_draft)
    note = local_hardware.check_here(found, kind, index)
    chosen = plans.load_plan(plan, kind, threads=found.sm_count if kind == "cpu" else 1)
    chosen.units(only)
    file = file or Path(f"{found.name}-{chosen.name}.jsonl")
    check_kind(file)
    from rooflinekit.calibrate.bench import timers  # which loads torch

    timer = timers.timer_of(kind, index, max(found.l2_capacity, found.last_level_cache or 0.0))
    return Bench(plan=chosen, device=found, timer=timer, file=file, own=own, note=note)


def calibrate(
    plan: plans.Plan,
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


def write_files(result: session.Calibrated, name: str, file: Path) -> dict[str, list[Path]]:
    """Writes what a calibration of a device gave beside the file of its samples; the files by what they are.

    Raises OutputError where one cannot be written.
    """
    found = {"samples": [file]}
    made_by = f"Made by `rooflinekit calibrate` from {file}"
    tables = session.write_medians(result.campaigns, result.recorded, file)
    if tables:
        found["medians"] = [*tables]
    if result.fit is not None:
        fit = file.with_suffix(".fit.yaml")
        fits.write_fit(result.fit.calibration, fit, f"Constants of {name}. {made_by}.")
        found["constants"] = [fit]
    if result.links is not None:
        links = file.with_suffix(".links.yaml")
        heading = f"Link constants of {name}. {made_by}."
        fits.write_links(links_fitting.own_constants(result.links), links, name, heading)
        found["links"] = [links]
    if result.host is not None:
        host = file.with_name(f"{file.stem}-host.yaml")
        heading = f"The host of {name}. {made_by}; see `sources` for what was measured."
        write_text(spec_text(result.host, heading), host)
        found["host"] = [host]
    return found


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
    found = links_fitting.load_link_campaigns((campaigns or fit_folder.default_campaigns()) / "links")
    return links_fitting.refit_links(found) if found else None


def campaign_from_traces(
    traces: Sequence[Path], out: Path, device: str | None, rank: int | None, licence: str, *, force: bool = False
) -> Drawn:
    """The measured ops of profiler traces, written as a campaign.

    traces: files, or folders of them, of which rank means one. A line on a terminal follows it. Raises CampaignError
    for traces without kernels or shapes, OutputError for a file that is there or cannot be written.
    """
    check_free(out, force=force)
    files = [file for trace in traces for file in trace_files(trace, rank)]
    with bar(f"reading {len(files)} traces", share=True) as progress:
        found = draw_all(files, device, licence, progress)
    write_text(campaign_text(found.campaign), out, force=force)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Refitted:
    """All constants, fitted anew. difference: from those of a folder, in words. removed: fits that are no more."""

    found: refit.Refit
    folder: Path
    difference: str = ""
    removed: tuple[str, ...] = ()


def refit_folder(
    campaigns: Path | None, folder: Path | None, *, check: bool = False, progress: Callable[[str], None] | None = None
) -> Refitted:
    """Fits all constants, and writes them into a folder, by default the one in use; or compares them with it alone.

    Raises what `fit` raises, and OutputError, before the fit, for a folder that cannot be written.
    """
    folder, say = folder or fit_folder.default_folder(), progress or (lambda _: None)
    if not check:
        check_writable(folder)
    say("links")
    links, found = fit_links(campaigns), fit(campaigns, progress=progress)
    file = folder / f"{fits.LINKS}.yaml"
    if check:
        difference = fit_folder.first_difference(found, folder)
        if links is not None and not difference:
            difference = fit_folder.links_difference(links.constants, file)
        return Refitted(found=found, folder=folder, difference=difference)
    # what makes the same files again, wherever they lie
    command = "rooflinekit fit" + ("" if campaigns is None else f" --campaigns {shlex.quote(campaigns.name)}")
    removed = fit_folder.write_folder(found, folder, command)
    if links is not None:
        head = f"Link constants: collectives of any cluster.\nMade by `{command}`."
        fits.write_links(links.constants, file, fits.LINKS, head)
    return Refitted(found=found, folder=folder, removed=removed)
