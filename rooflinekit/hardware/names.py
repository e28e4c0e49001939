"""Which device a person means: exact names first, then every spelling that can mean only one."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rooflinekit.errors import AmbiguousDeviceError, DeviceNotFoundError, DeviceWarning, nearest

if TYPE_CHECKING:
    from rooflinekit.hardware.device import Device

# Words that drivers put in front of a name, and people leave out.
_BRANDS = frozenset({"nvidia", "geforce", "tesla", "quadro", "amd", "radeon", "instinct", "intel", "apple", "gpu"})


def resolve(query: str, devices: Iterable[Device]) -> Device:
    """The one device that `query` names, case, spaces and punctuation aside.

    Tried in turn: a full name or alias; the same without brand names; its words in any order; some of its words.
    Words that the query has in excess are never dropped: "RTX 4060 Ti" and "RTX 4090 Laptop GPU" are other chips.

    Of several the one that has the query in its `meant_by` is taken, with a DeviceWarning. Raises AmbiguousDeviceError
    when several devices fit and none has, DeviceNotFoundError when none fits.
    """
    known = {device.name: device for device in devices}
    names = {name: (name, *device.aliases) for name, device in known.items()}
    for fits in (_same_letters, _same_without_brand, _same_words, _some_words):
        found = [name for name, spellings in names.items() if any(fits(query, given) for given in spellings)]
        if len(found) == 1:
            return known[found[0]]
        meant = [name for name in found if any(_same_words(query, short) for short in known[name].meant_by)]
        if len(meant) == 1:
            others = " and ".join(name for name in found if name != meant[0])
            warnings.warn(
                DeviceWarning(f"{query!r} is taken for {meant[0]}, as most people mean it; {others} may be meant too"),
                stacklevel=3,
            )
            return known[meant[0]]
        if found:
            raise AmbiguousDeviceError(f"{query!r} may be {', '.join(found[:-1])} or {found[-1]}; name one of them")
    every_spelling = [spelling for spellings in names.values() for spelling in spellings]
    hint = nearest(query, every_spelling)
    joined = f"{hint} " if hint else "; "
    raise DeviceNotFoundError(f"unknown device {query!r}{joined}`rooflinekit devices` lists all {len(known)}")


def stands_in(query: str, letters: str) -> bool:
    """Whether the words of a query stand somewhere in a file, squashed: where not, `resolve` does not find it there."""
    return all(re.sub(r"(?<=\d)gb$", "", word) in letters for word in _words(query))


def squash(text: str) -> str:
    """Letters and digits alone, without case: under this two names must not be equal.

    >>> squash("NVIDIA A100-SXM4-80GB") == squash("nvidia_a100 sxm4 80gb")
    True
    """
    return "".join(re.findall(r"[^\W_]+", text.casefold()))


def _same_letters(query: str, spelling: str) -> bool:
    return squash(query) == squash(spelling) != ""


def _same_without_brand(query: str, spelling: str) -> bool:
    return "".join(_words(query)) == "".join(_words(spelling)) != ""


def _same_words(query: str, spelling: str) -> bool:
    return bool(_words(query)) and set(_words(query)) == set(_words(spelling))


def _some_words(query: str, spelling: str) -> bool:
    words = _words(query)
    # One word must look like a model number: "ada" or "80 GB" alone names nobody.
    telling = any(re.search(r"\d", word) and len(word) > 1 and not re.fullmatch(r"\d+gb", word) for word in words)
    return telling and set(words) <= set(_words(spelling))


def _words(text: str) -> list[str]:
    """The words of a name in order, without brand names; a capacity is one word, "80gb"."""
    joined = re.sub(r"(\d+)\s*gb?\b", r"\1gb", text.casefold())
    return [word for word in re.findall(r"[^\W_]+", joined) if word not in _BRANDS]
