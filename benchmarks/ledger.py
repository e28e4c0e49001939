"""Every source of measured steps beside what is predicted today, a line a source and device: what got better or worse.

    python -m benchmarks.ledger DATA [--only WORD] [--write]
    python -m benchmarks.ledger DATA --sources

DATA: the folder that the readers used here name. All constants are the shipped ones; what has seen which rows is in the
column `seen`: "gpu" where kernels of the GPU are in the fits, "source" where constants were fitted on steps of this
source, else "nothing". The lines are compared with the last ones of docs/ledger.csv; --write adds them there, under the
commit on which the working tree rests, and writes docs/ledger.md and calibration/accuracy.json. Sources are judged on
samples, in some minutes.
--sources judges nothing: it prints how far sources lie apart by the last lines there (`rooflinekit/step/bounds.py`).
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.sources.page_tables import markdown_lines
from benchmarks.sources.tables import read_table
from rooflinekit.calibrate.fitting.files import constants_for
from rooflinekit.files import write_text
from rooflinekit.hardware.specs import load_device, load_host
from rooflinekit.step.accuracy import Line
from rooflinekit.timing.machine import Machine

ROOT = Path(__file__).parent.parent
FILE, PAGE = ROOT / "docs" / "ledger.csv", ROOT / "docs" / "ledger.md"
CARD = ROOT / "calibration" / "accuracy.json"
KEY = ["source", "what", "device"]
COLUMNS = ["commit", "date", *KEY, "seen", "n", "median", "p90", "bias", "inside", "chance"]
_TIMM_SHARE = 0.012  # of timm's networks, by a hash of their names
_CASES = 150  # of a source of cluster steps
_CLIENTS = 60  # closed loops of clients on a GPU
_EVERY = 3  # which row of DDP's is taken
_OPERATORS, _LONG_S = 120, 2e-4  # rows of an op of a GPU, and the least time of one
_SCATTER = 1.2533 * 1.4826  # of a median: its standard error in absolute deviations from it, over the root of n
_FITTED = Path(ROOT) / "calibration" / "fits"


# --- sources -----------------------------------------------------------------------------------------------------


def _line(
    source: str, what: str, device: str, measured: float, bounds: Sequence[float], seen: str = ""
) -> dict[str, Any]:
    """A row; bounds: predicted, lowest, highest."""
    return {
        "source": source, "what": what, "device": device, "measured": measured, "predicted": bounds[0],
        "inside": bounds[1] <= measured <= bounds[2], "seen": seen or ("gpu" if _has_fit(device) else "nothing"),
    }  # fmt: skip


def _has_fit(device: str) -> bool:
    return (_FITTED / f"{device}.yaml").is_file()


def networks(data: Path) -> Iterator[dict[str, Any]]:
    """Traced steps: NeuSight's transformers, and some of timm's networks."""
    from benchmarks.networks.accuracy import normalized_by_another, sound_transformer_steps, traced
    from benchmarks.sources.networks import timm_steps
    from rooflinekit.step.prediction import predict_graph

    def chosen() -> Iterator[Any]:
        yield from sound_transformer_steps(data)
        for step in timm_steps(data):
            few = zlib.crc32(step.columns["model"].encode()) % 1000 < 1000 * _TIMM_SHARE
            if few and load_device(step.gpu).kind == "gpu" and not normalized_by_another(step):
                yield step

    machine = cache(lambda gpu: Machine.of(load_device(gpu), constants_for(load_device(gpu))))
    for step, graph in traced(chosen()):
        found = predict_graph(
            graph.at(**step.sizes), machine(step.gpu), host=load_host("generic-server"), **step.options
        )
        source = step.table.split(" ")[0].rstrip(",")
        what = f"{step.columns['step']}, {step.options['execution'].backend}"
        yield _line(source, what, step.gpu, step.seconds, (step.of(found), *found.interval(0.9)))


def clusters(data: Path) -> Iterator[dict[str, Any]]:
    """Training steps on clusters."""
    from benchmarks.clusters.accuracy import Bench
    from benchmarks.clusters.sources import SOURCES

    fitted = {"llm_foundry": "a100", "vtrain": "a100"}
    for source in SOURCES:
        rows = Bench().rows(source, data, most=_CASES)
        if source == "megatron_lm":
            rows = rows[rows.note.str.startswith("release")]
        for row in rows.itertuples():
            device = row.cluster.split("-")[0]
            seen = "source" if device == fitted.get(source) else ""
            if source == "vtrain":
                seen = "source"
            yield _line(
                source, "step", _CLUSTER_DEVICES[device], row.measured_s, (row.predicted_s, row.low_s, row.high_s), seen
            )


_CLUSTER_DEVICES = {
    "a100": "nvidia-a100-sxm4-80gb", "h100": "nvidia-h100-sxm5-80gb", "b200": "nvidia-b200-sxm-180gb",
    "gb200": "nvidia-gb200",
}  # fmt: skip


def scaling(data: Path) -> Iterator[dict[str, Any]]:
    """Steps of DDP by what one GPU takes, which is given."""
    from benchmarks.clusters.scaling import judged
    from benchmarks.clusters.scaling_sources import SOURCES
    from benchmarks.sources.operators import gpu_name

    for name in SOURCES:
        for row in judged(list(SOURCES[name](data))[::_EVERY]).itertuples():
            word = row.source.partition(" ")[2].split(",")[0]
            bounds = (row.predicted_s, row.low_s, row.high_s)
            yield _line(name, "DDP, one GPU's given", gpu_name(word) or word, row.measured_s, bounds, "nothing")


def operators(data: Path) -> Iterator[dict[str, Any]]:
    """Kernels of GPUs of which no fit has seen one, of a length beside which a host's launches are little."""
    from benchmarks.operators.ablation import shipped
    from benchmarks.operators.accuracy import held_back, widths
    from benchmarks.sources.operators import read_ops
    from rooflinekit.calibrate.fitting.observations import observations_of, without_faults

    unseen = [campaign for campaign in read_ops(data) if not _has_fit(campaign.gpu)]
    harness = shipped([])
    long = [replace(c, rows=c.rows[c.rows.seconds >= _LONG_S]) for c in held_back(unseen)]
    few = [replace(c, rows=c.rows.groupby("op", group_keys=False).head(_OPERATORS)) for c in long if len(c.rows)]
    for observed in observations_of(few):
        machine = Machine.of(load_device(observed.gpu), constants_for(load_device(observed.gpu)))
        o = without_faults(observed, machine)
        if not len(o):
            continue
        predicted = o.predict(machine, harness.harness(o.host))
        start = machine.start_spread
        width = np.exp(widths(o, machine, predicted, machine.constants.spreads[o.residuals], start))
        for seconds, found, factor in zip(o.seconds, predicted, width, strict=True):
            yield _line("operators", o.residuals, o.gpu, seconds, (found, found / factor, found * factor), "nothing")


def products(data: Path) -> Iterator[dict[str, Any]]:
    """Azure's sustained products of random numbers by cuBLASLt, in fp16 on A100, else in fp8.

    One product comes right after the other, so the kernels' own time counts. Measured and bounds are TFLOP/s.
    """
    import torch

    import rooflinekit as rk

    class Product(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
            if a.dtype != torch.float8_e4m3fn:
                return a @ b.t()
            return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)

    table = read_table(data / "azure" / "tables.csv")
    for row in table[table.section.str.contains("GEMM")].itertuples():
        m, n, k, measured = int(row.c0), int(row.c1), int(float(row.c2)), float(row.c3)
        work = 2 * m * n * k / 1e12
        dtype = "float16" if row.gpu == "A100" else "float8_e4m3fn"
        sizes = rk.Input(m, k, dtype=dtype), rk.Input(n, k, dtype=dtype), rk.Input()
        device = _PRODUCT_DEVICES[row.gpu]
        found = rk.predict(rk.trace(Product(), *sizes, name=f"{m}x{n}x{k}"), device)
        low, high = found.gpu_interval(0.9)
        yield _line("azure", f"product, {dtype}", device, measured, (work / found.gpu_s, work / high, work / low))


_PRODUCT_DEVICES = {
    "A100": "nvidia-a100-sxm4-80gb", "H100": "nvidia-h100-sxm5-80gb", "H200": "nvidia-h200-sxm-141gb",
}  # fmt: skip


def static_batches(data: Path) -> Iterator[dict[str, Any]]:
    """Batches that start together in serving engines."""
    from benchmarks.serving.static import PLACES, SOURCES, judged

    for name in SOURCES:
        for row in judged(data, name).itertuples():
            source = f"{name} {row.engine}" if row.engine != name else name
            yield _line(source, row.what, PLACES[row.gpu][0], row.measured, (row.predicted, row.low, row.high))


def streams(data: Path) -> Iterator[dict[str, Any]]:
    """Closed loops of clients."""
    from benchmarks.serving.closed import GPUS, MODELS, judged

    for name, (gpu, _) in GPUS.items():
        for row in judged(data, name, "predicted", MODELS, most=_CLIENTS).to_dict("records"):
            for which in ("ttft", "tpot"):
                bounds = [row[f"{which}_{part}"] for part in ("predicted", "low", "high")]
                yield _line(f"aiconfigurator {row['engine']}", which, gpu, row[which], bounds)


SOURCES: Mapping[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    "networks": networks, "clusters": clusters, "scaling": scaling, "operators": operators, "products": products,
    "static": static_batches, "streams": streams,
}  # fmt: skip


# --- lines -------------------------------------------------------------------------------------------------------


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """A line a source and device: errors and bias in per cent, the share inside 90 % intervals, and how far off the
    median error may be by the choice of rows alone.
    """
    found = []
    for key, part in rows.groupby(KEY, sort=True):
        ratio = part.predicted / part.measured
        error = 100 * (ratio - 1).abs()
        chance = _SCATTER * (error - error.median()).abs().median() / np.sqrt(len(part))
        found.append(
            dict(zip(KEY, key, strict=True))
            | {"seen": part.seen.iloc[0], "n": len(part), "median": error.median(), "p90": error.quantile(0.9)}
            | {"bias": 100 * (ratio.median() - 1), "inside": 100 * part.inside.mean(), "chance": chance}
        )
    return pd.DataFrame(found).round(1)


def judged(data: Path, only: str = "") -> pd.DataFrame:
    """The lines of all sources of which DATA has the files."""
    rows = []
    for name, read in SOURCES.items():
        if only not in name:
            continue
        start = time.perf_counter()
        try:
            rows += list(read(data))
        except FileNotFoundError as lacking:
            print(f"{name}: left out: {lacking}", file=sys.stderr)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if not rows:
        raise SystemExit(f"{data}: has none of the tables that are judged here")
    return summary(pd.DataFrame(rows))


def compared(lines: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """The lines with the change of the median error, and what it is: "better" or "worse" beyond chance, or nothing.

    Rows are the same before and after, so that less than what the choice of rows leaves open may be a change too.
    """
    old = before.set_index(KEY)["median"].rename("was")
    found = lines.join(old, on=KEY)
    change, open_to = found["median"] - found.was, np.maximum(found.chance, 0.5)
    found["change"] = np.select([change < -open_to, change > open_to], ["better", "worse"], "")
    return found


def last_of(table: pd.DataFrame) -> pd.DataFrame:
    """The last line of each source and device."""
    return table.drop_duplicates(KEY, keep="last")


#: Sources without a licence judge, and stand in the pages; nothing of them is in the package.
_UNLICENSED = ("lambda", "sia")
_TRACED = {
    "inference, eager": ("inference", "eager"), "infer, eager": ("inference", "eager"),
    "infer, compiled": ("inference", "compiled"), "training, eager": ("training", "eager"),
    "train, eager": ("training", "eager"), "train, compiled": ("training", "compiled"),
}  # fmt: skip


def card(table: pd.DataFrame) -> str:
    """The last lines of licensed sources, as `rooflinekit.step.accuracy` reads them."""
    found = []
    for line in last_of(table).itertuples():
        task, execution = _TRACED.get(line.what, (_TASKS.get(line.what, ""), ""))
        if not task or line.source in _UNLICENSED or line.seen == "source":
            continue
        device = load_device(line.device)
        networks = {"neusight": "transformers", "timm": "image networks"}.get(line.source, "")
        found.append(Line(
            source=line.source, task=task, execution=execution, networks=networks, device=line.device,
            architecture=device.architecture, vendor=device.vendor, measurements=int(line.n),
            median=round(line.median / 100, 4), nine_of_ten=round(line.p90 / 100, 4),
            inside=round(line.inside / 100, 3),
        ))  # fmt: skip
    return "[\n" + ",\n".join(json.dumps(asdict(line)) for line in found) + "\n]\n"


def page(table: pd.DataFrame) -> str:
    """The last line of each source and device beside the one before it."""
    newest = last_of(table.reset_index(drop=True))
    shown = compared(newest, last_of(table.reset_index(drop=True).drop(newest.index)))
    heads = ["source", "what", "device", "seen", "n", "median error", "p90", "bias", "in 90 %", "on", "before", ""]
    rows = [
        [r.source, r.what, r.device, r.seen, str(r.n), f"{r.median:.1f} %", f"{r.p90:.0f} %", f"{r.bias:+.1f} %",
         f"{r.inside:.0f} %", r.commit, "" if pd.isna(r.was) else f"{r.was:.1f} %", r.change]
        for r in shown.sort_values(["seen", "median"], ascending=[False, False]).itertuples()
    ]  # fmt: skip
    return "\n".join([_HEAD, "", markdown_lines(heads, rows), ""])


#: What lines of the table are of, as rooflinekit.step.accuracy and rooflinekit.step.bounds call it.
_TASKS = {
    "step": "decoder training", "tokens/s": "per token", "tpot": "per token", "per token": "per token",
    "ttft": "first token", "first token": "first token", "DDP, one GPU's given": "several GPUs",
}  # fmt: skip
_LEAST = 3  # rows of a line that says how far its source is off


def apart(table: pd.DataFrame) -> pd.DataFrame:
    """How far sources lie apart that no constant was fitted on: root of the mean square of ln of the bias, a line once.

    without: the same with each source left out in turn, the least and the greatest of them.
    """
    lines = last_of(table)
    licensed = ~lines.source.isin(_UNLICENSED)
    lines = lines[licensed & (lines.seen != "source") & lines.what.isin(list(_TASKS)) & (lines.n >= _LEAST)]
    lines = lines.assign(kind=lines.what.map(_TASKS), square=np.log1p(lines.bias / 100) ** 2)
    found = []
    for kind, part in lines.groupby("kind"):
        others = [part[part.source != source].square.mean() ** 0.5 for source in sorted(set(part.source))]
        found.append(
            {"kind": kind, "sources": part.source.nunique(), "lines": len(part), "spread": part.square.mean() ** 0.5}
            | {"least without one": min(others), "greatest": max(others)}
        )
    return pd.DataFrame(found).round(3)


_HEAD = """# The ledger

Made by `python -m benchmarks.ledger DATA --write` (`make ledger DATA=…` compares without writing). Every source of
measured steps, judged with the shipped constants on a sample; all lines by commit are in [ledger.csv](ledger.csv).
`seen` says what the constants know: "gpu", kernels of this GPU; "source", steps of this source; "nothing", neither.
Errors are of |predicted / measured - 1|, bias is the median of predicted / measured; of tokens a second, above 0 is too
fast. "better" and "worse" are changes of the median error beyond what the choice of rows leaves open, and at least half
a point."""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="", help="sources whose names have this word")
    parser.add_argument("--write", action="store_true", help="add the lines to docs/ledger.csv, and write the page")
    parser.add_argument("--sources", action="store_true", help="only print how far sources lie apart")
    options = parser.parse_args()
    if options.sources:
        print(apart(read_table(FILE)).to_string(index=False))
        return
    if not any(options.only in name for name in SOURCES):
        parser.error(f"--only {options.only}: no source has this word; there are {', '.join(SOURCES)}")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    lines = judged(options.data, options.only)
    table = read_table(FILE) if FILE.is_file() else pd.DataFrame(columns=COLUMNS)
    with pd.option_context("display.width", 200, "display.max_rows", None):
        print(compared(lines, last_of(table)).to_string(index=False))
    if options.write:
        said = ["git", "-C", str(ROOT), "log", "-1", "--format=%h %cs"]
        commit, date = subprocess.run(said, capture_output=True, text=True, check=True).stdout.split()
        new = lines.assign(commit=f"{commit}+", date=date)[COLUMNS]
        table = pd.concat([table, new]) if len(table) else new
        write_text(table.to_csv(index=False), FILE)
        write_text(page(table), PAGE)
        write_text(card(table), CARD)


if __name__ == "__main__":
    main()
