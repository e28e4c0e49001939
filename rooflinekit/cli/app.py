"""The command line: each subcommand parses, calls one walk of `api`, prints."""

from __future__ import annotations

import _thread
import codecs
import errno
import functools
import io
import os
import re
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer

from rooflinekit import __version__
from rooflinekit.cli import guide
from rooflinekit.cli.command import Command, made, tell
from rooflinekit.errors import DeviceWarning, RooflinekitError
from rooflinekit.present.text.form import COLUMNS, being, columns_of

_HELP = "How long one step of a PyTorch network takes on a GPU, why, and what would change it."

#: Every command.
COMMANDS = tuple(guide.HOMES)


def program(*names: str, listed: bool = False) -> typer.Typer:
    """The program with these commands; one takes a tenth of the time to build that all take.

    listed: commands are only named, with their texts and without their options, as the program's own help has them.
    Each is what has its name in its module: a function, or a Typer with subcommands. A function's attribute
    `registered` holds keywords of `typer.Typer.command`.
    """
    app = typer.Typer(
        name="rooflinekit",
        help=_HELP,
        cls=guide.Program,
        context_settings={"help_option_names": ["-h", "--help"]},
        invoke_without_command=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_without_command)
    for name in names:
        command = getattr(import_module(f"rooflinekit.cli.{guide.HOMES[name]}"), name.replace("-", "_"))
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            form = {"cls": guide.Command, **getattr(command, "registered", {})}
            app.command(**form)(_named(command) if listed else made(command))
    return app


def _named(command: Command) -> Callable[[], None]:
    def nothing() -> None: ...

    nothing.__name__, nothing.__doc__ = command.__name__, command.__doc__
    return nothing


def _without_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="print the version and nothing else")] = False,
) -> None:
    """What `rooflinekit` does without a command: it says where to begin."""
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        commands = typer.main.get_group(program(*guide.FIRST, listed=True)).commands
        print(guide.welcome(_HELP, {name: guide.summary(commands[name]) for name in guide.FIRST}))


def main() -> None:
    """Runs the command line.

    Exit status 0; 2 for wrong use or bad input; 1 for a specification that `check` fails, a threshold that `guard`
    finds exceeded, or a fault of rooflinekit.
    """
    once = functools.cache(tell)  # a command may name a device to several walks
    with warnings.catch_warnings():
        warnings.simplefilter("always", DeviceWarning)
        shown = warnings.showwarning
        warnings.showwarning = lambda message, category, *rest: (
            once(str(message)) if issubclass(category, DeviceWarning) else shown(message, category, *rest)
        )
        _any_stream()
        hook, sys.unraisablehook = sys.unraisablehook, _again
        try:
            with being(COLUMNS, columns_of(os.environ.get("COLUMNS", ""))):
                _run()
        finally:
            sys.unraisablehook = hook


def _any_stream() -> None:
    """Output closed before the start goes nowhere; "?" stands for letters that the output's encoding lacks."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and codecs.lookup(sys.stdout.encoding).name != "utf-8":
        sys.stdout.reconfigure(errors="replace")


def _again(lost: sys.UnraisableHookArgs) -> None:
    """Ctrl-C that came while something was being cleared away, where nothing can be raised: it comes again."""
    if lost.exc_type is KeyboardInterrupt:
        _thread.interrupt_main()
    else:
        sys.__unraisablehook__(lost)


def _run() -> None:
    try:
        # Without standalone mode typer.Exit becomes the status that the call returns.
        asked = sys.argv[1:]
        names = (asked[0],) if asked and asked[0] in COMMANDS else COMMANDS
        listed = names is COMMANDS and "_ROOFLINEKIT_COMPLETE" not in os.environ
        status = program(*names, listed=listed)(args=asked, standalone_mode=False)
        sys.stdout.flush()
    except RooflinekitError as error:
        _fail(str(error))
    except (typer.Abort, KeyboardInterrupt):
        tell("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; Python would complain once more on exit.
        sys.stdout = None
        sys.exit(0)
    except OSError as error:
        # What is printed goes to a file of the shell's, and its disk is full.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO) or error.filename is not None:
            raise
        sys.stdout = None
        _fail(f"the output cannot be written: {error.strerror}")
    except Exception as error:
        # Wrong options: click's own errors, which typer 0.20 and later raises from a copy of click.
        if not hasattr(error, "format_message"):
            raise
        _fail(_said(error))
    else:
        if isinstance(status, int) and status:
            sys.exit(status)


#: How typer's parser says that a word is no number.
_NO_NUMBER = re.compile(r"Invalid value for '(-[^' ]+).*: Input should be a valid (number|integer)\b.*", re.DOTALL)

_TOO_SMALL = re.compile(r"Invalid value for '(-[^' ]+).*: Input should be greater than or equal to (\d+).*", re.DOTALL)


def _said(error: Any) -> str:
    """A wrong option in words: what is missing with its help, what is no number without the parser's reasons."""
    asked: Any = getattr(error, "param", None)
    if type(error).__name__ == "MissingParameter" and asked is not None and asked.help:
        name = asked.opts[0] if asked.param_type_name == "option" else asked.name.upper()
        return f"{name} is missing: {asked.help}"
    wanted = {"integer": "an integer, such as 8", "number": "a number in digits, such as 8 or 1.5e12"}
    text = _NO_NUMBER.sub(lambda found: f"{found[1]}: expected {wanted[found[2]]}", error.format_message())
    return _TOO_SMALL.sub(r"\1: expected \2 or more", text)


def _fail(message: str) -> None:
    tell(" ".join(message.split()))
    sys.exit(2)
