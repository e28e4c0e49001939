"""What is traced: ops, their modules and phases, sizes, and what a model's own code does to them."""

import functools
import re
from pathlib import Path

import pytest
import torch
from learned import kinds
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.errors import InputError, SizeError, TraceError
from rooflinekit.ir.op import Role
from rooflinekit.ir.sizes import symbol
from rooflinekit.tracing import tracer

BATCH = symbol("batch")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(x.mean((2, 3)))


def line_of(marker: str) -> int:
    """Where this file has the marker first."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(marker))


def test_ops_know_module_and_phase() -> None:
    graph = rk.trace(Block(), rk.Input("batch", 3, 8, 8))
    assert [(p.op.kind, p.op.module) for p in graph.priced if p.costs] == [
        ("aten.convolution", "conv"),
        ("aten.native_batch_norm", "norm"),
        ("aten.relu", ""),
        ("aten.mean", ""),
        ("aten.addmm", "head"),
    ]
    assert {op.phase for op in graph.ops} == {"forward"}
    assert graph.dims == ("batch",)
    assert graph.outputs[0].shape == (BATCH, 2)


def test_backward_ops_carry_the_module_of_their_forward_op() -> None:
    graph = rk.trace(Block(), rk.Input("batch", 3, 8, 8), mode="training", optimizer=torch.optim.SGD)
    backward = {p.op.kind: p.op.module for p in graph.priced if p.costs and p.op.phase == "backward"}
    assert backward["aten.convolution_backward"] == "conv"
    assert backward["aten.native_batch_norm_backward"] == "norm"
    assert backward["aten.threshold_backward"] == ""
    assert backward["aten.mm"] == "head"
    assert kinds(graph, "optimizer") == ["aten._foreach_add_"]


def test_gradients_are_handed_over_not_copied() -> None:
    # Autograd steals a fresh gradient; a copy of each would be two more kernels a parameter.
    graph = rk.trace(Block(), rk.Input("batch", 3, 8, 8), mode="training")
    assert "aten.copy_" not in kinds(graph)
    assert {g.shape for g in graph.gradients} == {(4, 3, 3, 3), (4,), (2, 4), (2,)}


def test_the_same_module_called_twice_adds_its_gradients() -> None:
    layer = nn.Linear(4, 4)
    graph = rk.trace(nn.Sequential(layer, layer), rk.Input(5, 4), mode="training")
    assert kinds(graph, "forward").count("aten.addmm") == 2
    assert kinds(graph, "backward").count("aten.add") == 2  # weight and bias, each once
    assert graph.parameters == 4 * 4 + 4


def test_training_uses_loss_and_targets() -> None:
    graph = rk.trace(
        Block(),
        rk.Input("batch", 3, 8, 8),
        mode="training",
        loss=functional.cross_entropy,
        targets=[rk.Input("batch", dtype="int64")],
    )
    assert {"aten._log_softmax", "aten.nll_loss_forward", "aten.nll_loss_backward"} <= set(kinds(graph))
    assert graph.dims == ("batch",)


def test_the_first_optimizer_step_is_not_counted() -> None:
    # AdamW makes its state in the first step; later steps read and write it.
    graph = rk.trace(nn.Linear(3, 2), rk.Input(5, 3), mode="training", optimizer=torch.optim.AdamW)
    assert "aten.zeros_like" not in kinds(graph, "optimizer")
    state = {t.name: t for op in graph.ops for t in op.inputs if t.role is Role.STATE}
    assert sum(int(t.numel) for t in state.values()) == 2 * (3 * 2 + 2)  # two moments of weight and bias


def test_a_partial_of_an_optimizer() -> None:
    sgd = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    graph = rk.trace(nn.Linear(3, 2), rk.Input(5, 3), mode="training", optimizer=sgd)
    assert kinds(graph, "optimizer") == ["aten._foreach_mul_", "aten._foreach_add_", "aten._foreach_add_"]


def test_attention_stays_one_op() -> None:
    def attend(q: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    full = rk.trace(attend, rk.Input("batch", 4, "seq", 32))
    assert kinds(full) == ["aten._scaled_dot_product_efficient_attention"]
    half = rk.trace(attend, rk.Input("batch", 4, "seq", 32, dtype="bfloat16"))
    assert kinds(half) == ["aten._scaled_dot_product_flash_attention"]
    assert half.outputs[0].shape == (BATCH, 4, symbol("seq"), 32)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3, 4)])
def test_attention_with_other_than_four_dimensions(lead: tuple[int, ...]) -> None:
    graph = rk.trace(lambda q: functional.scaled_dot_product_attention(q, q, q), rk.Input(*lead, 6, 8))
    assert graph.outputs[0].shape == (*lead, 6, 8)
    # scores and values: 2 · 6·6·8 multiply-adds for each of the leading positions
    positions = {(): 1, (3,): 3, (2, 3, 4): 24}[lead]
    assert graph.matrix_flop == 2 * 2 * 6 * 6 * 8 * positions


def test_what_a_result_is_written_into_is_not_read() -> None:
    def into(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.add(torch.mm(a, b, out=torch.empty(4, 6)), 1, out=torch.empty(4, 6))

    ops = [p for p in rk.trace(into, rk.Input(4, 8), rk.Input(8, 6)).priced if p.op.kind != "aten.empty"]
    product, addition = (p.costs[0] for p in ops)
    assert product.flop == 2 * 4 * 6 * 8
    assert (product.read_bytes, product.write_bytes) == (4 * (4 * 8 + 8 * 6), 4 * 4 * 6)
    assert addition.read_bytes == addition.write_bytes == 4 * 4 * 6


def test_dropout_is_one_kernel_as_on_a_gpu() -> None:
    graph = rk.trace(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)), rk.Input(3, 4), mode="training")
    assert kinds(graph, "forward") == ["aten.addmm", "aten.native_dropout", "aten.sum"]
    assert "aten.native_dropout" not in kinds(rk.trace(nn.Dropout(0.1), rk.Input(3, 4)))
    for drop in (nn.Dropout(0.1), lambda x: torch.dropout(x, 0.1, True)):
        (dropped,) = [p for p in rk.trace(drop, rk.Input(3, 4), mode="forward").priced if p.costs]
        # without gradients too: read and written as float32, and a byte of the mask, of 12 elements
        assert (dropped.op.kind, dropped.costs[0].bytes) == ("aten.native_dropout", 12 * (4 + 4 + 1))


def test_inputs_may_be_nested_keyword_or_tensors() -> None:
    def model(pair: dict[str, torch.Tensor], scale: float, *, bias: torch.Tensor) -> torch.Tensor:
        return pair["a"] @ pair["b"] * scale + bias

    graph = rk.trace(model, {"a": rk.Input("batch", 4), "b": torch.empty(4, 6)}, 0.5, bias=rk.Input(6), name="pairs")
    assert graph.matrix_flop == 2 * BATCH * 4 * 6
    assert graph.name == "pairs"
    assert [spec.shape for spec in graph.inputs] == [(BATCH, 4), (4, 6), (6,)]


def test_dtype_converts_weights_and_inputs() -> None:
    graph = rk.trace(nn.Linear(4, 4), rk.Input(2, 4), dtype="bfloat16")
    assert {t.dtype for op in graph.ops for t in (*op.inputs, *op.outputs)} == {"bfloat16"}


def test_the_fx_graph_is_kept() -> None:
    graph = rk.trace(Block(), rk.Input("batch", 3, 8, 8))
    names = {node.name for node in graph.fx.nodes}
    assert {op.name for op in graph.ops} <= names
    assert [node.op for node in graph.fx.nodes][-1] == "output"


def test_a_size_that_the_model_forces_is_reported_with_its_line() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        total = x[0]
        for i in range(1, int(x.shape[0])):  # forced here
            total = total + x[i]
        return total

    graph = rk.trace(model, rk.Input("steps", "width"), sizes={"steps": 4})
    (forced,) = graph.forced
    assert (forced.name, forced.value) == ("steps", 4)
    line = line_of("# forced here")
    assert str(forced) == f"size 'steps' is forced to 4 by test_tracer.py:{line}"
    assert graph.dims == ("width",)
    assert kinds(graph) == ["aten.add"] * 3
    assert graph.at(steps=4, width=7).sizes == {"steps": 4, "width": 7}
    with pytest.raises(SizeError, match=re.escape("trace again with steps=5")):
        graph.at(steps=5, width=7)


def test_a_branch_on_a_size_bounds_the_trace() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 100:  # the branch
            return x.exp().exp()
        return x.exp()

    line = line_of("# the branch")
    small = rk.trace(model, rk.Input("n"))
    assert kinds(small) == ["aten.exp"]
    assert small.at(n=100).sizes == {"n": 100}
    with pytest.raises(
        SizeError, match=rf"the trace is valid only for n <= 100 \(test_tracer.py:{line}\), .* at n=101"
    ):
        small.at(n=101)
    large = rk.trace(model, rk.Input("n"), sizes={"n": 101})
    assert kinds(large) == ["aten.exp", "aten.exp"]


def test_equal_names_are_equal_sizes_and_others_are_not() -> None:
    graph = rk.trace(torch.add, rk.Input("n", 3), rk.Input("n", 3))
    assert graph.dims == ("n",)
    joined = rk.trace(lambda a, b: torch.cat([a, b]), rk.Input("n", 3), rk.Input("m", 3))
    assert joined.outputs[0].shape == (symbol("n") + symbol("m"), 3)


def test_floors_stay_exact() -> None:
    graph = rk.trace(nn.Conv2d(1, 1, 3, stride=2, bias=False), rk.Input(1, 1, "h", "w"))
    # output pixels: floor((h - 3)/2) + 1 and likewise w, with 9 multiply-adds each
    for h, w in ((7, 8), (8, 9), (31, 64)):
        assert graph.at(h=h, w=w).matrix_flop == 2 * 9 * ((h - 3) // 2 + 1) * ((w - 3) // 2 + 1)


def test_wrong_calls_say_what_is_wrong() -> None:
    with pytest.raises(InputError, match=r"mode 'trane': expected .*; did you mean 'training'"):
        rk.trace(Block(), rk.Input(1, 3, 8, 8), mode="trane")
    with pytest.raises(InputError, match="belong to mode='training'"):
        rk.trace(Block(), rk.Input(1, 3, 8, 8), optimizer=torch.optim.SGD)
    with pytest.raises(InputError, match=r"optimizer: expected a name or something to call, such as 'AdamW' .*; got 3"):
        rk.trace(Block(), rk.Input(1, 3, 8, 8), mode="training", optimizer=3)
    with pytest.raises(InputError, match=r"dtype 'float8_e4m3fn': .*torch\._scaled_mm"):
        rk.trace(Block(), rk.Input(1, 3, 8, 8), dtype="float8_e4m3fn")
    with pytest.raises(SizeError, match=r"no size is named 'bach' .*; did you mean 'batch'"):
        rk.trace(Block(), rk.Input("batch", 3, 8, 8), sizes={"bach": 3})
    frozen = Block().requires_grad_(False)
    with pytest.raises(TraceError, match="no output of the model has a gradient"):
        rk.trace(frozen, rk.Input(1, 3, 8, 8), mode="training")


def test_a_failing_model_is_told_with_module_and_line() -> None:
    with pytest.raises(
        TraceError, match=r"Block could not be traced in module 'conv' \(test_tracer.py:\d+\): .* to have 3 channels"
    ):
        rk.trace(Block(), rk.Input(1, 5, 8, 8))


def test_control_flow_on_numbers_is_told_as_such() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(
        TraceError,
        match=r"model could not be traced \(test_tracer.py:\d+\): a number of a tensor is asked for",
    ):
        rk.trace(model, rk.Input(3))


def test_a_lazy_module_is_refused() -> None:
    with pytest.raises(TraceError, match="parameter 'weight' has no shape yet"):
        rk.trace(nn.LazyLinear(3), rk.Input(2, 4))


def test_checkpointing_recomputes_in_backward() -> None:
    from torch.utils.checkpoint import checkpoint

    layer = nn.Linear(4, 4)

    def model(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: torch.relu(layer(y)), x, use_reentrant=False)

    graph = rk.trace(model, rk.Input(3, 4), mode="training")
    assert kinds(graph, "forward").count("aten.addmm") == 1
    assert kinds(graph, "backward").count("aten.addmm") == 1  # once more
    again = next(op for op in graph.ops if op.phase == "backward" and op.kind == "aten.addmm")
    assert again.module == "layer"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_own_shapes_are_those_of_torch(training: bool, dtype: str) -> None:
    wanted = getattr(torch, dtype)
    statistics = torch.float32 if dtype == "float16" else wanted  # as CUDA keeps them
    x = torch.randn(2, 3, 4, 4, dtype=wanted)
    c = torch.ones(3, dtype=statistics)
    real = torch.ops.aten.native_batch_norm(x.float() if dtype == "float16" else x, c, c, c, c, training, 0.1, 1e-5)

    def model(x: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten.native_batch_norm(x, c, c, c, c, training, 0.1, 1e-5)

    graph = rk.trace(model, rk.Input(2, 3, 4, 4, dtype=dtype), rk.Input(3, dtype=str(statistics)))
    assert [spec.shape for spec in graph.outputs] == [tuple(t.shape) for t in real]
    assert [spec.dtype for spec in graph.outputs] == [dtype, *[str(t.dtype).removeprefix("torch.") for t in real[1:]]]


def test_remembered_results_are_those_of_torch() -> None:
    # the same op twice, with numbers that are equal and types that are not
    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 2, x + 2, x + 2.0, x + 2.0, torch.sum(x, 0), torch.sum(x, 0), x.t() + 2, x.t() + 2

    graph = rk.trace(model, rk.Input(3, 5, dtype="int32"))
    real = model(torch.ones(3, 5, dtype=torch.int32))
    assert [spec.shape for spec in graph.outputs] == [tuple(t.shape) for t in real]
    assert [f"torch.{spec.dtype}" for spec in graph.outputs] == [str(t.dtype) for t in real]
    strides = [spec.stride or torch.empty(spec.shape).stride() for spec in graph.outputs]
    assert strides == [t.stride() for t in real]
    assert len({spec.memory for spec in graph.outputs}) == len(real)


def test_a_view_in_place_changes_the_record() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y.unsqueeze_(0)
        return y + 1

    graph = rk.trace(model, rk.Input(3, 5))
    first, view, last = graph.ops
    assert view.outputs[0].shape == last.inputs[0].shape == (1, 3, 5)
    assert view.outputs[0].memory == first.outputs[0].memory
    assert last.inputs[0].name == view.outputs[0].name


def test_a_size_that_cannot_stay_open_is_traced_at_its_example() -> None:
    def table(width: int) -> torch.Tensor:
        if type(width) is not int:  # a SymInt is none
            raise TypeError(f"a plain number, not {type(width)}")
        return torch.zeros(width)

    graph = rk.trace(lambda x: x + table(x.shape[1]), rk.Input("batch", "width"), sizes={"width": 12})
    assert graph.dims == ("batch",)
    (forced,) = graph.forced
    assert str(forced).startswith("size 'width' is forced to 12 by test_tracer.py:")
    assert "a plain number" in str(forced)
    assert graph.outputs[0].shape == (BATCH, 12)
    with pytest.raises(SizeError, match="trace again with width=13"):
        graph.at(batch=2, width=13)


def test_sizes_about_which_a_model_asks_without_end_become_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        for i in range(30):
            if x.shape[1] > 100 - 3 * i:
                x = x + 1
        return x

    inputs, sizes = rk.Input("batch", "seq"), {"batch": 2, "seq": 40}
    monkeypatch.setattr(tracer, "MOST_QUESTIONS", 25)
    graph = rk.trace(model, inputs, sizes=sizes)
    assert graph.dims == ()
    assert [(forced.name, forced.value) for forced in graph.forced] == [("batch", 2), ("seq", 40)]
    assert re.search(r"by test_tracer.py:\d+ \(open sizes raise more than .* fixed=False", str(graph.forced[1]))
    assert kinds(graph) == ["aten.add"] * 9  # i from 21, at which 40 > 37
    assert rk.trace(model, inputs, sizes=sizes, fixed=False).dims == ("batch", "seq")


def test_a_loop_that_forces_its_length_is_not_tried_at_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] < 100:
            raise ValueError("too short")
        for _ in range(x.shape[1]):  # a plain number: the size of this trace
            x = x + 1
        return x

    tried, original = [], tracer._traced
    monkeypatch.setattr(tracer, "_traced", lambda *args: (tried.append(args), original(*args))[1])
    graph = rk.trace(model, rk.Input("batch", "time"))
    assert [(forced.name, forced.value) for forced in graph.forced] == [("time", 256)]
    assert len(graph.ops) == 256
    assert len(tried) == 2  # of few and of 256, and no third of 16,384


def test_a_loop_over_an_open_size_is_unrolled_once() -> None:
    steps = []

    def model(x: torch.Tensor) -> torch.Tensor:
        for i in range(x.shape[1]):  # a plain number: the size of this trace
            steps.append(i)
            x = x + 1
        return x

    graph = rk.trace(model, rk.Input("batch", "time"))
    ((name, value),) = ((forced.name, forced.value) for forced in graph.forced)
    assert (name, graph.dims, len(graph.ops)) == ("time", ("batch",), value)
    assert steps == list(range(value))  # and none of the 256 steps of a larger example


def test_a_model_that_fails_at_numbers_too_fails() -> None:
    with pytest.raises(TraceError, match="to have 3 channels, but got 5 channels") as caught:
        rk.trace(Block(), rk.Input("batch", 5, 8, 8))
    assert caught.value.where.startswith("test_tracer.py:")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own
def test_compiled_parts_are_traced_through_their_originals() -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    nested = nn.Sequential(torch.compile(nn.Linear(4, 4)), nn.ReLU())
    expected = kinds(rk.trace(plain, rk.Input("n", 4)))
    assert kinds(rk.trace(torch.compile(plain), rk.Input("n", 4))) == expected
    assert kinds(rk.trace(nested, rk.Input("n", 4))) == expected


def test_remembered_views_share_the_memory_of_their_own_base() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [part for z in (x.exp(), y.exp()) for half in z.chunk(2, dim=1) for part in (half[1:], half.t())]

    for shape in ((4, 6), ("n", 6)):
        graph = rk.trace(model, rk.Input(*shape), rk.Input(*shape))
        first, second = (p.op.outputs[0].name for p in graph.priced if p.op.kind == "aten.exp")
        assert [spec.memory for spec in graph.outputs] == [first] * 4 + [second] * 4
        real = model(torch.zeros(4, 6), torch.zeros(4, 6))
        at = graph.at(n=4) if graph.dims else graph
        assert [spec.shape for spec in at.outputs] == [tuple(t.shape) for t in real]
        strides = [spec.stride or torch.empty(spec.shape).stride() for spec in at.outputs]
        assert strides == [t.stride() for t in real]
