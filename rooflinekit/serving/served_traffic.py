"""What clients see of requests that come at a rate: waiting, first tokens, times between tokens, whole answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rooflinekit.hardware.host import Host
from rooflinekit.model.machine import Machine
from rooflinekit.serving.answers import Answered, Played
from rooflinekit.serving.batch_times import BatchTimes, Chunk
from rooflinekit.serving.decoder import Decoder
from rooflinekit.serving.energy import Draws, joules_of, serving_energy
from rooflinekit.serving.levels import ServiceLevel
from rooflinekit.serving.memory import ServingMemory, serving_memory
from rooflinekit.serving.replay import BatchTime, replay
from rooflinekit.serving.settings import Engine
from rooflinekit.serving.step_times import StepTimes
from rooflinekit.serving.traffic import Request, Traffic
from rooflinekit.step.energy_together import TeamEnergy
from rooflinekit.step.execution import Execution
from rooflinekit.step.prediction import Prediction, predict_graph

#: What is told of each request, and how a reader calls it.
MEASURES = {
    "queue_s": "waiting to be read",
    "ttft_s": "first token",
    "tpot_s": "each further token",
    "e2e_s": "whole answer",
}
SHARES = (50, 90, 99)
#: Requests that nobody had begun to read when the last one came: with more, they come faster than they are answered.
_BACKLOG = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServedTraffic(Draws):
    """Requests at a rate, served. Times are seconds; requests that warm the engine up or drain it are not counted.

    queue_s: from a request's arrival to the step that first reads of its prompt. ttft_s: to its first token, the queue
    included. tpot_s: between its tokens. e2e_s: to its last token.
    """

    decoder: Decoder
    traffic: Traffic
    engine: Engine
    weights: str
    kv: str
    tp: int
    ep: int
    played: Played
    alone: Answered  # a request of average length with the engine to itself: work without queueing
    bounds: dict[str, tuple[float, float]]  # of the means, with 90 %: played with kernels faster and slower
    memory: ServingMemory
    decode: Prediction  # a step of the sequences that run on average, at the middle of an answer: one GPU's part
    prefill: Prediction  # of an average prompt
    energy: TeamEnergy | None = None  # of all GPUs until the last token; None where it was not asked for, or not stated

    @property
    def gpu(self) -> str:
        """The device's name."""
        return self.decode.machine.name

    @property
    def answers(self) -> tuple[Answered, ...]:
        """The requests that count, in order of arrival."""
        end = len(self.played.answers) - self.traffic.drain
        return self.played.answers[self.traffic.warm_up : end]

    def values(self, measure: str) -> list[float]:
        """One of `MEASURES` of each request; without those that have it not (tpot_s of answers of one token)."""
        found = (float(getattr(answer, measure)) for answer in self.answers)
        return [value for value in found if not math.isnan(value)]

    def mean(self, measure: str) -> float:
        """The average of one of `MEASURES`; not a number where no request has it."""
        return mean_of(self.values(measure))

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
        return self.played.busy_s / self.played.end_s

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

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single requests, ready for JSON."""
        t, m = self.traffic, self.memory
        return {
            "decoder": self.decoder.name, "gpu": self.gpu, "tp": self.tp, "ep": self.ep,
            "weights": self.weights, "kv": self.kv, "rate": t.rate, "cv": t.cv, "input": t.input, "output": t.output,
            "length_cv": t.length_cv, "cached": t.cached, "requests": t.requests, "warm_up": t.warm_up,
            "drain": t.drain, "seed": t.seed, "log": bool(t.log),
            "engine": {
                "host": self.engine.host, "policy": self.engine.policy, "step_tokens": self.engine.step_tokens,
                "chunks": self.engine.chunks, "reserve": self.engine.reserve, "sequences": self.engine.sequences,
                "layer_s": self.engine.layer_s, "memory_share": self.engine.memory_share,
            },
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
            "tokens_per_s_per_gpu": self.tokens_per_s / self.tp, "overloaded": self.overloaded,
            "busy": self.busy, "reading": self.played.reading_s / self.played.busy_s, "running": self.played.running,
            "preemptions": self.played.preemptions, "peak_cache": self.played.peak_cache,
            "weight_bytes": m.weight_bytes, "cache_bytes": m.cache_bytes,
            "kv_bytes_per_token": m.kv_bytes_per_token, **self.energy_document(),
            "notes": list(dict.fromkeys((*self.prefill.notes, *self.decode.notes))),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<ServedTraffic {self.decoder.name} on {self.gpu}: {self.traffic.rate:.4g} requests/s>"


def serve_traffic_on(
    machine: Machine,
    host: Host,
    traffic: Traffic,
    engine: Engine,
    times: BatchTimes,
    *,
    intervals: bool = True,
) -> ServedTraffic:
    """Requests at a rate on one machine, or on as many as `times` are of. Without `intervals` and joules in a third of
    the time.

    Raises CapacityError for a request that the memory does not hold.
    """
    steps = times.times
    requests = traffic.draw()
    memory = serving_memory(steps, engine, traffic.input)
    cache_tokens = cache_tokens_of(steps, memory, traffic)

    def play(
        log: Sequence[Request], reading: float = 1.0, going_on: float = 1.0, *, step_j: BatchTime | None = None
    ) -> Played:
        def step_s(chunks: Sequence[Chunk], sequences: int, context: float) -> float:
            gpu_s = times.step_s(chunks, sequences, context) * (reading if chunks else going_on)
            if chunks:
                gpu_s = max(gpu_s, engine.layer_s * steps.decoder.layers)
            return engine.step_s(gpu_s, len(chunks) + sequences)

        return replay(log, step_s, engine, cache_tokens, step_j)

    joules = joules_of(steps) if intervals else None
    played = play(requests, step_j=None if joules is None else BatchTimes(times=joules).step_s)
    mean = Request(arrival_s=0.0, input=traffic.input, output=traffic.output,
                   cached=min(traffic.input - 1, round(traffic.cached * traffic.input)))  # fmt: skip
    prefill, decode = _predictions(machine, host, traffic, steps, played)
    end = len(requests) - traffic.drain
    (slow, fast) = (
        play(requests, *(p.interval()[bound] / p.total_s for p in (prefill, decode))) if intervals else played
        for bound in (1, 0)
    )
    bounds = {
        measure: (_mean(fast, measure, traffic.warm_up, end), _mean(slow, measure, traffic.warm_up, end))
        for measure in MEASURES
    }
    energy = serving_energy(steps, played.kernels_j, played.end_s)
    return ServedTraffic(
        decoder=steps.decoder, traffic=traffic, engine=engine, weights=steps.weights, kv=steps.kv, tp=steps.tp,
        ep=steps.ep, played=played, energy=energy, alone=play((mean,)).answers[0], bounds=bounds,
        memory=memory, decode=decode, prefill=prefill,
    )  # fmt: skip


def cache_tokens_of(steps: StepTimes, memory: ServingMemory, traffic: Traffic) -> float:
    """Tokens that the cache holds, of sequences of average length: layers with a window hold no more than its part."""
    tokens = traffic.input + traffic.output
    return memory.cache_bytes * tokens / steps.decoder.kv_bytes(tokens, steps.kv, steps.tp)


def mean_of(values: Sequence[float]) -> float:
    """The average; not a number of none."""
    return math.fsum(values) / len(values) if values else math.nan


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


def _weighted(gaps: Sequence[tuple[float, int]], share: float) -> float:
    """The same of values that occur several times, the lowest first, without lines between."""
    left = share / 100 * sum(times for _, times in gaps)
    for value, times in gaps:
        left -= times
        if left <= 0:
            return value
    return math.nan


def _mean(played: Played, measure: str, start: int, end: int) -> float:
    found = (float(getattr(answer, measure)) for answer in played.answers[start:end])
    return mean_of([value for value in found if not math.isnan(value)])


def _told(value: float) -> float | None:
    return None if math.isnan(value) else value


def _predictions(
    machine: Machine, host: Host, traffic: Traffic, steps: StepTimes, played: Played
) -> tuple[Prediction, Prediction]:
    """An average prompt, and a step of the sequences that run on average."""
    graphs = Execution(backend="cuda-graph", sync="none")
    running, middle = max(1, round(played.running)), traffic.input + max(1, traffic.output // 2)
    return (
        predict_graph(steps.graph("prefill").at(batch=1, seq=traffic.input), machine, host, graphs),
        predict_graph(steps.graph("decode").at(batch=running, context=middle), machine, host, graphs),
    )
