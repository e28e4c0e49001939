"""Which ops compute each token, or each row, on its own."""

from __future__ import annotations

from rooflinekit.ir.op import Basis, Family, Op, PricedOp

#: Of the element-wise family by name, yet not element by element.
_ACROSS = ("cum", "fft", "linalg", "tri", "cross", "renorm")
_COPIES = ("_to_copy", "clone", "copy")
_NORMS = ("layer_norm", "rms_norm")


def is_elementwise(priced: PricedOp) -> bool:
    """Whether each element of the result rests on those at its own place: arithmetic, activations, dropout, copies."""
    name = priced.op.kind.rpartition(".")[2].rstrip("_")
    if priced.basis is not Basis.RULE or any(cost.gemms for cost in priced.costs):
        return False
    if name in _COPIES:
        return True
    return priced.timed_as is Family.ELEMENTWISE and not any(name.startswith(word) for word in _ACROSS)


def is_tokenwise(priced: PricedOp) -> bool:
    """Whether each row along the last axis is computed on its own: also normalization and sums along that axis."""
    name = priced.op.kind.rpartition(".")[2]
    if is_elementwise(priced) or any(word in name for word in _NORMS):
        return True
    return priced.timed_as is Family.REDUCTION and _along_last(priced.op)


def _along_last(op: Op) -> bool:
    dim = op.attrs.get("dim")
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    last = len(op.inputs[0].shape) - 1 if op.inputs else 0
    return bool(dims) and all(one in (-1, last) for one in dims) and len(dims) == 1
