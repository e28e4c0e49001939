"""Convolutions or products on GPUs that their constants have not seen: a look at what a change of the model does.

    python -m benchmarks.operators.left_out DATA [--what cuDNN] [--rows 400] [--formats fp32] [--architectures]

The stages of a library's convolutions (by default MIOpen's), or of products, are fitted on the rows that the shipped
fits rest on, with all earlier constants as shipped: once on all GPUs, and once more without each GPU (or without its
architecture). Judged are shapes that no fit has seen. `benchmarks/operators/accuracy.py` does the same with all stages,
and on ten times the rows. One format takes some minutes of a core, cuDNN's and products some seconds; ends of fits
differ by half a per cent, so that smaller differences say nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.operators.ablation import shipped
from benchmarks.operators.accuracy import held_back
from benchmarks.sources.operators import read_ops, read_solvers
from benchmarks.sources.page_tables import markdown_lines
from calibration.make.operators import sample
from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.campaigns.operators import CONVOLUTIONS
from rooflinekit.calibrate.fitting.constants import STAGES, Stage
from rooflinekit.calibrate.fitting.hierarchical_fit import Solution, fit
from rooflinekit.calibrate.fitting.observations import Observations, observations_of
from rooflinekit.calibrate.fitting.refit import machines_of, relatives_of
from rooflinekit.hardware.specs import load_device
from rooflinekit.kernels.algorithms import CUDNN, MIOPEN
from rooflinekit.kernels.libraries import rated_as

_FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8")
PRODUCTS = "products"
_PRODUCTS = frozenset({"mm", "linear", "bmm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Rows to fit on and rows to judge by, of all GPUs of a library."""

    stages: Sequence[Stage]
    training: Sequence[Observations]
    judged: Sequence[Observations]

    @classmethod
    def of(cls, data: Path, rows: int, formats: Sequence[str], what: str = MIOPEN) -> Judge:
        """At most so many rows to judge by of an op and format on a GPU."""
        campaigns = list(_campaigns(data, formats, what))
        few = [
            replace(c, rows=c.rows.groupby(["op", "dtype"], group_keys=False).head(rows)) for c in held_back(campaigns)
        ]
        stages = [s for s in STAGES if (s.ops & _PRODUCTS if what == PRODUCTS else s.library == what)]
        return cls(stages=stages, training=observations_of(map(sample, campaigns)), judged=observations_of(few))

    def errors(self, *, architectures: bool = False) -> pd.DataFrame:
        """ln(predicted / measured) of every row, calibrated and left out: one line a row.

        architectures: whether GPUs of the same architecture are left out with each. What the way of timing adds is that
        of the fit on all, for it is no property of the GPU.
        """
        machines = machines_of(sorted({o.gpu for o in self.training}))
        before = known(machines, self.stages)
        together = fit(self.training, machines, self.stages, before, near=shipped(list(machines)), by_count=True)
        relatives = relatives_of(machines)
        found = []
        for gpu in machines:
            gone = {gpu, *(relatives[gpu] if architectures else ())}
            kept = [o for o in self.training if o.gpu not in gone]
            before = known(machines, self.stages, gone)
            others = fit(kept, machines, self.stages, before, near=together, by_count=True)
            near = () if architectures else relatives[gpu]
            modes = {"calibrated": together.values(gpu), "left out": others.values(gpu, near)}
            for o in (o for o in self.judged if o.gpu == gpu):
                harness = together.harness(o.host)
                logs = {
                    mode: np.log(o.predict(machines[gpu].with_values(values), harness) / o.seconds)
                    for mode, values in modes.items()
                }
                found.append(o.rows.assign(gpu=gpu, table=o.host.rpartition("/")[2].rstrip(","), **logs))
        return pd.concat(found, ignore_index=True)


def _campaigns(data: Path, formats: Sequence[str], what: str) -> Iterator[Campaign]:
    """Products, or convolutions by a library, in these formats, as far as fits and the accuracy page have them."""
    if what == MIOPEN:
        yield from (c for c in read_solvers(data) if set(c.rows["dtype"]) <= set(formats))
        return
    for c in read_ops(data):
        rows = c.rows[
            c.rows["op"].isin(_PRODUCTS if what == PRODUCTS else CONVOLUTIONS) & c.rows["dtype"].isin(formats)
        ]
        if len(rows) and what in (PRODUCTS, rated_as(load_device(c.gpu))):
            yield replace(c, rows=rows)


def known(gpus: Iterable[str], stages: Iterable[Stage], gone: Iterable[str] = ()) -> Solution:
    """The shipped constants of all other stages, without those of GPUs that are left out."""
    names, gone = {name for stage in stages for name in stage.constants}, set(gone)
    found = shipped(list(gpus))
    found.estimates = {key: e for key, e in found.estimates.items() if key[1] not in names and key[0] not in gone}
    return found


def summary(errors: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """In per cent, each GPU with the same weight: median errors, the bias left out, shares within a factor of two."""
    found = []
    for key, part in errors.groupby(list(by), sort=True):
        each = [
            {
                "calibrated": np.expm1(one["calibrated"]).abs().median(),
                "left out": np.expm1(one["left out"]).abs().median(),
                "bias": np.expm1(one["left out"].median()),
                "within two": (one["left out"].abs() <= np.log(2)).mean(),
                "within two calibrated": (one["calibrated"].abs() <= np.log(2)).mean(),
            }
            for _, one in part.groupby("gpu")
        ]
        found.append(dict(zip(by, key, strict=True)) | {"n": len(part)} | dict(100 * pd.DataFrame(each).mean()))
    return pd.DataFrame(found).round(1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table of the sets, and one of their GPUs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--what", default=MIOPEN, choices=(MIOPEN, CUDNN, PRODUCTS))
    parser.add_argument("--rows", type=int, default=400, help="of an op and format on a GPU, at most")
    parser.add_argument("--formats", nargs="*", default=_FORMATS, choices=_FORMATS)
    parser.add_argument("--architectures", action="store_true", help="leave out all GPUs of an architecture")
    options = parser.parse_args(arguments)
    judge = Judge.of(options.data, options.rows, options.formats, options.what)
    errors = judge.errors(architectures=options.architectures)
    for by in (["table", "op", "dtype"], ["table", "op", "dtype", "gpu"]):
        table = summary(errors, by)
        print(markdown_lines(list(table.columns), table.astype(str).to_numpy().tolist()), end="\n\n")


if __name__ == "__main__":
    main()
