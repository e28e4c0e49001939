"""The clock that kernels get: under the board's own limit of watts, under a lower one, or under a clock that is set.

A board that draws more than its limit lowers the clock until it does not, but not below `clock_floor`: a limit below
what it draws there is exceeded. It does so for each kernel as if kernels like it came on and on, for its controller is
quicker than a phase of a step and slower than a kernel. What the board does at its own limit is in the time model
already (`model.power`), so limits below count from there: a kernel at the clock x takes its time at x / (its clock at
the board's own limit). Kernels without products, of which `model.power` says nothing, keep the clock that their watts
leave them: arithmetic and what passes the last-level cache take longer, DRAM's own clock stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rooflinekit.errors import InputError
from rooflinekit.ir.sizes import finite, shown
from rooflinekit.model.energy import Load, PowerLaw, drawn_j, watts
from rooflinekit.model.kernel_batch import Floats, KernelBatch
from rooflinekit.model.machine import Machine
from rooflinekit.model.roofline import Times, Timing
from rooflinekit.units import format_quantity

#: Watts of kernels: of these, at these shares of the full clock, with their places.
Drawn = Callable[[Load, Any, Any], Any]
_SECONDS = ("compute_s", "memory_s", "busy_s", "launch_s")  # of a kernel, what its clock changes
_STEPS = 60  # of the clock that are looked at, each about 4 % below the one before


def limited(machine: Machine, *, power_w: float | None = None, clock: float | None = None) -> Machine:
    """The machine with a limit in watts, or on its clock in Hz.

    Raises InputError for one that the board cannot hold, and where its specification states no power.
    """
    if power_w is None and clock is None:
        return machine
    law = PowerLaw.of(machine)
    if law is None:
        raise InputError(
            f"{machine.name}: its specification states no board_power or no process_node, so what it does under a "
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


def held_back(law: PowerLaw, machine: Machine) -> bool:
    """Whether a board draws more than its own limit where it streams at full clock, and nobody measured how it does.

    So do boards below their chip's usual power (Max-Q, a server's 300 W). Where streams were measured on a GPU, its
    constants have it; where no base clock is stated, how low it may go is not known.
    """
    if machine.device.clock.base is None or "elementwise" in machine.constants.measured:
        return False
    streaming_w = law.idle_w + law.clocks_w + machine.device.dram.bandwidth * (law.dram_j + law.cache_j)
    return streaming_w > law.kept(law.board_w)


def _held(law: PowerLaw, load: Load, machine: Machine, plain: Any) -> Load:
    """Kernels without products at the clock that they keep at the board's own limit.

    Products are as they are, for the time model has what power makes of them. No clock is below the base clock, which
    makers promise at that limit; starts, in which hardly anything is drawn, keep theirs.
    """
    least = min((machine.device.clock.base or 0.0) / machine.clock, 1.0)
    highest = _highest(law, load, lambda some, x, _: watts(law, some.at(x), x), law.kept(law.board_w))
    return replace(load.at(np.where(plain, np.maximum(highest, least), 1.0)), launch_s=load.launch_s)


def _seconds(load: Load, i: int) -> dict[str, Any]:
    return {name: float(getattr(load, name)[i]) for name in _SECONDS}


def _highest(law: PowerLaw, load: Load, drawn: Drawn, limit_w: float) -> Floats:
    """The highest clock at which no more is drawn; the lowest where all draw more. Between two steps it is linear.

    Where the full clock draws no more, as it mostly does, no other is looked at.
    """
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


def under_limits(timings: Sequence[Timing], machine: Machine) -> tuple[Timing, ...]:
    """The kernels' times under the machine's limits; what those add to arithmetic counts as the cause "power"."""
    law = PowerLaw.of(machine)
    if law is None or not timings:
        return tuple(timings)
    held = held_back(law, machine)
    if not held and not machine.is_limited:
        return tuple(timings)
    load = Load.of(timings, machine)
    if held:
        load = _held(law, load, machine, [not t.kernel.cost.gemms for t in timings])
        timings = [replace(timing, **_seconds(load, i)) for i, timing in enumerate(timings)]
        if not machine.is_limited:
            return tuple(timings)
    own, found = clocks(law, load, machine)
    slowed = load.at(found / own)
    return tuple(
        replace(
            timing,
            **_seconds(slowed, i),
            causes_s=_with_power(timing, float(slowed.compute_s[i]) - timing.compute_s),
            unlimited=timing,
        )
        for i, timing in enumerate(timings)
    )


def limited_times(work: KernelBatch, times: Times, machine: Machine) -> tuple[Times, Floats | None]:
    """The times of kernels as columns under the machine's limits, and the watts that each draws beside idling.

    Of `times` no more than the first cause is kept up. None where nothing is known of the machine's power.
    """
    law = PowerLaw.of(machine)
    if law is None:
        return times, None
    load = Load.of_work(work, machine, ideal_s=times.ideal_s, **{name: getattr(times, name) for name in _SECONDS})
    if held_back(law, machine):
        plain = np.bincount(work.products.kernel, minlength=len(work)) == 0
        load = _held(law, load, machine, plain)
        times = replace(times, **{name: getattr(load, name) for name in _SECONDS})
    own, found = clocks(law, load, machine)
    limit_w = law.board_w
    if machine.is_limited:
        slowed = load.at(found / own)
        more_s = slowed.compute_s - load.compute_s
        later = {name: getattr(slowed, name) for name in _SECONDS}
        times = replace(times, **later, causes_s=np.concatenate((times.causes_s[:1] + more_s, times.causes_s[1:])))
        load, limit_w = slowed, machine.power_limit or limit_w
    drawn = sum(drawn_j(law, load, found, limit_w).values(), np.zeros(len(work)))
    return times, drawn / np.maximum(load.total_s, 1e-30)


def _with_power(timing: Timing, more_s: float) -> tuple[float, ...]:
    first, *others = timing.causes_s or (0.0,)
    return (first + more_s, *others)
