"""The model of the roofline figure: hand-computed places, laws, and the way through JSON."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import replace
from typing import Any

import pytest
import torch
from refusals import refusal

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.present.figures.records.build import op_word, roofline_figure
from rooflinekit.present.figures.records.caption import caption
from rooflinekit.present.figures.records.figure import Point, Roof, leading
from rooflinekit.step.prediction import Prediction
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.timings import time_kernels
from rooflinekit.units import format_quantity

A100, P100, V100 = "nvidia-a100-sxm4-80gb", "nvidia-p100-pcie-16gb", "nvidia-v100-sxm2-16gb"
UNMEASURED = "nvidia-h200-nvl-141gb"


class Block(torch.nn.Module):
    """A residual block with all kinds of kernels that a small convolutional network has."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(channels)
        self.act1 = torch.nn.ReLU()
        self.conv2 = torch.nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv2(self.act1(self.bn1(self.conv1(x))))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = torch.nn.Sequential(Block(), Block(), Block())
        self.head = torch.nn.Linear(64, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.layer1(x), x]).mean((2, 3)))


def net(gpu: str = A100, batch: int = 32, **options: Any) -> Prediction:
    return rk.predict(Net(), rk.Input("batch", 64, 28, 28), gpu=gpu, batch=batch, **options)


@pytest.fixture(scope="module")
def predictions() -> dict[str, Prediction]:
    return {
        "a100": net(),
        "p100": net(P100),
        "half": net(dtype="float16"),
        "double": net(dtype="float64"),
        "small": net(batch=1),
        "training": net(mode="training"),
    }


def told(roof: Roof) -> str:
    return f"{roof.name} {roof.rate} ({roof.origin})"


def linear(gpu: str = A100, **options: Any) -> Prediction:
    return rk.predict(
        torch.nn.Linear(4096, 1024, bias=False, device="meta"), rk.Input("batch", 4096), gpu=gpu, batch=2048, **options
    )


# --- places, by hand -----------------------------------------------------------------------------------------------


def test_a_matrix_product_stands_where_its_shape_says() -> None:
    (point,) = roofline_figure(linear(dtype="float16")).points
    flop = 2 * 2048 * 1024 * 4096  # a multiply-add is 2
    moved = 2 * (2048 * 4096 + 1024 * 4096 + 2048 * 1024)  # 2 reads + 1 write, 2 bytes each
    assert point.flop == flop
    assert point.bytes == moved
    assert point.intensity == flop / moved
    assert point.roof == "fp16 matrix"
    assert point.performance == pytest.approx(flop / linear(dtype="float16").gpu_s)
    assert (point.kernels, point.share, point.bound) == (1, pytest.approx(1.0), "compute")


def test_roofs_of_a_prediction_are_those_of_its_arithmetic() -> None:
    prediction = linear(dtype="float16")
    memory, matrix = (prediction.machine.values[name] for name in ("memory_share", "issue_share"))
    roofs = roofline_figure(prediction).roofs
    assert [(roof.name, roof.provenance, roof.value) for roof in roofs] == [
        ("HBM2e", "datasheet", 2.039e12),
        ("HBM2e", "fitted share", pytest.approx(memory * 2.039e12)),
        ("fp16 matrix", "datasheet", 311.9e12),
        ("fp16 matrix", "fitted share", pytest.approx(matrix * 311.9e12)),
    ]
    assert told(roofs[0]) == "HBM2e 2.04 TB/s (datasheet)"
    assert told(roofs[1]) == f"HBM2e {memory * 2.039:.3g} TB/s (fitted share {100 * memory:.0f} %)"
    unmeasured = roofline_figure(rk.predict(torch.nn.ReLU(), rk.Input(8), gpu=UNMEASURED)).roofs
    assert [roof.provenance for roof in unmeasured][:2] == ["datasheet", "default share"]


def test_ridges() -> None:
    prediction = linear(dtype="float16")
    memory, matrix = (prediction.machine.values[name] for name in ("memory_share", "issue_share"))
    figure = roofline_figure(prediction)
    datasheet, sustained = figure.roofs[2:]
    assert figure.ridge(datasheet) == pytest.approx(152.97, abs=0.01)  # 311.9 / 2.039
    assert figure.ridge(sustained) == pytest.approx(311.9 * matrix / (2.039 * memory))


def test_each_kernel_is_judged_against_its_own_roof(predictions: dict[str, Prediction]) -> None:
    roofs = {(point.kind, point.roof) for point in roofline_figure(predictions["a100"]).points}
    assert {("aten.convolution", "tf32 matrix"), ("aten.convolution", "fp32 vector")} <= roofs  # plain, depthwise
    assert ("aten.addmm", "fp32 vector") in roofs  # tf32 is not allowed in matrix products by default
    assert {roof for kind, roof in roofs if kind == "aten.relu"} == {"fp32 vector"}
    # P100 has no matrix units
    assert {point.roof for point in roofline_figure(predictions["p100"]).points} == {"fp32 vector"}
    doubles = {point.roof for point in roofline_figure(predictions["double"]).points}
    assert doubles == {"fp64 matrix", "fp64 vector"}


def test_equal_kernels_are_one_mark_with_the_sum_of_their_time(predictions: dict[str, Prediction]) -> None:
    prediction = predictions["a100"]
    (add,) = [point for point in roofline_figure(prediction).points if point.kind.startswith("aten.add.")
              or point.kind == "aten.add"]  # fmt: skip
    elements = 32 * 64 * 28 * 28
    assert add.kernels == 3
    assert add.flop == 3 * elements
    assert add.bytes == 3 * 3 * 4 * elements  # 2 reads + 1 write
    assert add.intensity == 1 / 12
    adds = [t.total_s for t in prediction.timings if t.kernel.kind.startswith("aten.add") and not t.kernel.cost.gemms]
    assert add.time_s == pytest.approx(sum(adds))
    assert add.modules == ("layer1.0", "layer1.1", "layer1.2")


def test_kernels_without_flop_are_on_the_rail(predictions: dict[str, Prediction]) -> None:
    (cat,) = [point for point in roofline_figure(predictions["a100"]).rail if point.kind == "aten.cat"]
    moved = 4 * 4 * 32 * 64 * 28 * 28  # 2 reads + a write as large as both
    assert cat.kind == "aten.cat"
    assert cat.flop == 0
    (timing,) = [t for t in predictions["a100"].timings if t.kernel.kind == "aten.cat"]
    assert cat.bandwidth == pytest.approx(moved / timing.total_s)


def test_kernels_without_traffic_are_counted(predictions: dict[str, Prediction]) -> None:
    class Free(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    figure = roofline_figure(rk.predict(Free(), rk.Input(8), gpu=A100))
    assert (figure.kernels, figure.omitted) == (1, 0)
    timing = predictions["a100"].timings[0]
    nothing = dataclasses.replace(timing, kernel=dataclasses.replace(timing.kernel, cost=rk.Cost()))
    span = dataclasses.replace(predictions["a100"].spans[0], timing=nothing)
    spans = (span, *predictions["a100"].spans[1:])
    changed = dataclasses.replace(
        predictions["a100"], timeline=dataclasses.replace(predictions["a100"].timeline, spans=spans)
    )
    figure = roofline_figure(changed)
    assert figure.omitted == 1
    assert "Not shown, for it moves no bytes: 1 of " in caption(figure)


# --- laws ----------------------------------------------------------------------------------------------------------

CASES = ["a100", "p100", "half", "double", "small", "training"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("by_kind", [False, True])
def test_no_point_is_above_its_roofs(predictions: dict[str, Prediction], case: str, by_kind: bool) -> None:
    prediction = predictions[case]
    alone = [replace(timing.kernel, recent=()) for timing in prediction.timings]
    timed = time_kernels(alone, prediction.machine)
    spans = tuple(replace(span, timing=timing) for span, timing in zip(prediction.spans, timed, strict=True))
    uncached = replace(prediction, timeline=replace(prediction.timeline, spans=spans))  # nothing is found in the L2
    figure = roofline_figure(uncached, by_kind=by_kind)
    for provenance in ("datasheet", "fitted share"):
        roofs = {roof.name: roof.value for roof in figure.roofs if roof.provenance == provenance}
        memory = figure.memory_roof(figure.devices[0].name, provenance).value  # type: ignore[arg-type]
        for point in figure.points:
            assert point.performance <= roofs[point.roof] * (1 + 1e-9)
            assert point.performance <= point.intensity * memory * (1 + 1e-9)
        for point in figure.rail:
            assert point.bandwidth <= memory


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("by_kind", [False, True])
def test_nothing_disappears(predictions: dict[str, Prediction], case: str, by_kind: bool) -> None:
    prediction = predictions[case]
    figure = roofline_figure(prediction, by_kind=by_kind)
    points = (*figure.points, *figure.rail)
    assert sum(point.kernels for point in points) + figure.omitted == len(prediction.timings)
    omitted_s = sum(timing.total_s for timing in prediction.timings if not timing.kernel.bytes)
    assert sum(point.share for point in points) + omitted_s / prediction.gpu_s == pytest.approx(1)
    assert sum(point.time_s for point in points) == pytest.approx(prediction.gpu_s - omitted_s)
    assert sum(point.flop for point in points) == pytest.approx(
        sum(float(timing.kernel.cost.flop) for timing in prediction.timings)
    )


def test_many_marks_become_one_a_kind() -> None:
    class Many(torch.nn.Module):
        """Products of one length and many widths: each has an intensity of its own."""

        def __init__(self) -> None:
            super().__init__()
            parts = (torch.nn.Linear(64 * i, 8192, bias=False, device="meta") for i in range(1, 130))
            self.parts = torch.nn.ModuleList(parts)

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [part(x[:, : 64 * i]) for i, part in enumerate(self.parts, 1)]

    figure = roofline_figure(rk.predict(Many(), rk.Input("batch", 64 * 130), gpu=A100, batch=8))
    assert len(figure.points) <= 60
    assert sum(point.kernels for point in figure.points) == 129


# --- several -------------------------------------------------------------------------------------------------------


def test_devices_alone_have_their_datasheets() -> None:
    figure = roofline_figure(rk.load_device(V100))
    assert figure.points == figure.series == ()
    assert [told(roof) for roof in figure.roofs] == [
        "HBM2 897 GB/s (datasheet)",
        "fp64 vector 7.83 TFLOP/s (datasheet)",
        "fp32 vector 15.7 TFLOP/s (datasheet)",
        "fp16 vector 31.3 TFLOP/s (datasheet)",
        "fp16 matrix 125 TFLOP/s (datasheet)",
    ]


def test_a_machine_has_the_shares_of_every_roof(predictions: dict[str, Prediction]) -> None:
    machine = predictions["a100"].machine
    assert isinstance(machine, Machine)
    figure = roofline_figure(machine)
    count = len(roofline_figure(machine.device).roofs)
    assert len(figure.roofs) == 2 * count
    shares = {(roof.name.split()[-1], roof.share) for roof in figure.roofs if roof.provenance != "datasheet"}
    value = machine.values
    assert shares == {
        ("HBM2e", value["memory_share"]), ("matrix", value["issue_share"]),
        ("matrix", value["issue_share"] * value["eight_bit_share"]), ("vector", max(value["issue_share"], 0.5)),
    }  # fmt: skip


def test_the_roof_of_cuda_cores_is_where_their_products_end(predictions: dict[str, Prediction]) -> None:
    """Loads take issue slots from the multiply-adds of 128 CUDA cores an SM (L4), and none from those of 64 (A100)."""
    constants = predictions["a100"].machine.constants
    for name, share in (("nvidia-l4", 0.75), (A100, 1.0)):
        machine = Machine.of(rk.load_device(name), constants)
        stated, reached = (roof for roof in roofline_figure(machine).roofs if roof.name == "fp32 vector")
        assert reached.value / stated.value == pytest.approx(share * machine.values["issue_share"], rel=1e-3)


def test_series_are_named_by_what_differs(predictions: dict[str, Prediction]) -> None:
    two_devices = roofline_figure([predictions["a100"], predictions["p100"]])
    assert [series.name for series in two_devices.series] == [device.display_name for device in two_devices.devices]
    two_sizes = roofline_figure([predictions["a100"], predictions["small"]])
    assert [series.name for series in two_sizes.series] == ["batch=32", "batch=1"]
    assert len(two_sizes.devices) == 1
    assert len(two_sizes.roofs) == len(set(two_sizes.roofs))
    twice = roofline_figure([predictions["a100"], predictions["a100"]])
    assert [series.name for series in twice.series] == ["Net #1", "Net #2"]


def test_shares_add_up_in_each_series(predictions: dict[str, Prediction]) -> None:
    figure = roofline_figure([predictions["a100"], predictions["small"]])
    for series in figure.series:
        mine = [point.share for point in (*figure.points, *figure.rail) if point.series == series.name]
        assert sum(mine) == pytest.approx(1)


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ([], "roofline: expected at least one prediction, machine or device; got none"),
        ("a100", "roofline: expected predictions, machines or devices; got str"),
        ([3], "roofline: expected predictions, machines or devices; got int"),
    ],
)
def test_refused_subjects(subject: Any, message: str) -> None:
    assert refusal(InputError, roofline_figure, subject) == message


# --- names ---------------------------------------------------------------------------------------------------------


def test_marks_are_named_by_module_or_op(predictions: dict[str, Prediction]) -> None:
    labels = {point.kind: point.label for point in roofline_figure(predictions["a100"]).points}
    assert labels["aten.addmm"] == "head"
    assert labels["aten.add"] == "add layer1.*"  # the container does more than adding
    assert labels["aten.native_batch_norm"] == "bn1"
    assert labels["aten.relu"] == "act1"


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("aten.convolution", "conv"),
        ("aten.native_layer_norm_backward", "layer_norm backward"),
        ("aten.max_pool2d_with_indices", "max_pool2d"),
        ("aten._foreach_add_", "add"),
        ("aten._softmax", "softmax"),
        ("mylib.swiglu", "swiglu"),
    ],
)
def test_words_for_ops(kind: str, word: str) -> None:
    assert op_word(kind) == word


def test_leading_points_cover_most_of_the_time(predictions: dict[str, Prediction]) -> None:
    figure = roofline_figure(predictions["a100"])
    points = (*figure.points, *figure.rail)
    chosen = leading(points)
    assert sum(point.share for point in chosen) >= 0.9
    assert sum(point.share for point in chosen[:-1]) < 0.9
    assert min(point.time_s for point in chosen) >= max(p.time_s for p in points if p not in chosen)


def test_records_are_frozen() -> None:
    figure = roofline_figure(linear())
    for record, field in ((figure, "notes"), (figure.points[0], "label"), (figure.roofs[0], "value")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, field, None)
    assert copy.deepcopy(figure) == figure
    assert isinstance(figure.roofs[0], Roof)
    assert isinstance(figure.points[0], Point)


# --- caption -------------------------------------------------------------------------------------------------------


def test_caption_states_what_a_reader_needs() -> None:
    figure = roofline_figure(linear(UNMEASURED, dtype="float16"))
    p = figure.series[0].prediction
    busy, whole = (format_quantity(seconds, "s") for seconds in (p.gpu_s, p.total_s))  # times are not this test's
    memory, _, matrix, _ = (roof.value for roof in figure.roofs)
    shared = {"HBM3e": (0.80, 0.80 * memory), "fp16 matrix": (0.70, 0.70 * matrix)}
    roofs = tuple(
        roof
        if roof.provenance == "datasheet"
        else dataclasses.replace(roof, share=shared[roof.name][0], value=shared[roof.name][1])
        for roof in figure.roofs
    )
    assert caption(dataclasses.replace(figure, roofs=roofs)) == (
        f"Linear, inference, batch = 2048, on NVIDIA H200 NVL 141 GB: 1 kernel, GPU busy {busy} of {whole}. "
        "Predicted, not measured. "
        "NVIDIA H200 NVL 141 GB, datasheet (solid), dense peaks at 1.78 GHz (matrix units 1.54 GHz): HBM3e 4.8 TB/s, "
        "fp16 matrix with fp32 accumulation 835 TFLOP/s (ridge 174 FLOP/byte). "
        "Sustained (dashed): HBM3e 3.84 TB/s (default share 80 %), fp16 matrix 585 TFLOP/s (default share 70 %). "
        "The shares were fitted on other GPUs, not measured on this hardware. "
        "A multiply-add counts as 2 FLOP. "
        "Intensity counts compulsory DRAM traffic: each tensor read once and written once, in its storage format. "
        "A mark's area is its share of the time in which the GPU is busy; its shape says what bounds it."
    )


def test_caption_says_what_runs_otherwise() -> None:
    text = caption(roofline_figure(net(P100, dtype="float16")))
    assert "has no fp16 matrix units: computed in fp32." in text
    assert "(Winograd in passes where faster)" in caption(roofline_figure(net(P100)))


def test_caption_of_devices() -> None:
    text = caption(roofline_figure(rk.load_device(V100)))
    assert text.startswith("Roofs of ")
    assert "redicted" not in text
    assert text.endswith("A multiply-add counts as 2 FLOP.")
