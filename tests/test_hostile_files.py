"""Files that somebody else wrote, or nobody: each is read, or refused in one line, soon and in little memory.

Every format is mutated from a sound file, by a seed, so that a failure can be made again.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Run

import rooflinekit as rk
from rooflinekit.calibrate.bench import plan, record_file
from rooflinekit.calibrate.campaigns import files as campaign_files
from rooflinekit.calibrate.fitting.files import load_fit, load_links
from rooflinekit.calibrate.links import fitting as link_fitting
from rooflinekit.errors import RooflinekitError, TargetError
from rooflinekit.hardware.specs import load_cluster, load_device, load_host
from rooflinekit.study.profile.matching import Validation
from rooflinekit.study.profile.profile import Profile
from rooflinekit.tracing.targets import load_target

ROOT = Path(__file__).parents[1]
EACH = 40  # mutations of each format


def record() -> str:
    case = plan.Case(op="mm", dtype="fp32", sizes={"m": 64, "n": 64, "k": 64}, threads=1)
    measured = [
        record_file.Measurement(case=case, round=i, status="ok", timing="backend", inner=3, seconds=(1e-5, 2e-5))
        for i in range(2)
    ]
    head = record_file.Head(device="d", plan="p", digest="0", units=2, environment={"os": "linux"})
    lines, check = [], ""
    for document in (record_file._head_document(head), *map(asdict, measured), {"finished": 2}):
        line, check = record_file._line(document, check)
        lines.append(line)
    return "".join(lines)


def summarized(file: Path) -> None:
    campaign_files.validate([file])
    campaign_files.summarize_file(file)


DECODER = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
    "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "text_config": {}, "dtype": "float32",
}  # fmt: skip
CAMPAIGN = (
    "# gpu: nvidia-t4\n# source: lab\n# licence: CC0\n# timing: event\n"
    "op,dtype,m,n,k,seconds\nlinear,fp32,512,1280,1280,0.00041\n"
)
LINKS = (
    "# cluster: dgx-a100\n# source: lab\n# licence: CC0\n# timing: stream\n"
    "collective,ranks,format,bytes,seconds\nall-reduce,2,fp16,512,9.98e-06\n"
)
TRACE = {
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "pid": 1, "tid": 1, "ts": 100 * i, "dur": 90}
        for i in range(3)
    ]
    + [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 110, "dur": 20, "args": {}},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "pid": 1,
            "tid": 7,
            "ts": 115,
            "dur": 9,
            "args": {"correlation": 1},
        },
    ],
    "deviceProperties": [{"id": 0, "name": "NVIDIA L4"}],
}


STATISTICS = {"allocated_bytes.all.peak": 2**20, "reserved_bytes.all.peak": 2**21, "num_ooms": 0}
#: A pickle of no letter beyond ASCII: lengths and numbers below 128.
SNAPSHOT = (
    "}(X\x08\x00\x00\x00segments]}(X\x07\x00\x00\x00addressK\x00X\x0a\x00\x00\x00total_sizeK\x40"
    "X\x06\x00\x00\x00blocks]}(X\x05\x00\x00\x00stateX\x10\x00\x00\x00active_allocatedX\x04\x00\x00\x00sizeK\x40ua"
    "uaX\x0d\x00\x00\x00device_traces](]eu."
)


def shipped(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


@cache
def formats() -> dict[str, tuple[str, str, Callable[[Path], Any]]]:
    """A sound file of each, its ending, and what reads it."""
    fit = next((ROOT / "calibration/fits").glob("nvidia-t4.yaml")).read_text("utf-8")
    return {
        "device": (shipped("gpu_specs/nvidia-l4.yaml"), ".yaml", load_device),
        "host": (shipped("gpu_specs/hosts/generic-server.yaml"), ".yaml", load_host),
        "cluster": (shipped("gpu_specs/clusters/dgx-a100.yaml"), ".yaml", lambda f: load_cluster(f).device_names),
        "plan": (shipped("calibration/plans/quick.yaml"), ".yaml", lambda f: plan.load_plan(str(f), "cuda")),
        "fit": (fit, ".yaml", lambda f: load_fit(f, load_device("nvidia-t4"))),
        "links": (shipped("calibration/fits/links.yaml"), ".yaml", load_links),
        "campaign": (CAMPAIGN, ".csv", summarized),
        "link campaign": (LINKS, ".csv", link_fitting.read_link_campaign),
        "record": (record(), ".jsonl", summarized),
        "decoder": (json.dumps(DECODER), ".json", rk.Decoder.from_config),
        "validation": (json.dumps({"kind": "rooflinekit validation", "schema": 1}), ".json", Validation.load),
        "profile": (json.dumps(TRACE), ".json", Profile.read),
        "memory statistics": (json.dumps(STATISTICS), ".json", rk.MemoryProfile.read),
        "memory snapshot": (SNAPSHOT, ".pickle", rk.MemoryProfile.read),
    }


ODD: list[Any] = [
    None, True, -1, 0, 1e308, -1e-300, 2**70, "", "x", "\x1b[31m", "a\nb", "__import__('os')", [], [[]], {}, {"a": {}},
    "1e999 GB/s", "nan", "1 TB", "99999999999 W", "0 s", ["x"] * 50,
]  # fmt: skip


def mutated(text: str, ending: str, chance: random.Random) -> bytes:
    """The file with a value, a line, some letters or everything wrong."""
    kind = chance.randrange(4)
    if kind == 0 and ending in (".json", ".yaml"):
        document = json.loads(text) if ending == ".json" else yaml.safe_load(text)
        place: Any = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = chance.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and chance.random() < 0.7:
                place = place[key]
                continue
            break
        place[key] = chance.choice(ODD)
        text = json.dumps(document) if ending == ".json" else yaml.safe_dump(document, sort_keys=False)
        return text.encode()
    content = text.encode()
    if kind == 1:
        lines = content.splitlines(keepends=True)
        lines[chance.randrange(len(lines))] = chance.choice(lines + [str(one).encode() + b"\n" for one in ODD])
        return b"".join(lines)
    if kind == 2:
        place = chance.randrange(len(content))
        return content[:place] + chance.randbytes(chance.randrange(1, 9)) + content[place + chance.randrange(9) :]
    return chance.choice([content[: chance.randrange(len(content))], b"", chance.randbytes(200), content * 2])


def complaint(read: Callable[[Path], Any], file: Path) -> str | None:
    """What is said against a file; None where it is read."""
    try:
        read(file)
    except RooflinekitError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}\n{error}"  # two lines: whatever it is, it is no error of ours
    return None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", formats())
def test_a_file_is_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    text, ending, read = formats()[name]
    file = tmp_path / f"mine{ending}"
    for seed in range(EACH):
        file.write_bytes(mutated(text, ending, random.Random(f"{name} {seed}")))
        said = complaint(read, file)
        assert said is None or (said.isprintable() and 0 < len(said) < 1000), f"{name}, seed {seed}: {said}"


@pytest.mark.parametrize("deep", ["[" * 200_000, '{"a":' * 200_000, "[" * 200_000 + "]" * 200_000])
@pytest.mark.parametrize("name", formats())
def test_what_nests_deep_is_refused(name: str, deep: str, tmp_path: Path) -> None:
    file = tmp_path / f"mine{formats()[name][1]}"
    file.write_text(deep, "utf-8")
    with pytest.raises(RooflinekitError) as caught:
        formats()[name][2](file)
    assert str(caught.value).isprintable()


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device here")
@pytest.mark.parametrize("name", formats())
def test_what_never_ends_and_what_is_no_file(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in ("/dev/zero", tmp_path, tmp_path / "pipe", tmp_path / "none"):
        file = tmp_path / f"link{formats()[name][1]}"
        file.unlink(missing_ok=True)
        file.symlink_to(place)
        with pytest.raises(RooflinekitError):
            formats()[name][2](file)


@pytest.mark.parametrize(
    ("field", "value"), [("layer_types", -1), ("text_config", "x"), ("hidden_size", "64"), ("num_attention_heads", 0.5)]
)
def test_a_decoder_with_a_wrong_type_says_which(field: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(RooflinekitError, match=r"^(config|decoder): "):
        rk.Decoder.from_config({**DECODER, field: value})


@pytest.mark.parametrize("change", [{"dtype": "__import__"}, {"hidden_size": "x"}, {"architectures": ["load"]}])
def test_a_model_of_transformers_with_a_wrong_field(change: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**DECODER, **change}), "utf-8")
    with pytest.raises(RooflinekitError) as caught:
        load_target(f"transformers:{file}")
    assert str(caught.value).isprintable()


# Run by a small interpreter of its own: a process forked from the tests' starts with the peak of their memory.
_WATCH = """import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
status = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(status)
"""


def test_the_command_line_says_it_in_one_line_within_bounds(tmp_path: Path) -> None:
    """Exit status 2, nothing on standard output, one line on the other, under 500 MB."""
    deep, evil = tmp_path / "deep.json", tmp_path / "evil.yaml"
    deep.write_text("[" * 200_000, "utf-8")
    evil.write_text('schema: 1\nname: "\\e[2J\\n"\n', "utf-8")
    endless = tmp_path / "endless.pickle"
    endless.symlink_to("/dev/zero")
    huge = tmp_path / "huge.jsonl"
    huge.touch()
    os.truncate(huge, 2**33)
    peak = tmp_path / "peak"
    for words in (
        ["serve", deep, "--gpu", "nvidia-l4"],
        ["devices", evil],
        ["campaign", "summarize", huge],
        ["campaign", "summarize", "/dev/zero"],
        ["profile", deep],
        ["predict", "torch.nn:ReLU", "-i", "4", "--gpu", "l4", "--measured-memory", endless],
    ):
        command = [sys.executable, "-m", "rooflinekit", *map(str, words)]
        done = subprocess.run([sys.executable, "-c", _WATCH, str(peak), *command], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, ""), (words, done.stderr)
        assert done.stderr.startswith("rooflinekit: ")
        assert done.stderr.removesuffix("\n").isprintable()
        assert int(peak.read_text("utf-8")) < 500 * 1024, words  # KiB


@pytest.mark.parametrize(
    "words",
    ["profile {}", "profile {} --rank 0", "guard --lock {}", "campaign summarize {}",
     "fit --out {}", "predict {}:net -i 4 --gpu l4", "devices {}.yaml", "serve {}.json --gpu l4",
     "transfer torch.nn:ReLU -i 4 --gpu l4 --measured-on t4 --measured {}",
     "measure torch.nn:ReLU -i 4 --device cpu --out {}/x.json"],
)  # fmt: skip
def test_a_name_longer_than_any_file_has(run: Run, words: str) -> None:
    result = run(*(word.format("9" * 400) for word in words.split()))
    assert (result.status, result.out) == (2, "")
    assert result.err.removesuffix("\n").isprintable()


def test_a_source_without_end_is_not_read(tmp_path: Path) -> None:
    source = tmp_path / "net.py"
    source.touch()
    os.truncate(source, 1 << 40)  # a sparse file of 1 TiB
    with pytest.raises(TargetError, match=r"net.py: is larger than 32 MiB; expected a smaller file"):
        load_target(f"{source}:Net")
