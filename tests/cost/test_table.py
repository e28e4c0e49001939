"""The rule table: registering, finding, replacing, and what happens without a rule."""

from types import MappingProxyType

import pytest
import torch

import rooflinekit
from rooflinekit.cost import table
from rooflinekit.cost.table import free, normalized, price, price_all, reads, rule, traffic, writes
from rooflinekit.errors import DuplicateRuleError, UnknownOpError
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Basis, Family, Op


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """The table is as before after each test."""
    monkeypatch.setattr(table, "_RULES", dict(table._RULES))
    monkeypatch.setattr(table, "_TIMED_AS", dict(table._TIMED_AS))
    monkeypatch.setattr(table, "_FREE", set(table._FREE))


@pytest.fixture
def swiglu_op(tensor):
    def build(kind="mylib.swiglu", name="swiglu", **attrs):
        return Op(
            name=name,
            kind=kind,
            module="layers.0.mlp",
            inputs=(tensor(7, 5, name="x"), tensor(5, 12, name="w")),
            outputs=(tensor(7, 6, name="y"),),
            attrs=MappingProxyType(attrs),
        )

    return build


def swiglu(op):
    x, w = op.inputs
    (y,) = op.outputs
    m, k = x.shape
    return Cost(gemms=(Gemm(m=m, n=w.shape[1], k=k),), vector_flop=6 * y.numel) + traffic(op)


# --- registering ----------------------------------------------------------------------------------------------


def test_a_rule_of_the_users_prices_an_op(swiglu_op):
    assert rule("mylib.swiglu")(swiglu) is swiglu
    priced = price(swiglu_op())
    assert priced.basis is Basis.RULE
    (cost,) = priced.costs
    assert cost.matrix_flop == 840  # 2 · 7·12·5
    assert cost.vector_flop == 252  # 6 · 7·6
    assert cost.read_bytes == 380  # 4 · (7·5 + 5·12)
    assert cost.write_bytes == 168  # 4 · 7·6


@pytest.mark.parametrize("registered", ["mylib::swiglu", "mylib.swiglu", " mylib::swiglu "])
@pytest.mark.parametrize("asked", ["mylib::swiglu", "mylib.swiglu"])
def test_both_spellings_of_a_kind_are_one(swiglu_op, registered, asked):
    rule(registered)(swiglu)
    assert price(swiglu_op(asked)).basis is Basis.RULE
    with pytest.raises(DuplicateRuleError):
        rule(asked)(swiglu)


def test_a_normalized_kind_stays_as_it_is():
    assert normalized(normalized("mylib::swiglu")) == "mylib.swiglu"


def test_a_second_rule_is_refused_and_the_first_named():
    with pytest.raises(DuplicateRuleError) as caught:
        rule("aten::mm")(swiglu)
    assert str(caught.value) == (
        "op 'aten.mm' has a rule already (rooflinekit.cost.rules.matmul.mm); pass override=True to replace it"
    )
    assert isinstance(caught.value, ValueError)


def test_a_rule_for_a_free_op_is_refused():
    with pytest.raises(DuplicateRuleError) as caught:
        rule("aten.view")(swiglu)
    assert str(caught.value) == (
        "op 'aten.view' has a rule already (registered as free); pass override=True to replace it"
    )


@pytest.mark.parametrize(
    ("timed_as", "cost", "expected"),
    [
        (None, Cost(vector_flop=1), Family.ELEMENTWISE),
        (None, Cost(gemms=(Gemm(m=1, n=1, k=1),)), Family.MATMUL),
        ("reduction", Cost(gemms=(Gemm(m=1, n=1, k=1),)), Family.MATMUL),
        ("attention", Cost(gemms=(Gemm(m=1, n=1, k=1),)), Family.ATTENTION),
        ("normalization", Cost(vector_flop=1), Family.NORMALIZATION),
    ],
)
def test_a_rule_says_what_its_op_is_timed_as(swiglu_op, timed_as, cost, expected):
    # names that hold "all", "sum" and "norm" say nothing
    rule("mylib.small_sum_norm", timed_as=timed_as)(lambda _: cost)
    assert price(swiglu_op("mylib.small_sum_norm_")).timed_as is expected


def test_an_unknown_family_is_refused_by_name():
    with pytest.raises(ValueError, match=r"timed_as: expected one of matmul, convolution, .*; got 'attn'"):
        rule("mylib.flash", timed_as="attn")


def test_a_refused_rule_registers_none_of_its_kinds(swiglu_op):
    with pytest.raises(DuplicateRuleError):
        rule("mylib.swiglu", "aten.mm")(swiglu)
    assert price(swiglu_op()).basis is Basis.DEFAULT


def test_what_has_a_rule_cannot_be_made_free():
    with pytest.raises(DuplicateRuleError, match=r"^op 'aten\.mm' has a rule already$"):
        free("aten.mm")
    with pytest.raises(DuplicateRuleError, match=r"^op 'aten\.view' has a rule already$"):
        free("aten.view")


def test_override_replaces_a_rule_and_a_free_op(tensor):
    rule("aten.mm", "aten.view", override=True)(lambda op: Cost(vector_flop=123))
    for kind in ("aten.mm", "aten.view"):
        priced = price(Op(name="op", kind=kind, inputs=(tensor(5, 5),), outputs=(tensor(5, 5),)))
        assert (priced.basis, [cost.vector_flop for cost in priced.costs]) == (Basis.RULE, [123])


# --- pricing --------------------------------------------------------------------------------------------------


def test_an_op_without_a_rule_costs_its_traffic_and_a_flop_an_element(swiglu_op):
    priced = price(swiglu_op())
    assert priced.basis is Basis.DEFAULT
    (cost,) = priced.costs
    assert (cost.matrix_flop, cost.vector_flop, cost.special_flop) == (0, 42, 0)  # 7·6
    assert (cost.read_bytes, cost.write_bytes) == (380, 168)


def test_an_op_without_a_rule_is_an_error_in_strict_mode(swiglu_op):
    with pytest.raises(UnknownOpError) as caught:
        price(swiglu_op("mylib.embeding"), on_unknown="raise")
    assert str(caught.value) == (
        "no cost rule for op 'mylib.embeding' (module 'layers.0.mlp', inputs [7, 5], [5, 12])"
        "; did you mean 'aten.embedding'?\n"
        "Add one:\n"
        '    @rooflinekit.rule("mylib.embeding")\n'
        "    def my_rule(op):\n"
        "        return rooflinekit.traffic(op)"
    )
    assert isinstance(caught.value, LookupError)


def test_the_root_module_has_a_name_in_the_error():
    with pytest.raises(UnknownOpError, match=r"^no cost rule for op 'zz\.q' \(module 'root', inputs \)\nAdd one:"):
        price(Op(name="op", kind="zz.q"), on_unknown="raise")


def test_the_snippet_of_the_error_works(swiglu_op):
    with pytest.raises(UnknownOpError) as caught:
        price(swiglu_op(), on_unknown="raise")
    exec(str(caught.value).split("Add one:\n")[1].replace("\n    ", "\n").strip(), {"rooflinekit": rooflinekit})
    assert price(swiglu_op(), on_unknown="raise").basis is Basis.RULE


def test_a_free_op_costs_nothing_and_launches_nothing(tensor):
    x = tensor(4, 6)
    priced = price(Op(name="op", kind="aten.view", inputs=(x,), outputs=(tensor(24, storage=x.name),)))
    assert (priced.basis, priced.costs) == (Basis.FREE, ())


def test_an_in_place_op_takes_the_rule_of_the_plain_one(tensor):
    x = tensor(4, 6)
    assert price(Op(name="op", kind="aten.relu_", inputs=(x,), outputs=(x,))).basis is Basis.RULE


def test_rules_of_one_call_come_first_and_do_not_last(swiglu_op, tensor):
    own = {"aten::relu": lambda op: Cost(vector_flop=7), "mylib::swiglu": swiglu}
    x = tensor(4, 6)
    ops = [
        Op(name="relu", kind="aten.relu", inputs=(x,), outputs=(tensor(4, 6),)),
        Op(name="relu_", kind="aten.relu_", inputs=(x,), outputs=(x,)),
        swiglu_op(),
    ]
    flop = [sum(cost.flop for cost in priced.costs) for priced in price_all(ops, own)]
    assert flop == [7, 7, 1092]  # and 840 + 252
    assert [priced.basis for priced in price_all(ops)] == [Basis.RULE, Basis.RULE, Basis.DEFAULT]


def test_a_rule_may_give_several_kernels(swiglu_op):
    rule("mylib.swiglu")(lambda op: [Cost(label="product"), Cost(label="gate")])
    assert [cost.label for cost in price(swiglu_op()).costs] == ["product", "gate"]


def test_equal_ops_are_priced_once_and_share_their_costs(tensor):
    asked = []

    def counting(op):
        asked.append(op.name)
        return traffic(op)

    def op(name, rows):
        return Op(name=name, kind="mylib.f", inputs=(tensor(rows, 5),), outputs=(tensor(rows, 5),))

    first, same, other = price_all([op("a", 3), op("b", 3), op("c", 4)], {"mylib.f": counting})
    assert asked == ["a", "c"]
    assert first.costs[0] is same.costs[0]
    assert [priced.op.name for priced in (first, same, other)] == ["a", "b", "c"]
    assert other.costs[0].bytes == 160  # 2 · 4 · 4·5


def test_ops_that_differ_in_an_argument_are_priced_apart(tensor):
    x = tensor(4, 6)
    ops = [
        Op(name=str(alpha), kind="aten.add", inputs=(x, x), outputs=(x,), attrs=MappingProxyType({"alpha": alpha}))
        for alpha in (1, 2)
    ]
    assert [priced.costs[0].vector_flop for priced in price_all(ops)] == [24, 48]


# --- traffic --------------------------------------------------------------------------------------------------


def test_traffic_reads_each_tensor_once_and_writes_each(tensor):
    x, y = tensor(4, 6), tensor(6, dtype="float64")
    cost = traffic(Op(name="op", kind="mylib.f", inputs=(x, y, x), outputs=(tensor(4, 6), tensor(4, dtype="bool"))))
    assert (cost.read_bytes, cost.write_bytes) == (144, 100)  # 4 · 24 + 8 · 6; 4 · 24 + 4


def test_reading_or_writing_nothing_is_no_traffic():
    assert reads(()).bytes == writes(()).bytes == 0


# --- in a graph -----------------------------------------------------------------------------------------------


LAYER = torch.nn.Linear(4, 5, bias=False)


def without_a_rule(x):
    return torch.special.bessel_j0(LAYER(x))


def test_coverage_names_what_was_priced_by_default():
    graph = rooflinekit.trace(without_a_rule, rooflinekit.Input(3, 4))
    coverage = graph.coverage
    assert dict(coverage.ops) == {Basis.FREE: 1, Basis.RULE: 1, Basis.DEFAULT: 1}
    assert dict(coverage.default_kinds) == {"aten.special_bessel_j0": 1}
    assert coverage.flop_share == pytest.approx(120 / 135)  # 2 · 3·4·5 known, 3·5 guessed
    assert coverage.bytes_share == pytest.approx(188 / 308)  # 4 · (12 + 20 + 15) known, 4 · (15 + 15) guessed
    assert str(coverage) == (
        "1 ops by exact rules, 1 free, 1 by default (their FLOP are unknown, and counted as one "
        "for each output element, 11.11% of all; 61.04% of bytes are exact); "
        "by default: aten.special_bessel_j0 ×1"
    )


def test_a_strict_trace_names_op_and_module_and_a_rule_for_the_call_helps():
    x = rooflinekit.Input(3, 4)
    with pytest.raises(UnknownOpError, match=r"^no cost rule for op 'aten\.special_bessel_j0' \(module 'root', inputs"):
        rooflinekit.trace(without_a_rule, x, strict=True)
    graph = rooflinekit.trace(without_a_rule, x, strict=True, rules={"aten::special_bessel_j0": traffic})
    assert graph.coverage.flop_share == graph.coverage.bytes_share == 1
    assert graph.flop == 120


def test_a_custom_op_is_priced_by_the_name_torch_prints():
    with torch.library._scoped_library("rooflinekit_test", "DEF") as library:
        library.define("swiglu(Tensor x, Tensor w) -> Tensor")
        library.impl("swiglu", lambda x, w: x.new_empty(x.shape[0], w.shape[1] // 2), "Meta")
        operator = torch.ops.rooflinekit_test.swiglu
        x, w = rooflinekit.Input("rows", 5), rooflinekit.Input(5, 12)
        graph = rooflinekit.trace(operator, x, w, rules={str(operator): swiglu}, name="swiglu", strict=True)
    assert str(graph.matrix_flop) == "120*rows"  # 2 · rows·12·5
    assert str(graph.vector_flop) == "36*rows"  # 6 · rows·6


def test_every_registered_kind_is_normalized():
    kinds = [*table._RULES, *table._FREE]
    assert [normalized(kind) for kind in kinds] == kinds
    assert not set(table._RULES) & table._FREE


def test_every_registered_aten_op_exists():
    # A typing error in a name would be a rule that is never used.
    names = {kind.removeprefix("aten.") for kind in [*table._RULES, *table._FREE] if kind.startswith("aten.")}
    sizes = {"sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "is_same_size"}
    unknown = {
        name for name in names - sizes if not (hasattr(torch.ops.aten, name) or hasattr(torch.ops.aten, name + "_"))
    }
    assert unknown == set()
