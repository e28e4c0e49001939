"""Fourier transforms: 5·N·log2 N for N complex points, half for real ones."""

import pytest
import torch
from learned import Learned, in_mode, squares

from rooflinekit import Input
from rooflinekit.ir.sizes import symbol


def signal(*shape):
    return Input(*shape, dtype="complex64")


@pytest.mark.parametrize(
    ("shape", "dim", "flop"),
    [
        ((2, 8), (1,), 240),  # 2 · 5 · 8 · 3
        ((2, 8, 8), (1, 2), 3840),  # 2 · 5 · 64 · 6
        ((4, 8, 2), (0, 1), 1600),  # 2 · 5 · 32 · 5
        ((3, 1), (1,), 0),
        ((100,), (0,), 3322),  # 5 · 100 · 6.64386 = 3321.93
        ((1048576,), (0,), 104857600),  # 5 · 20 · 2²⁰, exact
        ((2, 536870912), (1,), 155692564480),  # 2 · 5 · 29 · 2²⁹
    ],
)
def test_complex_transforms(tensor, cost, shape, dim, flop):
    x, y = tensor(*shape, dtype="complex64"), tensor(*shape, dtype="complex64")
    c = cost("_fft_c2c", [x], [y], dim=dim, normalization=0, forward=True)
    assert (c.matrix_flop, c.vector_flop, c.special_flop) == (0, flop, 0)
    assert c.read_bytes == c.write_bytes == 8 * torch.Size(shape).numel()


def test_real_transforms_are_half(tensor, cost):
    there = cost("_fft_r2c", [tensor(2, 8)], [tensor(2, 5, dtype="complex64")], dim=(1,), normalization=0)
    assert (there.vector_flop, there.read_bytes, there.write_bytes) == (120, 64, 80)  # 4 · 16; 8 · 10
    back = cost("_fft_c2r", [tensor(2, 5, dtype="complex64")], [tensor(2, 8)], dim=(1,), normalization=0)
    assert (back.vector_flop, back.read_bytes, back.write_bytes) == (120, 80, 64)
    odd = cost("_fft_r2c", [tensor(3)], [tensor(2, dtype="complex64")], dim=(0,), normalization=0)
    assert odd.vector_flop == 12  # 2.5 · 3 · 1.58496 = 11.89


def test_scaling_the_result_is_a_kernel_of_its_own(tensor, costs):
    x, y = tensor(2, 8, dtype="complex64"), tensor(2, 8, dtype="complex64")
    transform, scaled = costs("_fft_c2c", [x], [y], dim=(1,), normalization=1, forward=False)
    assert transform.vector_flop == 240
    assert (scaled.vector_flop, scaled.read_bytes, scaled.write_bytes) == (32, 128, 128)  # two numbers a point


def test_transforms_of_open_sizes_stay_formulas(tensor, cost):
    b, n = symbol("b"), symbol("n")
    x, y = tensor(b, n, dtype="complex64"), tensor(b, n, dtype="complex64")
    flop = cost("_fft_c2c", [x], [y], dim=(1,), normalization=0, forward=True).vector_flop
    assert str(flop) == "ceiling(5*b*n*log(n)/log(2))"
    at = [flop.xreplace({b: 2, n: size}) for size in (1, 8, 1024, 536870912)]
    assert at == [0, 240, 102400, 155692564480]  # 2 · 5 · n · log2 n
    assert flop.xreplace({b: 1, n: 100}) == 3322


@pytest.mark.parametrize(
    ("kind", "vector", "special"),
    [
        ("fft_fftfreq", 10, 0),
        ("bartlett_window", 30, 0),
        ("hann_window", 30, 10),
        ("blackman_window", 60, 20),
        ("kaiser_window", 50, 20),
    ],
)
def test_windows_are_written_from_nothing(tensor, cost, kind, vector, special):
    c = cost(kind, [], [tensor(10)])
    assert (c.vector_flop, c.special_flop, c.read_bytes, c.write_bytes) == (vector, special, 0, 40)


# --- traced ---------------------------------------------------------------------------------------------------

COMPLEX = ["fft", "ifft", "fft2", "ifft2", "fftn", "ifftn", "hfft", "irfft", "irfft2", "irfftn", "fftshift"]
REAL = ["fft", "rfft", "rfft2", "rfftn", "ihfft", "hfft", "ifftshift"]
CASES = [(name, signal(2, 8, 8)) for name in COMPLEX] + [(name, Input(2, 8, 8)) for name in REAL]


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("name", "x"), CASES, ids=[f"{name} {x.dtype}" for name, x in CASES])
def test_every_op_of_fourier_transforms_has_a_rule(traced, name, x, mode):
    assert traced(Learned(getattr(torch.fft, name)), x, **in_mode(mode)).coverage.flop_share == 1


def test_the_gradient_of_a_transform_is_a_transform(traced, costs_of):
    graph = traced(Learned(torch.fft.fft), signal(2, 8), mode="training", loss=squares)
    assert [c.vector_flop for c in costs_of(graph, "_fft_c2c")] == [240, 240]


def test_a_short_time_transform_is_one_of_all_frames(traced, costs_of):
    def spectrum(x):
        return torch.stft(x, 16, 8, window=torch.hann_window(16), return_complex=True)

    graph = traced(Learned(spectrum), (2, 64), mode="training", loss=squares)
    (there,) = costs_of(graph, "_fft_r2c")
    assert there.vector_flop == 2880  # 2 signals of 9 frames, 2.5 · 16 · 4 each
    (window,) = costs_of(graph, "hann_window")
    assert window.special_flop == 16
