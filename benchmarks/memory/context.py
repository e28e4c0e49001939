"""What a process with cuDNN takes of a GPU beside the allocator's segments, by the batches that timm's benchmark ran.

    python -m benchmarks.memory.context DATA [--share 0.05]

Each row that had to be made smaller says twice whether a batch fits: the one that ran, and the larger one that did not
(benchmarks/memory/largest_batch.py). Printed is how many of these verdicts are right for a context of so many MiB: of
all rows, of families in the two halves by a hash of their names, of each GPU. The constant is chosen on one half.
"""

from __future__ import annotations

import argparse
import logging
import warnings
import zlib
from pathlib import Path

import pandas as pd

import rooflinekit as rk
from benchmarks.memory.largest_batch import made_smaller
from rooflinekit.step.allocator import reserved_bytes
from rooflinekit.step.entry import issues_for
from rooflinekit.step.memory import USABLE_SHARE, blocks_of

_MIB = 2**20
_TRIED = (500, 700, 850, 950, 1000, 1050, 1100, 1150, 1250, 1400)  # MiB


def judged(data: Path, share: float) -> pd.DataFrame:
    """Two lines a row; for each context whether the verdict is right."""
    rows = []
    for step, graph, tried, place in made_smaller(data, share):
        device, execution = rk.load_device(step.gpu), step.options["execution"]
        usable = device.dram.capacity * USABLE_SHARE
        for batch, ran in ((tried[place], True), (tried[place - 1], False)):
            at = graph.at(batch=batch)
            blocks = blocks_of(at, issues_for(at, device, execution), device, fused=execution.fused)
            program, sizes = blocks.program(), blocks.sizes
            right = {mib: (reserved_bytes(program, sizes, usable - mib * _MIB) is not None) is ran for mib in _TRIED}
            half = f"half {zlib.crc32(step.columns['family'].encode()) % 2}"
            rows.append({"gpu": step.gpu, "half": half, "all": "all", **right})
    return pd.DataFrame(rows)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--share", type=float, default=0.05, help="of the models that are taken, by a hash of the name")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    rows = judged(options.data, options.share)
    for column in ("all", "half", "gpu"):
        parts = rows.groupby(column)[[*_TRIED]]
        print(parts.sum().assign(n=parts.size()).to_string())


if __name__ == "__main__":
    main()
