"""The page of a report in a browser: quiet, within its width, and pointed at, filtered and sorted by real events."""

from pathlib import Path

import browser
import pytest
import torch
from torch import nn

import rooflinekit as rk

pytestmark = browser.NEEDED
HOSTILE = "</script><script>alert(1)</script>"
WIDE, NARROW = 1280, 390


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module(HOSTILE, nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU()))
        self.body = nn.Sequential(*(nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()) for _ in range(3)))
        self.head = nn.Linear(64, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, body, head = self.children()
        return head(body(first(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = Net()
    p = rk.predict(
        model, rk.Input("batch", 3, 64, 64), gpu="nvidia-l4", batch=64, mode="training", optimizer=torch.optim.SGD
    )
    return rk.save_report(p, tmp_path_factory.mktemp("report") / "review.html", against=p, command=HOSTILE)


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_page_is_quiet_and_within_its_width(
    window: browser.Browser, page: Path, width: int, scheme: str, scripts: bool
) -> None:
    window.resize(width)
    window.scheme(scheme)
    window.scripts(allowed=scripts)
    window.open(page)
    assert window.logged("browser") == []
    assert window.requested() == [page.as_uri()]
    assert window.run("return document.documentElement.scrollWidth") == width
    # What does not fit scrolls within its own box, or is cut with an ellipsis.
    outside = """
        return Array.from(document.querySelectorAll("main *")).filter((node) => {
          const box = node.getBoundingClientRect();
          return box.width && box.right > innerWidth + 1 && !node.closest(".scroll, nav ul, svg, details:not([open])");
        }).map((node) => node.outerHTML.slice(0, 80));
    """
    assert window.run(outside) == []
    shown = "return Array.from(document.querySelectorAll('.roofline')).filter(x => x.getClientRects().length).length"
    assert window.run(shown) == 1
    assert window.run("return document.querySelectorAll('#kernels tbody tr').length") > 10
    # Controls that only a script can serve are there with it alone.
    assert window.run("return document.querySelector('.filters').getClientRects().length > 0") is scripts
    window.scripts(allowed=True)


def contrast(rgb: list[float], other: list[float]) -> float:
    """The contrast of two colours as WCAG defines it."""

    def luminance(colour: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(rgb), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(window: browser.Browser, page: Path, scheme: str) -> None:
    window.resize(WIDE)
    window.scheme(scheme)
    window.open(page)
    colours = "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])"

    def colour(selector: str, name: str) -> list[float]:
        return [float(part) for part in window.run(colours, selector, name).strip("rgba()").split(",")[:3]]

    background = colour("body", "background-color")
    for selector in ("h1", ".lede", ".note", ".cards dt", "nav a", "thead th"):
        assert contrast(colour(selector, "color"), background) >= 4.5, selector
    for selector in (".ticks text", ".names text"):
        assert contrast(colour(selector, "fill"), background) >= 4.5, selector


@pytest.fixture
def opened(window: browser.Browser, page: Path) -> browser.Browser:
    window.resize(WIDE)
    window.scheme("light")
    window.open(page)
    return window


VISIBLE = "return Array.from(document.querySelectorAll('#kernels tbody tr')).filter(r => !r.hidden)"


def test_pointing_at_a_mark_says_what_it_is(opened: browser.Browser) -> None:
    # The smallest lies above all others.
    opened.point_at(".roofline.wide .mark:last-child")
    tip = opened.run("const t = document.getElementById('tip'); return [t.hidden, t.innerText]")
    name = opened.run("return document.querySelector('#kernels tbody tr:last-child th').textContent")
    assert tip[0] is False
    assert tip[1].startswith(name)
    assert "Traffic" in tip[1]
    assert opened.run("return document.querySelector('#kernels tbody tr:last-child').classList.contains('hot')")
    opened.press("Escape")
    assert opened.run("return document.getElementById('tip').hidden")
    opened.point_at(".timeline.wide .block")
    assert opened.run("return document.getElementById('tip').innerText").startswith("CPU ")
    assert opened.logged("browser") == []


def test_filters_leave_what_they_name(opened: browser.Browser) -> None:
    choose = "const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('input', {bubbles: true}))"  # noqa: E501
    every = len(opened.run(VISIBLE))
    opened.run(choose, "f-phase", "backward")
    phases = opened.run(f"{VISIBLE}.map(r => r.cells[2].textContent)")
    assert set(phases) == {"backward"}
    assert 0 < len(phases) < every
    opened.run(choose, "f-module", HOSTILE)
    assert {m.split(".")[0] for m in opened.run(f"{VISIBLE}.map(r => r.cells[1].textContent)")} == {HOSTILE}
    marks = "return Array.from(document.querySelectorAll('.roofline.wide .mark')).filter(m => m.getClientRects().length).map(m => m.dataset.k).sort()"  # noqa: E501
    assert opened.run(marks) == opened.run(f"{VISIBLE}.map(r => r.dataset.k).sort()")
    opened.run("document.querySelector('.filters button').click()")
    opened.run(choose, "f-math", "tf32")
    assert set(opened.run(f"{VISIBLE}.map(r => r.cells[3].textContent)")) == {"tf32"}
    opened.run(choose, "f-math", "")
    opened.run(choose, "f-text", "head")
    assert all("head" in text for text in opened.run(f"{VISIBLE}.map(r => r.cells[1].textContent)"))
    assert "of the GPU’s time" in opened.run("return document.getElementById('f-status').textContent")
    assert opened.logged("browser") == []


def test_columns_sort_both_ways(opened: browser.Browser) -> None:
    click = "document.querySelectorAll('#kernels thead button')[arguments[0]].click()"
    column = "return Array.from(document.querySelectorAll('#kernels tbody tr'), r => Number(r.cells[arguments[0]].dataset.v))"  # noqa: E501
    opened.run(click, 9)
    down = opened.run(column, 9)
    assert down == sorted(down, reverse=True)
    opened.run(click, 9)
    assert opened.run(column, 9) == sorted(down)
    assert opened.run("return document.querySelectorAll('#kernels th')[9].getAttribute('aria-sort')") == "ascending"
    opened.run(click, 1)
    names = opened.run("return Array.from(document.querySelectorAll('#kernels tbody tr'), r => r.cells[1].textContent)")
    assert names[0] < names[-1]


def test_the_keyboard_reaches_everything(opened: browser.Browser) -> None:
    opened.run("document.querySelector('.filters button').focus()")
    opened.press("Tab", "ArrowRight")
    assert opened.run("return document.activeElement.dataset.k") == "1"
    assert opened.run("return document.getElementById('tip').hidden") is False
    opened.press("Enter")
    assert opened.run("return [document.activeElement.tagName, document.activeElement.dataset.k]") == ["TR", "1"]
    opened.press("ArrowDown")
    assert opened.run("return document.activeElement.dataset.k") == "2"
    # One stop of the Tab key for all marks of a chart.
    assert opened.run("return document.querySelectorAll('.roofline.wide .mark[tabindex=\"0\"]').length") == 1


def test_no_name_becomes_code(opened: browser.Browser) -> None:
    assert opened.run("return document.querySelectorAll('script').length") == 1
    assert HOSTILE in opened.run("return document.getElementById('kernels').innerText")


def test_it_prints(opened: browser.Browser, tmp_path: Path) -> None:
    opened.printed(tmp_path / "review.pdf")
    pdf = (tmp_path / "review.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert 2 <= pdf.count(b"/Type /Page\n") <= 12
