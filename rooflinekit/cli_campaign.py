"""The subcommands for files of measurements: whether they hold, what they hold, several as one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rooflinekit.errors import OutputError

campaign_app = typer.Typer(
    name="campaign",
    help="Check, summarize and merge what `rooflinekit calibrate` has measured.",
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
)

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="records (.jsonl) or campaigns (.csv)")]


def register(app: typer.Typer) -> None:
    """Adds the subcommands to the program's."""
    app.add_typer(campaign_app, name="campaign")


@campaign_app.callback()
def explain_campaign(context: typer.Context) -> None:
    """Check, summarize and merge what `rooflinekit calibrate` has measured.

    Example: rooflinekit campaign validate NAME-quick.jsonl NAME-quick-graph.csv
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@campaign_app.command()
def validate(files: Files) -> None:
    """Whether files are sound: whole, unchanged, well-formed; exit status 1 where one is not.

    Example: rooflinekit campaign validate calibration/campaigns/nvidia-t4/*.csv
    """
    from rooflinekit.calibrate import campaign_files

    found = campaign_files.validate(files)
    for file, wrong in found.items():
        print(f"{file}: {wrong or 'sound'}")
    if any(found.values()):
        raise typer.Exit(1)


@campaign_app.command()
def summarize(files: Files) -> None:
    """What files hold: device, environment, ops by number formats, noisy cases, failures.

    Example: rooflinekit campaign summarize NAME-quick.jsonl
    """
    from rooflinekit.calibrate import campaign_files
    from rooflinekit.present import campaign_text

    for summary in [campaign_files.summarize_file(file) for file in files]:
        campaign_text.print_summary(summary)


@campaign_app.command()
def merge(
    files: Files,
    out: Annotated[Path, typer.Option("--out", "-o", help="file for all measurements")],
    force: Annotated[bool, typer.Option("--force", help="replace the file")] = False,
) -> None:
    """Several records, or several campaigns, of one device in one environment, as one file.

    Example: rooflinekit campaign merge monday.jsonl tuesday.jsonl --out both.jsonl
    """
    if os.path.lexists(out) and not force:
        raise OutputError(f"{out}: exists; choose another file, or replace it with --force")
    from rooflinekit.calibrate import campaign_files, campaign_merge
    from rooflinekit.present import campaign_text

    campaign_merge.merge_files(files, out, force=force)
    campaign_text.print_summary(campaign_files.summarize_file(out))
    print(f"written to {out}")
