"""Convolutions by MIOpen on GPUs that their constants have not seen: a quick look at what a change of the model does.

    python benchmarks/left_out.py DATA [--rows 400] [--formats fp32] [--architectures]

The stage of MIOpen's constants is fitted on the rows that the shipped fits rest on, with all earlier constants as
shipped: once on all GPUs, and once more without each GPU (or without its architecture). Judged are shapes that no fit
has seen. `benchmarks/accuracy.py` does the same with all stages, and on ten times the rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from ablation import shipped
from accuracy import held_back
from make_campaigns import sample
from measured import read_solvers
from page_tables import markdown_lines

from rooflinekit.calibrate.fitting.observations import Observations, observations_of
from rooflinekit.calibrate.fitting.one_stage import Solution, fit
from rooflinekit.calibrate.fitting.refit import machines_of, relatives_of
from rooflinekit.calibrate.fitting.stages import STAGES
from rooflinekit.model.kernel import MIOPEN

_STAGES = [stage for stage in STAGES if stage.library == MIOPEN]
_FORMATS = ("fp32", "fp16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Rows to fit on and rows to judge by, of all of MIOpen's GPUs."""

    training: Sequence[Observations]
    judged: Sequence[Observations]

    @classmethod
    def of(cls, data: Path, rows: int, formats: Sequence[str]) -> Judge:
        """At most so many rows to judge by of a direction and format on a GPU."""
        campaigns = [c for c in read_solvers(data) if set(c.rows["dtype"]) <= set(formats)]
        few = [replace(c, rows=c.rows.groupby("op", group_keys=False).head(rows)) for c in held_back(campaigns)]
        return cls(training=observations_of(map(sample, campaigns)), judged=observations_of(few))

    def errors(self, *, architectures: bool = False) -> pd.DataFrame:
        """ln(predicted / measured) of every row, calibrated and left out: one line a row.

        architectures: whether GPUs of the same architecture are left out with each. What the way of timing adds is that
        of the fit on all, for it is no property of the GPU.
        """
        machines = machines_of(sorted({o.gpu for o in self.training}))
        together = fit(self.training, machines, _STAGES, known(machines), near=shipped(list(machines)), by_count=True)
        relatives = relatives_of(machines)
        found = []
        for gpu in machines:
            gone = {gpu, *(relatives[gpu] if architectures else ())}
            kept = [o for o in self.training if o.gpu not in gone]
            others = fit(kept, machines, _STAGES, known(machines, gone), near=together, by_count=True)
            near = () if architectures else relatives[gpu]
            modes = {"calibrated": together.values(gpu), "left out": others.values(gpu, near)}
            for o in (o for o in self.judged if o.gpu == gpu):
                harness = together.harness(o.host)
                logs = {
                    mode: np.log(o.predict(machines[gpu].with_values(values), harness) / o.seconds)
                    for mode, values in modes.items()
                }
                found.append(o.rows.assign(gpu=gpu, **logs))
        return pd.concat(found, ignore_index=True)


def known(gpus: Iterable[str], gone: Iterable[str] = ()) -> Solution:
    """The shipped constants of all stages but MIOpen's, without those of GPUs that are left out."""
    names, gone = {name for stage in _STAGES for name in stage.constants}, set(gone)
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
    parser.add_argument("--rows", type=int, default=400, help="of a direction and format on a GPU, at most")
    parser.add_argument("--formats", nargs="*", default=_FORMATS, choices=_FORMATS)
    parser.add_argument("--architectures", action="store_true", help="leave out all GPUs of an architecture")
    options = parser.parse_args(arguments)
    errors = Judge.of(options.data, options.rows, options.formats).errors(architectures=options.architectures)
    for by in (["op", "dtype"], ["op", "dtype", "gpu"]):
        table = summary(errors, by)
        print(markdown_lines(list(table.columns), table.astype(str).to_numpy().tolist()), end="\n\n")


if __name__ == "__main__":
    main()
