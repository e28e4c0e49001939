"""ZeRO's stages: who keeps what, and what is sent."""

import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError

PARAMETERS = 140672  # see conftest


def shared(blocks: rk.Graph, strategy: str, gpus: int) -> rk.ParallelPrediction:
    return rk.parallel(blocks, cluster="dgx-a100", strategy=strategy, gpus=gpus, batch=8 * gpus)


@pytest.mark.parametrize("gpus", [2, 8])
def test_what_each_stage_shares(blocks: rk.Graph, gpus: int) -> None:
    one = shared(blocks, "fsdp", 1).shares[0].memory
    stages = [shared(blocks, name, gpus).shares[0].memory for name in ("zero-1", "zero-2", "fsdp")]
    for use in stages:
        assert use.state_bytes == pytest.approx(one.state_bytes / gpus, rel=0.01)
    assert [use.gradient_bytes == one.gradient_bytes for use in stages] == [True, False, False]
    assert [use.weight_bytes == one.weight_bytes for use in stages] == [True, True, False]
    # 16 bytes a parameter: weight, gradient and Adam's two moments. Of all that a device keeps 1/n.
    third = stages[2]
    kept = third.weight_bytes + third.gradient_bytes + third.state_bytes
    assert kept == pytest.approx(16 * PARAMETERS / gpus, rel=0.01)
    peaks = [one.peak_bytes, *(use.peak_bytes for use in stages)]
    assert peaks == sorted(peaks, reverse=True)


def test_what_each_stage_sends(blocks: rk.Graph) -> None:
    size = 4 * PARAMETERS
    for name, gathered in (("zero-1", 1), ("zero-2", 1), ("fsdp", 2)):
        sent: dict[str, float] = {}
        for message in shared(blocks, name, 4).messages:
            timing = message.timing
            sent[timing.collective] = sent.get(timing.collective, 0) + timing.size_bytes
        assert sent["reduce-scatter"] == size
        # Forward and backward of the third stage each gather all weights, but for the stem's, 4160, which no op of
        # backward reads because its input needs no gradient.
        assert sent["all-gather"] == gathered * size - (gathered - 1) * 4 * 4160


def test_shared_weights_are_gathered_without_gradients_too() -> None:
    graph = rk.trace(nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64)), rk.Input("batch", 64))
    size = 4 * 33088
    found = {name: shared(graph, name, 4) for name in ("zero-2", "fsdp")}
    assert [message.timing.collective for message in found["zero-2"].messages] == []
    timings = [message.timing for message in found["fsdp"].messages]
    assert {timing.collective for timing in timings} == {"all-gather"}
    assert sum(timing.size_bytes for timing in timings) == size
    assert found["fsdp"].shares[0].memory.weight_bytes == pytest.approx(size / 4, rel=0.01)


def test_a_forward_pass_on_copies_takes_as_long_as_its_part_on_one_device() -> None:
    graph = rk.trace(nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64)), rk.Input("batch", 64))
    found = rk.parallel(graph, cluster="dgx-a100", gpus=4, batch=4096)
    assert not found.messages
    part = rk.predict(graph, found.shares[0].prediction.machine.device, batch=1024, host=found.cluster.host)
    assert found.total_s == pytest.approx(part.total_s, rel=1e-6)
    with pytest.raises(InputError, match="Sequential: a pipeline is of training steps"):
        rk.parallel(graph, cluster="dgx-a100", gpus=2, batch=64, strategy="pipeline")
    with pytest.raises(InputError, match=r"Sequential: fit_into: .*; got mode='inference'"):
        rk.fit_into(graph, cluster="dgx-a100", batch=64)


def test_prefetch_hides_gathering(blocks: rk.Graph) -> None:
    options = {"cluster": "two-nodes-25gbe", "batch": 65536 * 8}
    ahead = rk.parallel(blocks, strategy=rk.FSDP(), **options)
    late = rk.parallel(blocks, strategy=rk.FSDP(prefetch=False), **options)
    assert ahead.exposed_s < late.exposed_s
    assert ahead.total_s < late.total_s
    for p in (ahead, late):
        assert p.hidden_s + p.exposed_s == pytest.approx(p.communication_s)
        assert sum(p.terms().values()) == pytest.approx(p.slowest.run.end_s)


def test_one_gpu_shares_nothing(blocks: rk.Graph) -> None:
    assert shared(blocks, "fsdp", 1).total_s == rk.parallel(blocks, cluster="dgx-a100", gpus=1, batch=8).total_s
