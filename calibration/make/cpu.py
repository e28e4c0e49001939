"""Constants of CPUs that nobody has calibrated, fitted on whole steps of timm: no op of theirs was measured.

    python -m calibration.make.cpu DATA [--share 0.06] [--out calibration/fits/architecture-cpu.yaml]

Two constants have another meaning for cores than for a GPU's SMs, and no measured op tells them: what share of their
FMA peak oneDNN's products reach with all cores busy, and what share of that its convolutions. They are fitted on half
of the families of networks, by a hash of the family, and judged on the other half; and, by CPU, fitted on one and
judged on the other. A third is stated: a store reads its line of the cache first, so that of three transfers two are
counted. Printed: errors before and after, in per cent.
"""

from __future__ import annotations

import argparse
import logging
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rooflinekit as rk
from benchmarks.networks.accuracy import traced
from benchmarks.sources.halves import in_first_half
from benchmarks.sources.networks import Step, timm_steps
from rooflinekit.calibrate.fitting.constants import CONSTANTS
from rooflinekit.calibrate.fitting.files import CPUS, load_constants, write_fit
from rooflinekit.calibrate.fitting.hierarchical_fit import estimate, robust
from rooflinekit.hardware.specs import load_host
from rooflinekit.step.prediction import predict_graph
from rooflinekit.timing.machine import Calibration, Machine

NAMES = ("issue_share", "simt_convolution")
_LINES = 2 / 3  # of a CPU's traffic that is counted: stores read their lines of the cache first
_WIDTH = 0.5  # standard deviation of each constant's logarithm about a GPU's: nothing is known of CPUs
_NOISE = 0.4  # of a step: 0.18 that these constants do not describe, and five steps of one family tell as much as one
_BETWEEN = 0.2  # CPUs differ so much, at least: two are known
Rows = Sequence[tuple[Step, rk.Graph]]
Floats = NDArray[np.float64]


def rows_of(data: Path, share: float) -> Rows:
    """The steps of CPUs, a share of the models by a hash of the name, with their graphs."""
    chosen = (
        step
        for step in timm_steps(data)
        if step.table.endswith("CPU") and zlib.crc32(step.columns["model"].encode()) % 1000 < 1000 * share
    )
    return [(step, graph.at(**step.sizes)) for step, graph in traced(chosen)]


def errors(rows: Rows, logs: Sequence[float], start: Mapping[str, float]) -> Floats:
    """ln(measured / predicted) with constants by these logarithms longer than those of GPUs."""
    values = {**start, **{name: start[name] * float(np.exp(x)) for name, x in zip(NAMES, logs, strict=True)}}
    constants, host = load_constants(), load_host("generic-server")
    machines = {gpu: Machine.of(rk.load_device(gpu), constants).with_values(values) for gpu in {s.gpu for s, _ in rows}}
    found = [predict_graph(graph, machines[step.gpu], host=host, **step.options).total_s for step, graph in rows]
    return np.log([step.seconds for step, _ in rows]) - np.log(found)


def fitted(rows: Rows, start: Mapping[str, float]) -> tuple[Floats, Floats]:
    """The logarithms, and their standard errors."""
    start_at, width = np.zeros(len(NAMES)), np.full(len(NAMES), _WIDTH)
    found, covariance = estimate(
        lambda logs: robust(errors(rows, list(logs), start), _NOISE),
        start_at, width, start_at - 3, start_at + 3, prior_weight=1.0, gain=1e-3,
    )  # fmt: skip
    return found, np.sqrt(np.diag(covariance))


def told(label: str, found: Floats) -> None:
    """One line of errors."""
    off = np.abs(np.expm1(-found)) * 100
    bias = float(np.median(np.expm1(-found))) * 100
    print(f"{label:44}{len(found):>5}{np.median(off):>9.1f}{np.mean(off):>9.1f}{bias:>9.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--share", type=float, default=0.06, help="of the models, chosen by a hash of the name")
    parser.add_argument("--out", type=Path, help="the file to write")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    rows = rows_of(given.data, given.share)
    of_gpus: dict[str, Any] = {name: constant.value for name, constant in load_constants().constants.items()}
    start = {**of_gpus, "memory_share": of_gpus["memory_share"] * _LINES}
    half = [in_first_half(step.columns["family"]) for step, _ in rows]
    told_on = [row for row, which in zip(rows, half, strict=True) if which]
    others = [row for row, which in zip(rows, half, strict=True) if not which]
    logs, stderr = fitted(told_on, start)
    print(f"{'':44}{'n':>5}{'median %':>9}{'MAPE %':>9}{'bias %':>9}")
    for name, part in (("families fitted on", told_on), ("other families", others)):
        told(f"{name}, constants of GPUs", errors(part, [0.0] * len(NAMES), of_gpus))
        told(name, errors(part, list(logs), start))
    cpus = sorted({step.gpu for step, _ in rows})
    for cpu in cpus:
        away = [row for row in told_on if row[0].gpu != cpu]
        if away:
            alone, _ = fitted(away, start)
            told(
                f"{cpu}, other families, fitted on the others",
                errors([r for r in others if r[0].gpu == cpu], list(alone), start),
            )
    stated = CONSTANTS["memory_share"].constant(
        start["memory_share"], _BETWEEN, "stated: stores read their lines first"
    )
    constants = {"memory_share": stated}
    for name, log, error in zip(NAMES, logs, stderr, strict=True):
        constants[name] = CONSTANTS[name].constant(
            start[name] * float(np.exp(log)), float(np.hypot(error, _BETWEEN)), "calibration/make/cpu.py: timm"
        )
        print(
            f"{name:24}{start[name]:8.3f} of GPUs, of CPUs {constants[name].value:6.3f} ± {constants[name].stderr:.2f}"
        )
    if given.out is not None:
        head = (
            "What CPUs have that differs from GPUs, where no op of theirs was measured.\n"
            "Made by `python -m calibration.make.cpu`, fitted on steps of timm (Apache-2.0) on two CPUs."
        )
        found = Calibration(name=CPUS, constants=MappingProxyType(constants), spreads=MappingProxyType({}))
        write_fit(found, given.out, head)


if __name__ == "__main__":
    main()
