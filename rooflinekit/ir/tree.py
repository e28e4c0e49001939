"""A graph by its modules: what each holds and costs, its children included."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Phase, PricedOp
from rooflinekit.ir.sizes import Size, product, total
from rooflinekit.ir.tensor import Role, TensorSpec

if TYPE_CHECKING:
    import pandas as pd

_COUNTS = ("matrix_flop", "vector_flop", "special_flop", "read_bytes", "write_bytes")


def tree(ops: Sequence[PricedOp], weights: Sequence[TensorSpec], depth: int | None) -> pd.DataFrame:
    """One row a module in the order of its first op, the root "" first; paths of at most `depth` parts.

    Columns: parameters; output, the sizes of its last forward result; activation_bytes, what its forward ops write; the
    counts of all phases.
    """
    import pandas as pd

    costs: dict[str, Counter[int]] = defaultdict(Counter)
    by_id: dict[int, Cost] = {}
    activations: dict[str, list[Size]] = defaultdict(list)
    output: dict[str, list[Size]] = {}
    for priced in ops:
        for path in _paths(priced.op.module, depth):
            costs[path].update(id(cost) for cost in priced.costs)
            if priced.op.phase is Phase.FORWARD and priced.op.outputs:
                output[path] = list(priced.op.outputs[0].shape)
                activations[path] += [spec.bytes for spec in priced.op.outputs if not spec.storage and priced.costs]
        by_id |= {id(cost): cost for cost in priced.costs}
    parameters: Counter[str] = Counter()
    for weight in weights:
        if weight.role is Role.WEIGHT:
            for path in _paths(weight.name.rpartition(".")[0], depth):
                parameters[path] += int(weight.numel)
    rows: dict[str, dict[str, Any]] = {}
    for path, counted in costs.items():
        held = {"parameters": parameters[path], "output": output.get(path)}
        rows[path] = {**held, "activation_bytes": total(activations[path])}
        for name in _COUNTS:
            rows[path][name] = total(product((n, getattr(by_id[key], name))) for key, n in counted.items())
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index.name = "module"
    return table


def _paths(module: str, depth: int | None) -> Iterator[str]:
    """The root and every module on the way down."""
    yield ""
    parts = module.split(".") if module else []
    for i in range(1, len(parts) + 1):
        if depth is None or i <= depth:
            yield ".".join(parts[:i])
