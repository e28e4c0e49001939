"""DDP on n GPUs by what one takes, against sia and gavel: convolutional networks, weak and strong scaling.

    python benchmarks/clusters_scaling.py DATA [--rows] [--page]

sia: ResNet-50 (imagenet) and ResNet-18 (cifar10) with as many images on each GPU, T4 and A100; its steps have gradient
statistics in them, and its loader sets a floor, so that what is judged is the ratio to the measured step of one GPU.
gavel: ResNet-18 and ResNet-50, the batch shared out, K80 and P100 in one machine; which GPUs the rows "spread over
nodes" had is not told, and they are left out. No constant is fitted on either; sia has no licence, and serves to judge
alone.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

import rooflinekit as rk

SAMPLE = 200  # rows of sia, evenly chosen
PAGE = Path(__file__).parent.parent / "docs" / "clusters_accuracy.md"
_HEAD = "## sia and gavel"
_SAID = (
    "The step on n GPUs over that on one, DDP: ResNet-50 and a ResNet-18 for CIFAR on T4 and A100 (sia, as many images "
    "on each GPU), K80 and P100 (gavel, the batch shared out). Bias: of predicted over measured ratios."
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measured step beside that of one GPU."""

    source: str
    model: str
    cluster: str
    numbers: tuple[int, ...]  # of the GPUs
    batch: int  # of all GPUs
    alone: int  # batch of the one
    seconds: float
    alone_s: float


def placed(cluster: str, parts: Sequence[int]) -> tuple[int, ...]:
    """The first GPUs of as many nodes as there are parts."""
    per_node = rk.load_cluster(cluster).per_node
    return tuple(node * per_node + k for node, count in enumerate(parts) for k in range(count))


def sia(data: Path) -> Iterator[Row]:
    """Medians of equal settings: weak scaling."""
    table = pd.read_parquet(data / "sia" / "ddp_steps.parquet")
    table = table[table.app.isin(["imagenet", "cifar10"]) & (table.cluster != "dgx-ext")]
    table = table.groupby(["app", "cluster", "gpu", "nodes", "gpus", "batch_per_gpu", "per_node"], dropna=False)
    steps = table.step_s.median().reset_index()
    known = {"aws": "g4dn-12xlarge", "dgx": "a100-40gb-x8-1600g"}
    ones = {(r.app, r.cluster, r.batch_per_gpu): r.step_s for r in steps[steps.gpus == 1].itertuples()}
    for r in steps[steps.gpus > 1].itertuples():
        parts = [int(one) for one in str(r.per_node).split("+")] if isinstance(r.per_node, str) else []
        one = ones.get((r.app, r.cluster, r.batch_per_gpu))
        if not parts or one is None:
            continue
        each = int(r.batch_per_gpu)
        yield Row(
            source=f"sia {r.gpu}, {'equal' if len(set(parts)) == 1 else 'unequal'} parts", model=r.app,
            cluster=known[r.cluster], seconds=r.step_s, alone_s=one,
            numbers=placed(known[r.cluster], parts), batch=each * int(r.gpus), alone=each,
        )  # fmt: skip


def gavel(data: Path) -> Iterator[Row]:
    """Strong scaling."""
    table = pd.read_csv(data / "gavel" / "isolated.csv")
    table = table[table.model.isin(["ResNet-18", "ResNet-50"])]
    key = ["model", "gpu", "global_batch"]
    ones = {tuple(getattr(r, k) for k in key): r.step_s for r in table[table.gpus == 1].itertuples()}
    for r in table[table.gpus > 1].itertuples():
        one = ones.get((r.model, r.gpu, r.global_batch))
        if one is None or not r.step_s > 0 or r.placement != "packed":
            continue
        cluster = "k80-x8" if r.gpu == "K80" else "p100-x8"
        yield Row(
            source=f"gavel {r.gpu}", model=r.model, cluster=cluster,
            numbers=placed(cluster, [int(r.gpus)]),
            batch=int(r.global_batch), alone=int(r.global_batch), seconds=r.step_s, alone_s=one,
        )  # fmt: skip


@cache
def graph(model: str) -> rk.Graph:
    """The training step of a network: of 224 pixels, or 32 for CIFAR."""
    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()

    import torchvision

    small = model in ("cifar10", "ResNet-18")
    net: nn.Module = torchvision.models.resnet18(num_classes=10) if small else torchvision.models.resnet50()
    size = 32 if small else 224
    if small:  # as networks for CIFAR begin
        net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return rk.trace(net, rk.Input("batch", 3, size, size), mode="training", optimizer=torch.optim.SGD)


@cache
def step(model: str, cluster: str, numbers: tuple[int, ...], batch: int) -> float:
    """Seconds of a step."""
    found = rk.parallel(graph(model), cluster=cluster, strategy="ddp", gpus=numbers, batch=batch)
    return found.total_s


def judged(rows: Sequence[Row]) -> pd.DataFrame:
    """Predicted ratios to one GPU over measured ones."""
    found: list[dict[str, Any]] = []
    for row in rows:
        several = step(row.model, row.cluster, row.numbers, row.batch)
        one = step(row.model, row.cluster, row.numbers[:1], row.alone)
        ratio = (several / one) / (row.seconds / row.alone_s)
        found.append({"source": row.source, "model": row.model, "gpus": len(row.numbers), "ratio": ratio})
    return pd.DataFrame(found)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--page", action="store_true", help="put the section into the page")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    every = list(sia(options.data))
    table = judged([*every[:: max(1, len(every) // SAMPLE)], *gavel(options.data)])
    table["error"] = (table.ratio - 1).abs()
    if options.rows:
        print(table.to_string())
    text = report(table)
    if options.page:
        page = PAGE.read_text(encoding="utf-8").partition(_HEAD)[0].rstrip() + "\n\n"
        PAGE.write_text(page + text, encoding="utf-8")
    print(text)


def report(table: pd.DataFrame) -> str:
    """As a section of the page."""
    lines = [_HEAD, "", "Made by `python benchmarks/clusters_scaling.py DATA --page`. " + _SAID, ""]
    for by in ("source", "model", "gpus"):
        found = table.groupby(by).agg(n=("error", "size"), error=("error", "median"), ratio=("ratio", "median"))
        lines += [f"| {by} | n | median error | bias |", "| --- | --- | --- | --- |"]
        lines += [f"| {row.Index} | {row.n} | {row.error:.1%} | {row.ratio - 1:+.1%} |" for row in found.itertuples()]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
