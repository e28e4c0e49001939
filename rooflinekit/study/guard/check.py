"""Workloads with what they must keep to, in a lock file: what changed since, by how much, because of what.

The lock file is TOML. A person writes a table a workload, `[name]` with `run` and, if anything must hold, `limits`;
below it stand tables `[name.locked."gpu"]`, made anew by each update while all other lines stay as they are. The graphs
that were predicted lie beside the file, in a folder of its name with `.d`, so that a later run can price them again.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rooflinekit.cost.table import price_all
from rooflinekit.errors import LockError, UnitError, nearest
from rooflinekit.files import read_bytes, read_text, write_bytes, write_text
from rooflinekit.hardware.yaml_file import one_line
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.graph_file import opened, packed
from rooflinekit.ir.op import Op, Phase, Role, TensorSpec
from rooflinekit.step.labels import REGIME_TERMS
from rooflinekit.step.made import constants_version
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.errors.components import Ratio, Ratios
from rooflinekit.study.explain.differences import drivers_of
from rooflinekit.study.explain.explanation import Explanation
from rooflinekit.units import format_quantity, parse_quantity

_SAME = 1e-5  # of a locked number: its last digit


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a threshold may be of: its unit ("" for a number), its field of `Locked`, and what a step has of it."""

    unit: str
    field: str
    of: Callable[[Prediction], float]


QUANTITIES = {
    "time": Quantity("s", "time_s", lambda p: p.total_s),
    "memory": Quantity("byte", "peak_memory_bytes", lambda p: p.memory.peak_bytes),
    "kernels": Quantity("", "kernels", lambda p: p.launched),
    "flop": Quantity("flop", "flop", lambda p: p.flop),
    "traffic": Quantity("byte", "traffic_bytes", lambda p: p.bytes),
}
_MORE = re.compile(r"\+\s*([0-9]+(?:\.[0-9]+)?)\s*%")
_MOST = re.compile(r"(<=|<)?\s*(.+)")

#: By how much a time may grow where nothing is said.
DEFAULT_MORE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Thresholds: by how much a quantity may grow, what it may be at most, and which regime must hold.

    Where no growth of the time is stated, it may grow by 3 %.
    """

    more: Mapping[str, float] = field(default_factory=lambda: {"time": DEFAULT_MORE})  # 0.03 for "+3 %"
    most: Mapping[str, tuple[float, bool]] = field(default_factory=dict)  # in base units, and whether it may be equal
    regime: str = ""

    @classmethod
    def parse(cls, given: Any, where: str) -> Limits:
        """Thresholds such as {"time": "+3 %", "memory": "80 GB", "regime": "compute"}; several of one as a list.

        Raises LockError, beginning with `where`, for what is none.
        """
        if not isinstance(given, Mapping):
            raise LockError(f'{where}: limits: expected a table such as {{ time = "+3 %" }}; got {given!r:.40}')
        more, most, regime = {"time": DEFAULT_MORE}, dict[str, tuple[float, bool]](), ""
        for name, value in given.items():
            if name == "regime":
                regime = value
                if value not in REGIME_TERMS:
                    raise LockError(f"{where}: regime: expected one of {', '.join(REGIME_TERMS)}; got {value!r:.40}")
                continue
            if name not in QUANTITIES:
                known = (*QUANTITIES, "regime")
                raise LockError(f"{where}: unknown limit {name!r}{nearest(name, known)}; expected {', '.join(known)}")
            for one in value if isinstance(value, list) else [value]:
                if growth := _MORE.fullmatch(str(one).strip()):
                    more[name] = float(growth[1]) / 100
                else:
                    most[name] = _bound(name, str(one).strip(), where)
        return cls(more=more, most=most, regime=regime)

    def exceeded(self, p: Prediction) -> Iterator[str]:
        """In words, what of one step alone is above its threshold."""
        found = quantities(p)
        for name, (bound, equal) in self.most.items():
            if found[name] > bound or (found[name] == bound and not equal):
                yield f"{name} {shown(name, found[name])}, at most {shown(name, bound)} allowed"
        if self.regime and p.regime != self.regime:
            yield f"{p.regime}-bound, {self.regime}-bound required"

    def grown(self, before: Mapping[str, float], now: Mapping[str, float]) -> Iterator[str]:
        """In words, what has grown by more than it may."""
        for name, share in self.more.items():
            old, new = before[name], now[name]
            if new > old * (1 + share):
                by = f"+{new / old - 1:.1%}" if old else "from nothing"
                yield f"{name} {shown(name, old)} → {shown(name, new)}, {by}, at most +{share:.1%} allowed"


def quantities(p: Prediction) -> dict[str, float]:
    """The quantities that thresholds bound, in base units."""
    return {name: quantity.of(p) for name, quantity in QUANTITIES.items()}


def shown(name: str, value: float) -> str:
    """A quantity as text."""
    unit = QUANTITIES[name].unit
    return format_quantity(value, unit) if unit else f"{value:,.0f}"


def _bound(name: str, text: str, where: str) -> tuple[float, bool]:
    sign, number = _MOST.fullmatch(text).groups() if text else (None, "")  # type: ignore[union-attr]
    unit = QUANTITIES[name].unit
    try:
        value = parse_quantity(number, unit) if unit else float(number)
    except (UnitError, ValueError):
        such = "400" if not unit else {"s": "12 ms", "byte": "80 GB", "flop": "3 TFLOP"}[unit]
        raise LockError(
            f"{where}: {name}: expected a limit such as '{such}', or growth such as '+3 %'; got {text!r:.40}"
        ) from None
    return value, sign != "<"


_HEAD = """\
# What these workloads take, as predicted. `rooflinekit guard` says what has changed, and with --update accepts it.
"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """What was predicted of a workload on a GPU. Times are seconds, of a step."""

    time_s: float
    low_s: float  # the 90 % interval
    high_s: float
    regime: str
    flop: int
    traffic_bytes: int
    kernels: int
    peak_memory_bytes: int
    constants: str  # rooflinekit's version, and a hash of device, constants and host
    run: str  # how it was run then


class _Written(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    run: str
    limits: Any = {}
    locked: dict[str, Locked] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One workload: how `predict` is told of it, what must hold, and what was locked by GPU."""

    name: str
    run: str
    limits: Limits = field(default_factory=Limits)
    locked: Mapping[str, Locked] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock file."""

    path: Path
    text: str
    blocks: tuple[Block, ...]

    def graph(self, name: str) -> Graph | None:
        """The graph that was locked; None where it is not there, or not readable any more."""
        try:
            return opened(read_bytes(self._graph_path(name), LockError))
        except (LockError, ValueError):
            return None

    def updated(self, name: str, graph: Graph, locked: Mapping[str, Locked]) -> Lock:
        """The lock file with one workload locked anew, written with its graph. Raises OutputError."""
        text = _replaced(self.text, name, "".join(_table(name, gpu, one) for gpu, one in sorted(locked.items())))
        found = parse_lock(text, self.path)
        path = self._graph_path(name)
        path.parent.mkdir(exist_ok=True)
        write_bytes(packed(graph), path)
        write_text(text, self.path)
        return found

    def _graph_path(self, name: str) -> Path:
        return self.path.with_name(f"{self.path.name}.d") / f"{name}.graph"


def read_lock(path: Path) -> Lock:
    """Reads a lock file. Raises LockError for one that is missing or wrong, and says which line to write."""
    if not os.path.exists(path):
        raise LockError(
            f"{path}: is not there; write it with a workload a table, such as [resnet50] and below it "
            'run = "timm:resnet50 --input batch,3,224,224 --batch 32 --gpu nvidia-l4"'
        )
    return parse_lock(read_text(path, LockError), path)


def parse_lock(text: str, path: Path) -> Lock:
    """A lock file's text, read. Raises LockError as `read_lock` does."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LockError(f"{path}: is no TOML: {error}") from None
    blocks = tuple(_block(name, value, path) for name, value in found.items())
    if not blocks:
        raise LockError(f'{path}: has no workload; expected a table such as [resnet50] with run = "…"')
    return Lock(path=path, text=text, blocks=blocks)


def _block(name: str, value: Any, path: Path) -> Block:
    where = f"{path}: [{name}]"
    if not isinstance(value, dict) or not _NAME.fullmatch(name):
        raise LockError(f"{where}: expected a table named by letters, digits, '.', '_' and '-'")
    try:
        found = _Written.model_validate_json(json.dumps(value, default=str))  # read strictly, a table is no record yet
    except ValidationError as error:
        again = "; lock it again with --update" if error.errors()[0]["loc"][0] == "locked" else ""
        raise LockError(one_line(error, _Written, where) + again) from None
    return Block(name=name, run=found.run, limits=Limits.parse(found.limits, where), locked=found.locked)


def _table(name: str, gpu: str, one: Locked) -> str:
    lines = [f"[{json.dumps(name) if '.' in name else name}.locked.{json.dumps(gpu)}]"]
    for part in fields(Locked):
        value = getattr(one, part.name)
        # Six digits: what differs beyond is of sums in another order, and would change the file for nothing.
        shown = f"{value:.5e}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{part.name} = {shown}")
    return "\n".join(lines) + "\n\n"


def _replaced(text: str, name: str, tables: str) -> str:
    """The text with a workload's locked tables replaced; they stand at the end of its block."""
    parts = re.split(r"(?m)^(?=\[)", text)
    kept = [part for part in parts if _head(part)[:2] != [name, "locked"]]
    place = max((i for i, part in enumerate(kept) if _head(part)[:1] == [name]), default=len(kept) - 1)
    kept[place] = kept[place].rstrip("\n") + "\n\n" + tables
    whole = "".join(kept).rstrip("\n") + "\n"
    return whole if whole.startswith("#") else _HEAD + "\n" + whole


def _head(part: str) -> list[str]:
    line = part.partition("\n")[0].strip()
    if not line.startswith("["):
        return []
    try:
        found = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return []
    names = []
    while isinstance(found, dict) and found:
        ((key, found),) = found.items()
        names.append(key)
    return names


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
        """Old and new value of each quantity that differs."""
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
        """The modules where the change begins, the largest effect first."""
        return causes_of(self.before, self.now) if self.before is not None and self.changes else ()

    @cached_property
    def explanation(self) -> Explanation | None:
        """The explanation of the difference between the two steps."""
        return None if self.before is None else Explanation(a=self.before, b=self.now)

    @property
    def exceeded(self) -> tuple[str, ...]:
        """In words, the thresholds that do not hold."""
        limits = self.block.limits
        if self.base is None:
            return (*limits.exceeded(self.now), "nothing is locked for it: accept it with --update")
        return (*limits.exceeded(self.now), *limits.grown(self.base, quantities(self.now)))

    @property
    def notes(self) -> tuple[str, ...]:
        """Why something cannot be told."""
        if self.locked is None or self.before is not None:
            return ()
        if self.locked.run != self.block.run:
            return (f"it was run in another way when it was locked ({self.locked.run}): no module is to blame",)
        return ("the locked graph is not beside the file, or not readable: --update keeps it, to blame modules",)

    def to_dict(self) -> dict[str, Any]:
        """The findings, ready for JSON."""
        ratio = self.ratio
        return {
            "workload": self.block.name, "gpu": self.gpu,
            "status": "exceeded" if self.exceeded else "changed" if self.changes else "same",
            "total_s": self.now.total_s, "locked_s": None if self.locked is None else self.locked.time_s,
            "rooflinekit_s": self.own_s,
            "changes": {name: {"before": was, "now": now} for name, (was, now) in self.changes.items()},
            "ratio": None if ratio is None else {"times": ratio.times, "low": ratio.low, "high": ratio.high},
            "certain": ratio is not None and ratio.certain,
            "causes": [{"module": c.module, "kind": c.kind, "what": c.what, "s": c.delta_s,
                        "following_s": c.following_s} for c in self.causes],
            "exceeded": list(self.exceeded), "notes": list(self.notes),
        }  # fmt: skip


def check(block: Block, graph: Graph | None, predictions: Sequence[Prediction]) -> tuple[Checked, ...]:
    """A workload's predictions on its GPUs, held against what was locked. graph: the locked one, where it is there."""
    again = None if graph is None else replace(graph, priced=price_all(graph.ops))
    found = []
    for p in predictions:
        locked = block.locked.get(p.machine.device.name)
        alike = locked is not None and locked.run == block.run
        before = p.again(graph=again) if again is not None and alike else None
        found.append(Checked(block=block, now=p, before=before, locked=locked))
    return tuple(found)


Predict = Callable[[Block], Sequence[Prediction]]  # a workload's predictions, one a GPU


def locked_as(block: Block, p: Prediction) -> Locked:
    """The numbers of a prediction that the file keeps."""
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
    """The ops that launch kernels."""
    return {key for key, priced in zip(_keyed(graph), graph.priced, strict=True) if priced.costs}


def _keyed(graph: Graph) -> dict[_Key, Op]:
    """Each op by what finds it again in another version of the network."""
    number = defaultdict[tuple[str, str, Phase], Iterator[int]](count)  # of those alike
    return {(op.module, op.kind, op.phase, next(number[op.module, op.kind, op.phase])): op for op in graph.ops}


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
