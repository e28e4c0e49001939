"""What share of the peak a training step reaches: model FLOP utilization, and that of the hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rooflinekit.hardware.device import Device, tensor_core_peak
from rooflinekit.ir import keyed
from rooflinekit.ir.op import Math
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.timing.timings import Timing

#: In the name of an op that backward computes again, before its block's (distributed/saving.py).
AGAIN = " again in "


class Utilizes:
    """The shares of the peak that a step on one device or on several reaches."""

    __slots__ = ()

    if TYPE_CHECKING:  # worked out by each kind of step

        @property
        def _utilization(self) -> tuple[float, float]: ...

    @property
    def mfu(self) -> float:
        """Model FLOP utilization: matrix FLOP that the model asks for / (time · peaks of all devices).

        Chowdhery et al. 2022, appendix B.
        """
        return self._utilization[0]

    @property
    def hfu(self) -> float:
        """Hardware FLOP utilization: the same with what is computed again (Korthikanti et al. 2022, section 6.3)."""
        return self._utilization[1]


def utilization(timings: Sequence[Timing], device: Device, total_s: float) -> tuple[float, float]:
    """MFU and HFU: matrix FLOP over what the device's peak gives in that time, each in its own format.

    MFU = Σ FLOP / peak / time (Chowdhery et al. 2022, appendix B), of what the model asks for; HFU counts what is
    computed again too (Korthikanti et al. 2022, section 6.3). Peaks are dense ones, by the datasheet; arithmetic for
    which it states none counts at that of fp32 lanes. A Winograd convolution counts as the plain one that it does.
    """
    model = again = 0.0
    for timing in timings:
        kernel = timing.kernel
        flop = float(kernel.asked_flop or kernel.cost.matrix_flop)
        if flop:
            seconds = flop / _peak(kernel, device)
            model, again = (model, again + seconds) if AGAIN in kernel.name else (model + seconds, again)
    return (model / total_s, (model + again) / total_s) if total_s else (0.0, 0.0)


def formats(timings: Sequence[Timing]) -> dict[str, float]:
    """Matrix FLOP by the format that they are done in, the most first."""
    kernels = [timing.kernel for timing in timings if timing.kernel.cost.gemms]
    found = keyed.sums((kernel.math.value, float(kernel.cost.matrix_flop)) for kernel in kernels)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def main_peak(timings: Sequence[Timing], device: Device) -> tuple[str, float]:
    """The format of most matrix FLOP, and the device's FLOP/s in it; ("", 0.0) without matrix products."""
    main = next(iter(formats(timings)), "")
    peaks = [_peak(timing.kernel, device) for timing in timings if timing.kernel.math.value == main]
    return main, max(peaks, default=0.0)


def _peak(kernel: Kernel, device: Device) -> float:
    """FLOP/s by the datasheet; infinite where it states nothing of the kind."""
    lanes = device.vector_peak.get(kernel.math) or device.vector_peak.get(Math.FP32) or float("inf")
    return (tensor_core_peak(device, kernel.math) if kernel.tensor_core else None) or lanes
