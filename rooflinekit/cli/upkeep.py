"""The subcommands that keep watch: over models' times, over this installation, over traces that are kept."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rooflinekit as rk
from rooflinekit.api.workload import Workload
from rooflinekit.cli.command import Answer, made, say
from rooflinekit.cli.guide import Command
from rooflinekit.cli.options import Target
from rooflinekit.cli.workload import OPEN, describes_workload
from rooflinekit.errors import InputError, LockError, RooflinekitError, check_word, printable
from rooflinekit.present import text

if TYPE_CHECKING:
    from rooflinekit.api.trace_store import Kept
    from rooflinekit.study.guard.check import Block, Checked

_FORMATS = ("text", "markdown", "junit", "github")


def guard(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]…", help="workloads of the lock file to check; by default all")
    ] = None,
    lock: Annotated[Path, "--lock FILE", "the lock file"] = Path("rooflinekit.lock"),
    update: Annotated[bool, "accept the present predictions, and write them into the lock file"] = False,
    form: Annotated[str, "--format", "the form of the answer: text, markdown, junit, or github (annotations)"] = "text",
) -> Answer:
    """Check whether a model became slower, and name the module.

    Predictions are compared with a lock file; no GPU is needed. The exit status is 0 where all thresholds hold, 1 where
    one is exceeded, and 2 where a file or a workload is wrong.
    Example: rooflinekit guard --lock examples/rooflinekit.lock --format markdown
    """
    check_word("--format", form, _FORMATS)
    from rooflinekit.api.guard import guard as checked

    found = checked(lock, _predicted, only=names or (), update=update)
    return Answer(
        "guard",
        lambda: {"checked": [one.to_dict() for one in found]},
        lambda: _print_guarded(found, lock, form),
        failed=not update and any(one.exceeded for one in found),
        lines=[f"accepted: {lock}"] if update and form == "text" else (),
    )


def _print_guarded(found: Sequence[Checked], lock: Path, form: str) -> None:
    from rooflinekit.api.guard import lines_of, made_by

    if form == "junit":
        print(text.guard.junit(found), end="")
    elif form == "github":
        print(text.guard.github(found, lock, lines_of(lock)))
    elif form == "markdown":
        print(f"{text.guard.markdown(found)}\n<sub>{made_by(lock)}</sub>")
    else:
        print(f"{text.guard.text(found)}\n\n{made_by(lock)}")


def _predicted(block: Block) -> Sequence[rk.Prediction]:
    """A workload's predictions: `run` is read as `predict` reads its arguments."""
    reader = typer.Typer(add_completion=False)
    described: list[tuple[Workload, str]] = []

    @reader.command(cls=Command, context_settings=OPEN, add_help_option=False)
    @made
    @describes_workload()
    def predict(workload: Workload, target: Target) -> None:
        described.append((workload, target))

    try:
        typer.main.get_command(reader).main(shlex.split(block.run), prog_name="run", standalone_mode=False)
        ((workload, target),) = described
        (predictions,) = workload.predict(target)
    except RooflinekitError as error:
        raise LockError(f"[{block.name}] run: {error}") from error
    except ValueError as error:  # of shlex
        raise LockError(f"[{block.name}] run: expected what `rooflinekit predict` is given; {error}") from None
    return predictions


def doctor() -> Answer:
    """Show what this installation can do, and what is missing.

    Example: rooflinekit doctor --json
    """
    from rooflinekit.api.doctor import diagnose

    found = diagnose()
    return Answer(
        "doctor",
        lambda: {"findings": [asdict(one) for one in found]},
        lines=[f"{one.what:<13}{one.found}{f'  (to do: {one.to_do})' if one.to_do else ''}" for one in found],
    )


_SHOWN = 20  # entries of a kind that are listed


def cache(
    word: Annotated[
        str | None, typer.Argument(help="list only traces with this in their name, with what each depends on")
    ] = None,
    clear: Annotated[bool, "remove all kept traces"] = False,
) -> None:
    """List the traces that are kept between commands.

    It shows what each depends on, or why it could not be kept.

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
        say(f"{store.clear()} traces removed from {folder}")
        return
    found = [one for one in store.kept() if word is None or word in one.label]
    say(f"{len(found)} traces in {folder}")
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
