"""Measured ops out of traces: which calls become rows, and what is said of the others."""

from pathlib import Path

import pytest
from command_line import Run
from documents import checked
from traces import document, launched, one_block, shaped, two_steps, write

from rooflinekit.calibrate.campaigns.campaign import campaign_text, read_campaign
from rooflinekit.errors import CampaignError
from rooflinekit.study.profile.drawn import draw_all


def test_rows_are_medians_of_equal_ops(tmp_path: Path) -> None:
    found = draw_all([write(one_block(), tmp_path / "t.json")], None, "CC0")
    add, product = found.campaign.rows.to_dict("records")
    assert {key: product[key] for key in ("op", "m", "n", "k", "dtype", "count")} == {
        "op": "mm", "m": 64, "n": 128, "k": 256, "dtype": "fp16", "count": 2,
    }  # fmt: skip
    assert product["seconds"] == pytest.approx(12e-6)  # of 10 and 14 µs
    assert (add["op"], add["rows"], add["cols"], add["seconds"]) == ("add", 64, 128, pytest.approx(2e-6))
    assert found.campaign.gpu == "nvidia-l4"
    # 10 + 14 + 2 of 34 µs became rows; the addition with broadcasting and the sort did not.
    assert (found.seconds, found.refused_s) == (pytest.approx(34e-6), pytest.approx(8e-6))
    assert dict(found.refused) == {"aten::add: broadcasts": 1, "aten::sort: campaigns hold no such operator": 1}


def test_ranks_are_one_campaign_that_reads_back(tmp_path: Path) -> None:
    files = [write(one_block(), tmp_path / f"rank{i}.json.gz") for i in range(2)]
    found = draw_all(files, None, "CC0").campaign
    assert found.rows["count"].sum() == 6
    file = tmp_path / "both.csv"
    file.write_text(campaign_text(found))
    again = read_campaign(file)
    assert again.rows["seconds"].tolist() == pytest.approx(found.rows["seconds"].tolist())
    assert (again.gpu, again.licence, again.timing) == ("nvidia-l4", "CC0", "profiler")


@pytest.mark.parametrize(
    ("call", "row"),
    [
        (("aten::bmm", [2, 3, 4], [2, 4, 5]), {"op": "bmm", "b": 2, "m": 3, "n": 5, "k": 4}),
        (("aten::relu", [2, 3, 8]), {"op": "relu", "rows": 6, "cols": 8}),
    ],
)
def test_shapes_make_sizes(tmp_path: Path, call: tuple, row: dict) -> None:
    name, *dims = call
    events = [shaped(name, 0, 10, *dims, kind="float"), *launched("k", 2, 20, 25, 1)]
    (found,) = draw_all([write(document(*events), tmp_path / "t.json")], None, "CC0").campaign.rows.to_dict("records")
    assert {**row, "dtype": "fp32"}.items() <= found.items()


def test_fp32_products_by_tf32_kernels_are_tf32(tmp_path: Path) -> None:
    events = [
        shaped("aten::mm", 0, 10, [8, 8], [8, 8], kind="float"),
        *launched("ampere_sgemm_tf32_128x64", 2, 20, 25, 1),
    ]
    (row,) = draw_all([write(document(*events), tmp_path / "t.json")], None, "CC0").campaign.rows.to_dict("records")
    assert row["dtype"] == "tf32"


def test_what_cannot_be_attributed_is_refused(tmp_path: Path) -> None:
    bare = write(two_steps(), tmp_path / "bare.json")
    with pytest.raises(CampaignError, match=r"holds no shapes; record it with torch\.profiler"):
        draw_all([bare], None, "CC0")
    cpu = write(document(shaped("aten::mm", 0, 10, [8, 8], [8, 8])), tmp_path / "cpu.json")
    with pytest.raises(CampaignError, match="holds no kernels"):
        draw_all([cpu], None, "CC0")
    odd = write(document(shaped("aten::sort", 0, 9, [8]), *launched("k", 2, 20, 25, 1)), tmp_path / "odd.json")
    with pytest.raises(CampaignError, match="no operator of it can be a row"):
        draw_all([odd], None, "CC0")
    two = document(*one_block()["traceEvents"], devices=("NVIDIA L4", "Tesla T4"))
    with pytest.raises(CampaignError, match="name NVIDIA L4, Tesla T4 as their device; name one as --gpu"):
        draw_all([write(two, tmp_path / "two.json")], None, "CC0")


def test_from_a_trace_to_constants(run: Run, tmp_path: Path) -> None:
    trace, rows, fit = write(one_block(), tmp_path / "t.json"), tmp_path / "l4.csv", tmp_path / "l4.fit.yaml"
    said = run("campaign", "from-trace", trace, "--out", rows).answered()
    assert "76% of 34.0 µs of kernels became rows" in said  # 26 of 34
    again = checked("campaign-from-trace", run("campaign", "from-trace", trace, "--out", rows, "--force", "--json").out)
    assert (again["file"], again["device"]) == (str(rows), "nvidia-l4")
    assert run("campaign", "from-trace", trace, "--out", rows).err.startswith(f"rooflinekit: {rows}: exists; ")
    run("calibrate", "--campaign", rows, "--out", fit).answered()
    assert "name: nvidia-l4" in fit.read_text()
    wrong = run("calibrate", "--campaign", rows, "--spec", "nvidia-t4")
    assert (wrong.status, wrong.err) == (2, f"rooflinekit: {rows}: is of nvidia-l4; expected nvidia-t4\n")
