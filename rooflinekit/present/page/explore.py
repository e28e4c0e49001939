"""A page to explore with: every answer is in it, predicted beforehand, and its script looks them up."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooflinekit.errors import OutputError
from rooflinekit.files import write_text
from rooflinekit.present.figures.records.figure import Roof
from rooflinekit.present.page.templating import Origin, check_path, page_of
from rooflinekit.study.sweep.explored import EXACT, TIMES, Explored
from rooflinekit.study.sweep.points import REGIMES

MOST_BYTES = 2_000_000
_HEIGHT = 980  # of the frame in a notebook, in CSS pixels
_MEANINGS = {
    "compute": "arithmetic at its peak",
    "memory": "memory traffic",
    "latency": "kernels that reach neither roof, and their starts",
    "overhead": "GPU waits for CPU or inputs",
}
_FACTS = {
    "throughput": "Throughput",
    "regime": "Regime",
    "queues": "GPU busy, CPU issuing",
    "flop": "FLOP",
    "bytes": "Traffic of kernels",
    "memory": "Peak memory",
    "power": "Mean power, energy",
    "cost": "A million samples",
}


@dataclass(frozen=True, slots=True)
class Page:
    """An HTML page, which a notebook shows as it is."""

    text: str

    def save(self, path: str | Path) -> Path:
        """Writes it. Returns the path. Raises OutputError for a name that is not .html, or where it cannot be."""
        target = check_path(path)
        write_text(self.text, target)
        return target

    def _repr_html_(self) -> str:
        return (
            f'<iframe title="rooflinekit explore" srcdoc="{html.escape(self.text)}" width="100%" height="{_HEIGHT}" '
            'frameborder="0"></iframe>'
        )


def explore_page(
    grid: Explored, name: str, roofs: Sequence[Sequence[tuple[Roof, Roof]]], prices: Sequence[float | None],
    currency: str, notes: str, origin: Origin,
) -> Page:  # fmt: skip
    """The page of a grid.

    roofs: for each workload and GPU the roof of memory and of the step's arithmetic. prices: of an hour of each GPU.
    Raises OutputError for a grid that makes a page of more than two megabytes.
    """
    document = _document(grid, roofs, prices, currency)
    data = json.dumps(document, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    text = page_of(
        "explore", origin, data, name=name, choices=document["choices"], regimes=_MEANINGS, facts=_FACTS,
        currency=currency, data=data, states=f"{grid.states:,}".replace(",", "\u2009"),
        kept=f"{grid.kept:,}".replace(",", "\u2009"), error=document["error"], notes=notes,
    )  # fmt: skip
    if (size := len(text.encode())) > MOST_BYTES:
        raise OutputError(
            f"the page would have {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}: name fewer GPUs, executions, "
            "hosts, limits or sizes"
        )
    return Page(text)


def _document(
    grid: Explored, roofs: Sequence[Sequence[tuple[Roof, Roof]]], prices: Sequence[float | None], currency: str
) -> dict[str, Any]:
    pool: dict[tuple[int, ...], int] = {}
    counts = [[pool.setdefault(column, len(pool)) for column in zip(*one.exact, strict=True)] for one in grid.series]
    return {
        "choices": {axis: [*known] for axis, known in grid.choices.items()},
        "sizes": [[[name, values] for name, values in lists.items()] for lists in grid.sizes.values()],
        "fixed": [graph.sizes.get("batch") for graph in grid.workloads.values()],
        "times": TIMES, "regimes": REGIMES, "exact": EXACT,
        "series": [[[line.kept, line.rows] for line in one.lines] for one in grid.series],
        "counts": counts, "pool": [*pool],
        "gpus": [{"name": m.device.title, "capacity": m.device.dram.capacity} for m in grid.machines],
        "roofs": [[{"bandwidth": memory.value, "peak": peak.value, "name": peak.name} for memory, peak in row]
                  for row in roofs],
        "prices": prices, "currency": currency, "error": f"{grid.error:.2%}".replace("%", "\u00a0%"),
        "meanings": _MEANINGS, "facts": _FACTS,
    }  # fmt: skip
