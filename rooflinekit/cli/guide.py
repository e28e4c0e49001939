"""What `--help` says: commands by the question that they answer, and examples in lines that can be copied."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from rooflinekit.cli.synonyms import command_hint, option_hint
from rooflinekit.errors import InputError

#: Every command, under its question, behind the module of this folder that its function is in. A test holds the first
#: lines of their docstrings to what fits beside the names.
_COMMANDS = {
    "Predict and explain": (
        "step.predict step.summary step.explain pages.plot pages.report pages.explore step.crossover step.profile"
    ),
    "Choose": "choose.compare choose.transfer choose.advise choose.sweep choose.search choose.power choose.cost",
    "Many GPUs and serving": "several.parallel several.fit-into several.train several.collective serve.serve",
    "Measure and calibrate": "measuring.measure measuring.calibrate measuring.campaign measuring.fit",
    "Keep watch": "upkeep.guard",
    "Hardware": "hardware.devices hardware.hosts hardware.clusters hardware.specs hardware.check",
    "Itself": "upkeep.doctor upkeep.cache",
}
_PLACES = {question: [word.split(".") for word in words.split()] for question, words in _COMMANDS.items()}
GROUPS = {question: [name for _, name in places] for question, places in _PLACES.items()}
HOMES = {name: home for places in _PLACES.values() for home, name in places}

#: What a newcomer needs, each with a call to begin with.
FIRST = {
    "predict": "timm:resnet50 --batch 32 --gpu nvidia-l4",
    "explain": "examples/bottlenecks.py:A examples/bottlenecks.py:A_prime --input 1,64,160,120 --gpu nvidia-l4",
    "compare": 'timm:resnet50 --batch 32 --memory-min "40 GB"',
    "report": "timm:resnet50 --batch 32 --gpu nvidia-l4 --out review.html",
    "devices": "--sort bandwidth",
}

_EXAMPLE = re.compile(r"\s*Examples?: (rooflinekit\b.*)", re.DOTALL)


def welcome(app_help: str, summaries: dict[str, str]) -> str:
    """What `rooflinekit` says without arguments: five commands to begin with, by a line for each."""
    calls = [f"  {summaries[name]}\n    rooflinekit {name} {rest}" for name, rest in FIRST.items()]
    return "\n".join([app_help, "", *calls, "", "rooflinekit --help lists all commands, COMMAND --help its options."])


def split_example(text: str) -> tuple[str, str | None]:
    """A docstring without the example at its end, and the example as one line.

    >>> split_example("How long.\\n\\nExample: rooflinekit predict net.py:Net\\n    --gpu l4")
    ('How long.', 'rooflinekit predict net.py:Net --gpu l4')
    """
    found = _EXAMPLE.search(text)
    return (text, None) if found is None else (text[: found.start()], " ".join(found[1].split()))


class _WithExample:
    """A command whose example is a line of its own, never broken, so that it can be copied."""

    help: str | None

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The text, then the example as it is typed."""
        whole = self.help
        text, example = split_example(whole or "")
        self.help = text
        try:
            super().format_help_text(ctx, formatter)  # type: ignore[misc]
        finally:
            self.help = whole
        if example is not None:
            formatter.write(f"\n  Example:\n    {example}\n")


#: Options that describe a workload, by theme; those of a command itself stand behind the first theme.
THEMES = {
    "What every call needs": ("input", "gpu", "size", "mode", "dtype", "autocast", "execution", "host"),
    "Training": ("optimizer", "loss", "loss_target"),
    "The model": ("tf32", "channels_last", "like", "inference_mode", "assume", "strict", "cache", "verbose"),
    "The step": ("sync", "copy", "non_blocking", "loader_rate", "attention"),
    "The GPU": ("burst", "power_limit", "sm_clock", "constants", "allow_draft"),
    "What is printed": ("as_json", "brief", "csv", "markdown", "help"),
}


class Command(_WithExample, TyperCommand):
    """A subcommand."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then options by theme where the command takes a workload."""
        if not any(param.name == "execution" for param in self.params):
            super().format_options(ctx, formatter)
            return
        needed, *others = THEMES
        shown: dict[str, list[tuple[str, str]]] = {"Arguments": [], needed: [], f"Of {self.name}": []}
        shown |= {theme: [] for theme in others}
        themes = {name: theme for theme, names in THEMES.items() for name in names}
        params = self.get_params(ctx)
        order = [name for names in THEMES.values() for name in names]
        params.sort(key=lambda param: order.index(param.name) if param.name in order else -1)
        for param in params:
            record = param.get_help_record(ctx)
            if record is not None:
                kind = "Arguments" if param.param_type_name == "argument" else f"Of {self.name}"
                shown[themes.get(str(param.name), kind)].append(record)
        for theme, records in shown.items():
            if records:
                with formatter.section(theme):
                    formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses as typer does; an unknown option gets one sentence on what is written for it."""
        given = [*args]  # the parser takes the words out
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # click's own error, whose class comes from a copy of click in some releases of typer.
            typed = getattr(error, "option_name", None)
            if type(error).__name__ != "NoSuchOption" or not typed:
                raise
            value = re.search(rf"(?:^| ){re.escape(typed)}[= ](\S*)", " ".join(given))
            hint = option_hint(typed, option_names(self), value=value[1] if value else "")
            raise InputError(f"unknown option {typed!r}{hint}") from None


def option_names(command: Any) -> list[str]:
    """The options of a command as they are typed, without those of one letter."""
    words = (word for one in command.params for word in (*one.opts, *one.secondary_opts))
    return [word for word in words if word.startswith("--")]


class Group(_WithExample, TyperGroup):
    """A subcommand with subcommands of its own."""


def group(about: str) -> typer.Typer:
    """A command with subcommands of its own, which without one says what there are."""
    return typer.Typer(
        cls=Group, help=about, callback=_list_subcommands, rich_markup_mode=None, invoke_without_command=True
    )


def _list_subcommands(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


class Program(TyperGroup):
    """The program: its commands by question."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does it; a command that is not known gets one sentence on which one is meant."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise InputError(f"unknown command {args[0]!r}{command_hint(args[0], self.commands)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A section for each question, a line for each command."""
        for question, names in GROUPS.items():
            with formatter.section(question):
                formatter.write_dl([(name, summary(self.commands[name])) for name in names])


def summary(command: Any) -> str:
    """The first line of a command's text."""
    return str(command.help).strip().partition("\n")[0]
