"""Promises of latency, and whether a request keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.errors import InputError
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.sizes import finite, shown
from rooflinekit.serving.answers import Answered


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """What is promised: seconds to the first token, between tokens (a request's average), and of a whole answer.

    None promises nothing. share: of the requests that must keep all of them. Raises InputError where nothing is
    promised, for seconds that are not above 0, and for a share outside (0, 1].
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    share: float = 0.9

    def __post_init__(self) -> None:
        promised = [value for value in (self.ttft_s, self.tpot_s, self.e2e_s) if value is not None]
        if not promised or not all(finite(value) and value > 0 for value in promised):
            raise InputError(
                "service level: expected one or more of ttft_s, tpot_s and e2e_s, in seconds above 0; got "
                f"ttft_s={shown(self.ttft_s)}, tpot_s={shown(self.tpot_s)}, e2e_s={shown(self.e2e_s)}"
            )
        if not (finite(self.share) and 0 < self.share <= 1):
            raise InputError(f"service level share: expected a share above 0, up to 1; got {shown(self.share)}")

    def kept_by(self, answer: Answered) -> bool:
        """Whether one request keeps every promise; an answer of one token has no time between tokens."""
        for promised, found in (
            (self.ttft_s, answer.ttft_s), (self.tpot_s, answer.tpot_s), (self.e2e_s, answer.e2e_s)
        ):  # fmt: skip
            if promised is not None and found > promised:
                return False
        return True

    def to_dict(self) -> dict[str, float | None]:
        """Ready for JSON."""
        return {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s, "e2e_s": self.e2e_s, "share": self.share}
