"""Halves of what is measured, by a hash of names: constants are fitted on one half and judged on the other."""

from __future__ import annotations

import zlib


def in_first_half(name: str) -> bool:
    """Whether a problem or a family belongs to the half that is fitted on."""
    return zlib.crc32(name.encode()) % 2 == 0
