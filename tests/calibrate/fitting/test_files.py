"""Files of constants: read over those of any GPU, written whole, and one clear error for each that is damaged."""

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from refusals import refused

from rooflinekit.calibrate.fitting import files as fits
from rooflinekit.calibrate.fitting.constants import CONSTANTS
from rooflinekit.calibrate.fitting.files import (
    architecture_of,
    constants_for,
    fits_for,
    load_constants,
    load_fit,
    write_fit,
)
from rooflinekit.errors import SpecError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device
from rooflinekit.published.stated import Constant
from rooflinekit.timing.families import ALL
from rooflinekit.timing.machine import Calibration, Spread

PRIORS = {
    "schema": 2,
    "name": "priors",
    "constants": {name: {"value": 1.5, "stderr": 0.2, "source": "all"} for name in CONSTANTS},
    "spreads": {"product": {"random": 0.1, "systematic": 0.2}, "softmax": {"random": 0.3, "systematic": 0.4}},
}
OWN = {
    "schema": 2,
    "name": "gpu-a",
    "constants": {"memory_share": {"value": 0.75, "stderr": 0.01, "source": "calibration/campaigns/gpu-a"}},
    "spreads": {"softmax": {"random": 0.05, "systematic": 0.03}},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Fits of any GPU and of gpu-a, instead of the shipped ones."""
    made = tmp_path / "fits"
    made.mkdir()
    write(made, PRIORS)
    write(made, OWN)
    (made / "energy.yaml").write_text((fits.data_dir("calibration") / "fits" / "energy.yaml").read_text())
    monkeypatch.setattr(fits, "data_dir", lambda name: tmp_path)
    load_constants.cache_clear()
    yield made
    load_constants.cache_clear()


def write(folder: Path, document: dict[str, object]) -> None:
    (folder / f"{document['name']}.yaml").write_text(yaml.safe_dump(document))


def test_a_measured_gpu_has_its_own_constants_over_those_of_any(folder: Path) -> None:
    found = load_constants("gpu-a")
    assert found.name == "gpu-a"
    assert set(found.constants) == set(CONSTANTS)
    about = CONSTANTS["memory_share"]
    assert found.constants["memory_share"] == Constant(
        value=0.75, stderr=0.01, unit="1", meaning=about.meaning, source="calibration/campaigns/gpu-a"
    )
    assert found.constants["issue_share"].source == "all"
    assert found.spreads["softmax"] == Spread(random=0.05, systematic=0.03)
    # what was measured on no GPU has the spread of the nearest: of all formats, that of products
    assert set(found.spreads) == set(ALL)
    assert found.spreads["product"] == found.spreads["tf32 product"] == Spread(random=0.1, systematic=0.2)
    assert found.measured == {"softmax"}
    assert found.value("memory_share") == 0.75


ARCHITECTURE = {
    "schema": 2,
    "name": "architecture-9.9",
    "constants": {"overlap": {"value": 3.0, "stderr": 0.05, "source": "calibration/campaigns: gpu-a"}},
    "spreads": {},
}


def test_an_unmeasured_gpu_takes_after_its_architecture(folder: Path) -> None:
    write(folder, ARCHITECTURE)
    found = load_constants("gpu-z", "architecture-9.9")
    assert found.measured == frozenset()
    assert found.value("overlap") == 3.0
    assert found.value("memory_share") == 1.5
    assert found.spreads["softmax"] == Spread(random=0.3, systematic=0.4)


def test_a_measured_gpu_has_no_need_of_its_architecture(folder: Path) -> None:
    write(folder, ARCHITECTURE)
    assert load_constants("gpu-a", "architecture-9.9").value("overlap") == 1.5
    assert load_constants("gpu-a", "architecture-9.9").value("memory_share") == 0.75


def test_constants_for_a_device(folder: Path, device: Device) -> None:
    write(folder, ARCHITECTURE)
    assert constants_for(device.replace(name="gpu-a")).value("memory_share") == 0.75
    assert constants_for(device.replace(compute_capability="9.9")).value("overlap") == 3.0
    assert constants_for(device).value("overlap") == 1.5


@pytest.mark.parametrize(
    ("capability", "architecture", "name"),
    [
        ("8.6", "Ampere", "architecture-8.6"),
        ("gfx942", "CDNA 3", "architecture-gfx942"),
        (None, "Xe HPG", "architecture-xe-hpg"),
    ],
)
def test_names_of_architectures(device: Device, capability: str | None, architecture: str, name: str) -> None:
    assert architecture_of(device.replace(compute_capability=capability, architecture=architecture)) == name


@pytest.mark.parametrize("gpu", ["", "gpu-z"])
def test_any_other_gpu_has_the_priors(folder: Path, gpu: str) -> None:
    found = load_constants(gpu)
    assert found.name == "priors"
    assert {constant.value for constant in found.constants.values()} == {1.5}
    assert found.measured == frozenset()


def told(name: str = "overlap", **value: object) -> dict[str, object]:
    """A file's field `constants` with one of them told so."""
    return {"constants": PRIORS["constants"] | {name: value}}


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        ({"constants": {key: value for key, value in PRIORS["constants"].items() if key != "overlap"}},
         "constant overlap is missing; run 'rooflinekit fit' to make the file anew"),
        (told("speed", value=1.0, stderr=0.1, source="x"),
         "unknown constant speed; run 'rooflinekit fit' to make the file anew"),
        (told(value=-1.0, stderr=0.1, source="x"), "constants: overlap: value: expected a number above 0.0; got -1.0"),
        (told(value=float("nan"), stderr=0.1, source="x"),
         "constants: overlap: value: input should be a finite number; got nan"),
        (told(value="2.0", stderr=0.1, source="x"), "constants: overlap: value: expected a number; got '2.0'"),
        (told(value=2.0, source="x"), "constants: overlap: stderr: the key is missing"),
        ({"schema": 1}, "schema: expected a number of at least 2; got 1"),
        ({"colour": "blue"}, "colour: unknown key"),
    ],
    ids=["missing", "unknown", "negative", "nan", "text", "no error", "schema", "field"],
)  # fmt: skip
def test_a_damaged_file(folder: Path, damage: dict[str, object], wrong: str) -> None:
    write(folder, PRIORS | damage)
    with refused(SpecError, f"calibration/fits/priors.yaml: {wrong}"):
        load_constants("gpu-a")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"- 1\n- 2\n", b"constants: [", b"name: priors\nname: b\n"])
def test_what_is_no_fit_is_one_clear_error(folder: Path, content: bytes) -> None:
    (folder / "priors.yaml").write_bytes(content)
    with pytest.raises(SpecError) as caught:
        load_constants()
    assert str(caught.value).startswith("calibration/fits/priors.yaml: ")
    assert "\n" not in str(caught.value)


def test_an_own_file_may_lack_constants_but_not_know_others(folder: Path) -> None:
    write(folder, OWN | {"constants": {"speed": {"value": 1.0, "stderr": 0.1, "source": "x"}}})
    wrong = "unknown constant speed; run 'rooflinekit fit' to make the file anew"
    with refused(SpecError, f"calibration/fits/gpu-a.yaml: {wrong}"):
        load_constants("gpu-a")


# --- by file ----------------------------------------------------------------------------------------------------------


def test_a_fit_by_file_is_as_if_it_lay_among_the_others(folder: Path, tmp_path: Path, device: Device) -> None:
    write(folder, ARCHITECTURE)
    gpu = device.replace(name="gpu-a", compute_capability="9.9")
    mine = tmp_path / "mine.fit.yaml"
    mine.write_text((folder / "gpu-a.yaml").read_text())
    assert load_fit(mine, gpu) == constants_for(gpu)
    mine.write_text(mine.read_text().replace("0.75", "0.5"))
    found = load_fit(mine, gpu)
    assert (found.value("memory_share"), found.value("overlap"), found.measured) == (0.5, 1.5, {"softmax"})
    assert constants_for(gpu).value("memory_share") == 0.75  # the others are as they were


def test_a_file_is_for_the_device_that_it_is_of(folder: Path, tmp_path: Path, device: Device) -> None:
    mine = tmp_path / "mine.fit.yaml"
    mine.write_text((folder / "gpu-a.yaml").read_text().replace("0.75", "0.5"))
    both = [device.replace(name="gpu-a"), device.replace(name="gpu-b")]
    assert [one.value("memory_share") for one in fits_for(both, mine)] == [0.5, 1.5]
    assert [one.value("memory_share") for one in fits_for(both, None)] == [0.75, 1.5]
    with refused(
        SpecError,
        f"{mine}: holds constants of 'gpu-a', not of 'gpu-b'; name a fit of that device, or none for the constants "
        "that are shipped",
    ):
        fits_for(both[1:], mine)


def test_a_file_that_is_no_fit(folder: Path, tmp_path: Path, device: Device) -> None:
    mine = tmp_path / "mine.fit.yaml"
    with refused(SpecError, f"{mine}: no such file"):
        load_fit(mine, device)
    write(tmp_path, OWN | {"colour": "blue"})
    with refused(SpecError, f"{tmp_path / 'gpu-a.yaml'}: colour: unknown key"):
        load_fit(tmp_path / "gpu-a.yaml", device)


# --- writing ------------------------------------------------------------------------------------------------------


def calibration(value: float = 0.123456) -> Calibration:
    about = CONSTANTS["memory_share"]
    constant = Constant(value=value, stderr=0.0123456, unit=about.unit, meaning=about.meaning, source="campaign 7")
    return Calibration(
        name="gpu-a",
        constants=MappingProxyType({"memory_share": constant}),
        spreads=MappingProxyType({"softmax": Spread(random=0.1, systematic=1 / 3)}),
    )


def test_the_text_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "gpu-a.yaml"
    write_fit(calibration(), file, "One line.\nAnother.")
    # four digits, far beyond what any of them is sure of
    assert file.read_text() == (
        "# One line.\n# Another.\nschema: 2\nname: gpu-a\nconstants:\n  memory_share:\n    value: 0.1235\n"
        "    stderr: 0.01235\n    source: campaign 7\nspreads:\n  softmax:\n    random: 0.1\n    systematic: 0.3333\n"
    )


def test_what_is_written_is_read_again(folder: Path) -> None:
    write_fit(calibration(0.5), folder / "gpu-a.yaml", "Made by hand.")
    found = load_constants("gpu-a")
    assert found.constants["memory_share"].value == 0.5
    assert found.spreads["softmax"].systematic == 0.3333
    assert found.measured == {"softmax"}


def test_a_cpu_has_constants_of_its_own_and_wide_intervals() -> None:
    """What oneDNN reaches with all cores busy, and stores that read their lines first; all else is a GPU's."""
    cpu = constants_for(load_device("intel-core-i9-10940x"))
    priors = load_constants()
    own = {name for name, constant in priors.constants.items() if cpu.constants[name] != constant}
    assert own == {"issue_share", "simt_convolution", "memory_share"}
    assert all(cpu.constants[name].value < priors.constants[name].value for name in ("issue_share", "memory_share"))
    assert all(spread.systematic >= 0.3 for spread in cpu.spreads.values())
    assert all(cpu.spreads[family].random == spread.random for family, spread in priors.spreads.items())
