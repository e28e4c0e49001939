"""The walk of a search for the GPUs that serve a load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.api.predict import host_of
from rooflinekit.api.serve import engine_times, prefill_times
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.ir.arguments import checked

if TYPE_CHECKING:
    from rooflinekit.serving.decoder import Decoder
    from rooflinekit.serving.engine import Setup
    from rooflinekit.serving.fleet import FleetSearch
    from rooflinekit.serving.settings import Disaggregation, Engine
    from rooflinekit.serving.step_times import StepTimes
    from rooflinekit.serving.traffic import ServiceLevel, Traffic


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
    from rooflinekit.serving.settings import Engine

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
    from rooflinekit.serving.fleet import find_capacity, find_fleet
    from rooflinekit.serving.settings import check_price

    if not load > 0:
        raise InputError(f"load: expected requests a second, above 0; got {load!r}")
    if most < 1:
        raise InputError(f"most: expected 1 or more; got {most!r}")
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
    from rooflinekit.serving.engine import Setup
    from rooflinekit.serving.served import limits_text

    known: dict[Any, StepTimes] = {}
    for place in places:
        over, form, engine = (place["tp"], place["ep"], place["dp"]), (place["weights"], place["kv"]), place["engine"]
        gpus = over[0] * over[2]
        if gpus % over[1] or (place["cluster"] is None and gpus > 1):
            continue
        where = place["gpu"], place["cluster"]
        limits = place.get("power_limit"), place.get("sm_clock")
        of_steps = engine.drafted, engine.adapters, engine.graph_sizes, engine.sums, engine.heads
        key = (*map(str, where), over, form, limits, *of_steps)
        if key not in known:
            known[key] = engine_times("search_fleet", engine, decoder, *where, form, over, None, limits)
        times = known[key]
        machine, apart = times.machine, place["disaggregation"]
        yield Setup(
            words=f"{gpus} × {machine.name}, weights {form[0]}, cache {form[1]}{limits_text(machine)}", times=times,
            prefill_times=prefill_times(times, apart, where[1]), engine=engine, apart=apart,
            price_usd_per_hour=_price(prices, machine.name),
        )  # fmt: skip


def _price(prices: float | Mapping[str, float] | None, gpu: str) -> float | None:
    if not isinstance(prices, Mapping):
        return prices
    if gpu not in prices:
        raise InputError(
            f"price_usd_per_hour: no price of {gpu} (stated: {', '.join(prices) or 'none'}): name each GPU's"
        )
    return prices[gpu]
