"""Everything rooflinekit raises on purpose.

Each error is also the builtin it refines, so that `except ValueError` still works:

    RooflinekitError
    ├── UnitError(ValueError)              a quantity without, or with the wrong, unit
    ├── SpecError(ValueError)              a device, host or fit file that cannot be trusted
    ├── DeviceNotFoundError(LookupError)   a device name nobody knows
    ├── AmbiguousDeviceError(LookupError)  a device name that several devices answer to
    ├── FormatError(ValueError)            a number format that the device does not have
    ├── SizeError(ValueError)              a named size missing, unknown, or not a positive integer
    ├── InputError(ValueError)             an input description that cannot be read
    │   └── CapacityError                  a served model that does not fit the memory
    ├── TargetError(ValueError)            a model that cannot be found or built
    ├── TraceError(RuntimeError)           a model that cannot be traced
    ├── UnknownOpError(LookupError)        an op without a cost rule, in strict mode
    ├── DuplicateRuleError(ValueError)     a second cost rule for one op
    ├── PluginError(RuntimeError)          rules or specifications of another package that cannot be loaded
    ├── CampaignError(ValueError)          a file of measurements that cannot be used
    ├── MeasureError(RuntimeError)         a model that cannot be run on the hardware at hand
    ├── SweepError(RuntimeError)           the processes of a sweep are gone, or cannot be started
    ├── ComparisonError(ValueError)        two predictions that cannot be compared
    └── OutputError(OSError)               a file that cannot be written

The command line prints the message of any of them as one line and exits with status 2. Two are no errors: with
`SweepWarning` a sweep that goes on says what it has met, with `DeviceWarning` a short name for which board it stands.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


class RooflinekitError(Exception):
    """Base of every error that rooflinekit raises on purpose. Its message is one line, whatever it quotes."""

    def __str__(self) -> str:
        # KeyError and LookupError would show the repr of their argument.
        return printable(" ".join(str(self.args[0]).split())) if self.args else ""


def printable(text: str) -> str:
    """The text with letters that a terminal would act upon, such as tabs and escapes, written out.

    >>> printable("sm\\tcount")
    'sm\\\\tcount'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


class UnitError(RooflinekitError, ValueError):
    """A quantity whose unit is missing, unknown, or of another dimension."""


class SpecError(RooflinekitError, ValueError):
    """A specification file that cannot be read or fails a physics check."""


class DeviceNotFoundError(RooflinekitError, LookupError):
    """No device has this name."""


class AmbiguousDeviceError(RooflinekitError, LookupError):
    """Several devices answer to this name."""


class FormatError(RooflinekitError, ValueError):
    """The device has no arithmetic for this number format."""


class CampaignError(RooflinekitError, ValueError):
    """A file of measurements is missing, damaged, or not one."""


class MeasureError(RooflinekitError, RuntimeError):
    """A model cannot be run, or not in this way, on the hardware at hand."""


class SizeError(RooflinekitError, ValueError):
    """A named size is missing, unknown, outside the trace's validity, or not a positive integer."""


class InputError(RooflinekitError, ValueError):
    """An input description cannot be read."""


class CapacityError(InputError):
    """A served model does not fit the memory."""


class TargetError(RooflinekitError, ValueError):
    """A model cannot be found, imported or built."""


class TraceError(RooflinekitError, RuntimeError):
    """A model cannot be traced. `where` is the line of its code, "model.py:12", and `reason` what happened there."""

    def __init__(self, message: str, *, where: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.where = where
        self.reason = reason


class UnknownOpError(RooflinekitError, LookupError):
    """An op has no cost rule, and `strict` was asked for. Its message ends with a rule to begin with, line by line."""

    def __str__(self) -> str:
        return "\n".join(map(printable, str(self.args[0]).splitlines())) if self.args else ""


class DuplicateRuleError(RooflinekitError, ValueError):
    """A cost rule for this op exists already."""


class PluginError(RooflinekitError, RuntimeError):
    """Rules or specifications that another installed package brings cannot be loaded."""


class ComparisonError(RooflinekitError, ValueError):
    """Two predictions differ in something that a comparison must hold equal."""


class LockError(RooflinekitError, ValueError):
    """A lock file of `rooflinekit guard` is missing or wrong, or a threshold is none."""


class SweepError(RooflinekitError, RuntimeError):
    """The processes that a sweep was handed to are gone, or cannot be started."""


class DeviceWarning(UserWarning):
    """A name that several devices answer to was taken for the one that most people mean."""


class SweepWarning(UserWarning):
    """Something went wrong in a sweep, and what was done about it."""


class OutputError(RooflinekitError, OSError):
    """An output file cannot be written."""


def nearest(word: str, candidates: Iterable[str], count: int = 3, likeness: float = 0.55) -> str:
    """A clause that offers the names closest to `word`, or an empty string when none is close.

    First come those that begin with it, the shortest first, then those that are spelled alike.

    >>> nearest("resnet5", ["resnet50", "vgg16"])
    "; did you mean 'resnet50'?"
    >>> nearest("zzz", ["resnet50"])
    ''
    """
    # Compared without case, returned as written.
    written = {candidate.lower(): candidate for candidate in candidates}
    typed = str(word).lower()
    begun = sorted((name for name in written if len(typed) > 2 and name.startswith(typed)), key=lambda n: (len(n), n))
    alike = difflib.get_close_matches(typed, written, n=count, cutoff=likeness)
    close = list(dict.fromkeys([*begun, *alike]))[:count]
    if not close:
        return ""
    return "; did you mean " + " or ".join(repr(written[name]) for name in close) + "?"


def check_word(what: str, word: object, known: Collection[str]) -> None:
    """Raises InputError for a word that is none of the known ones, and offers the nearest.

    >>> check_word("--by", "kind", ["kind", "module"])
    """
    if word not in known:
        raise InputError(f"{what}: expected {', '.join(known)}; got {word!r:.60}{nearest(str(word), known)}")
