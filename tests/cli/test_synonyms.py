"""Words that newcomers type: each leads to the option in one try."""

import re

import pytest
import typer
from command_line import Run

from rooflinekit.cli import guide, synonyms
from rooflinekit.cli.app import COMMANDS as NAMES
from rooflinekit.cli.app import program

COMMANDS = typer.main.get_group(program(*NAMES)).commands
TRAINING, COMPILED = "--mode training", "--execution compiled"
BF16, FP16 = "(weights stay fp32), or --dtype bfloat16", "(weights stay fp32), or --dtype float16"

#: What is typed after `rooflinekit predict`, and what the answer says to write.
PREDICT = {
    "--training": TRAINING,
    "--train": TRAINING,
    "--backward": TRAINING,
    "--eval": "--mode inference",
    "--no-grad": "--mode inference",
    "--amp": "--autocast bf16, or --autocast fp16",
    "--mixed-precision": "--autocast bf16, or --autocast fp16",
    "--bf16": f"--autocast bf16 {BF16}",
    "--fp16": f"--autocast fp16 {FP16}",
    "--half": f"--autocast fp16 {FP16}",
    "--fp64": "--dtype float64",
    "--precision": "--dtype bfloat16, or --autocast bf16",
    "--torch_dtype": "--dtype bfloat16, or --autocast bf16",
    "--allow-tf32": "--tf32",
    "--compile": COMPILED,
    "--compiled": COMPILED,
    "--torch-compile": COMPILED,
    "--eager": "--execution eager",
    "--cuda-graphs": "--execution cuda-graph",
    "--max-autotune": "--execution max-autotune",
    "--nhwc": "--channels-last",
    "--device": "--gpu nvidia-l4",
    "--hardware": "--gpu nvidia-l4",
    "--batch-size": "--batch 32",
    "--bs": "--batch 32",
    "-b": "--batch 32",
    "--seq-len": "--input batch,seq:int64 --size seq=512",
    "--input-shape": "--input batch,3,224,224, with --size batch=32",
    "--adamw": "--optimizer AdamW, with --mode training",
    "--criterion": "--loss cross_entropy, with --mode training",
    "--model": "the model as the first word after the command",
    "--output": "--plot FILE.pdf, --trace FILE.json, or --json > FILE",
    "--to-csv": "--csv",
    "--quiet": "--brief",
    "--kernels": "--by kernel",
    "--timeline": "--trace FILE.json",
    "--vram": "--largest-batch",
    "--memory-stats": "--measured-memory FILE.pickle|FILE.json",
    "--flops": "rooflinekit summary …",
    "--price": "rooflinekit cost … --price h100=2.99",
    "--flash-attention": "--attention flash",
    "--num-workers": "--loader-rate 2000, in samples a second",
    "--pin-memory": "--copy pinned",
    "--ddp": "rooflinekit parallel … --cluster dgx-h100 --strategy ddp, or fsdp",
    "--gradient-checkpointing": "rooflinekit parallel … --checkpoint all",
    "--lr": "leave it out: the predicted time does not depend on it",
    "--steps": "leave it out: the answer is of one step; rooflinekit cost … --samples 1e9 prices a run",
    "--pretrained": "leave it out: neither data nor weights are read, only shapes",
    "--num-layers": "a model with this size as the first word after the command, such as "
    "transformers:path/to/config.json",
    "--int8": "rooflinekit serve … --weights for language models; others run in 16 bits or more",
    "--num-gpus": "rooflinekit parallel … --cluster dgx-h100 --gpus 8",
    "--cluster": "rooflinekit parallel … --cluster dgx-h100 --gpus 8",
    "--slo": "rooflinekit search … --minimize price --require 'time<20 ms'",
    "--mfu": "--terms",
    "--profile": "--trace FILE.json",
}
#: The same of other commands.
OTHERS = [
    ("parallel", "--world-size", "--gpus 8"),
    ("parallel", "--tensor-parallel-size", "--tensor 2"),
    ("train", "--tensor-parallel-size", "--tp 2"),
    ("serve", "--quantization", "--weights, with fp8, int8, int4 or fp4"),
    ("serve", "--kv-cache-dtype", "--kv fp8"),
    ("serve", "--qps", "--rate 4/s"),
    ("serve", "--clients", "--batch 32, beside --input and --output"),
    ("serve", "--isl", "--input 1024, beside --output"),
    ("serve", "--osl", "--output 256"),
    ("sweep", "--parquet", "--out FILE.parquet"),
    ("crossover", "--csv", "--json; rooflinekit sweep … --out writes CSV"),
    ("explain", "--breakdown", "--details"),
    ("train", "--global-batch-size", "--batch 32"),
    ("train", "--micro-batch-size", "--micro-batch 4"),
    ("parallel", "--micro-batch-size", "--accumulate 4, parts of --batch"),
    ("train", "--zero", "--sharding zero-1, zero-2 or zero-3"),
    ("train", "--gradient-checkpointing", "--recompute full"),
    ("train", "--bf16", "leave it out: every --recipe computes in bf16"),
    ("serve", "--num-gpus", "--tp 8, with --cluster dgx-h100"),
    ("serve", "--training", "rooflinekit predict … --mode training, or rooflinekit train …"),
    ("train", "--fp16", "leave it out: every --recipe computes in bf16"),
    ("train", "--steps", "--tokens 1e12, of a whole run"),
    ("train", "--optimizer", "leave it out: every --recipe trains with Adam"),
    ("serve", "--seq-len", "--input 512, the tokens of a prompt"),
    ("serve", "--cuda-graphs", "--graph-sizes 1,2,4,8,16"),
    ("serve", "--gpu-memory-utilization", "--memory-share 0.9"),
    ("compare", "--plot", "rooflinekit plot … --out FILE.pdf"),
]


@pytest.mark.parametrize(
    ("command", "typed", "written"), [*(("predict", *pair) for pair in PREDICT.items()), *OTHERS], ids=str
)
def test_a_word_that_everybody_knows_leads_to_the_option(command: str, typed: str, written: str) -> None:
    known = guide.option_names(COMMANDS[command])
    assert typed not in known
    verb = "" if written.startswith("leave it out") else "write "
    assert synonyms.option_hint(typed, [*known, "--batch"]) == f": {verb}{written}"


def test_a_number_that_was_typed_stands_in_the_answer() -> None:
    known = ["--gpus", "--loader-rate"]
    assert synonyms.option_hint("--devices", known, value="4") == ": write --gpus 4"
    assert synonyms.option_hint("--devices", known, value="all") == ": write --gpus 8"
    predict = ["--gpu", "--batch"]
    assert synonyms.option_hint("--gpus", predict, value="4").endswith("--gpus 4")
    assert synonyms.option_hint("--gpus", predict, value="l4,h100") == ": write --gpu l4 --gpu h100"
    # as many workers are no rate of samples
    assert synonyms.option_hint("--num-workers", known, value="4") == ": write --loader-rate 2000, in samples a second"


def test_every_answer_names_options_that_a_command_has() -> None:
    known = {name: set(guide.option_names(command)) | {"--batch", "--seq"} for name, command in COMMANDS.items()}
    for answer in {answer for answers in synonyms._OPTIONS.values() for answer in answers}:
        here, _, there = answer.partition("rooflinekit ")
        if there:
            assert set(re.findall(r"--[a-z-]+", there)) <= known[there.split()[0]], answer
        assert any(set(re.findall(r"--[a-z0-9-]+", here)) <= options for options in known.values()), answer


def test_each_word_has_one_meaning() -> None:
    for table in (synonyms._OPTIONS, synonyms._COMMANDS):
        words = " ".join(table).split()
        assert len(words) == len(set(words))
    assert not synonyms._COMMAND.keys() & COMMANDS.keys()
    assert {answer.split()[0] for answer in synonyms._COMMANDS.values()} <= {*COMMANDS, "--version", "--help"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("predict", "net:Net", "-i", "batch,3", "--training"),
            "unknown option or argument '--training': write --mode t",
        ),
        (("serve", "a.json", "--half"), "unknown option '--half': write --weights fp16"),
        (("devices", "--vendr"), "unknown option '--vendr'; did you mean '--vendor'?"),
        (("predict", "net:Net", "--lora"), "unknown option or argument '--lora': write rooflinekit serve … --ad"),
        # nothing is like it, and '--host', which begins with the same letter, is not meant
        (("devices", "--hardly"), "unknown option '--hardly'\n"),
        (("devices", "--warm-up"), "unknown option '--warm-up': it is an option of rooflinekit serve\n"),
        (("gpus",), "unknown command 'gpus': write rooflinekit devices"),
        (("predit",), "unknown command 'predit'; did you mean 'predict'?"),
    ],
    ids=str,
)
def test_the_answer_is_one_line(run: Run, words: tuple[str, ...], message: str) -> None:
    run(*words).refused(message)


def test_hosts_are_listed_as_devices_are(run: Run) -> None:
    assert "generic-server" in run("hosts").out
    out = run("hosts", "generic-server").out
    # Its file says `convolution: 22 µs` and `copy_bandwidth_pinned: 24 GB/s`.
    assert "issuing an op, convolution: 22.0 µs" in out
    assert "from page-locked memory 24.0 GB/s" in out
    assert "unknown host 'generic-sever'" in run("hosts", "generic-sever").err
