"""Ops → kernels: how many are launched, in which arithmetic, by which algorithm."""

from dataclasses import replace

import pytest
import torch
from learned import kernels
from torch import nn

import rooflinekit as rk
from rooflinekit.cost import table
from rooflinekit.cost.table import traffic
from rooflinekit.errors import SizeError
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Basis, DType, Family, Op, PricedOp, TensorSpec
from rooflinekit.kernels.algorithms import CUDNN, IN_PASSES, WINOGRAD
from rooflinekit.kernels.eager import issues_of
from rooflinekit.kernels.fusion import compiled_issues
from rooflinekit.kernels.kernel import Kernel


def of_cudnn(kernel: Kernel) -> list[Kernel]:
    """The algorithms that cuDNN has for it beside the plain one, which is its own."""
    assert (kernel.algorithm.library, kernel.algorithm.name) == (CUDNN, "")
    return [other for other in kernel.alternatives if other.algorithm.library in ("", CUDNN)]


def test_views_launch_nothing_but_are_issued() -> None:
    issues = issues_of(rk.trace(lambda x: x.view(6).exp(), rk.Input(2, 3)))
    assert [(issue.family, len(issue.kernels)) for issue in issues] == [("view", 0), ("elementwise", 1)]


def test_nothing_is_launched_for_results_without_an_element() -> None:
    assert kernels(lambda x: x[:, :0].exp() + torch.zeros(0), rk.Input(2, 3)) == []
    assert kernels(nn.Linear(16, 8), rk.Input(1, 16))
    none = rk.trace(lambda x, w: x[:0] @ w, rk.Input(4, 16), rk.Input(16, 8))
    assert rk.predict(none, "nvidia-l4").gpu_s == 0
    # of no products [4, 0] @ [0, 8] are zeros, which are written
    (zeros,) = kernels(lambda x, w: x[:, :0] @ w[:0], rk.Input(4, 16), rk.Input(16, 8))
    assert (zeros.cost.flop, zeros.cost.write_bytes) == (0, 4 * 4 * 8)
    # which elements of a mask are true is looked for, though none is
    assert kernels(lambda x: (x > 0).nonzero(), rk.Input(8), assume={"nonzero": 0})[1:]


def test_views_across_no_elements_have_a_time() -> None:
    graph = rk.trace(lambda x: x[:0].transpose(1, 2) + x.transpose(1, 2)[:0], rk.Input(4, 3, 5))
    assert rk.predict(graph, "nvidia-l4").gpu_s == 0


def test_a_bias_of_a_convolution_is_a_kernel_of_its_own() -> None:
    product, bias = kernels(nn.Conv2d(3, 8, 1), rk.Input(2, 3, 4, 4))
    # the product reads 2·3·16 inputs and 8·3 weights and writes 2·8·16 outputs, 4 bytes each
    assert (product.cost.read_bytes, product.cost.write_bytes) == (4 * (96 + 24), 4 * 256)
    assert product.cost.vector_flop == 0
    # the bias reads the output and itself, and writes the output
    assert (bias.cost.read_bytes, bias.cost.write_bytes) == (4 * (256 + 8), 4 * 256)
    assert bias.cost.vector_flop == 256
    assert (bias.family, bias.name) == ("elementwise", "convolution: bias")


def test_convolution_backward_is_a_kernel_a_gradient() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 5, 3))
    found = kernels(model, rk.Input(2, 3, 8, 8), mode="training")
    labels = [k.cost.label for k in found if k.kind == "aten.convolution_backward"]
    assert labels == ["input gradient", "weight gradient", "bias gradient", "weight gradient"]


def test_winograd_executes_four_ninths_or_a_quarter() -> None:
    (kernel,) = kernels(nn.Conv2d(8, 16, 3, padding=1, bias=False), rk.Input(2, 8, 8, 8))
    small, large = of_cudnn(kernel)
    assert small.name == "convolution (Winograd)"
    assert kernel.cost.matrix_flop == 2 * 2 * 64 * 16 * 8 * 9
    # 4×4 blocks of 2×2 outputs an image, which a kernel's block takes of 2 images and of up to 32 channels
    assert small.cost.matrix_flop == 2 * 16 * (2 * 16) * 32 * 8
    assert large.cost.matrix_flop == 2 * 36 * (2 * 4) * 16 * 8  # 4 blocks of 4×4
    assert small.cost.matrix_flop * 9 == kernel.cost.matrix_flop * 4 * (32 / 16)
    assert large.cost.matrix_flop * 4 == kernel.cost.matrix_flop
    # 16 numbers for each pair of channels are written and read again; that, and the weight, by a kernel of its own
    assert small.cost.bytes == kernel.cost.bytes + 2 * 4 * 16 * 8 * 16
    assert small.alone == 4 * (9 + 16) * 8 * 16
    # 36 numbers for each of 8 blocks and 8 + 16 channels, and for each pair of channels
    moved = 4 * 36 * (8 * (8 + 16) + 8 * 16)
    assert large.cost.bytes == kernel.cost.bytes + 2 * moved
    assert large.alone == kernel.cost.bytes + moved  # once by the product, all else by transforms


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 8, 1, bias=False),
        nn.Conv2d(8, 8, 3, stride=2, bias=False),
        nn.Conv2d(8, 8, 3, dilation=2, bias=False),
        nn.Conv2d(8, 8, 3, groups=2, bias=False),
        nn.ConvTranspose2d(8, 8, 3, stride=2, bias=False),
    ],
)
def test_other_convolutions_have_no_winograd_form(layer: nn.Module) -> None:
    (kernel,) = kernels(layer, rk.Input(1, 8, 9, 9))
    assert of_cudnn(kernel) == []


def test_a_transposed_convolution_has_those_of_the_gradient_that_it_is() -> None:
    (kernel,) = kernels(nn.ConvTranspose2d(8, 8, 3, bias=False), rk.Input(1, 8, 9, 9))
    small, large = of_cudnn(kernel)
    assert (small.algorithm.name, large.algorithm.name) == (WINOGRAD, IN_PASSES)
    # 6×6 blocks of 2×2 hold the 11×11 results: 2 of 4×8 blocks by 32 channels
    assert small.cost.matrix_flop == 2 * 16 * (2 * 32) * 32 * 8
    assert large.cost.matrix_flop == 2 * 36 * 9 * 8 * 8  # 3×3 blocks of 4×4


@pytest.mark.parametrize(
    ("dtype", "tf32", "convolution", "product"),
    [
        ("float32", None, "tf32", "fp32"),  # PyTorch's defaults
        ("float32", True, "tf32", "tf32"),
        ("float32", False, "fp32", "fp32"),
        ("float16", None, "fp16", "fp16"),
        ("bfloat16", None, "bf16", "bf16"),
        ("float64", None, "fp64", "fp64"),
    ],
)
def test_arithmetic_of_products(dtype: str, tf32: bool | None, convolution: str, product: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    found = {k.kind: k.math for k in kernels(model, rk.Input(1, 3, 2, 2), dtype=dtype, tf32=tf32)}
    assert found["aten.convolution"] == convolution
    assert found["aten.addmm"] == product
    assert found["aten.relu"] == ("fp64" if dtype == "float64" else "fp32")


def test_depthwise_convolutions_do_not_use_the_tensor_core() -> None:
    depthwise, dense = (kernels(nn.Conv2d(8, 8, 3, groups=g, bias=False), rk.Input(1, 8, 9, 9)) for g in (8, 1))
    assert not depthwise[0].tensor_core
    assert dense[0].tensor_core


def test_intensity() -> None:
    (kernel,) = kernels(lambda a, b: a @ b, rk.Input(64, 64), rk.Input(64, 64))
    assert kernel.intensity == pytest.approx(2 * 64**3 / (3 * 64 * 64 * 4))
    assert kernels(torch.exp, rk.Input(8))[0].intensity == pytest.approx(1 / 8)  # 1 FLOP, 4 bytes in, 4 out


def test_open_sizes_are_refused() -> None:
    graph = rk.trace(torch.exp, rk.Input("rows", "columns"))
    with pytest.raises(SizeError, match="no number is given for sizes 'rows' and 'columns': add rows=…, columns=…"):
        issues_of(graph)


@pytest.mark.parametrize(
    ("model", "shape", "family"),
    [
        (nn.Linear(4, 4), (2, 4), "matmul"),
        (nn.Bilinear(4, 4, 2), None, "matmul"),
        (nn.LSTM(4, 4), (3, 2, 4), "recurrence"),
        (nn.Conv2d(3, 4, 1, bias=False), (2, 3, 5, 5), "convolution"),
        (nn.LayerNorm(4), (2, 4), "normalization"),
        (nn.Softmax(1), (2, 4), "reduction"),
        (nn.MaxPool2d(2), (2, 3, 4, 4), "reduction"),
        (nn.GELU(), (2, 4), "elementwise"),
        (nn.Embedding(9, 4), (2, 3), "movement"),
        (torch.randn_like, (2, 4), "elementwise"),
    ],
)
def test_families(model: object, shape: tuple[int, ...] | None, family: str) -> None:
    if shape is None:
        inputs = [rk.Input(2, 4), rk.Input(2, 4)]
    else:
        inputs = [rk.Input(*shape, dtype="int64" if family == "movement" else "float32")]
    assert family in {kernel.family for kernel in kernels(model, *inputs)}


_NAMES = sorted({kind.rpartition(".")[2] for kind in table._RULES})
#: Arguments by which ATen's ops of these names are told apart.
_ARGUMENTS = {
    "dim": -1, "kernel_size": (3, 3), "normalized_shape": (64,), "training": True, "groups": 1, "batch_first": True,
    "mode": 2, "num_layers": 1, "bidirectional": False, "hidden_size": 64, "exponent": 2.5,
}  # fmt: skip


def _of_a_plug_in(name: str, timed_as: Family) -> PricedOp:
    x, y, z = (TensorSpec(name=name, shape=(8, 16, 32, 64), dtype=DType.FLOAT16) for name in "xyz")
    op = Op(name="op", kind=f"mylib.{name}", inputs=(x, y), outputs=(z,), attrs=_ARGUMENTS)
    cost = Cost(gemms=(Gemm(m=64, n=64, k=64),), vector_flop=z.numel) + traffic(op)
    return PricedOp(op=op, costs=(cost,), basis=Basis.RULE, timed_as=timed_as)


@pytest.mark.parametrize("timed_as", [family for family in Family if family is not Family.VIEW])
def test_the_name_of_a_plug_ins_op_decides_nothing(timed_as: Family) -> None:
    def issued(name: str) -> list[Kernel]:
        priced = _of_a_plug_in(name, timed_as)
        x, y = priced.op.inputs
        graph = rk.Graph(name="g", mode="inference", inputs=(x, y), weights=(), outputs=(), priced=(priced,))
        device = rk.load_device("nvidia-h100-sxm")
        found = (*issues_of(graph, (), device), *compiled_issues(graph, (), device))
        return [replace(kernel, kind="", name="") for issue in found for kernel in issue.kernels]

    plain = issued("gate")
    assert [name for name in (*_NAMES, "small_gate", f"my_{'_'.join(_NAMES)}_gate") if issued(name) != plain] == []


def test_a_product_says_how_its_matrices_lie() -> None:
    """A linear layer is x·Wᵀ; its gradients are g·W and, of the weight, gᵀ·x, unless g is one number for all."""
    layer = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    products = [k for k in kernels(layer, rk.Input(16, 8), mode="training") if k.family is Family.MATMUL]
    assert [(k.phase.value, k.algorithm.layout) for k in products] == [
        ("forward", "TN"), ("forward", "TN"), ("backward", "NN"), ("backward", "NN"), ("backward", "NT"),
    ]  # fmt: skip
