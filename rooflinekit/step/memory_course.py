"""Bytes alive over a step, on the clock of its time line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat, zip_longest
from types import MappingProxyType

from rooflinekit.ir.keyed import sums
from rooflinekit.ir.op import Op, Phase
from rooflinekit.step.allocator import rounded
from rooflinekit.step.entry import by_issue
from rooflinekit.step.memory import ACCOUNTS, Life, account_of
from rooflinekit.step.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Blocks in use from the time at which the device begins an op, in seconds from the start of the step."""

    start_s: float
    op: str
    phase: Phase = Phase.FORWARD
    bytes_of: Mapping[str, int]  # by what they hold: ACCOUNTS, in this order, or with modules in place of activations
    fragment_bytes: int = 0  # on a GPU, beside them: what is free in segments with a block in use

    @property
    def total_bytes(self) -> int:
        """Bytes of all accounts."""
        return sum(self.bytes_of.values())


_ACTIVATIONS, _OUTSIDE, _PARTS = "activations", "outside of modules", 4


def memory_course(
    p: Prediction, starts_s: Iterable[float] | None = None, *, by_module: bool = False
) -> tuple[Moment, ...]:
    """A moment for each op, in order; an op that launches nothing has the time of the one before it.

    The largest sum is the peak of `p.memory`. Blocks are taken and given back in the order of ops, which PyTorch does
    while it issues them; they are set here where the device executes them: at `starts_s` of its kernels, by default
    those of the prediction. by_module: activations by the modules whose ops make them, in up to five parts in order.
    """
    blocks = p.blocks
    parts = _by_module([issue.op for issue in p.issues], blocks.lives) if by_module else [_ACTIVATIONS] * len(p.issues)
    at = ACCOUNTS.index(_ACTIVATIONS)
    alive = dict.fromkeys((*ACCOUNTS[:at], *parts, *ACCOUNTS[at + 1 :]), 0)
    for spec, size in zip(blocks.standing, blocks.fixed, strict=False):
        alive[account_of(spec)] += rounded(size)
    starts = (span.start_s for span in p.spans) if starts_s is None else starts_s

    def account(life: Life) -> str:
        return parts[life.first] if life.account == _ACTIVATIONS else life.account

    found: list[Moment] = []
    now = 0.0
    torn = blocks.fragments() if p.machine.device.kind == "gpu" else repeat(0)
    ops = zip(by_issue(p.issues, starts), blocks.events(), strict=True)
    for ((issue, begun), (begin, end, temporary)), free in zip(ops, torn, strict=False):
        now = begun[0] if begun else now
        for life in begin:
            alive[account(life)] += rounded(life.size)
        alive["workspace"] = rounded(blocks.fixed[-1]) + rounded(temporary)
        held = MappingProxyType(dict(alive))
        found.append(Moment(start_s=now, op=issue.op.name, phase=issue.op.phase, bytes_of=held, fragment_bytes=free))
        for life in end:
            alive[account(life)] -= rounded(life.size)
    return tuple(found)


def _by_module(ops: Sequence[Op], lives: Sequence[Life]) -> list[str]:
    """For each op the part that its activations belong to.

    Modules are named so deep that none has half of the bytes, as far as names go, and neighbours share a part.
    """
    made = Counter({op.module: 0 for op in ops})  # in order
    for life in lives:
        if life.account == _ACTIVATIONS:
            made[ops[life.first].module] += life.size
    total = made.total() or 1
    for depth in range(1, 1 + max((name.count(".") + 1 for name in made), default=1)):
        cut = sums((_first(name, depth), size) for name, size in made.items())
        if max(cut.values(), default=0) <= total / 2:
            break
    before, part = 0.0, {_OUTSIDE: _PARTS}
    for name, size in cut.items():
        part.setdefault(name, int((before + size / 2) / total * _PARTS))
        before += size
    told: dict[str, str] = {}
    for _, group in groupby(cut, key=part.__getitem__):
        first, *others = group
        told |= dict.fromkeys((first, *others), f"{first} … {_beyond(first, others[-1])}" if others else first)
    return [told[_first(op.module, depth)] for op in ops]


def _first(module: str, depth: int) -> str:
    return ".".join(module.split(".")[:depth]) or _OUTSIDE


def _beyond(first: str, last: str) -> str:
    """The last name without what it begins with as the first does: "3" of "h.3" after "h.2"."""
    return ".".join(b for a, b in zip_longest(first.split("."), last.split(".")) if a != b and b is not None)
