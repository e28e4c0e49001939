"""Writes the tables of docs/many_gpus.md, and draws its figures: python docs/make_many_gpus.py [--check]."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from page import FOLDER, run_all

import rooflinekit as rk
from rooflinekit.distributed.prediction import ParallelPrediction
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.tracing.targets import load_target

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for benchmarks

_SLOWEST, _FASTEST = 1e7, 1e13  # bit/s of a port
_NEAR = 1.03
_GPUS = ("nvidia-t4", "nvidia-a100-pcie-40gb")
_RATES = (1e9, 2.5e9, 10e9, 25e9, 100e9)  # bit/s


#: Files below docs/figures, and what is drawn.
PICTURES = {
    "slow_link_waterfall": lambda one, other: rk.plot.waterfall(one),
    "slow_link_timeline": lambda one, other: rk.plot.timeline(one),
    "slow_link_compared": lambda one, other: rk.plot.waterfall([one, other]),
    "slow_link_roofline": lambda one, other: rk.plot.roofline(
        [one, _over(_two(_GPUS[0]), 10e9)], width="page", path=["1 Gbit/s", "10 Gbit/s"]
    ),
}


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


def file_of(name: str) -> str:
    """The picture's file: hundreds of hatched bars are smaller as pixels."""
    return f"{name}.png" if name.endswith("timeline") else f"{name}.svg"


def drawn() -> Iterator[tuple[str, Any]]:
    """The figures of the job over 1 Gbit/s, on two T4 and on two A100, by their names."""
    one, other = (_over(_two(gpu), 1e9) for gpu in _GPUS)
    for name, draw in PICTURES.items():
        yield name, draw(one, other)


def pictured() -> None:
    """Ends the program where a picture is missing."""
    for name in PICTURES:
        if not (FOLDER / "figures" / file_of(name)).is_file():
            sys.exit(f"docs/figures/{file_of(name)} is missing: run python docs/make_many_gpus.py")


@cache
def _job() -> rk.Graph:
    return _traced("timm:resnet18", 224)


_KEPT: dict[tuple[str, float], rk.ParallelPrediction] = {}


def _predicted(cluster: rk.Cluster) -> rk.ParallelPrediction:
    """A job on gloo between two machines, once for each device and rate: searches for a rate begin alike."""
    assert cluster.network is not None
    key = cluster.device_names[0], cluster.network.port_rate
    if key not in _KEPT:
        _KEPT[key] = rk.parallel(_job(), cluster=cluster, strategy=rk.DDP(backend="gloo"), batch=128)
    return _KEPT[key]


def _over(cluster: rk.Cluster, rate: float) -> rk.ParallelPrediction:
    return _predicted(with_network(cluster, rate))


def slow_link() -> str:
    """The job by the rate of the network."""
    clusters, predict = {gpu: _two(gpu) for gpu in _GPUS}, _predicted
    rows = []
    for rate in _RATES:
        small, large = (_over(cluster, rate) for cluster in clusters.values())
        rows.append(
            [f"{rate / 1e9:g} Gbit/s", *(text for p in (small, large) for text in (_ms(p.total_s), _ms(p.exposed_s))),
             f"{small.total_s / large.total_s:.2f}"]
        )  # fmt: skip
    alone = [predict(cluster).one_gpu.total_s for cluster in clusters.values()]
    rows.append(["one GPU, the whole batch", _ms(alone[0]), "", _ms(alone[1]), "", f"{alone[0] / alone[1]:.2f}"])
    head = ["network", "2 × T4, ms", "exposed", "2 × A100, ms", "exposed", "A100 is faster by"]
    pays = [
        network_rate_for(cluster, predict, lambda p, one=one: p.total_s < one)
        for cluster, one in zip(clusters.values(), alone, strict=True)
    ]
    hides = [network_rate_for(cluster, predict, lambda p: p.exposed_s < 0.1 * p.total_s) for cluster in clusters.values()]
    return "\n".join(
        [
            *_table(head, rows), "",
            f"Two GPUs are faster than one from {pays[0] / 1e9:.2g} Gbit/s on with a T4, from {pays[1] / 1e9:.2g} "
            f"Gbit/s with an A100.",
            f"They wait for the network for less than a tenth of the step from {hides[0] / 1e9:.0f} Gbit/s (T4) "
            f"and {float(f'{hides[1] / 1e9:.2g}'):.0f} Gbit/s (A100) on.",
        ]
    )  # fmt: skip


def memory() -> str:
    """What makes a wide network fit 8 GB and 24 GB."""
    step = _traced("examples/wide_cnn.py:WideCNN", 112)
    found = {gpu: rk.fit_into(step, gpu=gpu, batch=256) for gpu in ("nvidia-rtx-3070", "nvidia-rtx-3090")}
    wanted = (
        "as it is", "accumulate 2", "accumulate 8", "checkpoint all blocks", "8-bit optimizer",
        "optimizer on the CPU", "autocast bfloat16", "autocast bfloat16, accumulate 4",
        "autocast bfloat16, checkpoint all blocks",
    )  # fmt: skip
    rows = []
    for name in wanted:
        cells = [name]
        for fitting in found.values():
            row = fitting.table[fitting.table["combination"] == name]
            if row.empty:
                cells += ["", ""]
                continue
            size = f"{row['peak_bytes'].item() / 2**30:.1f}{'' if row['fits'].item() else ', does not fit'}"
            cells += [f"{row['total_s'].item():.2f}", size]
        rows.append(cells)
    head = ["", "RTX 3070 (8 GiB), s", "GiB", "RTX 3090 (24 GiB), s", "GiB"]
    best = [f"{gpu}: {fitting.best.name}" for gpu, fitting in found.items() if fitting.best is not None]
    return "\n".join([*_table(head, rows), "", "Fastest that fits, of all combinations:", "", *(f"* {b}" for b in best)])


def cifar() -> str:
    """The GoogLeNet of benchmarks/networks/cifar_googlenet.py."""
    from benchmarks.networks.cifar_googlenet import REPORTED, graph, sensitivity

    table = sensitivity(graph())
    rows = [
        [row["assumption"], *(f"{row[name]:.3g}" for name in ("one GPU, s an epoch", "three, s an epoch", "ratio")),
         f"{row['off reported %']:+.0f} %"]
        for row in table.to_dict("records")
    ]  # fmt: skip
    head = ["", "one GPU, s an epoch", "three", "ratio", f"off {REPORTED:.2f}"]
    return "\n".join(_table(head, rows))


def _two(gpu: str) -> rk.Cluster:
    base = rk.load_cluster(ROOT / "examples" / "two-t4-1gbe.yaml")
    return base.model_copy(update={"devices": (base.devices[0].model_copy(update={"name": gpu}),)})


def _traced(target: str, size: int) -> rk.Graph:
    import torch

    model = load_target(target if ":" in target and "/" not in target else f"{ROOT / target}").model
    return rk.trace(
        model, rk.Input("batch", 3, size, size), mode="training", loss=torch.nn.functional.cross_entropy,
        targets=[rk.Input("batch", dtype="int64")], optimizer=torch.optim.Adam,
    )  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


PARTS: dict[str, Callable[[], str]] = {"slow link": slow_link, "memory": memory, "cifar": cifar}

if __name__ == "__main__":
    if "--check" not in sys.argv:
        for name, axes in drawn():
            rk.plot.save(axes, FOLDER / "figures" / file_of(name))
    pictured()
    run_all({"many_gpus.md": PARTS}, __file__)
