"""Which gradients and which of the optimizer's state belong to a parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Basis, Family, Op, Phase, PricedOp, Role, TensorSpec


def belonging_to(graph: Graph, weights: set[str]) -> set[str]:
    """Memory of these parameters' gradients, and of what the optimizer has for them."""
    return set(owners_of(graph, weights)) - weights


def owners_of(graph: Graph, weights: set[str]) -> dict[str, str]:
    """Memory of these parameters, their gradients and what the optimizer has for them, with the parameter's memory.

    Gradients stand in the order of their parameters. State stands at a parameter's place in the lists that the
    optimizer's ops take.
    """
    found = {memory: memory for memory in weights}
    found |= {g.memory: weight.memory for weight, g in _with_gradients(graph) if weight.memory in weights}
    _copies_into(graph, found)
    known = -1
    while known < len(found):
        known = len(found)
        for p in graph.priced:
            if p.op.phase is Phase.OPTIMIZER:
                for place in _places(p.op):
                    owned = next((spec for spec in place if spec.memory in found), None)
                    if owned is not None:
                        alike = [spec.memory for spec in place if int(spec.numel) == int(owned.numel)]
                        found |= dict.fromkeys(alike, found[owned.memory])
    return found


def copies_of(graph: Graph, memories: set[str], through: Callable[[PricedOp], bool]) -> dict[str, str]:
    """Memory of these tensors and of what ops that pass `through` make of them, with the tensor's memory.

    Such an op has one input and one output of its shape: a cast, a layout copy.
    """
    found = {memory: memory for memory in memories}
    for p in graph.priced:
        if len(p.op.inputs) == 1 and p.op.inputs[0].memory in found and through(p):
            source, made = p.op.inputs[0], p.op.outputs[0]
            if tuple(source.shape) == tuple(made.shape):
                found.setdefault(made.memory, found[source.memory])
    return found


def _with_gradients(graph: Graph) -> Iterator[tuple[TensorSpec, TensorSpec]]:
    """Parameters with their gradients; a frozen one has none."""
    gradients = list(graph.gradients)
    for spec in graph.weights:
        if gradients and spec.role is Role.WEIGHT and tuple(spec.shape) == tuple(gradients[0].shape):
            yield spec, gradients.pop(0)


def _copies_into(graph: Graph, found: dict[str, str]) -> None:
    """Takes in what backward copies into these gradients, or adds to them."""
    standing = {spec.memory for spec in (*graph.weights, *graph.inputs)}
    for p in reversed(graph.priced):
        made = next((spec for spec in p.op.outputs if spec.memory in found), None)
        if p.op.phase is Phase.BACKWARD and made is not None and made.memory not in standing and is_elementwise(p):
            for spec in p.op.inputs:
                if int(spec.numel) == int(made.numel) and spec.memory not in standing:
                    found[spec.memory] = found[made.memory]


def _places(op: Op) -> Iterator[list[TensorSpec]]:
    """The tensors of an optimizer's op that stand at the same place of its lists; of one without lists all."""
    lists: list[Sequence[TensorSpec]] = [
        value for value in op.attrs.values()
        if isinstance(value, list | tuple) and value and all(isinstance(spec, TensorSpec) for spec in value)
    ]  # fmt: skip
    if not lists:
        yield [*op.inputs, *op.outputs]
        return
    length = max(map(len, lists))
    whole = [one for one in (*lists, op.outputs) if len(one) == length]
    yield from ([one[i] for one in whole] for i in range(length))


# Which ops compute each token, or each row, on its own.


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
