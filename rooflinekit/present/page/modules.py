"""The tree of modules as a page: one HTML file, folded to a depth, that needs no network and no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rooflinekit.present.page.templating import Origin, page_of
from rooflinekit.step.summary import ModuleRow, SummaryText


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    row: ModuleRow
    below: list[_Node] = field(default_factory=list)


def modules_page(told: SummaryText, depth: int, origin: Origin) -> str:
    """The page as HTML; depth: levels that stand open."""
    return page_of("modules", origin, repr(told), told=told, root=_tree(told.rows), depth=depth)


def _tree(rows: Sequence[ModuleRow]) -> _Node:
    path: list[_Node] = []  # from the root down to the module that was met last
    for row in rows:
        node = _Node(row=row)
        del path[row.level :]
        if path:
            path[-1].below.append(node)
        path.append(node)
    return path[0]
