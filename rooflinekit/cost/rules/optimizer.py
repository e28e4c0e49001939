"""Multi-tensor ops, as optimizers use them: the element-wise op over lists of tensors in few kernels."""

from __future__ import annotations

from rooflinekit.cost.table import Rule, reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import product, total

#: kind: (vector FLOP, special functions) an element
_PER_ELEMENT: dict[str, tuple[int, int]] = {
    "_foreach_mul": (1, 0),
    "_foreach_neg": (1, 0),
    "_foreach_abs": (1, 0),
    "_foreach_maximum": (1, 0),
    "_foreach_minimum": (1, 0),
    "_foreach_div": (0, 1),
    "_foreach_sqrt": (0, 1),
    "_foreach_reciprocal": (0, 1),
    "_foreach_pow": (0, 1),
    "_foreach_lerp": (3, 0),  # a + w·(b-a)
    "_foreach_addcmul": (3, 0),  # a + v·b·c
    "_foreach_addcdiv": (2, 1),  # a + v·b/c
}


def _per_element(vector: int, special: int) -> Rule:
    def price(op: Op) -> Cost:
        n = total(tensor.numel for tensor in op.outputs)
        return Cost(vector_flop=product((vector, n)), special_flop=product((special, n))) + traffic(op)

    return price


for _kind, (_vector, _special) in _PER_ELEMENT.items():
    rule(f"aten.{_kind}")(_per_element(_vector, _special))


@rule("aten._foreach_add", "aten._foreach_sub")
def foreach_add(op: Op) -> Cost:
    """a + alpha·b: a second operation where alpha is not 1."""
    n = total(tensor.numel for tensor in op.outputs)
    return Cost(vector_flop=product((1 if op.attrs.get("alpha", 1) == 1 else 2, n))) + traffic(op)


@rule("aten._foreach_copy")
def foreach_copy(op: Op) -> Cost:
    """Reads the sources; what stood in the targets, as many as there are outputs, is not read."""
    return reads(op.inputs[len(op.outputs) :]) + writes(op.outputs)


@rule("aten._foreach_zero")
def foreach_zero(op: Op) -> Cost:
    """Writes its tensors without reading them."""
    return writes(op.outputs)
