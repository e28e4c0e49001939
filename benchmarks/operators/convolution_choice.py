"""Is it the choice of algorithm or its time that is off? MIOpen's solver names against the rule of choice.

    python -m benchmarks.operators.convolution_choice DATA [--rows 400] [--by gpu]

DATA holds `miopen/find_db.parquet`, whose rows name the solver that MIOpen found fastest. Each name belongs to one of
the algorithms of `model.miopen`, and the rule of choice takes one too. Judged are shapes that no fit has seen,
with the shipped constants of each GPU; how a board wakes up is found on the same rows, as two numbers a GPU, for it is
no part of predictions.

Two tables: how often each algorithm is MIOpen's, and how often that which is taken here; and the errors where both are
the same, where they are not, and where they are not but the other's time had been taken.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from benchmarks.operators.accuracy import held_back
from benchmarks.sources.operators import read_solvers
from benchmarks.sources.page_tables import markdown_lines
from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.campaigns.counted import Group
from rooflinekit.calibrate.fitting.files import load_constants
from rooflinekit.calibrate.fitting.observations import Observations, observations_of
from rooflinekit.hardware.specs import load_device
from rooflinekit.kernels import miopen
from rooflinekit.kernels.algorithms import Algorithm
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.roofline import choices_of

#: Algorithms by what the names of MIOpen's solvers have in them, the first that fits.
_NAMES = {"Winograd": "Winograd", "Naive": "naive"}
_PRODUCTS = (miopen.BY_IMAGE, miopen.GATHERED, miopen.UNFOLDED)
IMPLICIT = "implicit"  # or direct: a tile of results that gathers its windows
_FEWEST = 5


def algorithm_of(solver: str) -> str:
    """The algorithm of a solver: "GemmFwdRest" goes through the library of products, as do all that begin so."""
    if solver.startswith("Gemm"):
        return "products"
    return next((algorithm for word, algorithm in _NAMES.items() if word in solver), IMPLICIT)


def _called(algorithm: Algorithm) -> str:
    if algorithm.packs:  # of the library of products
        return "products"
    return _NAMES.get(algorithm.name.partition(" ")[0].capitalize(), IMPLICIT)


def times(o: Observations, machine: Machine) -> dict[str, np.ndarray]:
    """Seconds of each algorithm for each measurement, by a board that is awake; infinite where it does not exist."""
    by_name: dict[str, list[Group]] = defaultdict(list)
    for group in o.groups:
        own: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in choices_of(group.kernels[-1], machine):
            own[_called(kernel.algorithm)].append(kernel)
        for name, (first, *others) in own.items():
            by_name[name].append(replace(group, kernels=(replace(first, alternatives=tuple(others)),)))
    found = {}
    for name, groups in by_name.items():
        only = replace(o, groups=tuple(groups), timing="profiler", memo={})
        has = np.isin(np.arange(len(o)), np.concatenate([group.rows for group in groups]))
        found[name] = np.where(has, only.predict(machine, {}), np.inf)
    return found


def judged(o: Observations, machine: Machine) -> pd.DataFrame:
    """Each measurement with MIOpen's algorithm and time, the one that is taken, and the time of MIOpen's here."""
    by_algorithm = times(o, machine)
    names, table = np.array(list(by_algorithm)), np.array(list(by_algorithm.values()))
    theirs = o.rows["solver"].map(algorithm_of).to_numpy()
    ours = names[table.argmin(axis=0)]
    of_theirs = [by_algorithm[name][i] if name in by_algorithm else np.nan for i, name in enumerate(theirs)]
    return o.rows.assign(
        gpu=o.gpu, measured=o.seconds, theirs=theirs, ours=ours, predicted=table.min(axis=0), of_theirs=of_theirs
    )


def awake(rows: pd.DataFrame) -> pd.DataFrame:
    """The predictions of a GPU's rows as a board that wakes up is timed: `slow` at first, no longer after `awake`."""

    def slower(seconds: np.ndarray, x: np.ndarray) -> np.ndarray:
        asleep = 1 / (1 + (seconds * np.exp(x[0] - x[1])) ** 3)
        return np.asarray(seconds * np.exp(x[0] * asleep))

    def off(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(slower(rows["predicted"].to_numpy(), x) / rows["measured"].to_numpy()))

    x = least_squares(off, [0.1, np.log(5e-3)], loss="soft_l1", f_scale=0.1).x
    return rows.assign(**{name: slower(rows[name].to_numpy(), x) for name in ("predicted", "of_theirs")})


def confusion(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """In per cent of the measurements of each group: MIOpen's algorithm, by the one that is taken here."""
    keys = [rows[name] for name in (*by, "theirs")]
    return 100 * pd.crosstab(keys, rows["ours"], normalize="index").round(3)


def errors(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Median errors in per cent; `bias` is of the time of MIOpen's algorithm, whichever is taken."""
    rows = rows.assign(
        error=(rows["predicted"] / rows["measured"] - 1).abs(),
        by_theirs=(rows["of_theirs"] / rows["measured"] - 1).abs(),
        right=rows["ours"] == rows["theirs"],
    )
    found = []
    for key, part in rows.groupby([*by, "theirs"], sort=True):
        right, wrong = part[part["right"]], part[~part["right"]]
        found.append(
            dict(zip((*by, "theirs"), key, strict=True))
            | {
                "n": len(part),
                "right %": 100 * part["right"].mean(),
                "error %": 100 * part["error"].median(),
                "if right %": 100 * right["error"].median(),
                "if wrong %": 100 * wrong["error"].median(),
                "their time %": 100 * part["by_theirs"].median(),
                "bias %": 100 * (np.exp(np.log(part["of_theirs"] / part["measured"]).median()) - 1),
            }
        )
    return pd.DataFrame(found).query("n >= @_FEWEST").round(1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=400, help="of a direction and format on a GPU, at most")
    parser.add_argument("--by", nargs="*", default=["dtype", "op"], help="columns that rows are told apart by")
    options = parser.parse_args(arguments)
    found = []
    for o in observations_of(_few(c, options.rows) for c in held_back(read_solvers(options.data))):
        device = load_device(o.gpu)
        found.append(judged(o, Machine.of(device, load_constants(o.gpu))))
    rows = pd.concat([awake(part) for _, part in pd.concat(found).groupby("gpu", sort=True)])
    print(_markdown(confusion(rows, options.by).reset_index()), end="\n\n")
    print(_markdown(errors(rows, options.by)))


def _few(campaign: Campaign, most: int) -> Campaign:
    return replace(campaign, rows=campaign.rows.groupby("op", group_keys=False).head(most))


def _markdown(table: pd.DataFrame) -> str:
    def cell(value: object) -> str:
        text = f"{value:.0f}" if isinstance(value, float) and np.isfinite(value) else str(value)
        return text.replace("nan", "")

    return markdown_lines(list(table.columns), [list(map(cell, row)) for row in table.itertuples(index=False)])


if __name__ == "__main__":
    main()
