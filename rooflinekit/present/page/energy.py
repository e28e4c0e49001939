"""The joules of a report: what they go to, where, and what limits of power make of them."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.errors import InputError
from rooflinekit.present.figures.curves import energy_roofline, time_energy
from rooflinekit.present.figures.inline import inline
from rooflinekit.present.figures.records.energy import energy_figure
from rooflinekit.present.page.bars import Bar, waterfall_bars
from rooflinekit.present.page.studies import capital
from rooflinekit.present.page.templating import View
from rooflinekit.step.energy import StepEnergy
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.compare.limits import PowerLimits
from rooflinekit.units import format_quantity

#: What each part is, beside its name, and the colour of its bar.
_PARTS = {
    "idle": ("the board stands by, all the time", "used"),
    "clocks": ("SMs that issue or fetch", "underuse"),
    "cache": ("bytes through the last-level cache", "launch"),
    "dram": ("bytes of the memory", "memory"),
    "arithmetic": ("FLOP, by format", "compute"),
}
_ROWS = 8  # of modules and kinds


def energy_of(p: Prediction, limits: PowerLimits[Prediction] | None) -> View | None:
    """The section of a prediction; None where its device states no power, or the step takes none."""
    energy = p.energy
    if energy is None or not energy.joules:
        return None
    low_w, high_w = energy.power_interval()
    low_j, high_j = energy.interval(p.interval())
    return {
        "joules": _j(energy.joules),
        "bounds": f"{_j(low_j)} – {_j(high_j)}",
        "mean": _w(energy.mean_w),
        "mean_bounds": f"{_w(low_w)} – {_w(high_w)}",
        "peak": _w(energy.peak_w),
        "board": _w(energy.board_w),
        "parts": _parts(energy),
        "rows": tuple(_rows(p, energy)),
        "limits": () if limits is None else _limits(limits),
        "least": "" if limits is None else ". ".join(map(capital, str(limits).splitlines())),
        "roofline": _roofline(p),
    }


def _limits(limits: PowerLimits[Prediction]) -> tuple[str, ...]:
    """Joules over seconds under each limit; none of a single one."""
    label = "Joules over seconds of a step at every power limit"
    rows = limits.table[["limit_w", "total_s", "energy_j"]].to_numpy(dtype=float)
    titles = [f"{_w(watts)}: {format_quantity(seconds, 's')}, {_j(joules)}" for watts, seconds, joules in rows]
    return inline(lambda: time_energy(limits), "limits", label, (300, 300), titles=titles) if titles[1:] else ()


def _roofline(p: Prediction) -> tuple[str, ...]:
    """The roofline of energy; none where nothing computes."""
    try:
        points = energy_figure(p).points
    except InputError:
        return ()
    whole = sum(point.joules for point in points)
    titles = [
        f"{point.kind}: {_j(point.joules)} ({point.joules / whole:.0%}), "
        f"{format_quantity(point.flop_per_joule, 'flop')} a joule"
        for point in points
    ]
    label = "FLOP a joule over FLOP per byte, by kind of kernel"
    return inline(lambda: energy_roofline(p), "joules", label, (300, 300), titles=titles)


def _parts(energy: StepEnergy) -> tuple[View, ...]:
    return tuple(
        {
            "name": "DRAM" if name == "dram" else capital(name), "detail": _PARTS[name][0],
            "joules": _j(energy.parts_j[name]),
            "share": f"{energy.parts_j[name] / energy.joules:.0%}",
            "bar": Bar(x=bar.x, width=bar.width, look=_PARTS[name][1]),
        }
        for name, bar in waterfall_bars(energy.parts_j).items()
    )  # fmt: skip


def _rows(p: Prediction, energy: StepEnergy) -> Iterator[View]:
    groups = (("phase", p.by_phase()), ("kind", p.by_kind()), ("module", p.by_module(1))) if p.spans else ()
    for group, table in groups:
        ranked = table.sort_values("energy_j", ascending=False, kind="stable").head(_ROWS)
        for name, row in ranked.to_dict("index").items():
            yield {
                "group": group, "name": str(name) or "(root)", "joules": _j(row["energy_j"]),
                "share": f"{row['energy_j'] / energy.joules:.0%}", "mean": _w(row["power_w"]),
                "peak": _w(row["peak_w"]),
            }  # fmt: skip


def _j(joules: float) -> str:
    return format_quantity(joules, "J")


def _w(watts: float) -> str:
    return format_quantity(watts, "W")
