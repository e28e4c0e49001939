"""Small sweeps of many pieces, for what survives: stopped ones, and what is there afterwards."""

import contextlib
import json
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rooflinekit as rk
from rooflinekit.api import predict as workflows
from rooflinekit.errors import SweepWarning
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.study.sweep import plan as sweep_plan

pytest.importorskip("pyarrow")
GPUS = ["nvidia-l4", "nvidia-a100-sxm4-80gb"]
KEYS = ["gpu", "execution", "batch"]
NAMES = ["s.parquet", "s.csv", "s.json"]
PIECES = 12  # 2 GPUs × 2 executions, 25 sizes by ten

Patch = pytest.MonkeyPatch
_PREDICT = sweep_plan.Piece.predict
_known: dict[tuple[Any, ...], Any] = {}


def predicted(piece: sweep_plan.Piece) -> Any:
    """What a piece predicts, remembered: what becomes of the files of one sweep is tested again and again."""
    key = piece.payload, piece.memory, *((name, column.tobytes()) for name, column in piece.sizes.items())
    if key not in _known:
        _known[key] = _PREDICT(piece)
    return list(map(dict, _known[key]))


def swept(graph: rk.Graph, **options: Any) -> Any:
    return rk.sweep(graph, **{"gpus": GPUS, "execution": ["eager", "compiled"], "batch": range(1, 26), **options})


def read(out: Path) -> pd.DataFrame:
    if out.suffix == ".parquet":
        found = pd.read_parquet(out)
    elif out.suffix == ".csv":
        found = pd.read_csv(out, keep_default_na=False)
    else:
        found = pd.DataFrame(json.loads(out.read_text()))
    return ordered(found)


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values(KEYS, ignore_index=True)


def check(out: Path, rows: pd.DataFrame) -> None:
    """The rows, and nothing beside them."""
    pd.testing.assert_frame_equal(read(out), ordered(rows), rtol=1e-12, check_dtype=False)
    assert [file.name for file in out.parent.iterdir()] == [out.name]
    if out.is_dir():
        names = sorted(file.name for file in out.iterdir())
        assert names[0] == "_sweep.json"
        assert all(name.startswith("part-") and name.endswith(".parquet") for name in names[1:])
        assert len({name[:12] for name in names[1:]}) == len(names) - 1


class Stopped(BaseException):
    """As an interruption from the keyboard."""


def parts_of(out: Path) -> Path:
    return out if out.suffix == ".parquet" else out.with_name(f"{out.name}.parts")


def before_each(monkeypatch: Patch, act: Callable[[sweep_plan.Piece], object]) -> None:
    """From now on this happens before a piece is worked out."""

    def predict(piece: sweep_plan.Piece) -> Any:
        act(piece)
        return predicted(piece)

    monkeypatch.setattr(sweep_plan.Piece, "predict", predict)


def half_done(graph: rk.Graph, out: Path, monkeypatch: Patch, pieces: int = 5) -> list[Path]:
    """The pieces of a sweep that was stopped."""
    calls: list[int] = []

    def stop(piece: sweep_plan.Piece) -> None:
        if len(calls) == pieces:
            raise Stopped
        calls.append(piece.number)

    with monkeypatch.context() as patch:
        before_each(patch, stop)
        with pytest.raises(Stopped):
            swept(graph, out=out)
    found = sorted(parts_of(out).glob("part-*"))
    assert (len(found), out.is_file()) == (pieces, False)
    return found


def counted(monkeypatch: Patch) -> list[int]:
    """The numbers of the pieces that are worked out from now on, in this process."""
    calls: list[int] = []
    before_each(monkeypatch, lambda piece: calls.append(piece.number))
    return calls


@contextlib.contextmanager
def warned() -> Iterator[list[str]]:
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [str(one.message) for one in caught if one.category is SweepWarning]
    assert len(found) == len(caught), [str(one.message) for one in caught]


def raises(error: BaseException) -> Any:
    raise error


def killed_at(monkeypatch: Patch, when: Callable[[sweep_plan.Piece], bool]) -> None:
    """Processes die over such pieces, as by the system when memory is out."""
    before_each(monkeypatch, lambda piece: when(piece) and os.kill(os.getpid(), signal.SIGKILL))


HOW = "its process was ended by SIGKILL, as by the system when memory is out"


def swept_plan(graph: rk.Graph) -> sweep_plan.Plan:
    """The same as a plan, of one GPU."""
    host, (machine,) = rk.load_host(DEFAULT_HOST), workflows.machines_of(GPUS[:1])
    axis = sweep_plan.Axis(name="gpu", choices={machine.name: {"machine": machine}})
    common = {"graph": graph, "host": host, "execution": rk.Execution()}
    return sweep_plan.plan_of([axis], common, {"batch": range(1, 26)})
