"""Joules of kernels: what a board draws while they run.

While a kernel runs at the share x of the full clock, its device draws

    idle        stand_by · board's power + interface · DRAM bandwidth    all the time, whatever runs
    clocks      sm_energy · SMs · clock · x · U²                         while SMs issue or fetch
    cache       cache_energy · U²                                        a byte through the last-level cache
    DRAM        dram_energy                                              a byte, by the kind of memory
    arithmetic  energy of `machine` without idling's share · U²          a FLOP, by format and unit

where switching falls with the process as in `machine`, and U = max(voltage_floor, 1 - voltage_slope · (1 - x)) is the
voltage, of the highest: chips take what the clock needs. The energy of a FLOP in `machine` is all that a board at its
limit draws; what that board draws idling is a share of it. DRAM has a clock and a voltage of its own. Which
clock kernels get is told below. Host, fans and power supply are not in these numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rooflinekit.errors import InputError
from rooflinekit.ir.sizes import finite, shown
from rooflinekit.timing.kernel_batch import Columns, Floats, KernelBatch
from rooflinekit.timing.machine import Machine, board_share, flop_energy, process, simt_energy
from rooflinekit.timing.memory_system import combined, passed_bytes
from rooflinekit.timing.roofline import Times
from rooflinekit.units import format_quantity

#: What a kernel's energy goes to, beside the idling board.
PARTS = ("clocks", "cache", "dram", "arithmetic")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """The law by which a device draws power, in watts and joules."""

    board_w: float  # its own limit
    held: float  # mean watts under a limit, of the limit
    idle_w: float
    clocks_w: float  # of all SMs, at the full clock
    cache_j: float  # a byte, at the full clock's voltage
    dram_j: float  # a byte
    voltage_floor: float
    voltage_slope: float
    clock_floor: float

    @classmethod
    def of(cls, machine: Machine) -> PowerLaw | None:
        """The law of a machine; None where its specification states no power or no process, or it is no GPU."""
        device, power = machine.device, machine.constants.power
        board_w = board_share(device)
        if power is None or board_w is None or device.process_nm is None or device.kind != "gpu":
            return None
        value = {name: constant.value for name, constant in power.constants.items()}.__getitem__
        kind = "hbm" if (device.dram.type or "").upper().startswith("HBM") else "gddr"
        size = process(device, machine.values)
        idle_w = value("stand_by") * board_w + value(f"{kind}_interface") * device.dram.bandwidth
        return cls(
            board_w=board_w,
            held=value("held_share"),
            idle_w=idle_w,
            clocks_w=value("sm_energy") * size * device.sm_count * machine.clock,
            cache_j=value("cache_energy") * size,
            dram_j=value(f"{kind}_energy"),
            voltage_floor=value("voltage_floor"),
            voltage_slope=value("voltage_slope"),
            clock_floor=value("clock_floor"),
        )

    def kept(self, limit_w: float) -> float:
        """The mean at which the controller keeps a board under a limit; never as low as idling."""
        return max(self.held * limit_w, 1.001 * self.idle_w)

    def switching(self, x: Any) -> Any:
        """U² at a share of the full clock."""
        return np.maximum(self.voltage_floor, 1 - self.voltage_slope * (1 - x)) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Columns):
    """Kernels as columns: their seconds, and what they move and compute."""

    compute_s: Floats
    memory_s: Floats
    busy_s: Floats
    launch_s: Floats
    active_s: Floats  # in which SMs issue or fetch, and do not wait for an instruction before
    clocked_s: Floats  # of `launch_s`, what takes cycles
    passing_s: Floats  # of traffic through the last-level cache at the full clock
    dram_bytes: Floats
    cache_bytes: Floats
    arithmetic_j: Floats  # beside idling, at the full clock
    overlap: float

    @classmethod
    def of(cls, work: KernelBatch, machine: Machine, times: Any) -> Load:
        """The load of kernels; times: what has columns of their ideal_s and of SECONDS."""
        law = PowerLaw.of(machine)
        share = 1.0 if law is None else 1 - law.idle_w / law.board_w
        dram, cache = passed_bytes(work, times.memory_s, machine) if len(work) else (np.zeros(0), np.zeros(0))
        # special functions count as the arithmetic for which the CUDA cores have time
        lanes_j, device = simt_energy(machine.device, machine.values), machine.device
        flop = work.vector_flop + device.lanes_per_sm / device.exponentials_per_sm * work.special_flop
        return cls(
            **{name: getattr(times, name) for name in SECONDS},
            active_s=np.minimum(times.ideal_s + times.memory_s, times.busy_s),
            clocked_s=np.maximum(times.launch_s - work.starts * machine.values["kernel_gap"], 0.0),
            passing_s=np.minimum(cache / machine.l2_bandwidth, times.memory_s),
            dram_bytes=dram,
            cache_bytes=cache,
            arithmetic_j=share * (_products_j(work, machine) + work.links * lanes_j * flop),
            overlap=machine.values["overlap"],
        )

    @property
    def total_s(self) -> Floats:
        """Time on the device."""
        return self.launch_s + self.busy_s

    @property
    def seconds(self) -> dict[str, Floats]:
        """The seconds that change with the clock, by name."""
        return {name: getattr(self, name) for name in SECONDS}

    def at(self, r: Any) -> Load:
        """The load at this share of the full clock: a number each, or [..., kernels].

        Arithmetic and the clocked part of the start take 1/r of the time; traffic takes no less than the last-level
        cache, which has the SMs' clock, needs to pass it.
        """
        compute_s, memory_s = self.compute_s / r, np.maximum(self.memory_s, self.passing_s / r)
        slowed, full = (
            combined(compute_s, memory_s, self.overlap),
            combined(self.compute_s, self.memory_s, self.overlap),
        )
        busy_s = self.busy_s * slowed / np.maximum(full, 1e-30)
        slower = np.divide(busy_s, self.busy_s, out=np.ones_like(busy_s), where=self.busy_s > 0)
        return replace(
            self,
            compute_s=compute_s,
            memory_s=memory_s,
            active_s=self.active_s * slower,
            busy_s=busy_s,
            launch_s=self.launch_s + self.clocked_s * (1 / r - 1),
        )


def _products_j(work: KernelBatch, machine: Machine) -> Floats:
    """Joules of each kernel's products, as timing.machine has them: with what idling draws."""
    p, device, values = work.products, machine.device, machine.values
    products = np.zeros(len(p.flop))
    key, units = work.on_units()
    for i, (math, wanted) in units.items():
        on_tensor_core = machine.matrix_rate(math, tensor_core=wanted).on_tensor_core
        products[key == i] = flop_energy(device, values, math, tensor_core=on_tensor_core)
    return work.links * work.per_kernel(p.flop * products)


def joules(law: PowerLaw, load: Load, x: Any) -> dict[str, Any]:
    """What each kernel draws by part, without the idling board, at the share x of the full clock."""
    switching = law.switching(x)
    return {
        "clocks": switching * x * law.clocks_w * load.active_s,
        "cache": switching * law.cache_j * load.cache_bytes,
        "dram": law.dram_j * load.dram_bytes,
        "arithmetic": switching * load.arithmetic_j,
    }


def watts(law: PowerLaw, load: Load, x: Any) -> Any:
    """Mean watts of each kernel, those of the idling board included."""
    return law.idle_w + sum(joules(law, load, x).values()) / np.maximum(load.total_s, 1e-30)


def drawn_j(law: PowerLaw, load: Load, x: Floats, limit_w: float) -> dict[str, Floats]:
    """Joules as of `joules`, scaled down to the limit where some clock keeps to it."""
    found = {name: np.broadcast_to(j, load.total_s.shape) for name, j in joules(law, load, x).items()}
    whole = sum(found.values(), np.zeros(load.total_s.shape))
    holds = (x > law.clock_floor * 1.001) | (limit_w >= law.board_w)
    most = np.where(holds, (law.kept(limit_w) - law.idle_w) * load.total_s, np.inf)
    share = np.minimum(1.0, np.divide(most, whole, out=np.ones_like(whole), where=whole > 0))
    return {name: share * j for name, j in found.items()}


# The clock that kernels get: under the board's own limit of watts, under a lower one, or under a clock that is set.
#
# A board lowers the clock until it draws no more than its limit, but not below `clock_floor`, for each kernel as if
# kernels like it came on and on. What it does at its own limit is in the time model already (`timing.machine`), so
# limits below count from there; kernels without products, of which that says nothing, keep the clock that their watts
# leave them, and DRAM its own.


#: Watts of kernels: of these, at these shares of the full clock, with their places.
Drawn = Callable[[Load, Any, Any], Any]
SECONDS = ("compute_s", "memory_s", "busy_s", "launch_s")  # of a kernel, what its clock changes
_STEPS = 60  # of the clock that are looked at, each about 4 % below the one before


def limited(machine: Machine, *, power_w: float | None = None, clock: float | None = None) -> Machine:
    """The machine with a limit in watts or Hz. Raises InputError for one it cannot hold, or if no power is stated."""
    if power_w is None and clock is None:
        return machine
    law = PowerLaw.of(machine)
    if law is None:
        raise InputError(
            f"{machine.name}: its specification states no board_power or no process_nm, so what it does under a "
            "limit is not known: add them, or leave the limit out"
        )
    least = law.clock_floor * machine.clock
    for what, given, low, high, unit in (
        ("power limit", power_w, law.idle_w, law.board_w, "W"),
        ("clock", clock, least, machine.clock, "Hz"),
    ):
        if given is not None and not (finite(given) and low < given * (1 + 1e-9) <= high * (1 + 1e-6)):
            said = format_quantity(given, unit) if finite(given) else f"{shown(given)} {unit}"
            between = f"{format_quantity(low, unit)} (idle)" if unit == "W" else format_quantity(low, unit)
            raise InputError(
                f"{machine.name}: {what}: expected more than {between}, and up to {format_quantity(high, unit)}, the "
                f"board's own; got {said}"
            )
    return replace(machine, power_limit=power_w, clock_limit=clock)


def own_clocks(law: PowerLaw, load: Load) -> Floats:
    """The share of the full clock at which each kernel keeps to the board's own limit, in the time that it takes."""
    return _highest(law, load, lambda some, x, _: watts(law, some, x), law.kept(law.board_w))


def clocks(law: PowerLaw, load: Load, machine: Machine) -> tuple[Floats, Floats]:
    """The share of the full clock of each kernel at the board's own limit, and under the machine's."""
    own = own_clocks(law, load)
    found = own
    if machine.power_limit is not None and machine.power_limit < law.board_w:

        def drawn(some: Load, x: Any, which: Any) -> Any:
            return watts(law, some.at(np.minimum(x / own[which], 1.0)), x)

        found = np.minimum(_highest(law, load, drawn, law.kept(machine.power_limit)), own)
    if machine.clock_limit is not None:
        found = np.minimum(found, machine.clock_limit / machine.clock)
    return own, found


def exceeds_own_limit(law: PowerLaw, machine: Machine) -> bool:
    """Whether a board draws more than its own limit where it streams at full clock, and nobody measured how it does.

    So do boards below their chip's usual power (Max-Q, a server's 300 W). Where streams were measured on a GPU, its
    constants have it; where no base clock is stated, how low it may go is not known.
    """
    if machine.device.clock.base is None or "elementwise" in machine.constants.measured:
        return False
    streaming_w = law.idle_w + law.clocks_w + machine.device.dram.bandwidth * (law.dram_j + law.cache_j)
    return streaming_w > law.kept(law.board_w)


def _throttled(law: PowerLaw, load: Load, machine: Machine, plain: Any) -> Load:
    """Kernels without products at the clock that they keep at the board's own limit, none below its base clock."""
    least = min((machine.device.clock.base or 0.0) / machine.clock, 1.0)
    highest = _highest(law, load, lambda some, x, _: watts(law, some.at(x), x), law.kept(law.board_w))
    return replace(load.at(np.where(plain, np.maximum(highest, least), 1.0)), launch_s=load.launch_s)


def _highest(law: PowerLaw, load: Load, drawn: Drawn, limit_w: float) -> Floats:
    """The highest clock at which no more is drawn, or the lowest; between two steps it is linear."""
    found = np.ones_like(load.total_s)
    over = np.flatnonzero(drawn(load, np.ones(1), np.arange(found.size)) > limit_w)
    if not over.size:
        return found
    shares = np.geomspace(1.0, law.clock_floor, _STEPS)
    powers = drawn(load.where(over), shares[:, None], over)
    first = np.minimum((powers > limit_w).cumprod(axis=0).sum(axis=0), _STEPS - 1)
    before = np.maximum(first - 1, 0)
    every = np.arange(over.size)
    above, gap = powers[before, every], powers[before, every] - powers[first, every]
    part = np.divide(above - limit_w, gap, out=np.ones_like(gap), where=gap > 0)
    found[over] = shares[before] + np.clip(part, 0.0, 1.0) * (shares[first] - shares[before])
    return found


def limited_times(work: KernelBatch, times: Times, machine: Machine) -> tuple[Times, Times]:
    """Times at the board's own limit, and under the machine's: what that adds to arithmetic is the cause "power"."""
    law = PowerLaw.of(machine)
    if law is None or not len(work) or not (machine.is_limited or exceeds_own_limit(law, machine)):
        return times, times
    load = Load.of(work, machine, times)
    if exceeds_own_limit(law, machine):
        load = _throttled(law, load, machine, ~work.multiplies)
        times = replace(times, **load.seconds)
    if not machine.is_limited:
        return times, times
    own, found = clocks(law, load, machine)
    slowed = load.at(found / own)
    causes_s = np.concatenate((times.causes_s[:1] + slowed.compute_s - load.compute_s, times.causes_s[1:]))
    return times, replace(times, **slowed.seconds, causes_s=causes_s)


def drawn_under_limit(law: PowerLaw, load: Load, machine: Machine) -> dict[str, Floats]:
    """Joules of kernels by part under the machine's limits, without idling. load: at the board's own clock."""
    own, clock = clocks(law, load, machine)
    limit_w = law.board_w if machine.power_limit is None else machine.power_limit
    return drawn_j(law, load.at(clock / own) if machine.is_limited else load, clock, limit_w)
