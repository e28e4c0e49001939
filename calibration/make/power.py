"""The constants of power, fitted on whole steps: what a board draws, told by other people's measurements.

    python -m calibration.make.power DATA

DATA holds `zeus/`, `splitwise/`, `llm_inference_bench/` and `ml_energy/` (benchmarks/sources/power.py: what each is).
No op tells what a board draws. So the constants are fitted on steps of half of the networks (by a hash of their
names) on all GPUs, and written to calibration/fits/energy.yaml with the spread of judged residuals: each row is judged
once, by constants that have seen neither its GPU nor its network. The A100 of 40 and of 80 GB count as one GPU. Rows
without a licence (ml_energy) are in no fit. `benchmarks/energy/accuracy.py` prints the errors.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

import rooflinekit as rk
from benchmarks.sources.power import Case, cases
from rooflinekit.api.predict import machines_of
from rooflinekit.calibrate.fitting.constants import ENERGY_CONSTANTS
from rooflinekit.calibrate.fitting.files import write_power
from rooflinekit.calibrate.fitting.hierarchical_fit import estimate, robust
from rooflinekit.hardware.specs import DEFAULT_HOST, load_host
from rooflinekit.step.prediction import launched_by, predict_graph
from rooflinekit.timing.energy import Load, PowerLaw, clocks, drawn_j
from rooflinekit.timing.machine import Machine, PowerConstants
from rooflinekit.timing.timings import load_of

UNLICENSED = ("ml_energy",)
_WATTS_OFF, _RATIO_OFF = 0.1, 0.05  # what a row may be off by, as far as the fit cares
_FIT = Path(__file__).parents[1] / "fits" / "energy.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A phase of a case, predicted without a limit: its distinct kernels and how often each runs."""

    times: float
    count: np.ndarray
    load: Load
    total_s: float
    gpu_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured row with what the model makes of it."""

    case: Case
    machine: Machine
    parts: tuple[Part, ...]
    base: Case  # the same without a limit

    @property
    def board(self) -> str:
        """The GPU, whatever its memory's size."""
        return Path(self.case.gpu).stem.removesuffix("-40gb").removesuffix("-80gb")

    @property
    def half(self) -> int:
        """Which half its network is of."""
        return zlib.crc32(self.case.network.encode()) % 2


def rows_of(data: Path, share: float) -> list[Row]:
    """Every case, predicted without a limit; of each network the given share of its batch sizes."""
    host, known, found = load_host(DEFAULT_HOST), {}, []
    base: dict[tuple[str, str, str], Case] = {}
    chosen = [c for c in cases(data) if zlib.crc32(c.label.encode()) % 1000 < 1000 * share]
    for case in chosen:
        if not case.limit_w:
            base[case.source, case.gpu, case.label] = case
    for case in chosen:
        key = case.source, case.gpu, case.label
        if key not in known:
            (machine,) = machines_of([case.gpu])
            known[key] = machine, tuple(_part(case, phase, machine, host) for phase in case.phases)
        machine, parts = known[key]
        found.append(Row(case=case, machine=machine, parts=parts, base=base[key]))
    return found


def _execution(case: Case) -> rk.Execution:
    return rk.Execution(backend=case.execution, sync="step" if case.execution == "eager" else "none")


def _part(case: Case, phase: Any, machine: Machine, host: Any) -> Part:
    execution = _execution(case)
    p = predict_graph(phase.graph().at(**phase.sizes), machine, host, execution)
    load = load_of(p.timings, launched_by(execution, machine))
    names = [name for name in Load.__dataclass_fields__ if name != "overlap"]
    columns = np.stack([getattr(load, name) for name in names])
    digits = np.array([[float(f"{v:.3g}") for v in column] for column in columns])
    _, first, count = np.unique(digits, axis=1, return_index=True, return_counts=True)
    few = replace(load, **{name: column[first] for name, column in zip(names, columns, strict=True)})
    return Part(times=phase.times, count=count, load=few, total_s=p.total_s, gpu_s=p.gpu_s, cpu_s=p.cpu_s)


def lawful(row: Row, power: PowerConstants, limit_w: float = 0.0) -> tuple[float, float, float]:
    """Joules beside idling, seconds, and idle watts of a row's phases under a limit, by the constants."""
    machine = replace(row.machine, constants=replace(row.machine.constants, power=power))
    law = PowerLaw.of(machine)
    assert law is not None
    machine = replace(machine, power_limit=limit_w or None)
    joules = seconds = 0.0
    for part in row.parts:
        own, found = clocks(law, part.load, machine)
        load = part.load.at(found / own) if limit_w else part.load
        drawn = sum(drawn_j(law, load, found, limit_w or law.board_w).values())
        gpu_s = float(part.count @ load.total_s)
        least = max(part.gpu_s * gpu_s / float(part.count @ part.load.total_s), part.cpu_s)
        seconds += part.times * (part.total_s + least - max(part.gpu_s, part.cpu_s))
        joules += part.times * float(part.count @ drawn)
    return joules, seconds, law.idle_w


def watts_of(row: Row, power: PowerConstants) -> tuple[float, float, float]:
    """Mean watts as predicted, mean watts for the seconds that were measured, predicted seconds."""
    joules, seconds, idle = lawful(row, power, row.case.limit_w)
    predicted = idle + joules / seconds
    waits = row.case.execution == "eager" and any(part.cpu_s > 0.9 * part.gpu_s for part in row.parts)
    longer = max(1.0, row.base.seconds / lawful(row, power)[1]) if row.base.seconds and waits else 1.0
    return predicted, idle + joules / (seconds * longer), seconds


# --- fitting --------------------------------------------------------------------------------------------------------


def fit(rows: Sequence[Row]) -> PowerConstants:
    """The constants, each held near what is known of it before; every network of a GPU counts the same."""
    rows = _thinned(rows)
    groups = pd.Series([(row.board, row.case.network) for row in rows])
    weights = 2.0 / np.sqrt(groups.map(groups.value_counts()).to_numpy(dtype=float))
    measured = np.array([row.case.watts for row in rows])
    ratios = np.array(
        [row.case.seconds / row.base.seconds if row.case.limit_w and row.base.seconds else np.nan for row in rows]
    )
    timed = np.isfinite(ratios)

    def errors(z: np.ndarray) -> np.ndarray:
        power = _moved(z)
        found = np.array([_both(row, power) for row in rows])
        watts = weights * np.log(found[:, 0] / measured)
        times = (weights * np.log(found[:, 1] / ratios))[timed]
        return np.concatenate((robust(watts, _WATTS_OFF), robust(times, _RATIO_OFF)))

    start, spread = np.zeros(len(ENERGY_CONSTANTS)), np.ones(len(ENERGY_CONSTANTS))
    found, covariance = estimate(errors, start, spread, start - 5, start + 5, prior_weight=1.0, gain=1e-3)
    return _moved(found, np.sqrt(np.diag(covariance)))


def _thinned(rows: Sequence[Row]) -> list[Row]:
    """At most three batch sizes of a network on a GPU, spread over those that there are."""
    kept: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        kept.setdefault((row.case.source, row.case.gpu, row.case.network), set()).add(row.case.label)
    few = {key: sorted(labels, key=lambda label: int(label.split()[-1])) for key, labels in kept.items()}
    few = {key: [labels[i] for i in {0, len(labels) // 2, len(labels) - 1}] for key, labels in few.items()}
    return [row for row in rows if row.case.label in few[row.case.source, row.case.gpu, row.case.network]]


def _both(row: Row, power: PowerConstants) -> tuple[float, float]:
    """Watts for the measured seconds, and the seconds of those without a limit."""
    _, watts, seconds = watts_of(row, power)
    return watts, seconds / lawful(row, power)[1] if row.case.limit_w else 1.0


def _moved(z: np.ndarray, errors: np.ndarray | None = None) -> PowerConstants:
    """The constants, so many of their prior errors from where they start, in logarithms."""
    found = {}
    for i, (name, about) in enumerate(ENERGY_CONSTANTS.items()):
        value = float(np.clip(about.start * np.exp(about.spread * z[i]), about.low, about.high))
        error = about.spread * (1.0 if errors is None else float(min(errors[i], 1.0)))
        told = error < 0.8 * about.spread
        source = "fitted on steps of zeus, splitwise and llm_inference_bench" if told else about.source
        found[name] = about.constant(value, error, source)
    return PowerConstants(constants=MappingProxyType(found), spread=0.3)  # before it is judged


# --- judging --------------------------------------------------------------------------------------------------------


def judged(rows: Sequence[Row]) -> pd.DataFrame:
    """A line a row, each by constants that have seen neither its GPU nor its network."""
    licensed = [row for row in rows if row.case.source not in UNLICENSED]
    lines = []
    for board in sorted({row.board for row in rows}):
        for half in (0, 1):
            mine = [row for row in rows if row.board == board and row.half == half]
            others = [row for row in licensed if row.board != board and row.half != half]
            if mine and others:
                start = time.perf_counter()
                power = fit(others)
                took = f"{time.perf_counter() - start:.0f} s"
                values = ", ".join(f"{name} {c.value:.3g}" for name, c in power.constants.items())
                print(f"{board}, half {half}: {values} ({took})", file=sys.stderr)
                lines += [_line(row, power) for row in mine]
    return pd.DataFrame(lines)


def _line(row: Row, power: PowerConstants) -> dict[str, Any]:
    watts, lawful_w, seconds = watts_of(row, power)
    case = row.case
    plain_s = lawful(row, power)[1]
    return {
        "source": case.source, "gpu": row.board, "network": case.network, "label": case.label,
        "limit_w": case.limit_w or row.machine.device.board_power, "limited": bool(case.limit_w),
        "watts": case.watts, "predicted_w": watts, "lawful_w": lawful_w,
        "seconds": case.seconds or np.nan, "predicted_s": seconds,
        "ratio": case.seconds / row.base.seconds if case.seconds and case.limit_w else np.nan,
        "predicted_ratio": seconds / plain_s,
    }  # fmt: skip


def log_off(predicted: pd.Series, measured: pd.Series) -> pd.Series:
    """ln(predicted / measured)."""
    return np.log(predicted / measured)


def spread_of(lines: pd.DataFrame) -> float:
    """Standard deviation of ln(measured / predicted) of mean watts, every network of a GPU counting the same."""
    off = log_off(lines["predicted_w"], lines["watts"])
    return float(np.sqrt((off**2).groupby([lines["gpu"], lines["network"]]).mean().mean()))


def main(data: Path) -> None:
    """Writes calibration/fits/energy.yaml."""
    rows = rows_of(data, 1.0)
    half = [row for row in rows if row.half == 0 and row.case.source not in UNLICENSED]
    head = "Constants of power: what a board draws.\nMade by `python -m calibration.make.power DATA`."
    write_power(replace(fit(half), spread=spread_of(judged(rows))), _FIT, head)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
