"""Sizes at which a kernel refuses an op, though memory would do."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import rooflinekit as rk

_GPU = "nvidia-h200"  # its memory holds all of these


def _depthwise(**options: Any) -> rk.Graph:
    module = nn.Conv2d(128, 128, 3, padding=1, groups=128)
    return rk.trace(module, rk.Input("batch", 128, 128, 128), autocast="float16", **options)  # 2^21 elements an image


@pytest.mark.parametrize(
    ("options", "most"),
    [({"channels_last": True}, 1023), ({"channels_last": True, "like": "2.4"}, None), ({}, None)],
)
def test_depthwise_convolutions_of_32_bits(options: dict[str, Any], most: int | None) -> None:
    graph = _depthwise(**options)
    p = rk.predict(graph, _GPU, batch=1024)
    assert p.memory.fits == (most is None)
    if most is None:
        return
    assert p.memory_verdict().probability == 0
    assert "does not run: convolution: its kernel takes at most 2,147,483,647 elements, not 2,147,483,648" in str(p)
    assert p.largest_batch() == most
    assert rk.predict(graph, "amd-mi300x", batch=1024).memory.fits


def test_batches_of_attention_beyond_a_grid() -> None:
    attend = nn.functional.scaled_dot_product_attention
    graph = rk.trace(lambda x: attend(x, x, x), rk.Input("windows", 3, 49, 32, dtype="float16"))
    assert "65,535 sequences, not 65,536" in rk.predict(graph, "nvidia-l4", windows=65536).memory.refused
    found = rk.sweep(graph, gpus=["nvidia-l4"], windows=[65535, 65536])
    assert list(found["fits"]) == [True, False]
