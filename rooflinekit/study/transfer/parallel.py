"""A training step on several devices that rests on a measured step on one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from rooflinekit.step.prediction import TERMS, Prediction
from rooflinekit.strategies.prediction import ParallelPrediction, Share
from rooflinekit.study.transfer.transferred import CORRECTION, Transferred


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
