"""A device's own constants from its own measurements; what is the same for all devices stays as it was fitted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from rooflinekit.calibrate.campaign import Campaign
from rooflinekit.calibrate.constants import CONSTANTS
from rooflinekit.calibrate.fitting import Estimate, Problem, Solution
from rooflinekit.calibrate.measured_ops import SIZES
from rooflinekit.calibrate.observations import Observations, observations_of, without_faults
from rooflinekit.calibrate.refit import spread_of
from rooflinekit.calibrate.stages import STAGES
from rooflinekit.errors import CampaignError
from rooflinekit.hardware.device import Device
from rooflinekit.model.machine import Calibration, Constant, Machine
from rooflinekit.model.work import Floats

_WORST = 10
_TOLD = 0.9  # a constant whose error is not below this share of how far devices differ is not told by the data


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A measurement beside its prediction with the fitted constants."""

    name: str
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFit:
    """What a device's own measurements say."""

    calibration: Calibration  # constants that the measurements tell, spreads by family
    errors: Mapping[str, Floats]  # ln(measured / predicted) by family
    errors_before: Mapping[str, Floats]  # the same with the constants of an unmeasured device
    worst: tuple[Miss, ...]  # the furthest off, first
    left_out: int  # measurements faster than the datasheet allows


def fit_own(campaigns: Sequence[Campaign], device: Device, shared: Calibration) -> OwnFit:
    """Fits the constants that differ between devices on measurements of one.

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
    solution = Solution(
        estimates={
            ("", name): Estimate(log=float(np.log(c.value)), stderr=c.stderr) for name, c in shared.constants.items()
        }
    )
    unfitted = Solution(estimates=dict(solution.estimates))
    names = dict.fromkeys(o.gpu for o in observations)
    for stage in STAGES:
        chosen = [o for o in observations if o.op in stage.ops and set(o.rows["dtype"]) <= stage.dtypes]
        if chosen:
            own = replace(stage, constants=(), own=(*stage.constants, *stage.own))
            machines = dict.fromkeys(names, machine)
            Problem(stage=own, observations=chosen, machines=machines, known=solution).solve()
    gpu = next(iter(names))
    harnessed = Solution(estimates={**solution.estimates, **unfitted.estimates})
    errors = _errors(observations, machine.with_values(solution.values(gpu)), solution)
    return OwnFit(
        calibration=_calibration(device.name, solution, gpu, errors),
        errors=errors,
        errors_before=_errors(observations, machine.with_values(unfitted.values()), harnessed),
        worst=_worst(observations, machine.with_values(solution.values(gpu)), solution),
        left_out=sum(map(len, everything)) - sum(map(len, observations)),
    )


def _errors(observations: Sequence[Observations], machine: Machine, harness: Solution) -> dict[str, Floats]:
    found: dict[str, list[Floats]] = defaultdict(list)
    for o in observations:
        found[o.family].append(np.log(o.seconds / o.predict(machine, harness.harness(o.host))))
    return {family: np.concatenate(parts) for family, parts in found.items()}


def _calibration(name: str, solution: Solution, gpu: str, errors: Mapping[str, Floats]) -> Calibration:
    constants = {}
    for constant, value in solution.values(gpu).items():
        own = solution.estimates.get((gpu, constant))
        about = CONSTANTS[constant]
        if own is None or own.stderr >= _TOLD * about.between:
            continue  # the measurements do not tell it: that of an unmeasured device stands
        constants[constant] = Constant(
            value=value, stderr=own.stderr, unit=about.unit, meaning=about.meaning, source="rooflinekit calibrate"
        )
    spreads = {family: spread_of([parts]) for family, parts in sorted(errors.items())}
    return Calibration(name=name, constants=MappingProxyType(constants), spreads=MappingProxyType(spreads))


def _worst(observations: Sequence[Observations], machine: Machine, harness: Solution) -> tuple[Miss, ...]:
    found = []
    for o in observations:
        predicted = o.predict(machine, harness.harness(o.host))
        for i in np.argsort(-np.abs(np.log(o.seconds / predicted)))[:_WORST]:
            row = o.rows.iloc[int(i)]
            sizes = [f"{size}={int(row[size])}" for size in SIZES[o.op].all if size in row and row[size] == row[size]]
            name = " ".join([o.op, str(row["dtype"]), *sizes])
            found.append(Miss(name=name, measured_s=float(o.seconds[i]), predicted_s=float(predicted[i])))
    found.sort(key=lambda miss: -abs(np.log(miss.measured_s / miss.predicted_s)))
    return tuple(found[:_WORST])
