"""A prediction that rests on a measurement of the same network on another device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import stdtrit

from rooflinekit.distributed.prediction import ParallelPrediction, Share
from rooflinekit.step.prediction import TERMS, Prediction
from rooflinekit.study.errors.components import NETWORK, Kinship, leaders, parts_of
from rooflinekit.study.transfer.evidence import Evidence
from rooflinekit.study.transfer.posterior import Posterior, given

CORRECTION = "correction"


@dataclass(frozen=True, kw_only=True, repr=False)
class Transferred(Prediction):
    """A step on one device, corrected by what a measurement on another shows the prediction to be off by.

    Its terms are those of the plain prediction and one more, `correction`, which may be negative; kernels and tables
    are the plain prediction's.
    """

    plain: Prediction  # without the measurement
    source: Prediction  # of the step that was measured
    evidence: Evidence
    posterior: Posterior

    @cached_property
    def _terms(self) -> dict[str, float]:
        plain = self.plain.terms()
        return {**plain, CORRECTION: self.plain.total_s * math.expm1(self.posterior.mean)}

    @property
    def gpu_s(self) -> float:
        """Time in which the GPU executes kernels, as the plain prediction has it."""
        return self.plain.gpu_s

    @property
    def correction_s(self) -> float:
        """By how much the step is longer than plainly predicted."""
        return self._terms[CORRECTION]

    @property
    def notes(self) -> tuple[str, ...]:
        """Those of the plain prediction, and what the correction rests on."""
        shown = ", ".join(f"{name} {math.expm1(ln):+.0%}" for name, ln in self.largest_parts().items())
        off = math.log(self.evidence.seconds / self.source.total_s) if self.evidence.seconds else None
        told = "" if off is None else f", {math.expm1(off):+.0%} of its prediction"
        kernels = " and its ops" if self.evidence.ops or self.evidence.matched else ""
        first = (
            f"rests on {self.evidence.source}{kernels} on {self.source.machine.name}{told}: corrected by "
            f"{math.expm1(self.posterior.mean):+.1%}{f' ({shown})' if shown else ''}; plainly predicted spread "
            f"{self.posterior.before:.0%}, now {self.posterior.spread:.0%}"
        )
        return (first, self._split(), *self.evidence.notes(self.source), *self.plain.notes)

    def _split(self) -> str:
        """What the measured step is off by, in words."""
        found = [f"its {name} {math.expm1(ln):+.1%}" for name, ln in self.posterior.split.items() if abs(ln) >= 0.001]
        own = "" if self.source.machine.device == self.machine.device else "; its constants are of that GPU alone"
        return f"of what it is off by there is told: {', '.join(found) or 'nothing above 0.1 %'}{own}"

    def largest_parts(self) -> Mapping[str, float]:
        """Of the correction, in ln: the three largest families, host or network itself, if above 1 %."""
        order = sorted(self.posterior.by_part.items(), key=lambda item: -abs(item[1]))
        return {name: ln for name, ln in order[:3] if abs(ln) >= 0.01}

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Bounds in seconds that hold the true time with this probability, given the measurement.

        A factor of the spread that is left to either side. To none it is larger than the plain prediction's, which may
        differ (a host slower than stated prolongs a step, and a faster one shortens it only until kernels decide),
        times what a network is off by itself, which plain intervals leave out. What was further off than its own
        interval allows widens both. Raises ValueError for a level outside (0, 1).
        """
        if not 0 < level < 1:
            raise ValueError(f"level: expected a probability between 0 and 1; got {level!r}")
        if not self.plain.total_s:
            return self.total_s, self.total_s
        low, high = self.plain.interval(level)
        left = self.posterior
        below, above = widths(
            left.spread, left.freedom, left.surprise, level, self.plain.total_s / low, high / self.plain.total_s
        )
        return float(self.total_s / below), float(self.total_s * above)

    def to_dict(self) -> dict[str, Any]:
        """As a prediction's, with the measurement and what it changed under "transfer"."""
        return {
            **super().to_dict(),
            "transfer": {
                "rests_on": self.evidence.source,
                "measured_s": self.evidence.seconds,
                "measured_on": self.source.machine.name,
                "predicted_there_s": self.source.total_s,
                "plain_s": self.plain.total_s,
                "correction_s": self.correction_s,
                "spread_before": self.posterior.before,
                "spread": self.posterior.spread,
                "by_part": dict(self.posterior.by_part),
                "split": dict(self.posterior.split),
            },
        }


def widths(spread: Any, freedom: Any, surprise: Any, level: float, below: Any, above: Any) -> tuple[Any, Any]:
    """Factors to either side of the expected time, from a posterior and the plain prediction's; numbers or arrays."""
    times = stdtrit(freedom, (1 + level) / 2)
    factor, network = np.exp(times * spread), np.exp(times * NETWORK.value)
    wider = np.maximum(1.0, surprise)
    return np.minimum(factor, (below * network) ** wider), np.minimum(factor, (above * network) ** wider)


def transferred(evidence: Evidence, source: Prediction, target: Prediction) -> Transferred:
    """The target's prediction with what the evidence says of the source's.

    Both predictions are of one network; sizes, formats, execution, host and device may differ. Raises InputError where
    the evidence cannot be of the source's step.
    """
    return correcting(evidence, source)(target)


def correcting(evidence: Evidence, source: Prediction) -> Callable[[Prediction], Transferred]:
    """The same for many targets: what the evidence says is worked out once. Raises InputError likewise, at once."""
    names = leaders(source)
    seen = evidence.seen(source, names)

    def corrected(target: Prediction) -> Transferred:
        posterior = given(seen, parts_of(target, {**leaders(target), **names}), Kinship.of(source, target))
        own = {field.name: getattr(target, field.name) for field in fields(Prediction)}
        return Transferred(**own, plain=target, source=source, evidence=evidence, posterior=posterior)

    return corrected


# A training step on several devices that rests on a measured step on one.


def on_several(correct: Callable[[Prediction], Transferred], p: ParallelPrediction) -> ParallelPrediction:
    """The step with each device's own part of it corrected; what it waits for others stays as predicted.

    Kernels, the host and inputs are what a step on one device tells of; links, slower devices, idle stages and kernels
    slowed by collectives are not.
    """
    shares = tuple(_corrected(correct, share) for share in p.shares)
    first = shares[0].prediction
    assert isinstance(first, Transferred)
    note = f"of each device's own part of the step, kernels and host: {first.notes[0]}; communication is as predicted"
    alone: Callable[[], Prediction] = lambda: correct(p.alone())  # noqa: E731
    return replace(p, shares=shares, alone=alone, assumptions=(note, *p.assumptions))


def _corrected(correct: Callable[[Prediction], Transferred], share: Share) -> Share:
    found = correct(share.prediction)
    own = sum(share.terms[name] for name in TERMS)
    terms = {**share.terms, CORRECTION: own * math.expm1(found.posterior.mean)}
    return replace(share, prediction=found, terms=terms)
