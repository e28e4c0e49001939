"""A served decoder, for clients in a closed loop or requests at a rate: latency, throughput, memory, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rooflinekit.decoder.decoder import Decoder
from rooflinekit.decoder.formats import Options
from rooflinekit.errors import CapacityError, InputError
from rooflinekit.hardware.host import Host
from rooflinekit.ir import notebook
from rooflinekit.ir.sizes import shown, whole
from rooflinekit.serving.engine import EnginePool, Installed, ServingMemory, Setup, gpus_of
from rooflinekit.serving.launch import launch_lines, release_text
from rooflinekit.serving.settings import THREAD_SPREAD, Disaggregation, Engine
from rooflinekit.serving.step_times import Chunk, StepTimes
from rooflinekit.serving.traffic import Answered, Played, Request, ServiceLevel, Stream, Traffic
from rooflinekit.step.accuracy import Accuracy, engine_accuracy
from rooflinekit.step.attention import attention_seconds
from rooflinekit.step.bounds import unmeasured_note, widened
from rooflinekit.step.energy import Draws, Energy, Member, energy_together
from rooflinekit.step.execution import Execution
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.timing.estimate import deviations
from rooflinekit.timing.machine import Machine
from rooflinekit.units import format_bytes, format_quantity

#: What is told of each request, and how a reader calls it.
MEASURES = {
    "queue_s": "waiting for prefill",
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
class Served(Draws, Options):
    """What both kinds of requests have: the engine, what became of its requests, and the steps behind them."""

    decoder: Decoder
    engine: Engine
    played: Played
    prefill: Prediction  # of one prompt, an average one: one GPU's part
    decode: Prediction  # of the sequences that run, at the middle of an answer: one GPU's part
    memory: ServingMemory
    energy: Energy | None = None  # of all GPUs until the last token; None where no power is stated, or none asked
    apart: Disaggregation | None = None  # engines of their own for prompts and answers

    @property
    def gpu(self) -> str:
        """The device's name."""
        return self.decode.machine.name

    @property
    def tokens_given(self) -> int:
        """Tokens of all answers, also of those that do not count."""
        return sum(answer.request.output for answer in self.played.answers)

    @property
    def joules_per_token(self) -> float | None:
        """Joules of a token of answers, with the reading of prompts and waits."""
        return None if self.energy is None else self.energy.joules / self.tokens_given

    def launch_lines(self) -> list[str]:
        """The command that starts the engine so, or each kind; nothing where none was chosen by name."""
        parts = self.tp, self.ep, self.dp
        return launch_lines(self.engine, self.decoder.name, self.weights, self.kv, parts, self.apart)

    def notes(self) -> list[str]:
        """What was assumed, each once: kernels that were not measured on this GPU, limits."""
        steps = self.prefill, self.decode
        missing = sorted({name for step in steps for name in step.unmeasured})
        apart = {unmeasured_note(step.unmeasured, step.machine) for step in steps}
        told = [note for step in steps for note in step.notes if note not in apart]
        told = [*filter(None, [unmeasured_note(missing, self.decode.machine)]), *told]
        if self.sampling == "sorted" and self.engine.sampling == "published":
            told.append("each token is drawn of all logits, sorted, as the model's generation_config.json has a top_p")
        if self.decoder.experts:
            told.append("`judged` is of models without experts for the most part; docs/serving.md has those with them")
        return list(dict.fromkeys(told))

    @property
    def accuracy(self) -> tuple[Accuracy, ...]:
        """How far first and further tokens were off where such predictions were judged."""
        return engine_accuracy(self.decode.machine.device, self.engine.name)

    def energy_lines(self) -> list[str]:
        """In a line; none where nothing is known."""
        if self.energy is None:
            return []
        told = self._drawn()
        each, low, high = (
            format_quantity(j, "J") for j in (told["joules_per_token"], *told["joules_per_token_interval"])
        )
        one = f", {format_quantity(self.energy.mean_w_per_gpu, 'W')} a GPU" if self.energy.gpus > 1 else ""
        mean = format_quantity(self.energy.mean_w, "W")
        idle = self.energy.parts_j["idle"] / self.energy.joules
        return [f"energy: {each} a token (90 %: {low} to {high}), {mean} on average{one}, {idle:.0%} of it idling"]

    def _drawn(self) -> dict[str, Any]:
        """The joules of `to_dict`; their interval includes the error of the seconds."""
        if self.energy is None:
            return {"energy": None, "joules_per_token": None, "joules_per_token_interval": None}
        low, high = (self.energy.total_s * bound / self.decode.total_s for bound in self.decode.interval())
        told = self.energy.to_dict((low, high))
        bounds = [told[name] / self.tokens_given for name in ("low_j", "high_j")]
        return {"energy": told, "joules_per_token": self.joules_per_token, "joules_per_token_interval": bounds}

    def _document(self, asked: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
        """The document of `to_dict`: `asked` and `told` between what both kinds of requests have."""
        machine, m = self.decode.machine, self.memory
        return {
            "decoder": self.decoder.name, "gpu": self.gpu, "tp": self.tp, "ep": self.ep, "dp": self.dp,
            "weights": self.weights, "kv": self.kv, **asked, "engine": self.engine.to_dict(),
            "power_limit_w": machine.power_limit, "clock_limit_hz": machine.clock_limit, **told,
            "weight_bytes": m.weight_bytes, "kv_bytes_per_token": m.kv_bytes_per_token, "cache_bytes": m.cache_bytes,
            **self._drawn(), "accuracy": [one.to_dict() for one in self.accuracy], "launch": self.launch_lines(),
            "notes": self.notes(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Serving(Served):
    """What clients see of a decoder, and what limits it. Times are seconds, means over all requests.

    ttft_s: from a request to its first token, waiting for the step under way and for earlier prompts included.
    tpot_s: between an answer's tokens after the first, steps included that read other clients' prompts; nan where
        there is one token only.
    prefill_s: one prompt alone. decode_s: one step of the batch, the mean over a generation.
    """

    stream: Stream
    running: int  # clients whose sequences the cache and the engine hold together
    prefill_s: float
    decode_s: float
    price_usd_per_hour: float | None = None  # of one GPU

    @property
    def ttft_s(self) -> float:
        """Seconds from request to first token."""
        return self.played.mean("ttft_s")

    @property
    def tpot_s(self) -> float:
        """Seconds between tokens; not a number where answers have one token."""
        return self.played.mean("tpot_s") if self.stream.output > 1 else math.nan

    @property
    def tokens_per_s(self) -> float:
        """Tokens given a second, by all GPUs together."""
        return self.tokens_given / self.played.end_s

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens given a second by each GPU."""
        return self.tokens_per_s / self.gpus

    @property
    def tokens_per_s_per_dollar(self) -> float | None:
        """Tokens a second by the launch price of the GPUs, without host and power; None where none is known."""
        price = self.decode.machine.device.own_price_usd
        return None if price is None else self.tokens_per_s_per_gpu / price

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Dollars for a million tokens of answers; None where no price of an hour is stated."""
        if self.price_usd_per_hour is None:
            return None
        return self.price_usd_per_hour / 3600 / self.tokens_per_s_per_gpu * 1e6

    def interval(self, level: float = 0.9) -> dict[str, tuple[float, float]]:
        """Bounds of ttft_s and tpot_s with this probability: kernels are mispredicted, and engines differ (also among
        releases: `step.sources`).

        Waiting grows with the steps: first tokens are off as prefill is, the others as decode. A request meets the
        engine one step earlier or later than played, unless there are no other clients: first tokens take one step
        that reads prompts less or more, and no less than a prompt alone. The request is received at once, or in twice
        the time. A prompt that is not cut may have to wait until an answer ends: engines leave no more room than they
        are told to, TensorRT-LLM seems to hold one sequence less than there are clients. A thread in front that is
        nearly busy all the time may keep answers waiting, or not (`THREAD_SPREAD`). What the CPU does beside is part of
        how engines differ. Other settings of the engine and other clients are not in it.
        Raises ValueError for a level outside (0, 1).
        """
        step_s = self.played.readings_s / self.played.readings * (1 - 1 / self.stream.clients)
        alone_s = min(self.prefill_s, self.ttft_s)
        low, high = (bound / self.prefill.total_s for bound in self.prefill.interval(level))
        waits = self.stream.clients > 1 and not self.engine.chunks
        ends_s = waits * self.played.end_s / (self.stream.clients * self.stream.rounds)
        step_s += self.engine.received_s(self.stream.input)
        thread_s = self.engine.thread_s(self.stream.input, self.stream.output)
        busy = thread_s * self.stream.clients * self.stream.rounds / self.played.end_s
        held_s = self.played.mean("e2e_s") * max(0.0, busy * (1 + THREAD_SPREAD) - 1)
        first = (
            low * max(self.ttft_s - step_s - held_s, alone_s), high * (self.ttft_s + step_s + held_s) + ends_s
        )  # fmt: skip
        low, high = (bound / self.decode.total_s for bound in self.decode.interval(level))
        further = (low * self.tpot_s, high * self.tpot_s)
        width = deviations(level)
        return {
            "ttft_s": widened(first, self.ttft_s, "first token", width),
            "tpot_s": widened(further, self.tpot_s, "per token", width),
        }

    def largest_batch(self, context: int | None = None) -> int:
        """Sequences of so many tokens (None: a whole request) that the cache holds; 0 where the weights do not fit."""
        tokens = self.stream.input + self.stream.output if context is None else whole(context)
        if tokens is None or tokens < 1:
            raise InputError(f"largest_batch: expected a positive number of tokens; got {shown(context)}")
        return self.dp * self.memory.largest_batch(tokens)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        s, bounds = self.stream, self.interval()
        further = (self.tpot_s, list(bounds["tpot_s"])) if s.output > 1 else (None, None)
        return self._document(
            {"batch": s.clients, "input": s.input, "output": s.output, "spread": s.spread},
            {
                "ttft_s": self.ttft_s, "ttft_interval_s": list(bounds["ttft_s"]), "tpot_s": further[0],
                "tpot_interval_s": further[1], "prefill_s": self.prefill_s, "decode_s": self.decode_s,
                "tokens_per_s": self.tokens_per_s, "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
                "price_usd_per_hour": self.price_usd_per_hour, "usd_per_million_tokens": self.usd_per_million_tokens,
                "tokens_per_s_per_dollar": self.tokens_per_s_per_dollar,
                "running": self.running, "largest_batch": self.largest_batch(),
                "prefill_regime": self.prefill.regime, "decode_regime": self.decode.regime,
                "workspace_bytes": self.memory.workspace_bytes,
            },
        )  # fmt: skip

    def __str__(self) -> str:
        s, gpus = self.stream, f"{self.gpus} × " if self.gpus > 1 else ""
        told = f"{limits_text(self.decode.machine)}{release_text(self.engine)}"
        (ttft_low, ttft_high), (low, high) = self.interval().values()
        paid, bought = self.usd_per_million_tokens, self.tokens_per_s_per_dollar
        money = "" if bought is None else f", {bought:.3g} for each dollar of launch price"
        money = money if paid is None else f", ${paid:.3g} a million tokens"
        waits = "" if self.running == s.clients else f"; {self.running} run at once, the others wait"

        t, b = partial(format_quantity, unit="s"), partial(format_quantity, unit="byte", binary=True)
        kernels = attention_seconds(self.prefill.timings)
        further = "no further tokens: answers have one"
        if s.output > 1:
            further = f"each further token {t(self.tpot_s)} (90 %: {t(low)} to {t(high)})"
        return "\n".join([
            f"{self.decoder.name} on {gpus}{self.gpu}: {s.clients} client{'s' * (s.clients != 1)}, {s.input} tokens "
            f"in, {s.output} out, weights {self.weights}, cache {self.kv}{told}{waits}",
            *([f"  attention by {', '.join(kernels)}"] if kernels else []),
            f"  first token {t(self.ttft_s)} (90 %: {t(ttft_low)} to {t(ttft_high)}); one prompt alone "
            f"{t(self.prefill_s)}, {self.prefill.regime}-bound",
            f"  {further}; a decode step {t(self.decode_s)}, {self.decode.regime}-bound",
            f"  {self.tokens_per_s:.4g} tokens/s, {self.tokens_per_s_per_gpu:.4g} a GPU{money}",
            *(f"  {line}" for line in self.energy_lines()),
            f"  memory of a GPU: weights {b(self.memory.weight_bytes)}, cache {b(self.memory.cache_bytes)} at "
            f"{b(self.memory.kv_bytes_per_token)} a token: {self.largest_batch()} such requests at once",
            *(f"  judged: {one}" for one in self.accuracy),
            *(f"  {line}" for line in self.launch_lines()),
            *(f"  note: {note}" for note in self.notes()),
        ])  # fmt: skip

    def _repr_html_(self) -> str:
        first, *rest = str(self).splitlines()
        bounds = self.interval()
        rows = [
            (name, format_quantity(value, "s"), " to ".join(format_quantity(bound, "s") for bound in bounds[key]))
            for name, value, key in (
                ("first token", self.ttft_s, "ttft_s"), ("each further token", self.tpot_s, "tpot_s")
            )
        ]  # fmt: skip
        return notebook.block(
            first,
            notebook.table(["", "time", "90 % interval"], rows),
            notebook.paragraphs([line.strip() for line in rest]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServedTraffic(Served):
    """Requests at a rate, served. Times are seconds; requests that warm the engine up or drain it are not counted.

    queue_s: from a request's arrival, receiving it included (`Engine.request_s`), to the step that first reads of its
    prompt. ttft_s: to its first token, the queue included. tpot_s: between its tokens. e2e_s: to its last token.
    """

    traffic: Traffic
    alone: Answered  # a request of average length with the engine to itself: work without queueing
    bounds: dict[str, tuple[float, float]]  # of the means, with 90 %: played with kernels faster and slower
    transfer_s: float = 0.0  # of the cache of an average prompt between them

    @property
    def gpus(self) -> int:
        """The number of GPUs of all engines."""
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

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single requests, ready for JSON."""
        t, played = self.traffic, self.played
        asked = ("rate", "cv", "input", "output", "length_cv", "cached", "requests", "warm_up", "drain", "seed")
        measured = {
            measure: {
                "mean": _told(self.mean(measure)),
                **{f"p{share}": _told(self.percentile(measure, share)) for share in SHARES},
                "mean_interval": [_told(bound) for bound in self.bounds[measure]],
            }
            for measure in MEASURES
        }
        return self._document(
            {**{name: getattr(t, name) for name in asked}, "log": bool(t.log)},
            {
                "gpus": self.gpus,
                "disaggregation": self.apart and {**self.apart.to_dict(), "transfer_s": self.transfer_s}, **measured,
                "gap_s": {name: _told(value) for name, value in self.gaps_s.items()},
                "alone": {name: _told(getattr(self.alone, name)) for name in ("ttft_s", "tpot_s", "e2e_s")},
                "requests_per_s": self.requests_per_s, "tokens_per_s": self.tokens_per_s,
                "tokens_per_s_per_gpu": self.tokens_per_s / self.gpus, "overloaded": self.overloaded,
                "busy": self.busy, "reading": played.reading_s / played.busy_s, "running": played.running,
                "preemptions": played.preemptions, "peak_cache": played.peak_cache,
            },
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<ServedTraffic {self.decoder.name} on {self.gpu}: {self.traffic.rate:.4g} requests/s>"


def serve_on(host: Host, stream: Stream, setup: Setup) -> Serving:
    """One stream of requests, served in one way. Raises CapacityError where not one request fits the memory."""
    engine, times, dp = setup.engine, setup.times, setup.times.dp
    installed = Installed.of(engine, times, stream)
    if installed.memory.largest_batch(stream.input + stream.output) < 1:
        raise _too_large(installed.memory, stream, times)
    played = replace(installed, cache_tokens=max(installed.cache_tokens, stream.longest)).play(stream, joules=True)
    # while answers grow each has half of its tokens, on average
    tokens = stream.input + (stream.output if engine.reserve == "whole" else stream.output // 2)
    room = dp * installed.memory.largest_batch(tokens)
    running = min(stream.clients, room, dp * engine.sequences if engine.sequences else room)
    along = [stream.input + share * stream.output for share in (0.1, 0.5, 0.9)]
    return Serving(
        stream=stream, running=running, price_usd_per_hour=setup.price_usd_per_hour,
        prefill_s=installed.step_s([Chunk(0, stream.input)], 0, 0.0),
        decode_s=sum(installed.step_s([], running, tokens) for tokens in along) / len(along),
        **_common(host, stream, setup, running, played), memory=installed.memory,
    )  # fmt: skip


def serve_traffic_on(host: Host, traffic: Traffic, setup: Setup, *, intervals: bool = True) -> ServedTraffic:
    """Requests at a rate, served in one way. Without `intervals` and joules in a third of the time.

    Raises CapacityError for a request that the memory does not hold.
    """
    requests, pool = traffic.draw(), EnginePool.of(setup, traffic)
    played = pool.play(requests, joules=intervals)
    running = max(1, round(played.running))
    common = _common(host, traffic, setup, running, played)
    bounds = {name: (mean, mean) for name, mean in _means(played, traffic).items()}
    if intervals:
        bounds = _bounds(pool, requests, traffic, common["prefill"], common["decode"], bounds)
    return ServedTraffic(
        traffic=traffic, bounds=bounds, alone=pool.play((traffic.mean_request,)).answers[0], apart=setup.apart,
        transfer_s=pool.transfer_s(traffic.input), memory=pool.going_on.memory, **common,
    )  # fmt: skip


def _common(host: Host, asked: Stream | Traffic, setup: Setup, running: int, played: Played) -> dict[str, Any]:
    """What both walks end with: a prompt and a step of so many sequences, predicted, and the joules of all GPUs."""
    times, graphs = setup.times, Execution(backend="cuda-graph", sync="none")
    sizes = {"batch": -(-running // times.dp), "context": asked.input + max(1, asked.output // 2)}
    energy = None
    if played.kernels_j is not None:
        member = Member(count=setup.gpus, machine=times.machine, kernels_j={"kernels": played.kernels_j})
        energy = energy_together([member], played.end_s)
    return {
        **times.options(), "decoder": times.decoder, "engine": setup.engine, "played": played, "energy": energy,
        "prefill": predict_graph(times.graph("prefill").at(batch=1, seq=asked.input), times.machine, host, graphs),
        "decode": predict_graph(times.graph("decode").at(**sizes), times.machine, host, graphs),
    }  # fmt: skip


def _too_large(m: ServingMemory, stream: Stream, times: StepTimes) -> CapacityError:
    one = m.sequence_bytes(stream.input + stream.output)
    needs, weights, have = (
        format_bytes(size)
        for size in (m.weight_bytes + m.workspace_bytes + m.context_bytes + one, m.weight_bytes, m.capacity)
    )
    return CapacityError(
        f"{times.decoder.name} does not fit {times.machine.name}: one request needs {needs} a GPU, of it {weights} for "
        f"weights, and the engine takes a share of {have}; choose weights or a cache of fewer bits, a larger tp, or "
        "another GPU"
    )


def _bounds(
    pool: EnginePool, requests: Sequence[Request], traffic: Traffic, prefill: Prediction, decode: Prediction,
    means: Mapping[str, tuple[float, float]],
) -> dict[str, tuple[float, float]]:  # fmt: skip
    """The means, with 90 %: the same requests with kernels as fast and as slow as theirs, and engines as they differ.

    Waiting follows from these.
    """
    factors = zip(*([bound / step.total_s for bound in step.interval()] for step in (prefill, decode)), strict=True)
    fast, slow = (_means(pool.play(requests, pair), traffic) for pair in factors)
    width = deviations(0.9)
    return {
        measure: widened((fast[measure], slow[measure]), means[measure][0], source, width)
        for measure, source in _SOURCES.items()
    }


def _means(played: Played, traffic: Traffic) -> dict[str, float]:
    return {measure: played.mean(measure, traffic.warm_up, traffic.drain) for measure in MEASURES}


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
    """The percentile of values that occur several times, without interpolation."""
    left = share / 100 * sum(gaps.values())
    for value, times in sorted(gaps.items()):
        left -= times
        if left <= 0:
            return value
    return math.nan


def _told(value: float) -> float | None:
    return None if math.isnan(value) else value


def limits_text(machine: Machine) -> str:
    """ ", at most 400 W" for a machine under limits; "" for another."""
    limits = ((machine.power_limit, "W"), (machine.clock_limit, "Hz"))
    told = [format_quantity(limit, unit) for limit, unit in limits if limit is not None]
    return f", at most {' and '.join(told)}" if told else ""
