"""The walk of collectives: the time of one on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rooflinekit.calibrate.fitting.files import load_links
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.specs import cluster_of, members_of
from rooflinekit.ir.arguments import checked
from rooflinekit.timing.collectives import CollectiveTiming, route_of, time_collective
from rooflinekit.units import parse_quantity


@checked
def collective_time(
    collective: str,
    size: float | str,
    cluster: Cluster | str | Path,
    gpus: int | Sequence[int] | None = None,
    *,
    algorithm: str | None = None,
    dtype: str = "fp16",
    sharing: int = 1,
    constants: Path | None = None,
) -> CollectiveTiming:
    """How long a collective takes on a cluster, by its fastest algorithm or the one that is named.

    collective: "all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all" or "send-recv".
    size: bytes, or text such as "100 MB"; of all-gather the gathered result, of reduce-scatter what each rank puts in.
    cluster: its name, file or record. gpus: how many from the first, or their numbers; by default all.
    sharing: groups that use a node's network at once. constants: file of `rooflinekit calibrate` for links at hand.

    Raises InputError, UnitError, DeviceNotFoundError and SpecError.

    >>> collective_time("all-reduce", "100 MB", "dgx-h100", 1).total_s
    0.0
    """
    found = cluster_of(cluster)
    size_bytes = parse_quantity(size, "byte") if isinstance(size, str) else float(size)
    route = route_of(found, members_of(found), gpus, sharing=sharing)
    floating = not dtype.startswith(("int", "uint"))
    return time_collective(
        collective, size_bytes, route, load_links(constants), algorithm=algorithm, sums_in_switch=floating
    )
