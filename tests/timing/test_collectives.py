"""Laws of collectives, on links whose numbers are round, and what the shipped constants say of known machines."""

import math
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.hardware import specs
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.published.stated import Constant
from rooflinekit.timing.collectives import (
    COLLECTIVES,
    CollectiveTiming,
    Link,
    LinkConstants,
    Route,
    route_of,
    time_collective,
    time_copy,
)
from rooflinekit.timing.machine import Spread
from rooflinekit.timing.memory_system import channels_of, slowdown_of


def constants(**values: float) -> LinkConstants:
    """Perfect links without any latency, but for what is given."""
    plain = {"share": 1.0, "hop": 0.0, "chunk": 0.0, "start": 0.0, "peer_start": 0.0, "copy_share": 1e9,
             "nvls_start": 0.0, "nvls_share": 1.0, "ceiling": 1e30}  # fmt: skip
    made = {
        name: Constant(value=value, stderr=0.0, unit="", meaning="", source="")
        for name, value in {**plain, **values}.items()
    }
    return LinkConstants(constants=made, spreads=MappingProxyType({"unseen": Spread(random=0.1, systematic=0.0)}))


def route(name: str, ranks: int | tuple[int, ...] | None = None, *, sharing: int = 1) -> Route:
    cluster = specs.load_cluster(name)
    return route_of(cluster, specs.members_of(cluster), ranks, sharing=sharing)


def seconds(collective: str, size: float, where: Route, **values: float) -> float:
    return time_collective(collective, size, where, constants(**values)).total_s


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        # 300 GB through links of 300 GB/s, 8 devices: each sends 7/8 of it twice, once, once, once; 1/8 of it stays.
        ("all-reduce", 2 * 7 / 8),
        ("reduce-scatter", 7 / 8),
        ("all-gather", 7 / 8),
        ("all-to-all", 7 / 8),
        ("broadcast", 1.0),
    ],
)
def test_bandwidth_limit_of_eight_a100(collective: str, expected: float) -> None:
    assert seconds(collective, 300e9, route("dgx-a100")) == pytest.approx(expected, rel=1e-6)


def test_send_and_receive() -> None:
    assert seconds("send-recv", 300e9, route("dgx-a100", 2)) == pytest.approx(1.0)
    # In a pair the bridge's 300 GB/s; between pairs PCIe 4 x16: 16 lanes x 16 Gbit/s x 128/130 / 8 = 31.508 GB/s.
    assert seconds("send-recv", 300e9, route("a100-pcie-pairs-x4", (2, 3))) == pytest.approx(1.0)
    assert seconds("send-recv", 31.508e9, route("a100-pcie-pairs-x4", (1, 2))) == pytest.approx(1.0, rel=1e-4)


def test_steps_of_an_empty_message() -> None:
    # A ring of 8 passes on 7 times to gather, 14 times to reduce and gather; a switch adds up in one go.
    assert seconds("all-gather", 0, route("dgx-a100"), hop=1e-6) == pytest.approx(7e-6)
    assert seconds("all-reduce", 0, route("dgx-a100"), hop=1e-6) == pytest.approx(14e-6)
    assert seconds("all-reduce", 0, route("dgx-h100"), hop=1e-6, nvls_start=5e-6) == pytest.approx(5e-6)


def test_what_pieces_cost() -> None:
    # W = 1 s of transfer, 10 ms a piece: 2·√(0.01 · 1) = 0.2 s on top.
    assert seconds("send-recv", 300e9, route("dgx-a100", 2), chunk=0.01) == pytest.approx(1.2)


def test_the_switch_adds_up() -> None:
    # Each H100 sends its buffer and an eighth of the result: 9/8 where a ring sends 14/8.
    found = time_collective("all-reduce", 450e9, route("dgx-h100"), constants())
    assert (found.algorithm, found.total_s) == ("nvls", pytest.approx(9 / 8))
    integers = time_collective("all-reduce", 450e9, route("dgx-h100"), constants(), sums_in_switch=False)
    assert (integers.algorithm, integers.total_s) == ("ring", pytest.approx(14 / 8))


def test_between_nodes() -> None:
    # Two nodes over 25 Gbit/s: a ring of 8 devices sends 14/8 of the buffer over 3.125 GB/s, a tree all of it twice.
    where = route("two-nodes-25gbe")
    ring = time_collective("all-reduce", 3.125e9, where, constants())
    # Two times 30 µs there are the network's own, there and back.
    assert (ring.algorithm, ring.total_s) == ("ring", pytest.approx(1.75 + 60e-6))
    tree = time_collective("all-reduce", 3.125e9, where, constants(), algorithm="tree")
    assert tree.total_s == pytest.approx(2.0 + 60e-6)
    # An empty message over 8 nodes of 8: a ring crosses the network 2 · 7 times, a tree 2 · log2(8) times.
    far = route("h100-x8-cluster", 64)
    for way, hops in (("ring", 14), ("tree", 6)):
        assert time_collective("all-reduce", 0, far, constants(), algorithm=way).total_s == pytest.approx(hops * 2e-6)
    # Hierarchical: 3/4 of the buffer over PCIe, all of it over the network (2 · 1/2), 3/4 over PCIe again.
    made = time_collective("all-reduce", 3.125e9, where, constants(), algorithm="hierarchical")
    assert made.total_s == pytest.approx(1.0 + 1.5 * 3.125 / 31.508, rel=1e-4)
    # Four groups that share the network, one device of each node in each: a quarter of its rate for each.
    assert seconds("send-recv", 3.125e9, route("two-nodes-25gbe", (0, 4), sharing=4)) == pytest.approx(4.0 + 30e-6)
    # All-to-all: of 4 devices each sends half of its buffer to the other node.
    assert seconds("all-to-all", 3.125e9, where) == pytest.approx(2.0 + 30e-6)


@pytest.mark.parametrize(
    ("name", "ranks", "technology", "bandwidth"),
    [
        ("dgx-a100", None, "nvlink-3", 300e9),
        ("dgx-h100", 4, "nvlink-4", 450e9),
        ("dgx-1-v100", 8, "nvlink-2", 150e9),  # six links of 25 GB/s
        ("dgx-1-v100", 4, "nvlink-2", 100e9),  # four within the first half
        ("dgx-1-v100", (0, 3), "nvlink-2", 50e9),  # a double one
        ("dgx-1-v100", (0, 5), "pcie-sockets", 15.754e9),  # none, and another socket
        ("a40-pairs-x8", (0, 1), "nvlink-3", 56.25e9),
        ("a40-pairs-x8", 4, "pcie-peer", 31.508e9),
        ("a40-pairs-x8", 8, "pcie-sockets", 31.508e9),
        ("a40-x8", 2, "pcie-host", 31.508e9),
        ("cpu-processes-x4", 4, "loopback", None),
    ],
)
def test_links_of_a_group(
    name: str, ranks: int | tuple[int, ...] | None, technology: str, bandwidth: float | None
) -> None:
    link = route(name, ranks).inside
    assert link is not None
    assert link.name == technology
    assert bandwidth is None or link.bandwidth == pytest.approx(bandwidth, rel=1e-3)


def test_between_sockets_a_ring_has_what_passes_there() -> None:
    # 16 GB over 16 GB/s between sockets, on either side of one over PCIe 4's 31.508 GB/s; a copy has no more.
    near, far = route("l40s-x8", 4), route("l40s-x8")
    assert near.inside is not None
    assert far.inside is not None
    assert near.inside.technology == far.inside.technology == "pcie-peer"
    assert seconds("broadcast", 31.508e9, near) == pytest.approx(1.0, rel=1e-4)
    assert seconds("all-reduce", 16e9, far) == pytest.approx(2 * 7 / 8)
    assert time_copy(16e9, route("l40s-x8", (0, 4)), constants()).total_s == pytest.approx(1.0)
    known = rk.collective_time("all-reduce", 1e8, "l40s-x8")
    # 0.35 of what is not known of the sockets, beside what the kind of link is off
    assert known.spread > rk.collective_time("all-reduce", 1e8, "l40s-x8", 4).spread + 0.2


def test_the_hosts_memory_has_a_rate_of_its_own() -> None:
    # 5 GB at 5 GB/s, over PCIe 4 (31.5 GB/s) as over PCIe 3 (15.8 GB/s); over a link of 1 GB/s that link tells.
    for name in ("a40-x8", "rtx-2080-ti-x4"):
        assert seconds("broadcast", 5e9, route(name, 4), ceiling=5e9) == pytest.approx(1.0)
        assert seconds("all-reduce", 5e9, route(name, 4), ceiling=5e9) == pytest.approx(1.5)
    slow = replace(route("a40-x8", 4), inside=Link(technology="pcie-host", bandwidth=1e9))
    assert seconds("broadcast", 5e9, slow, ceiling=5e9) == pytest.approx(5.0)
    # With peer access nothing goes through that memory.
    assert seconds("broadcast", 31.508e9, route("a40-pairs-x8", 4), ceiling=5e9) == pytest.approx(1.0, rel=1e-4)


def test_copies_by_engines_fill_a_link_with_packets() -> None:
    # 256 of 280 bytes of a packet are data: 31.508 · 256 / 280 = 28.807 GB/s, through the host's memory as well
    for name, ranks in (("a40-x8", 2), ("a100-pcie-pairs-x4", (1, 2))):
        copy = time_copy(28.807e9, route(name, ranks), constants(ceiling=5e9))
        assert copy.total_s == pytest.approx(1.0, rel=1e-4)
    # unless that is slower; peers do without it
    assert time_copy(10e9, route("a40-x8", 2), constants(), host_rate=10e9).total_s == pytest.approx(1.0)
    assert time_copy(28.807e9, route("a100-pcie-pairs-x4", (1, 2)), constants(), host_rate=10e9).total_s < 1.001
    # and over NVLink what it gives
    assert time_copy(300e9, route("dgx-a100", 2), constants(share=0.5)).total_s == pytest.approx(2.0)


def test_devices_below_one_switch_share_its_way_to_the_host() -> None:
    cluster = specs.load_cluster("a40-x8")
    assert cluster.pcie is not None
    shared = cluster.replace(pcie=cluster.pcie.replace(switches=(4, 4)))
    where = route_of(shared, specs.members_of(shared), 4)
    assert where.inside is not None
    assert where.inside.bandwidth == pytest.approx(31.508e9 / 4, rel=1e-3)


def test_processes_beyond_the_cores_take_turns() -> None:
    cluster = specs.load_cluster("cpu-processes-x4")
    device = specs.members_of(cluster)[0].replace(sm_count=2)
    two, four = (route_of(cluster, (device,) * 4, n) for n in (2, 4))
    # A ring of 2 passes on twice; of 4 six times, at half the speed.
    assert seconds("all-reduce", 0, two, hop=1e-4) == pytest.approx(2e-4)
    assert seconds("all-reduce", 0, four, hop=1e-4) == pytest.approx(12e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": 9}, "dgx-a100 has 8 devices; got 9"),
        ({"ranks": 0}, "dgx-a100 has 8 devices; got 0"),
        ({"ranks": (0, 8)}, "dgx-a100: expected different devices of 0 to 7; got 8"),
        ({"ranks": (1, 1)}, r"dgx-a100: expected different devices of 0 to 7; got \[1, 1\]"),
    ],
)
def test_groups_that_there_are_not(given: dict[str, int | tuple[int, ...]], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        route("dgx-a100", given["ranks"])


def test_groups_across_nodes_are_even() -> None:
    with pytest.raises(InputError, match=r"^two-nodes-25gbe has 4 devices a node: expected a multiple of that"):
        route("two-nodes-25gbe", 6)


@pytest.mark.parametrize(
    ("collective", "size", "ranks", "algorithm", "message"),
    [
        ("all-reduc", 1, 8, None, "collective: expected all-reduce, .*; got 'all-reduc'; did you mean 'all-reduce'"),
        ("all-reduce", -1, 8, None, "all-reduce: expected a size of 0 bytes or more; got -1"),
        ("all-reduce", math.nan, 8, None, "all-reduce: expected a size of 0 bytes or more; got nan"),
        ("send-recv", 1, 8, None, "send-recv is between 2 devices; got 8"),
        ("all-reduce", 1, 8, "nvls", "all-reduce: expected algorithm ring here; got 'nvls'"),
        ("all-gather", 1, 8, "hierarchical", "hierarchical is an all-reduce of several devices"),
    ],
)
def test_what_cannot_be_asked(collective: str, size: float, ranks: int, algorithm: str | None, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        time_collective(collective, size, route("dgx-a100", ranks), constants(), algorithm=algorithm)


# --- laws, with the constants that are shipped

CLUSTERS = tuple(specs.cluster_names())
SHARED = [name for name in COLLECTIVES if name != "send-recv"]


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_device_has_nothing_to_send(name: str, collective: str) -> None:
    found = rk.collective_time(collective, "1 GB", name, 1)
    assert (found.total_s, found.bus_bandwidth, found.interval()) == (0.0, 0.0, (0.0, 0.0))


def groups(name: str) -> tuple[tuple[int, ...], ...]:
    """Numbers of devices on as many nodes as there are, of each node one, half or all."""
    cluster = specs.load_cluster(name)
    each, nodes = cluster.per_node, cluster.nodes
    counts = sorted({1, max(1, each // 2), each})
    most = [n for n in (1, 2, 3, 4, 8, 16, 128) if n <= nodes]
    return tuple(tuple(node * each + i for node in range(n) for i in range(k)) for k in counts for n in most)


GROUPS = {name: groups(name) for name in CLUSTERS}


@given(st.sampled_from([name for name in CLUSTERS if len(GROUPS[name]) > 3]), st.sampled_from(SHARED), st.floats(0, 11))
def test_more_nodes_are_never_faster(name: str, collective: str, digits: float) -> None:
    each = specs.load_cluster(name).per_node
    times: dict[int, list[float]] = {}
    for ranks in GROUPS[name]:
        of_node = sum(rank < each for rank in ranks)
        times.setdefault(of_node, []).append(rk.collective_time(collective, 10**digits, name, ranks).total_s)
    for found in times.values():
        assert found == sorted(found)


@given(st.sampled_from(CLUSTERS), st.sampled_from(SHARED), st.floats(0, 11), st.data())
def test_no_link_carries_more_than_it_can(name: str, collective: str, digits: float, data: st.DataObject) -> None:
    found = rk.collective_time(collective, 10**digits, name, data.draw(st.sampled_from(GROUPS[name])))
    if found.ranks > 1:
        slowest = min(link.bandwidth for link in found.route.links)
        # Where the switch adds up, a device sends 1 + 1/n of its buffer instead of a ring's 2·(n - 1)/n: bus bandwidth,
        # which is told as a ring's, passes the link's. Measured on 8 H100: 480 over links of 450 GB/s.
        carried = found.wire_bytes / found.total_s if found.algorithm == "nvls" else found.bus_bandwidth
        assert carried <= slowest


def test_an_all_reduce_of_a_gibibyte_grows_with_the_nodes() -> None:
    times = [rk.collective_time("all-reduce", 2**30, "h100-x8-cluster", n).total_s for n in (8, 16, 32, 64, 1024)]
    assert times == sorted(times)
    # 2 · 63/64 · 1 GiB over 400 GB/s: 5.28 ms at the very least
    assert times[3] > 2 * 63 / 64 * 2**30 / 400e9


@given(st.sampled_from(CLUSTERS), st.sampled_from(SHARED), st.floats(0, 1e11), st.floats(0, 1e10))
def test_more_bytes_never_take_less(name: str, collective: str, size: float, more: float) -> None:
    times = [rk.collective_time(collective, size + extra, name).total_s for extra in (0.0, more)]
    assert times[0] <= times[1]


def faster(cluster: Cluster, factor: float) -> Cluster:
    assert cluster.nvlink is not None
    return cluster.replace(nvlink=cluster.nvlink.replace(
        bandwidth_both_directions=None, bandwidth_per_direction=cluster.nvlink.one_way * factor
    ))  # fmt: skip


@given(
    st.sampled_from(("dgx-a100", "dgx-h100", "dgx-1-v100")),
    st.sampled_from(SHARED),
    st.floats(0, 1e11),
    st.floats(1, 100),
)
def test_faster_links_never_take_longer(name: str, collective: str, size: float, factor: float) -> None:
    cluster = specs.load_cluster(name)
    slow, fast = (rk.collective_time(collective, size, c).total_s for c in (cluster, faster(cluster, factor)))
    assert fast <= slow * (1 + 1e-12)


@pytest.mark.parametrize("collective", SHARED)
def test_endless_bandwidth_leaves_latency_and_the_copy(collective: str) -> None:
    cluster = specs.load_cluster("dgx-a100")
    endless = {"bandwidth_both_directions": None, "bandwidth_per_direction": 3e23}  # more than a file may say
    cluster = cluster.model_copy(update={"nvlink": cluster.nvlink.model_copy(update=endless)})
    much, none = (rk.collective_time(collective, size, cluster) for size in (1e8, 0.0))
    assert much.total_s - much.copy_s == pytest.approx(none.total_s, rel=1e-3)
    assert none.total_s == none.start_s + none.latency_s > 0


@pytest.mark.parametrize("name", ["dgx-a100", "l40s-x8", "rtx-4090-x4", "dgx-1-v100"])
def test_reducing_is_scattering_and_gathering(name: str) -> None:
    size = 1e13  # where nothing but bandwidth counts
    both, scatter, gather = (rk.collective_time(c, size, name) for c in ("all-reduce", "reduce-scatter", "all-gather"))
    assert both.transfer_s == pytest.approx(scatter.transfer_s + gather.transfer_s)
    # An all-reduce in place copies nothing; the others copy an eighth of the buffer or a quarter.
    assert both.total_s == pytest.approx(scatter.total_s + gather.total_s - 2 * gather.copy_s, rel=0.01)


@given(st.sampled_from(CLUSTERS), st.sampled_from(SHARED), st.floats(0, 1e11))
def test_parts_add_up_and_lie_in_the_interval(name: str, collective: str, size: float) -> None:
    found = rk.collective_time(collective, size, name)
    parts = (found.start_s, found.latency_s, found.transfer_s, found.pipeline_s, found.copy_s)
    low, high = found.interval()
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(found.total_s)
    assert low <= found.total_s <= high
    assert found.interval(0.99)[1] >= high


def test_the_fastest_algorithm_is_taken() -> None:
    for size in (1e3, 1e6, 1e9):
        best = rk.collective_time("all-reduce", size, "dgx-h100")
        assert best.total_s == min(
            rk.collective_time("all-reduce", size, "dgx-h100", algorithm=way).total_s for way in ("ring", "nvls")
        )


def test_unmeasured_links_take_the_nearest_generation_and_a_wide_interval() -> None:
    # Blackwell's NVLink: 18 links of 50 GB/s, twice Hopper's. Nothing was measured on it.
    old, new = (rk.collective_time("all-gather", "1 GB", name) for name in ("dgx-h100", "dgx-b200"))
    assert new.transfer_s == pytest.approx(old.transfer_s / 2)
    assert new.spread > 2 * old.spread


# --- beside kernels


def test_kernels_beside_a_collective() -> None:
    timing: CollectiveTiming = rk.collective_time("all-reduce", "1 GB", "dgx-a100")
    device = rk.load_device("nvidia-a100-sxm4-80gb")
    found = slowdown_of(timing, device)
    assert channels_of(timing) == 24
    assert found.compute == pytest.approx(108 / (108 - 24))
    # 1.75 GB on the wire, 2.5 bytes of DRAM traffic each, within the time, of 2039 GB/s.
    assert found.memory == pytest.approx(1 / (1 - 4.375e9 / timing.total_s / device.dram.bandwidth))
    alone = slowdown_of(rk.collective_time("all-reduce", "1 GB", "dgx-a100", 1), device)
    assert (alone.compute, alone.memory) == (1.0, 1.0)


def test_known_magnitudes() -> None:
    """What nccl-tests commonly print for large all-reduces, from the literature: 230 GB/s on A100, 480 on H100."""
    assert 180e9 < rk.collective_time("all-reduce", "8 GB", "dgx-a100").bus_bandwidth < 250e9
    assert 400e9 < rk.collective_time("all-reduce", "8 GB", "dgx-h100").bus_bandwidth < 500e9


def test_a_ring_over_unequal_parts() -> None:
    """Over 2 + 1 devices each link carries 2·(n - 1)/n of the size, n = 3: between those of 1 + 1 and of 2 + 2."""
    groups = [route("two-nodes-25gbe", ranks) for ranks in ((0, 4), (0, 1, 4), (0, 1, 4, 5))]
    timings = [time_collective("all-reduce", 1e8, group, constants(), algorithm="ring") for group in groups]
    assert [timing.wire_bytes for timing in timings] == [pytest.approx(2 * (n - 1) / n * 1e8) for n in (2, 3, 4)]
    assert [timing.total_s for timing in timings] == sorted(timing.total_s for timing in timings)
    assert groups[1].per_node == 2
