"""All shipped fits from all campaigns: constants of every measured GPU and of an unmeasured one, and their spreads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_all_start_methods, get_context
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.stats import t as student

from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.fitting.constants import CONSTANTS
from rooflinekit.calibrate.fitting.files import PRIORS, architecture_of
from rooflinekit.calibrate.fitting.observations import Observations, observations_of, without_faults
from rooflinekit.calibrate.fitting.one_stage import Solution, fit
from rooflinekit.hardware.specs import load_device
from rooflinekit.model.families import plain
from rooflinekit.model.machine import Calibration, Constant, Machine, Spread
from rooflinekit.model.work import Floats

_NINETY = 1.645  # standard deviations that hold 90 % of a normal distribution
_LEAST_SHARED = 0.03  # two collections of one GPU's product times differ by 4 to 5 %
_FEWEST_GPUS = 2
_KNOWN_CASES = 20  # cases that what is known of a family from elsewhere is worth: a stated choice

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
    without: Mapping[str, Solution]  # the fits on all others
    relatives: Mapping[str, tuple[str, ...]]  # of each GPU the other ones of its architecture
    architectures: Mapping[str, Calibration]  # what an unmeasured GPU of each has


def machines_of(gpus: Iterable[str]) -> dict[str, Machine]:
    """The GPUs as specified, with the constants from which fits start."""
    start = Calibration(
        name="start",
        constants=MappingProxyType(
            {name: about.constant(about.start, about.spread, about.source) for name, about in CONSTANTS.items()}
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
    solution = fit(observations, machines, by_count=True)
    relatives = relatives_of(machines)
    values = {gpu: solution.values(gpu, relatives[gpu]) for gpu in machines}
    errors = errors_of(observations, machines, values, solution)
    unseen: dict[tuple[str, str], Floats] = {}
    without: dict[str, Solution] = {}
    for gpu, found in _left_out(observations, machines, solution, progress):
        without[gpu] = found
        own = [o for o in observations if o.gpu == gpu]
        unseen |= errors_of(own, machines, {gpu: without[gpu].values(gpu, relatives[gpu])}, solution)
    priors = unmeasured(solution, unseen)
    return Refit(
        observations=observations,
        solution=solution,
        priors=priors,
        gpus={gpu: _own(gpu, relatives[gpu], solution, errors, priors.spreads) for gpu in machines},
        errors=errors,
        unseen_errors=unseen,
        without=MappingProxyType(without),
        relatives=MappingProxyType(relatives),
        architectures=MappingProxyType(_architectures(machines, solution)),
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
    if "fork" not in get_all_start_methods():
        for gpu in machines:
            progress(f"without {gpu}")
            yield gpu, _without(gpu)
        return
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        for gpu, found in zip(machines, pool.map(_without, machines), strict=True):
            progress(f"without {gpu}")
            yield gpu, found


def _without(gpu: str) -> Solution:
    return fit(by_count=True, without=gpu, **_SHARED)


def relatives_of(machines: Mapping[str, Machine]) -> dict[str, tuple[str, ...]]:
    """Of each GPU the others of its architecture."""
    kinds = {gpu: architecture_of(machine.device) for gpu, machine in machines.items()}
    return {gpu: tuple(other for other in kinds if other != gpu and kinds[other] == kinds[gpu]) for gpu in kinds}


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
        found[o.gpu, o.residuals].append(np.log(o.seconds / predicted))
    return {key: np.concatenate(parts) for key, parts in found.items()}


def spread_of(parts: Sequence[Floats]) -> Spread:
    """From the errors on several GPUs: what a GPU's kernels are off together, and each on its own."""
    biases = [float(np.median(errors)) for errors in parts]
    alone = np.concatenate([errors - bias for errors, bias in zip(parts, biases, strict=True)])
    shared = float(np.sqrt(np.mean(np.square(biases))))
    return Spread(kernel=float(np.quantile(np.abs(alone), 0.9)) / _NINETY, shared=max(shared, _LEAST_SHARED))


def steadied(own: Spread, count: int, known: Spread) -> Spread:
    """A spread that `count` cases tell, averaged in squares with what is known of the family from elsewhere.

    Few cases, often of one shape, lie together by chance: what they say of other shapes is then mostly what others say.
    """

    def both(told: float, elsewhere: float) -> float:
        return float(np.sqrt((count * told**2 + _KNOWN_CASES * elsewhere**2) / (count + _KNOWN_CASES)))

    return Spread(kernel=both(own.kernel, known.kernel), shared=both(own.shared, known.shared))


def _of_families(unseen: Errors) -> dict[str, Spread]:
    """The spread of each family on GPUs left out, steadied by that of the family in all formats together."""
    families, bases = sorted({family for _, family in unseen}), defaultdict(list)
    for (_, family), errors in unseen.items():
        bases[plain(family)].append(errors)
    found = {}
    for name in families:
        own = [errors for (_, family), errors in unseen.items() if family == name]
        found[name] = steadied(of_another_gpu(own), sum(map(len, own)), of_another_gpu(bases[plain(name)]))
    return found


def of_another_gpu(parts: Sequence[Floats]) -> Spread:
    """The spread on a GPU that is none of these, whose shared part they tell the less, the fewer they are.

    The bias of n GPUs about nothing has n degrees of freedom; 90 % of another's lie within Student's quantile for n.
    One GPU is taken as two, for the quantile of one has no mean.
    """
    found = spread_of(parts)
    return replace(found, shared=found.shared * float(student.ppf(0.95, max(len(parts), _FEWEST_GPUS))) / _NINETY)


def unmeasured(solution: Solution, unseen: Errors) -> Calibration:
    """The constants of a GPU without measurements, by a fit on others; spreads from GPUs that were left out."""
    constants = {}
    for name, value in solution.values().items():
        about = CONSTANTS[name]
        found = solution.estimates.get(("", name))
        fitted = found is not None and found.tells(about.spread)
        error = float(np.hypot(found.stderr if found else about.spread, about.between))
        source = "calibration/campaigns, all GPUs" if fitted else f"{about.source}; no measurement tells it"
        constants[name] = about.constant(value, error, source)
    spreads = _of_families(unseen)
    return Calibration(
        name=PRIORS,
        constants=MappingProxyType(constants),
        spreads=MappingProxyType(spreads),
        correlations=MappingProxyType({", ".join(pair): r for pair, r in sorted(solution.correlations.items())}),
    )


def _own(
    gpu: str, relatives: Sequence[str], solution: Solution, errors: Errors, known: Mapping[str, Spread]
) -> Calibration:
    """What differs from an unmeasured GPU: told by this GPU's measurements, else by its relatives'."""
    constants = _deviating(solution, gpu, relatives)
    spreads = {
        family: steadied(spread_of([e]), len(e), known[family])
        for (name, family), e in sorted(errors.items())
        if name == gpu
    }
    return Calibration(name=gpu, constants=MappingProxyType(constants), spreads=MappingProxyType(spreads))


def _architectures(machines: Mapping[str, Machine], solution: Solution) -> dict[str, Calibration]:
    kinds: dict[str, list[str]] = defaultdict(list)
    for gpu, machine in machines.items():
        kinds[architecture_of(machine.device)].append(gpu)
    return {
        kind: Calibration(
            name=kind,
            constants=MappingProxyType(_deviating(solution, "", gpus)),
            spreads=MappingProxyType({}),
        )
        for kind, gpus in kinds.items()
    }


def _deviating(solution: Solution, gpu: str, relatives: Sequence[str]) -> dict[str, Constant]:
    constants = {}
    for name, value in solution.values(gpu, relatives).items():
        about, shared = CONSTANTS[name], solution.estimates.get(("", name))
        own = solution.estimates.get((gpu, name)) if gpu else None
        told = own is not None and own.tells(about.between)
        inherited = [r for r in relatives if (r, name) in solution.estimates] if own is None else []
        if shared is None or not (told or inherited):
            continue  # the data does not tell it: that of an unmeasured GPU stands
        # Boards of one architecture are taken to differ half as much as any two GPUs.
        spread = about.between / 2 if own is None else own.stderr
        together = 0.0 if own is None else 2 * own.covariance
        source = gpu if own is not None else ", ".join(inherited)
        error = float(np.sqrt(spread**2 + shared.stderr**2 + together))
        constants[name] = about.constant(value, error, f"calibration/campaigns: {source}")
    return constants
