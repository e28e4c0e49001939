"""The command line, as a user meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: See the fixture `net`.
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(7200, 2))

def make():
    return Net()

number = 3

def broken():
    raise KeyError("lost")

class Needs(nn.Module):
    def __init__(self, size):
        super().__init__()
"""
COMMON = ("--input", "batch,3,32,32", "--gpu", "nvidia-l4")


def test_predict_prints_a_column_a_gpu(run, net) -> None:
    said = run("predict", net, *COMMON, "--gpu", "A100-SXM4-80GB", "--batch", 8, "--by", "kind").answered()
    assert "Net, inference, batch 8, float32, eager" in said
    assert "nvidia-l4" in said
    assert "nvidia-a100-sxm4-80gb, by kind" in said
    assert "aten.convolution" in said
    assert "note: not measured, so constants of similar GPUs" in said  # one note for both
    assert "0 by default" not in said  # all counts are exact: nothing to say
    assert "0 by default" in run("predict", net, *COMMON, "--batch", 8, "--terms").out


def test_many_gpus_have_a_line_each(run, net) -> None:
    more = ("--gpu", "nvidia-t4", "--gpu", "nvidia-rtx-4090", "--largest-batch")
    result = run("predict", net, *COMMON, *more, "--batch", 8)
    assert result.status == 0
    for gpu in ("nvidia-l4", "nvidia-t4", "nvidia-rtx-4090"):
        (line,) = (line for line in result.out.splitlines() if line.strip().startswith(f"{gpu} "))
        assert " to " in line
        assert " fits" in line
        assert line.split()[-1].isdecimal()  # the largest batch


def test_search_chooses_among_all_gpus(run, net) -> None:
    options = ("--input", "batch,3,32,32", "--batch", 8)
    found = run("search", net, *options, "--json").document
    compared = run("compare", net, *options, "--json").document
    fastest = min(compared["gpus"], key=lambda row: row["total_s"])
    assert found["best"]["gpu"] == fastest["gpu"]
    assert len(run("search", net, *options).out.splitlines()) <= 15


def test_a_header_says_precision_and_what_a_training_step_has(run, net) -> None:
    def head(*options: str) -> str:
        return str(run("predict", net, *COMMON, "--batch", 8, *options).out).splitlines()[0]

    training = ("--mode", "training")
    assert head("--dtype", "bfloat16") == "Net, inference, batch 8, bfloat16, eager, nvidia-l4"
    assert head("--autocast", "bf16") == "Net, inference, batch 8, float32 with autocast bfloat16, eager, nvidia-l4"
    assert head(*training) == "Net, training (no loss named, no optimizer named), batch 8, float32, eager, nvidia-l4"
    assert "training (no loss named, optimizer SGD), batch 8" in head(*training, "--optimizer", "sgd")


@pytest.mark.parametrize("options", [(), ("--mode", "training")], ids=("inference", "training"))
def test_the_answer_about_one_gpu_takes_fifteen_lines(run, net, options: tuple[str, ...]) -> None:
    """Without a host, and on a GPU that was not measured, both of which take a line."""
    printed = run("predict", net, *COMMON[:-1], "nvidia-h200", "--batch", 8, *options).out.splitlines()
    said = [line for line in printed if line.strip()]
    assert len(said) <= 15
    assert max(map(len, said)) <= 120
    assert ", nvidia-h200" in said[0]


def test_predict_json_is_only_json(run, net) -> None:
    training = ("--mode", "training", "--optimizer", "sgd")
    result = run("predict", net.replace(":Net", ":make"), *COMMON, "--batch=8", "--json", "--by", "module", *training)
    (document,) = result.document["predictions"]
    assert document["device"] == "nvidia-l4"
    assert document["mode"] == "training"
    assert {row["module"] for row in document["by"]} == {"0", "1", "3", ""}
    assert sum(document["terms"].values()) == pytest.approx(document["total_s"])


def test_sizes_may_be_given_in_three_ways(run, net) -> None:
    ways = [("--batch", 8), ("--batch=8",), ("--size", "batch=8")]
    results = [run("predict", net, *COMMON, *way, "--json").out for way in ways]
    assert results[0] == results[1] == results[2]


def test_explain_and_plot(run, net, tmp_path) -> None:
    result = run("explain", net, net.replace(":Net", ":make"), *COMMON, "--batch", 8, "--plot", tmp_path / "w.svg")
    assert result.status == 0
    assert "as many FLOP as" in result.out
    assert (tmp_path / "w.svg").read_text().startswith("<?xml")
    for name in ("figure.pdf", "figure.svg", "figure.png"):
        run("plot", net, *COMMON, "--batch", 8, "--out", tmp_path / name).answered()
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gup", "l4", "--batch", "8"), "unknown option or argument '--gup'; did you mean '--gpu'?"),
        (
            ("--gpu", "l4", "--batch", "8", "--autocst", "fp16"),
            "unknown option or argument '--autocst'; did you mean '--autocast'?",
        ),
        (("--gpu", "l4", "--bacth", "8"), "unknown option or argument '--bacth'; did you mean '--batch'?"),
    ],
)
def test_a_misspelled_option_is_named_first(run, net, options, message) -> None:
    run("predict", net, "-i", "batch,3,32,32", *options).refused(message)


def test_explain_one_network_on_two_gpus_or_in_two_ways(run, net, tmp_path) -> None:
    common = ("explain", net, "-i", "batch,3,32,32", "--gpu", "l4")
    assert "differ in device" not in run(*common, "--batch", 8, "--gpu", "t4", "--plot", tmp_path / "w.svg").answered()
    behind = run(*common, "--batch", 8, "--gpu", "t4", "--details")
    assert "differ in device (nvidia-l4 against nvidia-t4)" in behind.out
    for change, labels in (("batch=64", ["batch 8", "batch 64"]), ("execution=eager,compiled", ["eager", "compiled"])):
        (found,) = run(*common, "--batch", 8, "--compare", change, "--json").document["explanations"]
        assert found["labels"] == labels
        assert sum(found["terms"].values()) == pytest.approx(found["b_s"] - found["a_s"])
        assert sum(found["underuse"].values()) == pytest.approx(found["terms"]["underuse"])
        assert sum(found["a"]["underuse"].values()) == pytest.approx(found["a"]["terms"]["underuse"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "nothing to compare: give a second TARGET, a second --gpu, or --compare, such as batch=64"),
        (("--gpu", "L4"), "--gpu: nvidia-l4 is given twice"),
        (("--compare", "batch=1,2"), "--compare batch=1,2: expected one other way to run it, such as batch=64; got 2"),
        (("--batch", "4"), "--batch is given twice; to compare two values, give the other to --compare batch=…"),
        (("--compare", "batch=1", "x.py:B"), "--compare changes one network: leave out --compare or TARGET_B"),
        (("--bacth", "4"), "unknown option or argument '--bacth'; did you mean '--batch'?; the sizes of --input are "),
        (("--gpu", "t4", "--gpu", "p4", "--plot", "w.svg"), "--plot draws one waterfall; got 2 pairs of GPUs"),
    ],
)
def test_explain_says_what_is_missing_or_too_much(run, net, options, message) -> None:
    run("explain", net, "-i", "batch,3,32,32", "--gpu", "l4", "--batch", "8", *options).refused(message)


def test_a_bad_specification_is_one_line(run, net, tmp_path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text((ROOT / "gpu_specs" / "nvidia-l4.yaml").read_text(encoding="utf-8").replace("sm_count", "sm_cuont"))
    for args in (("devices", path), ("predict", net, "-i", "8,3,32,32", "--gpu", path)):
        run(*args).refused(has="sm_cuont: unknown key; did you mean 'sm_count'?")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--gpu", "nvidia-a10x", "-i", "8,3,32,32"), "unknown device 'nvidia-a10x'; did you mean 'nvidia-a10'"),
        (("--gpu", "p100", "-i", "8,3,32,32"), "'p100' may be nvidia-p100-pcie-16gb or "),
        (("--gpu", "{tmp}", "-i", "8,3,32,32"), "is a directory; expected a YAML file"),
        (("--gpu", "{tmp}/no.yaml", "-i", "8,3,32,32"), "no such file"),
        (("--gpu", "l4"), "--input is missing"),
        (("-i", "8,3,32,32"), "--gpu is missing"),
        (("--gpu", "l4", "-i", "batch,3,32,32"), "no number is given for size 'batch': add batch=… (--batch … on the command"),
        (("--gpu", "l4", "-i", "batch,3,32,32", "--batch", "0"), "size 'batch': expected a positive integer; got 0"),
        (("--gpu", "l4", "-i", "batch,3,32,32", "--batch", "-4"), "size 'batch': expected a positive integer; got -4"),
        (("--gpu", "l4", "-i", "batch,3,32,32", "--batch", "many"), "--batch: expected a positive integer; got 'many'"),
        (("--gpu", "l4", "-i", "batch,3,32,32", "--batch"), "--batch: expected a positive integer; got ''"),
        (("--gpu", "l4", "-i", "batch,3,32,32", "--bach", "4"), "unknown option or argument '--bach'; did you mean '--batch'?"),
        (("--gpu", "l4", "-i", "batch,3,32,32", "--size", "batch"), "--size 'batch': expected NAME=VALUE"),
        (("--gpu", "l4", "-i", "8,,32"), "input '8,,32': expected sizes separated by commas"),
        (("--gpu", "l4", "-i", "8,3,32,32:float31"), "unknown number format 'float31'; did you mean 'float"),
        (("--gpu", "l4", "-i", "8,3.5,32"), "size '3.5' is no name"),
        (("--gpu", "l4", "-i", "8,0,32"), "expected a positive size; got 0"),
        (("--gpu", "l4", "-i", "8,4,32,32"), "to have 3 channels, but got 4 channels"),
        (("--gpu", "l4", "-i", "8,3,32,32", "--mode", "trane"), "--mode 'trane': expected 'inference' or 'training'"),
        (("--gpu", "l4", "-i", "8,3,32,32", "--optimizer", "sgd"), "--optimizer belongs to --mode training"),
        (("--gpu", "l4", "-i", "8,3,32,32", "--mode", "training", "--optimizer", "adamx"), "torch.optim has no optimizer 'adamx'; did you mean 'Adam"),
        (("--gpu", "l4", "-i", "8,3,32,32", "--sync", "all"), "execution sync: expected none, step, op, events; got 'all'"),
        (("--gpu", "l4", "-i", "8,3,32,32", "--by", "layer"), "--by: expected module, kind, phase, kernel; got 'layer'"),
        (("--gpu", "l4", "-i", "8,3,32,32", "--dtype", "float8_e4m3fn"), "products in 8 bits are ops of their own"),
        (("--gpu", "l4", "-i", "8,3,32,32", "--host", "generic-servr"), "unknown host 'generic-servr'; the hosts are desktop-2020, generic-cloud, generic-desktop, generic-server, unnamed, xeon-server-2018"),
        (("--gpu", "l4", "-i", "8,3,32,32", "--plot", "{tmp}/figure.bmp"), ".bmp"),
        (("--gpu", "l4", "-i", "8,3,32,32", "--plot", "{tmp}/no/figure.pdf"), "figure.pdf"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_status_2(run, net, tmp_path, args, message) -> None:
    run("predict", net, *(arg.format(tmp=tmp_path) for arg in args)).refused(has=message)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{net}t", "has no 'Nett'; did you mean 'Net'?"),
        (
            "{tmp}/net.py:Needs",
            "Needs.__init__() missing 1 required positional argument: 'size'; name a function without arg",
        ),
        ("{tmp}/net.py:number", "expected a module, a class of modules or a factory without arguments; got int"),
        ("{tmp}/net.py:broken", "cannot be built (net.py:14): KeyError: 'lost'"),
        ("{tmp}:Net", "is a directory; expected a Python file"),
        ("{tmp}/no.py:Net", "no such file"),
        ("no_such_package.models:Net", "cannot be imported: No module named 'no_such_package'"),
        ("resnet50", "target 'resnet50': write timm:resnet50"),
        ("timm:resnet5O", "timm has no model 'resnet5O'; did you mean 'resnet50'"),
        ("transformers:GPT3LMHeadModel", "transformers has no model 'GPT3LMHeadModel'; did you mean 'GPT2LMHeadModel'"),
        ("transformers:{tmp}/no.json", "no.json: cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_target_is_one_line_and_status_2(run, net, tmp_path, target, message) -> None:
    run("predict", target.format(net=net, tmp=tmp_path), "-i", "8,3,32,32", "--gpu", "l4").refused(has=message)


def test_a_target_that_is_none_is_said_before_a_missing_input(run, tmp_path) -> None:
    run("predict", f"{tmp_path}/no.py:Net", "--batch", "8", "--gpu", "l4").refused(f"{tmp_path}/no.py: no such file\n")


def test_unknown_options_and_missing_arguments(run) -> None:
    assert run("devices", "--jsn").status == 2
    assert run("predict").err.startswith("rooflinekit: TARGET is missing: timm:NAME, transformers:NAME")


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m rooflinekit devices --json | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout, done.stderr) == ("{\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["devices --json", "devices", "--version"])
def test_output_that_cannot_be_written_is_one_line(command: str) -> None:
    command = f"{sys.executable} -m rooflinekit {command} > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, check=False)
    message = "rooflinekit: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_an_encoding_that_lacks_a_letter(encoding: str) -> None:
    command = [sys.executable, "-m", "rooflinekit", "devices", "nvidia-l4"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=environment, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "nvidia-l4" in done.stdout.decode(encoding)


def test_output_that_was_closed_before_the_start() -> None:
    command = f"{sys.executable} -m rooflinekit devices >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_device_is_no_output_file(run, net, tmp_path, device) -> None:
    calls = {
        "x.svg": ("plot", net, "-i", "8,3,32,32", "--gpu", "l4"),
        "x.html": ("report", net, "-i", "8,3,32,32", "--gpu", "l4"),
        "x.csv": ("sweep", net, "-i", "batch,3,32,32", "--batch", "1,2", "--gpu", "l4"),
        "x.yaml": ("specs", "new", "--from", "nvidia-l4", "--name", "mine", "--force"),
    }
    for name, arguments in calls.items():
        place = tmp_path / name
        place.symlink_to(device)
        found = run(*arguments, "--out", place)
        found.refused(f"{place}: is no file but a device or pipe; choose another name\n")
        assert place.is_symlink()


def test_progress_goes_to_a_terminal_alone(run, net, monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    json.loads(run("predict", net, "-i", "8,3,32,32", "--gpu", "l4", "--json").answered())


def test_execution_decides_which_kernels_run(run, tmp_path) -> None:
    # Without a convolution, around which torch.compile adds copies to another layout.
    (tmp_path / "plain.py").write_text(
        "from torch import nn\nnet = nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.ReLU())\n"
    )
    arguments = ("predict", f"{tmp_path}/plain.py:net", "-i", "8,32", "--gpu", "l4", "--json")
    found = {
        backend: run(*arguments, "--execution", backend).document["predictions"][0]
        for backend in ("eager", "compiled", "cuda-graph", "reduce-overhead")
    }
    counts = {backend: one["kernels"] for backend, one in found.items()}
    assert counts["compiled"] < counts["cuda-graph"] == counts["eager"]
    assert counts["reduce-overhead"] == counts["compiled"] + 1  # the input is copied to where the graph reads it
    assert found["reduce-overhead"]["execution"]["backend"] == "reduce-overhead"
    assert found["reduce-overhead"]["execution"]["sync"] == "step"
    assert found["cuda-graph"]["cpu_s"] < found["eager"]["cpu_s"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--compare", "execution"), "--compare 'execution': expected NAME=VALUE,…, such as execution=eager,compiled"),
        (("--compare", "batch=1,x"), "--compare batch: expected a positive integer; got 'x'"),
        (
            ("--compare", "batch=1", "--compare", "batch=2"),
            "--compare 'batch' is given twice; put its values into one, separated by commas",
        ),
        (("--compare", "channels-last=maybe"), "--compare channels-last: expected yes or no; got 'maybe'"),
        (
            ("--compare", "bach=1"),
            "compare: expected execution, autocast, channels_last, attention, or a size that an input names, such as Input('batch', …), which none does; got 'bach'",
        ),
        (
            ("--largest-batch",),
            "--largest-batch: no size of --input is named batch, as in --input batch,3,224,224 --batch 32",
        ),
        (
            ("--copy", "pageable", "--non-blocking"),
            "execution non_blocking with copy 'pageable': only copies from 'pinned' memory run beside the CPU",
        ),
        (("--loss", "cross_entropy"), "--loss belongs to --mode training"),
        (
            ("--mode", "training", "--target", "8"),
            "--target is an argument of the loss: name one, such as --loss cross_entropy",
        ),
        (
            ("--mode", "training", "--loss", "mse_los"),
            "torch.nn.functional has no loss 'mse_los'; did you mean 'mse_loss' or 'huber_loss' or 'l1_loss'?",
        ),
        (
            ("--mode", "training", "--loss", "mse_loss", "--target", "y=8"),
            "--target y=…: targets have no names; the loss gets them in the order given",
        ),
    ],
)
def test_wrong_executions_are_one_line(run, net, options, message) -> None:
    run("predict", net, "-i", "8,3,32,32", "--gpu", "l4", *options).refused(f"{message}\n")


# --- constants of one's own -------------------------------------------------------------------------------------------


def test_a_fit_by_file(run, net, tmp_path) -> None:
    fit = tmp_path / "mine.fit.yaml"
    fit.write_text(
        "schema: 2\nname: nvidia-l4\nconstants:\n  memory_share: {value: 0.5, stderr: 0.01, source: me}\nspreads: {}\n"
    )
    shipped, mine, both = (
        run("predict", net, *COMMON, "--batch", 8192, "--json", *more).document["predictions"]
        for more in ((), ("--constants", fit), ("--constants", fit, "--gpu", "nvidia-a100-sxm4-80gb"))
    )
    assert mine[0]["total_s"] > shipped[0]["total_s"]  # half of the bandwidth
    assert (mine[0]["constants"], both[0]["total_s"]) == ("nvidia-l4", mine[0]["total_s"])
    assert both[1]["constants"] == "nvidia-a100-sxm4-80gb"  # the file is of one of the two
    refused = run("predict", net, "--input", "2,3,32,32", "--gpu", "nvidia-t4", "--constants", fit)
    refused.refused(
        f"{fit}: holds constants of 'nvidia-l4', not of 'nvidia-t4'; name a fit of that device, or none for the "
        "constants that are shipped\n"
    )
    fit.write_text("constants: [")
    broken = run("predict", net, *COMMON, "--batch", 2, "--constants", fit)
    broken.refused(f"{fit}: line 2: not valid YAML: ")


def test_a_training_step_in_all_its_words(run, net) -> None:
    words = ("--mode", "training", "--optimizer", "SGD", "--loss", "cross_entropy", "--target", "batch:int64")
    options = ("--autocast", "bf16", "--channels-last", "--like", "1.13", "--copy", "pinned", "--loader-rate", 100)
    result = run("predict", net, *COMMON, "--batch", 8, *words, *options, "--json")
    (found,) = result.document["predictions"]
    assert (found["autocast"], found["channels_last"], found["like"]) == ("bfloat16", True, "1.13")
    assert found["execution"]["copy"] == "pinned"
    assert found["total_s"] == pytest.approx(8 / 100)  # the loader's pace
    assert sum(found["terms"].values()) == pytest.approx(found["total_s"])


def test_compare_and_largest_batch(run, net) -> None:
    ways = ("--compare", "execution=eager,compiled", "--compare", "autocast=none,fp16", "--compare", "batch=8,16")
    result = run("predict", net, *COMMON, "--batch", 8, *ways, "--largest-batch", "--json")
    (found,) = result.document["predictions"]
    assert len(found["compare"]) == 8
    assert found["compare"][0]["speedup"] == 1
    assert found["compare"][0]["total_s"] == found["total_s"]
    assert found["largest_batch"] > 16
    printed = run("predict", net, *COMMON, "--batch", 8, *ways, "--largest-batch").out
    assert "in other ways, for as many samples" in printed
    assert f"largest batch{found['largest_batch']:>26}".split() == next(
        line.split() for line in printed.splitlines() if "largest batch" in line
    )


def test_predict_writes_the_blocks_of_one_gpu(run, net, tmp_path) -> None:
    file = tmp_path / "step.pickle"
    common = ("predict", net, *COMMON, "--batch", 8, "--snapshot", file)
    assert run(*common).answered().endswith(f"blocks of memory written to {file}; pytorch.org/memory_viz opens it\n")
    assert file.stat().st_size > 0
    assert "expected one --gpu, whose blocks the file shows, not 2" in run(*common, "--gpu", "A100-SXM4-80GB").err


def test_predict_writes_a_time_line_of_every_gpu(run, net, tmp_path) -> None:
    file = tmp_path / "step.json"
    said = run("predict", net, *COMMON, "--gpu", "A100-SXM4-80GB", "--batch", 8, "--trace", file).answered()
    assert said.endswith(f"time line written to {file}; ui.perfetto.dev opens it\n")
    assert {event["pid"] for event in json.loads(file.read_text())["traceEvents"]} == {1, 2}
    wrong = run("predict", net, *COMMON, "--batch", 8, "--trace", tmp_path / "step.txt")
    wrong.refused(f"{tmp_path}/step.txt: expected a file name that ends in .json\n")
