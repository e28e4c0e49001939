"""What clients see of requests that come at a rate: waiting, first tokens, times between tokens, whole answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooflinekit.hardware.host import Host
from rooflinekit.model.machine import deviations
from rooflinekit.serving.decoder import Decoder
from rooflinekit.serving.engine_pool import Disaggregation, EnginePool
from rooflinekit.serving.engine_steps import ServingDraws, ServingMemory, predictions_of, serving_energy
from rooflinekit.serving.settings import Engine, launch_lines
from rooflinekit.serving.step_times import StepTimes
from rooflinekit.serving.traffic import Answered, Played, Request, ServiceLevel, Traffic
from rooflinekit.step.accuracy import engine_accuracy
from rooflinekit.step.bounds import widened
from rooflinekit.step.energy import TeamEnergy
from rooflinekit.step.prediction import Prediction

#: What is told of each request, and how a reader calls it.
MEASURES = {
    "queue_s": "waiting to be read",
    "ttft_s": "first token",
    "tpot_s": "each further token",
    "e2e_s": "whole answer",
}
SHARES = (50, 90, 99)
#: By which part of `step.sources` each is off beside its kernels.
_SOURCES = {"queue_s": "first token", "ttft_s": "first token", "tpot_s": "per token", "e2e_s": "per token"}
#: Requests that nobody had begun to read when the last one came: with more, they come faster than they are answered.
_BACKLOG = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServedTraffic(ServingDraws):
    """Requests at a rate, served. Times are seconds; requests that warm the engine up or drain it are not counted.

    queue_s: from a request's arrival, receiving it included (`Engine.request_s`), to the step that first reads of its
    prompt. ttft_s: to its first token, the queue included. tpot_s: between its tokens. e2e_s: to its last token.
    """

    decoder: Decoder
    traffic: Traffic
    engine: Engine
    weights: str
    kv: str
    tp: int
    ep: int
    dp: int
    played: Played
    alone: Answered  # a request of average length with the engine to itself: work without queueing
    bounds: dict[str, tuple[float, float]]  # of the means, with 90 %: played with kernels faster and slower
    memory: ServingMemory
    decode: Prediction  # a step of the sequences that run on average, at the middle of an answer: one GPU's part
    prefill: Prediction  # of an average prompt
    apart: Disaggregation | None = None  # engines of their own for prompts and answers
    transfer_s: float = 0.0  # of the cache of an average prompt between them
    energy: TeamEnergy | None = None  # of all GPUs until the last token; None where it was not asked for, or not stated

    @property
    def gpu(self) -> str:
        """The device's name."""
        return self.decode.machine.name

    @property
    def gpus(self) -> int:
        """Of all engines."""
        return gpus_of(self.tp * self.dp, self.apart)

    @property
    def answers(self) -> list[Answered]:
        """The requests that count, in order of arrival."""
        end = len(self.played.answers) - self.traffic.drain
        return self.played.answers[self.traffic.warm_up : end]

    def values(self, measure: str) -> list[float]:
        """One of `MEASURES` of each request; without those that have it not (tpot_s of answers of one token)."""
        return self.played.values(measure, self.traffic.warm_up, self.traffic.drain)

    def mean(self, measure: str) -> float:
        """The average of one of `MEASURES`; not a number where no request has it."""
        return self.played.mean(measure, self.traffic.warm_up, self.traffic.drain)

    def percentile(self, measure: str, share: float) -> float:
        """What so many per cent of the requests do not exceed in one of `MEASURES`."""
        return percentile_of(self.values(measure), share)

    @property
    def gaps_s(self) -> dict[str, float]:
        """Percentiles of the seconds between two tokens, over all tokens."""
        return {f"p{share}": _weighted(self.played.gaps, share) for share in SHARES}

    @property
    def seconds(self) -> float:
        """From the first request that counts to the last token of one."""
        return max(answer.last_s for answer in self.answers) - self.answers[0].request.arrival_s

    @property
    def requests_per_s(self) -> float:
        """Requests answered a second."""
        return len(self.answers) / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens given a second, by all GPUs together."""
        return sum(answer.request.output for answer in self.answers) / self.seconds

    @property
    def tokens_given(self) -> int:
        """Of all answers, those that are not counted among them."""
        return sum(answer.request.output for answer in self.played.answers)

    @property
    def busy(self) -> float:
        """Share of the time in which the engine works on any step."""
        return self.played.busy_s / self.played.end_s / self.played.engines

    @property
    def overloaded(self) -> bool:
        """Whether requests come faster than they are answered, so that waiting grows with their number."""
        last_s = self.played.answers[-1].request.arrival_s
        late = sum(answer.scheduled_s > last_s for answer in self.played.answers) - 1
        return late > max(4, _BACKLOG * len(self.played.answers))

    def kept(self, level: ServiceLevel) -> float:
        """Share of the requests that keep every promise of the level."""
        return sum(level.kept_by(answer) for answer in self.answers) / len(self.answers)

    def goodput(self, level: ServiceLevel) -> float:
        """Requests answered a second that keep every promise of the level."""
        return self.kept(level) * self.requests_per_s

    def launch_lines(self) -> list[str]:
        """The command that starts the engine so; nothing where none was chosen by name, or several work apart."""
        if self.apart is not None:
            return []
        return launch_lines(self.engine, self.decoder.name, self.weights, self.kv, (self.tp, self.ep, self.dp))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single requests, ready for JSON."""
        t, m = self.traffic, self.memory
        return {
            "decoder": self.decoder.name, "gpu": self.gpu, "tp": self.tp, "ep": self.ep, "dp": self.dp,
            "weights": self.weights, "kv": self.kv, "rate": t.rate, "cv": t.cv, "input": t.input, "output": t.output,
            "length_cv": t.length_cv, "cached": t.cached, "requests": t.requests, "warm_up": t.warm_up,
            "drain": t.drain, "seed": t.seed, "log": bool(t.log),
            "engine": self.engine.to_dict(), "gpus": self.gpus,
            "power_limit_w": self.decode.machine.power_limit, "clock_limit_hz": self.decode.machine.clock_limit,
            "disaggregation": self.apart and {**self.apart.to_dict(), "transfer_s": self.transfer_s},
            **{
                measure: {
                    "mean": _told(self.mean(measure)),
                    **{f"p{share}": _told(self.percentile(measure, share)) for share in SHARES},
                    "mean_interval": [_told(bound) for bound in self.bounds[measure]],
                }
                for measure in MEASURES
            },
            "gap_s": {name: _told(value) for name, value in self.gaps_s.items()},
            "alone": {"ttft_s": self.alone.ttft_s, "tpot_s": _told(self.alone.tpot_s), "e2e_s": self.alone.e2e_s},
            "requests_per_s": self.requests_per_s, "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s / self.gpus, "overloaded": self.overloaded,
            "busy": self.busy, "reading": self.played.reading_s / self.played.busy_s, "running": self.played.running,
            "preemptions": self.played.preemptions, "peak_cache": self.played.peak_cache,
            "weight_bytes": m.weight_bytes, "cache_bytes": m.cache_bytes,
            "kv_bytes_per_token": m.kv_bytes_per_token, **self.energy_document(),
            "accuracy": [one.to_dict() for one in engine_accuracy(self.decode.machine.device, self.engine.name)],
            "launch": self.launch_lines(),
            "notes": list(dict.fromkeys((*self.prefill.notes, *self.decode.notes))),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<ServedTraffic {self.decoder.name} on {self.gpu}: {self.traffic.rate:.4g} requests/s>"


def serve_traffic_on(
    host: Host,
    traffic: Traffic,
    engine: Engine,
    times: StepTimes,
    *,
    intervals: bool = True,
    apart: Disaggregation | None = None,
    prefill_times: StepTimes | None = None,
) -> ServedTraffic:
    """Requests at a rate on the machines that `times` are of. Without `intervals` and joules in a third of
    the time.

    apart: engines of their own for prompts, whose steps are `prefill_times` where they are of other GPUs. Raises
    CapacityError for a request that the memory does not hold.
    """
    steps, requests = times, traffic.draw()
    pool = EnginePool.of(engine, times, traffic, apart, prefill_times)
    played = pool.play(requests, joules=intervals)
    prefill, decode = predictions_of(host, traffic, times, max(1, round(played.running)))
    return ServedTraffic(
        decoder=steps.decoder, traffic=traffic, engine=engine, weights=steps.weights, kv=steps.kv, tp=steps.tp,
        ep=steps.ep, dp=steps.dp, played=played, alone=pool.play((traffic.mean_request,)).answers[0],
        bounds=_bounds(pool, requests, traffic, prefill, decode, played) if intervals else _means(played, traffic),
        memory=pool.memory, decode=decode, prefill=prefill, apart=apart,
        transfer_s=pool.transfer_s(traffic.input),
        energy=serving_energy(steps, played.kernels_j, played.end_s, gpus_of(steps.gpus, apart)),
    )  # fmt: skip


def _bounds(
    pool: EnginePool, requests: Sequence[Request], traffic: Traffic, prefill: Prediction, decode: Prediction,
    played: Played,
) -> dict[str, tuple[float, float]]:  # fmt: skip
    """The means, with 90 %: the same requests with kernels as fast and as slow as theirs, and engines as they differ.

    Waiting follows from these. As in a closed loop (`Serving.interval`), the CPU hides its work better or worse than
    it is said to: the fast end is played with all of it hidden, the slow one with none.
    """
    fast, slow = (
        _means(pool.play(requests, (prefill.interval()[end] / prefill.total_s, decode.interval()[end] / decode.total_s),
                         hidden=not end), traffic)
        for end in (0, 1)
    )  # fmt: skip
    told, width = _means(played, traffic), deviations(0.9)
    return {
        measure: widened((fast[measure][0], slow[measure][1]), told[measure][0], source, width)
        for measure, source in _SOURCES.items()
    }


def _means(played: Played, traffic: Traffic) -> dict[str, tuple[float, float]]:
    found = {measure: played.mean(measure, traffic.warm_up, traffic.drain) for measure in MEASURES}
    return {measure: (mean, mean) for measure, mean in found.items()}


def gpus_of(a_copy: int, apart: Disaggregation | None) -> int:
    """GPUs of all engines, where one copy of the model has so many."""
    return a_copy if apart is None else apart.decode * a_copy + apart.prefill * (apart.prefill_tp or a_copy)


def percentile_of(values: Iterable[float], share: float) -> float:
    """What so many per cent do not exceed, on the line between neighbours; not a number of none.

    >>> percentile_of([1.0, 2.0, 3.0], 50), percentile_of([1.0, 2.0, 3.0], 90)
    (2.0, 2.8)
    """
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = share / 100 * (len(ordered) - 1)
    low = min(math.floor(place), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _weighted(gaps: Mapping[float, float], share: float) -> float:
    """The same of values that occur several times, the lowest first, without lines between."""
    left = share / 100 * sum(gaps.values())
    for value, times in sorted(gaps.items()):
        left -= times
        if left <= 0:
            return value
    return math.nan


def _told(value: float) -> float | None:
    return None if math.isnan(value) else value
