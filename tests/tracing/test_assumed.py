"""What data decide: named, settable, and never taken silently."""

import re

import pytest
import torch
from learned import kinds
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.errors import InputError, TraceError

X = rk.Input("n", 8)
IDS = rk.Input("n", dtype="int64")


class Mixture(nn.Module):
    """Two of eight experts for each token, [n, 16] → [n, 64]."""

    def __init__(self, experts: int = 8, chosen: int = 2) -> None:
        super().__init__()
        self.chosen = chosen
        self.gate = nn.Linear(16, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(16, 64, bias=False) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, places = torch.topk(self.gate(x).softmax(-1), self.chosen)
        return self.mixed(x, weights, places)

    def mixed(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class ByOneHot(Mixture):
    def mixed(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        mask = functional.one_hot(places, len(self.experts)).permute(2, 1, 0)
        out = x.new_zeros(x.shape[0], 64)
        for number, expert in enumerate(self.experts):
            slot, token = torch.where(mask[number])
            out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
        return out


class ByHits(Mixture):
    """As transformers does it: over those experts alone that were chosen at all."""

    rows = False

    def mixed(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        mask = functional.one_hot(places, len(self.experts)).permute(2, 1, 0)
        out = x.new_zeros(x.shape[0], 64)
        for number in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            row = mask[number].squeeze(0) if self.rows else mask[number[0]]
            slot, token = torch.where(row)
            out.index_add_(0, token, self.experts[int(number)](x[token]) * weights[token, slot, None])
        return out


class ByHitRows(ByHits):
    rows = True


class ByMask(Mixture):
    def mixed(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(x.shape[0], 64)
        for number, expert in enumerate(self.experts):
            mask = (places == number).any(-1)
            if mask.any():
                out[mask] += expert(x[mask])
        return out


class ByScatter(Mixture):
    def mixed(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(x.shape[0], len(self.experts)).scatter_(1, places, 1.0)
        out = x.new_zeros(x.shape[0], 64)
        for number, expert in enumerate(self.experts):
            (token,) = mask[:, number].nonzero(as_tuple=True)
            out.index_add_(0, token, expert(x[token]))
        return out


class BySorting(Mixture):
    def mixed(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        order = places.flatten().argsort()
        counts = torch.bincount(places.flatten(), minlength=len(self.experts)).tolist()
        rows = x[order // self.chosen].split(counts)
        return torch.cat([expert(part) for expert, part in zip(self.experts, rows, strict=True)])


FORMS = [ByOneHot, ByHits, ByHitRows, ByMask, ByScatter, BySorting]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [37, 64, 1])
def test_a_mixture_costs_what_is_chosen(form: type[Mixture], tokens: int) -> None:
    # the gate's 16·8 for each token, and 16·64 for each of its two experts
    expected = 2 * tokens * (16 * 8 + 2 * 16 * 64)
    graph = rk.trace(form(), rk.Input(tokens, 16), strict=True)
    assert graph.matrix_flop == expected
    assert all(found.ground == "shared out evenly" for found in graph.assumptions)


@pytest.mark.parametrize("form", FORMS)
def test_a_mixture_keeps_its_tokens_open(form: type[Mixture]) -> None:
    graph = rk.trace(form(experts=4), rk.Input("n", 16), sizes={"n": 64})
    for tokens in (37, 64, 100):
        assert graph.at(n=tokens).matrix_flop == 2 * tokens * (16 * 4 + 2 * 16 * 64)


def test_a_share_of_few_rows_does_not_bind_their_number() -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        mine = x.sum(1) > 0
        y = torch.empty_like(x)
        y[mine] = x[mine] * x[mine].sum(1, keepdim=True)
        return y

    graph = rk.trace(chosen, X, assume={"mask": 0.25})
    assert graph.conditions == ()  # a quarter of few rows is one, which shapes treat as a constant
    (product,) = [op for op in graph.at(n=64).ops if op.kind == "aten.mul"]
    assert product.outputs[0].shape == (16, 8)


def test_a_mixture_is_trained() -> None:
    graph = rk.trace(ByOneHot(), rk.Input(37, 16), mode="training", strict=True)
    # experts: once for the weights' gradients, for nothing asks for the input's; the gate likewise, by its weights
    assert graph.matrix_flop == 2 * 2 * 37 * (16 * 8 + 2 * 16 * 64)


def test_tokens_may_be_shared_out_otherwise() -> None:
    graph = rk.trace(ByOneHot(), rk.Input(64, 16), assume={"nonzero": 0.5})
    # each of 8 experts takes half of 2·64 places
    assert graph.matrix_flop == 2 * (64 * 16 * 8 + 8 * 64 * 16 * 64)


@pytest.mark.parametrize(
    ("model", "name", "share", "shape"),
    [
        (lambda x, i: (x > 0).nonzero(), "nonzero", 0.25, (2 * 36, 2)),
        (lambda x, i: x[x > 0], "mask", 0.5, (4 * 36,)),
        (lambda x, i: x.masked_select(x > 0), "mask", 0.5, (4 * 36,)),
        (lambda x, i: torch.unique(i), "unique", 0.5, (18,)),
        (lambda x, i: torch.unique(x, dim=0), "unique", 0.5, (18, 8)),
        (lambda x, i: torch.unique_consecutive(i), "unique", 0.5, (18,)),
        (lambda x, i: torch.bincount(i), "bincount", 0.5, (18,)),
        (lambda x, i: torch.repeat_interleave(x, i, dim=0), "repeats", 0.5, (18, 8)),
    ],
)
def test_sizes_that_data_decide(model: object, name: str, share: float, shape: tuple[int, ...]) -> None:
    most = rk.trace(model, X, IDS)
    (found,) = most.assumptions
    assert (found.name, found.value, found.ground) == (name, found.most, "its most")
    assert name in str(most.coverage)
    assert "test_assumed.py:" in str(found)
    graph = rk.trace(model, X, IDS, assume={name: share}, strict=True)
    assert graph.at(n=36).outputs[0].shape == shape
    assert rk.trace(model, rk.Input(36, 8), rk.Input(36, dtype="int64"), assume={name: share}).outputs[0].shape == shape
    assert rk.trace(model, X, IDS, assume={name: 3}).outputs[0].shape[0] == 3
    with pytest.raises(TraceError, match=rf"strict: the data of a run decide {name} .*assume={{'{name}'"):
        rk.trace(model, X, IDS, strict=True)
    rk.predict(graph, "nvidia-l4", n=36)


def test_results_of_unique_are_as_torch_has_them() -> None:
    def model(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.unique(ids, return_inverse=True, return_counts=True)

    real = model(torch.arange(6))
    graph = rk.trace(model, rk.Input(6, dtype="int64"))
    assert [spec.shape for spec in graph.outputs] == [tuple(t.shape) for t in real]


def test_a_line_has_a_name_of_its_own() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        first = x[x > 0]
        second = x[x > 1]
        return first.sum() + second.sum()

    graph = rk.trace(model, X, assume={"mask_2": 0.5})
    assert [str(found.value) for found in graph.assumptions] == ["8*n", "4*n"]


def test_checks_of_data_pass() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        if not (x == x).all() or (x < -1).any():
            raise ValueError("no such data")
        return torch.distributions.Normal(x, x.exp()).rsample()

    for shape in (("n", 8), (5, 8)):
        graph = rk.trace(model, rk.Input(*shape))
        assert {(found.name.partition("_")[0], found.value) for found in graph.assumptions} == {
            ("all", True),
            ("any", False),
        }
        with pytest.raises(TraceError, match="no such data"):
            rk.trace(model, rk.Input(*shape), assume={"any": True})


def test_a_branch_on_a_number_may_be_said() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.exp().exp() if x.sum() > 0 else x.exp()

    with pytest.raises(TraceError, match=r"assume=\{'gt': False\}"):
        rk.trace(model, X)
    assert len(rk.trace(model, X, assume={"gt": True}).ops) == 2 + len(rk.trace(model, X, assume={"gt": False}).ops) - 1


@pytest.mark.parametrize("shape", [("n", 8), (5, 8)])
def test_a_number_as_a_size_is_asked_for(shape: tuple[object, ...]) -> None:
    def model(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(int(ids.max()), 4) + 1

    ids = rk.Input(shape[0], dtype="int64")
    with pytest.raises(TraceError, match=r"assume=\{'max'"):
        rk.trace(model, rk.Input(*shape), ids)
    graph = rk.trace(model, rk.Input(*shape), ids, assume={"max": 12})
    assert graph.outputs[0].shape == (12, 4)


def test_a_number_of_chance_is_taken_for_its_middle() -> None:
    def sometimes(x: torch.Tensor) -> torch.Tensor:
        return x if torch.rand(1).item() < 0.3 else x @ x.T

    graph = rk.trace(sometimes, rk.Input(4, 8))
    assert graph.matrix_flop == 2 * 4 * 8 * 4
    (found,) = graph.assumptions
    assert (found.name, found.value, found.ground) == ("rand", 0.5, "as usual")
    assert rk.trace(sometimes, rk.Input(4, 8), assume={"rand": 0.1}).matrix_flop == 0


def test_a_number_as_a_factor_is_no_matter() -> None:
    for shape in (("n", 8), (5, 8)):
        graph = rk.trace(lambda x: x * x.sum().item(), rk.Input(*shape), strict=True)
        assert [p.op.kind for p in graph.priced if p.costs] == ["aten.sum", "aten._local_scalar_dense", "aten.mul"]


def test_one_number_under_a_mask_is_filled_in() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x[x > 0] = 0.0
        return x

    graph = rk.trace(model, rk.Input(5, 8), strict=True)
    assert graph.assumptions == ()
    filled = next(p for p in graph.priced if "index_put" in p.op.kind)
    assert filled.costs[0].vector_flop == 40
    assert filled.costs[0].write_bytes == 40 * 4


def test_wrong_assumptions_say_what_is_wrong() -> None:
    with pytest.raises(InputError, match=re.escape("this trace has no 'msk': it has 'mask'; did you mean 'mask'?")):
        rk.trace(lambda x: x[x > 0], X, assume={"msk": 0.5})
    with pytest.raises(InputError, match="its data decide nothing"):
        rk.trace(torch.relu, X, assume={"mask": 0.5})
    for value in (1.5, -1, "all", None):
        with pytest.raises(InputError, match="assume: 'mask': expected"):
            rk.trace(lambda x: x[x > 0], X, assume={"mask": value})
    with pytest.raises(InputError, match="assume: expected names with numbers"):
        rk.trace(lambda x: x[x > 0], X, assume=3)


def test_the_cpu_waits_for_sizes() -> None:
    from rooflinekit.step.entry import reads_a_number

    def waits(model: object) -> list[str]:
        return [op.kind for op in rk.trace(model, rk.Input(5, 8)).ops if reads_a_number(op)]

    assert waits(lambda x: x[x > 0]) == ["aten.index"]
    assert waits(lambda x: (x > 0).nonzero()) == ["aten.nonzero"]
    assert waits(lambda x: x[torch.arange(3)]) == []
    assert waits(lambda x: torch.where(x > 0, x, 0.0)) == []


# --- control flow of torch's own ---------------------------------------------------------------------------------


def test_a_branch_of_torchs_own() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x @ x.T, lambda x: x.exp(), (x,))

    graph = rk.trace(model, X, strict=True)
    assert graph.matrix_flop == rk.trace(lambda x: x @ x.T, X).matrix_flop
    assert "aten.mm" not in kinds(rk.trace(model, X, assume={"cond": False}))


def test_loops_of_torchs_own() -> None:
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    layer = nn.Linear(8, 8, bias=False)

    def loop(x: torch.Tensor) -> torch.Tensor:
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, layer(x)), (torch.tensor(0), x))[1]

    # 2·5·8·8 a pass
    for shape in ((5, 8), ("n", 8)):
        graph = rk.trace(loop, rk.Input(*shape), assume={"while_loop": 3})
        assert (graph.at(n=5) if graph.dims else graph).matrix_flop == 3 * 640
    with pytest.raises(TraceError, match="strict: the data of a run decide while_loop"):
        rk.trace(loop, X, strict=True)

    def steps(x: torch.Tensor) -> torch.Tensor:
        return scan(lambda c, y: (layer(c) + y, c.clone()), torch.zeros(8), x, dim=0)[0]

    graph = rk.trace(steps, rk.Input(6, 8), strict=True)
    assert graph.matrix_flop == 6 * 2 * 8 * 8


def test_a_model_that_refuses_what_was_taken_is_told_how_to_say_otherwise() -> None:
    model = nn.AdaptiveLogSoftmaxWithLoss(64, 30, [5, 15])  # each target is in one of three groups
    with pytest.raises(TraceError, match=r"Target values should be .* taken: nonzero 9 of 9 .* assume={'nonzero': …}"):
        rk.trace(model, rk.Input(9, 64), rk.Input(9, dtype="int64"))
    assert rk.trace(model, rk.Input(9, 64), rk.Input(9, dtype="int64"), assume={"nonzero": 3}).priced
