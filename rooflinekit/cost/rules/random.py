"""Random numbers. Drawing them, in whatever distribution, is not counted as FLOP: they cost what they write.

Ops that take probabilities or rates as a tensor read it; one that takes a tensor for its shape alone does not.
"""

from __future__ import annotations

from rooflinekit.cost.rules.elementwise import register
from rooflinekit.cost.table import reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import product
from rooflinekit.ir.tensor import TensorSpec


@rule(
    "aten.rand",
    "aten.rand_like",
    "aten.randn",
    "aten.randn_like",
    "aten.randint",
    "aten.randint_like",
    "aten.randperm",
    "aten.random",
    "aten.uniform",
    "aten.normal_",
    "aten.log_normal",
    "aten.exponential",
    "aten.geometric",
    "aten.cauchy",
)
def draw(op: Op) -> Cost:
    """Writes its numbers and reads nothing."""
    return writes(op.outputs)


@rule(
    "aten.normal",
    "aten.poisson",
    "aten.binomial",
    "aten.multinomial",
    "aten._standard_gamma",
    "aten._sample_dirichlet",
)
def draw_with(op: Op) -> Cost:
    """Reads means, rates or probabilities, an element or a row each, and writes what it drew."""
    return traffic(op)


@rule("aten.bernoulli")
def bernoulli(op: Op) -> Cost:
    """Reads its probabilities where they are a tensor: the input itself unless `p` is given."""
    if "p" not in op.attrs:
        return traffic(op)
    probability = op.attrs["p"]
    return reads((probability,) if isinstance(probability, TensorSpec) else ()) + writes(op.outputs)


@rule("aten.native_dropout", "aten._fused_dropout")
def dropout(op: Op) -> Cost:
    """Compare with a random number, mask and scale; the mask is written too, a byte an element."""
    return Cost(vector_flop=product((3, op.outputs[0].numel))) + traffic(op)


register(
    {
        "native_dropout_backward": (2, 0),  # g·mask·scale
        "_masked_scale": (2, 0),
        "_standard_gamma_grad": (0, 1),
        "_dirichlet_grad": (0, 1),
    }
)
