"""What a board draws: parts by hand, and the laws that they obey."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from round_numbers import constants

from rooflinekit.calibrate.fitting.constants import ENERGY_CONSTANTS
from rooflinekit.calibrate.fitting.files import constants_for, load_power
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import devices, load_device
from rooflinekit.ir.op import Math
from rooflinekit.published.stated import Constant
from rooflinekit.timing.energy import (
    PARTS,
    Load,
    PowerLaw,
    clocks,
    drawn_j,
    exceeds_own_limit,
    joules,
    limited,
    limited_times,
    own_clocks,
    watts,
)
from rooflinekit.timing.kernel_batch import KernelBatch, Products
from rooflinekit.timing.machine import Machine, PowerConstants
from rooflinekit.timing.roofline import time_work

#: A law of round numbers: 100 W idle of 300, 50 W of clocks, 10 pJ a byte of cache, 40 of DRAM; U falls with the clock.
LAW = PowerLaw(
    board_w=300.0, held=1.0, idle_w=100.0, clocks_w=50.0, cache_j=10e-12, dram_j=40e-12,
    voltage_floor=0.6, voltage_slope=0.8, clock_floor=0.1,
)  # fmt: skip


def load(
    *, compute_s: float = 0.0, memory_s: float = 0.0, launch_s: float = 0.0, moved: float = 0.0, flop_j: float = 0.0
) -> Load:  # fmt: skip
    """A kernel whose shorter part is hidden whole."""
    column = {name: np.array([value]) for name, value in (
        ("compute_s", compute_s), ("memory_s", memory_s), ("busy_s", max(compute_s, memory_s)), ("launch_s", launch_s),
        ("active_s", max(compute_s, memory_s)), ("clocked_s", launch_s), ("passing_s", memory_s / 2),
        ("dram_bytes", moved), ("cache_bytes", moved), ("arithmetic_j", flop_j),
    )}  # fmt: skip
    return Load(**column, overlap=1000.0)


def test_parts_by_hand() -> None:
    # 1 ms of 1 GB through DRAM and cache, beside arithmetic of 30 mJ by model.power: 50 W·1 ms, 10 mJ, 40 mJ, 30 mJ
    kernel = load(memory_s=1e-3, moved=1e9, flop_j=30e-3)
    found = joules(LAW, kernel, 1.0)
    assert {name: float(found[name][0]) for name in PARTS} == pytest.approx(
        {"clocks": 0.05, "cache": 0.01, "dram": 0.04, "arithmetic": 0.03}
    )
    assert watts(LAW, kernel, 1.0)[0] == pytest.approx(100 + 130)  # 130 mJ in 1 ms, and idling
    # at half the clock U is 1 - 0.8·0.5 = 0.6, its floor: 0.36 of all that switches, half as many cycles a second
    found = joules(LAW, kernel, 0.5)
    assert {name: float(found[name][0]) for name in PARTS} == pytest.approx(
        {"clocks": 0.009, "cache": 0.0036, "dram": 0.04, "arithmetic": 0.0108}
    )


def test_products_that_hold_the_board_draw_its_limit(machine: Machine) -> None:
    # large products whose operands stay in the cache run at the board's watts over the energy of a FLOP: what that
    # leaves beside idling is theirs, and the controller sees no more than its limit
    law, device = PowerLaw.of(machine), machine.device
    assert law is not None
    work = KernelBatch.of(1, math=Math.BF16, products=Products.of([0], m=16384, n=16384, k=16384))
    times = time_work(work, machine)
    held = Load.of(work, machine, times)
    assert device.board_power is not None
    flop_j = device.board_power / machine.matrix_rate(Math.BF16).limit
    assert held.arithmetic_j[0] == pytest.approx(2 * 16384**3 * flop_j * (1 - law.idle_w / law.board_w))
    assert law.idle_w + held.arithmetic_j[0] / times.total_s[0] == pytest.approx(law.board_w, rel=0.01)


def test_times_at_a_lower_clock() -> None:
    half = load(compute_s=2e-3, memory_s=1e-3, launch_s=1e-4).at(0.5)
    assert half.total_s[0] == pytest.approx(2 * (2e-3 + 1e-4))  # arithmetic and start take cycles
    stream = load(memory_s=1e-3)  # the cache passes it in half of the time that DRAM takes
    assert stream.at(0.5).total_s[0] == pytest.approx(1e-3)
    assert stream.at(0.25).total_s[0] == pytest.approx(2e-3)


def test_the_clock_of_a_limit_by_hand() -> None:
    # 100 W + U²·200 W of arithmetic that takes 1/x: at x U² = (1 - 0.8(1-x))² = (0.2 + 0.8x)², so 100 + 200·x·U²
    law = replace(LAW, clocks_w=0.0)
    kernel = load(compute_s=1.0, flop_j=200.0)
    machine = limited(Machine.of(load_device("nvidia-a40"), constants_for(load_device("nvidia-a40"))), power_w=155.49)
    own, found = clocks(law, kernel, machine)
    assert own[0] == 1.0
    assert found[0] == pytest.approx(0.6, rel=0.02)  # where U is 0.68: 0.6 · 0.68² · 200 = 55.49


def test_no_more_is_drawn_than_the_board_allows() -> None:
    kernel = load(compute_s=1e-3, flop_j=2.0)
    x = own_clocks(LAW, kernel)
    drawn = drawn_j(LAW, kernel, x, LAW.board_w)
    assert sum(drawn.values())[0] / 1e-3 + LAW.idle_w == pytest.approx(LAW.board_w)


@pytest.fixture(scope="module")
def machine() -> Machine:
    device = load_device("nvidia-a40")
    return Machine.of(device, constants_for(device))


def kernels(machine: Machine) -> Load:
    """Products from small to large, beside traffic."""
    sizes = np.array([64.0, 512.0, 4096.0, 4096.0])
    work = KernelBatch.of(
        4, math=Math.BF16, products=Products.of(np.arange(4), m=sizes, n=sizes, k=sizes),
        read_bytes=4 * sizes**2, write_bytes=np.array([1e4, 1e6, 3e7, 3e9]),
    )  # fmt: skip
    return Load.of(work, machine, time_work(work, machine))


@settings(max_examples=30, deadline=None)
@given(st.floats(95, 300), st.floats(1.0, 2.0))
def test_a_higher_limit_is_never_slower(machine: Machine, watts_low: float, more: float) -> None:
    law, each = PowerLaw.of(machine), kernels(machine)
    assert law is not None
    times = []
    for limit in (watts_low, min(watts_low * more, 300.0)):
        own, found = clocks(law, each, limited(machine, power_w=limit))
        slowed = each.at(found / own)
        times.append(slowed.total_s)
        floor = found <= law.clock_floor * 1.001
        assert (watts(law, slowed, found)[~floor] <= limit * 1.01).all()  # or less, by `held`
    assert (times[1] <= times[0] * (1 + 1e-9)).all()
    assert (times[1] >= each.total_s * (1 - 1e-9)).all()


def test_the_boards_own_limit_changes_nothing(machine: Machine) -> None:
    law, each = PowerLaw.of(machine), kernels(machine)
    assert law is not None
    own, found = clocks(law, each, limited(machine, power_w=300.0))
    assert (own == found).all()
    own, found = clocks(law, each, limited(machine, power_w=299.999))
    assert each.at(found / own).total_s == pytest.approx(each.total_s, rel=1e-3)


def test_a_board_below_its_chips_usual_power_streams_no_faster() -> None:
    # rows of 1,024 numbers, traffic, and a product, on one chip with boards of 200 to 2,000 W
    device = load_device("nvidia-rtx-pro-6000-blackwell-max-q")
    work = KernelBatch.of(
        3, math=Math.BF16, products=Products.of(np.array([2]), m=4096, n=4096, k=4096),
        read_bytes=np.array([1e9, 1e9, 6e7]), write_bytes=np.array([1e9, 1e9, 3e7]),
        vector_flop=np.array([3e10, 1e9, 0.0]),
    )  # fmt: skip
    seconds = []
    for board_w in (200.0, 300.0, 600.0, 2000.0):
        board = Machine.of(device.replace(board_power=board_w), constants_for(device))
        free = time_work(work, board)
        _, held = limited_times(work, free, board)
        seconds.append(held.total_s)
        assert (held.total_s >= free.total_s * (1 - 1e-12)).all()
        assert held.total_s[2] == pytest.approx(free.total_s[2], rel=1e-12)  # of products model.power has it
        # 1,035 MHz are promised of 2,280: no clock is lower
        assert (held.compute_s <= free.compute_s * (2280 / 1035) * (1 + 1e-9)).all()
    assert (np.diff(seconds, axis=0) <= 1e-12).all()
    assert seconds[1][0] > 1.05 * seconds[3][0]  # arithmetic beside traffic has a lower clock at 300 W
    assert seconds[3] == pytest.approx(free.total_s)  # no limit at 2,000 W


def test_measured_streams_have_their_boards_power_already() -> None:
    # a T4 of 70 W draws more by the law where it streams, but its own measurements say what it does
    machine = Machine.of(load_device("nvidia-t4"), constants_for(load_device("nvidia-t4")))
    law = PowerLaw.of(machine)
    assert law is not None
    assert not exceeds_own_limit(law, machine)
    assert exceeds_own_limit(law, replace(machine, constants=replace(machine.constants, measured=frozenset())))


def test_limits_that_cannot_be(machine: Machine) -> None:
    for given_w in (20.0, 301.0, float("nan")):
        with pytest.raises(InputError, match=r"nvidia-a40: power limit: expected more than .* up to 300 W"):
            limited(machine, power_w=given_w)
    with pytest.raises(InputError, match=r"nvidia-a40: clock: expected more than \d{3} MHz, and up to 1.74 GHz"):
        limited(machine, clock=1.8e9)
    bare = replace(machine, device=machine.device.replace(board_power=None))
    with pytest.raises(InputError, match="states no board_power or no process_nm"):
        limited(bare, power_w=100.0)


def test_idling_is_stated_of_every_gpu_below_its_limit() -> None:
    known = 0
    for device in devices():
        law = PowerLaw.of(Machine.of(device, constants_for(device)))
        known += law is not None
        assert law is None or 0 < law.idle_w < law.board_w
    assert known > 40


def test_nothing_is_said_where_nothing_is_known(device: Device) -> None:
    assert PowerLaw.of(Machine.of(device, constants())) is None  # without constants of power
    stated = {n: Constant(value=a.start, stderr=0.1, unit=a.unit, meaning=n, source="test")
              for n, a in ENERGY_CONSTANTS.items()}  # fmt: skip
    power = PowerConstants(constants=MappingProxyType(stated), spread=0.1)
    board = device.replace(board_power=None)
    assert PowerLaw.of(Machine.of(board, replace(constants(), power=power))) is None


def test_constants_lie_where_they_mean_something() -> None:
    for name, constant in load_power().constants.items():
        about = ENERGY_CONSTANTS[name]
        assert about.low <= constant.value <= about.high
        assert constant.source
        assert 0 < constant.stderr <= about.spread * 1.001
