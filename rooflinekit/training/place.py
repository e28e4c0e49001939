"""Where a decoder's training step runs."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.host import Host
from rooflinekit.model.collectives import LinkConstants
from rooflinekit.model.machine import Machine
from rooflinekit.training.pieces import Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Equal GPUs of a cluster, with what is known of them."""

    cluster: Cluster
    machine: Machine
    host: Host
    links: LinkConstants
    gpus: int
    bench: Workbench

    @classmethod
    def of(cls, cluster: Cluster, machine: Machine, host: Host, links: LinkConstants, gpus: int) -> Place:
        """With a workbench of its own. Raises InputError for more GPUs than the cluster has."""
        if not 1 <= gpus <= cluster.size:
            raise InputError(f"{cluster.name} has {cluster.size} devices; got gpus={gpus}")
        bench = Workbench(machine=machine, host=host)
        return cls(cluster=cluster, machine=machine, host=host, links=links, gpus=gpus, bench=bench)
