"""A table of ops, timed on many machines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaigns.operators import check_ops
from rooflinekit.calibrate.fitting.observations import Observations, observe
from rooflinekit.errors import InputError
from rooflinekit.model.convolution import formats_channels_last
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
        given = rows.assign(seconds=np.nan)  # what was measured; here nothing was
        known: dict[frozenset[str], Observations] = {}
        for machine in machines:
            layouts = frozenset(formats_channels_last(machine.device))
            if layouts not in known:
                known[layouts] = observe(machine.name, "", str(op), "profiler", given, machine.device)
            seconds[machine.name][rows.index] = known[layouts].predict(machine, {})
    return table.assign(**seconds)
