"""Files that cannot be trusted: each gives one line that names the file, the key, what was expected and what came."""

import shutil
from pathlib import Path

import pytest
from refusals import refusal

from rooflinekit.errors import SpecError
from rooflinekit.hardware import checks, specs
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host

pytestmark = pytest.mark.usefixtures("here")

# A made-up card that follows its architecture exactly:
# fp32 2 x 100 x 128 x 2 GHz = 51.2 TFLOP/s; fp16 2 x 100 x 512 x 2 GHz = 204.8; 256 bit x 20 Gbit/s / 8 = 640 GB/s.
GOOD = """\
schema: 1
name: my-card
vendor: NVIDIA
architecture: Ada Lovelace
compute_capability: "8.9"
sm_count: 100
lanes_per_sm: 128
clock: {boost: 2 GHz}
dram:
  capacity: 24 GiB
  bandwidth: 640 GB/s
  bus_width: 256 bit
  pin_rate: 20 Gbit/s
l2_capacity: 64 MiB
matrix_peak:
  fp16: 204.8 TFLOP/s
vector_peak:
  fp32: 51.2 TFLOP/s
"""


def complaint(content: str | bytes) -> str:
    Path("x.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
    message = refusal(SpecError, specs.load_device, "x.yaml")
    assert "\n" not in message
    assert len(message) < 600
    return message


def test_the_good_file_loads(here: Path) -> None:
    Path("x.yaml").write_text(GOOD)
    device = specs.load_device("x.yaml")
    assert device.name == "my-card"
    assert device.ridge("fp16") == pytest.approx(320)  # 204.8e12 / 640e9
    assert specs.load_device(here / "x.yaml") == specs.read_unverified("x.yaml") == device
    Path("x.yaml").write_text("\ufeff" + GOOD.replace("\n", "\r\n"), encoding="utf-8")
    assert specs.load_device("./x.yaml") == device


B_PER_S = "expected a quantity in B/s, such as '3 GB/s'; got"
FLOP_PER_S = "expected a quantity in FLOP/s, such as '20 TFLOP/s'; got"
REPLACED = [
    # (what the good file says, what the bad one says, the message after "x.yaml: ")
    ("640 GB/s", "4.8 TB", f"dram: bandwidth: {B_PER_S} '4.8 TB'"),
    ("640 GB/s", "640", f"dram: bandwidth: {B_PER_S} 640"),
    ("640 GB/s", "6.4e11", f"dram: bandwidth: {B_PER_S} '6.4e11'"),
    ("640 GB/s", "-640 GB/s", f"dram: bandwidth: {B_PER_S} '-640 GB/s'"),
    ("640 GB/s", "0 GB/s", f"dram: bandwidth: {B_PER_S} '0 GB/s', which is not positive and finite"),
    ("640 GB/s", ".nan", f"dram: bandwidth: {B_PER_S} nan"),
    ("640 GB/s", ".inf", f"dram: bandwidth: {B_PER_S} inf"),
    ("640 GB/s", "nan GB/s", f"dram: bandwidth: {B_PER_S} 'nan GB/s'"),
    ("640 GB/s", "yes", f"dram: bandwidth: {B_PER_S} True"),
    ("640 GB/s", "[640 GB/s]", f"dram: bandwidth: {B_PER_S} ['640 GB/s']"),
    ("640 GB/s", "", f"dram: bandwidth: {B_PER_S} None"),
    ("640 GB/s", "640 gb/s", f"dram: bandwidth: {B_PER_S} '640 gb/s'"),
    ("51.2 TFLOP/s", "51.2 TFLOPS", f"vector_peak: fp32: {FLOP_PER_S} '51.2 TFLOPS'"),
    ("  bandwidth", "  bandwith", "dram: bandwith: unknown key; did you mean 'bandwidth'? (and 1 more)"),
    ("l2_capacity:", "l2_capacty:", "l2_capacty: unknown key; did you mean 'l2_capacity'? (and 1 more)"),
    ("vendor: NVIDIA\n", "", "vendor: the key is missing"),
    ("sm_count: 100", "sm_count: '100'", "sm_count: expected a whole number without a unit; got '100'"),
    ("sm_count: 100", "sm_count: 100.0", "sm_count: expected a whole number without a unit; got 100.0"),
    ("sm_count: 100", "sm_count: true", "sm_count: expected a whole number without a unit; got True"),
    ("sm_count: 100", "sm_count: 0", "sm_count: expected a number of at least 1; got 0"),
    ("sm_count: 100", "sm_count: 2022-13-45", "not valid YAML: month must be in 1..12"),
    ('"8.9"', "8.9", "compute_capability: expected text in quotes; got 8.9"),
    (
        "name: my-card",
        "name: My Card",
        "name: expected lower-case words joined by hyphens, such as 'nvidia-l4'; got 'My Card'",
    ),
    ("vendor: NVIDIA", "vendor: no", "vendor: expected text in quotes; got False"),
    ("vendor: NVIDIA", "vendor: ''", "vendor: expected some text; got ''"),
    ("clock: {boost: 2 GHz}", "clock: 2 GHz", "clock: expected a mapping of keys to values; got '2 GHz'"),
    ("clock: {boost: 2 GHz}", "clock: [2 GHz]", "clock: expected a mapping of keys to values; got ['2 GHz']"),
    ("clock: {boost: 2 GHz}", "clock: {boost: 2 GHz, base: 3 GHz}", "clock: expected base to be no faster than boost"),
    (
        "vendor: NVIDIA",
        "vendor: NVIDIA\nprocess_node: TSMC 4N",
        "process_nm: expected a number of nanometres beside process_node, as 5 for TSMC 4N",
    ),
    (
        "  fp16: 204.8",
        "  fp17: 204.8",
        "matrix_peak: fp17: expected one of fp64, fp32, tf32, bf16, fp16, fp8, int8, fp4; got 'fp17'; "
        "did you mean 'fp16'?",
    ),
    ("  fp32: 51.2", "  fp64: 51.2", "vector_peak: expected at least fp32"),
    ("vendor: NVIDIA", "aliases: just one\nvendor: NVIDIA", "aliases: expected a list; got 'just one'"),
    ("vendor: NVIDIA", "aliases: [1]\nvendor: NVIDIA", "aliases: 0: expected text in quotes; got 1"),
    (
        "vendor: NVIDIA",
        "launch_date: soon\nvendor: NVIDIA",
        "launch_date: expected a date, such as 2024-11-18; got 'soon'",
    ),
    ("schema: 1\n", "", "schema: expected 'schema: 1'; the key is missing"),
    ("schema: 1", "schema: one", "schema: expected 'schema: 1'; got 'one'"),
    ("schema: 1", "schema: true", "schema: expected 'schema: 1'; got True"),
    ("schema: 1", "schema: 7", "schema: expected 1; got 7: this program is older than the file"),
    ("schema: 1", "schema: 0", "schema: expected 1; got 0: no such schema"),
    ("schema: 1", "schema: 1\nschema_version: 1", "schema_version: unknown key; did you mean 'schema'?"),
    ("vendor: NVIDIA", "sources: {peaks: ''}\nvendor: NVIDIA", "sources: peaks: expected some text; got ''"),
    (
        "vendor: NVIDIA",
        "tensor_rate: double\nvendor: NVIDIA",
        "tensor_rate: expected one of full, half-accumulate, half; got 'double'",
    ),
    (
        "vendor: NVIDIA",
        "pcie: {generation: 9, lanes: 16}\nvendor: NVIDIA",
        "pcie: generation: expected a number of at most 6; got 9",
    ),
    (
        "vendor: NVIDIA",
        "shared_memory_per_sm: 64 KiB\nshared_memory_per_block: 99 KiB\nvendor: NVIDIA",
        "shared_memory_per_block: expected no more than shared_memory_per_sm",
    ),
]


@pytest.mark.parametrize(("good", "bad", "message"), REPLACED)
def test_wrong_value(good: str, bad: str, message: str) -> None:
    assert good in GOOD
    assert complaint(GOOD.replace(good, bad, 1)) == f"x.yaml: {message}"


STRUCTURE = [
    ("", "x.yaml: the file is empty; expected a YAML mapping that begins with 'schema: 1'"),
    ("# nothing\n", "x.yaml: the file is empty; expected a YAML mapping that begins with 'schema: 1'"),
    ("- schema: 1\n", "x.yaml: expected a mapping of keys to values; got a list"),
    ("hello\n", "x.yaml: expected a mapping of keys to values; got the single value 'hello'"),
    (GOOD + "sm_count: 99\n", "x.yaml: line 19: key 'sm_count' is written twice"),
    (
        GOOD.replace("  capacity", "  bandwidth: 1 GB/s\n  capacity"),
        "x.yaml: line 12: key 'bandwidth' is written twice",
    ),
    (GOOD + "1: 2\n", "x.yaml: line 19: expected text as key; got 1"),
    (GOOD + "notes: &a text\n", "x.yaml: line 19: YAML anchor &a is not allowed; write the value out"),
    (GOOD + "notes: *a\n", "x.yaml: line 19: YAML alias *a is not allowed; write the value out"),
    (
        GOOD + "notes: !!python/object/apply:os.getcwd []\n",
        "x.yaml: line 19: YAML tag tag:yaml.org,2002:python/object/apply:os.getcwd is not allowed",
    ),
    (GOOD + "notes: !mine text\n", "x.yaml: line 19: YAML tag !mine is not allowed"),
    ("notes: " + "[" * 500_000, "x.yaml: line 1: nests deeper than 16 levels"),
    (b"\xff\xfe\x00", "x.yaml: not UTF-8 text: invalid start byte at byte 0"),
    (
        GOOD.encode() + b"notes: caf\xe9\n",
        f"x.yaml: not UTF-8 text: invalid continuation byte at byte {len(GOOD) + 10}",
    ),
    (b"#" * (2**20 + 1), "x.yaml: is larger than 1 MiB; expected a YAML file of a few KiB"),
]


@pytest.mark.parametrize(("content", "message"), STRUCTURE, ids=range(len(STRUCTURE)))
def test_wrong_structure(content: str | bytes, message: str) -> None:
    assert complaint(content) == message


@pytest.mark.parametrize(
    ("content", "start"),
    # The wording after the start is the YAML library's and differs between its two parsers.
    [
        ("a: b: c\n", "x.yaml: line 1: not valid YAML: "),
        ("a: [1\n", "x.yaml: line 2: not valid YAML: "),
        ("\ta: 1\n", "x.yaml: line 1: not valid YAML: "),
        (GOOD + "---\n" + GOOD, "x.yaml: line 19: not valid YAML: "),
        (GOOD + "<<: {notes: text}\n", "x.yaml: line 19: not valid YAML: "),
        (b"a: \x00\x01\x02", "x.yaml: not valid YAML: "),
        (bytes(range(128)), "x.yaml: not valid YAML: "),
    ],
    ids=range(7),
)
def test_not_yaml(content: str | bytes, start: str) -> None:
    assert complaint(content).startswith(start)


def test_not_a_file(here: Path) -> None:
    (here / "folder.yaml").mkdir()
    cases = {
        "folder.yaml": "folder.yaml: is a directory; expected a YAML file",
        "missing.yaml": "missing.yaml: no such file",
        "no/such/file": "no/such/file: no such file",
        "nul\0.yaml": "nul\\x00.yaml: no such file",
        "x" * 5000 + ".yaml": "x" * 5000 + ".yaml: ",
    }
    for path, message in cases.items():
        assert refusal(SpecError, specs.load_device, path).startswith(message)


def test_wrong_device_or_host() -> None:
    host_file = specs.data_dir("gpu_specs") / "hosts" / "generic-server.yaml"
    Path("host.yaml").write_text(host_file.read_text("utf-8"), "utf-8")
    assert isinstance(specs.read_unverified("host.yaml"), Host)
    with pytest.raises(SpecError, match=r"^host\.yaml: description: unknown key"):
        specs.load_device("host.yaml")
    text = Path("host.yaml").read_text("utf-8")
    Path("host.yaml").write_text(text.replace("default: 10 µs", "default: 10"), "utf-8")
    said = refusal(SpecError, specs.load_host, "host.yaml")
    assert said == "host.yaml: dispatch: default: expected a quantity in s, such as '5 µs'; got 10"
    Path("host.yaml").write_text(text.replace("  default: 10 µs\n", ""), "utf-8")
    said = refusal(SpecError, specs.load_host, "host.yaml")
    assert said == "host.yaml: dispatch: expected a time for 'default', which unlisted families fall back to"


def test_several_problems_are_counted() -> None:
    message = complaint(GOOD.replace("640 GB/s", "640").replace("100", "-1").replace("NVIDIA", "5"))
    assert message == "x.yaml: vendor: expected text in quotes; got 5 (and 2 more)"


# ------------------------------------------------------------------ physics


def test_sparse_peak() -> None:
    assert complaint(GOOD.replace("204.8", "409.6")) == (
        "x.yaml: matrix_peak: fp16: expected 204.8 TFLOP/s within 2.5% (2 x 100 SMs x 512 multiply-adds x 2 GHz "
        "at full density); got 409.6 TFLOP/s; twice the dense rate looks like a figure with structured sparsity, "
        "or with fp16 accumulation"
    )


def test_half_rate_must_be_declared() -> None:
    half = GOOD.replace("204.8", "102.4")
    assert complaint(half) == (
        "x.yaml: matrix_peak: fp16: expected 204.8 TFLOP/s within 2.5% (2 x 100 SMs x 512 multiply-adds x 2 GHz "
        "at full density); got 102.4 TFLOP/s; if this product line runs at half rate, say "
        "'tensor_rate: half-accumulate' or 'tensor_rate: half'"
    )
    Path("x.yaml").write_text(half + "tensor_rate: half-accumulate\n")
    assert specs.load_device("x.yaml").tensor_rate == "half-accumulate"


@pytest.mark.parametrize(
    ("rate", "int8", "ok"),
    # int8 does not accumulate in fp32, so only `half` halves it: 2 x 100 x 1024 x 2 GHz = 409.6.
    [("full", 409.6, True), ("half-accumulate", 409.6, True), ("half", 204.8, True), ("half", 409.6, False)],
)
def test_half_rates_of_int8(rate: str, int8: float, ok: bool) -> None:
    text = GOOD.replace("  fp16: 204.8 TFLOP/s", f"  int8: {int8} TOP/s") + f"tensor_rate: {rate}\n"
    Path("x.yaml").write_text(text)
    device = specs.read_unverified("x.yaml")
    assert isinstance(device, Device)
    assert all(check.ok for check in checks.run(device)) is ok


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (
            "51.2 TFLOP/s",
            "102.4 TFLOP/s",
            "vector_peak: fp32: expected 51.20 TFLOP/s within 2.0% (2 x 100 SMs x 128 lanes x 2 GHz); "
            "got 102.4 TFLOP/s",
        ),
        (
            "640 GB/s",
            "600 GB/s",
            "dram: bandwidth: expected 640.0 GB/s within 3.0% (256 bit x 20 Gbit/s / 8); got 600.0 GB/s",
        ),
        ("24 GiB", "24 TiB", "dram: capacity: expected 5.00 ms to 5.00 s to read the whole memory once; got 41.2 s"),
        (
            "fp16: 204.8 TFLOP/s",
            "fp64: 204.8 TFLOP/s",
            "matrix_peak: fp64: expected no such key: 8.9 has no fp64 matrix arithmetic",
        ),
        (
            "fp32: 51.2 TFLOP/s",
            "fp32: 51.2 TFLOP/s\n  fp64: 1.6 TFLOP/s",  # 1/32 as on Turing; Ada has 1/64
            "vector_peak: fp64: expected 800.0 GFLOP/s within 3.0% (0.01562 of 2 x 100 SMs x 128 lanes x 2 GHz); "
            "got 1.600 TFLOP/s",
        ),
    ],
)
def test_impossible_number(good: str, bad: str, message: str) -> None:
    assert complaint(GOOD.replace(good, bad, 1)) == f"x.yaml: {message}"


def test_slipped_prefix() -> None:
    # Both wrong by a thousand, so that they agree with each other.
    message = complaint(GOOD.replace("640 GB/s", "640 TB/s").replace("20 Gbit/s", "20 Tbit/s"))
    assert message == (
        "x.yaml: dram: bandwidth_range: expected 10.0 GB/s to 50.0 TB/s of a device's memory; got 640 TB/s (and 3 more)"
    )


def test_explained_deviation() -> None:
    text = GOOD.replace("51.2 TFLOP/s", "102.4 TFLOP/s")
    Path("x.yaml").write_text(text + "explained: {vector_peak.fp32: counts dual issue}\n")
    device = specs.load_device("x.yaml")
    check = next(check for check in checks.run(device) if check.name == "vector_peak.fp32")
    assert (check.status, check.ok, check.note) == ("explained", True, "counts dual issue")
    assert check.expected == 51.2e12
    assert check.actual == 102.4e12


def test_explanation_of_nothing() -> None:
    message = complaint(GOOD + "explained: {vector_peak.fp23: because}\n")
    assert message.startswith(
        "x.yaml: explained: vector_peak.fp23: expected the name of a check; did you mean 'vector_peak.fp32'"
    )


def test_unknown_architecture_skips_the_rate_check() -> None:
    Path("x.yaml").write_text(GOOD.replace('"8.9"', '"99.0"').replace("204.8", "999"))
    device = specs.load_device("x.yaml")
    (check,) = [check for check in checks.run(device) if check.name == "matrix_peak.fp16"]
    assert (check.status, check.expected) == ("skipped", None)
    assert check.note == "no matrix rates are known for 99.0"


def test_bandwidth_without_pins_is_skipped() -> None:
    Path("x.yaml").write_text(GOOD.replace("  bus_width: 256 bit\n", ""))
    (check,) = [check for check in checks.run(specs.load_device("x.yaml")) if check.name == "dram.bandwidth"]
    assert check.status == "skipped"


def test_read_without_verification() -> None:
    Path("x.yaml").write_text(GOOD.replace("204.8", "409.6"))
    device = specs.read_unverified("x.yaml")
    assert isinstance(device, Device)
    assert [check.name for check in checks.run(device) if not check.ok] == ["matrix_peak.fp16"]
    with pytest.raises(SpecError):
        specs.load_device("x.yaml")


def test_pure_python_yaml_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml")
    monkeypatch.setattr("rooflinekit.hardware.yaml_file._LOADER", yaml.SafeLoader)
    Path("x.yaml").write_text(GOOD)
    assert specs.load_device("x.yaml").name == "my-card"
    assert complaint(GOOD + "sm_count: 99\n") == "x.yaml: line 19: key 'sm_count' is written twice"
    assert complaint("[" * 5000) == "x.yaml: line 1: nests deeper than 16 levels"


def test_copy_of_a_shipped_file_under_another_name() -> None:
    source = specs.data_dir("gpu_specs") / "nvidia-l4.yaml"
    with source.open("rb") as stream, open("mine.yml", "wb") as target:
        shutil.copyfileobj(stream, target)
    assert specs.load_device("mine.yml") == specs.load_device("nvidia-l4")


# ------------------------------------------------------------------ formats, channels, masses


def test_a_format_in_two_places() -> None:
    assert complaint(GOOD + "absent: [fp4, fp16]\n") == (
        "x.yaml: formats: expected fp16 in one of the peaks, unpublished, emulated and absent; got it in several"
    )
    message = complaint(GOOD + "absent: [fp4]\nemulated: {fp4: as fp8}\n")
    assert message.startswith("x.yaml: formats: expected fp4 in one of ")


def test_formats_may_be_left_open() -> None:
    Path("x.yaml").write_text(GOOD + "absent: [fp4]\nemulated: {tf32: as fp32}\nunpublished: {fp64: a secret}\n")
    device = specs.load_device("x.yaml")
    check = checks.run(device)[-1]
    assert (check.name, check.status) == ("formats", "skipped")
    assert check.note == "the file does not say whether it has bf16, fp8, int8"
    found = [device.support(math) for math in ("fp16", "fp32", "fp4", "tf32", "fp64", "int8")]
    assert found == ["matrix", "vector", "absent", "emulated", "unpublished", ""]


def test_channels_of_a_cpu() -> None:
    # 256 bit are four channels.
    Path("x.yaml").write_text(GOOD.replace("  bus_width", "  channels: 4\n  bus_width"))
    assert specs.load_device("x.yaml").dram.channels == 4
    assert complaint(GOOD.replace("  bus_width", "  channels: 2\n  bus_width")) == (
        "x.yaml: dram: bus_width: expected 128.0 bit within 0.0% (2 channels x 64 bit); got 256.0 bit"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "aliases: [" + "a," * 30_000 + "]",
            "x.yaml: holds more than 20000 values; expected a specification of about a hundred",
        ),
        ("schema: " + "1" * 65, "x.yaml: line 1: expected a number of at most 64 digits"),
        (GOOD.replace("24 GiB", "1e20 GiB"), "which no hardware has"),
        (
            GOOD.replace("sm_count: 100", "sm_count: 9999999999"),
            "x.yaml: sm_count: expected a number of at most 1000000;",
        ),
        (GOOD + '"sm\\tcount": 1\n', "x.yaml: sm\\tcount: unknown key; did you mean 'sm_count'?"),
    ],
)
def test_masses(content: str, message: str) -> None:
    assert message in complaint(content)
