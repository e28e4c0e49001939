"""From which rate of a network on a step is no longer what the network makes of it."""

from __future__ import annotations

from collections.abc import Callable

from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.strategies.prediction import ParallelPrediction

_SLOWEST, _FASTEST = 1e7, 1e13  # bit/s of a port
_NEAR = 1.03


def with_network(cluster: Cluster, port_rate: float) -> Cluster:
    """The cluster with another rate of each port, in bit/s. Raises InputError for one without a network."""
    if cluster.network is None:
        raise InputError(f"{cluster.name} has no network whose rate could be another")
    return cluster.model_copy(update={"network": cluster.network.model_copy(update={"port_rate": port_rate})})


def network_rate_for(
    cluster: Cluster, predict: Callable[[Cluster], ParallelPrediction], holds: Callable[[ParallelPrediction], bool]
) -> float:
    """The least bit/s of a port at which a prediction on that cluster has a property, to 3 %.

    The property must hold at all higher rates. Raises InputError where it holds at none.
    """
    low, high = _SLOWEST, _FASTEST
    if not holds(predict(with_network(cluster, high))):
        raise InputError(f"{cluster.name}: no rate of the network suffices")
    while high / low > _NEAR:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if holds(predict(with_network(cluster, middle))) else (middle, high)
    return high
