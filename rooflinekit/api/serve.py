"""The walk of a served language model, on one GPU or on several of a cluster."""

from __future__ import annotations

from functools import partial
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING

from rooflinekit.api.collectives import collective_time
from rooflinekit.api.predict import host_of, machines_of
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, load_cluster

if TYPE_CHECKING:
    from rooflinekit.serving.decoder import Decoder
    from rooflinekit.serving.serve import Serving
    from rooflinekit.serving.settings import Engine
    from rooflinekit.serving.step_times import CollectiveTime


def serve(
    decoder: Decoder,
    gpu: str | Path | Device | None = None,
    *,
    batch: int,
    input: int,
    output: int,
    weights: str = "bf16",
    kv: str = "bf16",
    tp: int = 1,
    ep: int = 1,
    cluster: Cluster | str | Path | None = None,
    collective_s: CollectiveTime | None = None,
    engine: Engine | None = None,
    spread: float = 0.2,
    price_usd: float | None = None,
    host: str | Path | Host = DEFAULT_HOST,
) -> Serving:
    """A language model served to `batch` clients, each with requests of `input` tokens and answers of `output`.

    weights: "bf16", "fp16", "fp8", "fp8-dynamic", "int8" or "int4". kv: format of the cache of keys and values.
    tp: GPUs that share each layer, the first ones of the cluster, whose links join them. cluster: a name, a file or a
    Cluster, in the place of a GPU. ep: parts into which these divide the experts (1: all share each).
    collective_s: seconds of an all-reduce as a function of bytes and number of GPUs, where they are known better.
    engine: its settings. spread: how much the answers' lengths differ, as a share of output; 0 lets clients that begin
    together go on together. price_usd: what one GPU costs, bought or for an hour, in the place of its launch price.

    Raises what `load_device` and `load_cluster` raise, FormatError for arithmetic that the GPU does not have, and
    InputError for another word, for GPUs that differ, or where not one request fits.

    >>> found = serve(decoder, "nvidia-l4", batch=8, input=1024, output=256)  # doctest: +SKIP
    >>> found.ttft_s, found.tpot_s, found.tokens_per_s, found.largest_batch(4096)  # doctest: +SKIP
    """
    from rooflinekit.serving.engine import Stream
    from rooflinekit.serving.serve import check_parts, check_price, check_stream, serve_on
    from rooflinekit.serving.settings import Engine

    check_stream(batch, input, output)
    check_parts(tp, ep)
    tp, ep = index(tp), index(ep)
    check_price(price_usd)
    if cluster is not None:
        if gpu is not None:
            raise InputError("serve: expected a GPU or a cluster of GPUs; got both: leave out one")
        cluster = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
        gpu = _shared(cluster, tp)
        collective_s = collective_s or partial(_all_reduce_s, cluster)
    if gpu is None:
        raise InputError("serve: expected a GPU, such as 'nvidia-l4', or cluster='dgx-h100'; got neither")
    (machine,) = machines_of([gpu])
    stream = Stream(clients=index(batch), input=index(input), output=index(output), spread=spread)
    return serve_on(
        decoder, machine, host_of(host), stream, engine or Engine(),
        weights=weights, kv=kv, tp=tp, ep=ep, collective_s=collective_s, price_usd=price_usd,
    )  # fmt: skip


def _shared(cluster: Cluster, tp: int) -> str:
    """The name of the GPU that each of the first `tp` is."""
    names = cluster.device_names[:tp]
    if len(names) < tp:
        raise InputError(f"{cluster.name}: tp={tp} needs as many GPUs; it has {len(names)}")
    if len(set(names)) > 1:
        raise InputError(
            f"{cluster.name}: tp={tp}: its GPUs differ ({', '.join(dict.fromkeys(names))}); choose equal ones"
        )
    return names[0]


def _all_reduce_s(cluster: Cluster, size_bytes: float, gpus: int) -> float:
    return collective_time("all-reduce", size_bytes, cluster, gpus).total_s
