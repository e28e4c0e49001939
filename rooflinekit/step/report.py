"""A prediction as a document, as lines of text, and as a table for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rooflinekit.ir import notebook
from rooflinekit.step.chains import chain_sentences, chains_of
from rooflinekit.step.words import MEANING, parted
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction

_MODULES = 10  # in a notebook
_LEVEL = 0.9


def document(p: Prediction) -> dict[str, Any]:
    """Everything but the kernels, ready for JSON."""
    low, high = p.interval(_LEVEL)
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
        "energy": None if p.energy is None else p.energy.to_dict(p.interval(_LEVEL)),
        "power_limit_w": p.machine.power_limit,
        "clock_limit_hz": p.machine.clock_limit,
        "terms": p.terms(),
        "underuse": p.underuse(),
        "mfu": p.mfu,
        "hfu": p.hfu,
        "flop": p.flop,
        "bytes": p.bytes,
        "kernels": p.launched,
        "chains": [asdict(chain) for chain in chains_of(p)],
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
    """The terms, with the clock that power holds down by itself; without it, and the wait for inputs, where they are 0.

    The sums that regimes are told by; see `rooflinekit.step.words.REGIME_TERMS`.
    """
    terms = parted(p.terms(), p.underuse())
    return {name: seconds for name, seconds in terms.items() if seconds or name not in ("input", "power")}


def lines(p: Prediction) -> list[str]:
    """The step in four lines and its notes."""
    low, high = p.interval(0.9)
    sizes = ", ".join(f"{name}={value}" for name, value in p.sizes.items())
    terms = ", ".join(f"{MEANING[name]} {format_quantity(s, 's')}" for name, s in shown_terms(p).items())
    return [
        f"{p.graph_name} {p.mode}{f' ({sizes})' if sizes else ''} on {p.machine.name}: "
        f"{format_quantity(p.total_s, 's')} ({format_quantity(low, 's')} to {format_quantity(high, 's')}), "
        f"{p.regime}-bound",
        f"GPU busy {format_quantity(p.gpu_s, 's')}, CPU issuing {format_quantity(p.cpu_s, 's')}, "
        f"{p.launched} kernels, peak memory "
        f"{format_quantity(p.memory.peak_bytes, 'byte', binary=True)}",
        *([] if p.energy is None else [f"energy: {_energy(p)}"]),
        f"terms: {terms}",
        f"counts: {p.coverage}",
        *(f"chain: {sentence}" for sentence in chain_sentences(p)),
        *(f"note: {note}" for note in p.notes),
    ]


def _energy(p: Prediction) -> str:
    assert p.energy is not None
    low, high = p.energy.interval(p.interval(_LEVEL), _LEVEL)
    shown = [format_quantity(joules, "J") for joules in (p.energy.joules, low, high)]
    parts = ", ".join(f"{name} {j / p.energy.joules:.0%}" for name, j in p.energy.parts_j.items())
    return f"{shown[0]} ({shown[1]} to {shown[2]}), {format_quantity(p.energy.mean_w, 'W')} on average: {parts}"


def table_rows(predictions: Sequence[Prediction]) -> list[tuple[str, list[str]]]:
    """A line a fact, with its value for each prediction."""

    def seconds(value: float) -> str:
        return format_quantity(value, "s")

    rows = [
        ("time of a step", [seconds(p.total_s) for p in predictions]),
        ("  90 % interval", [" to ".join(map(seconds, p.interval(0.9))) for p in predictions]),
        ("regime", [f"{p.regime} ({p.shares[p.regime]:.0%})" for p in predictions]),
    ]
    terms = [parted(p.terms(), p.underuse()) for p in predictions]
    for term in dict.fromkeys(term for each in terms for term in each):
        column = [each.get(term, 0.0) for each in terms]
        if any(column) or term not in ("input", "power"):
            shares = [s / p.total_s if p.total_s else 0.0 for s, p in zip(column, predictions, strict=True)]
            cells = [f"{seconds(s)} {share:4.0%}" for s, share in zip(column, shares, strict=True)]
            rows.append((f"  {MEANING[term]}", cells))
    rows += [
        ("GPU busy", [seconds(p.gpu_s) for p in predictions]),
        ("CPU issuing", [seconds(p.cpu_s) for p in predictions]),
        ("kernels", [str(p.launched) for p in predictions]),
        ("FLOP", [format_quantity(p.flop, "flop") for p in predictions]),
        ("traffic", [format_quantity(p.bytes, "byte") for p in predictions]),
        ("peak memory", [_memory(p) for p in predictions]),
    ]
    if any(p.energy for p in predictions):
        rows += [(label, [_of_energy(p, name, unit) for p in predictions]) for label, name, unit in _ENERGY_ROWS]
    if any(p.mode == "training" for p in predictions):
        rows.append(("MFU = matrix FLOP / (time · peak)", [f"{p.mfu:.1%}" for p in predictions]))
    return rows


_ENERGY_ROWS = (("energy of a step", "joules", "J"), ("  mean power", "mean_w", "W"), ("  peak power", "peak_w", "W"))


def _of_energy(p: Prediction, name: str, unit: str) -> str:
    return "–" if p.energy is None else format_quantity(getattr(p.energy, name), unit)


def _memory(prediction: Prediction) -> str:
    need = format_quantity(prediction.memory.peak_bytes, "byte", binary=True)
    return f"{need} {'fits' if prediction.memory.fits else 'does not fit'}"


def notebook_table(p: Prediction) -> str:
    """The step as HTML: its facts, its longest modules and its notes."""
    frame = p.by_module(1).head(_MODULES)
    modules = [
        [str(name) or "(root)", format_quantity(row["total_s"], "s"), f"{row['share']:.1%}", str(int(row["kernels"]))]
        for name, row in frame.iterrows()
    ]
    return notebook.block(
        lines(p)[0],
        notebook.table(["", p.machine.name], [(label, *values) for label, values in table_rows([p])]),
        notebook.table(["module", "time", "share", "kernels"], modules),
        notebook.paragraphs([*chain_sentences(p), f"counts: {p.coverage}", *(f"note: {note}" for note in p.notes)]),
    )
