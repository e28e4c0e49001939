"""Sentences about two predictions. Each is made from numbers; where there is no number, there is no sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rooflinekit.step.prediction import Prediction
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    from rooflinekit.study.explanation import Explanation

#: What each term of a prediction is, in words.
MEANING = {
    "ideal": "FLOP at peak",
    "underuse": "peak not reached",
    "memory": "memory traffic",
    "launch": "kernel starts",
    "overhead": "GPU waiting for the CPU",
    "input": "GPU waiting for inputs",
}

_SAME = 0.02  # a ratio this close to 1 is called equal


def sentences(e: Explanation) -> Iterator[str]:
    """What happened, in order: FLOP against time, the GPU's share, the terms, the kernels, how sure it is."""
    yield _headline(e)
    yield _busy(e)
    waiting = _waiting(e.b)
    if waiting:
        yield waiting
    for prediction in (e.a, e.b):
        fewer = _fewer_executed(prediction)
        if fewer:
            yield fewer
    memory = _memory(e)
    if memory:
        yield memory
    yield _terms(e)
    yield _drivers(e)
    if e.overlapping:
        a, b = (" to ".join(map(seconds, p.interval(0.9))) for p in (e.a, e.b))
        yield f"The 90 % intervals overlap ({a}; {b}): which of the two is faster is not certain."


def seconds(value: float) -> str:
    """A time as text."""
    return format_quantity(value, "s")


def signed(value: float) -> str:
    """A difference of times as text, with its sign."""
    return f"{'+' if value >= 0 else '−'}{seconds(abs(value))}"


def _headline(e: Explanation) -> str:
    a, b = e.a.graph_name, e.b.graph_name
    flop_a, flop_b = (format_quantity(p.flop, "flop") for p in (e.a, e.b))
    work = _ratio(e.flop_ratio, f"{e.flop_ratio:.1f}× fewer FLOP", f"{1 / e.flop_ratio:.1f}× more FLOP", "as many FLOP")
    time = _ratio(
        e.time_ratio, f"is {e.time_ratio:.2f}× faster", f"is {1 / e.time_ratio:.2f}× slower", "takes the same time"
    )
    joined = "and" if (e.flop_ratio > 1) == (e.time_ratio > 1) and e.time_ratio > 0.8 * e.flop_ratio else "yet"
    return (
        f"{b} does {work} than {a} ({flop_b} against {flop_a}), {joined} {time}: "
        f"{seconds(e.b.total_s)} a step against {seconds(e.a.total_s)} on {e.a.machine.name}."
    ).replace("as many FLOP than", "as many FLOP as")


def _ratio(ratio: float, more: str, less: str, same: str) -> str:
    if abs(ratio - 1) < _SAME:
        return same
    return more if ratio > 1 else less


def _busy(e: Explanation) -> str:
    def one(p: Prediction) -> str:
        count = len(p.timings)
        kernels = f"{count} kernel{'' if count == 1 else 's'}"
        return f"{seconds(p.gpu_s)} ({p.gpu_s / p.total_s:.0%} of the step, {kernels})"

    return (
        f"The GPU is busy for {one(e.b)} in {e.b.graph_name} and for {one(e.a)} in {e.a.graph_name}; "
        f"{e.a.graph_name} is {e.a.regime}-bound, {e.b.graph_name} {e.b.regime}-bound."
    )


def _waiting(p: Prediction) -> str | None:
    """Told where the GPU stands idle for more than a tenth of the step."""
    idle = p.terms()["overhead"]
    if idle < 0.1 * p.total_s:
        return None
    return (
        f"In {p.graph_name} the GPU waits for {seconds(idle)} ({idle / p.total_s:.0%} of the step): the CPU of "
        f"{p.host.name} needs {seconds(p.cpu_s)} to issue the step, the kernels only {seconds(p.gpu_s)}."
    )


def _fewer_executed(p: Prediction) -> str | None:
    """Told where another algorithm than the plain one saves a tenth of the FLOP."""
    executed = sum(float(timing.kernel.cost.flop) for timing in p.timings)
    algorithms = sorted({timing.kernel.algorithm for timing in p.timings if timing.kernel.algorithm})
    if not algorithms or executed > 0.9 * p.flop:
        return None
    return (
        f"{p.graph_name} executes only {format_quantity(executed, 'flop')} of its {format_quantity(p.flop, 'flop')}: "
        f"convolutions run as {' and '.join(algorithms)}."
    )


def _memory(e: Explanation) -> str | None:
    """Told where b is memory-bound and its intensity is lower than that of a."""
    if e.b.shares["memory"] < 0.25 or not (e.a.bytes and e.b.bytes):
        return None
    intensity_a, intensity_b = e.a.flop / e.a.bytes, e.b.flop / e.b.bytes
    if intensity_b >= intensity_a:
        return None
    return (
        f"{e.b.graph_name} has {intensity_b:.1f} FLOP for each byte it moves, {e.a.graph_name} has {intensity_a:.1f}: "
        f"its FLOP fell by {e.flop_ratio:.1f}×, its traffic by {e.a.bytes / e.b.bytes:.1f}×."
    )


def _terms(e: Explanation) -> str:
    ordered = sorted(e.terms().items(), key=lambda item: -abs(item[1]))
    parts = ", ".join(f"{MEANING[name]} {signed(more)}" for name, more in ordered if more)
    return f"From {e.a.graph_name} to {e.b.graph_name}: {parts or 'no difference'}; together {signed(e.delta_s)}."


def _drivers(e: Explanation) -> str:
    shown = [d for d in e.drivers[:4] if d.delta_s]
    if not shown:
        return "No kernel differs."
    parts = (f"{d.kind} in {d.module or 'the root'} {signed(d.delta_s)}" for d in shown)
    return f"Largest differences: {', '.join(parts)}."
