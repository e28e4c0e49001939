"""Sizes that are worked out here are those that torch finds."""

import pytest
import torch
from learned import Uses
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.errors import SizeError, TraceError
from rooflinekit.ir.sizes import symbol


def check(model, *shape: int, dims: int) -> None:
    """Output sizes and strides at numbers, and with the first `dims` sizes open, are those of running it."""
    real = model(torch.zeros(shape))
    fixed = rk.trace(model, rk.Input(*shape)).outputs[0]
    assert fixed.shape == tuple(real.shape)
    assert (fixed.stride or torch.empty(fixed.shape).stride()) == real.stride()
    names = ["n", "h", "w"]
    opened = rk.trace(model, rk.Input(*(names[:dims] + list(shape[dims:]))))
    assert opened.dims == tuple(names[:dims])
    at = opened.at(**dict(zip(names, shape[:dims], strict=False)))
    assert at.outputs[0].shape == tuple(real.shape)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "area"])
@pytest.mark.parametrize("arguments", [{"size": 5}, {"scale_factor": 2.0}, {"scale_factor": 0.5}])
def test_resampling_1d(mode: str, arguments: dict[str, float]) -> None:
    check(lambda x: functional.interpolate(x, mode=mode, **arguments), 2, 3, 8, dims=1)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
@pytest.mark.parametrize("arguments", [{"size": (5, 9)}, {"scale_factor": 3}, {"scale_factor": (0.25, 2.0)}])
def test_resampling_2d(mode: str, arguments: dict[str, float]) -> None:
    check(lambda x: functional.interpolate(x, mode=mode, **arguments), 2, 3, 8, 12, dims=1)


def test_resampling_3d_and_smoothed() -> None:
    check(lambda x: functional.interpolate(x, scale_factor=2, mode="trilinear"), 2, 3, 4, 5, 6, dims=1)
    check(lambda x: functional.interpolate(x, size=(3, 3), mode="bicubic", antialias=True), 2, 3, 8, 8, dims=1)


def test_resampling_with_open_edges() -> None:
    graph = rk.trace(lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), rk.Input("n", 3, "h", "w"))
    assert graph.outputs[0].shape == (symbol("n"), 3, 2 * symbol("h"), 2 * symbol("w"))
    doubling = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Upsample(scale_factor=2, mode="bilinear"))
    training = rk.trace(doubling, rk.Input("n", 3, 4, 4), mode="training")
    assert training.dims == ("n",)
    backward = next(op for op in training.ops if op.kind == "aten.upsample_bilinear2d_backward")
    assert backward.outputs[0].shape == (symbol("n"), 3, 4, 4)


@pytest.mark.parametrize("pad", [(1, 2), (0, 1, 2, 3), (-1, 0), (1, 1, 1, 1, 1, 1)])
def test_constant_padding(pad: tuple[int, ...]) -> None:
    check(lambda x: functional.pad(x, pad), 2, 3, 8, 12, dims=1)


@pytest.mark.parametrize(
    "solve",
    [
        lambda x: torch.linalg.solve_triangular(x, x, upper=False),
        lambda x: torch.linalg.solve_triangular(x, x[..., :2, :], upper=True, left=False),
        lambda x: torch.linalg.solve_triangular(x[0], x, upper=False, unitriangular=True),
    ],
)
def test_solving_triangular_systems(solve) -> None:
    check(solve, 3, 5, 4, 4, dims=2)


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"padding": 1, "dilation": 2}])
def test_windows(options: dict[str, int]) -> None:
    check(lambda x: functional.unfold(x, (3, 2), **options), 2, 3, 8, 12, dims=1)
    check(lambda x: functional.unfold(x, 3), 3, 8, 12, dims=0)


def test_windows_back() -> None:
    check(lambda x: functional.fold(x, (8, 6), 2, stride=2), 2, 12, 12, dims=1)


def test_gradients_of_attention_with_a_learned_mask() -> None:
    def attend(x: torch.Tensor, mask: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q = functional.linear(x, weight, bias).reshape(-1, 5, 4, 2).transpose(1, 2)
        return functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    graph = rk.trace(Uses(attend, (1, 4, 5, 5), (8, 8), 8), rk.Input("batch", 5, 8), mode="training")
    assert graph.dims == ("batch",)
    assert {gradient.shape for gradient in graph.gradients} == {(1, 4, 5, 5), (8, 8), (8,)}


def test_batched_products_with_a_sum_and_products_with_factors() -> None:
    check(lambda x: torch.baddbmm(x[:, :, :1], x, x.transpose(1, 2), beta=0.5), 2, 4, 3, dims=2)
    check(lambda x: torch.addcmul(torch.zeros(3), x, x[:, :1]), 2, 4, 3, dims=2)
    check(lambda x: torch.addcdiv(x.transpose(0, 1), x.transpose(0, 1), torch.ones(3)), 2, 4, 3, dims=2)
    promoted = rk.trace(lambda x: torch.addcmul(x, x.half(), x.half()), rk.Input("n", 3))
    assert promoted.outputs[0].dtype == "float32"


@pytest.mark.parametrize(("given", "places"), [((4, 3), 9), (torch.tensor([4, 3]), 11)])  # 2 · labels and 1
def test_ctc_loss(given, places) -> None:
    linear = torch.nn.Linear(6, 5)

    def model(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = linear(x).log_softmax(-1)
        return functional.ctc_loss(scores, labels, (7, 7) if isinstance(given, tuple) else given, given)

    graph = rk.trace(model, rk.Input("t", 2, 6), rk.Input(2, 5, dtype="int64"), mode="training")
    forward = next(op for op in graph.ops if op.kind == "aten._ctc_loss")
    assert [t.shape for t in forward.outputs] == [(2,), (2, symbol("t"), places)]
    assert "aten._ctc_loss_backward" in {op.kind for op in graph.ops}
    assert not graph.coverage.default_kinds


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: x[m],
        lambda x, m: x[:, m[0]],
        lambda x, m: x[m[:, 0]],
        lambda x, m: x[m[:, 0], 0],
        lambda x, m: x[None, :, m[0], None],
        lambda x, m: x.masked_select(m),
        lambda x, m: m.nonzero(),
        lambda x, m: torch.where(m)[1],
        lambda x, m: x[m] * x[m],
    ],
)
def test_a_mask_counts_as_if_it_named_every_element(function) -> None:
    check(lambda x: function(x, torch.ones_like(x, dtype=torch.bool)), 4, 3, dims=2)


def test_masks_that_do_not_stand_side_by_side_go_to_the_front() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x[torch.ones(2, dtype=torch.bool), :, torch.zeros(2, dtype=torch.int64)]

    assert rk.trace(model, rk.Input(2, "n", 3)).outputs[0].shape == (2, symbol("n"))


def test_training_through_a_mask() -> None:
    def filled(x: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
        x = x * 2
        x[x[..., 0] > 0] = fill
        return x

    graph = rk.trace(Uses(filled, (4,)), rk.Input("n", 5, 4), mode="training", strict=True, assume={"mask": 1.0})
    assert graph.dims == ("n",)
    assert graph.gradients[0].shape == (4,)


def test_a_part_of_a_table_may_be_the_whole() -> None:
    """Positions 0 … s - 1 of a table of 64: up to 64 of them, 64 too."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(64, 8)
            self.register_buffer("places", torch.arange(64)[None])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table(self.places[:, : x.shape[1]])

    graph = rk.trace(Positions(), rk.Input("n", "s", 8))
    for s in (32, 64):
        assert graph.at(n=2, s=s).flop == 2 * s * 8  # one addition an element
    with pytest.raises(SizeError, match="s <= 64"):
        graph.at(n=2, s=65)


def test_a_part_that_ends_early_is_one_only_where_the_whole_is_longer() -> None:
    """The first hundred of s numbers are a hundred from s = 100 on: of fewer, all."""
    graph = rk.trace(lambda x: x[:, :100] * 2.0, rk.Input(3, "s"), sizes={"s": 128})
    assert graph.at(s=4096).flop == 3 * 100
    with pytest.raises(SizeError, match="s >= 100"):
        graph.at(s=99)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64"])
@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(8, 8),
        nn.Linear(8, 8, bias=False),
        nn.Conv1d(4, 4, 3),
        nn.Conv1d(4, 4, 3, bias=False),
        nn.Linear(8, 8).bfloat16(),
        nn.ReLU(),
    ],
    ids=str,
)
def test_formats_that_torch_does_not_multiply_are_refused(model: nn.Module, dtype: str) -> None:
    x = torch.ones(2, 4, 8, dtype=getattr(torch, dtype))
    try:
        model(x)
    except RuntimeError:
        with pytest.raises(TraceError, match="give inputs that of the weights, such as --input batch,32:float32"):
            rk.trace(model, rk.Input(2, 4, 8, dtype=dtype))
    else:
        rk.trace(model, rk.Input(2, 4, 8, dtype=dtype))
