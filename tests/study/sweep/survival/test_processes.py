"""Processes of a sweep that the system ends: the point is named, the rest is kept."""

import contextlib
import os
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from refusals import refused
from small_sweeps import (
    GPUS,
    HOW,
    NAMES,
    PIECES,
    Patch,
    before_each,
    check,
    half_done,
    killed_at,
    ordered,
    parts_of,
    raises,
    read,
    swept,
    warned,
)
from torch import nn

import rooflinekit as rk
from rooflinekit.api import predict as workflows
from rooflinekit.errors import SweepError
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.study.sweep import plan as sweep_plan
from rooflinekit.study.sweep import run
from rooflinekit.study.sweep.plan import predict_settings, unknown_settings
from rooflinekit.study.sweep.points import Setting


@pytest.mark.parametrize("name", [None, *NAMES])
def test_a_process_that_is_killed_once_is_replaced(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str | None
) -> None:
    flag = tmp_path / "flag"

    def first(piece: sweep_plan.Piece) -> bool:
        with contextlib.suppress(FileExistsError):
            if piece.number == 4:
                flag.touch(exist_ok=False)
                return True
        return False

    killed_at(monkeypatch, first)
    (tmp_path / "place").mkdir()
    with warned() as said:
        found = swept(graph, workers=2, out=None if name is None else tmp_path / "place" / name)
    assert said == [f"gpu=nvidia-l4, execution=compiled, batch=11…20: {HOW}; it is tried again"]
    pd.testing.assert_frame_equal(found, rows) if name is None else check(found, rows)


@pytest.mark.parametrize("name", [None, *NAMES])
def test_a_point_that_ends_its_process_twice_has_a_row_that_says_so(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, name: str | None
) -> None:
    monkeypatch.setattr(sweep_plan, "_ROWS", 20)  # two cases a piece, which have to be told apart too
    log = tmp_path / "log"

    def poison(piece: sweep_plan.Piece) -> bool:
        if 13 not in piece.sizes["batch"] or not piece.first <= 2 < piece.first + piece.cases:
            return False
        with log.open("a") as stream:
            stream.write(f"{piece.rows}\n")
        return True

    killed_at(monkeypatch, poison)
    (tmp_path / "place").mkdir()
    with warned() as said:
        found = swept(graph, workers=2, out=None if name is None else tmp_path / "place" / name)
    place = "gpu=nvidia-a100-sxm4-80gb, execution=eager"
    assert said == [
        f"gpu=nvidia-a100-sxm4-80gb, execution=eager…compiled, batch=11…20: {HOW}; it is tried again",
        f"{place}, batch=13: {HOW}; given up after two tries; `problem` in its rows says so",
    ]
    # 20 rows twice; batch 11…15, 13…15, 13 in both cases; the point alone twice
    assert log.read_text().split() == ["20", "20", "10", "6", "2", "1", "1"]
    back = ordered(found if name is None else read(found))
    lost = (back["gpu"] == GPUS[1]) & (back["execution"] == "eager") & (back["batch"] == 13)
    assert back[lost]["problem"].tolist() == [f"given up after two tries: {HOW}"]
    numbers = ["total_s", "low_s", "high_s", "gpu_s", "cpu_s", "energy_j", "power_w", "throughput", "peak_bytes"]
    assert pd.to_numeric(back[lost][numbers].stack(future_stack=True), errors="coerce").isna().all()
    assert (back[lost]["regime"].item(), bool(back[lost]["fits"].item())) == ("", False)
    rest = back[~lost].reset_index(drop=True)
    rest = rest.astype(dict.fromkeys(numbers, float))
    whole = ordered(rows)[~lost].reset_index(drop=True).astype(dict.fromkeys(numbers, float))
    pd.testing.assert_frame_equal(rest, whole, rtol=1e-12, check_dtype=False)
    assert (back["problem"] == "").sum() == len(rows) - 1


def test_where_every_process_dies_it_comes_to_an_end(tmp_path: Path, graph: rk.Graph, monkeypatch: Patch) -> None:
    log = tmp_path / "log"

    def every(piece: sweep_plan.Piece) -> bool:
        with log.open("a") as stream:
            stream.write("x")
        return True

    killed_at(monkeypatch, every)
    monkeypatch.setattr(sweep_plan, "BLOCK", 64)
    monkeypatch.setattr(sweep_plan, "_ROWS", 64)
    with warned() as said:
        found = rk.sweep(graph, gpus=GPUS, batch=range(1, 65), workers=2)
    # Of each of the two pieces 2 tries, then as many as finding one point takes twice over, 2 · 7, and a few: no 64.
    assert log.stat().st_size <= 2 * (2 + 2 * 7 + 8 + 1)
    assert len(found) == 128
    assert found["problem"].str.startswith("given up ").all()
    assert found["problem"].str.endswith(HOW).all()
    assert found["problem"].str.contains("with points beside it").any()
    assert len(said) < 60


def test_memory_that_runs_out_in_python(graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch) -> None:
    def fill(piece: sweep_plan.Piece) -> None:
        if len(piece.sizes["batch"]) > 3 or 7 in piece.sizes["batch"]:
            raise MemoryError

    before_each(monkeypatch, fill)
    for workers in (1, 2):
        with warned():
            found = swept(graph, workers=workers, batch=range(1, 16), execution=["eager"])
        lost = found["batch"] == 7
        assert (found[lost]["problem"] == "given up after two tries: memory ran out").all()
        known = rows[(rows["execution"] == "eager") & (rows["batch"] < 16) & (rows["batch"] != 7)]
        pd.testing.assert_frame_equal(
            found[~lost], known.reset_index(drop=True).set_axis(found.index[~lost]), rtol=1e-12, check_dtype=False
        )


def test_unknown_rows_have_the_columns_of_known_ones(graph: rk.Graph) -> None:
    for memory in (True, "peak", False):
        host, (machine,) = rk.load_host(DEFAULT_HOST), workflows.machines_of(GPUS[:1])
        setting = Setting(machine=machine, host=host, execution=rk.Execution())
        sizes = {"batch": np.array([3, 5])}
        (known,) = predict_settings(graph, [setting], sizes, memory=memory)
        (unknown,) = unknown_settings(graph, [setting], sizes, "why", memory=memory)
        assert [*known, "problem"] == [*unknown]
        assert {len(column) for column in unknown.values()} == {2}


def test_steps_on_several_devices(graph: rk.Graph, monkeypatch: Patch) -> None:
    step = rk.trace(nn.Sequential(nn.Linear(64, 128), nn.ReLU()), rk.Input("batch", 64), mode="training", name="net")
    options: Any = {"clusters": ["dgx-a100"], "gpus": [2], "batch": [8, 16, 24, 32, 40], "workers": 2}
    whole = rk.sweep(step, **options)
    killed_at(monkeypatch, lambda piece: 24 in piece.sizes["batch"])
    with warned() as said:
        found = rk.sweep(step, **options)
    assert said[-1] == (
        f"cluster=dgx-a100, gpus=2, strategy=ddp, batch=24: {HOW}; given up after two tries; "
        "`problem` in its rows says so"
    )
    lost = found["batch"] == 24
    assert found[lost]["total_s"].isna().all()
    pd.testing.assert_frame_equal(found[~lost], whole[~lost], rtol=1e-12)


class Breaks(ProcessPoolExecutor):
    """Its process ends when it is given the seventh piece."""

    given = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.given += 1
        return super().submit(os._exit, 3) if self.given == 7 else super().submit(fn, *args, **kwargs)


def test_an_executor_that_breaks_is_named(tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame) -> None:
    out = tmp_path / "s.csv"
    with Breaks(1, mp_context=get_context("fork")) as pool, pytest.raises(SweepError, match=r"^executor: A .*process"):
        swept(graph, executor=pool, out=out)
    assert len(list(parts_of(out).glob("part-*"))) == 6
    swept(graph, out=out)
    check(out, rows)


def test_processes_that_cannot_start_are_told(graph: rk.Graph, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(run, "_serve", lambda pipe: os._exit(3))
        with pytest.raises(SweepError) as caught:
            swept(graph, workers=2)
    assert str(caught.value) == (
        "no process can be started here (its process ended with status 3); workers=1 works in this one"
    )
    monkeypatch.setattr(os, "fork", lambda: raises(BlockingIOError(11, "Resource temporarily unavailable")))
    with refused(
        SweepError, "no process can be started: Resource temporarily unavailable; workers=1 works in this one"
    ):
        swept(graph, workers=2)


def test_what_a_process_raises_is_raised_here(graph: rk.Graph, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sweep_plan.Piece, "predict", lambda piece: raises(KeyError("odd")))
    with pytest.raises(KeyError, match="odd") as caught:
        swept(graph, workers=2)
    assert "In a process of the sweep:\nTraceback" in caught.value.__notes__[0]


# --- what else can become of a process --------------------------------------------------------------------------------


def test_the_last_piece_of_a_resumed_sweep_does_not_end_the_program(
    tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch
) -> None:
    out, here = tmp_path / "s.csv", os.getpid()
    half_done(graph, out, monkeypatch, pieces=PIECES - 1)
    killed_at(monkeypatch, lambda piece: os.getpid() != here and 23 in piece.sizes["batch"])
    with warned() as said:
        swept(graph, out=out, workers=2)
    assert said[-1] == (
        f"gpu=nvidia-a100-sxm4-80gb, execution=compiled, batch=23: {HOW}; given up after two tries; `problem` in its "
        "rows says so"
    )
    found = read(out)
    assert (found["problem"] != "").sum() == 1
    known = found["problem"] == ""
    columns = ["total_s", "low_s", "high_s", "throughput"]
    whole = ordered(rows)[known]
    pd.testing.assert_frame_equal(found[known][columns].astype(float), whole[columns].astype(float), rtol=1e-12)


def test_one_that_is_ended_while_it_waits_costs_no_try(graph: rk.Graph) -> None:
    setting = Setting(
        machine=workflows.machines_of(GPUS[:1])[0], host=rk.load_host(DEFAULT_HOST), execution=rk.Execution()
    )
    piece = sweep_plan.Piece(
        number=0, first=0, cases=1, start=0, payload=sweep_plan.packed(graph, [setting]),
        sizes={"batch": np.array([8])}, memory=False,
    )  # fmt: skip
    with contextlib.closing(run._Crew(1)) as one:
        assert not isinstance(one.attempt(piece), str)
        (worker,) = one.workers
        worker.process.kill()
        worker.process.join()
        waiting = deque([piece])
        found: list[Any] = []
        while not found:
            one.hand_out(waiting)
            found = list(one.answers())
        assert not isinstance(found[0][1], str)
