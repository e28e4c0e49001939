"""What a guard found: for a terminal, as Markdown for a pull request, as JUnit XML, as annotations of GitHub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from xml.etree import ElementTree

from rooflinekit.present.text.form import markdown as markdown_table
from rooflinekit.study.explain.explanation import seconds, signed
from rooflinekit.study.guard.check import Checked, shown
from rooflinekit.units import format_quantity

_SHOWN = 3  # causes of one change
_BAR = 24  # columns of the longest bar


def text(found: Sequence[Checked]) -> str:
    """A paragraph a workload and GPU."""
    paragraphs = []
    for one in found:
        mark = "new " if one.locked is None else "FAIL" if one.exceeded else "chg " if one.changes else "ok  "
        head = f"{mark}  {one.block.name} on {one.gpu}: {_time(one)}, {one.now.regime}-bound"
        paragraphs.append("\n    ".join([head, *details(one)]))
    return "\n\n".join(paragraphs)


def details(one: Checked) -> Iterator[str]:
    """What exceeds its threshold, what changed and by how certain a share, and because of what."""
    yield from (f"exceeded: {words}" for words in one.exceeded)
    others = [f"{name} {shown(name, was)} → {shown(name, now)}" for name, (was, now) in one.changes.items()]
    if others:
        yield f"changed: {', '.join(others)}"
    if "time" in one.changes and (ratio := one.ratio) is not None:
        bounds = f"with 90 % probability {ratio.low:.3f} to {ratio.high:.3f}"
        if ratio.certain:
            yield f"{ratio.times:.3f} times as long, for certain: {bounds}"
        else:
            yield "it is not certain that the time changed: the difference is within the error of the two predictions"
    for cause in one.causes[:_SHOWN]:
        after = f", and what follows it {signed(cause.following_s)}" if cause.following_s else ""
        yield f"because of {cause.words}: {signed(cause.delta_s)}{after} ({cause.what})"
    if left := one.causes[_SHOWN:]:
        yield f"and {len(left)} further places: {signed(sum(cause.all_s for cause in left))}"
    if one.own_s:
        yield f"rooflinekit itself: {signed(one.own_s)}; its constants or counts have changed since"
    yield from one.notes


def _time(one: Checked) -> str:
    if "time" not in one.changes:
        return seconds(one.now.total_s)
    was, now = one.changes["time"]
    return f"{seconds(was)} → {seconds(now)} ({now / was - 1:+.1%})" if was else f"{seconds(was)} → {seconds(now)}"


def markdown(found: Sequence[Checked]) -> str:
    """A comment for a pull request: a table, what is behind each change, and the waterfall of the worst."""
    failed = sum(bool(one.exceeded) for one in found)
    changed = sum(bool(one.changes) for one in found)
    lines = [f"### rooflinekit guard: {failed} of {len(found)} exceed a threshold, {changed} changed", ""]
    heads = ("", "workload", "GPU", "time of a step", "memory", "kernels", "regime")
    rows = []
    for one in found:
        memory = format_quantity(one.now.memory.peak_bytes, "byte")
        mark = "❌" if one.exceeded else "🔸" if one.changes else "✅"
        cells = (mark, one.block.name, one.gpu, _time(one), memory, f"{one.now.launched:,}", one.now.regime)
        rows.append([_cell(cell) for cell in cells])
    lines += markdown_table(heads, rows, [True] * len(heads))
    for one in found:
        if behind := list(details(one)):
            lines += ["", f"**{one.block.name} on {one.gpu}**", "", *(f"- {_cell(line)}" for line in behind)]
    grown = [(one.ratio.times, one) for one in found if one.ratio is not None and "time" in one.changes]
    if grown:
        worst = max(grown, key=lambda item: item[0])[1]
        lines += ["", f"From what was locked to now, {worst.block.name} on {worst.gpu}:", "", "```text"]
        lines += [*waterfall(worst), "```"]
    return "\n".join(lines) + "\n"


def _cell(words: str) -> str:
    return words.replace("<", "&lt;")


def waterfall(one: Checked) -> list[str]:
    """A line a term of the time, from what was to what is, each beginning where the one before ends."""
    e = one.explanation
    assert e is not None
    a_s, b_s = e.totals
    steps = [(name, more) for name, more in e.terms().items() if abs(more) > 1e-6 * max(a_s, b_s)]
    levels = list(accumulate((more for _, more in steps), initial=a_s))
    scale = _BAR / max(levels)
    rows = [("locked", seconds(a_s), 0.0, a_s)]
    for (name, more), start in zip(steps, levels, strict=False):
        rows.append((name, signed(more), min(start, start + more), max(start, start + more)))
    rows.append(("now", seconds(b_s), 0.0, b_s))
    return [
        f"{name:<10}{value:>12}  {' ' * round(low * scale)}{'█' * max(1, round(high * scale) - round(low * scale))}"
        for name, value, low, high in rows
    ]


def junit(found: Sequence[Checked]) -> str:
    """A test case a workload and GPU, in JUnit's XML."""
    suite = ElementTree.Element(
        "testsuite", name="rooflinekit guard", tests=str(len(found)), errors="0", skipped="0",
        failures=str(sum(bool(one.exceeded) for one in found)),
    )  # fmt: skip
    for one in found:
        case = ElementTree.SubElement(suite, "testcase", classname=one.block.name, name=one.gpu)
        if one.exceeded:
            failure = ElementTree.SubElement(case, "failure", message="; ".join(one.exceeded))
            failure.text = "\n".join(details(one))
        elif one.changes:
            ElementTree.SubElement(case, "system-out").text = "\n".join(details(one))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def github(found: Sequence[Checked], path: Path, lines: dict[str, int]) -> str:
    """Annotations of the lock file: an error for what exceeds a threshold, a notice for what changed.

    lines: by workload the line at which its table begins.
    """
    told = []
    for one in found:
        if one.exceeded or one.changes:
            level = "error" if one.exceeded else "notice"
            title = _property(f"{one.block.name} on {one.gpu}: {_time(one)}")
            place = f"file={_property(str(path))},line={lines[one.block.name]},title={title}"
            told.append(f"::{level} {place}::{_escaped(chr(10).join(details(one)))}")
    return "\n".join(told)


def _escaped(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _escaped(words).replace(":", "%3A").replace(",", "%2C")
