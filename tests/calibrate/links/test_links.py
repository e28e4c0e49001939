"""Constants of collectives: recovered from made-up measurements, kept in files, and true of the shipped ones."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from records import case

from rooflinekit.calibrate.campaigns.campaign import write_campaign
from rooflinekit.calibrate.fitting.constants import LINK_CONSTANTS, STATED
from rooflinekit.calibrate.fitting.files import load_links, write_links
from rooflinekit.calibrate.fitting.folder import default_campaigns, default_folder, links_difference
from rooflinekit.calibrate.links.fitting import (
    COLUMNS,
    LinkCampaign,
    campaign_of,
    fit_links,
    groups_of,
    held_out,
    load_link_campaigns,
    own_constants,
    read_link_campaign,
)
from rooflinekit.errors import CampaignError, SpecError
from rooflinekit.hardware.specs import load_device

HEAD = "# cluster: dgx-a100\n# source: example.org\n# licence: CC0\n# timing: stream\n"
ROW = "collective,ranks,format,bytes,seconds\nall-gather,2,fp16,1024,1e-5\n"


def gathers(wait: float = 0.0, timing: str = "stream") -> LinkCampaign:
    """All-gathers as A100 behind NVSwitch would run at 240 of 300 GB/s, with 2 µs from one to the next, 9 µs ahead."""
    rows = []
    for ranks in (2, 4, 8):
        for size in np.geomspace(1e3, 1e9, 25):
            wire = (ranks - 1) / ranks * size / 240e9
            copy = size / ranks / (0.25 * 2.039e12)
            total = 9e-6 + wait + (ranks - 1) * 2e-6 + wire + 2 * math.sqrt(4e-6 * wire) + copy
            rows.append(("all-gather", ranks, "fp16", size, total))
    return LinkCampaign(
        cluster="dgx-a100", source="made up", licence="CC0", timing=timing, rows=pd.DataFrame(rows, columns=COLUMNS)
    )


def test_constants_are_found_again() -> None:
    found = fit_links(groups_of([gathers()])).constants.constants
    for name, truth in (("share nvlink-3", 0.8), ("hop nvlink-3", 2e-6), ("chunk nvlink-3", 4e-6), ("start 8.0", 9e-6)):
        assert found[name].value == pytest.approx(truth, rel=0.05), name
    # What was not measured stays near where it was, and says so.
    assert found["nvls_share"].value == pytest.approx(LINK_CONSTANTS["nvls_share"].start, rel=0.01)
    assert found["nvls_share"].stderr > 3 * found["share nvlink-3"].stderr


def test_a_ceiling_is_found_again() -> None:
    """Through the host's memory at 5 GB/s, whatever the link; a link's share is then not to be seen."""
    rows = []
    for size in np.geomspace(1e5, 1e9, 25):
        wire = 2 * 3 / 4 * size / 5e9
        rows.append(("all-reduce", 4, "fp16", size, 9e-6 + 6 * 1e-6 + wire + 2 * math.sqrt(3e-6 * wire)))
    table = pd.DataFrame(rows, columns=COLUMNS)
    campaign = LinkCampaign(cluster="a40-x8", source="made up", licence="CC0", timing="stream", rows=table)
    found = fit_links(groups_of([campaign])).constants.constants
    assert found["ceiling pcie-host"].value == pytest.approx(5e9, rel=0.03)
    assert "share pcie-host" not in found


def test_the_wait_of_a_profiled_kernel_belongs_to_its_source() -> None:
    fit = fit_links(groups_of([gathers(wait=40e-6, timing="profiler")]))
    assert fit.waits == {"made up": pytest.approx(49e-6, rel=0.05)}
    assert "start 8.0" not in fit.constants.constants


def test_a_campaign_reads_back(tmp_path: Path) -> None:
    write_campaign(gathers(), tmp_path / "links" / "a.csv")
    (found,) = load_link_campaigns(tmp_path / "links")
    assert (found.cluster, found.timing, len(found.rows)) == ("dgx-a100", "stream", 75)
    assert np.allclose(found.rows["seconds"], gathers().rows["seconds"], rtol=1e-5)
    assert load_link_campaigns(tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD.replace("# cluster: dgx-a100\n", "") + ROW, "expected a line '# cluster: …' at its head"),
        (HEAD.replace("stream", "guess") + ROW, "timing: expected stream, profiler, call; got 'guess'"),
        (HEAD + ROW.replace("gather", "gathr"), "collective: expected all-reduce, all-gather"),
        (HEAD + ROW.replace("1e-5", "-1"), "seconds: expected a positive number; got"),
        (HEAD + ROW.replace("1024", "many"), "bytes: expected a positive number; got 'many'"),
        (HEAD + "collective,ranks\nall-gather,2\n", "expected columns collective,ranks,format,bytes,seconds"),
        (HEAD, "not a campaign"),
    ],
)
def test_what_is_no_campaign(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(CampaignError) as caught:
        read_link_campaign(file)
    assert str(caught.value).startswith(f"{file}: {message}")


def test_constants_read_back_and_stand_over_the_shipped_ones(tmp_path: Path) -> None:
    fit = fit_links(groups_of([gathers()]))
    file = tmp_path / "mine.links.yaml"
    write_links(fit.constants, file, "mine", "Mine.")
    assert links_difference(fit.constants, file) == ""
    assert load_links(file).constants["share nvlink-3"].value == pytest.approx(0.8, rel=0.05)
    assert load_links(file).constants["share nvlink-4"] == load_links().constants["share nvlink-4"]
    file.write_text(file.read_text().replace("share nvlink-3", "shore nvlink-3"))
    with pytest.raises(SpecError, match=r"unknown constant shore nvlink-3; run 'rooflinekit fit'"):
        load_links(file)


def test_a_difference_is_named(tmp_path: Path) -> None:
    constants = load_links()
    file = tmp_path / "links.yaml"
    write_links(constants, file, "links", "Links.")
    value = f"value: {constants.constants['hop nvlink-4'].value:.4g}"
    assert file.read_text().count(value) == 1
    file.write_text(file.read_text().replace(value, "value: 2.5e-06"))
    assert links_difference(constants, file).startswith(f"{file}: hop nvlink-4 is 2.5e-06; the campaigns give ")


def test_processes_of_this_machine() -> None:
    device = load_device("generic-cloud-cpu-avx2").replace(sm_count=2)
    # A call of 1 KiB takes 200 µs, of 16 MiB 16.2 ms: 1 GB/s. What neighbours add to a sample does not count.
    measured = [
        (case("gloo_all_reduce", bytes=size), (seconds, 3 * seconds))
        for size, seconds in ((1024, 200e-6), (65536, 265e-6), (2**20, 1.25e-3), (2**24, 17.0e-3))
    ]
    campaign = campaign_of([*measured, (case("issue_view"), (1e-6,))], device, "here")
    assert (len(campaign.rows), campaign.rows["ranks"].tolist()) == (4, [2] * 4)
    fit = fit_links(groups_of([campaign]), load_links())
    (errors,) = fit.errors()
    assert np.abs(errors).max() < 0.1
    own = own_constants(fit)
    assert {key.split()[-1] for key in own.constants} == {"loopback", "cpu"}
    assert own.constants["share loopback"].value == pytest.approx(1e9 / device.dram.bandwidth, rel=0.2)
    assert campaign_of([], device, "here") is None


def test_the_result_of_a_gather_is_all_parts() -> None:
    device = load_device("generic-cloud-cpu-avx2")
    campaign = campaign_of([(case("gloo_all_gather", bytes=1000, ranks=4), (1e-3,))], device, "here")
    assert campaign.rows["bytes"].tolist() == [4000]


# --- what is shipped


def test_shipped_constants_are_described_and_sourced() -> None:
    constants = load_links().constants
    assert set(STATED) | set(LINK_CONSTANTS) <= set(constants)
    for key, constant in constants.items():
        about = LINK_CONSTANTS[key.split()[0]]
        assert about.low <= constant.value <= about.high, key
        assert constant.unit == about.unit
        assert constant.source
        assert constant.source.startswith("stated default") == (key in STATED)


def test_shipped_constants_tell_the_shipped_measurements() -> None:
    campaigns = load_link_campaigns(default_campaigns() / "links")
    constants = load_links(default_folder() / "links.yaml")
    assert len(campaigns) == 6
    off = {}
    for campaign in campaigns:
        if campaign.timing == "stream":
            groups = groups_of([replace(campaign, rows=campaign.rows[held_out(campaign.rows)])])
            off[campaign.cluster] = np.concatenate([np.abs(g.predict(constants) / g.seconds - 1) for g in groups])
    assert {cluster: bool(np.median(errors) < 0.08) for cluster, errors in off.items()} == {
        "dgx-a100": True,
        "dgx-h100": True,
    }


def test_campaigns_name_their_licence() -> None:
    for file in sorted((default_campaigns() / "links").glob("*.csv")):
        head = file.read_text().splitlines()[:4]
        assert ("Apache-2.0" in head[2] and "changed" in head[2]) or "MIT" in head[2], file
