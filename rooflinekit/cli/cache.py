"""The subcommand that lists traces kept between commands, says what they rest on, and clears them."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.errors import InputError, printable

if TYPE_CHECKING:
    from rooflinekit.api.trace_store import Kept

_SHOWN = 20  # entries of a kind that are listed


def cache(
    word: Annotated[
        str | None, typer.Argument(help="only traces with this in their name, with what they rest on")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="remove all of them")] = False,
) -> None:
    """Traces kept between commands: what each rests on.

    Or why one could not be kept, and so is made anew each time.

    Example: rooflinekit cache resnet
    """
    from rooflinekit.api.trace_store import TraceStore, cache_folder

    if word is not None and clear:
        raise InputError("--clear: removes all traces; leave out the word, or --clear")
    folder = cache_folder()
    if folder is None:
        print("no traces are kept: ROOFLINEKIT_CACHE_DIR is empty")
        return
    store = TraceStore(folder)
    if clear:
        print(f"{store.clear()} traces removed from {printable(str(folder))}")
        return
    found = [one for one in store.kept() if word is None or word in one.label]
    print(f"{len(found)} traces in {printable(str(folder))}")
    for one in found:
        ago = max(0.0, time.time() - one.used)
        print(f"\n{printable(one.label)}: {_why(one)}; {one.size / 1024:.0f} KiB, used {_span(ago)} ago")
        if word is not None:
            _explain(one)


def _why(one: Kept) -> str:
    if one.reasons:
        return f"not kept: {printable(one.reasons[0])}"
    counts = Counter(kind for kind, _, _ in one.entries)
    names = {"file": "files", "variable": "variables", "folder": "folders", "module": "modules that were sought",
             "path": "paths that were looked for"}  # fmt: skip
    return "kept; rests on " + ", ".join(f"{counts[kind]} {name}" for kind, name in names.items() if counts[kind])


def _explain(one: Kept) -> None:
    """Reasons, and what is the user's own: set variables, and files that no installed package brought."""
    for reason in one.reasons:
        print(f"  {printable(reason)}")
    own = [(kind, name, state) for kind, name, state in one.entries if "site-packages" not in name]
    for kind in ("variable", "file", "folder", "path"):
        listed = [(name, state) for k, name, state in own if k == kind and state not in ("unset", "absent")]
        for name, state in listed[:_SHOWN]:
            print(f"  {kind} {printable(name + (state if kind == 'variable' else ''))}")
        if len(listed) > _SHOWN:
            print(f"  … and {len(listed) - _SHOWN} more")


def _span(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
