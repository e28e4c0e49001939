"""What the words of options mean: inputs, sizes, optimizers, losses, ways of execution to compare."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import rooflinekit as rk
from rooflinekit.cli.synonyms import option_hint
from rooflinekit.errors import InputError, SizeError, UnitError
from rooflinekit.units import parse_quantity

_MOST_NUMBERS = 1_000_000  # in a list of sizes


def inputs_of(texts: list[str]) -> tuple[tuple[rk.Input, ...], dict[str, rk.Input]]:
    """The inputs that `--input` describes, in order and by name."""
    args: list[rk.Input] = []
    kwargs: dict[str, rk.Input] = {}
    for text in texts:
        name, equals, described = text.partition("=")
        if equals:
            kwargs[name.strip()] = rk.Input.parse(described)
        else:
            args.append(rk.Input.parse(text))
    return tuple(args), kwargs


def assumed_of(assigned: Sequence[str]) -> dict[str, float | bool]:
    """What `--assume` says of numbers that data decide.

    >>> assumed_of(["nonzero=0.25", "nms=1000", "any=true"])
    {'nonzero': 0.25, 'nms': 1000, 'any': True}
    """
    found: dict[str, float | bool] = {}
    for text in assigned:
        name, equals, value = (word.strip() for word in text.partition("="))
        try:
            known = {"true": True, "false": False}.get(value.lower())
            found[name] = known if known is not None else float(value) if "." in value else int(value)
        except ValueError:
            equals = ""
        if not (name and equals):
            raise InputError(
                f"--assume {text!r}: expected a name and a number, a share or an answer, such as nonzero=0.25, "
                "nms=1000 or any=true"
            )
    return found


def limits_of(power: str | None, clock: str | None) -> dict[str, float]:
    """What `--power-limit` and `--sm-clock` say, in W and Hz.

    >>> limits_of("250W", "1.2 GHz")
    {'power_limit': 250.0, 'sm_clock': 1200000000.0}
    """
    given = (("--power-limit", "power_limit", power, "W"), ("--sm-clock", "sm_clock", clock, "Hz"))
    return {name: quantity_of(option, text, unit) for option, name, text, unit in given if text is not None}


def quantity_of(option: str, text: str, unit: str) -> float:
    """A quantity that an option gives, in its base unit. Raises InputError for anything else."""
    try:
        return parse_quantity(text, unit)
    except UnitError as error:
        raise InputError(f"{option} {text!r}: {error}") from error


def sizes_of(
    assigned: list[str], rest: list[str], names: tuple[str, ...], options: Sequence[str] = ()
) -> dict[str, tuple[str, str]]:
    """For each size the option and the word that say it: `--size NAME=VALUE`, or an unknown `--NAME VALUE`.

    options: those of the command, one of which an unknown word may have been meant for.
    """
    found: dict[str, tuple[str, str]] = {}
    words = iter(rest)
    for word in words:
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        value = value if equals else next(words, "")
        if not word.startswith("--") or name not in names:
            known = [f"--{one}" for one in names]
            sized = f"; the sizes of --input are {', '.join(known)}" if known else ""
            hint = option_hint(option, [*known, *options], value=value)
            if not word.startswith("-"):
                hint = ": an option that takes several values is written once for each, such as --gpu l4 --gpu h100"
            raise InputError(f"unknown option or argument {option!r}{hint}{'' if hint.startswith(':') else sized}")
        if name in found:
            raise InputError(f"{option} is given twice; to compare two values, give the other to --compare {name}=…")
        found[name] = option, value
    for text in assigned:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--size {text!r}: expected NAME=VALUE, such as batch=32")
        found[name.strip()] = f"--size {name}", value
    return found


def integers(option: str, text: str) -> Sequence[int]:
    """The numbers of a list; a range includes its end.

    >>> list(integers("--batch", "1,2,8:24:8"))
    [1, 2, 8, 16, 24]
    """
    found: list[int] = []
    for word in text.split(","):
        try:
            bounds = [int(part) for part in word.split(":")]
        except ValueError:
            raise SizeError(f"{option}: expected numbers such as 1,2,4, 1:64 or 8:4096:8; got {text!r}") from None
        if len(bounds) > 3 or (len(bounds) == 3 and bounds[2] < 1):
            raise SizeError(f"{option}: expected a number, FIRST:LAST or FIRST:LAST:STEP; got {word!r}")
        first, last, step = (*bounds, 1)[:3] if len(bounds) > 1 else (bounds[0], bounds[0], 1)
        if last < first:
            raise SizeError(f"{option}: {word!r} has no numbers: the last is below the first")
        count = len(found) + (last - first) // step + 1
        if count > _MOST_NUMBERS:
            raise SizeError(
                f"{option}: expected at most {_MOST_NUMBERS:,} numbers; got {count:,}; take steps (FIRST:LAST:STEP)"
            )
        found += range(first, last + 1, step)
    return found


def integer(option: str, value: str) -> int:
    """The number that an option gives."""
    try:
        return int(value)
    except ValueError:
        several = re.fullmatch(r"\d+(([,:]+|\.\.+)\d+)+", value) is not None
        hint = "; `rooflinekit sweep` and `search` take several, such as 1,2,4 or 1:64" if several else ""
        raise SizeError(f"{option}: expected a positive integer; got {value!r}{hint}") from None


_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str | None) -> float:
    """What --budget says, in seconds; without end for None. Raises InputError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text or "")
    if text is not None and match is None:
        raise InputError(f"--budget {text!r}: expected a number of seconds, minutes or hours, such as 90s, 10m or 1h")
    return float(match[1]) * _SECONDS[match[2]] if match else float("inf")


_YES = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


def variants_of(texts: Sequence[str], option: str = "--compare") -> dict[str, list[Any]]:
    """What `--compare` names: `execution=eager,compiled`, `autocast=none,fp16`, `attention=chosen,cudnn`, `batch=1,8`.

    option: which it is, for messages.

    >>> variants_of(["autocast=none,fp16", "batch=1,8"])
    {'autocast': [None, 'fp16'], 'batch': [1, 8]}
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        words = [word.strip() for word in values.split(",")]
        if not equals or not name or not all(words):
            raise InputError(f"{option} {text!r}: expected NAME=VALUE,…, such as execution=eager,compiled")
        if name in found:
            raise InputError(f"{option} {name!r} is given twice; put its values into one, separated by commas")
        found[name] = [_variant(name, word, option) for word in words]
    return found


def _variant(name: str, word: str, option: str) -> Any:
    if name == "execution":
        return word
    if name in ("autocast", "attention"):
        return None if word in ("none", "chosen") else word
    if name == "channels_last":
        if word not in _YES:
            raise InputError(f"{option} channels-last: expected yes or no; got {word!r}")
        return _YES[word]
    return integer(f"{option} {name}", word)
