"""Words that are no option and no input; inputs that do not fit; losses of language models."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.errors import InputError, TraceError

LINEAR = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
X = rk.Input("batch", 8)


class AnyWord(nn.Module):
    """As models of transformers are."""

    def forward(self, x: torch.Tensor, **rest: Any) -> torch.Tensor:
        return x * len(rest)


class Words(nn.Module):
    """The least language model: 100 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 16), nn.Linear(16, 100, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: rk.trace(LINEAR, X, mode="training", optimiser=torch.optim.SGD),
            "'optimiser' is neither an option nor an input of Sequential; did you mean 'optimizer'?",
        ),
        (lambda: rk.predict(LINEAR, X, gup="l4", batch=4), "'gup' is neither .* did you mean 'gpu'?"),
        (lambda: rk.predict(LINEAR, X, gpu="l4", bacth=4), "'bacth' is neither .* did you mean 'batch'?"),
        (lambda: rk.predict(LINEAR, gpu="l4", batch=4), "a size is one that an input names, such as Input"),
        (lambda: rk.trace(LINEAR, X, wings=2), "'wings' is neither .* of Sequential; Sequential takes input"),
        (lambda: rk.trace(AnyWord(), X, optimiser=1), "did you mean 'optimizer'"),
        (
            lambda: rk.parallel(LINEAR, X, cluster="dgx-a100", batch=64, optimiser=torch.optim.SGD),
            "did you mean 'optimizer'",
        ),
    ],
)
def test_a_word_that_means_nothing_gets_a_sentence(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_model_that_takes_any_keyword_gets_it() -> None:
    assert rk.trace(AnyWord(), X, wings=2).ops
    assert rk.trace(AnyWord(), X, keywords={"optimiser": 2}).ops


def test_a_wrong_shape_is_told_once() -> None:
    """Torch's own log has the traceback of every try; what is raised says it in a line."""
    logged: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record)

    log, handler = logging.getLogger("torch._subclasses.fake_tensor"), Kept()
    log.addHandler(handler)
    try:
        with pytest.raises(TraceError, match=r"in module '0': .*\[3, 9\] X \[8, 8\]"):
            rk.trace(LINEAR, rk.Input(3, 9))
        assert logged == []
        log.error("failed while attempting to run meta for elsewhere")
        assert len(logged) == 1  # after the trace torch says what it said before
    finally:
        log.removeHandler(handler)


def test_cross_entropy_of_logits_by_token() -> None:
    ids = rk.Input("b", "t", dtype="int64")
    with pytest.raises(TraceError, match=r"in the loss: .*output\.flatten\(0, -2\)"):  # as in PyTorch itself
        rk.trace(Words(), ids, mode="training", loss=functional.cross_entropy, targets=[ids])
    graph = rk.trace(Words(), ids, mode="training", loss="cross_entropy", targets=[ids])
    # The head: 2 · 16 · 100 FLOP a token, three times: forward, and the gradients of weight and input.
    assert graph.at(b=2, t=8).matrix_flop == 3 * 2 * 16 * 100 * 2 * 8


def test_cross_entropy_of_classes_before_places_is_left_as_it_is() -> None:
    signal, ids = rk.Input("b", 4, 8), rk.Input("b", 8, dtype="int64")
    both = ("cross_entropy", functional.cross_entropy)
    found = [rk.trace(nn.Conv1d(4, 3, 1), signal, mode="training", loss=one, targets=[ids]) for one in both]
    assert [op.kind for op in found[0].ops] == [op.kind for op in found[1].ops]


def test_a_failure_after_a_module_does_not_blame_it() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.first(x) + y

    with pytest.raises(TraceError) as caught:
        rk.trace(Sum(), rk.Input(4, 8), rk.Input(4, 7))
    assert "first" not in str(caught.value)
