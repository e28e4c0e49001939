"""What steps on several devices send: bytes by hand, and times that add up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from several import PARAMETER_BYTES, SMALL, chain, slow_cluster, step

import rooflinekit as rk
from rooflinekit.calibrate.fitting.files import load_links
from rooflinekit.distributed.queues import covered, merged, overlap
from rooflinekit.study.compare.scaling import (
    dram_bytes_of_a_device,
    exposed_intervals,
    flop_of_a_device,
    sent_over_links,
    split,
)


@pytest.mark.parametrize("strategy", ["dp", "ddp", "fsdp", "zero-1", SMALL, rk.Mesh(tensor=2)], ids=str)
@pytest.mark.parametrize("bandwidth", [1e8, 1e9, 1e11])
def test_hidden_and_exposed_add_up_to_communication(strategy: Any, bandwidth: float) -> None:
    p = step(strategy, cluster=slow_cluster(bandwidth), batch=65536)
    exposed = exposed_intervals(p)
    parts = [split(message, exposed) for message in p.messages]
    waited, beside = ([part for pair in parts for part in pair[i]] for i in (0, 1))
    # Collectives of two groups may run at once: such times count once.
    assert covered(waited) == pytest.approx(p.exposed_s, abs=1e-12)
    assert covered(beside) == pytest.approx(p.hidden_s, abs=1e-12)
    assert p.hidden_s + p.exposed_s == pytest.approx(p.communication_s, rel=1e-9)


def test_a_pipeline_has_no_exposed_intervals() -> None:
    assert exposed_intervals(step(rk.Mesh(pipeline=2, microbatches=4))) is None


HALF_BATCH = 4096 * 64 * 4  # bytes of half the samples of 64 numbers, what copies of a pipeline pass on


@pytest.mark.parametrize(
    ("strategy", "sent"),
    [
        # All gradients in a ring of four: 2·3/4.
        ("ddp", 2 * 3 / 4 * PARAMETER_BYTES),
        # Scattered once, new weights gathered once.
        ("zero-1", 2 * 3 / 4 * PARAMETER_BYTES),
        # Gathered for forward and for backward, gradients scattered.
        ("fsdp", 3 * 3 / 4 * PARAMETER_BYTES),
        # The first one sends inputs to three others, a quarter of the batch each, takes as many outputs, broadcasts
        # weights and takes gradients.
        ("dp", 2 * 3 * HALF_BATCH / 2 + 2 * PARAMETER_BYTES),
        # Two stages of two copies: one sends activations of a copy's samples, the other gradients of them; and each
        # copy of a stage half of the gradients in a ring of two.
        (rk.Mesh(pipeline=2, microbatches=4), HALF_BATCH + 2 * 1 / 2 * PARAMETER_BYTES / 2),
    ],
    ids=str,
)
def test_bytes_by_hand(strategy: Any, sent: float) -> None:
    (use,) = sent_over_links(step(strategy, batch=8192))
    assert use.link.name == "nvlink-3"
    assert use.bytes == pytest.approx(sent)


def test_the_rate_is_the_fitted_share_of_the_link() -> None:
    (use,) = sent_over_links(step(gpus=4))
    assert use.link.bandwidth == 300e9  # NVLink 3: 600 GB/s in both directions
    # A ring of large messages reaches the share that was fitted; there is nothing else that grows with bytes.
    assert use.rate == pytest.approx(300e9 * load_links().link("share", use.link))


def test_flop_are_shared_out_and_recomputed_ones_count_once() -> None:
    plain = step(batch=4096)
    again = rk.parallel(
        chain(), cluster="dgx-a100", gpus=4, batch=4096, savers=rk.Savers(checkpoint=True), strategy="ddp"
    )
    # 8 layers of 64 · 64: forward, weights' gradients, and inputs' gradients of all but the first, 2 FLOP each.
    products = 2 * 4096 * 64 * 64 * (8 + 8 + 7)
    assert products < 4 * flop_of_a_device(plain) < 1.02 * products
    assert flop_of_a_device(again) == flop_of_a_device(plain)


def test_traffic_of_a_stage_counts_its_pieces() -> None:
    whole = dram_bytes_of_a_device(step(gpus=1, batch=8192))
    halves = dram_bytes_of_a_device(step(rk.Mesh(pipeline=2, microbatches=4), gpus=2, batch=8192))
    # Half of the layers, all of the samples in four pieces, each of which reads the weights: a little more.
    assert 0.45 * whole < halves < 0.6 * whole


INTERVALS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 9)).map(lambda pair: (float(pair[0]), float(sum(pair)))), max_size=6
)


@given(INTERVALS, INTERVALS)
def test_overlaps_of_intervals(one: list[tuple[float, float]], two: list[tuple[float, float]]) -> None:
    a, b = merged(one), merged(two)
    both = overlap(a, b)

    def inside(moment: float, intervals: Any) -> bool:
        return any(start < moment < end for start, end in intervals)

    for moment in (half + 0.5 for half in range(60)):
        assert inside(moment, both) == (inside(moment, one) and inside(moment, two))
    assert covered(one) == sum(end - start for start, end in a)
