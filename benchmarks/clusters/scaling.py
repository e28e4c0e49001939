"""DDP on n GPUs by what one takes, against sia, gavel and lambda: weak scaling of networks that are traced.

    python -m benchmarks.clusters.scaling DATA [--source NAME] [--rows] [--page]

One GPU's measured step is given to the prediction (`rk.parallel(…, measured=…)`), so that what is judged is what
several of them add to it. No constant is fitted on these rows; sia and lambda have no licence, and serve to judge
alone.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

import rooflinekit as rk
from benchmarks.clusters.scaling_sources import SOURCES, Row

PAGE = Path(__file__).parents[2] / "docs" / "clusters_accuracy.md"
_HEAD = "## Time on n GPUs by that on one"
_SAID = (
    "DDP, as many samples on each GPU; the step of one GPU is measured, and given (`measured`). Bias: of predicted "
    "over measured steps."
)


@cache
def graph(model: str, dtype: str) -> rk.Graph:
    """The training step of a network: ResNet-50 of 224 pixels, a ResNet-18 of 32, or BERT with a span's two scores."""
    if model.startswith("bert"):
        return _bert(large="large" in model, dtype=dtype)
    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()
    import torchvision

    small = model == "cifar10"
    net: nn.Module = torchvision.models.resnet18(num_classes=10) if small else torchvision.models.resnet50()
    size = 32 if small else 224
    if small:  # as networks for CIFAR begin
        net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    half = {"autocast": "float16"} if dtype == "float16" else {}
    return rk.trace(net, rk.Input("batch", 3, size, size), mode="training", optimizer=torch.optim.SGD, **half)


def _bert(*, large: bool, dtype: str) -> rk.Graph:
    from transformers import BertConfig, BertForQuestionAnswering

    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    with torch.device("meta"):
        net = BertForQuestionAnswering(BertConfig(**sizes if large else {}))

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.net(tokens).start_logits

    tokens = rk.Input("batch", 384, dtype="int64")
    return rk.trace(Scores(), tokens, mode="training", optimizer=torch.optim.Adam, dtype=dtype)


def judged(rows: Iterable[Row]) -> pd.DataFrame:
    """Predicted steps over measured ones."""
    found: list[dict[str, Any]] = []
    known: dict[Any, Any] = {}
    for row in rows:
        key = (row.model, row.dtype, row.cluster.name, row.numbers, row.batch, row.alone_s)
        if key not in known:
            known[key] = rk.parallel(
                graph(row.model, row.dtype), cluster=row.cluster, strategy="ddp", gpus=row.numbers,
                batch=row.batch * len(row.numbers), measured=(row.batch, row.alone_s),
            )  # fmt: skip
        p = known[key]
        low, high = p.interval(0.9)
        found.append(
            {
                "source": row.source, "model": f"{row.model} {row.dtype}", "gpus": len(row.numbers), "batch": row.batch,
                "alone_s": row.alone_s, "measured_s": row.seconds, "predicted_s": p.total_s,
                "ratio": p.total_s / row.seconds, "inside": low <= row.seconds <= high, "sent_s": p.communication_s,
                "low_s": low, "high_s": high,
            }
        )  # fmt: skip
    table = pd.DataFrame(found)
    table["error"] = (table.ratio - 1).abs()
    return table


def report(table: pd.DataFrame, sources: Iterable[str]) -> str:
    """As a section of the page."""
    lines = [_HEAD, "", "Made by `python -m benchmarks.clusters.scaling DATA --page`. " + _SAID, ""]
    for name in sources:
        lines += [f"* {' '.join((SOURCES[name].__doc__ or '').split())}"]
    lines.append("")
    for by in ("source", "model", "gpus"):
        found = table.groupby(by).agg(
            n=("error", "size"), error=("error", "median"), p90=("error", lambda e: e.quantile(0.9)),
            ratio=("ratio", "median"), inside=("inside", "mean"),
        )  # fmt: skip
        lines += [
            f"| {by} | n | median error | p90 | bias | in 90 % interval |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {row.Index} | {row.n} | {row.error:.1%} | {row.p90:.1%} | {row.ratio - 1:+.1%} | {row.inside:.0%} |"
            for row in found.itertuples()
        ]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--source", choices=[*SOURCES], action="append")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--page", action="store_true", help="put the section into the page")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    sources = options.source or [*SOURCES]
    table = judged(row for name in sources for row in SOURCES[name](options.data))
    if options.rows:
        print(table.to_string())
    text = report(table, sources)
    if options.page:
        write_section(PAGE, _HEAD, text)
    print(text)


def write_section(page: Path, head: str, text: str) -> None:
    """The page with its section of this head replaced, or put at its end."""
    before, _, rest = page.read_text(encoding="utf-8").partition(f"{head}\n")
    _, mark, after = rest.partition("\n## ")
    page.write_text(f"{before.rstrip()}\n\n{text.rstrip()}\n{mark}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
