"""From one device to several, and from one way to another: differences of terms add up, names tell apart."""

from __future__ import annotations

from typing import Any

import pytest
from several import slow_cluster, step

import rooflinekit as rk
from rooflinekit.study.compare.scaling import EXPOSED, HIDDEN, between, from_one, limited_by, names_of

STRATEGIES = ["dp", "ddp", "fsdp", "zero-1", rk.Mesh(tensor=4), rk.Mesh(pipeline=2, tensor=2, microbatches=4)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("whole", [True, False])
def test_terms_lead_from_one_device_to_several(strategy: Any, whole: bool) -> None:
    p = step(strategy)
    found = from_one(p, whole=whole)
    first = p.one_gpu.total_s * (1 if whole else 1 / 4)
    assert found.totals == (pytest.approx(first), p.total_s)
    assert sum(found.terms().values()) == pytest.approx(p.total_s - first, rel=1e-9, abs=1e-9 * p.total_s)
    assert found.terms()[EXPOSED] == p.exposed_s
    assert found.terms()[EXPOSED] + found.aside[HIDDEN] == pytest.approx(p.communication_s)
    if whole:  # by hand: a part for each of four
        assert found.terms()["÷ 4"] == pytest.approx(-3 / 4 * p.one_gpu.total_s)


def test_terms_lead_from_one_way_to_another() -> None:
    fast, slow = step(), step(cluster=slow_cluster(1e8))
    found = between(fast, slow)
    assert found.per == "step"
    assert sum(found.terms().values()) == pytest.approx(slow.total_s - fast.total_s, rel=1e-9)
    # The same kernels, another link: only waits differ, those for the CPU pass while the links are waited for.
    assert set(found.terms()) == {EXPOSED, "overhead"}
    assert found.terms()["overhead"] < 0 < found.terms()[EXPOSED]
    assert found.aside == {HIDDEN: slow.hidden_s - fast.hidden_s}


def test_other_batches_are_compared_by_sample() -> None:
    a, b = step(batch=4096), step(batch=8192)
    found = between(a, b)
    assert found.per == "sample"
    assert found.totals == (a.total_s / 4096, b.total_s / 8192)
    assert sum(found.terms().values()) == pytest.approx(found.totals[1] - found.totals[0], rel=1e-9)
    assert found.labels == ("batch 4096", "batch 8192")


def test_names_tell_apart() -> None:
    assert names_of([step(), step(gpus=2)]) == ("4 × A100 SXM4 80 GB", "2 × A100 SXM4 80 GB")
    assert names_of([step(), step("fsdp"), step("zero-1")]) == ("DDP", "FSDP", "ZeRO 1")
    assert names_of([step(), step()]) == ("4 × A100 SXM4 80 GB #1", "4 × A100 SXM4 80 GB #2")
    small = rk.DDP(bucket_bytes=1000)
    assert names_of([step(small), step()]) == ("bucket_bytes 1000", "plain")


def test_what_limits_a_step() -> None:
    assert limited_by(step(cluster=slow_cluster(1e7))) == "communication"
    assert limited_by(step(batch=16)) == "overhead"
    assert limited_by(step(batch=2**20)) in ("compute", "memory")
