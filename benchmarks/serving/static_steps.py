"""Seconds of a batch that starts together, with intervals, on some GPUs in some engine. Called by static.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property

import rooflinekit as rk
from rooflinekit.api.predict import machines_of
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import load_host
from rooflinekit.serving.engine import serving_memory, weight_bytes_of
from rooflinekit.serving.step_times import ALL_REDUCE, StepTimes
from rooflinekit.step.execution import Execution
from rooflinekit.step.prediction import predict_graph

_NINETY = 1.645  # standard deviations that hold 90 % of a normal distribution
Bounded = tuple[float, float, float]  # seconds, and those between which nine of ten measurements should lie


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Seconds to the first token, between further ones (on average), and of the whole batch."""

    first: Bounded
    further: Bounded
    whole: Bounded


@cache
def _collective(size_bytes: float, gpus: int, cluster: str) -> tuple[float, float]:
    """Seconds of an all-reduce over the first GPUs of a cluster, and its upper bound over them."""
    found = rk.collective_time("all-reduce", size_bytes, cluster, gpus)
    return found.total_s, found.interval()[1] / found.total_s


class Place:
    """A decoder on `tp` GPUs, in an engine."""

    def __init__(self, decoder: rk.Decoder, gpu: str, cluster: str | None, *, weights: str, kv: str, tp: int,
                 engine: rk.Engine, release: str) -> None:  # fmt: skip
        (machine,) = machines_of([gpu])
        self.decoder, self.engine, self.tp, self.cluster = decoder, engine, tp, cluster
        links = (lambda size, gpus: _collective(size, gpus, cluster)[0]) if cluster is not None else None
        self.times = StepTimes(
            decoder=decoder, machine=machine, weights=weights, kv=kv, tp=tp, collective_s=links,
            padded=engine.padded, heads=engine.heads, own_sums=engine.sums == "one-shot",
            graphs=engine.graph_sizes != (), release=release,
        )  # fmt: skip
        self._known: dict[tuple[object, ...], tuple[float, float]] = {}  # bounds of steps, by their sizes

    def batch(
        self, batch: int, input: int, output: int, *, waves: bool = False, prompt_layer_s: float = 0.0,
        prompt_token_s: float = 0.0,
    ) -> Batch:  # fmt: skip
        """So many prompts, read in one step, and their answers; with `waves` those for which the cache has no room
        wait until the others have ended. prompt_layer_s: `layer_s` of the step that reads prompts, where it is another.
        prompt_token_s: what each token of them takes besides.
        """
        room = batch
        if waves:
            memory = serving_memory(self.times, self.engine, input)
            # of answers that grow into the room as it is wanted, half on average
            held = input + (output if self.engine.reserve == "whole" else output // 2)
            room = max(1, memory.largest_batch(held))
        parts = [min(room, batch)] * (batch // min(room, batch))
        parts += [batch % room] if batch % room and batch > room else []
        found = [self._alone(part, input, output, prompt_layer_s, prompt_token_s) for part in dict.fromkeys(parts)]
        by_size = dict(zip(dict.fromkeys(parts), found, strict=True))
        whole = tuple(sum(by_size[part].whole[i] for part in parts) for i in range(3))
        return Batch(first=found[0].first, further=found[0].further, whole=whole)  # type: ignore[arg-type]

    def fits(self) -> bool:
        """Whether the memory holds the weights."""
        return weight_bytes_of(self.times.graph("prefill")) < self.times.machine.device.dram.capacity

    @property
    def reading_s(self) -> float:
        """Seconds in which the datasheet's bandwidth gives a GPU its weights once."""
        return weight_bytes_of(self.times.graph("prefill")) / self.times.machine.device.dram.bandwidth

    def _alone(self, batch: int, input: int, output: int, prompt_layer_s: float, prompt_token_s: float) -> Batch:
        times = self.times
        engine = replace(self.engine, layer_s=max(prompt_layer_s, self.engine.layer_s))
        prompts_s = times.prefill_s(batch, input) + prompt_token_s * batch * input
        first = self._bounded(engine, prompts_s, batch, "prefill", batch=batch, seq=input)
        if output < 2:
            return Batch(first=first, further=(0.0, 0.0, 0.0), whole=first)
        along = [input + share * output for share in (0.1, 0.5, 0.9)]
        gpu_s = sum(times.decode(batch, context) for context in along) / len(along)
        further = self._bounded(self.engine, gpu_s, batch, "decode", batch=times.padded(batch), context=int(along[1]))
        whole = tuple(a + (output - 1) * b for a, b in zip(first, further, strict=True))
        return Batch(first=first, further=further, whole=whole)  # type: ignore[arg-type]

    def _bounded(self, engine: rk.Engine, gpu_s: float, sequences: int, step: str, **sizes: int) -> Bounded:
        """With the CPU, which launches layers faster or more slowly, as hosts differ."""
        low, high = self._spread(step, **sizes)
        reads, layers = step == "prefill", self.decoder.layers
        faster = math.exp(-_NINETY * self._host.spread)
        launch_s = engine.launch_s(reads, sequences, layers)
        held = sequences * sizes.get("context", sizes.get("seq", 0))
        host_s = engine.host_s(sequences, held, self.tp)
        likely, least, most = (
            engine.step_s(share * gpu_s, host_s, launch_s * pace)
            for share, pace in ((1.0, 1.0), (low, faster), (high, 1 / faster))
        )
        return likely, least, most

    def _spread(self, step: str, **sizes: int) -> tuple[float, float]:
        """Bounds over the time: of the GPU's kernels, and of the sums over GPUs by their share of the step."""
        key = step, *sizes.items()
        known = self._known
        if key not in known:
            graph = self.times.graph(step, whole=False).at(**sizes)
            found = predict_graph(graph, self.times.machine, self._host, Execution(backend="cuda-graph", sync="none"))
            low, high = (bound / found.total_s for bound in found.interval())
            if self.tp > 1 and self.cluster is not None:
                all_s, sums_s = self.times.parts(step, ALL_REDUCE, **sizes)
                tokens = sizes["batch"] * sizes.get("seq", 1)
                width = _collective(2.0 * tokens * self.decoder.hidden, self.tp, self.cluster)[1] - 1
                high += width * sums_s / all_s
                low -= (1 - 1 / (1 + width)) * sums_s / all_s
            known[key] = low, high
        return known[key]

    @cached_property
    def _host(self) -> Host:
        return load_host("generic-server")
