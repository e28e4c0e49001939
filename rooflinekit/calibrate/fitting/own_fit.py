"""A device's own constants from its own measurements; what is the same for all devices stays as it was fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.campaigns.measured_ops import OPS
from rooflinekit.calibrate.fitting.constants import CONSTANTS
from rooflinekit.calibrate.fitting.files import load_constants
from rooflinekit.calibrate.fitting.hierarchical_fit import Estimate, Solution, fit
from rooflinekit.calibrate.fitting.observations import Observations, observations_of, without_faults
from rooflinekit.calibrate.fitting.refit import errors_of
from rooflinekit.calibrate.fitting.spreads import shrunk, spread_of
from rooflinekit.calibrate.fitting.stages import STAGES
from rooflinekit.errors import CampaignError
from rooflinekit.hardware.device import Device
from rooflinekit.model.families import complete
from rooflinekit.model.kernel_batch import Floats
from rooflinekit.model.machine import Calibration, Machine

_WORST = 10


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
    stages = [replace(stage, constants=(), own=(*stage.constants, *stage.own)) for stage in STAGES]
    solution = fit(observations, {device.name: machine}, stages, unfitted)

    def by_family(values: Mapping[str, float]) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Errors and predicted times."""
        both = errors_of(observations, {device.name: machine}, {device.name: values}, solution)
        errors, times = ({family: parts for (_, family), parts in found.items()} for found in both)
        return errors, times

    values = solution.values(device.name)
    errors, times = by_family(values)
    errors_before, _ = by_family(unfitted.values())
    return OwnFit(
        calibration=_calibration(device, solution, errors, times, shared),
        errors=errors,
        errors_before=errors_before,
        worst=_worst(observations, machine.with_values(values), solution),
        left_out=sum(map(len, everything)) - sum(map(len, observations)),
    )


def _calibration(
    device: Device, solution: Solution, errors: Mapping[str, Floats], times: Mapping[str, Floats], shared: Calibration
) -> Calibration:
    """What the measurements tell, and what the architecture has of its own: all in which the device is not any GPU."""
    any_gpu = load_constants().constants
    constants = {key: one for key, one in shared.constants.items() if one != any_gpu.get(key)}
    for constant, value in solution.values(device.name).items():
        own = solution.estimates.get((device.name, constant))
        if own is not None and own.deviates(CONSTANTS[constant].differs(device.kind)):
            constants[constant] = CONSTANTS[constant].constant(value, own.stderr, "rooflinekit calibrate")
    known = complete(shared.spreads)
    spreads = {
        family: shrunk(spread_of([parts], [times[family]]), len(parts), known[family])
        for family, parts in sorted(errors.items())
    }
    return Calibration(name=device.name, constants=MappingProxyType(constants), spreads=MappingProxyType(spreads))


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
