"""Constants from measurements: one value for all GPUs, and how far each GPU is from it.

A constant c of GPU g is shared_c · exp(own_gc). Shared values have a wide prior around their starting point, own ones
a prior around 0 whose width is how far GPUs differ; so a GPU whose data does not tell a constant keeps the shared one,
and a GPU without data gets it too. Both are found together, as the least squares of ln(predicted / measured) under a
loss that grows linearly for outliers. Standard errors come from the curvature at the optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TypeAlias

import numpy as np

from rooflinekit.calibrate.fitting.constants import CONSTANTS, STAGES, Stage
from rooflinekit.calibrate.fitting.observations import LIBRARY, Observations
from rooflinekit.ir import keyed
from rooflinekit.kernels.libraries import rated_as
from rooflinekit.timing.kernel_batch import Floats
from rooflinekit.timing.machine import Machine

Key = tuple[str, str]  # ("", constant): shared; (GPU, constant): own; ("host NAME", part) and ("op", OP): the harness

Errors: TypeAlias = list[Floats | None]

_OUTLIER = 0.1  # ln(predicted / measured) from which on an error counts as an outlier
_ITERATIONS = 40  # of the search at most
_GAIN, _GAIN_NEAR = 1e-5, 1e-4  # the share of squares below which it ends; the same beside a solution
_DAMPING = 1e-3  # where it begins, of the curvature
_STEP = 1e-3  # of finite differences, in log units
_EQUAL_WEIGHT = 100  # measurements that a group counts as, however many it has; of few at most as many
_PRIOR_WEIGHT = 1 / _OUTLIER  # one sigma of a prior weighs as much as an error at the outlier's edge
#: What a way of timing adds: where to begin, and its spread; seconds, but for `slow`, a factor.
_HARNESS = {
    "dispatch": (15e-6, 0.7), "after": (15e-6, 0.7), "backend": (4e-6, 1.0), "slow": (1.0, 0.7), "awake": (5e-3, 0.5),
    LIBRARY: (5e-5, 0.7),
}  # fmt: skip
_PARTS = {"event": ("dispatch", "after"), "backend": ("backend",), "alone": ("slow", "awake", LIBRARY)}
_TOLD = 0.9  # an error that is not below this share of the prior's tells nothing
_INHERITED = 0.8  # share of a deviation that is the architecture's and not the board's own
_OP_SPREAD = 0.5
_OP_BETWEEN = 0.2  # how far hosts differ in what one op takes beside another


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A parameter in log units, with its standard error."""

    log: float
    stderr: float
    covariance: float = 0.0  # of a GPU's own value with the shared one

    @property
    def value(self) -> float:
        """In its unit."""
        return float(np.exp(self.log))

    def tells(self, prior: float) -> bool:
        """Whether the data says more than what was known before, within `prior` log units."""
        return self.stderr < _TOLD * prior

    def deviates(self, prior: float) -> bool:
        """Whether the data tells how far a GPU is from the shared value: well enough, or that it is far for certain."""
        return self.tells(prior) or abs(self.log) > self.stderr


@dataclass(slots=True, kw_only=True)
class Solution:
    """The estimates of every parameter that was fitted."""

    estimates: dict[Key, Estimate] = field(default_factory=dict)
    correlations: dict[tuple[str, str], float] = field(default_factory=dict)  # of shared values fitted together

    def values(self, gpu: str = "", relatives: Sequence[str] = ()) -> dict[str, float]:
        """All constants of a GPU: as its measurements tell, else those of its `relatives`, else the shared ones."""
        found = {}
        for name, about in CONSTANTS.items():
            shared = self.estimates.get(("", name))
            log = (np.log(about.start) if shared is None else shared.log) + self.deviation(name, gpu, relatives)
            found[name] = min(max(float(np.exp(log)), about.low), about.high)
        return found

    def deviation(self, name: str, gpu: str, relatives: Sequence[str] = ()) -> float:
        """How far a GPU is from the shared value, in log units: its own, or most of its relatives' mean."""
        own = self.estimates.get((gpu, name)) if gpu else None
        if own is not None:
            return own.log
        known = [self.estimates[relative, name].log for relative in relatives if (relative, name) in self.estimates]
        return _INHERITED * float(np.mean(known)) if known else 0.0

    def harness(self, host: str) -> dict[str, float]:
        """What timing adds on this host; on an unknown one, the geometric mean of those that are known."""
        found = {}
        for (kind, op), shared in self.estimates.items():
            if kind == "op":
                own = self.estimates.get((f"host {host}", f"dispatch:{op}"))
                found[f"dispatch:{op}"] = shared.value * (own.value if own else 1.0)
        for part, (start, _) in _HARNESS.items():
            if mine := self.estimates.get((f"host {host}", part)):
                found[part] = mine.value
                continue
            known = [e.log for (kind, name), e in self.estimates.items() if kind.startswith("host ") and name == part]
            found[part] = float(np.exp(np.mean(known))) if known else start
        return found


def fit(
    observations: Sequence[Observations],
    machines: Mapping[str, Machine],
    stages: Iterable[Stage] = STAGES,
    known: Solution | None = None,
    near: Solution | None = None,
    by_count: bool = False,
    without: str = "",
) -> Solution:
    """Every stage in turn, each with what those before it found; `known` is what was found before the first.

    near: where to begin to look, as the fit on nearly the same measurements: it is found sooner. by_count: whether a
    table of few measurements counts as few, as among many GPUs; else every table counts the same. without: a GPU that
    is left out, and that `near` was fitted with: stages that it has no measurement of are taken from there, for what
    the others' change does to them is of second order.
    """
    solution = Solution() if known is None else replace(known, estimates=dict(known.estimates))
    for stage in stages:
        chosen = [o for o in observations if o.op in stage.ops and set(o.rows["dtype"]) <= stage.dtypes]
        if stage.library:
            chosen = [o for o in chosen if rated_as(machines[o.gpu].device) == stage.library]
        kept = [o for o in chosen if o.gpu != without]
        if not kept:
            continue
        problem = Problem(
            stage=stage, observations=kept, machines=machines, known=solution, near=near, by_count=by_count
        )
        if without and near is not None and len(kept) == len(chosen):
            problem.take(near)
        else:
            problem.solve()
    return solution


@dataclass(slots=True, kw_only=True)
class Problem:
    """One stage as a least-squares problem; `solve` adds to `known`."""

    stage: Stage
    observations: Sequence[Observations]
    machines: Mapping[str, Machine]
    known: Solution
    near: Solution | None = None
    by_count: bool = False
    priors: dict[Key, tuple[float, float]] = field(default_factory=dict)  # where to begin, and how far that may be off

    def solve(self) -> None:
        """Finds the stage's parameters, and adds them with their errors to what is known."""
        self._parameters()
        start, spread = np.array(list(self.priors.values())).reshape(-1, 2).T
        near = self.near.estimates if self.near else {}
        first = np.array([near[key].log if key in near else own for key, own in zip(self.priors, start, strict=True)])
        x, covariance = estimate(
            self._residuals,
            start,
            spread,
            *self._bounds(start),
            first=first,
            jacobian=self._jacobian,
            gain=_GAIN_NEAR if near else _GAIN,
        )
        places = {key: i for i, key in enumerate(self.priors)}
        for a, b in combinations([name for kind, name in self.priors if kind == ""], 2):
            i, j = places["", a], places["", b]
            self.known.correlations[a, b] = float(covariance[i, j] / np.sqrt(covariance[i, i] * covariance[j, j]))
        for key, i in places.items():
            shared = places.get(("", key[1]), i)
            self.known.estimates[key] = Estimate(
                log=float(x[i]),
                stderr=float(np.sqrt(covariance[i, i])),
                covariance=float(covariance[i, shared]) if shared != i else 0.0,
            )

    def take(self, solved: Solution) -> None:
        """Adds the stage's parameters as they were found on the same measurements."""
        self._parameters()
        self.known.estimates |= {key: solved.estimates[key] for key in self.priors}
        shared = {name for kind, name in self.priors if kind == ""}
        self.known.correlations |= {pair: r for pair, r in solved.correlations.items() if shared.issuperset(pair)}

    def _parameters(self) -> None:
        gpus = sorted({o.gpu for o in self.observations})
        for name in (*self.stage.constants, *self.stage.own):
            about = CONSTANTS[name]
            if name not in self.stage.own:
                self.priors["", name] = np.log(about.start), about.spread
            for gpu in gpus:
                if differs := about.differs(self.machines[gpu].device.kind):
                    told = self.known.estimates.get((gpu, name))  # by an earlier stage, which this one goes on from
                    self.priors[gpu, name] = (told.log, told.stderr) if told else (0.0, differs)
        for host in sorted({o.host for o in self.observations}):
            timings = {o.timing for o in self.observations if o.host == host}
            for part in (part for timing, parts in _PARTS.items() if timing in timings for part in parts):
                start, spread = _HARNESS[part]
                if (f"host {host}", part) not in self.known.estimates:  # the first stage that sees a host tells
                    self.priors[f"host {host}", part] = np.log(start), spread
        events = sorted({(o.op, o.host) for o in self.observations if o.timing == "event" and o.op != "add"})
        for op in dict.fromkeys(op for op, _ in events):
            self.priors["op", op] = 0.0, _OP_SPREAD
        for op, host in events:
            self.priors[f"host {host}", f"dispatch:{op}"] = 0.0, _OP_BETWEEN

    def _bounds(self, start: Floats) -> tuple[Floats, Floats]:
        low, high = start - 3.0, start + 3.0
        for i, (kind, name) in enumerate(self.priors):
            if kind == "":
                low[i], high[i] = np.log(CONSTANTS[name].low) - 1e-9, np.log(CONSTANTS[name].high) + 1e-9
        return low, high

    def _solution(self, x: Floats) -> Solution:
        tried = {key: Estimate(log=float(log), stderr=0.0) for key, log in zip(self.priors, x, strict=True)}
        return Solution(estimates={**self.known.estimates, **tried})

    def _on_gpus(self, solution: Solution, gpu: str = "") -> list[Floats | None]:
        """Seconds on the device of all observations, or of one GPU's; None for the others."""
        asked = [o.gpu for o in self.observations if gpu in ("", o.gpu)]
        machines = {name: self.machines[name].with_values(solution.values(name)) for name in dict.fromkeys(asked)}
        library_s = {host: solution.harness(host)[LIBRARY] for host in {o.host for o in self.observations}}
        return [o.on_gpu(machines[o.gpu], library_s[o.host]) if o.gpu in machines else None for o in self.observations]

    def _errors(self, on_gpus: Sequence[Floats | None], solution: Solution, host: str = "") -> Errors:
        """Weighted, robust errors by observations; None where there are no seconds on the device, or of other hosts."""
        hosts = {
            o.host for o, s in zip(self.observations, on_gpus, strict=True) if s is not None and host in ("", o.host)
        }
        harnesses = {name: solution.harness(name) for name in hosts}
        return [
            None if seconds is None or o.host not in hosts else self._error(o, o.timed(seconds, harnesses[o.host]))
            for o, seconds in zip(self.observations, on_gpus, strict=True)
        ]

    def _error(self, o: Observations, predicted: Floats) -> Floats:
        weight = _EQUAL_WEIGHT / len(o)
        found: Floats = robust(np.log(predicted / o.seconds)) * np.sqrt(min(1.0, weight) if self.by_count else weight)
        return found

    def _residuals(self, x: Floats) -> Floats:
        solution = self._solution(x)
        errors = self._errors(self._on_gpus(solution), solution)
        return np.concatenate([error for error in errors if error is not None])

    def _jacobian(self, x: Floats) -> Floats:
        """Finite differences; a GPU's own constant is tried on that GPU's measurements alone.

        A constant that all GPUs have of their own changes by as much with the shared one. What the way of timing adds
        does not change the seconds on the device.
        """
        here = self._solution(x)
        on_gpus = self._on_gpus(here)
        base = self._errors(on_gpus, here)
        offsets = np.cumsum([0, *(len(o) for o in self.observations)])
        jacobian = np.zeros((offsets[-1], len(x)))
        count = len({o.gpu for o in self.observations})
        places = keyed.lists((name, i) for i, (kind, name) in enumerate(self.priors) if kind in self.machines)
        own = {name: of for name, of in places.items() if len(of) == count}  # constants that every GPU has of its own
        for i, key in enumerate(self.priors):
            if key[0] == "" and key[1] in own:
                continue
            moved = x.copy()
            moved[i] += _STEP
            tried = self._solution(moved)
            host = key[0].removeprefix("host ") if key[0].startswith("host ") else ""
            gpu = next((o.gpu for o in self.observations if o.host == host), "") if host else key[0]
            timing_alone = key[0] == "op" or (host and key[1] != LIBRARY)
            errors = self._errors(on_gpus if timing_alone else self._on_gpus(tried, gpu), tried, host)
            for j, (error, before) in enumerate(zip(errors, base, strict=True)):
                if error is not None and before is not None:
                    jacobian[offsets[j] : offsets[j + 1], i] = (error - before) / _STEP
        for i, (kind, name) in enumerate(self.priors):
            if kind == "" and name in own:
                jacobian[:, i] = jacobian[:, own[name]].sum(axis=1)
        return jacobian


def robust(errors: Floats, outlier: float = _OUTLIER) -> Floats:
    """Logarithms of predicted / measured in units of an outlier's edge, beyond which squares grow like errors."""
    found: Floats = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + (errors / outlier) ** 2) - 1))
    return found


def estimate(
    errors: Callable[[Floats], Floats],
    start: Floats,
    spread: Floats,
    low: Floats,
    high: Floats,
    *,
    first: Floats | None = None,
    jacobian: Callable[[Floats], Floats] | None = None,
    prior_weight: float = _PRIOR_WEIGHT,
    gain: float = _GAIN,
) -> tuple[Floats, Floats]:
    """Parameters in log units, between bounds, by which errors and distances to priors are least; their covariance.

    errors: weighted and robust; jacobian: their derivatives, else by finite differences. start, spread: of the priors.
    first: where to begin to look. gain: the share of squares below which a step is the last.
    """

    def slopes(x: Floats) -> Floats:
        base = errors(x)
        return np.stack([(errors(x + _STEP * one) - base) / _STEP for one in np.eye(len(x))], axis=1)

    anchor = np.sqrt(prior_weight) / spread
    derivatives = jacobian or slopes
    x, residuals, there = least_squares(
        lambda x: np.concatenate([errors(x), (x - start) * anchor]),
        lambda x: np.concatenate([derivatives(x), np.diag(anchor)]),
        np.clip(start if first is None else first, low + _STEP, high - _STEP),
        low,
        high,
        gain,
    )
    # The scatter of the errors scales what the data says, not what the prior says.
    count = len(residuals) - len(x)
    scatter = max(1e-3, float(residuals[:count] @ residuals[:count]) / max(1, count - len(x)))
    information = there[:count].T @ there[:count] / scatter + np.diag(1 / np.square(spread))
    return x, np.asarray(np.linalg.inv(information), dtype=float)


def least_squares(
    residuals: Callable[[Floats], Floats],
    jacobian: Callable[[Floats], Floats],
    x: Floats,
    low: Floats,
    high: Floats,
    gain: float,
) -> tuple[Floats, Floats, Floats]:
    """The point between bounds with the least squares, its residuals, their derivatives (Levenberg-Marquardt).

    gain: the share of the squares below which a step is the last; derivatives are those before it.
    Normal equations will do, as every parameter has a prior.
    """
    here, damping = residuals(x), _DAMPING
    for _ in range(_ITERATIONS):
        slopes = jacobian(x)
        gradient, curvature = slopes.T @ here, slopes.T @ slopes
        free = ~(((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0)))
        before = float(here @ here)
        while True:
            square = curvature[np.ix_(free, free)] + damping * np.diag(np.diag(curvature)[free])
            tried = x.copy()
            tried[free] = np.clip(x[free] - np.linalg.solve(square, gradient[free]), low[free], high[free])
            there = residuals(tried)
            gained = before - float(there @ there)
            if gained > 0 or damping > 1 / _DAMPING:
                break
            damping *= 10
        if gained > 0:
            x, here, damping = tried, there, damping / 10
        if gained < gain * before:
            break
    return x, here, slopes
