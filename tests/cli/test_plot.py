"""`rooflinekit plot`, as a user meets it."""

import re

import pytest
from traces import two_steps, write

#: See the fixture `net`.
NET = "from torch import nn\n\ndef Net():\n    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(inplace=True))\n"

COMMON = ("--input", "batch,64", "--batch", 32, "--gpu", "nvidia-l4")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "ridge"),
        (("--venue", "ieee", "--width", "page", "--by-level"), "L2 "),
        (("--normalized", "--gpu", "nvidia-t4"), "Share of its own roof"),
        (("--launch",), "a kernel"),
        (("--over", "batch=1,64,4096"), "batch 4096"),
        (("--what", "timeline"), "CPU issues"),
        (("--what", "memory"), "peak "),
        (("--what", "sweep", "--over", "batch=1,8,64", "--gpu", "nvidia-t4"), "Samples/s"),
    ],
)
def test_each_figure(run, net, tmp_path, options, told) -> None:
    out = tmp_path / "figure.svg"
    assert run("plot", net, *COMMON, *options, "--out", out).answered() == f"figure written to {out}\n"
    assert told in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["svg", "pdf", "png", "pgf"])
def test_a_figure_says_how_it_is_made_again(run, net, tmp_path, form) -> None:
    def made(name: str, *options: str) -> str:
        out = tmp_path / f"{name}.{form}"
        run("plot", net, *COMMON, *options, "--out", out)
        text = out.read_bytes().decode("latin-1")
        assert f"rooflinekit plot {net} --input batch,64 --batch 32 --gpu nvidia-l4" in text
        assert re.search(r"Made by rooflinekit \S+, torch \S+, Python \S+\. ", text)
        (digest,) = re.findall(r"has the hash ([0-9a-f]{12})\.", text)
        return digest

    one = made("one")
    assert one == made("two")  # another file, so another command, of the same figure
    assert one != made("page", "--width", "page")


def test_several_networks_are_a_mark_each(run, net, tmp_path) -> None:
    out, other = tmp_path / "figure.svg", tmp_path / "wide.py"
    other.write_text("from torch import nn\nWide = nn.Linear(64, 4096)\n", encoding="utf-8")
    said = run("plot", net, "--with", f"{other}:Wide", *COMMON, "--caption", "--out", out).answered()
    assert {"Net", "Wide"} <= {word.strip() for word in re.findall(r">([^<>]*)<", out.read_text(encoding="utf-8"))}
    assert "path" not in said  # no arrows lead from one to the other
    refused = run("plot", net, "--with", f"{other}:Wide", *COMMON, "--over", "batch=1,2", "--out", out)
    assert refused.err.startswith("rooflinekit: --with: draws one mark for each network")


def test_measured_beside_predicted_with_a_caption(run, net, tmp_path) -> None:
    trace = write(two_steps(), tmp_path / "trace.json")
    out = tmp_path / "figure.pgf"
    said = run("plot", net, *COMMON, "--trace", trace, "--caption", "--out", out).answered()
    assert "Measured: 100 µs; predicted / measured − 1 is " in said
    assert "Hollow marks are predicted, filled ones measured" in said
    assert r"\begin{pgfpicture}" in out.read_text(encoding="utf-8")


SEVERAL = ("--input", "batch,64", "--batch", 1024, "--mode", "training", "--optimizer", "SGD", "--cluster", "dgx-a100")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--gpus", 4), "nvlink-3 300 GB/s"),
        (("--gpus", 2, "--gpus", 4, "--strategy", "ddp", "--strategy", "fsdp"), "FSDP, 4 GPUs"),
        (("--what", "timeline", "--strategy", "zero-1"), "8 × NVIDIA A100"),
        (("--what", "memory", "--gpus", 4), "gradients"),
        (("--what", "waterfall", "--gpus", 4), "hidden communication"),
        (("--what", "waterfall", "--strategy", "ddp", "--strategy", "fsdp"), "exposed communication"),
    ],
)
def test_figures_of_several_devices(run, net, tmp_path, options, told) -> None:
    out = tmp_path / "figure.svg"
    run("plot", net, *SEVERAL, *options, "--width", "page", "--out", out).answered()
    assert told in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpu", "nvidia-l4"), "--gpu: a cluster has GPUs of its own; leave out --gpu or --cluster"),
        (("--mode", "inference"), "--optimizer belongs to --mode training"),
        (("--what", "memory", "--gpus", 2, "--gpus", 4), "--what memory draws one step; got 2"),
        (("--what", "sweep", "--over", "batch=1,2"), "--over is for steps on one device; got --cluster"),
        (("--what", "timeline", "--gpus", 2, "--gpus", 4), "--what timeline draws one step; got 2"),
        (("--what", "waterfall", "--gpus", 2, "--gpus", 4, "--gpus", 8), "draws one step, or two; got 3"),
        (("--launch",), "--launch is for steps on one device; got --cluster"),
        (("--strategy", "dpp"), "strategy: expected dp, ddp, "),
        (("--gpus", 9), "dgx-a100 has 8 devices; got gpus=9"),
        (("--gpus", 1), "DDP on 1 of dgx-a100 sends nothing"),
    ],
)
def test_wrong_use_of_several_devices(run, net, tmp_path, options, message) -> None:
    run("plot", net, *SEVERAL, *options, "--out", tmp_path / "a.svg").refused(has=message)


def test_what_several_devices_need(run, net, tmp_path) -> None:
    out = ("--out", tmp_path / "a.svg")
    size = ("--input", "batch,64", "--batch", 32)
    for args, message in (
        ((*size, "--cluster", "dgx-a100"), "--cluster: steps on several devices are training steps"),
        ((*COMMON, "--gpus", 2), "--gpus belongs to --cluster"),
        ((*COMMON, "--what", "waterfall"), "name a --cluster"),
        (size, "--gpu is missing: name one or more"),
    ):
        run("plot", net, *args, *out).refused(has=message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--what", "pie"), "--what"),
        (("--venue", "nature"), "--venue"),
        (("--width", "wide"), "--width"),
        (("--what", "sweep"), "--what sweep: --over is missing: a size and its values, such as --over batch=1,8,64"),
        (("--over", "seq=1,2"), "--over seq=1,2: no size of --input is named seq"),
        (("--over", "batch=1"), "--over batch=1: expected a size with two values or more, such as batch=1,8,64"),
        (("--what", "memory", "--launch"), "--launch belongs to --what roofline; got --what memory"),
        (("--what", "timeline", "--gpu", "nvidia-t4"), "--what timeline draws one step; got 2 GPUs"),
        (("--what", "memory", "--over", "batch=1,2"), "--over belongs to --what sweep or roofline; got --what memory"),
        (("--trace", "t.json", "--by-level"), "--trace: draws one measured step beside its prediction; name one --gpu"),
        (("--trace", "lost.json"), "lost.json"),
    ],
)
def test_wrong_use_is_one_line(run, net, tmp_path, options, message) -> None:
    run("plot", net, *COMMON, *options, "--out", tmp_path / "a.svg").refused(has=message)
    assert not (tmp_path / "a.svg").exists()


def test_a_file_of_no_known_kind_is_refused_at_once(run, tmp_path) -> None:
    result = run("plot", "no.such:model", *COMMON, "--out", tmp_path / "a.jpg")
    assert result.err == f"rooflinekit: {tmp_path}/a.jpg: expected a file name that ends in .pdf, .pgf, .png, .svg\n"
