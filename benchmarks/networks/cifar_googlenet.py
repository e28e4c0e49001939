"""A GoogLeNet on CIFAR-10, batch 128: DataParallel over two Titan X and a GTX 1080 against one GPU.

    python -m benchmarks.networks.cifar_googlenet

Reported was 5 min 25 s on one GPU and 2 min 23 s on the three, 2.27 times faster. Not reported: which of the GPUs was
the one, of which generation the Titan X, how many epochs, which precision and release, and the host. Each is assumed
here, and the others are tried. With equal parts the GTX 1080 sets the pace: three of it are as fast as the three can
be, which is 2.2 times a Titan X (Pascal) and less than reported. So the one GPU is taken as the GTX 1080.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

import rooflinekit as rk
from rooflinekit.hardware.cluster import Members, PcieLinks

REPORTED = (5 * 60 + 25) / (2 * 60 + 23)  # 325 s / 143 s = 2.27
_IMAGES, _BATCH = 50_000, 128
PASCAL, MAXWELL, SMALL = "nvidia-titan-x-pascal", "nvidia-gtx-titan-x-maxwell", "nvidia-gtx-1080"


def graph(**options: Any) -> rk.Graph:
    """The training step with its batch open, as PyTorch 1.0 ran it."""
    import torch

    from rooflinekit.tracing.targets import load_target

    file = Path(__file__).parents[2] / "examples" / "googlenet_cifar.py"
    return rk.trace(
        load_target(f"{file}:GoogLeNet").model, rk.Input("batch", 3, 32, 32), mode="training",
        loss=torch.nn.functional.cross_entropy, targets=[rk.Input("batch", dtype="int64")], like="1.0",
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4, foreach=False), **options,
    )  # fmt: skip


def cluster(titan: str, *, peers: bool = False) -> rk.Cluster:
    """Two Titan X and a GTX 1080 on PCIe 3."""
    members = (Members(name=titan, count=2), Members(name=SMALL, count=1))
    pcie = PcieLinks(generation=3, lanes=16, peer_access=peers)
    return rk.Cluster(name="two-titan-x-and-a-1080", devices=members, pcie=pcie, host="xeon-server-2018")


def sensitivity(step: rk.Graph) -> pd.DataFrame:
    """Times of both, and how many times faster the three are. The first row is what is assumed; each other one changes
    one assumption."""
    ways: dict[str, dict[str, Any]] = {
        "assumed: one GTX 1080; Titan X of Pascal, no peer access, a Xeon of 2018": {},
        "the one is a Titan X of Pascal": {"one": PASCAL},
        "Titan X of Maxwell": {"titan": MAXWELL},
        "Titan X of Maxwell, and the one is of these": {"titan": MAXWELL, "one": MAXWELL},
        "with peer access": {"peers": True},
        "a current server": {"host": "generic-server"},
        "DDP instead of DataParallel": {"strategy": "ddp"},
        "DDP, parts in proportion": {"strategy": "ddp", "split": "proportional"},
    }
    execution, epoch = rk.Execution(copy="pageable"), _IMAGES / _BATCH

    @cache
    def alone_s(gpu: str, host: str) -> float:
        return rk.predict(step, gpu, host=host, execution=execution, batch=_BATCH).total_s

    @cache
    def three(titan: str, host: str, strategy: str, split: str, *, peers: bool) -> rk.ParallelPrediction:
        machine = cluster(titan, peers=peers)
        options = {"strategy": strategy, "split": split, "host": host, "execution": execution}
        return rk.parallel(step, cluster=machine, batch=_BATCH, **options)

    rows = []
    for name, changed in ways.items():
        way = {
            "titan": PASCAL,
            "host": "xeon-server-2018",
            "strategy": "dp",
            "split": "even",
            "peers": False,
            **changed,
        }
        one_s = alone_s(way.pop("one", SMALL), way["host"])
        p = three(**way)
        rows.append(
            {
                "assumption": name, "one GPU, s an epoch": one_s * epoch, "three, s an epoch": p.total_s * epoch,
                "ratio": one_s / p.total_s, "exposed %": 100 * p.exposed_s / p.total_s,
            }
        )  # fmt: skip
    table = pd.DataFrame(rows)
    table["off reported %"] = 100 * (table["ratio"] / REPORTED - 1)
    return table


def main() -> None:
    """Prints the table."""
    step = graph()
    print(f"reported: {REPORTED:.2f}; parameters {step.parameters:,}")
    print(sensitivity(step).round(2).to_string(index=False))


if __name__ == "__main__":
    main()
