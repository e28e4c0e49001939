"""Speculative decoding: a draft guesses tokens, the model checks all of them in one step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rooflinekit.errors import InputError
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.sizes import finite, shown, whole
from rooflinekit.serving.decoder import Decoder

_MOST_TOKENS = 64


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """In each step a draft proposes `tokens` tokens, and the model works on these and one more of each sequence.

    acceptance: chance that a proposed token is kept, each independently of the others; those behind the first that is
    not are lost. draft: the model that proposes, one step a token, whole on each GPU; None for proposals that cost the
    GPU nothing (looked up in the prompt). A head that goes with the model (EAGLE, MTP, Medusa) is a decoder of one
    layer. weights: format of the draft's.

    Raises InputError for numbers out of range.
    """

    tokens: int
    acceptance: float
    draft: Decoder | None = field(default=None)
    weights: str = "bf16"

    def __post_init__(self) -> None:
        number = whole(self.tokens)
        if number is None or not 1 <= number <= _MOST_TOKENS:
            raise InputError(f"speculation tokens: expected 1 to {_MOST_TOKENS}; got {shown(self.tokens)}")
        if not (finite(self.acceptance) and 0 <= self.acceptance <= 1):
            raise InputError(
                "speculation acceptance: expected the chance that a proposed token is kept, 0 to 1; got "
                f"{shown(self.acceptance)}"
            )

    @property
    def given(self) -> float:
        """Tokens that a step gives a sequence on average: 1 + a + a² + … + a^tokens (arXiv 2211.17192, eq. 1).

        >>> Speculation(tokens=3, acceptance=0.5).given
        1.875
        """
        return math.fsum(self.acceptance**i for i in range(self.tokens + 1))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "tokens": self.tokens, "acceptance": self.acceptance, "given": self.given, "weights": self.weights,
            "draft": None if self.draft is None else self.draft.name,
        }  # fmt: skip
