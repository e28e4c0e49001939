"""How long a step takes that reads prompts of unequal lengths, or parts of them, beside sequences that go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rooflinekit.serving.step_times import ATTENTION, StepTimes

#: Tokens are rounded to so many parts of a power of two, and time is linear between: a step of this grid is 4 to 9 % of
#: the tokens, within which products of whole tiles differ by no more.
_PARTS = 8


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one prompt that a step reads, behind `start` that the cache holds."""

    start: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """Seconds of any step of an engine, put together from few that are timed.

    All tokens pass the matrices together: a step of as many tokens of one prompt, without its attention. Attention of
    the prompts and of the sequences that go on are apart. What was timed is kept.
    """

    times: StepTimes
    _dense: dict[int, float] = field(default_factory=dict)
    _reading: dict[tuple[int, int], float] = field(default_factory=dict)
    _decode: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)  # whole, and attention

    def step_s(self, chunks: Sequence[Chunk], sequences: int, context: float) -> float:
        """Seconds: `chunks` of prompts beside `sequences` of `context` tokens on average, the new one included."""
        if not chunks:
            return self._decode_s(sequences, context)
        tokens = sum(chunk.tokens for chunk in chunks) + sequences * (1 + self.times.drafted)
        going_on_s = self._decode_s(sequences, context, 1) if sequences else 0.0
        return self._dense_s(tokens) + self._reading_s(chunks) + going_on_s

    def _decode_s(self, sequences: int, context: float, part: int = 0) -> float:
        """A step that gives a token to each sequence, filled up to a captured size; part 1: its attention alone."""

        def at(size: int, tokens: int) -> float:
            if (size, tokens) not in self._decode:
                self._decode[size, tokens] = self.times.parts_s("decode", ATTENTION, batch=size, context=tokens)
            return self._decode[size, tokens][part]

        return _on_grid(
            self.times.padded(sequences), lambda size: _on_grid(context, lambda tokens: at(size, tokens), 1)
        )

    def _dense_s(self, tokens: int) -> float:
        """A step of so many tokens without its attention."""

        def at(count: int) -> float:
            if count not in self._dense:
                whole, attention = self.times.parts_s("prefill", ATTENTION, batch=1, seq=count)
                self._dense[count] = whole - attention
                self._reading[1, count] = attention
            return self._dense[count]

        return _on_grid(tokens, at)

    def _reading_s(self, chunks: Sequence[Chunk]) -> float:
        """Attention of the prompts: of n whole ones that of n of their mean length, by their pairs of tokens; of a
        part what it adds to the prompt before it, and a launch.
        """
        whole = [chunk.tokens for chunk in chunks if not chunk.start]
        seconds = 0.0
        if whole:
            mean = sum(whole) / len(whole)
            pairs = sum(tokens**2 for tokens in whole) / (len(whole) * mean**2)
            seconds = pairs * self._prompts_s(len(whole), mean)
        for chunk in chunks:
            if chunk.start:
                end, start = (self._prompts_s(1, n) for n in (chunk.start + chunk.tokens, chunk.start))
                seconds += max(0.0, end - start) + self._prompts_s(1, 1)
        return seconds

    def _prompts_s(self, prompts: int, tokens: float) -> float:
        # More than four fill the GPU: theirs is in proportion to their number.
        timed = prompts if prompts <= 4 else 1 << (prompts - 1).bit_length()

        def at(count: int) -> float:
            if (timed, count) not in self._reading:
                self._reading[timed, count] = self.times.parts_s("prefill", ATTENTION, batch=timed, seq=count)[1]
            return self._reading[timed, count]

        return prompts / timed * _on_grid(tokens, at)


def _on_grid(value: float, at: Callable[[int], float], parts: int = _PARTS) -> float:
    """A function of whole numbers at any number of 1 or more: on the line between the points of a grid around it.

    The grid has `parts` points between powers of two; up to so many, and up to 2, each whole number is one.
    """
    octave = math.floor(math.log2(value)) if value >= 1 else 0
    step = max(1, 2**octave // parts)
    low = math.floor(value / step) * step if value >= 1 else 1
    share = (max(value, 1) - low) / step
    first = at(low)
    return first if share == 0 else first + share * (at(low + step) - first)
