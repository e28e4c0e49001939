"""Steps on n GPUs beside that of one, by other people: sia, gavel and lambda. No constant is fitted on any of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import rooflinekit as rk
from benchmarks.sources.tables import read_table
from rooflinekit.hardware.cluster import Members, PcieLinks

SAMPLE = 200  # rows of sia, evenly chosen


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measured step beside that of one GPU."""

    source: str
    model: str
    cluster: rk.Cluster
    numbers: tuple[int, ...]  # of the GPUs
    batch: int  # of each GPU
    seconds: float
    alone_s: float
    dtype: str = "float32"


def placed(cluster: rk.Cluster, parts: Sequence[int]) -> tuple[int, ...]:
    """The first GPUs of as many nodes as there are parts."""
    return tuple(node * cluster.per_node + k for node, count in enumerate(parts) for k in range(count))


def sia(data: Path) -> Iterator[Row]:
    """sia: ResNet-50 (imagenet) and a ResNet-18 for CIFAR (cifar10), as many images on each GPU; its loader sets a
    floor, and statistics of gradients are in each step. One GPU computes these in another way, which takes up to a
    fifth of a step: where two GPUs of a node were measured, what one takes is their step without the wait for
    gradients. Nodes of T4 send 10 Gbit/s, a flow of EC2 within a placement group.
    """
    table = read_table(data / "sia" / "ddp_steps.parquet")
    table = table[table.app.isin(["imagenet", "cifar10"]) & (table.cluster != "dgx-ext")]
    table = table.groupby(["app", "cluster", "gpu", "nodes", "gpus", "batch_per_gpu", "per_node"], dropna=False)
    steps = table[["step_s", "sync_s"]].median().reset_index()
    known = {"aws": _one_flow(rk.load_cluster("g4dn-12xlarge")), "dgx": rk.load_cluster("a100-40gb-x8-1600g")}
    key = ["app", "cluster", "batch_per_gpu"]
    ones = {tuple(getattr(r, k) for k in key): r.step_s for r in steps[steps.gpus == 1].itertuples()}
    pairs = steps[steps.per_node.astype(str) == "2"]
    ones |= {tuple(getattr(r, k) for k in key): r.step_s - r.sync_s for r in pairs.itertuples()}
    rows = []
    for r in steps[steps.gpus > 1].itertuples():
        parts = [int(one) for one in str(r.per_node).split("+")] if isinstance(r.per_node, str) else []
        one = ones.get(tuple(getattr(r, k) for k in key))
        if not parts or one is None:
            continue
        rows.append(
            Row(
                source=f"sia {r.gpu}, {'equal' if len(set(parts)) == 1 else 'unequal'} parts", model=r.app,
                cluster=known[r.cluster], seconds=r.step_s, alone_s=one, numbers=placed(known[r.cluster], parts),
                batch=int(r.batch_per_gpu),
            )
        )  # fmt: skip
    yield from rows[:: max(1, len(rows) // SAMPLE)]


def _one_flow(cluster: rk.Cluster) -> rk.Cluster:
    """With what one TCP flow carries between two instances (AWS: 10 Gbit/s within a cluster placement group)."""
    return cluster.replace(network={**dict(cluster.network), "port_rate": 10e9})


def _filled(cluster: rk.Cluster, count: int) -> list[int]:
    """So many GPUs on full nodes."""
    whole, rest = divmod(count, cluster.per_node)
    return [cluster.per_node] * whole + ([rest] if rest else [])


def gavel(data: Path) -> Iterator[Row]:
    """gavel: ResNet-18 for CIFAR and ResNet-50, K80 in one machine and P100 by four, 16 Gbit/s between; rows "spread
    over nodes" do not name their GPUs and are left out. Rates are assumed to be those of all GPUs together, each with
    the batch that is named: shared out, eight P100 would exchange gradients faster than PCIe carries."""
    table = read_table(data / "gavel" / "isolated.csv")
    table = table[table.model.isin(["ResNet-18", "ResNet-50"])]
    key = ["model", "gpu", "global_batch"]
    by_four = rk.load_cluster("p100-x8").replace(
        devices=({"name": "nvidia-p100-pcie-16gb", "count": 4},),
        network={"kind": "ethernet", "port_rate": 16e9, "latency": 50e-6},
    )  # fmt: skip
    ones = {tuple(getattr(r, k) for k in key): r.step_s for r in table[table.gpus == 1].itertuples()}
    for r in table[table.gpus > 1].itertuples():
        one = ones.get((r.model, r.gpu, r.global_batch))
        if one is None or not r.step_s > 0 or r.placement != "packed":
            continue
        cluster = rk.load_cluster("k80-x8") if r.gpu == "K80" else by_four
        yield Row(
            source=f"gavel {r.gpu}", model="cifar10" if r.model == "ResNet-18" else "imagenet", cluster=cluster,
            numbers=placed(cluster, _filled(cluster, int(r.gpus))), batch=int(r.global_batch),
            seconds=r.gpus * r.step_s, alone_s=one,
        )  # fmt: skip


#: GPUs of lambda that are shipped, and whether a card writes into another's memory over PCIe; None: a known cluster.
_LAMBDA = {
    "3070": ("nvidia-rtx-3070", False), "3080": ("nvidia-rtx-3080", False), "A4000": ("nvidia-rtx-a4000", True),
    "A40": ("nvidia-a40", True), "A4500": ("nvidia-rtx-a4500", True), "QuadroRTX6000": ("nvidia-quadro-rtx-6000", True),
    "A100_80GB_PCIe": ("nvidia-a100-pcie-80gb", True), "A100_SXM4": ("dgx-a100", None),
    "V100": ("dgx-1-v100", None),
}  # fmt: skip
#: Images, or sequences of 384, for each GB of memory: those of the second collection, on an A100 of 80 GB, which states
#: them; the first fills the memory too, and does not say with what.
_PER_GB = {
    ("resnet50", "fp16"): 16.0, ("resnet50", "fp32"): 8.0, ("bert_base_squad", "fp16"): 4.0,
    ("bert_base_squad", "fp32"): 2.15, ("bert_large_squad", "fp16"): 1.4, ("bert_large_squad", "fp32"): 0.8,
}  # fmt: skip


def lambdas(data: Path) -> Iterator[Row]:
    """lambda: NVIDIA's scripts of ResNet-50 and BERT on SQuAD, 2 to 16 GPUs by what one of the same collection takes.
    The batch fills the memory, and is stated in the second collection alone: as many samples a GB are assumed in the
    first. Half precision has half gradients in BERT (apex, O2). V100 and A100 with NVLink are assumed to be DGX."""
    table = read_table(data / "lambda" / "training.csv")
    table = table[table.task.isin({task for task, _ in _PER_GB}) & table.gpu.isin(list(_LAMBDA)) & (table.gpus >= 1)]
    key = ["collection", "gpu", "task", "precision"]
    rates = table.groupby([*key, "gpus"]).items_per_s.median().reset_index()
    ones = {tuple(getattr(r, k) for k in key): r.items_per_s for r in rates[rates.gpus == 1].itertuples()}
    for r in rates[rates.gpus > 1].itertuples():
        one = ones.get(tuple(getattr(r, k) for k in key))
        if one is None:
            continue
        cluster = _machine(r.gpu, int(r.gpus))
        capacity = rk.load_device(cluster.devices[0].name).dram.capacity
        batch = max(1, round(_PER_GB[r.task, r.precision] * capacity / 2**30))
        yield Row(
            source=f"lambda {r.gpu}", model=r.task, cluster=cluster, numbers=tuple(range(int(r.gpus))), batch=batch,
            seconds=r.gpus * batch / r.items_per_s, alone_s=batch / one,
            dtype="float16" if r.precision == "fp16" else "float32",
        )  # fmt: skip


@cache
def _machine(gpu: str, count: int) -> rk.Cluster:
    """A machine with so many of these on PCIe 4, half of them at each socket where there are more than four."""
    name, peers = _LAMBDA[gpu]
    if peers is None:
        return rk.load_cluster(name)
    sockets = {"sockets": (count // 2, count // 2)} if count > 4 else {}
    return rk.Cluster(
        name=f"{name}-x{count}", devices=[Members(name=name, count=count)], host="generic-server",
        pcie=PcieLinks(generation=4, lanes=16, peer_access=peers, **sockets),
    )  # fmt: skip


SOURCES = {"sia": sia, "gavel": gavel, "lambda": lambdas}
