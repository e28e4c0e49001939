"""Bytes alive over a step, on the clock of its time line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rooflinekit.ir.op import Phase
from rooflinekit.step.allocator import rounded
from rooflinekit.step.entry import by_issue
from rooflinekit.step.memory import ACCOUNTS, account_of
from rooflinekit.step.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Blocks in use from the time at which the device begins an op, in seconds from the start of the step."""

    start_s: float
    op: str
    phase: Phase = Phase.FORWARD
    bytes_of: Mapping[str, int]  # by what they hold: ACCOUNTS, in this order

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return sum(self.bytes_of.values())


def memory_course(p: Prediction, starts_s: Iterable[float] | None = None) -> tuple[Moment, ...]:
    """A moment for each op, in order; an op that launches nothing has the time of the one before it.

    The largest sum is the peak of `p.memory`. Blocks are taken and given back in the order of ops, which PyTorch does
    while it issues them; they are set here where the device executes them: at `starts_s` of its kernels, by default
    those of the prediction.
    """
    blocks, alive = p.blocks, dict.fromkeys(ACCOUNTS, 0)
    for spec, size in zip(blocks.standing, blocks.fixed, strict=False):
        alive[account_of(spec)] += rounded(size)
    starts = (span.start_s for span in p.spans) if starts_s is None else starts_s
    found: list[Moment] = []
    now = 0.0
    for (issue, begun), (begin, end, temporary) in zip(by_issue(p.issues, starts), blocks.events(), strict=True):
        now = begun[0] if begun else now
        for life in begin:
            alive[life.account] += rounded(life.size)
        alive["workspace"] = rounded(blocks.fixed[-1]) + rounded(temporary)
        held = MappingProxyType(dict(alive))
        found.append(Moment(start_s=now, op=issue.op.name, phase=issue.op.phase, bytes_of=held))
        for life in end:
            alive[life.account] -= rounded(life.size)
    return tuple(found)
