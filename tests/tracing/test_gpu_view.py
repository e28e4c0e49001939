"""Attention, dropout and recurrent layers as a GPU runs them, wherever they are called from."""

import pytest
import torch
from learned import kinds
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import rooflinekit as rk

ATTENTION = "aten._scaled_dot_product_efficient_attention"


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_multihead_attention(mode: str) -> None:
    model = nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True)
    x = rk.Input("b", "s", 16)
    graph = rk.trace(model, x, x, x, need_weights=False, mode=mode)
    assert kinds(graph).count(ATTENTION) == 1
    assert "aten._softmax" not in kinds(graph)
    forward = [p for p in graph.priced if p.op.phase == "forward" for _ in p.costs]
    # 3 projections and one behind, 16·16 each a token; scores and values 2·s·s·16, in multiply-adds
    expected = {(2, 5): 2 * 5 * 4 * 16 * 16 + 2 * 2 * 5 * 5 * 16, (3, 7): 3 * 7 * 4 * 16 * 16 + 2 * 3 * 7 * 7 * 16}
    for (b, s), macs in expected.items():
        values = {"b": b, "s": s}
        found = sum(cost.matrix_flop for p in forward for cost in p.costs)
        assert found.subs({symbol: values[symbol.name] for symbol in found.free_symbols}) == 2 * macs


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_encoder_layer(mode: str) -> None:
    model = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    graph = rk.trace(model, rk.Input("b", "s", 16), mode=mode)
    assert kinds(graph).count(ATTENTION) == 1
    if mode == "inference":
        # qkv 48·16, out 16·16, two of 16·32 a token; attention 2·s·s·16, at b = 2 and s = 3
        assert graph.at(b=2, s=3).matrix_flop == 2 * (6 * 16 * (48 + 16 + 64) + 2 * 2 * 9 * 16)


def test_an_encoder_with_padding_counts_every_place() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)
    mask = rk.Input("b", "s", dtype="bool")
    graph = rk.trace(model, rk.Input("b", "s", 16), src_key_padding_mask=mask, strict=True)
    assert graph.dims == ("b", "s")
    # two layers as above
    assert graph.at(b=2, s=3).matrix_flop == 2 * 2 * (6 * 16 * (48 + 16 + 64) + 2 * 2 * 9 * 16)


def test_attention_weights_asked_for_are_computed() -> None:
    x = rk.Input(2, 5, 16)
    graph = rk.trace(nn.MultiheadAttention(16, 4, batch_first=True), x, x, x)
    assert kinds(graph).count("aten.bmm") == 2
    assert "aten._softmax" in kinds(graph)


def test_padding_keeps_sizes_open() -> None:
    graph = rk.trace(lambda x: functional.pad(x, (1, 2, 0, 3), value=1.0), rk.Input("n", "h", "w"))
    assert graph.dims == ("n", "h", "w")
    assert [str(size) for size in graph.outputs[0].shape] == ["n", "h + 3", "w + 3"]
    cropped = rk.trace(lambda x: functional.pad(x, (-1, 0)), rk.Input("n", 4))
    assert cropped.outputs[0].shape[1] == 3


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_sequences_count_as_long_as_the_longest(layer: type[nn.RNNBase], batch_first: bool) -> None:
    own = layer(5, 4, batch_first=batch_first)

    def model(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(own(packed)[0], batch_first)[0]

    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[layer]
    shape = (3, 7, 5) if batch_first else (7, 3, 5)
    inputs = (rk.Input(*shape), rk.Input(3, dtype="int64"))
    graph = rk.trace(model, *inputs, mode="training")
    # 21 steps: 4·(5 + 4) a gate; back both weights, and the state
    assert graph.matrix_flop == 2 * 21 * gates * 4 * (9 + 9 + 4)
    assert graph.outputs[0].shape == (*shape[:2], 4)
    assert [(one.name, one.value, one.most) for one in graph.assumptions] == [("packed", 21, 21)]
    # of 14 steps, 2 sequences on average at each of the 7
    shorter = rk.trace(model, *inputs, mode="training", assume={"packed": 14})
    assert shorter.matrix_flop == 2 * 14 * gates * 4 * (9 + 9 + 4)
    assert shorter.outputs[0].shape == (*shape[:2], 4)


@pytest.mark.parametrize("is_sorted", [False, True])
def test_packing_waits_for_the_gpu_only_where_it_sorts(is_sorted: bool) -> None:
    def packed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=is_sorted).batch_sizes[0].item() * x

    graph = rk.trace(packed, rk.Input(7, 3, 5), rk.Input(3, dtype="int64"))
    assert any(op.kind == "aten._local_scalar_dense" for op in graph.ops) is not is_sorted


class Attend(nn.Module):
    def __init__(self, backend: SDPBackend, causal: bool = False) -> None:
        super().__init__()
        self.backend, self.causal = backend, causal
        self.project = nn.Linear(16, 16)

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        q = self.project(q)
        with sdpa_kernel(self.backend):
            return functional.scaled_dot_product_attention(q, q, q, is_causal=self.causal)


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize("causal", [False, True])
def test_each_fused_backend(name: str, causal: bool) -> None:
    backend = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
    }[name]
    q = rk.Input("b", 4, "s", 16)
    graph = rk.trace(Attend(backend, causal), q, dtype="float16", mode="training")
    assert f"aten._scaled_dot_product_{name}_attention" in kinds(graph)
    assert f"aten._scaled_dot_product_{name}_attention_backward" in kinds(graph)
    # at b = 2, s = 5: 40 rows projected, and once more for the weight's gradient; 8 heads of 25 or 15 pairs, 16 wide,
    # two products forward and five backward
    pairs = 15 if causal else 25
    assert graph.at(b=2, s=5).matrix_flop == 2 * (2 * 40 * 16 * 16 + 7 * 8 * pairs * 16)


def test_the_unfused_backend() -> None:
    graph = rk.trace(Attend(SDPBackend.MATH), rk.Input("b", 4, "s", 16), dtype="float16")
    assert kinds(graph).count("aten.bmm") == 2
    assert graph.at(b=2, s=5).matrix_flop == 2 * (40 * 16 * 16 + 2 * 8 * 25 * 16)


def test_decoding_one_token_with_a_cache() -> None:
    token, cache = rk.Input("b", 8, 1, 64, dtype="bfloat16"), rk.Input("b", 2, "t", 64, dtype="bfloat16")
    graph = rk.trace(lambda q, k: functional.scaled_dot_product_attention(q, k, k, enable_gqa=True), token, cache)
    at = graph.at(b=3, t=1000)
    assert at.matrix_flop == 2 * 2 * 3 * 8 * 1000 * 64
    # the cache once: 3·2·1000·64; the same tensor as key and value; query and output 3·8·64, two bytes each
    read = next(p for p in at.priced if "flash" in p.op.kind).costs[0].read_bytes
    assert read == 2 * (3 * 2 * 1000 * 64 + 3 * 8 * 64)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # a DeprecationWarning, a FutureWarning from torch 2.14 on
def test_scripted_modules() -> None:
    script = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    graph = rk.trace(nn.Sequential(script, nn.Linear(4, 2)), rk.Input("n", 4))
    assert kinds(graph) == ["aten.addmm", "aten.relu", "aten.addmm"]


@pytest.mark.parametrize(
    ("query", "key"),
    [((1, 2, 5, 8), (4, 2, 7, 8)), ((2, 1, 5, 8), (2, 4, 7, 8)), ((5, 8), (3, 4, 7, 8)), ((3, 4, 5, 8), (7, 8))],
)
def test_attention_that_is_broadcast(query: tuple[int, ...], key: tuple[int, ...]) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, k)

    graph = rk.trace(attend, rk.Input(*query), rk.Input(*key))
    real = attend(torch.zeros(query), torch.zeros(key))
    assert graph.outputs[0].shape == tuple(real.shape)
    # two products over all heads of the common shape
    assert graph.matrix_flop == 2 * 2 * real.shape[:-2].numel() * 5 * 7 * 8
    # no fused kernel takes such: PyTorch falls back to products and a softmax
    assert ATTENTION not in kinds(graph)


def test_open_sizes_of_attention_are_not_taken_for_broadcast() -> None:
    q = rk.Input("b", "h", "s", 8)
    graph = rk.trace(lambda q, k: functional.scaled_dot_product_attention(q, k, k), q, rk.Input("b", "h", "t", 8))
    assert kinds(graph) == [ATTENTION]
    assert graph.at(b=2, h=3, s=5, t=7).matrix_flop == 2 * 2 * 6 * 5 * 7 * 8


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3)])
def test_cells_are_three_kernels(layer: type[nn.RNNCellBase], gates: int, bias: bool) -> None:
    i, h = 5, 7
    model = layer(i, h, bias=bias)
    state = rk.Input("n", h)
    states = (state, state) if layer is nn.LSTMCell else state
    graph = rk.trace(model, rk.Input("n", i), states, mode="training", strict=True)
    assert graph.dims == ("n",)
    forward = [p for p in graph.priced if p.op.phase == "forward" and p.costs]
    fused = "aten._thnn_fused_lstm_cell" if layer is nn.LSTMCell else "aten._thnn_fused_gru_cell"
    assert [p.op.kind for p in forward][:3] == ["aten.mm", "aten.mm", fused]
    at = graph.at(n=6)
    fixed = rk.trace(layer(i, h, bias=bias), rk.Input(6, i), mode="training")
    assert at.matrix_flop == fixed.matrix_flop
    # 6 rows: the products of input and state, and for their weights again; nothing asks for the states' gradients
    assert at.matrix_flop == 2 * 6 * gates * h * (i + h) * 2
    cell = next(p for p in at.priced if p.op.kind == fused)
    # read: both products, the state, two biases; written: state (and cell), and what backward needs
    kept = 4 if layer is nn.LSTMCell else 5
    assert cell.costs[0].read_bytes == 4 * (6 * 2 * gates * h + 6 * h + 2 * gates * h * bias)
    assert cell.costs[0].write_bytes == 4 * 6 * h * (kept + (2 if layer is nn.LSTMCell else 1))


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_plain_cells_keep_the_batch_open(nonlinearity: str) -> None:
    graph = rk.trace(nn.RNNCell(5, 7, nonlinearity=nonlinearity), rk.Input("n", 5), rk.Input("n", 7))
    assert kinds(graph) == ["aten.addmm", "aten.addmm", "aten.add_", f"aten.{nonlinearity}"]
    assert graph.at(n=6).matrix_flop == 2 * 6 * 7 * (5 + 7)


def test_a_sound_is_put_together_again_as_pytorch_does_it() -> None:
    """The operators of a real call, the look at the windows' sum among them; n frames 16 apart make 64 + 16·(n - 1)."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(function.name().replace("::", ".").split(".")[1])
            return function(*args, **(kwargs or {}))

    window = torch.hann_window(64)

    def sound(x: torch.Tensor) -> torch.Tensor:
        return torch.istft(torch.complex(x, x), 64, 16, window=window)

    given = torch.rand(2, 33, 26)
    with Log():
        real = sound(given)
    graph = rk.trace(sound, rk.Input(2, 33, 26))
    views = {"view", "transpose", "view_as_real", "view_as_complex", "expand", "slice"}  # free
    assert [kind.split(".")[1] for kind in kinds(graph) if kind.split(".")[1] not in views] == [
        name for name in seen if name not in views
    ]
    (output,) = rk.trace(sound, rk.Input("n", 33, "t")).at(n=2, t=26).ops[-1].outputs
    assert output.shape == tuple(real.shape) == (2, 64 + 16 * 25 - 64)


def test_values_wider_than_queries_are_not_for_flash_attention() -> None:
    """CUDA's flash kernels want heads of one width; differential attention has values twice as wide."""

    def attention(width: int) -> rk.Graph:
        q, v = (rk.Input("n", 4, 16, w, dtype="bfloat16") for w in (32, width))
        return rk.trace(functional.scaled_dot_product_attention, q, q, v)

    assert kinds(attention(32)) == ["aten._scaled_dot_product_flash_attention"]
    assert kinds(attention(64)) == ["aten._scaled_dot_product_efficient_attention"]
    assert attention(64).ops[-1].outputs[0].shape[-1] == 64


def test_a_gpu_by_its_number() -> None:
    def moved(x: torch.Tensor) -> torch.Tensor:
        return x.to(0) + torch.zeros(4, device=0)

    assert [op.kind for op in rk.trace(moved, rk.Input(4)).ops] == ["aten.zeros", "aten.add"]
