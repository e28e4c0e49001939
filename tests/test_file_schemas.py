"""Files of every kind that is shipped are what their published schemas say."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).parents[1]
FITS = ROOT / "calibration" / "fits"
DEVICES = sorted((ROOT / "gpu_specs").glob("*.yaml"))
LINKS = FITS / "links.yaml"
KINDS = {
    "device": DEVICES,
    "host": sorted((ROOT / "gpu_specs" / "hosts").glob("*.yaml")),
    "cluster": sorted((ROOT / "gpu_specs" / "clusters").glob("*.yaml")),
    "plan": sorted((ROOT / "calibration" / "plans").glob("*.yaml")),
    "fit": [
        FITS / "priors.yaml",
        *FITS.glob("architecture-*.yaml"),
        *(file for device in DEVICES if (file := FITS / device.name).is_file()),
    ],
    "links": [LINKS],
    "energy": [FITS / "energy.yaml"],
    "prices": sorted((ROOT / "gpu_specs" / "prices").glob("*.yaml")),
}


def checked(kind: str) -> Any:
    text = (ROOT / "docs" / "schemas" / "files" / f"{kind}.json").read_text(encoding="utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


def content(file: Path) -> Any:
    """As JSON has it: a day is text."""
    return json.loads(json.dumps(yaml.load(file.read_bytes(), yaml.CSafeLoader), default=str))


@pytest.mark.parametrize("kind", KINDS)
def test_shipped_files_are_as_published(kind: str) -> None:
    assert KINDS[kind]
    for file in KINDS[kind]:
        assert [error.message for error in checked(kind).iter_errors(content(file))] == [], file


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_refuses_what_it_should(kind: str) -> None:
    good = content(KINDS[kind][0])
    for change in ({"schema": 99}, {"name": 3}, {"nonsense": 1}):
        assert not checked(kind).is_valid({**good, **change}), change
    needed = "name" if "name" in good else "schema"
    assert not checked(kind).is_valid({name: value for name, value in good.items() if name != needed})


def test_a_bare_number_is_no_quantity() -> None:
    good = content(ROOT / "gpu_specs" / "nvidia-l4.yaml")
    assert checked("device").is_valid(good)
    assert not checked("device").is_valid({**good, "l2_capacity": 50_331_648})
    assert not checked("device").is_valid({**good, "kind": "fpga"})


def test_every_kind_is_published() -> None:
    assert {file.stem for file in (ROOT / "docs" / "schemas" / "files").glob("*.json")} == KINDS.keys()
