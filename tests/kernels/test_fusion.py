"""Kernels as torch.compile makes them: traffic of small networks worked out by hand, and laws that hold for all."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learned import Uses
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.errors import SizeError
from rooflinekit.hardware.specs import load_device
from rooflinekit.ir.inputs import Release
from rooflinekit.kernels.eager import issues_of
from rooflinekit.kernels.fusion import compiled_issues, is_fused
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.kernels.layout import converts_to_channels_last

Traffic = list[tuple[str, int, int]]  # of each kernel: its ops, bytes read, bytes written


def traced(model: Callable[..., Any], *inputs: rk.Input, **options: Any) -> rk.Graph:
    return rk.trace(model, *inputs, fixed=True, **options)


def kernels(graph: rk.Graph, tensor_formats: tuple[str, ...] = ()) -> list[Kernel]:
    device = load_device("nvidia-a100-sxm4-80gb")
    return [kernel for issue in compiled_issues(graph, tensor_formats, device) for kernel in issue.kernels]


def ops(kernel: Kernel) -> str:
    """ "triton_poi_fused_add_relu_3" → "add_relu"; libraries' kernels by their kind."""
    if "channels last" in kernel.cost.label:
        return kernel.cost.label
    _, fused, rest = kernel.name.partition("_fused_")
    return rest.rpartition("_")[0] if fused else kernel.kind.removeprefix("aten.")


def traffic(graph: rk.Graph, tensor_formats: tuple[str, ...] = ()) -> Traffic:
    return [(ops(k), int(k.cost.read_bytes), int(k.cost.write_bytes)) for k in kernels(graph, tensor_formats)]


def test_bias_batch_norm_and_relu_are_one_kernel_after_a_convolution() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    # input 2·3·16·16 and weight 8·3·3·3 numbers of 4 bytes: 6144 + 864, each turned to channels last before;
    # output 2·8·16·16: 16384. The pointwise kernel also reads bias, gain, shift, mean and variance: 5·8·4 = 160
    assert traffic(traced(model, rk.Input(2, 3, 16, 16))) == [
        ("to channels last", 6144, 6144),
        ("to channels last", 864, 864),
        ("convolution", 6144 + 864, 16384),
        ("bias_native_batch_norm_relu", 16384 + 160, 16384),
    ]


def test_an_activation_between_products_is_a_kernel_of_its_own() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    # x 32·16, W 64·16: (512 + 1024)·4 = 6144; hidden 32·64·4 = 8192, read with its bias of 64·4 = 256 by the
    # activation; the second, whose reader is the caller, (2048 + 1024 + 16)·4 = 12352
    assert traffic(traced(model, rk.Input(32, 16))) == [
        ("mm", 6144, 8192),
        ("bias_gelu", 8192 + 256, 8192),
        ("addmm", 12352, 2048),
    ]


@pytest.mark.parametrize(
    ("dtype", "like", "leaves"), [("float32", None, True), ("float16", None, False), ("float16", "2.11", True)]
)
def test_a_bias_goes_to_pointwise_readers_but_of_16_bits_from_some_release_on(
    dtype: str, like: str | None, leaves: bool
) -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU()).to(getattr(torch, dtype))
    found = traffic(rk.trace(model, rk.Input(32, 16, dtype=dtype), fixed=True, like=like))
    size = 4 if dtype == "float32" else 2  # x 32·16 = 512, W 1024, b 64, y 2048 numbers
    bias = 64 * size
    product, hidden = (512 + 1024) * size, 2048 * size
    assert [part[1:] for part in found] == [
        (product + (0 if leaves else bias), hidden),
        (hidden + (bias if leaves else 0), hidden),
    ]


def test_a_bias_stays_with_its_product_where_a_reader_is_no_pointwise_op() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64))
    # x 512, W 1024, b 64 numbers of 4 bytes; the normalization reads 2048, gain and shift of 64
    assert traffic(traced(model, rk.Input(32, 16))) == [
        ("addmm", (512 + 1024 + 64) * 4, 8192),
        ("native_layer_norm", 8192 + 512, 8192),
    ]


def test_what_an_op_takes_twice_in_fp32_is_stored_in_fp32_for_two_kernels() -> None:
    activated = nn.Sequential(nn.Conv2d(64, 64, 1, bias=False), nn.BatchNorm2d(64), nn.SiLU()).half().eval()

    def gated(x: torch.Tensor) -> torch.Tensor:
        """A squeeze without weights: the mean over pixels of an activation scales it."""
        y = activated(x)
        return y * y.mean((2, 3), keepdim=True)

    found = traffic(traced(gated, rk.Input(8, 64, 32, 32, dtype="float16")))
    n = 8 * 64 * 32 * 32  # numbers of an image
    # torch 2.13 (benchmarks/coverage/inductor.py writes out such kernels): the norm reads 2n bytes and 4 vectors of 64
    # halves, and stores 4n; silu is computed from these twice: for the sums, split in two kernels as 512 results are
    # fewer than 64 an SM, and for the result
    assert [part[1:] for part in found if "silu" in part[0] or "batch_norm" in part[0]] == [
        (2 * n + 4 * 64 * 2, 4 * n),
        (4 * n, 8 * 64 * 2),
        (0, 0),
        (4 * n + 8 * 64 * 2, 2 * n),
    ]


def test_layer_norm_keeps_its_statistics_to_itself() -> None:
    # 32·64 numbers in and out, gain and shift of 64: eager mode writes mean and 1/σ too
    assert traffic(traced(nn.LayerNorm(64), rk.Input(32, 64))) == [("native_layer_norm", 8192 + 512, 8192)]


def test_softmax_reads_and_writes_once_with_what_is_before_and_after() -> None:
    assert traffic(traced(lambda x: (x * 2).softmax(-1).relu(), rk.Input(32, 64))) == [("mul_softmax_relu", 8192, 8192)]


def test_a_residual_sum_is_written_once_and_read_by_its_norm_on_the_way() -> None:
    linear, norm = nn.Linear(64, 64, bias=False), nn.LayerNorm(64, elementwise_affine=False)

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + linear(x)
        return y, norm(y)

    # product: x 8192 and W 64·64·4 = 16384 in, 8192 out. Then both in, sum and norm out.
    assert traffic(traced(model, rk.Input(32, 64))) == [
        ("mm", 8192 + 16384, 8192),
        ("add_native_layer_norm", 2 * 8192, 2 * 8192),
    ]


def test_casts_of_activations_vanish_and_those_of_weights_stay() -> None:
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64, bias=False))
    # layer norm in fp32 and the cast of its result: 8192 + 2·256 in, 32·64·2 = 4096 out.
    # weight 64·64: 16384 in, 8192 out. Product: 4096 + 8192 in, 4096 out.
    assert sorted(traffic(traced(model, rk.Input(32, 64), autocast="float16"))) == [
        ("mm", 4096 + 8192, 4096),
        ("native_layer_norm_to_copy", 8192 + 512, 4096),
        ("to_copy", 16384, 8192),
    ]


def test_few_concatenated_tensors_are_computed_where_they_are_read() -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a.relu(), b], dim=1).sigmoid()

    # 32·16 and 32·48 numbers in, 32·64 out
    assert traffic(traced(model, rk.Input(32, 16), rk.Input(32, 48))) == [("relu_cat_sigmoid", 2048 + 6144, 8192)]


def test_a_library_finds_a_concatenation_in_one_loop_unless_a_product_can_write_its_part() -> None:
    # as inductor writes them (torch 2.13, output code for a GPU of 114 SMs): 32·64·4 = 8192
    def copied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a.relu(), b], dim=1) @ b.new_ones(64, 8)

    sizes = (rk.Input(32, 16), rk.Input(32, 48))
    assert traffic(traced(copied, *sizes))[0] == ("relu_cat", 8192, 8192)
    # the product writes its 32 columns of 48 + 32 itself; the other 48 are copied: 32·48·4
    found = traffic(traced(lambda a, b: torch.cat([a @ b.T, b], dim=1).sum(1), rk.Input(32, 48), rk.Input(32, 48)))
    assert [line[1:] for line in found if line[0] == "cat"] == [(6144, 6144)]


def test_inputs_that_others_read_are_put_to_their_place_from_some_release_on() -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = a.relu()
        return torch.cat([x, b], dim=1).sigmoid(), x * 2

    sizes = (rk.Input(32, 16), rk.Input(32, 48))
    old = traffic(rk.trace(model, *sizes, like="2.5"))
    assert old == [("relu_cat_sigmoid", 8192, 8192), ("relu_mul", 2048, 2048)]
    # today one loop over a writes its part and x·2, one copies b, and the sigmoid reads what they have written
    assert sorted(line[1:] for line in traffic(traced(model, *sizes))) == [(2048, 4096), (6144, 6144), (8192, 8192)]


def test_a_value_with_several_readers_is_computed_again_while_it_is_cheap() -> None:
    weight = torch.ones(8, 8)

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.relu()
        return y.sum(1), (y.t().sigmoid() @ weight[:, :4].t().t()).sum()

    found = traffic(traced(model, rk.Input(8, 8)))
    # the sum over rows and the transposed sigmoid go over the same 64 numbers, and each takes the ReLU of x:
    # it is written nowhere. The sum of 8 rows fuses with the sigmoid: 256 in, 32 + 256 out.
    assert ("relu", 256, 256) not in found
    assert found[0][1] == 256


def test_a_value_of_many_tensors_is_stored_for_several_readers() -> None:
    def model(*xs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = xs[0] + xs[1] + xs[2] + xs[3] + xs[4]
        return y.max(0).values, y.t().cumsum(0)

    five = [rk.Input(16, 16)] * 5
    # 5 tensors of 1024 bytes: more than 4 reads. The sum is stored with the maximum, and the scan reads it.
    by_name = {name: (read, written) for name, read, written in traffic(traced(model, *five))}
    assert by_name["cumsum"][0] == 1024


def test_slices_of_a_weight_are_read_once_and_no_more_than_the_whole() -> None:
    model = Uses(lambda x, w: x * w[:32] + w[32:] + w[16:48], (64, 16))
    # x and the result 32·16·4 = 2048 bytes; three slices of 2048 of a weight of 4096
    assert traffic(traced(model, rk.Input(32, 16))) == [("mul_add", 2048 + 4096, 2048)]


def test_an_expanded_statistic_fuses_with_its_rows() -> None:
    # x / max(|x|, ε), the norm expanded to the size of x
    found = traffic(traced(lambda x: functional.normalize(x, dim=-1), rk.Input(32, 64)))
    assert found == [("linalg_vector_norm_clamp_min_div", 8192, 8192)]


def test_pooling_reads_what_was_stored() -> None:
    model = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    # 1·4·8·8 numbers: 1024 bytes in and out; then 1024 in and 256 out, and no indices, which nobody asks for
    assert traffic(traced(model, rk.Input(1, 4, 8, 8))) == [
        ("relu", 1024, 1024),
        ("max_pool2d_with_indices", 1024, 256),
    ]


def test_a_maximums_gradient_goes_by_places_of_a_byte_and_is_added_up_from_2_12_on() -> None:
    """ReLU, then windows of 2 × 2 of 1·4·8·8 = 256 numbers of 4 bytes: 1024 bytes before, 256 after, 64 places."""
    model = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.ReLU(), nn.MaxPool2d(2))
    graph = traced(model, rk.Input(1, 4, 8, 8), mode="training", loss=lambda y: y.sum())

    def of_pools(release: Release) -> Traffic:
        return [found for found in traffic(replace(graph, like=release)) if re.search("pool|full|scatter", found[0])]

    forward = ("max_pool2d_with_indices_sum", 1024, 256 + 64 + 4)
    # the sum's gradient is one number; its places are read, and what lies there is read and written again
    added = [("full", 0, 1024), ("scatter_add_", 4 + 64 + 256, 256)]
    assert of_pools(Release(2, 12)) == [forward, *added]
    # with the gradient of ReLU, which reads its result
    sought = "max_pool2d_with_indices_backward_threshold_backward"
    assert of_pools(Release(2, 11)) == [forward, (sought, 4 + 64 + 1024, 1024)]
    in_eight_bytes = ("max_pool2d_with_indices_sum", 1024, 256 + 8 * 64 + 4)
    assert of_pools(Release(2, 3)) == [in_eight_bytes, (sought, 4 + 8 * 64 + 1024, 1024)]


def test_the_backward_phase_computes_again_what_costs_no_memory() -> None:
    """Images of 2·8·8·8 = 1024 numbers, 4096 bytes; a number a channel is 32 bytes."""
    layers = nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 4, 1, bias=False)
    graph = traced(nn.Sequential(*layers), rk.Input(2, 4, 8, 8), mode="training", loss=lambda y: y.sum())
    forward, backward = (found for found in traffic(graph) if "silu" in found[0])
    # the normalized images, from which SiLU's gradient is made, are not kept: the convolution's result is in any case,
    # for the gradient of the normalization. SiLU's result is, which the gradient of the next weight takes.
    # Beside it gain, shift and running statistics are read; these, the saved and the used statistics written.
    assert forward == ("native_batch_norm_silu", 4096 + 4 * 32, 4096 + 5 * 32)
    # the gradient and the convolution's result; gain, shift and all statistics; then gradients of gain and shift
    assert backward[1:] == (2 * 4096 + 7 * 32, 4096 + 2 * 32)


def test_what_was_cast_to_fp32_is_kept_before_the_cast() -> None:
    """Two rows of 64 numbers of 16 bits, 256 bytes: the product, which AOTAutograd's partition keeps, too."""

    before, behind = (nn.Linear(64, 64, bias=False, dtype=torch.bfloat16) for _ in range(2))

    def model(x: torch.Tensor) -> torch.Tensor:
        wide = before(x).float()
        return behind((wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype))

    found = traffic(traced(model, rk.Input(2, 64, dtype="bfloat16"), mode="training", loss=lambda y: y.sum()))
    assert ("to_copy_pow_mean_add_rsqrt_mul", 256, 256 + 2 * 4) in found  # a number a row, and not the rows in fp32
    backward = [(read, written) for name, read, written in found if "pow" in name][1:]
    assert backward == [(256 + 256 + 2 * 4, 256)]  # the product, and the gradient


def test_logits_are_kept_in_place_of_their_log_softmax() -> None:
    """Four rows of 64 logits in fp32, 1024 bytes: torch 2.13's partition keeps the product, and two numbers a row."""

    linear = nn.Linear(16, 64, bias=False)

    def entropy(x: torch.Tensor) -> torch.Tensor:
        logs = functional.log_softmax(linear(x), -1)
        return (logs.exp() * logs).sum()

    found = traffic(traced(entropy, rk.Input(4, 16), mode="training", loss=lambda y: y))
    assert sum(written for name, _, written in found if "log_softmax" in name and "backward" not in name) < 1024
    ((_, read, written),) = (one for one in found if "backward" in one[0])
    assert 1024 < read <= 1024 + 4 * 3 * 4
    assert written == 1024


def test_sums_of_a_residual_stream_are_kept() -> None:
    """Four rows of 64 numbers, 1024 bytes. The sum hangs on a value that a product took before it, so torch 2.13's
    partition keeps it, though tanh's gradient could be made of what is kept of the two products as well.
    """

    first, second = (nn.Linear(64, 64, bias=False) for _ in range(2))

    def model(x: torch.Tensor) -> torch.Tensor:
        x = torch.sin(first(x))
        return torch.tanh(x + second(torch.cos(x))).exp().sum()

    found = traffic(traced(model, rk.Input(4, 64), mode="training", loss=lambda y: y))
    (backward,) = (one for one in found if "tanh_backward" in one[0])
    assert backward[1:] == (1024, 1024)


def test_what_chance_made_is_kept_for_the_backward_phase() -> None:
    """Dropout of 32·64 numbers: 8192 bytes of them and a mask of 2048, with those of the norm and two numbers a row."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.5), nn.LayerNorm(64), nn.Linear(64, 16))
    graph = traced(model, rk.Input(32, 16), mode="training", loss=lambda y: y.sum())
    (written,) = (written for name, _, written in traffic(graph) if name == "gelu_native_dropout_native_layer_norm")
    assert written == 8192 + 2048 + 8192 + 2 * 32 * 4


def test_what_is_drawn_is_drawn_once() -> None:
    before, behind = nn.Linear(16, 64), nn.Linear(64, 16)

    def model(x: torch.Tensor) -> torch.Tensor:
        y = before(x)
        return behind(functional.silu(y * torch.empty_like(y).exponential_()))

    found = traffic(traced(model, rk.Input(32, 16), mode="training", loss=lambda y: y.sum()))
    assert sum("exponential" in name for name, _, _ in found) == 1


def test_a_dilated_window_is_the_librarys_up_to_a_release() -> None:
    graph = traced(lambda x: functional.max_pool2d(x, 2, dilation=2), rk.Input(1, 4, 8, 8))
    assert ops(kernels(graph)[0]) == "max_pool2d_with_indices"
    assert kernels(replace(graph, like=Release(2, 5)))[0].kind == "aten.max_pool2d_with_indices"


def test_what_inductor_lowers_to_loops_fuses_and_what_it_falls_back_from_does_not() -> None:
    """torch 2.13 lowers lgamma, slice_scatter and select_scatter, and decomposes linalg_cross and mvlgamma."""

    def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.slice_scatter(x * 2, y, 0, 1, 3).relu()

    def row(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.select_scatter(x * 2, y[0], 0, 1).relu()

    # of 4·8 numbers the two rows, or the one, of the source: 128 + 64 and 128 + 32 bytes read, 128 written
    assert traffic(traced(written, rk.Input(4, 8), rk.Input(2, 8))) == [("mul_slice_scatter_relu", 192, 128)]
    assert traffic(traced(row, rk.Input(4, 8), rk.Input(2, 8))) == [("mul_select_scatter_relu", 160, 128)]
    for pointwise in (torch.lgamma, lambda x: torch.special.multigammaln(x + 9, 3), lambda x: torch.linalg.cross(x, x)):
        assert len(kernels(traced(lambda x, f=pointwise: f(x * 2).relu(), rk.Input(8, 3)))) == 1
    whole = kernels(traced(lambda x: torch.ops.aten._is_all_true((x * 2) > 1).logical_not(), rk.Input(8, 3)))
    assert [ops(kernel) for kernel in whole] == ["mul_gt", "_is_all_true", "logical_not"]


def test_a_mean_over_pixels_takes_the_activation_before_it() -> None:
    model = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Sigmoid())
    # 2·4·8·8 numbers in, 2·4 out
    assert traffic(traced(model, rk.Input(2, 4, 8, 8))) == [("relu_mean_sigmoid", 2048, 32)]


def test_a_loss_over_long_rows_takes_two_kernels() -> None:
    found = kernels(traced(lambda x: x.square().sum(), rk.Input(1024, 1024)))
    assert [ops(kernel) for kernel in found] == ["pow_sum", "pow_sum"]
    assert [int(kernel.cost.bytes) for kernel in found] == [1024 * 1024 * 4 + 4, 0]


def test_columns_are_summed_in_two_kernels_where_there_are_fewer_than_64_an_sm() -> None:
    graph = traced(lambda x: x.sum(0), rk.Input(1024, 64 * 58))  # an L4 has 58 SMs, a T4 40, an A100 108
    found = {name: compiled_issues(graph, (), load_device(name)) for name in ("l4", "t4", "a100-sxm4-80gb")}
    assert [sum(len(issue.kernels) for issue in issues) for issues in found.values()] == [1, 1, 2]
    predicted = {name: rk.predict(graph, gpu=name, execution="compiled") for name in ("l4", "a100-sxm4-80gb")}
    assert [len(step.timings) for step in predicted.values()] == [1, 2]  # the same graph, not the same kernels


def step_of(optimizer: Callable[..., Any]) -> rk.Graph:
    model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 8, bias=False))
    return traced(model, rk.Input(64, 16), mode="training", optimizer=optimizer)


# numbers of 4 bytes: x 64·16, W₁ 32·16, h 64·32, W₂ 8·32, y 64·8
X, W1, H, W2, Y = 4096, 2048, 8192, 1024, 2048


def test_a_training_step_with_sgd() -> None:
    found = traffic(step_of(lambda p: torch.optim.SGD(p, lr=0.1)))
    assert [part for part in found if part[0] in ("mm", "relu", "threshold_backward")] == [
        ("mm", X + W1, H),
        ("relu", H, H),
        ("mm", H + W2, Y),
        # the gradient of a sum is one number, expanded
        ("mm", 4 + H, W2),
        ("mm", 4 + W2, H),
        ("threshold_backward", H + H, H),
        ("mm", H + X, W1),
    ]
    # all parameters in one kernel: each and its gradient read, it written
    assert found[-1] == ("foreach_add", 2 * (W1 + W2), W1 + W2)


def test_adamw_is_one_kernel_over_all_tensors() -> None:
    *_, last = traffic(step_of(torch.optim.AdamW))
    # parameter, gradient and both moments read; parameter and moments written
    assert last[1:] == (4 * (W1 + W2), 3 * (W1 + W2))


def test_adamw_without_foreach_is_one_kernel_a_tensor() -> None:
    found = traffic(step_of(lambda p: torch.optim.AdamW(p, foreach=False)))
    assert [part[1:] for part in found[-2:]] == [(4 * W1, 3 * W1), (4 * W2, 3 * W2)]


def test_batch_norm_in_training_forms_its_statistics_first() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    graph = traced(model, rk.Input(64, 4, 64, 64), mode="training")
    # 64·8·64·64 numbers are 8 MiB: 8 channels of 262144 each, in two kernels; then normalization and ReLU
    n = 64 * 8 * 64 * 64 * 4
    found = [part for part in traffic(graph) if part[0].startswith("native_batch_norm")][:3]
    # (the loss, a sum of the output, is formed on the way)
    assert [name for name, *_ in found] == ["native_batch_norm", "native_batch_norm", "native_batch_norm_relu_sum"]
    assert n <= found[0][1] < 1.001 * n
    assert found[0][2] < 1000
    assert n <= found[2][1] < 1.001 * n


def test_a_converted_network_pays_layout_copies_at_its_ends_and_of_weights() -> None:
    model = nn.Sequential(nn.Conv2d(128, 128, 3, bias=False), nn.ReLU(), nn.Conv2d(128, 64, 3, bias=False))
    graph = traced(model, rk.Input(1, 128, 16, 16, dtype="float16"), dtype="float16")
    assert converts_to_channels_last(graph)
    # at 2 bytes: the input 128·16·16, weights 128·128·9 and 64·128·9, and the result 64·12·12 of a library
    found = [part for part in traffic(graph, ("fp16",)) if "channels last" in part[0]]
    there, back = "to channels last", "from channels last"
    assert found == [
        (there, 65536, 65536), (there, 294912, 294912), (there, 147456, 147456), (back, 18432, 18432),
    ]  # fmt: skip
    pixel = traced(nn.Conv2d(128, 64, 1, bias=False), rk.Input(1, 128, 16, 16))  # a weight of one pixel has one layout
    assert [part[0] for part in traffic(pixel)] == [there, "convolution", back]
    eager = [k.cost.label for i in issues_of(graph, ("fp16",)) for k in i.kernels if "channels last" in k.name]
    assert eager == ["to channels last", "from channels last"] * 2


def test_layouts_are_of_images_alone() -> None:
    model = nn.Sequential(nn.Conv1d(8, 16, 9), nn.ReLU(), nn.Conv1d(16, 16, 3))
    graph = rk.trace(model, rk.Input("batch", 8, "length")).at(batch=4, length=64)
    assert [name for name, *_ in traffic(graph)] == ["convolution", "bias_relu", "convolution", "bias"]


def test_grouped_convolutions_keep_their_layout() -> None:
    grouped = traced(nn.Conv2d(64, 64, 3, groups=4), rk.Input(1, 64, 16, 16))
    assert not converts_to_channels_last(grouped)  # 1.358 of the time, says inductor
    assert not converts_to_channels_last(traced(nn.Linear(8, 8), rk.Input(8, 8)))
    depthwise = traced(nn.Conv2d(64, 64, 3, groups=64), rk.Input(1, 64, 16, 16))
    assert converts_to_channels_last(depthwise)  # small: 0.783
    narrowing = nn.Conv2d(256, 64, 3)
    assert converts_to_channels_last(traced(narrowing, rk.Input(1, 256, 16, 16)))
    assert not converts_to_channels_last(traced(narrowing, rk.Input(1, 256, 16, 16), mode="training"))


def test_what_a_library_does_is_never_dropped() -> None:
    graph = traced(nn.LSTM(8, 16), rk.Input(5, 2, 8), mode="training", loss=lambda output: output[0].sum())
    names = [name for name, *_ in traffic(graph)]
    assert names[-1] == "_cudnn_rnn_backward"
    assert sum(kernel.cost.matrix_flop for kernel in kernels(graph)) == graph.matrix_flop


def test_open_sizes_are_refused() -> None:
    with pytest.raises(SizeError):
        compiled_issues(rk.trace(nn.ReLU(), rk.Input("batch", 8)))


# --- laws ---------------------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "add": lambda x: x + x.sigmoid(),
    "norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "softmax": lambda x: x.softmax(-1),
    "columns": lambda x: x.softmax(0),
    "mean": lambda x: x - x.mean(-1, keepdim=True),
    "turn": lambda x: x.t().contiguous().t() + 1,
    "cat": lambda x: torch.cat([x, x.tanh()], -1)[:, : x.shape[1]],
    "product": lambda x: x @ x.t() @ x,
    "half": lambda x: x.half().float(),
    "in place": lambda x: x.clone().mul_(2).add_(1),
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=8), st.booleans())
def test_compiled_moves_no_more_than_eager(names: list[str], training: bool) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        first = x
        for name in names:
            x = STEPS[name](x)
        return x + first

    multiplied = Uses(lambda x, weight: model(x @ weight), (24, 24))
    graph = traced(multiplied, rk.Input(16, 24), mode="training" if training else "inference")
    eager = [kernel for issue in issues_of(graph) for kernel in issue.kernels]
    fused = kernels(graph)
    assert sum(k.cost.bytes for k in fused) <= sum(k.cost.bytes for k in eager)
    assert len(fused) <= len(eager)
    assert sum(k.cost.matrix_flop for k in fused) == sum(k.cost.matrix_flop for k in eager)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 8, 3)), (2, 3, 16, 16)),
        (nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.LayerNorm(16), nn.Softmax(-1)), (32, 16)),
        (
            nn.Sequential(nn.Conv2d(4, 8, 3, groups=4, bias=False), nn.GroupNorm(2, 8), nn.SiLU(), nn.AvgPool2d(2)),
            (2, 4, 17, 17),
        ),
    ],
    ids=["convolution", "transformer", "group norm"],
)
def test_arithmetic_is_kept_where_nothing_is_computed_twice(model: nn.Module, size: tuple[int, ...]) -> None:
    for mode in ("inference", "training"):
        graph = traced(model, rk.Input(*size), mode=mode)
        found = kernels(graph)
        for part in ("matrix_flop", "vector_flop", "special_flop"):
            counted = sum(getattr(kernel.cost, part) for kernel in found)
            # in backward, gradients are computed again for the sums over rows and down columns
            assert counted == getattr(graph, part) or (mode == "training" and counted > getattr(graph, part))


def test_a_bias_gradient_is_a_sum_that_fuses_with_what_is_summed() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU())
    found = traffic(traced(model, rk.Input(2, 4, 16, 16), mode="training"))
    # 2·8·16·16 numbers: 16384 bytes. ReLU's gradient reads the output (that of the sum is one number), and is written
    # for the product of the weight gradient; the sum over all but the 8 channels is formed on the way.
    assert ("ones_like_threshold_backward_sum", 16384, 16384 + 32) in found or (
        "threshold_backward_sum",
        16384 + 4,
        16384 + 32,
    ) in found


def test_a_reduction_down_columns_fuses_with_what_reads_it_where_loops_are_turned_over() -> None:
    def normed(x: torch.Tensor) -> torch.Tensor:
        return x / x.pow(2).mean(1, keepdim=True).add(1e-5).sqrt()

    size = 4 * 16 * 64 * 32 * 32  # bytes of the tensor; its root mean squares are a 64th of it
    new, old = (traffic(rk.trace(normed, rk.Input(16, 64, 32, 32), fixed=True, like=like)) for like in (None, "2.5"))
    assert [part[1:] for part in new] == [(size, size)]
    assert [part[1:] for part in old] == [(size, size // 64), (size + size // 64, size)]


def test_kernels_that_lie_apart_close_no_circle() -> None:
    def crossed(x: torch.Tensor, u: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = (x + u).sin(), y.cos()
        return first @ w + y, second @ w + x * u

    # The sine shares two tensors with the last sum and runs with it, the cosine one with the other sum. That sum needs
    # the sine and the last one the cosine: as one kernel each, both would need the other first.
    square = rk.Input(512, 512)
    issues = compiled_issues(rk.trace(crossed, square, square, square, square))
    assert sorted(is_fused(issue) for issue in issues) == [False, False, True, True, True]
