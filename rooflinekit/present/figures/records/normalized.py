"""A figure in shares of roofs, and where the roofs of two devices cross."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from rooflinekit.errors import InputError
from rooflinekit.present.figures.records.figure import DeviceFacts, Figure, Point, Roof, Stop, Trajectory
from rooflinekit.step.prediction import Prediction

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


# Whole steps as marks on a path: how a workload moves as its batch, format, GPU or version changes.


def trajectories_of(
    predictions: Sequence[Prediction], words: Sequence[str] = (), *, joined: bool = True
) -> tuple[Trajectory, ...]:
    """The paths through these steps, in their order.

    words: a name for each prediction, on one path through all. Otherwise names say what differs; where sizes differ
    and something else too, there is a path over the sizes for each of the rest.
    joined: else each step is a path of its own, as of networks that do not come from one another.
    Raises InputError for fewer than two predictions, steps without FLOP or time, and another number of words.
    """
    if len(predictions) < 2:
        raise InputError(f"path: expected two predictions or more, in order; got {len(predictions)}")
    if words and (isinstance(words, str) or len(words) != len(predictions)):
        raise InputError(f"path: expected a name for each of {len(predictions)} predictions; got {words!r}")
    if not joined:
        names = words or _apart(predictions)
        return tuple(
            Trajectory(name=f"{i} {word}", over="", stops=(_stop(p, str(word)),))
            for i, (p, word) in enumerate(zip(predictions, names, strict=True), 1)
        )
    if words:
        stops = tuple(_stop(p, str(word)) for p, word in zip(predictions, words, strict=True))
        return (Trajectory(name="", over="", stops=stops),)
    facts = [_facts(prediction) for prediction in predictions]
    differing = _differing(facts)
    sizes = [name for name in differing if any(name in p.sizes for p in predictions)]
    along = sizes or differing
    paths: dict[str, list[Stop]] = defaultdict(list)
    for i, (prediction, fact) in enumerate(zip(predictions, facts, strict=True), 1):
        rest = ", ".join(fact.get(name, "") for name in differing if name not in along)
        short = _label(fact, along, sizes) or f"#{i}"
        paths[rest].append(_stop(prediction, short))
    return tuple(Trajectory(name=rest, over=", ".join(along), stops=tuple(stops)) for rest, stops in paths.items())


def _differing(facts: Sequence[Mapping[str, str]]) -> list[str]:
    """What is not the same in all."""
    return [name for name in dict.fromkeys(key for f in facts for key in f) if len({f.get(name) for f in facts}) > 1]


def _apart(predictions: Sequence[Prediction]) -> list[str]:
    """For each step all that tells it from the others."""
    facts = [_facts(prediction) for prediction in predictions]
    differing = _differing(facts)
    sizes = [name for name in differing if any(name in p.sizes for p in predictions)]
    return [_label(fact, differing, sizes) or f"#{i}" for i, fact in enumerate(facts, 1)]


def _label(fact: Mapping[str, str], along: Sequence[str], sizes: Sequence[str]) -> str:
    """What a stop is called: its device, format or version, or its size with the name where there are several."""
    return ", ".join(f"{name} {fact.get(name, '')}" if name in sizes else fact.get(name, "") for name in along)


def _facts(p: Prediction) -> dict[str, str]:
    """What may differ between steps, as a reader would say it."""
    return {name: say(p) for name, say in _SAID.items()} | {name: str(value) for name, value in p.sizes.items()}


def _format(p: Prediction) -> str:
    """The arithmetic in which most of the FLOP are done."""
    flop: Counter[str] = Counter()
    for timing in p.timings:
        flop[timing.kernel.math.value] += int(timing.kernel.cost.flop)
    return flop.most_common(1)[0][0] if flop else ""


_SAID: Mapping[str, Callable[[Prediction], str]] = {
    "model": lambda p: p.graph_name,
    "device": lambda p: (p.machine.device.display_name or p.machine.name).removeprefix("NVIDIA "),
    "mode": lambda p: p.mode,
    "format": _format,
    "execution": lambda p: p.execution.backend,
    "release": lambda p: str(p.graph.like) if p.graph.like else "",
    "layout": lambda p: "channels last" if p.graph.channels_last else "",
}


def _stop(p: Prediction, label: str) -> Stop:
    flop = sum(float(timing.kernel.cost.flop) for timing in p.timings)
    moved = sum(float(timing.kernel.bytes) for timing in p.timings)
    if min(flop, moved, p.total_s) <= 0:
        raise InputError(f"path: {p.graph_name}: a step without FLOP or traffic has no place on the axes")
    return Stop(label=label, device=p.machine.name, flop=flop, bytes=moved, time_s=p.total_s, bound=p.regime)
