"""The tree of modules as a page: one HTML file, folded to a depth, that needs no network and no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rooflinekit.ir.graph import Graph
from rooflinekit.present.page.templating import Origin, environment, policy, shipped
from rooflinekit.step.made import fingerprint, versions
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.summary import heading, heads_of, notes_of, rows_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A module with those below it."""

    name: str
    cells: tuple[str, ...]
    below: list[_Node] = field(default_factory=list)


def modules_page(
    graph: Graph, predictions: Sequence[Prediction], found: pd.DataFrame, depth: int, origin: Origin
) -> str:
    """The page as HTML. found: what `rooflinekit.summary` gives; depth: levels that stand open."""
    style = f"{shipped('report.css')}\n{shipped('modules.css')}"
    return environment().get_template("modules.html").render(
        model=graph.name,
        heading=heading(graph, predictions),
        heads=heads_of(predictions),
        root=_tree(graph, predictions, found),
        depth=depth,
        notes=notes_of(predictions, found),
        origin=origin,
        versions=versions(),
        hash=fingerprint(found.to_json()),
        style=style,
        policy=policy(style, ""),
    )  # fmt: skip


def _tree(graph: Graph, predictions: Sequence[Prediction], found: pd.DataFrame) -> _Node:
    open_ones: list[_Node] = []  # from the root down to the module that was met last
    for row in rows_of(graph, predictions, found):
        node = _Node(name=row.name, cells=row.cells)
        del open_ones[row.level :]
        if open_ones:
            open_ones[-1].below.append(node)
        open_ones.append(node)
    return open_ones[0]
