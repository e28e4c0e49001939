"""Sequences that several devices share: counts by hand, and laws."""

from collections import Counter
from typing import Any

import pytest
from several import LAYERS, SEQUENCE, WIDTH, transformer_step

import rooflinekit as rk
from rooflinekit.distributed.context import cut_by_context
from rooflinekit.distributed.staged import saved_bytes
from rooflinekit.errors import InputError

BATCH = 512
#: Keys and values of a layer in fp32, all tokens.
KEYS = 2 * BATCH * SEQUENCE * WIDTH * 4
#: Embedding and head of 100 words, two norms' 2·64 a layer and one at the end, four 64·64 and two 64·256 matrices with
#: biases: 4 bytes each.
PARAMETERS = 4 * (2 * 100 * WIDTH + (2 * LAYERS + 1) * 2 * WIDTH + LAYERS * (12 * WIDTH**2 + 9 * WIDTH))


def predicted(gpus: int, **mesh: Any) -> rk.ParallelPrediction:
    return rk.parallel(transformer_step(), cluster="dgx-a100", strategy=rk.Mesh(**mesh), gpus=gpus, batch=BATCH)


def sent(p: rk.ParallelPrediction, group: str) -> Counter[tuple[str, float]]:
    return Counter((m.timing.collective, m.timing.size_bytes) for m in p.messages if m.group.partition(",")[0] == group)


@pytest.mark.parametrize("way", ["ring", "all-gather"])
def test_a_device_has_its_part_of_the_work(way: str) -> None:
    whole = transformer_step().at(batch=8)
    part = cut_by_context(whole, 4, way, 8)
    assert part.matrix_flop * 4 == whole.matrix_flop
    assert part.parameters == whole.parameters
    # Attention keeps a logarithm for each row, filled up to 32 of them, of 4 heads and 8 sequences; and a few seeds.
    padding = LAYERS * 8 * 4 * 32 * 4
    assert (saved_bytes(part) - padding) * 4 == pytest.approx(saved_bytes(whole) - padding, abs=200)


def test_keys_go_around_and_their_gradients_follow() -> None:
    block = KEYS // 4
    # Of four blocks three keys are sent in forward. In backward keys before the first, both before the second and the
    # third, gradients before the fourth and after it.
    assert sent(predicted(4, context=4), "ring") == {
        ("send-recv", block): LAYERS * (3 + 3), ("send-recv", 2 * block): LAYERS * 2,
    }  # fmt: skip


def test_keys_are_gathered_and_their_gradients_scattered() -> None:
    found = predicted(4, context=4, context_way="all-gather")
    assert sent(found, "context") == {("all-gather", KEYS): 2 * LAYERS, ("reduce-scatter", KEYS): LAYERS}


def test_weights_agree_over_a_group_as_over_copies() -> None:
    # Buckets hold 1 MiB: here all gradients are in the first.
    p = predicted(8, context=2, tensor=2)
    (((what, _), count),) = sent(p, "data").items()
    assert (what, count, p.messages[-1].timing.ranks) == ("all-reduce", 1, 4)
    assert sent(p, "ring") == {("send-recv", KEYS // 2 // 2 // 2): LAYERS * 4}  # of copies, devices, heads
    assert sent(predicted(2, context=2), "data") == {("all-reduce", PARAMETERS): 1}


def test_sequences_are_cut_inside_stages() -> None:
    p = predicted(8, context=2, pipeline=2, schedule="interleaved", chunks=2, microbatches=4)
    # Two copies of four pieces; of each a layer's four hops.
    assert sent(p, "ring") == {("send-recv", KEYS // 2 // 2 // 4): 4 * LAYERS * 4}
    assert sum(p.terms().values()) == pytest.approx(p.slowest.run.end_s)


def test_more_devices_hold_less() -> None:
    alone, two, four = (predicted(n, context=n).shares[0].memory.peak_bytes for n in (1, 2, 4))
    assert alone > two > four > alone / 4


def test_what_cannot_be_cut_is_refused(blocks: rk.Graph) -> None:
    with pytest.raises(InputError, match="no fused attention"):
        rk.parallel(blocks, cluster="dgx-a100", strategy="context", gpus=2, batch=64)
    with pytest.raises(InputError, match="16 tokens cannot be cut for 16 devices: expected a multiple of 32"):
        cut_by_context(transformer_step().at(batch=8), 16, "ring", 8)
    with pytest.raises(InputError, match="context_way: expected ring, all-gather"):
        rk.Mesh(context=2, context_way="rings")
