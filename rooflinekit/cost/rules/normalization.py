"""Normalizations. Over N elements: mean N, difference N, square N, sum N; scale, gain and shift N each: 7 N.

One rsqrt a statistic. The difference from the mean is formed once.
"""

from __future__ import annotations

from rooflinekit.cost.rules.reduction import norm_work
from rooflinekit.cost.table import reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Op
from rooflinekit.ir.sizes import product, total
from rooflinekit.ir.tensor import TensorSpec

_MOMENTS = 4  # mean; difference, square, sum
_SCALE = 1  # times 1/σ


def _affine(op: Op) -> int:
    """Multiplication by the gain and addition of the shift, where there are any."""
    return sum(op.attrs.get(name) is not None for name in ("weight", "bias"))


@rule("aten.native_layer_norm", "aten.native_group_norm", timed_as=Family.NORMALIZATION)
def layer_norm(op: Op) -> Cost:
    """Writes mean and 1/σ of each row, or group, beside the output."""
    y, mean = op.outputs[:2]
    flop = _MOMENTS + _SCALE + _affine(op)
    return Cost(vector_flop=product((flop, y.numel)), special_flop=mean.numel) + traffic(op)


@rule(
    "aten.native_batch_norm",
    "aten._native_batch_norm_legit",
    "aten._native_batch_norm_legit_no_training",
    "aten.cudnn_batch_norm",
    "aten._batch_norm_with_update",
    "aten._batch_norm_no_update",
    timed_as=Family.NORMALIZATION,
)
def batch_norm(op: Op) -> Cost:
    """In training as layer norm, and the running statistics are written too; else difference, scale, gain, shift."""
    x, *parameters = op.inputs
    y = op.outputs[0]
    channels = x.shape[1]
    training = bool(op.attrs.get("training", op.attrs.get("train", "no_" not in op.kind)))
    flop = (_MOMENTS if training else 1) + _SCALE + _affine(op)
    work = Cost(vector_flop=product((flop, y.numel)), special_flop=channels)
    running = [s for s in (op.attrs.get("running_mean"), op.attrs.get("running_var")) if s is not None]
    if not training:
        # The saved statistics are empty outside training.
        return work + reads((x, *parameters)) + writes((y,))
    saved = [t for t in op.outputs[1:3] if len(t.shape) == 1]
    return work + reads((x, *parameters)) + writes((y, *saved, *running))


@rule("aten.native_layer_norm_backward", "aten.native_group_norm_backward", timed_as=Family.NORMALIZATION)
def layer_norm_backward(op: Op) -> list[Cost]:
    """Gradient of the input: x̂ 2, g·gain 1, its sum 1, sum with x̂ 2, combination 4: 10 N. Of gain and shift: 3 N.

    The second kernel reads the gradient and the input again.
    """
    grad, x = op.inputs[:2]
    wants_input, wants_weight, wants_bias = op.attrs["output_mask"]
    results = iter(op.outputs)
    costs = []
    if wants_input:
        work = Cost(vector_flop=product((10, x.numel)), label="input gradient")
        bias = op.attrs.get("bias")
        used = [t for t in op.inputs if not _same(t, bias)]
        costs.append(work + reads(used) + writes((next(results),)))
    if wants_weight or wants_bias:
        # Σ g·x̂ with x̂ formed again: 4; Σ g: 1
        flop = 4 * bool(wants_weight) + bool(wants_bias)
        work = Cost(vector_flop=product((flop, x.numel)), label="gain and shift gradient")
        statistics = [t for t in op.inputs[2:4] if wants_weight]
        costs.append(work + reads((grad, x, *statistics) if wants_weight else (grad,)) + writes(results))
    return costs


@rule(
    "aten.native_batch_norm_backward",
    "aten.cudnn_batch_norm_backward",
    "aten.batch_norm_backward",
    timed_as=Family.NORMALIZATION,
)
def batch_norm_backward(op: Op) -> Cost:
    """Training: x̂ 2, Σg 1, Σg·x̂ 2, combination 4: 9 N, with the gradients of gain and shift among the sums.

    Evaluation: 1 N for the input, 4 N and 1 N for gain and shift.
    """
    x = op.inputs[1]
    training = bool(op.attrs.get("train", op.attrs.get("update", True)))
    wants_input, wants_weight, wants_bias = op.attrs.get("output_mask", (True, True, True))
    flop = 9 if training else wants_input + 4 * wants_weight + wants_bias
    unused = [op.attrs.get("running_mean"), op.attrs.get("running_var")] if training else []
    used = [t for t in op.inputs if not any(_same(t, other) for other in unused)]
    return Cost(vector_flop=product((int(flop), x.numel))) + reads(used) + writes(op.outputs)


@rule("aten._fused_rms_norm", timed_as=Family.NORMALIZATION)
def rms_norm(op: Op) -> Cost:
    """Square, sum, times 1/σ: 3 N, and the gain. One rsqrt a row, written beside the output."""
    y, inverse = op.outputs
    flop = 2 + _SCALE + _affine(op)
    return Cost(vector_flop=product((flop, y.numel)), special_flop=inverse.numel) + traffic(op)


@rule("aten._fused_rms_norm_backward", timed_as=Family.NORMALIZATION)
def rms_norm_backward(op: Op) -> list[Cost]:
    """Gradient of the input: x̂ 1, g·gain 1, sum with x̂ 2, combination 3: 7 N, 6 N without gain. Of the gain: 3 N.

    The second kernel reads the gradient and the input again.
    """
    grad, x, inverse = op.inputs[:3]
    wants_input, wants_weight = op.attrs["output_mask"]
    results = iter(op.outputs)
    costs = []
    if wants_input:
        work = Cost(vector_flop=product((6 + _affine(op), x.numel)), label="input gradient")
        costs.append(work + reads(op.inputs) + writes((next(results),)))
    if wants_weight:
        work = Cost(vector_flop=product((3, x.numel)), label="gain gradient")
        costs.append(work + reads((grad, x, inverse)) + writes(results))
    return costs


# --- of weights -----------------------------------------------------------------------------------------------


@rule("aten._weight_norm_interface", timed_as=Family.NORMALIZATION)
def weight_norm(op: Op) -> Cost:
    """v·(g/|v|): the norms, a division each, and a multiplication an element."""
    v, gain = op.inputs
    scale = Cost(vector_flop=v.numel, special_flop=gain.numel)
    return norm_work(2, v.numel, gain.numel) + scale + traffic(op)


@rule("aten._weight_norm_interface_backward", timed_as=Family.NORMALIZATION)
def weight_norm_backward(op: Op) -> Cost:
    """r = 1/|v| and Σ grad·v 2 N; of the gain that sum times r; of v g·r·grad - g·r³·sum·v, 3 N.

    A norm takes one division, and the factors six multiplications: sum·r, g·r, r·r·r, times g, times the sum.
    """
    v, gain = op.inputs[1:3]
    work = total((product((5, v.numel)), product((6, gain.numel))))
    return Cost(vector_flop=work, special_flop=gain.numel) + traffic(op)


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
        Cost(vector_flop=product((2, slices)), special_flop=slices, read_bytes=each, write_bytes=each, label="factor"),
        Cost(vector_flop=x.numel, read_bytes=each, label="product") + traffic(op),
    ]


def _same(tensor: TensorSpec, other: TensorSpec | None) -> bool:
    return other is not None and tensor.name == other.name
