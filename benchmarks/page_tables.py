"""Tables in Markdown, and a page's between the marks that name the command which made them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

_END = "<!-- end of numbers -->"


def markdown_lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown of texts."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))


def write_tables(tables: Iterable[str], page: Path, script: str) -> None:
    """Puts tables in Markdown in the place of those that `benchmarks/SCRIPT DATA --page …` made before."""
    begin = f"<!-- numbers: made by `python benchmarks/{script} DATA --page"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    mark, _, rest = rest.partition("\n")
    after = rest.partition(_END)[2]
    page.write_text(f"{before}{begin}{mark}\n\n" + "\n\n".join(tables) + f"\n\n{_END}{after}", encoding="utf-8")
