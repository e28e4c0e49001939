"""What a process with cuDNN takes of a GPU beside the allocator's segments, by the batches that timm's benchmark ran.

    python -m benchmarks.memory.context DATA [--share 0.05]

Each row that had to be made smaller says twice whether a batch fits: the one that ran, and the larger one that did not
(benchmarks/memory/largest_batch.py). Printed is how many of these verdicts are right for a context of so many MiB: of
all rows, of families in the two halves by a hash of their names, of each GPU and each of PyTorch's releases. The
constant is chosen on one half.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import rooflinekit as rk
from benchmarks.memory.largest_batch import asked_share, made_smaller
from benchmarks.sources.halves import in_first_half
from rooflinekit.step.allocator import reserved_bytes
from rooflinekit.step.entry import issues_for
from rooflinekit.step.memory import STEPS, blocks_of, room_of

_MIB = 2**20
_TRIED = (500, 700, 850, 950, 1000, 1050, 1100, 1150, 1250, 1400)  # MiB


def judged(data: Path, share: float) -> pd.DataFrame:
    """Two lines a row; for each context whether the verdict is right."""
    rows = []
    for step, graph, tried, place in made_smaller(data, share):
        device, execution = rk.load_device(step.gpu), step.options["execution"]
        rooms = {mib: room_of(device.dram.capacity, {"context": mib * _MIB}) for mib in _TRIED}
        for batch, ran in ((tried[place], True), (tried[place - 1], False)):
            at = graph.at(batch=batch)
            blocks = blocks_of(at, issues_for(at, device, execution), device, execution)
            program, sizes, spared = blocks.program(STEPS), blocks.sizes, blocks.optional
            taken = all(one.number <= one.most for one in blocks.limits)
            right = {
                mib: (taken and reserved_bytes(program, sizes, room, spared) is not None) is ran
                for mib, room in rooms.items()
            }
            half = "first half" if in_first_half(step.columns["family"]) else "second half"
            rows.append({"gpu": step.gpu, "set": step.table, "half": half, "all": "all", **right})
    return pd.DataFrame(rows)


def main() -> None:
    """Prints the table."""
    options = asked_share(__doc__, 0.05)
    rows = judged(options.data, options.share)
    for column in ("all", "half", "gpu", "set"):
        parts = rows.groupby(column)[[*_TRIED]]
        print(parts.sum().assign(n=parts.size()).to_string())


if __name__ == "__main__":
    main()
