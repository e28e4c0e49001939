"""Interpolation, sampling by a grid and windows as columns, by the taps of each output."""

import pytest
import torch
from learned import Learned, in_mode
from torch import nn
from torch.nn import functional

# --- interpolation --------------------------------------------------------------------------------------------

#: kind: (input, output, FLOP an output, FLOP a gradient)
UPSAMPLED = {
    "upsample_nearest1d": ((2, 3, 4), (2, 3, 8), 0, 1),
    "upsample_nearest2d": ((2, 3, 4, 4), (2, 3, 8, 8), 0, 1),
    "upsample_nearest3d": ((1, 2, 2, 2, 2), (1, 2, 4, 4, 4), 0, 1),
    "_upsample_nearest_exact1d": ((2, 3, 4), (2, 3, 8), 0, 1),
    "_upsample_nearest_exact2d": ((2, 3, 4, 4), (2, 3, 8, 8), 0, 1),
    "_upsample_nearest_exact3d": ((1, 2, 2, 2, 2), (1, 2, 4, 4, 4), 0, 1),
    "upsample_linear1d": ((2, 3, 4), (2, 3, 8), 3, 4),  # 2 products, 1 sum; 2 weights, 2 sums
    "upsample_bilinear2d": ((2, 3, 4, 4), (2, 3, 8, 8), 9, 10),  # 2 rows of 3, and 3; 2 + 4 weights, 4 sums
    "upsample_trilinear3d": ((1, 2, 2, 2, 2), (1, 2, 4, 4, 4), 21, 22),  # 2 · 9 + 3; 2 + 4 + 8, 8
    "upsample_bicubic2d": ((2, 3, 4, 4), (2, 3, 8, 8), 35, 36),  # 4 · 7 + 7; 4 + 16, 16
}


def numel(shape):
    return torch.Size(shape).numel()


@pytest.mark.parametrize(("kind", "x", "y", "flop", "back"), [(k, *v) for k, v in UPSAMPLED.items()], ids=UPSAMPLED)
def test_interpolation_and_its_gradient(tensor, cost, costs, kind, x, y, flop, back):
    c = cost(kind, [tensor(*x)], [tensor(*y)])
    assert (c.vector_flop, c.special_flop) == (flop * numel(y), 0)
    assert (c.read_bytes, c.write_bytes) == (4 * numel(x), 4 * numel(y))
    *zeros, added = costs(f"{kind}_backward", [tensor(*y)], [tensor(*x)])
    assert added.vector_flop == back * numel(y)
    assert added.write_bytes == 4 * numel(x)
    if "nearest" in kind:  # each element collects its own gradients
        assert (zeros, added.read_bytes) == ([], 4 * numel(y))
    else:  # gradients are added to zeros
        assert [z.write_bytes for z in zeros] == [4 * numel(x)]
        assert added.read_bytes == 4 * (numel(x) + numel(y))


def test_shrinking_reads_what_the_taps_touch(tensor, cost, costs):
    x, y = tensor(1, 1, 16, 16), tensor(1, 1, 4, 4)
    assert cost("upsample_nearest2d", [x], [y]).read_bytes == 64  # 4 · 4·4 of 4 · 16·16
    assert cost("upsample_bilinear2d", [x], [y]).read_bytes == 256  # 4 · 8·8
    assert cost("upsample_bicubic2d", [x], [y]).read_bytes == 1024  # all
    _, added = costs("upsample_bilinear2d_backward", [y], [x])
    assert (added.read_bytes, added.write_bytes) == (320, 256)  # 64 and what it adds to


def test_an_expanded_image_is_read_as_stored(tensor, cost):
    x = tensor(1, 3, 4, 4, stride=(16, 0, 4, 1))
    assert cost("upsample_bilinear2d", [x], [tensor(1, 3, 8, 8)]).read_bytes == 64


@pytest.mark.parametrize(
    ("kind", "flop", "back"),
    [
        # 8 → 4 takes twice the neighbours: 4·4 taps an output; rows 4 · 7, across 7; weights 4 + 16, sums 16
        ("_upsample_bilinear2d_aa", 560, 576),  # 16 · 35; 16 · 36
        ("_upsample_bicubic2d_aa", 2160, 2176),  # 8·8 taps: 16 · (8 · 15 + 15); 16 · (8 + 2 · 64)
    ],
)
def test_antialiasing_weighs_all_that_an_output_covers(tensor, cost, costs, kind, flop, back):
    x, y = tensor(1, 1, 8, 8), tensor(1, 1, 4, 4)
    c = cost(kind, [x], [y])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (flop, 256, 64)
    zeros, added = costs(f"{kind}_backward", [y], [x])
    assert (zeros.write_bytes, added.vector_flop) == (256, back)


def test_antialiasing_without_shrinking_is_plain_interpolation(tensor, cost):
    x, y = tensor(2, 3, 4, 4), tensor(2, 3, 8, 8)
    assert cost("_upsample_bilinear2d_aa", [x], [y]).vector_flop == 3456  # 9 · 384


# --- sampling by a grid ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "padding", "corners", "vector", "special"),
    [
        # 32 places of two coordinates: scale 4, distances 2; 4 products. 96 outputs of 4 multiply-adds
        (0, 0, False, 1280, 0),  # 32 · (2 · 6 + 4) + 96 · 8
        (0, 1, True, 1344, 0),  # scale 3, clip 2: 32 · (2 · 7 + 4) + 768
        (0, 2, False, 1728, 128),  # reflect 7 and two divisions: 32 · (2 · 13 + 4) + 768
        (1, 0, False, 320, 0),  # scale 4, round 1: 32 · 10
        (2, 0, False, 5216, 0),  # scale 4, four weights 25: 32 · 58 + 96 · 35
    ],
)
def test_places_are_worked_out_once_for_all_channels(tensor, cost, mode, padding, corners, vector, special):
    inputs = [tensor(2, 3, 5, 5), tensor(2, 4, 4, 2)]
    attrs = {"interpolation_mode": mode, "padding_mode": padding, "align_corners": corners}
    c = cost("grid_sampler_2d", inputs, [tensor(2, 3, 4, 4)], **attrs)
    assert (c.vector_flop, c.special_flop) == (vector, special)
    image = 384 if mode == 1 else 600  # the nearest neighbour alone, or all of 4 · 150
    assert (c.read_bytes, c.write_bytes) == (image + 256, 384)


def test_sampling_in_three_dimensions(tensor, cost):
    inputs = [tensor(2, 3, 9, 9, 9), tensor(2, 2, 2, 2, 3)]
    attrs = {"interpolation_mode": 0, "padding_mode": 0, "align_corners": False}
    c = cost("grid_sampler_3d", inputs, [tensor(2, 3, 2, 2, 2)], **attrs)
    assert c.vector_flop == 1312  # 16 · (3 · 6 + 8 · 2) + 48 · 16
    assert c.read_bytes == 1728  # 8 neighbours of 48 outputs, of 4374 elements; the grid 4 · 48


@pytest.mark.parametrize(
    ("mode", "mask", "vector", "read", "written"),
    [
        # places 32 · (16 + 2); image 8 and grid 4 · 5 for each of 96 gradients
        (0, (True, True), 3264, 1840, 856),  # image twice, 600; gradient 384, grid 256; 600 + 256
        (0, (False, True), 2496, 1240, 256),
        (0, (True, False), 1280, 1240, 600),  # 32 · 16 + 96 · 8
        (1, (True, True), 416, 1024, 640),  # 32 · 10 + 96; 384 elements touched; zeros for the grid
    ],
)
def test_gradients_of_sampling(tensor, costs, mode, mask, vector, read, written):
    inputs = [tensor(2, 3, 4, 4), tensor(2, 3, 5, 5), tensor(2, 4, 4, 2)]
    attrs = {"interpolation_mode": mode, "padding_mode": 0, "align_corners": False, "output_mask": mask}
    outputs = [t for t, wanted in zip((tensor(2, 3, 5, 5), tensor(2, 4, 4, 2)), mask, strict=True) if wanted]
    *zeros, gradients = costs("grid_sampler_2d_backward", inputs, outputs, **attrs)
    assert [z.write_bytes for z in zeros] == ([600] if mask[0] else [])
    assert gradients.vector_flop == vector
    assert (gradients.read_bytes, gradients.write_bytes) == (read, written)


def test_an_affine_grid_is_a_product_with_the_places(tensor, costs):
    grid, product = costs("affine_grid_generator", [tensor(2, 2, 3)], [tensor(2, 4, 5, 2)], size=(2, 3, 4, 5))
    assert (grid.flop, grid.read_bytes, grid.write_bytes) == (0, 0, 480)  # 4 · 2·20·3
    assert product.matrix_flop == 480  # 2 · 2·20·2·3
    assert (product.read_bytes, product.write_bytes) == (528, 320)  # 480 + 4 · 12; 4 · 80


# --- windows as columns ---------------------------------------------------------------------------------------


def test_windows_to_columns_and_back(tensor, cost):
    there = cost("im2col", [tensor(2, 3, 8, 8)], [tensor(2, 27, 16)])
    assert (there.flop, there.read_bytes, there.write_bytes) == (0, 1536, 3456)
    back = cost("col2im", [tensor(2, 27, 16)], [tensor(2, 3, 8, 8)])
    assert (back.vector_flop, back.read_bytes, back.write_bytes) == (864, 3456, 1536)  # 2·27·16 additions


# --- traced ---------------------------------------------------------------------------------------------------

SHAPES = {1: (2, 4, 12), 2: (2, 4, 6, 6), 3: (1, 2, 4, 4, 4)}
MODES = {
    1: ("nearest", "nearest-exact", "linear", "area"),
    2: ("nearest", "nearest-exact", "bilinear", "bicubic", "area"),
    3: ("nearest", "nearest-exact", "trilinear", "area"),
}
RESAMPLED = {
    f"{mode} {d}d": (lambda x, mode=mode: functional.interpolate(x, scale_factor=2, mode=mode), [SHAPES[d]])
    for d, modes in MODES.items()
    for mode in modes
} | {
    "bilinear smooth": (lambda x: functional.interpolate(x, size=3, mode="bilinear", antialias=True), [SHAPES[2]]),
    "bicubic smooth": (lambda x: functional.interpolate(x, size=3, mode="bicubic", antialias=True), [SHAPES[2]]),
    "area shrinking": (lambda x: functional.interpolate(x, size=4, mode="area"), [SHAPES[2]]),
    "affine_grid 2d": (lambda x: functional.affine_grid(x, [2, 3, 4, 5], align_corners=False), [(2, 2, 3)]),
    "affine_grid 3d": (lambda x: functional.affine_grid(x, [2, 3, 4, 5, 6], align_corners=True), [(2, 3, 4)]),
    "pixel_shuffle": (nn.PixelShuffle(2), [(2, 8, 3, 3)]),
    "pixel_unshuffle": (nn.PixelUnshuffle(2), [(2, 2, 6, 6)]),
    "channel_shuffle": (nn.ChannelShuffle(2), [(2, 8, 3, 3)]),
    "unfold": (nn.Unfold(3, padding=1, stride=2), [(2, 3, 8, 8)]),
    "fold": (nn.Fold((8, 8), 2, stride=2), [(2, 12, 16)]),
    "bilinear grid": (
        lambda x, grid: functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False),
        [(2, 3, 5, 5), (2, 4, 4, 2)],
    ),
    "bicubic grid": (
        lambda x, grid: functional.grid_sample(x, grid, mode="bicubic", align_corners=True),
        [(2, 3, 5, 5), (2, 4, 4, 2)],
    ),
    "nearest grid 3d": (
        lambda x, grid: functional.grid_sample(x, grid, mode="nearest", align_corners=False),
        [(2, 3, 5, 5, 5), (2, 4, 4, 4, 3)],
    ),
}


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("function", "shapes"), RESAMPLED.values(), ids=RESAMPLED)
def test_every_op_of_resampling_has_a_rule(traced, function, shapes, mode):
    assert traced(Learned(function), *shapes, **in_mode(mode)).coverage.flop_share == 1


def test_doubling_an_image_of_open_size(traced):
    graph = traced(nn.Upsample(scale_factor=2, mode="bilinear"), ("batch", 3, "height", "width"))
    assert str(graph.vector_flop) == "108*batch*height*width"  # 9 · 3·2·2
    assert str(graph.read_bytes) == "12*batch*height*width"
