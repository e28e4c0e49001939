"""The lock file: workloads with what they must keep to, written by people, and what was predicted of them.

It is TOML. A person writes a table a workload, `[name]` with `run` and, if anything must hold, `limits`; below it stand
tables `[name.locked."gpu"]`, which are made anew by each update while all other lines stay as they are. The graphs that
were predicted lie beside the file, in a folder of its name with `.d`, so that a later run can price them again.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import LockError, UnitError, nearest
from rooflinekit.files import read_bytes, read_text, write_bytes, write_text
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.graph_file import opened, packed
from rooflinekit.units import format_quantity, parse_quantity

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction


# What a workload must keep to: thresholds as a person writes them.


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
_REGIMES = ("compute", "memory", "latency", "overhead")
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
                if value not in _REGIMES:
                    raise LockError(f"{where}: regime: expected one of {', '.join(_REGIMES)}; got {value!r:.40}")
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
                yield f"{name} {shown(name, found[name])} where {shown(name, bound)} is the most"
        if self.regime and p.regime != self.regime:
            yield f"{p.regime}-bound where {self.regime}-bound is asked for"

    def grown(self, before: Mapping[str, float], now: Mapping[str, float]) -> Iterator[str]:
        """In words, what has grown by more than it may."""
        for name, share in self.more.items():
            old, new = before[name], now[name]
            if new > old * (1 + share):
                by = f"+{new / old - 1:.1%}" if old else "from nothing"
                yield f"{name} {shown(name, old)} → {shown(name, new)}, {by} where +{share:.1%} is the most"


def quantities(p: Prediction) -> dict[str, float]:
    """What thresholds are of, in base units."""
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
        raise LockError(f"{where}: {name}: expected '{such}' at most, or growth as '+3 %'; got {text!r:.40}") from None
    return value, sign != "<"


_HEAD = """\
# What these workloads take, as predicted. `rooflinekit guard` says what has changed, and with --update accepts it.
"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FLOATS = ("time_s", "low_s", "high_s")


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
        """The same with one workload locked anew, written with its graph. Raises OutputError where it cannot be."""
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
    for key in value:
        if key not in ("run", "limits", "locked"):
            raise LockError(f"{where}: unknown key {key!r}{nearest(key, ('run', 'limits'))}; expected run and limits")
    if not isinstance(value.get("run"), str):
        raise LockError(f"{where}: run: expected a text, what `rooflinekit predict` is given; got {value.get('run')!r}")
    locked = value.get("locked", {})
    if not isinstance(locked, dict):
        raise LockError(f"{where}: locked: expected tables by GPU")
    return Block(
        name=name,
        run=value["run"],
        limits=Limits.parse(value.get("limits", {}), where),
        locked={gpu: _locked(one, f"{where}: locked on {gpu}") for gpu, one in locked.items()},
    )


def _locked(value: Any, where: str) -> Locked:
    kinds = {one.name: {"float": float, "int": int, "str": str}[str(one.type)] for one in fields(Locked)}
    if not isinstance(value, dict) or value.keys() != kinds.keys():
        raise LockError(f"{where}: expected {', '.join(kinds)}; lock it again with --update")
    for name, kind in kinds.items():
        if not isinstance(value[name], kind):
            raise LockError(f"{where}: {name}: expected a {kind.__name__}; got {value[name]!r:.40}")
    return Locked(**value)


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
    heads = [tuple(_head(part)) for part in parts]
    kept = [(head, part) for head, part in zip(heads, parts, strict=True) if head[:2] != (name, "locked")]
    place = max((i for i, (head, _) in enumerate(kept) if head[:1] == (name,)), default=len(kept) - 1)
    own = kept[place][1].rstrip("\n")
    texts = [part for _, part in kept]
    texts[place : place + 1] = [own + "\n\n" + tables]
    whole = "".join(texts).rstrip("\n") + "\n"
    return whole if whole.startswith("#") else _HEAD + "\n" + whole


def _head(part: str) -> list[str]:
    """The names of a table's head."""
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
