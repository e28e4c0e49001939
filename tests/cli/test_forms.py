"""`--brief`, `--csv` and `--markdown` print the tables alone, and lines fit where they are read."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from command_line import Run

CALL = ("examples/googlenet_cifar.py:GoogLeNet", "--input", "batch,3,32,32", "--gpu", "nvidia-l4", "--gpu", "nvidia-t4")
PREDICT = ("predict", *CALL, "--batch", "4")
COMPARE = ("compare", *CALL, "--batch", "4")
SWEEP = ("sweep", *CALL, "--batch", "1,4")
SMALL = ("examples/bottlenecks.py:A", "--input", "batch,64,160,120")
ADVISE = ("advise", *SMALL, *CALL[3:5], "--batch", "4")
PARALLEL = ("parallel", *SMALL, "--batch", "4", "--cluster", "dgx-a100", "--gpus", "2")
TRAIN = ("train", "llama-3.1-8b", "--cluster", "dgx-h100", "--batch", "16", "--seq", "2048")
SERVE = ("serve", "llama-3.1-8b", "--gpu", "l40s", "--gpu", "t4", "--batch", "1,4", "-i", "64", "--output", "8")
RATES = (*SERVE[:4], "--rate", "1,2/s", "--requests", "20", "-i", "64", "--output", "8")
EXPLAIN = ("explain", *CALL[:3], "--batch", "4", *CALL[3:])
COLLECTIVE = ("collective", "all-reduce", "--cluster", "dgx-h100", "--bytes", "1 MB")
LEVELS = (*SERVE[:4], "--slo", "ttft=1s", "--load", "9/s", "--requests", "5", "-i", "64", "--output", "8")
FIT = ("fit-into", *SMALL, *CALL[3:5], "--batch", "4", "--optimizer", "Adam")
#: Each command is called in several forms: what it traces is kept.
pytestmark = pytest.mark.usefixtures("kept_traces")
COST = ("cost", *CALL, "--batch", "4", "--price", "l4=0.8", "--price", "t4=0.4", "--autocast", "bf16")
POWER = ("power", *CALL[:5], "--batch", "4", "--autocast", "bf16", "--step", "20 W")


def rows_of(text: str) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("command", [PREDICT, COMPARE], ids=lambda c: c[0])
def test_csv_has_the_numbers_of_json(run: Run, command: tuple[str, ...]) -> None:
    document = run(*PREDICT, "--json").document
    by_gpu = {row["gpu"]: row for row in rows_of(run(*command, "--csv").out)}
    assert len(by_gpu) == 2
    for prediction in document["predictions"]:
        assert float(by_gpu[prediction["device"]]["total_s"]) == pytest.approx(prediction["total_s"], rel=1e-12)


def test_a_document_has_all_digits(run: Run) -> None:
    predicted = run(*PREDICT, "--json").document["predictions"]
    swept = run("sweep", *PREDICT[1:], "--json").document["rows"]
    assert [row["total_s"] for row in swept] == pytest.approx([one["total_s"] for one in predicted], rel=1e-12)


def test_a_sweep_as_csv_has_a_line_a_point(run: Run) -> None:
    rows = rows_of(run(*SWEEP, "--csv").out)
    assert [(row["gpu"], row["batch"]) for row in rows] == [
        (gpu, batch) for gpu in ("nvidia-l4", "nvidia-t4") for batch in ("1", "4")
    ]


#: Commands whose text is sentences or several tables: where the records of their documents are, what tells them apart,
#: and a number of each. A column of "at.gpu" is called at_gpu.
RECORDS = [
    (ADVISE, "suggestions", ("what",), "saved_s"),
    (PARALLEL, None, ("cluster",), "total_s"),
    (TRAIN, "step", ("layout",), "tokens_per_s"),
    (("hosts",), "hosts", ("name",), "backward_factor"),
    (("clusters",), "clusters", ("name",), "nodes"),
    (COLLECTIVE, None, ("algorithm",), "total_s"),
    (FIT, "tried", ("combination",), "total_s"),
    (SERVE, "servings", ("gpu", "batch"), "ttft_s"),
    (RATES, "served", ("rate",), "requests_per_s"),
    (LEVELS, "capacities", ("at.gpu",), "at.joules_per_token"),
]


def at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document[name]
    return document


@pytest.mark.parametrize(("command", "records", "names", "number"), RECORDS, ids=lambda c: str(c)[2:9])
def test_an_answer_in_words_is_a_table_for_programs(
    run: Run, command: tuple[str, ...], records: str | None, names: tuple[str, ...], number: str
) -> None:
    document = run(*command, "--json").document
    told = [document] if records is None else document[records]
    told = told if isinstance(told, list) else [told]
    lines = [row for row in rows_of(run(*command, "--csv").out) if not row.get("why")]
    for row, one in zip(lines, told, strict=True):
        assert [row[name.replace(".", "_")] for name in names] == [str(at(one, name)) for name in names]
        assert float(row[number.replace(".", "_")]) == pytest.approx(at(one, number), rel=1e-12)
    shown = run(*command, "--markdown").out.splitlines()
    assert len({line.count("|") for line in shown}) == 1
    assert "judged" not in run(*command, "--brief").out


def test_what_is_asked_for_beside_the_answer_is_in_the_csv(run: Run) -> None:
    asked = ("predict", *SMALL, *CALL[3:], "--batch", "4", "--terms", "--largest-batch")
    document = run(*asked, "--json").document["predictions"]
    for row, told in zip(rows_of(run(*asked, "--csv").out), document, strict=True):
        assert int(row["largest_batch"]) == told["largest_batch"]
        assert sum(float(row[f"{term}_s"]) for term in told["terms"]) == pytest.approx(float(row["total_s"]))


def test_an_explanation_as_csv_has_a_line_a_step(run: Run) -> None:
    (told,) = run(*EXPLAIN, "--json").document["explanations"]
    rows = rows_of(run(*EXPLAIN, "--csv").out)
    assert [row["step"] for row in rows] == told["labels"]
    for row, side in zip(rows, ("a", "b"), strict=True):
        assert {term: float(row[f"{term}_s"]) for term in told[side]["terms"]} == pytest.approx(told[side]["terms"])


def test_what_cannot_be_served_is_a_line_with_its_reason(run: Run) -> None:
    rows = rows_of(run(*SERVE, "--csv").out)
    assert [(row["gpu"], row["batch"]) for row in rows if row["why"]] == [("t4", "1"), ("t4", "4")]


def test_tables_with_the_same_columns_are_one(run: Run) -> None:
    command = ("power", *CALL, "--batch", "4", "--step", "20 W")
    assert {row["device"] for row in rows_of(run(*command, "--csv").out)} == {"nvidia-l4", "nvidia-t4"}
    first, second = run(*command, "--markdown").out.split("\n\n")
    assert first.splitlines()[0] == second.splitlines()[0]


def test_a_table_that_is_asked_for_stands_alone_and_whole(run: Run) -> None:
    one, two = (rows_of(run(*call, "--by", "kernel", "--csv").out) for call in (PREDICT[:6] + PREDICT[8:], PREDICT))
    assert len(one) > 25
    assert two[: len(one)] == one
    assert {row["gpu"] for row in two} == {"nvidia-l4", "nvidia-t4"}
    markdown = run(*PREDICT[:6], *PREDICT[8:], "--by", "kernel", "--markdown").out
    assert len(markdown.splitlines()) == len(one) + 2


@pytest.mark.parametrize("command", [PREDICT, COMPARE, SWEEP, COST, POWER], ids=lambda c: c[0])
def test_markdown_has_as_many_cells_in_each_line(run: Run, command: tuple[str, ...]) -> None:
    lines = run(*command, "--markdown").out.splitlines()
    assert len(lines) >= 4
    assert len({line.count("|") for line in lines}) == 1
    assert set(lines[1]) <= set("|-: ")


def test_what_is_alike_in_all_rows_stays_in_a_table_alone(run: Run) -> None:
    same = ("sweep", *CALL[:3], "--gpu", "nvidia-b200-sxm-180gb", "--batch", "1,2")  # as the CPU decides
    (line,) = [line for line in run(*same).out.splitlines() if line.startswith("alike in all: ")]
    step = line.partition("step ")[2].partition(",")[0]
    assert step.endswith("ms")
    for form in ("--markdown", "--brief"):
        assert run(*same, form).out.count(step) == 2


@pytest.mark.parametrize("command", [COST, POWER], ids=lambda c: c[0])
def test_a_table_of_prices_or_limits_says_what_is_predicted(run: Run, command: tuple[str, ...]) -> None:
    title = run(*command).out.splitlines()[0]
    assert title.startswith("GoogLeNet, inference, batch 4, float32 with autocast bfloat16, eager")
    assert all(float(row["total_s"]) > 0 for row in rows_of(run(*command, "--csv").out))


def test_brief_is_the_table_alone(run: Run) -> None:
    whole, brief = run(*COMPARE).out, run(*COMPARE, "--brief").out
    assert brief in whole
    assert "inference" in whole
    assert "inference" not in brief


def test_one_form_at_a_time(run: Run) -> None:
    assert run(*PREDICT, "--csv", "--json").err == "rooflinekit: --csv and --json: choose one\n"
    assert run(*PREDICT, "--brief", "--markdown").err == "rooflinekit: --brief and --markdown: choose one\n"


def test_a_form_lasts_for_one_command(run: Run) -> None:
    before = run(*PREDICT).out
    run(*PREDICT, "--csv")
    assert run(*PREDICT).out == before


@pytest.mark.parametrize("command", [("devices",), FIT], ids=lambda c: c[0])
@pytest.mark.parametrize("columns", [80, 100])
def test_no_table_is_wider_than_the_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: int, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = [line for line in run(*command).out.splitlines() if not line.startswith(("note: ", "left out"))]
    assert 50 < max(map(len, lines)) <= columns


@pytest.mark.parametrize("columns", [50, 80, 100])
def test_tables_are_as_wide_as_where_they_are_read(run: Run, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    wide = {cell for line in run(*COMPARE, "--brief").out.splitlines() for cell in line.split("  ") if cell.strip()}
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = run(*COMPARE, "--brief").out
    assert max(map(len, narrow.splitlines())) <= columns
    # No column is lost, and none is torn: each cell stands in the narrow tables as in the wide one.
    assert all(cell.strip() in narrow for cell in wide if "─" not in cell)
