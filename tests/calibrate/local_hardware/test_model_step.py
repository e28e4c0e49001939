"""A model on a real device: a copy, in the mode of the step, called with numbers that it can take."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn

from rooflinekit.calibrate.local_hardware import model_run
from rooflinekit.errors import MeasureError
from rooflinekit.ir.inputs import Input
from rooflinekit.ir.op import DType
from rooflinekit.tracing.tracer import Step

CPU = torch.device("cpu")


def ready_to_run(model: Any, *args: Any, dtype: DType | None = None, rows: int = 3, **fields: Any) -> Step:
    described = Step(model=model, args=args, **{"kwargs": {}, **fields})
    return model_run.on_device(described, CPU, dtype, {"rows": rows})


class Watched(nn.Linear):
    """Remembers what it was called with, and how."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.seen: list[tuple[torch.Tensor, bool, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append((x, self.training, torch.is_grad_enabled()))
        return super().forward(x)


def test_a_copy_runs_and_the_model_stays_as_it_was() -> None:
    model = Watched()
    before = model.weight.clone()
    ready = ready_to_run(model, Input("rows", 4), mode="training", optimizer=torch.optim.SGD)
    assert ready.model is not model
    model_run.eager(ready, CPU)()
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None
    assert model.seen == []
    (x, training, grad) = ready.model.seen[0]  # type: ignore[attr-defined]
    assert (tuple(x.shape), training, grad) == ((3, 4), True, True)


@pytest.mark.parametrize(("mode", "training"), [("inference", False), ("training", True)])
def test_the_mode_of_the_step(mode: Any, training: bool) -> None:
    model = Watched().train(mode == "inference")  # the other one
    ready = ready_to_run(model, Input(3, 4), mode=mode)
    model_run.eager(ready, CPU)()
    assert [seen[1:] for seen in ready.model.seen] == [(training, training)]  # type: ignore[attr-defined]
    assert model.training is not training


def test_a_step_of_training_is_that_of_the_trace() -> None:
    """Loss of the output's sum: the gradient of each weight is the sum of its column of x; SGD takes lr of it away."""
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    model = nn.Linear(2, 1, bias=False)

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.5)

    ready = ready_to_run(model, x, mode="training", optimizer=optimizer)
    run = model_run.eager(ready, CPU)
    for _ in range(2):  # gradients begin empty each time
        run()
    # two steps of 0.5 · [1 + 3, 2 + 5]
    moved = model.weight - ready.model.weight  # type: ignore[attr-defined]
    assert torch.allclose(moved, torch.tensor([[4.0, 7.0]]))


def test_a_loss_with_targets_and_keyword_inputs() -> None:
    class Net(nn.Linear):
        def forward(self, *, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    seen: list[tuple[int, ...]] = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(target.shape))
        return nn.functional.cross_entropy(output, target)

    given = {"kwargs": {"x": Input("rows", 4)}, "targets": (Input("rows", dtype="int64"),)}
    ready = ready_to_run(Net(4, 3), rows=5, mode="training", loss=loss, **given)
    model_run.eager(ready, CPU)()
    assert seen == [(5,)]


def made(described: Any, model: nn.Module | None = None, dtype: DType | None = None) -> torch.Tensor:
    found: torch.Tensor = ready_to_run(model or nn.Identity(), described, dtype=dtype).args[0]
    return found


def test_numbers() -> None:
    floats = made(Input(1000, 10))
    assert floats.dtype is torch.float32
    assert (float(floats.mean()), float(floats.std())) == (pytest.approx(0, abs=0.1), pytest.approx(1, abs=0.1))
    assert made(Input(7, 3), dtype=DType.BFLOAT16).dtype is torch.bfloat16
    assert made(Input(7, 3, dtype="float8_e4m3fn")).dtype is torch.float8_e4m3fn
    assert made(Input(7, 3, dtype="complex64")).dtype is torch.complex64
    assert made(Input(7, dtype="bool")).all()
    # Ids that the smallest of the tables has; without a table 0 and 1.
    tables = nn.ModuleList([nn.Embedding(50, 4), nn.Sequential(nn.EmbeddingBag(9, 4))])
    assert set(made(Input(1000, dtype="int64"), tables).tolist()) == set(range(9))
    assert set(made(Input(1000, dtype="int32")).tolist()) == {0, 1}
    assert made(Input(7, dtype="int64"), dtype=DType.FLOAT16).dtype is torch.int64


def test_tensors_that_were_given_are_copied() -> None:
    given = torch.arange(6.0).reshape(2, 3).requires_grad_()
    found = made(given)
    assert torch.equal(found, given)
    assert (found.data_ptr() != given.data_ptr(), found.requires_grad) == (True, False)
    assert made(given, dtype=DType.FLOAT16).dtype is torch.float16
    assert made([3, "word"]) == [3, "word"]


def test_a_model_without_numbers_is_initialized() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2))
    ready = ready_to_run(model, Input(2, 3, 3, 3))
    output = model_run.eager(ready, CPU)()
    assert isinstance(output, torch.Tensor)
    assert output.isfinite().all()
    assert ready.model[1].running_var.tolist() == [1.0] * 8  # type: ignore[index]
    assert model[0].weight.is_meta


def test_what_cannot_be_initialized_is_refused() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.empty(3))

    with torch.device("meta"):
        model = nn.Sequential(Scale())
    with refused(
        MeasureError,
        "0.factor of the model is on the meta device, and Scale has no reset_parameters() to give it numbers; build "
        "the model on the device that it is to run on",
    ):
        ready_to_run(model, Input(3))
    with pytest.raises(MeasureError, match=r"^model: expected a torch\.nn\.Module to run; got function$"):
        ready_to_run(lambda x: x, Input(3))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """What is handed to torch.compile, which leaves it as it is."""
    seen: list[tuple[str, str | None]] = []

    def compile_it(part: Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
        seen.append((getattr(part, "__name__", type(part).__name__), mode))
        return part

    monkeypatch.setattr(torch, "compile", compile_it)
    return seen


def test_what_is_compiled(compiler: list[tuple[str, str | None]]) -> None:
    ready = ready_to_run(nn.Linear(2, 2), Input(3, 2))
    model_run.compiled(ready, CPU)()
    assert compiler == [("Linear", None)]
    compiler.clear()
    ready = ready_to_run(nn.Linear(2, 2), Input(3, 2), mode="training", optimizer=torch.optim.Adam)
    model_run.compiled(ready, CPU, "reduce-overhead")
    assert compiler == [("forward", "reduce-overhead"), ("step", "reduce-overhead")]


def test_the_optimizer_works_on_many_tensors_at_once_and_fits_a_graph() -> None:
    made: list[torch.optim.Optimizer] = []

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        made.append(torch.optim.Adam(parameters))
        return made[-1]

    ready = ready_to_run(nn.Linear(2, 2), Input(3, 2), mode="training", optimizer=optimizer)
    model_run.eager(ready, CPU)
    model_run.eager(ready, CPU, capturable=True)
    assert [one.param_groups[0]["foreach"] for one in made] == [True, True]
    assert [one.param_groups[0]["capturable"] for one in made] == [False, True]


def test_lower_precision_around_model_and_loss() -> None:
    ready = ready_to_run(nn.Linear(2, 2), Input(3, 2), autocast=DType.BFLOAT16)
    assert model_run.eager(ready, CPU)().dtype is torch.bfloat16  # type: ignore[attr-defined]
