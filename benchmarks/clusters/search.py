"""What a search finds beside what the sources chose, and whether it would have chosen the fastest of what was measured.

    python -m benchmarks.clusters.search DATA [--page]

Of vtrain and llm_foundry, which measured several layouts of one model on as many GPUs: the layout that is predicted
fastest, by its measured time. Of megatron_bridge, whose layouts are NVIDIA's choice: where it stands among all that the
search considers, and how much faster the search's own is predicted to be.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.clusters.accuracy import PAGE, Bench
from benchmarks.clusters.scaling import write_section
from benchmarks.clusters.sources import SOURCES, Case
from rooflinekit.distributed.described import search_layouts
from rooflinekit.errors import RooflinekitError

_HEAD = "## Layouts that a search takes"
_KEEP = 30  # layouts that are worked out; a place behind them is shown so
_LEAST = 3  # measured layouts of one setting


def picked(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """For each setting with several measured layouts: the one that is predicted fastest."""
    rows = rows.assign(choice=rows.layout + ", recompute " + rows.recompute)
    for name in ("measured_s", "predicted_s"):
        rows[name] /= rows.batch  # a sample's, for batches differ
    for _, part in rows.groupby(["model", "gpus", "seq", "cluster"]):
        each = part.groupby("choice")[["measured_s", "predicted_s"]].median()
        if len(each) < _LEAST:
            continue
        ours = each.loc[each.predicted_s.idxmin()]
        yield {
            "layouts": len(each), "place": int((each.measured_s < ours.measured_s).sum()) + 1,
            "over": ours.measured_s / each.measured_s.min(), "median": each.measured_s.median() / each.measured_s.min(),
        }  # fmt: skip


def picks(bench: Bench, data: Path) -> list[str]:
    """A table of that, one line a source."""
    lines = [
        "| source | settings | layouts of each | the pick is the fastest | among the first two | its time over the "
        "fastest's | 90 % of settings below | the median layout's |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for source in ("vtrain", "llm_foundry"):
        t = pd.DataFrame(picked(bench.rows(source, data)))
        shares = [f"{(t.place <= place).mean():.0%}" for place in (1, 2)]
        times = [f"{t.over.median():.3f}", f"{t.over.quantile(0.9):.3f}", f"{t['median'].median():.2f}"]
        lines.append(f"| {' | '.join([source, str(len(t)), f'{t.layouts.median():.0f}', *shares, *times])} |")
    return lines


def settings(data: Path) -> list[Case]:
    """Of megatron_bridge the first row of each model, kind of cluster and number of GPUs: the newest release."""
    found: dict[tuple[Any, ...], Case] = {}
    for case in SOURCES["megatron_bridge"](data):
        found.setdefault((case.model, case.cluster, case.gpus), case)
    return list(found.values())


def beside(bench: Bench, cases: Sequence[Case]) -> list[str]:
    """A line a setting: the source's layout, the search's, and how they compare."""
    lines = [
        "| model | cluster | GPUs | theirs | place among | ours | ours over theirs, predicted |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in cases:
        planner = bench.planner(case)
        theirs = planner.step()
        try:
            there = replace(planner.place, numbers=tuple(range(case.gpus)))
            found = search_layouts(
                case.decoder, case.recipe, there, batch=case.batch, seq=case.seq, keep=_KEEP
            )  # fmt: skip
        except RooflinekitError:
            continue
        place = 1 + sum(step.total_s < 0.999 * theirs.total_s for step in found.steps)
        shown = f"{place}" if place <= _KEEP else f"behind {_KEEP}"
        best = found.best
        ours = f"{best.layout}, recompute {best.recipe.recompute}"
        cells = [case.model, case.cluster, str(case.gpus), str(case.layout), f"{shown} of {found.considered}", ours]
        lines.append(f"| {' | '.join(cells)} | {best.total_s / theirs.total_s:.2f} |")
    return lines


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--page", action="store_true", help="put the section into the page")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    bench = Bench()
    text = "\n".join(
        [
            _HEAD, "", "Made by `python -m benchmarks.clusters.search DATA --page`. Where several layouts of a model "
            "on as many GPUs were measured, the one that is predicted fastest, by its measured time for a sample:", "",
            *picks(bench, options.data), "",
            "NVIDIA's choices in megatron_bridge among all that fit, by predicted times. What theirs recompute is not "
            "stated; ours may need software that their containers did not have:", "",
            *beside(bench, settings(options.data)), "",
        ]
    )  # fmt: skip
    if options.page:
        write_section(PAGE, _HEAD, text)
    print(text)


if __name__ == "__main__":
    main()
