"""Whether a step fits has one answer, whichever question is asked: one GPU or several, traced or described."""

from dataclasses import replace
from itertools import product

import pytest

import rooflinekit as rk
from rooflinekit.api.parallel import place_of
from rooflinekit.distributed.described import Planner
from rooflinekit.distributed.groups import Setting
from rooflinekit.distributed.planning import fits, plan
from rooflinekit.distributed.records import RECIPES
from rooflinekit.ir.graph import resized
from rooflinekit.step.memory import USABLE_SHARE
from rooflinekit.timing.machine import Machine

MIB = 2**20
# 24 channels over NVLink, 2.5 connections each of 4 MiB, 512 threads' 8 lines and 640 threads' 120 numbers of 8 steps
BUFFERS = round(24 * 2.5 * (4 * MIB + 512 * 8 * 8 * 16 + 640 * 120 * 8 * 8))
LLAMA = rk.Decoder(
    name="llama", layers=4, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn=4096, vocab=32000
)  # fmt: skip
STRATEGIES = [rk.DDP(), rk.FSDP(stage=3), rk.Mesh(tensor=2)]


def sized(machine: Machine, capacity: float) -> Machine:
    device = machine.device
    memory = device.dram.model_copy(update={"capacity": float(capacity)})
    return replace(machine, device=device.model_copy(update={"dram": memory}))


def place(gpus: int, capacity: float) -> Setting:
    """The first of eight GPUs behind NVLink that have so much memory."""
    full = place_of("dgx-h100", gpus)
    return replace(full, machines=tuple(sized(machine, capacity) for machine in full.machines))


def described(setting: Setting, layout: rk.Layout) -> rk.TrainingStep:
    return Planner(
        decoder=LLAMA, layout=layout, recipe=RECIPES["pytorch"], batch=setting.gpus, seq=1024, place=setting
    ).step()  # fmt: skip


def agrees(p: rk.ParallelPrediction, answer: bool) -> None:
    """p.fits is this answer, and that of the probability."""
    assert p.fits == answer
    assert p.memory_verdict() == p.fullest.memory_verdict()
    for share in p.shares:
        assert share.memory_verdict() == share.prediction.memory_verdict()
        assert share.memory.fits == (share.memory_verdict().probability >= 0.5)


@pytest.mark.parametrize(
    ("gpus", "strategy"), [(1, rk.DDP()), (2, rk.DDP()), (8, rk.DDP()), (8, rk.FSDP(stage=3)), (8, rk.Mesh(tensor=2))]
)
def test_a_step_fits_by_every_way_that_traced_steps_are_asked(
    blocks: rk.Graph, gpus: int, strategy: rk.DDP | rk.FSDP | rk.Mesh
) -> None:
    graph = resized(blocks, batch=65536 * gpus)
    near = plan(graph, place(gpus, 2**31), strategy, savers=rk.Savers())
    end = near.memory_verdict().least_bytes + near.fullest.memory.context_bytes
    told = []
    for away in (-512, -64, -8, -3, 3, 8, 64, 512):  # MiB around the least room in which it runs
        setting = place(gpus, (end + away * MIB) / USABLE_SHARE)
        told.append(fits(graph, setting, strategy, rk.Savers()))
        agrees(plan(graph, setting, strategy, savers=rk.Savers()), told[-1])
    assert told == [False] * 4 + [True] * 4


def test_alone_on_a_gpu_a_step_has_the_verdict_of_predict(blocks: rk.Graph) -> None:
    setting = place(1, 1500 * MIB)
    (share,) = plan(resized(blocks, batch=65536), setting, rk.DDP(), savers=rk.Savers()).shares
    alone = rk.predict(blocks, setting.machines[0].device, batch=65536)
    assert share.memory == alone.memory
    assert share.memory_verdict() == alone.memory_verdict()


def test_described_steps_have_the_same_beside_their_segments_as_traced_ones(blocks: rk.Graph) -> None:
    layouts = {rk.Layout(sharding="ddp"): rk.DDP(), rk.Layout(sharding="fsdp"): rk.FSDP(stage=3)}
    layouts |= {rk.Layout(sharding="ddp", tensor=8): rk.Mesh(tensor=8)}
    for (layout, strategy), gpus in product(layouts.items(), (1, 8)):
        if gpus >= layout.tensor:
            told = described(place_of("dgx-h100", gpus), layout)
            traced = rk.parallel(blocks, cluster="dgx-h100", gpus=gpus, strategy=strategy, batch=64)
            expected = {"CUDA's context": 500 * MIB} | ({"NCCL's buffers": BUFFERS} if gpus > 1 else {})
            assert dict(told.memory.beside) == dict(traced.fullest.memory.beside) == expected


@pytest.mark.parametrize("off", [-0.04, 0.04])
def test_described_and_traced_steps_agree_away_from_the_end_of_memory(off: float) -> None:
    graph = rk.training_graph(LLAMA, batch=1, seq=1024, recipe="pytorch")
    traced = rk.parallel(graph, cluster="dgx-h100", gpus=1)
    need = traced.memory_verdict().least_bytes + traced.fullest.memory.context_bytes
    setting = place(1, (1 + off) * need / USABLE_SHARE)
    found, again = described(setting, rk.Layout(sharding="ddp")), plan(graph, setting, rk.DDP(), savers=rk.Savers())
    assert found.memory.fits == again.fits == (found.memory_verdict().probability > 0.5) == (off > 0)


def test_groups_that_send_by_gloo_or_by_copies_have_no_buffers_of_nccl(blocks: rk.Graph) -> None:
    for strategy in (rk.DDP(backend="gloo"), rk.DDP()):
        p = rk.parallel(blocks, cluster="dgx-h100", gpus=2, batch=64, strategy=strategy)
        assert p.fullest.memory.beside.get("NCCL's buffers", 0) == (0 if strategy.backend == "gloo" else BUFFERS)
        alone = p.fullest.prediction
        assert alone.again(machine=alone.machine).memory == alone.memory
