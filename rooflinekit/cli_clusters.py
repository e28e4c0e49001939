"""Subcommands about several devices: clusters, collective."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli_options import JsonOption, print_json

if TYPE_CHECKING:
    from rooflinekit.hardware.cluster import Cluster
    from rooflinekit.model.collectives import CollectiveTiming


def register(app: typer.Typer) -> None:
    """Adds the subcommands to the program's."""
    app.command()(clusters)
    app.command()(collective)


def clusters(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|FILE.yaml]", help="one of them: links, sources")] = None,
    as_json: JsonOption = False,
) -> None:
    """The clusters that are known, or one of them: which devices, joined by what.

    Bandwidths are of one direction. Example: rooflinekit clusters dgx-h100
    """
    from rooflinekit.hardware import specs

    found = specs.clusters() if name is None else (specs.load_cluster(name),)
    if as_json:
        documents = [_document(one) for one in found]
        print_json(documents if name is None else documents[0])
        return
    from rooflinekit.present import cluster_text

    if name is None:
        cluster_text.print_clusters(found)
    else:
        cluster_text.print_cluster(found[0])


def collective(
    operation: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTIVE", help="all-reduce, all-gather, reduce-scatter, broadcast, all-to-all or send-recv"
        ),
    ],
    size: Annotated[
        str, typer.Option("--bytes", metavar="SIZE", help="'100 MB'; of all-gather, of the gathered result")
    ],
    cluster: Annotated[str, typer.Option(metavar="NAME|FILE.yaml", help="`rooflinekit clusters` lists them")],
    gpus: Annotated[int | None, typer.Option(min=1, help="how many, from the first; by default all")] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="ring, tree, nvls, hierarchical; by default the fastest that NCCL has")
    ] = None,
    constants: Annotated[
        Path | None, typer.Option(metavar="FILE.links.yaml", help="of links at hand, from `rooflinekit calibrate`")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """How long one collective takes on a cluster, and by which algorithm.

    Example: rooflinekit collective all-reduce --bytes "100 MB" --cluster dgx-h100 --gpus 4
    """
    from rooflinekit.collective_workflows import collective_time

    timing = collective_time(operation, size, cluster, gpus, algorithm=algorithm, constants=constants)
    if as_json:
        print_json(_timing_document(timing, cluster))
        return
    from rooflinekit.present import cluster_text

    cluster_text.print_timing(timing, cluster)


def _document(cluster: Cluster) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(cluster.model_dump_json(by_alias=True, exclude_none=True))
    return document


def _timing_document(timing: CollectiveTiming, cluster: str) -> dict[str, Any]:
    """In base units; interval: 90 %."""
    low, high = timing.interval()
    names = ("start_s", "latency_s", "transfer_s", "pipeline_s", "copy_s")
    links = [
        {"technology": link.name, "bandwidth_per_direction": link.bandwidth, "latency_s": link.latency_s}
        for link in timing.route.links
    ]
    return {
        "collective": timing.collective, "cluster": cluster, "gpus": timing.ranks, "bytes": timing.size_bytes,
        "total_s": timing.total_s, "interval_s": [low, high], "algorithm": timing.algorithm,
        "bus_bandwidth": timing.bus_bandwidth, "algorithm_bandwidth": timing.algorithm_bandwidth,
        "terms": {name: getattr(timing, name) for name in names}, "links": links,
    }  # fmt: skip
