"""The ceilings that a kernel meets: a device's datasheet and the share of it that kernels sustain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import hypot
from types import MappingProxyType
from typing import Any

import numpy as np

from rooflinekit.errors import FormatError
from rooflinekit.hardware.device import Device, has_dot_products, tensor_core_peak, vector_math
from rooflinekit.ir.op import Math, nothing
from rooflinekit.published.stated import NUMBERS, Constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far predictions of a family of kernels are off, as standard deviations of ln(measured / predicted)."""

    random: float  # of each kernel by itself
    systematic: float  # of all kernels of the family on a GPU together
    short_s: float = 0.0  # that each is off besides, however long it takes: why short ones are less certain

    @property
    def whole(self) -> float:
        """Standard deviation of a single kernel, by both parts."""
        return hypot(self.random, self.systematic)

    def random_variance(self, seconds: Any, count: Any = 1) -> Any:
        """s², numbers or arrays: the random error of so many equal kernels that take `seconds` together."""
        return (seconds * self.random) ** 2 + (count * self.short_s) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConstants:
    """Constants of `timing.energy`, the same for all GPUs."""

    constants: Mapping[str, Constant]
    spread: float  # standard deviation of ln(measured / predicted) of a step's mean watts


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants of a GPU: fitted on measurements of it, or those of an unmeasured GPU."""

    name: str
    constants: Mapping[str, Constant]
    spreads: Mapping[str, Spread]  # by family
    measured: frozenset[str] = frozenset()  # the families that were measured on this GPU
    correlations: Mapping[str, float] = field(default_factory=nothing)  # "a, b" → of constants fitted together
    power: PowerConstants | None = None  # of what is drawn; None where nothing is known of it

    def value(self, name: str) -> float:
        """The constant `name`, in its unit."""
        return self.constants[name].value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast one kind of arithmetic runs."""

    peak: float  # FLOP/s, datasheet, dense
    share: float  # of the peak, issued in the inner loop of a kernel
    on_tensor_core: bool  # whether the tensor core does it, or the CUDA cores
    limit: float = float("inf")  # FLOP/s that the board's power sustains
    full: float = 0.0  # FLOP/s of the units that the SM's operand paths are made for; 0 where that is `peak`
    emulated: str = ""  # why the device runs it as another format; "" where it has it

    @property
    def sustained(self) -> float:
        """FLOP/s that the best of kernels gets."""
        return min(self.peak * self.share, self.limit)


#: Formats that PyTorch computes in float32 where the device has no unit for them.
RUN_AS_FP32 = (Math.FP16, Math.BF16, Math.TF32)

#: Of memory with error codes among the data, what they take: T4, A10, A40 and L4 have 15, 22.5, 45 and 22.5 GiB left of
#: 16, 24, 48 and 24. Data that is read as a stream brings its codes along, in the same share.
_CODE_SHARE = 1 / 16

_THREADS = 2048  # of an SM, as most have, where the specification is silent

#: Of the vector peak, which counts a multiply-add as two FLOP: arithmetic outside products has few of them.
UNFUSED = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A device as kernels meet it."""

    name: str
    device: Device
    constants: Calibration
    values: Mapping[str, float]  # of the constants
    burst: bool = False  # whether it is over before the board's power or heat lower the clock
    calls: float = float("inf")  # of each kernel in a row: after a rest the board runs above its power limit at first
    warm_calls: float = 0.0  # of them before those whose mean is asked for
    power_limit: float | None = None  # watts, below the board's own; see timing.energy
    clock_limit: float | None = None  # Hz, below the boost

    @classmethod
    def of(cls, device: Device, constants: Calibration, *, burst: bool = False) -> Machine:
        """The device with these constants."""
        values = MappingProxyType({name: constant.value for name, constant in constants.constants.items()})
        return cls(name=device.name, device=device, constants=constants, values=values, burst=burst)

    def with_values(self, values: Mapping[str, float]) -> Machine:
        """The machine with other values of its constants: what a fit tries."""
        return replace(self, values=values)

    @property
    def is_limited(self) -> bool:
        """Whether watts or the clock are limited below what the board does by itself."""
        return self.power_limit is not None or self.clock_limit is not None

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors."""
        return self.device.sm_count

    @property
    def clock(self) -> float:
        """Cycles a second of an SM."""
        return self.device.clock.boost * self.clock_gain

    @property
    def clock_gain(self) -> float:
        """By how much the clock is above the stated boost: on boards for gamers that is an average, not a ceiling."""
        return self.values["boost_headroom"] if self.device.tensor_rate == "half-accumulate" else 1.0

    @property
    def bandwidth(self) -> float:
        """byte/s of DRAM, datasheet."""
        return self.device.dram.bandwidth

    @property
    def bandwidth_share(self) -> float:
        """Share of the datasheet's DRAM bandwidth that a kernel gets."""
        # From Volta on, controllers of HBM2 sustain more of their pins' rate.
        early = (self.device.dram.type or "").startswith("HBM") and 0 < self.device.cuda_generation < _SINGLE_ISSUE
        return self.values["memory_share"] * (self.values["early_memory"] if early else 1.0) * self._data_share

    @property
    def product_bandwidth_share(self) -> float:
        """The share of the DRAM bandwidth that kernels of matrix products sustain."""
        return self.values["product_memory_share"] * self._data_share

    @property
    def code_bytes(self) -> float:
        """DRAM traffic for error codes that a written byte adds to its own: its code, which is fetched before."""
        return _CODE_SHARE if self.device.dram.inline_ecc else 0.0

    @property
    def _data_share(self) -> float:
        """The share of DRAM traffic that is data; the rest is error codes."""
        return 1 - _CODE_SHARE if self.device.dram.inline_ecc else 1.0

    @property
    def sustained_bandwidth(self) -> float:
        """byte/s that a kernel gets from DRAM."""
        return self.bandwidth * self.bandwidth_share

    @property
    def cache_bytes(self) -> float:
        """How large a working set may be that stays in the last level of cache."""
        return self.device.last_cache * self.values["cache_share"]

    @property
    def threads_per_sm(self) -> int:
        """Threads that an SM holds at once."""
        return self.device.threads_per_sm or _THREADS

    @property
    def l2_bandwidth(self) -> float:
        """byte/s of that cache, never below what DRAM gives."""
        wanted = self.values["l2_bytes_per_clock"] * self.sm_count * self.clock
        return max(wanted, self.sustained_bandwidth)

    @property
    def access_cycles(self) -> float:
        """Cycles of an SM for a load of a single element, by instructions: AMD's issue for as many threads as lanes."""
        issued = self.device.lanes_per_sm if self.device.vendor == "AMD" else _ISSUED
        return self.values["access_cycles"] * _ISSUED / issued

    @property
    def library_s(self) -> float:
        """Seconds of all lanes for a special function of the compiler's library, beside the function: AMD's alone."""
        cycles = self.values["ocml_cycles"] if self.device.vendor == "AMD" else 0.0
        return cycles / (self.sm_count * self.device.lanes_per_sm * self.clock)

    @property
    def start_s(self) -> float:
        """What a kernel takes beside its work: its ramp, and the gap before it."""
        return self.values["kernel_ramp_cycles"] / self.clock + self.values["kernel_gap"]

    @property
    def start_spread(self) -> float:
        """How far the starts of all kernels may be off together: standard deviation of the logarithm."""
        return self.constants.constants["kernel_ramp_cycles"].stderr

    def matrix_rate(self, math: Math, *, tensor_core: bool = True) -> Rate:
        """Rate of matrix products in a format; with `tensor_core=False`, on the CUDA cores.

        Half precision and tf32 run as fp32 where the device has no unit for them, which the rate says. Raises
        FormatError for a format that PyTorch cannot run on this device.
        """
        peak = tensor_core_peak(self.device, math)
        if tensor_core and peak is not None:
            return self._rate(math, peak, on_tensor_core=True)
        vector = self.device.vector_peak
        multiplies = math in (Math.FP64, Math.FP32) or (math is Math.FP16 and has_dot_products(self.device))
        if multiplies and math.value in vector:
            return self._rate(math, vector[math.value], on_tensor_core=False)
        if math in RUN_AS_FP32 and Math.FP32.value in vector:
            reason = f"{self.name} has no {math} matrix units: computed in fp32" if tensor_core else ""
            return replace(self._rate(Math.FP32, vector[Math.FP32.value], on_tensor_core=False), emulated=reason)
        has = ", ".join(sorted({*self.device.matrix_peak, *vector}))
        raise FormatError(f"{self.name} has no {math} arithmetic (it has {has}); choose another format or device")

    def _rate(self, math: Math, peak: float, *, on_tensor_core: bool) -> Rate:
        """What tiles without loss get: a share of the peak, unless the board's power ends it earlier."""
        share = self.values["issue_share"]
        if not on_tensor_core:
            share *= _fma_share(self.device, peak)
        elif math in _NARROW:
            share *= self.values[_NARROW[math]]
        limit = float("inf") if self.burst else power_limit(self.device, self.values, math, tensor_core=on_tensor_core)
        # GeForce boards: how much faster the SM is made than the matrix units that its product line leaves it
        tables = (self.device.matrix_peak_fp16_accumulate, self.device.matrix_peak)
        made, left = (peaks.get(Math.FP16.value) for peaks in tables)
        full = peak * (made / left) if on_tensor_core and made and left else 0.0
        return Rate(peak=peak, share=share, on_tensor_core=on_tensor_core, limit=limit, full=full)

    def vector_rate(self, math: Math) -> Rate:
        """Rate of arithmetic outside matrix products, which PyTorch does in fp32, or fp64 for float64."""
        vector = self.device.vector_peak
        key = vector_math(math).value
        if key not in vector:
            raise FormatError(f"{self.name} states no {key} vector peak; add vector_peak: {key} to its specification")
        return Rate(peak=vector[key], share=UNFUSED, on_tensor_core=False)


def _fma_share(device: Device, peak: float) -> float:
    """What a product's loop reaches of the CUDA cores' peak, where their schedulers are what limits it.

    Since Volta each of an SM's four schedulers issues one instruction a clock (NVIDIA, Volta whitepaper). 64 lanes take
    a warp's multiply-adds in two clocks, so loads and addresses find a free one; for 128 lanes they take the place of
    multiply-adds. From compute capability 10.0 on one instruction does two (PTX ISA, `fma.rn.f32x2`).
    """
    major = device.cuda_generation
    if major < _SINGLE_ISSUE:
        return 1.0
    pairs = 2 if major >= _PAIRED else 1
    return min(1.0, 2 * pairs * _FMA_SLOTS * _ISSUED * device.sm_count * device.vector_clock / peak)


#: Constants that say what tensor cores issue in formats of fewer than 16 bits, of what they do in 16.
_NARROW = {Math.FP8: "eight_bit_share", Math.INT8: "eight_bit_share", Math.FP4: "four_bit_share"}
_SINGLE_ISSUE, _PAIRED = 7, 10  # compute capabilities
_ISSUED = 4 * 32  # threads for which an SM of NVIDIA's issues an instruction in a clock
_FMA_SLOTS = NUMBERS["fma slots"].value


# The clock that a board's power sustains: P watts sustain P / energy FLOP/s, however many units there are. The energy
# of a FLOP falls with the process node, and on the tensor core with the multiply-adds that an SM does in a clock
# (docs/model.md, "Power and clocks"). Bursts shorter than the board's thermal time constant (seconds) may escape it.


#: Formats of a tensor core that halve 16 bits, and how often: by each halving a FLOP takes `eight_bit_energy` of the
#: energy. Half as many bits are moved, and multipliers shrink with the square of the mantissa, but sums stay in fp32.
#: Of 4 bits a constant of its own, fitted on a B200's products, came to 0.363 where this says 0.371.
_HALVED = {Math.FP8: 1, Math.INT8: 1, Math.FP4: 2}
#: Of wider formats, of a 16-bit FLOP's: TF32 has fp16's mantissa and operands of twice the bytes, fp32 both twice.
_WIDER = {
    math: NUMBERS["wider energy"].value ** times
    for math, times in ((Math.FP16, 0), (Math.BF16, 0), (Math.TF32, 1), (Math.FP32, 2))
}
_LEAST_S = 1e-12  # of a call, to divide by
_REFERENCE_NM = 16.0
_REFERENCE_SIZE = 512.0  # multiply-adds in 16 bits that an SM of Volta does in a clock
_OF_FP32 = {Math.FP64: 2.0, Math.FP16: 0.5}  # on the CUDA cores: by the bits of what is multiplied


def power_limit(device: Device, values: Mapping[str, float], math: Math, *, tensor_core: bool) -> float:
    """FLOP/s that the board's power sustains; infinite where power or process are not stated."""
    watts = board_share(device)
    if watts is None or device.process_nm is None:
        return float("inf")
    return watts / flop_energy(device, values, math, tensor_core=tensor_core)


def throttled_s(free_s: Any, limited_s: Any, *, window_s: float, calls: float, before: float) -> Any:
    """Mean seconds of `calls` after `before` others, at the full clock for `window_s`, then at what power sustains."""
    if np.isinf(calls):
        return np.maximum(free_s, limited_s)
    free = np.clip((window_s / np.maximum(free_s, _LEAST_S) - before) / calls, 0.0, 1.0)
    return np.maximum(free_s, limited_s - free * (limited_s - free_s))


def board_share(device: Device) -> float | None:
    """Watts of the board that are this device's; None where none are stated."""
    return None if device.board_power is None else device.board_power / device.devices_per_board


def flop_energy(device: Device, values: Mapping[str, float], math: Math, *, tensor_core: bool) -> float:
    """Joules of a FLOP that sustained products cost a board at its limit: all that it draws, its idling included."""
    if tensor_core and (math in _HALVED or math in _WIDER):
        of_16_bits = values["eight_bit_energy"] ** _HALVED[math] if math in _HALVED else _WIDER[math]
        energy = values["matrix_energy"] * of_16_bits
        tables = (device.matrix_peak_fp16_accumulate, device.matrix_peak)  # GeForce boards do half of what the SM could
        peak = next((table[name] for table in tables for name in ("fp16", "bf16") if table.get(name)), None)
        size = peak / (2 * device.sm_count * device.tensor_clock) if peak else _REFERENCE_SIZE  # multiply-adds a clock
        energy *= (_REFERENCE_SIZE / size) ** values["energy_size_exponent"]
        return float(energy * process(device, values))
    return simt_energy(device, values) * _OF_FP32.get(math, 1.0)


def simt_energy(device: Device, values: Mapping[str, float]) -> float:
    """Joules of an fp32 FLOP on the CUDA cores."""
    return float(values["simt_energy"] * process(device, values, "simt_node_exponent"))


def process(device: Device, values: Mapping[str, float], exponent: str = "energy_node_exponent") -> float:
    """Energy of switching in the device's process, of that in 16 nm; 1 where the process is not stated."""
    node = device.process_nm
    return 1.0 if node is None else (node / _REFERENCE_NM) ** values[exponent]
