"""A profiled step beside its prediction: in total, by kind of op, by op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rooflinekit.errors import AmbiguousDeviceError, ComparisonError, DeviceNotFoundError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.profile.matching import OpTime, between_ops, match, table_by_kind, table_by_op
from rooflinekit.study.profile.profile import Profile

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileComparison:
    """A profile beside a prediction of the same step. All times are seconds.

    Times of ops on a GPU are those of their kernels; on a CPU those of their calls, to which the profiler adds about a
    microsecond each.
    """

    profile: Profile
    prediction: Prediction
    ops: tuple[OpTime, ...]

    @property
    def error(self) -> float:
        """predicted / measured − 1: above 0 where the prediction is too slow."""
        return self.prediction.total_s / self.profile.wall_s - 1

    @property
    def gpu_error(self) -> float:
        """The same of the time that the device computes."""
        measured = sum(op.measured_s for op in self.ops)
        return self.prediction.gpu_s / measured - 1 if measured else float("inf")

    def by_op(self) -> pd.DataFrame:
        """A row an op, in the order of the trace; where calls could not be told apart, a row for all of their kind."""
        return table_by_op(self._all)

    def by_kind(self) -> pd.DataFrame:
        """A row a kind of op, the largest difference first. Its columns add up to the times of the step."""
        return table_by_kind(self._all)

    @property
    def _all(self) -> list[OpTime]:
        return [*self.ops, between_ops(self.ops, self.profile.wall_s, self.prediction.total_s)]

    def to_dict(self) -> Mapping[str, object]:
        """Both, and their ops, ready for JSON."""
        ops = self.by_op().reset_index().to_dict("records")
        return {
            "profile": self.profile.to_dict(),
            "prediction": self.prediction.to_dict(),
            "error": self.error,
            "ops": ops,
        }


def device_note(profile: Profile, device: Device) -> str:
    """A sentence where the trace names another device than this; "" where it does not, or names none that is known."""
    if not profile.device:
        return ""
    try:
        seen = load_device(profile.device, allow_draft=True)
    except (DeviceNotFoundError, AmbiguousDeviceError):
        return ""
    return f"the trace is of {profile.device}, and {device.name} is another device" if seen.name != device.name else ""


def compare_profile(profile: Profile, prediction: Prediction) -> ProfileComparison:
    """Matches measured calls with predicted ops, by kind and order; see `rooflinekit.study.profile.matching`.

    Raises ComparisonError where one is of a GPU and the other of a CPU.
    """
    device = prediction.machine.device
    if profile.on_gpu != (device.kind == "gpu"):
        seen = "kernels of a GPU" if profile.on_gpu else "no kernels of a GPU"
        word = "GPU" if device.kind == "gpu" else "CPU"
        raise ComparisonError(
            f"{profile.file}: the trace holds {seen}, and {device.name} is a {word}; predict for what was profiled"
        )
    return ProfileComparison(profile=profile, prediction=prediction, ops=match(profile.ops, prediction.timings))
