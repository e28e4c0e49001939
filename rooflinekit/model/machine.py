"""The ceilings that a kernel meets: a device's datasheet and the share of it that kernels sustain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooflinekit.errors import FormatError
from rooflinekit.hardware.device import Device
from rooflinekit.ir.tensor import Math


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A number of the model, with how sure it is and where it comes from."""

    value: float
    stderr: float
    unit: str
    meaning: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants of a GPU: fitted on measurements, or the priors of one that was not measured."""

    name: str
    constants: Mapping[str, Constant]

    def value(self, name: str) -> float:
        """The constant `name`, in its unit."""
        return self.constants[name].value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast one kind of arithmetic runs."""

    peak: float  # FLOP/s, datasheet, dense
    share: float  # of the peak, sustained
    on_engine: bool  # whether the matrix engine does it, or the vector lanes
    emulated: str = ""  # why the device runs it as another format; "" where it has it

    @property
    def sustained(self) -> float:
        """FLOP/s that a kernel gets."""
        return self.peak * self.share


#: Formats that PyTorch computes in float32 where the device has no unit for them.
_EMULATED = {Math.FP16: "fp16", Math.BF16: "bf16", Math.TF32: "tf32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A device as kernels meet it."""

    name: str
    device: Device
    constants: Calibration
    bandwidth: float  # byte/s, datasheet
    bandwidth_share: float
    special_rate: float  # special functions a second
    kernel_start_s: float

    @classmethod
    def of(cls, device: Device, constants: Calibration) -> Machine:
        """The device with these constants."""
        clock = device.clock.boost
        return cls(
            name=device.name,
            device=device,
            constants=constants,
            bandwidth=device.dram.bandwidth,
            bandwidth_share=constants.value("memory_share"),
            special_rate=constants.value("special_rate") * device.sm_count * clock,
            kernel_start_s=constants.value("kernel_start"),
        )

    @property
    def sustained_bandwidth(self) -> float:
        """byte/s that a kernel gets from DRAM."""
        return self.bandwidth * self.bandwidth_share

    def matrix_rate(self, math: Math, *, engine: bool = True) -> Rate:
        """Rate of matrix products in a format; with `engine=False`, on the vector lanes.

        Half precision and tf32 run as fp32 where the device has no unit for them, which the rate says. Raises
        FormatError for a format that PyTorch cannot run on this device.
        """
        share = self.constants.value("matrix_share")
        peak = self.device.matrix_peak.get(math.value)
        if engine and peak is not None:
            return Rate(peak=peak, share=share, on_engine=True)
        vector = self.device.vector_peak
        if math in (Math.FP64, Math.FP32) and math.value in vector:
            return Rate(peak=vector[math.value], share=share, on_engine=False)
        if math in _EMULATED and Math.FP32.value in vector:
            reason = f"{self.name} has no {math} matrix units: computed in fp32" if engine else ""
            return Rate(peak=vector[Math.FP32.value], share=share, on_engine=False, emulated=reason)
        has = ", ".join(sorted({*self.device.matrix_peak, *vector}))
        raise FormatError(f"{self.name} has no {math} arithmetic (it has {has}); choose another format or device")

    def vector_rate(self, math: Math) -> Rate:
        """Rate of arithmetic outside matrix products, which PyTorch does in fp32, or fp64 for float64."""
        vector = self.device.vector_peak
        key = math.value if math is Math.FP64 else Math.FP32.value
        if key not in vector:
            raise FormatError(f"{self.name} states no {key} vector peak; add vector_peak: {key} to its specification")
        return Rate(peak=vector[key], share=self.constants.value("vector_share"), on_engine=False)
