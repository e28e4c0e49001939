"""How far predictions are from published measurements: op by op, and whole steps.

    python -m benchmarks.operators.accuracy DATA [--networks] [--out docs/accuracy.md]

DATA is a folder of tables as `benchmarks/sources/operators.py` and `benchmarks/sources/networks.py` read them. Two
modes:

calibrated  constants fitted on one half of all shapes of each GPU, judged on the other half
unseen      constants fitted on all other GPUs (those of its architecture among them), judged on the same half: what the
            specification alone gives. What the host and the way of timing add is that of the calibrated mode, for it is
            no property of the GPU.

Whole steps never enter a fit. Beside each stands the datasheet's roofline: the longer of FLOP at peak and bytes at
bandwidth.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.operators.accuracy_chance import by_chance
from benchmarks.operators.accuracy_page import draw, page, write
from benchmarks.sources.operators import read_ops, split_hash
from calibration.make.operators import KEPT, sample
from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.campaigns.operators import OPS
from rooflinekit.calibrate.fitting.observations import Observations, observations_of, without_faults
from rooflinekit.calibrate.fitting.refit import Refit, machines_of, refit
from rooflinekit.timing.families import OF_THE_DAY
from rooflinekit.timing.kernel_batch import Floats
from rooflinekit.timing.machine import Machine, Spread

ROWS = 4000  # of an op on a GPU that are judged at most
NINETY = 1.645
_START = "kernel_ramp_cycles"
_NETWORK_OPS = {"linear", "bmm"}  # NeuSight's other shapes are random; theirs are those of networks


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Measured and predicted seconds of one op on one GPU in one mode."""

    mode: str
    table: str
    op: str
    gpu: str
    measured: Floats
    predicted: Floats
    roofline: Floats
    width: Floats  # of the 90 % interval, as a logarithm
    residuals: str  # the family that it is off together with
    alone: Floats  # what each kernel is off by itself, standard deviation of the logarithm


def widths(o: Observations, machine: Machine, predicted: Floats, spread: Spread, start: float) -> Floats:
    """The 90 % interval of each measurement as `Prediction.interval` has it, as a logarithm.

    start: the standard deviation of what the starts of kernels take. The host's part of a time is taken as known.
    """
    start_s = o.by_first(machine, lambda _, times: times.launch_s)
    off: Floats = start * np.minimum(start_s / predicted, 1.0)
    return NINETY * np.sqrt(random_of(spread, predicted) ** 2 + spread.systematic**2 + OF_THE_DAY**2 + off**2)


def random_of(spread: Spread, predicted: Floats) -> Floats:
    """What each measurement is off by itself, standard deviation of the logarithm."""
    found: Floats = np.sqrt(spread.random_variance(predicted)) / predicted
    return found


def summary(measured: Floats, predicted: Floats, roofline: Floats, width: Floats) -> dict[str, float]:
    """Errors in per cent; bias is the median of predicted / measured; `inside` the share in 90 % intervals."""
    error = np.abs(predicted / measured - 1)
    log = np.log(predicted / measured)
    naive = np.abs(roofline / measured - 1)
    rank = pd.Series(predicted).corr(pd.Series(measured), method="spearman") if len(measured) > 2 else np.nan
    return {
        "n": len(measured),
        "median %": 100 * float(np.median(error)),
        "MAPE %": 100 * float(error.mean()),
        "p90 %": 100 * float(np.quantile(error, 0.9)),
        "bias %": 100 * float(np.exp(np.median(log)) - 1),
        "rank": float(rank),
        "inside %": 100 * float(np.mean(np.abs(log) <= width)),
        "roofline median %": 100 * float(np.median(naive)),
        "roofline MAPE %": 100 * float(naive.mean()),
    }


def held_back(campaigns: Iterable[Campaign]) -> list[Campaign]:
    """The shapes that no fit sees."""
    found = []
    for c in campaigns:
        rows = c.rows[split_hash(c.rows) >= KEPT]
        if "split" in rows and set(rows["op"]) & _NETWORK_OPS:
            rows = rows[rows["split"] == "test"]
        parts = [part.sample(min(len(part), ROWS), random_state=0) for _, part in rows.groupby("op", sort=True)]
        if parts:
            rest = pd.concat(parts).drop(columns="split", errors="ignore")
            found.append(replace(c, rows=rest))
    return found


def roofline_s(o: Observations, machine: Machine) -> Floats:
    """The datasheet's roofline of each measurement."""
    return o.by_first(
        machine,
        lambda work, times: np.maximum(times.ideal_s, (work.read_bytes + work.write_bytes) / machine.bandwidth),
    )


def judge(campaigns: Sequence[Campaign], fits: Refit) -> list[Judged]:
    """Every op of every GPU in both modes."""
    machines = machines_of(sorted({c.gpu for c in campaigns}))
    found = []
    for campaign in campaigns:
        for raw in observations_of([campaign]):
            o = without_faults(raw, machines[raw.gpu])
            if not len(o):
                continue
            own = fits.gpus[o.gpu].spreads.get(o.residuals, fits.priors.spreads[o.residuals])
            modes = {
                "calibrated": (fits.solution.values(o.gpu, fits.relatives[o.gpu]), own),
                "unseen": (fits.without[o.gpu].values(o.gpu, fits.relatives[o.gpu]), fits.priors.spreads[o.residuals]),
            }
            for mode, (values, spread) in modes.items():
                machine = machines[o.gpu].with_values(values)
                predicted = o.predict(machine, fits.solution.harness(o.host))
                ramp = (fits.gpus[o.gpu] if mode == "calibrated" else fits.priors).constants.get(_START)
                start = (ramp or fits.priors.constants[_START]).stderr
                found.append(
                    Judged(
                        mode=mode,
                        table=_table(campaign, o),
                        op=o.op,
                        gpu=o.gpu,
                        measured=o.seconds,
                        predicted=predicted,
                        roofline=roofline_s(o, machines[o.gpu]),
                        width=widths(o, machine, predicted, spread, start),
                        residuals=o.residuals,
                        alone=random_of(spread, predicted),
                    )
                )
    return found


def _table(campaign: Campaign, o: Observations) -> str:
    source = campaign.source.split("/")[2].split(",")[0].split(" ")[0]
    if OPS[o.op].family == "attention":
        kind = "decode" if "decode" in campaign.source else "encoder" if "encoder" in campaign.source else "prefill"
        return f"{source} {kind} {o.rows['dtype'].iloc[0]}"
    if OPS[o.op].family == "elementwise" and o.timing == "event":
        return f"{source} element-wise fp32"
    return f"{source} {o.op} {o.rows['dtype'].iloc[0]}"


def by_set(judged: Sequence[Judged]) -> pd.DataFrame:
    """One line a mode, set and GPU."""
    groups: dict[tuple[str, str, str], list[Judged]] = {}
    for part in judged:
        groups.setdefault((part.mode, part.table, part.gpu), []).append(part)
    rows = []
    for (mode, table, gpu), parts in groups.items():
        columns = [
            np.concatenate([getattr(p, name) for p in parts]) for name in ("measured", "predicted", "roofline", "width")
        ]
        rows.append({"mode": mode, "set": table, "gpu": gpu} | summary(*columns))
    return pd.DataFrame(rows).sort_values(["mode", "set", "gpu"], kind="stable").reset_index(drop=True)


def main(arguments: Sequence[str]) -> None:
    """Fits, judges, writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--networks", action="store_true", help="whole steps too: some minutes of tracing")
    parser.add_argument(
        "--share", type=float, default=0.06, help="of the timm models that are taken, by a hash of the name"
    )
    parser.add_argument("--out", type=Path, help="write the page, figures and accuracy.csv; by default print the page")
    options = parser.parse_args(arguments)
    campaigns = read_ops(options.data)
    if not campaigns:
        sys.exit(f"{options.data}: expected folders neusight, aiconfigurator, vidur or cnn with op tables; found none")
    fits = refit([sample(campaign) for campaign in campaigns], lambda text: print(f"fit: {text}", file=sys.stderr))
    judged = judge(held_back(campaigns), fits)
    ops = by_set(judged)
    networks = None
    if options.networks:
        from benchmarks.networks.accuracy import judge_networks  # imports torch

        networks = judge_networks(options.data, fits, options.share)
    text = page(ops, by_chance(judged), networks)
    if options.out is None:
        print(text)
        return
    draw(judged, options.out.parent)
    write(options.out.parent, ops, networks)
    options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
