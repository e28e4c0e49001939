"""What a roofline figure shows beside predicted marks: measured ones, paths, shares, levels of memory, starts."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgba
from overlaps import overlaps
from refusals import refusal

import rooflinekit as rk
from rooflinekit.calibrate.local_hardware.run_record import ModelRun, ProfiledOp
from rooflinekit.errors import InputError
from rooflinekit.present.figures import plot
from rooflinekit.present.figures.records.build import roofline_figure
from rooflinekit.present.figures.records.caption import caption
from rooflinekit.present.figures.records.roofs import crossings, normalized_view
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.profile.matching import OpTime, Validation, compare_run
from rooflinekit.study.profile.profile import Profile, ProfileComparison

A100, L4 = "nvidia-a100-sxm4-80gb", "nvidia-l4"


class Twins(torch.nn.Module):
    """Two products of one shape, and an activation between; without numbers in its weights."""

    def __init__(self, width: int = 4096) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, width, bias=False, device="meta")
        self.second = torch.nn.Linear(width, width, bias=False, device="meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def twins(gpu: str = A100, batch: int = 2048, **options: Any) -> Prediction:
    return rk.predict(Twins(), rk.Input("batch", 4096), gpu=gpu, batch=batch, dtype="float16", **options)


def op(kind: str, name: str, module: str, measured_s: float, predicted_s: float = 1e-6) -> OpTime:
    return OpTime(kind=kind, name=name, module=module, count=1, measured_s=measured_s, predicted_s=predicted_s)


def profiled(prediction: Prediction, *ops: OpTime) -> ProfileComparison:
    wall = sum(each.measured_s for each in ops)
    profile = Profile(
        file="trace.json", mark="", steps=1, device="", devices=1, wall_s=wall, busy_s=wall, gaps=0.0, late_s=0.0,
        unknown_s=0.0, launched=3.0, median_s=1e-5, kernels=(), ops=(),
    )  # fmt: skip
    return ProfileComparison(profile=profile, prediction=prediction, ops=ops)


def measured_twins() -> ProfileComparison:
    prediction = twins()
    first, relu, second = prediction.timings
    names = [timing.kernel.name for timing in prediction.timings]
    return profiled(
        prediction,
        op("mm", names[0], "first", 2 * first.total_s),
        op("relu", names[1], "", relu.total_s),
        op("mm", names[2], "second", 4 * second.total_s),
    )


# --- measured beside predicted -------------------------------------------------------------------------------------


def test_each_mark_has_what_was_measured_of_its_kernels() -> None:
    comparison = measured_twins()
    figure = roofline_figure(comparison)
    marks = {point.kind: point for point in figure.points}
    assert set(marks) == {"aten.mm", "aten.relu"}
    product = marks["aten.mm"]  # both products fall on one place: 2 + 4 times as long as predicted, 3 times on average
    assert product.measured_s == pytest.approx(3 * product.time_s, rel=1e-3)  # the second finds its input in the L2
    assert product.error == pytest.approx(1 / 3 - 1, rel=1e-3)
    assert marks["aten.relu"].error == pytest.approx(0)
    assert sum(p.measured_s for p in figure.points) == pytest.approx(sum(o.measured_s for o in comparison.ops))
    assert figure.series[0].measured_s == comparison.profile.wall_s
    assert "Hollow marks are predicted, filled ones measured" in caption(figure)


def test_a_kind_whose_calls_could_not_be_told_apart_is_one_mark() -> None:
    prediction = twins()
    small = rk.predict(
        torch.nn.Sequential(*(torch.nn.Linear(4096, wide, device="meta") for wide in (4096, 16))),
        rk.Input(2048, 4096),
        gpu=A100,
    )
    figure = roofline_figure(profiled(small, op("addmm", "addmm", "", 1e-3)))
    (point,) = figure.points  # two products of very different sizes
    assert (point.kernels, point.measured_s) == (2, 1e-3)
    assert len(roofline_figure(small).points) == 2
    nothing = roofline_figure(profiled(prediction, op("relu", "relu", "", 1e-5), op("sort", "sort", "", 3e-5, 0.0)))
    assert {p.kind: p.measured_s for p in nothing.points} == {"aten.mm": 0.0, "aten.relu": 1e-5}
    assert "Not shown: 75.0 % of the measured time of ops is in calls that nothing predicts." in caption(nothing)


def test_hollow_is_predicted_and_filled_is_measured() -> None:
    comparison = measured_twins()
    figure = roofline_figure(comparison)
    ax = plot.roofline(comparison)
    marks = [mark for mark in ax.collections if isinstance(mark, PathCollection)]
    assert len(marks) == 2 * len(figure.points)
    found: dict[bool, list[float]] = {True: [], False: []}
    for mark in marks:
        ((_, y),) = mark.get_offsets()
        found[tuple(mark.get_facecolor()[0][:3]) != to_rgba("white")[:3]].append(float(y))
    assert sorted(found[False]) == pytest.approx(sorted(p.performance for p in figure.points))
    assert sorted(found[True]) == pytest.approx(sorted(p.flop / p.measured_s for p in figure.points))
    texts = [text.get_text() for text in ax.texts]
    assert any(text.endswith(" −67 %") for text in texts)
    assert overlaps(ax) == []


def test_a_point_above_its_roof_is_an_error_until_explained() -> None:
    comparison = measured_twins()
    first, *rest = comparison.ops
    impossible = dataclasses.replace(first, measured_s=first.measured_s / 100)
    last = dataclasses.replace(rest[-1], measured_s=rest[-1].measured_s / 100)
    figure = roofline_figure(dataclasses.replace(comparison, ops=(impossible, rest[0], last)))
    (point,) = figure.above
    flop, peak = 2 * 2 * 2048 * 4096 * 4096, 311.9e12
    assert figure.excess(point) == pytest.approx(flop / peak / point.measured_s)
    assert "above the roof, which is an error unless explained: first" in caption(figure) or "Ringed" in caption(figure)
    ax = plot.roofline(figure)
    assert ax.get_ylim()[1] >= 10 * peak or any(line.get_marker() == 2 + 8 for line in ax.lines)  # or an arrow up
    (legend,) = [child for child in ax.get_children() if hasattr(child, "get_texts")]
    assert "above its roof" in [text.get_text() for text in legend.get_texts()]
    assert roofline_figure(twins()).above == ()


def test_a_validation_is_shown_as_long_as_it_has_its_prediction() -> None:
    prediction = twins()
    calls = tuple(ProfiledOp(name=f"aten::{kind}", depth=0, seconds=1e-4) for kind in ("mm", "relu", "mm"))
    run = ModelRun(seconds=(4e-4,), warmup=1, steps=1, environment={}, ops=calls)
    validation = compare_run(run, prediction, inputs=["2048,4096"], options={}, threads=0)
    figure = roofline_figure(validation)
    assert sum(point.measured_s for point in figure.points) == pytest.approx(3e-4)
    assert figure.series[0].measured_s == 4e-4
    alone: Validation = dataclasses.replace(validation, prediction=None)
    with pytest.raises(InputError, match="a validation from a file has times of ops, but not their FLOP and bytes"):
        roofline_figure(alone)


# --- paths ---------------------------------------------------------------------------------------------------------


def test_a_step_on_a_path_stands_where_its_sums_say() -> None:
    predictions = [twins(batch=batch) for batch in (16, 256, 4096)]
    (path,) = roofline_figure(predictions, path=True).trajectories
    assert path.over == "batch"
    assert [stop.label for stop in path.stops] == ["batch 16", "batch 256", "batch 4096"]
    for stop, prediction, batch in zip(path.stops, predictions, (16, 256, 4096), strict=True):
        assert stop.flop == 2 * 2 * batch * 4096 * 4096 + batch * 4096  # two products, an op an element between
        assert stop.bytes == 2 * (2 * (2 * batch * 4096 + 4096 * 4096) + 2 * batch * 4096)
        assert stop.performance == pytest.approx(stop.flop / prediction.total_s)
    intensities = [stop.intensity for stop in path.stops]
    assert intensities == sorted(intensities)  # weights are read once for more samples


def test_paths_over_sizes_for_each_gpu_and_names_of_choice() -> None:
    several = [twins(gpu, batch=batch) for gpu in (A100, L4) for batch in (16, 256)]
    figure = roofline_figure(several, path=True)
    assert [(p.name, len(p.stops)) for p in figure.trajectories] == [("A100 SXM4 80 GB", 2), ("L4", 2)]
    (over,) = roofline_figure([twins(gpu) for gpu in (A100, L4)], path=True).trajectories
    assert (over.over, [stop.label for stop in over.stops]) == ("device", ["A100 SXM4 80 GB", "L4"])
    (ways,) = roofline_figure([twins(), twins(execution="compiled")], path=True).trajectories
    assert [stop.label for stop in ways.stops] == ["eager", "compiled"]
    (named,) = roofline_figure([twins(), twins()], path=["before", "after"]).trajectories
    assert [stop.label for stop in named.stops] == ["before", "after"]
    text = caption(figure)
    assert "A100 SXM4 80 GB, path over batch, 2 steps, from batch 16 " in text
    assert "Each mark is a whole step" in text


def test_paths_have_arrows_and_names() -> None:
    ax = plot.roofline([twins(batch=batch) for batch in (1, 64, 4096)], path=True)
    assert {"batch 1", "batch 64", "batch 4096"} <= {text.get_text() for text in ax.texts}
    arrows = [text for text in ax.texts if getattr(text, "arrow_patch", None) is not None and not text.get_text()]
    assert len(arrows) >= 2


@pytest.mark.parametrize(
    ("count", "path", "message"),
    [
        (1, True, "path: expected two predictions or more, in order; got 1"),
        (2, ["a"], "path: expected a name for each of 2 predictions; got ['a']"),
    ],
)
def test_refused_paths(count: int, path: Any, message: str) -> None:
    assert refusal(InputError, roofline_figure, [twins()] * count, path=path) == message


# --- shares, and several devices -----------------------------------------------------------------------------------


def test_shares_are_relative_to_the_roof_and_its_ridge() -> None:
    figure = roofline_figure([twins(A100), twins(L4)], normalized=True)
    view = normalized_view(figure)
    assert {(roof.value, roof.rate) for roof in view.roofs} == {(1.0, "100 %")}
    for absolute, share in zip(figure.points, view.points, strict=True):
        roof = next(r for r in figure.roofs if (r.device, r.name) == (absolute.device, absolute.roof))
        assert share.intensity == pytest.approx(absolute.intensity / figure.ridge(roof))
        assert share.performance == pytest.approx(absolute.performance / roof.value)
    ax = plot.roofline(figure)
    assert ax.get_xlabel() == "Intensity / ridge of its own roof"
    assert "100 %" in " ".join(text.get_text() for text in ax.texts)
    assert "Drawn as shares" in caption(figure)


def test_crossings_of_two_devices() -> None:
    figure = roofline_figure([rk.load_device(gpu) for gpu in ("nvidia-v100-sxm2-16gb", "nvidia-t4")])
    # V100 has both the faster memory and the higher peak: ahead everywhere, where both have the format.
    assert crossings(figure) == ()
    two = roofline_figure([twins("nvidia-p100-pcie-16gb"), twins(L4)])
    (crossing,) = crossings(two)
    # P100: HBM2 at 732 GB/s, fp16 products on lanes; L4: GDDR6 at 300 GB/s, matrix units.
    level = max(r.value for r in two.roofs if r.device.startswith("nvidia-p100") and r.kind == "compute"
                and r.provenance == "datasheet")  # fmt: skip
    assert crossing.left == "nvidia-p100-pcie-16gb"
    assert crossing.at == (pytest.approx(level / two.memory_roof(L4).value), level)
    assert "is ahead below" in caption(two)


# --- levels of memory, starts, capacity ----------------------------------------------------------------------------


def test_what_the_l2_holds_does_not_pass_dram() -> None:
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU())
    elements = 512 * 1024  # 2 MiB a tensor, of an L2 of 40 MB
    figure = roofline_figure(rk.predict(model, rk.Input(elements), gpu=A100), by_kind=False)
    (point,) = figure.points
    # Each reads and writes once; the second finds what it reads.
    assert point.l2_bytes == pytest.approx(4 * 4 * elements)
    assert point.dram_bytes == pytest.approx(3 * 4 * elements)
    large = 2**28
    (streamed,) = roofline_figure(rk.predict(model, rk.Input(large), gpu=A100)).points
    assert streamed.dram_bytes == pytest.approx(streamed.l2_bytes) == pytest.approx(4 * 4 * large)


@pytest.mark.parametrize("options", [{}, {"batch": 1}, {"execution": "compiled"}])
def test_dram_never_sees_more_than_the_l2(options: Any) -> None:
    for point in roofline_figure(twins(**options)).points:
        assert 0 <= point.dram_bytes <= point.l2_bytes * (1 + 1e-9)


def test_levels_are_joined_and_the_binding_one_is_filled() -> None:
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU())
    figure = roofline_figure(rk.predict(model, rk.Input(512 * 1024), gpu=A100), by_level=True)
    (l2,) = [roof for roof in figure.roofs if roof.name == "L2"]
    (point,) = figure.points
    assert next(iter(figure.level_bytes(point))) == "HBM2e"  # 3/2.04 is longer than 4/4.9
    assert l2.value > figure.memory_roof(figure.devices[0].name).value
    ax = plot.roofline(figure)
    xs = [float(mark.get_offsets()[0][0]) for mark in ax.collections if isinstance(mark, PathCollection)]
    assert xs == pytest.approx([point.flop / point.l2_bytes, point.flop / point.dram_bytes])
    assert any("L2" in text.get_text() for text in ax.texts)
    with pytest.raises(InputError, match="by_level shows the traffic that is predicted"):
        roofline_figure(measured_twins(), by_level=True)


def test_what_starts_cost() -> None:
    small = roofline_figure(rk.predict(torch.nn.ReLU(), rk.Input(1000), gpu=A100))
    (floor,) = small.floors
    assert (floor.kernels, floor.median_bytes) == (1, 8000.0)
    assert "1 of 1 kernels wait longer for their start" in caption(small)
    least = floor.start_s * 2.039e12
    assert rk.units.format_quantity(least, "byte") in caption(small)
    ax = plot.roofline(small, launch=True)
    assert any("8.00 kB a kernel" in text.get_text() for text in ax.texts)
    assert "start" not in caption(roofline_figure(rk.predict(torch.nn.ReLU(), rk.Input(2**28), gpu=A100)))


def test_a_step_that_the_memory_cannot_hold_says_so() -> None:
    figure = roofline_figure(rk.predict(torch.nn.ReLU(), rk.Input(2**35), gpu=A100))
    assert not figure.series[0].prediction.memory.fits  # 128 GiB in, as much out
    assert "does not fit, at any intensity" in caption(figure)
    assert "does not fit" not in caption(roofline_figure(twins()))


def test_marks_never_vanish() -> None:
    figure = roofline_figure(measured_twins())
    far = dataclasses.replace(figure.points[0], measured_s=figure.points[0].measured_s * 1e9)
    ax = plot.roofline(dataclasses.replace(figure, points=(far, *figure.points[1:])))
    (bottom, top), (left, right) = ax.get_ylim(), ax.get_xlim()
    for mark in (m for m in ax.collections if isinstance(m, PathCollection)):
        ((x, y),) = mark.get_offsets()
        assert left <= x <= right
        assert bottom <= y <= top
    assert math.isfinite(top)
    assert len(list(itertools.chain(ax.collections))) >= 4
