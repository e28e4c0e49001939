"""A prediction as a document and as lines of text."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction


def document(p: Prediction) -> dict[str, Any]:
    """Everything but the kernels, ready for JSON."""
    low, high = p.interval(0.9)
    return {
        "model": p.graph_name,
        "mode": p.mode,
        "device": p.machine.name,
        "host": p.host.name,
        "execution": asdict(p.execution),
        "autocast": p.graph.autocast,
        "channels_last": p.graph.channels_last,
        "like": None if p.graph.like is None else str(p.graph.like),
        "sizes": dict(p.sizes),
        "total_s": p.total_s,
        "low_s": low,
        "high_s": high,
        "gpu_s": p.gpu_s,
        "cpu_s": p.cpu_s,
        "regime": p.regime,
        "shares": dict(p.shares),
        "terms": p.terms(),
        "flop": p.flop,
        "bytes": p.bytes,
        "kernels": len(p.timings),
        "constants": p.machine.constants.name,
        "burst": p.machine.burst,
        "memory": {
            "peak_bytes": p.memory.peak_bytes,
            "peak_op": p.memory.peak_op,
            "weight_bytes": p.memory.weight_bytes,
            "gradient_bytes": p.memory.gradient_bytes,
            "state_bytes": p.memory.state_bytes,
            "workspace_bytes": p.memory.workspace_bytes,
            "reserved_bytes": p.memory.reserved_bytes,
            "context_bytes": p.memory.context_bytes,
            "capacity_bytes": p.memory.capacity,
            "fits": p.memory.fits,
        },
        "coverage": p.coverage.to_dict(),
        "notes": list(p.notes),
    }


def shown_terms(p: Prediction) -> dict[str, float]:
    """The terms, without the wait for inputs where there is none."""
    return {name: seconds for name, seconds in p.terms().items() if seconds or name != "input"}


def lines(p: Prediction) -> list[str]:
    """The step in four lines and its notes."""
    low, high = p.interval(0.9)
    sizes = ", ".join(f"{name}={value}" for name, value in p.sizes.items())
    terms = ", ".join(f"{name} {format_quantity(s, 's')}" for name, s in shown_terms(p).items())
    return [
        f"{p.graph_name} {p.mode}{f' ({sizes})' if sizes else ''} on {p.machine.name}: "
        f"{format_quantity(p.total_s, 's')} ({format_quantity(low, 's')} to {format_quantity(high, 's')}), "
        f"{p.regime}-bound",
        f"GPU busy {format_quantity(p.gpu_s, 's')}, CPU issuing {format_quantity(p.cpu_s, 's')}, "
        f"{len(p.timings)} kernels, peak memory "
        f"{format_quantity(p.memory.peak_bytes, 'byte', binary=True)}",
        f"terms: {terms}",
        f"counts: {p.coverage}",
        *(f"note: {note}" for note in p.notes),
    ]
