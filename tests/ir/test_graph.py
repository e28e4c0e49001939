"""Graphs: numbers for named sizes, sums, coverage."""

from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import pandas as pd
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from torch import nn
from torch.nn import functional

import rooflinekit
from rooflinekit import Input
from rooflinekit.errors import SizeError
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Basis, DType, Op, Phase, PricedOp, Role, TensorSpec
from rooflinekit.ir.sizes import Condition, ForcedSize, symbol

COUNTS = ("matrix_flop", "dense_matrix_flop", "vector_flop", "special_flop", "flop", "read_bytes", "write_bytes")


# --- by hand --------------------------------------------------------------------------------------------------


def tensor(name, *shape, **options):
    return TensorSpec(name=name, shape=shape, dtype=DType.FLOAT32, **options)


@pytest.fixture
def graph():
    """Two equal products of [batch, 4] with [4, 5], and an op without a rule."""
    batch = symbol("batch")
    x, w, y = tensor("x", batch, 4), tensor("w", 4, 5, role=Role.WEIGHT), tensor("y", batch, 5)
    product = Cost(gemms=(Gemm(m=batch, n=5, k=4),), read_bytes=16 * batch + 80, write_bytes=20 * batch)
    guess = Cost(vector_flop=5 * batch, read_bytes=20 * batch, write_bytes=20 * batch)

    def op(name, kind, inputs, costs, basis, **attrs):
        attributes = MappingProxyType(attrs)
        made = Op(name=name, kind=kind, module="layer", inputs=inputs, outputs=(y,), attrs=attributes)
        return PricedOp(op=made, costs=costs, basis=basis)

    return Graph(
        name="twice",
        mode="inference",
        inputs=(x,),
        weights=(w, tensor("mean", 7, role=Role.BUFFER)),
        outputs=(y,),
        priced=(
            op("mm", "aten.mm", (x, w), (product,), Basis.RULE),
            op("mm_1", "aten.mm", (x, w), (product,), Basis.RULE),
            op("sort", "mylib.sort", (y,), (guess,), Basis.DEFAULT, shape=(batch, 5), given=y, stable=True),
            op("view", "aten.view", (y,), (), Basis.FREE),
        ),
        dims=("batch",),
    )


def test_counts_add_over_kernels_also_where_ops_share_their_costs(graph):
    batch = symbol("batch")
    assert graph.matrix_flop == graph.dense_matrix_flop == 80 * batch  # twice 2 · batch·5·4
    assert (graph.vector_flop, graph.special_flop) == (5 * batch, 0)
    assert graph.flop == 85 * batch
    assert graph.read_bytes == 52 * batch + 160  # twice 16 and 80, 20
    assert graph.write_bytes == 60 * batch
    assert graph.bytes == 112 * batch + 160


def test_a_graph_at_numbers_has_them_everywhere(graph):
    at = graph.at(batch=3)
    assert (at.dims, dict(at.sizes)) == ((), {"batch": 3})
    assert (at.matrix_flop, at.flop, at.bytes) == (240, 255, 496)
    assert at.inputs[0].shape == (3, 4)
    assert at.outputs[0].shape == (3, 5)
    sort = at.ops[2]
    assert sort.outputs[0].shape == (3, 5)
    assert sort.attrs["shape"] == (3, 5)
    assert sort.attrs["given"].shape == (3, 5)
    assert sort.attrs["stable"] is True
    assert [priced.basis for priced in at.priced] == [Basis.RULE, Basis.RULE, Basis.DEFAULT, Basis.FREE]
    assert at.priced[0].costs[0] is at.priced[1].costs[0]  # still shared
    assert graph.dims == ("batch",)  # the graph itself is as it was


def test_strides_take_numbers_too(graph):
    batch = symbol("batch")
    transposed = tensor("t", 4, batch, stride=(1, 4))
    second = tensor("s", 4, batch, stride=(2 * batch, 2))
    rows = tensor("r", 4, batch, stride=(batch, 1))  # row by row, which has no strides of its own
    at = replace(graph, inputs=(transposed, second, rows)).at(batch=3)
    assert [x.stride for x in at.inputs] == [(1, 4), (6, 2), None]


def test_at_without_sizes_changes_nothing(graph):
    assert graph.at() == graph


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batsh": 4}, "no size is named 'batsh' in this workload: it has 'batch'; did you mean 'batch'?"),
        ({"batch": 0}, "size 'batch': expected a positive integer; got 0"),
    ],
)
def test_sizes_that_a_graph_refuses(graph, given, message):
    assert refusal(SizeError, graph.at, **given) == message


def test_a_size_that_was_given_is_no_longer_open(graph):
    assert refusal(SizeError, graph.at(batch=3).at, batch=3) == "no size is named 'batch' in this workload: it has none"


def test_a_graph_refuses_sizes_for_which_the_model_takes_another_path(graph):
    batch, seq = symbol("batch"), symbol("seq")
    graph = replace(graph, dims=("batch", "seq"), conditions=(Condition(holds=batch > seq, where="model.py:12"),))
    assert graph.at(batch=4, seq=3).sizes["seq"] == 3
    message = (
        "the trace is valid only for batch > seq (model.py:12), which is not true at batch=3, seq=5; "
        "trace again at these sizes"
    )
    assert refusal(SizeError, graph.at, batch=3, seq=5) == message
    # one after the other is the same
    assert refusal(SizeError, graph.at(batch=3).at, seq=5) == message


def test_a_size_that_the_model_forces_is_put_in_and_cannot_be_another(graph):
    forced = graph.with_forced((ForcedSize(name="batch", value=5, where="model.py:7"),))
    assert (forced.dims, forced.matrix_flop) == ((), 400)
    assert forced.at(batch=5).matrix_flop == 400
    assert str(forced.forced[0]) == "size 'batch' is forced to 5 by model.py:7"
    said = refusal(SizeError, forced.at, batch=6)
    assert said == "size 'batch' is forced to 5 by model.py:7; trace again with batch=6"
    assert graph.with_forced(()) is graph


def test_coverage_shares_of_flop_and_bytes(graph):
    coverage = graph.coverage
    assert dict(coverage.ops) == {Basis.RULE: 2, Basis.DEFAULT: 1, Basis.FREE: 1}
    assert coverage.flop_share == pytest.approx(80 / 85)
    assert coverage.bytes_share == pytest.approx(304 / 384)  # at batch 2: twice 36·2 + 80, and 40·2
    assert str(coverage) == (
        "2 ops by exact rules, 1 free, 1 by default (their FLOP are unknown, and counted as one "
        "for each output element, 5.88% of all; 79.17% of bytes are exact); "
        "by default: mylib.sort ×1"
    )


def test_coverage_of_a_graph_that_does_nothing_is_complete(graph):
    coverage = replace(graph, priced=()).coverage
    assert (coverage.flop_share, coverage.bytes_share) == (1, 1)
    exact = "(100.00% of FLOP and 100.00% of bytes are exact)"
    assert str(coverage) == f"0 ops by exact rules, 0 free, 0 by default {exact}"


class Unruled(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


def test_coverage_needs_sizes_that_leave_something_to_compute():
    model = nn.Sequential(nn.Conv1d(3, 4, 5), Unruled())  # length 2 would leave -2
    graph = rooflinekit.trace(model, Input("batch", 3, "length"))
    assert graph.coverage.default_kinds == {"aten.special_bessel_j0": 1}
    assert 0 < graph.coverage.bytes_share < 1
    assert 0 < graph.coverage.flop_share < 1


def test_parameters_are_weights_without_buffers(graph):
    assert graph.parameters == 20  # 4·5, without the 7 of the buffer


def test_a_table_has_a_row_an_op(graph):
    table = graph.at(batch=3).to_dataframe()
    assert isinstance(table, pd.DataFrame)
    assert list(table["kind"]) == ["aten.mm", "aten.mm", "mylib.sort", "aten.view"]
    assert set(table["module"]) == {"layer"}
    first = table.iloc[0]
    assert (first["inputs"], first["outputs"]) == ([[3, 4], [4, 5]], [[3, 5]])
    assert (first["matrix_flop"], first["vector_flop"], first["special_flop"]) == (120, 0, 0)
    assert (first["read_bytes"], first["write_bytes"]) == (128, 60)
    assert first["intensity"] == pytest.approx(120 / 188)
    assert table["matrix_flop"].sum() == 240
    assert list(table["basis"]) == ["rule", "rule", "default", "free"]
    assert table["intensity"].isna().tolist() == [False, False, False, True]


# --- equal ops ------------------------------------------------------------------------------------------------


def op(*inputs, kind="aten.mul", name="op", **attrs):
    return Op(name=name, kind=kind, inputs=inputs, outputs=(tensor("out", 4, 6),), attrs=MappingProxyType(attrs))


def test_names_and_places_do_not_matter_to_a_signature():
    one = op(tensor("a", 4, 6), tensor("b", 4, 6))
    other = replace(op(tensor("c", 4, 6), tensor("d", 4, 6)), name="x", module="y", phase=Phase.BACKWARD)
    assert one.signature() == other.signature()


@pytest.mark.parametrize(
    "other",
    [
        op(tensor("a", 4, 6), tensor("a", 4, 6)),  # the same tensor twice is read once
        op(tensor("a", 4, 6), tensor("b", 4, 6, storage="a")),  # a view of the other
        op(tensor("a", 4, 6), tensor("b", 4, 6, stride=(0, 1))),  # expanded
        op(tensor("a", 4, 6), tensor("b", 6)),
        op(tensor("a", 4, 6), replace(tensor("b", 4, 6), dtype=DType.BFLOAT16)),
        op(tensor("a", 4, 6), tensor("b", 4, 6), kind="aten.div"),
        op(tensor("a", 4, 6), tensor("b", 4, 6), alpha=2),
        op(tensor("a", 4, 6), tensor("b", 4, 6), alpha=None),
        op(tensor("a", 4, 6), tensor("b", 4, 6), bias=tensor("b", 4, 6)),
        op(tensor("a", 4, 6)),
    ],
)
def test_what_changes_the_cost_changes_the_signature(other):
    assert op(tensor("a", 4, 6), tensor("b", 4, 6)).signature() != other.signature()


def test_a_signature_is_hashable_whatever_the_arguments():
    attrs = {"sizes": [2, [3, symbol("n")]], "mapping": {"a": 1}, "mask": (True, False), "x": tensor("x", 2)}
    assert isinstance(hash(op(tensor("a", 4, 6), **attrs).signature()), int)


# --- traced ---------------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """A convolution over as many channels as given, a normalization and causal attention over the pixels."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x, weight):
        y = functional.conv2d(x * self.gain, weight, padding=1)
        y = functional.gelu(functional.layer_norm(y, y.shape[-1:]))
        tokens = y.flatten(2).transpose(1, 2)[:, None]
        y = functional.scaled_dot_product_attention(tokens, tokens, tokens, is_causal=True)
        return functional.max_pool2d(y, 2).mean((1, 2))


def step(mode, batch, channels, **options):
    return rooflinekit.trace(
        Mixed(), Input(batch, channels, 6, 6), Input(8, channels, 3, 3), mode=mode, strict=True, **options
    )


@lru_cache
def symbolic(mode):
    return step(mode, "batch", "channels")


@pytest.fixture(scope="module", autouse=True)
def traced_once():
    """The open graphs are traced before the first test asks for them."""
    for mode in ("inference", "training"):
        symbolic(mode)
        step(mode, 2, 3)


@pytest.mark.parametrize("mode", ["inference", "training"])
@settings(deadline=None, max_examples=5)
@given(batch=st.integers(2, 64), channels=st.integers(2, 48))
def test_numbers_put_into_the_open_trace_are_those_of_a_trace_at_numbers(mode, batch, channels):
    late = symbolic(mode).at(batch=batch, channels=channels)
    early = step(mode, batch, channels)
    assert [priced.op.kind for priced in late.priced] == [priced.op.kind for priced in early.priced]
    for ours, theirs in zip(late.priced, early.priced, strict=True):
        assert [t.shape for t in ours.op.outputs] == [t.shape for t in theirs.op.outputs]
        assert ours.costs == theirs.costs
    for count in COUNTS:
        assert getattr(late, count) == getattr(early, count)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_one_size_after_the_other_is_both_at_once(mode):
    both = symbolic(mode).at(batch=4, channels=5)
    assert symbolic(mode).at(batch=4).at(channels=5) == both
    assert symbolic(mode).at(channels=5).at(batch=4) == replace(both, sizes=MappingProxyType(dict(both.sizes)))


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("count", COUNTS)
def test_counts_are_linear_in_the_batch(mode, count):
    expression = getattr(symbolic(mode), count)
    batch = symbol("batch")
    assert sympy.degree(expression, batch) == 1
    constant = expression.subs(batch, 0)
    if "matrix" in count:
        assert constant == 0
    # Twice the batch is twice what depends on it.
    assert sympy.expand(expression.subs(batch, 2 * batch) - 2 * expression + constant) == 0


def test_reading_the_weights_does_not_depend_on_the_batch():
    graph = rooflinekit.trace(nn.Linear(4, 5), Input("batch", 4))
    assert str(graph.read_bytes) == "16*batch + 100"  # 4 · (batch·4 + 4·5 + 5)


def test_tied_parameters_count_once_as_memory_and_at_every_use_as_work():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 6, bias=False)
            self.second = nn.Linear(6, 6, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    graph = rooflinekit.trace(Tied(), Input(3, 6))
    assert graph.parameters == 36
    assert graph.matrix_flop == 432  # twice 2 · 3·6·6
