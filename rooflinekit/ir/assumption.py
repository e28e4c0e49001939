"""What a trace had to take for granted, because it stands in the numbers of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rooflinekit.ir.sizes import Size


class Ground(StrEnum):
    """Why a number was taken and not another."""

    GIVEN = "given"  # by the user
    MOST = "its most"  # nothing is known: as many as there can be
    EVEN = "shared out evenly"  # of a choice of k among n: each as often as the others
    ALIKE = "as at the sizes of the trace"  # of a mask, which was asked there
    USUAL = "as usual"  # a check that data pass
    ONCE = "once"  # of a loop nothing is known

    @property
    def founded(self) -> bool:
        """Whether there is a reason for it."""
        return self not in (Ground.MOST, Ground.ONCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A size or an answer that data decide, and what it was taken to be.

    `assume={name: value}` takes another: a number of elements, a share of the most (above 0, up to 1.0), or an answer.
    """

    name: str  # "nonzero": equal for all calls of a line
    where: str  # "model.py:12"
    module: str
    value: Any  # elements, or the answer
    most: Size | None = None  # elements that there can be
    ground: Ground
    times: int = 1  # how often the line was met

    def __str__(self) -> str:
        taken = f"{self.value}" if self.most is None else f"{self.value} of {self.most}"
        often = f", {self.times} times" if self.times > 1 else ""
        return f"{self.name} {taken} ({self.ground}; {self.where}{often})"
