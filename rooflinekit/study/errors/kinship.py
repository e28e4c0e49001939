"""How alike two settings are, by which the error of a part in one says something of it in the other."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.calibrate.fitting.files import architecture_of
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.errors.components import (
    ISSUING_ELSEWHERE,
    NETWORKS,
    OTHER_HOST,
    OTHER_SIZE,
    OTHER_UNIT,
    SHARED,
    UNMODELLED_KERNELS,
    Chips,
    of_kernels,
)
from rooflinekit.study.errors.parts import Part


def chips_of(a: Device, b: Device) -> Chips:
    """How alike the chips of two devices are: one chip has one architecture and as many multiprocessors."""
    if a == b:
        return Chips.SAME
    if architecture_of(a) == architecture_of(b) and a.sm_count == b.sm_count:
        return Chips.ONE
    return Chips.KINDRED if _class(a) == _class(b) else Chips.FOREIGN


def _class(device: Device) -> tuple[str, str, bool]:
    """Whose libraries run on it, and whether its memory is stacked."""
    return device.kind, device.vendor, (device.dram.type or "").upper().startswith("HBM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinship:
    """How alike two settings are, part by part."""

    chips: Chips
    same_host: bool
    same_layout: bool = True  # whether images lie in memory alike in both

    @classmethod
    def of(cls, source: Prediction, target: Prediction) -> Kinship:
        """Of two predictions. A host that nobody named is the same only where the device is: it is another machine."""
        a, b = source.machine.device, target.machine.device
        named = source.host.name != DEFAULT_HOST or a == b
        return cls(
            chips=chips_of(a, b), same_host=named and source.host == target.host,
            same_layout=source.graph.channels_last == target.graph.channels_last,
        )  # fmt: skip

    def correlation(self, source: Part, target: Part) -> float:
        """Of a part on the source with one on the target; 0 where they have nothing in common."""
        if (source.level, source.family, source.name) != (target.level, target.family, target.name):
            return 0.0
        unit = 1.0 if source.unit == target.unit else OTHER_UNIT.value
        match source.level:
            case "host":
                return 1.0 if self.same_host else OTHER_HOST.value
            case "issuing":
                return 1.0 if self.same_host else ISSUING_ELSEWHERE.value
            case "unmodelled":
                return 1.0 if self.chips in (Chips.SAME, Chips.ONE) else UNMODELLED_KERNELS.value
            case "kernel":
                size = 1.0 if source.cost == target.cost else OTHER_SIZE.value
                layout = 1.0 if self.same_layout else OTHER_UNIT.value  # libraries have other kernels for the other
                return unit * size * layout * of_kernels(source.family, self.chips)
            case level:
                return unit * (SHARED if level == "family" else NETWORKS)[self.chips].value
