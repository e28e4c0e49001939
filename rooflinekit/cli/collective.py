"""The subcommand that says how long one collective takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.options import ClusterOption, JsonOption, print_json

if TYPE_CHECKING:
    from rooflinekit.model.collectives import CollectiveTiming


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
    cluster: ClusterOption,
    gpus: Annotated[int | None, typer.Option(min=1, help="how many, from the first; by default all")] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="ring, tree, nvls, hierarchical; by default the fastest that NCCL has")
    ] = None,
    constants: Annotated[
        Path | None, typer.Option(metavar="FILE.links.yaml", help="of links at hand, from `rooflinekit calibrate`")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """How long one collective takes on a cluster.

    And by which algorithm.
    Example: rooflinekit collective all-reduce --bytes "100 MB" --cluster dgx-h100 --gpus 4
    """
    from rooflinekit.api.collectives import collective_time

    timing = collective_time(operation, size, cluster, gpus, algorithm=algorithm, constants=constants)
    if as_json:
        print_json("collective", _timing_document(timing, cluster))
        return
    from rooflinekit.present.text import devices as cluster_text

    cluster_text.print_timing(timing, cluster)


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
