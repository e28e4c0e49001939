"""Tables and the words around them, in a terminal or what takes its place; the only place that knows their forms."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rooflinekit.errors import printable
from rooflinekit.present.text.form import FORM, PRINTED, beyond_a_pipe, markdown
from rooflinekit.units import said

if TYPE_CHECKING:
    import pandas as pd

#: What a column shows of a record: a field with its unit, as `said` takes it, or what a function makes of the record.
Cell = tuple[str, str] | Callable[[Any], object]
_ENOUGH = 40  # letters; a column that has more may fold
_GAP = 4  # letters between columns, at most


def whole() -> bool:
    """Whether a program reads the table, so that no row may be left out."""
    return FORM.get() in ("csv", "markdown")


def table(heads: Iterable[str], lines: Iterable[Iterable[object]], *, words: Sequence[int] = (0,)) -> Table:
    """A table of these lines. Columns of words, by default the first, stand to the left, those of numbers to the right.

    Names are shown as they are: brackets are no markup, and escapes are not acted upon.
    """
    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, head in enumerate(heads):
        found.add_column(head, justify="left" if i in words else "right", overflow="fold")
    for line in lines:
        found.add_row(*(Text(printable(str(cell))) for cell in line))
    return found


def table_of(columns: Mapping[str, Cell], records: Iterable[Any], *, words: Sequence[int] = (0,)) -> Table:
    """A table with a line a record, which is a mapping or an object with these fields."""
    lines = ([_cell(record, cell) for cell in columns.values()] for record in records)
    return table(columns, lines, words=words)


def _cell(record: Any, cell: Cell) -> object:
    if callable(cell):
        return cell(record)
    name, unit = cell
    for part in name.split("."):
        record = record[part] if isinstance(record, Mapping) else getattr(record, part)
    return said(record, unit)


def say(*texts: object, before: str = "", soft_wrap: bool = False) -> None:
    """Prints texts as they are, each behind the words before it.

    soft_wrap: the terminal breaks those that are too long, so that they can be copied.
    """
    out = console()
    for text in texts:
        out.print(printable(f"{before}{text}"), markup=False, soft_wrap=soft_wrap)


def console() -> Console:
    """The console for words: standard output, silent where the form of output has none."""
    return _console(120, quiet=FORM.get() != "text")


def print_table(rows: Table, numbers: Callable[[], pd.DataFrame] | None = None) -> None:
    """Prints a table. As CSV it has what `numbers` makes where that is given: the same in base units, not rounded.

    Another table with the same columns continues it there; one with others, as in Markdown every one, follows an empty
    line.
    """
    form = FORM.get()
    if form == "csv":
        frame = None if numbers is None else numbers()
        heads, *body = _texts(rows) if frame is None else [list(map(str, frame.columns))]
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerows([heads] if _begins(heads, joined=True) else [])
        out.writerows(body)
        if frame is not None:
            frame.to_csv(sys.stdout, index=False, header=False, lineterminator="\n")
    elif form == "markdown":
        heads, *body = _texts(rows)
        _begins(heads, joined=False)
        print("\n".join(markdown(heads, body, [column.justify == "left" for column in rows.columns])))
    else:
        terminal = _console(240)
        for part in _parts(rows, terminal):
            terminal.print(part)


def _begins(heads: Sequence[str], *, joined: bool) -> bool:
    """Whether a table needs its heads, after an empty line where it is not the command's first. joined: of CSV."""
    before = PRINTED.get()
    if joined and before and before[-1] == heads:
        return False
    if before:
        print()
    if before is not None:
        before.append(list(heads))
    return True


def flat(documents: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Documents as the rows of a table: their numbers and words, and those within, by names joined with underscores.

    A pair under the name of an interval is two columns, low and high; other lists are left out.
    """
    import pandas as pd

    return pd.DataFrame([dict(_scalars(document)) for document in documents], dtype=object)


def _scalars(document: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    for key, value in document.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{name}_")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            if "interval" in key and len(value) == 2:
                low, high = value
                yield from {name.replace("interval", "low"): low, name.replace("interval", "high"): high}.items()
        else:
            yield name, value


def print_first(columns: Mapping[str, Cell], frame: pd.DataFrame, most: int, what: str = "", **how: Any) -> None:
    """Prints the first rows of a frame of times, and in a line what the others take; for programs all of them.

    how: as of `print_table`.
    """
    most = len(frame) if whole() else most
    print_table(table_of(columns, frame.head(most).reset_index().to_dict("records")), **how)
    rest = frame.iloc[most:]
    if len(rest):
        share = f" ({rest['share'].sum():.1%})" if "share" in rest else ""
        say(f"{len(rest)} more{what} take {said(rest['total_s'].sum(), 's')}{share}")


def _parts(rows: Table, out: Console) -> Iterator[Table]:
    """Tables that are narrow enough, one below the other, each with the first column and the next that fit."""
    names, *others = rows.columns
    free = out.options.update(max_width=sum(_ENOUGH + _GAP for _ in rows.columns))
    while others:
        for number in range(len(others), 0, -1):
            part = Table(box=rows.box, pad_edge=rows.pad_edge, show_header=rows.show_header)
            chosen = [names, *others[:number]]
            part.columns = [replace(column, _index=i, max_width=_ENOUGH) for i, column in enumerate(chosen)]
            part.rows = rows.rows
            if out.measure(part, options=free).maximum <= out.width:
                break
        for column in part.columns:
            column.max_width = None
        yield part
        others = others[number:]


def _texts(rows: Table) -> Iterator[Sequence[str]]:
    yield [_plain(column.header) for column in rows.columns]
    yield from zip(*([_plain(cell) for cell in column.cells] for column in rows.columns), strict=True)


def _plain(cell: object) -> str:
    return (cell.plain if isinstance(cell, Text) else str(cell)).strip()


def _console(columns: int, *, quiet: bool = False) -> Console:
    """Standard output, as wide as its terminal; read by another program, as the terminal before which that stands.

    columns: where there is no terminal.
    """
    out = Console(highlight=False, emoji=False, quiet=quiet)
    if not out.is_terminal:
        out.width = beyond_a_pipe() or columns
    return out
