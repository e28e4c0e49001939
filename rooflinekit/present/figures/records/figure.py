"""What a roofline figure shows, as records: no drawing library, no network.

All rates are byte/s and FLOP/s, all times seconds. FLOP are those of the algorithm that runs, a multiply-add counts 2;
bytes are compulsory DRAM traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rooflinekit.errors import InputError
from rooflinekit.step.prediction import Prediction
from rooflinekit.units import as_percent, format_quantity

L2 = "L2"  # what its roof is called
_COVERED = 0.9  # of the time of a series, by the points that are named
_ABOVE = 1.02  # from here on a point is above its roof, and not at it

RoofKind = Literal["memory", "compute", "link"]
Provenance = Literal[
    "datasheet", "default", "fitted", "default share", "fitted share", "measured burst", "measured sustained"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """A ceiling of one device: a slope for memory traffic and for links, a level for one kind of arithmetic."""

    device: str
    kind: RoofKind
    name: str  # "HBM2e", "tf32 matrix", "fp32 vector"
    value: float
    unit: Literal["byte/s", "flop/s", "share"]
    provenance: Provenance
    share: float = 1.0  # of the datasheet's value

    @property
    def rate(self) -> str:
        """The value with its unit, three digits and no zeros after them: "2.04 TB/s", "1 TB/s"."""
        if self.unit == "share":
            return as_percent(self.value)
        number, _, unit = format_quantity(self.value, self.unit).partition(" ")
        text = f"{float(number):g} {unit}"
        return text.replace("FLOP/s", "OP/s") if self.name.startswith("int") else text

    @property
    def origin(self) -> str:
        """Where the value comes from, with the share of the datasheet's: "default share 80 %"."""
        return f"{self.provenance} {as_percent(self.share)}" if self.share != 1 else self.provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One mark: a kernel, or kernels of one kind that fall on the same place, with their time added up."""

    series: str
    device: str
    label: str  # short, for the figure
    kind: str  # of op: "aten.convolution"
    modules: tuple[str, ...]  # paths, each once, in the order of execution
    kernels: int
    math: str  # arithmetic of the products, or of the vector work
    roof: str  # name of the roof that it is judged against: memory's on the rail, else one of arithmetic
    algorithm: str  # "Winograd", where it is not the plain one; "" otherwise
    flop: float
    bytes: float
    time_s: float
    share: float  # of the GPU's busy time in its series
    bound: PointBound
    word: str = ""  # the op in short: "conv weight gradient"
    phase: str = ""  # "forward", "backward", "optimizer"; "" where its kernels are of several
    measured_s: float = 0.0  # what a profiler saw of the same ops; 0 where it did not
    dram_bytes: float = 0.0  # traffic that the model expects at DRAM; 0 where it is not known
    l2_bytes: float = 0.0  # and at the L2, that to DRAM included

    @property
    def intensity(self) -> float:
        """FLOP/byte."""
        return self.flop / self.bytes

    @property
    def performance(self) -> float:
        """FLOP/s achieved."""
        return self.flop / self.time_s

    @property
    def bandwidth(self) -> float:
        """byte/s achieved."""
        return self.bytes / self.time_s

    @property
    def error(self) -> float:
        """predicted / measured − 1 of a point that was measured: above 0 where the prediction is too slow."""
        return self.time_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The facts of a device that a caption states."""

    name: str
    display_name: str
    clock_hz: float  # behind the vector peaks
    matrix_clock_hz: float  # behind the matrix peaks

    @property
    def short_name(self) -> str:
        """The name for labels and keys, without "NVIDIA"."""
        return self.display_name.removeprefix("NVIDIA ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One predicted step."""

    name: str  # what tells it from the other series
    device: str  # under whose roofs it stands
    prediction: Prediction
    omitted: int  # kernels without traffic, which have no place on either axis
    measured_s: float = 0.0  # wall time of the same step as measured; 0 where it was not


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What starting a kernel costs on a device, beside the kernels of a step."""

    series: str
    device: str
    start_s: float  # of each kernel, work or not
    median_bytes: float  # half of the kernels move less
    kernels: int  # that wait longer for their start than they work


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A roofline figure: the roofs of its devices, the marks of its series, and the facts that a caption states.

    `points` have FLOP and lie on the axes; `rail` holds the kernels that only move bytes (copies, embeddings), shown
    by byte/s. In each series the shares of points, rail and omitted kernels add up to one.
    """

    devices: tuple[DeviceFacts, ...]
    series: tuple[Series, ...]
    roofs: tuple[Roof, ...]
    points: tuple[Point, ...]
    rail: tuple[Point, ...]
    notes: tuple[str, ...] = ()  # assumptions, such as emulated formats
    trajectories: tuple[Trajectory, ...] = ()
    floors: tuple[Floor, ...] = ()
    by_level: bool = False  # whether points stand at the traffic of L2 and DRAM, not at the compulsory one
    normalized: bool = False  # whether it is drawn as shares of each roof

    @property
    def omitted(self) -> int:
        """How many kernels have no mark."""
        return sum(series.omitted for series in self.series)

    @property
    def measured(self) -> bool:
        """Whether a series was measured."""
        return any(series.measured_s for series in self.series)

    @property
    def kernels(self) -> int:
        """How many kernels the series have, omitted ones included."""
        return sum(len(series.prediction.timings) for series in self.series)

    def memory_roof(self, device: str, provenance: Provenance = "datasheet") -> Roof:
        """The memory roof of a device. Raises InputError where the figure has none of this provenance."""
        for roof in self.roofs:
            if (roof.device, roof.kind, roof.provenance) == (device, "memory", provenance):
                return roof
        raise InputError(f"figure: no memory roof ({provenance}) of {device!r}")

    def ridge(self, roof: Roof) -> float:
        """FLOP/byte at which a compute roof meets the memory roof of its device and provenance. Raises InputError."""
        return roof.value / self.memory_roof(roof.device, roof.provenance).value

    @property
    def links(self) -> tuple[Roof, ...]:
        """The roofs of links between devices."""
        return tuple(roof for roof in self.roofs if roof.kind == "link")

    def link_ridge(self, link: Roof) -> float:
        """FLOP per byte sent from which a link does not limit: where its roof meets the highest one of arithmetic.

        Datasheets meet datasheets, sustained shares meet those. Raises InputError where there is no arithmetic.
        """
        stated = link.provenance == "datasheet"
        own = [r for r in self.roofs if r.kind == "compute" and (r.provenance == "datasheet") == stated]
        levels = [roof.value for roof in own if roof.device == link.device]
        if not levels:
            raise InputError(f"figure: no compute roof of {link.device!r} that the roof {link.name!r} could meet")
        return max(levels) / link.value

    def excess(self, point: Point) -> float:
        """By how much a point, measured where it was, exceeds its datasheet roof: 1.2 is 20 % above it.

        Where the DRAM traffic is known, the memory roof is asked to carry that alone.
        """
        seconds = point.measured_s or point.time_s
        least = (point.dram_bytes if point.l2_bytes else point.bytes) / self.memory_roof(point.device).value
        asked = point.device, point.roof, "datasheet", "compute"
        peaks = (r.value for r in self.roofs if (r.device, r.name, r.provenance, r.kind) == asked)
        return max(least, *(point.flop / peak for peak in peaks), 0.0) / seconds

    def level_bytes(self, point: Point) -> dict[str, float]:
        """Traffic of a point at each level of memory, by the name of the level's roof, the slowest level first."""
        dram = self.memory_roof(point.device)
        found = {dram.name: point.dram_bytes, L2: point.l2_bytes}
        rates = {roof.name: roof.value for roof in self.roofs if roof.device == point.device and roof.kind == "memory"}
        return dict(sorted(found.items(), key=lambda level: -level[1] / rates.get(level[0], dram.value)))

    @property
    def above(self) -> tuple[Point, ...]:
        """Points above their datasheet roof by more than 2 %: errors until explained."""
        return tuple(point for point in (*self.points, *self.rail) if self.excess(point) > _ABOVE)


def leading(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points with the most time, until they cover 90 % of the time of their series."""
    found: list[Point] = []
    covered = 0.0
    for point in by_time(points):
        if covered >= _COVERED:
            break
        found.append(point)
        covered += point.share
    return tuple(found)


def by_time(points: Iterable[Point]) -> Sequence[Point]:
    """The points, longest first; those of equal time in their order."""
    return sorted(points, key=lambda point: -point.time_s)


#: Kernels are never bound by overhead; communication is of steps on several devices.
PointBound = Literal["compute", "memory", "latency", "overhead", "communication"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A whole step as one mark on a path: its FLOP, its bytes, its wall time."""

    label: str
    device: str
    flop: float
    bytes: float
    time_s: float
    bound: PointBound
    link_bytes: tuple[tuple[str, float], ...] = ()  # that a device sends, by the name of the link's roof

    @property
    def intensity(self) -> float:
        """FLOP/byte."""
        return self.flop / self.bytes

    @property
    def intensities(self) -> tuple[float, ...]:
        """FLOP per byte of each level: of links, the slowest first, and then of DRAM."""
        return (*(self.flop / sent for _, sent in self.link_bytes), self.intensity)

    @property
    def performance(self) -> float:
        """FLOP/s of the wall time."""
        return self.flop / self.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """How a step moves as one thing about it changes."""

    name: str  # what tells it from other paths; "" for the only one
    over: str  # what changes: "batch", "device", "execution"
    stops: tuple[Stop, ...]  # in order
