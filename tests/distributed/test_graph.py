"""A decoder's training step described by its dimensions, against the module that it describes."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.distributed.records import RECIPES, recipe_of
from rooflinekit.errors import InputError
from rooflinekit.ir.op import Phase
from rooflinekit.tracing.targets import declare_torchvision_operators


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        split = self.qkv(self.norm_1(x)).split(h, dim=2)
        q, k, v = (one.view(b, s, self.heads, -1).transpose(1, 2) for one in split)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(y.transpose(1, 2).reshape(b, s, h))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocab: int, seq: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(seq, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


LAYERS, WIDTH, HEADS, VOCAB, SEQ, BATCH = 2, 1024, 16, 32000, 1024, 8
GPT = rk.Decoder(
    name="gpt", layers=LAYERS, hidden=WIDTH, heads=HEADS, kv_heads=HEADS, head_dim=WIDTH // HEADS, ffn=4 * WIDTH,
    vocab=VOCAB, gated=False, norm="layer", bias=True, positions="learned", tied=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def traced() -> rk.Graph:
    model = Gpt(LAYERS, WIDTH, HEADS, VOCAB, SEQ).to(torch.bfloat16)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), torch.zeros(BATCH * SEQ, dtype=torch.long))

    ids = rk.Input(BATCH, SEQ, dtype="int64")
    return rk.trace(model, ids, mode="training", loss=loss, optimizer=torch.optim.AdamW)


def test_traced_and_described_agree(traced: rk.Graph) -> None:
    described = rk.training_graph(GPT, batch=BATCH, seq=SEQ)
    assert described.parameters == traced.parameters
    assert described.matrix_flop == traced.matrix_flop
    for gpu in ("nvidia-a100-sxm4-80gb", "nvidia-h100-sxm5-80gb"):
        a, b = rk.predict(traced, gpu=gpu), rk.predict(described, gpu=gpu)
        assert b.total_s == pytest.approx(a.total_s, rel=0.02)
        assert b.memory.peak_bytes == pytest.approx(a.memory.peak_bytes, rel=0.02)


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_a_decoder_of_transformers_launches_the_kernels_of_its_recipe(family: str) -> None:
    declare_torchvision_operators()
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2, "num_attention_heads": 8}
    config = getattr(transformers, f"{family}Config")(**sizes, num_key_value_heads=2, vocab_size=VOCAB, head_dim=128)
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16)

    def loss(ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, labels=ids, use_cache=False).loss

    ids = rk.Input(2, 2048, dtype="int64")
    traced = rk.trace(loss, ids, mode="training", optimizer=lambda p: torch.optim.AdamW(p, fused=True), fixed=True)
    llama = rk.Decoder.from_config(config.to_dict())
    described = rk.training_graph(llama, batch=2, seq=2048, recipe="huggingface")
    for gpu in ("nvidia-a100-sxm4-80gb", "nvidia-h100-sxm5-80gb"):
        a, b = rk.predict(traced, gpu=gpu), rk.predict(described, gpu=gpu)
        assert b.gpu_s == pytest.approx(a.gpu_s, rel=0.03)
        assert b.bytes == pytest.approx(a.bytes, rel=0.01)
        ours, theirs = b.by_kind()["kernels"], a.by_kind()["kernels"]
        # beside masks and positions, which are made once a step, each kind of kernel is launched as often
        assert {kind: n for kind, n in ours.items() if n > 2} == {
            kind: n - ONCE.get(kind, 0) for kind, n in theirs.items() if n > 2 and kind != "aten.clone"
        }


#: Kernels of transformers' masks and positions.
ONCE = {"aten._to_copy": 4, "aten.add": 1, "aten.cat": 2, "aten.mul": 3, "aten.sum": 1}


def test_matrix_flop_by_hand() -> None:
    described = rk.training_graph(GPT, batch=BATCH, seq=SEQ)
    tokens = BATCH * SEQ
    products = LAYERS * 12 * WIDTH**2 + VOCAB * WIDTH  # numbers that multiply each token
    # causal: s·(s+1)/2 pairs, of head_dim multiply-adds; 2 products forward, 5 backward
    attention = LAYERS * 7 * 2 * BATCH * (SEQ * (SEQ + 1) // 2) * WIDTH
    assert described.matrix_flop == 6 * products * tokens + attention


def test_full_recomputation_adds_the_layers_forward() -> None:
    plain = rk.training_graph(GPT, batch=BATCH, seq=SEQ)
    full = rk.training_graph(GPT, batch=BATCH, seq=SEQ, recipe=recipe_of("pytorch").with_changes(recompute="full"))
    forward = LAYERS * (2 * 12 * WIDTH**2 * BATCH * SEQ + 2 * 2 * BATCH * (SEQ * (SEQ + 1) // 2) * WIDTH)
    assert full.matrix_flop - plain.matrix_flop == forward


def test_torchtitan_computes_every_other_product_again() -> None:
    gated = GPT.with_changes(kv_heads=HEADS // 4, gated=True, norm="rms", bias=False, positions="rotary", tied=False)
    plain, selective = (
        rk.training_graph(gated, batch=BATCH, seq=SEQ, recipe=recipe_of("torchtitan").with_changes(recompute=word))
        for word in ("none", "selective")
    )
    # of q, k, v, output, gate, up and down the second, fourth and sixth: k, output, up
    again = LAYERS * BATCH * SEQ * 2 * WIDTH * (WIDTH // 4 + WIDTH + 4 * WIDTH)
    assert selective.matrix_flop - plain.matrix_flop == again


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_has_the_same_products(recipe: str) -> None:
    chosen = recipe_of(recipe).with_changes(recompute="none", attention="flash")
    assert (
        rk.training_graph(GPT, batch=1, seq=SEQ, recipe=chosen).matrix_flop
        == rk.training_graph(GPT, batch=1, seq=SEQ).matrix_flop
    )


def test_eight_bits_are_as_many_products_and_less_time() -> None:
    wide = GPT.with_changes(layers=1, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=16384)
    plain = rk.training_graph(wide, batch=2, seq=4096, recipe="megatron")
    eight = rk.training_graph(wide, batch=2, seq=4096, recipe=recipe_of("megatron").with_changes(fp8=True))
    assert eight.matrix_flop == plain.matrix_flop
    times = [rk.predict(graph, gpu="nvidia-h100-sxm5-80gb").gpu_s for graph in (plain, eight)]
    assert times[1] < 0.9 * times[0]


def test_words_that_are_no_recipe() -> None:
    with pytest.raises(InputError, match=r"expected pytorch, .*, megatron-2023; got 'megatorn'"):
        rk.training_graph(GPT, batch=1, seq=64, recipe="megatorn")
    with pytest.raises(InputError, match="attention: expected flash, flash-1, flash-2, unfused; got 'flsh'"):
        rk.Recipe(attention="flsh")


def test_megatron_launches_a_product_for_each_expert() -> None:
    mixture = rk.Decoder(
        name="mixture", layers=1, hidden=64, heads=2, kv_heads=2, head_dim=32, ffn=128, vocab=256, experts=8,
        experts_per_token=2,
    )  # fmt: skip

    def calls(recipe: object) -> list[int]:
        graph = rk.training_graph(mixture, batch=1, seq=64, recipe=recipe)
        return [p.op.attrs["calls"] for p in graph.priced if "calls" in p.op.attrs]

    # two products forward, and for each one of the activation's and one of the weight's gradient
    assert calls("megatron") == 6 * [8]
    # in 8 bits each expert's rows take four calls more, but for the weight's gradient, which finds them made
    assert sorted(calls(recipe_of("megatron").with_changes(fp8=True))) == 2 * [8] + 4 * [8 * 5]
    assert calls("pytorch") == 6 * [1]


@pytest.mark.parametrize("experts", [{}, {"experts": 4, "experts_per_token": 2, "shared_ffn": 128}])
def test_prefill_and_training_multiply_the_same_in_each_module(experts: dict[str, int]) -> None:
    shape = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 512, "vocab": 1000}
    decoder = rk.Decoder(layers=2, **shape, **experts)
    prefill = decoder.prefill().at(batch=2, seq=128)
    training = rk.training_graph(decoder, batch=2, seq=128)

    def products(graph: rk.Graph) -> dict[str, int]:
        found: dict[str, int] = {}
        for p in graph.priced:
            if p.op.phase is Phase.FORWARD and p.op.module.startswith("layers") and "attention" not in p.op.kind:
                module = p.op.module.removesuffix(".core")
                found[module] = found.get(module, 0) + sum(int(cost.matrix_flop) for cost in p.costs)
        return {module: flop for module, flop in found.items() if flop}

    assert products(prefill) == products(training)
    assert [*products(prefill)] == [f"layers.{i}.{part}" for i in range(2) for part in ("attention", "network")]


def test_attention_beside_the_network_needs_no_second_norm_and_one_addition_to_the_residual() -> None:
    ours, theirs = (rk.training_graph(GPT.with_changes(parallel=on), batch=2, seq=64) for on in (True, False))
    assert ours.matrix_flop == theirs.matrix_flop
    kinds = Counter(p.op.kind for p in theirs.priced)
    kinds.subtract(p.op.kind for p in ours.priced)
    assert kinds["aten.native_layer_norm"] == kinds["aten.native_layer_norm_backward"] == LAYERS
    assert kinds["aten.add"] == 0  # network and attention are added to one another, gradients of one norm's result too


def test_layers_with_a_window_see_its_keys_and_others_all() -> None:
    def pairs(**window: int | None) -> float:
        """Of queries and keys, a sequence, layer and head: 7 products forward and backward, 2 FLOP a channel."""
        graph = rk.training_graph(GPT.with_changes(**window), batch=BATCH, seq=SEQ)
        products = 6 * (LAYERS * 12 * WIDTH**2 + VOCAB * WIDTH) * BATCH * SEQ
        return float(graph.matrix_flop - products) / (LAYERS * 7 * 2 * BATCH * WIDTH)

    within = sum(min(query, 128) for query in range(SEQ))
    assert pairs(window=128) == pytest.approx(within, rel=0.005)
    assert pairs(window=128, windowed_layers=1) == pytest.approx((within + SEQ**2 / 2) / 2, rel=0.005)
    assert pairs(window=SEQ - 1) == pytest.approx(pairs(window=None), rel=0.005)


@pytest.mark.parametrize("name", ["deepseek-v3", "glm-4.5"])
def test_layers_that_training_does_not_describe_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}: (latent|dense_layers): expected 0 for a training step"):
        rk.train(rk.Decoder.from_config(name), cluster="dgx-h100", batch=8, seq=4096)
