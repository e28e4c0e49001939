"""Multi-tensor ops, as optimizers use them: the element-wise op over lists of tensors in few kernels; whole steps."""

from __future__ import annotations

from collections.abc import Iterable

from rooflinekit.cost.rules.elementwise import REAL
from rooflinekit.cost.table import family, reads, rule, traffic, work, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Op, TensorSpec
from rooflinekit.ir.sizes import Size, total

#: Element-wise ops that there are of lists of tensors too, at the same work an element.
_OF_LISTS = (
    "mul", "neg", "abs", "maximum", "minimum", "sign", "clamp_min", "clamp_max", "floor", "ceil", "round", "trunc",
    "div", "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh",
    "erf", "erfc", "lerp",
)  # fmt: skip


def _numel(tensors: Iterable[TensorSpec]) -> Size:
    return total(tensor.numel for tensor in tensors)


def _per_element(op: Op, vector: int, special: int) -> Cost:
    return work(_numel(op.outputs), vector, special) + traffic(op)


_PER_ELEMENT = {name: REAL[name] for name in _OF_LISTS} | {"pow": (0, 1), "sigmoid": (2, 2)}  # 1 / (1 + exp(-x))
#: What inductor fuses.
LISTS = tuple(f"aten._foreach_{name}" for name in (*_PER_ELEMENT, "add", "sub", "addcmul", "addcdiv", "copy", "zero"))
family(_per_element, {f"_foreach_{name}": row for name, row in _PER_ELEMENT.items()})


def _add_product(op: Op) -> Cost:
    factor = "scalars" in op.attrs or op.attrs.get("value", 1) != 1
    divisions = int(op.kind.startswith("aten._foreach_addcdiv"))
    return _per_element(op, 2 + factor - divisions, divisions)


def _norms(op: Op) -> Cost:
    roots = 0 if op.attrs.get("ord", 2) in (1, float("inf")) else len(op.outputs)
    return work(_numel(op.inputs), 2) + Cost(special_flop=roots) + traffic(op)


family(
    _per_element,
    {
        "_foreach_add _foreach_sub": (
            lambda op: _per_element(op, 1 + (op.attrs.get("alpha", 1) != 1), 0),
            "a + alpha·b: a second operation where alpha is not 1.",
        ),
        "_foreach_addcmul _foreach_addcdiv": (
            _add_product, "a + v·b·c, or a + v·b/c: one multiplication less where v is 1.",
        ),
        "_foreach_copy _foreach_zero": (
            lambda op: reads(op.inputs[len(op.outputs) :]) + writes(op.outputs),
            "Reads the sources, if any; what stood in the targets, as many as there are outputs, is not read.",
        ),
        "_foreach_norm": (
            _norms,
            "Square and sum, 2 an element, and a root a tensor; without the root where the order is 1 or infinite.",
        ),
        "_foreach_max": (lambda op: work(_numel(op.inputs), 1) + traffic(op), "One comparison an element."),
    },
    timed_as=Family.OPTIMIZER,
)  # fmt: skip


# --- gradient scaling -----------------------------------------------------------------------------------------


@rule("aten._amp_foreach_non_finite_check_and_unscale_", timed_as=Family.OPTIMIZER)
def unscale(op: Op) -> Cost:
    """Each gradient checked, and multiplied by 1/scale: 2."""
    gradients = op.attrs["self"]
    return work(_numel(gradients), 2) + reads(op.inputs) + writes((*gradients, op.attrs["found_inf"]))


@rule("aten._amp_update_scale_")
def update_scale(op: Op) -> Cost:
    """Of one number: a comparison of the mark, one addition and one comparison of the counter, one multiplication."""
    return Cost(vector_flop=4) + reads(op.inputs) + writes((op.attrs["self"], op.attrs["growth_tracker"]))


# --- whole steps in one op ------------------------------------------------------------------------------------


def _step(op: Op, vector: int, special: int, state: tuple[str, ...], unread: tuple[TensorSpec, ...] = ()) -> Cost:
    """A step of `vector` and `special` operations a parameter; it writes the parameters and the named state.

    Gradients to be maximized are negated, 1. Those that are still scaled are divided by the scale and written back.
    """
    scaled = op.attrs.get("grad_scale") is not None
    names = {tensor.name for tensor in unread}
    written = [t for name in ("self", *state, *(("grads",) if scaled else ())) for t in op.attrs[name]]
    done = work(_numel(op.attrs["self"]), vector + bool(op.attrs["maximize"]), special + scaled)
    return done + reads(t for t in op.inputs if t.name not in names) + writes(written)


@rule("aten._fused_sgd_", timed_as=Family.OPTIMIZER)
def fused_sgd(op: Op) -> Cost:
    """w - lr·g: 2. Decay g + d·w: 2. Momentum m·μ + (1 - τ)·g: 2, and 1 for a damping τ; Nesterov's g + μ·m: 2.

    The first step makes m a copy of the gradient.
    """
    attrs = op.attrs
    flop = 2 + 2 * (attrs["weight_decay"] != 0)
    buffers = attrs["momentum_buffer_list"]
    first = bool(attrs["is_first_step"])
    if buffers:
        flop += (0 if first else 2 + (attrs["dampening"] != 0)) + 2 * bool(attrs["nesterov"])
    return _step(op, flop, 0, ("momentum_buffer_list",), unread=buffers if first else ())


@rule("aten._fused_adam_", "aten._fused_adamw_", timed_as=Family.OPTIMIZER)
def fused_adam(op: Op) -> Cost:
    """m + (1-β)·(g - m): 3. v·β + (1-β)·g·g: 4. √v, / c, + ε: 1 and 2 special. w - lr·m / that: 2 and a division.

    Decay into the gradient: 2, of the weight itself (AdamW): 1. The largest v so far (AMSGrad): 1.
    """
    decay = 0 if op.attrs["weight_decay"] == 0 else 1 if "adamw" in op.kind else 2
    state = ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")
    return _step(op, 10 + decay + bool(op.attrs["amsgrad"]), 3, state)


@rule("aten._fused_adagrad_", timed_as=Family.OPTIMIZER)
def fused_adagrad(op: Op) -> Cost:
    """s + g·g: 2. √s + ε: 1 and a root. w - lr·g / that: 2 and a division. Decay g + d·w: 2."""
    return _step(op, 5 + 2 * (op.attrs["weight_decay"] != 0), 2, ("state_sums",))
