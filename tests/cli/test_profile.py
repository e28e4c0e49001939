"""`rooflinekit profile`, as a user meets it."""

from pathlib import Path

import pytest
from traces import call, document, launched, step, two_steps, write


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(two_steps(), tmp_path / "trace.json")


#: See the fixture `net`.
NET = "from torch import nn\n\ndef Net():\n    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(inplace=True))\n"


def test_the_regime_and_the_kernels(run, trace) -> None:
    lines = [" ".join(line.split()) for line in run("profile", trace).answered().splitlines()]
    assert lines[0] == "trace.json: 2 steps by ProfilerStep, NVIDIA L4, 100 µs a step"
    # busy 30.5 of 100 µs; of the other 69.5, 66.5 for the CPU: 95.7 %
    regime = "regime: CPU-bound: the GPU is busy for 30.5% of the time; for 95.7% of the rest it waits for the CPU"
    assert lines[1].startswith(regime)
    assert "a sea of small kernels: half take less than 5.00 µs" in " ".join(lines[1:3])
    assert "GPU busy 30.5 µs 30.5%" in lines
    assert "waits for the CPU 66.5 µs 66.5%" in lines
    assert "gemm 1 22.0 µs 22.0 µs 72.1%" in lines  # 22 of 30.5


def test_beside_a_prediction_for_the_gpu_of_the_trace(run, trace, net) -> None:
    said = run("profile", trace, net, "--input", "batch,64", "--batch", 32).answered()
    assert "Net on nvidia-l4" in said
    rows = [line.split() for line in said.splitlines()]
    assert ["addmm", "0", "1", "24.0", "µs"] in [row[:5] for row in rows]
    assert ["relu_", "1", "1", "4.00", "µs"] in [row[:5] for row in rows]
    note = "note: the trace is of NVIDIA L4, and nvidia-a10 is another device"
    assert note not in said
    for words in ((), (net, "-i", "32,64")):
        assert note in run("profile", trace, *words, "--gpu", "nvidia-a10").out.splitlines()


def test_json_is_only_json(run, trace, net) -> None:
    alone = run("profile", trace, "--json").document["profile"]
    assert (alone["regime"], alone["steps"], alone["kernels"][0]["name"]) == ("CPU-bound", 2, "gemm")
    both = run("profile", trace, net, "-i", "32,64", "--json").document
    assert [op["name"] for op in both["ops"]] == ["addmm", "relu_", "mul", "between ops"]


def test_csv_has_the_kernels_or_beside_a_prediction_the_ops(run, trace, net) -> None:
    alone = run("profile", trace, "--csv").out.splitlines()
    assert alone[0] == "name,count,total_s,each_s,share"
    assert [line.split(",")[0] for line in alone[1:3]] == ["gemm", "relu"]
    both = run("profile", trace, net, "-i", "32,64", "--csv").out.splitlines()
    assert both[0] == "name,kind,module,count,measured_s,predicted_s,difference_s"
    assert [line.split(",")[0] for line in both[1:]] == ["addmm", "relu_", "mul", "between ops"]


def test_hostile_names_are_text(run, tmp_path) -> None:
    name = "[red]k[/red]\x1b[31m</script>"
    trace = write(document(*launched(name, 1, 2, 3, 1), step(1, 0, 5)), tmp_path / "trace.json")
    result = run("profile", trace)
    assert "[red]k[/red]\\x1b[31m</script>" in result.out
    assert "\x1b" not in result.out


def test_a_trace_of_a_cpu_shows_its_calls(run, tmp_path) -> None:
    trace = write(document(call("aten::relu", 0, 9), call("aten::clamp_min", 2, 6), devices=()), tmp_path / "t.json")
    lines = [" ".join(line.split()) for line in run("profile", trace).out.splitlines()]
    assert "regime: CPU only: the trace holds no kernels of a GPU" in lines
    assert "relu 1 5.00 µs" in lines  # 9 − 4
    assert "clamp_min 1 4.00 µs" in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.json",), "none.json: cannot be read: No such file or directory"),
        (("{trace}", "-i", "32,64"),
         "--input belongs to a TARGET, the model that was profiled; name it after the trace"),
        (("{trace}", "{net}"),
         "--input is missing: the sizes that the model was called with, such as --input 32,3,224,224"),
        (("{trace}", "-g", "nvidia-l4", "-g", "nvidia-a10"), "--gpu: one device was profiled; got 2 specifications"),
        (("{trace}", "--mark", "stp"), "trace.json: no mark 'stp' in it"),
        (("{net_file}",), "{net_file}: expected JSON of torch.profiler's export_chrome_trace; got no JSON"),
        (("{nameless}", "{net}", "-i", "32,64"),
         "--gpu is missing: the trace does not say which device it was, such as --gpu nvidia-l4"),
    ],
    ids=range(7),
)  # fmt: skip
def test_wrong_use_is_one_line(run, trace, net, tmp_path, words, message) -> None:
    write(document(*launched("k", 1, 2, 3, 1), devices=()), tmp_path / "nameless.json")
    names = {"trace": trace, "net": net, "net_file": f"{tmp_path}/net.py", "nameless": f"{tmp_path}/nameless.json"}
    run("profile", *(word.format(**names) for word in words)).refused(f"{message.format(**names)}\n")
