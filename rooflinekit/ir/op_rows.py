"""Ops and sizes as tables, notebooks and JSON show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import PricedOp
from rooflinekit.ir.sizes import is_formula

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
        "matrix_flop": cost.matrix_flop,
        "vector_flop": cost.vector_flop,
        "special_flop": cost.special_flop,
        "read_bytes": cost.read_bytes,
        "write_bytes": cost.write_bytes,
        "intensity": intensity,
        "basis": str(priced.basis),
    }
