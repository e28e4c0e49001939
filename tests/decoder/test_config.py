"""Decoders of families' config.json, against the models that transformers makes of them."""

import json
import re
from typing import Any

import pytest
import torch

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.tracing.targets import declare_torchvision_operators

LLAMA = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99, "intermediate_size": 96}


@pytest.mark.parametrize(
    "family",
    ["bloom", "deepseek_v3", "falcon", "gemma2", "glm4_moe", "gpt_bigcode", "gpt_neox", "granitemoeshared", "mpt",
     "phi", "qwen2_moe", "starcoder2", "xglm"],
)  # fmt: skip
def test_parameters_are_those_of_the_model(family: str) -> None:
    declare_torchvision_operators()
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family)
    config.num_hidden_layers = 3
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:3]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    decoder = rk.Decoder.from_config(json.loads(json.dumps(config.to_dict(), default=str)))
    # gains, biases and learned positions are left out
    assert decoder.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.02)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model_type": "zamba2"}, "config: model_type 'zamba2': a family whose layers are not known here"),
        ({"model_type": "lama"}, "are not known here; did you mean 'llama' or"),
        ({"layer_types": ["conv", "full_attention"]}, "config: layer_types: the model has layers of 'conv'"),
        ({"mamba_d_state": 16}, "config: mamba_d_state: the model has state-space layers"),
        ({"interleave_moe_layer_step": 2}, "config: interleave_moe_layer_step: 2: the model has layers with experts"),
        ({"kv_lora_rank": 16}, "decoder: qk_nope_head_dim: expected an integer of 1 or more; got None"),
        ({"word_embed_proj_dim": 32}, "config: word_embed_proj_dim: the embedding is of another width"),
    ],
)
def test_an_unknown_part_is_refused_by_name(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        rk.Decoder.from_config(LLAMA | more)


def test_windows_of_families_that_do_not_list_their_layers() -> None:
    given = LLAMA | {"sliding_window": 16}
    assert rk.Decoder.from_config(given | {"model_type": "mistral"}).full_layers == 0
    assert rk.Decoder.from_config(given | {"model_type": "gemma2"}).full_layers == 2
    assert rk.Decoder.from_config(given | {"model_type": "gemma3_text", "sliding_window_pattern": 4}).full_layers == 1


def test_families_whose_attention_and_network_stand_side_by_side() -> None:
    def parallel(family: str, **more: Any) -> bool:
        return rk.Decoder.from_config(LLAMA | {"model_type": family} | more).parallel

    assert all(parallel(family) for family in ("gptj", "cohere", "gpt_neox", "falcon"))
    assert not any(parallel(family) for family in ("llama", "stablelm"))
    assert not parallel("gpt_neox", use_parallel_residual=False)
    assert not parallel("falcon", parallel_attn=False)
    assert parallel("falcon", parallel_attn=False, new_decoder_architecture=True, num_kv_heads=2)


def test_layers_without_experts_before_those_with_them() -> None:
    moe = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
    decoder = rk.Decoder.from_config(LLAMA | moe | {"model_type": "glm4_moe", "first_k_dense_replace": 1})
    assert (decoder.dense_layers, decoder.dense_ffn, decoder.shared_ffn, decoder.ffn) == (1, 96, 32, 32)
    graph = decoder.decode()
    # attention 4 · 64², one network of 3 · 64 · 96, three of 9 experts of 3 · 64 · 32 and a router of 64 · 8; gains of
    # 64: two a layer and one; embedding and output
    by_hand = 4 * 4 * 64**2 + 3 * 64 * 96 + 3 * (9 * 3 * 64 * 32 + 64 * 8) + 9 * 64 + 2 * 99 * 64
    assert graph.parameters == by_hand
    assert decoder.parameters == by_hand - 9 * 64
    with pytest.raises(InputError, match="dense_layers: expected fewer than layers"):
        decoder.with_changes(dense_layers=5)


LATENT = rk.Decoder(
    name="latent", layers=2, hidden=256, heads=8, kv_heads=8, head_dim=48, ffn=512, vocab=1000, latent=64,
    query_latent=96, rope_dim=16, value_dim=32,
)  # fmt: skip


def test_a_latent_is_all_that_the_cache_holds() -> None:
    assert LATENT.kv_bytes_per_token() == LATENT.kv_bytes_per_token(tp=4) == 2 * (64 + 16) * 2
    # a layer: down to 96 + 64 + 16, queries 96 · 8 · 48, keys of 32 and values of 32 a head from 64, back 8 · 32 · 256
    attention = 256 * 176 + 96 * 8 * 48 + 64 * 8 * (32 + 32) + 8 * 32 * 256
    assert LATENT.layer_parameters == attention + 3 * 256 * 512
    for graph in (LATENT.decode(), LATENT.prefill()):
        gains = 2 * (2 * 256 + 96 + 64) + 256
        assert graph.parameters == 2 * (attention + 3 * 256 * 512) + 2 * 1000 * 256 + gains


def test_what_decoding_over_a_latent_costs() -> None:
    graph = LATENT.decode().at(batch=4, context=100)
    (one, _) = [priced for priced in graph.priced if priced.op.kind == "serving.paged_attention"]
    # scores over 80 numbers, sums over 64, for 4 sequences of 100 tokens and 8 heads
    assert one.costs[0].matrix_flop == 2 * 4 * 8 * 100 * (80 + 64)
    # the latent is read once for all heads; queries of 80 and results of 64 a head
    assert one.costs[0].read_bytes == 2 * (4 * 100 * 80 + 4 * 8 * 80)
    halves = LATENT.decode(tp=2).at(batch=4, context=100)
    (half, _) = [priced for priced in halves.priced if priced.op.kind == "serving.paged_attention"]
    assert half.costs[0].read_bytes == 2 * (4 * 100 * 80 + 4 * 4 * 80)


def test_a_prompt_makes_keys_and_values_of_the_latent() -> None:
    graph = LATENT.prefill().at(batch=1, seq=64)
    made = [priced for priced in graph.priced if priced.op.kind == "aten.mm" and priced.op.inputs[1].shape == (64, 512)]
    assert len(made) == 2
    (one, _) = [priced for priced in graph.priced if priced.op.kind == "serving.paged_attention"]
    # pairs of 64 causal tokens, 8 heads
    assert one.costs[0].matrix_flop == 2 * 8 * (64 * 65 // 2) * (48 + 32)


def test_numbers_that_make_no_latent() -> None:
    with pytest.raises(InputError, match="decoder: latent: expected rope_dim below head_dim, value_dim, and no window"):
        LATENT.with_changes(rope_dim=0)
