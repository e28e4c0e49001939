"""Intensity as a formula: derived by hand, equal to the counts at numbers, and its inverse."""

import pytest
import sympy
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError, SizeError
from rooflinekit.ir.sizes import symbol

BATCH, SEQ = symbol("batch"), symbol("seq")


def linear() -> rk.Graph:
    return rk.trace(nn.Linear(64, 128, bias=False), rk.Input("batch", 64))


def test_a_product_by_hand() -> None:
    # 2·b·64·128 FLOP = 16384 b; 4·(64 b + 64·128 + 128 b) bytes = 768 b + 32768; both by 256: 64 b / (3 b + 128).
    found = rk.intensity(linear())
    assert found.formula == 64 * BATCH / (3 * BATCH + 128)
    assert str(found) == "Linear: 64*batch/(3*batch + 128) FLOP/byte"
    assert found.latex == r"\frac{64 \mathrm{batch}}{3 \mathrm{batch} + 128}"
    assert found.limit("batch") == sympy.Rational(64, 3)
    # 64 b = 20 · (3 b + 128) gives 4 b = 2560
    assert found.reaching(20, "batch") == (640,)
    assert found.at(batch=640) == 20
    # beyond the limit of 21.3
    assert found.reaching(22, "batch") == ()


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_a_formula_of_batch_and_sequence() -> None:
    net = nn.Sequential(nn.Linear(32, 32), Attention())
    graph = rk.trace(net, rk.Input("batch", 4, "seq", 32), dtype="float16")
    found = rk.intensity(graph, module="1")
    # Two products, 2·2·4·32·s² a sample, 5 a score for the softmax, 4·s²·5, and 4·32·s for its division. Bytes: the one
    # tensor read and the result written, 2·4·32·2·s a sample, 4·4·s for the sums, 24 for the state of dropout.
    assert found.flop == sympy.expand(BATCH * (512 * SEQ**2 + 20 * SEQ**2 + 128 * SEQ))
    assert found.bytes == sympy.expand(BATCH * (512 * SEQ + 16 * SEQ) + 24)
    assert found.limit("seq") == sympy.oo
    # 532 s² + 128 s by 528 s
    assert sympy.expand(found.limit("batch") - (133 * SEQ + 32) / 132) == 0
    for batch, seq in ((2, 16), (3, 1000)):
        at = graph.at(batch=batch, seq=seq)
        assert rk.intensity(graph).at(batch=batch, seq=seq) == pytest.approx(float(at.flop / at.bytes), rel=1e-12)
        rows = at.to_dataframe()
        inside = rows[rows["module"] == "1"]
        flop = inside[["matrix_flop", "vector_flop", "special_flop"]].sum().sum()
        moved = inside[["read_bytes", "write_bytes"]].sum().sum()
        assert found.at(batch=batch, seq=seq) == pytest.approx(float(flop / moved), rel=1e-12)
    with pytest.raises(InputError, match="does not depend on 'length': it depends on batch, seq"):
        found.limit("length")


def test_the_formula_stays_open_where_the_graph_is_at_numbers() -> None:
    graph = linear()
    assert rk.intensity(graph.at(batch=4)).formula == rk.intensity(graph).formula
    fixed = rk.predict(nn.Linear(64, 128, bias=False), rk.Input("batch", 64), gpu="nvidia-l4", batch=640)
    assert rk.intensity(fixed.graph).formula == 20


def test_rounded_sizes_are_no_polynomials() -> None:
    found = rk.intensity(rk.trace(nn.Conv1d(8, 8, 3, stride=2), rk.Input("batch", 8, "length")))
    # (length − 3)//2 + 1 windows
    assert found.formula.has(sympy.floor)
    assert found.at(batch=2, length=101) > 0
    with pytest.raises(InputError, match="is no quotient of polynomials"):
        found.limit("length")


def test_wrong_names() -> None:
    graph = linear()
    op = next(op.name for op in graph.ops if op.kind.endswith("mm"))
    assert rk.intensity(graph, op=op).formula == rk.intensity(graph).formula
    with pytest.raises(InputError, match=r"^Linear has no op 'nm'"):
        rk.intensity(graph, op="nm")
    with pytest.raises(InputError, match=r"^name a module or an op, not both$"):
        rk.intensity(graph, op=op, module="")
    view = next(one.name for one in graph.ops if one.name != op)
    with pytest.raises(InputError, match="moves no bytes, so that it has no intensity"):
        rk.intensity(graph, op=view)
    with pytest.raises(SizeError, match="no number is given for size 'batch': add batch=…"):
        rk.intensity(graph).at()
