"""Largest batches that fit, against those at which timm's benchmark did not run out of memory.

    python -m benchmarks.memory.largest_batch DATA [--share 0.02]

benchmark.py begins at 1024, 512 or 256 images and takes the next smaller of 1024, 768, 512, 384, 256 … where memory
does not suffice. Of the rows that it had to make smaller: how many steps the predicted batch is from the recorded one.
It also does so after other errors, so rows are left out whose larger batch ran on a GPU with less memory.
"""

from __future__ import annotations

import argparse
import logging
import zlib
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

import rooflinekit as rk
from benchmarks.networks.accuracy import normalized_by_another, traced
from benchmarks.sources.command import asked
from benchmarks.sources.networks import Step, timm_steps
from rooflinekit.step.capacity import memory_on

_FAR = 3  # steps that are looked at to either side


def next_smaller(batch: int) -> int:
    """The batch that follows one that did not fit: steps of half the power of two below it.

    >>> [next_smaller(batch) for batch in (1024, 768, 512, 3, 2)]
    [768, 512, 384, 2, 1]
    """
    power = 1 << ((batch - 1).bit_length() - 1)
    step = max(power // 2, 1)
    return power + (batch - power - 1) // step * step


def batches_from(start: int) -> list[int]:
    """All that are tried."""
    found = [start]
    while found[-1] > 1:
        found.append(next_smaller(found[-1]))
    return found


def made_smaller(data: Path, share: float) -> Iterator[tuple[Step, rk.Graph, list[int], int]]:
    """Steps whose batch was made smaller, with the batches that their benchmark tries, and the place of theirs."""
    steps = list(timm_steps(data))
    starts: dict[tuple[str, str], int] = {}
    for step in steps:
        starts[step.table, step.gpu] = max(starts.get((step.table, step.gpu), 0), step.sizes["batch"])
    ran: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        ran.setdefault((step.table, step.workload), []).append(step)
    decayed = (
        step for step in _decayed(steps, starts, share)
        if not any(_with_less(other, step) for other in ran[step.table, step.workload])
    )  # fmt: skip
    for step, graph in traced(decayed):
        tried = batches_from(starts[step.table, step.gpu])
        yield step, graph, tried, tried.index(step.sizes["batch"])


def _with_less(other: Step, step: Step) -> bool:
    """Whether another GPU ran a larger batch in less memory."""
    less = rk.load_device(other.gpu).dram.capacity < rk.load_device(step.gpu).dram.capacity
    return less and other.sizes["batch"] > step.sizes["batch"]


def verdicts(data: Path, share: float) -> pd.DataFrame:
    """Two lines a row that was made smaller: whether the batch that ran fits, and the larger one that did not run."""
    return pd.DataFrame(
        {"set": step.table, "gpu": step.gpu, **step.columns, "batch": batch, "ran": ran,
         "fits": _fits(graph, step, batch)}
        for step, graph, tried, place in made_smaller(data, share)
        for batch, ran in ((tried[place], True), (tried[place - 1], False))
    )  # fmt: skip


def judge(data: Path, share: float) -> pd.DataFrame:
    """One line a row that was made smaller: by how many steps the prediction is larger, at most `_FAR`."""
    rows = []
    for step, graph, tried, place in made_smaller(data, share):
        near = tried[max(0, place - _FAR) : place + _FAR]
        fitting = next((i for i, batch in enumerate(near) if _fits(graph, step, batch)), len(near))
        rows.append({"set": step.table, "gpu": step.gpu, **step.columns, **step.sizes})
        rows[-1]["larger"] = near.index(step.sizes["batch"]) - fitting
    return pd.DataFrame(rows)


def _decayed(steps: list[Step], starts: dict[tuple[str, str], int], share: float) -> Iterator[Step]:
    for step in steps:
        start, batch = starts[step.table, step.gpu], step.sizes["batch"]
        chosen = zlib.crc32(step.columns["model"].encode()) % 1000 < 1000 * share
        if chosen and batch < start and batch in batches_from(start) and not normalized_by_another(step):
            yield step


def _fits(graph: rk.Graph, step: Step, batch: int) -> bool:
    device, execution = rk.load_device(step.gpu), step.options["execution"]
    return memory_on(graph.at(batch=batch), device, execution).fits


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a set, and one for all."""
    parts = [*rows.groupby("set"), ("all", rows)]
    return pd.DataFrame(
        {
            "set": name,
            "n": len(part),
            "within one step %": 100 * (part["larger"].abs() <= 1).mean(),
            "exactly %": 100 * (part["larger"] == 0).mean(),
            "steps too large, mean": part["larger"].mean(),
        }
        for name, part in parts
    )


def asked_share(words: str | None, share: float) -> argparse.Namespace:
    """The folder of measurements, and a share of the models."""
    given = {"type": float, "default": share, "help": "of the models that are taken, by a hash of the name"}
    return asked((words or "").split("\n")[0], silent=logging.ERROR, share=given)


def main() -> None:
    """Prints the table."""
    options = asked_share(__doc__, 0.02)
    print(summary(judge(options.data, options.share)).round(2).to_string(index=False))


if __name__ == "__main__":
    main()
