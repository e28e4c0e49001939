"""Pooling: every window element counted, also where windows overlap or sizes do not divide."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learned import Learned, in_mode
from torch import nn
from torch.nn import functional

from rooflinekit.cost.rules.convolution import _adaptive_windows
from rooflinekit.ir.op import DType, Op, TensorSpec
from rooflinekit.ir.sizes import symbol

# --- by hand --------------------------------------------------------------------------------------------------


def test_pooling_of_one_dimension(tensor, cost):
    largest = cost("max_pool1d", [tensor(2, 3, 8)], [tensor(2, 3, 4)], kernel_size=(2,))
    assert (largest.vector_flop, largest.read_bytes, largest.write_bytes) == (48, 192, 96)  # 24 · 2
    mean = cost("avg_pool1d", [tensor(2, 3, 8)], [tensor(2, 3, 4)], kernel_size=(2,))
    assert mean.vector_flop == 72  # 24 · (2 + 1)


def test_fractional_pooling_reads_its_random_numbers(tensor, cost):
    inputs = [tensor(2, 3, 6, 6), tensor(2, 3, 2)]
    outputs = [tensor(2, 3, 3, 3), tensor(2, 3, 3, 3, dtype="int64")]
    c = cost("fractional_max_pool2d", inputs, outputs, kernel_size=(2, 2))
    assert c.vector_flop == 216  # 54 outputs · 4
    assert (c.read_bytes, c.write_bytes) == (912, 648)  # 4 · (216 + 12); 54 · (4 + 8)


@pytest.mark.parametrize("kind", ["adaptive_max_pool2d", "fractional_max_pool2d", "max_pool2d_with_indices"])
def test_the_gradient_of_a_maximum_goes_to_its_place(tensor, cost, kind):
    grad, x, places = tensor(2, 3, 3, 3), tensor(2, 3, 6, 6), tensor(2, 3, 3, 3, dtype="int64")
    c = cost(f"{kind}_backward", [grad, x, places], [tensor(2, 3, 6, 6)], kernel_size=(2, 2))
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (54, 648, 864)  # 54 · (4 + 8); 4 · 216


def test_undoing_a_maximum_is_zeros_and_a_copy(tensor, costs):
    x, places = tensor(2, 3, 3, 3), tensor(2, 3, 3, 3, dtype="int64")
    zeros, copy = costs("max_unpool2d", [x, places], [tensor(2, 3, 6, 6)])
    assert (zeros.read_bytes, zeros.write_bytes) == (0, 864)
    assert (copy.flop, copy.read_bytes, copy.write_bytes) == (0, 648, 216)


def test_adaptive_windows_that_overlap_are_counted_in_full(tensor, cost):
    # 5 → 3: [0, 2), [1, 4), [3, 5), 7 elements a dimension
    x, y = tensor(2, 3, 5, 5), tensor(2, 3, 3, 3)
    mean = cost("_adaptive_avg_pool2d", [x], [y])
    assert mean.vector_flop == 348  # 6 · 7·7 additions and 6 · 3·3 multiplications
    assert (mean.read_bytes, mean.write_bytes) == (600, 216)
    back = cost("_adaptive_avg_pool2d_backward", [y, x], [x])
    assert back.vector_flop == 438  # 294 multiplied; 294 - 150 added
    assert (back.read_bytes, back.write_bytes) == (216, 600)  # of the input only the shape is used


def test_the_largest_of_adaptive_windows(tensor, cost):
    outputs = [tensor(1, 2, 3, 3, 2), tensor(1, 2, 3, 3, 2, dtype="int64")]
    c = cost("adaptive_max_pool3d", [tensor(1, 2, 5, 6, 4)], outputs)
    assert c.vector_flop == 336  # 2 · 7·6·4: 5 → 3 overlaps, 6 → 3 and 4 → 2 do not
    assert (c.read_bytes, c.write_bytes) == (960, 432)  # 4 · 240; 36 · (4 + 8)


# --- windows of open sizes ------------------------------------------------------------------------------------


def windows(i, o):
    x, y = (TensorSpec(name=n, shape=(1, size, 1), dtype=DType.FLOAT32) for n, size in (("x", i), ("y", o)))
    return _adaptive_windows(Op(name="op", kind="aten._adaptive_avg_pool2d"), x, y)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40))
def test_adaptive_windows_are_those_of_the_definition(i, o):
    spans = sum(math.ceil((k + 1) * i / o) - math.floor(k * i / o) for k in range(o))
    assert windows(i, o) == spans
    assert windows(symbol("i"), o).subs({symbol("i"): i}) == spans
    assert windows(i, symbol("o")).subs({symbol("o"): o}) == spans


def test_windows_of_two_open_sizes():
    n = symbol("n")
    assert windows(n, n) == n
    assert windows(n, 2 * n) == 2 * n  # each element in two windows
    assert windows(6 * n, 2 * n) == 6 * n
    assert windows(n, symbol("m")) == n + symbol("m") - 1  # nothing known: all overlap but where both begin


# --- traced ---------------------------------------------------------------------------------------------------


def unpool(d):
    pool, undo = getattr(functional, f"max_pool{d}d"), getattr(functional, f"max_unpool{d}d")
    return lambda x: undo(*pool(x, 2, return_indices=True), 2)


SHAPES = {1: (2, 4, 13), 2: (2, 4, 12, 13), 3: (1, 2, 8, 8, 9)}
POOLS = {
    f"{name} {d}d": (layer(d), shape)
    for d, shape in SHAPES.items()
    for name, layer in {
        "max": lambda d: getattr(nn, f"MaxPool{d}d")(3, 2, ceil_mode=True),
        "dilated max": lambda d: getattr(nn, f"MaxPool{d}d")(3, 2, dilation=2),
        "mean": lambda d: getattr(nn, f"AvgPool{d}d")(3, 2, padding=1, ceil_mode=True),
        "power": lambda d: getattr(nn, f"LPPool{d}d")(2, 3, 2),
        "adaptive mean": lambda d: getattr(nn, f"AdaptiveAvgPool{d}d")(3),
        "adaptive max": lambda d: getattr(nn, f"AdaptiveMaxPool{d}d")(3),
        "unpool": unpool,
    }.items()
} | {
    "fractional 2d": (nn.FractionalMaxPool2d(2, output_size=3), SHAPES[2]),
    "fractional 3d": (nn.FractionalMaxPool3d(2, output_size=3), SHAPES[3]),
    "without batch": (nn.MaxPool2d(2), (4, 12, 12)),
}


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("layer", "shape"), POOLS.values(), ids=POOLS)
def test_every_op_of_pooling_has_a_rule(traced, layer, shape, mode):
    assert traced(Learned(layer), shape, **in_mode(mode)).coverage.flop_share == 1


def test_windows_over_the_border_count_in_full(traced, costs_of):
    (c,) = costs_of(traced(nn.MaxPool2d(3, 2, ceil_mode=True), (2, 3, 8, 8)), "max_pool2d_with_indices")
    assert c.vector_flop == 864  # 2·3·4·4 outputs · 9


def test_adaptive_pooling_of_open_sizes_is_that_of_numbers(traced):
    layer = nn.AdaptiveAvgPool2d((7, 3))
    graph = traced(layer, ("batch", 4, "height", "width"))
    assert graph.at(batch=2, height=14, width=10).vector_flop == 1512  # 2·4 · (14 · 12 + 7·3): 10 → 3 has 12
