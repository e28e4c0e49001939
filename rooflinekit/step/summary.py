"""A step by its modules, as a tree: what each holds, computes, moves and takes, its children included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import InputError
from rooflinekit.ir import keyed
from rooflinekit.ir.arguments import checked, expect_count
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.sizes import missing_size
from rooflinekit.ir.tables import paths_to
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.report import heading, title
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd


@checked
def summary(
    workload: Graph | Prediction | Sequence[Prediction], *, depth: int | None = None, folded: bool = True
) -> pd.DataFrame:
    """A row for each module in the order of its first op, the root "" first.

    depth: paths of at most so many parts. folded: neighbours in a list that hold and cost the same become one row with
    their sums, "layers.0…31".

    Columns: output (sizes of the last forward result); parameters; flop; bytes (traffic); activation_bytes (what its
    forward ops write); and of predictions share (of the step on the first GPU) and, by the GPU's name, the seconds in
    which it works for the module, waits for the CPU included. The root's are those of the whole step, with what the CPU
    does before the first kernel and after the last, which belongs to no module.

    Raises SizeError while a size is open, InputError for a depth below 1 and for predictions of several workloads.

    >>> import torch, rooflinekit as rk
    >>> net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
    >>> rk.summary(rk.predict(net, rk.Input(8, 64), gpu="nvidia-l4"))["parameters"].tolist()
    [4160, 4160, 0]
    """
    if depth is not None:
        expect_count("depth", depth, words="an integer of 1 or more")
    predictions = _predictions(workload)
    graph = predictions[0].graph if predictions else workload
    assert isinstance(graph, Graph)
    if graph.dims:
        raise missing_size(graph.dims)
    counts = graph.tree(depth)
    table = counts[["output", "parameters"]].copy()
    table["flop"] = counts[["matrix_flop", "vector_flop", "special_flop"]].sum(axis=1)
    table["bytes"] = counts[["read_bytes", "write_bytes"]].sum(axis=1)
    table["activation_bytes"] = counts["activation_bytes"]
    for i, prediction in enumerate(predictions):
        seconds = _seconds(prediction)
        table[prediction.machine.name] = [seconds.get(path, 0.0) for path in table.index]
        if i == 0:
            table.insert(5, "share", table[prediction.machine.name] / (prediction.total_s or 1.0))
    return _folded(table) if folded else table


def _predictions(workload: Any) -> Sequence[Prediction]:
    if isinstance(workload, Graph):
        return ()
    found = (workload,) if isinstance(workload, Prediction) else tuple(workload)
    if len({(p.graph.name, p.mode, *p.sizes.items()) for p in found}) != 1:
        raise InputError("summary: expected a Graph, a Prediction, or predictions of one workload on several GPUs")
    return found


def _seconds(prediction: Prediction) -> Mapping[str, float]:
    """The time of each module with all below it; the root's is the step's."""
    spent = prediction.by_module()["total_s"].items()
    seconds = keyed.sums((path, float(each)) for module, each in spent for path in paths_to(str(module)))
    return {**seconds, "": prediction.total_s}


def _folded(table: pd.DataFrame) -> pd.DataFrame:
    """Neighbours with numbers for names that hold and cost the same, as one row with their sums."""
    children = keyed.lists((path.rpartition(".")[0], path) for path in table.index[1:])
    same = {path: (str(row["output"]), row["parameters"], row["flop"], row["bytes"]) for path, row in table.iterrows()}
    named = {"": ""}

    def name(path: str) -> None:
        below = children.get(path, ())
        for _, alike in groupby(below, lambda child: same[child] if child.rpartition(".")[2].isdecimal() else child):
            run = list(alike)
            first, last = (child.rpartition(".")[2] for child in (run[0], run[-1]))
            label = first if first == last else f"{first}…{last}"
            for child in run:
                named[child] = f"{named[path]}.{label}".lstrip(".")
                name(child)

    name("")
    by = [named[path] for path in table.index]
    summed = table.drop(columns="output").groupby(by, sort=False).sum()
    summed.insert(0, "output", table["output"].groupby(by, sort=False).first())
    summed.index.name = "module"
    return summed


# The same as words: what the terminal and the page show.

_UNITS = {"flop": "flop", "bytes": "byte", "activation_bytes": "byte"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """A line of the tree; level counts from 0, the whole network's."""

    level: int
    name: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryText:
    """The lines and columns of a summary."""

    heading: str  # the network, its step and sizes
    heads: tuple[str, ...]  # over the cells of each row
    rows: tuple[ModuleRow, ...]  # the network's own first


def summary_text(graph: Graph, predictions: Sequence[Prediction], found: pd.DataFrame) -> SummaryText:
    """found: what `summary` gave for the graph, or for the predictions of it."""
    gpus = [p.machine.name for p in predictions]
    return SummaryText(
        heading=title(predictions[0]) if predictions else heading(graph, graph.sizes, ()),
        heads=("output", "parameters", "FLOP", "traffic", "activations", *(["share"] if gpus else []), *gpus),
        rows=tuple(_rows(graph, gpus, found)),
    )


def _rows(graph: Graph, gpus: Sequence[str], found: pd.DataFrame) -> Iterator[ModuleRow]:
    for path, row in found.iterrows():
        parts = str(path).split(".") if path else []
        cells = [" × ".join(map(str, row["output"] or ())), f"{row['parameters']:,}" if row["parameters"] else "–"]
        cells += [format_quantity(float(row[name]), unit) for name, unit in _UNITS.items()]
        cells += [f"{row['share']:.1%}"] if gpus else []
        cells += [format_quantity(row[gpu], "s") for gpu in gpus]
        yield ModuleRow(level=len(parts), name=parts[-1] if parts else graph.name, cells=tuple(cells))
