"""What stands beside the code for those who install, cite and contribute agrees with it."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import rooflinekit as rk

ROOT = Path(__file__).parents[1]


def test_the_version_is_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "rooflinekit/__init__.py"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == rk.__version__


def test_the_changelog_knows_this_version() -> None:
    heads = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[0] == "Unreleased"
    assert heads[1] == rk.__version__


def test_the_citation_has_what_its_format_asks_for() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= found.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (found["title"], found["license"]) == (project["name"], project["license"])


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_to_files_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        text = (ROOT / file).read_text(encoding="utf-8")
        heads = [
            re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.+)$", text, re.M)
        ]
        assert not anchor or anchor in heads, target


FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*-*.yml"))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_forms_can_be_shown(form: Path) -> None:
    found = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= found.keys()
    parts = found["body"]
    assert len({part["id"] for part in parts}) == len(parts)
    assert all(part["type"] in ("input", "textarea", "checkboxes") and part["attributes"]["label"] for part in parts)


def test_there_are_two_forms() -> None:
    assert len(FORMS) == 2


def test_the_sdist_has_files_that_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name in project["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]:
        assert (ROOT / name).exists(), name


def test_hooks_run_the_tools_of_the_environment() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    assert [hook["entry"].split()[0] for hook in hooks] == [".venv/bin/ruff", ".venv/bin/ruff", ".venv/bin/mypy"]
