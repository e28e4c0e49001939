"""What each device holds over a step on several: the largest sum is the peak, and pieces under way add up."""

import pytest
import torch
from command_line import Run
from torch import nn

import rooflinekit as rk
from rooflinekit.distributed.prediction import Share, levels, strip, told
from rooflinekit.ir.op import Phase
from rooflinekit.step.memory_course import Moment


def stack(width: int = 512, batch: int = 64) -> rk.Graph:
    layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(8)]
    graph = rk.trace(
        nn.Sequential(*layers), rk.Input("batch", width), mode="training", optimizer=torch.optim.SGD
    )  # fmt: skip
    return graph.at(batch=batch)


@pytest.mark.parametrize("strategy", ["ddp", "zero-1", "fsdp", "dp"])
def test_the_largest_sum_is_the_peak(strategy: str) -> None:
    execution = "compiled" if strategy == "zero-1" else "eager"
    p = rk.parallel(stack(), cluster="dgx-a100", gpus=2, strategy=strategy, execution=execution)
    for share in p.shares:
        course = share.course
        assert max(moment.total_bytes for moment in course) == share.memory.peak_bytes
        starts = [moment.start_s for moment in course]
        assert starts == sorted(starts)
        assert starts[-1] <= share.total_s
        document = share.to_dict()["memory_over_time"]
        assert max(document["levels"]["bytes"]) == share.memory.peak_bytes
        assert max(one["allocated"] for one in document["moments"].values()) == share.memory.peak_bytes


def stages(schedule: str) -> tuple[Share, ...]:
    return rk.parallel(
        stack(), cluster="dgx-a100", gpus=4, strategy=rk.Mesh(pipeline=4, microbatches=8, schedule=schedule)
    ).shares


def test_pieces_under_way_add_up() -> None:
    # 1F1B: stage k of 4 keeps at most 4 - k pieces, GPipe all 8; a piece of 8 samples keeps for each of a stage's two
    # layers what ReLU gives, 8 · 512 numbers of 4 bytes, and of a later stage what it is given by the one before it;
    # the last stage also keeps the loss.
    for schedule, counts in (("1f1b", [4, 3, 2, 1]), ("gpipe", [8, 8, 8, 8])):
        for k, (share, count) in enumerate(zip(stages(schedule), counts, strict=True)):
            *tasks, update = share.course
            assert [one.phase for one in tasks].count(Phase.FORWARD) == len(tasks) / 2 == 8
            assert update.phase is Phase.OPTIMIZER
            for phase in (Phase.FORWARD, Phase.BACKWARD):
                held = [one.bytes_of["activations"] for one in tasks if one.phase is phase]
                piece = (2 + (k > 0)) * 8 * 512 * 4 + 4 * (k == 3)
                assert max(held) - min(held) == (count - 1) * piece
            assert max(one.total_bytes for one in share.course) == share.memory.peak_bytes


def moment(start_s: float, **bytes_of: int) -> Moment:
    return Moment(start_s=start_s, op="op", bytes_of=bytes_of)


@pytest.mark.parametrize("batch", [64, 2**27])
def test_each_device_has_a_verdict(batch: int) -> None:
    p = rk.parallel(stack(batch=batch), cluster="dgx-a100", gpus=2, strategy=rk.Mesh(pipeline=2))
    for share in p.shares:
        found = share.memory_verdict()
        assert (found.allocated.bytes, found.reserved.bytes) == (share.memory.peak_bytes, share.memory.reserved_bytes)
        assert (found.probability > 0.5) == share.memory.fits == (batch == 64)
    assert p.memory_text.endswith(f"the fullest: GPU {p.fullest.numbers[0]}")
    told = p.to_dict()
    assert told["fullest_name"] == f"GPU {p.fullest.numbers[0]}"
    assert [one["verdict"] for one in told["devices"]] == [share.memory_verdict().to_dict() for share in p.shares]


def test_each_communicator_has_nccl_s_buffers() -> None:
    # 24 channels over NVLink with 2.5 connections each: 4 MiB, 512 threads' 8 lines and 640 threads' 120 numbers of 8
    # steps; in one process none
    for gpus, channels in ((1, 0), (8, 24)):
        (share,) = rk.parallel(stack(batch=64), cluster="dgx-a100", gpus=gpus, strategy=rk.FSDP()).shares
        buffers = round(channels * 2.5 * (4 * 2**20 + 512 * 8 * 8 * 16 + 640 * 120 * 8 * 8))
        assert share.memory.context_bytes == 500 * 2**20 + buffers
        assert share.memory_verdict().process.bytes == share.memory.reserved_bytes + 500 * 2**20 + buffers


def test_levels_by_hand() -> None:
    # of 48 stretches of 1 s: what stands until 12 s, then 30 bytes, and 50 from 24 s on
    course = [moment(12.0, weights=10, activations=20), moment(24.0, weights=10, activations=40)]
    assert levels(course, 48.0) == [10] * 12 + [30] * 12 + [50] * 24
    assert strip(levels(course, 48.0)) == "▂" * 12 + "▅" * 12 + "█" * 24
    assert levels([], 1.0) == [0] * 48


def test_words() -> None:
    text = told("GPU 0", {"update": {"weights": 2**20, "gradients": 0, "buffers": 2**20}})
    assert text.splitlines() == ["memory of GPU 0", "  update: 2.00 MiB = weights 1.00 MiB, buffers 1.00 MiB"]


def test_a_described_step_tells_each_stage(run: Run) -> None:
    found = run(
        "train", "llama-3.1-8b", "--cluster", "dgx-h100", "--batch", 16, "--gpus", 8, "--tp", 4, "--pp", 2, "--memory"
    )
    lines = found.out.splitlines()
    begin = lines.index("memory of GPUs 0 to 3")
    assert [line.split(":")[0].strip() for line in lines[begin + 1 : begin + 5]] == [
        "backward begins", "backward ends", "update", "memory of GPUs 4 to 7",
    ]  # fmt: skip
