"""A workload held against what was locked: what changed, by how much, because of what, and whether it may."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from rooflinekit.cost.table import price_all
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, Phase, Role, TensorSpec
from rooflinekit.step.made import constants_version
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.study.errors.ratio import Ratio, Ratios
from rooflinekit.study.explain.differences import drivers_of
from rooflinekit.study.explain.explanation import Explanation
from rooflinekit.study.guard.lock import QUANTITIES, Block, Locked, quantities

_SAME = 1e-5  # of a locked number: its last digit


@dataclass(frozen=True, kw_only=True)  # no slots: the cached properties need a place
class Checked:
    """One workload on one GPU, as it was locked and as it is.

    before: the locked graph, predicted as rooflinekit does it today, so that between it and `now` lies only the
    model's own change, and between the locked numbers and it only rooflinekit's. None where nothing was locked, the
    graph is missing, or the workload was run in another way.
    """

    block: Block
    now: Prediction
    before: Prediction | None
    locked: Locked | None

    @property
    def gpu(self) -> str:
        """The GPU's name."""
        return self.now.machine.device.name

    @cached_property
    def base(self) -> Mapping[str, float] | None:
        """What the model's quantities are held against; None where nothing was locked."""
        if self.before is not None:
            return quantities(self.before)
        if self.locked is None:
            return None
        return {name: getattr(self.locked, quantity.field) for name, quantity in QUANTITIES.items()}

    @property
    def changes(self) -> dict[str, tuple[float, float]]:
        """By quantity what was and what is, where the two differ."""
        now = quantities(self.now)
        return {name: (was, now[name]) for name, was in (self.base or {}).items() if _differ(was, now[name])}

    @property
    def own_s(self) -> float:
        """Seconds by which rooflinekit's own change moved the locked time; 0 where that cannot be told."""
        if self.before is None or self.locked is None or not _differ(self.locked.time_s, self.before.total_s):
            return 0.0
        return self.before.total_s - self.locked.time_s

    @cached_property
    def ratio(self) -> Ratio | None:
        """The time by what it was, without what both predictions are off by together."""
        if self.before is None:
            return None
        return Ratios((self.before, self.now), one_network=True).of(1, 0)

    @cached_property
    def causes(self) -> tuple[Cause, ...]:
        """Where the model's change begins, the largest effect first."""
        return causes_of(self.before, self.now) if self.before is not None and self.changes else ()

    @cached_property
    def explanation(self) -> Explanation | None:
        """What lies between the two steps."""
        return None if self.before is None else Explanation(a=self.before, b=self.now)

    @property
    def exceeded(self) -> tuple[str, ...]:
        """In words, the thresholds that do not hold."""
        return tuple(self._exceeded())

    def _exceeded(self) -> Iterator[str]:
        yield from self.block.limits.exceeded(self.now)
        if self.base is None:
            yield "nothing is locked for it: accept it with --update"
        else:
            yield from self.block.limits.grown(self.base, quantities(self.now))

    @property
    def notes(self) -> tuple[str, ...]:
        """Why something cannot be told."""
        if self.locked is None or self.before is not None:
            return ()
        if self.locked.run != self.block.run:
            return (f"it was run in another way when it was locked ({self.locked.run}): no module is to blame",)
        return ("the locked graph is not beside the file, or not readable: --update keeps it, to blame modules",)

    def to_dict(self) -> dict[str, Any]:
        """What was found, ready for JSON."""
        ratio = self.ratio
        return {
            "workload": self.block.name,
            "gpu": self.gpu,
            "status": "exceeded" if self.exceeded else "changed" if self.changes else "same",
            "total_s": self.now.total_s,
            "locked_s": None if self.locked is None else self.locked.time_s,
            "rooflinekit_s": self.own_s,
            "changes": {name: {"before": was, "now": now} for name, (was, now) in self.changes.items()},
            "ratio": None if ratio is None else {"times": ratio.times, "low": ratio.low, "high": ratio.high},
            "certain": ratio is not None and ratio.certain,
            "causes": [
                {"module": c.module, "kind": c.kind, "what": c.what, "s": c.delta_s, "following_s": c.following_s}
                for c in self.causes
            ],
            "exceeded": list(self.exceeded),
            "notes": list(self.notes),
        }


def check(block: Block, graph: Graph | None, predictions: Sequence[Prediction]) -> tuple[Checked, ...]:
    """A workload's predictions on its GPUs, held against what was locked. graph: the locked one, where it is there."""
    again = None if graph is None else replace(graph, priced=price_all(graph.ops))
    found = []
    for p in predictions:
        locked = block.locked.get(p.machine.device.name)
        alike = again is not None and locked is not None and locked.run == block.run
        before = predict_graph(again, p.machine, p.host, p.execution) if alike and again is not None else None
        found.append(Checked(block=block, now=p, before=before, locked=locked))
    return tuple(found)


def locked_as(block: Block, p: Prediction) -> Locked:
    """What the file keeps of a prediction."""
    low_s, high_s = p.interval(0.9)
    found: dict[str, Any] = {quantity.field: quantity.of(p) for quantity in QUANTITIES.values()}
    return Locked(**found, low_s=low_s, high_s=high_s, regime=p.regime, constants=constants_version(p), run=block.run)


def _differ(was: float, now: float) -> bool:
    return abs(now - was) > _SAME * abs(was)


# Because of which modules and operators two versions of a network differ: where changes begin, and what follows.
#
# A wider layer makes the next one wider too, which may even cost more. What begins a change is an op that differs
# though all it computes from is what it was; what follows it computes from something that differs.


_Key = tuple[str, str, Phase, int]  # module, kind, phase, and which of its like
_Place = tuple[str, str]  # module, kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Where a change begins: a module and an operator, and the seconds that it and all that follows it add."""

    module: str  # "" for the root
    kind: str
    what: str  # what it is now, and what it was
    delta_s: float  # of itself, below 0 where it became shorter
    following_s: float  # of what computes from it

    @property
    def all_s(self) -> float:
        """Seconds that the step is longer for it."""
        return self.delta_s + self.following_s

    @property
    def words(self) -> str:
        """The operator with its module."""
        return f"{self.kind} in {self.module or 'the root'}"


def causes_of(before: Prediction, now: Prediction) -> tuple[Cause, ...]:
    """Where the changes from one step to the other begin, the one with the largest effect first.

    Seconds of what follows several changes are shared between them in equal parts. What belongs to no op that differs,
    such as waits for the CPU, is in none.
    """
    old, new = _keyed(before.graph), _keyed(now.graph)
    begun, followed = _traced(old, new, _computing(now.graph))
    were = _computing(before.graph)
    for key, op in old.items():
        if key not in new and key in were:
            begun[key[:2]] = f"{_shown(op)} is gone"
    drivers = drivers_of(before, now, (1.0, 1.0), one_network=True)
    seconds = {(one.module, one.kind): one.delta_s for one in drivers}
    later: dict[_Place, float] = defaultdict(float)
    by_module: dict[str, set[_Place]] = defaultdict(set)  # for fused kernels, whose kinds are no op's
    for place, origins in followed.items():
        by_module[place[0]] |= origins
    for place, more in seconds.items():
        origins = followed.get(place, by_module.get(place[0], set()))
        for origin in origins if place not in begun else ():
            later[origin] += more / len(origins)
    found = [
        Cause(module=place[0], kind=place[1], what=what, delta_s=seconds.get(place, 0.0), following_s=later[place])
        for place, what in begun.items()
    ]
    return tuple(sorted(found, key=lambda cause: -abs(cause.all_s)))


def _computing(graph: Graph) -> set[_Key]:
    """The ops that launch anything."""
    return {key for key, priced in zip(_keyed(graph), graph.priced, strict=True) if priced.costs}


def _keyed(graph: Graph) -> dict[_Key, Op]:
    """Each op by what finds it again in another version of the network."""
    seen: Counter[tuple[str, str, Phase]] = Counter()
    found: dict[_Key, Op] = {}
    for op in graph.ops:
        like = op.module, op.kind, op.phase
        found[*like, seen[like]] = op
        seen[like] += 1
    return found


def _traced(
    old: Mapping[_Key, Op], new: Mapping[_Key, Op], computing: set[_Key]
) -> tuple[dict[_Place, str], dict[_Place, set[_Place]]]:
    """Where changes begin, with words; and of what follows a change, where that begins."""
    begun: dict[_Place, str] = {}
    followed: dict[_Place, set[_Place]] = {}
    of_memory: dict[str, set[_Place]] = defaultdict(set)  # what a tensor that differs goes back to
    for key, op in new.items():
        was, place = old.get(key), key[:2]
        if was is not None and _form(op) == _form(was):
            for tensor in op.outputs:  # memory that is used again for what is as before
                of_memory.pop(tensor.memory, None)
            continue
        origins = set().union(*(of_memory.get(tensor.memory, set()) for tensor in op.inputs))
        if not origins and op.phase is not Phase.FORWARD:
            own = (found for (module, _), found in followed.items() if module == op.module)
            origins = set().union(*own) or set(begun)  # what the layer does forward it undoes backward
        if not origins and key not in computing:
            continue  # a view: what computes from it tells, as a product does of its transposed weight
        if not origins:
            origins = {place}
            begun.setdefault(place, _shown(op) if was is None else f"{_shown(op)}, before {_shown(was)}")
        followed.setdefault(place, set()).update(origins)
        for tensor, before in zip_longest(op.outputs, () if was is None else was.outputs[: len(op.outputs)]):
            if before is None or _look(tensor) != _look(before):
                of_memory[tensor.memory] |= origins
    return begun, followed


def _look(tensor: TensorSpec) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.stride


def _form(op: Op) -> tuple[object, ...]:
    return op.kind, op.phase, tuple(map(_look, op.inputs)), tuple(map(_look, op.outputs)), _words(op.attrs)


def _words(value: object) -> object:
    """An argument without the names of its tensors, which say nothing of it."""
    if isinstance(value, TensorSpec):
        return _look(value)
    if isinstance(value, list | tuple):
        return tuple(map(_words, value))
    if isinstance(value, Mapping):
        return tuple((name, _words(part)) for name, part in value.items())
    return repr(value)


def _shown(op: Op) -> str:
    """The op with the shapes that it reads and writes."""
    read, written = (
        " and ".join(_sizes(tensor) for tensor in tensors if tensor.role in _SHOWN) or "nothing"
        for tensors in (op.inputs, op.outputs)
    )
    weight = next((tensor for tensor in op.inputs if tensor.role is Role.WEIGHT and len(tensor.shape) > 1), None)
    return f"{read}{f' by {_sizes(weight)}' if weight else ''} → {written}"


def _sizes(tensor: TensorSpec) -> str:
    return "×".join(map(str, tensor.shape)) or "1"


_SHOWN = (Role.INPUT, Role.ACTIVATION, Role.GRADIENT)
