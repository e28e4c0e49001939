"""Training steps on several GPUs in a terminal: in words, and as the line of a table."""

from __future__ import annotations

from rooflinekit.distributed.accounts import TrainingStep
from rooflinekit.distributed.described import LayoutSearch
from rooflinekit.distributed.fitting import Fitting
from rooflinekit.distributed.prediction import ParallelPrediction
from rooflinekit.present.text.form import FORM
from rooflinekit.present.text.tables import Cell, flat, print_table, say, table_of
from rooflinekit.units import said

Step = ParallelPrediction | TrainingStep


def print_step(step: Step, *, memory: bool = False) -> None:
    """A step in words; its line, where tables alone are asked for. memory: also what memory holds over it."""
    if FORM.get() == "text":
        print(step)
        if memory:
            print(step.memory_text)
    else:
        columns: dict[str, Cell] = {"model": ("graph_name", ""), "cluster": ("cluster.name", ""), "GPUs": ("gpus", "")}
        print_table(table_of(columns | _columns(step), [step], words=(0, 1)), lambda: flat([step.to_dict()]))


def print_layouts(found: LayoutSearch) -> None:
    """What a search found in words; the fastest layouts for their memory, where tables alone are asked for."""
    if FORM.get() == "text":
        print(found)
    else:
        columns: dict[str, Cell] = {"layout": ("layout", ""), "recompute": ("recipe.recompute", "")}
        rows = table_of(columns | _columns(found.best), found.front, words=(0, 1))
        print_table(rows, lambda: flat(step.to_dict() for step in found.front))


def print_fitting(found: Fitting, heading: str) -> None:
    """Prints what is chosen, and a line for each way that was tried."""
    verdict, *_ = str(found).splitlines()
    say(heading, verdict)
    columns: dict[str, Cell] = {
        "combination": ("combination", ""), "step": ("total_s", "s"), "memory": ("peak_bytes", "GiB"),
        "fits": ("probability", ".0%"),
        **{f"largest {name}": (f"largest_{name}", "") for name in found.trials[0].largest},
    }  # fmt: skip
    print_table(table_of(columns, found.table.to_dict("records")), lambda: found.table)


def _columns(first: Step) -> dict[str, Cell]:
    counted: dict[str, Cell] = {"samples/s": ("throughput", ".4g")}
    if isinstance(first, TrainingStep):
        counted = {"tokens/s": ("tokens_per_s", ",.0f")}
    return {
        "step": ("total_s", "s"), "90 % interval": lambda step: " to ".join(said(s, "s") for s in step.interval()),
        **counted, "MFU": ("mfu", ".1%"), "HFU": ("hfu", ".1%"),
        "allocated": lambda step: said(step.memory_verdict().allocated.bytes, "GiB"),
        "fits": lambda step: f"{step.memory_verdict().probability:.0%}",
        "energy": lambda step: said(step.energy and step.energy.joules, "J"),
    }  # fmt: skip
