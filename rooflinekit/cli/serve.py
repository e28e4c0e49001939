"""The subcommand that serves a language model: to clients that ask one request after the other, or at a rate."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rooflinekit as rk
from rooflinekit.cli.command import Options, Tables
from rooflinekit.cli.options import NONE_OR_MORE, ONE_OR_MORE, Model, Named, devices_of, needs, say_notes, table_of
from rooflinekit.cli.parse import integers
from rooflinekit.errors import CapacityError, FormatError, InputError, UnitError
from rooflinekit.present import text
from rooflinekit.units import parse_quantity

if TYPE_CHECKING:
    from rooflinekit.present.text.serving import Refused

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_RATE = re.compile(r"\s*([0-9.,eE+\s-]+)/\s*(s|min|h)\s*")
_PROMISES = ("ttft", "tpot", "e2e")

#: Options of `rk.serve` for one place: a GPU or a cluster, formats, an engine, limits.
Place = dict[str, Any]


class Places(Options):
    """Who asks for what, and where it is served. What may be several is a text."""

    gpu: Annotated[
        list[str] | None, "a GPU that `rooflinekit devices` lists, or a specification's path; repeatable"
    ] = None
    batch: Annotated[str, "clients that ask at once; a list is 1,8,64"] = "1"
    input_tokens: Annotated[str, "--input -i", "tokens of each prompt; a list is 1024,4096"] = "1024"
    output: Annotated[int, "tokens of each answer", ONE_OR_MORE] = 256
    weights: Annotated[
        str | None,
        "the format of the weights: bf16, fp16, fp8, fp8-dynamic, fp8-block, int8-dynamic, int8, int4, nvfp4 or mxfp4; "
        "a list is bf16,fp8; by default as the model is published",
    ] = None
    kv: Annotated[str, "the format of the KV cache: bf16, fp16 or fp8; a list is bf16,fp8"] = "bf16"
    cluster: Annotated[
        list[str] | None, "serve on the first GPUs of a cluster, a name or file, instead of --gpu; repeatable"
    ] = None
    tp: Annotated[str, "GPUs that split each layer (tensor parallelism); a list is 1,2,4"] = "1"
    ep: Annotated[str, "groups that share out the experts (expert parallelism); a list is 1,8"] = "1"
    dp: Annotated[str, "groups of --tp GPUs that serve their own sequences, and share the experts"] = "1"

    def listed(self, decoder: rk.Decoder, engines: Sequence[rk.Engine]) -> list[Place]:
        """Every combination of the numbers of GPUs that are asked for."""
        asked = list(product(*(integers(f"--{name}", getattr(self, name)) for name in ("tp", "ep", "dp"))))
        # of several, those that divide the experts evenly; what is asked for alone is refused with its reason
        parts = [(tp, ep, dp) for tp, ep, dp in asked if tp * dp % max(ep, 1) == 0] or asked
        where = [*((name, None) for name in self.gpu or ()), *((None, name) for name in self.cluster or ())]
        formats = (self.weights or decoder.weights).split(","), self.kv.split(",")
        return [
            {"gpu": one, "cluster": group, "tp": tp, "ep": ep, "dp": dp, "weights": weights, "kv": kv, "engine": engine}
            for (one, group), (tp, ep, dp), weights, kv, engine in product(where, parts, *formats, engines)
        ]


class Engines(Options):
    """How the engine works; None where its own setting holds."""

    engine: Annotated[
        str | None,
        "--engine NAME[:VERSION]",
        "set the options from --host-work to --heads as an engine does: vllm:0.12, sglang:0.5.8, tensorrt-llm:1.0; a "
        "list is separated by commas",
    ] = None
    host_work: Annotated[
        str | None, "when the CPU plans steps: overlapped with the GPU's work (default), or serial, between its steps"
    ] = None
    policy: Annotated[
        str | None,
        "how prompts are scheduled: mixed, in the same steps as decoding (default), or prefill-first; a list is "
        "mixed,prefill-first",
    ] = None
    step_tokens: Annotated[str | None, "the most tokens of a step, by default 8192; a list is 2048,8192"] = None
    chunks: Annotated[
        bool | None,
        "chunked prefill: split a prompt that exceeds a step (default); otherwise it waits for its own step",
    ] = None
    reserve: Annotated[
        str | None,
        "how the KV cache is reserved: grow, as an answer grows (default), own, where all of it would fit at once "
        "(SGLang), or whole, for whole answers",
    ] = None
    sequences: Annotated[int | None, "the most sequences at once; by default no limit", ONE_OR_MORE] = None
    memory_share: Annotated[
        float | None, "the share of the GPU's memory that the engine uses, by default 0.9 (SGLang's own)"
    ] = None
    graph_sizes: Annotated[
        str | None, "batch sizes of the captured CUDA graphs, to which decoding steps are padded: 1,2,4,8,16"
    ] = None
    sums: Annotated[
        str | None,
        "how GPUs sum up: nccl, or one-shot, the engine's own all-reduce over NVLink (default: the engine's)",
    ] = None
    heads: Annotated[
        str | None,
        "how heads read keys while decoding: together (default), apart, or by a block each: threads, xqa, tiles",
    ] = None
    sampling: Annotated[
        str | None,
        "how tokens are chosen: greedy, sorted, drawn by top-p of sorted logits (vLLM), or published (default), as the "
        "model's generation_config.json says",
    ] = None
    draft: Annotated[
        str | None, "--draft MODEL", "with --acceptance: the draft model; by default proposed tokens cost nothing"
    ] = None
    draft_tokens: Annotated[
        int | None, "with --acceptance: tokens proposed in each step; by default 4, or as many as positions are given"
    ] = None
    acceptance: Annotated[
        str | None,
        "speculative decoding: the probability that a proposed token is accepted, such as 0.7; or 0.8,0.6,0.4: the "
        "share of steps in which the first, second, third is",
    ] = None
    adapters: Annotated[int, "LoRA adapters in memory; each sequence uses one", NONE_OR_MORE] = 0
    adapter_rank: Annotated[int, "the rank of each LoRA adapter"] = 16

    def listed(self) -> list[rk.Engine]:
        """One for each combination of `engine`, `policy` and `step_tokens`."""
        sizes = None if self.graph_sizes is None else tuple(integers("--graph-sizes", self.graph_sizes))
        steps = [None] if self.step_tokens is None else integers("--step-tokens", self.step_tokens)
        same = ("chunks", "reserve", "sequences", "memory_share", "sums", "heads", "sampling")
        given: dict[str, Any] = {
            **{name: getattr(self, name) for name in same}, "host": self.host_work, "graph_sizes": sizes,
            "speculation": self._speculation(),
            "adapters": rk.Adapters(number=self.adapters, rank=self.adapter_rank) if self.adapters else None,
        }  # fmt: skip
        found = []
        for name, policy, tokens in product(_several(self.engine), _several(self.policy), steps):
            asked = {**given, "policy": policy, "step_tokens": tokens}
            changes = {key: value for key, value in asked.items() if value is not None}
            found.append(rk.Engine(**changes) if name is None else rk.Engine.of(name, **changes))
        return found

    def _speculation(self) -> rk.Speculation | None:
        if self.acceptance is None:
            if self.draft is not None or self.draft_tokens is not None:
                option = "--draft" if self.draft_tokens is None else "--draft-tokens"
                raise InputError(
                    f"{option}: needs --acceptance, the probability that a proposed token is accepted, such as 0.7"
                )
            return None
        draft = None if self.draft is None else rk.Decoder.from_config(self.draft)
        try:
            shares = tuple(float(part) for part in self.acceptance.split(","))
        except ValueError:
            raise InputError(
                f"--acceptance {self.acceptance!r}: expected a share such as 0.7, or one for each position: 0.8,0.6,0.4"
            ) from None
        by_position = len(shares) > 1
        tokens = (len(shares) if by_position else 4) if self.draft_tokens is None else self.draft_tokens
        return rk.Speculation(tokens=tokens, acceptance=shares if by_position else shares[0], draft=draft)


class Disaggregated(Options):
    """Engines of their own for prompts."""

    prefill_engines: Annotated[
        int, "with --rate or --slo: copies of the model that only run prefill (disaggregation)", NONE_OR_MORE
    ] = 0
    decode_engines: Annotated[int, "with --prefill-engines: copies that only decode", ONE_OR_MORE] = 1
    prefill_tp: Annotated[int | None, "GPUs of each copy that runs prefill; by default as many as --tp"] = None
    link: Annotated[str, "with --prefill-engines: the speed at which each GPU sends its part of the KV cache"] = (
        "50 GB/s"
    )

    def disaggregation(self) -> rk.Disaggregation | None:
        """The record of engines for prompts; None where none are asked for."""
        if not self.prefill_engines:
            needs("--prefill-engines", {option.removeprefix("--"): True for option in self.given})
            return None
        try:
            speed = parse_quantity(self.link, "byte/s")
        except UnitError:
            raise InputError(f"--link {self.link!r}: expected bytes a second, such as '50 GB/s'") from None
        return rk.Disaggregation(
            prefill=self.prefill_engines, decode=self.decode_engines, prefill_tp=self.prefill_tp, link_bytes_per_s=speed
        )


class Rates(Named):
    """Requests at a rate, what is asked of them, and what GPUs cost."""

    rate: Annotated[str | None, "requests arrive at this rate: 4/s or 120/min; a list is 1,2,4/s"] = None
    requests: Annotated[
        str,
        "how many requests arrive, or a log of them: a .csv with columns arrival,input,output, and optionally cached "
        "or prefix,shared",
    ] = "1000"
    arrivals: Annotated[
        str, "how requests arrive: poisson, even, or gamma:CV with the coefficient of variation of the gaps"
    ] = "poisson"
    length_cv: Annotated[float, "the coefficient of variation of the tokens of prompts and answers"] = 0.0
    cached: Annotated[float, "the share of prompt tokens that the prefix cache holds"] = 0.0
    warm_up: Annotated[int, "how many first requests are not counted", NONE_OR_MORE] = 0
    drain: Annotated[int, "how many last requests are not counted", NONE_OR_MORE] = 0
    seed: Annotated[int, "the random seed of arrivals and lengths"] = 0
    slo: Annotated[str | None, "find the highest rate that meets these latencies: ttft=500ms,tpot=40ms,e2e=10s"] = None
    keep: Annotated[float, "the share of requests that must meet the --slo"] = 0.9
    load: Annotated[str | None, "with --slo: also find how many GPUs this rate needs, such as 100/s"] = None
    price_per_hour: Annotated[float | None, "dollars for one hour of a GPU, to print the cost of a million tokens"] = (
        None
    )
    search: Annotated[bool, "with --load: print only the cheapest combination"] = False
    figure: Annotated[Path | None, "with --slo: draw latency against rate, as .svg, .pdf, .png or .pgf"] = None

    @property
    def asked(self) -> bool:
        """Whether requests come at a rate, or as a log says."""
        return self.rate is not None or self.slo is not None or not self.requests.isdigit()

    def hours(self, listed: Sequence[Place]) -> dict[str, float] | None:
        """Dollars for an hour of each GPU of these places; None where no price is given."""
        devices = [device for place in listed for device in _devices(place)]
        if self.price is None:
            return None if self.price_per_hour is None else {one.name: self.price_per_hour for one in devices}
        if self.price_per_hour is not None:
            raise InputError("--price, --price-per-hour: give one of the two")
        pricing = rk.Pricing(table=table_of(self.price))
        say_notes(pricing, devices)
        return {device.name: pricing.of(device).hour or 0.0 for device in devices}

    @property
    def loaded(self) -> float | None:
        """Requests a second of --load."""
        return None if self.load is None else rates_of("--load", self.load)[0]

    def traffic(self, lengths: tuple[int, int]) -> tuple[rk.Traffic, list[float]]:
        """The requests, and the rates at which they come: those of a log at its own where none is given."""
        rates = [] if self.rate is None else rates_of("--rate", self.rate)
        if not self.requests.isdigit():
            traffic = rk.Traffic.from_csv(self.requests, warm_up=self.warm_up, drain=self.drain)
            return traffic, rates or [traffic.rate]
        same = {name: getattr(self, name) for name in ("length_cv", "cached", "seed", "warm_up", "drain")}
        drawn = rk.Traffic(
            rate=rates[0] if rates else 1.0, input=lengths[0], output=lengths[1], requests=int(self.requests),
            cv=cv_of(self.arrivals), **same,
        )  # fmt: skip
        return drawn, rates


def serve(
    config: Model,
    places: Places,
    engines: Engines,
    apart: Disaggregated,
    power_limit: Annotated[
        str | None,
        "--power-limit WATTS",
        "a power limit of each GPU, below the board's own: '400 W'; a list is '400 W,700 W'",
    ] = None,
    sm_clock: Annotated[str | None, "--sm-clock CLOCK", "the highest clock of the SMs, such as '1.2 GHz'"] = None,
    *,
    rates: Rates,
) -> Tables:
    """Predict latency and throughput of serving a language model.

    Clients send one request after the other (--batch), or requests arrive at a rate (--rate). --slo finds the highest
    rate that meets given latencies.
    Example: rooflinekit serve llama-3.1-8b --gpu h100-sxm5-80gb --batch 8,64 --input 1024
    """
    if not places.gpu and not places.cluster:
        raise InputError(
            "--gpu is missing: name one, such as --gpu nvidia-l4 (rooflinekit devices lists them), or a --cluster"
        )
    decoder = rk.Decoder.from_config(config, **({"weights": places.weights.split(",")[0]} if places.weights else {}))
    listed = [
        {**place, "power_limit": watts, "sm_clock": sm_clock}
        for place in places.listed(decoder, engines.listed()) for watts in _several(power_limit or None)
    ]  # fmt: skip
    engines_apart = apart.disaggregation()
    if not rates.asked:  # clients ask one request after the other
        own = [*(["--prefill-engines"] if engines_apart else ()), *rates.given]
        for option in (option for option in own if not option.startswith("--price")):
            raise InputError(f"{option}: needs requests at a rate: give --rate, --requests FILE or --slo")
        return _closed(decoder, _priced(listed, rates), places)
    listed = [{**place, "disaggregation": engines_apart} for place in listed]
    inputs = integers("--input", places.input_tokens)
    if len(inputs) > 1:
        raise InputError(f"--input {places.input_tokens!r}: with --rate, --requests FILE or --slo, expected one number")
    traffic, asked = rates.traffic((inputs[0], places.output))
    if rates.search:
        return _search(decoder, listed, rates, traffic)
    if rates.slo is not None:
        return _capacities(decoder, _priced(listed, rates), rates, traffic)
    for option in rates.given:
        if option in ("--load", "--figure", "--price", "--price-per-hour", "--keep"):
            raise InputError(f"{option}: needs a service level, such as --slo ttft=500ms,tpot=40ms")
    found, refused = _each(
        [{**place, "traffic": traffic.at_rate(rate)} for place in listed for rate in asked],
        lambda options: rk.serve_traffic(decoder, **options),
    )
    told = partial(text.serving.print_rates, found, refused)
    return Tables("serve-rates", _fields("served", found, refused), told)


def _devices(place: Place) -> Sequence[rk.Device]:
    return devices_of(*([name] if name else () for name in (place["gpu"], place["cluster"])))


def _priced(listed: Sequence[Place], rates: Rates) -> list[Place]:
    hours = rates.hours(listed) or {}
    return [{**place, "price_usd_per_hour": hours.get(_devices(place)[0].name)} for place in listed]


def _closed(decoder: rk.Decoder, listed: list[Place], asked: Places) -> Tables:
    inputs, batches = integers("--input", asked.input_tokens), integers("--batch", asked.batch)
    places = [
        {**place, "batch": clients, "input": tokens, "output": asked.output}
        for place, tokens, clients in product(listed, inputs, batches)
    ]
    found, refused = _each(places, lambda options: rk.serve(decoder, **options))

    told = partial(text.serving.print_servings, found, refused)
    return Tables("serve", _fields("servings", found, refused), told)


def _fields(
    what: str, found: Sequence[Any], refused: Sequence[Refused], *given: Any
) -> Callable[[], dict[str, object]]:
    """given: to what each says of itself."""
    return lambda: {what: [one.to_dict(*given) for one in found], "refused": [one.to_dict() for one in refused]}


def _capacities(decoder: rk.Decoder, listed: list[Place], rates: Rates, traffic: rk.Traffic) -> Tables:
    level, load = level_of(rates.slo or "", rates.keep), rates.loaded
    more = {"traffic": traffic, "level": level}
    found, refused = _each([{**place, **more} for place in listed], lambda options: rk.highest_rate(decoder, **options))
    if rates.figure is not None:
        if len(found) > 1:
            raise InputError(f"--figure: shows one GPU and format; got {len(found)}")
        from rooflinekit.present.figures.curves import rates as drawn

        rk.plot.save(drawn(found[0])[0], rates.figure)
    told = partial(text.serving.print_capacities, found, refused, load)
    return Tables("serve-capacity", _fields("capacities", found, refused, load), told)


def _search(decoder: rk.Decoder, listed: list[Place], rates: Rates, traffic: rk.Traffic) -> Tables:
    from rooflinekit.api.serve import search_places

    if rates.slo is None or rates.loaded is None or rates.figure is not None:
        raise InputError("--search: needs --slo, such as ttft=500ms,tpot=40ms, and --load, such as 100/s; no --figure")
    found = search_places(
        decoder, listed, load=rates.loaded, level=level_of(rates.slo, rates.keep), traffic=traffic,
        price_usd_per_hour=rates.hours(listed),
    )  # fmt: skip
    return Tables("serve-capacity", found.to_dict, lambda: text.serving.print_fleets(found))


def _each(places: list[Place], walk: Callable[[Place], Any]) -> tuple[list[Any], list[Refused]]:
    """What is found in each place; one that cannot is told beside the others, and an error where none can."""
    from rooflinekit.present.text.serving import Refused

    found, refused = [], []
    for options in places:
        try:
            found.append(walk(options))
        except (CapacityError, FormatError) as error:
            refused.append(Refused(asked=options, why=error))
    if refused and not found:
        raise refused[0].why
    return found, refused


def _several(words: str | None) -> list[str] | list[None]:
    return [None] if words is None else words.split(",")


def rates_of(option: str, words: str) -> list[float]:
    """Requests a second.

    >>> rates_of("--rate", "1,2/s"), rates_of("--rate", "120/min")
    ([1.0, 2.0], [2.0])
    """
    match = _RATE.fullmatch(words)
    try:
        found = [float(part) / _SECONDS[match[2]] for part in match[1].split(",")] if match else []
    except ValueError:
        found = []
    if not found or min(found) <= 0:
        raise InputError(f"{option} {words!r}: expected requests with their time, such as 4/s, 120/min or 1,2,4/s")
    return found


def cv_of(words: str) -> float:
    """Coefficient of variation of the gaps: 'poisson' is 1, 'even' 0, 'gamma:2' 2."""
    known = {"poisson": 1.0, "even": 0.0}
    kind, _, number = words.partition(":")
    try:
        return known[words] if words in known else float(number if kind == "gamma" else "")
    except ValueError:
        raise InputError(
            f"--arrivals {words!r}: expected poisson, even, or gamma:CV with the coefficient of variation of the gaps, "
            "such as gamma:2"
        ) from None


def level_of(words: str, share: float) -> rk.ServiceLevel:
    """'ttft=500ms,tpot=40ms' → a service level."""
    promised: dict[str, float] = {}
    for part in words.split(","):
        name, _, value = part.partition("=")
        try:
            if name.strip() not in _PROMISES:
                raise UnitError(name)
            promised[f"{name.strip()}_s"] = parse_quantity(value, "s")
        except UnitError:
            raise InputError(
                f"--slo {words!r}: expected one or more of {', '.join(_PROMISES)} with seconds, such as "
                "ttft=500ms,tpot=40ms"
            ) from None
    return rk.ServiceLevel(share=share, **promised)
