"""Normalizations: forward in training and evaluation, and backward, counted by hand."""

import pytest
from learned import Learned, in_mode, squares
from torch import nn
from torch.nn import functional


@pytest.fixture
def trained(traced):
    """The training step of a layer whose input needs a gradient."""

    def trace(layer, shape):
        return traced(Learned(layer), shape, **in_mode("training"))

    return trace


# --- layer and group norm: forward ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "flop", "read"),
    [
        # mean 1, difference 1, square 1, sum 1, times 1/σ 1, of 60; then gain 1, shift 1
        (nn.LayerNorm(10), 420, 320),  # 7 · 60; 4 · (60 + 10 + 10)
        (nn.LayerNorm(10, bias=False), 360, 280),  # 6 · 60; 4 · (60 + 10)
        (nn.LayerNorm(10, elementwise_affine=False), 300, 240),  # 5 · 60; 4 · 60
    ],
)
def test_layer_norm_forward(traced, layer, flop, read):
    graph = traced(layer, (6, 10))
    assert (graph.matrix_flop, graph.vector_flop, graph.special_flop) == (0, flop, 6)  # 1/√ of each row
    assert graph.read_bytes == read
    assert graph.write_bytes == 288  # 4 · (60 + 6 + 6): output, mean and 1/σ of each row


def test_group_norm_forward(traced):
    graph = traced(nn.GroupNorm(3, 6), (2, 6, 5))
    assert graph.vector_flop == 420  # 7 · 2·6·5
    assert graph.special_flop == 6  # 2 images · 3 groups
    assert graph.read_bytes == 288  # 4 · (60 + 6 + 6)
    assert graph.write_bytes == 288  # 4 · (60 + 6 + 6)


# --- layer and group norm: backward ---------------------------------------------------------------------------


def test_layer_norm_backward(trained, costs_of):
    by_input, by_weight = costs_of(trained(nn.LayerNorm(10), (6, 10)), "native_layer_norm_backward")
    # x̂ 2, times gain 1, summed 1, times x̂ summed 2, combined 4
    assert (by_input.vector_flop, by_input.special_flop) == (600, 0)  # 10 · 60
    assert by_input.read_bytes == 568  # 4 · (60 gradient + 60 input + 6 mean + 6 of 1/σ + 10 gain)
    assert by_input.write_bytes == 240  # 4 · 60
    # gain: x̂ 2, times gradient 1, sum 1; shift: sum 1
    assert by_weight.vector_flop == 300  # 5 · 60
    assert by_weight.read_bytes == 528  # 4 · (60 + 60 + 6 + 6)
    assert by_weight.write_bytes == 80  # 4 · (10 + 10)


@pytest.mark.parametrize(
    ("layer", "kernels"),
    [
        (nn.LayerNorm(10, bias=False), [(600, 568, 240), (240, 528, 40)]),  # gain alone: 4 · 60; 4 · 10 bytes
        (nn.LayerNorm(10, elementwise_affine=False), [(600, 528, 240)]),  # no gain to read
    ],
)
def test_layer_norm_backward_of_what_is_there(trained, costs_of, layer, kernels):
    backward = costs_of(trained(layer, (6, 10)), "native_layer_norm_backward")
    assert [(c.vector_flop, c.read_bytes, c.write_bytes) for c in backward] == kernels


def test_a_first_layer_norm_has_no_gradient_of_its_input(traced, costs_of):
    graph = traced(nn.LayerNorm(10), (6, 10), mode="training", loss=squares)
    (backward,) = costs_of(graph, "native_layer_norm_backward")
    assert backward.label == "gain and shift gradient"
    assert (backward.vector_flop, backward.write_bytes) == (300, 80)


def test_shift_alone_reads_the_gradient_alone(tensor, cost):
    grad, x, bias = tensor(6, 10), tensor(6, 10), tensor(10)
    inputs = [grad, x, tensor(6, 1), tensor(6, 1), bias]
    c = cost("native_layer_norm_backward", inputs, [tensor(10)], output_mask=(False, False, True), bias=bias)
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (60, 240, 40)


def test_group_norm_backward(trained, costs_of):
    by_input, by_weight = costs_of(trained(nn.GroupNorm(3, 6), (2, 6, 5)), "native_group_norm_backward")
    assert (by_input.vector_flop, by_weight.vector_flop) == (600, 300)  # 10 · 60; 5 · 60
    assert by_input.read_bytes == 552  # 4 · (60 + 60 + 6 + 6 + 6 gain)
    assert by_weight.write_bytes == 48  # 4 · (6 + 6)


# --- batch norm -----------------------------------------------------------------------------------------------


BARE = nn.BatchNorm1d(3, affine=False, track_running_stats=False)


@pytest.mark.parametrize(
    ("layer", "mode", "flop", "read", "write"),
    [
        # 7 · 8·3·4; 4 · (96 + gain 3 + shift 3 + running 3 + 3); 4 · (96 + saved 3 + 3 + running 3 + 3)
        (nn.BatchNorm1d(3), "training", 672, 432, 432),
        # no statistics of the batch, but running ones: difference, times 1/σ, gain, shift: 4 · 96
        (nn.BatchNorm1d(3), "inference", 384, 432, 384),
        # statistics of the batch in evaluation too, no gain, no shift: 5 · 96; 4 · 96; 4 · (96 + 3 + 3)
        (BARE, "inference", 480, 384, 408),
    ],
    ids=["training", "evaluation", "without parameters and running statistics"],
)
def test_batch_norm_forward(traced, costs_of, layer, mode, flop, read, write):
    (c,) = costs_of(traced(layer, (8, 3, 4), mode=mode), "native_batch_norm")
    assert (c.vector_flop, c.special_flop) == (flop, 3)  # 1/√ of each channel
    assert (c.read_bytes, c.write_bytes) == (read, write)


@pytest.mark.parametrize(
    ("affine", "read", "write"),
    [
        (True, 804, 408),  # 4 · (96 + 96 + gain 3 + saved 3 + 3): not the running statistics; 4 · (96 + 3 + 3)
        (False, 792, 384),  # 4 · (96 + 96 + saved 3 + 3); one gradient
    ],
)
def test_batch_norm_backward_in_training(trained, costs_of, affine, read, write):
    (c,) = costs_of(trained(nn.BatchNorm1d(3, affine=affine), (8, 3, 4)), "native_batch_norm_backward")
    # x̂ 2, sum of gradients 1, of gradients times x̂ 2, combined 4; the sums are the gradients of shift and gain
    assert (c.vector_flop, c.special_flop) == (864, 0)  # 9 · 96
    assert (c.read_bytes, c.write_bytes) == (read, write)


def test_batch_norm_backward_with_frozen_statistics(tensor, cost):
    grad, x, gain, mean, var = tensor(8, 3, 4), tensor(8, 3, 4), tensor(3), tensor(3), tensor(3)
    outputs = [tensor(8, 3, 4), tensor(3), tensor(3)]
    attrs = {"train": False, "running_mean": mean, "running_var": var, "output_mask": (True, True, True)}
    c = cost("native_batch_norm_backward", [grad, x, gain, mean, var], outputs, **attrs)
    # input 1; gain: x̂ 2, times gradient, sum; shift: sum
    assert c.vector_flop == 576  # (1 + 4 + 1) · 96
    assert c.read_bytes == 804  # the running statistics are those that are used


@pytest.mark.parametrize(
    ("mask", "flop"),
    [((True, False, False), 96), ((False, True, False), 384), ((False, False, True), 96)],  # 1, 4 and 1 · 96
)
def test_frozen_statistics_need_only_the_gradients_that_are_wanted(tensor, cost, mask, flop):
    grad, x, y = tensor(8, 3, 4), tensor(8, 3, 4), tensor(3)
    assert cost("native_batch_norm_backward", [grad, x], [y], train=False, output_mask=mask).vector_flop == flop


@pytest.mark.parametrize("attrs", [{}, {"update": True}, {"train": True}])
def test_the_library_forms_of_batch_norm_backward_are_those_of_training(tensor, cost, attrs):
    inputs, outputs = [tensor(8, 3, 4), tensor(8, 3, 4), tensor(3)], [tensor(8, 3, 4), tensor(3), tensor(3)]
    assert cost("cudnn_batch_norm_backward", inputs, outputs, **attrs).vector_flop == 864  # 9 · 96


def test_all_gradients_are_wanted_where_there_is_no_mask(tensor, cost):
    inputs, outputs = [tensor(8, 3, 4), tensor(8, 3, 4), tensor(3)], [tensor(8, 3, 4), tensor(3), tensor(3)]
    assert cost("cudnn_batch_norm_backward", inputs, outputs, train=False).vector_flop == 576  # (1 + 4 + 1) · 96


def test_scratch_space_of_a_library_is_no_compulsory_traffic(tensor, cost):
    outputs = [tensor(8, 3, 4), tensor(3), tensor(3), tensor(1000, dtype="uint8")]
    assert cost("_batch_norm_with_update", [tensor(8, 3, 4)], outputs).write_bytes == 408  # 4 · (96 + 3 + 3)


@pytest.mark.parametrize(
    ("kind", "attrs", "flop"),
    [
        ("_native_batch_norm_legit", {"training": True}, 480),  # 5 · 96
        ("_native_batch_norm_legit", {"training": False}, 192),  # 2 · 96
        ("_native_batch_norm_legit_no_training", {}, 192),
        ("cudnn_batch_norm", {"training": True}, 480),
        ("_batch_norm_with_update", {}, 480),
        ("_batch_norm_no_update", {}, 192),
    ],
)
def test_every_name_of_batch_norm_knows_its_mode(tensor, cost, kind, attrs, flop):
    c = cost(kind, [tensor(8, 3, 4)], [tensor(8, 3, 4), tensor(3), tensor(3)], **attrs)
    assert c.vector_flop == flop


def test_instance_norm_is_batch_norm_of_one_image_with_all_channels(traced, costs_of):
    (c,) = costs_of(traced(nn.InstanceNorm2d(3), (2, 3, 4, 4)), "native_batch_norm")
    assert (c.vector_flop, c.special_flop) == (480, 6)  # 5 · 2·3·4·4; 2·3 statistics


def test_root_mean_square_norm_is_one_kernel_as_on_a_gpu(traced, trained, costs_of):
    (c,) = costs_of(traced(nn.RMSNorm(10), (6, 10)), "_fused_rms_norm")
    # square, sum, times 1/σ, times gain of 60; 1/√ of 6
    assert (c.vector_flop, c.special_flop) == (240, 6)
    assert (c.read_bytes, c.write_bytes) == (280, 264)  # 4 · (60 + 10); 4 · (60 + 6)
    step = trained(nn.RMSNorm(10), (6, 10))
    assert len(costs_of(step, "_fused_rms_norm")) == 1
    assert [c.label for c in costs_of(step, "_fused_rms_norm_backward")] == ["input gradient", "gain gradient"]
    older = traced(nn.RMSNorm(10), (6, 10), like="2.8")
    # square, mean, epsilon, 1/√, times 1/σ, times gain
    assert len([p for p in older.priced if p.costs]) == 6


def test_root_mean_square_norm_without_a_gain(tensor, cost):
    c = cost("_fused_rms_norm", [tensor(6, 10)], [tensor(6, 10), tensor(6, 1)], weight=None)
    assert (c.vector_flop, c.read_bytes) == (180, 240)


def test_fused_root_mean_square_norm_backward(tensor, costs):
    grad, x, inverse, gain = tensor(6, 10), tensor(6, 10), tensor(6, 1), tensor(10)
    inputs, attrs = [grad, x, inverse, gain], {"weight": gain, "output_mask": (True, True)}
    by_input, by_weight = costs("_fused_rms_norm_backward", inputs, [tensor(6, 10), tensor(10)], **attrs)
    # x̂, times gain, times x̂ summed 2, combined: times the sum, subtracted, times 1/σ
    assert (by_input.vector_flop, by_input.special_flop) == (420, 0)  # 7 · 60
    assert (by_input.read_bytes, by_input.write_bytes) == (544, 240)  # 4 · (60 + 60 + 6 + 10); 4 · 60
    # x̂, times gradient, sum
    assert (by_weight.vector_flop, by_weight.read_bytes, by_weight.write_bytes) == (180, 504, 40)
    attrs = {"weight": None, "output_mask": (True, False)}
    (plain,) = costs("_fused_rms_norm_backward", [grad, x, inverse], [tensor(6, 10)], **attrs)
    assert (plain.vector_flop, plain.read_bytes) == (360, 504)  # 6 · 60


# --- of weights -----------------------------------------------------------------------------------------------


def test_weight_norm(tensor, cost):
    v, gain, norms = tensor(5, 6), tensor(5, 1), tensor(5, 1)
    forward = cost("_weight_norm_interface", [v, gain], [tensor(5, 6), norms], dim=0)
    # square, sum, times gain/norm of 30; a root and a division of 5
    assert (forward.vector_flop, forward.special_flop) == (90, 10)
    assert (forward.read_bytes, forward.write_bytes) == (140, 140)
    inputs = [tensor(5, 6), v, gain, norms]
    backward = cost("_weight_norm_interface_backward", inputs, [tensor(5, 6), tensor(5, 1)], dim=0)
    # times v, sum; times a factor each, difference of 30; six products and a division of 5
    assert (backward.vector_flop, backward.special_flop) == (180, 5)
    assert (backward.read_bytes, backward.write_bytes) == (280, 140)  # 4 · (30 + 30 + 5 + 5); 4 · (30 + 5)


@pytest.mark.parametrize(("dim", "order", "vector", "special"), [(0, 2, 80, 8), (1, 2, 84, 12), (0, 1, 80, 4)])
def test_renorm(tensor, costs, dim, order, vector, special):
    # norm 2, times a factor 1 of 24; of 4 or 6 slices: a root for order 2, compare, + ε, divide
    found = costs("renorm", [tensor(4, 6)], [tensor(4, 6)], dim=dim, p=order, maxnorm=1.0)
    assert (sum(c.vector_flop for c in found), sum(c.special_flop for c in found)) == (vector, special)
    slices = 4 * (4, 6)[dim]
    # the norms; their factors; the product, 12 bytes an element in all
    assert [c.bytes for c in found] == [96 + slices, 2 * slices, 96 + slices + 96]


# --- every normalization of torch.nn --------------------------------------------------------------------------

LAYERS = {
    "BatchNorm1d": (nn.BatchNorm1d(6), (4, 6)),
    "BatchNorm1d of sequences": (nn.BatchNorm1d(6), (4, 6, 5)),
    "BatchNorm2d": (nn.BatchNorm2d(6), (2, 6, 4, 4)),
    "BatchNorm3d": (nn.BatchNorm3d(6), (2, 6, 4, 4, 4)),
    "BatchNorm2d without parameters": (nn.BatchNorm2d(6, affine=False), (2, 6, 4, 4)),
    "BatchNorm2d without statistics": (nn.BatchNorm2d(6, track_running_stats=False), (2, 6, 4, 4)),
    "LayerNorm": (nn.LayerNorm(6), (4, 6)),
    "GroupNorm": (nn.GroupNorm(3, 6), (2, 6, 4, 4)),
    "GroupNorm without parameters": (nn.GroupNorm(3, 6, affine=False), (2, 6, 4, 4)),
    "InstanceNorm1d": (nn.InstanceNorm1d(6), (2, 6, 5)),
    "InstanceNorm2d": (nn.InstanceNorm2d(6, affine=True, track_running_stats=True), (2, 6, 4, 4)),
    "InstanceNorm3d": (nn.InstanceNorm3d(6), (2, 6, 4, 4, 4)),
    "RMSNorm": (nn.RMSNorm(6), (4, 6)),
    "LocalResponseNorm": (nn.LocalResponseNorm(3), (2, 6, 4, 4)),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), (4, 6)),
    "spectral norm": (nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5)), (4, 6)),
    "normalize": (functional.normalize, (4, 6)),
    "renorm": (lambda x: x.renorm(2, 0, 1.0), (4, 6)),
}


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS)
def test_every_op_of_a_normalization_has_a_rule(traced, layer, shape, mode):
    # the trace raises UnknownOpError where one has none
    assert traced(Learned(layer), shape, **in_mode(mode)).flop > 0
