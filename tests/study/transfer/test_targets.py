"""Targets of a transfer: another batch, format, execution, host, and several devices."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError

HERE, THERE = "nvidia-t4", "nvidia-a100-sxm4-80gb"
CLUSTER = "dgx-a100"


@cache
def graph() -> rk.Graph:
    net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 14 * 14, 10))
    return rk.trace(
        net, rk.Input("batch", 3, 16, 16), mode="training", loss=nn.functional.cross_entropy,
        targets=[rk.Input("batch", dtype="int64")], optimizer=torch.optim.SGD,
    )  # fmt: skip


@cache
def here() -> rk.Prediction:
    return rk.predict(graph(), HERE, batch=128)


@pytest.mark.parametrize(
    ("there", "host"),
    [
        ({"batch": 512}, None),
        ({"execution": "compiled"}, None),
        ({"autocast": "float16"}, None),
        ({"channels_last": True}, None),
        ({}, "xeon-server-2018"),
        ({"batch": 32, "autocast": "bfloat16", "execution": "cuda-graph"}, "xeon-server-2018"),
    ],
    ids=str,
)
def test_each_axis(there: dict[str, object], host: str | None) -> None:
    found = rk.transfer(1.3 * here().total_s, graph(), measured_on=HERE, to=THERE, batch=128, there=there, to_host=host)
    assert found.sizes["batch"] == there.get("batch", 128)
    assert found.execution.backend == there.get("execution", "eager")
    assert (found.graph.autocast or None) == there.get("autocast")
    assert found.graph.channels_last == there.get("channels_last", False)
    assert found.host.name == (host or "unnamed")
    # slower here is slower there, by less than all of it; the terms say by how much
    assert 0 < found.correction_s < 0.3 * found.plain.total_s
    assert found.terms()["correction"] == pytest.approx(found.total_s - found.plain.total_s)
    assert found.interval()[0] < found.total_s < found.interval()[1]


def test_less_alike_is_less_believed() -> None:
    def correction(**options: object) -> float:
        found = rk.transfer(1.3 * here().total_s, graph(), measured_on=HERE, batch=128, **options)
        return math.log(found.total_s / found.plain.total_s)

    same = correction(to=HERE)
    assert same > correction(to=HERE, there={"batch": 512}) > 0
    assert same > correction(to=THERE) > 0


def test_several_devices_have_their_own_part_corrected() -> None:
    # 1,024 images a device, whose kernels take longer than what the CPU does for DDP beside them
    measured = 1.3 * rk.predict(graph(), HERE, batch=1024).total_s
    found = rk.transfer(
        measured, graph(), measured_on=HERE, cluster=CLUSTER, gpus=4, batch=1024, there={"batch": 4096}
    )  # fmt: skip
    plain = rk.parallel(graph(), cluster=CLUSTER, gpus=4, batch=4096)
    assert (found.gpus, found.batch) == (4, 4096)
    terms, before = found.terms(), plain.terms()
    # what others are waited for is as predicted, and all else
    assert {name: s for name, s in terms.items() if name != "correction"} == pytest.approx(before)
    own = sum(before[name] for name in ("ideal", "underuse", "memory", "launch", "overhead", "input"))
    alone = rk.transfer(
        measured, graph(), measured_on=HERE, to=THERE, batch=1024, to_host=plain.slowest.prediction.host
    )
    factor = alone.total_s / alone.plain.total_s
    assert terms["correction"] == pytest.approx(own * (factor - 1), rel=0.005)
    assert found.total_s == pytest.approx(plain.total_s + terms["correction"])
    assert found.communication_s == plain.communication_s
    assert found.one_gpu.total_s > plain.one_gpu.total_s
    assert "communication is as predicted" in str(found)
    assert found.to_dict()["terms"]["correction"] == terms["correction"]


def test_targets_that_cannot_be() -> None:
    measured = here().total_s
    with pytest.raises(InputError, match="expected to=…, a device, or cluster=…"):
        rk.transfer(measured, graph(), measured_on=HERE, batch=128)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="gpus, strategy: only several devices have them"):
        rk.transfer(measured, graph(), measured_on=HERE, to=THERE, gpus=2, batch=128)
    step = rk.trace(nn.Linear(8, 8), rk.Input("batch", 8))
    with pytest.raises(InputError, match="steps on several devices are training steps"):
        rk.transfer(1e-4, step, measured_on=HERE, cluster=CLUSTER, batch=128)
