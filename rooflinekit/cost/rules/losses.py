"""Losses and their gradients.

A loss adds up what it found for each element unless it is asked for all of them (`reduction` 0); the division of a
mean, one an output, is left out as it is in `aten.mean`. Whether a target is to be ignored lies in the data: all of
them count.
"""

from __future__ import annotations

from rooflinekit.cost.rules.elementwise import register
from rooflinekit.cost.table import dense_bytes, family, per_output, reads, rule, sweep, traffic, work, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Op, TensorSpec
from rooflinekit.ir.sizes import Size, floor_div, product, quotient, smaller, total

_MEAN = 1  # of `reduction`; 2 is a sum


def _reduction(op: Op) -> int:
    return int(op.attrs.get("reduction", _MEAN))


def _weighted(op: Op) -> int:
    return int(op.attrs.get("weight") is not None)


# --- element by element ---------------------------------------------------------------------------------------

register(
    {
        "mse_loss_backward": (3, 0),  # difference, times 2 (or 2/n), times g
        "smooth_l1_loss_backward": (5, 0),  # difference, two comparisons, times 1/β (or 1/nβ), times g
        "huber_loss_backward": (5, 0),  # difference, two comparisons, times 1 (or 1/n), times g
    }
)


def _summed(op: Op, x: TensorSpec) -> list[Cost]:
    """The kernel that adds up the losses of all elements, where it is asked for."""
    if _reduction(op) == 0:
        return []
    return [sweep("sum", x, writing=0, vector=1) + writes(op.outputs)]


def _copied(op: Op) -> list[Cost]:
    """The sum is copied to where the losses of all elements stood."""
    return [] if _reduction(op) == 0 else [sweep("copy", op.outputs[0])]


def _loss(op: Op, vector: int) -> list[Cost]:
    x = op.inputs[0]
    return [sweep("", x, reading=0, vector=vector) + reads(op.inputs), *_summed(op, x)]


family(
    _loss,
    {
        "mse_loss": (2,),  # difference, square
        "smooth_l1_loss": (5,),  # |difference|, compare; its square, times 1/2β
        "huber_loss": (5,),  # |difference|, compare; less δ/2, times δ, or a square, times 1/2
    },
    each="input element; their sum is a second kernel, 1",
)


@rule("aten.binary_cross_entropy")
def binary_cross_entropy(op: Op) -> list[Cost]:
    """-(y·max(log x, -100) + (1-y)·max(log1p(-x), -100)): two maxima, two products; negate x, y - 1, difference.

    Times the weight, and the sum, are kernels of their own (binary_cross_entropy_out_cuda of ATen's cuda/Loss.cu).
    """
    x, y = op.inputs[:2]
    loss = sweep("", x, reading=0, vector=7, special=2) + reads((x, y))
    return [loss, *_times_weight(op, x), *_summed(op, x), *_copied(op)]


def _times_weight(op: Op, x: TensorSpec) -> list[Cost]:
    weight = op.attrs.get("weight")
    return [] if weight is None else [sweep("weight", x, vector=1) + reads((weight,))]


@rule("aten.binary_cross_entropy_backward")
def binary_cross_entropy_backward(op: Op) -> list[Cost]:
    """g·(x - y) / max((1 - x)·x, ε): 5 and a division. Times the weight, and times 1/n for a mean, are kernels more."""
    grad, x, y = op.inputs[:3]
    gradient = work(x.numel, 5, 1) + reads((grad, x, y)) + writes(op.outputs)
    mean = [sweep("mean", x, vector=1)] if _reduction(op) == _MEAN else []
    return [gradient, *_times_weight(op, x), *mean]


@rule("aten.binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(op: Op) -> list[Cost]:
    """(1 - y)·x - min(x, 0) + log1p(exp(-|x|)), as PyTorch writes it out (ATen's Loss.cpp).

    The logarithm of the sigmoid is one kernel: minimum, difference; exp, log1p. Then 1 - y, times x, less the
    logarithm, 1 and a kernel each. With a weight of positive ones the logarithm is first multiplied by (w - 1)·y + 1:
    w - 1, and three kernels of 1 an element.
    """
    x, y = op.inputs[:2]
    positive = op.attrs.get("pos_weight")
    before = []
    if positive is not None:
        scaled = sweep("positive weight", x, reading=0, vector=1)
        before = [
            sweep("positive weight", positive, vector=1),
            scaled + Cost(read_bytes=dense_bytes(positive)) + reads((y,)),
            sweep("positive weight", x, vector=1),
            sweep("positive weight", x, reading=2, vector=1),
        ]
    return [
        sweep("logarithm of the sigmoid", x, reading=0, vector=2, special=2) + reads((x,)),
        *before,
        sweep("others", x, reading=0, vector=1) + reads((y,)),
        sweep("product", x, vector=1) + reads((x,)),
        sweep("difference", x, reading=2, vector=1),
        *_times_weight(op, x),
        *_summed(op, x),
    ]


@rule("aten.soft_margin_loss")
def soft_margin_loss(op: Op) -> list[Cost]:
    """log1p(exp(-y·x)), a kernel for each of four steps (ATen's Loss.cpp): negate, multiply; exp, log1p."""
    x, y = op.inputs
    return [
        sweep("negation", x, reading=0, vector=1) + reads((y,)),
        sweep("product", x, vector=1) + reads((x,)),
        sweep("exp", x, special=1),
        sweep("log1p", x, special=1),
        *_summed(op, x),
        *_copied(op),
    ]


@rule("aten.soft_margin_loss_backward")
def soft_margin_loss_backward(op: Op) -> list[Cost]:
    """z = exp(-y·x); -y·z·1/n·g / (1 + z): a kernel for each of eight steps, of which two are special functions."""
    grad, x, y = op.inputs
    return [
        sweep("negation", x, reading=0, vector=1) + reads((y,)),
        sweep("product", x, vector=1) + reads((x,)),
        sweep("exp", x, special=1),
        sweep("times target", x, vector=1) + reads((y,)),
        sweep("times 1/n", x, vector=1),
        sweep("one more", x, vector=1),
        sweep("division", x, reading=2, special=1),
        sweep("times gradient", x, vector=1) + reads((grad,)),
    ]


# --- targets that are indices ---------------------------------------------------------------------------------


@rule("aten.nll_loss_forward", "aten.nll_loss2d_forward", timed_as=Family.REDUCTION)
def nll_loss(op: Op) -> Cost:
    """Reads one log-probability a target, not all of them, and negates it; sums up unless all are wanted.

    A class weight is read, multiplied by, and summed up too.
    """
    log_probability, target = op.inputs[:2]
    summed = _reduction(op) != 0
    operations = 1 + summed + _weighted(op) * (1 + summed)
    picked = Cost(read_bytes=product((target.numel, log_probability.dtype.itemsize)))
    return work(target.numel, operations) + picked + reads(op.inputs[1:]) + writes(op.outputs)


@rule("aten.nll_loss_backward", "aten.nll_loss2d_backward", timed_as=Family.REDUCTION)
def nll_loss_backward(op: Op) -> Cost:
    """Writes zeros everywhere and one value a target; the log-probabilities give their shape alone."""
    grad, _, target, *rest = op.inputs
    return work(target.numel, 1 + _weighted(op)) + reads((grad, target, *rest)) + writes(op.outputs)


def _rows(x: tuple[Size, ...]) -> tuple[Size, Size]:
    """Rows and classes of [rows, classes], or of the classes of one row."""
    return (x[0] if len(x) == 2 else 1), x[-1]


def _pairs(op: Op, x: TensorSpec, labels: int, each: int) -> Cost:
    """`each` for every pair of a target and another class, a square for p = 2 and a product with the class weight.

    Data decide how many labels a row has: at most ⌊c²/4⌋ pairs of c classes.
    """
    rows, classes = _rows(x.shape)
    pairs = floor_div(product((classes, classes)), 4) if labels else total((classes, -1))
    return work(product((rows, pairs)), each + (op.attrs.get("p", 1) == 2) + _weighted(op))


def _margin_loss(op: Op, labels: int) -> Cost:
    """A row is divided by its classes (a multiplication), and added to the sum."""
    x = op.inputs[0]
    return _pairs(op, x, labels, 4) + work(_rows(x.shape)[0], 1 + (_reduction(op) != 0)) + traffic(op)


#: Names, whether a row has several labels.
family(
    _margin_loss,
    {
        "multi_margin_loss": (
            0, "max(0, margin - x_target + x)^p for each other class: add, subtract, compare, sum, and a square for "
            "p = 2.",
        ),
        "multilabel_margin_loss_forward": (
            1, "max(0, 1 - x_label + x) for each pair: subtract, add, compare, sum. Rows as in `multi_margin_loss`.",
        ),
    },
    timed_as=Family.REDUCTION,
)  # fmt: skip
family(
    lambda op, labels: _pairs(op, op.inputs[1], labels, 5) + per_output(op, labels),
    {
        "multi_margin_loss_backward": (
            0, "For each other class: the margin 2, compare, times g, and subtracted from the gradient of the target.",
        ),
        "multilabel_margin_loss_backward": (
            1, "For each pair the margin 2, compare, and an addition to both gradients; each then times g.",
        ),
    },
    timed_as=Family.REDUCTION,
)  # fmt: skip


# --- sequences ------------------------------------------------------------------------------------------------


@rule("aten._ctc_loss", timed_as=Family.REDUCTION)
def ctc_loss(op: Op) -> Cost:
    """Alpha over T steps and 2L + 1 places: the log of a sum of three exponentials, plus a log-probability.

    A place: maximum 2, differences 3, sum 2, maximum back 1, log-probability 1: 9; three exp, one log. In the end two
    places of each sequence are joined, 5, and negated, 1; two exp, one log. Of the log-probabilities of a step it
    reads the blank and the labels, L + 1 at most.
    """
    nll, alpha = op.outputs
    log_probability, *rest = op.inputs
    steps, *batch, classes = log_probability.shape
    places = smaller(classes, floor_div(total((alpha.shape[-1], 1)), 2))
    read = Cost(read_bytes=product((steps, *batch, places, log_probability.dtype.itemsize)))
    return work(alpha.numel, 9, 4) + work(nll.numel, 6, 3) + read + reads(rest) + writes(op.outputs)


@rule("aten._ctc_loss_backward", timed_as=Family.REDUCTION)
def ctc_loss_backward(op: Op) -> Cost:
    """Beta as alpha: 9 and 4 a place; exp(alpha + beta + loss - log-probability), added up by class: 4 and 1.

    Then g·(exp(log-probability) - that) for each class of each step: 2 and 1.
    """
    (gradient,) = op.outputs
    return work(op.attrs["log_alpha"].numel, 13, 5) + work(gradient.numel, 2, 1) + traffic(op)


# Kernels of frameworks that train language models: several element-wise steps in one, products that add up.


@rule("training.pointwise")
def pointwise(op: Op) -> Cost:
    """As many operations and special functions an element of its largest tensor as it says; its traffic."""
    n = max((tensor.numel for tensor in (*op.inputs, *op.outputs)), key=int)
    return work(n, op.attrs["vector"], op.attrs["special"]) + traffic(op)


@rule("training.accumulated_mm")
def accumulated_mm(op: Op) -> Cost:
    """[m, k] × [k, n] added to what stands in the result: 2·m·k·n, and the result read and written."""
    (m, k), n = op.inputs[0].shape, op.inputs[1].shape[1]
    return Cost(gemms=(Gemm(m=m, n=n, k=k),)) + traffic(op)


@rule("training.causal_softmax", timed_as=Family.REDUCTION)
def causal_softmax(op: Op) -> Cost:
    """Rows of a causal square in one kernel, or their gradient: the lower half is read, all of the result written.

    Scale, maximum, subtraction, sum and one exp an element that takes part; of a gradient two products and a sum.
    """
    n = quotient(op.outputs[0].numel, 2)
    read = quotient(product((op.attrs["reads"], op.outputs[0].bytes)), 2)
    backward = op.attrs["reads"] == 2
    return work(n, 4, 0 if backward else 1) + Cost(read_bytes=read) + writes(op.outputs)
