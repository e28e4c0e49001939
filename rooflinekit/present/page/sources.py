"""What a report rests on: assumptions, datasheets, hosts and constants, each with where it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rooflinekit.hardware.device import device_rows
from rooflinekit.step.prediction import Prediction

_URL = re.compile(r"https?://[^\s<>\"'(),;]*[^\s<>\"'(),;.]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a text; `href` where it is a link."""

    text: str
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRow:
    """A constant of the time model."""

    name: str
    value: str
    error: str
    unit: str
    meaning: str
    source: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Everything that the numbers rest on."""

    notes: tuple[str, ...]
    coverage: str
    judged: str
    device: str
    device_facts: tuple[tuple[str, str, str], ...]  # name, value, ridge
    device_sources: tuple[tuple[str, tuple[Piece, ...]], ...]
    device_notes: tuple[Piece, ...]
    confidence: str
    host: str
    host_sources: tuple[tuple[str, tuple[Piece, ...]], ...]
    constants_name: str
    measured: str
    constants: tuple[ConstantRow, ...]


def sources_of(p: Prediction) -> Sources:
    """What a prediction rests on."""
    device, host, constants = p.machine.device, p.host, p.machine.constants
    return Sources(
        notes=p.notes,
        coverage=str(p.coverage),
        judged=str(p.accuracy or ""),
        device=device.display_name or device.name,
        device_facts=tuple((label.strip(), value, ridge) for label, value, ridge in device_rows(device)),
        device_sources=tuple((group, linked(text)) for group, text in device.sources.items()),
        device_notes=linked(device.notes or ""),
        confidence=device.confidence or "",
        host=f"{host.name} ({host.description})",
        host_sources=tuple((group.replace("_", " "), linked(text)) for group, text in host.sources.items()),
        constants_name=constants.name,
        measured=", ".join(sorted(constants.measured)),
        constants=tuple(
            ConstantRow(
                name=name,
                value=f"{c.value:.3g}",
                error=f"{c.stderr:.0%}",
                unit="" if c.unit == "1" else c.unit,
                meaning=c.meaning,
                source=linked(c.source),
            )
            for name, c in constants.constants.items()
        ),
    )


def linked(text: str) -> tuple[Piece, ...]:
    """A text with the addresses in it as links.

    >>> [piece.href for piece in linked("see https://example.org/a.pdf.")]
    ['', 'https://example.org/a.pdf', '']
    """
    return tuple(_pieces(" ".join(text.split())))


def _pieces(text: str) -> Iterator[Piece]:
    at = 0
    for found in _URL.finditer(text):
        if found.start() > at:
            yield Piece(text=text[at : found.start()])
        yield Piece(text=found[0], href=found[0])
        at = found.end()
    if at < len(text):
        yield Piece(text=text[at:])
