"""What files of measurements hold, in a terminal."""

from __future__ import annotations

from rooflinekit.calibrate.campaign_files import Summary
from rooflinekit.present.tables import console, table


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
        console(wide=True).print(rows)
    if found.noisy:
        out.print(f"noisy: {len(found.noisy)} of {found.cases} cases, such as {found.noisy[0]}")
    for failure in found.failures:
        cases = "case" if len(failure.cases) == 1 else "cases"
        out.print(f"{failure.status}: {len(failure.cases)} {cases}, such as {failure.cases[0]}: {failure.note}")
