"""A figure in shares of roofs, and where the roofs of two devices cross."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations

from rooflinekit.present.figures.records.figure import DeviceFacts, Figure, Point, Roof
from rooflinekit.present.figures.records.steps import Stop

_ANY = "every roof"


def normalized_view(figure: Figure) -> Figure:
    """The figure to draw: FLOP in seconds at the peak of their own roof, bytes in seconds at the memory's.

    Intensity is then relative to the ridge and performance a share of the peak, and all roofs are one. A whole step is
    judged by the highest roof of its device.
    """
    memory = {device.name: figure.memory_roof(device.name).value for device in figure.devices}
    peaks = {(r.device, r.name): r.value for r in figure.roofs if r.provenance == "datasheet" and r.kind == "compute"}
    highest = {name: max((v for (device, _), v in peaks.items() if device == name), default=1.0) for name in memory}

    def relative(point: Point) -> Point:
        peak = peaks.get((point.device, point.roof), highest[point.device])
        return replace(
            point,
            device=_ANY,
            roof="peak" if point.flop else "bandwidth",
            flop=point.flop / peak,
            bytes=point.bytes / memory[point.device],
            dram_bytes=point.dram_bytes / memory[point.device],
            l2_bytes=point.l2_bytes / memory[point.device],
        )

    def relative_stop(stop: Stop) -> Stop:
        return replace(stop, flop=stop.flop / highest[stop.device], bytes=stop.bytes / memory[stop.device])

    common = Roof(device=_ANY, kind="memory", name="bandwidth", value=1.0, unit="share", provenance="datasheet")
    return replace(
        figure,
        devices=(DeviceFacts(name=_ANY, display_name="", clock_hz=0.0, matrix_clock_hz=0.0),),
        series=tuple(replace(series, device=_ANY) for series in figure.series),
        roofs=(common, replace(common, kind="compute", name="peak")),
        points=tuple(map(relative, figure.points)),
        rail=tuple(map(relative, figure.rail)),
        trajectories=tuple(replace(p, stops=tuple(map(relative_stop, p.stops))) for p in figure.trajectories),
        floors=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where roofs of two devices meet, in FLOP/byte and FLOP/s."""

    left: str  # the device that is ahead below this intensity
    right: str
    by: str  # the roofs that are compared
    at: tuple[float, float]


def crossings(figure: Figure) -> tuple[Crossing, ...]:
    """All pairs of devices of which one has the faster memory and the other the higher peak, by their datasheets.

    Steps are compared by the highest roofs that they use, devices alone by the highest that both have.
    """
    slopes: dict[str, float] = {}
    levels: dict[str, dict[str, float]] = {}
    for roof in figure.roofs:
        if roof.provenance == "datasheet" and roof.kind == "memory":
            slopes[roof.device] = roof.value
        elif roof.provenance == "datasheet" and roof.kind == "compute":
            levels.setdefault(roof.device, {})[roof.name] = roof.value
    found = []
    for a, b in permutations((device for device in slopes if device in levels), 2):
        one, two = _compared(levels[a], levels[b], alike=not figure.series and not figure.trajectories)
        if one in levels[a] and slopes[a] > slopes[b] and levels[a][one] < levels[b][two]:
            level = levels[a][one]
            by = one if one == two else f"{one} and {two}"
            found.append(Crossing(left=a, right=b, by=by, at=(level / slopes[b], level)))
    return tuple(found)


def _compared(a: dict[str, float], b: dict[str, float], *, alike: bool) -> tuple[str, str]:
    """The names of the roofs to compare; no name where there is none in common."""
    if not alike:
        return max(a, key=a.__getitem__), max(b, key=b.__getitem__)
    name = max((name for name in a if name in b), key=a.__getitem__, default="")
    return name, name
