"""`rk.measure_model` on the CPU at hand: both times of the same step, and what is refused before anything runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn

import rooflinekit as rk
from rooflinekit.api.measure import hardware_for
from rooflinekit.calibrate.local_hardware import hardware as local_hardware
from rooflinekit.errors import InputError, RooflinekitError, SpecError
from rooflinekit.hardware.device import Device
from rooflinekit.ir.inputs import Input


@pytest.fixture
def cpu() -> Device:
    return rk.load_device("generic-cloud-cpu-avx512")


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )


QUICK: dict[str, Any] = {"device": "cpu", "threads": 1, "precision": 0.5, "samples": 5}


def test_an_inference_step(cpu: Device) -> None:
    model = Net()
    found = rk.measure_model(model, Input("batch", 3, 16, 16), gpu=cpu, batch=4, **QUICK)
    assert (found.model, found.mode, found.sizes, found.inputs) == (
        "Net",
        "inference",
        {"batch": 4},
        ("batch,3,16,16:float32",),
    )
    assert (found.device, found.threads, found.execution) == (cpu.name, 1, {"backend": "eager", "sync": "step"})
    assert len(found.seconds) == 5
    assert found.measured_s > 0
    # The prediction is that of one core, at these sizes.
    alone = rk.predict(Net(), Input(4, 3, 16, 16), gpu=cpu.replace(sm_count=1))
    assert found.predicted_s == alone.total_s
    assert found.prediction is not None
    kinds = found.by_kind()
    for kind in ("convolution", "batch_norm", "relu", "mean", "addmm"):
        assert kinds.loc[kind, "count"] == 1
        assert (kinds.loc[kind, ["measured_s", "predicted_s"]] > 0).all()
    assert kinds["measured_s"].sum() == pytest.approx(found.measured_s)
    assert kinds["predicted_s"].sum() == pytest.approx(found.predicted_s)
    assert found.by_op().loc["convolution", "module"] == "0"
    assert found.environment["threads"] == "1"
    assert model.training  # as it was


def test_a_training_step(cpu: Device) -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target)

    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = rk.measure_model(
        model,
        Input("batch", 3, 16, 16),
        mode="training",
        loss=loss,
        targets=[Input("batch", dtype="int64")],
        optimizer=torch.optim.SGD,
        gpu=cpu,
        batch=4,
        **QUICK,
    )
    kinds = found.by_kind()
    for kind in ("convolution_backward", "batch_norm_backward", "foreach_add"):
        assert (kinds.loc[kind, ["measured_s", "predicted_s"]] > 0).all(), kind
    assert found.options["optimizer"] == "SGD"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_keyword_inputs_and_number_formats(cpu: Device) -> None:
    class Scale(nn.Linear):
        def forward(self, x: torch.Tensor, *, times: int, shift: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * times + shift

    found = rk.measure_model(
        Scale(4, 4), torch.ones(3, 4), times=2, shift=Input(4), dtype="bfloat16", by_op=False, gpu=cpu, **QUICK
    )
    assert found.inputs == ("3,4:float32", "times=2", "shift=4:float32")
    plain = {"autocast": None, "tf32": None, "channels_last": False, "optimizer": None, "burst": False}
    assert found.options == {"dtype": "bfloat16", **plain}
    assert found.ops == ()


def test_a_fit_of_ones_own(cpu: Device, tmp_path: Path) -> None:
    fit = tmp_path / "mine.fit.yaml"
    fit.write_text(
        f"schema: 2\nname: {cpu.name}\nspreads: {{}}\n"
        "constants:\n  memory_share: {value: 0.5, stderr: 0.01, source: me}\n"
    )
    found = rk.measure_model(nn.Linear(4, 4), Input(3, 4), gpu=cpu, constants=fit, by_op=False, **QUICK)
    assert found.prediction.machine.constants.value("memory_share") == 0.5
    assert found.predicted.constants == cpu.name
    fit.write_text(fit.read_text().replace(cpu.name, "somebody-else"))
    with pytest.raises(SpecError, match=r"mine\.fit\.yaml: holds constants of 'somebody-else', not of "):
        rk.measure_model(nn.Linear(4, 4), Input(3, 4), gpu=cpu, constants=fit, **QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device 'tpu': expected cuda, cuda:N or cpu"),
        ({"threads": 17}, "threads: generic-cloud-cpu-avx512 has 16 cores; got 17"),
        ({"threads": 0}, "threads: generic-cloud-cpu-avx512 has 16 cores; got 0"),
        ({"gpu": "nvidia-l4"}, "nvidia-l4 is a GPU, but the model is to run on cpu; name the specification of that"),
        *(({"execution": word}, f"execution '{word}': a CPU has no CUDA graphs; choose 'eager' or 'compiled', or a GPU")
          for word in ("cuda-graph", "reduce-overhead")),
        ({"execution": rk.Execution(sync="op")},
         "execution sync 'op': PyTorch has no such mode that could be measured; choose 'step' or 'none'"),
        ({"precision": 0.0}, "precision: expected a share between 0 and 1, such as 0.01; got 0.0"),
        ({"samples": 0}, "samples: expected a positive number; got 0"),
        ({"budget_s": 0.0}, "budget_s: expected a positive number of seconds; got 0.0"),
        ({"loss": torch.sum}, "loss, targets and optimizer belong to mode='training'"),
        ({"batch": None},
         "no number is given for size 'batch': add batch=… (--batch … on the command line)"),
    ],
)  # fmt: skip
def test_what_is_refused(cpu: Device, options: dict[str, Any], message: str) -> None:
    asked = {"gpu": cpu, "batch": 3, **QUICK, **options}
    if asked["batch"] is None:
        del asked["batch"]
    with refused(RooflinekitError, message):
        rk.measure_model(nn.Linear(4, 4), Input("batch", 4), **asked)


def test_a_machine_with_fewer_cpus(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_hardware.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert local_hardware.on_threads(cpu, 2).sm_count == 2
    with refused(
        InputError,
        "threads: generic-cloud-cpu-avx512 has 16 cores, this process may use 2; choose fewer threads, or the "
        "specification of this machine",
    ):
        local_hardware.on_threads(cpu, None)


def test_threads_belong_to_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"^threads: belong to a CPU that is measured; got 2 on a GPU$"):
        hardware_for("cuda:1", None, rk.Execution(), 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA L4")
    spec, place = hardware_for("cuda:1", None, rk.Execution(backend="cuda-graph"), None)
    assert (spec.name, str(place.device), place.cuda) == ("nvidia-l4", "cuda:1", torch.cuda)
    with pytest.raises(InputError, match=r"^generic-cloud-cpu-avx2 is a CPU, but the model is to run on cuda:0; name "):
        hardware_for(None, "generic-cloud-cpu-avx2", rk.Execution(), None)
