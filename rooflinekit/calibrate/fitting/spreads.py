"""How far predictions are off, from their errors: each kernel by itself, and all of a family on a GPU together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import t as student

from rooflinekit.ir import keyed
from rooflinekit.timing.estimate import deviations
from rooflinekit.timing.families import OF_THE_DAY, wider
from rooflinekit.timing.kernel_batch import Floats
from rooflinekit.timing.machine import Spread

NINETY = deviations(0.9)  # standard deviations of a normal distribution
LEAST_SYSTEMATIC = 0.03  # two collections of one GPU's product times differ by 4 to 5 %
_FEWEST_GPUS = 2
_KNOWN_CASES = 20  # cases that what is known of a family from elsewhere is worth: a stated choice
_SHORT_S = np.geomspace(1e-7, 1e-5, 21)  # from what timers resolve to what launches are off by, in steps of a quarter
_GAIN = 0.02  # by which seconds must tell the other half better: families without short kernels say nothing of them

Errors = Mapping[tuple[str, str], Floats]  # (GPU, family) → ln(measured / predicted)
Times = Mapping[tuple[str, str], Floats]  # (GPU, family) → the predicted seconds of each
Starts = Mapping[tuple[str, str], float]  # (GPU, family) → what kernels' starts take of their times, the median


def spread_of(parts: Sequence[Floats], times: Sequence[Floats] = ()) -> Spread:
    """From the errors on several GPUs: what a GPU's kernels are off together, and each on its own.

    times: the predicted seconds of each; without them all are taken for equally long. Both together hold 90 % of all
    errors, as far as a kernel's own is no less than half of what it is about its GPU's median. Each GPU counts as much
    as another, however many of its kernels were measured. What its kernels are off together is told by those that are
    certain more than by those that are short.
    """
    times = times or [np.ones_like(errors) for errors in parts]
    short_s = _short_s(parts, times)
    both = _deviation(parts, times, short_s)
    weights = [1 / np.hypot(max(both, LEAST_SYSTEMATIC), short_s / seconds) for seconds in times]
    biases = [_median(errors, weight) for errors, weight in zip(parts, weights, strict=True)]
    systematic = float(np.sqrt(np.mean(np.square(biases))))
    random = _deviation([errors - bias for errors, bias in zip(parts, biases, strict=True)], times, short_s)
    rest = max(both**2 - systematic**2, (random / 2) ** 2)
    return Spread(random=float(np.sqrt(rest)), systematic=max(systematic, LEAST_SYSTEMATIC), short_s=short_s)


def _deviation(parts: Sequence[Floats], times: Sequence[Floats], short_s: float) -> float:
    """The s with which normal distributions of √(s² + (short_s / time)²) hold 90 % of these errors, each part alike."""
    size, seconds = np.concatenate(parts) / NINETY, np.concatenate(times)
    needed = np.sqrt(np.maximum(size**2 - (short_s / seconds) ** 2, 0.0))
    order = np.argsort(needed)
    counted = np.cumsum(_alike(parts)[order])
    last = int(np.searchsorted(counted, 0.9 * counted[-1] * (1 - 1e-9)))
    return float(needed[order[last]])


def _short_s(parts: Sequence[Floats], times: Sequence[Floats]) -> float:
    """The seconds that each kernel is off besides; 0 where what one half tells is no better on the other."""
    halves = [_every_second(parts, times, i) for i in (0, 1)]
    if min(errors.size for half in halves for errors in half[0]) == 0:
        return 0.0
    without, with_it = 0.0, 0.0
    for told, judged in (halves, halves[::-1]):
        best = _best(*told)
        without += _loss(*judged, 0.0, _deviation(*told, 0.0))
        with_it += _loss(*judged, best, _deviation(*told, best))
    return _best(parts, times) if with_it < (1 - _GAIN) * without else 0.0


def _every_second(parts: Sequence[Floats], times: Sequence[Floats], first: int) -> tuple[list[Floats], list[Floats]]:
    """Every second kernel of each part by its time, so that both halves have short and long ones."""
    chosen = [np.argsort(seconds, kind="stable")[first::2] for seconds in times]
    errors, seconds = ([part[one] for part, one in zip(column, chosen, strict=True)] for column in (parts, times))
    return errors, seconds


def _best(parts: Sequence[Floats], times: Sequence[Floats]) -> float:
    losses = [_loss(parts, times, short_s, _deviation(parts, times, short_s)) for short_s in _SHORT_S]
    return float(_SHORT_S[int(np.argmin(losses))])


def _loss(parts: Sequence[Floats], times: Sequence[Floats], short_s: float, random: float) -> float:
    """The loss of a quantile (Koenker and Bassett 1978), least where 90 % are held at every time."""
    size, seconds = np.abs(np.concatenate(parts)), np.concatenate(times)
    beyond = size - NINETY * np.hypot(max(random, LEAST_SYSTEMATIC), short_s / seconds)
    return float(np.average(np.where(beyond > 0, 0.9 * beyond, -0.1 * beyond), weights=_alike(parts)))


def _alike(parts: Sequence[Floats]) -> Floats:
    """The weight of each error if every part has the same."""
    return np.concatenate([np.full(errors.size, 1 / errors.size) for errors in parts])


def _median(values: Floats, weights: Floats) -> float:
    """Half of the weights lie on either side; between two values where equal weights would have it there."""
    order = np.argsort(values)
    middle = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(weights.sum() / 2, middle, values[order]))


def shrunk(own: Spread, count: int, known: Spread) -> Spread:
    """A spread that `count` cases tell, averaged in squares with what is known of the family from elsewhere.

    Few cases, often of one shape, lie together by chance: what they say of other shapes is then mostly what others say.
    """

    def both(told: float, elsewhere: float) -> float:
        return float(np.sqrt((count * told**2 + _KNOWN_CASES * elsewhere**2) / (count + _KNOWN_CASES)))

    return Spread(
        random=both(own.random, known.random), systematic=both(own.systematic, known.systematic),
        short_s=both(own.short_s, known.short_s),
    )  # fmt: skip


def of_another_gpu(parts: Sequence[Floats], elsewhere: float = 0.0, times: Sequence[Floats] = ()) -> Spread:
    """The spread on a GPU that is none of these, whose systematic part they tell the less, the fewer they are.

    The bias of n GPUs about nothing has n degrees of freedom; 90 % of another's lie within Student's quantile for n.
    One GPU is taken as two, for the quantile of one has no mean. elsewhere: the variance in these biases that intervals
    count by itself, of the day and of kernels' starts.
    """
    found = spread_of(parts, times)
    systematic = found.systematic * float(student.ppf(0.95, max(len(parts), _FEWEST_GPUS))) / NINETY
    return replace(found, systematic=max(float(np.sqrt(max(systematic**2 - elsewhere, 0.0))), LEAST_SYSTEMATIC))


def of_left_out(unseen: Errors, starts: Starts, start_error: float, times: Times | None = None) -> dict[str, Spread]:
    """Spreads of families on a GPU in no fit, by those left out. start_error: deviation of ln of kernels' starts."""

    def told(keys: Sequence[tuple[str, str]]) -> Spread:
        elsewhere = OF_THE_DAY**2 + start_error**2 * float(np.mean([starts.get(key, 0.0) ** 2 for key in keys]))
        return of_another_gpu([unseen[key] for key in keys], elsewhere, [times[key] for key in keys] if times else ())

    return _of_families(unseen, told)


def of_fitted(errors: Errors, times: Times) -> dict[str, Spread]:
    """The spread of each family on a GPU that is in the fit: what steadies that of one of which few cases tell."""
    return _of_families(errors, lambda keys: spread_of([errors[key] for key in keys], [times[key] for key in keys]))


def _of_families(errors: Errors, told: Callable[[Sequence[tuple[str, str]]], Spread]) -> dict[str, Spread]:
    """Each family's, shrunk by that of what it is a part of, which stands there too."""
    families = keyed.lists((key[1], key) for key in errors)
    bases = keyed.lists((wider(key[1]), key) for key in errors)
    found = {name: told(keys) for name, keys in bases.items()}
    for name, keys in families.items():
        found[name] = shrunk(told(keys), sum(errors[key].size for key in keys), told(bases[wider(name)]))
    return dict(sorted(found.items()))
