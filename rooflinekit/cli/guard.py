"""The subcommand that holds workloads against what was locked of them."""

from __future__ import annotations

import hashlib
import platform
import shlex
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit import __version__
from rooflinekit.cli.described import Workload
from rooflinekit.cli.guide import Command
from rooflinekit.cli.options import JsonOption, TargetArgument, print_json
from rooflinekit.cli.parse import check_word
from rooflinekit.cli.workload import OPEN, describes_workload
from rooflinekit.errors import LockError, RooflinekitError

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction
    from rooflinekit.study.guard.check import Block

_FORMATS = ("text", "markdown", "junit", "github")


def guard(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]…", help="workloads of the file; by default all")
    ] = None,
    lock: Annotated[Path, typer.Option("--lock", metavar="FILE", help="the lock file")] = Path("rooflinekit.lock"),
    update: Annotated[bool, typer.Option("--update", help="accept what there is now")] = False,
    form: Annotated[str, typer.Option("--format", help="text, markdown, junit, or github (annotations)")] = "text",
    as_json: JsonOption = False,
) -> None:
    """Whether a model became slower, because of which module.

    Workloads are held against a lock file; no GPU is needed.

    Exit status 0 where all thresholds hold, 1 where one is exceeded, 2 for a file or a workload that is wrong.
    Example: rooflinekit guard --lock examples/rooflinekit.lock --format markdown
    """
    check_word("--format", form, _FORMATS)
    from rooflinekit.api import guard as walk

    found = walk.guard(lock, _predicted, only=names or (), update=update)
    from rooflinekit.present.text import guard as shown

    if as_json:
        print_json("guard", {"checked": [one.to_dict() for one in found]})
    elif form == "junit":
        print(shown.junit(found), end="")
    elif form == "github":
        print(shown.github(found, lock, _lines(lock)))
    elif form == "markdown":
        print(f"{shown.markdown(found)}\n<sub>{_made_by(lock)}</sub>")
    else:
        print(f"{shown.text(found)}\n\n{_made_by(lock)}")
    if update and form == "text" and not as_json:
        print(f"accepted: {lock}")
    if not update and any(one.exceeded for one in found):
        raise typer.Exit(1)


def _predicted(block: Block) -> Sequence[Prediction]:
    """A workload's predictions: `run` is read as `predict` reads its arguments."""
    reader = typer.Typer()
    described: list[tuple[Workload, str]] = []

    @reader.command(cls=Command, context_settings=OPEN)
    @describes_workload
    def predict(workload: Workload, target: TargetArgument) -> None:
        described.append((workload, target))

    try:
        typer.main.get_command(reader).main(shlex.split(block.run), prog_name="run", standalone_mode=False)
        ((workload, target),) = described
        (predictions,) = workload.predict(target)
    except RooflinekitError as error:
        raise LockError(f"[{block.name}] run: {error}") from error
    except ValueError as error:  # of shlex, or of --help, which describes nothing
        raise LockError(f"[{block.name}] run: expected what `rooflinekit predict` is given; {error}") from None
    return predictions


def _lines(lock: Path) -> dict[str, int]:
    """At which line of the file each workload's table begins."""
    heads = {line.strip().strip('[]"'): place for place, line in enumerate(lock.read_text().splitlines(), 1)}
    from rooflinekit.study.guard.check import read_lock

    return {block.name: heads.get(block.name, 1) for block in read_lock(lock).blocks}


def _made_by(lock: Path) -> str:
    """The command and the versions that say the same again, and a hash of the file."""
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    versions = f"rooflinekit {__version__}, torch {metadata.version('torch')}, Python {platform.python_version()}"
    return f"rooflinekit guard --lock {lock} ({versions}; the file's SHA-256 begins with {digest})"
