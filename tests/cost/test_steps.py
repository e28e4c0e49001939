"""Whole training steps: matrix FLOP of forward and backward, each multiply-add counted by hand.

The inputs need no gradient, so that the first layer has none for them. "w" and "x" are the gradients of a weight and of
an input.
"""

import pytest
import torch
from learned import Uses
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from rooflinekit import Input


def squares(y):
    first = y[0] if isinstance(y, tuple) else y
    return (first * first).abs().sum()


def self_attention():
    """Attention of an input with itself, as `nn.MultiheadAttention` computes it without weights."""
    attention = nn.MultiheadAttention(16, 4, batch_first=True)
    return lambda x: attention(x, x, x, need_weights=False)[0]


class Scaled(nn.Module):
    """Attention of which query, key and value each need a gradient."""

    def __init__(self, keys=5, heads=4, backend=None, **options):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.keys, self.heads, self.backend, self.options = keys, heads, backend, options

    def forward(self, x):
        q = x * self.factor
        k, v = (q[:, : self.heads, :1].expand(-1, -1, self.keys, -1) * times for times in (2, 3))
        with sdpa_kernel(self.backend or [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
            return functional.scaled_dot_product_attention(q, k, v, **self.options)


def gated():
    """Two layers in, their product, one out."""
    gate, up, down = (nn.Linear(*s, bias=False) for s in ((8, 16), (8, 16), (16, 8)))
    return lambda x: down(functional.silu(gate(x)) * up(x))


def adapted():
    """A frozen layer and a narrow path beside it that learns."""
    base = nn.Linear(8, 8).requires_grad_(False)
    into, out = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
    return lambda x: base(x) + out(into(x))


def recomputed(reentrant):
    before, block = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    return lambda x: checkpoint(block, before(x), use_reentrant=reentrant)


def two(first, second, frozen=None):
    layers = nn.Sequential(first, nn.ReLU(), second)
    if frozen is not None:
        layers[frozen].requires_grad_(False)
    return layers


def tied():
    table, head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
    head.weight = table.weight
    return nn.Sequential(table, head)


def reused():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


WORDS = Input(2, 5, dtype="int64")
HALF = Input(2, 4, 5, 4, dtype="float16")
HEADS = Input(2, 8, 5, 4, dtype="float16")
FLAT = Input(2, 4, 3, 4)

#: model, input, forward, backward
STEPS = {
    # 3·8·16
    "linear": (nn.Linear(8, 16), (3, 8), 2 * 384, 2 * 384),
    # 10 rows of 8·16
    "linear of a sequence": (nn.Linear(8, 16), (2, 5, 8), 2 * 1280, 2 * 1280),
    # 3·8·16 and 3·16·4; back w 384 and 192, x of the second 192
    "two linear layers": (two(nn.Linear(8, 16), nn.Linear(16, 4)), (3, 8), 2 * 576, 2 * 768),
    "first layer frozen": (two(nn.Linear(8, 16), nn.Linear(16, 4), 0), (3, 8), 2 * 576, 2 * 192),
    "second layer frozen": (two(nn.Linear(8, 16), nn.Linear(16, 4), 2), (3, 8), 2 * 576, 2 * (192 + 384)),
    # 5·4·4 twice; back w twice, x of the second call
    "one layer called twice": (reused(), (5, 4), 2 * 160, 2 * 240),
    # three of 3·8·16; back w of all, x of the last
    "gated": (gated(), (3, 8), 2 * 1152, 2 * (1152 + 384)),
    # 3·64, 3·16, 3·16; back w of both narrow ones, x of the second
    "adapter": (adapted(), (3, 8), 2 * 288, 2 * 144),
    # 10·8·20; back w and x
    "table and head": (nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)), WORDS, 2 * 1600, 2 * 3200),
    "tied table and head": (tied(), WORDS, 2 * 1600, 2 * 3200),
    # bags of 5 words: 2·8·20
    "bag and head": (nn.Sequential(nn.EmbeddingBag(20, 8), nn.Linear(8, 20)), WORDS, 2 * 320, 2 * 640),
    # 5·4; the weight's gradient is an outer product, element by element
    "matrix and vector": (Uses(lambda x, w: w @ x, (5, 4)), (4,), 2 * 20, 0),
    # 4; the gradient of a dot product is a scaled vector
    "dot product": (Uses(torch.dot, (4,)), (4,), 2 * 4, 0),
    # 2·5·4·3
    "einsum": (Uses(lambda x, w: torch.einsum("bjk,ik->bij", x, w), (3, 4)), (2, 5, 4), 2 * 120, 2 * 120),
    # 2·3·4·5
    "batched product": (Uses(torch.bmm, (2, 4, 5)), (2, 3, 4), 2 * 120, 2 * 120),
    "batched product and sum": (
        Uses(lambda x, w, b: torch.baddbmm(b, x, w), (2, 4, 5), (2, 3, 5)), (2, 3, 4), 2 * 120, 2 * 120,
    ),
    # the weight is seen by both of the batch: 2·3·4·5, and its gradients are added
    "broadcast product": (Uses(torch.matmul, (4, 5)), (2, 3, 4), 2 * 120, 2 * 120),
    # 3·4·5 complex multiply-adds of four real ones
    "complex product": (
        Uses(torch.matmul, (4, 5), dtype=torch.complex64), Input(3, 4, dtype="complex64"), 8 * 60, 8 * 60,
    ),
    # 6 outputs of 3 rows: 3·4·5 and 3·5; back w: 6·3·4·5
    "bilinear": (
        Uses(lambda x, w: functional.bilinear(x, x[:, :1].expand(3, 5), w), (6, 4, 5)), (3, 4), 2 * 450, 2 * 360,
    ),
    # 2·36 places, 4 of 3·9; 2·16 places, 5 of 4·9; back w of both, x of the second
    "two convolutions": (two(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)), (2, 3, 8, 8), 2 * 13536, 2 * (7776 + 2 * 5760)),
    # 2·36 places, 12 channels of 2·9 each
    "grouped": (nn.Conv2d(8, 12, 3, padding=1, groups=4), (2, 8, 6, 6), 2 * 15552, 2 * 15552),
    # depthwise 5184, then 72·8·10; back w of both, x of the second
    "depthwise separable": (
        two(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 10, 1)), (2, 8, 6, 6), 2 * 10944, 2 * (5184 + 11520),
    ),
    # 2·36 places, 4 of 3·9: the padding is copied before
    "reflected": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (2, 3, 6, 6), 2 * 7776, 2 * 7776),
    # 2·36·12·27; twice as wide and high: 2·144·3·27; back w of both, x of the second
    "pixel shuffle": (
        nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(3, 3, 3, padding=1)),
        (2, 3, 6, 6), 2 * (23328 + 23328), 2 * (23328 + 2 * 23328),
    ),
    # 2·16·4·27; 2·64·3·36; back w of both, x of the second
    "upsampling": (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Upsample(scale_factor=2), nn.Conv2d(4, 3, 3, padding=1)),
        (2, 3, 4, 4), 2 * (3456 + 13824), 2 * (3456 + 2 * 13824),
    ),
    # 2·36·4·27; 2·4·5; back w of both, x of the second
    "small network": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(4, 5),
        ),
        (2, 3, 6, 6), 2 * (7776 + 40), 2 * (7776 + 80),
    ),
    # 2·4 heads of 25 pairs, 4 wide: two products, then five
    "flash attention": (Scaled(), HALF, 2 * 2 * 800, 2 * 5 * 800),
    "cudnn attention": (Scaled(backend=SDPBackend.CUDNN_ATTENTION), HALF, 2 * 2 * 800, 2 * 5 * 800),
    # 15 pairs
    "causal attention": (Scaled(is_causal=True), HALF, 2 * 2 * 480, 2 * 5 * 480),
    # 16 heads of 25 pairs
    "grouped heads": (Scaled(heads=2, enable_gqa=True), HEADS, 2 * 2 * 1600, 2 * 5 * 1600),
    # 8 heads of 3·7 pairs
    "other keys than queries": (Scaled(keys=7), FLAT, 2 * 2 * 672, 2 * 5 * 672),
    # 8 heads; queries 1, 2, 3 see as many keys
    "causal with more keys": (Scaled(keys=7, is_causal=True), FLAT, 2 * 2 * 192, 2 * 5 * 192),
    # unfused: two products, and two gradients of each
    "unfused attention": (Scaled(backend=SDPBackend.MATH), HALF, 2 * 2 * 800, 2 * 4 * 800),
    # 10·16·48 in, 2·8·25·4 twice, 10·16·16 out; back w in, five products, w and x out
    "multi-head attention": (self_attention(), (2, 5, 16), 2 * (7680 + 1600 + 2560), 2 * (7680 + 4000 + 5120)),
    # and 10·16·32 there and back again, w and x of both
    "encoder layer": (
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (2, 5, 16), 2 * (11840 + 10240), 2 * (16800 + 20480),
    ),
    # 21 steps: 16·5 of the input, 16·4 of the state; back w of both, and the state
    "lstm": (nn.LSTM(5, 4), (7, 3, 5), 2 * 3024, 2 * (3024 + 1344)),
    "gru": (nn.GRU(5, 4), (7, 3, 5), 2 * 2268, 2 * (2268 + 1008)),
    "rnn": (nn.RNN(5, 4), (7, 3, 5), 2 * 756, 2 * (756 + 336)),
    # two directions: 21·16·(5 + 4) and 21·16·(8 + 4); back all w, four states, and x of the second layer
    "deep lstm": (
        nn.LSTM(5, 4, num_layers=2, bidirectional=True), (7, 3, 5), 2 * 14112, 2 * (14112 + 4 * 1344 + 2 * 2688),
    ),
    # 3·16·5 and 3·16·4; the state is zero and needs no gradient
    "lstm cell": (nn.LSTMCell(5, 4), (3, 5), 2 * 432, 2 * 432),
    "gru cell": (nn.GRUCell(5, 4), (3, 5), 2 * 324, 2 * 324),
    # 3·8·8, 3·8·16, 3·16·4; back w of all, x of the last two; the first of the block again, and the second only where
    # nothing stops once all that was saved is back
    "checkpoint": (recomputed(reentrant=False), (3, 8), 2 * 768, 2 * (768 + 576 + 384)),
    "reentrant checkpoint": (recomputed(reentrant=True), (3, 8), 2 * 768, 2 * (768 + 576 + 576)),
}  # fmt: skip


@pytest.mark.parametrize(("model", "x", "forward", "backward"), STEPS.values(), ids=STEPS)
def test_forward_and_backward(traced, model, x, forward, backward):
    graph = traced(model, x, mode="training", loss=squares)
    found = {"forward": 0, "backward": 0}
    for priced in graph.priced:
        found[priced.op.phase] += sum(cost.matrix_flop for cost in priced.costs)
    assert found == {"forward": forward, "backward": backward}


@pytest.mark.parametrize("name", ["linear", "two convolutions", "grouped", "encoder layer", "flash attention"])
def test_the_batch_may_be_open(traced, name):
    model, x, forward, backward = STEPS[name]
    shape = x.shape if isinstance(x, Input) else x
    dtype = x.dtype if isinstance(x, Input) else "float32"
    graph = traced(model, Input("batch", *shape[1:], dtype=dtype), mode="training", loss=squares)
    assert graph.dims == ("batch",)
    assert graph.at(batch=shape[0]).matrix_flop == forward + backward
