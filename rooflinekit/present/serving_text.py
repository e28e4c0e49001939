"""Served language models in a terminal: a line a GPU, batch and context."""

from __future__ import annotations

from collections.abc import Sequence

from rooflinekit.present.tables import console, table
from rooflinekit.serving.serve import Serving
from rooflinekit.units import format_quantity

_COLUMNS = (
    "gpu", "clients", "in", "out", "first token", "per token", "decode step", "bound", "tokens/s", "a GPU",
    "a launch $", "largest batch",
)  # fmt: skip


def print_servings(found: Sequence[Serving]) -> None:
    """One line each; what is the same in all stands above."""
    out, first = console(), found[0]
    out.print(f"{first.decoder.name}, weights {first.weights}, cache {first.kv}", markup=False)
    of = "a launch $" if first.price_usd is None else "a $"
    rows = table(*(of if name == "a launch $" else name for name in _COLUMNS))
    for one in found:
        priced = one.tokens_per_s_per_dollar
        rows.add_row(
            one.gpu if one.tp == 1 else f"{one.tp} × {one.gpu}",
            str(one.stream.clients),
            str(one.stream.input),
            str(one.stream.output),
            *(format_quantity(seconds, "s") for seconds in (one.ttft_s, one.tpot_s, one.decode_s)),
            one.decode.regime,
            f"{one.tokens_per_s:.4g}",
            f"{one.tokens_per_s_per_gpu:.4g}",
            "–" if priced is None else f"{priced:.3g}",
            str(one.largest_batch()),
        )
    console(wide=True).print(rows)
    for note in dict.fromkeys(note for one in found for p in (one.prefill, one.decode) for note in p.notes):
        out.print(f"note: {note}", markup=False, soft_wrap=True)
