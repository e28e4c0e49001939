"""Losses and their gradients: operations counted by hand, and every loss of torch.nn traced without a gap."""

import math

import pytest
import torch
from learned import Learned
from torch import nn
from torch.nn import functional

from rooflinekit import Input

NONE, MEAN, SUM = range(3)  # values of `reduction`


# --- element by element ---------------------------------------------------------------------------------------

#: kind: (vector FLOP of 10 elements before their sum, special functions of 10, bytes an element of each kernel)
TEN = {
    "mse_loss": (20, 0, [12]),  # difference; square
    "smooth_l1_loss": (50, 0, [12]),  # difference; absolute; compare; square; times 1/2β
    "huber_loss": (50, 0, [12]),  # difference; absolute; compare; square or less δ/2; times 1/2 or δ
    "soft_margin_loss": (20, 20, [8, 12, 8, 8]),  # -y; times x; exp; log1p
    # log x, log1p(-x), each max with -100; y - 1; two products; their difference
    "binary_cross_entropy": (70, 20, [12]),
    # min(x, 0) - log1p(exp(-|x|)); 1 - y; times x; less the first
    "binary_cross_entropy_with_logits": (50, 20, [8, 8, 12, 12]),
}


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize(("kind", "vector", "special", "each"), [(k, *v) for k, v in TEN.items()], ids=TEN)
def test_ten_elements(tensor, costs, kind, vector, special, each, reduction):
    y = tensor(2, 5) if reduction == NONE else tensor()
    found = costs(kind, [tensor(2, 5), tensor(2, 5)], [y], reduction=reduction)
    of_elements = [c.bytes for c in found[: len(each)]]
    assert of_elements == [10 * size for size in each]
    summed = found[len(each) :]
    copied = kind in ("soft_margin_loss", "binary_cross_entropy")  # from the sum to the result, 4 bytes
    # all losses are read, one number is written
    assert [c.bytes for c in summed] == ([] if reduction == NONE else [44, 8][: 1 + copied])
    assert sum(c.vector_flop for c in found) == vector + 10 * (reduction != NONE)
    assert (sum(c.matrix_flop for c in found), sum(c.special_flop for c in found)) == (0, special)


@pytest.mark.parametrize(
    ("kind", "each"),
    [("binary_cross_entropy_with_logits", 44), ("soft_margin_loss", 40), ("mse_loss", 16), ("smooth_l1_loss", 16)],
)
def test_bytes_of_a_mean_of_many(tensor, costs, kind, each):
    found = costs(kind, [tensor(1000), tensor(1000)], [tensor()])
    assert sum(c.bytes for c in found) // 1000 == each


def test_a_weight_is_read_and_multiplied_by(tensor, costs):
    weight = tensor(5)
    loss, weighted, *_ = costs("binary_cross_entropy", [tensor(2, 5), tensor(2, 5), weight], [tensor()], weight=weight)
    assert (loss.vector_flop, loss.bytes) == (70, 120)
    assert (weighted.vector_flop, weighted.bytes) == (10, 100)  # 4 · (10 read, 10 written, 5 weights)
    inputs = [tensor(2, 5), tensor(2, 5), weight]
    found = costs("binary_cross_entropy_with_logits", inputs, [tensor()], weight=None, pos_weight=weight)
    positive = [c for c in found if c.label == "positive weight"]
    # w - 1 of 5; times y; + 1; the logarithm times that
    assert [c.vector_flop for c in positive] == [5, 10, 10, 10]
    assert [c.bytes for c in positive] == [40, 100, 80, 120]
    assert len(found) == 4 + 4 + 1


#: kind: (vector FLOP of 10 elements for a sum, for a mean, special functions of 10 elements)
TEN_BACKWARD = {
    "mse_loss_backward": (30, 30, 0),  # difference; times 2/n; times the gradient
    "smooth_l1_loss_backward": (50, 50, 0),  # difference; < -β; > β; times 1/nβ; times the gradient
    "huber_loss_backward": (50, 50, 0),
}


@pytest.mark.parametrize(("kind", "by_sum", "by_mean", "special"), [(k, *v) for k, v in TEN_BACKWARD.items()])
def test_gradients_of_ten_elements(tensor, cost, kind, by_sum, by_mean, special):
    inputs = [tensor(), tensor(2, 5), tensor(2, 5)]
    for reduction, vector in ((SUM, by_sum), (MEAN, by_mean)):
        c = cost(kind, inputs, [tensor(2, 5)], reduction=reduction)
        assert (c.vector_flop, c.special_flop) == (vector, special)
        assert (c.read_bytes, c.write_bytes) == (84, 40)  # 4 · (1 + 10 + 10); 4 · 10


def test_gradients_in_several_kernels(tensor, costs):
    inputs = [tensor(), tensor(2, 5), tensor(2, 5)]
    found = costs("binary_cross_entropy_backward", inputs, [tensor(2, 5)], reduction=SUM)
    # x - y; 1 - x; times x; max with ε; times g; divide
    assert [(c.vector_flop, c.special_flop, c.bytes) for c in found] == [(50, 10, 4 * (1 + 10 + 10 + 10))]
    _, mean = costs("binary_cross_entropy_backward", inputs, [tensor(2, 5)], reduction=MEAN)
    assert (mean.vector_flop, mean.bytes) == (10, 80)  # times 1/n
    found = costs("soft_margin_loss_backward", inputs, [tensor(2, 5)])
    # -y; times x; exp; times y; times -1/n; 1 +; divide; times g, one number
    assert [c.bytes for c in found] == [80, 120, 80, 120, 80, 80, 120, 84]
    assert [c.special_flop for c in found] == [0, 0, 10, 0, 0, 0, 10, 0]
    assert sum(c.vector_flop for c in found) == 60


def test_traced_losses(traced, costs_of):
    options = {"mode": "training", "targets": (Input(2, 5),)}
    graph = traced(Learned(), (2, 5), loss=functional.mse_loss, **options)
    forward, (backward,) = costs_of(graph, "mse_loss"), costs_of(graph, "mse_loss_backward")
    assert [(c.flop, c.read_bytes, c.write_bytes) for c in forward] == [(20, 80, 40), (10, 40, 4)]
    assert (backward.flop, backward.read_bytes, backward.write_bytes) == (30, 84, 40)
    graph = traced(Learned(), (2, 5), loss=functional.binary_cross_entropy_with_logits, **options)
    forward = costs_of(graph, "binary_cross_entropy_with_logits")
    assert sum(c.flop for c in forward) == 60 + 20


# --- targets that are indices ---------------------------------------------------------------------------------


CROSS_ENTROPY = {"mode": "training", "loss": functional.cross_entropy}


def test_cross_entropy_reads_one_log_probability_a_target(traced, costs_of):
    graph = traced(Learned(), (3, 1000), targets=(Input(3, dtype="int64"),), **CROSS_ENTROPY)
    (forward,) = costs_of(graph, "nll_loss_forward")
    assert forward.vector_flop == 6  # negate and sum, of 3
    assert forward.read_bytes == 36  # 3 · 4 log-probabilities, 3 · 8 targets
    assert forward.write_bytes == 8  # the loss and its weight
    (backward,) = costs_of(graph, "nll_loss_backward")
    assert backward.vector_flop == 3
    assert backward.read_bytes == 32  # the loss's gradient 4, 3 · 8 targets, total weight 4
    assert backward.write_bytes == 12000  # 4 · 3·1000, zeros but for 3
    (log_softmax,) = costs_of(graph, "_log_softmax")
    assert (log_softmax.vector_flop, log_softmax.special_flop) == (12000, 3003)


def test_class_weights_are_read_and_multiplied_by(tensor, cost):
    log_probability, target, weight = tensor(3, 5), tensor(3, dtype="int64"), tensor(5)
    inputs = [log_probability, target, weight]
    forward = cost("nll_loss_forward", inputs, [tensor(), tensor()], weight=weight)
    assert forward.read_bytes == 56  # 3 · 4 + 3 · 8 + 5 · 4
    assert forward.vector_flop == 12  # negate, times weight, sum, sum of the weights: 4 · 3
    each = cost("nll_loss_forward", inputs, [tensor(3), tensor()], weight=weight, reduction=NONE)
    assert (each.vector_flop, each.write_bytes) == (6, 16)  # negate, times weight; 4 · (3 + 1)
    inputs = [tensor(), log_probability, target, weight, tensor()]
    backward = cost("nll_loss_backward", inputs, [tensor(3, 5)], weight=weight)
    assert (backward.vector_flop, backward.read_bytes) == (6, 52)  # 4 + 3 · 8 + 5 · 4 + 4


def test_cross_entropy_of_images(traced, costs_of):
    graph = traced(Learned(), (3, 5, 2, 2), targets=(Input(3, 2, 2, dtype="int64"),), **CROSS_ENTROPY)
    (forward,) = costs_of(graph, "nll_loss2d_forward")
    assert (forward.vector_flop, forward.read_bytes) == (24, 144)  # 2 · 12 pixels; 12 · (4 + 8)
    (backward,) = costs_of(graph, "nll_loss2d_backward")
    assert (backward.read_bytes, backward.write_bytes) == (104, 240)  # 4 + 12 · 8 + 4; 4 · 60
    (log_softmax,) = costs_of(graph, "_log_softmax")
    assert log_softmax.special_flop == 72  # exp of 60, logarithm of 12 pixels


def test_margins_between_classes(tensor, cost):
    x, target, weight = tensor(3, 5), tensor(3, dtype="int64"), tensor(5)
    # 3 · 4 other classes: margin - target, + x, compare, sum; 3 rows: times 1/5, sum
    assert cost("multi_margin_loss", [x, target], [tensor()], p=1).vector_flop == 54  # 4 · 12 + 2 · 3
    assert cost("multi_margin_loss", [x, target], [tensor(3)], p=1, reduction=NONE).vector_flop == 51
    squared = cost("multi_margin_loss", [x, target, weight], [tensor()], p=2, weight=weight)
    assert (squared.vector_flop, squared.read_bytes) == (78, 104)  # 6 · 12 + 2 · 3; 4 · 15 + 8 · 3 + 4 · 5
    backward = cost("multi_margin_loss_backward", [tensor(), x, target], [tensor(3, 5)], p=1)
    assert backward.vector_flop == 60  # margin 2, compare, times g, subtracted from the target's: 5 · 12
    assert (backward.read_bytes, backward.write_bytes) == (88, 60)  # 4 + 60 + 24; 60
    one_row = cost("multi_margin_loss", [tensor(5), tensor(dtype="int64")], [tensor()], p=1)
    assert one_row.vector_flop == 18  # 4 · 4 + 2


def test_margins_between_labels_and_others_are_at_most_a_quarter_of_all_pairs(tensor, cost):
    x, target, is_target = tensor(3, 5), tensor(3, 5, dtype="int64"), tensor(3, 5)
    forward = cost("multilabel_margin_loss_forward", [x, target], [tensor(), is_target], reduction=MEAN)
    # 3 · 2·3 pairs: subtract, add, compare, sum; 3 rows: times 1/5, sum
    assert forward.vector_flop == 78  # 4 · 18 + 2 · 3
    assert (forward.read_bytes, forward.write_bytes) == (180, 64)  # 60 + 120; 4 + 60
    inputs = [tensor(), x, target, is_target]
    backward = cost("multilabel_margin_loss_backward", inputs, [tensor(3, 5)])
    assert backward.vector_flop == 105  # 2, compare, two sums: 5 · 18; times g: 15


# --- sequences ------------------------------------------------------------------------------------------------


def test_ctc(tensor, cost):
    # 10 steps, 4 sequences, 30 classes, 5 labels: 11 places, 10·4·11 = 440 cells
    log_probability, targets, lengths = tensor(10, 4, 30), tensor(4, 5, dtype="int64"), tensor(4, dtype="int64")
    nll, alpha = tensor(4), tensor(4, 10, 11)
    forward = cost("_ctc_loss", [log_probability, targets, lengths, lengths], [nll, alpha])
    assert forward.vector_flop == 3984  # 9 · 440; at the end 6 · 4
    assert forward.special_flop == 1772  # 4 · 440; at the end 3 · 4
    assert forward.read_bytes == 1152  # 4 · 10·4·6, the blank and 5 labels; 8 · 4·5; 8 · 4
    assert forward.write_bytes == 1776  # 4 · 4; 4 · 440
    grad, output = tensor(4), tensor(10, 4, 30)
    inputs = [grad, log_probability, targets, lengths, lengths, nll, alpha]
    backward = cost("_ctc_loss_backward", inputs, [output], log_alpha=alpha)
    assert backward.vector_flop == 8120  # beta 9, collected 4: 13 · 440; subtract, times g: 2 · 1200
    assert backward.special_flop == 3400  # 4 and 1: 5 · 440; exp of 1200
    assert backward.read_bytes == 6784  # 4 · (4 + 1200 + 4 + 440) + 8 · (20 + 4)
    assert backward.write_bytes == 4800


def test_ctc_reads_no_more_classes_than_there_are(tensor, cost):
    forward = cost("_ctc_loss", [tensor(10, 4, 3)], [tensor(4), tensor(4, 10, 11)])
    assert forward.read_bytes == 480  # 4 · 10·4·3


# --- every loss of torch.nn -----------------------------------------------------------------------------------

X, INDEX, SIGNS = (4, 6), Input(4, dtype="int64"), Input(4)
#: loss, what it is given, what makes its input valid
LOSSES = {
    "MSELoss": ({}, [X], None),
    "L1Loss": ({}, [X], None),
    "SmoothL1Loss": ({"beta": 0.5}, [X], None),
    "HuberLoss": ({"delta": 0.5}, [X], None),
    "BCELoss": ({}, [X], torch.sigmoid),
    "BCEWithLogitsLoss": ({}, [X], None),
    "BCEWithLogitsLoss of weights": ({"weight": torch.ones(6), "pos_weight": torch.ones(6)}, [X], None),
    "CrossEntropyLoss": ({}, [INDEX], None),
    "CrossEntropyLoss ignoring": ({"ignore_index": 0}, [INDEX], None),
    "CrossEntropyLoss weighted": ({"weight": torch.ones(6)}, [INDEX], None),
    "CrossEntropyLoss smoothed": ({"label_smoothing": 0.1}, [INDEX], None),
    "CrossEntropyLoss of probabilities": ({}, [X], None),
    "CrossEntropyLoss of probabilities, smoothed": ({"label_smoothing": 0.1}, [X], None),
    "NLLLoss": ({}, [INDEX], nn.LogSoftmax(-1)),
    "KLDivLoss": ({}, [X], nn.LogSoftmax(-1)),
    "KLDivLoss of logarithms": ({"log_target": True}, [X], nn.LogSoftmax(-1)),
    "PoissonNLLLoss": ({"full": True}, [X], None),
    "GaussianNLLLoss": ({}, [X, 2.0], None),
    "CosineEmbeddingLoss": ({}, [X, SIGNS], None),
    "HingeEmbeddingLoss": ({}, [X], None),
    "MarginRankingLoss": ({"margin": 0.5}, [X, X], None),
    "MultiMarginLoss": ({}, [INDEX], None),
    "MultiMarginLoss squared": ({"p": 2, "weight": torch.ones(6)}, [INDEX], None),
    "MultiLabelMarginLoss": ({}, [Input(4, 6, dtype="int64")], None),
    "MultiLabelSoftMarginLoss": ({}, [X], None),
    "SoftMarginLoss": ({}, [X], None),
    "TripletMarginLoss": ({}, [X, X], None),
    "TripletMarginLoss of order 1": ({"p": 1, "swap": True}, [X, X], None),
    "TripletMarginWithDistanceLoss": ({}, [X, X], None),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # of KLDivLoss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("name", "options", "given", "before"), [(k, *v) for k, v in LOSSES.items()], ids=LOSSES)
def test_every_op_of_a_loss_has_a_rule(traced, name, options, given, before, reduction):
    # the trace raises UnknownOpError where one has none
    loss = getattr(nn, name.split()[0])(reduction=reduction, **options)
    targets = [Input(*one) if isinstance(one, tuple) else one for one in given]
    assert traced(lambda x, *t: loss(x, *t), X, *targets).flop > 0
    graph = traced(Learned(before), X, mode="training", loss=lambda y, *t: loss(y, *t).sum(), targets=tuple(targets))
    assert graph.flop > 0


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_every_op_of_cross_entropy_of_images_has_a_rule(traced, smoothing):
    loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
    graph = traced(
        Learned(), (2, 5, 3, 3), mode="training", loss=loss, targets=(Input(2, 3, 3, dtype="int64"),), name="images"
    )
    assert math.isfinite(graph.flop)
