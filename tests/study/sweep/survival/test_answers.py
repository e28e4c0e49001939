"""Errors in processes of a sweep, and what is told of them."""

from typing import Any

import pandas as pd
import pytest
from small_sweeps import Patch, predicted, raises, swept, warned

import rooflinekit as rk
from rooflinekit.errors import SweepError
from rooflinekit.study.sweep import plan as sweep_plan
from rooflinekit.study.sweep import run


class Odd(Exception):  # noqa: N818  as a rule of a user's may raise
    """Can be pickled, and not be made again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class Bound(Exception):  # noqa: N818
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError


@pytest.mark.parametrize(("error", "said"), [(Odd("how", "odd"), "Odd: how odd"), (Bound("fast"), "Bound: fast")])
def test_an_error_that_cannot_leave_its_process_is_told(
    graph: rk.Graph, monkeypatch: Patch, capfd: pytest.CaptureFixture[str], error: Exception, said: str
) -> None:
    monkeypatch.setattr(sweep_plan.Piece, "predict", lambda piece: raises(error))
    with pytest.raises(RuntimeError) as caught:
        swept(graph, workers=2)
    assert str(caught.value) == said
    assert "In a process of the sweep:\nTraceback" in caught.value.__notes__[0]
    assert capfd.readouterr().err == ""


class Heavy:
    """More than there is memory for when it is sent."""

    def __reduce__(self) -> Any:
        raise MemoryError


def test_memory_that_runs_out_while_an_answer_is_sent(
    graph: rk.Graph, rows: pd.DataFrame, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sweep_plan.Piece, "predict", lambda piece: [Heavy()] if len(piece.sizes["batch"]) > 5 else predicted(piece)
    )
    with warned() as said:
        pd.testing.assert_frame_equal(swept(graph, workers=2), rows)
    assert len(said) == 8  # pieces of ten sizes
    assert all(line.endswith(": memory ran out; it is tried again") for line in said)
    assert capfd.readouterr().err == ""


def test_without_room_for_a_thread_there_is_no_process(
    graph: rk.Graph, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "_end_with_parent", lambda: raises(RuntimeError("can't start new thread")))
    with pytest.raises(SweepError, match=r"^no process can be started here \(its process ended with status 1\)"):
        swept(graph, workers=2)
    assert capfd.readouterr().err == ""
