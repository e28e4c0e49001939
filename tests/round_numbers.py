"""Constants that make a machine reach its peaks, so that expected values can be worked out by hand."""

from types import MappingProxyType

from rooflinekit.model.machine import Calibration, Constant


def constants(**values: float) -> Calibration:
    """Constants of a machine that reaches all its peaks, changed by `values`."""
    names = {
        "matrix_share": 1.0,
        "winograd_share": 0.5,
        "vector_share": 1.0,
        "memory_share": 1.0,
        "special_rate": 16.0,
        "kernel_start": 0.0,
        "host_factor": 1.0,
    }
    made = {
        name: Constant(value=value, stderr=0.1 * value, unit="1", meaning=name, source="test")
        for name, value in (names | values).items()
    }
    return Calibration(name="test", constants=MappingProxyType(made))
