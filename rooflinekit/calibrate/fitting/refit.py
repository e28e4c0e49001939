"""All shipped fits from all campaigns: constants of every measured GPU and of an unmeasured one, and their spreads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_all_start_methods, get_context
from types import MappingProxyType
from typing import Any

import numpy as np

from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.campaigns.operators import OPS
from rooflinekit.calibrate.fitting.constants import CONSTANTS, STAGES, stated
from rooflinekit.calibrate.fitting.files import PRIORS, architecture_of, load_constants
from rooflinekit.calibrate.fitting.hierarchical_fit import Estimate, Solution, fit
from rooflinekit.calibrate.fitting.observations import Observations, observations_of, without_faults
from rooflinekit.calibrate.fitting.spreads import Errors, Starts, Times, of_fitted, of_left_out, shrunk, spread_of
from rooflinekit.errors import CampaignError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device
from rooflinekit.ir import keyed
from rooflinekit.published.stated import CAMPAIGNS_OF, Constant
from rooflinekit.timing.families import complete
from rooflinekit.timing.kernel_batch import Floats
from rooflinekit.timing.machine import Calibration, Machine, Spread

_START = "kernel_ramp_cycles"  # whose error all starts are off by together


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """Constants fitted on everything and with each GPU left out, with their errors."""

    observations: tuple[Observations, ...]
    solution: Solution
    priors: Calibration
    gpus: Mapping[str, Calibration]
    errors: Errors  # of each GPU with the constants fitted on it
    unseen_errors: Errors  # of each GPU with the constants fitted on all others
    unseen_starts: Starts  # likewise
    unseen_times: Times  # likewise
    without: Mapping[str, Solution]  # the fits on all others
    relatives: Mapping[str, tuple[str, ...]]  # of each GPU the other ones of its architecture
    architectures: Mapping[str, Calibration]  # what an unmeasured GPU of each has


def machines_of(gpus: Iterable[str]) -> dict[str, Machine]:
    """The GPUs as specified, with the constants from which fits start."""
    start = Calibration(name="start", constants=stated(CONSTANTS), spreads=MappingProxyType({}))
    return {gpu: Machine.of(load_device(gpu), start) for gpu in gpus}


def refit(campaigns: Sequence[Campaign], progress: Callable[[str], None] = lambda _: None) -> Refit:
    """Fits on everything, and once more without each GPU. Raises CampaignError and DeviceNotFoundError."""
    machines = machines_of(sorted({campaign.gpu for campaign in campaigns}))
    observations = tuple(without_faults(o, machines[o.gpu]) for o in observations_of(campaigns))
    observations = tuple(o for o in observations if len(o))
    progress("all GPUs")
    shared = tuple(o for o in observations if not o.own)
    solution = fit(shared, machines, by_count=True)
    for gpu in sorted({o.gpu for o in observations if o.own}):
        solution = _fit_own([o for o in observations if o.own and o.gpu == gpu], machines[gpu], solution)
    relatives = relatives_of(machines)
    values = {gpu: solution.values(gpu, relatives[gpu]) for gpu in machines}
    errors, times = errors_of(observations, machines, values, solution)
    without = dict(_left_out(shared, machines, solution, progress))
    of_others = {gpu: found.values(gpu, relatives[gpu]) for gpu, found in without.items()}
    unseen, unseen_times = errors_of(shared, machines, of_others, solution)
    starts = starts_of(shared, machines, of_others)
    kinds = keyed.lists((architecture_of(machine.device), gpu) for gpu, machine in machines.items())
    priors, known = unmeasured(solution, unseen, starts, unseen_times), of_fitted(errors, times)
    return Refit(
        observations=observations,
        solution=solution,
        priors=priors,
        gpus={
            gpu: _deviation(gpu, solution, gpu, relatives[gpu], _spreads(gpu, errors, times, known)) for gpu in machines
        },
        errors=errors,
        unseen_errors=unseen,
        unseen_starts=starts,
        unseen_times=unseen_times,
        without=MappingProxyType(without),
        relatives=MappingProxyType(relatives),
        architectures=MappingProxyType(
            {kind: _deviation(kind, solution, "", gpus, MappingProxyType({})) for kind, gpus in kinds.items()}
        ),
    )


_SHARED: dict[str, Any] = {}  # what the copies of this process start with


def _left_out(
    observations: Sequence[Observations],
    machines: Mapping[str, Machine],
    solution: Solution,
    progress: Callable[[str], None],
) -> Iterator[tuple[str, Solution]]:
    """Each GPU with the fit on all others, on all cores where the system can copy a process."""
    _SHARED.update(observations=observations, machines=machines, near=solution)
    with ExitStack() as stack:
        spread: Callable[..., Iterator[Solution]] = map
        if "fork" in get_all_start_methods():
            spread = stack.enter_context(ProcessPoolExecutor(mp_context=get_context("fork"))).map
        for gpu, found in zip(machines, spread(_without, machines), strict=True):
            progress(f"without {gpu}")
            yield gpu, found


def _without(gpu: str) -> Solution:
    return fit(by_count=True, without=gpu, **_SHARED)


def relatives_of(machines: Mapping[str, Machine]) -> dict[str, tuple[str, ...]]:
    """For each GPU, the others of its architecture."""
    kinds = {gpu: architecture_of(machine.device) for gpu, machine in machines.items()}
    return {gpu: tuple(other for other in kinds if other != gpu and kinds[other] == kinds[gpu]) for gpu in kinds}


def errors_of(
    observations: Iterable[Observations],
    machines: Mapping[str, Machine],
    values: Mapping[str, Mapping[str, float]],
    harness: Solution,
) -> tuple[dict[tuple[str, str], Floats], dict[tuple[str, str], Floats]]:
    """ln(measured / predicted) by GPU and family, and the predicted seconds in the same order."""
    found: dict[tuple[str, str], list[list[Floats]]] = defaultdict(lambda: [[], []])
    for o in observations:
        predicted = o.predict(machines[o.gpu].with_values(values[o.gpu]), harness.harness(o.host))
        for column, part in zip(found[o.gpu, o.residuals], (np.log(o.seconds / predicted), predicted), strict=True):
            column.append(part)
    errors, times = ({key: np.concatenate(columns[i]) for key, columns in found.items()} for i in (0, 1))
    return errors, times


def starts_of(
    observations: Iterable[Observations], machines: Mapping[str, Machine], values: Mapping[str, Mapping[str, float]]
) -> dict[tuple[str, str], float]:
    """What kernels' starts take of their predicted times, the median of each GPU and family."""
    found: dict[tuple[str, str], list[Floats]] = defaultdict(list)
    for o in observations:
        machine = machines[o.gpu].with_values(values[o.gpu])
        starts_s = o.by_first(machine, lambda _, times: times.launch_s)
        all_s = o.by_first(machine, lambda _, times: times.total_s)
        found[o.gpu, o.residuals].append(starts_s / all_s)
    return {key: float(np.median(np.concatenate(parts))) for key, parts in found.items()}


def unmeasured(solution: Solution, unseen: Errors, starts: Starts, times: Times) -> Calibration:
    """The constants of a GPU without measurements, by a fit on others; spreads from GPUs that were left out."""
    constants = {}
    for name, value in solution.values().items():
        about = CONSTANTS[name]
        found = solution.estimates.get(("", name))
        fitted = found is not None and found.tells(about.spread)
        error = float(np.hypot(found.stderr if found else about.spread, about.between))
        source = "calibration/campaigns, all GPUs" if fitted else f"{about.source}; no measurement tells it"
        constants[name] = about.constant(value, error, source)
    spreads = of_left_out(unseen, starts, constants[_START].stderr, times)
    return Calibration(
        name=PRIORS,
        constants=MappingProxyType(constants),
        spreads=MappingProxyType(spreads),
        correlations=MappingProxyType({", ".join(pair): r for pair, r in sorted(solution.correlations.items())}),
    )


def _spreads(gpu: str, errors: Errors, times: Times, known: Mapping[str, Spread]) -> Mapping[str, Spread]:
    """The spread of each family on a GPU, shrunk towards that of the family elsewhere."""
    own = {family: [one, times[name, family]] for (name, family), one in sorted(errors.items()) if name == gpu}
    return MappingProxyType(
        {family: shrunk(spread_of([e], [s]), len(e), known[family]) for family, (e, s) in own.items()}
    )


def _deviation(
    name: str, solution: Solution, gpu: str, relatives: Sequence[str], spreads: Mapping[str, Spread]
) -> Calibration:
    """What differs from an unmeasured GPU: told by this GPU's measurements, else by its relatives'."""
    constants: dict[str, Constant] = {}
    for constant, value in solution.values(gpu, relatives).items():
        about, shared = CONSTANTS[constant], solution.estimates.get(("", constant))
        own = solution.estimates.get((gpu, constant)) if gpu else None
        told = own is not None and own.deviates(about.between)
        inherited = [r for r in relatives if (r, constant) in solution.estimates] if own is None else []
        if shared is None or not (told or inherited):
            continue  # the data does not tell it: that of an unmeasured GPU stands
        # Boards of one architecture are taken to differ half as much as any two GPUs.
        spread = about.between / 2 if own is None else own.stderr
        together = 0.0 if own is None else 2 * own.covariance
        source = gpu if own is not None else ", ".join(inherited)
        error = float(np.sqrt(spread**2 + shared.stderr**2 + together))
        constants[constant] = about.constant(value, error, f"{CAMPAIGNS_OF}{source}")
    return Calibration(name=name, constants=MappingProxyType(constants), spreads=spreads)


# A device's own constants from its own measurements; what is the same for all devices stays as it was fitted.


_WORST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A measurement beside its prediction with the fitted constants."""

    name: str
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFit:
    """The constants that a device's own measurements determine."""

    calibration: Calibration  # constants that the measurements tell, spreads by family
    errors: Mapping[str, Floats]  # ln(measured / predicted) by family
    errors_before: Mapping[str, Floats]  # the same with the constants of an unmeasured device
    worst: tuple[Miss, ...]  # the furthest off, first
    left_out: int  # measurements faster than the datasheet allows

    @property
    def families(self) -> dict[str, dict[str, float]]:
        """By family how many cases there are, and what predictions are off by with and without these constants."""
        found = {}
        for family, errors in self.errors.items():
            before = self.errors_before[family]
            off = {"typical_error": np.abs(errors), "typical_error_before": np.abs(before), "bias": errors}
            found[family] = {"cases": len(errors), **{name: float(np.expm1(np.median(e))) for name, e in off.items()}}
        return found


def fit_own(campaigns: Sequence[Campaign], device: Device, shared: Calibration) -> OwnFit:
    """Fits the constants that differ between devices on measurements of one: campaigns that name it as their GPU.

    shared: constants of an unmeasured device, from which the device's own may differ as far as devices do. Raises
    CampaignError where no measurement is left.
    """
    machine = Machine.of(device, shared)
    everything = observations_of(campaigns)
    if not everything:
        raise CampaignError(f"{device.name}: no case is measured yet, so nothing can be fitted")
    observations = [kept for o in everything if len(kept := without_faults(o, machine))]
    if not observations:
        raise CampaignError(f"{device.name}: every case is faster than its specification allows; is it of this device?")
    unfitted = Solution(
        estimates={
            ("", name): Estimate(log=float(np.log(c.value)), stderr=c.stderr) for name, c in shared.constants.items()
        }
    )
    solution = _fit_own(observations, machine, unfitted)

    values = solution.values(device.name)
    (errors, times), (errors_before, _) = (
        errors_of(observations, {device.name: machine}, {device.name: one}, solution)
        for one in (values, unfitted.values())
    )
    return OwnFit(
        calibration=_calibration(device, solution, errors, times, shared),
        errors={family: one for (_, family), one in errors.items()},
        errors_before={family: one for (_, family), one in errors_before.items()},
        worst=_worst(observations, machine.with_values(values), solution),
        left_out=sum(map(len, everything)) - sum(map(len, observations)),
    )


def _fit_own(observations: Sequence[Observations], machine: Machine, known: Solution) -> Solution:
    """What is known, with a device's own constants by its measurements; those that all devices share stay."""
    stages = [replace(stage, constants=(), own=(*stage.constants, *stage.own)) for stage in STAGES]
    return fit(observations, {machine.device.name: machine}, stages, known)


def _calibration(device: Device, solution: Solution, errors: Errors, times: Times, shared: Calibration) -> Calibration:
    """What the measurements tell, and what the architecture has of its own: all in which the device is not any GPU."""
    any_gpu = load_constants().constants
    constants = {key: one for key, one in shared.constants.items() if one != any_gpu.get(key)}
    for constant, value in solution.values(device.name).items():
        own = solution.estimates.get((device.name, constant))
        if own is not None and own.deviates(CONSTANTS[constant].differs(device.kind)):
            constants[constant] = CONSTANTS[constant].constant(value, own.stderr, "rooflinekit calibrate")
    spreads = _spreads(device.name, errors, times, complete(shared.spreads))
    return Calibration(name=device.name, constants=MappingProxyType(constants), spreads=spreads)


def _worst(observations: Sequence[Observations], machine: Machine, harness: Solution) -> tuple[Miss, ...]:
    found = []
    for o in observations:
        predicted = o.predict(machine, harness.harness(o.host))
        for i in np.argsort(-np.abs(np.log(o.seconds / predicted)))[:_WORST]:
            row = o.rows.iloc[int(i)]
            sizes = [f"{size}={int(row[size])}" for size in OPS[o.op].sizes if size in row and row[size] == row[size]]
            name = " ".join([o.op, str(row["dtype"]), *sizes])
            found.append(Miss(name=name, measured_s=float(o.seconds[i]), predicted_s=float(predicted[i])))
    found.sort(key=lambda miss: -abs(np.log(miss.measured_s / miss.predicted_s)))
    return tuple(found[:_WORST])
