"""What files of measurements hold, in a terminal."""

from __future__ import annotations

from rooflinekit.calibrate.campaigns.files import Summary
from rooflinekit.present.text.tables import console, print_table, table
from rooflinekit.study.profile.drawn import Drawn
from rooflinekit.units import format_quantity

_SHOWN = 8  # reasons


def print_summary(found: Summary) -> None:
    """Device, origin, environment; a table of cases by op and format; what is noisy or failed."""
    out = console()
    out.print(f"{found.file}: {found.device}, {found.origin}")
    for name, text in found.environment.items():
        out.print(f"  {name}: {text}")
    formats = list(dict.fromkeys(dtype for _, dtype in found.counts))
    rows = table("measured cases", *formats)
    for op in dict.fromkeys(op for op, _ in found.counts):
        rows.add_row(op, *(str(found.counts.get((op, dtype), "")) for dtype in formats))
    if found.counts:
        print_table(rows)
    if found.noisy:
        out.print(f"noisy: {len(found.noisy)} of {found.cases} cases, such as {found.noisy[0]}")
    for failure in found.failures:
        cases = "case" if len(failure.cases) == 1 else "cases"
        out.print(f"{failure.status}: {len(failure.cases)} {cases}, such as {failure.cases[0]}: {failure.note}")


def print_drawn(found: Drawn) -> None:
    """What of a trace became measured ops, and what did not."""
    out, rows = console(), found.campaign.rows
    counts = table("measured ops", "shapes", "calls")
    for op, part in rows.groupby("op"):
        counts.add_row(str(op), str(len(part)), str(int(part["count"].sum())))
    out.print(f"{found.campaign.gpu}, {found.campaign.source}")
    out.print(counts)
    share = 1 - found.refused_s / found.seconds if found.seconds else 0.0
    out.print(f"{share:.0%} of {format_quantity(found.seconds, 's')} of kernels became rows; of the rest:")
    for reason, count in list(found.refused.items())[:_SHOWN]:
        out.print(f"  {count} × {reason}", markup=False)
    if len(found.refused) > _SHOWN:
        out.print(f"  and {len(found.refused) - _SHOWN} more reasons")
