"""Each document that `--json` prints is what its published schema says."""

import math
import pickle
import re
from pathlib import Path

import pytest
from command_line import Run
from documents import SCHEMAS, checked, schema
from records import record
from traces import two_steps, write

ROOT = Path(__file__).parents[2]
LLAMA = "llama-3.1-8b"
#: See the fixture `net`.
PUBLISHED = {file.stem for file in SCHEMAS.glob("*.json")}
NET = "from torch import nn\n\ndef Net():\n    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(inplace=True))\n"

IN = ("-i", "batch,64")
ONE = (*IN, "--batch", "32", "--gpu", "l4")
DDP = (*IN, "--batch", "64", "--cluster", "dgx-a100")
LOAD = ("--requests", "8", "-i", "64", "--output", "8")
TRAIN = ("--mode", "training")
#: A document, the command that prints it, and its arguments; NET and TRACE stand for the files of the test.
CALLS: list[tuple[str, tuple[str, ...]]] = [
    ("predict", ("predict", "NET", *ONE)),
    ("predict", ("predict", "NET", *ONE, "--gpu", "t4", *TRAIN, "--execution", "compiled", "--by", "module")),
    ("predict", ("predict", "NET", *ONE, "--compare", "execution=eager,compiled", "--largest-batch")),
    ("predict", ("predict", "NET", *ONE, "--measured-memory", "SNAPSHOT")),
    ("predict", ("predict", "NET", *IN, "--batch", "32", "--gpu", "generic-cloud-cpu-avx512", "--autocast", "bf16")),
    ("summary", ("summary", "NET", *ONE)),
    ("summary", ("summary", "NET", *IN, "--batch", "32")),
    ("explain", ("explain", "NET", "NET", *ONE)),
    ("explain", ("explain", "NET", *ONE, "--compare", "execution=eager,compiled")),
    ("crossover", ("crossover", "NET", *ONE)),
    ("crossover", ("crossover", "NET", *ONE, "--other-gpu", "t4")),
    ("compare", ("compare", "NET", *IN, "--batch", "32", "--architecture", "Turing")),
    ("power", ("power", "NET", *ONE)),
    ("cost", ("cost", "NET", *ONE, "--price-per-hour", "1 USD")),
    ("cost", ("cost", "NET", *ONE, "--purchase-price", "1e3 EUR", "--samples", "1e6", "--carbon", "0.4")),
    ("advise", ("advise", "NET", *ONE, "--other-gpu", "l40s")),
    ("sweep", ("sweep", "NET", *IN, "--batch", "1,2", "--gpu", "l4", "--no-memory")),
    ("sweep", ("sweep", "NET", *DDP[:2], "--batch", "3,64", "--cluster", "dgx-a100", *TRAIN, "--gpus", "1,8")),
    ("search", ("search", "NET", *IN, "--batch", "1:16", "--gpu", "l4", "--gpu", "t4", "--minimize", "memory")),
    ("search", ("search", "NET", *IN, "--batch", "1:16", "--gpu", "l4", "--require", "time<1 ns")),
    ("parallel", ("parallel", "NET", *DDP)),
    ("parallel", ("parallel", "NET", *DDP, "--strategy", "fsdp", "--gpus", "2")),
    ("fit-into", ("fit-into", "NET", *DDP)),
    ("collective", ("collective", "all-reduce", "--bytes", "1 GB", "--cluster", "dgx-a100")),
    ("collective", ("collective", "broadcast", "--bytes", "1 kB", "--cluster", "two-nodes-25gbe")),
    ("serve", ("serve", LLAMA, "--gpu", "l40s", "--batch", "1,4", "-i", "64", "--output", "8")),
    ("serve", ("serve", LLAMA, "--gpu", "l40s", "--batch", "1", "-i", "64", "--output", "1")),
    ("train", ("train", LLAMA, "--cluster", "dgx-h100", "--batch", "16", "--seq", "2048", "--tp", "2")),
    ("serve-rates", ("serve", LLAMA, "--gpu", "l40s", *LOAD, "--rate", "1,2/s")),
    ("serve-rates", ("serve", LLAMA, "--gpu", "l40s", *LOAD[:-2], "--output", "1", "--rate", "1/s")),
    ("serve-capacity", ("serve", LLAMA, "--gpu", "l40s", *LOAD, "--slo", "ttft=1s", "--load", "9/s")),
    ("profile", ("profile", "TRACE")),
    ("profile", ("profile", "TRACE", "NET", "-i", "32,64")),
    ("transfer", ("transfer", "NET", *ONE, "--measured", "1 ms", "--measured-on", "t4")),
    ("devices", ("devices",)),
    ("device", ("devices", "l4")),
    ("device", ("devices", "generic-cloud-cpu-avx512")),
    ("clusters", ("clusters",)),
    ("hosts", ("hosts", "unnamed")),
    ("cluster", ("clusters", "two-nodes-25gbe")),
    ("check", ("check",)),
    ("specs", ("specs", "detect", "--cpu")),
    ("specs", ("specs", "new", "--from", "l4", "--set", "sm_count=29", "--out", "OUT")),
    ("doctor", ("doctor",)),
    ("guard", ("guard", "--lock", "LOCK", "--update")),
    ("own-fit", ("calibrate", "--campaign", "ROWS", "--out", "OUT")),
    ("campaign-validate", ("campaign", "validate", "ROWS", "RECORD")),
    ("campaign-summarize", ("campaign", "summarize", "ROWS", "RECORD")),
    ("campaign-summarize", ("campaign", "merge", "RECORD", "OTHER", "--out", "OUT")),
]
#: Documents of what takes long to measure or to fit: tried in the tests of their commands.
LONG = {"calibrate", "fit", "host", "measure", "campaign-from-trace"}


@pytest.mark.parametrize(
    ("name", "arguments"), CALLS, ids=lambda value: " ".join(value[:3]) if type(value) is tuple else value
)
def test_documents_are_as_published(run: Run, net: str, tmp_path: Path, name: str, arguments: tuple[str, ...]) -> None:
    record(str(tmp_path / "a.jsonl"), (1, 2))
    record(str(tmp_path / "b.jsonl"), (3,))
    lock = tmp_path / "rooflinekit.lock"
    lock.write_text(f'[net]\nrun = "{net} -i 32,64 --gpu l4"\n')
    snapshot = tmp_path / "run.pickle"
    held = {"size": 4096, "requested_size": 4000, "state": "active_allocated"}
    segment = {"address": 0, "total_size": 4096, "blocks": [held]}
    snapshot.write_bytes(pickle.dumps({"segments": [segment], "device_traces": []}))
    files = {"NET": net, "TRACE": str(write(two_steps(), tmp_path / "trace.json")), "OUT": str(tmp_path / "out.yaml"),
             "ROWS": str(ROOT / "calibration/campaigns/nvidia-t4/convolutions_fp32.csv"),
             "LOCK": str(lock), "SNAPSHOT": str(snapshot),
             "RECORD": str(tmp_path / "a.jsonl"), "OTHER": str(tmp_path / "b.jsonl")}  # fmt: skip
    checked(name, run(*(files.get(word, word) for word in arguments), "--json").answered())


def test_every_document_is_tried_and_published() -> None:
    assert {name for name, _ in CALLS} | LONG == PUBLISHED


def test_every_command_with_json_has_a_document() -> None:
    printed = set()
    for file in (ROOT / "rooflinekit" / "cli").glob("*.py"):
        printed |= set(re.findall(r'(?:Answer|Tables)\(\s*"([^"]+)"', file.read_text(encoding="utf-8")))
    assert printed == PUBLISHED


def test_a_schema_refuses_what_it_should() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for name in PUBLISHED:
        jsonschema.Draft202012Validator.check_schema(schema(name))
        checked = jsonschema.Draft202012Validator(schema(name))
        assert not checked.is_valid({})
        assert not checked.is_valid({"schema": f"{schema(name)['$id']}0"})
    beside = schema("predict")["properties"]["predictions"]["items"]["properties"]["measured_memory"]
    assert not jsonschema.Draft202012Validator(beside).is_valid({"file": "run.pickle", "device": 0})
    timing = jsonschema.Draft202012Validator(schema("collective"))
    good = {
        "schema": "rooflinekit/collective/1", "collective": "broadcast", "cluster": "c", "gpus": 2, "bytes": 1.0,
        "total_s": 1e-3, "interval_s": [1e-3, 2e-3], "algorithm": "ring", "bus_bandwidth": 1e9,
        "algorithm_bandwidth": 1e9, "terms": {"start_s": 1e-3}, "links": [], "more": math.pi,
    }  # fmt: skip
    assert timing.is_valid(good)
    for change in (
        {"total_s": None},
        {"total_s": -1.0},
        {"gpus": "2"},
        {"interval_s": [1.0]},
        {"terms": {"start_s": "1 s"}},
    ):
        assert not timing.is_valid({**good, **change})
    assert not timing.is_valid({name: value for name, value in good.items() if name != "algorithm"})
