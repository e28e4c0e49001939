"""Figures of steps on several devices: waterfalls, time lines, and rooflines with the roof of links."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.colors import same_color
from overlaps import key_of, overlaps
from refusals import refusal
from several import PARAMETER_BYTES, SMALL, overlapped, slow_cluster, step

import rooflinekit as rk
from rooflinekit.distributed.queues import covered
from rooflinekit.errors import InputError
from rooflinekit.present.figures import plot
from rooflinekit.present.figures.records.build import roofline_figure
from rooflinekit.present.figures.records.caption import caption
from rooflinekit.present.figures.style import VERMILLION
from rooflinekit.present.figures.timeline import IDLE
from rooflinekit.study.compare.scaling import EXPOSED, HIDDEN

PIPES = rk.Mesh(pipeline=2, tensor=2, microbatches=4)


# --- waterfall -----------------------------------------------------------------------------------------------------


def bars_of(ax: Any) -> dict[str, Any]:
    """The bars by what stands below them."""
    names = [label.get_text() for label in ax.get_xticklabels()]
    bars = sorted((bar for container in ax.containers for bar in container), key=lambda bar: bar.get_x())
    return dict(zip(names, bars, strict=True))


@pytest.mark.parametrize(
    ("strategy", "bandwidth"), [("dp", 1e8), ("ddp", 1e11), ("fsdp", 1e9), (SMALL, 1e8), (PIPES, 1e11)], ids=str
)
def test_bars_lead_from_one_device_to_several(strategy: Any, bandwidth: float) -> None:
    p = step(strategy, cluster=slow_cluster(bandwidth), batch=65536)
    ax = plot.waterfall(p)
    bars = list(bars_of(ax).items())
    (_, first), *steps, (last, total) = bars
    level = first.get_height()
    assert level == pytest.approx(p.one_gpu.total_s / (1 if "÷ 4" in dict(bars) else 4))
    for name, bar in steps:
        low, high = bar.get_y(), bar.get_y() + bar.get_height()
        if name == HIDDEN:  # an outline that leads nowhere
            assert same_color(bar.get_facecolor(), "white")
            assert high - low == pytest.approx(p.hidden_s, abs=1e-12)
            continue
        assert level == pytest.approx(low, abs=1e-12) or level == pytest.approx(high, abs=1e-12)
        level = low + high - level
        if name == EXPOSED:
            assert high - low == pytest.approx(p.exposed_s)
    assert level == pytest.approx(p.total_s, rel=1e-9)
    assert total.get_height() == p.total_s
    assert last.startswith("4 GPUs, ")
    assert overlaps(ax) == []


def test_a_waterfalls_key_says_what_each_colour_does() -> None:
    ax = plot.waterfall(overlapped())
    legend = ax.get_legend()
    colours = {t.get_text(): h.get_facecolor() for t, h in zip(legend.texts, legend.legend_handles, strict=True)}
    p, bars = overlapped(), bars_of(ax)
    assert p.exposed_s > 0
    assert p.hidden_s > 0
    assert same_color(colours["adds time"], bars[EXPOSED].get_facecolor())
    assert same_color(colours["hidden, adds none"], bars[HIDDEN].get_facecolor())


def test_a_waterfall_between_two_steps() -> None:
    fast, slow = step(), step(cluster=slow_cluster(1e8))
    ax = plot.waterfall([fast, slow])
    bars = list(bars_of(ax).values())
    assert (bars[0].get_height(), bars[-1].get_height()) == (fast.total_s, slow.total_s)
    # hidden of both is less than a bar's height or outlined; its value stands in brackets
    assert sum(text.get_text().startswith("(") for text in ax.texts) == 1
    assert overlaps(ax) == []
    with pytest.raises(InputError, match=r"^waterfall: expected two steps on several devices; got ParallelPrediction$"):
        plot.waterfall([fast])


def test_labels_that_stand_over_others_are_within_the_axes() -> None:
    """A slow step from a fast one: narrow bars at the same height, whose labels are piled up."""
    for p in (step("dp", cluster=slow_cluster(1e8)), [overlapped(), step(cluster=slow_cluster(1e8), batch=65536)]):
        ax = plot.waterfall(p)
        ax.figure.draw_without_rendering()
        top = ax.get_window_extent().y1
        assert max(text.get_window_extent().y1 for text in ax.texts) <= top + 1


def test_less_hidden_communication_has_its_sign() -> None:
    beside, after = overlapped(), step(rk.DDP(overlap=False), cluster=slow_cluster(5e8), batch=65536)
    assert after.hidden_s < beside.hidden_s
    (told,) = [t.get_text() for t in plot.waterfall([beside, after]).texts if t.get_text().startswith("(")]
    assert told.startswith("(−")


# --- time line -----------------------------------------------------------------------------------------------------


def lanes_of(ax: Any) -> dict[str, float]:
    return {label.get_text(): place for place, label in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)}


def bars_in(ax: Any, height: float, colour: str) -> list[tuple[float, float]]:
    found = []
    for bars in ax.collections:
        for path in bars.get_paths():
            box = path.get_extents()
            inside = abs((box.y0 + box.y1) / 2 - height) < 1e-6 and box.x1 > box.x0
            if inside and same_color(bars.get_facecolor()[0], colour):
                found.append((box.x0, box.x1))
    return sorted(found)


def test_lanes_show_what_is_exposed_and_hidden() -> None:
    p = overlapped()
    ax = plot.timeline(p)
    lanes = lanes_of(ax)
    assert list(lanes) == ["CPU", "GPU 0–3", "links"]  # four equal devices share their lanes
    exposed, hidden = (bars_in(ax, lanes["links"], colour) for colour in (VERMILLION, "white"))
    # gaps of less than 1/700 of the step are closed
    few = len(p.messages) * p.total_s / 700
    assert p.exposed_s - 1e-12 <= covered(exposed) <= p.exposed_s + few
    assert p.hidden_s - 1e-12 <= covered(hidden) <= p.hidden_s + few
    waits = bars_in(ax, lanes["GPU 0–3"], "white")
    assert covered(waits) == pytest.approx(p.exposed_s, abs=few)
    heads = [text.get_text() for text in ax.texts]
    assert "4 × NVIDIA A100 SXM4 80 GB, 16384 samples each" in heads
    assert any(head.startswith("nvlink-3: ") and " exposed, " in head for head in heads)
    assert overlaps(ax) == []


def test_unequal_devices_have_lanes_of_their_own() -> None:
    p = step("dp", cluster="titan-x-x2-gtx-1080", gpus=3, batch=3 * 4096)
    ax = plot.timeline(p, width="column")
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["CPU", "GPU 0", "CPU", "GPU 1", "CPU", "GPU 2", "links: pair", "links: data"]
    assert overlaps(ax) == []


def test_a_pipeline_shows_its_slots() -> None:
    p = step(PIPES, gpus=8, batch=65536)
    ax = plot.timeline(p)
    lanes = lanes_of(ax)
    assert list(lanes)[:2] == ["GPU 0–3", "GPU 4–7"]
    # 4 pieces forward and 4 backward on each of two stages, each with its number
    assert sorted(text.get_text() for text in ax.texts if text.get_text().isdigit()) == sorted("0123" * 4)
    assert key_of(ax) == ["forward", "backward", "sent", "idle"]
    assert overlaps(ax) == []


@pytest.mark.parametrize(
    ("strategy", "venue"), [("dp", "lncs"), (SMALL, "slides"), (PIPES, "slides"), (PIPES, "ieee")], ids=str
)
def test_no_text_covers_other_text(strategy: Any, venue: Any) -> None:
    p = step(strategy, cluster=slow_cluster(1e9), batch=65536)
    for draw in (plot.timeline, plot.waterfall, plot.roofline):
        assert overlaps(draw(p, venue=venue, width="column")) == []  # type: ignore[operator]


def test_idle_lanes_reach_over_the_step() -> None:
    ax = plot.timeline(step())
    assert sum(same_color(patch.get_facecolor(), IDLE) for patch in ax.patches) == 3


# --- roofline ------------------------------------------------------------------------------------------------------


def test_the_ridge_is_the_peak_over_the_bandwidth() -> None:
    p = step()
    figure = roofline_figure(p)
    stated, fitted = figure.links
    # A100: 108 SMs · 64 lanes · 2 FLOP · 1.41 GHz = 19.5 TFLOP/s; NVLink 3: 300 GB/s in one direction.
    assert figure.link_ridge(stated) == pytest.approx(108 * 64 * 2 * 1.41e9 / 300e9, rel=1e-3)
    assert (stated.rate, stated.provenance) == ("300 GB/s", "datasheet")
    sustained = next(r for r in figure.roofs if r.kind == "compute" and r.provenance != "datasheet")
    assert figure.link_ridge(fitted) == pytest.approx(sustained.value / fitted.value)
    assert fitted.value < stated.value
    # The memory's ridge is what it was without links.
    compute = next(r for r in figure.roofs if r.kind == "compute")
    assert figure.ridge(compute) == pytest.approx(compute.value / figure.memory_roof(compute.device).value)


def test_a_step_stands_over_the_bytes_that_it_sends() -> None:
    p = step(batch=65536)
    ((stop,),) = [path.stops for path in roofline_figure(p).trajectories]
    sent = 2 * 3 / 4 * PARAMETER_BYTES
    assert stop.intensities[0] == pytest.approx(p.one_gpu.flop / 4 / sent)
    assert stop.performance == pytest.approx(p.one_gpu.flop / 4 / p.total_s)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero-1", rk.Mesh(tensor=4)], ids=str)
@pytest.mark.parametrize("bandwidth", [1e6, 1e9, 1e12])
def test_no_step_is_above_its_roofs(strategy: Any, bandwidth: float) -> None:
    figure = roofline_figure(step(strategy, cluster=slow_cluster(bandwidth)))
    (stop,) = figure.trajectories[0].stops
    link = max(roof.value for roof in figure.links)
    assert stop.performance <= stop.intensities[0] * link * (1 + 1e-9)
    # A link that is slow enough is all that limits: the step stands at its fitted roof.
    if bandwidth == 1e6:
        assert stop.performance == pytest.approx(stop.intensities[0] * figure.links[1].value, rel=0.05)
        assert stop.bound == "communication"


def test_strategies_are_marks_and_numbers_of_devices_are_paths() -> None:
    alone = roofline_figure([step(s) for s in ("ddp", "fsdp", "zero-1")])
    assert [[stop.label for stop in path.stops] for path in alone.trajectories] == [["DDP"], ["FSDP"], ["ZeRO 1"]]
    grown = roofline_figure([step("ddp" if n < 0 else rk.Mesh(tensor=n), gpus=abs(n)) for n in (-2, -4, 2, 4)])
    labels = [[stop.label for stop in path.stops] for path in grown.trajectories]
    assert labels == [["DDP, 2 GPUs", "DDP, 4 GPUs"], ["tensor, 2 GPUs", "tensor, 4 GPUs"]]
    one = roofline_figure([step(gpus=n) for n in (2, 4, 8)])
    assert [stop.label for stop in one.trajectories[0].stops] == ["2 GPUs", "4 GPUs", "8 GPUs"]
    assert len(one.links) == 2  # one link, by datasheet and as fitted
    assert overlaps(plot.roofline(grown)) == []
    assert overlaps(plot.roofline(alone, width="page")) == []


def test_links_of_other_rates_have_other_roofs() -> None:
    figure = roofline_figure([step(cluster=slow_cluster(rate)) for rate in (1e9, 1e10)])
    assert [roof.name for roof in figure.links if roof.provenance == "datasheet"] == ["nvlink-3", "nvlink-3 #2"]
    words = [stop.link_bytes[0][0] for path in figure.trajectories for stop in path.stops]
    assert words == ["nvlink-3", "nvlink-3 #2"]


def test_the_caption_says_from_where_on_links_do_not_limit() -> None:
    text = caption(roofline_figure(step()))
    assert "Links no longer limit: nvlink-3 300 GB/s (datasheet) from 65, nvlink-3 " in text
    assert "of an all-reduce of S by n devices 2·(n − 1)/n·S" in text


@pytest.mark.parametrize(
    ("subject", "options", "message"),
    [
        (lambda: [step(), step().one_gpu], {}, "stand alone in a figure; got Prediction beside them"),
        (step, {"normalized": True}, "steps on several devices have no by_level and no normalized"),
        (step, {"path": ["one", "two"]}, "path: expected a name for each of 1 predictions; got"),
        (lambda: step(gpus=1), {}, "DDP on 1 of dgx-a100 sends nothing: it meets no link's roof"),
    ],
)
def test_refused_rooflines(subject: Any, options: Any, message: str) -> None:
    assert message in refusal(InputError, roofline_figure, subject(), **options)
