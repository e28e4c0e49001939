"""Laws over random models: open at a number is fixed at it, nothing is left changed, and a table's sum is the total."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from learned import Uses, kinds
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.errors import RooflinekitError

WIDTH = 8
COUNTS = ("matrix_flop", "vector_flop", "special_flop", "read_bytes", "write_bytes")


class Through(nn.Module):
    """A function of a layer and of what comes."""

    def __init__(self, function: Callable[..., torch.Tensor], layer: nn.Module) -> None:
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer, x)


def attending(causal: bool) -> nn.Module:
    def attended(qkv: nn.Module, x: torch.Tensor) -> torch.Tensor:
        q, k, v = qkv(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return x + y.transpose(1, 2).flatten(2)

    return Through(attended, nn.Linear(WIDTH, 3 * WIDTH))


def shuffled(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Sequence and batch change places and back: copies, where neither is 1."""
    return layer(x.transpose(0, 1).contiguous()).transpose(0, 1).reshape(x.shape)


def halved(x: torch.Tensor) -> torch.Tensor:
    """Every second place, which may be the only one."""
    return x[:, ::2].transpose(0, 1).contiguous().sum(0, keepdim=True).transpose(0, 1) + x


class Keeping(nn.Module):
    """Changes whatever it can reach, and may fail after it."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.layer, self.fails = nn.Linear(WIDTH, WIDTH), fails
        self.calls, self.seen, self.table = 0, [1], {"last": None}
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(self.layer(x))
        self.table["last"], self.extra = x, x
        self.steps += torch.rand(3) + random.random() + np.random.rand()
        self.layer = nn.Identity()
        if self.fails:
            raise RuntimeError("after all that")
        return x


PARTS: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.Linear(WIDTH, WIDTH), lambda: nn.LayerNorm(WIDTH), nn.GELU, lambda: nn.Dropout(0.5),
    lambda: Through(shuffled, nn.Linear(WIDTH, WIDTH)), lambda: attending(causal=False), lambda: attending(causal=True),
    lambda: Through(lambda layer, x: layer(x.transpose(1, 2)).transpose(1, 2), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)),
    lambda: Uses(halved), lambda: Through(lambda layer, x: layer(x)[0], nn.GRU(WIDTH, WIDTH, batch_first=True)),
    lambda: Uses(lambda x: x[x > 0].sum() + x),
    lambda: nn.Softmax(1), lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True),
)  # fmt: skip

models = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map(
    lambda parts: nn.Sequential(nn.Linear(WIDTH, WIDTH), *(part() for part in parts))
)
modes = st.sampled_from(["inference", "training"])
some = settings(max_examples=8, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))


def counts(graph: rk.Graph) -> dict[str, int]:
    return {part: int(getattr(graph, part)) for part in COUNTS}


def held(model: nn.Module) -> list[tuple[object, ...]]:
    """All that a model holds, as identities, with the numbers of its tensors."""
    found: list[tuple[object, ...]] = []
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            found.append((name, key, id(value)))
            items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            found += [(name, key, inner, id(one)) for inner, one in items]
    return found + [(name, value.tolist(), type(value)) for name, value in model.state_dict().items()]


@some
@given(model=models, mode=modes, sizes=st.lists(st.sampled_from([1, 2, 3, 5, 8]), min_size=2, max_size=2))
def test_open_at_a_number_is_fixed_at_it(model: nn.Module, mode: str, sizes: list[int]) -> None:
    given_sizes = dict(zip(("n", "s"), sizes, strict=True))
    graph = rk.trace(model, rk.Input("n", "s", WIDTH), mode=mode)
    fixed = rk.trace(model, rk.Input("n", "s", WIDTH), mode=mode, sizes=given_sizes, fixed=True)
    at = graph.at(**given_sizes)
    assert counts(at) == counts(fixed)
    assert kinds(at) == kinds(fixed)
    (row,) = graph.counts(**given_sizes).to_dict("records")
    assert {part: row[part] for part in COUNTS} == counts(fixed)


@some
@given(model=models, mode=modes, tail=st.sampled_from([None, False, True]), lost=st.booleans())
def test_the_model_after_a_trace_is_the_model_before(
    model: nn.Module, mode: str, tail: bool | None, lost: bool
) -> None:
    if tail is not None:
        model.append(Keeping(fails=tail))
    width = WIDTH + 1 if lost else WIDTH  # of which the model cannot make anything
    before = held(model)
    states = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()
    settled = torch.is_grad_enabled(), torch.get_default_dtype(), nn.Module.__call__, torch._subclasses.FakeTensor
    failed = False
    try:
        rk.trace(
            model, rk.Input("n", "s", width), mode=mode, optimizer=torch.optim.Adam if mode == "training" else None
        )
    except RooflinekitError:
        failed = True
    assert failed is (lost or tail is True)
    assert held(model) == before
    assert (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()) == states
    assert settled == (
        torch.is_grad_enabled(), torch.get_default_dtype(), nn.Module.__call__, torch._subclasses.FakeTensor,
    )  # fmt: skip
    if tail is None:
        assert torch.isfinite(model(torch.randn(2, 3, WIDTH))).all()


@some
@given(model=models, mode=modes, n=st.integers(1, 9))
def test_the_sum_of_a_table_is_the_total(model: nn.Module, mode: str, n: int) -> None:
    graph = rk.trace(model, rk.Input("n", 4, WIDTH), mode=mode).at(n=n)
    ops, tree = graph.to_dataframe(), graph.tree(0)
    for part, total in counts(graph).items():
        assert ops[part].sum() == total
        assert tree[part].sum() == total
    p = rk.predict(graph, "nvidia-l4")
    for table in (p.by_module(), p.by_kind(), p.by_phase(), p.by_kernel()):
        assert table["total_s"].sum() == pytest.approx(p.total_s - p.timeline.tail_s)
