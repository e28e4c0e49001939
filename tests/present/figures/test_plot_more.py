"""Time lines, memory, sweeps and errors as figures."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from overlaps import key_of, overlaps
from refusals import refusal

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.present.figures import plot
from rooflinekit.present.figures.labels import Ground, Name
from rooflinekit.present.figures.style import style_of
from rooflinekit.present.figures.timeline import merged
from rooflinekit.step.prediction import Prediction
from rooflinekit.units import format_quantity

A100, L4, T4 = "nvidia-a100-sxm4-80gb", "nvidia-l4", "nvidia-t4"


class Net(torch.nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(64, 512, device="meta")
        blocks = (torch.nn.Sequential(torch.nn.Linear(512, 512, device="meta"), torch.nn.ReLU()) for _ in range(depth))
        self.blocks = torch.nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.stem(x))  # type: ignore[no-any-return]


def net(batch: int = 4096, **options: Any) -> Prediction:
    return rk.predict(Net(), rk.Input("batch", 64), gpu=A100, batch=batch, **options)


# --- time line -----------------------------------------------------------------------------------------------------


def lane(ax: Any, middle: float) -> list[tuple[float, float]]:
    """Starts and ends of the bars of a lane, in order."""
    boxes = [path.get_extents() for bars in ax.collections for path in bars.get_paths()]
    return sorted((box.x0, box.x1) for box in boxes if abs((box.y0 + box.y1) / 2 - middle) < 1e-6)


@pytest.mark.parametrize("options", [{}, {"batch": 1}, {"mode": "training"}, {"sync": "none"}])
def test_bars_are_the_queues_and_gaps_stay_open(options: Any) -> None:
    sync = options.pop("sync", "step")
    p = net(execution=rk.Execution(sync=sync), **options)
    ax = plot.timeline(p)
    gpu = lane(ax, 1.0)
    busy = sum(end - start for start, end in gpu)
    # Gaps shorter than 1/700 of the step are closed: at most one before each kernel.
    assert p.gpu_s * (1 - 1e-9) <= busy <= p.gpu_s + len(p.spans) * p.total_s / 700
    assert gpu[0][0] == pytest.approx(p.spans[0].start_s)
    assert gpu[-1][1] == pytest.approx(p.spans[-1].end_s)
    cpu = sum(end - start for start, end in lane(ax, 2.0))
    assert cpu == pytest.approx(sum(work.end_s - work.start_s for work in p.timeline.cpu), rel=0.01)
    assert overlaps(ax) == []


def test_thousands_of_kernels_are_few_bars() -> None:
    deep = rk.predict(Net(700), rk.Input(64, 64), gpu=A100, execution="cuda-graph")
    assert len(deep.spans) > 1400
    ax = plot.timeline(deep, width="column")
    assert len(lane(ax, 1.0)) <= 1400 / 2
    assert len(lane(ax, 0.25)) <= 36  # modules
    assert overlaps(ax) == []


def test_merging_keeps_the_ends() -> None:
    runs = [(0.0, 1.0, "a"), (1.0, 2.0, "b"), (2.5, 3.0, "b"), (3.2, 4.0, "b")]
    assert merged(runs, 0.3) == [(0.0, 1.0, "a"), (1.0, 2.0, "b"), (2.5, 4.0, "b")]
    assert merged(runs, 0.0) == runs
    assert merged([], 1.0) == []


def test_phases_of_a_training_step() -> None:
    texts = [text.get_text() for text in plot.timeline(net(mode="training")).texts]
    assert {"forward", "backward"} <= set(texts)


# --- memory --------------------------------------------------------------------------------------------------------


def test_memory_marks_peak_and_capacity() -> None:
    p = net(mode="training")
    ax = plot.memory(p)
    (peak,) = [text.get_text() for text in ax.texts]
    assert peak.startswith("peak ")
    *_, segments, capacity = key_of(ax)
    assert segments == f"segments hold up to {format_quantity(p.memory.reserved_bytes, 'byte')}"
    assert capacity == "capacity 85.9 GB, CUDA takes 524 MB"
    assert overlaps(ax) == []
    full = plot.memory(rk.predict(torch.nn.ReLU(), rk.Input(2**35), gpu=A100))
    assert any("does not fit" in text for text in key_of(full))
    assert max(line.get_ydata()[0] for line in full.lines) > 80e9  # type: ignore[index]


# --- sweep ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return rk.sweep(Net(), rk.Input("batch", 64), gpus=[A100, L4, T4], batch=[1, 64, 4096, 65536])


def test_a_sweep_of_one_gpu_has_regimes_behind_it(table: pd.DataFrame) -> None:
    rows = table[table["gpu"] == A100]
    ax = plot.sweep(rows)
    (line,) = [line for line in ax.lines if len(line.get_xdata()) > 1]  # type: ignore[arg-type]
    assert list(line.get_xdata()) == [1, 64, 4096, 65536]
    assert list(line.get_ydata()) == list(rows["total_s"])
    bands = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    assert len(bands) == 4
    # Between 1 and 64 the band changes at their geometric middle.
    assert bands[1].get_x() == pytest.approx(8)
    page = ax.get_figure(root=True)
    assert page is not None
    below = page.axes[1]
    assert list(below.lines[0].get_ydata()) == list(rows["throughput"])
    assert below.get_xlabel() == "batch on A100 SXM4 80 GB"
    assert overlaps(ax) == []


def test_a_sweep_of_several_gpus_has_a_line_each(table: pd.DataFrame) -> None:
    ax = plot.sweep(table, width="page")
    lines = [line for line in ax.lines if len(line.get_xdata()) > 1]  # type: ignore[arg-type]
    assert len(lines) == 3
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 3
    assert not [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    assert {"A100 SXM4 80 GB", "L4", "T4"} <= {*key_of(ax)}
    assert overlaps(ax) == []


@pytest.mark.parametrize(
    ("change", "against", "message"),
    [
        (
            lambda t: t,
            "bach",
            "sweep: the table has no column 'bach'; did you mean 'batch'?; it has gpu, batch, total_s",
        ),
        (lambda t: t.drop(columns="regime"), "batch", "sweep: the table has no column 'regime'"),
        (lambda t: t.iloc[:0], "batch", "sweep: the table has no rows"),
    ],
)
def test_refused_sweeps(table: pd.DataFrame, change: Any, against: str, message: str) -> None:
    assert refusal(InputError, plot.sweep, change(table), against).startswith(message)


# --- errors --------------------------------------------------------------------------------------------------------


def test_errors_say_how_many_are_within_a_fifth() -> None:
    pairs = {"measured_s": [1e-3, 1e-3, 2e-3, 4e-3], "predicted_s": [1.1e-3, 1e-3, 1e-3, 8e-3]}
    ax = plot.errors(pd.DataFrame(pairs))
    (told,) = [text.get_text() for text in ax.texts]
    # 10 %, 0, 50 % and 100 % off: half within 20 %, the median between 10 % and 50 %
    assert told == "4 pairs, 50 % within 20 %, median error 30 %"
    scattered = [marks for marks in ax.collections if isinstance(marks, PathCollection)]
    places = [tuple(place) for marks in scattered for place in marks.get_offsets()]
    assert sorted(places) == sorted(zip(pairs["measured_s"], pairs["predicted_s"], strict=True))
    assert ax.get_xlim() == ax.get_ylim()
    assert overlaps(ax) == []


def test_groups_differ_in_colour_and_shape() -> None:
    frame = pd.DataFrame({"measured_s": [1e-3, 2e-3], "predicted_s": [1e-3, 2e-3], "family": ["conv", "matmul"]})
    ax = plot.errors(frame, group="family")
    marks = [marks for marks in ax.collections if isinstance(marks, PathCollection)]
    assert len({tuple(mark.get_facecolor()[0]) for mark in marks}) == 2
    assert len({mark.get_paths()[0].vertices.tobytes() for mark in marks}) == 2
    assert key_of(ax) == ["conv", "matmul", "within 20 %"]


NUMBERS = "expected rows with positive numbers in measured_s and predicted_s"


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            {"measured": [1.0], "predicted_s": [1.0]},
            "the table has no column 'measured_s'; did you mean 'measured'?; it has measured, predicted_s",
        ),
        ({"measured_s": [0.0], "predicted_s": [1.0]}, NUMBERS),
        ({"measured_s": [], "predicted_s": []}, NUMBERS),
    ],
)  # fmt: skip
def test_refused_errors(frame: Any, message: str) -> None:
    assert refusal(InputError, plot.errors, pd.DataFrame(frame)) == f"errors: {message}"


def test_draws_on_given_axes() -> None:
    panels = Figure(figsize=(12, 8)).subplots(2, 2).ravel()
    p = net()
    frame = pd.DataFrame({"measured_s": [1e-3], "predicted_s": [1e-3]})
    rows = rk.sweep(Net(1), rk.Input("batch", 64), gpus=[A100], batch=[1, 8])
    assert plot.timeline(p, panels[0]) is panels[0]
    assert plot.memory(p, panels[1]) is panels[1]
    assert plot.sweep(rows, "batch", panels[2]) is panels[2]
    assert plot.errors(frame, panels[3]) is panels[3]


def test_a_name_without_room_is_shortened() -> None:
    ax = Figure(figsize=(1.6, 1.6)).add_axes((0.1, 0.1, 0.8, 0.8))  # 92 points wide: room for some 20 letters
    ground = Ground(ax, style_of("column", None))
    ground.settle()
    long = "mobilenetv3_large_100_minimal"
    names = [Name(ground, (0.5, 0.2), 2.0, long, shorter=shorter) for shorter in (False, True)]
    for name in names:
        name.settle()
        name.write()
    assert names[0].box is None
    assert [text.get_text() for text in ax.texts] == ["mobilenet…_minimal"]
