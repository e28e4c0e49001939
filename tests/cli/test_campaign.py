"""`rooflinekit campaign`, as a user meets it."""

from pathlib import Path

import pytest
from command_line import Run, caller
from records import record

from rooflinekit.calibrate.bench.record_file import read_record

TABLE = "# gpu: nvidia-t4\n# source: lab\n# licence: CC0\n# timing: event\nop,dtype,m,n,k,seconds\nmm,fp16,8,8,8,1e-5\n"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    record("a.jsonl", (1, 2))
    record("b.jsonl", (3,))
    Path("t.csv").write_text(TABLE)

    called = caller(monkeypatch, capsys)
    return lambda *args: called("campaign", *args)


def test_validate(run: Run) -> None:
    found = run("validate", "a.jsonl", "t.csv")
    assert (found.status, found.out, found.err) == (0, "a.jsonl: sound\nt.csv: sound\n", "")
    Path("t.csv").write_text(TABLE.replace("8,8,8", "8,0,8"))
    content = Path("a.jsonl").read_text()
    Path("a.jsonl").write_text(content.replace("1.0,1.0,2.0", "1.0,1.0,1.0", 1))
    found = run("validate", "a.jsonl", "t.csv", "b.jsonl", "none.csv")
    assert (found.status, found.err) == (1, "")
    assert found.out == (
        "a.jsonl: line 2: was changed, added or taken from elsewhere after it was measured\n"
        "t.csv: line 6: n of mm: expected a positive integer; got 0\n"
        "b.jsonl: sound\n"
        "none.csv: cannot be read: No such file or directory\n"
    )


def test_summarize(run: Run) -> None:
    assert [line.rstrip() for line in run("summarize", "a.jsonl", "t.csv").answered().splitlines() if line.strip()] == [
        "a.jsonl: nvidia-t4, plan tiny, 3 of 4 measurements",
        "  torch: 2.13",
        "  driver: 580.65",
        " measured cases   fp32",
        " ─────────────────────",
        " add                 2",
        "noisy: 2 of 2 cases, such as add fp32 rows=1 cols=8",
        "unsupported: 1 case, such as mm fp8 m=8 n=8 k=8: no such call",
        "t.csv: nvidia-t4, lab; timing event; licence CC0",
        " measured cases   fp16",
        " ─────────────────────",
        " mm                  1",
    ]


def test_merge(run: Run) -> None:
    lines = run("merge", "a.jsonl", "b.jsonl", "--out", "both.jsonl").answered().splitlines()
    assert lines[0] == "both.jsonl: nvidia-t4, plan tiny, 4 of 4 measurements, finished"
    assert lines[-1] == "written to both.jsonl"
    assert read_record(Path("both.jsonl")).finished
    before = Path("both.jsonl").read_bytes()
    found = run("merge", "a.jsonl", "b.jsonl", "--out", "both.jsonl")
    assert found.err == "rooflinekit: both.jsonl: exists; choose another file, or replace it with --force\n"
    assert run("merge", "a.jsonl", "b.jsonl", "--out", "both.jsonl", "--force").status == 0
    assert Path("both.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("summarize", "none.csv"), "none.csv: cannot be read: No such file or directory"),
        (("merge", "a.jsonl", "--out", "c"), "merge: expected two files or more; got 1"),
        (("merge", "a.jsonl", "t.csv", "--out", "c"),
         "merge: a.jsonl is a record of samples, t.csv a campaign of medians; merge each kind by itself"),
        (("merge", "a.jsonl", "newer.jsonl", "--out", "c"),
         "newer.jsonl: driver is '590.1', in a.jsonl it is '580.65'; measurements of different conditions do not mix"),
        (("merge", "a.jsonl", "b.jsonl", "--out", "none/c"), "none/c: cannot be written: No such file or directory"),
    ],
)  # fmt: skip
def test_wrong_arguments(run: Run, args: tuple[str, ...], message: str) -> None:
    record("newer.jsonl", (3,), driver="590.1")
    run(*args).refused(f"{message}\n")
    assert not Path("c").exists()


def test_alone_it_says_what_there_is(run: Run) -> None:
    found = run()
    assert found.status == 0
    assert all(word in found.out for word in ("validate", "summarize", "merge"))
