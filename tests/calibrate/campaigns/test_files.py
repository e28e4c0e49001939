"""Both kinds of files: told apart, held against their rules, summarized, merged where they belong together."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from records import case
from refusals import refused

from rooflinekit.calibrate.bench.record_file import Head, Measurement, Recorded, read_record, recording, write_record
from rooflinekit.calibrate.campaigns.campaign import Campaign, read_campaign, write_campaign
from rooflinekit.calibrate.campaigns.files import Failure, merge_files, read_file, summarize_file, validate
from rooflinekit.errors import CampaignError, InputError, OutputError

HEAD = Head(device="nvidia-t4", plan="tiny", digest="d" * 16, units=6, environment={"torch": "2.13", "driver": "580"})


def one(op: str, rows: int, turn: int = 0, dtype: str = "fp32", seconds: tuple[float, ...] = (1.0,) * 5) -> Measurement:
    made = case(op, dtype, rows=rows, cols=8)
    return Measurement(case=made, round=turn, status="ok", timing="graph", inner=10, seconds=seconds)


def failed(op: str, rows: int, turn: int, status: str, note: str) -> Measurement:
    return replace(one(op, rows, turn, seconds=()), status=status, note=note, timing="", inner=0)


def record(file: Path, *measurements: Measurement, head: Head = HEAD, finished: bool = False) -> Path:
    write_record(Recorded(head=head, measurements=measurements, finished=finished), file)
    return file


def campaign(file: Path, rows: dict[str, object], **fields: str) -> Path:
    about = {"gpu": "nvidia-t4", "source": "lab run 7", "licence": "CC0", "timing": "graph", **fields}
    notes = {name: about.pop(name) for name in tuple(about) if name not in ("gpu", "source", "licence", "timing")}
    write_campaign(Campaign(**about, rows=pd.DataFrame(rows)), file, notes)
    return file


MM = {"op": ["mm", "mm"], "dtype": ["fp32", "fp16"], "m": [8, 8], "n": 8, "k": 8, "seconds": [1e-5, 2e-5]}
ADD = {"op": ["add"], "dtype": ["fp32"], "rows": [8], "cols": [4], "seconds": [3e-5]}


# --- told apart, and held against their rules -------------------------------------------------------------------------


def test_which_of_both_it_is(tmp_path: Path) -> None:
    assert isinstance(read_file(record(tmp_path / "a.jsonl", one("add", 1))), Recorded)
    assert isinstance(read_file(record(tmp_path / "renamed.txt", one("add", 1))), Recorded)
    assert isinstance(read_file(campaign(tmp_path / "b.csv", MM)), Campaign)


def test_what_is_wrong_with_each(tmp_path: Path) -> None:
    good, edited, cut, rows, none = (tmp_path / name for name in ("g.jsonl", "e.jsonl", "c.jsonl", "r.csv", "n.jsonl"))
    content = record(good, one("add", 1), one("add", 2)).read_bytes()
    edited.write_bytes(content.replace(b'"rows":2', b'"rows":3'))
    cut.write_bytes(content[:-5])
    rows.write_text(campaign(tmp_path / "fine.csv", MM).read_text().replace("2e-05", "-2e-05"))
    assert validate([good, edited, cut, rows, none, tmp_path]) == {
        good: "",
        edited: "line 3: was changed, added or taken from elsewhere after it was measured",
        cut: "line 3: is cut off; 'rooflinekit calibrate' with the same --out measures it again",
        # four lines of head and the columns come first
        rows: "line 7: seconds: expected a positive number; got -2e-05",
        none: "cannot be read: No such file or directory",
        tmp_path: "is a directory; expected a file",
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (one("add", 2, seconds=(1.0, -1.0)),
         "line 3: add fp32 rows=2 cols=8: seconds: expected positive numbers; got -1.0"),
        (one("add", 2, seconds=()), "line 3: add fp32 rows=2 cols=8: status 'ok' does not go with 0 samples"),
        (replace(one("add", 2), status="unsupported"),
         "line 3: add fp32 rows=2 cols=8: status 'unsupported' does not go with 5 samples"),
        (one("add", 1), "line 3: add fp32 rows=1 cols=8: round 0 is already on line 2"),
    ],
)  # fmt: skip
def test_numbers_that_nothing_can_have_measured(tmp_path: Path, wrong: Measurement, message: str) -> None:
    file = record(tmp_path / "a.jsonl", one("add", 1), wrong)
    assert read_record(file).measurements[1] == wrong  # its checks are right
    with refused(CampaignError, f"{file}: {message}"):
        read_file(file)


# --- in short ---------------------------------------------------------------------------------------------------------


def test_a_record_in_short(tmp_path: Path) -> None:
    file = record(
        tmp_path / "a.jsonl",
        one("add", 1),
        one("add", 1, 1),
        one(
            "add", 2, seconds=(1.0, 1.0, 1.0, 2.0, 2.0, 2.0)
        ),  # the middle half is spread over two thirds of the median
        one("mm", 1, dtype="fp16"),
        failed("mm", 2, 0, "unsupported", "no such call"),
        failed("mm", 2, 1, "unsupported", "no such call"),
        failed("mm", 3, 0, "out of memory", "tried 2 GiB"),
    )
    found = summarize_file(file)
    assert (found.device, found.origin) == ("nvidia-t4", "plan tiny, 7 of 6 measurements")
    assert found.environment == HEAD.environment
    assert found.counts == {("add", "fp32"): 2, ("mm", "fp16"): 1}
    assert found.cases == 3
    assert found.noisy == ("add fp32 rows=2 cols=8",)
    assert found.failures == (
        Failure(status="unsupported", cases=("mm fp32 rows=2 cols=8",), note="no such call"),
        Failure(status="out of memory", cases=("mm fp32 rows=3 cols=8",), note="tried 2 GiB"),
    )


def test_a_campaign_in_short(tmp_path: Path) -> None:
    found = summarize_file(campaign(tmp_path / "a.csv", MM, driver="580.65"))
    assert (found.device, found.origin) == ("nvidia-t4", "lab run 7; timing graph; licence CC0")
    assert found.environment == {"driver": "580.65"}
    assert found.counts == {("mm", "fp32"): 1, ("mm", "fp16"): 1}
    assert found.noisy == found.failures == ()


# --- together ---------------------------------------------------------------------------------------------------------


def test_parts_of_a_plan_become_its_record(tmp_path: Path) -> None:
    parts = [one("add", 1), one("add", 2), one("add", 3)], [one("add", 1, 1), one("add", 2, 1), one("add", 3, 1)]
    files = [record(tmp_path / f"{i}.jsonl", *part) for i, part in enumerate(parts)]
    out = tmp_path / "both.jsonl"
    merge_files(files, out)
    found = read_record(out)
    assert (found.head, found.measurements, found.finished) == (HEAD, (*parts[0], *parts[1]), True)
    with recording(out, HEAD, 100) as recorder:  # calibrate goes on with it
        assert len(recorder.done) == 6


def test_a_copy_adds_nothing(tmp_path: Path) -> None:
    first = record(tmp_path / "a.jsonl", one("add", 1))
    longer = record(tmp_path / "b.jsonl", one("add", 1), one("add", 2))
    merge_files([first, longer], tmp_path / "both.jsonl")
    assert read_record(tmp_path / "both.jsonl") == read_record(longer)


def test_a_case_measured_twice_has_rounds_of_both(tmp_path: Path) -> None:
    monday = record(tmp_path / "a.jsonl", one("add", 1), one("add", 1, 1), one("add", 2))
    tuesday = record(tmp_path / "b.jsonl", one("add", 1, seconds=(2.0,) * 5), one("add", 3))
    merge_files([monday, tuesday], tmp_path / "both.jsonl")
    found = read_record(tmp_path / "both.jsonl")
    # Monday had rounds 0 and 1: Tuesday's first is round 2.
    assert [(m.case.sizes["rows"], m.round, m.seconds[0]) for m in found.measurements] == [
        (1, 0, 1.0), (1, 1, 1.0), (2, 0, 1.0), (1, 2, 2.0), (3, 2, 1.0),
    ]  # fmt: skip
    assert found.head.digest != HEAD.digest  # not the plan's record: calibrate does not go on with it
    assert (found.head.plan, found.head.units, found.finished) == ("tiny", 5, True)


def test_records_of_two_plans(tmp_path: Path) -> None:
    first = record(tmp_path / "a.jsonl", one("add", 1))
    other = record(tmp_path / "b.jsonl", one("mm", 1), head=replace(HEAD, plan="large", digest="e" * 16))
    merge_files([first, other], tmp_path / "both.jsonl")
    found = read_record(tmp_path / "both.jsonl")
    assert (found.head.plan, found.head.units, len(found.head.digest)) == ("tiny+large", 2, 16)


def test_campaigns_together(tmp_path: Path) -> None:
    first = campaign(tmp_path / "a.csv", MM, driver="580")
    other = campaign(tmp_path / "b.csv", ADD, driver="580", source="lab run 8")
    merge_files([first, other], tmp_path / "both.csv")
    found = read_campaign(tmp_path / "both.csv")
    assert (found.source, found.timing, found.notes) == ("lab run 7; lab run 8", "graph", {"driver": "580"})
    assert found.rows[["op", "dtype", "seconds"]].to_numpy().tolist() == [
        ["mm", "fp32", 1e-5], ["mm", "fp16", 2e-5], ["add", "fp32", 3e-5],
    ]  # fmt: skip
    again = campaign(tmp_path / "c.csv", ADD, driver="580")
    merge_files([other, again], tmp_path / "copies.csv")
    assert len(read_campaign(tmp_path / "copies.csv").rows) == 1


def test_a_changed_environment_does_not_mix(tmp_path: Path) -> None:
    first, out = record(tmp_path / "a.jsonl", one("add", 1)), tmp_path / "both.jsonl"
    newer = record(
        tmp_path / "b.jsonl", one("add", 2), head=replace(HEAD, environment={"torch": "2.14", "driver": "580"})
    )
    other = record(tmp_path / "c.jsonl", one("add", 2), head=replace(HEAD, device="nvidia-l4"))
    silent = record(tmp_path / "d.jsonl", one("add", 2), head=replace(HEAD, environment={"torch": "2.13"}))
    end = "measurements of different conditions do not mix"
    with refused(CampaignError, f"{newer}: torch is '2.14', in {first} it is '2.13'; {end}"):
        merge_files([first, newer], out)
    with refused(CampaignError, f"{other}: device is 'nvidia-l4', in {first} it is 'nvidia-t4'; {end}"):
        merge_files([first, other], out)
    with refused(CampaignError, f"{silent}: driver is 'not said', in {first} it is '580'; {end}"):
        merge_files([first, silent], out)
    table, timed = campaign(tmp_path / "a.csv", MM), campaign(tmp_path / "b.csv", ADD, timing="event")
    with refused(CampaignError, f"{timed}: timing is 'event', in {table} it is 'graph'; {end}"):
        merge_files([table, timed], out)
    assert not out.exists()


def test_what_cannot_be_merged(tmp_path: Path) -> None:
    first, table, out = record(tmp_path / "a.jsonl", one("add", 1)), campaign(tmp_path / "a.csv", MM), tmp_path / "both"
    with refused(InputError, "merge: expected two files or more; got 1"):
        merge_files([first], out)
    with refused(InputError, f"merge: {first} is given twice"):
        merge_files([first, first], out)
    with refused(
        InputError,
        f"merge: {first} is a record of samples, {table} a campaign of medians; merge each kind by itself",
    ):
        merge_files([table, first], out)


def test_nothing_is_replaced_unless_told(tmp_path: Path) -> None:
    files = [record(tmp_path / "a.jsonl", one("add", 1)), record(tmp_path / "b.jsonl", one("add", 2))]
    before = files[0].read_bytes()
    with refused(OutputError, f"{files[0]}: exists; choose another file, or replace it with --force"):
        merge_files(files, files[0])
    assert files[0].read_bytes() == before
    merge_files(files, files[0], force=True)
    assert len(read_record(files[0]).measurements) == 2
