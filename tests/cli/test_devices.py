"""The commands about hardware, as a user meets them."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import Run

from rooflinekit.hardware import specs

pytestmark = pytest.mark.usefixtures("here")
ROOT = Path(__file__).parents[2]


def first_words(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[2:]]


def test_the_table(run: Run) -> None:
    heads, units, *rows = [line for line in run("devices").answered().splitlines() if not line.startswith("note: ")]
    assert heads.split()[:9] == ["device", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4"]
    assert units.split() == [*["TFLOP/s"] * 8, "GiB", "GB/s", "FLOP/B", "W", "$", "GFLOP/s", "GFLOP/s"]
    by_name = {row.split()[0]: row.split() for row in rows}
    assert set(by_name) == set(specs.device_names())
    # 82.58, 165.2, 660.6, 1008 GB/s, 165.2/1.008 = 164, 165200/450 = 367, 165200/1599 = 103
    assert by_name["nvidia-rtx-4090"][1:] == [
        *("1.29", "82.6", "82.6", "165", "165", "330", "661", "–"),
        *("24", "1008", "164", "450", "1599", "367", "103"),
    ]
    assert by_name["nvidia-b100"][1] == "(draft)"


def test_sorted_and_filtered(run: Run) -> None:
    out = run(
        "devices", "--vendor", "nvidia", "--architecture", "Ada Lovelace", "--memory-min", "24 GB", "--sort", "price"
    )
    # $6800, $4000, $2250, $1599, then those without a price by name
    dear = ["nvidia-rtx-6000-ada", "nvidia-rtx-5000-ada", "nvidia-rtx-4500-ada", "nvidia-rtx-4090"]
    assert first_words(out.out) == [*dear, "nvidia-l20", "nvidia-l4", "nvidia-l40", "nvidia-l40s"]
    reverse = run("devices", "--kind", "cpu", "--sort", "fp32", "--reverse")
    assert first_words(reverse.out)[0] == "intel-core-i7-12700h"
    assert run("devices", "--vendor", "AMD", "--architecture", "Hopper").out == "no device passes all filters\n"


def test_ridge_of_another_format(run: Run) -> None:
    out = run("devices", "--vendor", "AMD", "--format", "fp64").out
    assert "ridge fp64" in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("amd-mi300x")]
    assert row[-3] == "–"  # no price
    assert "30.7" in row  # 163.4 / 5.325


def test_json_and_markdown(run: Run) -> None:
    documents = run("devices", "--json", "--sort", "bandwidth").document["devices"]
    # 8 TB/s each, in the order of their names
    assert [document["name"] for document in documents[:3]] == ["amd-mi355x", "nvidia-b100", "nvidia-gb200"]
    (l4,) = [document for document in documents if document["name"] == "nvidia-l4"]
    assert l4["dram"]["capacity"] == "24 GiB"
    assert l4["table"]["flop_per_s_per_w"] == pytest.approx(121.2e12 / 72)
    lines = run("devices", "--markdown", "--vendor", "Apple").out.splitlines()
    assert lines[0].startswith("| device | fp64 (TFLOP/s) | fp32 (TFLOP/s) |")
    assert lines[1].startswith("| --- | ---: |")
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        *("| apple-m1-max-32c", "| apple-m2-max-38c", "| apple-m3-max-40c (draft)")
    ]


def test_one_device(run: Run) -> None:
    out = run("devices", "H100 SXM").out
    for expected in (
        "nvidia-h100-sxm5-80gb: NVIDIA H100 SXM5 80 GB (NVIDIA, Hopper)",
        "fp16 matrix, accumulates in fp16",
        "matrix clock",
        "NVLink 4, one direction",
        "TSMC 4N",
        "passed: matrix_peak.fp16: 2 x 132 SMs x 2048 multiply-adds x 1.83 GHz at full density",
        "source of peaks: ",
        "also called: NVIDIA H100 80GB HBM3",
    ):
        assert expected in out
    assert "fp16 per watt 1.41 TFLOP/s" in " ".join(out.split())  # 989.4 / 700
    assert "explained: vector_peak.fp32: Needs packed (dual) issue" in run("devices", "mi300x").out
    assert "shared by 2 devices" in run("devices", "K80").out


@pytest.mark.parametrize("line", ['display_name: "[/red] \\e[31m"', 'aliases: ["a\\nb"]', 'notes: "\\a"'])
def test_letters_that_a_terminal_would_act_upon_are_refused(run: Run, line: str) -> None:
    text = (ROOT / "gpu_specs" / "nvidia-l4.yaml").read_text("utf-8")
    key = line.partition(":")[0]
    kept = re.sub(rf"^{key}:.*\n(?:  .*\n)*", "", text, flags=re.MULTILINE)  # with the lines that it goes on in
    Path("mine.yaml").write_text(f"{kept}{line}\n", "utf-8")
    result = run("devices", "mine.yaml")
    result.refused(f"mine.yaml: {key}: ")
    assert result.err.removesuffix("\n").isprintable()


def test_brackets_of_a_file_are_printed_as_they_are(run: Run) -> None:
    text = (ROOT / "gpu_specs" / "nvidia-l4.yaml").read_text("utf-8")
    Path("mine.yaml").write_text(text.replace("display_name: NVIDIA L4", 'display_name: "[/red] L4"', 1), "utf-8")
    assert run("devices", "mine.yaml").out.startswith("nvidia-l4: [/red] L4 (NVIDIA, Ada Lovelace)\n")


def test_drafts(run: Run) -> None:
    refused = run("devices", "b100")
    refused.refused("nvidia-b100: is a draft (announced figures")
    assert refused.err.endswith("(--allow-draft on the command line)\n")
    assert "draft: announced figures" in run("devices", "b100", "--allow-draft").out
    assert run("specs", "new", "--from", "b100").status == 2
    assert "draft: true" in run("specs", "new", "--from", "b100", "--allow-draft").out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("devices", "--sort", "speed"), "sort: expected name, vendor"),
        (("devices", "--memory-min", "40"), "least memory: expected a quantity in B, such as '3 GB'; got '40'"),
        (("devices", "--vendor", "nvida"), "vendor 'nvida': no device has it; did you mean 'NVIDIA'?"),
        (("devices", "--markdown", "--json"), "--markdown and --json: choose one"),
        (("devices", "l4", "--vendor", "AMD"), "--vendor belongs to the table of all devices; it was given beside"),
        (("devices", "l4", "--memory-min", "1 GB"), "--memory-min belongs to the table of all devices"),
        (("devices", "l4", "--sort", "price"), "--sort or --reverse belongs to the table"),
        (("devices", "l4", "--format", "fp17"), "format: expected fp64"),
        (("devices", "l5"), "unknown device 'l5'"),
        (("check", "nope.yaml"), "nope.yaml: no such file"),
        (("check", "p100"), "'p100' may be nvidia-p100-pcie-16gb "),
        (("specs", "new"), "--from is missing: "),
        (("specs", "new", "--from", "l4", "--set", "x=1"), "--set x: unknown key"),
        (("specs", "new", "--from", "l4", "--name", "My GPU"), "--name: name: expected lower-case words"),
        (("specs", "new", "--from", "l4", "--out", "no/x.yaml"), "no/x.yaml: cannot be written: No such file"),
        (("specs", "detect", "--cpu", "--out", "."), ".: exists; choose another file"),
        (("specs", "nev"), "No such command 'nev'"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_status_2(run: Run, args: tuple[str, ...], message: str) -> None:
    run(*args).refused(message)


# ------------------------------------------------------------------ check


def test_check_of_everything_that_is_shipped(run: Run) -> None:
    lines = run("check").answered().splitlines()
    assert lines[-1] == "146 specifications, 0 failed"
    assert "nvidia-l4: 14 passed" in lines
    assert "nvidia-b100 (draft): 15 passed" in lines
    assert "generic-server (host): well-formed" in lines
    assert any(line.startswith("  explained: vector_peak.fp32: Needs packed (dual) issue") for line in lines)
    assert not [line for line in lines if line.startswith(("  failed", "  skipped"))]


def test_check_of_named_ones_lists_every_check(run: Run) -> None:
    result = run("check", "l4", "generic-server")
    assert "  passed: dram.bandwidth: 192 bit x 12.5 Gbit/s / 8\n" in result.out
    assert result.out.endswith("generic-server (host): well-formed\n2 specifications, 0 failed\n")
    (document,) = run("check", "l4", "--json").document["specifications"]
    assert document["name"] == "l4"
    assert {check["status"] for check in document["checks"]} == {"passed"}


def test_check_fails_with_status_1(run: Run) -> None:
    text = (ROOT / "gpu_specs" / "nvidia-l4.yaml").read_text("utf-8")
    Path("bad.yaml").write_text(text.replace("fp16: 121.2 TFLOP/s", "fp16: 242.4 TFLOP/s", 1), "utf-8")
    result = run("check", "bad.yaml", "l4")
    assert (result.status, result.err) == (1, "")
    assert "bad.yaml: 13 passed, 1 failed\n" in result.out
    assert "  failed: matrix_peak.fp16: expected 121.2 TFLOP/s within 2.5%" in result.out
    assert result.out.endswith("2 specifications, 1 failed\n")
    assert run("check", "bad.yaml", "--json").status == 1


# ------------------------------------------------------------------ specs


def test_new_and_check_and_devices(run: Run) -> None:
    made = run(
        *("specs", "new", "--from", "nvidia-h100-sxm5-80gb", "--set", "memory.bandwidth=6.7 TB/s"),
        *("--set", "sm_count=66", "--name", "my-h100", "--out", "my.yaml"),
    )
    assert (made.status, made.out, made.err) == (0, "", "written to my.yaml\n")
    device = specs.load_device("my.yaml")
    # 66 x 2048 x 2 x 1.83e9 = 494.7e12
    assert (device.name, device.dram.bandwidth, device.matrix_peak["fp16"]) == ("my-h100", 6.7e12, 494.7e12)
    assert run("check", "my.yaml").status == 0
    again = run("specs", "new", "--from", "my.yaml", "--out", "my.yaml")
    assert again.err == "rooflinekit: my.yaml: exists; choose another file, or replace it with --force\n"
    assert run("specs", "new", "--from", "my.yaml", "--out", "my.yaml", "--force").status == 0
    assert specs.load_device("my.yaml").name == "my-h100-what-if"


def test_new_says_what_does_not_follow(run: Run) -> None:
    result = run("specs", "new", "--from", "l4", "--set", "matrix_peak.fp16=200 TFLOP/s")
    assert result.status == 0
    assert result.err == (
        "note: matrix_peak.fp16 does not follow from units, clocks and pins; explained as a what-if\n"
    )
    assert "explained:\n  matrix_peak.fp16: a what-if, nvidia-l4 with matrix_peak.fp16=200 TFLOP/s\n" in result.out


def test_detect_a_cpu(run: Run) -> None:
    result = run("specs", "detect", "--cpu", "--out", "cpu.yaml")
    assert result.status == 0
    assert result.err.startswith("written to cpu.yaml\nleft empty, as nothing reports it: ")
    assert "kind: cpu\n" in Path("cpu.yaml").read_text("utf-8")


class Cuda:
    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def get_device_properties(index: int) -> SimpleNamespace:
        counts = {"multi_processor_count": 58, "total_memory": 23_580_639_232, "clock_rate": 2_040_000}
        return SimpleNamespace(name="NVIDIA L4", major=8, minor=9, **counts)


def test_detect_a_gpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda, version=SimpleNamespace(hip=None)))
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    result = run("specs", "detect")
    assert result.status == 0
    assert "sm_count: 58\n" in result.out
    assert "  fp16: 121.2 TFLOP/s\n" in result.out
    assert result.err.startswith("note: pynvml is not installed: power and PCIe stay empty\nleft empty, ")
    assert result.err.endswith("a checked specification of it is shipped: nvidia-l4\n")
    assert run("specs", "detect", "--index", 1).err == ("rooflinekit: --index 1: PyTorch sees 1 GPUs, counted from 0\n")


def test_detect_without_torch_or_gpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "kind: cpu\n" in run("specs", "detect").out
    assert run("specs", "detect", "--index", 2).err == ("rooflinekit: --index 2: PyTorch sees no GPU on this machine\n")


# ------------------------------------------------------------------ help and speed


def test_specs_alone_helps(run: Run) -> None:
    assert run("specs").out == run("specs", "--help").out


def test_the_table_needs_no_heavy_package() -> None:
    program = (
        "import sys; sys.argv = ['rooflinekit', 'devices']; from rooflinekit.cli import app; app.main();"
        "heavy = {'torch', 'pandas', 'numpy', 'sympy', 'scipy', 'matplotlib', 'rich'};"
        "print(heavy & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"


def test_a_narrow_terminal_leaves_columns_out() -> None:
    from rooflinekit.hardware import catalog
    from rooflinekit.present.text import device_table

    rows = catalog.list_rows(vendor="Apple")
    lines = device_table.device_lines(rows, 100)
    assert max(map(len, lines[:-1])) <= 100
    assert " ".join(lines[0].split()) == "device fp32 fp16 memory bandwidth ridge fp16 power price fp16/W"
    assert lines[-1] == (
        "left out, as the terminal is narrow: fp16/$, bf16, fp8, fp64, tf32, int8, fp4; --json has them all"
    )
    assert device_table.device_lines(rows, 10)[0].split() == ["device", "fp32", "fp16", "memory", "bandwidth"]


def test_the_table_of_the_documentation_is_current(run: Run) -> None:
    """Renew it by putting what `rooflinekit devices --markdown` prints between the two marks."""
    text = (ROOT / "docs" / "hardware.md").read_text("utf-8")
    table = text.partition("<!-- devices -->\n")[2].partition("<!-- end of devices -->")[0]
    assert table == run("devices", "--markdown").out


def test_a_short_name_says_which_board_it_is_taken_for(run: Run) -> None:
    result = run("devices", "h100")
    assert result.status == 0
    assert result.out.startswith("nvidia-h100-sxm5-80gb: ")
    assert result.err.startswith("rooflinekit: 'h100' is read as nvidia-h100-sxm5-80gb, which most people mean; ")
    assert result.err.count("\n") == 1


def test_packages_of_two_devices_are_told(run: Run) -> None:
    assert "PyTorch sees 2 devices in it" in run("devices", "amd-mi250x").out
    assert "amd-mi250x: PyTorch sees 2 devices in it" in run("devices", "--architecture", "gfx90a").out
    document = run("devices", "amd-mi250x", "--json").document
    assert document["device"]["enumerated_as"] == 2
