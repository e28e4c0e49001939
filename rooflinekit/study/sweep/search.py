"""The fastest, cheapest or smallest configuration that meets what is asked of it.

Models, GPUs and executions are enumerated, and so are sizes while there are few. Where there are many, scipy's
differential evolution chooses whole numbers among them, for each of the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit.errors import InputError, UnitError, check_word, nearest
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.prices import price_hint, price_word, some_of
from rooflinekit.hardware.specs import resolve
from rooflinekit.ir import notebook
from rooflinekit.ir.arguments import expect
from rooflinekit.ir.notebook import FirstLine, aligned
from rooflinekit.ir.sizes import finite, finite_or_none
from rooflinekit.study.sweep.plan import BLOCK, Case, Plan, predict_settings
from rooflinekit.study.sweep.points import REGIMES
from rooflinekit.units import format_quantity, parse_quantity, said

ENUMERATED = 200_000  # predictions, up to which all are made
ENUMERATED_EACH = 2_000  # the same of steps on several devices, which take tenths of a second each

_POPULATION, _GENERATIONS = 64, 24
_TRIED = 32  # configurations at a time whose blocks are followed through the allocator
_FAR = 1e6  # of the goal, for what meets nothing: far from all that does

_HOUR_S = 3600.0
_Columns = dict[str, NDArray[Any]]
#: Changes a table's times in place, such as by what a measured step makes of them.
Correct = Callable[[Case, Mapping[str, NDArray[np.int64]], _Columns], None]
_SHOWN = ("total_s", "low_s", "high_s", "throughput", "peak_bytes", "price", "dollars", "power_w", "joules")
_seconds = partial(said, unit="s")


@dataclass(frozen=True, kw_only=True, repr=False)
class Found(FirstLine):
    """What a search found.

    `table` has the best configuration of each model, GPU and execution that has one, the best first; where none meets
    the requirements, `closest` has those that come nearest, with what they miss.
    """

    goal: str  # of LEAST or MOST
    requirements: tuple[str, ...]
    table: pd.DataFrame
    closest: pd.DataFrame
    unpriced: tuple[str, ...]  # GPUs without a launch price, where one is asked for: they are left out
    predicted: int  # how many configurations
    exhaustive: bool  # whether these are all
    currency: str | None = None  # of an hour; None where prices are those at launch, in dollars

    @property
    def best(self) -> dict[str, Any] | None:
        """The best configuration; None where none meets the requirements."""
        return None if self.table.empty else {str(k): v for k, v in self.table.iloc[0].to_dict().items()}

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "minimize": self.goal if self.goal in LEAST else None, "maximize": self.goal if self.goal in MOST else None,
            "require": list(self.requirements), "predicted": self.predicted, "exhaustive": self.exhaustive,
            "unpriced": list(self.unpriced), "best": None if self.best is None else _records(self.table)[0],
            "runners_up": _records(self.table)[1:], "closest": _records(self.closest), "doubts": list(self.doubts),
        }  # fmt: skip

    @property
    def head(self) -> tuple[str, ...]:
        """Lines that tell what was searched for, how, and whether anything meets it."""
        asked = f" with {', '.join(self.requirements)}" if self.requirements else ""
        how = "" if self.exhaustive else ", whose sizes differential evolution chose"
        every = "all " * self.exhaustive
        most = "most" if self.goal in MOST else "least"
        return (
            f"{most} {self.goal}{asked}: {every}{self.predicted} configurations predicted{how}",
            *((f"left out, for want of a {price_hint(self.unpriced, self.currency)}",) if self.unpriced else ()),
            *(("none meets it; closest come:",) if self.best is None else ()),
        )

    @property
    def doubts(self) -> tuple[str, ...]:
        """Bounds on time or throughput that the best configurations meet, and the slow ends of their intervals miss."""
        found = []
        for bound in requirements_of(self.requirements, tuple(map(str, self.table.columns))):
            if self.best is None or bound.column not in ("total_s", "throughput"):
                continue
            timed, slower = bound.column == "total_s", self.table["high_s"] / self.table["total_s"]
            worst = self.table[bound.column] * (slower if timed else 1 / slower)
            missed = bound.excess(worst.to_numpy()) > 0
            names, values = self.table.iloc[:, 0][missed], worst[missed]
            shown = [
                f"{name} {format_quantity(value, 's') if timed else f'{value:.4g}'}"
                for name, value in zip(names, values, strict=True)
            ]
            if shown:
                surely = f"; {bound.text.replace('time', 'high')} leaves them out" if timed else ""
                found.append(f"the interval's slow end misses {bound.text}: {', '.join(shown)}{surely}")
        return tuple(found)

    def __str__(self) -> str:
        table = self.closest if self.best is None else self.table
        heads, rows, alike = cells_of(table, self.currency)
        return "\n".join((*self.head, *alike, *aligned(heads, rows), *self.doubts))

    def _repr_html_(self) -> str:
        first, *rest = self.head
        heads, rows, alike = cells_of(self.closest if self.best is None else self.table, self.currency)
        return notebook.block(
            first, notebook.paragraphs((*rest, *alike)), notebook.table(heads, rows), notebook.paragraphs(self.doubts)
        )


def search_plan(
    plan: Plan, goal: str, require: Iterable[str], prices: Mapping[str, float] | None = None,
    correct: Correct | None = None, currency: str | None = None,
) -> Found:  # fmt: skip
    """The configuration of a sweep that is best by a goal, among those that fit and meet the requirements.

    goal, require, prices: as of `rooflinekit.search`, which says what is raised; "energy" is of a sample, and so is
    "cost", where `prices` are those of an hour. correct: of predicted times. currency: says that prices are those of an
    hour, in this currency; where `cost` is asked for they are, in USD.
    """
    check_word("goal", goal, GOALS)
    asked = requirements_of(require, tuple(plan.grid.lists))
    money = {"dollars", "price", "cost"}
    priced = goal in money or any(r.column in money for r in asked)
    if goal == "cost" or any(r.column == "cost" for r in asked):
        currency = currency or "USD"
    each = prices_of(plan, prices or {}, hourly=currency is not None)
    unpriced = [name for name, price in each.items() if priced and price is None]
    cases = [case for case in plan.cases if not {device.name for device in case.setting.devices} & {*unpriced}]
    if not cases:
        raise InputError(
            f"minimize {goal!r}: no {price_word(currency)} is known of {some_of(unpriced)}; give "
            f"prices={{{unpriced[0]!r}: …}} (--price {unpriced[0]}=… on the command line)"
        )
    exhaustive = plan.rows <= (ENUMERATED_EACH if plan.each else ENUMERATED)
    best, closest, predicted = [], [], 0
    for case in cases:
        price = sum((each[device.name] or float("nan") for device in case.setting.devices), 0.0)
        look = _Look(plan=plan, case=case, price=price, goal=goal, asked=asked, correct=correct)
        columns = look.every() if exhaustive else look.chosen()
        predicted += len(columns["total_s"])
        winner = look.best(columns)
        if winner is not None:
            best.append(winner)
        else:
            closest.append(look.nearest(columns))
    return Found(
        goal=goal, requirements=tuple(r.text for r in asked),
        table=_table(plan, best, GOALS[goal], largest_first=goal in MOST),
        closest=_table(plan, closest, "misses by") if not best else pd.DataFrame(), unpriced=tuple(unpriced),
        predicted=predicted, exhaustive=exhaustive, currency=currency,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    plan: Plan
    case: Case
    price: float
    goal: str
    asked: tuple[Requirement, ...]
    correct: Correct | None

    def every(self) -> _Columns:
        places = np.arange(self.plan.grid.points)
        starts = range(0, len(places), BLOCK)
        return _below([self.predicted(self.plan.grid.at(places[start : start + BLOCK])) for start in starts])

    def chosen(self) -> _Columns:
        """The configurations that scipy's differential evolution looks at."""
        from scipy.optimize import differential_evolution

        lengths = self.plan.grid.lengths
        seen: list[_Columns] = []

        def cost(places: NDArray[np.float64]) -> NDArray[np.float64]:
            index = np.rint(places).astype(np.int64).reshape(len(lengths), -1)
            columns = self.predicted(self.plan.grid.at_places(list(index)))
            seen.append(columns)
            excess, sign = self.excess(columns), -1 if self.goal in MOST else 1
            value = np.log(np.maximum(columns[GOALS[self.goal]].astype(float), 1e-300)) * sign
            return np.where(excess > 0, _FAR + np.minimum(excess, _FAR), value)

        differential_evolution(
            cost, [(0, length - 1) for length in lengths], integrality=[True] * len(lengths), rng=0,
            popsize=_POPULATION // len(lengths), maxiter=_GENERATIONS, polish=False, vectorized=True,
            updating="deferred",
        )  # fmt: skip
        return _below(seen)

    def predicted(self, sizes: Mapping[str, NDArray[np.int64]]) -> _Columns:
        # where the allocator is followed anyhow, `fits` costs nothing more
        (table,) = predict_settings(
            self.case.graph, [self.case.setting], sizes, memory=True if self.plan.each else "peak"
        )
        if self.correct is not None:
            self.correct(self.case, sizes, table)
        count = len(table["total_s"])
        table.setdefault("throughput", 1 / table["total_s"])
        table["price"] = np.full(count, self.price)
        table["dollars"] = table["price"] / table["throughput"]
        table["cost"] = table["dollars"] / _HOUR_S
        table["joules"] = table.get("power_w", np.full(count, np.nan)) / table["throughput"]
        return {**{name: np.asarray(values) for name, values in sizes.items()}, **table}

    def excess(self, columns: _Columns) -> NDArray[np.float64]:
        """How far each configuration is from meeting everything, as a sum of logarithms; 0 where it does."""
        over = np.log(np.maximum(columns["peak_bytes"] / self.case.setting.capacity, 1.0))
        if "fits" in columns:
            over = np.where(columns["fits"], 0.0, np.maximum(over, 1e-12))
        found: NDArray[np.float64] = sum((r.excess(columns[r.column]) for r in self.asked), over)
        return np.where(np.isfinite(columns["total_s"]), found, np.inf)  # what cannot be cut that way is furthest

    def best(self, columns: _Columns) -> dict[str, Any] | None:
        values = columns[GOALS[self.goal]].astype(float) * (-1 if self.goal in MOST else 1)
        excess = self.excess(columns)
        order = np.argsort(np.where(excess > 0, np.inf, values), kind="stable")
        order = order[(excess[order] == 0) & np.isfinite(values[order])]
        for start in range(0, len(order), _TRIED):
            some = order[start : start + _TRIED]
            for place in some[self.fits(columns, some)]:
                one = {name: values[[place]] for name, values in columns.items()}
                if self.correct is not None:  # predicted again by itself, its times are corrected exactly
                    one = self.predicted({name: one[name] for name in self.case.graph.dims})
                if not self.excess(one)[0]:
                    return _row(self.case, one, 0)
        return None

    def nearest(self, columns: _Columns) -> dict[str, Any]:
        """The configuration that comes nearest to meeting everything."""
        excess = self.excess(columns)
        near = int(np.argmin(np.where(excess > 0, excess, np.inf))) if (excess > 0).any() else 0
        beyond = {r.text: r.excess(columns[r.column][[near]])[0] for r in self.asked}
        missed = [f"{text} by a factor of {np.exp(ln):.3g}" for text, ln in beyond.items() if ln > 0]
        fits = columns["fits"] if "fits" in columns else columns["peak_bytes"] <= self.case.setting.capacity
        if not fits[near] or not missed:
            missed.append("memory")
        if "problem" in columns and columns["problem"][near]:
            missed = [str(columns["problem"][near])]
        return {**_row(self.case, columns, near), "misses": ", ".join(missed), "misses by": float(excess[near])}

    def fits(self, columns: _Columns, some: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether these fit, with blocks followed through the allocator."""
        if "fits" in columns:
            return np.asarray(columns["fits"][some])
        sizes = {name: columns[name][some] for name in self.case.graph.dims}
        (table,) = predict_settings(self.case.graph, [self.case.setting], sizes, memory=True)
        return table["fits"] if sizes else np.repeat(table["fits"], len(some))


def _below(parts: Sequence[_Columns]) -> _Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _row(case: Case, columns: _Columns, i: int) -> dict[str, Any]:
    sizes = {name: int(columns[name][i]) for name in case.graph.dims}
    numbers = {name: columns[name][i].item() for name in _SHOWN if name in columns}
    regime = {"regime": REGIMES[int(columns["regime"][i])]} if "regime" in columns else {}
    return {**case.labels, **case.graph.sizes, **sizes, **numbers, **regime}


def _table(plan: Plan, rows: list[dict[str, Any]], column: str, *, largest_first: bool = False) -> pd.DataFrame:
    hidden = [axis.name for axis in plan.axes if not axis.shown]
    frame = pd.DataFrame(rows)
    if frame.empty:
        return frame
    return frame.sort_values(column, ascending=not largest_first, kind="stable", ignore_index=True).drop(columns=hidden)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): finite_or_none(value) for name, value in row.items()} for row in frame.to_dict("records")]


#: What can be had least of, and what most of, with its column.
LEAST = {
    "time": "total_s", "dollars": "dollars", "memory": "peak_bytes", "price": "price", "energy": "joules",
    "cost": "dollars",  # whose order is the same where prices are those of an hour
}  # fmt: skip
MOST = {"throughput": "throughput"}
GOALS = LEAST | MOST


def goal_of(minimize: str | None, maximize: str | None) -> str:
    """What is looked for: by default the most throughput, as the shortest step is that of the smallest batch.

    Raises InputError for a word that is not known, and for both.
    """
    if minimize is not None and maximize is not None:
        raise InputError(f"minimize {minimize!r} and maximize {maximize!r}: expected one of the two")
    both = {"minimize": (minimize, LEAST), "maximize": (maximize, MOST)}
    for (option, (word, known)), (other, (_, others)) in permutations(both.items()):
        if word is not None and word not in known:
            hint = f"; {other} {word!r}" if word in others else nearest(word, known)
            hint = f"; write {meant}" if (meant := _MEANT.get(word)) in known else hint
            raise InputError(f"{option} {word!r}: expected {' or '.join(map(repr, known))}{hint}")
    return minimize or maximize or "throughput"


def named_prices(given: Mapping[str, float], devices: Iterable[Device]) -> dict[str, float]:
    """Prices by the devices' names, where they are given by any name that a device answers to.

    Raises InputError for a device that is not looked at, for one that is named twice, and for no positive number.
    """
    known = {device.name: device for device in devices}
    found: dict[str, float] = {}
    for name, price in given.items():
        try:
            device = resolve(name, known.values()).name
        except LookupError:
            listed = ", ".join(known)
            raise InputError(
                f"prices: device {name!r} is not among those compared: {listed}{nearest(name, known)}"
            ) from None
        expect(finite(price) and price > 0, f"prices: {name!r}", "dollars, a positive number", price)
        if device in found:
            raise InputError(f"prices: {device} is given twice")
        found[device] = price
    return found


def prices_of(plan: Plan, given: Mapping[str, float], *, hourly: bool) -> dict[str, float | None]:
    """Dollars of each device that occurs; of a board with several, of one of them.

    hourly: whether prices are those of an hour, of which what a GPU was sold for says nothing.
    """
    devices = {device.name: device for case in plan.cases for device in case.setting.devices}
    named = named_prices(given, devices.values())
    return {**{name: None if hourly else device.own_price_usd for name, device in devices.items()}, **named}


#: What can be asked for: its column, and the unit that a number may have.
QUANTITIES = {
    "time": ("total_s", "s"),  # of a step
    "low": ("low_s", "s"),  # the ends of its 90 % interval
    "high": ("high_s", "s"),
    "gpu-time": ("gpu_s", "s"),
    "throughput": ("throughput", ""),  # of the size named batch, else steps, a second
    "memory": ("peak_bytes", "byte"),
    "price": ("price", ""),  # dollars at launch
    "dollars": ("dollars", ""),  # the price by the throughput
    "cost": ("cost", ""),  # dollars of a sample, where prices are those of an hour
    "power": ("power_w", "W"),  # mean of all GPUs over a step
    "energy": ("joules", "J"),  # of a sample, else of a step
}
_MEANT = {"latency": "time", "duration": "time", "vram": "memory", "watts": "power", "joules": "energy", "usd": "price"}
_COMPARISON = re.compile(r"\s*([\w-]+)\s*(<=|>=|<|>|=)\s*(.+?)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A bound on a column."""

    text: str
    column: str
    comparison: str
    limit: float

    def excess(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """By which factor values are beyond the limit, as a logarithm; 0 where they meet it."""
        numbers = np.asarray(values, dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = np.abs(np.log(numbers / self.limit))
        met = {
            "<": numbers < self.limit, "<=": numbers <= self.limit, ">": numbers > self.limit,
            ">=": numbers >= self.limit, "=": numbers == self.limit,
        }[self.comparison]  # fmt: skip
        # one that is on the limit of "<", or is not known (a price), does not meet it either
        return np.where(met, 0.0, np.maximum(np.nan_to_num(beyond, nan=np.inf), 1e-12))


def requirements_of(texts: Iterable[str], sizes: Sequence[str]) -> tuple[Requirement, ...]:
    """What these texts ask for; besides quantities they may name sizes. Raises InputError."""
    return tuple(_requirement(text, sizes) for text in texts)


def _requirement(text: str, sizes: Sequence[str]) -> Requirement:
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise InputError(f"require {text!r}: expected a quantity and its bound, such as 'time<0.1 s'")
    name, comparison, bound = found.groups()
    known = [*QUANTITIES, *sizes]
    if name not in known:
        hint = f"; write {_MEANT[name]}{comparison}{bound}" if name in _MEANT else nearest(name, known)
        raise InputError(f"require {text!r}: {name!r} is not known: {', '.join(known)}{hint}")
    column, unit = QUANTITIES.get(name, (name, ""))
    try:
        limit = parse_quantity(bound, unit) if unit else float(bound)
    except UnitError as error:  # a number alone too: of milliseconds and seconds nobody knows which was meant
        raise InputError(f"require {text!r}: {error}") from error
    except ValueError:
        limit = float("nan")
    if not limit > 0 or limit == float("inf"):
        raise InputError(f"require {text!r}: expected a positive number; got {bound!r}")
    return Requirement(text=" ".join(text.split()), column=column, comparison=comparison, limit=limit)


def _number(value: float | None) -> str:
    """Four digits.

    >>> _number(12345.6), _number(0.012345), _number(None)
    ('12346', '0.01235', '–')
    """
    if value is None or value != value:
        return "–"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _text(value: Any) -> str:
    return "" if value is None or value != value else str(value)


#: Columns that people read: the head, the columns that it takes, and how their values fill it.
_Read = tuple[tuple[str, tuple[str, ...], Callable[..., str]], ...]
_READ: _Read = (
    ("step", ("total_s",), _seconds),
    ("90 % interval", ("low_s", "high_s"), lambda low, high: f"{_seconds(low)} to {_seconds(high)}"),
    ("GPU busy", ("gpu_s",), _seconds),
    ("CPU issuing", ("cpu_s",), _seconds),
    ("power", ("power_w",), partial(said, unit="W")),
    ("J/step", ("energy_j",), _number),
    ("J/sample", ("joules",), _number),
    ("regime", ("regime",), _text),
    ("samples/s", ("throughput",), _number),
    (
        "memory",
        ("peak_bytes", "fits"),
        lambda need, fits: said(need, "GiB") + " does not fit" * (not fits and need == need),
    ),
)
#: Money, where prices are those at launch, and where they are those of an hour: `dollars` is the price by samples/s.
_LAUNCH: _Read = (("$ at launch", ("price",), _number), ("$ by samples/s", ("dollars",), _number))
_HOURLY: _Read = (
    ("an hour", ("price",), _number),
    ("a million samples", ("dollars",), lambda dollars: _number(dollars * 1e6 / _HOUR_S)),
)


def cells_of(
    frame: pd.DataFrame, currency: str | None = None, *, apart: bool = True
) -> tuple[list[str], list[list[str]], list[str]]:
    """The heads and the rows of a table, as texts: what names a row first, then what was found.

    Columns that no row fills are left out; those that read alike in all of several rows stand in the third, a line or
    none, unless they are not to stand `apart`. currency: of the prices of an hour; without it they are those at launch.
    """
    if "peak_bytes" in frame and "fits" not in frame:
        frame = frame.assign(fits=True)
    columns = [str(name) for name in frame.columns]
    money = _LAUNCH if currency is None else tuple((f"{currency} {head}", n, fill) for head, n, fill in _HOURLY)
    known = (*_READ, *money)
    taken = {name for _, names, _ in known for name in names} | {"fits", "misses by"}
    there = {name for name in columns if not frame[name].isna().all()}
    first = [name for name in columns if name not in taken and name not in ("misses", "problem")]
    last = [name for name in ("misses", "problem") if name in there]
    texts: list[tuple[str, Iterable[str]]] = [(name, frame[name].map(str)) for name in first]
    for head, names, fill in known:
        if there.issuperset(names):
            per = head if "batch" in columns or "throughput" not in columns else head.replace("samples", "steps")
            texts.append((per, [fill(*values) for values in frame[list(names)].itertuples(index=False)]))
    texts += [(name, frame[name].map(_text)) for name in last]
    name, *others = [(head, list(column)) for head, column in texts]
    same = {head: cells[0] for head, cells in others if apart and len(cells) > 1 and len(set(cells)) == 1}
    shown = [name, *((head, cells) for head, cells in others if head not in same)]
    alike = [f"alike in all: {', '.join(f'{head} {cell}' for head, cell in same.items())}"] if same else []
    return [head for head, _ in shown], [list(row) for row in zip(*(column for _, column in shown), strict=True)], alike
