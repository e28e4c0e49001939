"""The subcommand that fits the constants of the time model anew."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rooflinekit.cli import documents
from rooflinekit.cli.options import JsonOption, print_json, progress_line
from rooflinekit.errors import InputError, printable


def fit(
    campaigns: Annotated[
        Path | None, typer.Option(metavar="DIR", help="measurements; by default those of the checkout")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="where fits go; by default those in use")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="only compare with the fits there, status 1 if they differ")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Fit the constants on all measurements: takes minutes.

    Writes priors.yaml, for a GPU that nobody has measured, a file for each that was, and links.yaml, for
    collectives; removes fits of GPUs without measurements. With --check the exit status is 1 where a number differs
    by more than 0.5 %, of links by 1 % or a tenth of its standard error.
    Example: rooflinekit fit --check
    """
    if campaigns is not None and out is None:
        raise InputError(
            f"--campaigns {campaigns}: say with --out where their fits are; "
            "those in use, fitted on other measurements, would be replaced"
        )
    from rooflinekit.api import calibrate as calibration_workflows
    from rooflinekit.api import collectives as collective_workflows
    from rooflinekit.calibrate.fitting import files as fits
    from rooflinekit.calibrate.fitting import folder as fit_folder

    folder = out or fit_folder.default_folder()
    if not check:
        fit_folder.check_writable(folder)
    with _progress() as advance:
        if advance:
            advance("links")
        links = collective_workflows.fit_links(campaigns)
        found = calibration_workflows.fit(campaigns, progress=advance)
    file = folder / f"{fits.LINKS}.yaml"
    if check:
        difference = fit_folder.first_difference(found, folder)
        if links is not None and not difference:
            difference = fit_folder.links_difference(links.constants, file)
        if as_json:
            print_json("fit", documents.refitted(found, folder, difference=difference, removed=()))
        else:
            print(difference or f"{folder}: as the campaigns give them")
        if difference:
            raise typer.Exit(1)
        return
    removed = fit_folder.write_folder(found, folder, _command(campaigns))
    if links is not None:
        head = f"Link constants: collectives of any cluster.\nMade by `{_command(campaigns)}`."
        fits.write_links(links.constants, file, fits.LINKS, head)
    if as_json:
        print_json("fit", documents.refitted(found, folder, difference=None, removed=removed))
        return
    from rooflinekit.present.text import calibration as fit_text

    fit_text.print_refit(found)
    print(printable(f"fits written to {folder}"))
    if removed:
        print(f"removed, as no campaign is of them: {', '.join(removed)}")


def _command(campaigns: Path | None) -> str:
    """What makes the same files again, wherever they lie."""
    return "rooflinekit fit" if campaigns is None else f"rooflinekit fit --campaigns {shlex.quote(campaigns.name)}"


@contextmanager
def _progress() -> Iterator[Callable[[str], None] | None]:
    """A line on standard error that follows the fit; only on a terminal."""
    with progress_line("reading campaigns") as say:
        yield (lambda step: say(f"fitting: {step}")) if say else None
