"""A decoder served on a GPU, or on several that share its layers: latency, throughput, memory, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rooflinekit.errors import CapacityError, InputError
from rooflinekit.hardware.host import Host
from rooflinekit.ir import notebook
from rooflinekit.ir.sizes import finite, shown, whole
from rooflinekit.model.machine import Machine, deviations
from rooflinekit.serving.decoder import Decoder
from rooflinekit.serving.engine_steps import (
    EngineSteps,
    ServingDraws,
    ServingMemory,
    joules_of,
    predictions_of,
    serving_energy,
    serving_memory,
)
from rooflinekit.serving.replay import replay
from rooflinekit.serving.settings import Engine, launch_lines, release_text
from rooflinekit.serving.step_times import Chunk, StepTimes
from rooflinekit.serving.traffic import Played, Stream
from rooflinekit.step.accuracy import Accuracy, engine_accuracy
from rooflinekit.step.bounds import widened
from rooflinekit.step.energy import TeamEnergy
from rooflinekit.step.prediction import Prediction
from rooflinekit.units import format_quantity


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Serving(ServingDraws):
    """What clients see of a decoder, and what limits it. Times are seconds, means over all requests.

    ttft_s: from a request to its first token, waiting for the step under way and for earlier prompts included.
    tpot_s: between an answer's tokens after the first, steps included that read other clients' prompts; nan where
        there is one token only.
    prefill_s: one prompt alone. decode_s: one step of the batch, the mean over a generation.
    """

    decoder: Decoder
    stream: Stream
    engine: Engine
    weights: str
    kv: str
    tp: int
    ep: int
    dp: int
    running: int  # clients whose sequences the cache and the engine hold together
    played: Played
    prefill_s: float
    decode_s: float
    prefill: Prediction  # of one prompt: one GPU's part
    decode: Prediction  # at the middle of a generation: one GPU's part
    memory: ServingMemory
    price_usd: float | None = None  # of one GPU, in the place of its launch price
    energy: TeamEnergy | None = None  # of all GPUs over the stream; None where no power is stated

    @property
    def gpu(self) -> str:
        """The device's name."""
        return self.decode.machine.name

    @property
    def gpus(self) -> int:
        """Of one copy of the model."""
        return self.tp * self.dp

    @property
    def ttft_s(self) -> float:
        """Seconds from request to first token."""
        return self.played.mean("ttft_s")

    @property
    def tpot_s(self) -> float:
        """Seconds between tokens; not a number where answers have one token."""
        return self.played.mean("tpot_s") if self.stream.output > 1 else math.nan

    @property
    def tokens_given(self) -> int:
        """Of all answers."""
        return sum(answer.request.output for answer in self.played.answers)

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
        """Tokens a second by the price of the GPUs (by default at launch), without host and power; None where no
        price is known.
        """
        device = self.decode.machine.device
        if self.price_usd is not None:
            return self.tokens_per_s_per_gpu / self.price_usd
        if device.launch_price_usd is None:
            return None
        return self.tokens_per_s_per_gpu / (device.launch_price_usd / device.devices_per_board)

    def interval(self, level: float = 0.9) -> dict[str, tuple[float, float]]:
        """Bounds of ttft_s and tpot_s with this probability: kernels are mispredicted, and engines differ (also among
        releases: `step.sources`).

        Waiting grows with the steps: first tokens are off as prefill is, the others as decode. A request meets the
        engine one step earlier or later than played, unless there are no other clients: first tokens take one step
        that reads prompts less or more, and no less than a prompt alone. The request is received at once, or in twice
        the time. A prompt that is not cut may have to wait until an answer ends: engines leave no more room than they
        are told to, TensorRT-LLM seems to hold one sequence less than there are clients. The CPU hides its work better
        or worse: where it is said to be overlapped, it may stand between the steps, and the other way round. Other
        settings of the engine and other clients are not in it.
        Raises ValueError for a level outside (0, 1).
        """
        step_s = self.played.readings_s / self.played.readings * (1 - 1 / self.stream.clients)
        cpu_s = min(self.engine.host_s(min(self.played.running, self.running)), self.tpot_s / 2)
        serial = self.engine.host == "serial"
        alone_s = min(self.prefill_s, self.ttft_s)
        low, high = (bound / self.prefill.total_s for bound in self.prefill.interval(level))
        waits = self.stream.clients > 1 and not self.engine.chunks
        ends_s = waits * self.played.end_s / (self.stream.clients * self.stream.rounds)
        step_s += self.engine.received_s(self.stream.input)
        first = (low * max(self.ttft_s - step_s, alone_s), high * (self.ttft_s + step_s) + ends_s)
        low, high = (bound / self.decode.total_s for bound in self.decode.interval(level))
        further = (low * (self.tpot_s - serial * cpu_s), high * (self.tpot_s + (not serial) * cpu_s))
        width = deviations(level)
        return {
            "ttft_s": widened(first, self.ttft_s, "first token", width),
            "tpot_s": widened(further, self.tpot_s, "per token", width),
        }

    def largest_batch(self, context: int | None = None) -> int:
        """Sequences of so many tokens (by default a whole request) that the cache holds; 0 where the weights do not
        fit.
        """
        tokens = self.stream.input + self.stream.output if context is None else whole(context)
        if tokens is None or tokens < 1:
            raise InputError(f"largest_batch: expected a positive number of tokens; got {shown(context)}")
        return self.dp * self.memory.largest_batch(self.decoder, tokens, self.kv, self.tp)

    def launch_lines(self) -> list[str]:
        """The command that starts the engine so; nothing where none was chosen by name."""
        return launch_lines(self.engine, self.decoder.name, self.weights, self.kv, (self.tp, self.ep, self.dp))

    def notes(self) -> list[str]:
        """What was assumed, each once: kernels that were not measured on this GPU, limits."""
        return list(dict.fromkeys((*self.prefill.notes, *self.decode.notes)))

    @property
    def accuracy(self) -> tuple[Accuracy, ...]:
        """How far first and further tokens were off where such predictions were judged."""
        return engine_accuracy(self.decode.machine.device, self.engine.name)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        s, m = self.stream, self.memory
        bounds = self.interval()
        return {
            "decoder": self.decoder.name, "gpu": self.gpu, "tp": self.tp, "ep": self.ep, "dp": self.dp,
            "weights": self.weights, "kv": self.kv,
            "batch": s.clients, "input": s.input, "output": s.output, "spread": s.spread,
            "engine": self.engine.to_dict(),
            "power_limit_w": self.decode.machine.power_limit, "clock_limit_hz": self.decode.machine.clock_limit,
            "ttft_s": self.ttft_s, "ttft_interval_s": list(bounds["ttft_s"]),
            **({"tpot_s": self.tpot_s, "tpot_interval_s": list(bounds["tpot_s"])} if s.output > 1 else {
                "tpot_s": None, "tpot_interval_s": None
            }),
            "prefill_s": self.prefill_s, "decode_s": self.decode_s,
            "tokens_per_s": self.tokens_per_s, "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "price_usd": self.price_usd, "tokens_per_s_per_dollar": self.tokens_per_s_per_dollar,
            "running": self.running, "largest_batch": self.largest_batch(),
            "prefill_regime": self.prefill.regime, "decode_regime": self.decode.regime,
            "weight_bytes": m.weight_bytes, "kv_bytes_per_token": m.kv_bytes_per_token,
            "workspace_bytes": m.workspace_bytes, "cache_bytes": m.cache_bytes,
            **self.energy_document(),
            "accuracy": [one.to_dict() for one in self.accuracy],
            "launch": self.launch_lines(),
            "notes": self.notes(),
        }  # fmt: skip

    def __str__(self) -> str:
        s, gpus = self.stream, f"{self.gpus} × " if self.gpus > 1 else ""
        told = f"{limits_text(self.decode.machine)}{release_text(self.engine)}"
        (ttft_low, ttft_high), (low, high) = self.interval().values()
        priced = self.tokens_per_s_per_dollar
        of = "launch price" if self.price_usd is None else "a GPU's price"
        money = "" if priced is None else f", {priced:.3g} for each dollar of {of}"
        waits = "" if self.running == s.clients else f"; {self.running} run at once, the others wait"

        t, b = partial(format_quantity, unit="s"), partial(format_quantity, unit="byte", binary=True)
        further = "no further tokens: answers have one"
        if s.output > 1:
            further = f"each further token {t(self.tpot_s)} (90 %: {t(low)} to {t(high)})"
        return "\n".join([
            f"{self.decoder.name} on {gpus}{self.gpu}: {s.clients} clients, {s.input} tokens in, {s.output} out, "
            f"weights {self.weights}, cache {self.kv}{told}{waits}",
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

    def __repr__(self) -> str:
        return f"<Serving {str(self).splitlines()[0]}>"


def serve_on(
    host: Host, stream: Stream, engine: Engine, times: StepTimes, *, price_usd: float | None = None
) -> Serving:
    """One stream of requests on the machines that `times` are of; several streams may share these.

    Raises CapacityError where not one request fits the memory.
    """
    decoder, dp = times.decoder, times.dp
    memory = serving_memory(times, engine, stream.input)
    room = dp * memory.largest_batch(decoder, stream.input + stream.output, times.kv, times.tp)
    if room < 1:
        raise _too_large(memory, stream, times)

    room = min(room, dp * engine.sequences if engine.sequences else room)
    running = min(stream.clients, room)
    steps, joules = EngineSteps.of(engine, times), joules_of(engine, times)
    played = replay(
        stream, steps.step_s, replace(engine, sequences=room // dp), math.inf, groups=dp,
        step_j=None if joules is None else joules.gpu_s,
    )  # fmt: skip
    along = [stream.input + share * stream.output for share in (0.1, 0.5, 0.9)]
    prefill, decode = predictions_of(host, stream, times, running)
    return Serving(
        decoder=decoder, stream=stream, engine=engine, weights=times.weights, kv=times.kv, tp=times.tp, ep=times.ep,
        dp=dp, running=running, played=played,
        prefill_s=steps.step_s([Chunk(0, stream.input)], 0, 0.0),
        decode_s=sum(steps.step_s([], running, tokens) for tokens in along) / len(along),
        prefill=prefill, decode=decode, memory=memory, price_usd=price_usd,
        energy=serving_energy(times, played.kernels_j, played.end_s, times.gpus),
    )  # fmt: skip


def _too_large(m: ServingMemory, stream: Stream, times: StepTimes) -> CapacityError:
    one = m.sequence_bytes(times.decoder, stream.input + stream.output, times.kv, times.tp)
    needs, weights, have = (
        format_quantity(size, "byte", binary=True)
        for size in (m.weight_bytes + m.workspace_bytes + m.context_bytes + one, m.weight_bytes, m.capacity)
    )
    return CapacityError(
        f"{times.decoder.name} does not fit {times.machine.name}: one request needs {needs} a GPU, of it {weights} for "
        f"weights, and the engine takes a share of {have}; choose weights or a cache of fewer bits, a larger tp, or "
        "another GPU"
    )


# What is asked of a served model, checked; and the limits of its GPUs in words.


#: Beyond these a stream is not played: each client's requests are followed one by one.
_MOST_CLIENTS, _MOST_TOKENS, _MOST_PARTS = 2**16, 2**24, 2**16


def limits_text(machine: Machine) -> str:
    """ ", at most 400 W" for a machine under limits; "" for another."""
    limits = ((machine.power_limit, "W"), (machine.clock_limit, "Hz"))
    told = [format_quantity(limit, unit) for limit, unit in limits if limit is not None]
    return f", at most {' and '.join(told)}" if told else ""


def check_stream(batch: int, input: int, output: int) -> None:
    """Raises InputError for a number of clients or tokens below 1, or beyond any that is served."""
    for name, value in (("batch", batch), ("input", input), ("output", output)):
        number, most = whole(value), _MOST_CLIENTS if name == "batch" else _MOST_TOKENS
        if number is None or number < 1:
            raise InputError(f"{name}: expected a positive integer; got {shown(value)}")
        if number > most:
            raise InputError(f"{name}: expected at most {most:,}; got {shown(value)}")


def check_parts(tp: int, ep: int, dp: int = 1) -> None:
    """Raises InputError for a number of GPUs or of parts below 1, or beyond any cluster."""
    for name, value in (("tp", tp), ("ep", ep), ("dp", dp)):
        number = whole(value)
        if number is None or not 1 <= number <= _MOST_PARTS:
            raise InputError(f"{name}: expected a positive integer of at most {_MOST_PARTS:,}; got {shown(value)}")


def check_price(price_usd: float | None) -> None:
    """Raises InputError for a price that is not above 0."""
    if price_usd is not None and not (finite(price_usd) and price_usd > 0):
        raise InputError(f"price_usd: expected dollars for one GPU, above 0; got {shown(price_usd)}")
