"""Training steps on clusters against other people's measurements: time, order, intervals, peak memory.

    python -m benchmarks.clusters.accuracy DATA [--source NAME] [--rows] [--fit] [--page]

DATA holds llm_foundry, vtrain, megatron_lm, megatron_bridge and mlperf_training, one of which --source names. --rows
prints the worst rows, --fit works out the constants that no op tells, on half of the models of a source (by hash of
their names) and then on the other half. --page writes docs/clusters_accuracy.md.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.clusters.sources import SOURCES, Case
from benchmarks.sources.page_tables import markdown_lines
from rooflinekit.api.parallel import place_of
from rooflinekit.distributed.described import Planner
from rooflinekit.distributed.groups import Setting
from rooflinekit.errors import RooflinekitError

SCALING = "## Time on n GPUs by that on one"
PAGE = Path(__file__).parents[2] / "docs" / "clusters_accuracy.md"
_MOST_MFU = 0.85  # above which a step is not of the GPUs that a row names
_OUTLIER = 0.2  # beyond which a row counts as this much in a fit: some rows are of other settings than they say


class Bench:
    """Places, each made once, and the steps of cases."""

    def __init__(self) -> None:
        self.places: dict[str, Setting] = {}

    def planner(self, case: Case) -> Planner:
        """The case's step."""
        if case.cluster not in self.places:
            self.places[case.cluster] = place_of(case.cluster)
        return Planner(
            decoder=case.decoder, layout=case.layout, recipe=case.recipe, batch=case.batch, seq=case.seq,
            place=replace(self.places[case.cluster], numbers=tuple(range(case.gpus))),
        )  # fmt: skip

    def sized(self, case: Case) -> Case:
        """The case; where its GPUs are not told, on so many that the predicted peak is nearest the measured one.

        The rank whose peak was logged has as many tokens as the mean, the fullest has more.
        """
        if case.gpus:
            return case
        lay, off = case.layout, {}
        for copies in (2**k for k in range(10)):
            gpus = lay.tensor * lay.context * lay.pipeline * copies
            try:
                step = self.planner(replace(case, gpus=gpus, layout=lay.with_changes(imbalance=1.0))).step()
            except RooflinekitError:  # the experts need more copies, or the cluster has not so many GPUs
                continue
            off[abs(np.log(step.stages[case.peak_stage or 0].allocated / case.peak_bytes))] = gpus
        return replace(case, gpus=off[min(off)], peak_bytes=0.0)

    def rows(self, source: str, data: Path, most: int = 0) -> pd.DataFrame:
        """A row for each case that can be described; of about `most` cases, evenly taken, or of all (0)."""
        found = []
        cases = list(SOURCES[source](data))
        for given in cases[:: max(1, len(cases) // most) if most else 1]:
            try:
                case = self.sized(given)
                step = self.planner(case).step()
            except RooflinekitError:
                continue
            if step.mfu * step.total_s > _MOST_MFU * case.seconds:
                continue
            low, high = step.interval()
            stage = step.fullest if case.peak_stage is None else case.peak_stage
            memory = step.stages[stage].allocated
            found.append(
                {
                    "model": case.model, "strategy": _strategy(case), "gpus": case.gpus, "cluster": case.cluster,
                    "recompute": case.recipe.recompute, "seq": case.seq, "note": case.note, "layout": str(case.layout),
                    "batch": case.batch, "measured_s": case.seconds, "predicted_s": step.total_s,
                    "low_s": low, "high_s": high, "inside": low <= case.seconds <= high,
                    "ratio": step.total_s / case.seconds, "mfu": step.mfu,
                    "peak": memory / case.peak_bytes if case.peak_bytes > 0 else np.nan,
                    "gpu": step.device.name, "fits": step.memory.fits,
                }
            )  # fmt: skip
        table = pd.DataFrame(found)
        table["error"] = (table.ratio - 1).abs()
        return table


def _strategy(case: Case) -> str:
    lay = case.layout
    parts = (("TP", lay.tensor), ("CP", lay.context), ("PP", lay.pipeline), ("VP", lay.chunks), ("EP", lay.expert))
    words = [name for name, size in parts if size > 1]
    return " ".join([*words, lay.sharding])


def half_of(model: str) -> int:
    """Which half of the models one belongs to: 0 is fitted on, 1 judged."""
    return int(hashlib.sha256(model.encode()).hexdigest(), 16) % 2


# --- constants ---------------------------------------------------------------------------------------------------


def fit(source: str, data: Path, name: str, change: Callable[[Case, float], Case], bounds: tuple[float, float]) -> None:
    """Prints the number that fits each half of the models of a source on A100, and the error of the other half."""
    cases = [case for case in SOURCES[source](data) if case.cluster.startswith("a100")]
    cases = cases[:: max(1, len(cases) // 100)]

    def errors(half: int, value: float) -> np.ndarray[Any, Any]:
        bench, found = Bench(), []
        for case in cases:
            if half_of(case.model) == half:
                found.append(np.log(bench.planner(change(case, value)).step().total_s / case.seconds))
        return np.abs(np.array(found))

    def loss(half: int, value: float) -> float:
        return float(np.minimum(errors(half, value), _OUTLIER).mean())

    for half in (0, 1):
        values = np.linspace(*bounds, 9)
        best = float(min(values, key=lambda value, half=half: loss(half, value)))
        print(
            f"{source}, {name}: {best:.3g} of half {half}, median error there {np.median(errors(half, best)):.1%}, "
            f"of the other half {np.median(errors(1 - half, best)):.1%}"
        )


def _recipe(**fields: str) -> Callable[[Case, float], Case]:
    """Puts a number into a field of the recipe."""
    (field,) = fields.values()
    return lambda case, value: replace(case, recipe=case.recipe.with_changes(**{field: value}))


# --- tables ------------------------------------------------------------------------------------------------------


def summary(rows: pd.DataFrame, by: str | None = None) -> pd.DataFrame:
    """Errors of all rows, or by a column."""
    groups = [("all", rows)] if by is None else list(rows.groupby(by, sort=True))
    found = [
        {
            by or "rows": name, "n": len(part), "median error": part.error.median(), "p90": part.error.quantile(0.9),
            "bias": part.ratio.median() - 1, "in 90 % interval": part.inside.mean(),
        }
        for name, part in groups
    ]  # fmt: skip
    return pd.DataFrame(found)


def ranks(rows: pd.DataFrame) -> float:
    """The median over models of Spearman's rank correlation of measured and predicted times."""
    found = [
        part.measured_s.corr(part.predicted_s, method="spearman")
        for _, part in rows.groupby("model")
        if part.measured_s.nunique() > 3
    ]
    return float(np.median(found)) if found else float("nan")


def scaling(rows: pd.DataFrame) -> pd.DataFrame:
    """Throughput of n GPUs over that of the fewest, of equal models, sequences and micro-batches: weak scaling."""
    key = ["model", "seq", "cluster", "recompute", "layout"]
    found = []
    for _, part in rows.drop_duplicates([*key, "gpus", "batch"]).groupby(key):
        if part.gpus.nunique() < 2:
            continue
        first = part[part.gpus == part.gpus.min()].iloc[0]
        for row in part[part.gpus > first.gpus].itertuples():
            rates = [
                (row.batch / getattr(row, name)) / (first.batch / first[name]) for name in ("measured_s", "predicted_s")
            ]
            found.append({"gpus": row.gpus, "error": abs(rates[1] / rates[0] - 1)})
    return pd.DataFrame(found)


def markdown(table: pd.DataFrame) -> str:
    """A table whose shares are in percent."""

    def shown(name: str, value: Any) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:+.1%}" if name == "bias" else f"{value:.1%}"

    heads = list(map(str, table.columns))
    rows = (list(map(shown, heads, row)) for row in table.itertuples(index=False))
    return markdown_lines(heads, rows)


def report(source: str, rows: pd.DataFrame) -> list[str]:
    """What a source says, as lines of the page."""
    described = " ".join((SOURCES[source].__doc__ or "").split())
    lines = [f"## {source}", "", described, ""]
    timed = rows
    if source == "megatron_lm":
        timed = rows[rows.note.str.startswith("release")]
    if len(timed):
        lines += [markdown(summary(timed)), ""]
        if source != "megatron_lm":
            unseen = timed[timed.model.map(half_of) == 1]
            if source == "vtrain" and len(unseen):
                middle, ninetieth = unseen.error.median(), unseen.error.quantile(0.9)
                lines += [f"Models on which nothing is fitted: median {middle:.1%}, p90 {ninetieth:.1%}.", ""]
            for column in ("model", "strategy", "gpus"):
                lines += [markdown(summary(timed, column)), ""]
        rank = ranks(timed)
        if rank == rank:
            lines += [f"Rank correlation within a model, median of models: {rank:.3f}.", ""]
        ratios = scaling(timed)
        if len(ratios) > 3:
            lines += [
                f"Throughput relative to the fewest GPUs, n = {len(ratios)}: {ratios.error.median():.1%} off.",
                "",
            ]
    peaks = rows.peak.dropna()
    if len(peaks):
        off = (peaks - 1).abs()
        lines += [
            f"Peak allocated, n = {len(peaks)}: median error {off.median():.1%}, bias {peaks.median() - 1:+.1%}, "
            f"within 12 %: {(off <= 0.12).mean():.0%}.",
            "",
        ]
    worst = timed.sort_values("error", ascending=False).drop_duplicates(["model", "layout"]).head(3)
    if len(worst):
        columns = ["model", "layout", "gpus", "seq", "note", "measured_s", "predicted_s"]
        table = worst[columns].copy()
        for name in ("measured_s", "predicted_s"):
            table[name] = table[name].map(lambda value: f"{value:.3g}")
        lines += ["Furthest off:", "", markdown(table), ""]
    return lines


HEAD = """# Training on clusters, against measurements

Made by `python -m benchmarks.clusters.accuracy DATA --page`, of other people's rows. One number is fitted on whole
steps, on half of vtrain's models by the hash of their names (`--fit`): the CPU time of Megatron's Python
(`MEGATRON_ISSUE` in `rooflinekit/distributed/records.py`). On megatron_bridge, where nothing was fitted, it takes the
error from 13 to 10 %. `--fit` also shows, on halves of MPT's models on A100, that FSDP 1's kernels stand still beside
collectives ([training](training.md)).
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--source", choices=[*SOURCES], action="append")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args(arguments)
    bench = Bench()
    if options.fit:
        fit("vtrain", options.data, "MEGATRON_ISSUE", _recipe(field="issue"), (4.3, 7.5))
        fit("llm_foundry", options.data, "progress", _recipe(field="progress"), (0.0, 0.8))
        return
    lines = [HEAD]
    for source in options.source or SOURCES:
        rows = bench.rows(source, options.data)
        lines += report(source, rows)
        if options.rows:
            shown = rows.sort_values("error", ascending=False).drop(columns=["cluster"])
            print(shown.head(40).to_string())
    text = "\n".join(lines).rstrip() + "\n"
    if options.page:
        before = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
        kept = "".join(before.partition(SCALING)[1:])  # made by benchmarks/clusters/scaling.py and those after it
        PAGE.write_text(text + ("\n" + kept if kept else ""), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
