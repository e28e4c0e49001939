"""A plan carried out: every case in every round, what is there already left out, within a budget of time."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.calibrate.bench.gpu_state import throttles
from rooflinekit.calibrate.bench.plan import Case, Plan
from rooflinekit.calibrate.bench.record_file import Head, Measurement, Recorded, Recorder, Timer
from rooflinekit.calibrate.bench.samples import summarize
from rooflinekit.calibrate.campaigns.campaign import Campaign, write_campaign
from rooflinekit.calibrate.fitting.refit import OwnFit
from rooflinekit.calibrate.hosts.draft import HostCost
from rooflinekit.calibrate.hosts.ops import HOST_OPS
from rooflinekit.calibrate.links.fitting import LinkFit
from rooflinekit.hardware.host import Host

_SAMPLE_BYTES = 14  # of one number in the file
_LINE_BYTES = 800  # of a line beside its samples
_DRIFT = 0.03  # between rounds, from which on the clocks or the neighbours have changed
_PREEMPTIONS = 20.0  # a second; an idle machine has a few
_NOISY_SHARE = 0.10  # of the cases

Progress = Callable[[int, int, str], None]  # units that are done, all of them, the one that comes next


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The progress of a plan after a run."""

    measured: int  # units
    left: int  # units of this run that the budget did not allow


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What a calibration has found."""

    outcome: Outcome
    recorded: Recorded
    campaigns: tuple[Campaign, ...]  # the medians of kernels, one for each way of timing
    fit: OwnFit | None  # None where nothing but host ops was measured
    costs: tuple[HostCost, ...]  # of host ops
    host: Host | None  # the host specification that follows from them
    links: LinkFit | None = None  # of gloo between processes, where it was measured on a CPU


def head_of(plan: Plan, device: str, environment: dict[str, str]) -> Head:
    """The head of a campaign of this plan."""
    return Head(
        device=device, plan=plan.name, digest=plan.digest, units=len(plan.units()), environment=dict(environment)
    )


def expected_bytes(plan: Plan) -> int:
    """The size that the campaign's file will have at most, in bytes."""
    return len(plan.units()) * (plan.samples * _SAMPLE_BYTES + _LINE_BYTES)


def measure(
    plan: Plan,
    timer: Timer,
    recorder: Recorder,
    *,
    only: Collection[str] = (),
    budget_s: float = float("inf"),
    progress: Progress = lambda done, units, name: None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measures what is not in the file yet. The budget ends it between two cases, an interrupt loses one at most.

    Within a budget the families take turns, the one next that has had the least time: it is spent on all of them.
    """
    start, measured = clock(), 0
    units = plan.units(only)
    missing = [(case, turn) for case, turn in units if (case.key, turn) not in recorder.done]
    queues: dict[str, deque[tuple[Case, int]]] = defaultdict(deque)
    for case, turn in missing:
        queues[case.family if budget_s < float("inf") else ""].append((case, turn))
    spent = dict.fromkeys(queues, 0.0)
    while spent and (before := clock()) - start <= budget_s:
        family = min(spent, key=lambda name: spent[name])
        case, turn = queues[family].popleft()
        progress(len(units) - len(missing) + measured, len(units), case.key)
        recorder.append(timer.time(case, turn=turn, warmup=plan.warmup, samples=plan.samples, precision=plan.precision))
        measured += 1
        spent[family] += clock() - before
        if not queues[family]:
            del spent[family]
    if len(recorder.done) == len(plan.units()):
        recorder.finish()
    return Outcome(measured=measured, left=len(missing) - measured)


def campaigns_of(recorded: Recorded, name: str, threads: int = 0) -> tuple[Campaign, ...]:
    """The medians of all samples, a campaign for each way of timing; on a CPU those on so many threads."""
    by_timing: dict[str, list[dict[str, object]]] = defaultdict(list)
    for parts in recorded.by_case():
        case = parts[0].case
        if case.threads == threads and case.op not in HOST_OPS:
            seconds = np.concatenate([part.seconds for part in parts])
            row = {"op": case.op, "dtype": case.dtype, **case.sizes, "seconds": float(np.median(seconds))}
            by_timing[parts[0].timing].append(row)
    head = recorded.head
    return tuple(
        Campaign(
            gpu=head.device,
            source=f"{name} rooflinekit calibrate, plan {head.plan}{f', {threads} threads' if threads else ''}",
            licence="as its owner says",
            timing=timing,
            rows=pd.DataFrame(rows),
        )
        for timing, rows in sorted(by_timing.items())
    )


def warnings_of(recorded: Recorded) -> tuple[str, ...]:
    """What to know before trusting the numbers: noise, drift, what could not be measured; with what to do about it."""
    cases = [parts for parts in recorded.by_case() if parts[0].case.op not in HOST_OPS]
    found = []
    noisy = [parts[0].case.key for parts in cases if any(summarize(part.seconds).noisy for part in parts)]
    if len(noisy) > _NOISY_SHARE * len(cases):
        found.append(
            f"{len(noisy)} of {len(cases)} cases are noisy, such as {noisy[0]}: end what else runs here, measure again"
        )
    timed = [one for one in recorded.measurements if one.case.op not in HOST_OPS]
    taken = [one for one in timed if one.state.get("preemptions", 0.0) > _PREEMPTIONS]
    if len(taken) > _NOISY_SHARE * len(timed):
        found.append(
            f"other programs took the CPU during {len(taken)} of {len(timed)} measurements: "
            "end them, or measure with fewer threads"
        )
    slowed = [one for one in recorded.measurements if throttles(one.state.get("throttle", 0.0))]
    if len(slowed) > _NOISY_SHARE * len(recorded.measurements):
        reasons = dict.fromkeys(word for one in slowed for word in throttles(one.state["throttle"]))
        found.append(
            f"the GPU's clock was held down during {len(slowed)} of {len(recorded.measurements)} measurements "
            f"({', '.join(reasons)}): cool it, or raise its limits, unless that is how it will be used"
        )
    drift = _drift(cases)
    if abs(drift) > _DRIFT:
        word = "slower" if drift > 0 else "faster"
        found.append(f"the last round is {abs(drift):.0%} {word} than the first: let clocks settle, measure again")
    for status in ("unsupported", "out of memory"):
        failed = [one for one in recorded.measurements if one.status == status]
        if failed:
            keys = dict.fromkeys(one.case.key for one in failed)
            found.append(f"{len(keys)} cases were {status}, such as {failed[0].case.key}: {failed[0].note}")
    return tuple(found)


def outliers_of(recorded: Recorded) -> tuple[int, int]:
    """How many samples lie far outside the middle half of their case and round, and how many there are. All count."""
    samples = [one.seconds for one in recorded.measurements if one.status == "ok"]
    return sum(summarize(seconds).outliers for seconds in samples), sum(map(len, samples))


def _drift(cases: Sequence[Sequence[Measurement]]) -> float:
    """By how much the last round is slower than the first, as a median over cases."""
    ratios = []
    for parts in cases:
        first, last = min(parts, key=lambda one: one.round), max(parts, key=lambda one: one.round)
        if last.round > first.round:
            ratios.append(summarize(last.seconds).median / summarize(first.seconds).median - 1)
    return float(np.median(ratios)) if ratios else 0.0


def write_medians(campaigns: Sequence[Campaign], recorded: Recorded, file: Path) -> tuple[Path, ...]:
    """Each campaign as a table beside the file, with the environment at its head. Raises OutputError."""
    written = []
    for campaign in campaigns:
        table = file.with_name(f"{file.stem}-{campaign.timing}.csv")
        write_campaign(campaign, table, recorded.head.environment)
        written.append(table)
    return tuple(written)
