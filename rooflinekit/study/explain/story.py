"""Sentences about two predictions. Each is made from numbers; where there is no number, there is no sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rooflinekit.model.algorithms import FEWER_FLOP
from rooflinekit.step.chains import chain_sentences, chains_of
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.words import MEANING
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    from rooflinekit.study.explain.explanation import Explanation

_SAME = 0.02  # a ratio this close to 1 is called equal
_NOTHING = 1e-15  # seconds: what rounding leaves of equal sums
_REST = 0.05  # of all differences together: what is smaller is summed up


def sentences(e: Explanation) -> Iterator[str]:
    """The answer, at most five: the verdict and how sure it is, what bounds the two, what most of the slower one's time
    goes by step after step, why, and where in the networks.
    """
    yield f"{_headline(e).removesuffix('.')}; {_certainty(e)}."
    yield _busy(e)
    yield from _mostly(e)
    yield next(_promise(e), None) or _terms(e)
    yield _drivers(e)


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
    yield from _memory(e)
    if next(_promise(e), None) is not None:
        yield _terms(e)
    yield from _underuse(e)


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
        listed = [str(difference) for difference in e.differences]
        yield f"{of} differ in {_and(listed)}{'; times are compared for a sample' if e.per == 'sample' else ''}."


def _headline(e: Explanation) -> str:
    a, b = e.labels
    flop_a, flop_b = (format_quantity(flop, "flop") for flop in e.flop)
    work = _ratio(e.flop_ratio, f"{e.flop_ratio:.1f}× fewer FLOP", f"{_turned(e.flop_ratio):.1f}× more FLOP", "")
    where = "" if e.differs("device") else f" on {e.a.machine.name}"
    times = f"{seconds(e.totals[1])} a {e.per} against {seconds(e.totals[0])}{where}."
    if not work and e.differences and not e.differs("network"):
        faster = _ratio(
            e.time_ratio, f"is {e.time_ratio:.2f}× faster than", f"is {_turned(e.time_ratio):.2f}× slower than", ""
        )
        return f"{b} {faster or 'takes the same time as'} {a}: {times}"
    time = _ratio(
        e.time_ratio, f"is {e.time_ratio:.2f}× faster", f"is {_turned(e.time_ratio):.2f}× slower", "takes the same time"
    )
    joined = "and" if (e.flop_ratio > 1) == (e.time_ratio > 1) and e.time_ratio > 0.8 * e.flop_ratio else "yet"
    compared = f"{work} than" if work else "as many FLOP as"
    return f"{b} does {compared} {a} ({flop_b} against {flop_a}), {joined} {time}: {times}"


def _turned(ratio: float) -> float:
    return 1 / ratio if ratio else float("inf")


def _and(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def _ratio(ratio: float, more: str, less: str, same: str) -> str:
    if abs(ratio - 1) < _SAME:
        return same
    return more if ratio > 1 else less


def _certainty(e: Explanation) -> str:
    """How sure the order of the two times is."""
    low, high = e.ratio.low, e.ratio.high
    b = e.labels[1]
    if e.ratio.certain:
        faster = high < 1
        bounds = (1 / high, 1 / low) if faster else (low, high)
        return f"with 90 %, {b} is {_span(*bounds)} times as {'fast' if faster else 'slow'}"
    return f"no claim which of the two is faster: with 90 %, {b} takes {_span(low, high)} times as long"


def _span(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}"


def _busy(e: Explanation) -> str:
    """What bounds the two, and how long the GPU works."""

    def one(p: Prediction) -> str:
        count = p.launched
        kernels = f"{count} kernel{'' if count == 1 else 's'}"
        return f"{seconds(p.gpu_s)} ({p.gpu_s / p.total_s:.0%} of the step, {kernels})"

    a, b = e.labels
    return (
        f"{a} is {e.a.regime}-bound, {b} {e.b.regime}-bound: "
        f"the GPU is busy for {one(e.a)} in {a} and for {one(e.b)} in {b}."
    )


def _datasheets(e: Explanation) -> Iterator[str]:
    """What two devices, or two formats, state."""
    if not e.differs("device", "format", "autocast", "tf32"):
        return
    parts = []
    for label, math, peak, p in zip(e.labels, e.formats, e.peaks, (e.a, e.b), strict=True):
        bandwidth = format_quantity(p.machine.bandwidth, "byte/s")
        parts.append(f"{label} {format_quantity(peak, 'flop/s')} in {math}, DRAM {bandwidth}")
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


def _underuse(e: Explanation) -> Iterator[str]:
    """Told where peak not reached is a tenth of what differs, and has more than one cause."""
    terms, parts = e.terms(), e.underuse()
    if abs(terms["underuse"]) >= 0.1 * sum(map(abs, terms.values())) > 0 and sum(map(bool, parts.values())) > 1:
        yield f"Of these, {MEANING['underuse']} {signed(terms['underuse'])} is {_listed(parts)}."


def _promise(e: Explanation) -> Iterator[str]:
    """What keeps b from what its FLOP promise: told where they promise something."""
    shortfall = e.shortfall()
    if not shortfall or abs(e.promised - 1) < _SAME:
        return
    by = "FLOP and stated peaks" if e.promised != e.flop_ratio else "FLOP alone"
    promised_s = e.totals[0] / e.promised
    more = e.totals[1] - promised_s
    what = f"What takes the {seconds(more)} more" if more > 0 else f"What saves the {seconds(-more)}"
    yield (
        f"By {by} {e.labels[1]} would take {seconds(promised_s)}, {_times(e.promised)}; it is {_times(e.time_ratio)}. "
        f"{what}: {_listed(shortfall)}."
    )


def _times(ratio: float) -> str:
    return _ratio(ratio, f"{ratio:.2f}× faster", f"{_turned(ratio):.2f}× slower", "as fast")


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


def _drivers(e: Explanation) -> str:
    shown = [d for d in e.drivers[:4] if d.delta_s]
    if not shown:
        return "No kernel differs."
    parts = (f"{d.words} {signed(d.delta_s)}" for d in shown)
    return f"Largest differences: {', '.join(parts)}."
