"""Experts shared out among copies, in each form in which they are traced: counts by hand, and laws."""

from collections.abc import Callable

import pytest
import torch
from several import slow_cluster, unmade
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.distributed.mixtures import spread
from rooflinekit.distributed.tensor import cut
from rooflinekit.errors import InputError
from rooflinekit.ir.op import Phase

WIDTH, HIDDEN, EXPERTS, SEQUENCE = 32, 64, 8, 16

# Of a sample's 16 tokens each goes to one expert, so that an expert has 2 rows a sample.
# Parameters: an expert has 2·32·64 = 4096 weights, all of them 32768. Beside them a stem and a head of 32·32 + 32 =
# 1056 each, and a router of 32·8 = 256: 2368.
EXPERT, OTHERS = 2 * WIDTH * HIDDEN, 2 * (WIDTH * WIDTH + WIDTH) + WIDTH * EXPERTS


class Routed(nn.Module):
    """A buffer [experts, rows, width]; what follows fills it, and takes it apart again."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        rows = tokens.shape[0] // EXPERTS
        share, expert = self.router(tokens).softmax(-1).max(-1)
        chosen = functional.one_hot(expert, EXPERTS)
        slot = expert * rows + ((chosen.cumsum(0) - 1) * chosen).sum(-1).clamp(max=rows - 1)
        buffer = x.new_zeros(EXPERTS * rows, WIDTH).index_copy(0, slot, tokens).view(EXPERTS, rows, WIDTH)
        return (self.experts_of(buffer).reshape(-1, WIDTH)[slot] * share.unsqueeze(-1)).view_as(x)


def weights() -> tuple[nn.Parameter, nn.Parameter]:
    return nn.Parameter(torch.empty(EXPERTS, WIDTH, HIDDEN)), nn.Parameter(torch.empty(EXPERTS, HIDDEN, WIDTH))


class Batched(Routed):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = weights()

    def experts_of(self, buffer: torch.Tensor) -> torch.Tensor:
        return torch.bmm(functional.gelu(torch.bmm(buffer, self.up)), self.down)


class Listed(Routed):
    """Modules; what each gives is put where it belongs before the next one is called."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN, bias=False), nn.GELU(), nn.Linear(HIDDEN, WIDTH, bias=False))
            for _ in range(EXPERTS)
        )

    def experts_of(self, buffer: torch.Tensor) -> torch.Tensor:
        return torch.stack([expert(rows) * 2 for expert, rows in zip(self.experts, buffer, strict=True)])


class Grouped(nn.Module):
    """Rows sorted by expert, as many for each as there are; in half precision, which `_grouped_mm` asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up, self.down = weights()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        share, expert = self.router(tokens).softmax(-1).max(-1)
        order = expert.argsort()
        ends = functional.one_hot(expert, EXPERTS).sum(0).cumsum(0).to(torch.int32)
        rows = tokens[order].bfloat16()
        inner = functional.gelu(torch._grouped_mm(rows, self.up.bfloat16(), offs=ends))
        result = torch._grouped_mm(inner, self.down.bfloat16(), offs=ends).to(x.dtype)
        return (torch.empty_like(result).index_copy(0, order, result) * share.unsqueeze(-1)).view_as(x)


def traced(mixture: nn.Module, mode: str = "training") -> rk.Graph:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), mixture, nn.Linear(WIDTH, WIDTH))
    return rk.trace(model, rk.Input("batch", SEQUENCE, WIDTH), mode=mode, optimizer=torch.optim.Adam)


@pytest.fixture(scope="module")
def batched() -> rk.Graph:
    return traced(Batched())


@pytest.fixture(scope="module")
def listed() -> rk.Graph:
    return traced(Listed())


@pytest.fixture(scope="module")
def grouped() -> rk.Graph:
    return traced(Grouped())


def predicted(graph: rk.Graph, *, gpus: int, batch: int, **options: object) -> rk.ParallelPrediction:
    return rk.parallel(graph, cluster="dgx-a100", strategy=rk.Mesh(**options), gpus=gpus, batch=batch)


def products(graph: rk.Graph, phase: Phase = Phase.FORWARD) -> list[tuple[int, int, int, int]]:
    """Batch, m, n and k of the experts' products."""
    gemms = [gemm for p in graph.priced if p.op.phase is phase for cost in p.costs for gemm in cost.gemms]
    found = [tuple(map(int, (gemm.batch, gemm.m, gemm.n, gemm.k))) for gemm in gemms]
    return [one for one in found if HIDDEN in one]


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_products_of_a_batch(batched: rk.Graph, parts: int) -> None:
    here, rows = EXPERTS // parts, 8 * 2 * parts  # of 8 samples, of as many devices
    graph = spread(batched.at(batch=8), parts).graph
    assert products(graph) == [(here, rows, HIDDEN, WIDTH), (here, rows, WIDTH, HIDDEN)]
    assert products(graph, Phase.BACKWARD) == [
        (here, HIDDEN, WIDTH, rows), (here, rows, HIDDEN, WIDTH),  # of `down`: its weights, its input
        (here, WIDTH, HIDDEN, rows), (here, rows, WIDTH, HIDDEN),
    ]  # fmt: skip


def test_products_in_groups(grouped: rk.Graph) -> None:
    # One kernel of all rows, of which a device gets as many as it sends away; it reads a half of the weights.
    whole, half = grouped.at(batch=8), spread(grouped.at(batch=8), 2).graph
    assert products(half) == [(1, 8 * 16, HIDDEN, WIDTH), (1, 8 * 16, WIDTH, HIDDEN)] == products(whole)
    products_of = [[p for p in graph.priced if p.op.kind == "aten._grouped_mm"] for graph in (whole, half)]
    read = [first.costs[0].read_bytes for first, *_ in products_of]
    assert read[0] - read[1] == EXPERTS * WIDTH * HIDDEN * 2 // 2


@pytest.mark.parametrize("parts", [2, 8])
def test_modules_in_a_list(listed: rk.Graph, parts: int) -> None:
    graph = spread(listed.at(batch=8), parts).graph
    rows = 8 * 2 * parts
    assert products(graph) == [(1, rows, HIDDEN, WIDTH), (1, rows, WIDTH, HIDDEN)] * (EXPERTS // parts)


@pytest.mark.parametrize("form", ["batched", "grouped", "listed"])
@pytest.mark.parametrize("parts", [2, 8])
def test_laws_of_a_device(form: str, parts: int, request: pytest.FixtureRequest) -> None:
    whole = request.getfixturevalue(form).at(batch=8)
    found = spread(whole, parts)
    graph = found.graph
    assert graph.matrix_flop == whole.matrix_flop  # as many tokens come as go
    assert graph.parameters == OTHERS + EXPERTS * EXPERT // parts
    gradients = {spec.memory: int(spec.numel) for spec in graph.gradients}
    assert sum(gradients.values()) == graph.parameters
    assert sum(gradients[memory] for memory in found.gradients) == EXPERTS * EXPERT // parts
    assert unmade(graph) == []


@pytest.mark.parametrize(("form", "itemsize"), [("batched", 4), ("grouped", 2), ("listed", 4)])
def test_four_exchanges(form: str, itemsize: int, request: pytest.FixtureRequest) -> None:
    p = predicted(request.getfixturevalue(form), gpus=2, expert=2, batch=16)
    sent = [m.timing.size_bytes for m in p.messages if m.timing.collective == "all-to-all"]
    # There and back, forward and backward: each of a device's 8·16 tokens.
    assert sent == [8 * 16 * WIDTH * itemsize] * 4


def test_who_agrees_on_which_gradients(batched: rk.Graph) -> None:
    def reduced(gpus: int, **options: object) -> dict[tuple[str, int], float]:
        found: dict[tuple[str, int], float] = {}
        for m in predicted(batched, gpus=gpus, batch=8 * gpus, **options).messages:
            if m.timing.collective == "all-reduce":
                key = (m.group, m.timing.ranks)
                found[key] = found.get(key, 0) + m.timing.size_bytes
        return found

    assert reduced(8) == {("data", 8): 4 * (OTHERS + EXPERTS * EXPERT)}
    assert reduced(8, expert=8) == {("data", 8): 4 * OTHERS}
    # Two experts on each of four devices, and two such groups.
    assert reduced(8, expert=4) == {("data", 8): 4 * OTHERS, ("expert data", 2): 4 * 2 * EXPERT}


@pytest.mark.parametrize("form", ["batched", "grouped", "listed"])
def test_memory_of_a_device(form: str, request: pytest.FixtureRequest) -> None:
    graph = request.getfixturevalue(form)
    for expert in (1, 2, 8):
        use = predicted(graph, gpus=8, expert=expert, batch=64).shares[0].memory
        kept = 4 * (OTHERS + EXPERTS * EXPERT // expert)
        assert (use.weight_bytes, use.gradient_bytes) == (kept, kept)
        assert use.state_bytes == pytest.approx(2 * kept, rel=0.01)  # Adam's moments, and a step count each


def test_one_expert_group_is_the_plain_step(batched: rk.Graph) -> None:
    plain = rk.parallel(batched, cluster="dgx-a100", strategy="ddp", gpus=4, batch=64)
    assert predicted(batched, gpus=4, expert=1, batch=64).total_s == plain.total_s
    alone = rk.parallel(batched, cluster="dgx-a100", strategy="expert", gpus=1, batch=64)
    assert alone.total_s == alone.one_gpu.total_s


@pytest.mark.parametrize("form", ["batched", "grouped", "listed"])
def test_the_fullest_device(form: str, request: pytest.FixtureRequest) -> None:
    graph = request.getfixturevalue(form)
    even, uneven = (spread(graph.at(batch=8), 2, imbalance).graph for imbalance in (1.0, 1.5))
    work = 3 * 2 * 8 * SEQUENCE * EXPERT  # forward and twice backward, 2 FLOP, of each token
    assert even.matrix_flop == graph.at(batch=8).matrix_flop
    assert uneven.matrix_flop - even.matrix_flop == work // 2
    times = [predicted(graph, gpus=2, expert=2, imbalance=one, batch=2**16) for one in (1.0, 1.25, 1.5)]
    assert times[0].total_s < times[1].total_s < times[2].total_s
    sent = [sum(m.timing.size_bytes for m in p.messages if m.timing.collective == "all-to-all") for p in times]
    assert sent[2] == 1.5 * sent[0]
    assert "experts: at most 1.5 times the mean of the tokens for each device of a group" in times[2].notes


@pytest.mark.parametrize(
    "mesh",
    [rk.Mesh(expert=4), rk.Mesh(expert=2), rk.Mesh(expert=2, tensor=2)],
    ids=["one group", "two groups", "tensor"],
)
@pytest.mark.parametrize("savers", [rk.Savers(), rk.Savers(accumulate=2, checkpoint=True)], ids=["plain", "savers"])
def test_terms_add_up(blocks_and_experts: rk.Graph, mesh: rk.Mesh, savers: rk.Savers) -> None:
    p = rk.parallel(blocks_and_experts, cluster="dgx-a100", strategy=mesh, gpus=4, batch=4096, savers=savers)
    assert sum(p.terms().values()) == pytest.approx(p.slowest.run.end_s)
    assert all(seconds >= -1e-12 for seconds in p.terms().values())
    assert p.hidden_s + p.exposed_s == pytest.approx(p.communication_s)
    # Two mixtures of four exchanges; those of forward again where they are computed again; all that for each part.
    sent = [m for m in p.messages if m.timing.collective == "all-to-all"]
    assert len(sent) == (8 if savers == rk.Savers() else 2 * (8 + 4))


class InputPipeline(nn.Module):
    """A pair of linear layers, then a mixture."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
        self.mixture = Batched()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixture(x + self.pair(x))


@pytest.fixture(scope="module")
def blocks_and_experts() -> rk.Graph:
    return traced(nn.Sequential(InputPipeline(), InputPipeline()))


def test_links_for_nothing_leave_what_a_device_computes(batched: rk.Graph) -> None:
    p = rk.parallel(batched, cluster=slow_cluster(1e30), strategy="expert", gpus=8, batch=2**16)
    own = p.shares[0].prediction
    assert own.total_s <= p.total_s <= own.total_s + p.communication_s + p.terms()["contention"] + 1e-6
    assert all(m.timing.transfer_s < 1e-9 for m in p.messages)


def test_rows_of_several_experts_are_sorted(batched: rk.Graph) -> None:
    def copies(parts: int) -> int:
        return sum(
            "expert by expert" in op.name or "sorted" in op.name for op in spread(batched.at(batch=8), parts).graph.ops
        )

    assert [copies(2), copies(8)] == [4, 0]  # with one expert a device they come as it wants them


class EveryToken(nn.Module):
    def __init__(self, product: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.product = product
        self.up, self.down = weights()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x.reshape(-1, WIDTH), self.up, self.down).mean(0).view_as(x)


def by_matmul(tokens: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return tokens @ up @ down


def by_einsum(tokens: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return torch.einsum("end,edw->enw", torch.einsum("nw,ewd->end", tokens, up), down)


class Heads(nn.Module):
    """Equal modules in a list that all read all of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(head(x) for head in self.heads)


@pytest.mark.parametrize("product", [by_matmul, by_einsum])
def test_experts_that_take_every_token(product: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(InputError, match=r"^1: every expert computes every token, so that nothing is dispatched"):
        spread(traced(EveryToken(product)).at(batch=8), 2)


def test_what_cannot_be_shared_out(batched: rk.Graph, blocks: rk.Graph) -> None:
    with pytest.raises(
        InputError, match=r"^Blocks: no experts to share out: expected weights \[experts, …\] that multi"
    ):
        spread(blocks.at(batch=8), 2)  # its blocks follow one after another
    with pytest.raises(InputError, match=r"^Sequential: no experts to share out"):
        spread(traced(Heads()).at(batch=8), 2)
    with pytest.raises(InputError, match=r"^Sequential: 8 experts cannot be shared out to 3 devices$"):
        predicted(batched, gpus=3, expert=3, batch=24)
    with pytest.raises(InputError, match=r"^Mesh expert: expected a divisor of the 4 copies; got 8"):
        predicted(batched, gpus=4, expert=8, batch=64)
    with pytest.raises(InputError, match=r"^Mesh expert: shared-out experts need DDP between copies; got data=FS"):
        predicted(batched, gpus=4, expert=2, batch=64, data=rk.FSDP())
    with pytest.raises(
        InputError, match=r"^Mesh imbalance: expected a number from 1 \(as many tokens everywhere\) to exp"
    ):
        rk.Mesh(expert=2, imbalance=3)
    with pytest.raises(InputError, match=r"^Mesh imbalance: expected a number from 1 .*; got nan$"):
        rk.Mesh(expert=2, imbalance=float("nan"))


def test_pairs_are_cut_beside_experts(blocks_and_experts: rk.Graph) -> None:
    graph = cut(spread(blocks_and_experts.at(batch=8), 2).graph, 2)
    whole = blocks_and_experts.at(batch=8)
    pairs = 3 * 2 * 2 * 2 * 8 * SEQUENCE * WIDTH * HIDDEN  # three products each, 2 FLOP, two pairs of two layers
    assert graph.matrix_flop == whole.matrix_flop - pairs // 2
