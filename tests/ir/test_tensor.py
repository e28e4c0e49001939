"""Number formats, and the memory behind a tensor."""

import pytest
import torch

from rooflinekit.ir.op import DType, TensorSpec
from rooflinekit.ir.sizes import symbol


@pytest.mark.parametrize("dtype", list(DType))
def test_formats_agree_with_torch(dtype):
    theirs = getattr(torch, dtype.value)
    assert dtype.itemsize == theirs.itemsize
    assert dtype.is_floating == theirs.is_floating_point
    assert dtype.is_complex == theirs.is_complex


def spec(*shape, dtype="float32", **options):
    return TensorSpec(name="x", shape=shape, dtype=DType(dtype), **options)


def test_a_scalar_is_one_element():
    assert (spec().numel, spec().bytes) == (1, 4)


def test_bytes_are_elements_in_their_format():
    assert spec(3, 5, dtype="float64").bytes == 120  # 8 · 3·5
    assert spec(3, 5, dtype="bfloat16").bytes == 30
    assert spec(3, 5, dtype="bool").bytes == 15
    assert spec(3, 0).bytes == 0


def test_a_dimension_of_stride_zero_is_stored_once():
    expanded = spec(7, 3, 5, stride=(0, 5, 1))
    assert expanded.numel == 105
    assert expanded.bytes == 60  # 4 · 3·5
    assert spec(7, 3, stride=(0, 0)).bytes == 4


def test_a_transposed_tensor_has_all_its_bytes():
    assert spec(3, 5, stride=(1, 3)).bytes == 60


def test_named_sizes_make_formulas():
    x = spec(symbol("batch"), 3, dtype="float16")
    assert x.numel == 3 * symbol("batch")
    assert x.bytes == 6 * symbol("batch")
    assert spec(symbol("batch"), 3, stride=(0, 1)).bytes == 12


def test_views_share_the_memory_of_what_they_view():
    assert spec().memory == "x"
    assert spec(storage="weight").memory == "weight"
