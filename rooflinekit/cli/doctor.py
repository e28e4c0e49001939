"""The subcommand that says what this installation can do."""

from __future__ import annotations

import typer

from rooflinekit.cli.guide import Command


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command(cls=Command)(doctor)


def doctor() -> None:
    """What this installation can do, and what to install.

    Example: rooflinekit doctor
    """
    from rooflinekit.api.doctor import diagnose

    for one in diagnose():
        print(f"{one.what:<13}{one.found}{f'  (to do: {one.to_do})' if one.to_do else ''}")
