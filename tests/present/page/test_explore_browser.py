"""The page to explore with, in a browser: quiet, its numbers the predictions', its state in the address."""

import random
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import browser
import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.units import parse_quantity

pytestmark = browser.NEEDED
GPUS = ["nvidia-l4", "nvidia-a100-sxm4-80gb"]
HOSTILE = "</script><script>alert(1)</script>"
EXECUTIONS = ("eager", "compiled")
LIMITS = (1.0, 0.6)


@pytest.fixture(scope="module")
def graphs() -> dict[str, rk.Graph]:
    net = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
    inputs = rk.Input("batch", "seq", 512)
    return {"fp32": rk.trace(net, inputs), HOSTILE: rk.trace(net, inputs, dtype="bf16")}


@pytest.fixture(scope="module")
def page(graphs: dict[str, rk.Graph], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("explore") / "page.html"
    rk.explore(graphs, gpus=GPUS, power=LIMITS, batch=range(1, 129), seq=[64, 512], out=out,
               pricing=rk.Pricing(hour=(2.0, "USD")))  # fmt: skip
    return out


@pytest.fixture
def opened(window: browser.Browser, page: Path) -> browser.Browser:
    window.resize(1280)
    window.scheme("light")
    window.open(page)
    return window


def go(window: browser.Browser, state: dict[str, Any]) -> None:
    """Follows a link to a state, which the page draws before the next command."""
    follow = "location.hash = arguments[0]; dispatchEvent(new Event('hashchange'))"
    window.run(follow, urlencode(state | {"gpu": GPUS}, doseq=True))


def settled(window: browser.Browser, value: str) -> Any:
    """A value after the page has drawn, told and kept its state in the address."""
    return window.run(f"return new Promise(done => setTimeout(() => done({value}), 400))")


def shown(window: browser.Browser, gpu: int, name: str) -> str:
    card = f"document.querySelectorAll('.answer')[{gpu}]"
    return window.run(f"return {card}.querySelector('[data-is={name}]').textContent")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_quiet_and_within_its_width(window: browser.Browser, page: Path, width: int, scheme: str) -> None:
    window.resize(width)
    window.scheme(scheme)
    window.open(page)
    for pin in "ab":
        window.run(f"document.querySelector('[data-pin={pin}]').click()")
    assert settled(window, "document.documentElement.scrollWidth") == width
    assert window.logged("browser") == []
    assert window.requested() == [page.as_uri()]
    assert page.stat().st_size < 2e6
    assert window.run("return document.querySelectorAll('script').length") == 2


def test_numbers_are_those_of_predictions(opened: browser.Browser, graphs: dict[str, rk.Graph]) -> None:
    rng = random.Random(7)
    for _ in range(12):
        workload, execution = rng.choice([*graphs]), rng.choice(EXECUTIONS)
        sizes = {"batch": rng.randint(1, 128), "seq": rng.choice([64, 512])}
        state = {"workload": workload, "execution": execution, "host": "unnamed", "limit": 1}
        go(opened, state | {f"size.{name}": value for name, value in sizes.items()})
        for gpu, name in enumerate(GPUS):
            p = rk.predict(graphs[workload], name, execution=execution, **sizes)
            # Half a unit of the third digit shown is 0.5 % at most, and interpolation is within 0.5 %.
            assert parse_quantity(shown(opened, gpu, "time"), "s") == pytest.approx(p.total_s, rel=0.01)
            assert shown(opened, gpu, "regime").split()[0] == p.regime or max(p.shares.values()) < 0.51
            counted = float(shown(opened, gpu, "cost").split()[0])
            assert counted == pytest.approx(2.0 / 3600 * p.total_s / sizes["batch"] * 1e6, rel=0.01)


def test_a_link_shows_what_its_sender_saw(opened: browser.Browser) -> None:
    opened.run("""
        const set = (id, value) => { const e = document.getElementById(id); e.value = value; e.dispatchEvent(new Event('input', {bubbles: true})); };
        set('execution', 1); set('limit', 1); set('size-batch', 99); set('size-seq', 1);
        document.querySelectorAll('[name=gpu]')[0].click();
    """)  # noqa: E501
    link = settled(opened, "location.hash")
    words = parse_qs(link.lstrip("#"))
    assert {name: words[name] for name in ("execution", "limit", "size.batch", "size.seq", "gpu")} == {
        "execution": ["compiled"], "limit": ["0.6"], "size.batch": ["100"], "size.seq": ["512"], "gpu": [GPUS[1]],
    }  # fmt: skip
    seen = opened.run("return document.getElementById('answers').innerText")
    opened.run("location.hash = '#workload=fp32'")
    assert opened.run("return document.getElementById('answers').innerText") != seen
    opened.run("location.hash = arguments[0]; dispatchEvent(new Event('hashchange'))", link)
    assert opened.run("return document.getElementById('answers').innerText") == seen
    assert opened.logged("browser") == []


def test_the_waterfall_leads_from_one_pin_to_the_other(opened: browser.Browser) -> None:
    go(opened, {"workload": "fp32", "execution": "eager", "limit": 1, "size.batch": 64, "size.seq": 512})
    for gpu, pin in enumerate("ab"):
        opened.run("document.querySelectorAll(arguments[0])[arguments[1]].click()", f"[data-pin={pin}]", gpu)
    rows = "Array.from(document.querySelectorAll('#fall tr'), r => [r.cells[0].innerText, r.cells[2].innerText])"
    lines = settled(opened, rows)
    seconds = [parse_quantity(text.strip("−+"), "s") * (-1 if "−" in text else 1) for _, text in lines]
    assert [lines[0][0], lines[-1][0]] == [f"A: {GPUS[0]}", f"B: {GPUS[1]}"]
    assert sum(seconds[:-1]) == pytest.approx(seconds[-1], abs=0.005 * seconds[0])
    pressed = "return Array.from(document.querySelectorAll('[aria-pressed=true]'), b => b.getAttribute('aria-label'))"
    assert opened.run(pressed) == [f"Pin {GPUS[0]} as A", f"Pin {GPUS[1]} as B"]


def test_the_keyboard_moves_a_slider_and_a_screen_reader_is_told(opened: browser.Browser) -> None:
    go(opened, {"workload": "fp32", "size.batch": 10, "size.seq": 64})
    opened.run("document.getElementById('size-batch').focus()")
    opened.press("ArrowRight", "ArrowRight")
    value = "document.getElementById('size-batch').getAttribute('aria-valuetext')"
    said = settled(opened, f"[{value}, document.getElementById('said').textContent]")
    assert said[0] == "12"
    assert said[1].startswith(f"{GPUS[0]}: ")
    nameless = """
        return Array.from(document.querySelectorAll('input, select, button, svg[role=img], article')).filter(
          e => !(e.getAttribute('aria-label') || e.innerText || e.labels?.[0]?.textContent.trim())).length
    """
    assert opened.run(nameless) == 0


def test_it_prints(opened: browser.Browser, tmp_path: Path) -> None:
    opened.printed(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
