"""A GPU or CPU as its datasheet describes it: how many units, how fast, how much memory, and whose numbers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rooflinekit.errors import FormatError
from rooflinekit.hardware import variation
from rooflinekit.hardware.fields import (
    Choice,
    Count,
    Frozen,
    FrozenMapping,
    Line,
    Lines,
    Quantity,
    Record,
    Text,
)

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
        array = self.l1_capacity_per_sm if self._one_array else None
        if per_sm is not None and array is not None and per_sm > array:
            raise ValueError("shared_memory_per_sm: expected no more than l1_capacity_per_sm, the array that holds it")
        if max(self.l2_capacity, self.last_level_cache or 0) > self.dram.capacity:
            raise ValueError("l2_capacity, last_level_cache: expected no more than the memory behind them")
        if self.draft != (self.draft_reason is not None):
            raise ValueError("draft_reason: expected a reason beside 'draft: true', and none without it")
        return self

    @property
    def _one_array(self) -> bool:
        """Whether L1 and shared memory are one array: in NVIDIA's GPUs since Volta."""
        capability = (self.compute_capability or "").partition(".")[0]
        return self.vendor == "NVIDIA" and capability.isdecimal() and int(capability) >= 7

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
    def caution(self) -> str:
        """What is wrong with a step on it alone; "" where PyTorch sees it as one device."""
        if self.enumerated_as == 1:
            return ""
        return f"{self.name}: PyTorch sees {self.enumerated_as} devices in it, and a step runs on one: predict that one"

    def peak(self, math: str) -> float:
        """FLOP/s of the faster of the matrix and the vector units in format `math`.

        Raises FormatError when the device has no arithmetic in this format.
        """
        peaks = [table[math] for table in (self.matrix_peak, self.vector_peak) if math in table]
        if not peaks:
            raise FormatError(f"{self.name} has no {math} arithmetic; it has {', '.join(self.formats)}")
        return max(peaks)

    def ridge(self, math: str) -> float:
        """FLOP/byte of DRAM traffic above which `math` arithmetic is limited by its peak. Raises FormatError."""
        return self.peak(math) / self.dram.bandwidth

    def _repr_html_(self) -> str:
        from rooflinekit.hardware.device_rows import notebook_table  # which is made of devices

        return notebook_table(self)

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
        lanes and clocks, and bandwidth follows its pins, by the rules of `hardware.variation`; a number that is given
        stays as given. Raises pydantic's ValidationError (a ValueError) for an unknown field or an impossible value.

        >>> a = Device(name="a", vendor="V", architecture="A", sm_count=2, lanes_per_sm=64, clock=Clock(boost=1e9),
        ...            dram=Memory(capacity=1e9, bandwidth=1e9), l2_capacity=1e6, vector_peak={"fp32": 256e9})
        >>> a.replace(sm_count=1).vector_peak
        {'fp32': 128000000000.0}
        """
        whole = {name: self._merged(name, change) for name, change in changes.items()}
        return super().replace(**{**whole, **variation.derive(self, super().replace(**whole), changes)})

    def _merged(self, name: str, change: Any) -> Any:
        """The nested record `name` with the keys of the mapping `change` put in; anything else as it is."""
        now = getattr(self, name, None)
        if not isinstance(now, Record) or not isinstance(change, Mapping):
            return change
        return {**{key: getattr(now, key) for key in type(now).model_fields}, **change}
