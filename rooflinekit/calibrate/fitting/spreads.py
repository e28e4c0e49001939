"""How far predictions are off, from their errors: each kernel by itself, and all of a family on a GPU together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import t as student

from rooflinekit.model.families import OF_THE_DAY, wider
from rooflinekit.model.machine import Spread
from rooflinekit.model.work import Floats

_NINETY = 1.645  # standard deviations that hold 90 % of a normal distribution
_LEAST_SHARED = 0.03  # two collections of one GPU's product times differ by 4 to 5 %
_FEWEST_GPUS = 2
_KNOWN_CASES = 20  # cases that what is known of a family from elsewhere is worth: a stated choice

Errors = Mapping[tuple[str, str], Floats]  # (GPU, family) → ln(measured / predicted)
Starts = Mapping[tuple[str, str], float]  # (GPU, family) → what kernels' starts take of their times, the median


def spread_of(parts: Sequence[Floats]) -> Spread:
    """From the errors on several GPUs: what a GPU's kernels are off together, and each on its own.

    Both together hold 90 % of all errors, as far as a kernel's own is no less than half of what it is about its GPU's
    median. Each GPU counts as much as another, however many of its kernels were measured.
    """
    biases = [float(np.median(errors)) for errors in parts]
    shared = float(np.sqrt(np.mean(np.square(biases))))
    alone = _deviation([errors - bias for errors, bias in zip(parts, biases, strict=True)])
    rest = max(_deviation(parts) ** 2 - shared**2, (alone / 2) ** 2)
    return Spread(kernel=float(np.sqrt(rest)), shared=max(shared, _LEAST_SHARED))


def _deviation(parts: Sequence[Floats]) -> float:
    """The standard deviation of a normal distribution that holds 90 % where these errors do, each part alike."""
    size = np.abs(np.concatenate(parts))
    order = np.argsort(size)
    counted = np.cumsum(np.concatenate([np.full(errors.size, 1 / errors.size) for errors in parts])[order])
    last = int(np.searchsorted(counted, 0.9 * counted[-1] * (1 - 1e-9)))
    return float(size[order[last]]) / _NINETY


def steadied(own: Spread, count: int, known: Spread) -> Spread:
    """A spread that `count` cases tell, averaged in squares with what is known of the family from elsewhere.

    Few cases, often of one shape, lie together by chance: what they say of other shapes is then mostly what others say.
    """

    def both(told: float, elsewhere: float) -> float:
        return float(np.sqrt((count * told**2 + _KNOWN_CASES * elsewhere**2) / (count + _KNOWN_CASES)))

    return Spread(kernel=both(own.kernel, known.kernel), shared=both(own.shared, known.shared))


def of_another_gpu(parts: Sequence[Floats], elsewhere: float = 0.0) -> Spread:
    """The spread on a GPU that is none of these, whose shared part they tell the less, the fewer they are.

    The bias of n GPUs about nothing has n degrees of freedom; 90 % of another's lie within Student's quantile for n.
    One GPU is taken as two, for the quantile of one has no mean. elsewhere: the variance in these biases that intervals
    count by itself, of the day and of kernels' starts.
    """
    found = spread_of(parts)
    shared = found.shared * float(student.ppf(0.95, max(len(parts), _FEWEST_GPUS))) / _NINETY
    return replace(found, shared=max(float(np.sqrt(max(shared**2 - elsewhere, 0.0))), _LEAST_SHARED))


def of_left_out(unseen: Errors, starts: Starts, start_error: float) -> dict[str, Spread]:
    """The spread of each family on a GPU that is in no fit, from those that were left out.

    start_error: the standard deviation of the logarithm of what kernels' starts take.
    """

    def told(keys: Sequence[tuple[str, str]]) -> Spread:
        elsewhere = OF_THE_DAY**2 + start_error**2 * float(np.mean([starts.get(key, 0.0) ** 2 for key in keys]))
        return of_another_gpu([unseen[key] for key in keys], elsewhere)

    return _of_families(unseen, told)


def of_fitted(errors: Errors) -> dict[str, Spread]:
    """The spread of each family on a GPU that is in the fit: what steadies that of one of which few cases tell."""
    return _of_families(errors, lambda keys: spread_of([errors[key] for key in keys]))


def _of_families(errors: Errors, told: Callable[[Sequence[tuple[str, str]]], Spread]) -> dict[str, Spread]:
    """Each family's, steadied by that of what it is a part of, which stands there too."""
    families, bases = defaultdict[str, list[tuple[str, str]]](list), defaultdict[str, list[tuple[str, str]]](list)
    for key in errors:
        families[key[1]].append(key)
        bases[wider(key[1])].append(key)
    found = {name: told(keys) for name, keys in bases.items()}
    for name, keys in families.items():
        found[name] = steadied(told(keys), sum(errors[key].size for key in keys), told(bases[wider(name)]))
    return dict(sorted(found.items()))
