"""Ctrl-C while torch calls back into Python, where an exception would end the process or be lost."""

import signal
from itertools import count

import pytest
import torch
from learned import Uses
from torch import nn

import rooflinekit as rk
from rooflinekit.tracing.surroundings import heed, heeded_between_calls

pytestmark = pytest.mark.usefixtures("interruptible")

WENT_ON, CALLED = count(), count()  # a trace undoes what a model does to lists


@torch.library.custom_op("rooflinekit_test::interrupted", mutates_args=())
def interrupted(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@interrupted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    signal.raise_signal(signal.SIGINT)
    next(WENT_ON)
    return torch.empty_like(x)


def called(x: torch.Tensor) -> torch.Tensor:
    next(CALLED)
    return x


def test_an_interrupt_during_an_operator_waits_for_the_next_module() -> None:
    before = signal.getsignal(signal.SIGINT)
    model = nn.Sequential(Uses(interrupted), Uses(called))
    with pytest.raises(KeyboardInterrupt):
        rk.trace(model, rk.Input(4, 4))
    assert next(WENT_ON) == 1
    assert next(CALLED) == 0
    assert signal.getsignal(signal.SIGINT) is before
    assert len(rk.trace(nn.ReLU(), rk.Input(4)).ops) == 1  # nothing is left to be heeded


def test_an_interrupt_between_operators_is_heeded_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), heeded_between_calls():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it was not heeded")


def test_a_second_interrupt_does_not_wait() -> None:
    seen = []

    def __torch_dispatch__() -> None:  # noqa: N807  what torch calls
        signal.raise_signal(signal.SIGINT)
        heed()  # too early: below an operator still
        seen.append("still there")
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it was not heeded")

    with pytest.raises(KeyboardInterrupt), heeded_between_calls():
        __torch_dispatch__()
    assert seen == ["still there"]
