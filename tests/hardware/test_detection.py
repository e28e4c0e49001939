"""Drafts of the hardware at hand, from devices and machines that are made up here."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from machines import AMX, ARM, AVX2, AVX512, stand_in
from refusals import refusal

from rooflinekit.errors import SpecError
from rooflinekit.hardware import checks, detection, specs, yaml_file

# What torch.cuda.get_device_properties says of a GeForce RTX 4090: clocks in kHz, sizes in bytes.
RTX_4090 = {
    "name": "NVIDIA GeForce RTX 4090",
    "major": 8,
    "minor": 9,
    "multi_processor_count": 128,
    "total_memory": 25_393_692_672,
    "L2_cache_size": 75_497_472,
    "shared_memory_per_multiprocessor": 102_400,
    "shared_memory_per_block": 49_152,
    "shared_memory_per_block_optin": 101_376,
    "regs_per_multiprocessor": 65_536,
    "max_threads_per_multi_processor": 1536,
    "clock_rate": 2_520_000,
    "memory_clock_rate": 10_501_000,
    "memory_bus_width": 384,
    "pci_domain_id": 0,
    "pci_bus_id": 27,
    "pci_device_id": 0,
}


class NVMLError(Exception):
    pass


class FakeNvml:
    """A driver that knows one GPU, by its bus, and does not tell its link width."""

    NVML_CLOCK_SM = 1
    NVMLError = NVMLError

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> str:
        if bus_id != "00000000:1b:00.0":
            raise NVMLError
        return "gpu"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index != 0:
            raise NVMLError
        return "gpu"

    def nvmlDeviceGetMaxClockInfo(self, handle: str, clock: int) -> int:
        assert (handle, clock) == ("gpu", 1)
        return 3105  # MHz

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: str) -> int:
        return 450_000  # mW

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: str) -> int:
        return 4

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: str) -> int:
        raise NVMLError


def written(found: detection.Found) -> dict:
    return yaml.safe_load(yaml_file.mapping_text(found.mapping, found.comments, "heading"))


def test_a_geforce_card() -> None:
    found = detection.describe_gpu(SimpleNamespace(**RTX_4090), {"power": 450, "generation": 4, "lanes": 16})
    draft = written(found)
    assert draft["name"] == "nvidia-geforce-rtx-4090"
    assert draft["draft"] is True
    assert draft["architecture"] == "Ada Lovelace"
    assert (draft["sm_count"], draft["lanes_per_sm"], draft["tensor_cores"]) == (128, 128, 512)
    assert draft["tensor_rate"] == "half-accumulate"
    assert draft["clock"] == {"base": None, "boost": "2.52 GHz"}
    assert draft["dram"] == {
        "type": None,
        "capacity": "23.65 GiB",  # 25,393,692,672 / 2^30
        "bandwidth": "1.008096 TB/s",  # 384 x 2 x 10.501e9 / 8
        "bus_width": "384 bit",
        "pin_rate": "21.002 Gbit/s",
    }
    assert draft["l2_capacity"] == "72 MiB"
    assert (draft["shared_memory_per_sm"], draft["shared_memory_per_block"]) == ("100 KiB", "99 KiB")
    assert draft["matrix_peak"] == {
        "tf32": "82.58 TFLOP/s",  # 2 x 128 x 128 x 2.52e9
        "fp16": "165.2 TFLOP/s",  # 2 x 128 x 256 x 2.52e9: half rate
        "bf16": "165.2 TFLOP/s",
        "fp8": "330.3 TFLOP/s",
        "int8": "660.6 TFLOP/s",  # not halved
    }
    assert draft["vector_peak"] == {"fp32": "82.58 TFLOP/s", "fp64": "1.29 TFLOP/s", "fp16": "82.58 TFLOP/s"}
    assert draft["pcie"] == {"generation": 4, "lanes": 16}
    assert draft["board_power"] == "450 W"
    assert found.unknown == (
        "process_node", "process_nm", "launch_date", "clock.base", "dram.type", "l1_capacity_per_sm", "interconnect",
    )  # fmt: skip


def test_the_draft_loads_and_is_refused_until_it_is_finished(tmp_path: Path) -> None:
    found = detection.describe_gpu(SimpleNamespace(**RTX_4090), {})
    path = tmp_path / "mine.yaml"
    text = yaml_file.mapping_text(found.mapping, found.comments, "heading")
    path.write_text(text, "utf-8")
    assert all(check.ok for check in checks.run(specs.load_device(path, allow_draft=True)))
    with pytest.raises(SpecError, match="is a draft"):
        specs.load_device(path)
    assert "process_node:  # not reported; see the datasheet\n" in text
    assert "  boost: 2.52 GHz  # the driver's maximum; the vendor's boost clock may be lower\n" in text
    lines = [line for line in text.splitlines() if not line.startswith(("draft", "  agrees", "  number"))]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    assert specs.load_device(path).name == "nvidia-geforce-rtx-4090"


def test_nvml_adds_clock_power_and_link() -> None:
    properties = SimpleNamespace(**RTX_4090)
    assert detection.bus_id(properties) == "00000000:1b:00.0"
    # The link's width is refused, and left out.
    expected = {"clock": 3105e6, "power": 450.0, "generation": 4}
    assert detection.read_nvml(FakeNvml(), 0, "00000000:1b:00.0") == expected
    assert detection.read_nvml(FakeNvml(), 0, None) == expected
    assert detection.read_nvml(FakeNvml(), 1, None) == detection.read_nvml(FakeNvml(), 0, "other") == {}
    draft = written(detection.describe_gpu(properties, expected))
    assert draft["clock"]["boost"] == "3.105 GHz"
    assert draft["pcie"] is None  # a generation without a width is no link


def test_an_old_torch_and_an_unknown_gpu() -> None:
    properties = SimpleNamespace(name="NVIDIA X900", major=99, minor=0, multi_processor_count=10, total_memory=2**30)
    assert detection.bus_id(properties) is None
    found = detection.describe_gpu(properties, {})
    draft = written(found)
    assert draft["vector_peak"] == {"fp32": None}
    assert "matrix_peak" not in draft
    required = {"architecture", "lanes_per_sm", "clock.boost", "dram.bandwidth", "l2_capacity", "vector_peak.fp32"}
    assert required <= set(found.unknown)
    assert all(found.comments[key] for key in found.unknown)


def test_an_amd_gpu() -> None:
    properties = SimpleNamespace(
        name="AMD Instinct MI300X",
        gcnArchName="gfx942:sramecc+:xnack-",
        major=9,
        minor=4,
        multi_processor_count=304,
        total_memory=192 * 2**30,
        clock_rate=2_100_000,
    )
    draft = written(detection.describe_gpu(properties, {}, hip=True))
    assert (draft["vendor"], draft["compute_capability"], draft["lanes_per_sm"]) == ("AMD", "gfx942", 64)
    assert draft["matrix_peak"]["bf16"] == "1.307 PFLOP/s"  # 2 x 304 x 1024 x 2.1e9
    assert draft["architecture"] is None


# ------------------------------------------------------------------ CPU


Cpu = Callable[..., detection.Found]


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cpu:
    """What is detected of a machine that is written with these words."""

    def detected(**said: Any) -> detection.Found:
        stand_in(monkeypatch, tmp_path / "machine", **said)
        return detection.describe_cpu()

    return detected


def test_a_cpu(cpu: Cpu) -> None:
    found = cpu()
    draft = written(found)
    assert draft["kind"] == "cpu"
    assert draft["name"] == "some-cpu-3-00ghz"
    assert draft["aliases"] == ["Some CPU @ 3.00GHz"]
    assert (draft["vendor"], draft["compute_capability"]) == ("Intel", "avx2")
    assert (draft["sm_count"], draft["threads_per_sm"]) == (4, 2)
    assert draft["clock"] == {"base": "3 GHz", "boost": "4.5 GHz", "vector": None}
    assert draft["dram"]["capacity"] == "32 GiB"
    assert draft["l2_capacity"] == "4 MiB"  # 4 x 1 MiB
    assert draft["last_level_cache"] == "16 MiB"
    assert draft["l1_capacity_per_sm"] == "48 KiB"
    assert {"lanes_per_sm", "dram.bandwidth", "clock.vector", "vector_peak.fp32"} <= set(found.unknown)
    assert "by the number of FMA units: one of 8, 16;" in found.comments["lanes_per_sm"]


def test_two_sockets_are_added(cpu: Cpu) -> None:
    draft = written(cpu(sockets=2))
    assert draft["sm_count"] == 8
    assert (draft["l2_capacity"], draft["last_level_cache"]) == ("8 MiB", "32 MiB")
    assert draft["device_scope"] == "2 sockets together"


@pytest.mark.parametrize(
    ("flags", "vectors"),
    [
        (AVX2, "avx2"),
        (AVX512, "avx512"),
        (AMX, "avx512-amx"),
        (f"{AVX512} amx_tile", "avx512"),  # tiles, but no products of them
        (ARM, "neon"),
        ("avx2", None),  # without multiply-adds
        ("sse4_2", None),
    ],
)
def test_vectors_of_a_cpu(cpu: Cpu, flags: str, vectors: str | None) -> None:
    found = cpu(flags=flags, clocks=False)
    draft = written(found)
    assert draft["compute_capability"] == vectors
    assert draft["clock"] == {"base": None, "boost": None, "vector": None}


def test_a_virtual_machine_says_so(cpu: Cpu) -> None:
    found = cpu(flags="fma avx2 hypervisor")
    assert found.comments["sm_count"] == "of this virtual machine; they may be threads that share cores"


def test_a_cpu_that_says_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nBogoMIPS\t: 50.00\n\nprocessor\t: 1\nBogoMIPS\t: 50.00\n")
    monkeypatch.setenv(detection.ROOT, str(tmp_path))
    found = detection.describe_cpu()
    draft = written(found)
    assert (draft["name"], draft["vendor"], draft["sm_count"]) == ("unnamed-cpu", None, 2)
    assert {"vendor", "display_name", "l2_capacity", "dram.capacity"} <= set(found.unknown)


def test_no_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(detection.ROOT, str(tmp_path))
    said = refusal(SpecError, detection.describe_cpu)
    path = tmp_path / "proc/cpuinfo"
    assert said == f"{path}: cannot be read: No such file or directory; CPUs are detected on Linux alone"
    (tmp_path / "proc").mkdir()
    path.write_text("nothing\n")
    said = refusal(SpecError, detection.describe_cpu)
    assert said == f"{path}: expected blocks that begin with 'processor'; got none"


def test_a_filled_in_cpu_draft_loads(cpu: Cpu, tmp_path: Path) -> None:
    found = cpu()
    text = yaml_file.mapping_text(found.mapping, found.comments, "heading")
    path = tmp_path / "cpu.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(SpecError, match=r"cpu\.yaml: architecture: expected text; got None \(and \d more\)"):
        specs.load_device(path, allow_draft=True)
    filled = {
        "architecture:": "architecture: Some",
        "lanes_per_sm:": "lanes_per_sm: 16",
        "  bandwidth:": "  bandwidth: 76.8 GB/s",
        "  bus_width:": "  bus_width: 128 bit",
        "  pin_rate:": "  pin_rate: 4.8 Gbit/s",
        "  channels:": "  channels: 2",
        "  fp64:": "  fp64: 288 GFLOP/s",  # 4 x 16 x 4.5e9
        "  fp32:": "  fp32: 576 GFLOP/s",  # 2 x 4 x 16 x 4.5e9
    }
    lines = [next((new for key, new in filled.items() if line.startswith(key)), line) for line in text.splitlines()]
    path.write_text("\n".join(lines), "utf-8")
    device = specs.load_device(path, allow_draft=True)
    assert device.ridge("fp32") == pytest.approx(7.5)  # 576 / 76.8
    assert all(check.ok for check in checks.run(device))
