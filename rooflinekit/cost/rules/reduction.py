"""Reductions, running sums, sorting and selection. The softmaxes stand with the activations.

Sorting n numbers counts as n·⌈log₂ n⌉ comparisons, selecting some of them (topk, kthvalue, median) as one an element.
That is a convention: a GPU sorts by digits and compares nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rooflinekit.cost.rules.elementwise import is_complex
from rooflinekit.cost.table import aten, dense_bytes, family, per_input, reads, rule, sweep, traffic, work, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Op, TensorSpec
from rooflinekit.ir.sizes import Size, floor_div, is_formula, product, smaller, total

family(
    lambda op, real, of_complex: per_input(op, of_complex if is_complex(op) else real),
    {
        "sum mean amax amin max min argmax argmin any all _is_all_true _is_any_true cumsum cummax cummin": (
            1, 2, "One operation an input element, two a complex one.",
        ),
        "prod cumprod": (1, 6, "One multiplication an input element; of complex numbers 6 operations."),
    },
    timed_as=Family.REDUCTION,
)  # fmt: skip
family(
    per_input,
    {
        "nansum count_nonzero aminmax": (2, "Is it a number, or not zero, and an addition; or two comparisons."),
        "logcumsumexp": (3, 2, "At each place max + log1p(exp(-|a-b|)): subtract, maximum, add; exp, log."),
        "topk kthvalue median nanmedian": (1, "One comparison an element."),
    },
    timed_as=Family.REDUCTION,
)  # fmt: skip
family(per_input, {"bincount": (1, "An addition an element, of 1 or of its weight.")})


@rule("aten.var", "aten.std", "aten.var_mean", "aten.std_mean", timed_as=Family.REDUCTION)
def variance(op: Op) -> Cost:
    """Mean, then difference, square and sum: 4 an input element, twice that of complex ones; a deviation is a root."""
    roots = op.outputs[0].numel if op.kind.startswith("aten.std") else 0
    return Cost(special_flop=roots) + per_input(op, 8 if is_complex(op) else 4)


@rule("aten.equal", timed_as=Family.REDUCTION)
def equal(op: Op) -> list[Cost]:
    """Comparisons, and whether all hold, a kernel each; tensors of different shapes are not looked at."""
    x, y = op.inputs[0], op.inputs[-1]
    if x.shape != y.shape:
        return []
    compared = Cost(write_bytes=x.numel, label="comparison") + work(x.numel, 1) + reads(op.inputs)
    return [compared, Cost(read_bytes=x.numel, write_bytes=1, label="all") + work(x.numel, 1)]


@rule("aten.logsumexp", timed_as=Family.REDUCTION)
def log_sum_exp(op: Op) -> list[Cost]:
    """Maximum, difference, exp and sum, a kernel each; an output is a log plus the maximum, two more.

    A maximum that is infinite is taken for 0: absolute value, compare, select, a kernel each (ATen's ReduceOps.cpp).
    """
    x, y = op.inputs[0], op.outputs[0]
    rows = dense_bytes(y)
    return [
        sweep("maximum", y, reading=0) + work(x.numel, 1) + reads((x,)),
        sweep("absolute value", y, vector=1),
        Cost(vector_flop=y.numel, read_bytes=rows, write_bytes=y.numel, label="comparison"),
        Cost(vector_flop=y.numel, read_bytes=total((rows, y.numel)), write_bytes=rows, label="selection"),
        sweep("difference", x, reading=0, vector=1) + Cost(read_bytes=rows) + reads((x,)),
        sweep("exp", x, special=1),
        sweep("sum", x, writing=0, vector=1) + Cost(write_bytes=rows),
        sweep("log", y, special=1),
        sweep("addition", y, reading=2, vector=1),
    ]


@rule("aten.trace")
def trace(op: Op) -> Cost:
    """Reads and adds up the diagonal."""
    x = op.inputs[0]
    n = smaller(*x.shape)
    return work(n, 1 + is_complex(op)) + Cost(read_bytes=product((n, x.dtype.itemsize))) + writes(op.outputs)


# --- norms and distances --------------------------------------------------------------------------------------


def norm_work(order: object, n: Size, norms: Size, complex_: bool = False) -> Cost:
    """Work of the norms of n numbers in all.

    Of order 2 (and the Frobenius norm): square, sum; a root. Of 1, 0, ∞ and -∞: absolute value or comparison, and sum
    or comparison. Of any other: absolute value, power, sum; a root. A complex number's square takes 3, its
    absolute value a root more.
    """
    if order in (None, "fro", 2):
        return work(n, 4 if complex_ else 2) + work(norms, 0, 1)
    absolute = work(n, 2, 1) if complex_ and order != 0 else Cost()
    if order in (0, 1, math.inf, -math.inf):
        return absolute + work(n, 2)
    return absolute + work(n, 2, 1) + work(norms, 0, 1)


@rule("aten.linalg_vector_norm", "aten.norm", timed_as=Family.REDUCTION)
def vector_norm(op: Op) -> Cost:
    """One norm an output: order 2 takes 2 an element and a root, orders 1 and ∞ 2, others a power each."""
    order = op.attrs.get("ord", op.attrs.get("p"))
    return norm_work(order, op.inputs[0].numel, op.outputs[0].numel, is_complex(op)) + traffic(op)


@rule("aten.dist")
def distance(op: Op) -> list[Cost]:
    """A difference, and its norm."""
    x = op.inputs[0]
    difference = sweep("difference", x, reading=0, vector=1) + reads(op.inputs)
    norm = norm_work(op.attrs.get("p", 2), x.numel, 1) + Cost(read_bytes=dense_bytes(x)) + writes(op.outputs)
    return [difference, replace(norm, label="norm")]


@rule("aten._cdist_forward", "aten._pdist_forward", timed_as=Family.REDUCTION)
def pairwise_distances(op: Op) -> Cost:
    """The norm of a difference for each pair."""
    pairs = op.outputs[0].numel
    n = product((pairs, op.inputs[0].shape[-1]))
    return Cost(vector_flop=n) + norm_work(op.attrs.get("p", 2), n, pairs) + traffic(op)


@rule("aten._euclidean_dist")
def euclidean_distances(op: Op) -> list[Cost]:
    """√(|a|² + |b|² - 2·a·b) of [p, m] and [r, m], as a product [p, m + 2] × [m + 2, r] of rows with their squares.

    For each side squares, their sums, ones, and all of it side by side; -2·a; at last a comparison and a root a pair.
    """
    a, b = op.inputs
    (y,) = op.outputs

    def side(x: TensorSpec) -> tuple[list[Cost], Size]:
        """The kernels of one side, and the bytes of its rows with their squares and ones."""
        all_rows = product((*x.shape[:-1], x.dtype.itemsize))
        wide = total((dense_bytes(x), product((2, all_rows))))
        return [
            sweep("squares", x, reading=0, vector=1) + reads((x,)),
            sweep("sums", x, writing=0, vector=1) + Cost(write_bytes=all_rows),
            Cost(write_bytes=all_rows, label="ones"),
            Cost(read_bytes=wide, write_bytes=wide, label="rows"),
        ], wide

    (of_a, left), (of_b, right) = side(a), side(b)
    scaled = sweep("scaling", a, reading=0, vector=1) + reads((a,))
    gemm = Gemm(batch=product(y.shape[:-2]), m=a.shape[-2], n=b.shape[-2], k=total((a.shape[-1], 2)))
    multiplied = Cost(gemms=(gemm,), read_bytes=total((left, right)), label="product") + writes((y,))
    over = Cost(read_bytes=y.bytes, write_bytes=y.bytes)
    root = Cost(vector_flop=y.numel, label="clamp") + over, Cost(special_flop=y.numel, label="root") + over
    return [scaled, *of_a, *of_b, multiplied, *root]


@rule("aten._cdist_backward", "aten._pdist_backward", timed_as=Family.REDUCTION)
def pairwise_distances_backward(op: Op) -> Cost:
    """For each number of each pair: difference d, product, sum, and one more in `pdist`, which adds to both points.

    Order 2: d · g/distance. Order 1: also the sign of d; ∞: its absolute value, a comparison. Others:
    d·|d|^(p-2) · g/distance^(p-1): absolute value, power and product more, and two special functions a pair.
    """
    pairs = op.inputs[0].numel
    n = product((pairs, op.inputs[1].shape[-1]))
    order = op.attrs.get("p", 2)
    more, power, quotients = {1: (1, 0, 0), 2: (0, 0, 1), math.inf: (2, 0, 0)}.get(order, (2, 1, 2))
    vector = 3 + more + op.kind.startswith("aten._pdist")
    return work(n, vector, power) + work(pairs, 0, quotients) + traffic(op)


# --- order ----------------------------------------------------------------------------------------------------


def ceil_log2(n: Size) -> Size:
    """The number of halvings from n to 1, rounded up: how many of 1, 2, 4 … 2³⁹ are smaller than n.

    >>> [ceil_log2(n) for n in (1, 2, 3, 8, 9)]
    [0, 1, 2, 3, 4]
    """
    if isinstance(n, int):
        return max(n - 1, 0).bit_length()
    halved = [floor_div(total((n, -1)), 2**k) for k in range(40)]
    if not is_formula(n):
        return total(smaller(1, one) for one in halved)
    import sympy

    known = next((k for k, one in enumerate(halved) if smaller(1, one) != 1), 40)  # 1 or more at any size
    # Of what is smaller still sympy would only find, in most of a second, that nothing is known.
    return total([known, *(sympy.Min(1, one, evaluate=False) for one in halved[known:])])


def _sorting(op: Op, more: int = 0) -> Cost:
    x, dim = op.inputs[0], op.attrs.get("dim", -1)
    comparisons = ceil_log2(x.shape[dim]) if x.shape else 0
    return Cost(vector_flop=product((x.numel, total((comparisons, more))))) + traffic(op)


_SORTED = "n·⌈log₂ n⌉ comparisons along the dimension; the places are written too."
family(_sorting, {"sort argsort": (_SORTED,)}, timed_as=Family.REDUCTION)
family(_sorting, {"mode": (1, "Sorts, then compares each element with the next.")})


@rule("aten._unique2", "aten.unique_dim", "aten.unique_consecutive", timed_as=Family.REDUCTION)
def unique(op: Op) -> Cost:
    """Sorts, unless equal ones are known to be neighbours, then compares each element with the next."""
    x = op.inputs[0]
    if op.kind == "aten.unique_consecutive":
        return per_input(op, 1)
    length = x.shape[op.attrs["dim"]] if op.kind == "aten.unique_dim" else x.numel
    return Cost(vector_flop=product((total((ceil_log2(length), 1)), x.numel))) + traffic(op)


@rule("aten.searchsorted", "aten.bucketize")
def search(op: Op) -> Cost:
    """⌈log₂(n + 1)⌉ comparisons a value: n boundaries leave n + 1 places."""
    boundaries = op.attrs["sorted_sequence" if op.kind == "aten.searchsorted" else "boundaries"]
    comparisons = ceil_log2(total((boundaries.shape[-1], 1)))
    return Cost(vector_flop=product((comparisons, op.outputs[0].numel))) + traffic(op)


@rule("aten.histc")
def histogram(op: Op) -> Cost:
    """Two comparisons with the range, subtraction and scale to the bin, an addition there: 5.

    Where no range is given the least and the greatest are found first: 2.
    """
    found = op.attrs.get("min", 0) == op.attrs.get("max", 0)
    return per_input(op, 5 + 2 * found)


# Normalizations. Over N elements: mean N, difference N, square N, sum N; scale, gain and shift N each: 7 N.
#
# One rsqrt a statistic. The difference from the mean is formed once.


LAYER_NORM, GROUP_NORM, RMS_NORM = aten("native_layer_norm native_group_norm _fused_rms_norm")
LAYER_NORM_GRADIENT, GROUP_NORM_GRADIENT, RMS_NORM_GRADIENT = aten(
    "native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward"
)
GROUP_NORMS = (GROUP_NORM, GROUP_NORM_GRADIENT)
NO_TRAINING = "aten._native_batch_norm_legit_no_training"
NO_UPDATE = "aten._batch_norm_no_update"
BATCH_NORMS = (
    *aten("native_batch_norm _native_batch_norm_legit cudnn_batch_norm _batch_norm_with_update"),
    NO_TRAINING,
    NO_UPDATE,
)
BATCH_NORM_GRADIENTS = aten("native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward")

_MOMENTS = 4  # mean; difference, square, sum
_SCALE = 1  # times 1/σ


def _affine(op: Op) -> int:
    """Multiplication by the gain and addition of the shift, where there are any."""
    return sum(op.attrs.get(name) is not None for name in ("weight", "bias"))


def _of_rows(op: Op, moments: int) -> Cost:
    """One rsqrt a row, or group."""
    y, statistic = op.outputs[:2]
    return work(y.numel, moments + _SCALE + _affine(op)) + work(statistic.numel, 0, 1) + traffic(op)


family(
    _of_rows,
    {
        f"{LAYER_NORM} {GROUP_NORM}": (_MOMENTS, "Writes mean and 1/σ of each row, or group, beside the output."),
        RMS_NORM: (2, "Square, sum, times 1/σ: 3 N, and the gain. One rsqrt a row, written beside the output."),
    },
    timed_as=Family.NORMALIZATION,
)


def by_batch(op: Op) -> bool:
    """Whether a batch norm takes the statistics of what it is given, as in training."""
    return bool(op.attrs.get("training", op.attrs.get("train", op.kind not in (NO_TRAINING, NO_UPDATE))))


@rule(*BATCH_NORMS, timed_as=Family.NORMALIZATION)
def batch_norm(op: Op) -> Cost:
    """In training as layer norm, and the running statistics are written too; else difference, scale, gain, shift."""
    y = op.outputs[0]
    training = by_batch(op)
    flop = (_MOMENTS if training else 1) + _SCALE + _affine(op)
    done = work(y.numel, flop) + work(op.inputs[0].shape[1], 0, 1) + reads(op.inputs)
    if not training:
        # The saved statistics are empty outside training.
        return done + writes((y,))
    running = [s for s in (op.attrs.get("running_mean"), op.attrs.get("running_var")) if s is not None]
    saved = [t for t in op.outputs[1:3] if len(t.shape) == 1]
    return done + writes((y, *saved, *running))


@rule(LAYER_NORM_GRADIENT, GROUP_NORM_GRADIENT, timed_as=Family.NORMALIZATION)
def layer_norm_backward(op: Op) -> list[Cost]:
    """Gradient of the input: x̂ 2, g·gain 1, its sum 1, sum with x̂ 2, combination 4: 10 N. Of gain and shift: 3 N.

    The second kernel reads the gradient and the input again.
    """
    _, wants_weight, wants_bias = op.attrs["output_mask"]
    again = op.inputs[:4] if wants_weight else op.inputs[:1]
    # Σ g·x̂ with x̂ formed again: 4; Σ g: 1
    flop = 4 * bool(wants_weight) + bool(wants_bias)
    return _row_gradients(op, 10, _without(op, "bias"), "gain and shift gradient", flop, again)


def _row_gradients(
    op: Op, of_input: int, read: Sequence[TensorSpec], label: str, of_weights: int, again: Sequence[TensorSpec]
) -> list[Cost]:
    """The kernel for the gradient of the input, and that for those of gain and shift, as far as they are wanted."""
    wants_input, *wanted = op.attrs["output_mask"]
    x, results = op.inputs[1], iter(op.outputs)
    costs = []
    if wants_input:
        costs.append(Cost(label="input gradient") + work(x.numel, of_input) + reads(read) + writes((next(results),)))
    if any(wanted):
        costs.append(Cost(label=label) + work(x.numel, of_weights) + reads(again) + writes(results))
    return costs


@rule(*BATCH_NORM_GRADIENTS, timed_as=Family.NORMALIZATION)
def batch_norm_backward(op: Op) -> Cost:
    """Training: x̂ 2, Σg 1, Σg·x̂ 2, combination 4: 9 N, with the gradients of gain and shift among the sums.

    Evaluation: 1 N for the input, 4 N and 1 N for gain and shift.
    """
    x = op.inputs[1]
    training = bool(op.attrs.get("train", op.attrs.get("update", True)))
    wants_input, wants_weight, wants_bias = op.attrs.get("output_mask", (True, True, True))
    flop = 9 if training else wants_input + 4 * wants_weight + wants_bias
    used = _without(op, "running_mean", "running_var") if training else op.inputs
    return work(x.numel, int(flop)) + reads(used) + writes(op.outputs)


@rule(RMS_NORM_GRADIENT, timed_as=Family.NORMALIZATION)
def rms_norm_backward(op: Op) -> list[Cost]:
    """Gradient of the input: x̂ 1, g·gain 1, sum with x̂ 2, combination 3: 7 N, 6 N without gain. Of the gain: 3 N.

    The second kernel reads the gradient and the input again.
    """
    return _row_gradients(op, 6 + _affine(op), op.inputs, "gain gradient", 3, op.inputs[:3])


# --- of weights -----------------------------------------------------------------------------------------------


@rule("aten._weight_norm_interface", timed_as=Family.NORMALIZATION)
def weight_norm(op: Op) -> Cost:
    """v·(g/|v|): the norms, a division each, and a multiplication an element."""
    v, gain = op.inputs
    return norm_work(2, v.numel, gain.numel) + work(v.numel, 1) + work(gain.numel, 0, 1) + traffic(op)


@rule("aten._weight_norm_interface_backward", timed_as=Family.NORMALIZATION)
def weight_norm_backward(op: Op) -> Cost:
    """r = 1/|v| and Σ grad·v 2 N; of the gain that sum times r; of v g·r·grad - g·r³·sum·v, 3 N.

    A norm takes one division, and the factors six multiplications: sum·r, g·r, r·r·r, times g, times the sum.
    """
    v, gain = op.inputs[1:3]
    return work(v.numel, 5) + work(gain.numel, 6, 1) + traffic(op)


@rule("aten.renorm")
def renorm(op: Op) -> list[Cost]:
    """The norm of each slice; is it above the greatest, then maxnorm / (norm + ε); a multiplication an element.

    A kernel each.
    """
    x = op.inputs[0]
    slices = x.shape[op.attrs["dim"]]
    each = product((slices, x.dtype.itemsize))
    norm = norm_work(op.attrs["p"], x.numel, slices) + Cost(write_bytes=each, label="norm")
    return [
        norm + reads((x,)),
        Cost(read_bytes=each, write_bytes=each, label="factor") + work(slices, 2, 1),
        Cost(read_bytes=each, label="product") + work(x.numel, 1) + traffic(op),
    ]


def _without(op: Op, *arguments: str) -> list[TensorSpec]:
    """Its inputs, but for these arguments."""
    unused = {tensor.name for name in arguments if (tensor := op.attrs.get(name)) is not None}
    return [tensor for tensor in op.inputs if tensor.name not in unused]
