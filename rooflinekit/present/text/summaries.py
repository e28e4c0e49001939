"""A network as a tree of its modules, in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rooflinekit.ir.graph import Graph
from rooflinekit.present.text.tables import console, print_table, table
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.report import title
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

_UNITS = {"flop": "flop", "bytes": "byte", "activation_bytes": "byte"}


def print_summary(graph: Graph, predictions: Sequence[Prediction], found: pd.DataFrame) -> None:
    """What `rooflinekit.summary` found: a line a module, indented as it stands in the network."""
    sizes = ", ".join(f"{name} {number}" for name, number in graph.sizes.items())
    head = title(predictions[0]) if predictions else ", ".join(filter(None, (graph.name, graph.mode, sizes)))
    console().print(head, markup=False)
    gpus = [p.machine.name for p in predictions]
    heads = ["module", "output", "parameters", "FLOP", "traffic", "activations"]
    rows = table(*heads, *(["share"] if gpus else []), *gpus)
    for path, row in found.iterrows():
        parts = str(path).split(".") if path else []
        name = f"{'  ' * len(parts)}{parts[-1]}" if parts else graph.name
        cells = [" × ".join(map(str, row["output"] or ())), f"{row['parameters']:,}" if row["parameters"] else "–"]
        cells += [format_quantity(float(row[name]), unit) for name, unit in _UNITS.items()]
        cells += [f"{row['share']:.1%}"] if gpus else []
        rows.add_row(name, *cells, *(format_quantity(row[gpu], "s") for gpu in gpus))
    print_table(rows, found.reset_index)
    elsewhere = [p for p in predictions if p.total_s > found[p.machine.name].iloc[0] * 1.005]
    for p in elsewhere:
        left = p.total_s - found[p.machine.name].iloc[0]
        console().print(f"note: {p.machine.name}: {format_quantity(left, 's')} of the step belong to no module: what "
                        "the CPU does before the first kernel and after the last")  # fmt: skip
