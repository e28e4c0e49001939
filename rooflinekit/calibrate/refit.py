"""All shipped fits from all campaigns: constants of every measured GPU and of an unmeasured one, and their spreads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from rooflinekit.calibrate.campaign import Campaign
from rooflinekit.calibrate.constants import CONSTANTS
from rooflinekit.calibrate.fits import PRIORS
from rooflinekit.calibrate.fitting import Solution, fit
from rooflinekit.calibrate.observations import Observations, observations_of, without_faults
from rooflinekit.hardware.specs import load_device
from rooflinekit.model.machine import Calibration, Constant, Machine, Spread
from rooflinekit.model.work import Floats

_NINETY = 1.645  # standard deviations that hold 90 % of a normal distribution
_LEAST_SHARED = 0.03  # two collections of one GPU's product times differ by 4 to 5 %

Errors = Mapping[tuple[str, str], Floats]  # (GPU, family) → ln(measured / predicted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """What a fit of everything gives."""

    observations: tuple[Observations, ...]
    solution: Solution
    priors: Calibration
    gpus: Mapping[str, Calibration]
    errors: Errors  # of each GPU with the constants fitted on it
    unseen_errors: Errors  # of each GPU with the constants fitted on all others


def machines_of(gpus: Iterable[str]) -> dict[str, Machine]:
    """The GPUs as specified, with the constants from which fits start."""
    start = Calibration(
        name="start",
        constants=MappingProxyType(
            {
                name: Constant(value=a.start, stderr=a.spread, unit=a.unit, meaning=a.meaning, source=a.source)
                for name, a in CONSTANTS.items()
            }
        ),
        spreads=MappingProxyType({}),
    )
    return {gpu: Machine.of(load_device(gpu), start) for gpu in gpus}


def refit(campaigns: Sequence[Campaign], progress: Callable[[str], None] = lambda _: None) -> Refit:
    """Fits on everything, and once more for each GPU without it.

    Raises CampaignError and DeviceNotFoundError for campaigns that cannot be used.
    """
    machines = machines_of(sorted({campaign.gpu for campaign in campaigns}))
    observations = tuple(without_faults(o, machines[o.gpu]) for o in observations_of(campaigns))
    observations = tuple(o for o in observations if len(o))
    progress("all GPUs")
    solution = fit(observations, machines)
    errors = errors_of(observations, machines, {gpu: solution.values(gpu) for gpu in machines}, solution)
    unseen: dict[tuple[str, str], Floats] = {}
    for gpu in machines:
        progress(f"without {gpu}")
        others = fit([o for o in observations if o.gpu != gpu], machines)
        own = [o for o in observations if o.gpu == gpu]
        unseen |= errors_of(own, machines, {gpu: others.values()}, solution)
    priors = _priors(solution, unseen)
    return Refit(
        observations=observations,
        solution=solution,
        priors=priors,
        gpus={gpu: _own(gpu, solution, errors, priors) for gpu in machines},
        errors=errors,
        unseen_errors=unseen,
    )


def errors_of(
    observations: Iterable[Observations],
    machines: Mapping[str, Machine],
    values: Mapping[str, Mapping[str, float]],
    harness: Solution,
) -> dict[tuple[str, str], Floats]:
    """ln(measured / predicted) by GPU and family."""
    found: dict[tuple[str, str], list[Floats]] = defaultdict(list)
    for o in observations:
        predicted = o.predict(machines[o.gpu].with_values(values[o.gpu]), harness.harness(o.host))
        found[o.gpu, o.family].append(np.log(o.seconds / predicted))
    return {key: np.concatenate(parts) for key, parts in found.items()}


def spread_of(parts: Sequence[Floats]) -> Spread:
    """From the errors on several GPUs: what a GPU's kernels are off together, and each on its own."""
    biases = [float(np.median(errors)) for errors in parts]
    alone = np.concatenate([errors - bias for errors, bias in zip(parts, biases, strict=True)])
    shared = float(np.sqrt(np.mean(np.square(biases))))
    return Spread(kernel=float(np.quantile(np.abs(alone), 0.9)) / _NINETY, shared=max(shared, _LEAST_SHARED))


def _priors(solution: Solution, unseen: Errors) -> Calibration:
    constants = {}
    for name, value in solution.values().items():
        about = CONSTANTS[name]
        found = solution.estimates.get(("", name))
        fitted = found is not None and found.stderr < about.spread
        error = float(np.hypot(found.stderr if found else about.spread, about.between))
        source = "calibration/campaigns, all GPUs" if fitted else f"{about.source}; no measurement tells it"
        constants[name] = Constant(value=value, stderr=error, unit=about.unit, meaning=about.meaning, source=source)
    families = sorted({family for _, family in unseen})
    spreads = {f: spread_of([e for (_, family), e in unseen.items() if family == f]) for f in families}
    return Calibration(name=PRIORS, constants=MappingProxyType(constants), spreads=MappingProxyType(spreads))


def _own(gpu: str, solution: Solution, errors: Errors, priors: Calibration) -> Calibration:
    constants = {}
    for name, value in solution.values(gpu).items():
        found = solution.estimates.get((gpu, name))
        if found is None or found.stderr >= CONSTANTS[name].between:
            continue  # the data does not tell it: that of an unmeasured GPU stands
        shared = solution.estimates[("", name)]
        constants[name] = Constant(
            value=value,
            stderr=float(np.hypot(found.stderr, shared.stderr)),
            unit=CONSTANTS[name].unit,
            meaning=CONSTANTS[name].meaning,
            source=f"calibration/campaigns/{gpu}",
        )
    spreads = {family: spread_of([e]) for (name, family), e in sorted(errors.items()) if name == gpu}
    return Calibration(name=gpu, constants=MappingProxyType(constants), spreads=MappingProxyType(spreads))
