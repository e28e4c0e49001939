"""Joules of kernels: what a board draws while they run.

While a kernel runs at the share x of the full clock, its device draws

    idle        stand_by · board's power + interface · DRAM bandwidth    all the time, whatever runs
    clocks      sm_energy · SMs · clock · x · U²                         while SMs issue or fetch
    cache       cache_energy · U²                                        a byte through the last-level cache
    DRAM        dram_energy                                              a byte, by the kind of memory
    arithmetic  energy of model.power · U²                               a FLOP, by format and unit

where switching falls with the process as in `model.power`, and U = max(voltage_floor, 1 - voltage_slope · (1 - x)) is
the voltage, of the highest: chips take what the clock needs. Products draw no less than model.power has it, idle_share
of the board's power + their energy a FLOP: those that it holds at the board's limit draw that limit. DRAM has a clock
and a voltage of its own. Which clock kernels get is in `model.clocks`. Host, fans and power supply are not in these
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rooflinekit.model.columns import work_of
from rooflinekit.model.kernel_batch import Floats, KernelBatch
from rooflinekit.model.machine import Machine
from rooflinekit.model.memory_system import passed_bytes
from rooflinekit.model.power import board_share, flop_energy, node_nm, process, simt_energy

if TYPE_CHECKING:
    from rooflinekit.model.roofline import Timing

#: What a kernel's energy goes to, beside the idling board.
PARTS = ("clocks", "cache", "dram", "arithmetic")
_SPECIAL_FLOP = 4.0  # fp32 FLOP that a special function costs takes: its unit has a quarter of the CUDA cores' rate


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """What a device draws, in watts and joules."""

    board_w: float  # its own limit
    held: float  # mean watts under a limit, of the limit
    idle_w: float
    held_w: float  # beside products that hold the board at its limit, as model.power has it, less `idle_w`
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
        if power is None or board_w is None or node_nm(device) is None or device.kind != "gpu":
            return None
        kind = "hbm" if (device.dram.type or "").upper().startswith("HBM") else "gddr"
        size = process(device, machine.values)
        idle_w = power.value("stand_by") * board_w + power.value(f"{kind}_interface") * device.dram.bandwidth
        return cls(
            board_w=board_w,
            held=power.value("held_share"),
            idle_w=idle_w,
            held_w=machine.values["idle_share"] * board_w - idle_w,
            clocks_w=power.value("sm_energy") * size * device.sm_count * machine.clock,
            cache_j=power.value("cache_energy") * size,
            dram_j=power.value(f"{kind}_energy"),
            voltage_floor=power.value("voltage_floor"),
            voltage_slope=power.value("voltage_slope"),
            clock_floor=power.value("clock_floor"),
        )

    def kept(self, limit_w: float) -> float:
        """The mean at which the controller keeps a board under a limit; never as low as idling."""
        return max(self.held * limit_w, 1.001 * self.idle_w)

    def switching(self, x: Any) -> Any:
        """U² at a share of the full clock."""
        return np.maximum(self.voltage_floor, 1 - self.voltage_slope * (1 - x)) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
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
    arithmetic_j: Floats  # as model.power has it
    products_j: Floats  # of it that of products
    overlap: float

    @classmethod
    def of(cls, timings: Sequence[Timing], machine: Machine) -> Load:
        """The load of these kernels, at the clock that the board gives them by itself."""
        own = [timing.unlimited or timing for timing in timings]
        columns = {
            name: np.array([getattr(timing, name) for timing in own], dtype=float)
            for name in ("ideal_s", "compute_s", "memory_s", "busy_s", "launch_s")
        }
        return cls.of_work(work_of([timing.kernel for timing in own]), machine, **columns)

    @classmethod
    def of_work(
        cls, work: KernelBatch, machine: Machine, *, ideal_s: Floats, compute_s: Floats, memory_s: Floats,
        busy_s: Floats, launch_s: Floats,
    ) -> Load:  # fmt: skip
        """The load of kernels as columns, with their times."""
        products_j = _products_j(work, machine)
        dram, cache = passed_bytes(work, memory_s, machine) if len(work) else (np.zeros(0), np.zeros(0))
        return cls(
            compute_s=compute_s,
            memory_s=memory_s,
            busy_s=busy_s,
            launch_s=launch_s,
            active_s=np.minimum(ideal_s + memory_s, busy_s),
            clocked_s=np.maximum(launch_s - work.starts * machine.values["kernel_gap"], 0.0),
            passing_s=np.minimum(cache / machine.l2_bandwidth, memory_s),
            dram_bytes=dram,
            cache_bytes=cache,
            arithmetic_j=products_j + _cuda_cores_j(work, machine),
            products_j=products_j,
            overlap=machine.values["overlap"],
        )

    @property
    def total_s(self) -> Floats:
        """Time on the device."""
        return self.launch_s + self.busy_s

    def where(self, chosen: Any) -> Load:
        """Some of the kernels."""
        columns = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name != "overlap"}
        return replace(self, **columns)

    def at(self, r: Any) -> Load:
        """The same at this share of its clock: a number each, or [..., kernels].

        Arithmetic and the clocked part of the start take 1/r of the time; traffic takes no less than the last-level
        cache, which has the SMs' clock, needs to pass it.
        """
        compute_s, memory_s = self.compute_s / r, np.maximum(self.memory_s, self.passing_s / r)
        busy_s = self.busy_s * self._norm(compute_s, memory_s) / self._norm(self.compute_s, self.memory_s)
        slower = np.divide(busy_s, self.busy_s, out=np.ones_like(busy_s), where=self.busy_s > 0)
        return replace(
            self,
            compute_s=compute_s,
            memory_s=memory_s,
            active_s=self.active_s * slower,
            busy_s=busy_s,
            launch_s=self.launch_s + self.clocked_s * (1 / r - 1),
        )

    def _norm(self, compute_s: Any, memory_s: Any) -> Any:
        high = np.maximum(np.maximum(compute_s, memory_s), 1e-30)
        low = np.minimum(compute_s, memory_s)
        return high * (1 + (low / high) ** self.overlap) ** (1 / self.overlap)


def _products_j(work: KernelBatch, machine: Machine) -> Floats:
    """Joules of each kernel's products, as model.power has them."""
    p, device, values = work.products, machine.device, machine.values
    products = np.zeros(len(p.flop))
    key = 2 * work.arithmetic[p.kernel] + work.tensor_core[p.kernel]
    for i in dict.fromkeys(key.tolist()):
        math, wanted = work.math[i // 2], bool(i % 2)
        on_tensor_core = machine.matrix_rate(math, tensor_core=wanted).on_tensor_core
        products[key == i] = flop_energy(device, values, math, tensor_core=on_tensor_core)
    found: Floats = np.bincount(p.kernel, weights=p.flop * products, minlength=len(work)).astype(float)
    return work.links * found


def _cuda_cores_j(work: KernelBatch, machine: Machine) -> Floats:
    """Joules of other arithmetic and special functions."""
    flop = work.vector_flop + _SPECIAL_FLOP * work.special_flop
    found: Floats = work.links * simt_energy(machine.device, machine.values) * flop
    return found


def joules(law: PowerLaw, load: Load, x: Any) -> dict[str, Any]:
    """What each kernel draws by part, without the idling board, at the share x of the full clock."""
    switching = law.switching(x)
    found = {
        "clocks": switching * x * law.clocks_w * load.active_s,
        "cache": switching * law.cache_j * load.cache_bytes,
        "dram": law.dram_j * load.dram_bytes,
    }
    beside = sum(found.values()) - switching * law.held_w * load.total_s
    found["arithmetic"] = np.maximum(switching * load.arithmetic_j, switching * load.products_j - beside)
    return found


def watts(law: PowerLaw, load: Load, x: Any) -> Any:
    """Mean watts of each kernel, those of the idling board included."""
    return law.idle_w + sum(joules(law, load, x).values()) / np.maximum(load.total_s, 1e-30)


def drawn_j(law: PowerLaw, load: Load, x: Floats, limit_w: float) -> dict[str, Floats]:
    """As `joules`, in proportion less where that were more than the limit: the controller sees what the law does not.

    Where even the lowest clock draws more, a limit below the board's own does not hold, and the joules stand.
    """
    found = {name: np.broadcast_to(j, load.total_s.shape) for name, j in joules(law, load, x).items()}
    whole = sum(found.values(), np.zeros(load.total_s.shape))
    holds = (x > law.clock_floor * 1.001) | (limit_w >= law.board_w)
    most = np.where(holds, (law.kept(limit_w) - law.idle_w) * load.total_s, np.inf)
    share = np.minimum(1.0, np.divide(most, whole, out=np.ones_like(whole), where=whole > 0))
    return {name: share * j for name, j in found.items()}
