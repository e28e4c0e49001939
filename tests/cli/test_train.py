"""`rooflinekit train`: a decoder's step on many GPUs, and the search for a layout."""

import json
from pathlib import Path

from command_line import Run

from rooflinekit.errors import InputError
from rooflinekit.published.models import config_of

LLAMA = "llama-3.1-8b"
SIZES = ("--cluster", "dgx-h100", "--batch", "16", "--seq", "2048")


def test_a_step_says_its_time_its_memory_and_its_utilization(run: Run) -> None:
    out = run("train", LLAMA, *SIZES, "--tp", "2").out
    assert "layout TP 2, SP, zero-1, micro-batch 1; recipe megatron, recompute none" in out
    assert "MFU " in out
    assert "memory: weights" in out


def test_stages_of_zero_are_names_of_shardings(run: Run) -> None:
    for stage, sharding in (("zero-2", "grad-op"), ("zero-3", "fsdp")):
        one, other = (run("train", LLAMA, *SIZES, "--sharding", word).out for word in (stage, sharding))
        assert one == other


def test_what_does_not_fit_says_so_first_and_no_time(run: Run) -> None:
    first, *_, last = run("train", "llama-3.1-70b", *SIZES).out.splitlines()
    assert "does not fit: needs " in first
    assert "--search" in last
    assert "tokens/s" not in first


def test_search_draws_what_it_found(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "layouts.svg"
    small = tmp_path / "small.json"
    _, config = config_of(LLAMA, InputError)
    small.write_text(json.dumps({**config, "num_hidden_layers": 2}), encoding="utf-8")
    args = ("train", small, "--cluster", "dgx-h100", "--gpus", 2, "--batch", 4, "--seq", 1024, "--search")
    document = run(*args, "--out", picture, "--json").document
    assert document["step"]["total_s"] == document["search"]["front"][0]["total_s"]
    assert picture.read_text(encoding="utf-8").startswith("<?xml")


def test_wrong_use_is_one_line(run: Run, tmp_path: Path) -> None:
    for args, message in (
        ((*SIZES, "--out", tmp_path / "a.svg"), "--out: draws what --search has found; add --search\n"),
        ((*SIZES, "--search", "--tp", "2"), "--tp: --search chooses the layout"),
        ((), "--cluster is missing: a cluster, as `rooflinekit clusters` lists them\n"),
        (
            (*SIZES, "--micro-batch", "4"),  # 8 copies with 2 of the 16 sequences each
            "batch=16 cannot be cut for 8 copies with micro-batches of 4: expected 32 or more\n",
        ),
        ((*SIZES, "--gpus", "0"), "--gpus: expected 1 or more\n"),
        ((*SIZES, "--tokens", "15T"), "--tokens: expected a number in digits, such as 8 or 1.5e12\n"),
    ):
        run("train", LLAMA, *args).refused(message)
    run("train", LLAMA, *SIZES, "--tp", "3").refused(has="expected a multiple of 3 GPUs; got 8")
