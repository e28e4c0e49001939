"""The same step in other ways, as a table in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooflinekit.present.text.tables import console, print_table, table
from rooflinekit.step.prediction import Prediction
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd

_REMOVED = {"kernels": "", "casts": "", "bytes": "byte", "gap_s": "s", "gpu_s": "s", "cpu_s": "s"}
_HEADS = {"gap_s": "gaps", "gpu_s": "GPU time", "cpu_s": "CPU time", "bytes": "traffic"}


def print_variants(base: Prediction, frame: pd.DataFrame) -> None:
    """What `Prediction.compare` found: a line a way, then what each removes from the first."""
    out = console()
    ways = ["execution", "autocast", "channels_last", *base.sizes]
    ways += ["attention"] if "attention" in frame else []
    varied = [name for name in ways if frame[name].nunique() > 1] or ["execution"]
    times = table("", *(name.replace("_", " ") for name in varied), "step", "speed-up", "GPU busy", "CPU", "memory")
    removed = table("", *(_HEADS.get(name, name) for name in _REMOVED), "memory")
    for i, (_, row) in enumerate(frame.iterrows()):
        name = "this" if i == 0 else str(i)
        memory = format_quantity(row["peak_bytes"], "byte", binary=True) + ("" if row["fits"] else " does not fit")
        seconds = [format_quantity(row[part], "s") for part in ("total_s", "gpu_s", "cpu_s")]
        times.add_row(
            name, *(_word(row[way]) for way in varied), seconds[0], f"{row['speedup']:.2f}×", *seconds[1:], memory
        )
        if i:
            cells = [_signed(row[f"removed_{part}"], unit) for part, unit in _REMOVED.items()]
            removed.add_row(name, *cells, _signed(row["removed_peak_bytes"], "byte", binary=True))
    samples = ", for as many samples" if "batch" in varied else ""
    out.print(f"{base.machine.name}, in other ways{samples}")
    print_table(times, lambda: frame.drop(columns="prediction"))
    out.print("what each removes from a step of this (below 0: adds)")
    print_table(removed)


def _word(value: Any) -> str:
    return {"True": "yes", "False": "no"}.get(str(value), str(value))


def _signed(value: float, unit: str, *, binary: bool = False) -> str:
    """A quantity with its sign; numbers without a unit plain.

    >>> _signed(-3.0, ""), _signed(2.5e-3, "s")
    ('−3', '2.50 ms')
    """
    sign = "−" if value < 0 else ""
    if not unit:
        return f"{sign}{round(abs(value), 1):g}"
    return sign + format_quantity(abs(value), unit, binary=binary)
