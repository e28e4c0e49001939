"""Physics checks of a specification: a datasheet says most things twice, and the two must agree.

Published peaks are easily wrong by a factor of two (structured sparsity, fp16 accumulation, two dies counted as one),
and such a number would spoil every prediction without looking odd. Each check compares a number of the file with one
calculated from others. A deviation that is real is written into the file under `explained`, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rooflinekit.errors import SpecError, nearest
from rooflinekit.hardware.cluster import NVLINK_RATES, Cluster, Nvlink
from rooflinekit.hardware.device import FORMATS, Device
from rooflinekit.units import format_quantity

_VECTOR_TOLERANCE = 0.02
_HALF_AND_DOUBLE_TOLERANCE = 0.03  # vector fp64 and fp16: printed with fewer digits
_BANDWIDTH_TOLERANCE = 0.03  # pin rates are printed with two digits
_MATRIX_TOLERANCE = 0.025
_LINK_TOLERANCE = 0.02

# Wider than everything sold between 2014 and 2026, narrow enough to catch a slip of the prefix.
_BANDWIDTH_RANGE = (10e9, 50e12)  # byte/s
_SWEEP_RANGE = (5e-3, 5.0)  # seconds to read the whole memory once
_NETWORK_RANGE = (1e9, 800e9)  # bit/s of one port, sold between 1999 and 2026
_CHANNEL_BITS = 64  # of a CPU's memory channel; DDR5 splits it in two
_FP32_RIDGE_RANGE = (2.0, 400.0)  # FLOP/byte
_MATRIX_RIDGE_RANGE = (10.0, 2000.0)  # FLOP/byte, fp16


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison. `expected` and `actual` are in base units of `unit`; None where there is nothing to compare."""

    name: str  # the path of the number in the file: "matrix_peak.fp16"
    expected: float | None
    actual: float | None
    unit: str
    status: Literal["passed", "explained", "skipped", "failed"]
    note: str  # how the expectation came about; the reason of an explained deviation; why it was skipped

    @property
    def ok(self) -> bool:
        """Whether the specification may be used as far as this check goes."""
        return self.status != "failed"


def run(record: Device | Cluster, devices: Sequence[Device] = ()) -> tuple[Check, ...]:
    """All checks of a device, or of a cluster with its kinds of devices; deviations in `explained` do not fail."""
    found = [*(_of_cluster(record, devices) if isinstance(record, Cluster) else _of_device(record))]
    names = [check.name for check in found]
    for name in record.explained:
        if name not in names:
            note = f"expected the name of a check{nearest(name, names)}; they are {', '.join(names)}"
            found.append(Check(f"explained.{name}", None, None, "", "failed", note))
    return tuple(
        check if check.ok or check.name not in record.explained
        else replace(check, status="explained", note=record.explained[check.name])
        for check in found
    )  # fmt: skip


def verify(record: Device | Cluster, label: str, devices: Sequence[Device] = ()) -> None:
    """Raise SpecError with the first failed check, and the number of others; `label` names the file."""
    failed = [check for check in run(record, devices) if not check.ok]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise SpecError(f"{label}: {failed[0].name.replace('.', ': ', 1)}: {failed[0].note}{more}")


def _of_device(device: Device) -> Iterator[Check]:
    yield from _vector_checks(device)
    for math, peak in device.matrix_peak.items():
        yield _matrix_check(device, f"matrix_peak.{math}", math, peak, accumulate="fp32")
    for math, peak in device.matrix_peak_fp16_accumulate.items():
        yield _matrix_check(device, f"matrix_peak_fp16_accumulate.{math}", math, peak, accumulate="fp16")
    yield from _memory_checks(device)
    ridge = device.vector_peak["fp32"] / device.dram.bandwidth
    yield _within("ridge.fp32", _FP32_RIDGE_RANGE, ridge, "flop/byte", "of fp32 vector peak over bandwidth")
    if "fp16" in device.matrix_peak:
        ridge = device.matrix_peak["fp16"] / device.dram.bandwidth
        yield _within("ridge.fp16", _MATRIX_RIDGE_RANGE, ridge, "flop/byte", "of fp16 matrix peak over bandwidth")
    yield _formats_check(device)


def _vector_checks(device: Device) -> Iterator[Check]:
    lanes = 2 * device.sm_count * device.lanes_per_sm * device.vector_clock
    units = "SMs" if device.kind == "gpu" else "cores"
    formula = f"2 x {device.sm_count} {units} x {device.lanes_per_sm} lanes x {_hz(device.vector_clock)}"
    yield _compare("vector_peak.fp32", lanes, device.vector_peak["fp32"], "flop/s", _VECTOR_TOLERANCE, formula)
    ratios = ARCHITECTURES.get(rate_class(device), Architecture()).vector
    for math, peak in device.vector_peak.items():
        name = f"vector_peak.{math}"
        if math == "fp32":
            continue
        if math not in ratios:
            note = f"no {math} vector rate is known for {rate_class(device)}"
            yield Check(name, None, peak, "flop/s", "skipped", note)
            continue
        how = f"{ratios[math]:.4g} of {formula}"
        yield _compare(name, lanes * ratios[math], peak, "flop/s", _HALF_AND_DOUBLE_TOLERANCE, how)


def _matrix_check(device: Device, name: str, math: str, peak: float, *, accumulate: str) -> Check:
    kind = rate_class(device)
    table = ARCHITECTURES.get(kind, Architecture()).matrix  # multiply-adds per SM and clock
    if table is None:
        return Check(name, None, peak, "flop/s", "skipped", f"no matrix rates are known for {kind}")
    fma = table.get(math, 0)
    if accumulate == "fp32" or device.tensor_rate == "half":  # of two accumulators; else only the wide one is halved
        fma = halve(fma, math, device.tensor_rate)
    if fma == 0:
        note = f"expected no such key: {kind} has no {math} matrix arithmetic"
        return Check(name, None, peak, "flop/s", "failed", note)
    # fp64 peaks are stated at the vector clock, also where the other matrix formats are not.
    clock = device.clock.boost if math == "fp64" else device.tensor_clock
    formula = f"2 x {device.sm_count} SMs x {fma:g} multiply-adds x {_hz(clock)}"
    expected = 2 * device.sm_count * fma * clock
    cause = _likely_cause(device, peak / expected)
    return _compare(name, expected, peak, "flop/s", _MATRIX_TOLERANCE, formula + " at full density", cause)


def _likely_cause(device: Device, ratio: float) -> str:
    """The usual cause of a peak that is off by this factor."""
    if abs(ratio - 2) < 0.06:
        return "; twice the dense rate looks like a figure with structured sparsity, or with fp16 accumulation"
    if abs(ratio - 4) < 0.12:
        return "; four times the dense rate looks like a figure with sparsity and fp16 accumulation"
    if abs(ratio - 0.5) < 0.015 and device.tensor_rate == "full":
        return "; if this product line runs at half rate, say 'tensor_rate: half-accumulate' or 'tensor_rate: half'"
    return ""


def _memory_checks(device: Device) -> Iterator[Check]:
    dram = device.dram
    if dram.bus_width is None or dram.pin_rate is None:
        note = "bus_width and pin_rate are not both given"
        yield Check("dram.bandwidth", None, dram.bandwidth, "byte/s", "skipped", note)
    else:
        formula = f"{dram.bus_width:g} bit x {format_quantity(dram.pin_rate, 'bit/s', digits=None)} / 8"
        implied = dram.bus_width * dram.pin_rate / 8
        yield _compare("dram.bandwidth", implied, dram.bandwidth, "byte/s", _BANDWIDTH_TOLERANCE, formula)
    if dram.channels is not None and dram.bus_width is not None:
        formula = f"{dram.channels} channels x {_CHANNEL_BITS} bit"
        yield _compare("dram.bus_width", dram.channels * _CHANNEL_BITS, dram.bus_width, "bit", 0, formula)
    yield _within("dram.bandwidth_range", _BANDWIDTH_RANGE, dram.bandwidth, "byte/s", "of a device's memory")
    sweep = dram.capacity / dram.bandwidth
    yield _within("dram.capacity", _SWEEP_RANGE, sweep, "s", "to read the whole memory once")


def _formats_check(device: Device) -> Check:
    """Whether the file says of each number format, once, how the device computes in it."""
    listed = [*device.unpublished, *device.emulated, *device.absent]
    stated = {*device.matrix_peak, *device.vector_peak}
    twice = [math for math in FORMATS if listed.count(math) + (math in stated) > 1]
    if twice:
        note = f"expected {twice[0]} in one of the peaks, unpublished, emulated and absent; got it in several"
        return Check("formats", None, None, "", "failed", note)
    silent = [math for math in FORMATS if not device.support(math)]
    if silent:
        return Check("formats", None, None, "", "skipped", f"the file does not say whether it has {', '.join(silent)}")
    return Check("formats", None, None, "", "passed", "each number format has a peak or stands in a list")


def _compare(
    name: str, expected: float, actual: float, unit: str, tolerance: float, formula: str, cause: str = "",
    words: str = "",
) -> Check:  # fmt: skip
    """cause: what a number that is off may be. words: behind what is expected, instead of the tolerance."""
    if abs(actual / expected - 1) <= tolerance:
        return Check(name, expected, actual, unit, "passed", formula)
    note = (
        f"expected {format_quantity(expected, unit, digits=4)} {words or f'within {tolerance:.1%}'} ({formula}); "
        f"got {format_quantity(actual, unit, digits=4)}{cause}"
    )
    return Check(name, expected, actual, unit, "failed", note)


def _within(name: str, bounds: tuple[float, float], actual: float, unit: str, what: str) -> Check:
    low, high = bounds
    between = f"{format_quantity(low, unit)} to {format_quantity(high, unit)} {what}"
    if low <= actual <= high:
        return Check(name, None, actual, unit, "passed", f"plausible: {between}")
    note = f"expected {between}; got {format_quantity(actual, unit)}"
    return Check(name, low if actual < low else high, actual, unit, "failed", note)


def _hz(value: float) -> str:
    return format_quantity(value, "Hz", digits=None)


# Clusters: links times their rate, and what the devices in them can do.


def _of_cluster(cluster: Cluster, devices: Sequence[Device]) -> Iterator[Check]:
    if cluster.nvlink is not None:
        yield from _nvlink_checks(cluster.nvlink, cluster.per_node, devices)
    yield from _pcie_checks(cluster, devices)
    if cluster.network is not None:
        yield _within("network.port_rate", _NETWORK_RANGE, cluster.network.port_rate, "bit/s", "a port")
    # whether any two devices of a node are joined by something
    processes = all(device.kind == "cpu" for device in devices)
    switched = cluster.nvlink is not None and cluster.nvlink.topology == "switch"
    if processes or switched or cluster.pcie is not None or cluster.per_node == 1:
        yield Check("links", None, None, "", "passed", "each two devices of a node are joined")
    else:
        yield Check("links", None, None, "", "failed", "expected pcie, for NVLink does not join all devices")


def _nvlink_checks(nvlink: Nvlink, count: int, devices: Sequence[Device]) -> Iterator[Check]:
    rate = min(NVLINK_RATES[nvlink.generation], key=lambda one: abs(nvlink.links * one - nvlink.one_way))
    formula = f"{nvlink.links} links x {_rate(rate)} of generation {nvlink.generation}"
    yield _one_way("nvlink.bandwidth", nvlink.links * rate, nvlink.one_way, formula)
    for device in devices:
        stated = device.interconnect.bandwidth_per_direction if device.interconnect else None
        name = f"nvlink.{device.name}"
        if stated is None:
            note = f"expected no nvlink: {device.name} has none"
            yield Check(name, None, nvlink.one_way, "byte/s", "failed", note)
        else:
            yield _one_way(name, stated, nvlink.one_way, f"the interconnect of {device.name}")
    if nvlink.mesh:
        used = [sum(nvlink.links_between(a, b) for b in range(count)) for a in range(count)]
        worst = max(range(count), key=lambda a: used[a])
        note = f"device {worst} uses {used[worst]} of {nvlink.links} links"
        fits = used[worst] <= nvlink.links
        yield Check("nvlink.mesh", nvlink.links, used[worst], "", "passed" if fits else "failed", note)


def _pcie_checks(cluster: Cluster, devices: Sequence[Device]) -> Iterator[Check]:
    for device in devices if cluster.pcie is not None else ():
        name, own = f"pcie.{device.name}", device.pcie
        if cluster.pcie is None or own is None:
            yield Check(name, None, None, "", "skipped", f"{device.name} does not say what PCIe it has")
            continue
        has, slot = own.bandwidth_per_direction, cluster.pcie.bandwidth_per_direction
        formula = f"PCIe {own.generation} x{own.lanes} of {device.name}: {_rate(has)}"
        if slot <= has * (1 + _LINK_TOLERANCE):
            yield Check(name, has, slot, "byte/s", "passed", formula)
        else:
            yield Check(name, has, slot, "byte/s", "failed", f"expected at most {formula}; got {_rate(slot)}")


def _one_way(name: str, expected: float, actual: float, formula: str) -> Check:
    twice = "; twice the rate looks like both directions together" if abs(actual / expected - 2) < 0.06 else ""
    return _compare(name, expected, actual, "byte/s", _LINK_TOLERANCE, formula, twice, words="in one direction")


def _rate(value: float) -> str:
    return format_quantity(value, "byte/s", digits=4)


# What each architecture can do per clock, to check datasheet peaks against.
#
# The numbers come from the vendors' architecture papers and programming guides. A class is a CUDA compute capability,
# an AMD target, the vectors of a CPU ("avx2"), or, for others, the architecture's name. A class that is not here is not
# checked.


@dataclass(frozen=True, slots=True)
class Architecture:
    """What units of one class do in a clock. NVIDIA's have a name, and the lanes and matrix units of an SM too.

    matrix: dense multiply-adds per SM (compute unit, Xe core) with fp32 (int32) accumulation, at the full rate; None
    where they are not known. Of AMX: one tile product of 16 x 16 x 32 (64) in 16 clocks. vector: rates relative to one
    fp32 multiply-add per lane. int8: dot products of four, beside matrix units.
    """

    matrix: Mapping[str, float] | None = None
    vector: Mapping[str, float] = field(default_factory=dict)
    name: str | None = None
    lanes: int | None = None  # fp32 multiply-adds
    units: int = 0


ARCHITECTURES: Mapping[str, Architecture] = {
    "3.7": Architecture({}, {"fp64": 1 / 3}, "Kepler", 192),
    "5.0": Architecture(None, {}, "Maxwell", 128),
    "5.2": Architecture({}, {"fp64": 1 / 32}, "Maxwell", 128),
    "6.0": Architecture({}, {"fp64": 1 / 2, "fp16": 2}, "Pascal", 64),
    "6.1": Architecture({}, {"fp64": 1 / 32, "fp16": 1 / 64, "int8": 4}, "Pascal", 128),
    "7.0": Architecture({"fp16": 512}, {"fp64": 1 / 2, "fp16": 2}, "Volta", 64, 8),
    "7.5": Architecture({"fp16": 512, "int8": 1024}, {"fp64": 1 / 32, "fp16": 2}, "Turing", 64, 8),
    "8.0": Architecture(
        {"fp64": 64, "tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048}, {"fp64": 1 / 2, "fp16": 4},
        "Ampere", 64, 4,
    ),
    "8.6": Architecture(
        {"tf32": 256, "fp16": 512, "bf16": 512, "int8": 1024}, {"fp64": 1 / 64, "fp16": 1}, "Ampere", 128, 4,
    ),
    "8.7": Architecture(
        {"tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048}, {"fp64": 1 / 64, "fp16": 2}, "Ampere", 128, 4,
    ),
    "8.9": Architecture(
        {"tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024, "int8": 1024}, {"fp64": 1 / 64, "fp16": 1},
        "Ada Lovelace", 128, 4,
    ),
    "9.0": Architecture(
        {"fp64": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048, "fp8": 4096, "int8": 4096}, {"fp64": 1 / 2, "fp16": 2},
        "Hopper", 128, 4,
    ),
    "10.0": Architecture(
        {"fp64": 64, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192, "fp4": 16384},
        {"fp64": 1 / 2}, "Blackwell", 128, 4,
    ),
    # Blackwell Ultra gave up fp64 and int8 for fp4.
    "10.3": Architecture(
        {"tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 256, "fp4": 24576}, {"fp64": 1 / 64},
        "Blackwell Ultra", 128, 4,
    ),
    "12.0": Architecture(
        {"tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024, "int8": 1024, "fp4": 2048}, {"fp64": 1 / 64, "fp16": 1},
        "Blackwell", 128, 4,
    ),
    "gfx900": Architecture({}, {"fp64": 1 / 16, "fp16": 2}),
    "gfx906": Architecture({}, {"fp64": 1 / 2, "fp16": 2, "int8": 4}),
    "gfx1030": Architecture({}, {"fp64": 1 / 16, "fp16": 2, "int8": 4}),
    "gfx908": Architecture({"fp32": 128, "fp16": 512, "bf16": 256, "int8": 512}, {"fp64": 1 / 2}),
    "gfx90a": Architecture({"fp64": 128, "fp32": 128, "fp16": 512, "bf16": 512, "int8": 512}, {"fp64": 1}),
    "gfx942": Architecture(
        {"fp64": 128, "fp32": 128, "tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048}, {"fp64": 1},
    ),
    "gfx950": Architecture(
        {"fp64": 64, "fp32": 128, "fp16": 2048, "bf16": 2048, "fp8": 4096, "int8": 4096, "fp4": 8192}, {"fp64": 1},
    ),
    "gfx1100": Architecture({"fp16": 256, "bf16": 256, "int8": 256}, {"fp64": 1 / 16, "fp16": 4}),
    "M1 family 7": Architecture({}, {"fp16": 1}),
    "M2 family 8": Architecture({}, {"fp16": 1}),
    "M3 family 9": Architecture({}, {"fp16": 1}),
    "Xe-HPC (Ponte Vecchio)": Architecture({"tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096}, {"fp64": 1}),
    "Xe-HPG (Alchemist)": Architecture({"fp16": 1024, "bf16": 1024, "int8": 2048}),
    "avx2": Architecture({}, {"fp64": 1 / 2}),
    "avx512": Architecture({}, {"fp64": 1 / 2}),
    "avx512-amx": Architecture({"bf16": 512, "int8": 1024}, {"fp64": 1 / 2, "fp16": 2}),
}  # fmt: skip

# Of product lines with `tensor_rate: half-accumulate` (GeForce), these formats run at half the full rate.
HALVED_BY_ACCUMULATION = ("tf32", "fp16", "bf16", "fp8")


def rate_class(device: Device) -> str:
    """The key under which the tables above may know this device."""
    return device.compute_capability or device.architecture


def halve(full: float, math: str, tensor_rate: str) -> float:
    """The rate in format `math` with fp32 (int32) accumulation that a product line keeps of the full one."""
    halved = tensor_rate == "half" or (tensor_rate == "half-accumulate" and math in HALVED_BY_ACCUMULATION)
    return full / 2 if halved else full
