"""A run beside its prediction: what follows from numbers made up for it, and the file that keeps both."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import refused
from torch import nn

import rooflinekit as rk
from rooflinekit.calibrate.local_hardware.run_record import KernelTime, ModelRun, ProfiledOp
from rooflinekit.errors import CampaignError, OutputError
from rooflinekit.hardware.host import Host
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.study.profile.matching import BETWEEN, Validation, compare_run
from rooflinekit.timing.machine import Machine


@pytest.fixture
def prediction(machine: Machine, host: Host) -> Prediction:
    """Two products and a ReLU on a machine of round numbers."""
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8))
    graph = rk.trace(model, rk.Input("batch", 256), name="net").at(batch=64)
    return predict_graph(graph, machine, host, rk.Execution())


@pytest.fixture
def validation(prediction: Prediction) -> Callable[..., Validation]:
    def made(*seconds: float, ops: tuple[ProfiledOp, ...] = ()) -> Validation:
        run = ModelRun(
            seconds=seconds,
            warmup=7,
            steps=1,
            environment={"torch": "2.13"},
            ops=ops,
            kernels=(KernelTime(name="gemm", count=2, seconds=1e-5),),
        )
        options = {"dtype": "float16", "autocast": None, "tf32": True, "optimizer": None}
        return compare_run(run, prediction, inputs=["batch,256:float32"], options=options, threads=2)

    return made


OPS = (
    ProfiledOp(name="aten::linear", depth=0, seconds=31e-6),
    ProfiledOp(name="aten::addmm", depth=1, seconds=30e-6),
    ProfiledOp(name="aten::relu", depth=0, seconds=4e-6),
    ProfiledOp(name="aten::addmm", depth=0, seconds=5e-6),
)


def test_the_answer(validation: Callable[..., Validation], prediction: Prediction) -> None:
    exact = validation(*[prediction.total_s] * 5)
    assert exact.inside
    assert exact.error == 0
    assert exact.predicted_s == prediction.total_s
    assert (exact.predicted.low_s, exact.predicted.high_s) == prediction.interval(0.9)
    for seconds in (exact.predicted.high_s * 1.001, exact.predicted.low_s * 0.999):
        assert not validation(*[seconds] * 5).inside
    # predicted / measured − 1 = 1/2 − 1
    assert validation(*[2 * prediction.total_s] * 5).error == pytest.approx(-0.5)


def test_the_median_stands_for_the_samples(validation: Callable[..., Validation]) -> None:
    found = validation(1.0, 5.0, 3.0, 2.0, 4.0)
    # quartiles of 1 … 5
    assert (found.measured_s, found.summary.low, found.summary.high) == (3.0, 2.0, 4.0)


def test_columns_add_up_to_the_step(validation: Callable[..., Validation], prediction: Prediction) -> None:
    found = validation(*[60e-6] * 5, ops=OPS)
    for table in (found.by_op(), found.by_kind()):
        assert table["measured_s"].sum() == pytest.approx(60e-6)
        assert table["predicted_s"].sum() == pytest.approx(prediction.total_s)
        assert table["difference_s"].sum() == pytest.approx(60e-6 - prediction.total_s)
    assert found.by_op().index.tolist() == ["addmm", "relu", "addmm_1", "linear", BETWEEN]
    assert found.by_op()["module"].tolist() == ["0", "1", "2", "", ""]
    kinds = found.by_kind()
    assert kinds["count"].to_dict() == {"addmm": 2, "relu": 1, "linear": 1, BETWEEN: 0}
    # 60 − 30 − 4 − 5 − 1 µs are in no op
    assert kinds.loc[BETWEEN, "measured_s"] == pytest.approx(20e-6)
    assert kinds.loc[BETWEEN, "predicted_s"] == pytest.approx(prediction.terms()["overhead"])
    differences = kinds["difference_s"].abs().tolist()
    assert differences == sorted(differences, reverse=True)


def test_the_three_worst(validation: Callable[..., Validation]) -> None:
    found = validation(*[60e-6] * 5, ops=OPS)
    assert len(found.worst) == 3
    left = [op for op in found.ops if op not in found.worst]
    assert min(abs(op.difference_s) for op in found.worst) >= max(abs(op.difference_s) for op in left)
    assert found.worst[0].name == "addmm"


def test_without_a_profile_there_are_no_ops(validation: Callable[..., Validation]) -> None:
    found = validation(1.0)
    assert found.ops == found.worst == ()
    assert found.by_op().empty
    assert found.by_kind().empty


def test_in_words(validation: Callable[..., Validation]) -> None:
    lines = str(validation(*[1.0] * 5, ops=OPS)).splitlines()
    assert lines[0].startswith("net inference on round-gpu: measured 1.00 s, predicted ")
    assert lines[0].split(" (")[1].startswith("-100%), outside the 90 % interval ")
    assert lines[1].startswith("addmm: measured 30.0 µs, predicted ")
    assert len(lines) == 4


# --- the file ---------------------------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(validation: Callable[..., Validation], tmp_path: Path) -> None:
    file, found = tmp_path / "pair.json", validation(0.1, 0.2, 1 / 3, ops=OPS)
    found.save(file)
    again = Validation.load(file)
    assert again == found
    assert (again.prediction, found.prediction is None) == (None, False)
    assert again.by_kind().equals(found.by_kind())
    document = json.loads(file.read_text())
    assert (document["kind"], document["schema"]) == ("rooflinekit validation", 1)
    assert document["environment"] == {"torch": "2.13"}
    assert "prediction" not in document


def test_a_file_is_replaced_only_when_told(validation: Callable[..., Validation], tmp_path: Path) -> None:
    file, found = tmp_path / "pair.json", validation(0.1)
    found.save(file)
    with refused(OutputError, f"{file}: exists; choose another file, or replace it with --force"):
        replace(found, seconds=(0.2,)).save(file)
    assert Validation.load(file) == found
    replace(found, seconds=(0.2,)).save(file, force=True)
    assert Validation.load(file).seconds == (0.2,)
    assert [path.name for path in tmp_path.iterdir()] == ["pair.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "other"}, "expected a file that `rooflinekit measure --out` has written; it is none"),
        ({"schema": 2}, "schema: expected 1; got 2"),
        ({"seconds": []}, "seconds: tuple should have at least 1 item after validation, not 0; got []"),
        ({"seconds": [0.1, -1.0]}, "seconds: 1: expected a number above 0.0; got -1.0"),
        ({"seconds": ["0.1"]}, "seconds: 0: expected a number; got '0.1' (and 1 more)"),
        (
            {"colour": "blue"},
            "colour: unknown key; the keys are model, inputs, mode, sizes, execution, device, host, threads, options, "
            "seconds, steps, warmup, predicted, ops, kernels, environment, prediction",
        ),
        ({"predicted": {}}, "predicted: total_s: the key is missing (and 8 more)"),
    ],
)
def test_a_damaged_file(
    validation: Callable[..., Validation], tmp_path: Path, change: dict[str, object], message: str
) -> None:
    file = tmp_path / "pair.json"
    validation(0.1).save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with refused(CampaignError, f"{file}: {message}"):
        Validation.load(file)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_what_is_no_pair_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "pair.json"
    file.write_bytes(content)
    with pytest.raises(CampaignError) as caught:
        Validation.load(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)
    with pytest.raises(CampaignError, match=r"none\.json: cannot be read: No such file or directory"):
        Validation.load(tmp_path / "none.json")
