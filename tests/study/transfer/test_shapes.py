"""Traces that are not of the predicted step: one clear sentence each, and what to record to do better."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from traces import document, event, launched, step, write

import rooflinekit as rk
from rooflinekit.errors import InputError

HERE, THERE = "nvidia-l4", "nvidia-t4"


@cache
def graph() -> rk.Graph:
    return rk.trace(nn.Sequential(nn.Linear(64, 32), nn.ReLU()), rk.Input("batch", 64))


def trace(folder: Path, *, device: str = "NVIDIA L4", **args: Any) -> str:
    """A step of a product and ReLU, with what was recorded of the product's arguments."""
    named = {key.replace("_", " "): value for key, value in args.items()}
    product = event("cpu_op", "aten::addmm", 0, 20)
    product["args"] |= named
    rows = (
        step(1, 0, 100), product, *launched("gemm", 5, 10, 40, 1),
        event("cpu_op", "aten::relu", 25, 35), *launched("relu", 30, 41, 45, 2),
    )  # fmt: skip
    return str(write(document(*rows, devices=(device,)), folder / "trace.json"))


def shapes(batch: int, width: int = 64) -> dict[str, Any]:
    return {"Input_Dims": [[32], [batch, width], [width, 32]], "Input_type": ["float", "float", "float"]}


def note_of(file: str) -> str:
    return "\n".join(rk.transfer(file, graph(), to=THERE, batch=8).notes)


def test_a_trace_with_shapes_is_believed_as_it_is(tmp_path: Path) -> None:
    note = note_of(trace(tmp_path, **shapes(8)))
    assert note.startswith("rests on the trace trace.json and its ops on nvidia-l4")
    assert "record_shapes" not in note


def test_without_shapes_it_says_what_to_record(tmp_path: Path) -> None:
    assert "the trace has no shapes" in (note := note_of(trace(tmp_path)))
    assert "torch.profiler.profile(record_shapes=True)" in note


def test_of_another_batch(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="is of another batch or network: its first addmm takes 16×64 and 64×32, but in"
    ):
        note_of(trace(tmp_path, **shapes(16)))


def test_of_another_network(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"another batch or network: .* at batch=8 8×64 and 64×32; give the sizes"):
        note_of(trace(tmp_path, **shapes(8, 256)))


def test_of_another_format(tmp_path: Path) -> None:
    half = shapes(8) | {"Input_type": ["c10::Half"] * 3}
    with pytest.raises(InputError, match="computes in float16, Sequential in float32: give the format"):
        note_of(trace(tmp_path, **half))


def test_of_a_gpu_without_a_specification(tmp_path: Path) -> None:
    file = trace(tmp_path, device="Fancy X9000", **shapes(8))
    with pytest.raises(InputError, match="names its GPU 'Fancy X9000', which has no specification: name a known GPU"):
        note_of(file)
    found = rk.transfer(file, graph(), measured_on=HERE, to=THERE, batch=8)
    assert found.source.machine.name == HERE


def test_a_time_that_may_be_of_something_else() -> None:
    plain = rk.predict(graph(), HERE, batch=8).total_s
    notes = rk.transfer(5 * plain, graph(), measured_on=HERE, to=THERE, batch=8).notes
    assert any("is 5.0 times longer than predicted there: is it of this batch, format" in note for note in notes)
