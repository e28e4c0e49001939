"""A table of ops, timed on many machines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaigns.measured_ops import check_ops
from rooflinekit.calibrate.fitting.observations import observe
from rooflinekit.errors import InputError
from rooflinekit.model.machine import Machine


def sweep_table(table: pd.DataFrame, machines: Sequence[Machine]) -> pd.DataFrame:
    """The table with one more column a machine: seconds of each row's kernels, as a profiler sees them.

    table: ops as in a campaign, with columns op, dtype and the sizes. Raises InputError for what cannot be timed, and
    for a machine whose name is a column already; FormatError for arithmetic that a machine does not have.
    """
    check_ops(table)
    taken = [machine.name for machine in machines if machine.name in table]
    if taken:
        raise InputError(f"the table has a column {taken[0]!r} already; drop or rename it")
    seconds = {machine.name: np.zeros(len(table)) for machine in machines}
    numbered = table.reset_index(drop=True)
    for (op, _), rows in numbered.groupby(["op", "dtype"], sort=False):
        # `seconds` is what was measured; here nothing was.
        kernels = observe("", "", str(op), "profiler", rows.assign(seconds=np.nan))
        for machine in machines:
            seconds[machine.name][rows.index] = kernels.predict(machine, {})
    return table.assign(**seconds)
