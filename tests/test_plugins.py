"""Rules, devices, hosts and clusters that another package brings: one is built, installed and used here."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SHIPPED = Path(__file__).parents[1] / "gpu_specs"

RULES = """
import rooflinekit as rk

@rk.rule("tiny::gate")
def gate(op):
    return rk.Cost(vector_flop=7 * op.inputs[0].numel) + rk.traffic(op)
"""
CLUSTER = """
schema: 1
name: tiny-pair
display_name: two tiny GPUs
devices: [{name: tiny-gpu, count: 2}]
pcie: {generation: 3, lanes: 16, peer_access: true, sockets: [2]}
host: tiny-host
sources: {devices: made up, pcie: made up}
"""
POINTS = """
[rooflinekit.rules]
tiny = tiny_rules

[rooflinekit.devices]
tiny = tiny_specs
"""


def wheel(folder: Path, points: str = POINTS, **files: str) -> Path:
    """A wheel of these files, with the entry points."""
    info, path = "tiny-1.0.dist-info", folder / "tiny-1.0-py3-none-any.whl"
    content = {
        **{name.replace("__", "/"): text for name, text in files.items()},
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    content[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return path


def installed(folder: Path, path: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", str(folder / "site"), str(path)], check=True)
    return folder / "site"


def said(site: Path, code: str) -> str:
    """What a program prints that finds what is installed there."""
    code = f"import sys; sys.path.insert(1, {str(site)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def specs() -> dict[str, str]:
    def as_tiny(file: Path, name: str) -> str:
        return file.read_text(encoding="utf-8").replace(f"name: {file.stem}", f"name: {name}")

    device = as_tiny(SHIPPED / "nvidia-t4.yaml", "tiny-gpu").replace(
        "aliases: [Tesla T4, NVIDIA T4, T4]", "aliases: [Tiny]"
    )
    return {
        "tiny_specs/__init__.py": "",
        "tiny_specs/tiny-gpu.yaml": device,
        "tiny_specs/hosts/tiny-host.yaml": as_tiny(SHIPPED / "hosts" / "generic-server.yaml", "tiny-host"),
        "tiny_specs/clusters/tiny-pair.yaml": CLUSTER,
    }


def test_rules_devices_hosts_and_clusters_of_another_package(tmp_path: Path) -> None:
    site = installed(tmp_path, wheel(tmp_path, **{"tiny_rules.py": RULES}, **specs()))
    code = """
import torch
import rooflinekit as rk
from rooflinekit.hardware.specs import device_names

@torch.library.custom_op("tiny::gate", mutates_args=())
def gate(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

@gate.register_fake
def _(x):
    return torch.empty_like(x)

graph = rk.trace(lambda x: torch.ops.tiny.gate(x), rk.Input(5, 8), strict=True)
print(graph.vector_flop)
print(rk.load_device("tiny").name, "tiny-gpu" in device_names(), list(device_names()) == sorted(device_names()))
print(rk.load_host("Tiny Host").name, rk.load_cluster("tiny-pair").device_names)
print(rk.predict(graph, "tiny-gpu", host="tiny-host").total_s > 0)
"""
    assert said(site, code).splitlines() == [
        "280",  # 7 · 5 · 8
        "tiny-gpu True True",
        "tiny-host ('tiny-gpu', 'tiny-gpu')",
        "True",
    ]


DEVICES = "PluginError rooflinekit.devices: tiny = tiny_specs, of tiny: "
LOAD = """
import rooflinekit as rk
try:
    {}
except rk.errors.RooflinekitError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, f"{DEVICES}ModuleNotFoundError: No module named 'tiny_specs'; repair or uninstall it"),
        ({"tiny_specs.py": ""}, f"{DEVICES}expected a package with YAML files in it; repair or uninstall it"),
        ({"tiny_specs/__init__.py": "", "tiny_specs/nvidia-t4.yaml": "schema: 1"},
         "SpecError tiny_specs/nvidia-t4.yaml: exists already as gpu_specs/nvidia-t4.yaml; remove one of the two"),
        ({"tiny_specs/__init__.py": "", "tiny_specs/hosts/mine.yaml": "schema: 1"},
         "SpecError tiny_specs/hosts/mine.yaml: "),
        ({"tiny_specs/__init__.py": "", "tiny_specs/hosts/mine.yaml":
          (SHIPPED / "hosts" / "generic-server.yaml").read_text(encoding="utf-8")},
         "SpecError tiny_specs/hosts/mine.yaml: name: expected 'mine', as the file is called; got 'generic-server'"),
    ],
)  # fmt: skip
def test_specifications_that_cannot_be_used(tmp_path: Path, files: dict[str, str], message: str) -> None:
    site = installed(tmp_path, wheel(tmp_path, **files))
    code = LOAD.format(
        "rk.load_host('mine')" if any("hosts" in name for name in files) else "rk.load_device('nvidia-t4')"
    )
    assert said(site, f"import rooflinekit.errors\n{code}").startswith(message)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero; repair or uninstall it"),
        ("import rooflinekit as rk\nrk.rule('aten.mm')(lambda op: None)",
         "DuplicateRuleError: op 'aten.mm' has a rule already"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be_used(tmp_path: Path, rules: str, message: str) -> None:
    site = installed(tmp_path, wheel(tmp_path, "[rooflinekit.rules]\ntiny = tiny_rules\n", **{"tiny_rules.py": rules}))
    code = "import rooflinekit.errors\nfrom rooflinekit.cost.table import price_all\n" + LOAD.format("price_all([])")
    assert said(site, code).startswith(f"PluginError rooflinekit.rules: tiny = tiny_rules, of tiny: {message}")
