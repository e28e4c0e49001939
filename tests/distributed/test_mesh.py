"""Tensor groups, pipeline stages, and both with copies."""

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.distributed.tensor import cut
from rooflinekit.errors import InputError

# FLOP a sample, see test_saving: stem and head 2·5·4096 = 40960 on every device, pairs 2·24·16384 = 786432 shared out.
ALONE, PAIRS = 40960, 786432


@pytest.mark.parametrize("parts", [2, 4])
def test_pairs_of_layers_are_shared_out(blocks: rk.Graph, parts: int) -> None:
    graph = cut(blocks.at(batch=8), parts)
    assert graph.matrix_flop == 8 * (ALONE + PAIRS // parts)
    # stem and head 4160 each; of a block both matrices of 16384 and the first bias, 256; the second, 64, is whole
    assert graph.parameters == 2 * 4160 + 4 * ((2 * 16384 + 256) // parts + 64)


def test_two_reductions_a_pair(blocks: rk.Graph) -> None:
    p = rk.parallel(blocks, cluster="dgx-a100", strategy=rk.Mesh(tensor=2), gpus=2, batch=512)
    sent = [m.timing.size_bytes for m in p.messages]
    assert sent == [512 * 64 * 4] * 8  # 4 pairs, forward and backward, batch × width in fp32
    assert p.hidden_s + p.exposed_s == pytest.approx(p.communication_s)
    assert sum(p.terms().values()) == pytest.approx(p.slowest.run.end_s)


class Gated(nn.Module):
    """Two layers that read the same normalized tensor, their product, and one back: 64 to 2 · 128 to 64."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.gate, self.up = (nn.Linear(64, 128, bias=False) for _ in range(2))
        self.down = nn.Linear(128, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(self.gate(y) * self.up(y))  # type: ignore[no-any-return]


def test_casts_of_weights_are_cut_as_weights() -> None:
    # autocast casts the weights, and for each layer what it reads: as many products and reductions as without
    plain, cast = (
        rk.trace(
            nn.Sequential(Gated()), rk.Input("batch", 64), mode="training", optimizer=torch.optim.SGD, **options
        ).at(batch=32)
        for options in ({"dtype": "bfloat16"}, {"autocast": "bfloat16"})
    )
    products = [
        sorted(str(g) for p in cut(graph, 2).priced for c in p.costs for g in c.gemms) for graph in (plain, cast)
    ]
    assert products[0] == products[1]
    # 3 products forward and 6 backward, each of 32 · 64 · 128 multiply-adds, of which a device has half
    assert cut(cast, 2).matrix_flop == 9 * 2 * 32 * 64 * 128 // 2
    assert cut(cast, 2).parameters == 2 * 64 + 3 * 64 * 128 // 2
    sent = [
        rk.parallel(graph, cluster="dgx-a100", strategy=rk.Mesh(tensor=2), gpus=2).messages for graph in (plain, cast)
    ]
    assert [m.timing.size_bytes for m in sent[0]] == [m.timing.size_bytes for m in sent[1]] == [32 * 64 * 2] * 2


class Attention(nn.Module):
    """Three heads of 16 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(48, 144)
        self.out = nn.Linear(48, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.read(x).unflatten(-1, (3, 3, 16)).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(*heads)
        return self.out(found.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def test_heads_are_not_cut_in_two() -> None:
    graph = rk.trace(nn.Sequential(Attention()), rk.Input(2, 8, 48), mode="training", dtype="float16")
    with pytest.raises(InputError, match=r"3 heads cannot be cut for 2 devices$"):
        cut(graph, 2)
    assert cut(graph, 3).matrix_flop < graph.matrix_flop / 2


def test_what_cannot_be_cut(blocks: rk.Graph) -> None:
    def mesh(gpus: int = 8, batch: int = 64, **options: int) -> None:
        rk.parallel(blocks, cluster="dgx-a100", strategy=rk.Mesh(**options), gpus=gpus, batch=batch)

    with pytest.raises(
        InputError, match=r"^mesh of tensor 3 × context 1 × pipeline 1: expected a multiple of 3 GPUs; got 8$"
    ):
        mesh(tensor=3)
    with pytest.raises(InputError, match=r"256 columns cannot be cut for 3 devices$"):
        mesh(tensor=3, gpus=3)
    with pytest.raises(InputError, match=r"^batch=64 cannot be cut into 4 copies × 3 microbatches$"):
        mesh(pipeline=2, microbatches=3)
    with pytest.raises(InputError, match=r"^a pipeline of 8 stages: the model has 6 blocks to put there$"):
        mesh(pipeline=8, microbatches=8)


@pytest.mark.parametrize(
    "mesh",
    [
        rk.Mesh(pipeline=2, microbatches=4),
        rk.Mesh(pipeline=4, microbatches=8, schedule="gpipe"),
        rk.Mesh(pipeline=2, microbatches=4, schedule="interleaved"),
        rk.Mesh(pipeline=2, tensor=2, microbatches=4),
    ],
    ids=["1f1b", "gpipe", "interleaved", "tensor"],
)
def test_laws_of_stages(blocks: rk.Graph, mesh: rk.Mesh) -> None:
    p = rk.parallel(blocks, cluster="dgx-a100", strategy=mesh, gpus=8, batch=8192)
    assert sum(p.terms().values()) == pytest.approx(p.total_s)
    assert all(seconds >= -1e-12 for seconds in p.terms().values())
    assert p.hidden_s >= 0
    assert p.terms()["bubble"] > 0
    assert sum(len(share.numbers) for share in p.shares) == 8
    assert sorted(number for share in p.shares for number in share.numbers) == list(range(8))


def test_a_stage_keeps_its_part(blocks: rk.Graph) -> None:
    whole = rk.parallel(blocks, cluster="dgx-a100", gpus=1, batch=1024).shares[0].memory
    p = rk.parallel(blocks, cluster="dgx-a100", strategy=rk.Mesh(pipeline=2, microbatches=4), gpus=2, batch=1024)
    weights = [share.memory.weight_bytes for share in p.shares]
    assert sum(weights) == whole.weight_bytes
    assert max(weights) < 0.7 * whole.weight_bytes
    states = sum(share.memory.state_bytes for share in p.shares)
    assert states == pytest.approx(whole.state_bytes, rel=0.01)
