"""A trace with open sizes is, at any sizes, the trace at these: in counts, kernels, memory and time, to the bit."""

from __future__ import annotations

import contextlib

import pytest
import sympy
import torch
from golden.networks import NETWORKS, Network
from hypothesis import given
from hypothesis import strategies as st
from learned import Uses
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.tracing import symbols, tensors, tracer


class Indexed(nn.Module):
    """Every second column, written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.columns = nn.Linear(8, 8), torch.arange(0, 8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        y = torch.zeros_like(x)
        y[:, self.columns] = x[:, self.columns].tanh()
        return y


class Sliced(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y[:, 1:] + y[..., :-1] + y[:, :][:, 1:]


class Windowed(nn.Linear):
    """Rows padded to whole windows, which are padded once more, and cut to whole groups."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        y = functional.pad(y, (0, 0, 0, (4 - len(y) % 4) % 4)).view(-1, 4, 8).softmax(1).flatten(0, 1)
        y = functional.pad(y, (0, 0, 0, -y.shape[0] % 4))
        return y[: y.shape[0] - y.shape[0] % 3]


def positions() -> Uses:
    """As many learned positions as there are tokens."""
    return Uses(lambda x, table: x + table[:, : x.shape[1]], (1, 64, 8))


OWN = {
    "windows": Network(build=lambda: Windowed(8, 8), inputs=(rk.Input("n", 8),), sizes={"n": 14}),
    "whole windows": Network(build=lambda: Windowed(8, 8), inputs=(rk.Input("n", 8),), sizes={"n": 24}),
    "positions": Network(build=positions, inputs=(rk.Input("n", "s", 8),), sizes={"n": 2, "s": 32}),
    "all positions": Network(build=positions, inputs=(rk.Input("n", "s", 8),), sizes={"n": 2, "s": 64}),
    "indexed": Network(build=Indexed, inputs=(rk.Input("n", 8),), sizes={"n": 6}),
    "sliced": Network(build=lambda: Sliced(8, 8), inputs=(rk.Input("n", 8),), sizes={"n": 3}),
    "one channel": Network(build=lambda: nn.Conv1d(8, 1, 1), inputs=(rk.Input("n", 8, "t"),), sizes={"n": 3, "t": 10}),
}
#: Those whose scales lie in blocks of 128 rows take no other sizes.
LIMITED = ("four bits",)
TOLD = (
    *("inputs", "weights", "outputs", "gradients", "priced", "held", "saved", "dims", "conditions", "apart"),
    *("forced", "assumptions"),
)
QUICK = ("signal", "perceptron", "mixture", "stepped", "lstm", "transformed", "resampled")


def told(graph: rk.Graph) -> tuple[object, ...]:
    p = rk.predict(graph, "nvidia-l4")
    return int(graph.flop), int(graph.bytes), len(p.timings), p.memory.peak_bytes, p.total_s


def compare(network: Network, mode: str) -> None:
    sizes = network.sizes
    fixed = [rk.Input(*(sizes.get(size, size) for size in x.shape), dtype=x.dtype) for x in network.inputs]
    with torch.device("meta"):
        model = network.build()
    options = {**network.options, "mode": mode}
    assert told(rk.trace(model, *network.inputs, **options).at(**sizes)) == told(rk.trace(model, *fixed, **options))


@pytest.mark.filterwarnings("ignore:Default grid_sample")
@pytest.mark.parametrize("name", [*OWN, *QUICK])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_an_open_trace_is_the_fixed_one(name: str, mode: str) -> None:
    if mode == "training" and name in ("transformed", "resampled"):
        pytest.skip("nothing in it is trained")
    compare({**NETWORKS, **OWN}[name], mode)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in QUICK + LIMITED and NETWORKS[name].sizes])
def test_every_open_trace_is_the_fixed_one(name: str) -> None:
    compare(NETWORKS[name], "inference")
    with torch.device("meta"):
        model = NETWORKS[name].build()
    if isinstance(model, nn.Module) and any(True for _ in model.parameters()):
        compare(NETWORKS[name], "training")


def unremembered(patch: pytest.MonkeyPatch, network: Network, mode: str) -> list[dict[str, object]]:
    """All that a trace says, with arithmetic of sizes remembered and with all of it left to torch."""
    with torch.device("meta"):
        model = network.build()
    graphs = []
    for arithmetic in (tracer.remembered_arithmetic, contextlib.nullcontext):
        patch.setattr(tracer, "remembered_arithmetic", arithmetic)
        graph = rk.trace(model, *network.inputs, **{**network.options, "mode": mode})
        graphs.append({name: getattr(graph, name) for name in TOLD} | {"told": told(graph.at(**network.sizes))})
    return graphs


@pytest.mark.filterwarnings("ignore:Default grid_sample")
@pytest.mark.parametrize("name", [*OWN, *QUICK])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_remembered_arithmetic_is_torchs(monkeypatch: pytest.MonkeyPatch, name: str, mode: str) -> None:
    if mode == "training" and name in ("transformed", "resampled"):
        pytest.skip("nothing in it is trained")
    one, other = unremembered(monkeypatch, (OWN | NETWORKS)[name], mode)
    assert one == other


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Default grid_sample")
@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in LIMITED and NETWORKS[name].sizes])
def test_remembered_arithmetic_is_torchs_everywhere(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    one, other = unremembered(monkeypatch, NETWORKS[name], NETWORKS[name].options.get("mode", "inference"))
    assert one == other


def test_a_torch_that_does_not_count_replacements_traces_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    network = NETWORKS[QUICK[0]]
    with torch.device("meta"):
        model = network.build()
    counted = told(rk.trace(model, *network.inputs, **network.options).at(**network.sizes))
    monkeypatch.setattr(symbols, "_REPLACED", "counter of no release")
    assert told(rk.trace(model, *network.inputs, **network.options).at(**network.sizes)) == counted


def test_what_is_brought_to_a_multiple_stays_short() -> None:
    graph = rk.trace(Windowed(8, 8), rk.Input("n", 8))
    assert [graph.at(n=n).outputs[0].shape[0] for n in (8, 9, 13)] == [6, 12, 15]
    assert graph.conditions == ()
    assert len(str(graph.outputs[0].shape[0])) < 50


def test_the_length_of_a_tensor_is_its_open_size() -> None:
    graph = rk.trace(lambda x: x.new_ones(len(x), len([x])) + x, rk.Input("n", 3))
    assert (graph.dims, graph.forced) == (("n",), ())
    assert "len" not in globals()


def test_tensors_of_other_shapes_are_not_equal() -> None:
    graph = rk.trace(lambda x, y: x.exp() if torch.equal(x, y) else y, rk.Input("n", 3), rk.Input("n", 4))
    assert graph.assumptions == ()
    assert graph.outputs[0].shape[1] == 4


def opened(model: object, *inputs: rk.Input, **options: object) -> rk.Graph:
    """A trace in which every size stays open, on no condition."""
    graph = rk.trace(model, *inputs, **options)
    assert set(graph.dims) == {name for one in inputs for name in one.names}
    assert not graph.conditions
    return graph


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_a_grid_of_places_takes_open_sizes(dtype: torch.dtype | None) -> None:
    def places(x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(1 / x.shape[1] - 1, x.shape[1] - 1, steps=x.shape[1], device=x.device, dtype=dtype)

    graph = opened(places, rk.Input("n", "s"))
    (line,) = graph.priced
    assert (line.op.kind, str(graph.bytes)) == ("aten.linspace", "4*s" if dtype is None else "8*s")  # it is written
    fixed = rk.trace(places, rk.Input(2, 9))
    assert (fixed.priced[0].op.kind, told(graph.at(n=2, s=9))) == ("aten.linspace", told(fixed))


@pytest.mark.filterwarnings("ignore:Default grid_sample", "ignore:Default affine_grid")
@pytest.mark.parametrize(
    ("mode", "padding"), [("bilinear", "zeros"), ("bilinear", "reflection"), ("bicubic", "reflection")]
)
def test_sampling_an_image_asks_nothing_of_its_sizes(mode: str, padding: str) -> None:
    def sampled(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        grid = functional.affine_grid(theta, list(x.shape))
        return functional.grid_sample(x, grid, mode=mode, padding_mode=padding)

    graph = opened(sampled, rk.Input("n", 3, "h", "w"), rk.Input("n", 2, 3))
    assert [str(size) for size in graph.outputs[0].shape] == ["n", "3", "h", "w"]
    assert told(graph.at(n=2, h=9, w=5)) == told(rk.trace(sampled, rk.Input(2, 3, 9, 5), rk.Input(2, 2, 3)))


def test_half_of_a_size_lies_contiguous() -> None:
    graph = opened(lambda x: x.topk(x.shape[1] // 2)[1].sort()[0], rk.Input("n", "s"))
    assert [tensor.stride for op in graph.ops for tensor in op.outputs] == [None] * 4


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_what_function_transforms_ask_of_sizes_is_no_operator() -> None:
    first, second = nn.Linear(3, 16), nn.Linear(16, 1)

    def product_with_a_hessian(x: torch.Tensor) -> object:
        energy = lambda row: second(torch.tanh(first(row))).sum()  # noqa: E731
        return torch.func.jvp(torch.func.grad(energy), (x,), (torch.ones_like(x),))[1]

    graph = rk.trace(product_with_a_hessian, rk.Input("n", 3))
    assert not {"aten.size", "aten.stride"} & {op.kind for op in graph.ops}
    assert not graph.coverage.default_kinds  # torch learns sizes by adding tensors that are on no device


_NAMES = sympy.symbols("n h w", positive=True, integer=True)
_PADDED = [*_NAMES, sympy.Integer(7), *(size + sympy.Mod(-size, 7) for size in _NAMES)]
_PRODUCTS = st.lists(st.sampled_from(_PADDED), min_size=1, max_size=4).map(lambda factors: sympy.Mul(*factors))


@given(terms=st.lists(_PRODUCTS, min_size=1, max_size=4), factor=_PRODUCTS, sizes=st.tuples(*[st.integers(1, 30)] * 3))
def test_a_factor_of_each_term_is_divided_out(
    terms: list[sympy.Expr], factor: sympy.Expr, sizes: tuple[int, ...]
) -> None:
    quotient = sympy.Add(*(term * factor for term in terms)) / factor
    numbers = dict(zip(_NAMES, sizes, strict=True))
    with symbols.plain_quotients():
        found = sympy.simplify(quotient)
    assert found.subs(numbers) == sum(term.subs(numbers) for term in terms)


def test_only_what_is_left_a_fraction_is_simplified(monkeypatch: pytest.MonkeyPatch) -> None:
    n, h, w = _NAMES
    asked: list[sympy.Expr] = []

    def simplify(expr: sympy.Expr) -> sympy.Expr:
        asked.append(expr)
        return expr

    monkeypatch.setattr(sympy, "simplify", simplify)
    padded = h + sympy.Mod(-h, 7)
    with symbols.plain_quotients():
        assert sympy.simplify(sympy.Add(n * padded * w, 7 * n * padded) / (n * padded)) == w + 7
        assert not asked
        for quotient in ((n * w + h) / n, (n + h) / 2, n**2 / h):
            assert sympy.simplify(quotient) == quotient
    assert asked == [(n * w + h) / n, (n + h) / 2, n**2 / h]


def test_all_of_a_product_of_sizes_is_itself() -> None:
    def column(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(x.numel() * x.shape[0])[:, None]

    kinds = [op.kind for op in opened(column, rk.Input("n", "h", "w")).ops]
    assert kinds == [op.kind for op in rk.trace(column, rk.Input(2, 3, 4)).ops] == ["aten.arange", "aten.unsqueeze"]


def test_results_lie_as_at_numbers() -> None:
    # channels of pixels that come from open sides: their formulas do not show that rows follow rows
    def means(x: torch.Tensor) -> torch.Tensor:
        return functional.pixel_unshuffle(x, 2).unflatten(1, (-1, 2)).mean(2).exp()

    model = nn.Sequential(nn.Conv2d(8, 16, 1), Uses(means), nn.Conv2d(32, 8, 1))
    graph = rk.trace(model, rk.Input("n", 8, "h", "w"), mode="training").at(n=2, h=6, w=4)
    fixed = rk.trace(model, rk.Input(2, 8, 6, 4), mode="training")
    assert laid(graph) == laid(fixed)
    assert told(graph) == told(fixed)


def test_a_size_that_is_a_number_after_all_is_not_broadcast() -> None:
    rows = symbols.Symbols(("n",), {"n": 8}).tensor(rk.Input("n", 1, 3), "x")
    assert tensors.expanded_stride(rows, (8, 2, 3)) == (3, 0, 1)  # n is 8, of which each has rows of its own


def laid(graph: rk.Graph) -> list[tuple[object, object]]:
    """How all results lie in memory."""
    return [(tensor.shape, tensor.stride) for op in graph.ops for tensor in op.outputs]
