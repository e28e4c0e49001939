"""`rooflinekit clusters` and `rooflinekit collective`, as a user meets them."""

from pathlib import Path

import pytest
from command_line import Run

import rooflinekit as rk

pytestmark = pytest.mark.usefixtures("here")


def test_all_clusters(run: Run) -> None:
    said = run("clusters").answered()
    for cluster in rk.clusters():
        assert cluster.name in said
    assert [one["name"] for one in run("clusters", "--json").document["clusters"]] == [c.name for c in rk.clusters()]


def test_one_cluster(run: Run) -> None:
    out = run("clusters", "DGX A100").out
    assert "inside, one direction: NVLink 3 switch 300 GB/s, PCIe 4 x16 31.5 GB/s" in out
    assert "source of nvlink: NVIDIA A100" in out
    assert (
        run("clusters", "dgx-a100", "--json").document["cluster"]["nvlink"]["bandwidth_both_directions"] == "600 GB/s"
    )


def test_check_takes_a_cluster(run: Run) -> None:
    text = "schema: 1\nname: two\ndevices: [{name: nvidia-l4, count: 2}]\nhost: generic-server\n"
    Path("two.yaml").write_text(text)
    result = run("check", "two.yaml", "dgx-h100")
    assert result.status == 1
    assert "failed: links: expected pcie, for NVLink does not join all devices" in result.out
    Path("two.yaml").write_text(text + "pcie: {generation: 4, lanes: 16, peer_access: true}\n")
    # An L4 has PCIe 4 x16, so that the slot fits it.
    assert run("check", "two.yaml").status == 0


def test_a_collective(run: Run) -> None:
    said = run("collective", "all-reduce", "--bytes", "100MB", "--cluster", "dgx-h100", "--gpus", "4").answered()
    assert "all-reduce of 100 MB on 4 of dgx-h100" in said
    for word in ("90 % between", "over nvlink-4 at 450 GB/s", "bus bandwidth", "transfer"):
        assert word in said
    alone = run("collective", "all-gather", "--bytes", "1GB", "--cluster", "dgx-h100", "--gpus", "1")
    assert "0 s: one device" in alone.out


def test_json_is_what_python_gives(run: Run) -> None:
    document = run("collective", "broadcast", "--bytes", "1 GB", "--cluster", "two-nodes-25gbe", "--json").document
    found = rk.collective_time("broadcast", "1 GB", rk.load_cluster("two-nodes-25gbe"))
    assert document["total_s"] == found.total_s == pytest.approx(sum(document["terms"].values()))
    assert (document["gpus"], document["bytes"], document["algorithm"]) == (8, 1e9, found.algorithm)
    assert document["interval_s"] == list(found.interval())
    assert [link["technology"] for link in document["links"]] == ["pcie-peer", "ethernet"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("all-reduce", "--bytes", "100", "--cluster", "dgx-h100"),
            "expected a quantity in B, such as '3 GB'; got '100'",
        ),
        (("reduce", "--bytes", "1 GB", "--cluster", "dgx-h100"), "collective: expected all-reduce, all-gather, "),
        (("all-reduce", "--bytes", "1 GB", "--cluster", "dgx-h100", "--gpus", "9"), "dgx-h100 has 8 devices; got 9"),
        (("all-reduce", "--bytes", "1 GB", "--cluster", "none.yaml"), "none.yaml: no such file"),
        (("all-reduce", "--bytes", "1 GB", "--cluster", "dgx"), "unknown cluster 'dgx'"),
        (
            ("all-reduce", "--bytes", "1 GB", "--cluster", "dgx-h100", "--constants", "none.yaml"),
            "none.yaml: no such file",
        ),
    ],
)
def test_wrong_use_is_one_line(run: Run, words: tuple[str, ...], message: str) -> None:
    run("collective", *words).refused(has=message)
