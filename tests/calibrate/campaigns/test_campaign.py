"""Campaign files: written and read as they are, never half, and one clear error for each that is wrong."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from rooflinekit.calibrate.campaigns.campaign import Campaign, load_campaigns, read_campaign, write_campaign
from rooflinekit.calibrate.campaigns.operators import OPS
from rooflinekit.errors import CampaignError
from rooflinekit.ir.inputs import Release

HEAD = "# gpu: nvidia-t4\n# source: lab run 7\n# licence: CC0\n# timing: event\n"
COLUMNS = "op,dtype,m,n,k,seconds\n"
ROW = "linear,fp32,512,1280,1280,0.00041\n"


def campaign(**rows: list[object]) -> Campaign:
    rows = rows or {
        "op": ["mm", "linear"], "dtype": ["fp32", "fp16"], "m": [512, 7], "n": 8, "k": 9, "seconds": [0.00041, 1.5e-5],
    }  # fmt: skip
    return Campaign(gpu="nvidia-t4", source="lab run 7", licence="CC0", timing="graph", rows=pd.DataFrame(rows))


def refused(file: Path, content: str | bytes) -> str:
    """The message of the error about this file, without its path."""
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CampaignError) as caught:
        read_campaign(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    return message.removeprefix(f"{file}: ")


# --- round trip ---------------------------------------------------------------------------------------------------


def test_a_file_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    file.write_text(HEAD + "# host: a note of the writer\n" + COLUMNS + ROW + ROW.replace("512", "1024"))
    found = read_campaign(file)
    assert (found.gpu, found.source, found.licence, found.timing) == ("nvidia-t4", "lab run 7", "CC0", "event")
    assert found.rows["m"].tolist() == [512, 1024]
    assert found.rows["seconds"].tolist() == [0.00041, 0.00041]


def test_how_many_calls_were_timed_in_a_row(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    file.write_text(HEAD + "# calls: 36\n# warmup: 18\n" + COLUMNS + ROW)
    assert (read_campaign(file).calls, read_campaign(file).warm_calls) == (36, 18)
    assert (campaign().calls, campaign().warm_calls) == (float("inf"), 0)  # nobody says: the board is warm
    wrong = refused(file, HEAD + "# calls: few\n" + COLUMNS + ROW)
    assert wrong == "calls: expected a positive integer; got 'few'"
    wrong = refused(file, HEAD + "# warmup: some\n" + COLUMNS + ROW)
    assert wrong == "warmup: expected how many calls, from 0; got 'some'"


def test_what_a_file_tells(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    file.write_text(HEAD + "# tells: own\n" + COLUMNS + ROW)
    assert read_campaign(file).own
    assert not campaign().own
    wrong = refused(file, HEAD + "# tells: all\n" + COLUMNS + ROW)
    assert wrong == "tells: expected 'own', or no such line; got 'all'"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "deeper" / "still" / "run.csv"
    written = campaign()
    write_campaign(written, file)
    found = read_campaign(file)
    assert (found.gpu, found.source, found.licence, found.timing) == ("nvidia-t4", "lab run 7", "CC0", "graph")
    pd.testing.assert_frame_equal(found.rows, written.rows)


def test_the_text_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    write_campaign(
        campaign(
            op=["add", "relu"],
            dtype=["fp32", "bf16"],
            rows=[3.0, 12_345_678.0],
            cols=8,
            b=[None, 1_234_567],
            none=[None, None],
            seconds=[2e-5, 1 / 3],
        ),
        file,
        notes={"host": "rack 3"},
    )
    # a column without a number is left out; sizes are whole, also beside empty cells, seconds have six digits
    assert file.read_text() == (
        "# gpu: nvidia-t4\n# source: lab run 7\n# licence: CC0\n# timing: graph\n# host: rack 3\n"
        "op,dtype,rows,cols,b,seconds\nadd,fp32,3,8,,2e-05\nrelu,bf16,12345678,8,1234567,0.333333\n"
    )


def test_campaigns_of_a_folder_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    for size, name in enumerate(("b/two.csv", "a/one.csv", "b/three.csv"), start=1):
        write_campaign(campaign(op=["add"], dtype=["fp32"], rows=[size], cols=[1], seconds=[1.0]), tmp_path / name)
    (tmp_path / "a" / "notes.txt").write_text("no campaign")
    assert [c.rows["rows"][0] for c in load_campaigns(tmp_path)] == [2, 3, 1]


def test_a_folder_without_campaigns(tmp_path: Path) -> None:
    with pytest.raises(
        CampaignError, match=f"^{re.escape(str(tmp_path))}: expected campaign files \\(\\*\\.csv\\); found none$"
    ):
        load_campaigns(tmp_path)


@pytest.mark.parametrize(
    ("op", "family"),
    [
        ("linear", "product"),
        ("conv_bwd_data", "convolution"),
        ("layernorm", "normalization"),
        ("llm_rope", "serving"),
        ("gelu", "elementwise"),
        ("mm_quantized", "quantized product"),  # not with element-wise ops, for most of its time is a product
    ],
)
def test_families_of_ops(op: str, family: str) -> None:
    assert OPS[op].family == family


# --- never half written -------------------------------------------------------------------------------------------


def test_a_crash_before_the_renaming_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.csv"
    write_campaign(campaign(), file)
    before = file.read_bytes()

    def crash(self: Path, target: Path) -> Path:
        raise OSError("power cut")

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(OSError, match="power cut"):
        write_campaign(campaign(op=["add"], dtype=["fp32"], rows=[1], cols=[1], seconds=[1.0]), file)
    assert file.read_bytes() == before
    # what is left beside it is no campaign
    assert len(load_campaigns(tmp_path)) == 1


# --- wrong files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected a line '# gpu: …' at its head"),
        (COLUMNS + ROW, "expected a line '# gpu: …' at its head"),
        (b"\x00" * 100, "expected a line '# gpu: …' at its head"),
        (HEAD.replace("nvidia-t4", "") + COLUMNS + ROW, "expected a line '# gpu: …' at its head"),
        (HEAD.replace("# source: lab run 7\n", "") + COLUMNS + ROW, "expected a line '# source: …' at its head"),
        (HEAD.replace("# licence: CC0\n", "") + COLUMNS + ROW, "expected a line '# licence: …' at its head"),
        (HEAD.replace("# timing: event\n", "") + COLUMNS + ROW, "expected a line '# timing: …' at its head"),
        (HEAD.replace("event", "sync") + COLUMNS + ROW,
         "timing: expected profiler, alone, rested, graph, backend, event; got 'sync'"),
        (HEAD + "# torch: new\n" + COLUMNS + ROW,
         "torch: expected a release of PyTorch from 1.0 on, such as '1.12' or '2.4'; got 'new'"),
        (HEAD, "not a campaign: No columns to parse from file"),
        (HEAD + "op,dtype,m\nadd,fp32,7\n", "expected columns op, dtype and seconds; seconds is missing"),
        (HEAD + "kind,m,seconds\nadd,7,1\n", "expected columns op, dtype and seconds; op, dtype is missing"),
        (HEAD + COLUMNS + ROW.replace("0.00041", "fast"), "line 6: seconds: expected a positive number; got 'fast'"),
        (HEAD + COLUMNS + ROW + ROW.replace("0.00041", "0.0004.1"),
         "line 7: seconds: expected a positive number; got '0.0004.1'"),
        (b"\x89PNG\r\n\x1a\n" + b"\x00" * 50, "is no text in UTF-8: invalid start byte at byte 0"),
    ],
)  # fmt: skip
def test_what_is_not_a_campaign(tmp_path: Path, content: str | bytes, message: str) -> None:
    assert refused(tmp_path / "run.csv", content) == message


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    for end in (len("linear,fp32,51"), len("linear,fp32,512,1280,1280,"), len("linear,fp32,512,1280,1280,0.0")):
        content = HEAD + COLUMNS + ROW + ROW[:end]
        assert refused(tmp_path / "run.csv", content).startswith("line 7: seconds: expected a positive number; got ")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.csv", "cannot be read: No such file"), (tmp_path, "is a directory")):
        with pytest.raises(CampaignError, match=f"^{re.escape(str(path))}: {reason}"):
            read_campaign(path)


@pytest.mark.parametrize(
    ("seconds", "shown"), [("-1.5", "-1.5"), ("nan", "nan"), ("inf", "inf"), ("0.0", "0.0"), ("", "nan")]
)
def test_seconds_that_are_none_are_shown_as_they_stand(tmp_path: Path, seconds: str, shown: str) -> None:
    content = HEAD + COLUMNS + ROW + ROW.replace("0.00041", seconds)
    assert refused(tmp_path / "run.csv", content) == f"line 7: seconds: expected a positive number; got {shown}"


def test_lines_are_those_of_an_editor(tmp_path: Path) -> None:
    # Four lines of head, the columns on line 7, a row on line 9.
    content = HEAD + "# driver: 580\n\n" + COLUMNS + "\n" + ROW.replace("0.00041", "-1") + ROW
    assert refused(tmp_path / "run.csv", content) == "line 9: seconds: expected a positive number; got -1.0"


def test_what_else_the_head_says_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    file.write_text(HEAD + "# driver: 580.65\n" + COLUMNS + ROW)
    found = read_campaign(file)
    assert found.notes == {"driver": "580.65"}
    assert found.like is None
    assert replace(found, notes={"torch": "2.1.0+cu121"}).like == Release(2, 1, 0)
    write_campaign(found, tmp_path / "again.csv")
    assert read_campaign(tmp_path / "again.csv").notes == found.notes


def test_a_row_with_a_cell_too_many_is_told_in_one_line(tmp_path: Path) -> None:
    assert refused(tmp_path / "run.csv", HEAD + COLUMNS + ROW + ROW.replace("\n", ",7\n")) == (
        "not a campaign: Error tokenizing data. C error: Expected 6 fields in line 7, saw 7"
    )


KNOWN_FORMATS = "(known: fp64, fp32, tf32, fp16, bf16, fp8, int8)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEAD + COLUMNS, "expected at least one measurement; got none"),
        (HEAD + COLUMNS + ROW.replace("\n", ",7\n"), "its rows have more cells than its head line has columns"),
        (HEAD + COLUMNS + ROW + ROW.replace("fp32", "fp31"),
         f"line 7: dtype 'fp31' is not one that can be timed; did you mean 'fp32' or 'fp16' or 'fp8'? {KNOWN_FORMATS}"),
        (HEAD + COLUMNS + ROW + ROW.replace("512", "-5"), "line 7: m of linear: expected a positive integer; got -5"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_counted(tmp_path: Path, content: str, message: str) -> None:
    assert refused(tmp_path / "run.csv", content) == message
