"""What the HTML pages share: templates and their words for numbers, style, the policy that lets nothing in, origins."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from rooflinekit.files import check_ending
from rooflinekit.ir.graph import Graph
from rooflinekit.step.made import fingerprint, versions
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.summary import summary, summary_text
from rooflinekit.study.explain.explanation import seconds, signed
from rooflinekit.units import format_bytes, number, said

#: What a template shows: its names with texts, lengths and rows. Jinja refuses a name that is not there.
View = dict[str, Any]
_QUANTITY = re.compile(r"(?<=\d) (?=(?:[mµn]?s|[kMGTP]?i?B(?:/s)?|[kMGTPE]?FLOP(?:/s|/B)?|% )\b|% )")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How to make a page again: the command line, and the same in Python; "" for what is not known."""

    command: str = ""
    python: str = ""


def page_of(template: str, origin: Origin, hashed: str, **shown: Any) -> str:
    """A page of the template with this name, with the style and the script of its name where they are shipped.

    hashed: what tells two answers apart; its hash is on the page.
    """
    style = "\n".join(filter(None, map(shipped, dict.fromkeys(("report.css", f"{template}.css")))))
    script = shipped(f"{template}.js")
    return environment().get_template(f"{template}.html").render(
        origin=origin, versions=versions(), hash=fingerprint(hashed), style=style, script=script,
        policy=policy(style, script), **shown,
    )  # fmt: skip


def modules_page(graph: Graph, predictions: Sequence[Prediction], depth: int, origin: Origin, *, folded: bool) -> str:
    """The tree of modules as HTML, which needs no script; depth: levels that stand open. folded: see `summary`."""
    told = summary_text(graph, predictions, summary(predictions or graph, folded=folded))
    path: list[dict[str, Any]] = []  # from the root down to the module that was met last
    for row in told.rows:
        node: dict[str, Any] = {"row": row, "below": []}
        del path[row.level :]
        if path:
            path[-1]["below"].append(node)
        path.append(node)
    return page_of("modules", origin, repr(told), told=told, root=path[0], depth=depth)


def check_path(path: str | Path) -> Path:
    """The path of a page. Raises OutputError for a name that does not end so, and where a device or pipe is."""
    return check_ending(path, ".html", ".htm")


def policy(style: str, script: str) -> str:
    """That nothing may be loaded; the page's own style and script may run, known by their digests."""
    return f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def shipped(name: str) -> str:
    """A file of the templates' folder; "" where there is none of this name."""
    file = files("rooflinekit.present.page") / "templates" / name
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


@cache
def environment() -> Environment:
    """The templates, which escape all that is put into them."""
    found = Environment(
        loader=FunctionLoader(shipped), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters |= {
        "bound": bound, "capital": capital, "seconds": seconds, "signed": signed, "size": format_bytes,
        "said": said, "share": "{:.0%}".format, "rate": lambda value, unit=1.0: number(value, unit, "\u2009"),
    }  # fmt: skip
    found.globals["between"] = between
    return found


def between(low: float, high: float) -> str:
    """Bounds of a time; where their unit is one it stands once.

    >>> between(0.0075, 0.0097), between(0.0005, 0.002)
    ('7.50 – 9.70 ms', '500 µs – 2.00 ms')
    """
    first, last = seconds(low), seconds(high)
    number_of_first, _, unit = first.partition(" ")
    return f"{number_of_first if last.endswith(f' {unit}') else first} – {last}"


def capital(text: str) -> str:
    """The text as the beginning of a line; names of code stay as they are.

    >>> capital("peak not reached"), capital("torch.compile")
    ('Peak not reached', 'torch.compile')
    """
    return text[:1].upper() + text[1:] if text.partition(" ")[0].isalpha() else text


def bound(text: str) -> str:
    """The text with numbers and their units kept on one line.

    >>> bound("5 ms at 2.0 TB/s, 90 % of 3 kernels")
    '5\xa0ms at 2.0\xa0TB/s, 90\xa0% of 3 kernels'
    """
    return _QUANTITY.sub("\u00a0", text)
