"""What no way of training may do to memory, at any batch."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import rooflinekit as rk
from rooflinekit.distributed.prediction import Share

_STAGES = ("ddp", "zero-1", "zero-2", "zero-3")
_BATCHES = st.integers(1, 12).map(lambda doublings: 2**doublings * 8)
_FEW = settings(max_examples=12, deadline=None)


def _share(blocks: rk.Graph, strategy: str, gpus: int, batch: int, **savers: Any) -> Share:
    kept = rk.Savers(**savers)
    return rk.parallel(blocks, cluster="dgx-a100", gpus=gpus, strategy=strategy, batch=batch, savers=kept).shares[0]


@_FEW
@given(batch=_BATCHES, stage=st.sampled_from(_STAGES), doublings=st.integers(1, 2))
def test_more_sharding_keeps_no_more(blocks: rk.Graph, batch: int, stage: str, doublings: int) -> None:
    few, many = (_share(blocks, stage, gpus, batch * gpus).memory for gpus in (2, 2 * 2**doublings))
    assert many.standing_bytes <= few.standing_bytes
    kept = [_share(blocks, name, 4, 4 * batch).memory.standing_bytes for name in _STAGES]
    assert kept == sorted(kept, reverse=True)


@_FEW
@given(batch=_BATCHES, stage=st.sampled_from(_STAGES), part=st.integers(1, 4))
def test_a_smaller_batch_and_checkpoints_need_no_more(blocks: rk.Graph, batch: int, stage: str, part: int) -> None:
    whole = _share(blocks, stage, 2, 2 * batch)
    assert _share(blocks, stage, 2, 2 * (batch - batch * part // 8)).memory.peak_bytes <= whole.memory.peak_bytes
    assert _share(blocks, stage, 2, 2 * batch, checkpoint=True).memory.peak_bytes <= whole.memory.peak_bytes


@_FEW
@given(batch=_BATCHES, strategy=st.sampled_from((*_STAGES, "pipeline", "tensor")))
def test_accounts_sum_to_the_peak(blocks: rk.Graph, batch: int, strategy: str) -> None:
    share = _share(blocks, strategy, 2, 2 * batch)
    assert max(moment.total_bytes for moment in share.course) == share.memory.peak_bytes
