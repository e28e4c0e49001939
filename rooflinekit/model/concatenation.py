"""What becomes of a concatenation: written into its readers, one kernel of its own, or each input put to its place.

Inductor's rule (torch 2.5 and 2.13: torch/_inductor/lowering.py, `cat`). Up to 8 inputs are one pointwise loop, which
loads each input where its part of the result is, under a mask,
- where all readers are pointwise, and an input at least has to be copied anyway: what a library or the caller has put
  into memory, or what is not in memory yet;
- whoever reads it, where all inputs have to be copied, and none hangs on a reduction.
Like any other pointwise loop it then goes into its readers or is stored (inlining.py). Else each input is put to its
place in the result: by the loop or the product that computes it, or by a copy. So it is from 2.12 on as well where an
input has other pointwise readers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rooflinekit.ir.release import Release
from rooflinekit.model.loops import Loop, Part

MOST_POINTWISE = 8  # inputs of a concatenation that is one loop (max_pointwise_cat_inputs)
LABEL = "cat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An input of a concatenation."""

    pending: bool  # a pointwise loop that is not in memory yet
    placed: bool  # where a library or the caller has put it
    movable: bool  # by a product of a library, which writes it wherever it is told to
    reduced: bool  # hangs on a reduction, without more than pointwise work between
    others: tuple[Part, ...] = field(default=())  # that read it, beside this concatenation

    @property
    def copied(self) -> bool:
        """Whether a kernel must bring it to its place in any case."""
        return self.pending or (self.placed and not self.movable)


def is_one_loop(inputs: tuple[Input, ...], readers: tuple[Part, ...], *, kept: bool, like: Release | None) -> bool:
    """Whether it is a pointwise loop. `kept`: the caller gets it."""
    if len(inputs) > MOST_POINTWISE:
        return False
    if (like is None or like.shares_concatenated) and any(map(_is_shared, inputs)):
        return False
    if not kept and all(map(_is_pointwise, readers)) and any(each.copied for each in inputs):
        return True
    return all(each.copied for each in inputs) and not any(each.reduced for each in inputs)


def _is_pointwise(reader: Part) -> bool:
    return reader.loop is Loop.POINTWISE and not any(access.gathered for access in reader.reads)


def _is_shared(given: Input) -> bool:
    others = [part for part in given.others if part.label != LABEL]
    return any(map(_is_pointwise, others)) or (given.pending and bool(given.others))
