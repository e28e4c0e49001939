"""Graphs as tables and JSON: a row an op, a row a module, and values as a reader wants them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Phase, PricedOp, Role, TensorSpec
from rooflinekit.ir.sizes import Size, is_formula, product, total

if TYPE_CHECKING:
    import pandas as pd

_LETTERS = 120  # of a formula in a notebook


def shown(value: Any) -> str:
    """A number with its digits in groups, a formula as far as a table has room."""
    if isinstance(value, Mapping):
        value = [f"{name}={number}" for name, number in value.items()]
    text = (
        ", ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int | float) else str(value)
    )
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def plain(value: Any) -> Any:
    """A value for JSON: sympy's numbers as Python's, its formulas as text."""
    if is_formula(value):
        return int(value) if value.is_Integer else float(value) if value.is_number else str(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def op_row(priced: PricedOp) -> dict[str, object]:
    """What tables and JSON say of an op; sizes that are open stay formulas."""
    cost = sum(priced.costs, Cost())
    # An op that moves nothing has no intensity; the quotient of symbols stays a formula.
    intensity = None if cost.bytes == 0 else cost.flop / cost.bytes
    return {
        "module": priced.op.module,
        "phase": str(priced.op.phase),
        "kind": priced.op.kind,
        "inputs": [list(t.shape) for t in priced.op.inputs],
        "outputs": [list(t.shape) for t in priced.op.outputs],
        **{name: getattr(cost, name) for name in COUNTS},
        "intensity": intensity,
        "basis": str(priced.basis),
    }


#: Counts of a cost, each a column of its own.
COUNTS = ("matrix_flop", "vector_flop", "special_flop", "read_bytes", "write_bytes")


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
        for path in paths_to(priced.op.module, depth):
            costs[path].update(id(cost) for cost in priced.costs)
            if priced.op.phase is Phase.FORWARD and priced.op.outputs:
                output[path] = list(priced.op.outputs[0].shape)
                activations[path] += [spec.bytes for spec in priced.op.outputs if not spec.storage and priced.costs]
        by_id |= {id(cost): cost for cost in priced.costs}
    parameters: Counter[str] = Counter()
    for weight in weights:
        if weight.role is Role.WEIGHT:
            for path in paths_to(weight.name.rpartition(".")[0], depth):
                parameters[path] += int(weight.numel)
    rows: dict[str, dict[str, Any]] = {}
    for path, counted in costs.items():
        held = {"parameters": parameters[path], "output": output.get(path)}
        rows[path] = {**held, "activation_bytes": total(activations[path])}
        for name in COUNTS:
            rows[path][name] = total(product((n, getattr(by_id[key], name))) for key, n in counted.items())
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index.name = "module"
    return table


def paths_to(module: str, depth: int | None = None) -> list[str]:
    """The root and every module on the way down, by paths of at most `depth` parts.

    >>> paths_to("layers.0.mlp", 2)
    ['', 'layers', 'layers.0']
    """
    parts = module.split(".")[:depth] if module else []
    return [".".join(parts[:i]) for i in range(len(parts) + 1)]
