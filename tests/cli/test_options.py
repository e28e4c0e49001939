"""No command, option or default goes or comes unseen: `options.txt` lists them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from rooflinekit.cli.app import COMMANDS, program
from rooflinekit.cli.command import Answer, Tables, made
from rooflinekit.errors import InputError

LISTED = Path(__file__).with_name("options.txt")


def lines(group: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """A line a command, its arguments and options with their defaults below it."""
    for name, command in group.commands.items():
        yield " ".join((*path, name))
        for one in command.params:
            default = "" if one.default in (None, False) or one.required else f" = {one.default}"
            yield f"    {' '.join((*one.opts, *one.secondary_opts))}{' *' if one.required else ''}{default}"
        if hasattr(command, "commands"):
            yield from lines(command, (*path, name))


def test_every_option_is_listed() -> None:
    """Where this is meant, write what it finds into options.txt."""
    found = "\n".join(lines(typer.main.get_group(program(*COMMANDS)))) + "\n"
    assert found == LISTED.read_text(encoding="utf-8")


def test_one_form_of_an_answer_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def tables() -> Tables:
        return Tables("doctor", lambda: {"findings": []}, lambda: print("words"), failed=True)

    run = made(tables)
    with pytest.raises(typer.Exit):
        run(as_json=False, brief=False, csv=False, markdown=False)
    assert capsys.readouterr().out == "words\n"
    with pytest.raises(InputError, match="--csv and --json: choose one"):
        run(as_json=True, brief=False, csv=True, markdown=False)
    assert isinstance(tables(), Answer)
