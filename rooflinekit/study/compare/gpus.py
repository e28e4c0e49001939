"""One workload on many GPUs: how fast, whether it fits, for how much money and power, and why in this order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import combinations, islice, pairwise, permutations
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import FormatError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.prices import price_hint
from rooflinekit.ir import notebook
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.notebook import aligned
from rooflinekit.ir.op import Math
from rooflinekit.step.execution import Execution
from rooflinekit.step.labels import MEANING
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.step.report import title
from rooflinekit.study.compare.cost import Bounds
from rooflinekit.study.errors.components import Ratio, Ratios
from rooflinekit.study.explain.differences import computed_in, main_format, stated_peak
from rooflinekit.study.explain.explanation import listed, seconds, signed
from rooflinekit.timing.machine import Machine, board_share
from rooflinekit.units import format_bytes, format_quantity, number

if TYPE_CHECKING:
    import pandas as pd

_MAYBE = ("price_usd", "power_w", "per_dollar", "per_watt", "drawn_w", "per_joule", "per_million")
_LISTED = 4  # names in one sentence
_SURPRISES = 3  # sentences on GPUs with more FLOP/s that are slower
MOST = 7  # beside the one in question


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two GPUs, the first faster, and what the second loses to it."""

    faster: Prediction
    slower: Prediction
    faster_peak: float  # FLOP/s stated for the format that the workload mostly computes in
    slower_peak: float
    faster_math: Math  # that each does it in
    slower_math: Math
    bounds: Ratio  # how many times as long the slower one takes, with 90 %

    @property
    def ratio(self) -> float:
        """How many times as long the slower one takes."""
        return self.bounds.times

    @property
    def certain(self) -> bool:
        """Whether it is the slower one, with 90 %."""
        return self.bounds.certain

    def terms(self) -> dict[str, float]:
        """Seconds by which each term of the slower one is above the faster one's; the largest difference first."""
        fast, slow = self.faster.terms(), self.slower.terms()
        return dict(sorted(((name, slow[name] - fast[name]) for name in slow), key=lambda item: -abs(item[1])))

    def to_dict(self) -> dict[str, Any]:
        """Its numbers, ready for JSON."""
        return {
            "faster": self.faster.machine.name, "slower": self.slower.machine.name, "ratio": self.ratio,
            "ratio_low": self.bounds.low, "ratio_high": self.bounds.high, "certain": self.certain,
            "terms": self.terms(),
        }  # fmt: skip


#: What rows are sorted by: the column, whether the largest comes first, and where the table has no such column yet its
#: head and what its numbers are multiplied by.
SORTS: dict[str, tuple[str, bool, str, float]] = {
    "time": ("total_s", False, "", 1.0),
    "per-dollar": ("per_dollar", True, "{one}s/s/$1000", 1000.0),
    "per-watt": ("per_watt", True, "{one}s/s/W", 1.0),
    "share-of-peak": ("share_of_peak", True, "", 1.0),
    "price": ("price_usd", False, "$ at launch", 1.0),
    "energy": ("per_joule", True, "{one}s/J", 1.0),
    "cost": ("per_million", False, "{money} a million {one}s", 1.0),
}


@dataclass(frozen=True, kw_only=True, repr=False)  # no slots: the cached properties need a place
class GpuComparison:
    """One workload on several GPUs.

    `predictions` stand in the order of `sort`, those that do not fit the memory last. `refused` holds the GPUs that
    cannot run it, and why.
    """

    predictions: tuple[Prediction, ...]
    rows: tuple[Mapping[str, Any], ...]  # of each, None where its specification does not say; see `table`
    refused: Mapping[str, str]
    math: Math  # that most of its FLOP are done in
    tensor_core: bool  # whether a tensor core may do them
    sort: str
    currency: str | None = None  # of what a million samples cost; None where no prices are given

    @property
    def counted(self) -> str:
        """What throughput is counted in: "samples", where a size is named batch, else "steps"."""
        return self.predictions[0].counted[0]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each GPU, indexed by its name.

        total_s, low_s, high_s: of a step, with its 90 % interval; gpu_s: in which the GPU works. throughput: samples
        (or steps, see `counted`) a second. fits, peak_bytes, memory_bytes. share_of_peak: the share of the step that
        its FLOP take at the datasheet's peak. regime. peak_flop_per_s: stated, of the format that it mostly computes
        in. per_dollar: throughput by the launch price; per_watt: by the board's power; per_joule: by drawn_w, the mean
        watts that the step is predicted to draw. per_million: what a million samples (or steps) cost, where prices are
        given; see `bounds`. NaN where the specification does not say, and per_dollar and per_watt for a device's part
        where several share a board.
        """
        return _frame(self.rows)

    @cached_property
    def neighbours(self) -> tuple[Pair, ...]:
        """Each GPU on which it fits with the next slower one, by time."""
        return tuple(self._pair(a, b) for a, b in pairwise(self.order))

    @cached_property
    def surprises(self) -> tuple[Pair, ...]:
        """Pairs in which the slower GPU has the higher stated peak, for certain; the most striking first."""
        found = []
        for a, b in permutations(self._fitting(), 2):
            more = self.rows[b]["peak_flop_per_s"] / self.rows[a]["peak_flop_per_s"]
            # More by the last digits of a datasheet is as much.
            if more > 1.01 and self.surely_faster(a, b):
                pair = self._pair(a, b)
                found.append((more * pair.ratio, pair))
        return tuple(pair for _, pair in sorted(found, key=lambda item: -item[0]))

    @property
    def by_time(self) -> tuple[Mapping[str, Any], ...]:
        """The rows of those on which it fits, the fastest first."""
        return tuple(self.rows[place] for place in self.order)

    @property
    def claims(self) -> tuple[tuple[str, str], ...]:
        """Every pair of GPUs of which the first is faster for certain: the 90 % interval of their ratio holds no 1."""
        pairs = combinations(self.order, 2)
        return tuple((self.rows[a]["gpu"], self.rows[b]["gpu"]) for a, b in pairs if self.surely_faster(a, b))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The places of those on which it fits, the fastest first."""
        return tuple(sorted(self._fitting(), key=lambda place: float(self.rows[place]["total_s"])))

    def surely_faster(self, a: int, b: int) -> bool:
        """Whether the GPU at one place is faster than that at another, with 90 %."""
        return bool(self.rows[a]["total_s"] < self.rows[b]["total_s"]) and self._ratios.of(b, a).certain

    @cached_property
    def _ratios(self) -> Ratios:
        return Ratios(self.predictions, one_network=True)

    def _fitting(self) -> list[int]:
        return [place for place, row in enumerate(self.rows) if row["fits"]]

    def _pair(self, a: int, b: int) -> Pair:
        fast, slow = self.predictions[a], self.predictions[b]
        math_a, math_b = (computed_in(p.machine, self.math, tensor_core=self.tensor_core) for p in (fast, slow))
        return Pair(
            faster=fast, slower=slow, faster_math=math_a, slower_math=math_b, bounds=self._ratios.of(b, a),
            faster_peak=self.rows[a]["peak_flop_per_s"], slower_peak=self.rows[b]["peak_flop_per_s"],
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Everything but the kernels, ready for JSON."""
        first = self.predictions[0]
        return {
            "model": first.graph_name, "mode": first.mode, "sizes": dict(first.sizes),
            "execution": first.execution.backend, "host": first.host.name, "format": str(self.math),
            "counted": self.counted, "currency": self.currency, "sort": self.sort,
            "gpus": [dict(row) for row in self.rows], "refused": dict(self.refused),
            "certainly_faster": [list(pair) for pair in self.claims],
            "neighbours": [pair.to_dict() for pair in self.neighbours],
            "more_peak_yet_slower": [pair.to_dict() for pair in self.surprises], "sentences": list(sentences(self)),
        }  # fmt: skip

    def __str__(self) -> str:
        return "\n".join((*aligned(*table_of(self)), *sentences(self)))

    def _repr_html_(self) -> str:
        first = self.predictions[0]
        return notebook.block(
            title(first),
            notebook.table(*table_of(self)),
            notebook.paragraphs(sentences(self)),
            notebook.paragraphs(f"left out: {name}: {why}" for name, why in self.refused.items()),
        )

    def __repr__(self) -> str:
        best = self.predictions[0]
        return f"<GpuComparison {best.graph_name} on {len(self.predictions)} GPUs, first {best.machine.name}>"


def compare_machines(
    graph: Graph, machines: Sequence[Machine], host: Host, execution: Execution, sort: str = "time",
    corrected: Callable[[Prediction], Prediction] | None = None, bounds: Bounds | None = None,
) -> GpuComparison:  # fmt: skip
    """The workload on each machine.

    sort: one of SORTS. corrected: makes of each prediction the one that counts, such as a measured step's transfer.
    bounds: prices, and what leaves GPUs out. Raises SizeError while a size is open, and FormatError where no machine
    has its arithmetic.
    """
    bounds = bounds or Bounds()
    found, refused = [], {}
    for machine in machines:
        try:
            plain = predict_graph(graph, machine, host, execution)
            found.append(plain if corrected is None else corrected(plain))
        except FormatError as error:
            refused[machine.name] = str(error)
    if not found:
        raise FormatError(f"none of the GPUs can run it: {next(iter(refused.values()))}")
    math, tensor_core = main_format(found[0])
    pairs = [(p, row | bounds.cost_of(p)) for p, row in zip(found, _rows(found), strict=True)]
    beyond = bounds.beyond([row for _, row in pairs])
    column, largest_first, *_ = SORTS["cost" if sort == "per-dollar" and bounds.currency else sort]

    def rank(pair: tuple[Prediction, Mapping[str, Any]]) -> tuple[bool, bool, float]:
        row, value = pair[1], pair[1][column]
        return not row["fits"], value is None, 0.0 if value is None else -value if largest_first else value

    kept = sorted((pair for pair in pairs if pair[1]["gpu"] not in beyond), key=rank)
    predictions, rows = zip(*kept, strict=True)
    return GpuComparison(
        predictions=predictions, rows=rows, refused=refused | beyond, math=math, tensor_core=tensor_core, sort=sort,
        currency=bounds.currency,
    )  # fmt: skip


def gpu_frame(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """A row for each prediction of one workload, as `GpuComparison.table` has them, without costs."""
    return _frame(_rows(predictions)).reset_index()


def _rows(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    math, tensor_core = main_format(predictions[0])
    return [_row(p, stated_peak(p.machine, math, tensor_core=tensor_core)) for p in predictions]


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    found = pd.DataFrame(list(rows)).set_index("gpu")
    return found.astype({name: float for name in _MAYBE if name in found})


def _row(p: Prediction, peak: float) -> dict[str, Any]:
    low, high = p.interval(0.9)
    device = p.machine.device
    throughput = p.counted[1] / p.total_s if p.total_s else float("inf")
    price, power = device.own_price_usd, board_share(device)
    return {
        "gpu": p.machine.name, "total_s": p.total_s, "low_s": low, "high_s": high, "gpu_s": p.gpu_s,
        "throughput": throughput, "fits": p.memory.fits, "peak_bytes": p.memory.peak_bytes,
        "memory_bytes": p.memory.capacity,
        "share_of_peak": sum(t.ideal_s for t in p.timings) / p.total_s if p.total_s else 0.0, "regime": p.regime,
        "peak_flop_per_s": peak, "bandwidth_bytes_per_s": p.machine.bandwidth, "price_usd": price, "power_w": power,
        "per_dollar": None if price is None else throughput / price,
        "per_watt": None if power is None else throughput / power, "drawn_w": p.power_w,
        "per_joule": None if p.power_w is None else throughput / p.power_w,
    }  # fmt: skip


def sentences(comparison: GpuComparison) -> Iterator[str]:
    """Whose price is missing; the order by time, from the fastest down; GPUs with more FLOP/s that are slower."""
    yield from price_sentences(comparison)
    yield from order_sentences(comparison)
    yield from surprise_sentences(comparison)


def price_sentences(comparison: GpuComparison) -> Iterator[str]:
    """Which GPUs stand last for want of a price, where they were sorted by one."""
    column = {"per-dollar": "per_dollar", "price": "price_usd"}.get(comparison.sort)
    column = "per_million" if comparison.currency else column
    if names := [row["gpu"] for row in comparison.rows if column and row["fits"] and row[column] is None]:
        yield f"last, for want of a {price_hint(names, comparison.currency)}"


def order_sentences(comparison: GpuComparison) -> Iterator[str]:
    """Why each GPU is faster than the next; where that is not certain of neighbours, of which pairs it is."""
    if not any(row["fits"] for row in comparison.rows):
        yield "It fits the memory of none of them."
    yield from _all_wait(comparison)
    unclear: list[int] = []
    for place, pair in enumerate(comparison.neighbours):
        if pair.certain:
            yield from _no_claim(comparison, unclear)
            unclear = []
            fast, slow = pair.faster, pair.slower
            yield (
                f"{fast.machine.name} is {pair.ratio:.2f}× faster than {slow.machine.name} "
                f"({seconds(fast.total_s)} against {seconds(slow.total_s)}), which has {_why(pair)}."
            )
        else:
            unclear = unclear or [place]
            unclear.append(place + 1)
    yield from _no_claim(comparison, unclear)


def _all_wait(comparison: GpuComparison) -> Iterator[str]:
    """Told where the CPU decides on several GPUs, which then are as fast as each other; with what they could do."""
    held = [comparison.predictions[place] for place in comparison.order]
    held = sorted((p for p in held if p.cpu_s >= p.gpu_s), key=lambda p: p.gpu_s)
    if len(held) < 2:
        return
    alone = [f"{p.machine.name} {seconds(p.gpu_s)}" for p in held]
    if len(alone) > 2 * _LISTED:
        alone = [*alone[:_LISTED], "…", *alone[-_LISTED:]]
    every = len(held) == len(comparison.order)
    host = held[0].host
    known = "no host is named, so the median of those measured" if host.stands_for_any else host.name
    yield (
        f"{'All of them' if every else f'{len(held)} of them'} wait for the CPU, which takes "
        f"{seconds(min(p.cpu_s for p in held))} to issue the step ({known}): a larger batch, torch.compile, a CUDA "
        f"graph or a faster host would tell them apart. The GPUs alone would take: "
        f"{', '.join(alone)}."
    )


def surprise_sentences(comparison: GpuComparison) -> Iterator[str]:
    """Each GPU that is slower than one with fewer FLOP/s, beside the one for which that is most striking."""
    first: dict[str, Pair] = {}
    for pair in comparison.surprises:
        first.setdefault(pair.slower.machine.name, pair)
    for slow, pair in islice(first.items(), _SURPRISES):
        yield (
            f"More FLOP/s, yet slower: {slow} states {_peaks(pair)} of {pair.faster.machine.name}, and takes "
            f"{seconds(pair.slower.total_s)} against {seconds(pair.faster.total_s)}; it has {_why(pair)}."
        )
    if len(first) > _SURPRISES:
        yield f"{len(first) - _SURPRISES} more GPUs are slower than one with fewer FLOP/s."


def _why(pair: Pair) -> str:
    """The terms that make up nine tenths of what differs, and the datasheet's numbers behind the largest."""
    terms = pair.terms()
    all_of_it = left = sum(map(abs, terms.values()))
    named: list[str] = []
    for name, more in terms.items():
        if left <= 0.1 * all_of_it:
            break
        named.append(f"{MEANING[name]} {signed(more)}")
        left -= abs(more)
    largest, numbers = next(iter(terms)), ""
    if largest == "memory":
        slow, fast = (format_quantity(p.machine.bandwidth, "byte/s") for p in (pair.slower, pair.faster))
        numbers = f" (DRAM {slow} against {fast})"
    elif largest in ("ideal", "underuse"):
        numbers = f" (peak {_peaks(pair)})"
    return f"{', '.join(named)}{numbers}"


def _peaks(pair: Pair) -> str:
    """Stated FLOP/s of the slower against the faster one, each in what it computes in: not every GPU has tf32."""
    fast, slow = (format_quantity(peak, "flop/s") for peak in (pair.faster_peak, pair.slower_peak))
    if pair.faster_math is pair.slower_math:
        return f"{slow} against {fast} in {pair.faster_math}"
    return f"{slow} in {pair.slower_math} against {fast} in {pair.faster_math}"


def _no_claim(comparison: GpuComparison, places: Sequence[int]) -> Iterator[str]:
    """A sentence on neighbours either of which may be faster: what can be said of pairs further apart."""
    if not places:
        return
    rows = comparison.by_time
    names = [rows[place]["gpu"] for place in places]
    if len(names) > _LISTED:
        those = f"neighbours among the {len(names)} from {names[0]} to {names[-1]}"
    else:
        those = listed(names)
    claims: list[str] = []
    for i, place in enumerate(places):
        slower = [
            rows[other]["gpu"] for other in places[i + 1 :]
            if comparison.surely_faster(comparison.order[place], comparison.order[other])
        ]  # fmt: skip
        if slower:
            than = listed(slower) if len(slower) <= _LISTED else f"the {len(slower)} from {slower[0]} on"
            claims.append(f"{names[i]} is faster than {than}")
    if len(claims) > _LISTED:
        claims = [*claims[:2], f"{len(claims) - 2} more are faster than others further down"]
    certain = f" For certain, {listed(claims)}." if claims else ""
    yield f"The order of {those} is not certain: the 90 % interval of the ratio of neighbours includes 1.{certain}"


def table_of(comparison: GpuComparison) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of its table, as texts: what every choice needs, then what it was sorted by or costs."""
    one, money = comparison.counted.removesuffix("s"), comparison.currency
    heads = _heads(comparison.counted)
    rows = [_cells(row) for row in comparison.rows]
    asked = {"cost" if money and comparison.sort == "per-dollar" else comparison.sort, *(["cost"] if money else [])}
    columns = [(name, head, times) for word, (name, _, head, times) in SORTS.items() if head and word in asked]
    if columns and comparison.sort != "share-of-peak":  # narrow enough for a terminal
        heads, rows = heads[:-1], [cells[:-1] for cells in rows]
    for name, head, times in columns:
        heads.append(head.format(one=one, money=money))
        for cells, row in zip(rows, comparison.rows, strict=True):
            cells.append("–" if row[name] is None or not row["fits"] else f"{row[name] * times:.4g}")
    return heads, rows


def _heads(counted: str) -> list[str]:
    return ["", "step", "90 % interval", "GPU busy", f"{counted}/s", "regime", "memory", "of peak"]


def rows_of(predictions: Sequence[Prediction]) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of predictions of one workload, as texts, without costs."""
    return _heads(predictions[0].counted[0]), [_cells(row) for row in _rows(predictions)]


def _cells(row: Mapping[str, Any]) -> list[str]:
    """A row; of a GPU whose memory is too small nothing but that."""
    memory = format_bytes(row["peak_bytes"])
    if not row["fits"]:
        return [row["gpu"], *["–"] * 5, f"{memory} does not fit", "–"]
    interval = " to ".join(seconds(row[name]) for name in ("low_s", "high_s"))
    times = seconds(row["total_s"]), interval, seconds(row["gpu_s"])
    rest = number(row["throughput"]), row["regime"], f"{memory} fits", f"{row['share_of_peak']:.0%}"
    return [row["gpu"], *times, *rest]


# Which GPUs to compare with, where nobody named any: by a rule on datasheets, so that no name is preferred.


def shortlist(subject: Device, known: Iterable[Device]) -> tuple[Device, ...]:
    """The subject, and of each architecture of its vendor the GPU with the most memory bandwidth, the newest first.

    Of equal bandwidth the one with more memory, then the first by name. Architectures are as new as the GPU chosen of
    them, and MOST of them are taken; drafts, packages of several devices and the subject itself are not.
    """
    best: dict[str, Device] = {}
    for device in sorted(known, key=lambda d: (-d.dram.bandwidth, -d.dram.capacity, d.name)):
        if device.kind == "gpu" and device.vendor == subject.vendor and device.offered:
            best.setdefault(device.architecture, device)
    others = [device for device in best.values() if device.name != subject.name]
    newest = sorted(others, key=lambda d: d.launch_date or date.min, reverse=True)
    return (subject, *newest[:MOST])


def shortlist_rule(subject: Device) -> str:
    """The rule by which the shortlist is chosen, in words."""
    return (
        f"The GPU of this report, and of each architecture of {subject.vendor} the shipped GPU with the most memory "
        f"bandwidth, the {MOST} newest of them."
    )
