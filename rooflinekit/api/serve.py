"""The walks of a served language model, on one GPU or on several of a cluster, and of the GPUs that serve a load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from operator import index
from pathlib import Path
from typing import Any

from rooflinekit.api.collectives import collective_time
from rooflinekit.api.predict import machine_of
from rooflinekit.decoder.decoder import Decoder
from rooflinekit.decoder.formats import check_parts
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, cluster_of, host_of
from rooflinekit.ir.arguments import checked, expect
from rooflinekit.serving.engine import Setup
from rooflinekit.serving.fleet import Capacity, FleetSearch, find_capacity, find_fleet
from rooflinekit.serving.served import ServedTraffic, Serving, limits_text, serve_on, serve_traffic_on
from rooflinekit.serving.settings import Disaggregation, Engine, check_price
from rooflinekit.serving.step_times import CollectiveTime, StepTimes
from rooflinekit.serving.traffic import ServiceLevel, Stream, Traffic
from rooflinekit.timing.machine import Machine

#: Of power and clock, as text ("400 W", "1.2 GHz") or in W and Hz; None for the board's own.
Limits = tuple[str | float | None, str | float | None]


@checked
def serve(
    decoder: Decoder,
    gpu: str | Path | Device | None = None,
    *,
    batch: int,
    input: int,
    output: int,
    weights: str | None = None,
    kv: str = "bf16",
    tp: int = 1,
    ep: int = 1,
    dp: int = 1,
    cluster: Cluster | str | Path | None = None,
    collective_s: CollectiveTime | None = None,
    engine: Engine | None = None,
    spread: float = 0.2,
    price_usd_per_hour: float | None = None,
    host: str | Path | Host = DEFAULT_HOST,
    power_limit: str | float | None = None,
    sm_clock: str | float | None = None,
) -> Serving:
    """A language model served to `batch` clients, each with requests of `input` tokens and answers of `output`.

    weights: "bf16", "fp16", "fp8", "fp8-dynamic", "fp8-block", "int8-dynamic", "int8", "int4", "nvfp4" or "mxfp4"; by
    default what the decoder's config.json says. kv: format of the cache of keys and values. tp: GPUs that share each
    layer, the first ones of the cluster, whose links join them. cluster: a name, a file or a Cluster, instead of
    a GPU. ep: parts into which these divide the experts (1: all share each). dp: groups of `tp` GPUs, each with
    sequences of its own, that share the experts. collective_s: seconds of an all-reduce as a function of bytes and
    number of GPUs, where they are known better. engine: its settings. spread: how much the answers' lengths differ, as
    a share of output; 0 lets clients that begin together go on together. price_usd_per_hour: of one GPU. host: of the
    two steps by themselves (`prefill`, `decode`) alone; what the engine's own CPU work takes is among its settings.
    power_limit, sm_clock: limits of each GPU below the board's own, as text ("400 W", "1.2 GHz") or in W and Hz.

    Raises what `load_device` and `load_cluster` raise, FormatError for arithmetic that the GPU does not have, and
    InputError for another word, for GPUs that differ, or where not one request fits.

    >>> found = serve(decoder, "nvidia-l4", batch=8, input=1024, output=256)  # doctest: +SKIP
    >>> found.ttft_s, found.tpot_s, found.tokens_per_s, found.largest_batch(4096)  # doctest: +SKIP
    """
    stream = Stream(clients=batch, input=input, output=output, spread=spread)
    setup = setup_of(
        "serve", decoder, gpu, cluster, (weights, kv), (tp, ep, dp), engine, collective_s=collective_s,
        limits=(power_limit, sm_clock), price_usd_per_hour=price_usd_per_hour,
    )  # fmt: skip
    return serve_on(host_of(host), stream, setup)


@checked
def serve_traffic(
    decoder: Decoder,
    gpu: str | Path | Device | None = None,
    *,
    traffic: Traffic,
    weights: str | None = None,
    kv: str = "bf16",
    tp: int = 1,
    ep: int = 1,
    dp: int = 1,
    cluster: Cluster | str | Path | None = None,
    collective_s: CollectiveTime | None = None,
    engine: Engine | None = None,
    disaggregation: Disaggregation | None = None,
    host: str | Path | Host = DEFAULT_HOST,
    power_limit: str | float | None = None,
    sm_clock: str | float | None = None,
) -> ServedTraffic:
    """A language model that answers requests that come at a rate, or as a log says, whoever waits (an open loop).

    traffic: the requests. disaggregation: engines of their own for prompts and for answers. Other options as of
    `serve`, and what it raises; CapacityError for a request that the memory does not hold.

    >>> load = rk.Traffic(rate=4, input=1024, output=256)  # doctest: +SKIP
    >>> found = serve_traffic(decoder, "nvidia-l4", traffic=load)  # doctest: +SKIP
    >>> found.percentile("ttft_s", 99), found.mean("queue_s"), found.tokens_per_s  # doctest: +SKIP
    """
    setup = setup_of(
        "serve_traffic", decoder, gpu, cluster, (weights, kv), (tp, ep, dp), engine, disaggregation,
        collective_s=collective_s, limits=(power_limit, sm_clock),
    )  # fmt: skip
    return serve_traffic_on(host_of(host), traffic, setup)


@checked
def highest_rate(
    decoder: Decoder,
    gpu: str | Path | Device | None = None,
    *,
    level: ServiceLevel,
    traffic: Traffic,
    weights: str | None = None,
    kv: str = "bf16",
    tp: int = 1,
    ep: int = 1,
    dp: int = 1,
    cluster: Cluster | str | Path | None = None,
    collective_s: CollectiveTime | None = None,
    engine: Engine | None = None,
    disaggregation: Disaggregation | None = None,
    price_usd_per_hour: float | None = None,
    host: str | Path | Host = DEFAULT_HOST,
    power_limit: str | float | None = None,
    sm_clock: str | float | None = None,
) -> Capacity:
    """The most requests a second that one copy of the model answers within a service level, found to 2 %.

    traffic: the requests, whose rate is varied; more of them are drawn where they do not last five times an answer's
    time, so that as many answers run as will. price_usd_per_hour: of one GPU. Other options as of `serve_traffic`,
    and what it raises.

    >>> level = rk.ServiceLevel(ttft_s=0.5, tpot_s=0.04)  # doctest: +SKIP
    >>> found = highest_rate(decoder, "nvidia-l4", level=level, traffic=rk.Traffic(rate=1))  # doctest: +SKIP
    >>> found.rate, found.gpus(100)  # doctest: +SKIP
    """
    setup = setup_of(
        "highest_rate", decoder, gpu, cluster, (weights, kv), (tp, ep, dp), engine, disaggregation,
        collective_s=collective_s, limits=(power_limit, sm_clock), price_usd_per_hour=price_usd_per_hour,
    )  # fmt: skip
    return find_capacity(host_of(host), setup, traffic, level)


@checked
def search_fleet(
    decoder: Decoder,
    gpus: Sequence[str | Path | Device] = (),
    *,
    load: float,
    level: ServiceLevel,
    traffic: Traffic,
    clusters: Sequence[Cluster | str | Path] = (),
    tp: Sequence[int] = (1,),
    ep: Sequence[int] = (1,),
    dp: Sequence[int] = (1,),
    weights: Sequence[str] = ("bf16",),
    kv: Sequence[str] = ("bf16",),
    engines: Sequence[Engine] = (),
    disaggregations: Sequence[Disaggregation | None] = (None,),
    power_limits: Sequence[str | float | None] = (None,),
    price_usd_per_hour: float | Mapping[str, float] | None = None,
    most: int = 5,
    host: str | Path | Host = DEFAULT_HOST,
) -> FleetSearch:
    """The cheapest fleets that answer `load` requests a second within a service level: GPUs, copies and settings.

    Every combination of what is listed is considered, on single GPUs where tp and dp are 1, on the first GPUs of the
    clusters; a copy's highest rate is found as `highest_rate` finds it, and the load spread evenly over copies. Those
    that cannot be among the `most` best, by what their kernels could answer without any waiting, are not played.
    power_limits: of each GPU, None for the board's own. price_usd_per_hour: of one GPU, or by the name of each; without
    it the fewest GPUs win. Other options as of `serve_traffic`. Raises what that raises, InputError where nothing is
    listed or no way can be tried, for a price that is missing, and for a load that is not above 0.

    >>> found = rk.search_fleet(decoder, ["nvidia-l4", "nvidia-l40s"], load=50, level=level, traffic=load,
    ...                         weights=["bf16", "fp8"])  # doctest: +SKIP
    >>> found.best[0].gpus(50), found.best[0].at.gpu  # doctest: +SKIP
    """
    places = [
        {"gpu": gpu, "cluster": cluster, "tp": over[0], "ep": over[1], "dp": over[2], "weights": form[0],
         "kv": form[1], "engine": engine, "disaggregation": apart, "power_limit": watts}
        for (gpu, cluster), over, form, engine, apart, watts in product(
            [*((gpu, None) for gpu in gpus), *((None, cluster) for cluster in clusters)], list(product(tp, ep, dp)),
            list(product(weights, kv)), engines or (Engine(),), disaggregations, power_limits,
        )
    ]  # fmt: skip
    return search_places(decoder, places, load=load, level=level, traffic=traffic,
                         price_usd_per_hour=price_usd_per_hour, most=most, host=host)  # fmt: skip


def search_places(
    decoder: Decoder,
    places: Sequence[Mapping[str, Any]],
    *,
    load: float,
    level: ServiceLevel,
    traffic: Traffic,
    price_usd_per_hour: float | Mapping[str, float] | None = None,
    most: int = 5,
    host: str | Path | Host = DEFAULT_HOST,
) -> FleetSearch:
    """`search_fleet` of combinations that are written out, each as options of `serve_traffic`."""
    expect(load > 0, "load", "requests a second, above 0", load)
    expect(most >= 1, "most", "1 or more", most)
    stated = price_usd_per_hour
    for price in stated.values() if isinstance(stated, Mapping) else (stated,):
        check_price(price)
    beside, setups = host_of(host), list(_setups(decoder, places, price_usd_per_hour))
    if not setups:
        raise InputError(
            "search_fleet: nothing to choose from: expected a GPU or a cluster, and tp, ep and dp that go together "
            "(several GPUs need a cluster; ep divides tp · dp)"
        )

    return find_fleet(setups, lambda setup: find_capacity(beside, setup, traffic, level), traffic, level, load, most)


def _setups(
    decoder: Decoder, places: Sequence[Mapping[str, Any]], prices: float | Mapping[str, float] | None
) -> Iterator[Setup]:
    """Each way to serve, those with the same steps sharing what is known of them."""
    known: dict[Any, StepTimes] = {}
    for place in places:
        over, form, engine = (place["tp"], place["ep"], place["dp"]), (place["weights"], place["kv"]), place["engine"]
        gpus = over[0] * over[2]
        if gpus % over[1] or (place["cluster"] is None and gpus > 1):
            continue
        where = place["gpu"], place["cluster"]
        limits = place.get("power_limit"), place.get("sm_clock")
        of_steps = engine.drafted, engine.adapters, engine.graph_sizes, engine.sums, engine.heads, engine.sampling
        key = (*map(str, where), over, form, limits, engine.named, *of_steps)
        setup = setup_of(
            "search_fleet", decoder, *where, form, over, engine, place["disaggregation"], limits=limits,
            times=known.get(key),
        )  # fmt: skip
        known[key] = setup.times
        yield replace(setup, price_usd_per_hour=_price(prices, setup.times.machine.name))


def _price(prices: float | Mapping[str, float] | None, gpu: str) -> float | None:
    if not isinstance(prices, Mapping):
        return prices
    if gpu not in prices:
        raise InputError(
            f"price_usd_per_hour: no price of {gpu} (stated: {', '.join(prices) or 'none'}): give the price of each GPU"
        )
    return prices[gpu]


def setup_of(
    walk: str, decoder: Decoder, gpu: str | Path | Device | None, cluster: Cluster | str | Path | None,
    formats: tuple[str | None, str], over: tuple[int, int, int], engine: Engine | None = None,
    apart: Disaggregation | None = None, *, collective_s: CollectiveTime | None = None, limits: Limits = (None, None),
    price_usd_per_hour: float | None = None, times: StepTimes | None = None,
) -> Setup:  # fmt: skip
    """One way to serve. formats: of weights, None for the published one, and of the cache. over: tp, ep, dp.

    times: of the same steps, where they are known.
    """
    check_price(price_usd_per_hour)
    weights, kv, engine = formats[0] or decoder.weights, formats[1], engine or Engine()
    if times is None:
        check_parts(*over)
        tp, ep, dp = map(index, over)
        machine, collective_s = _placed(walk, gpu, cluster, tp * dp, collective_s, limits)
        engine = engine.on(machine.device)
        times = StepTimes(
            decoder=decoder, machine=machine, weights=weights, kv=kv, tp=tp, ep=ep, dp=dp, drafted=engine.drafted,
            adapters=engine.adapters, padded=engine.padded, collective_s=collective_s,
            own_sums=engine.sums == "one-shot", heads=engine.heads, graphs=engine.graph_sizes != (),
            release=engine.named, sampling=decoder.sampling if engine.sampling == "published" else engine.sampling,
        )  # fmt: skip
    engine = engine.on(times.machine.device)
    reading = None  # steps of the engines that only read prompts, where they have GPUs of another number
    if apart is not None and apart.prefill_tp not in (None, times.gpus):
        prefill_tp = index(apart.prefill_tp or 1)
        if cluster is not None:
            _shared(cluster_of(cluster), prefill_tp)
        reading = replace(times, tp=prefill_tp, ep=1, dp=1, _graphs={}, _timings={}, _known={}, _sums={})
    words = f"{times.gpus} × {times.machine.name}, weights {weights}, cache {kv}{limits_text(times.machine)}"
    return Setup(
        engine=engine, times=times, apart=apart, prefill_times=reading, words=words,
        price_usd_per_hour=price_usd_per_hour,
    )  # fmt: skip


def _placed(
    walk: str,
    gpu: str | Path | Device | None,
    cluster: Cluster | str | Path | None,
    gpus: int,
    collective_s: CollectiveTime | None,
    limits: Limits,
) -> tuple[Machine, CollectiveTime | None]:
    if cluster is not None:
        if gpu is not None:
            raise InputError(f"{walk}: expected a GPU or a cluster of GPUs; got both: leave out one")
        cluster = cluster_of(cluster)
        gpu = _shared(cluster, gpus)
        collective_s = collective_s or partial(_all_reduce_s, cluster)
    if gpu is None:
        raise InputError(f"{walk}: expected a GPU, such as 'nvidia-l4', or cluster='dgx-h100'; got neither")
    return machine_of(gpu, None, *limits), collective_s


def _shared(cluster: Cluster, gpus: int) -> str:
    names = cluster.device_names[:gpus]
    if len(names) < gpus:
        raise InputError(f"{cluster.name}: tp={gpus} needs {gpus} GPUs; the cluster has {len(names)}")
    if len(set(names)) > 1:
        raise InputError(
            f"{cluster.name}: tp={gpus}: its GPUs differ ({', '.join(dict.fromkeys(names))}); choose equal ones"
        )
    return names[0]


def _all_reduce_s(cluster: Cluster, size_bytes: float, gpus: int) -> float:
    return collective_time("all-reduce", size_bytes, cluster, gpus).total_s
