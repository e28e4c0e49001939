"""What lies between the times of two predictions: term by term, cause by cause, kernel by kernel; and in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from typing import TypeVar

from rooflinekit.errors import ComparisonError
from rooflinekit.ir import notebook
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.notebook import FirstLine
from rooflinekit.ir.op import Math
from rooflinekit.ir.sizes import finite_or_none
from rooflinekit.kernels.algorithms import FEWER_FLOP
from rooflinekit.step.attention import attention_seconds
from rooflinekit.step.chains import chain_sentences, chains_of
from rooflinekit.step.labels import MEANING, REGIME_TERMS
from rooflinekit.step.prediction import UNDERUSE, Prediction
from rooflinekit.step.report import shown_terms, table_rows
from rooflinekit.step.variants import BATCH
from rooflinekit.study.errors.components import Ratio, Ratios
from rooflinekit.study.explain import differences
from rooflinekit.study.explain.differences import Difference, Driver
from rooflinekit.units import format_bytes, format_quantity

T = TypeVar("T")

_SHOWN = 10  # drivers in a notebook
_KEPT = 20  # drivers in JSON
_FORMATS = {"device", "format", "autocast", "tf32"}  # what changes the peak that FLOP are held against
_SAME = 0.02  # a ratio this close to 1 is called equal
_NOTHING = 1e-15  # seconds: what rounding leaves of equal sums
_REST = 0.05  # of all differences together: what is smaller is summed up
_NAMED = 0.1  # share of the step from which a term is named


@dataclass(frozen=True, kw_only=True, repr=False)  # no slots: the cached properties need a place
class Explanation(FirstLine):
    """What lies between the times of two predictions, a and b.

    Times are those of a step; of a sample, where the size named batch differs: see `per`.
    """

    a: Prediction
    b: Prediction

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """In what the two differ, as stated: network, device, sizes, execution, formats."""
        return differences.differences(self.a, self.b)

    @property
    def labels(self) -> tuple[str, str]:
        """The names of both steps, which tell what differs."""
        return differences.labels(self.a, self.differences)

    def differs(self, *what: str) -> bool:
        """Whether the two differ in any of these."""
        return any(difference.what in what for difference in self.differences)

    @property
    def per(self) -> str:
        """What times are of: "step", or "sample" where the batches differ."""
        return "sample" if self.differs(BATCH) else "step"

    @property
    def _scale(self) -> tuple[float, float]:
        return (1 / self.a.sizes[BATCH], 1 / self.b.sizes[BATCH]) if self.per == "sample" else (1.0, 1.0)

    def _both(self, of: Callable[[Prediction], float]) -> tuple[float, float]:
        return of(self.a) * self._scale[0], of(self.b) * self._scale[1]

    @property
    def totals(self) -> tuple[float, float]:
        """Wall times of a and b."""
        return self._both(lambda p: p.total_s)

    @property
    def flop(self) -> tuple[float, float]:
        """FLOP of a and b, of as much work as the times are."""
        return self._both(lambda p: p.flop)

    @property
    def flop_ratio(self) -> float:
        """FLOP of a over FLOP of b."""
        return _ratio(*self.flop)

    @property
    def time_ratio(self) -> float:
        """Wall time of a over wall time of b: above 1 where b is faster."""
        return _ratio(*self.totals)

    @property
    def gpu_ratio(self) -> float:
        """Time that the GPU is busy with a, over that of b."""
        return _ratio(*self._both(lambda p: p.gpu_s))

    @property
    def delta_s(self) -> float:
        """Wall time of b minus that of a."""
        return self.totals[1] - self.totals[0]

    @cached_property
    def promised(self) -> float:
        """The speed-up that FLOP promise: their ratio, times that of the stated peaks where device or format differ."""
        if not self.differs(*_FORMATS):
            return self.flop_ratio
        return self.flop_ratio * self.peaks[1] / self.peaks[0]

    @property
    def formats(self) -> tuple[Math, Math]:
        """The arithmetic that most of the FLOP of a and b are done in."""
        return self._stated(differences.computed_in)

    @cached_property
    def peaks(self) -> tuple[float, float]:
        """FLOP/s that the datasheets of a and b state for it."""
        return self._stated(differences.stated_peak)

    def _stated(self, of: Callable[..., T]) -> tuple[T, T]:
        (math_a, core_a), (math_b, core_b) = map(differences.main_format, (self.a, self.b))
        return of(self.a.machine, math_a, tensor_core=core_a), of(self.b.machine, math_b, tensor_core=core_b)

    def terms(self) -> dict[str, float]:
        """Seconds that each term of b has more than that of a; they add up to `delta_s`."""
        a, b = self._scaled(lambda p: p.terms())
        return {name: b.get(name, 0.0) - a.get(name, 0.0) for name in {**a, **b}}

    def underuse(self) -> dict[str, float]:
        """Seconds that each cause of peak not reached has more in b than in a; they add up to the term `underuse`."""
        a, b = self._scaled(lambda p: p.underuse())
        return {name: b[name] - a[name] for name in UNDERUSE}

    def _scaled(self, of: Callable[[Prediction], Mapping[str, float]]) -> list[dict[str, float]]:
        sides = zip((self.a, self.b), self._scale, strict=True)
        return [{name: seconds * factor for name, seconds in of(p).items()} for p, factor in sides]

    def shortfall(self) -> dict[str, float]:
        """What keeps b from the time that its FLOP promise, a's over `promised`: seconds by cause, the largest first.

        The causes are the terms, with `underuse` in its parts; they add up to b's time less the promised one. Below 0
        is what b saves beyond the promise. Empty where there is no promise, for want of FLOP.
        """
        if not (math.isfinite(self.promised) and self.promised > 0):
            return {}
        a, b = self._scaled(lambda p: {**p.terms(), **p.underuse()})
        missing = {
            name: b.get(name, 0.0) - a.get(name, 0.0) / self.promised for name in {**a, **b} if name != "underuse"
        }
        return dict(sorted(missing.items(), key=lambda item: -abs(item[1])))

    @cached_property
    def drivers(self) -> tuple[Driver, ...]:
        """Groups of kernels, the largest difference first, that add up to `delta_s`; see `drivers_of`."""
        return differences.drivers_of(self.a, self.b, self._scale, one_network=not self.differs("network"))

    def intervals(self, level: float = 0.9) -> tuple[tuple[float, float], tuple[float, float]]:
        """Bounds of both times, in seconds."""
        (a_low, a_high), (b_low, b_high) = self.a.interval(level), self.b.interval(level)
        a, b = self._scale
        return (a_low * a, a_high * a), (b_low * b, b_high * b)

    @cached_property
    def ratio(self) -> Ratio:
        """b's time by a's, with its 90 % interval: what both are off by together, on one GPU or host, is not in it."""
        ratios = Ratios((self.a, self.b), one_network=not self.differs("network"))
        return ratios.of(1, 0, self._scale[1] / self._scale[0])

    @property
    def overlapping(self) -> bool:
        """Whether the 90 % intervals of the two times overlap; which is faster may be certain nevertheless: `ratio`."""
        (a_low, a_high), (b_low, b_high) = self.intervals()
        return max(a_low, b_low) <= min(a_high, b_high)

    def to_dict(self) -> dict[str, object]:
        """Everything but the kernels, ready for JSON. Ratios to nothing are None."""
        return {
            "a": self.a.to_dict(), "b": self.b.to_dict(), "labels": list(self.labels),
            "differences": [asdict(difference) for difference in self.differences], "per": self.per,
            "a_s": self.totals[0], "b_s": self.totals[1], "flop_ratio": finite_or_none(self.flop_ratio),
            "promised_ratio": finite_or_none(self.promised), "time_ratio": finite_or_none(self.time_ratio),
            "gpu_ratio": finite_or_none(self.gpu_ratio), "delta_s": self.delta_s, "terms": self.terms(),
            "underuse": self.underuse(), "shortfall": self.shortfall(), "intervals_overlap": self.overlapping,
            "certain": self.ratio.certain, "b_by_a": [finite_or_none(self.ratio.low), finite_or_none(self.ratio.high)],
            "drivers": [{**asdict(driver), "delta_s": driver.delta_s} for driver in self.drivers[:_KEPT]],
            "story": list(sentences(self)), "details": list(self.details),
        }  # fmt: skip

    @property
    def details(self) -> tuple[str, ...]:
        """Sentences behind the answer: what differs, datasheets, waits, algorithms, traffic, the sum of the terms."""
        return tuple(details(self))

    def __str__(self) -> str:
        return "\n".join(sentences(self))

    def _repr_html_(self) -> str:
        drivers = [(d.words, *(format_quantity(s, "s") for s in (d.a_s, d.b_s))) for d in self.drivers[:_SHOWN]]
        where = "" if self.differs("device") else f" on {self.a.machine.name}"
        return notebook.block(
            f"{self.labels[0]} and {self.labels[1]}{where}",
            notebook.paragraphs(sentences(self)),
            notebook.table(["", *self.labels], [(label, *values) for label, values in table_rows((self.a, self.b))]),
            notebook.folded(
                "details",
                notebook.paragraphs(self.details),
                notebook.table(["module, kind of op", *self.labels], drivers),
            ),
        )


@checked
def explain(a: Prediction, b: Prediction) -> Explanation:
    """What lies between the time of `a` and that of `b`, in whatever they differ.

    That may be the network, the GPU, sizes, formats, or the way of execution. Where the batches differ, all is said of
    a sample. Raises ComparisonError for what are no two predictions, for two fits of one device, whose difference is
    no device's, and for two networks in two modes.
    """
    for given in (a, b):
        if not isinstance(given, Prediction):
            raise ComparisonError(f"explain: expected two predictions, as of rk.predict; got {type(given).__name__}")
    if a.machine.device == b.machine.device and a.machine.constants != b.machine.constants:
        names = " and ".join(p.machine.constants.name for p in (a, b))
        raise ComparisonError(
            f"the two predictions rest on different fits of {a.machine.name}: {names}; predict both with the same"
        )
    found = Explanation(a=a, b=b)
    if found.differs("network") and found.differs("mode"):
        both = " and ".join(f"{p.graph_name} in {p.mode}" for p in (a, b))
        raise ComparisonError(f"the two predictions differ in network and mode: {both}; predict both in the same mode")
    return found


def _ratio(a: float, b: float) -> float:
    return a / b if b else float("inf")


def sentences(e: Explanation) -> Iterator[str]:
    """The answer, at most five: the verdict and how sure it is, what bounds the two, what most of the slower one's time
    goes by step after step, why, and where in the networks.
    """
    yield f"{_headline(e).removesuffix('.')}; {_certainty(e)}."
    yield _busy(e)
    yield from _mostly(e)
    yield next(_promise(e), None) or _terms(e)
    largest = [f"{driver.words} {signed(driver.delta_s)}" for driver in e.drivers[:4] if driver.delta_s]
    yield f"Largest differences: {', '.join(largest)}." if largest else "No kernel differs."


def details(e: Explanation) -> Iterator[str]:
    """What is behind the answer: what differs, datasheets, waits, algorithms, traffic, and the sum of the terms."""
    said = tuple(_mostly(e))
    yield from _stated(e)
    yield from _datasheets(e)
    for label, prediction in zip(e.labels, (e.a, e.b), strict=True):
        yield from _waiting(label, prediction)
    for label, prediction in zip(e.labels, (e.a, e.b), strict=True):
        yield from (s for one in chain_sentences(prediction) if (s := _placed(label, one)) not in said)
        yield from _fewer_executed(label, prediction)
    yield from _attention(e)
    yield from _memory(e)
    if next(_promise(e), None) is not None:
        yield _terms(e)
    terms, parts = e.terms(), e.underuse()
    if abs(terms["underuse"]) >= 0.1 * sum(map(abs, terms.values())) > 0 and sum(map(bool, parts.values())) > 1:
        yield f"Of these, {MEANING['underuse']} {signed(terms['underuse'])} is {_listed(parts)}."


def seconds(value: float) -> str:
    """A time as text."""
    return format_quantity(value if abs(value) > _NOTHING else 0.0, "s")


def signed(value: float) -> str:
    """A difference of times as text, with its sign."""
    sign = "" if abs(value) <= _NOTHING else "+" if value > 0 else "−"
    return f"{sign}{seconds(abs(value))}"


def _mostly(e: Explanation) -> Iterator[str]:
    """The chain that takes half of the slower step or more."""
    slower = int(e.totals[1] > e.totals[0])
    p = (e.a, e.b)[slower]
    if any(chain.total_s >= 0.5 * p.total_s for chain in chains_of(p)):
        yield _placed(e.labels[slower], next(chain_sentences(p)))


def _placed(label: str, sentence: str) -> str:
    """A sentence about one of the two, with its name where it does not begin with that."""
    return sentence if sentence.startswith(label) else f"In {label} {sentence}"


def _stated(e: Explanation) -> Iterator[str]:
    """In what the two differ, unless it is two networks and nothing else."""
    if e.differs("network") and len(e.differences) == 1:
        return
    if e.differences:
        of = "The two" if e.differs("network") else f"Two steps of {e.a.graph_name}"
        words = [str(difference) for difference in e.differences]
        yield f"{of} differ in {listed(words)}{'; times are compared for a sample' if e.per == 'sample' else ''}."


def _headline(e: Explanation) -> str:
    a, b = e.labels
    flop_a, flop_b = (format_quantity(flop, "flop") for flop in e.flop)
    work = _ratio_said(e.flop_ratio, "{:.1f}× fewer FLOP", "{:.1f}× more FLOP", "")
    where = "" if e.differs("device") else f" on {e.a.machine.name}"
    times = f"{seconds(e.totals[1])} a {e.per} against {seconds(e.totals[0])}{where}."
    if not work and e.differences and not e.differs("network"):
        faster = _ratio_said(e.time_ratio, "is {:.2f}× faster than", "is {:.2f}× slower than", "takes the same time as")
        return f"{b} {faster} {a}: {times}"
    time = _ratio_said(e.time_ratio, "is {:.2f}× faster", "is {:.2f}× slower", "takes the same time")
    joined = "and" if (e.flop_ratio > 1) == (e.time_ratio > 1) and e.time_ratio > 0.8 * e.flop_ratio else "yet"
    compared = f"{work} than" if work else "as many FLOP as"
    return f"{b} does {compared} {a} ({flop_b} against {flop_a}), {joined} {time}: {times}"


def listed(words: Sequence[str]) -> str:
    """Words in a row, "and" before the last."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def _ratio_said(ratio: float, more: str, less: str, same: str) -> str:
    """more, less: with a place for by how many times."""
    if abs(ratio - 1) < _SAME:
        return same
    return more.format(ratio) if ratio > 1 else less.format(1 / ratio if ratio else math.inf)


def _certainty(e: Explanation) -> str:
    low, high = e.ratio.low, e.ratio.high
    b = e.labels[1]
    if e.ratio.certain:
        word, bounds = ("fast", (1 / high, 1 / low)) if high < 1 else ("slow", (low, high))
        return f"with 90 % probability, {b} is {bounds[0]:.3g} to {bounds[1]:.3g} times as {word}"
    return f"it is not certain which is faster: with 90 % probability, {b} takes {low:.3g} to {high:.3g} times as long"


def _busy(e: Explanation) -> str:
    a, b = e.labels
    busy_a, busy_b = (
        f"{seconds(p.gpu_s)} ({p.gpu_s / p.total_s:.0%} of the step, {p.launched} kernel{'s' * (p.launched != 1)})"
        for p in (e.a, e.b)
    )
    same = e.a.regime == e.b.regime
    bounds = f"Both are {e.a.regime}-bound" if same else f"{a} is {e.a.regime}-bound, {b} {e.b.regime}-bound"
    return f"{bounds}: the GPU is busy for {busy_a} in {a} and for {busy_b} in {b}."


def _datasheets(e: Explanation) -> Iterator[str]:
    if not e.differs("device", "format", "autocast", "tf32"):
        return
    parts = []
    for label, arithmetic, peak, p in zip(e.labels, e.formats, e.peaks, (e.a, e.b), strict=True):
        bandwidth = format_quantity(p.machine.bandwidth, "byte/s")
        parts.append(f"{label} {format_quantity(peak, 'flop/s')} in {arithmetic}, DRAM {bandwidth}")
    yield f"Stated for what they mostly compute in: {'; '.join(parts)}."


def _waiting(label: str, p: Prediction) -> Iterator[str]:
    """Told where the GPU stands idle for more than a tenth of the step."""
    idle = p.terms()["overhead"]
    if idle >= 0.1 * p.total_s > 0:
        waits = f"In {label} the GPU waits for {seconds(idle)} ({idle / p.total_s:.0%} of the step)"
        needs = f"{p.host.name} needs {seconds(p.cpu_s)} to issue the step, the kernels"
        if p.cpu_s > p.gpu_s:
            yield f"{waits}: the CPU of {needs} only {seconds(p.gpu_s)}."
        else:
            yield f"{waits}: before its first kernel, behind short ones, at the end; {needs} {seconds(p.gpu_s)}."


def _fewer_executed(label: str, p: Prediction) -> Iterator[str]:
    """Told where another algorithm than the plain one saves a tenth of the FLOP."""
    executed = sum(float(timing.kernel.cost.flop) for timing in p.timings)
    algorithms = sorted({t.kernel.algorithm.name for t in p.timings if t.kernel.algorithm.name in FEWER_FLOP})
    if algorithms and executed <= 0.9 * p.flop:
        yield (
            f"{label} executes only {format_quantity(executed, 'flop')} of its {format_quantity(p.flop, 'flop')}: "
            f"convolutions run as {' and '.join(algorithms)}."
        )


def _attention(e: Explanation) -> Iterator[str]:
    """Told where the two run attention by different kernels."""
    a, b = (attention_seconds(p.timings) for p in (e.a, e.b))
    if a and b and a.keys() != b.keys() and not e.differs("attention"):
        ran = [
            f"{listed(list(found))} in {label} ({seconds(k * sum(found.values()))})"
            for label, found, k in zip(e.labels, (a, b), e._scale, strict=True)
        ]
        yield f"Attention runs by {' and by '.join(ran)}."


def _memory(e: Explanation) -> Iterator[str]:
    """Told where b is memory-bound and its FLOP fell by more than its traffic."""
    if e.b.shares["memory"] < 0.25 or not (e.a.bytes and e.b.bytes) or e.flop_ratio < 1 + _SAME:
        return
    (a, b), (intensity_a, intensity_b) = e.labels, (p.flop / p.bytes for p in (e.a, e.b))
    if intensity_b < intensity_a:
        yield (
            f"{b} has {intensity_b:.1f} FLOP for each byte it moves, {a} has {intensity_a:.1f}: "
            f"its FLOP fell by {e.flop_ratio:.1f}×, its traffic by {e.flop_ratio * intensity_b / intensity_a:.1f}×."
        )


def _terms(e: Explanation) -> str:
    a, b = e.labels
    return f"From {a} to {b}: {_listed(e.terms()) or 'no difference'}; together {signed(e.delta_s)}."


def _promise(e: Explanation) -> Iterator[str]:
    """What keeps b from what its FLOP promise: told where they promise something."""
    shortfall = e.shortfall()
    if not shortfall or abs(e.promised - 1) < _SAME:
        return
    by = "FLOP and stated peaks" if e.promised != e.flop_ratio else "FLOP alone"
    promised_s = e.totals[0] / e.promised
    more = e.totals[1] - promised_s
    what = f"What takes the {seconds(more)} more" if more > 0 else f"What saves the {seconds(-more)}"
    promised, real = (_ratio_said(r, "{:.2f}× faster", "{:.2f}× slower", "as fast") for r in (e.promised, e.time_ratio))
    yield (
        f"By {by} {e.labels[1]} would take {seconds(promised_s)}, {promised}; it is {real}. "
        f"{what}: {_listed(shortfall)}."
    )


def _listed(parts: Mapping[str, float]) -> str:
    """Differences by name, the largest first; the small ones in one number. Empty for none."""
    ordered = sorted(((name, more) for name, more in parts.items() if more), key=lambda item: -abs(item[1]))
    left, all_of_it = [more for _, more in ordered], sum(abs(more) for _, more in ordered)
    words: list[str] = []
    for name, more in ordered:
        # One small part keeps its name: it is as short as "the rest".
        if len(left) > 1 and sum(map(abs, left)) <= _REST * all_of_it:
            return f"{', '.join(words)}, the rest {signed(sum(left))}"
        words.append(f"{MEANING[name]} {signed(more)}")
        left.pop(0)
    return ", ".join(words)


def verdict(p: Prediction) -> str:
    """What bounds the step, where its time goes, how busy the device is, and whether it fits.

    The terms of its regime stand first.
    """
    own = REGIME_TERMS[p.regime]
    terms = sorted(shown_terms(p).items(), key=lambda item: (item[0] not in own, -item[1]))
    shares = [(name, s, s / p.total_s if p.total_s else 0.0) for name, s in terms]
    named = [part for part in shares if part[2] >= _NAMED] or shares[:1]
    parts = [f"{MEANING[name]} {share:.0%} ({seconds(s)})" for name, s, share in named]
    busy = p.gpu_s / p.total_s if p.total_s else 0.0
    unit = p.machine.device.kind.upper()
    need, have = (format_bytes(size) for size in (p.memory.peak_bytes, p.memory.capacity))
    fits = f"at its peak it takes {need} of {have} of memory"
    if not p.memory.fits:
        fits = f"at its peak it needs {need} of {have} of memory and does not fit"
    longest = "".join(f" {sentence}" for sentence in islice(chain_sentences(p), 1))
    return (
        f"The step is {p.regime}-bound ({p.shares[p.regime]:.0%}): {listed(parts)}. "
        f"The {unit} executes kernels for {busy:.0%} of the time; {fits}.{longest}"
    )
