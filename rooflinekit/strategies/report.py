"""A step on several devices as a document, as lines of text, and for a notebook."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rooflinekit.ir import notebook
from rooflinekit.step.words import MEANING
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    from rooflinekit.strategies.prediction import ParallelPrediction, Share


def document(p: ParallelPrediction) -> dict[str, Any]:
    """Everything but kernels and messages, ready for JSON."""
    low, high = p.interval(0.9)
    return {
        "model": p.graph_name,
        "cluster": p.cluster.name,
        "gpus": p.gpus,
        "strategy": {"name": type(p.strategy).__name__, **asdict(p.strategy)},
        "savers": asdict(p.savers),
        "batch": p.batch,
        "total_s": p.total_s,
        "low_s": low,
        "high_s": high,
        "terms": p.terms(),
        "communication_s": p.communication_s,
        "exposed_s": p.exposed_s,
        "hidden_s": p.hidden_s,
        "collectives_s": dict(p.message_terms),
        "throughput": p.throughput,
        "energy": None if p.energy is None else p.energy.to_dict((low, high)),
        "one_gpu_s": p.one_gpu_s,
        "speedup": p.speedup,
        "efficiency": p.efficiency,
        "mfu": p.mfu,
        "hfu": p.hfu,
        "fits": p.fits,
        "devices": [_share(share) for share in p.shares],
        "notes": list(p.notes),
    }


def _share(share: Share) -> dict[str, Any]:
    return {
        "device": share.prediction.machine.name,
        "numbers": list(share.numbers),
        "batch": share.batch,
        "total_s": share.total_s,
        "terms": dict(share.terms),
        "peak_bytes": share.memory.peak_bytes,
        "weight_bytes": share.memory.weight_bytes,
        "gradient_bytes": share.memory.gradient_bytes,
        "state_bytes": share.memory.state_bytes,
        "reserved_bytes": share.memory.reserved_bytes,
        "fits": share.memory.fits,
    }


def lines(p: ParallelPrediction) -> list[str]:
    """The step in a few lines and its notes."""
    low, high = p.interval(0.9)
    terms = ", ".join(f"{MEANING[name]} {_s(seconds)}" for name, seconds in p.terms().items() if seconds)
    name = type(p.strategy).__name__
    found = [
        f"{p.graph_name} {p.slowest.prediction.mode} (batch={p.batch}) on {p.gpus} of {p.cluster.name}, {name}: "
        f"{_s(p.total_s)} ({_s(low)} to {_s(high)})",
        f"{p.throughput:.4g} samples/s, {p.speedup:.2f} times one {p.one_gpu.machine.name} "
        f"({_s(p.one_gpu_s)}), efficiency {p.efficiency:.0%}",
        f"links busy {_s(p.communication_s)}: {_s(p.hidden_s)} hidden, {_s(p.exposed_s)} exposed",
        f"terms: {terms}",
        f"why: {reason(p)}",
        f"savers: {p.savers}; MFU {p.mfu:.1%} = matrix FLOP / (time · devices · peak), HFU {p.hfu:.1%}",
    ]
    drawn = [] if p.energy is None else [p.energy.line((low, high))]
    devices = [_device(share) for share in p.shares]
    return found + devices + drawn + [f"note: {note}" for note in p.notes]


_WAITS = ("communication", "straggling", "bubble", "overhead", "input", "contention", "offload")


def reason(p: ParallelPrediction) -> str:
    """What the slowest device spends its step on, and where most of the rest goes."""
    terms = p.terms()
    computing = sum(terms.get(name, 0.0) for name in ("ideal", "underuse", "memory", "launch", "correction"))
    lost = max(_WAITS, key=lambda name: terms[name])
    text = f"{computing / p.total_s:.0%} of the step is kernels"
    if terms[lost] <= 0.01 * p.total_s:
        return f"{text}, and nothing else takes a hundredth of it"
    text += f", {terms[lost] / p.total_s:.0%} {MEANING[lost]}"
    if lost == "communication" and p.messages:
        longest = max(p.message_terms, key=lambda name: p.message_terms[name])
        links = {link.name for m in p.messages if m.timing.collective == longest for link in m.timing.route.links}
        text += f", most for {longest} over {' and '.join(sorted(links))}"
    return text


def _device(share: Share) -> str:
    who = f"{len(share.numbers)} × {share.prediction.machine.name}"
    memory = format_quantity(share.memory.peak_bytes, "byte", binary=True)
    return f"{who}: {share.batch} samples, {_s(share.total_s)}, {memory} {'' if share.memory.fits else 'do not '}fit"


def notebook_text(p: ParallelPrediction) -> str:
    """The step as HTML: its facts, terms and devices."""
    first, *rest = lines(p)
    devices = len(p.shares)
    facts = [
        (MEANING[name], _s(seconds), f"{seconds / p.total_s:.1%}") for name, seconds in p.terms().items() if seconds
    ]
    notes = rest[5 + devices :]
    return notebook.block(
        first, notebook.table(["term", "time", "share"], facts),
        notebook.paragraphs([*rest[:2], *rest[3 : 5 + devices], *notes]),
    )  # fmt: skip


def _s(seconds: float) -> str:
    return format_quantity(seconds, "s")
