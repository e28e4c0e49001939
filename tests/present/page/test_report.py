"""The page of a report: whole without network or scripts, safe against any name, and true to its prediction."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import ComparisonError, OutputError
from rooflinekit.present.page.report import MOST_ROWS
from rooflinekit.units import format_quantity

HOSTILE = "</script><script>alert(1)</script>"
SECOND = "\"'><img src=x onerror=alert(2)>{{ 7 * 7 }}"
VOID = {"meta", "br", "input", "link", "img", "hr"}


class Page(HTMLParser):
    """What stands in a page: its elements in order, and the text of each kind."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        kept = (part for tag, parts in self.texts.items() if tag not in ("script", "style") for part in parts)
        return " ".join(" ".join(kept).split())


class Net(nn.Module):
    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self.children():
            x = child(x)
        return x


def written(prediction: rk.Prediction, folder: Path, **options: Any) -> str:
    path = rk.save_report(prediction, folder / "review.html", **{"advice": False, "gpus": [], **options})
    return path.read_text(encoding="utf-8")


def net(*names: str, gpu: str = "nvidia-l4", **options: Any) -> rk.Prediction:
    return rk.predict(Net(*names), rk.Input("batch", 3, 32, 32), gpu=gpu, batch=8, **options)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[rk.Prediction, str]:
    p = net("body", "head", mode="training", optimizer=torch.optim.SGD)
    other = net("body", mode="training", optimizer=torch.optim.SGD)
    folder = tmp_path_factory.mktemp("report")
    path = rk.save_report(p, folder / "review.html", gpus=["l40s"], against=other, command="rooflinekit report …")
    return p, path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of what stands in every page."""
    return written(net("a"), tmp_path_factory.mktemp("plain"))


def test_the_page_is_well_formed_and_its_links_lead_somewhere(full: tuple[rk.Prediction, str]) -> None:
    page = Page(full[1])
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    inner = [str(a["href"]).removeprefix("#") for a in page.all("a") if str(a["href"]).startswith("#")]
    assert set(inner) <= set(ids)
    sections = {"time", "roofline", "timeline", "memory", "gpus", "advice", "explanation", "sources", "reproduce"}
    assert sections <= set(inner)
    labels = [a["aria-labelledby"] for _, a in page.elements if "aria-labelledby" in a]
    assert set(labels) <= set(ids)
    for svg in page.all("svg"):
        assert svg.get("aria-hidden") == "true" or svg.get("aria-label")
    for box in page.all("div"):
        assert "tabindex" not in box or box.get("aria-label")


def test_nothing_is_loaded_from_anywhere(full: tuple[rk.Prediction, str]) -> None:
    page = Page(full[1])
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"link", "img", "iframe", "object", "embed", "base", "use", "image"}
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "xlink:href", "style"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
        assert "href" not in attributes or tag == "a"
    css = "".join(page.texts["style"])
    assert "url(" not in css
    assert "@import" not in css


def test_only_the_page_s_own_style_and_script_may_run(full: tuple[rk.Prediction, str]) -> None:
    text = full[1]
    (policy,) = [m["content"] for m in Page(text).all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (body,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_it_says_what_the_prediction_says(full: tuple[rk.Prediction, str]) -> None:
    p, text = full
    page = Page(text).text.replace("\u00a0", " ")
    for seconds in (p.total_s, p.gpu_s, p.cpu_s, *filter(None, p.terms().values())):
        assert format_quantity(seconds, "s") in page
    assert format_quantity(p.memory.peak_bytes, "byte", binary=True) in page
    assert p.energy is not None
    for joules in (p.energy.joules, *p.energy.interval(p.interval()), *p.energy.parts_j.values()):
        assert format_quantity(joules, "J") in page
    for watts in (p.power_w, p.energy.peak_w, *p.by_phase()["power_w"]):
        assert format_quantity(watts, "W") in page
    assert "Least energy at " in page
    for note in p.notes:
        assert note in page
    assert str(p.coverage) in page
    for source in p.machine.device.sources.values():
        assert " ".join(source.split())[:40] in page
    assert {c.meaning in page for c in p.machine.constants.constants.values()} == {True}
    assert f"rooflinekit {rk.__version__}" in page
    assert "rooflinekit report …" in page
    kernels = [cell for row in re.findall(r'<tr data-k="\d+">(.*?)</tr>', text) for cell in [row.split("</td>")[3]]]
    assert sum(int(cell.rpartition(">")[2]) for cell in kernels) == len(p.timings)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    p = net(HOSTILE, SECOND)
    other = net(SECOND, HOSTILE)
    text = written(p, tmp_path, against=other, command=HOSTILE, python=SECOND)
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert not page.all("img")
    assert HOSTILE in page.text
    assert SECOND in page.text
    assert "alert" not in "".join(page.texts["script"])
    assert text.count(HOSTILE) == 0


def test_the_same_prediction_gives_the_same_bytes(plain: str, tmp_path: Path) -> None:
    assert written(net("a"), tmp_path) == plain


def test_parts_that_nobody_asked_for_are_left_out(plain: str) -> None:
    ids = {attributes.get("id") for _, attributes in Page(plain).elements}
    assert {"time", "roofline", "sources"} <= ids
    assert not {"gpus", "advice", "explanation"} & ids


def test_energy_is_left_out_where_no_power_is_stated(plain: str, tmp_path: Path) -> None:
    silent = rk.load_device("nvidia-l4").replace(board_power=None)
    other = rk.predict(Net("a"), rk.Input("batch", 3, 32, 32), gpu=silent, batch=8)
    for text, shown in ((plain, True), (written(other, tmp_path), False)):
        ids = {attributes.get("id") for _, attributes in Page(text).elements}
        assert ("energy" in ids) == shown


def test_a_network_of_thousands_of_kernels_stays_small(tmp_path: Path) -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x.new_ones(4096 + 64 * i) for i in range(2000)]  # no two alike

    p = rk.predict(Many(), rk.Input(1), gpu="nvidia-l4")
    text = written(p, tmp_path)
    assert len(p.timings) == 2000
    assert len(text.encode()) < 1_000_000
    assert text.count("<tr data-k=") == MOST_ROWS
    assert f"{2000 - MOST_ROWS} more rows, {2000 - MOST_ROWS} kernels that together take" in text


@pytest.mark.parametrize(
    ("gpu", "execution"),
    [
        ("nvidia-l4", rk.Execution(backend="compiled", sync="none")),
        ("nvidia-p100-pcie-16gb", rk.Execution(backend="cuda-graph", copy="pageable")),
        ("nvidia-k80", rk.Execution(sync="op", copy="pinned", non_blocking=True, loader_rate=100.0)),
        ("amd-epyc-7763", rk.Execution()),
    ],
    ids=lambda value: value if isinstance(value, str) else value.backend,
)
def test_every_way_to_run_has_a_page(tmp_path: Path, gpu: str, execution: rk.Execution) -> None:
    page = Page(written(net("a", gpu=gpu, execution=execution), tmp_path, gpus=None))
    assert execution.backend in page.text


def test_a_module_without_kernels_has_a_page(tmp_path: Path) -> None:
    assert Page(written(rk.predict(nn.Identity(), rk.Input(4), gpu="nvidia-l4"), tmp_path))


def test_wrong_use_is_said_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"review\.pdf: expected a file name that ends in \.html"):
        rk.save_report(net("a"), tmp_path / "review.pdf")
    with pytest.raises(ComparisonError, match="differ in network and mode"):
        rk.save_report(net("a"), tmp_path / "review.html", against=net("a", "b", mode="training"))
    with pytest.raises(OutputError, match="cannot be written"):
        written(net("a"), tmp_path / "nowhere")


@pytest.mark.parametrize("sync", ["step", "op", "none", "events"])
def test_each_way_of_timing_is_said(tmp_path: Path, sync: str) -> None:
    p = net("a", execution=rk.Execution(sync=sync))
    assert "eager, " in written(p, tmp_path)
