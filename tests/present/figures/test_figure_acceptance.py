"""Many random figures: no text covers other text; and pictures that stay as they are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import several
import torch
from matplotlib.testing.compare import compare_images
from overlaps import on_ridges, overlaps, struck, through

import rooflinekit as rk
from rooflinekit.hardware.catalog import list_rows
from rooflinekit.hardware.device import Device
from rooflinekit.present.figures import plot
from rooflinekit.present.figures.style import Venue, Width
from rooflinekit.step.prediction import Prediction

IMAGES = Path(__file__).parent / "images"
WIDTHS: tuple[Width, ...] = ("column", "page")
VENUES: tuple[Venue | None, ...] = (None, "ieee", "acm", "lncs", "neurips", "slides")


def gpus() -> list[Device]:
    return [row.device for row in list_rows(kind="gpu") if not row.device.draft]


def network(chance: random.Random) -> tuple[torch.nn.Module, rk.Input]:
    """A network of random kind, depth, widths and names, and what it is called with."""
    depth = chance.randint(1, 9)
    if chance.random() < 0.5:
        widths = [2 ** chance.randint(3, 13) for _ in range(depth + 1)]
        layers: list[torch.nn.Module] = []
        for a, b in itertools.pairwise(widths):
            extra = [torch.nn.ReLU(), torch.nn.LayerNorm(b, device="meta"), torch.nn.GELU(), torch.nn.Softmax(-1)]
            layers += [torch.nn.Linear(a, b, device="meta"), *chance.sample(extra, chance.randint(0, 3))]
        return named(chance, layers), rk.Input(2 ** chance.randint(0, 12), widths[0])
    channels = [2 ** chance.randint(2, 8) for _ in range(depth + 1)]
    layers = []
    for a, b in itertools.pairwise(channels):
        kernel = chance.choice([1, 3])
        groups = a if a == b and chance.random() < 0.5 else 1
        convolution = torch.nn.Conv2d(a, b, kernel, padding=kernel // 2, groups=groups, device="meta")
        extra = [torch.nn.ReLU(), torch.nn.BatchNorm2d(b, device="meta"), torch.nn.SiLU(), torch.nn.Upsample(size=24)]
        layers += [convolution, *chance.sample(extra, chance.randint(0, 3))]
    return named(chance, layers), rk.Input(2 ** chance.randint(0, 6), channels[0], 24, 24)


def named(chance: random.Random, layers: list[torch.nn.Module]) -> torch.nn.Module:
    words = ("conv", "a_rather_long_name_of_a_layer", "q", "feed_forward", "norm", "blk")
    model = torch.nn.Sequential()
    for i, layer in enumerate(layers):
        model.add_module(f"{chance.choice(words)}{i if chance.random() < 0.8 else '_' * (i + 1)}", layer)
    return model


def random_figure(seed: int) -> tuple[str, Any]:
    """What is drawn, and the axes."""
    chance = random.Random(seed)
    devices = gpus()
    width, venue = chance.choice(WIDTHS), chance.choice(VENUES)
    if chance.random() < 0.1:
        subject: Any = chance.sample(devices, chance.randint(1, 3))
        options: dict[str, Any] = {}
    else:
        model, given = network(chance)
        mode = chance.choice(["inference", "training"])
        graph = rk.trace(model, given, mode=mode)
        count = chance.choice([1, 1, 1, 2, 3])
        capable = [device for device in devices if "fp32" in device.vector_peak]
        subject = [rk.predict(graph, device) for device in chance.sample(capable, count)]
        options = chance.choice([{}, {}, {"by_level": count == 1}, {"normalized": True}, {"launch": count == 1},
                                 {"path": count > 1}])  # fmt: skip
    said = f"seed {seed}: {venue} {width}, {options}, {[str(part)[:60] for part in subject]}"
    return said, plot.roofline(subject, width=width, venue=venue, **options)


def check(seed: int) -> None:
    import matplotlib.pyplot as plt

    said, ax = random_figure(seed)
    assert (overlaps(ax), on_ridges(ax), struck(ax)) == ([], [], []), said
    plt.close("all")


@pytest.mark.parametrize("seed", range(6))
def test_no_text_covers_other_text(seed: int) -> None:
    check(seed)


def test_labels_of_levels_that_lie_near_to_one_another_keep_off_lines() -> None:
    graph = rk.trace("timm:resnet50")
    ps = [rk.predict(graph, gpu, batch=32) for gpu in ("nvidia-a100-sxm4-80gb", "nvidia-l4", "nvidia-t4")]
    assert through(plot.roofline(ps, venue="ieee")) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 206))
def test_no_text_covers_other_text_on_200_figures(seed: int) -> None:
    check(seed)


# --- pictures that stay as they are --------------------------------------------------------------------------------


def step(**options: Any) -> Prediction:
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
    return rk.predict(model, rk.Input("batch", 512), gpu="nvidia-a100-sxm4-80gb", **{"batch": 1024, **options})


PICTURES: dict[str, Callable[[], Any]] = {
    "roofline": lambda: plot.roofline(step(dtype="float16")),
    "path": lambda: plot.roofline([step(batch=batch) for batch in (1, 64, 4096)], path=True),
    "timeline": lambda: plot.timeline(step(mode="training"), width="column"),
    "several_timeline": lambda: plot.timeline(several.overlapped(), width="column"),
    "several_waterfall": lambda: plot.waterfall(several.overlapped()),
    "several_roofline": lambda: plot.roofline([several.step(gpus=gpus) for gpus in (2, 4, 8)]),
}


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_is_the_one_that_was_looked_at(name: str, tmp_path: Path) -> None:
    """Files of `PYTHONPATH=tests python tests/present/figures/test_figure_acceptance.py`, looked at and kept."""
    drawn = _drawn(name, tmp_path)
    # The root mean square of differences, of 255: fonts of other versions of matplotlib differ by less.
    assert compare_images(str(IMAGES / f"{name}.png"), str(drawn), tol=6) is None


def test_another_picture_is_told_apart(tmp_path: Path) -> None:
    other = _drawn("path", tmp_path)
    assert compare_images(str(IMAGES / "roofline.png"), str(other), tol=6) is not None


@pytest.mark.parametrize("name", PICTURES)
def test_the_same_figure_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    one, two = (plot.save(PICTURES[name](), tmp_path / f"{i}.svg").read_bytes() for i in range(2))
    assert one == two


def _drawn(name: str, folder: Path) -> Path:
    page = PICTURES[name]().get_figure(root=True)
    target = folder / f"{name}.png"
    with mpl.rc_context({"savefig.dpi": 100}):
        page.savefig(target, metadata={"Software": None})
    return target


if __name__ == "__main__":
    for picture in PICTURES:
        _drawn(picture, IMAGES)
