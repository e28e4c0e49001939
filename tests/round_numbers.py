"""A device, and constants that make it reach its peaks, so that expected values can be worked out by hand."""

from types import MappingProxyType

from rooflinekit.calibrate.fitting.constants import CONSTANTS
from rooflinekit.hardware.device import Clock, Device, Memory
from rooflinekit.published.stated import Constant
from rooflinekit.timing.families import ALL
from rooflinekit.timing.machine import Calibration, Spread

DEVICE = Device(
    name="round-gpu",
    vendor="Nobody",
    architecture="Round",
    sm_count=50,
    lanes_per_sm=80,
    clock=Clock(boost=1.25e9),  # 2 · 50 · 80 · 1.25 GHz = 10 TFLOP/s; 16 · 50 · 1.25 GHz = 1 T/s
    dram=Memory(capacity=16e9, bandwidth=1e12),
    l2_capacity=4e6,
    matrix_peak={"fp16": 100e12},
    vector_peak={"fp32": 10e12, "fp64": 5e12},
)
#: Tiles, rows and single accesses cost nothing, nothing limits the power, and the shorter of two is hidden.
_IDEAL = {
    **dict.fromkeys(("issue_share", "memory_share", "product_memory_share"), 1.0),
    **dict.fromkeys(("simt_convolution", "simt_weight"), 1.0),
    "untuned_convolution": 1.0,
    **dict.fromkeys(("emulated_half", "untuned_bf16", "miopen_half"), 1.0),
    **dict.fromkeys(("miopen_simt", "miopen_simt_weight"), 1.0),
    **dict.fromkeys(("miopen_latency_cycles", "repeat_gap"), 0.0),
    "naive_cycles": 1.0,
    **dict.fromkeys(("matrix_tile_loss", "matrix_prologue", "latency_cycles"), 0.0),
    **dict.fromkeys(("matrix_energy", "simt_energy"), 1e-30),
    **dict.fromkeys(("column_cycles", "thread_cycles", "load_cycles", "access_cycles", "attention_block_cycles"), 0.0),
    "attention_share": 1.0,
    "efficient_attention": 1.0,
    **dict.fromkeys(("efficient_wide_gradient", "triton_attention", "aotriton_attention", "cudnn_attention"), 1.0),
    **dict.fromkeys(("attention_gradient", "tensor_memory_attention", "engine_attention"), 1.0),
    "warp_mma_flop": 1e9,
    "boost_headroom": 1.0,
    "single_tensor_core_share": 1.0,
    "eight_bit_energy": 0.5,
    "eight_bit_share": 1.0,
    "four_bit_share": 1.0,
    "energy_size_exponent": 0.0,
    "power_window": 0.0,
    **dict.fromkeys(("kernel_ramp_cycles", "product_ramp_cycles", "kernel_gap", "kernel_gap_graph"), 0.0),
    "early_memory": 1.0,
    "window_cycles": 0.0,
    **dict.fromkeys(("tap_cycles", "loop_tap_cycles"), 1.0),
    "channel_tap_cycles": 1.0,
    "l2_bytes_per_clock": 32.0,
    "cache_share": 1.0,
    "ocml_cycles": 0.0,
    "overlap": 1000.0,
    "energy_node_exponent": 1.0,
    "simt_node_exponent": 1.0,
}
FAMILIES = sorted(ALL)


def constants(**values: float) -> Calibration:
    """Constants of a machine that reaches all its peaks, changed by `values`."""
    assert set(_IDEAL) == set(CONSTANTS)
    made = {
        name: Constant(value=value, stderr=0.1, unit="1", meaning=name, source="test")
        for name, value in (_IDEAL | values).items()
    }
    spreads = {family: Spread(random=0.2, systematic=0.1) for family in FAMILIES}
    return Calibration(name="test", constants=MappingProxyType(made), spreads=MappingProxyType(spreads))
