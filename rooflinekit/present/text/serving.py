"""Served language models in a terminal: a line a GPU, batch and context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rooflinekit.errors import CapacityError, RooflinekitError
from rooflinekit.present.text.tables import console, print_table, table
from rooflinekit.serving.serve import Serving, limits_text
from rooflinekit.serving.settings import release_text
from rooflinekit.units import format_quantity

_COLUMNS = (
    "gpu", "clients", "in", "out", "first token", "per token", "decode step", "bound", "tokens/s", "a GPU",
    "a launch $", "J/token", "watts", "largest batch",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A GPU that cannot serve these requests, and why."""

    gpu: str
    clients: int
    input: int
    output: int
    why: RooflinekitError

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "gpu": self.gpu, "batch": self.clients, "input": self.input, "output": self.output, "why": str(self.why)
        }  # fmt: skip


def print_servings(found: Sequence[Serving], refused: Sequence[Refused] = ()) -> None:
    """One line each; what is the same in all stands above."""
    out, first = console(), found[0]
    formats = [
        f"weights {one.weights}, cache {one.kv}{limits_text(one.decode.machine)}{release_text(one.engine)}"
        for one in found
    ]
    alike = len(set(formats)) == 1
    out.print(f"{first.decoder.name}, {formats[0]}" if alike else first.decoder.name, markup=False)
    of = "a launch $" if first.price_usd is None else "a $"
    rows = table(*(of if name == "a launch $" else name for name in _COLUMNS))
    for one, told in zip(found, formats, strict=True):
        priced = one.tokens_per_s_per_dollar
        gpus = one.gpu if one.tp * one.dp == 1 else f"{one.tp * one.dp} × {one.gpu}"
        rows.add_row(
            gpus if alike else f"{gpus}, {told}",
            str(one.stream.clients),
            str(one.stream.input),
            str(one.stream.output),
            *(
                "–" if math.isnan(seconds) else format_quantity(seconds, "s")
                for seconds in (one.ttft_s, one.tpot_s, one.decode_s)
            ),
            one.decode.regime,
            f"{one.tokens_per_s:.4g}",
            f"{one.tokens_per_s_per_gpu:.4g}",
            "–" if priced is None else f"{priced:.3g}",
            *("–" if value is None else f"{value:.3g}" for value in (one.joules_per_token, one.power_w)),
            str(one.largest_batch()),
        )
    for left in refused:
        short = "does not fit" if isinstance(left.why, CapacityError) else "cannot run it"
        numbers = (str(number) for number in (left.clients, left.input, left.output))
        rows.add_row(left.gpu, *numbers, short, *["–"] * (len(_COLUMNS) - 5))
    print_table(rows)
    for why in dict.fromkeys(str(left.why) for left in refused):
        out.print(f"left out: {why}", markup=False, soft_wrap=True)
    for judged in dict.fromkeys(judged for one in found for judged in one.accuracy):
        out.print(f"judged: {judged}", markup=False, soft_wrap=True)
    for line in dict.fromkeys(line for one in found for line in one.launch_lines()):
        out.print(line, markup=False, soft_wrap=True)
    for note in dict.fromkeys(note for one in found for note in one.notes()):
        out.print(f"note: {note}", markup=False, soft_wrap=True)
