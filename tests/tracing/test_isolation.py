"""Tracing leaves everything as it was."""

import gc
import random

import numpy as np
import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import TraceError


class Stateful(nn.Module):
    """Everything that a careless tracer would disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.tied = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.tied.weight
        self.calls = 0
        self.cache: torch.Tensor | None = None
        self.offset = torch.ones(4)  # neither parameter nor buffer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.drop(self.norm(self.conv(x))).mean((2, 3)) + self.offset
        self.cache = x
        return self.head(self.tied(x))


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("training_flag", [True, False])
def test_the_model_is_left_as_it_was(mode: str, training_flag: bool) -> None:
    model = Stateful().train(training_flag)
    model.norm.eval()  # frozen on purpose
    seen: list[tuple[int, ...]] = []
    model.conv.register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape)))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    identities = {name: id(value) for name, value in [*model.named_parameters(), *model.named_buffers()]}
    flags = {name: module.training for name, module in model.named_modules()}
    hooks = {name: len(module._forward_hooks) for name, module in model.named_modules()}
    call = nn.Module.__call__
    randomness = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()

    graph = rk.trace(
        model,
        rk.Input("batch", 3, 8, 8),
        mode=mode,
        optimizer=torch.optim.SGD if mode == "training" else None,
    )

    assert graph.ops
    assert model.calls == 0
    assert model.cache is None
    assert type(model.offset) is torch.Tensor
    assert model.state_dict().keys() == state.keys()
    for name, value in model.state_dict().items():
        assert type(value) is torch.Tensor
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)
    assert {n: id(v) for n, v in [*model.named_parameters(), *model.named_buffers()]} == identities
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.head.weight is model.tied.weight
    assert {name: module.training for name, module in model.named_modules()} == flags
    assert {name: len(module._forward_hooks) for name, module in model.named_modules()} == hooks
    assert nn.Module.__call__ is call
    assert torch.equal(torch.get_rng_state(), randomness[0])
    assert np.array_equal(np.random.get_state()[1], randomness[1])
    assert random.getstate() == randomness[2]
    assert torch.is_grad_enabled()
    assert len(seen) == 1  # the user's hook ran, as it would in a step


def test_modules_behind_a_function_are_found_and_left_alone() -> None:
    layer = nn.Linear(4, 4)
    before = layer.weight

    graph = rk.trace(lambda x: layer(x).relu(), rk.Input("n", 4), mode="training")
    assert [w.name for w in graph.weights] == ["layer.weight", "layer.bias"]
    assert layer.weight is before
    assert layer.weight.grad is None
    bound = rk.trace(layer.forward, rk.Input("n", 4))
    assert [w.name for w in bound.weights] == ["weight", "bias"]


def test_a_model_on_meta_is_as_good_as_one_with_weights() -> None:
    with torch.device("meta"):
        model = Stateful()
    here = rk.trace(Stateful(), rk.Input("batch", 3, 8, 8))
    there = rk.trace(model, rk.Input("batch", 3, 8, 8))
    assert here.flop == there.flop
    assert here.bytes == there.bytes


def test_tracing_the_traced_model_again_gives_the_same() -> None:
    model = Stateful()
    first, second = (rk.trace(model, rk.Input("batch", 3, 8, 8), mode="training") for _ in range(2))
    assert [op.kind for op in first.ops] == [op.kind for op in second.ops]
    assert first.flop == second.flop


def test_what_cannot_be_put_back_keeps_nothing_else_from_being() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    weights = [layer.weight for layer in model]

    class Stubborn:
        __slots__ = ("kept",)

    broken = Stubborn()
    broken.kept = nn.Parameter(torch.ones(4))

    class Breaking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # what was a leaf with a gradient to come is none afterwards: its mark cannot be put back
            self.store.kept.requires_grad_(False)
            self.store.kept.__class__ = Unwilling
            return x

    class Unwilling(torch.Tensor):
        def requires_grad_(self, requires_grad: bool = True) -> torch.Tensor:
            raise RuntimeError("stubborn")

    model.append(Breaking())
    model[2].store = broken
    with pytest.raises(RuntimeError, match="stubborn"):
        rk.trace(model, rk.Input("n", 4))
    assert all(layer.weight is weight for layer, weight in zip(model, weights, strict=False))


def test_weights_are_put_back_beside_a_data_set_too_large_to_be_noted() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model.data = [[] for _ in range(250_000)]
    weights = [layer.weight for layer in model]
    rk.trace(model, rk.Input("n", 4))
    assert all(layer.weight is weight for layer, weight in zip(model, weights, strict=True))


def test_python_looks_for_garbage_as_before() -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    within: list[tuple[int, ...]] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        within.append(gc.get_threshold())
        return x @ x

    rk.trace(model, rk.Input(2, 2))
    with pytest.raises(TraceError):
        rk.trace(model, rk.Input(2, 3))
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
    assert all(now[:2] == before[0][:2] and now[2] > 10**6 for now in within)
