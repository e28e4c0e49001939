"""The documentation as a site in a browser: quiet, within its width, asking nothing of another machine."""

import subprocess
import sys
from pathlib import Path

import browser
import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("material")
pytestmark = browser.NEEDED
SOURCES = [file.relative_to(ROOT / "docs") for file in sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = [file.relative_to(ROOT / "docs") for file in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(build, check=True, cwd=ROOT)
    return folder


@pytest.mark.parametrize("page", [*SOURCES, *NOTEBOOKS], ids=str)
def test_a_page_is_quiet_and_within_its_width(window: browser.Browser, site: Path, page: Path) -> None:
    for width in (390, 1280):
        window.resize(width)
        window.open(site / page.with_suffix(".html"))
        assert window.logged("browser") == []
        assert [url for url in window.requested() if url.startswith(("http", "ws"))] == []
        assert window.run("return document.documentElement.scrollWidth") == width
        assert "displaystyle" not in window.run("return document.body.innerText")  # LaTeX that nothing sets


def test_devices_are_filtered_and_sorted(window: browser.Browser, site: Path) -> None:
    window.resize(1280)
    window.open(site / "hardware.html")
    names = "return [...document.querySelectorAll('.filterable tbody tr:not([hidden])')].map(r => r.cells[0].innerText)"
    typed = "const input = document.querySelector('.filter input'); input.value = arguments[0];"
    typed += "input.dispatchEvent(new Event('input'))"
    everything = window.run(names)
    assert {"nvidia-a100-sxm4-80gb", "amd-mi300x"} <= set(everything)
    window.run(typed, "nvidia-a100 memory>=80 power<350")
    assert window.run(names) == ["nvidia-a100-pcie-80gb"]
    window.run(typed, "memory>=1000")
    assert window.run(names) == []
    window.run(typed, "")
    heads = "[...document.querySelectorAll('.filterable th')].find(h => h.innerText.startsWith('bandwidth'))"
    window.run(heads + ".click()")
    assert window.run(names)[0] in ("amd-mi355x", "nvidia-b100 (draft)", "nvidia-gb200", "nvidia-gb300")
    assert sorted(window.run(names)) == sorted(everything)
    assert window.logged("browser") == []


def test_the_search_finds_from_the_file_system(window: browser.Browser, site: Path) -> None:
    window.resize(1280)
    window.open(site / "index.html")
    window.run("document.querySelector('[data-md-component=search-query]').focus()")
    window.press(*"occupancy wave")
    found = "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    for _ in range(50):
        if window.run(found):
            break
        window.run("return new Promise(done => setTimeout(done, 100))")
    assert any("model.html" in link for link in window.run(found))
    assert window.logged("browser") == []
