"""Clusters: what files must hold, what physics says of them, and that writing and reading is a round trip."""

from pathlib import Path

import pytest
from refusals import refusal

from rooflinekit.errors import DeviceNotFoundError, SpecError
from rooflinekit.hardware import checks, specs
from rooflinekit.hardware.cluster import Cluster, Members
from rooflinekit.hardware.yaml_file import spec_text

DGX = """schema: 1
name: mine
devices: [{name: nvidia-a100-sxm4-80gb, count: 8}]
nvlink: {generation: 3, links: 12, bandwidth_both_directions: 600 GB/s, topology: switch}
host: generic-server
"""
SIX = "links: 6, bandwidth_both_directions: 300 GB/s, topology: mesh"


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.yaml"
    file.write_text(text)
    return file


def test_every_shipped_cluster_has_sources_and_passes() -> None:
    names = specs.cluster_names()
    assert {"dgx-a100", "dgx-h100", "dgx-1-v100", "l40s-x8", "rtx-4090-x4", "two-nodes-25gbe"} <= set(names)
    for cluster in specs.clusters():
        assert all(check.status == "passed" for check in checks.run(cluster, specs.members_of(cluster)))
        described = {name for name in ("nvlink", "pcie", "network") if getattr(cluster, name) is not None}
        assert set(cluster.sources) == {"devices", *described}, cluster.name


@pytest.mark.parametrize("name", specs.cluster_names())
def test_text_reads_back(name: str, tmp_path: Path) -> None:
    cluster = specs.load_cluster(name)
    assert specs.load_cluster(written(tmp_path, spec_text(cluster, "again"))) == cluster


def test_one_direction_is_half_of_both(tmp_path: Path) -> None:
    both = specs.load_cluster(written(tmp_path, DGX))
    one = specs.load_cluster(written(tmp_path, DGX.replace("both_directions: 600", "per_direction: 300")))
    assert both.nvlink is not None
    assert one.nvlink is not None
    assert both.nvlink.one_way == one.nvlink.one_way == 300e9


def test_the_hybrid_cube_mesh_uses_all_six_links_of_each_gpu() -> None:
    nvlink = specs.load_cluster("dgx-1-v100").nvlink
    assert nvlink is not None
    assert [sum(nvlink.links_between(a, b) for b in range(8)) for a in range(8)] == [6] * 8
    # Within the first four: 0-1, 0-2 and 1-3 are single, 0-3, 1-2 and 2-3 double.
    assert [sum(nvlink.links_between(a, b) for b in range(4)) for a in range(4)] == [4, 4, 5, 5]


def test_a_node_of_unequal_gpus() -> None:
    cluster = specs.load_cluster("titan-x-x2-gtx-1080")
    assert cluster.device_names == ("nvidia-titan-x-pascal", "nvidia-titan-x-pascal", "nvidia-gtx-1080")


SWITCH = "links: 12, bandwidth_both_directions: 600 GB/s, topology: switch"
SLOTS = "pcie: {generation: 4, lanes: 16, peer_access: true"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "both_directions: 600",
            "per_direction: 600",
            "nvlink: bandwidth: expected 300.0 GB/s in one direction (12 links x 25.00 GB/s of generation 3); "
            "got 600.0 GB/s; twice the rate looks like both directions together (and 1 more)",
        ),
        ("600 GB/s", "600", "nvlink: bandwidth_both_directions: expected a quantity in B/s, such as '3 GB/s'; got 600"),
        ("topology: switch", "topology: mesh", "nvlink: mesh: expected with topology: mesh, and only there"),
        ("topology: switch", "topology: ring", "nvlink: topology: expected one of switch, pairs, mesh; got 'ring'"),
        (
            "bandwidth_both_directions: 600 GB/s, ",
            "",
            "nvlink: expected one of bandwidth_per_direction and bandwidth_both_directions",
        ),
        ("topology: switch", "topology: pairs", "links: expected pcie, for NVLink does not join all devices"),
        ("host: generic-server", "host: nobodys", "unknown host 'nobodys'"),
        ("nvidia-a100-sxm4-80gb", "nvidia-a1000", "unknown device 'nvidia-a1000'"),
        ("schema: 1\n", "schema: 1\nnodes: 2\n", "network: expected one, for there are 2 nodes"),
        ("name: mine", "name: mine\ncolour: red", "colour: unknown key"),
        ("host:", f"{SLOTS}, sockets: [4]}}\nhost:", "pcie: sockets: expected 8 devices in all; got 4"),
        (
            "host:",
            f"{SLOTS.replace('4', '5')}}}\nhost:",
            "pcie: nvidia-a100-sxm4-80gb: expected at most PCIe 4 x16 of nvidia-a100-sxm4-80gb: 31.51 GB/s; "
            "got 63.02 GB/s",
        ),
        (SWITCH, SIX + ", mesh: {0-9: 1}", "nvlink: mesh: expected devices 0 to 7; got 9"),
        (SWITCH, SIX + ", mesh: {0-0: 1}", "nvlink: mesh: expected two devices, such as '0-3'; got '0-0'"),
    ],
)
def test_what_a_file_must_not_say(old: str, new: str, message: str, here: Path) -> None:
    assert old in DGX
    written(here, DGX.replace(old, new))
    said = refusal(SpecError, specs.load_cluster, "mine.yaml")
    assert said.startswith(f"mine.yaml: {message}")
    assert "\n" not in said


def test_a_deviation_that_is_explained_does_not_fail(tmp_path: Path) -> None:
    reasons = "explained:\n  nvlink.bandwidth: half of the links\n  nvlink.nvidia-a100-sxm4-80gb: likewise\n"
    text = DGX.replace("600 GB/s", "300 GB/s") + reasons
    assert specs.load_cluster(written(tmp_path, text)).nvlink is not None
    with pytest.raises(SpecError, match="expected the name of a check"):
        specs.load_cluster(written(tmp_path, DGX + "explained: {nvlnk: because}\n"))


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(DeviceNotFoundError, match="unknown cluster 'dgx-h10'; did you mean 'dgx-h100'"):
        specs.load_cluster("dgx-h10")


def test_replace_checks_again() -> None:
    cluster = Cluster(name="two", devices=(Members(name="nvidia-l4", count=2),), host="generic-server")
    assert (cluster.replace(nodes=1).size, cluster.per_node) == (2, 2)
    with pytest.raises(ValueError, match="network: expected one"):
        cluster.replace(nodes=3)
