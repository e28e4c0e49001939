"""docs/accuracy.md, its figures and accuracy.csv, from what `benchmarks/operators/accuracy.py` found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from benchmarks.operators.accuracy_chance import told
from benchmarks.sources.page_tables import markdown_lines

if TYPE_CHECKING:
    from benchmarks.operators.accuracy import Judged

_TITLE = """# Accuracy

Made by `python -m benchmarks.operators.accuracy DATA --networks --share 0.03 --out docs/accuracy.md`; do not edit.
"""

_SHORT = """
## In short

How far off is a predicted time? The table compares predictions with times of whole networks that others measured. The
model was made without these times, and without any measurement on the GPU itself (on a CPU: of these networks). Ranges
go from the best to the worst set of networks on one device. Decide by the 90 % interval that each prediction states.
Where the interval of two GPUs' ratio includes 1, `rooflinekit compare` does not say which is faster.

"""

_HEAD = """
## What the tables hold

Each op table is split by a hash of the shape: fits see at most a few hundred shapes of one half, and every figure here
is about the other half. *calibrated*: the GPU's own shapes are in the fit. *unseen*: the fit has never seen the GPU,
only its specification; what the host and the way of timing add is known. *inside*: share of measurements within the
predicted 90 % interval. *roofline*: the longer of FLOP at the datasheet's peak and bytes at its bandwidth. Errors are
|predicted / measured - 1|. [accuracy.csv](accuracy.csv) has all figures by mode, set and GPU, also the mean error
(MAPE), the 90th percentile and Spearman's rank correlation.

Two collections of the same matrix product on one GPU differ by 4.4 to 5 % (standard deviation). MIOpen's times of equal
problems on boards of one chip differ by 16 to 35 % (median, `python -m benchmarks.operators.twins DATA`).

Some rows are not judged; `benchmarks/sources/operators.py` has the reasons. MIOpen's runs of one solver alone do not
show the library's choice. Of quantization only vLLM's kernel is judged: TensorRT-LLM's takes 2.7 µs on L40S however
little there is to do, and SGLang's is four.
"""

#: Sets of whole steps as a reader knows them: what they are, and how their names begin and end.
_KINDS = (
    ("image networks, inference, eager", "timm infer", ("nchw", "nhwc")),
    ("image networks, inference, compiled", "timm infer", ("compiled",)),
    ("image networks, training, eager", "timm train", ("nchw", "nhwc")),
    ("transformers", "neusight transformers", ("",)),
    ("image networks on CPUs", "timm infer", ("CPU",)),
)

_NETWORKS = """
## Whole steps

Never fitted on. GPUs without op measurements have the constants of an unmeasured GPU. CPUs have their own, fitted on
half of timm's families, and are judged on the other half. The host is `generic-server`; for torchvision, whose hosts
are unknown, its costs times a factor that is taken from half of the models, and the other half is judged. Of timm a
share of the models is taken, by a hash of the name (`--share`, here 0.03), traced as the release that it was measured
with. TResNets and models named `iabn` that PyTorch 1 ran are left out: they called the package inplace_abn, not the
module that is traced today (`benchmarks/networks/accuracy.py: normalized_by_another`).
"""

_MODES = {
    "calibrated": "calibrated: measurements of the GPU were used",
    "unseen": "unseen: no measurement of the GPU was used",
}
_OPS_SHOWN = ["median %", "inside %", "by chance %"]
_STEPS_SHOWN = ["median %", "p90 %", "bias %", "inside %"]

_COMPILED = """
### What compiling gives

Time of an eager step (channels first) by that of a compiled one, for an image, of each model that was measured in both:
predicted against measured.
"""


def page(ops: pd.DataFrame, chance: pd.DataFrame, networks: pd.DataFrame | None) -> str:
    """The whole page."""
    table = overall(ops).merge(chance, on=["mode", "set"])
    parts = [
        _TITLE,
        *([] if networks is None else [in_short(_steps(networks)) + beside_the_roofline(table)]),
        _HEAD,
        "\n## Ops, mean over GPUs\n",
        told(table) + "\n",
        markdown(_beside(_with_band(table), ["set"], ["GPUs", "n", "roofline median %"], _OPS_SHOWN)),
    ]
    if networks is not None:
        parts += [
            _NETWORKS,
            markdown(_beside(_steps(networks), ["set", "gpu"], ["n"], _STEPS_SHOWN)),
            "\n### By kind of network, timm\n",
            markdown(_grouped(_timm(networks), "kind")),
            "\n### By the regime predicted, timm\n",
            markdown(_grouped(_timm(networks), "regime")),
            _COMPILED,
            markdown(_speedups(networks)),
            "\n### The three worst of each set\n\nWith the largest term and the op that takes the GPU longest.\n",
            markdown(_worst(networks)),
        ]
    parts += ["\n![predicted against measured](accuracy-ops.png)\n\n![error by size](accuracy-size.png)\n"]
    return "\n".join(parts)


def write(folder: Path, ops: pd.DataFrame, networks: pd.DataFrame | None) -> None:
    """accuracy.csv: what the page sums up, by mode, set and GPU; rooflines are of ops alone."""
    tables = [ops] if networks is None else [ops, _steps(networks)]
    table = pd.concat(tables).apply(lambda column: column.map(lambda value: _cell(value, str(column.name))))
    table.to_csv(folder / "accuracy.csv", index=False, lineterminator="\n")


def _range(found: pd.Series[float]) -> str:
    """The least and the most, once where both read alike."""
    return " to ".join(dict.fromkeys(f"{value:.0f}" for value in (found.min(), found.max())))


def in_short(steps: pd.DataFrame) -> str:
    """What a reader who chooses a GPU has to know: steps on GPUs of which no measurement was used.

    steps: a line a mode, set and GPU, as the table of whole steps has them.
    """
    rows = []
    for what, first, last in _KINDS:
        name = steps["set"]
        found = steps[(steps["mode"] == "unseen") & name.str.startswith(first) & name.str.endswith(last)]
        if found.empty:
            continue
        rows.append(
            {
                "what was timed": what,
                "devices": found["gpu"].nunique(),
                "steps": found["n"].sum(),
                "median error": f"{_range(found['median %'])} %",
                "9 of 10 are within": f"{_range(found['p90 %'])} %",
                "inside the 90 % interval": f"{np.average(found['inside %'], weights=found['n']):.0f} %",
            }
        )
    return _SHORT + markdown(pd.DataFrame(rows)) + "\n"


def beside_the_roofline(table: pd.DataFrame) -> str:
    """The operators of GPUs that no fit has seen, beside what is published everywhere: the datasheet's roofline.

    table: a line a mode and set, as the table of operators has them.
    """
    unseen = table[table["mode"] == "unseen"]
    sets, nearer = len(unseen), int((unseen["median %"] < unseen["roofline median %"]).sum())
    ours, naive = unseen["median %"].median(), unseen["roofline median %"].median()
    return f"""
Single operators on GPUs that no fit has seen: the median of {sets} sets is {ours:.0f} % off, where the datasheet's
roofline is {naive:.0f} % off; the prediction is nearer in {nearer} of the {sets}. Other published predictors (NeuSight,
Habitat, PipeWeave, aiconfigurator) were not run on these rows, so no figure here compares with theirs.
"""


def overall(table: pd.DataFrame, key: str = "set") -> pd.DataFrame:
    """The mean over GPUs of each set's figures."""
    names = ["median %", "MAPE %", "inside %", "roofline median %", "roofline MAPE %"]
    grouped = table.groupby(["mode", key], sort=True)
    return grouped[names].mean().assign(GPUs=grouped["gpu"].nunique(), n=grouped["n"].sum()).reset_index()


def _with_band(table: pd.DataFrame) -> pd.DataFrame:
    """With what chance leaves beside what is held, as one column."""
    band = [f"{low:.0f} to {high:.0f}" for low, high in zip(table["least %"], table["most %"], strict=True)]
    shown = table.drop(columns=["least %", "most %"])
    shown.insert(list(shown.columns).index("inside %") + 1, "by chance %", band)
    return shown


def _beside(table: pd.DataFrame, keys: list[str], same: list[str], of_each: list[str]) -> pd.DataFrame:
    """Both modes in one line, the unseen one first: columns that are the same in both, then those of each."""
    modes = {
        m: table[table["mode"] == m].set_index(keys)[of_each].add_suffix(f", {m}") for m in ("unseen", "calibrated")
    }
    return pd.concat([table.groupby(keys)[same].first(), *modes.values()], axis=1).reset_index()


def markdown(table: pd.DataFrame) -> str:
    """A table with one decimal, and ranks with three."""
    heads = list(table.columns)
    rows = ([_cell(v, n) for v, n in zip(row, heads, strict=True)] for row in table.itertuples(index=False))
    return markdown_lines(heads, rows)


def _cell(value: object, name: str) -> str:
    """A number's digits; nothing where there is none."""
    if not isinstance(value, float):
        return str(value)
    return "" if np.isnan(value) else f"{value:.3f}" if name == "rank" else f"{value:.1f}"


def _steps(networks: pd.DataFrame) -> pd.DataFrame:
    """One line a mode, set and GPU."""
    rows = []
    for (mode, name, gpu), part in networks.groupby(["mode", "set", "gpu"], sort=True):
        ratio = (part["predicted_s"] / part["measured_s"]).to_numpy()
        error = 100 * np.abs(ratio - 1)
        rows.append(
            {
                "mode": mode,
                "set": name,
                "gpu": gpu,
                "n": len(part),
                "median %": float(np.median(error)),
                "MAPE %": float(error.mean()),
                "p90 %": float(np.quantile(error, 0.9)),
                "bias %": float(100 * (np.median(ratio) - 1)),
                "rank": float(part["predicted_s"].corr(part["measured_s"], method="spearman")),
                "inside %": 100 * float(part["measured_s"].between(part["low_s"], part["high_s"]).mean()),
            }
        )
    return pd.DataFrame(rows)


def _timm(networks: pd.DataFrame) -> pd.DataFrame:
    """timm's rows, by what was run rather than by release and GPU."""
    rows = networks[networks["set"].str.startswith("timm")].copy()
    way = rows["set"].str.rsplit(", ", n=1).str[1].replace({"nchw": "eager, NCHW", "nhwc": "eager, channels last"})
    return rows.assign(set=rows["set"].str.split(",").str[0] + ", " + way)


def _grouped(rows: pd.DataFrame, key: str) -> pd.DataFrame:
    """Errors by set and one more column."""
    ratio = rows["predicted_s"] / rows["measured_s"]
    marked = rows.assign(error=100 * (ratio - 1).abs(), ratio=ratio)
    found = marked.groupby(["set", key]).agg(
        n=("error", "size"), median=("error", "median"), MAPE=("error", "mean"), bias=("ratio", "median")
    )
    found["bias"] = 100 * (found["bias"] - 1)
    return found.rename(columns={name: f"{name} %" for name in ("median", "MAPE", "bias")}).reset_index()


def _speedups(networks: pd.DataFrame) -> pd.DataFrame:
    """Predicted and measured gain by compiling, by GPU and release."""
    rows = _each(networks)
    eager, compiled = (
        rows[rows["set"].str.endswith(way)].assign(set=rows["set"].str.rsplit(", ", n=1).str[0])
        for way in ("nchw", "compiled")
    )
    both = eager.merge(compiled, on=["set", "gpu", "model"], suffixes=("_eager", "_compiled"))
    both["measured"] = both["measured_eager"] / both["measured_compiled"]
    both["predicted"] = both["predicted_eager"] / both["predicted_compiled"]
    both["error"] = 100 * (both["predicted"] / both["measured"] - 1).abs()
    grouped = both.groupby(["set", "gpu"])
    table = grouped.agg(
        n=("error", "size"),
        measured=("measured", "median"),
        predicted=("predicted", "median"),
        **{"median error %": ("error", "median")},
    )
    return table.map(lambda x: x if isinstance(x, int) else round(x, 2)).reset_index()


def _each(networks: pd.DataFrame) -> pd.DataFrame:
    """timm's inference, seconds an image; of several sizes of a model the first."""
    rows = networks[networks["set"].str.startswith("timm infer")]
    rows = rows.assign(measured=rows["measured_s"] / rows["batch"], predicted=rows["predicted_s"] / rows["batch"])
    return rows.drop_duplicates(["set", "gpu", "model"])


def _worst(networks: pd.DataFrame) -> pd.DataFrame:
    """The largest errors of each set, with the regime predicted."""
    rows = networks[networks["mode"] == "unseen"].copy()
    rows["predicted / measured"] = rows["predicted_s"] / rows["measured_s"]
    rows["off"] = np.abs(np.log(rows["predicted / measured"]))
    worst = rows.sort_values("off", ascending=False).groupby("set", sort=True).head(3).sort_values(["set", "off"])
    shown = worst[["set", "gpu", "model", "batch", "predicted / measured", "kind", "regime", "most"]].copy()
    shown["predicted / measured"] = shown["predicted / measured"].map(lambda ratio: f"{ratio:.2f}")
    return shown


def draw(judged: Sequence[Judged], folder: Path) -> None:
    """Predicted against measured, and the error by size, in both modes."""
    import matplotlib.pyplot as plt

    modes = tuple(_MODES)
    figure, axes = plt.subplots(1, 2, figsize=(10, 5), sharex=True, sharey=True, layout="constrained")
    for axis, mode in zip(axes, modes, strict=True):
        parts = [part for part in judged if part.mode == mode]
        measured, predicted = (np.concatenate([getattr(p, name) for p in parts]) for name in ("measured", "predicted"))
        cells = axis.hexbin(
            measured * 1e3, predicted * 1e3, xscale="log", yscale="log", bins="log", gridsize=90, cmap="viridis"
        )
        axis.plot([1e-3, 1e4], [1e-3, 1e4], color="black", linewidth=0.8)
        axis.set(title=_MODES[mode], xlabel="measured, ms", ylabel="predicted, ms")
        figure.colorbar(cells, label="measurements in a cell")
    figure.savefig(folder / "accuracy-ops.png", dpi=110)
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, mode in zip(axes, modes, strict=True):
        for family in sorted({part.op for part in judged if part.op in _DRAWN}):
            parts = [part for part in judged if part.mode == mode and part.op == family]
            measured, predicted = (np.concatenate([getattr(p, n) for p in parts]) for n in ("measured", "predicted"))
            order = np.argsort(measured)
            chunks = np.array_split(order, 12)
            sizes = [float(np.median(measured[c])) * 1e3 for c in chunks]
            errors = [100 * float(np.median(np.abs(predicted[c] / measured[c] - 1))) for c in chunks]
            axis.plot(sizes, errors, marker="o", markersize=3, label=family)
        axis.set(xscale="log", title=_MODES[mode], xlabel="measured, ms", ylabel="median error, %", ylim=(0, 60))
    axes[1].legend(fontsize=7, ncol=2)
    figure.savefig(folder / "accuracy-size.png", dpi=110)


_DRAWN = {"mm", "linear", "bmm", "softmax", "layernorm", "conv_fwd", "attention", "add", "llm_norm"}
