"""What real PyTorch runs is traced: in whatever way a model, a library or an optimizer asks for it."""

import dataclasses
import functools
import types

import pytest
import torch
from learned import Uses, kinds
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.errors import InputError, SizeError, TraceError

X = rk.Input("n", 8)


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_examples_are_such_as_the_model_accepts() -> None:
    graph = rk.trace(nn.Conv1d(16, 16, 11), rk.Input("n", 16, "t"))
    # t - 10 outputs of 16·16·11
    assert graph.at(n=2, t=50).matrix_flop == 2 * 2 * 40 * 16 * 16 * 11


def test_a_trace_of_images_is_not_one_of_tiny_ones() -> None:
    # five halvings, of which the last leave a single pixel at small sizes
    layers = [nn.Conv2d(3 if i == 0 else 4, 4, 3, stride=2, padding=1) for i in range(5)]
    graph = rk.trace(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1)), rk.Input("n", 3, "h", "w"))
    for edge in (224, 256, 97):
        fixed = rk.trace(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1)), rk.Input(2, 3, edge, edge))
        assert graph.at(n=2, h=edge, w=edge).flop == fixed.flop


@pytest.mark.parametrize("length", [16, 17])
def test_fourier_transforms_keep_sizes_open(length: int) -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.fft.rfft2(x)
        return y, torch.fft.irfft2(y), torch.fft.fft(x)

    graph = rk.trace(model, rk.Input("n", 3, "h", "w"), strict=True)
    assert graph.dims == ("n", "h", "w")
    real = model(torch.zeros(2, 3, 5, length))
    assert [spec.shape for spec in graph.at(n=2, h=5, w=length).outputs] == [tuple(t.shape) for t in real]


@pytest.mark.parametrize("window", [True, False])
@pytest.mark.parametrize("complex_result", [True, False])
@pytest.mark.filterwarnings("ignore:A window was not provided")
def test_short_time_transforms_keep_the_length_open(window: bool, complex_result: bool) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        weights = torch.hann_window(24) if window else None
        found = torch.stft(x, 32, 8, win_length=24, window=weights, return_complex=True)
        return found if complex_result else torch.view_as_real(found)

    graph = rk.trace(model, rk.Input("n", "t"), strict=True, sizes={"t": 400})
    assert graph.dims == ("n", "t")
    for length in (400, 407, 1000):
        real = model(torch.rand(2, length))
        assert graph.at(n=2, t=length).outputs[0].shape == tuple(real.shape)


def test_bilinear_layers_keep_the_batch_open() -> None:
    graph = rk.trace(nn.Bilinear(3, 5, 7, bias=False), rk.Input("n", 3), rk.Input("n", 5), mode="training")
    assert graph.dims == ("n",)
    forward = [p for p in graph.priced if p.op.phase == "forward"]
    assert sum(cost.matrix_flop for p in forward for cost in p.costs).subs({graph.outputs[0].shape[0]: 4}) == (
        2 * 4 * 7 * (3 * 5 + 5)
    )


# --- products in groups, flexible attention ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_products_in_groups_of_any_format(dtype: str) -> None:
    model = Uses(lambda x, ends, weight: functional.grouped_mm(x, weight, offs=ends), (4, 8, 16))
    graph = rk.trace(model, X, rk.Input(4, dtype="int32"), dtype=dtype, mode="training", strict=True)
    # n rows of 8·16, and again for the weights; nothing asks for the input's gradient
    assert graph.at(n=6).matrix_flop == 2 * 2 * 6 * 8 * 16


@functools.lru_cache
def places(height: int, width: int) -> torch.Tensor:
    return torch.arange(height)[:, None] + torch.arange(width)


def test_sizes_are_keys_of_caches() -> None:
    seen: dict[int, torch.Tensor] = {}

    def model(x: torch.Tensor) -> torch.Tensor:
        seen.setdefault(x.shape[0], x)
        return x + places(*x.shape) + places(*x.shape)

    graph = rk.trace(model, rk.Input("h", "w"))
    assert graph.dims == ("h", "w")
    assert kinds(graph).count("aten.arange") == 2  # the second call finds the first one's
    assert places.cache_info().currsize == 0


def test_sizes_that_cannot_stay_open_are_traced_at_ones_that_the_model_accepts() -> None:
    def halving(x: torch.Tensor) -> torch.Tensor:
        small = functional.avg_pool2d(x, 32)
        return functional.interpolate(small, scale_factor=32.0) * torch.ones(int(x.shape[0]), 1, 1, 1) + x

    graph = rk.trace(halving, rk.Input("n", 3, "h", "w"))
    assert [(forced.name, forced.where[:15]) for forced in graph.forced] == [("n", "test_foreign.py")]
    assert graph.dims == ("h", "w")


def test_sizes_that_no_example_fits_are_told() -> None:
    with pytest.raises(TraceError, match=r"shape '\[7, 7\]' is invalid.* \(at n=5; sizes= gives other numbers\)"):
        rk.trace(lambda x: x.view(7, 7), rk.Input("n"))
    assert rk.trace(lambda x: x.view(7, 7), rk.Input("n"), sizes={"n": 49}).forced[0].value == 49


# --- outputs --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    features: list[torch.Tensor]


class Answering(nn.Linear):
    def forward(self, x: torch.Tensor) -> Answer:  # type: ignore[override]
        y = super().forward(x)
        return Answer(y, [y.relu()])


@dataclasses.dataclass
class Losing:
    loss: torch.Tensor
    rest: None = None


def test_a_dataclass_is_trained_by_all_of_it_or_by_its_loss() -> None:
    graph = rk.trace(Answering(8, 4), X, mode="training")
    assert len(graph.outputs) == 2
    assert kinds(graph).count("aten.sum") == 2 + 1  # of both outputs, and of the bias's gradient
    own = rk.trace(lambda x: Losing(Answering(8, 4)(x).logits.sum()), X)
    assert [spec.shape for spec in own.outputs] == [()]


def test_what_cannot_be_trained_is_told_with_its_reason() -> None:
    frozen = nn.Linear(8, 4).requires_grad_(False)
    with pytest.raises(TraceError, match="it has no parameter, or all are frozen"):
        rk.trace(frozen, X, mode="training")

    class Opaque(nn.Linear):
        def forward(self, x: torch.Tensor) -> object:  # type: ignore[override]
            return types.MappingProxyType({"y": super().forward(x)})

    with pytest.raises(TraceError, match="no tensor was found in the mappingproxy that it returns: give loss="):
        rk.trace(Opaque(8, 4), X, mode="training")
    assert rk.trace(Opaque(8, 4), X, mode="training", loss=lambda output: output["y"].sum()).gradients


# --- optimizers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Adafactor", "ASGD", "NAdam", "RAdam", "Adamax", "Rprop", "Adagrad"])
def test_optimizers_that_look_at_their_numbers(name: str) -> None:
    optimizer = getattr(torch.optim, name)
    graph = rk.trace(nn.Linear(8, 4), X, mode="training", optimizer=optimizer)
    assert "optimizer" in {op.phase for op in graph.ops}
    assert graph.dims == ("n",)
    assert graph.assumptions == ()


# --- what models ask for ----------------------------------------------------------------------------------------------


def test_a_model_that_asks_for_a_gpu() -> None:
    layer = nn.Linear(8, 8)

    def moves(x: torch.Tensor) -> torch.Tensor:
        one = torch.ones(x.shape[0], 1, device="cuda:0") + torch.zeros(1, device=torch.device("cuda"))
        return layer(x.cuda()) * one.to("cuda", torch.float32).to(device="cuda")

    graph = rk.trace(moves, X)
    assert graph.dims == ("n",)
    assert graph.matrix_flop.subs({graph.outputs[0].shape[0]: 3}) == 2 * 3 * 64


def test_keywords_that_the_tracer_has_itself() -> None:
    def model(x: torch.Tensor, *, mode: str, targets: torch.Tensor, name: str = "") -> torch.Tensor:
        return x @ targets.T if mode == "both" else x

    graph = rk.trace(model, X, keywords={"mode": "both", "targets": rk.Input(5, 8), "name": "a"})
    assert graph.at(n=3).matrix_flop == 2 * 3 * 5 * 8
    assert graph.name == "model"
    found = rk.predict(model, X, gpu="nvidia-l4", n=3, keywords={"mode": "both", "targets": rk.Input(5, 8)})
    assert found.graph.matrix_flop == 2 * 3 * 5 * 8
    with pytest.raises(InputError, match="keywords: expected inputs by name"):
        rk.trace(model, X, keywords=["mode"])


@pytest.mark.parametrize("mode", ["inference", "forward"])
def test_a_model_that_differentiates_in_its_forward_pass_runs_with_gradients(mode: str) -> None:
    layers = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forces(x: torch.Tensor) -> torch.Tensor:
        """The gradient of an energy by the positions: in every step, trained or not."""
        x.requires_grad_(True)
        (gradient,) = torch.autograd.grad(layers(x).sum(), x)
        return -gradient

    graph = rk.trace(forces, rk.Input("n", 3), mode=mode)
    # both layers, and back through both to the positions: 2 · n · (3·16 + 16·1), twice; weights get no gradient
    assert graph.at(n=10).matrix_flop == 2 * 2 * 10 * (48 + 16)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per")
def test_layers_quantized_for_cpus_may_be_traced_again() -> None:
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 6), nn.ReLU()), {nn.Linear})
    first, second = (rk.trace(model, X) for _ in range(2))
    assert first.dims == second.dims == ("n",)
    assert second.at(n=3).outputs[0].shape == (3, 6)


# --- libraries that look whether somebody traces ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # torch.ao is on its way out
def test_a_model_that_torch_ao_has_converted_is_told_to_be_traced_before() -> None:
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    converted = convert_fx(prepare_fx(model, get_default_qconfig_mapping("x86"), (torch.rand(2, 8),)))
    message = r"Could not run 'quantized::linear_relu' with arguments from the 'CPU' backend; GPUs have no such kernels"
    with pytest.raises(TraceError, match=message):
        rk.trace(converted, X)


def test_libraries_see_eager_mode() -> None:
    seen = []

    def model(x: torch.Tensor) -> torch.Tensor:
        fake = getattr(torch, "_subclasses").FakeTensor  # noqa: B009  as libraries write it
        seen.append(isinstance(x, fake) or torch.compiler.is_compiling() or torch.jit.is_tracing())
        return x + 1

    before = torch._subclasses.FakeTensor
    rk.trace(model, X)
    assert seen == [False]
    assert torch._subclasses.FakeTensor is before


# --- operators of torchvision -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_operators_of_torchvision() -> None:
    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()
    ops = pytest.importorskip("torchvision.ops")
    layer = ops.DeformConv2d(4, 6, 3, padding=1, bias=False)
    graph = rk.trace(layer, rk.Input("n", 4, 8, 8), rk.Input("n", 18, 8, 8), strict=True)
    # as a convolution: 64 places of 6·4·9
    assert graph.at(n=2).matrix_flop == 2 * 2 * 64 * 6 * 4 * 9
    pooled = rk.trace(lambda x, r: ops.roi_align(x, r, 7), rk.Input(2, 4, 8, 8), rk.Input("k", 5), strict=True)
    assert pooled.at(k=3).outputs[0].shape == (3, 4, 7, 7)
    kept = rk.trace(lambda b, s: ops.nms(b, s, 0.5), rk.Input("k", 4), rk.Input("k"), assume={"nms": 100}, strict=True)
    assert kept.outputs[0].shape == (100,)


# --- partly fixed sizes -----------------------------------------------------------------------------------------------


def test_some_sizes_may_be_traced_as_numbers() -> None:
    graph = rk.trace(functools.partial(torch.sum, dim=1), rk.Input("n", "s"), sizes={"n": 6, "s": 4}, fixed=["s"])
    assert (graph.dims, dict(graph.sizes)) == (("n",), {"s": 4})
    assert graph.at(n=3).outputs[0].shape == (3,)
    with pytest.raises(SizeError):
        graph.at(m=3)
