"""`rooflinekit sweep` and `search`, and what is said of wrong use."""

import json
from pathlib import Path

import pandas as pd
import pytest
from command_line import Run

from rooflinekit.study.sweep import run as sweep_run

#: See the fixture `net`.
NET = "from torch import nn\nNet = nn.Sequential(nn.Linear(64, 128, bias=False))\n"

INPUT = ("-i", "batch,64")


def test_lists_and_ranges(run: Run, net: str, tmp_path: Path) -> None:
    options = (net, *INPUT, "--batch", "1,4:8:2", "--gpu", "l4", "--execution", "eager,compiled")
    rows = json.loads(run("sweep", *options, "--json").answered())["rows"]
    assert [(row["execution"], row["batch"]) for row in rows] == [
        (way, batch) for way in ("eager", "compiled") for batch in (1, 4, 6, 8)
    ]
    lines = (" ".join(line.split()) for line in run("sweep", *options).out.strip().splitlines())
    heading, alike, _, head, _, first, *_ = lines
    assert heading == "Net, inference, float32"  # in two ways of execution, which the table has
    assert alike.startswith("alike in all: ")
    assert head == "gpu execution batch step 90 % interval GPU busy CPU issuing power J/step samples/s"
    assert first.startswith("nvidia-l4 eager 1 ")
    assert " µs " in first
    out = tmp_path / "s.csv"
    assert run("sweep", *options, "--out", out).out == f"8 rows written to {out}\n"
    assert pd.read_csv(out)["total_s"].tolist() == pytest.approx([row["total_s"] for row in rows])


def test_sizes_that_go_together(run: Run, net: str) -> None:
    options = (net, "-i", "batch,seq,64", "--batch", "1,2", "--seq", "8,4", "--gpu", "l4")
    rows = run("sweep", *options, "--zip", "batch,seq", "--json").document["rows"]
    assert [(row["batch"], row["seq"]) for row in rows] == [(1, 8), (2, 4)]


def test_clusters(run: Run, net: str) -> None:
    options = (net, *INPUT, "--batch", "64", "--mode", "training", "--cluster", "dgx-a100", "--gpus", "1,2")
    rows = run("sweep", *options, "--strategy", "ddp,fsdp", "--json").document["rows"]
    assert [(row["gpus"], row["strategy"]) for row in rows] == [(1, "ddp"), (1, "fsdp"), (2, "ddp"), (2, "fsdp")]
    price = ("--minimize", "price", "--price", "nvidia-a100-sxm4-80gb=12000")
    found = run("search", *options, *price, "--require", "price>12000", "--json").document
    assert (found["best"]["gpus"], found["best"]["price"]) == (2, 24_000)


def test_a_search(run: Run, net: str) -> None:
    # of the same GPU more rows take no less memory
    options = (net, *INPUT, "--batch", "1:64", "--gpu", "rtx-3090", "--minimize", "memory", "--require", "batch>=8")
    found = run("search", *options, "--json").document
    assert (found["best"]["batch"], found["predicted"], found["exhaustive"]) == (8, 64, True)
    heading, head, *_ = run("search", *options).out.splitlines()
    assert heading == "Net, inference, float32, eager"
    assert head.startswith("least memory with batch>=8: all 64 configurations predicted")


def test_a_search_without_an_objective_is_for_throughput(run: Run, net: str) -> None:
    # The shortest step is that of the smallest batch, which nobody looks for.
    options = (net, *INPUT, "--batch", "1,64,4096", "--gpu", "rtx-3090")
    found = run("search", *options, "--json").document
    assert (found["maximize"], found["minimize"], found["best"]["batch"]) == ("throughput", None, 4096)
    assert found["runners_up"] == []
    words = run("search", *options).out.splitlines()[1]
    assert words.startswith("most throughput: all 3 configurations predicted")
    assert run("search", *options, "--minimize", "time", "--json").document["best"]["batch"] == 1


def test_prices_go_by_any_name_of_a_device(run: Run, net: str) -> None:
    options = (net, *INPUT, "--batch", "8", "--gpu", "l40s", "--minimize", "cost", "--price", "L40S=$1.80")
    best = run("search", *options, "--json").document["best"]
    assert best["price"] == 1.8
    words = run("search", *options).out
    assert "USD an hour   USD a million samples" in words
    # dollars of an hour by samples of an hour, a million times
    assert f"{1.8 / (best['throughput'] * 3600) * 1e6:.4g}" in words


def test_everything_is_looked_at_before_the_model(run: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("raise SystemError('was imported')")
    options = (f"{tmp_path / 'net.py'}:Net", *INPUT, "--batch", "8,16", "--gpu", "l40s")
    for wrong, message in (
        (("--price", "a100=1"), "--price a100=…: this GPU is not among those compared: nvidia-l40s"),
        (("--price", "l40s=1", "--prices", "example"), "--price, --prices: give one of the two"),
        (("--maximize", "time"), "maximize 'time': expected 'throughput'; minimize 'time'"),
        (("--maximize", "throughput", "--minimize", "time"), "minimize 'time' and maximize 'throughput': expected one"),
        (("--zip", "batch,sqe"), "zip: "),
    ):
        run("search", *options, *wrong).refused(message)


def test_memory_that_runs_out_loses_no_piece(
    run: Run, net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("sweep", net, *INPUT, "--batch", "1:4", "--gpu", "l4")
    out = tmp_path / "s.json"

    def none(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(sweep_run, "_ordered", none)
        lines = [run(*options, "--out", out).err, run(*options).err]
    remedy = "take fewer sizes, or --out NAME.parquet, which never holds all rows at once\n"
    assert lines == [
        f"rooflinekit: memory ran out: finished pieces of {out} are kept; {remedy}",
        f"rooflinekit: memory ran out: {remedy}",
    ]
    assert len(list((tmp_path / "s.json.parts").glob("part-*"))) == 1
    assert run(*options, "--out", out).status == 0
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("s.")] == ["s.json"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("sweep", "--batch", "1:"), "--batch: expected numbers such as 1,2,4, 1:64 or 8:4096:8; got '1:'"),
        (("sweep", "--batch", "1..64"), "--batch: expected numbers such as 1,2,4, 1:64 or 8:4096:8; got '1..64'"),
        (("predict", "--batch", "1,2"), "--batch: expected a positive integer; got '1,2'; `rooflinekit sweep` and"),
        (("sweep", "--batch", "1", "--csv", "--out", "s.csv"), "--csv prints, and --out writes: give one of the two"),
        (("sweep", "--batch", "8:4"), "--batch: '8:4' has no numbers: the last is below the first"),
        (("search", "--batch", "1:1000000000"), "--batch: expected at most 1,000,000 numbers; got 1,000,000,000"),
        (("sweep", "--batch", "1:9:0"), "--batch: expected a number, FIRST:LAST or FIRST:LAST:STEP; got '1:9:0'"),
        (("sweep",), "no number is given for size 'batch': add batch=… (--batch … on the command line)"),
        (("sweep", "--batch", "1", "--out", "s.xls"), "out: 's.xls': expected a name that ends in .parquet, .csv or"),
        (("sweep", "--batch", "1", "--json", "--out", "s.csv"), "--json prints, and --out writes: give one of the two"),
        (("sweep", "--batch", "1", "--zip", "batch"), "zip: expected two or more sizes that vary together; got batch"),
        (("sweep", "--batch", "1", "--gpus", "2"), "--gpus: belongs to --cluster, which is missing"),
        (("sweep", "--batch", "1", "--strategy", "ddp"), "--strategy: belongs to --cluster, which is missing"),
        (
            ("sweep", "--batch", "1", "--cluster", "dgx-a100"),
            "--gpu: a cluster has GPUs of its own; leave out --gpu or --clu",
        ),
        (("sweep", "--batch", "1", "--out", "/none/s.csv"), "/none/s.csv: cannot be written: there is no folder /none"),
        (("search", "--batch", "1", "--price", "l4"), "--price 'l4': expected a GPU and the dollars of an hour, such"),
        (("search", "--batch", "1", "--minimize", "cosy"), "minimize 'cosy': expected 'time' or "),
        (("search", "--batch", "1", "--require", "x<1"), "require 'x<1': 'x' is not known: time, low, high"),
    ],
)
def test_wrong_use(run: Run, net: str, args: tuple[str, ...], message: str) -> None:
    run(args[0], net, *INPUT, "--gpu", "l4", *args[1:]).refused(message)
