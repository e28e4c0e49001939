"""The shipped device and host files: complete, consistent, and right where the arithmetic can be done by hand."""

import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from refusals import refusal

import rooflinekit
from rooflinekit.errors import AmbiguousDeviceError, DeviceNotFoundError, DeviceWarning, SpecError
from rooflinekit.hardware import checks, specs
from rooflinekit.hardware.device import FORMATS, Device
from rooflinekit.hardware.host import FAMILIES, HOST_SOURCE_GROUPS


@pytest.fixture(scope="module")
def every_device() -> tuple[Device, ...]:
    return specs.devices()


DRAFTS = ("apple-m3-max-40c", "intel-arc-a770-16gb", "nvidia-b100")
CPUS = (
    "amd-epyc-7763", "generic-cloud-cpu-avx2", "generic-cloud-cpu-avx512", "intel-core-i7-12700h",
    "intel-core-i9-10940x", "intel-xeon-platinum-8480plus",
)  # fmt: skip


def test_number_of_devices() -> None:
    # A packaging mistake that loses files shows here: 108 accelerators, 3 drafts, 6 CPUs.
    assert len(specs.device_names()) == 117
    assert len(specs.devices()) == 114
    assert len(specs.devices(allow_draft=True)) == 117


def test_drafts_are_refused(every_device: tuple[Device, ...]) -> None:
    assert not {device.name for device in every_device} & set(DRAFTS)
    for name in DRAFTS:
        device = specs.load_device(name, allow_draft=True)
        assert device.draft
        assert refusal(SpecError, specs.load_device, device.aliases[0]) == (
            f"{name}: is a draft ({device.draft_reason}); accept it with allow_draft=True "
            "(--allow-draft on the command line)"
        )


def test_a_draft_file_is_refused_and_read_for_checking(tmp_path: Path) -> None:
    text = (specs.data_dir("gpu_specs") / "nvidia-b100.yaml").read_text("utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(SpecError, match=r"mine\.yaml: is a draft \(announced figures"):
        specs.load_device(path)
    assert specs.load_device(path, allow_draft=True).name == specs.read_unverified(str(path)).name == "nvidia-b100"
    path.write_text(text.replace("draft: true\n", ""), "utf-8")
    said = refusal(SpecError, specs.load_device, path)
    assert said == f"{path}: draft_reason: expected a reason beside 'draft: true', and none without it"


@pytest.mark.parametrize("name", specs.device_names())
def test_device_is_complete(name: str) -> None:
    device = specs.load_device(name, allow_draft=True)
    assert device.name == name
    assert device.kind == ("cpu" if name in CPUS else "gpu")
    assert device.aliases
    assert device.display_name
    assert all(device.support(math) for math in FORMATS)
    assert all(check.ok for check in checks.run(device))
    groups = {"processors", "memory", "caches", "peaks", "formats"}
    groups |= {"process"} if device.process_node else set()
    groups |= {"links"} if device.pcie or device.interconnect else set()
    groups |= {"board"} if device.board_power else set()
    assert set(device.sources) == groups
    if device.vendor == "generic":
        return
    assert device.process_node
    assert device.launch_date
    assert device.confidence in (("low",) if device.draft else ("high", "medium"))
    assert device.board_power or name in INSIDE_ANOTHER_BOARD


# Their makers state no power of the GPU alone.
INSIDE_ANOTHER_BOARD = ("apple-m1-max-32c", "apple-m2-max-38c", "apple-m3-max-40c")


@pytest.mark.parametrize("name", specs.device_names())
def test_gpu_details_are_there(name: str) -> None:
    device = specs.load_device(name, allow_draft=True)
    if device.kind == "cpu" or device.draft:
        return
    assert device.dram.type
    assert device.dram.bus_width
    assert device.dram.pin_rate
    assert device.registers_per_sm
    assert device.threads_per_sm or name.startswith("amd-rx-7900") or name == "intel-max-1550"
    assert device.shared_memory_per_sm
    assert device.shared_memory_per_block
    assert device.l1_capacity_per_sm
    assert device.pcie or name.startswith(("apple", "nvidia-jetson"))
    assert (device.tensor_cores is not None) == bool(device.matrix_peak)


@pytest.mark.parametrize("name", specs.device_names())
def test_explanations_are_needed(name: str) -> None:
    device = specs.load_device(name, allow_draft=True)
    unexplained = {check.name for check in checks.run(device.replace(explained={})) if not check.ok}
    assert set(device.explained) == unexplained


def test_only_known_deviations_are_explained(every_device: tuple[Device, ...]) -> None:
    explained = {device.name for device in every_device if device.explained}
    assert explained == {
        "amd-mi300a", "amd-mi300x", "amd-mi308x", "amd-mi325x", "amd-mi355x", "amd-rx-7900-xt", "amd-rx-7900-xtx",
        "nvidia-b300-sxm-288gb", "nvidia-gb300", "nvidia-h20-96gb", "nvidia-h800-sxm5-80gb",
    }  # fmt: skip


def test_every_rate_is_checked(every_device: tuple[Device, ...]) -> None:
    assert not [
        (device.name, check) for device in every_device for check in checks.run(device) if check.status == "skipped"
    ]


# Peaks from the published architecture: SMs x operations per SM and clock x clock. In TFLOP/s.
BY_HAND = [
    ("nvidia-a100-sxm4-80gb", "vector", "fp32", 19.49),  # 108 x 64 x 2 x 1.410e9 = 19.49e12
    ("nvidia-a100-sxm4-80gb", "matrix", "fp16", 311.9),  # 108 x 1024 x 2 x 1.410e9 = 311.87e12
    ("nvidia-a100-sxm4-80gb", "matrix", "fp64", 19.49),  # 108 x 64 x 2 x 1.410e9
    ("nvidia-rtx-4090", "vector", "fp32", 82.58),  # 128 x 128 x 2 x 2.520e9 = 82.58e12
    ("nvidia-rtx-4090", "matrix", "bf16", 165.2),  # 128 x 256 x 2 x 2.520e9 = 165.15e12, half rate
    ("nvidia-l4", "vector", "fp32", 30.29),  # 58 x 128 x 2 x 2.040e9 = 30.29e12
    ("nvidia-l4", "matrix", "fp16", 121.2),  # 58 x 512 x 2 x 2.040e9 = 121.16e12
    ("nvidia-h100-sxm5-80gb", "vector", "fp32", 66.91),  # 132 x 128 x 2 x 1.980e9 = 66.91e12
    ("nvidia-h100-sxm5-80gb", "matrix", "fp16", 989.4),  # 132 x 2048 x 2 x 1.830e9 = 989.4e12, the other clock
    ("nvidia-h100-sxm5-80gb", "matrix", "fp64", 66.91),  # 132 x 128 x 2 x 1.980e9, at boost again
    ("nvidia-v100-sxm2-16gb", "matrix", "fp16", 125.3),  # 80 x 512 x 2 x 1.530e9 = 125.3e12
    ("nvidia-t4", "matrix", "int8", 130.3),  # 40 x 1024 x 2 x 1.590e9 = 130.25e12
    ("nvidia-p100-pcie-16gb", "vector", "fp16", 18.68),  # 56 x 64 x 2 x 2 x 1.303e9 = 18.68e12
    ("nvidia-l40s", "matrix", "fp16", 362.05),  # 142 x 512 x 2 x 2.490e9 = 362.07e12
    ("nvidia-l40", "matrix", "fp16", 181.0),  # 142 x 256 x 2 x 2.490e9 = 181.03e12: not the L40S rate
    ("amd-mi300x", "matrix", "bf16", 1307.4),  # 304 x 1024 x 2 x 2.100e9 = 1307.4e12
]


@pytest.mark.parametrize(("name", "unit", "math", "tera"), BY_HAND)
def test_peak_by_hand(name: str, unit: str, math: str, tera: float) -> None:
    device = specs.load_device(name)
    table = device.matrix_peak if unit == "matrix" else device.vector_peak
    assert table[math] == pytest.approx(tera * 1e12, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "gigabytes_per_second"),
    [
        ("nvidia-a100-sxm4-80gb", 2039),  # 5120 bit x 3.186 Gbit/s / 8 = 2039
        ("nvidia-rtx-4090", 1008),  # 384 x 21 / 8
        ("nvidia-l4", 300),  # 192 x 12.5 / 8
        ("nvidia-h200-sxm-141gb", 4800),  # printed; 6144 x 6.402 / 8 = 4917
        ("nvidia-b200-sxm-180gb", 7672),  # 7680 x 7.992 / 8
    ],
)
def test_bandwidth_by_hand(name: str, gigabytes_per_second: float) -> None:
    assert specs.load_device(name).dram.bandwidth == gigabytes_per_second * 1e9


@pytest.mark.parametrize(
    ("name", "mebibytes", "visible"),
    # What nvidia-smi reports as total memory: printed "GB" are GiB, less a little that the driver keeps.
    [
        ("nvidia-b200-sxm-180gb", 180 * 1024, 179 * 1024),
        ("nvidia-gb200", 186 * 1024, 189471),
        ("nvidia-b300-sxm-288gb", 275040, 275040),  # here the printed 288 GB are decimal
        ("nvidia-gb300", 284208, 284208),
    ],
)
def test_capacity_is_what_the_device_has(name: str, mebibytes: int, visible: int) -> None:
    capacity = specs.load_device(name).dram.capacity
    assert capacity == mebibytes * 2**20
    assert 0.99 <= visible * 2**20 / capacity <= 1


def test_printed_gigabytes_are_binary() -> None:
    assert specs.load_device("nvidia-h100-sxm5-80gb").dram.capacity == 80 * 2**30


def test_absent_formats_are_absent(every_device: tuple[Device, ...]) -> None:
    by_name = {device.name: device for device in every_device}
    assert by_name["nvidia-v100-sxm2-16gb"].formats == ("fp64", "fp32", "fp16")
    assert by_name["nvidia-v100-sxm2-16gb"].support("bf16") == "emulated"
    assert by_name["nvidia-p40"].support("int8") == "vector"
    assert by_name["nvidia-a100-sxm4-80gb"].absent == ("fp8", "fp4")
    assert by_name["nvidia-p100-sxm2-16gb"].matrix_peak == {}
    assert by_name["nvidia-p100-sxm2-16gb"].tensor_cores is None
    assert "fp8" not in by_name["nvidia-a100-sxm4-80gb"].formats
    assert by_name["apple-m1-max-32c"].formats == ("fp32", "fp16")
    assert by_name["nvidia-gh200-96gb"].clock.base is None


def test_aliases_are_unique() -> None:
    owners: dict[str, str] = {}
    for device in specs.devices(allow_draft=True):
        for spelling in {specs.squash(text) for text in (device.name, *device.aliases)}:
            assert spelling not in owners, f"{spelling}: {owners.get(spelling)} and {device.name}"
            owners[spelling] = device.name


@pytest.mark.parametrize("name", specs.device_names())
def test_every_spelling_finds_its_device(name: str) -> None:
    for spelling in (name, *specs.load_device(name, allow_draft=True).aliases):
        for written in (spelling, spelling.upper(), spelling.replace(" ", "_"), spelling.replace("-", " ")):
            assert specs.load_device(written, allow_draft=True).name == name


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb"),
        ("A100-SXM4-80GB", "nvidia-a100-sxm4-80gb"),
        ("a100 80gb pcie", "nvidia-a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-sxm5-80gb"),
        ("H100 SXM", "nvidia-h100-sxm5-80gb"),
        ("H100 PCIe", "nvidia-h100-pcie-80gb"),
        ("h200", "nvidia-h200-sxm-141gb"),
        ("NVIDIA GeForce RTX 4090", "nvidia-rtx-4090"),
        ("RTX 4090", "nvidia-rtx-4090"),
        ("rtx4090", "nvidia-rtx-4090"),
        ("4090", "nvidia-rtx-4090"),
        ("RTX 3090", "nvidia-rtx-3090"),
        ("3090ti", "nvidia-rtx-3090-ti"),
        ("GeForce GTX 1080 Ti", "nvidia-gtx-1080-ti"),
        ("NVIDIA L4", "nvidia-l4"),
        ("TITAN RTX", "nvidia-titan-rtx"),
        ("rtx 8000", "nvidia-quadro-rtx-8000"),
        ("4070 Ti", "nvidia-rtx-4070-ti"),  # and not the SUPER
        ("l40s", "nvidia-l40s"),
        ("Tesla V100-SXM2-32GB", "nvidia-v100-sxm2-32gb"),
        ("Tesla P100-PCIE-16GB", "nvidia-p100-pcie-16gb"),
        ("AMD Instinct MI300X", "amd-mi300x"),
        ("mi300x", "amd-mi300x"),
        ("AMD Instinct MI250X", "amd-mi250x-gcd"),  # what HIP calls one die
        ("amd-mi250x", "amd-mi250x"),
        ("B200", "nvidia-b200-sxm-180gb"),  # and not GB200
        ("M2 Max", "apple-m2-max-38c"),
        ("Intel(R) Data Center GPU Max 1550", "intel-max-1550"),
        ("NVIDIA A100 80GB PCIe", "nvidia-a100-pcie-80gb"),
        ("NVIDIA RTX 6000 Ada Generation", "nvidia-rtx-6000-ada"),
        ("NVIDIA GH200 480GB", "nvidia-gh200-96gb"),
        ("12th Gen Intel(R) Core(TM) i7-12700H", "intel-core-i7-12700h"),
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763"),
        ("Intel(R) Xeon(R) Platinum 8480+", "intel-xeon-platinum-8480plus"),
        # with the memory that the device has
        ("RTX 4090 24GB", "nvidia-rtx-4090"),
        ("GeForce RTX 4090 24 GB GDDR6X", "nvidia-rtx-4090"),
        ("L40S-48GB", "nvidia-l40s"),
        ("B200 192GB", "nvidia-b200-sxm-180gb"),  # 180 GiB are 193e9 byte
        ("H200 SXM 141GB HBM3e", "nvidia-h200-sxm-141gb"),
        ("MI300X 192 GB", "amd-mi300x"),
    ],
)
def test_lookup(query: str, name: str) -> None:
    assert specs.load_device(query).name == name


@pytest.mark.parametrize(
    ("query", "candidates"),
    [
        ("A100 PCIe", "nvidia-a100-pcie-40gb or nvidia-a100-pcie-80gb"),
        ("Tesla P100", "nvidia-p100-pcie-16gb or nvidia-p100-sxm2-16gb"),
        ("RTX 5000", "nvidia-quadro-rtx-5000 or nvidia-rtx-5000-ada"),
    ],
)
def test_ambiguous(query: str, candidates: str) -> None:
    assert refusal(AmbiguousDeviceError, specs.load_device, query) == f"{query!r} may be {candidates}; name one of them"


@pytest.mark.parametrize(
    ("query", "name", "others"),
    [
        ("h100", "nvidia-h100-sxm5-80gb", "nvidia-h100-nvl-94gb and nvidia-h100-pcie-80gb"),
        ("A100 80GB", "nvidia-a100-sxm4-80gb", "nvidia-a100-pcie-80gb"),
        ("Tesla V100", "nvidia-v100-sxm2-16gb", "nvidia-v100-pcie-16gb and nvidia-v100-pcie-32gb"),
        ("H200 141 GB", "nvidia-h200-sxm-141gb", "nvidia-h200-nvl-141gb"),
        ("MI250X", "amd-mi250x-gcd", "amd-mi250x"),  # what PyTorch counts
    ],
)
def test_a_short_name_is_the_board_that_most_people_mean_and_says_so(query: str, name: str, others: str) -> None:
    with pytest.warns(DeviceWarning) as caught:
        assert specs.load_device(query).name == name
    (said,) = [str(one.message) for one in caught]
    assert said.startswith(f"{query!r} is read as {name}, which most people mean; there is also {others}")


def test_short_names_mean_one_board_each() -> None:
    """Names that answer to no other board would need no rule, and two boards with one name would need another."""
    meant = [(short.casefold(), device) for device in specs.devices(allow_draft=True) for short in device.meant_by]
    assert len({short for short, _ in meant}) == len(meant) > 0
    for short, device in meant:
        words = set(short.replace("gb", " gb").split()) - {"gb"}
        alike = [d for d in specs.devices() if all(any(w in s.casefold() for s in (d.name, *d.aliases)) for w in words)]
        assert {device.name} < {one.name for one in alike}, short


def test_a_package_of_two_devices_says_so() -> None:
    package, half = specs.load_device("amd-mi250x"), specs.load_device("amd-mi250x-gcd")
    assert package.sm_count == package.enumerated_as * half.sm_count == 220
    assert package.caution.startswith("amd-mi250x: PyTorch sees 2 devices in it")
    assert half.caution == ""


@pytest.mark.parametrize(
    "query",
    # Other chips, and words that describe a family: never a silent near match.
    [
        "RTX 4060 Ti",
        "RTX 4060 16GB",  # the Ti has 16, the RTX 4060 has 8
        "RTX 5060",  # there is the Ti alone
        "RTX 3080 12GB",  # neither that of 10 GB nor the Ti of 12
        "RTX 4090 Laptop GPU",
        "A10M",
        "Titan X",
        "Titan Xp",
        "NVIDIA",
        "ada",
        "80GB",
        "94 GB",
        "max",
        "-",
        "",
        " ",
    ],
)
def test_not_found(query: str) -> None:
    message = refusal(DeviceNotFoundError, specs.load_device, query)
    assert message.startswith(f"unknown device {query!r}")
    assert message.endswith("`rooflinekit devices` lists all 117")


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("8xH100", "name one GPU, 'H100'; 8 of them are --gpus 8 with a --cluster"),
        ("RTX 4090 x 2", "name one GPU, 'RTX 4090'; 2 of them are --gpus 2 with a --cluster"),
        ("cuda:0", "name the kind of GPU, as `nvidia-smi -L` prints it"),
        ("DGX H100", "dgx-h100 is a cluster: write --cluster dgx-h100"),
        ("nvidia", "`rooflinekit devices --vendor nvidia` lists its GPUs"),
    ],
)
def test_what_is_no_name_of_one_gpu_is_told_what_to_write(query: str, answer: str) -> None:
    said = refusal(DeviceNotFoundError, specs.load_device, query)
    assert said == f"unknown device {query!r}; {answer}; `rooflinekit devices` lists all 117"


def test_not_found_suggests() -> None:
    said = refusal(DeviceNotFoundError, specs.load_device, "nvidia-a10x")
    assert said.startswith("unknown device 'nvidia-a10x'; did you mean 'nvidia-a10' or ")
    said = refusal(DeviceNotFoundError, specs.load_device, "qqqq")
    assert said == "unknown device 'qqqq'; `rooflinekit devices` lists all 117"


def test_hosts() -> None:
    assert specs.host_names() == (
        "desktop-2020", "generic-cloud", "generic-desktop", "generic-server", "unnamed", "xeon-server-2018",
    )  # fmt: skip
    for name in specs.host_names():
        host = specs.load_host(name)
        assert host.name == name
        assert set(host.dispatch) == set(FAMILIES)
        assert 0 < host.backward_factor < 1
        assert set(host.sources) == set(HOST_SOURCE_GROUPS)
        assert host.stands_for_any == (name == specs.DEFAULT_HOST)
    assert specs.load_host() is specs.load_host("Unnamed")


def test_old_host_reproduces_its_measurement() -> None:
    # Three convolutions without synchronisation in between: 123 µs of CPU per pass.
    host = specs.load_host("xeon-server-2018")
    assert 3 * host.dispatch_s("convolution") + host.step == pytest.approx(123e-6)


def test_unknown_host() -> None:
    assert refusal(DeviceNotFoundError, specs.load_host, "generic-serve") == (
        "unknown host 'generic-serve'; the hosts are desktop-2020, generic-cloud, generic-desktop, generic-server, "
        "unnamed, xeon-server-2018"
    )


def test_records_travel(every_device: tuple[Device, ...]) -> None:
    for device in every_device:
        assert pickle.loads(pickle.dumps(device)) == device
        assert hash(device) == hash(device.replace())
        # JSON carries quantities as text with units, and reads back the same.
        assert Device.model_validate_json(device.model_dump_json(by_alias=True)) == device
    text = json.loads(specs.load_device("nvidia-l4").model_dump_json(by_alias=True))
    assert text["schema"] == 1
    assert text["dram"]["bandwidth"] == "300 GB/s"


def test_reads_from_a_zipped_wheel(tmp_path: Path) -> None:
    package = Path(rooflinekit.__file__).parent
    archive = tmp_path / "rooflinekit.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        for source in package.rglob("*.py"):
            bundle.write(source, f"rooflinekit/{source.relative_to(package)}")
        for folder, inner in (("", specs.data_dir("gpu_specs")), ("hosts/", specs.data_dir("gpu_specs") / "hosts")):
            for entry in inner.iterdir():
                if entry.is_file():
                    bundle.writestr(f"rooflinekit/_data/gpu_specs/{folder}{entry.name}", entry.read_text("utf-8"))
    program = (
        f"import sys; sys.path.insert(0, {str(archive)!r});"
        "from rooflinekit.hardware import specs; import rooflinekit;"
        f"assert rooflinekit.__file__.startswith({str(archive)!r});"
        "print(len(specs.devices()), specs.load_host().name, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.stdout, done.stderr) == ("114 unnamed False False\n", "")


def test_missing_data_is_said() -> None:
    with pytest.raises(FileNotFoundError, match="no weather/ under "):
        specs.data_dir("weather")
