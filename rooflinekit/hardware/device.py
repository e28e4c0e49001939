"""A GPU or CPU as its datasheet describes it: how many units, how fast, how much memory, and whose numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rooflinekit.errors import FormatError
from rooflinekit.hardware.fields import Choice, Count, Frozen, FrozenMapping, Line, Lines, Quantity, Record, Text
from rooflinekit.ir import notebook
from rooflinekit.ir.op import Math
from rooflinekit.units import format_bytes, format_quantity, said

SCHEMA_VERSION = 1

# Arithmetic formats, widest first. tf32 is fp32 storage multiplied with ten mantissa bits.
FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4")

# Usable bytes per second of one lane in one direction, after line coding.
_PCIE_LANE_BANDWIDTH = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,  # flow-control units of 256 bytes, 242 of them payload
}

SOURCE_GROUPS = ("process", "processors", "memory", "caches", "peaks", "formats", "links", "board")

KINDS = ("gpu", "cpu")

# How the matrix units of a product line run against the fastest part of the same architecture.
TENSOR_RATES = ("full", "half-accumulate", "half")

Capacity = Annotated[float, Quantity("byte", low=2**20, high=1e15)]
Cache = Annotated[float, Quantity("byte", low=2**10, high=2**36)]
Array = Annotated[float, Quantity("byte", low=2**10, high=2**24)]  # on-chip memory of one SM
Bandwidth = Annotated[float, Quantity("byte/s", low=1e6, high=1e15)]
Rate = Annotated[float, Quantity("flop/s", low=1e6, high=1e18)]
Frequency = Annotated[float, Quantity("Hz", low=1e6, high=2e10)]
MatrixPeaks = Annotated[Mapping[Annotated[str, Choice(FORMATS)], Rate], Frozen()]
AccumulatePeaks = Annotated[Mapping[Annotated[str, Choice(("fp16", "fp8"))], Rate], Frozen()]
VectorPeaks = Annotated[Mapping[Annotated[str, Choice(("fp64", "fp32", "bf16", "fp16", "int8"))], Rate], Frozen()]
Reasons = Annotated[Mapping[Annotated[str, Choice(FORMATS)], Text], Frozen()]
Formats = Annotated[tuple[Annotated[str, Choice(FORMATS)], ...], Field(strict=False)]
Sources = Annotated[Mapping[Annotated[str, Choice(SOURCE_GROUPS)], Text], Frozen()]
Identifier = Annotated[str, Field(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$")]


class Memory(Record):
    """Device memory: capacity in bytes, bandwidth in bytes per second, and the two numbers that imply it."""

    type: Line | None = None
    capacity: Capacity
    bandwidth: Bandwidth  # reads and writes together
    bus_width: Annotated[float, Quantity("bit", low=8, high=1e6)] | None = None
    pin_rate: Annotated[float, Quantity("bit/s", low=1e6, high=1e14)] | None = None  # of one data pin
    channels: Annotated[int, Field(ge=1, le=256)] | None = None  # of a CPU: 64 bit wide each
    inline_ecc: bool = False  # whether error codes lie among the data, as on boards of GDDR that correct errors


class Clock(Record):
    """Clock frequencies in Hz, as the vendor states them; what a chip sustains under load is lower."""

    base: Frequency | None = None
    boost: Frequency
    tensor: Frequency | None = None  # the clock behind the stated matrix peaks, where it is not boost
    vector: Frequency | None = None  # behind the stated vector peaks, where it is not boost: a CPU under wide vectors


class Interconnect(Record):
    """The link to other GPUs (NVLink, Infinity Fabric); half of the total that vendors print."""

    kind: Line
    bandwidth_per_direction: Bandwidth | None = None


class Pcie(Record):
    """The link to the host."""

    generation: Annotated[int, Field(ge=1, le=max(_PCIE_LANE_BANDWIDTH))]
    lanes: Annotated[int, Field(ge=1, le=32)]

    @property
    def bandwidth_per_direction(self) -> float:
        """Bytes per second in one direction after line coding, before packet headers.

        >>> round(Pcie(generation=4, lanes=16).bandwidth_per_direction / 1e9, 1)
        31.5
        """
        return _PCIE_LANE_BANDWIDTH[self.generation] * self.lanes


class Device(Record):
    """One GPU, or CPU socket, as a program sees it. On a CPU an SM is a core, and its lanes are those of its FMA units.

    All rates are dense; a multiply-add counts 2; matrix rates accumulate in fp32 (int8 in int32).
    """

    schema_version: Annotated[int, Field(alias="schema", ge=SCHEMA_VERSION, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    name: Identifier  # the file name without ending
    kind: Annotated[str, Choice(KINDS)] = "gpu"
    display_name: Line | None = None
    aliases: Lines = ()  # what the driver and people call it
    meant_by: Lines = ()  # shorter names that other boards answer to as well, and most people mean this one by
    vendor: Line
    architecture: Line
    compute_capability: Line | None = None  # CUDA capability ("8.0"), AMD target ("gfx942"), vectors of a CPU ("avx2")
    process_node: Line | None = None  # the maker's name of the silicon process
    #: The generation in nm whose energy of switching it has: a shrink has that of the one before (12 is 16, 4 is 5);
    #: Samsung's 8 as much as 12 elsewhere: A40 and RTX A6000 sustain 106 to 118 TFLOP/s of bf16 at 300 W.
    process_nm: Annotated[float, Field(ge=1, le=1000)] | None = None
    launch_date: date | None = None
    device_scope: Line | None = None  # what this is a part or a sum of, where it is not a plain board
    enumerated_as: Annotated[int, Field(ge=1, le=64)] = 1  # devices that PyTorch sees of it; a kernel runs on one
    devices_per_board: Annotated[int, Field(ge=1, le=64)] = 1  # that share board_power and launch_price_usd

    sm_count: Annotated[int, Field(ge=1, le=10**6)]  # streaming multiprocessors, compute units, cores
    lanes_per_sm: Annotated[int, Field(ge=1, le=2**20)]  # fp32 multiply-add lanes, before packed or dual issue
    tensor_cores: Annotated[int, Field(ge=1, le=10**7)] | None = None  # in total
    tensor_rate: Annotated[str, Choice(TENSOR_RATES)] = "full"
    clock: Clock

    dram: Memory
    l2_capacity: Cache
    last_level_cache: Cache | None = None  # behind the L2: AMD Infinity Cache, Apple system cache
    l1_capacity_per_sm: Array | None = None  # with shared memory, where they are one array
    shared_memory_per_sm: Array | None = None
    shared_memory_per_block: Array | None = None  # the most that one block may ask for
    registers_per_sm: Annotated[int, Field(ge=1, le=2**24)] | None = None  # of 32 bit
    threads_per_sm: Annotated[int, Field(ge=1, le=2**16)] | None = None
    #: Of scores, a clock (CUDA C++ Programming Guide, throughput of native arithmetic instructions).
    exponentials_per_sm: Annotated[int, Field(ge=1, le=2**16)] = 16

    matrix_peak: MatrixPeaks = FrozenMapping()
    matrix_peak_fp16_accumulate: AccumulatePeaks = FrozenMapping()  # only where it differs from fp32 accumulation
    vector_peak: VectorPeaks
    emulated: Reasons = FrozenMapping()  # formats that software accepts and computes in another: how
    unpublished: Reasons = FrozenMapping()  # formats that the units have, but that no peak is published of: why
    absent: Formats = ()  # formats that neither units nor software offer

    interconnect: Interconnect | None = None
    pcie: Pcie | None = None
    board_power: Annotated[float, Quantity("W", low=0.1, high=1e5)] | None = None
    launch_price_usd: Count | None = None

    sources: Sources = FrozenMapping()
    explained: Annotated[Mapping[Text, Text], Frozen()] = FrozenMapping()  # name of a failing check: why it is right
    notes: Text | None = None
    confidence: Annotated[str, Choice(("high", "medium", "low"))] | None = None
    draft: bool = False  # whether numbers are missing or unconfirmed, so that loading has to be asked for
    draft_reason: Text | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "fp32" not in self.vector_peak:
            raise ValueError("vector_peak: expected at least fp32")
        if self.clock.base is not None and self.clock.base > self.clock.boost:
            raise ValueError("clock: expected base to be no faster than boost")
        per_sm, per_block = self.shared_memory_per_sm, self.shared_memory_per_block
        if per_sm is not None and per_block is not None and per_block > per_sm:
            raise ValueError("shared_memory_per_block: expected no more than shared_memory_per_sm")
        # L1 and shared memory are one array in NVIDIA's GPUs since Volta
        array = self.l1_capacity_per_sm if self.cuda_generation >= 7 else None
        if per_sm is not None and array is not None and per_sm > array:
            raise ValueError("shared_memory_per_sm: expected no more than l1_capacity_per_sm, the array that holds it")
        if max(self.l2_capacity, self.last_level_cache or 0) > self.dram.capacity:
            raise ValueError("l2_capacity, last_level_cache: expected no more than the memory behind them")
        if self.process_node is not None and self.process_nm is None:
            raise ValueError("process_nm: expected a number of nanometres beside process_node, as 5 for TSMC 4N")
        if self.draft != (self.draft_reason is not None):
            raise ValueError("draft_reason: expected a reason beside 'draft: true', and none without it")
        return self

    @property
    def cuda_capability(self) -> tuple[int, int] | None:
        """CUDA's compute capability, such as (9, 0); None where there is none."""
        major, _, minor = (self.compute_capability or "").partition(".")
        if self.vendor != "NVIDIA" or not major.isdecimal():
            return None
        return int(major), int(minor) if minor.isdecimal() else 0

    @property
    def cuda_generation(self) -> int:
        """The first number of CUDA's compute capability; 0 where there is none."""
        return self.cuda_capability[0] if self.cuda_capability else 0

    @property
    def warp(self) -> int:
        """Threads that run in step: of AMD's GCN and CDNA 64, of its RDNA and of other GPUs 32."""
        return 64 if (self.compute_capability or "").startswith("gfx9") else 32

    @property
    def formats(self) -> tuple[str, ...]:
        """The number formats this device calculates in, widest first."""
        return tuple(math for math in FORMATS if math in self.matrix_peak or math in self.vector_peak)

    @property
    def tensor_clock(self) -> float:
        """The clock in Hz behind the stated matrix peaks."""
        return self.clock.tensor or self.clock.boost

    @property
    def vector_clock(self) -> float:
        """The clock in Hz behind the stated vector peaks."""
        return self.clock.vector or self.clock.boost

    @property
    def last_cache(self) -> float:
        """Bytes of the last level of cache before DRAM."""
        return max(self.l2_capacity, self.last_level_cache or 0.0)

    @property
    def offered(self) -> bool:
        """Whether it is among the devices to choose from where nobody names one: no draft, no package of several."""
        return not (self.draft or self.caution)

    @property
    def own_price_usd(self) -> float | None:
        """Its launch price; of a board that several share, its part. None where none is stated."""
        return None if self.launch_price_usd is None else self.launch_price_usd / self.devices_per_board

    @property
    def caution(self) -> str:
        """What is wrong with a step on it alone; "" where PyTorch sees it as one device."""
        if self.enumerated_as == 1:
            return ""
        return f"{self.name}: PyTorch sees {self.enumerated_as} devices in it, and a step runs on one: predict that one"

    def peak(self, math: str) -> float:
        """FLOP/s of the faster of matrix and vector units in format `math`. Raises FormatError without either."""
        peaks = [table[math] for table in (self.matrix_peak, self.vector_peak) if math in table]
        if not peaks:
            raise FormatError(f"{self.name} has no {math} arithmetic; it has {', '.join(self.formats)}")
        return max(peaks)

    def ridge(self, math: str) -> float:
        """FLOP/byte of DRAM traffic above which `math` arithmetic is limited by its peak. Raises FormatError."""
        return self.peak(math) / self.dram.bandwidth

    @property
    def title(self) -> str:
        """The display name, or the name where there is none."""
        return self.display_name or self.name

    @property
    def short_title(self) -> str:
        """The title for figures and tables, without "NVIDIA"."""
        return self.title.removeprefix("NVIDIA ")

    def _repr_html_(self) -> str:
        title = f"{self.name}: {self.title} ({self.vendor}, {self.architecture})"
        draft = [f"draft: {self.draft_reason}"] if self.draft else []
        rows = notebook.table(["", "datasheet", "ridge"], device_rows(self))
        return notebook.block(title, notebook.paragraphs(draft), rows)

    def accumulations(self, math: str) -> Mapping[str, float]:
        """Dense FLOP/s of the matrix units in format `math`, by the format they accumulate in; empty without units.

        NVIDIA's units multiply fp16 and fp8 with fp16 accumulation too, at the same rate where no other is stated.
        """
        if math not in self.matrix_peak:
            return {}
        wide = {"int8": "int32", "fp64": "fp64"}.get(math, "fp32")
        found = {wide: self.matrix_peak[math]}
        if math in self.matrix_peak_fp16_accumulate:
            found["fp16"] = self.matrix_peak_fp16_accumulate[math]
        elif math == "fp16" and self.vendor == "NVIDIA":
            found["fp16"] = self.matrix_peak[math]
        return found

    def support(self, math: str) -> str:
        """How the device computes in `math`: matrix, vector, unpublished, emulated, absent, or "" for not stated."""
        if math in self.matrix_peak:
            return "matrix"
        if math in self.vector_peak:
            return "vector"
        tables = {"unpublished": self.unpublished, "emulated": self.emulated, "absent": self.absent}
        return next((word for word, table in tables.items() if math in table), "")

    def replace(self, **changes: Any) -> Self:
        """A what-if: a copy with some fields changed, and what is made of them changed in proportion.

        A mapping changes only its own keys of a nested record, `dram={"bandwidth": "6.7 TB/s"}`. Peaks follow SMs,
        lanes and clocks, and bandwidth follows its pins, by the rules of `derive`; a number that is given
        stays as given. Raises pydantic's ValidationError (a ValueError) for an unknown field or an impossible value.

        >>> a = Device(name="a", vendor="V", architecture="A", sm_count=2, lanes_per_sm=64, clock=Clock(boost=1e9),
        ...            dram=Memory(capacity=1e9, bandwidth=1e9), l2_capacity=1e6, vector_peak={"fp32": 256e9})
        >>> a.replace(sm_count=1).vector_peak
        {'fp32': 128000000000.0}
        """
        whole = {name: self._merged(name, change) for name, change in changes.items()}
        return super().replace(**{**whole, **derive(self, super().replace(**whole), changes)})

    def _merged(self, name: str, change: Any) -> Any:
        """The nested record `name` with the keys of the mapping `change` put in; anything else as it is."""
        now = getattr(self, name, None)
        if not isinstance(now, Record) or not isinstance(change, Mapping):
            return change
        return {**{key: getattr(now, key) for key in type(now).model_fields}, **change}


def device_rows(device: Device) -> Iterator[tuple[str, str, str]]:
    """Name, value and ridge (FLOP/byte; "" where there is none) of every number."""
    for math in FORMATS:
        peaks = {f"matrix, accumulates in {format}": peak for format, peak in device.accumulations(math).items()}
        peaks |= {"vector": device.vector_peak[math]} if math in device.vector_peak else {}
        for unit, peak in peaks.items():
            ridge = format_quantity(peak / device.dram.bandwidth, "flop/byte")
            yield f"{math} {unit}", format_quantity(peak, "flop/s"), ridge
        if device.support(math) in ("unpublished", "emulated", "absent"):
            yield math, device.support(math), ""
    yield from ((label, value, "") for label, value in _facts(device) if value is not None)


def _facts(device: Device) -> Iterator[tuple[str, str | None]]:
    """Name and value of every number but the peaks; None for what is not stated."""

    def told(value: float | None, unit: str) -> str | None:
        return None if value is None else format_bytes(value) if unit == "byte" else format_quantity(value, unit)

    dram, clock, link, pcie = device.dram, device.clock, device.interconnect, device.pcie
    unit = "SM" if device.kind == "gpu" else "core"
    yield f"memory {dram.type or ''}", told(dram.bandwidth, "byte/s")
    yield "  capacity", told(dram.capacity, "byte")
    yield "L2", told(device.l2_capacity, "byte")
    yield "last-level cache", told(device.last_level_cache, "byte")
    yield f"L1 per {unit}", told(device.l1_capacity_per_sm, "byte")
    yield f"shared memory per {unit}", told(device.shared_memory_per_sm, "byte")
    yield "  of one block", told(device.shared_memory_per_block, "byte")
    yield f"{unit}s", f"{device.sm_count} × {device.lanes_per_sm} lanes"
    yield "  base clock", told(clock.base, "Hz")
    yield "  boost clock", told(clock.boost, "Hz")
    yield "  matrix clock", told(clock.tensor, "Hz")
    yield "  vector clock", told(clock.vector, "Hz")
    if pcie is not None:
        yield f"PCIe {pcie.generation} x{pcie.lanes}, one direction", told(pcie.bandwidth_per_direction, "byte/s")
    if link is not None:
        yield f"{link.kind}, one direction", said(link.bandwidth_per_direction, "byte/s")
    shared = f", shared by {device.devices_per_board} devices" if device.devices_per_board > 1 else ""
    yield f"board power{shared}", told(device.board_power, "W")
    yield f"launch price{shared}", None if device.launch_price_usd is None else f"${device.launch_price_usd}"
    yield "launched", None if device.launch_date is None else device.launch_date.isoformat()
    yield "process", device.process_node


def derive(old: Device, new: Device, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that follow from how `new` differs from `old`, without those that `changes` gave."""
    sms = new.sm_count / old.sm_count
    lanes = new.lanes_per_sm / old.lanes_per_sm
    vector = sms * lanes * new.vector_clock / old.vector_clock
    matrix = sms * new.tensor_clock / old.tensor_clock
    double = sms * new.clock.boost / old.clock.boost
    found: dict[str, Any] = {}
    for table in ("matrix_peak", "matrix_peak_fp16_accumulate"):
        found[table] = _scaled(getattr(old, table), lambda math: double if math == "fp64" else matrix)
    found["vector_peak"] = _scaled(old.vector_peak, lambda _: vector)
    if old.tensor_cores is not None:
        found["tensor_cores"] = max(1, round(old.tensor_cores * sms))
    given = changes.get("dram")
    if isinstance(given, Mapping):
        found["dram"] = _memory(old, new, given)
    # A whole dram given as a record states its bandwidth; a mapping is completed here.
    return {name: value for name, value in found.items() if name == "dram" or name not in changes}


def _scaled(peaks: Mapping[str, float], factor: Any) -> dict[str, float]:
    return {math: _times(peak, factor(math)) for math, peak in peaks.items()}


def _memory(old: Device, new: Device, given: Mapping[str, Any]) -> Any:
    """The new memory, with its bandwidth or its pin rate following the other."""
    bus = _ratio(old.dram.bus_width, new.dram.bus_width)
    pins = _ratio(old.dram.pin_rate, new.dram.pin_rate)
    if "bandwidth" not in given:
        return new.dram.replace(bandwidth=_times(new.dram.bandwidth, bus * pins))
    if "pin_rate" in given or new.dram.pin_rate is None:
        return new.dram
    return new.dram.replace(pin_rate=_times(new.dram.pin_rate, new.dram.bandwidth / old.dram.bandwidth / bus))


def _ratio(old: float | None, new: float | None) -> float:
    return 1.0 if old is None or new is None else new / old


def _times(value: float, factor: float) -> float:
    """The product to six digits, as a file would write it; the very value where nothing changes."""
    return value if factor == 1 else float(f"{value * factor:.6g}")


# Which number formats a device multiplies, and on which unit.


def vector_math(math: Math) -> Math:
    """The arithmetic that CUDA cores do for a format: fp64 for itself, fp32 for all others."""
    return Math.FP64 if math is Math.FP64 else Math.FP32


def tensor_core_peak(device: Device, math: Math) -> float | None:
    """FLOP/s of the tensor core by the datasheet, where it multiplies the format; tf32 is fp32 where it has that."""
    stands_in = device.matrix_peak.get(Math.FP32.value) if math is Math.TF32 else None
    return device.matrix_peak.get(math.value, stands_in)


def on_tensor_core(device: Device, math: Math) -> bool:
    """Whether a tensor core multiplies the format."""
    return tensor_core_peak(device, math) is not None


def has_dot_products(device: Device) -> bool:
    """Whether lanes sum products of fp16 pairs in fp32, as AMD's with int8 do; others sum in fp16, unlike PyTorch."""
    peaks = device.vector_peak
    half, single = peaks.get(Math.FP16.value, 0.0), peaks.get(Math.FP32.value, 0.0)
    return Math.INT8.value in peaks and half > single > 0
