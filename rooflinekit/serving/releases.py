"""Engines by name and version: which scheduler each has, and what it is set to unless it is told otherwise.

A row holds from its version on, until the next row of the same engine. Defaults are those of the engine's own server on
a GPU of 70 GiB or more; docs/serving.md has the table with its sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rooflinekit.errors import InputError, nearest
from rooflinekit.ir.sizes import shown

#: Seconds in which TensorRT-LLM 1.0.0rc3 launches a layer of a step that reads prompts: Llama 3.1 8B on eight H100,
#: 1024 tokens in (aiconfigurator's e2e_serving_h100_sxm, five numbers of clients): by the times per token of answers of
#: 128 and of 512 tokens a prompt adds 15 to 18 ms to a step of 2.5 to 6 ms: 17 to 22 ms for 32 layers, where the GPU
#: needs 10. The same reckoning for Qwen3 32B, 64 layers, gives 34 to 40 ms.
TRTLLM_LAYER_S = 0.6e-3

_VLLM_V0 = {"host": "serial", "policy": "prefill-first", "chunks": False, "sequences": 256}
_VLLM_V1 = {"host": "serial", "sequences": 1024, "layer_s": TRTLLM_LAYER_S}
_TRTLLM = {"chunks": False, "reserve": "whole"}

#: By engine, the oldest first: the version from which on a row holds, and how `Engine` is set there.
RELEASES: Mapping[str, tuple[tuple[tuple[int, ...], Mapping[str, Any]], ...]] = {
    "vllm": (
        ((0, 6), _VLLM_V0),
        ((0, 8), _VLLM_V1),
        ((0, 14), {**_VLLM_V1, "host": "overlapped"}),
    ),
    "sglang": (
        ((0, 3), {"policy": "prefill-first", "host": "serial"}),
        ((0, 4), {"policy": "prefill-first"}),
    ),
    "tensorrt-llm": (
        ((0, 8), {**_TRTLLM, "graph_sizes": (), "heads": "apart"}),
        ((0, 11), {**_TRTLLM, "graph_sizes": ()}),
        ((1, 0), {**_TRTLLM, "sequences": 2048, "layer_s": TRTLLM_LAYER_S}),
    ),
}


@dataclass(frozen=True, slots=True)
class Release:
    """An engine's name and version, and how it is set by default."""

    name: str
    version: str  # as asked for, or of the newest row
    since: str  # of the row
    known: bool  # whether a version was asked for
    settings: Mapping[str, Any]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version, to compare with: 0.5.6.post2 is (0, 5, 6)."""
        return _numbers(self.version)

    def __str__(self) -> str:
        since = f"the defaults since {self.since}"
        return f"{self.name} {self.version} ({since})" if self.known else f"{self.name} ({since}, the newest known)"


def release_of(text: str) -> Release:
    """The row of an engine and version such as "vllm:0.12"; without a version the newest.

    Raises InputError for another engine, for what is no version, and for one before the first row.

    >>> str(release_of("sglang:0.5.8")), release_of("vllm:0.7.3").settings["policy"]
    ('sglang 0.5.8 (the defaults since 0.4)', 'prefill-first')
    """
    if not isinstance(text, str):
        raise InputError(f"engine: expected a name such as 'vllm:0.12'; got {shown(text)}")
    name, colon, version = text.strip().lower().partition(":")
    rows = RELEASES.get(name)
    if rows is None:
        raise InputError(f"engine {text!r}: expected {', '.join(RELEASES)}, as vllm:0.12{nearest(name, RELEASES)}")
    if not colon:
        since, settings = rows[-1]
        return Release(name, _text(since), _text(since), False, settings)
    if not _numbers(version):
        raise InputError(f"engine {text!r}: expected a version behind the colon, such as {name}:{_text(rows[-1][0])}")
    held = [row for row in rows if row[0] <= (*_numbers(version), 0)]
    if not held:
        raise InputError(f"engine {text!r}: known from {name} {_text(rows[0][0])} on")
    since, settings = held[-1]
    return Release(name, version.removeprefix("v"), _text(since), True, settings)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
